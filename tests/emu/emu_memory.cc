/*
 * Memory of the emulation. All device memory is one file in memory; an allocation is a piece of
 * it, and mapping puts that piece at an address, so that an allocation keeps its bytes where it
 * is moved, and can be at two places. Nothing can be reached (PROT_NONE) until a kernel or copy
 * faults on it: what cuMemSetAccess has been called for is then opened, until the work that runs
 * together has ended.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <map>
#include <set>

#include "tests/emu/emu_internal.h"

namespace emu {

namespace {

struct allocation_t {
    int device;
    size_t offset, size; /* in the file */
    int n_users;         /* its handle, and its mappings */
};

struct mapping_t {
    size_t size;
    CUmemGenericAllocationHandle handle;
    uint64_t devices; /* a bit for each that may access it */
};

struct memory_t {
    int file = -1;
    size_t file_bytes = 0;
    std::map<CUmemGenericAllocationHandle, allocation_t> allocations;
    std::set<CUmemGenericAllocationHandle> handles; /* not released */
    std::multimap<size_t, size_t> holes;            /* of the file: offset by size */
    CUmemGenericAllocationHandle n_handles = 0;
    std::map<uintptr_t, size_t> reservations;
    std::map<uintptr_t, mapping_t> mappings;
    std::set<uintptr_t> mallocs;
    std::map<uintptr_t, size_t> pinned;
    std::map<uintptr_t, size_t> open; /* what has been reached, until the access ends */
    int n_accesses = 0;               /* access_t that exist */
};
memory_t &memory = *new memory_t; /* is looked at after the last destructor */

/* The element of a map from begins to sizes that an address is in, or its end. */
template <typename M, typename S> auto find_at(M &map, uintptr_t address, S size_of) {
    auto it = map.upper_bound(address);
    if (it == map.begin())
        return map.end();
    --it;
    return address - it->first < size_of(it->second) ? it : map.end();
}

size_t plain_size(size_t size) {
    return size;
}

size_t mapping_size(const mapping_t &mapping) {
    return mapping.size;
}

/* ---- reaching it ---- */

const size_t open_ahead_bytes = (size_t)1 << 20;

void protect(uintptr_t begin, size_t size, int access) {
    if (mprotect((void *)begin, size, access) != 0)
        abort();
}

void close_all() {
    for (auto &[begin, size] : memory.open)
        protect(begin, size, PROT_NONE);
    memory.open.clear();
}

/* ---- pieces of the file ---- */

size_t take_piece(size_t size) {
    auto hole = memory.holes.find(size);
    if (hole != memory.holes.end()) {
        size_t offset = hole->second;
        memory.holes.erase(hole);
        return offset;
    }
    if (memory.file < 0)
        memory.file = memfd_create("emulated device", 0);
    size_t offset = memory.file_bytes;
    memory.file_bytes += size;
    if (memory.file < 0 || ftruncate(memory.file, (off_t)memory.file_bytes) != 0)
        abort();
    return offset;
}

void drop(CUmemGenericAllocationHandle handle) {
    auto it = memory.allocations.find(handle);
    if (--it->second.n_users > 0)
        return;
    memory.holes.emplace(it->second.size, it->second.offset);
    memory.allocations.erase(it);
}

size_t used_bytes(int device) {
    size_t used = 0;
    for (auto &[handle, allocation] : memory.allocations)
        used += allocation.device == device ? allocation.size : 0;
    return used;
}

/* ---- the calls, without their checks ---- */

CUresult reserve(uintptr_t *base_p, size_t size, size_t alignment) {
    void *pages =
        mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t base = ((uintptr_t)pages + alignment - 1) / alignment * alignment;
    munmap(pages, base - (uintptr_t)pages);
    munmap((void *)(base + size), (uintptr_t)pages + alignment - base);
    memory.reservations[base] = size;
    *base_p = base;
    return CUDA_SUCCESS;
}

