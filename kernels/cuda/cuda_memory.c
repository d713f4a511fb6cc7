/*
 * Address ranges of the CUDA device.
 *
 * Device tier: a range is addresses of the driver's, and each granule that is mapped has an
 * allocation (handle) of its own, because the driver unmaps whole allocations only. Each takes the
 * driver some 70 us, so that a granule is the larger the more memory there is. Moving maps
 * the allocations at the new place before it unmaps them at the old one, so that nothing is lost
 * when the driver refuses.
 *
 * Host tier: a range is the process's pages, as on the host device; each granule that is mapped is
 * registered with CUDA by itself, and so exactly what is mapped is pinned. A copy must not cross
 * from one registration into the next. Ranges are aligned to the granule, so registrations end at
 * multiples of it, and copies are cut there.
 *
 * Where the GPU or the driver has no virtual memory management, a range of the device tier is one
 * cudaMalloc of its whole size: it takes its memory when it is reserved, mapping and unmapping
 * change nothing, and moving is left to device.c, which maps and unmaps. So that the first range
 * of an allocator does not take all, a range may have a quarter of what is free.
 */
#include <stdlib.h>

#include "kernels/cuda/cuda_device.h"

/* Of a device without virtual memory management; others say theirs, which is the same on most. */
#define ZR_CUDA_PLAIN_GRANULE_BYTES ((size_t)2 << 20)
/* So many fill the device's memory at most: half a second of the driver's time or so. */
#define ZR_CUDA_MOST_GRANULES 16384

/* A granule that is mapped and its allocation (device tier). */
typedef struct granule {
    bool is_mapped;
    CUmemGenericAllocationHandle handle;
} granule_t;

typedef struct zr_cuda_range {
    struct zr_cuda_range *next;
    zr_tier_t tier;
    char *base;
    void *allocation; /* what it lies in, without virtual memory management */
    size_t size_bytes;
    granule_t *granules; /* [n_noted]; from there on none was ever mapped */
    size_t n_noted;
} zr_cuda_range_t;

static zr_cuda_device_t *cuda_of(zr_device_t *device) {
    return (zr_cuda_device_t *)device;
}

static zr_cuda_range_t *find_range(const zr_cuda_device_t *cuda, const void *address) {
    const char *at = address;
    zr_cuda_range_t *range = cuda->ranges;
    while (range != NULL && (at < range->base || at >= range->base + range->size_bytes))
        range = range->next;
    return range;
}

/* The granule at an address of a range, and the address of a granule. */
static size_t index_of(const zr_cuda_device_t *cuda, const zr_cuda_range_t *range,
                       const void *address) {
    return (size_t)((const char *)address - range->base) / cuda->base.info.granule_bytes;
}

static CUdeviceptr address_of(const zr_cuda_device_t *cuda, const zr_cuda_range_t *range,
                              size_t index) {
    return (CUdeviceptr)(uintptr_t)(range->base + index * cuda->base.info.granule_bytes);
}

/* ---- failures of the driver ------------------------------------------------------------------ */

static zr_status_t driver_fail(zr_cuda_device_t *cuda, CUresult result, const char *call,
                               size_t size_bytes) {
    const char *name = NULL, *text = NULL;
    cuda->driver.cuGetErrorName_p(result, &name);
    cuda->driver.cuGetErrorString_p(result, &text);
    return zr_fail(&cuda->base.log, ZR_ERR_DEVICE, "cuda:%d: %s for %zu bytes: %s (%s)",
                   cuda->index, call, size_bytes, text != NULL ? text : "unknown",
                   name != NULL ? name : "?");
}

/* Something that a caller may get over: information, no error. */
static zr_status_t no_room(const zr_cuda_device_t *cuda, zr_tier_t tier, size_t size_bytes,
                           const char *what) {
    zr_log_write(&cuda->base.log, ZR_LOG_INFO, "%s memory: cuda:%d has no %zu bytes %s",
                 zr_tier_name(tier), cuda->index, size_bytes, what);
    return ZR_ERR_BUDGET;
}

/* ---- what the device can -------------------------------------------------------------------- */

static CUmemAllocationProp allocation_of(const zr_cuda_device_t *cuda) {
    CUmemAllocationProp properties = {0};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED; /* of a device: its own memory */
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = cuda->index;
    return properties;
}

