#include "tests/emu/emu_probe.h"

#include "kernels/cuda/cuda_launch.cuh"

template <bool WITH_BARRIER> static __global__ void reverse_kernel(float *out, const float *in) {
    __shared__ float shared[256];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    shared[i] = in[i];
    if (WITH_BARRIER)
        __syncthreads();
    out[i] = shared[255 - i];
}

zr_status_t probe_reverse(zr_stream_t *stream, float *out, const float *in, bool with_barrier) {
    if (with_barrier)
        ZR_CUDA_LAUNCH((reverse_kernel<true>), 1, 256, 0, zr_cuda_queue(stream), out, in);
    else
        ZR_CUDA_LAUNCH((reverse_kernel<false>), 1, 256, 0, zr_cuda_queue(stream), out, in);
    return zr_cuda_launched(stream, "reverse");
}

static __global__ void warp_sums_kernel(float *out, const float *in) {
    unsigned i = threadIdx.y * blockDim.x + threadIdx.x;
    float sum = in[i];
    for (int by = 16; by > 1; by /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, by);
    sum += __shfl_down_sync(0xffffffffu, sum, 1);
    sum = __shfl_sync(0xffffffffu, sum, 0);
    if (i % warpSize == 31)
        out[i / warpSize] = sum;
}

zr_status_t probe_warp_sums(zr_stream_t *stream, float *out, const float *in) {
    ZR_CUDA_LAUNCH(warp_sums_kernel, 1, dim3(64, 4), 0, zr_cuda_queue(stream), out, in);
    return zr_cuda_launched(stream, "warp_sums");
}

static __global__ void split_barrier_kernel(float *out) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[0] = 1;
}

zr_status_t probe_split_barrier(zr_stream_t *stream, float *out) {
    ZR_CUDA_LAUNCH(split_barrier_kernel, 1, 64, 0, zr_cuda_queue(stream), out);
    return zr_cuda_launched(stream, "split_barrier");
}

static __global__ void copy_one_kernel(float *out, const float *in) {
    out[0] = in[0];
}

zr_status_t probe_copy_one(zr_stream_t *stream, float *out, const float *in) {
    ZR_CUDA_LAUNCH(copy_one_kernel, 1, 1, 0, zr_cuda_queue(stream), out, in);
    return zr_cuda_launched(stream, "copy_one");
}