void hide(uintptr_t address, size_t size) {
    if (mmap((void *)address, size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
}

CUresult create(CUmemGenericAllocationHandle *handle, size_t size, int device) {
    if (options.in_use_bytes + used_bytes(device) + size > options.memory_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = ++memory.n_handles;
    memory.allocations[*handle] = {device, take_piece(size), size, 1};
    memory.handles.insert(*handle);
    return CUDA_SUCCESS;
}

CUresult map(uintptr_t address, size_t size, CUmemGenericAllocationHandle handle) {
    auto reservation = find_at(memory.reservations, address, plain_size);
    auto after = memory.mappings.lower_bound(address);
    if (memory.handles.count(handle) == 0 || memory.allocations[handle].size != size ||
        reservation == memory.reservations.end() ||
        address + size > reservation->first + reservation->second ||
        find_at(memory.mappings, address, mapping_size) != memory.mappings.end() ||
        (after != memory.mappings.end() && after->first < address + size)) {
        misuse("cuMemMap at %p: not an allocation, or not free addresses", (void *)address);
        return CUDA_ERROR_INVALID_VALUE;
    }
    allocation_t &allocation = memory.allocations[handle];
    if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory.file,
             (off_t)allocation.offset) == MAP_FAILED)
        abort();
    allocation.n_users++;
    memory.mappings[address] = {size, handle, 0};
    return CUDA_SUCCESS;
}

CUresult unmap(uintptr_t address, size_t size) {
    auto it = memory.mappings.find(address);
    if (it == memory.mappings.end() || it->second.size != size) {
        misuse("cuMemUnmap at %p: not a mapping", (void *)address);
        return CUDA_ERROR_INVALID_VALUE;
    }
    hide(address, size);
    CUmemGenericAllocationHandle handle = it->second.handle;
    memory.mappings.erase(it);
    drop(handle);
    return CUDA_SUCCESS;
}

CUresult release(CUmemGenericAllocationHandle handle) {
    if (memory.handles.erase(handle) == 0) {
        misuse("cuMemRelease: %llu is no handle", handle);
        return CUDA_ERROR_INVALID_VALUE;
    }
    drop(handle);
    return CUDA_SUCCESS;
}

CUresult set_access(uintptr_t address, size_t size, const CUmemAccessDesc *accesses, size_t count) {
    for (uintptr_t at = address; at < address + size; at += memory.mappings[at].size) {
        auto it = memory.mappings.find(at);
        if (it == memory.mappings.end()) {
            misuse("cuMemSetAccess at %p: not mapped throughout", (void *)address);
            return CUDA_ERROR_INVALID_VALUE;
        }
        for (size_t i = 0; i < count; i++)
            it->second.devices |= (uint64_t)1 << accesses[i].location.id;
    }
    return CUDA_SUCCESS;
}

CUresult address_free(uintptr_t address, size_t size) {
    auto it = memory.reservations.find(address);
    auto mapping = memory.mappings.lower_bound(address);
    if (it == memory.reservations.end() || it->second != size ||
        (mapping != memory.mappings.end() && mapping->first < address + size)) {
        misuse("cuMemAddressFree at %p: not a range, or mapped", (void *)address);
        return CUDA_ERROR_INVALID_VALUE;
    }
    memory.reservations.erase(it);
    munmap((void *)address, size);
    return CUDA_SUCCESS;
}

} // namespace

access_t::access_t() {
    if (memory.n_accesses++ == 0)
        catch_faults();
}

access_t::~access_t() {
    if (--memory.n_accesses > 0)
        return;
    close_all();
    leave_faults();
}

bool open_at(int device, const void *address) {
    auto it = find_at(memory.mappings, (uintptr_t)address, mapping_size);
    if (memory.n_accesses == 0 || it == memory.mappings.end())
        return false;
    uintptr_t begin = it->first, end = begin;
    while (it != memory.mappings.end() && it->first == end && end - begin < open_ahead_bytes &&
           (it->second.devices >> device & 1) != 0 && memory.open.count(end) == 0) {
        end += it->second.size;
        ++it;
    }
    if (begin == end)
        return false;
    protect(begin, end - begin, PROT_READ | PROT_WRITE);
    memory.open[begin] = end - begin;
    return true;
}

bool is_device_address(const void *address) {
    return find_at(memory.reservations, (uintptr_t)address, plain_size) !=
           memory.reservations.end();
}

bool may_access(int device, const void *address, size_t size_bytes, bool or_pageable) {
    uintptr_t at = (uintptr_t)address, end = at + size_bytes;
    while (is_device_address((void *)at)) {
        auto it = find_at(memory.mappings, at, mapping_size);
        if (it == memory.mappings.end() || (it->second.devices >> device & 1) == 0)
            return false;
        at = it->first + it->second.size;
        if (at >= end)
            return true;
    }
    auto piece = find_at(memory.pinned, at, plain_size);
    if (piece != memory.pinned.end())
        return end <= piece->first + piece->second;
    auto after = memory.pinned.lower_bound(at);
    return or_pageable && (after == memory.pinned.end() || after->first >= end);
}

size_t n_live_memory() {
    return memory.reservations.size() + memory.mappings.size() + memory.handles.size() +
           memory.pinned.size();
}

} // namespace emu

using namespace emu;

/* ---- the driver's calls --------------------------------------------------------------------- */

#define ENTER                                                                                      \
    std::lock_guard<std::mutex> lock(emu::mutex);                                                  \
    cudaError_t failure = called(__func__);                                                        \
    if (failure != cudaSuccess)                                                                    \
    return (CUresult)failure

/* Of calls that give something back: they do, and then report. */
#define ENTER_TO_GIVE_BACK                                                                         \
    std::lock_guard<std::mutex> lock(emu::mutex);                                                  \
    cudaError_t failure = called(__func__)
