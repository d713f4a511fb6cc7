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

zr_status_t zr_cuda_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                        zr_dtype_t src_dtype, size_t n_elems) {
    ZR_TRY(zr_cuda_enter(stream->device));
    zr_by_dtypes(dst_dtype, src_dtype, [&](auto to, auto from) {
        using D = decltype(to);
        using S = decltype(from);
        ZR_CUDA_LAUNCH((add_kernel<D, S>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), static_cast<D *>(dst), static_cast<const S *>(src),
                       n_elems, zr_is_wide(dst) && zr_is_wide(src));
    });
    return zr_cuda_launched(stream, "add");
}

zr_status_t zr_cuda_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                          float factor) {
    ZR_TRY(zr_cuda_enter(stream->device));
    zr_by_dtype(dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((scale_kernel<T>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), static_cast<T *>(x), n_elems, factor, zr_is_wide(x));
    });
    return zr_cuda_launched(stream, "scale");
}

zr_status_t zr_cuda_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                         zr_dtype_t src_dtype, size_t n_elems) {
    ZR_TRY(zr_cuda_enter(stream->device));
    zr_by_dtypes(dst_dtype, src_dtype, [&](auto to, auto from) {
        using D = decltype(to);
        using S = decltype(from);
        ZR_CUDA_LAUNCH((cast_kernel<D, S>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), static_cast<D *>(dst), static_cast<const S *>(src),
                       n_elems, zr_is_wide(dst) && zr_is_wide(src));
    });
    return zr_cuda_launched(stream, "cast");
}

zr_status_t zr_cuda_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                         float value) {
    ZR_TRY(zr_cuda_enter(stream->device));
    zr_by_dtype(dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((fill_kernel<T>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), static_cast<T *>(x), n_elems, value, zr_is_wide(x));
    });
    return zr_cuda_launched(stream, "fill");
}
