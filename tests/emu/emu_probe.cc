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

/* The last warp leaves a number behind early, the first one looks for it late. */
static __global__ void ahead_kernel(float *out) {
    __shared__ float left;
    if (threadIdx.x == 32)
        left = 1.0f;
    __syncwarp();
    __syncwarp();
    if (threadIdx.x == 0)
        out[0] = left;
}

zr_status_t probe_ahead(zr_stream_t *stream, float *out) {
    ZR_CUDA_LAUNCH(ahead_kernel, 1, 64, 0, zr_cuda_queue(stream), out);
    return zr_cuda_launched(stream, "ahead");
}

static __global__ void votes_kernel(unsigned *out) {
    unsigned lane = threadIdx.x, odd = __ballot_sync(0xffffffffu, lane % 2 == 1);
    bool is_any = __any_sync(0xffffffffu, lane == 7), is_all = __all_sync(0xffffffffu, lane < 31);
    unsigned alike = __match_any_sync(0xffffffffu, lane / 10);
    unsigned left = __shfl_up_sync(0xffffffffu, lane, 1, 8);
    unsigned lower = 0;
    if (lane < 16) /* half of the warp alone */
        lower = __shfl_xor_sync(0x0000ffffu, lane, 8);
    out[lane] = odd;
    out[32 + lane] = alike;
    out[64 + lane] = left;
    out[96 + lane] = lower + (is_any && !is_all ? 100 : 0);
}

zr_status_t probe_votes(zr_stream_t *stream, unsigned *out) {
    ZR_CUDA_LAUNCH(votes_kernel, 1, 32, 0, zr_cuda_queue(stream), out);
    return zr_cuda_launched(stream, "votes");
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

static __global__ void copy_words_kernel(float *out, const float *in) {
    *zr_access<float2>(out) = *zr_access<float2>(in);
}

zr_status_t probe_copy_words(zr_stream_t *stream, float *out, const float *in) {
    ZR_CUDA_LAUNCH(copy_words_kernel, 1, 1, 0, zr_cuda_queue(stream), out, in);
    return zr_cuda_launched(stream, "copy_words");
}