static zr_status_t find_granule(zr_cuda_device_t *cuda) {
    const zr_cuda_driver_t *driver = &cuda->driver;
    int is_supported = 0;
    CUdevice ordinal = 0;
    CUresult result = driver->cuDeviceGet_p(&ordinal, cuda->index);
    if (result == CUDA_SUCCESS)
        result = driver->cuDeviceGetAttribute_p(
            &is_supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal);
    if (result != CUDA_SUCCESS)
        return driver_fail(cuda, result, "cuDeviceGetAttribute", 0);
    cuda->has_virtual_memory = is_supported != 0;
    cuda->base.info.granule_bytes = ZR_CUDA_PLAIN_GRANULE_BYTES;
    if (!cuda->has_virtual_memory) {
        zr_log_write(&cuda->base.log, ZR_LOG_WARNING,
                     "cuda:%d: no virtual memory management here: device memory cannot be moved "
                     "between classes of tensors",
                     cuda->index);
        return ZR_OK;
    }
    CUmemAllocationProp properties = allocation_of(cuda);
    result = driver->cuMemGetAllocationGranularity_p(&cuda->base.info.granule_bytes, &properties,
                                                     CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result != CUDA_SUCCESS)
        return driver_fail(cuda, result, "cuMemGetAllocationGranularity", 0);
    while (cuda->base.info.memory_bytes / cuda->base.info.granule_bytes > ZR_CUDA_MOST_GRANULES)
        cuda->base.info.granule_bytes *= 2;
    return ZR_OK;
}

/* The device itself and those whose kernels and copies can reach its memory, and may want to. */
static zr_status_t find_accesses(zr_cuda_device_t *cuda) {
    int n_devices = 0;
    cudaError_t error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess)
        return zr_cuda_fail(&cuda->base, error, "counting devices");
    cuda->accesses = calloc((size_t)n_devices, sizeof(*cuda->accesses));
    if (cuda->accesses == NULL)
        return zr_fail(&cuda->base.log, ZR_ERR_MEMORY, "cuda:%d: no memory to note %s", cuda->index,
                       zr_count_text((uint64_t)n_devices, "device").text);
    for (int peer = 0; peer < n_devices; peer++) {
        int can_access = peer == cuda->index;
        if (!can_access && !cuda->has_no_peers)
            error = cudaDeviceCanAccessPeer(&can_access, peer, cuda->index);
        if (error != cudaSuccess)
            return zr_cuda_fail(&cuda->base, error, "asking for access from device %d", peer);
        if (!can_access)
            continue;
        CUmemAccessDesc *access = &cuda->accesses[cuda->n_accesses++];
        access->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access->location.id = peer;
        access->flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return ZR_OK;
}

zr_status_t zr_cuda_memory_open(zr_cuda_device_t *cuda) {
    ZR_TRY(find_granule(cuda));
    return find_accesses(cuda);
}

void zr_cuda_memory_close(zr_cuda_device_t *cuda) {
    free(cuda->accesses);
}

size_t zr_cuda_copy_piece(const zr_cuda_device_t *cuda, const void *address, size_t size_bytes) {
    const zr_cuda_range_t *range = find_range(cuda, address);
    if (range == NULL || range->tier != ZR_TIER_HOST)
        return size_bytes;
    size_t granule = cuda->base.info.granule_bytes;
    size_t left = granule - (uintptr_t)address % granule;
    return left < size_bytes ? left : size_bytes;
}

/* ---- addresses ------------------------------------------------------------------------------ */

/* Pages that begin at a multiple of the granule: more than enough, less what lies around it. */
static zr_status_t reserve_pages(zr_device_t *device, size_t size_bytes, void **base_p) {
    size_t granule = device->info.granule_bytes;
    void *pages = NULL;
    ZR_TRY(zr_host_backend.range_reserve(device, ZR_TIER_HOST, size_bytes + granule, &pages));
    size_t before = (granule - (uintptr_t)pages % granule) % granule;
    char *base = (char *)pages + before;
    if (before > 0)
        zr_host_backend.range_release(device, ZR_TIER_HOST, pages, before);
    zr_host_backend.range_release(device, ZR_TIER_HOST, base + size_bytes, granule - before);
    *base_p = base;
    return ZR_OK;
}

static zr_status_t reserve_addresses(zr_cuda_device_t *cuda, size_t size_bytes, void **base_p) {
    CUdeviceptr base = 0;
    CUresult result =
        cuda->driver.cuMemAddressReserve_p(&base, size_bytes, cuda->base.info.granule_bytes, 0, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_INVALID_VALUE)
        return no_room(cuda, ZR_TIER_DEVICE, size_bytes, "of addresses in one piece");
    if (result != CUDA_SUCCESS)
        return driver_fail(cuda, result, "cuMemAddressReserve", size_bytes);
    *base_p = (void *)(uintptr_t)base;
    return ZR_OK;
}

