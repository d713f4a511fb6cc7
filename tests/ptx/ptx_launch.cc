/*
 * Launches as nvcc's objects make them: the part of the CUDA runtime that their stubs call. A
 * kernel is found by the name that the object registers for it among those that were translated;
 * what it is given is packed as PTX lays it out.
 */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/emu/emu_internal.h"
#include "tests/ptx/ptx.h"
#include "tests/ptx/ptx_memory.h"
#include "tests/ptx/races.h"

namespace {

struct function_t {
    const void *function; /* the host's launcher, which the program knows the kernel by */
    std::string name;
};

struct registry_t {
    std::map<std::string, const ptx_kernel_t *> kernels; /* by name */
    std::vector<const ptx_module_t *> modules;
    std::map<const void *, function_t> functions;
    std::mutex mutex;                         /* of what is behind it: ranks are threads */
    std::map<std::string, size_t> n_launches; /* by name */
};

/* Filled before main, in any order. */
registry_t &registry() {
    static registry_t &one = *new registry_t;
    return one;
}

struct configuration_t {
    dim3 n_blocks, n_threads;
    size_t shared_bytes;
    cudaStream_t stream;
};
thread_local std::vector<configuration_t> configurations;

/* What tests want. */
unsigned most_blocks = 0;
const char *taken_away = getenv("PTX_TAKE_AWAY");
void (*note_barrier)(const char *place) = NULL;

const ptx_kernel_t *find_kernel(const std::string &name) {
    auto found = registry().kernels.find(name);
    return found == registry().kernels.end() ? NULL : found->second;
}

std::shared_ptr<unsigned char> pack(const ptx_kernel_t &kernel, void **arguments) {
    std::shared_ptr<unsigned char> params(new unsigned char[kernel.params_bytes + 16],
                                          std::default_delete<unsigned char[]>());
    for (size_t i = 0; i < kernel.n_params; i++)
        memcpy(params.get() + kernel.params[i].offset_bytes, arguments[i],
               kernel.params[i].size_bytes);
    return params;
}

void note_launch(const std::string &name) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    registry().n_launches[name]++;
}

cudaError_t launch_function(const function_t &function, const configuration_t &how,
                            void **arguments) {
    const ptx_kernel_t *kernel = find_kernel(function.name);
    size_t n_threads = (size_t)how.n_threads.x * how.n_threads.y * how.n_threads.z;
    if (kernel == NULL)
        return cudaErrorInvalidDeviceFunction;
    if (kernel->max_threads > 0 && n_threads > kernel->max_threads)
        return cudaErrorInvalidValue;
    emu_launch_t launch = {kernel->name,     function.function, how.n_blocks,         how.n_threads,
                           how.shared_bytes, how.stream,        kernel->shared_bytes, &ptx_watch};
    if (most_blocks > 0)
        launch.n_blocks.x = std::min(launch.n_blocks.x, most_blocks);
    note_launch(function.name);
    std::shared_ptr<unsigned char> params = pack(*kernel, arguments);
    emu_queue_kernel(launch, [=] { kernel->run(params.get()); }, {});
    return cudaSuccess;
}

__attribute__((destructor)) void report_races() {
    if (races::n_found() > 0) {
        fprintf(stderr, "ptx: %zu accesses that nothing orders\n", races::n_found());
        _Exit(1);
    }
}

} // namespace

void ptx_add_module(const ptx_module_t *module) {
    registry().modules.push_back(module);
    for (size_t i = 0; i < module->n_kernels; i++)
        registry().kernels[module->kernels[i].name] = &module->kernels[i];
}

const std::vector<const ptx_module_t *> &ptx_modules() {
    return registry().modules;
}

size_t ptx_n_launches(const char *kernel) {
    std::lock_guard<std::mutex> lock(registry().mutex);
    return registry().n_launches[kernel];
}

void ptx_take_away(const char *place) {
    taken_away = place;
}

void ptx_limit_blocks(unsigned most) {
    most_blocks = most;
}

void ptx_note_barriers(void (*note)(const char *place)) {
    note_barrier = note;
}

bool ptx_is_taken_away(const char *barrier) {
    if (note_barrier != NULL)
        note_barrier(barrier);
    return taken_away != NULL && strncmp(barrier, taken_away, strlen(taken_away)) == 0;
}

/* ---- what objects of nvcc call -------------------------------------------------------------- */

extern "C" {

void **__cudaRegisterFatBinary(void *image) {
    static void *handle;
    (void)image;
    return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle) {
    (void)handle;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function,
                            const char *name, int max_threads, uint3 *thread, uint3 *block,
                            dim3 *n_threads, dim3 *n_blocks, int *warp_size) {
    (void)handle, (void)device_function, (void)max_threads, (void)thread, (void)block;
    (void)n_threads, (void)n_blocks, (void)warp_size;
    registry().functions[function] = {function, name};
}

unsigned __cudaPushCallConfiguration(dim3 n_blocks, dim3 n_threads, size_t shared_bytes,
                                     CUstream_st *stream) {
    configurations.push_back({n_blocks, n_threads, shared_bytes, stream});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *n_blocks, dim3 *n_threads, size_t *shared_bytes,
                                       void *stream) {
    configuration_t how = configurations.back();
    configurations.pop_back();
    *n_blocks = how.n_blocks;
    *n_threads = how.n_threads;
    *shared_bytes = how.shared_bytes;
    *static_cast<cudaStream_t *>(stream) = how.stream;
    return cudaSuccess;
}

/* A kernel's handle is its entry in the registry. */
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
    auto found = registry().functions.find(function);
    if (found == registry().functions.end())
        return cudaErrorInvalidDeviceFunction;
    *kernel = reinterpret_cast<cudaKernel_t>(&found->second);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 n_blocks, dim3 n_threads, void **arguments,
                               size_t shared_bytes, cudaStream_t stream) {
    const function_t *function = reinterpret_cast<const function_t *>(kernel);
    cudaError_t error =
        launch_function(*function, {n_blocks, n_threads, shared_bytes, stream}, arguments);
    std::lock_guard<std::mutex> lock(emu::mutex);
    return error == cudaSuccess ? cudaSuccess : emu::returned(error);
}

/* Before CUDA 13. */
cudaError_t cudaLaunchKernel(const void *function, dim3 n_blocks, dim3 n_threads, void **arguments,
                             size_t shared_bytes, cudaStream_t stream) {
    cudaKernel_t kernel;
    cudaError_t error = __cudaGetKernel(&kernel, function);
    return error != cudaSuccess
               ? error
               : __cudaLaunchKernel(kernel, n_blocks, n_threads, arguments, shared_bytes, stream);
}
}
