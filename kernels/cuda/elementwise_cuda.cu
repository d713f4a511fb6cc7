/* Add, scale, cast, fill and the sum over ranks on CUDA: loops over packs, and their launches. */
#include "kernels/cuda/cuda_pack.cuh"

/* Pointers are kernel arguments, whose size is limited; more ranks than that on one machine's
 * devices do not exist. */
#define ZR_CUDA_MAX_SOURCES 256

template <typename D, typename S>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    add_kernel(D *__restrict__ dst, const S *__restrict__ src, size_t n_elems, bool wide) {
    for (size_t first = zr_first_pack(); first < n_elems; first += zr_pack_stride()) {
        int n = zr_pack_length(first, n_elems);
        zr_pack_t sum = zr_load_pack(dst, first, n, wide);
        zr_pack_t addend = zr_load_pack(src, first, n, wide);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            sum.value[i] += addend.value[i];
        zr_store_pack(dst, first, n, wide, sum);
    }
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    scale_kernel(T *__restrict__ x, size_t n_elems, float factor, bool wide) {
    for (size_t first = zr_first_pack(); first < n_elems; first += zr_pack_stride()) {
        int n = zr_pack_length(first, n_elems);
        zr_pack_t pack = zr_load_pack(x, first, n, wide);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            pack.value[i] *= factor;
        zr_store_pack(x, first, n, wide, pack);
    }
}

template <typename D, typename S>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    cast_kernel(D *__restrict__ dst, const S *__restrict__ src, size_t n_elems, bool wide) {
    for (size_t first = zr_first_pack(); first < n_elems; first += zr_pack_stride()) {
        int n = zr_pack_length(first, n_elems);
        zr_store_pack(dst, first, n, wide, zr_load_pack(src, first, n, wide));
    }
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    fill_kernel(T *__restrict__ x, size_t n_elems, float value, bool wide) {
    zr_pack_t pack;
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++)
        pack.value[i] = value;
    for (size_t first = zr_first_pack(); first < n_elems; first += zr_pack_stride())
        zr_store_pack(x, first, zr_pack_length(first, n_elems), wide, pack);
}

template <typename T> struct sum_sources_t { const T *source[ZR_CUDA_MAX_SOURCES]; };

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    sum_kernel(T *dst, sum_sources_t<T> sources, int n_sources, size_t n_elems, bool wide) {
    for (size_t first = zr_first_pack(); first < n_elems; first += zr_pack_stride()) {
        int n = zr_pack_length(first, n_elems);
        zr_pack_t sum = zr_load_pack(sources.source[0], first, n, wide);
        for (int source = 1; source < n_sources; source++) {
            zr_pack_t addend = zr_load_pack(sources.source[source], first, n, wide);
#pragma unroll
            for (int i = 0; i < ZR_PACK_ELEMS; i++)
                sum.value[i] += addend.value[i];
        }
        zr_store_pack(dst, first, n, wide, sum);
    }
}

/* ---- launches ---- */

template <typename D, typename S>
static void launch_add(cudaStream_t queue, void *dst, const void *src, size_t n_elems) {
    add_kernel<<<zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue>>>(
        static_cast<D *>(dst), static_cast<const S *>(src), n_elems,
        zr_is_wide(dst) && zr_is_wide(src));
}

template <typename D, typename S>
static void launch_cast(cudaStream_t queue, void *dst, const void *src, size_t n_elems) {
    cast_kernel<<<zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue>>>(
        static_cast<D *>(dst), static_cast<const S *>(src), n_elems,
        zr_is_wide(dst) && zr_is_wide(src));
}

template <typename T>
static void launch_sum(cudaStream_t queue, void *dst, const void *const *sources, int n_sources,
                       size_t n_elems) {
    sum_sources_t<T> list = {};
    bool wide = zr_is_wide(dst);
    for (int i = 0; i < n_sources; i++) {
        list.source[i] = static_cast<const T *>(sources[i]);
        wide = wide && zr_is_wide(sources[i]);
    }
    sum_kernel<<<zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue>>>(static_cast<T *>(dst), list,
                                                                       n_sources, n_elems, wide);
}

zr_status_t zr_cuda_add(void *stream, const zr_log_t *log, void *dst, zr_dtype_t dst_dtype,
                        const void *src, zr_dtype_t src_dtype, size_t n_elems) {
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    if (n_elems == 0)
        return ZR_OK;
    if (dst_dtype == ZR_DTYPE_F32 && src_dtype == ZR_DTYPE_F32)
        launch_add<float, float>(queue, dst, src, n_elems);
    else if (dst_dtype == ZR_DTYPE_F32)
        launch_add<float, zr_bf16_t>(queue, dst, src, n_elems);
    else if (src_dtype == ZR_DTYPE_F32)
        launch_add<zr_bf16_t, float>(queue, dst, src, n_elems);
    else
        launch_add<zr_bf16_t, zr_bf16_t>(queue, dst, src, n_elems);
    return zr_cuda_launched(log, "add");
}

zr_status_t zr_cuda_scale(void *stream, const zr_log_t *log, void *x, zr_dtype_t dtype,
                          size_t n_elems, float factor) {
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    unsigned blocks = zr_cuda_blocks(n_elems);
    if (n_elems == 0)
        return ZR_OK;
    if (dtype == ZR_DTYPE_F32)
        scale_kernel<<<blocks, ZR_CUDA_THREADS, 0, queue>>>(static_cast<float *>(x), n_elems,
                                                            factor, zr_is_wide(x));
    else
        scale_kernel<<<blocks, ZR_CUDA_THREADS, 0, queue>>>(static_cast<zr_bf16_t *>(x), n_elems,
                                                            factor, zr_is_wide(x));
    return zr_cuda_launched(log, "scale");
}

zr_status_t zr_cuda_cast(void *stream, const zr_log_t *log, void *dst, zr_dtype_t dst_dtype,
                         const void *src, zr_dtype_t src_dtype, size_t n_elems) {
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    if (n_elems == 0)
        return ZR_OK;
    if (dst_dtype == ZR_DTYPE_F32 && src_dtype == ZR_DTYPE_F32)
        launch_cast<float, float>(queue, dst, src, n_elems);
    else if (dst_dtype == ZR_DTYPE_F32)
        launch_cast<float, zr_bf16_t>(queue, dst, src, n_elems);
    else if (src_dtype == ZR_DTYPE_F32)
        launch_cast<zr_bf16_t, float>(queue, dst, src, n_elems);
    else
        launch_cast<zr_bf16_t, zr_bf16_t>(queue, dst, src, n_elems);
    return zr_cuda_launched(log, "cast");
}

zr_status_t zr_cuda_fill(void *stream, const zr_log_t *log, void *x, zr_dtype_t dtype,
                         size_t n_elems, float value) {
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    unsigned blocks = zr_cuda_blocks(n_elems);
    if (n_elems == 0)
        return ZR_OK;
    if (dtype == ZR_DTYPE_F32)
        fill_kernel<<<blocks, ZR_CUDA_THREADS, 0, queue>>>(static_cast<float *>(x), n_elems, value,
                                                           zr_is_wide(x));
    else
        fill_kernel<<<blocks, ZR_CUDA_THREADS, 0, queue>>>(static_cast<zr_bf16_t *>(x), n_elems,
                                                           value, zr_is_wide(x));
    return zr_cuda_launched(log, "fill");
}

zr_status_t zr_cuda_sum(void *stream, const zr_log_t *log, void *dst, const void *const *sources,
                        int n_sources, zr_dtype_t dtype, size_t n_elems) {
    cudaStream_t queue = static_cast<cudaStream_t>(stream);
    if (n_elems == 0)
        return ZR_OK;
    if (n_sources > ZR_CUDA_MAX_SOURCES)
        return zr_fail(log, ZR_ERR_UNSUPPORTED, "cuda: a sum of %d sources; at most %d are allowed",
                       n_sources, ZR_CUDA_MAX_SOURCES);
    if (dtype == ZR_DTYPE_F32)
        launch_sum<float>(queue, dst, sources, n_sources, n_elems);
    else
        launch_sum<zr_bf16_t>(queue, dst, sources, n_sources, n_elems);
    return zr_cuda_launched(log, "sum");
}