/* cudaMalloc promises less alignment than a granule has. */
static zr_status_t allocate_whole(zr_cuda_device_t *cuda, zr_cuda_range_t *range, size_t size_bytes,
                                  void **base_p) {
    size_t granule = cuda->base.info.granule_bytes;
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error == cudaSuccess && size_bytes > free_bytes / 4)
        return no_room(cuda, ZR_TIER_DEVICE, size_bytes, "in a quarter of what is free");
    if (error == cudaSuccess)
        error = cudaMalloc(&range->allocation, size_bytes + granule);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return no_room(cuda, ZR_TIER_DEVICE, size_bytes, "in one piece");
    }
    if (error != cudaSuccess)
        return zr_cuda_fail(&cuda->base, error, "allocating %zu bytes", size_bytes);
    size_t before = (granule - (uintptr_t)range->allocation % granule) % granule;
    *base_p = (char *)range->allocation + before;
    return ZR_OK;
}

zr_status_t zr_cuda_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                  void **base_p) {
    zr_cuda_device_t *cuda = cuda_of(device);
    ZR_TRY(zr_cuda_enter(device));
    zr_cuda_range_t *range = calloc(1, sizeof(*range));
    if (range == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "no memory to note a range (%zu bytes)",
                       sizeof(*range));
    void *base = NULL;
    zr_status_t status;
    if (tier == ZR_TIER_HOST)
        status = reserve_pages(device, size_bytes, &base);
    else if (cuda->has_virtual_memory)
        status = reserve_addresses(cuda, size_bytes, &base);
    else
        status = allocate_whole(cuda, range, size_bytes, &base);
    if (status != ZR_OK) {
        free(range);
        return status;
    }
    range->next = cuda->ranges;
    range->tier = tier;
    range->base = base;
    range->size_bytes = size_bytes;
    cuda->ranges = range;
    *base_p = base;
    return ZR_OK;
}

/* ---- granules ------------------------------------------------------------------------------ */

/* Granules [first, first + n) of a range. */
typedef struct stretch {
    zr_cuda_range_t *range;
    size_t first, n;
} stretch_t;

static stretch_t stretch_at(const zr_cuda_device_t *cuda, const void *address, size_t size_bytes) {
    zr_cuda_range_t *range = find_range(cuda, address);
    return (stretch_t){.range = range,
                       .first = index_of(cuda, range, address),
                       .n = size_bytes / cuda->base.info.granule_bytes};
}

/* Where a stretch ends, as far as anything was ever mapped. */
static size_t end_of(stretch_t stretch) {
    size_t end = stretch.first + stretch.n;
    return end < stretch.range->n_noted ? end : stretch.range->n_noted;
}

/* A range may be thousands of times what is ever mapped, so its notes grow. */
static zr_status_t make_notes(const zr_cuda_device_t *cuda, stretch_t stretch) {
    zr_cuda_range_t *range = stretch.range;
    size_t needed = stretch.first + stretch.n;
    if (needed <= range->n_noted)
        return ZR_OK;
    size_t n = needed > 2 * range->n_noted ? needed : 2 * range->n_noted;
    granule_t *granules = realloc(range->granules, n * sizeof(*granules));
    if (granules == NULL)
        return zr_fail(&cuda->base.log, ZR_ERR_MEMORY, "no memory to note %s (%zu bytes)",
                       zr_count_text(n, "granule").text, n * sizeof(*granules));
    for (size_t i = range->n_noted; i < n; i++)
        granules[i] = (granule_t){.is_mapped = false};
    range->granules = granules;
    range->n_noted = n;
    return ZR_OK;
}

/* ---- granules of the device tier ------------------------------------------------------------ */

/* Put an allocation behind a granule; it can be accessed after `grant`. */
static CUresult map_handle(zr_cuda_device_t *cuda, zr_cuda_range_t *range, size_t index,
                           CUmemGenericAllocationHandle handle) {
    CUresult result = cuda->driver.cuMemMap_p(address_of(cuda, range, index),
                                              cuda->base.info.granule_bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS)
        range->granules[index] = (granule_t){.is_mapped = true, .handle = handle};
    return result;
}

/* Take the allocation from behind a granule. The first failure counts, but all is tried. */
static CUresult unmap_handle(zr_cuda_device_t *cuda, zr_cuda_range_t *range, size_t index) {
    range->granules[index].is_mapped = false;
    return cuda->driver.cuMemUnmap_p(address_of(cuda, range, index), cuda->base.info.granule_bytes);
}