static CUresult given_back(CUresult result, cudaError_t failure) {
    return failure != cudaSuccess ? (CUresult)failure : result;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option) {
    ENTER;
    (void)properties;
    (void)option;
    *granularity = options.granule_bytes;
    return CUDA_SUCCESS;
}

static bool is_whole(size_t size) {
    return size > 0 && size % options.granule_bytes == 0;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
    ENTER;
    if (!is_whole(size) || hint != 0 || flags != 0 || size > (size_t)1 << 46)
        return CUDA_ERROR_INVALID_VALUE;
    uintptr_t base = 0;
    CUresult result = reserve(&base, size, alignment > 0 ? alignment : options.granule_bytes);
    *address = base;
    return result;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    ENTER_TO_GIVE_BACK;
    return given_back(address_free(address, size), failure);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
    ENTER;
    if (!is_whole(size) || flags != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    return create(handle, size, properties->location.id);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER_TO_GIVE_BACK;
    return given_back(release(handle), failure);
}

CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    ENTER;
    if (!is_whole(size) || address % options.granule_bytes != 0 || offset != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return map(address, size, handle);
}

CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    ENTER_TO_GIVE_BACK;
    return given_back(unmap(address, size), failure);
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *accesses,
                        size_t count) {
    ENTER;
    return set_access(address, size, accesses, count);
}

/* ---- the runtime's calls -------------------------------------------------------------------- */

/* Without virtual memory management an address has one allocation, and is mapped at once. */
cudaError_t cudaMalloc(void **address, size_t size) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called(__func__);
    if (failure != cudaSuccess)
        return returned(failure);
    size_t whole = (size + options.granule_bytes - 1) / options.granule_bytes;
    whole *= options.granule_bytes;
    CUmemGenericAllocationHandle handle;
    uintptr_t base = 0;
    CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, current_device()},
                              CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (create(&handle, whole, current_device()) != CUDA_SUCCESS)
        return returned(cudaErrorMemoryAllocation);
    if (reserve(&base, whole, 4096) != CUDA_SUCCESS) {
        release(handle);
        return returned(cudaErrorMemoryAllocation);
    }
    map(base, whole, handle);
    set_access(base, whole, &access, 1);
    memory.mallocs.insert(base);
    *address = (void *)base;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called(__func__);
    uintptr_t base = (uintptr_t)address;
    if (address != NULL && memory.mallocs.erase(base) == 0) {
        misuse("cudaFree of %p, which is nobody's", address);
        return returned(cudaErrorInvalidValue);
    }
    if (address != NULL) {
        mapping_t mapping = memory.mappings[base];
        unmap(base, mapping.size);
        release(mapping.handle);
        address_free(base, mapping.size);
    }
    return returned(failure);
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called(__func__);
    *total = options.memory_bytes;
    *free = *total - options.in_use_bytes - used_bytes(current_device());
    return returned(failure);
}

/* Whether the program itself can read the byte; where it may not ask, yes. */
static bool is_readable(const void *address) {
    char byte;
    struct iovec to = {&byte, 1}, from = {(void *)address, 1};
    return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 || errno != EFAULT;
}

cudaError_t cudaHostRegister(void *address, size_t size, unsigned flags) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called(__func__);
    uintptr_t begin = (uintptr_t)address;
    if (failure != cudaSuccess)
        return returned(failure);
    if (size == 0 || (flags & ~cudaHostRegisterPortable) != 0 || !is_readable(address) ||
        !is_readable((char *)address + size - 1))
        return returned(cudaErrorInvalidValue);
    if (!may_access(0, address, size, true) ||
        find_at(memory.pinned, begin, plain_size) != memory.pinned.end())
        return returned(cudaErrorHostMemoryAlreadyRegistered);
    size_t pinned = size;
    for (auto &piece : memory.pinned)
        pinned += piece.second;
    if (pinned > options.pinned_bytes)
        return returned(cudaErrorMemoryAllocation);
    memory.pinned[begin] = size;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *address) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    cudaError_t failure = called(__func__);
    if (!is_readable(address))
        misuse("cudaHostUnregister of %p, whose pages have gone", address);
    if (memory.pinned.erase((uintptr_t)address) == 0) {
        misuse("cudaHostUnregister of %p, which is not registered", address);
        return returned(cudaErrorHostMemoryNotRegistered);
    }
    return returned(failure);
}

/* ---- for tests ------------------------------------------------------------------------------ */

size_t emu_used_bytes(int device) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    return used_bytes(device);
}

size_t emu_pinned_bytes(void) {
    std::lock_guard<std::mutex> lock(emu::mutex);
    size_t pinned = 0;
    for (auto &piece : memory.pinned)
        pinned += piece.second;
    return pinned;
}
