/* Add, scale, cast and fill on CUDA: loops over packs, and their launches. */
#include "kernels/cuda/cuda_pack.cuh"

template <typename D, typename S>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    add_kernel(D *__restrict__ dst, const S *__restrict__ src, size_t n_elems, bool wide) {
    zr_for_packs<D, S>(n_elems, wide, [&](auto place) {
        zr_pack_t sum = place.load(dst), addend = place.load(src);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            sum.value[i] += addend.value[i];
        place.store(dst, sum);
    });
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    scale_kernel(T *__restrict__ x, size_t n_elems, float factor, bool wide) {
    zr_for_packs<T>(n_elems, wide, [&](auto place) {
        zr_pack_t pack = place.load(x);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            pack.value[i] *= factor;
        place.store(x, pack);
    });
}

template <typename D, typename S>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    cast_kernel(D *__restrict__ dst, const S *__restrict__ src, size_t n_elems, bool wide) {
    zr_for_packs<D, S>(n_elems, wide, [&](auto place) { place.store(dst, place.load(src)); });
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    fill_kernel(T *__restrict__ x, size_t n_elems, float value, bool wide) {
    zr_pack_t pack;
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++)
        pack.value[i] = value;
    zr_for_packs<T>(n_elems, wide, [&](auto place) { place.store(x, pack); });
}

/* ---- launches ---- */

template <typename D, typename S>
static void launch_add(cudaStream_t queue, void *dst, const void *src, size_t n_elems) {
    ZR_CUDA_LAUNCH((add_kernel<D, S>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue,
                   static_cast<D *>(dst), static_cast<const S *>(src), n_elems,
                   zr_is_wide(dst) && zr_is_wide(src));
}

template <typename D, typename S>
static void launch_cast(cudaStream_t queue, void *dst, const void *src, size_t n_elems) {
    ZR_CUDA_LAUNCH((cast_kernel<D, S>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue,
                   static_cast<D *>(dst), static_cast<const S *>(src), n_elems,
                   zr_is_wide(dst) && zr_is_wide(src));
}

zr_status_t zr_cuda_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                        zr_dtype_t src_dtype, size_t n_elems) {
    cudaStream_t queue = zr_cuda_queue(stream);
    ZR_TRY(zr_cuda_enter(stream->device));
    if (dst_dtype == ZR_DTYPE_F32 && src_dtype == ZR_DTYPE_F32)
        launch_add<float, float>(queue, dst, src, n_elems);
    else if (dst_dtype == ZR_DTYPE_F32)
        launch_add<float, zr_bf16_t>(queue, dst, src, n_elems);
    else if (src_dtype == ZR_DTYPE_F32)
        launch_add<zr_bf16_t, float>(queue, dst, src, n_elems);
    else
        launch_add<zr_bf16_t, zr_bf16_t>(queue, dst, src, n_elems);
    return zr_cuda_launched(stream, "add");
}

zr_status_t zr_cuda_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                          float factor) {
    cudaStream_t queue = zr_cuda_queue(stream);
    unsigned blocks = zr_cuda_blocks(n_elems);
    ZR_TRY(zr_cuda_enter(stream->device));
    if (dtype == ZR_DTYPE_F32)
        ZR_CUDA_LAUNCH((scale_kernel<float>), blocks, ZR_CUDA_THREADS, 0, queue,
                       static_cast<float *>(x), n_elems, factor, zr_is_wide(x));
    else
        ZR_CUDA_LAUNCH((scale_kernel<zr_bf16_t>), blocks, ZR_CUDA_THREADS, 0, queue,
                       static_cast<zr_bf16_t *>(x), n_elems, factor, zr_is_wide(x));
    return zr_cuda_launched(stream, "scale");
}

zr_status_t zr_cuda_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                         zr_dtype_t src_dtype, size_t n_elems) {
    cudaStream_t queue = zr_cuda_queue(stream);
    ZR_TRY(zr_cuda_enter(stream->device));
    if (dst_dtype == ZR_DTYPE_F32 && src_dtype == ZR_DTYPE_F32)
        launch_cast<float, float>(queue, dst, src, n_elems);
    else if (dst_dtype == ZR_DTYPE_F32)
        launch_cast<float, zr_bf16_t>(queue, dst, src, n_elems);
    else if (src_dtype == ZR_DTYPE_F32)
        launch_cast<zr_bf16_t, float>(queue, dst, src, n_elems);
    else
        launch_cast<zr_bf16_t, zr_bf16_t>(queue, dst, src, n_elems);
    return zr_cuda_launched(stream, "cast");
}

zr_status_t zr_cuda_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                         float value) {
    cudaStream_t queue = zr_cuda_queue(stream);
    unsigned blocks = zr_cuda_blocks(n_elems);
    ZR_TRY(zr_cuda_enter(stream->device));
    if (dtype == ZR_DTYPE_F32)
        ZR_CUDA_LAUNCH((fill_kernel<float>), blocks, ZR_CUDA_THREADS, 0, queue,
                       static_cast<float *>(x), n_elems, value, zr_is_wide(x));
    else
        ZR_CUDA_LAUNCH((fill_kernel<zr_bf16_t>), blocks, ZR_CUDA_THREADS, 0, queue,
                       static_cast<zr_bf16_t *>(x), n_elems, value, zr_is_wide(x));
    return zr_cuda_launched(stream, "fill");
}
