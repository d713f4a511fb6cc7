#include "tests/emu/emu_matrix_probe.h"

#include "kernels/nn/cuda/attention_cuda.cuh"
#include "kernels/nn/cuda/mma_cuda.cuh"

static __global__ void product_kernel(float *c, const zr_bf16_t *a, const zr_bf16_t *b,
                                      probe_layout_t layout, unsigned row_bytes) {
    ZR_CUDA_SHARED(shared);
    unsigned lane = threadIdx.x;
    unsigned char *shared_b = shared + 16 * row_bytes;
    zr_copy16(shared + lane / 2 * row_bytes + lane % 2 * 16, a + lane * 8, true);
    zr_copy16(shared_b + lane / 2 * row_bytes + lane % 2 * 16, b + lane * 8, true);
    zr_copy_commit();
    zr_copy_wait<0>();
    __syncthreads();
    uint32_t of_a[4], of_b[4];
    zr_ldmatrix<false>(of_a, shared + lane % 16 * row_bytes + lane / 16 * 16);
    if (layout == PROBE_ROWS_OF_N)
        zr_ldmatrix<false>(of_b,
                           shared_b + (lane % 8 + lane / 16 * 8) * row_bytes + lane / 8 % 2 * 16);
    else
        zr_ldmatrix<true>(of_b, shared_b + lane % 16 * row_bytes + lane / 16 * 16);
    for (unsigned half = 0; half < 2; half++) {
        float sum[4] = {0, 0, 0, 0};
        zr_mma(sum, of_a, of_b[half * 2], of_b[half * 2 + 1]);
        for (unsigned i = 0; i < 4; i++)
            c[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = sum[i];
    }
}

zr_status_t probe_product(zr_stream_t *stream, float *c, const zr_bf16_t *a, const zr_bf16_t *b,
                          probe_layout_t layout, unsigned row_bytes) {
    ZR_CUDA_LAUNCH(product_kernel, 1, 32, 32 * row_bytes, zr_cuda_queue(stream), c, a, b, layout,
                   row_bytes);
    return zr_cuda_launched(stream, "product");
}

static __global__ void copies_kernel(float *out, const float *in, size_t n_words, bool with_wait) {
    ZR_CUDA_SHARED(shared);
    unsigned i = threadIdx.x;
    zr_copy4(shared + 4 * i, in + i, i < n_words);
    zr_copy_commit();
    if (with_wait)
        zr_copy_wait<0>();
    __syncthreads();
    out[i] = reinterpret_cast<float *>(shared)[255 - i];
}

zr_status_t probe_copies(zr_stream_t *stream, float *out, const float *in, size_t n_words,
                         bool with_wait) {
    ZR_CUDA_LAUNCH(copies_kernel, 1, 256, 1024, zr_cuda_queue(stream), out, in, n_words, with_wait);
    return zr_cuda_launched(stream, "copies");
}

static __global__ void shared_kernel(float *out, size_t n_bytes, bool too_far) {
    ZR_CUDA_SHARED(shared);
    float *words = reinterpret_cast<float *>(shared);
    unsigned i = threadIdx.x;
    out[blockIdx.x * 256 + i] = words[i];
    words[i] = 1.0f;
    if (too_far)
        shared[n_bytes] = 1;
}

zr_status_t probe_shared(zr_stream_t *stream, float *out, bool too_far) {
    ZR_CUDA_LAUNCH(shared_kernel, 2, 256, 1024, zr_cuda_queue(stream), out, (size_t)1024, too_far);
    return zr_cuda_launched(stream, "shared");
}

zr_status_t probe_much_shared(zr_stream_t *stream, float *out, size_t size_bytes, bool asked_for) {
    if (asked_for)
        ZR_TRY(zr_cuda_allow_shared(stream, shared_kernel, size_bytes, "shared"));
    ZR_CUDA_LAUNCH(shared_kernel, 2, 256, size_bytes, zr_cuda_queue(stream), out, size_bytes,
                   false);
    return zr_cuda_launched(stream, "shared");
}

void probe_attention_item(const probe_heads_t *heads, bool by_keys, size_t n_tiles, size_t item,
                          size_t *head_p, size_t *tile_p) {
    zr_cuda_attention_t args = {};
    args.heads = heads->heads;
    args.kv_heads = heads->kv_heads;
    args.n_heads = heads->batch * heads->heads;
    args.n_kv_heads = heads->batch * heads->kv_heads;
    args.n_cached_heads = heads->n_cached;
    zr_cuda_item_t at = zr_cuda_find_item(args, by_keys, n_tiles, item);
    *head_p = at.head;
    *tile_p = at.tile;
}
