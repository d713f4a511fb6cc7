/* Blocks with a scale on CUDA: encoding and decoding, and their launches. */
#include "kernels/cuda/cuda_blocks.cuh"

template <zr_code_t C, typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    encode_kernel(unsigned char *__restrict__ blocks, const T *__restrict__ values, size_t n_elems,
                  bool wide) {
    zr_for_warps(n_elems, wide,
                 [&](auto place) { zr_store_blocks<C>(blocks, place, place.load(values), NULL); });
}

template <zr_code_t C, typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    decode_kernel(T *__restrict__ values, const unsigned char *__restrict__ blocks, size_t n_elems,
                  bool wide) {
    zr_for_warps(n_elems, wide,
                 [&](auto place) { place.store(values, zr_load_blocks<C>(blocks, place)); });
}

template <typename D, typename S>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    half_kernel(D *__restrict__ dst, const S *__restrict__ src, size_t n_elems, bool wide) {
    zr_for_packs<D, S>(n_elems, wide, [&](auto place) { place.store(dst, place.load(src)); });
}

static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    join_kernel(float *__restrict__ masters, const zr_lower_t *__restrict__ lower, size_t n_elems,
                bool wide) {
    zr_for_packs<float, zr_lower_t>(n_elems, wide, [&](auto place) {
        zr_pack_t pack = place.load(masters);
        zr_join_masters(&pack, place.load(lower));
        place.store(masters, pack);
    });
}

/* ---- launches ---- */

template <typename D, typename S>
static void launch_half(zr_stream_t *stream, const zr_kernel_work_t *work) {
    ZR_CUDA_LAUNCH((half_kernel<D, S>), zr_cuda_blocks(work->n_elems), ZR_CUDA_THREADS, 0,
                   zr_cuda_queue(stream), static_cast<D *>(work->dst),
                   static_cast<const S *>(work->src), work->n_elems,
                   zr_is_wide(work->dst) && zr_is_wide(work->src));
}

/* Halves of masters; their values are fp32. */
static void launch_halves(zr_stream_t *stream, const zr_kernel_work_t *work) {
    bool is_lower = work->code == ZR_CODE_LOWER;
    if (work->kernel == ZR_KERNEL_ENCODE)
        is_lower ? launch_half<zr_lower_t, float>(stream, work)
                 : launch_half<zr_upper_t, float>(stream, work);
    else if (!is_lower)
        launch_half<float, zr_upper_t>(stream, work);
    else
        ZR_CUDA_LAUNCH(join_kernel, zr_cuda_blocks(work->n_elems), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), static_cast<float *>(work->dst),
                       static_cast<const zr_lower_t *>(work->src), work->n_elems,
                       zr_is_wide(work->dst) && zr_is_wide(work->src));
}

template <zr_code_t C, typename T>
static void launch(zr_stream_t *stream, const zr_kernel_work_t *work) {
    unsigned grid = zr_cuda_blocks(work->n_elems);
    if (work->kernel == ZR_KERNEL_ENCODE)
        ZR_CUDA_LAUNCH((encode_kernel<C, T>), grid, ZR_CUDA_THREADS, 0, zr_cuda_queue(stream),
                       static_cast<unsigned char *>(work->dst), static_cast<const T *>(work->src),
                       work->n_elems, zr_is_wide(work->src));
    else
        ZR_CUDA_LAUNCH((decode_kernel<C, T>), grid, ZR_CUDA_THREADS, 0, zr_cuda_queue(stream),
                       static_cast<T *>(work->dst), static_cast<const unsigned char *>(work->src),
                       work->n_elems, zr_is_wide(work->dst));
}

template <typename T> static void launch_code(zr_stream_t *stream, const zr_kernel_work_t *work) {
    switch (work->code) {
    case ZR_CODE_FLOAT8:
        return launch<ZR_CODE_FLOAT8, T>(stream, work);
    case ZR_CODE_UFLOAT8:
        return launch<ZR_CODE_UFLOAT8, T>(stream, work);
    case ZR_CODE_INT8:
        return launch<ZR_CODE_INT8, T>(stream, work);
    case ZR_CODE_INT4:
        return launch<ZR_CODE_INT4, T>(stream, work);
    default:
        return launch<ZR_CODE_NF4, T>(stream, work);
    }
}

zr_status_t zr_cuda_code(zr_stream_t *stream, const zr_kernel_work_t *work) {
    bool encodes = work->kernel == ZR_KERNEL_ENCODE;
    ZR_TRY(zr_cuda_enter(stream->device));
    if (work->code == ZR_CODE_UPPER || work->code == ZR_CODE_LOWER)
        launch_halves(stream, work);
    else
        zr_by_dtype(encodes ? work->src_dtype : work->dst_dtype,
                    [&](auto element) { launch_code<decltype(element)>(stream, work); });
    return zr_cuda_launched(stream, encodes ? "encode" : "decode");
}