static CUresult grant(zr_cuda_device_t *cuda, stretch_t stretch) {
    return cuda->driver.cuMemSetAccess_p(address_of(cuda, stretch.range, stretch.first),
                                         stretch.n * cuda->base.info.granule_bytes, cuda->accesses,
                                         cuda->n_accesses);
}

/* Make an allocation and map it. */
static CUresult fill_granule(zr_cuda_device_t *cuda, zr_cuda_range_t *range, size_t index) {
    CUmemAllocationProp properties = allocation_of(cuda);
    CUmemGenericAllocationHandle handle;
    CUresult result =
        cuda->driver.cuMemCreate_p(&handle, cuda->base.info.granule_bytes, &properties, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = map_handle(cuda, range, index, handle);
    if (result != CUDA_SUCCESS)
        cuda->driver.cuMemRelease_p(handle);
    return result;
}

/* Unmap what is mapped and give its memory back. */
static CUresult empty(zr_cuda_device_t *cuda, stretch_t stretch) {
    CUresult first_failure = CUDA_SUCCESS;
    for (size_t i = stretch.first; i < end_of(stretch); i++) {
        if (!stretch.range->granules[i].is_mapped)
            continue;
        CUresult result = unmap_handle(cuda, stretch.range, i);
        CUresult released = cuda->driver.cuMemRelease_p(stretch.range->granules[i].handle);
        if (first_failure == CUDA_SUCCESS)
            first_failure = result != CUDA_SUCCESS ? result : released;
    }
    return first_failure;
}

static zr_status_t fill(zr_cuda_device_t *cuda, stretch_t stretch) {
    size_t size_bytes = stretch.n * cuda->base.info.granule_bytes;
    size_t free_bytes = 0, total_bytes = 0;
    /* Thousands of allocations would be made before the last one is refused. */
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess)
        return zr_cuda_fail(&cuda->base, error, "asking how much memory is free");
    if (size_bytes > free_bytes)
        return no_room(cuda, ZR_TIER_DEVICE, size_bytes, "more");
    ZR_TRY(make_notes(cuda, stretch));
    stretch_t done = {.range = stretch.range, .first = stretch.first};
    CUresult result = CUDA_SUCCESS;
    const char *call = "cuMemCreate and cuMemMap";
    for (; done.n < stretch.n && result == CUDA_SUCCESS; done.n += result == CUDA_SUCCESS)
        result = fill_granule(cuda, stretch.range, stretch.first + done.n);
    if (result == CUDA_SUCCESS) {
        call = "cuMemSetAccess";
        result = grant(cuda, stretch);
    }
    if (result == CUDA_SUCCESS)
        return ZR_OK;
    empty(cuda, done);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return no_room(cuda, ZR_TIER_DEVICE, size_bytes, "more");
    return driver_fail(cuda, result, call, size_bytes);
}

/* ---- granules of the host tier -------------------------------------------------------------- */

static void unpin_granule(zr_cuda_device_t *cuda, zr_cuda_range_t *range, size_t index) {
    if (!range->granules[index].is_mapped)
        return;
    range->granules[index].is_mapped = false;
    cudaError_t error = cudaHostUnregister((void *)(uintptr_t)address_of(cuda, range, index));
    if (error != cudaSuccess)
        (void)zr_cuda_fail(&cuda->base, error, "unpinning host memory");
}

static void unpin(zr_cuda_device_t *cuda, stretch_t stretch) {
    for (size_t i = stretch.first; i < end_of(stretch); i++)
        unpin_granule(cuda, stretch.range, i);
}

/* Register each granule, which also puts pages behind it. */
static zr_status_t pin(zr_cuda_device_t *cuda, stretch_t stretch) {
    size_t granule = cuda->base.info.granule_bytes;
    stretch_t done = {.range = stretch.range, .first = stretch.first};
    for (; done.n < stretch.n; done.n++) {
        size_t index = stretch.first + done.n;
        cudaError_t error =
            cudaHostRegister((void *)(uintptr_t)address_of(cuda, stretch.range, index), granule,
                             cudaHostRegisterPortable);
        if (error == cudaSuccess) {
            stretch.range->granules[index].is_mapped = true;
            continue;
        }
        unpin(cuda, done);
        if (error != cudaErrorMemoryAllocation)
            return zr_cuda_fail(&cuda->base, error, "pinning %zu bytes of host memory", granule);
        (void)cudaGetLastError();
        return no_room(cuda, ZR_TIER_HOST, stretch.n * granule, "more that could be pinned");
    }
    return ZR_OK;
}

/* ---- entries of the table ------------------------------------------------------------------- */

zr_status_t zr_cuda_range_map(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                              size_t size_bytes) {
    zr_cuda_device_t *cuda = cuda_of(device);
    stretch_t stretch = stretch_at(cuda, (char *)base + offset_bytes, size_bytes);
    ZR_TRY(zr_cuda_enter(device));
    if (tier == ZR_TIER_DEVICE)
        return cuda->has_virtual_memory ? fill(cuda, stretch) : ZR_OK;
    ZR_TRY(make_notes(cuda, stretch));
    ZR_TRY(zr_host_backend.range_map(device, tier, base, offset_bytes, size_bytes));
    zr_status_t status = pin(cuda, stretch);
    if (status != ZR_OK &&
        zr_host_backend.range_unmap(device, tier, base, offset_bytes, size_bytes) != ZR_OK)
        return ZR_ERR_DEVICE;
    return status;
}

zr_status_t zr_cuda_range_unmap(zr_device_t *device, zr_tier_t tier, void *base,
                                size_t offset_bytes, size_t size_bytes) {
    zr_cuda_device_t *cuda = cuda_of(device);
    stretch_t stretch = stretch_at(cuda, (char *)base + offset_bytes, size_bytes);
    ZR_TRY(zr_cuda_enter(device));
    if (tier == ZR_TIER_HOST) {
        unpin(cuda, stretch);
        return zr_host_backend.range_unmap(device, tier, base, offset_bytes, size_bytes);
    }
    if (!cuda->has_virtual_memory)
        return ZR_OK;
    CUresult result = empty(cuda, stretch);
    return result == CUDA_SUCCESS ? ZR_OK : driver_fail(cuda, result, "cuMemUnmap", size_bytes);
}

/* Host memory is not moved: it would have to be unpinned, and pinned again, all the same. */
zr_status_t zr_cuda_range_move(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                               size_t size_bytes) {
    zr_cuda_device_t *cuda = cuda_of(device);
    if (tier == ZR_TIER_HOST || !cuda->has_virtual_memory)
        return ZR_ERR_UNSUPPORTED;
    ZR_TRY(zr_cuda_enter(device));
    stretch_t source = stretch_at(cuda, from, size_bytes);
    stretch_t target = stretch_at(cuda, to, size_bytes);
    ZR_TRY(make_notes(cuda, target));
    CUresult result = CUDA_SUCCESS;
    size_t n_mapped = 0;
    for (; n_mapped < source.n && result == CUDA_SUCCESS; n_mapped += result == CUDA_SUCCESS)
        result = map_handle(cuda, target.range, target.first + n_mapped,
                            source.range->granules[source.first + n_mapped].handle);
    if (result == CUDA_SUCCESS)
        result = grant(cuda, target);
    if (result != CUDA_SUCCESS) {
        for (size_t i = 0; i < n_mapped; i++)
            unmap_handle(cuda, target.range, target.first + i);
        return driver_fail(cuda, result, "mapping what is moved", size_bytes);
    }
    /* It is there now, whatever becomes of the old place: an address that cannot be unmapped cannot
     * be mapped again either, which the next attempt says once more. */
    for (size_t i = 0; i < source.n; i++) {
        CUresult unmapped = unmap_handle(cuda, source.range, source.first + i);
        if (result == CUDA_SUCCESS)
            result = unmapped;
    }
    if (result != CUDA_SUCCESS)
        (void)driver_fail(cuda, result, "cuMemUnmap", size_bytes);
    return ZR_OK;
}

void zr_cuda_range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes) {
    zr_cuda_device_t *cuda = cuda_of(device);
    zr_cuda_range_t **link = &cuda->ranges;
    while ((*link)->base != base)
        link = &(*link)->next;
    zr_cuda_range_t *range = *link;
    stretch_t all = {.range = range, .n = range->n_noted};
    zr_status_t status = zr_cuda_enter(device); /* on failure the rest fails and says so, too */
    if (tier == ZR_TIER_HOST) {
        unpin(cuda, all);
        zr_host_backend.range_release(device, tier, base, size_bytes);
    } else if (cuda->has_virtual_memory) {
        CUresult result = empty(cuda, all);
        CUresult freed = cuda->driver.cuMemAddressFree_p((CUdeviceptr)(uintptr_t)base, size_bytes);
        result = result != CUDA_SUCCESS ? result : freed;
        if (result != CUDA_SUCCESS && status == ZR_OK)
            (void)driver_fail(cuda, result, "cuMemAddressFree", size_bytes);
    } else {
        cudaError_t error = cudaFree(range->allocation);
        if (error != cudaSuccess && status == ZR_OK)
            (void)zr_cuda_fail(device, error, "freeing %zu bytes", size_bytes);
    }
    *link = range->next;
    free(range->granules);
    free(range);
}
