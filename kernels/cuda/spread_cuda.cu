/*
 * What moves data between ranks on CUDA: a sum of arrays, or a copy of one, to several places. Each
 * source is read once, each place written once; the places may be memory of other GPUs.
 */
#include "kernels/cuda/cuda_pack.cuh"

/*
 * Sources and places are kernel arguments: 32764 bytes of them are possible since CUDA 12.1, 4096
 * before. A launch copies the whole list, so that few arrays have a short one.
 */
#define ZR_CUDA_FEW_ARRAYS 24
#if CUDART_VERSION >= 12010
#define ZR_CUDA_MAX_ARRAYS (2 * ZR_MAX_SUM_SOURCES)
#else
#define ZR_CUDA_MAX_ARRAYS 480
#endif

/* The sources, then the places. */
template <int CAPACITY> struct arrays_t { void *array[CAPACITY]; };

template <typename T, int CAPACITY>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    sum_kernel(arrays_t<CAPACITY> arrays, int n_sources, int n_arrays, size_t n_elems, bool wide) {
    zr_for_packs<T>(n_elems, wide, [&](auto place) {
        zr_pack_t sum = place.load(static_cast<const T *>(arrays.array[0]));
#pragma unroll 4 /* reads under way at a time; the additions keep their order */
        for (int i = 1; i < n_sources; i++) {
            zr_pack_t addend = place.load(static_cast<const T *>(arrays.array[i]));
#pragma unroll
            for (int k = 0; k < ZR_PACK_ELEMS; k++)
                sum.value[k] += addend.value[k];
        }
#pragma unroll 1
        for (int i = n_sources; i < n_arrays; i++)
            place.store(static_cast<T *>(arrays.array[i]), sum);
    });
}

/* Words of the source, which is none of the places, and the bytes behind the last whole word. */
template <typename W, int CAPACITY>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    copy_kernel(arrays_t<CAPACITY> places, int n_places, const W *__restrict__ source,
                size_t n_words, size_t n_rest_bytes) {
    const int n_at_once = 4; /* reads under way at a time */
    const size_t thread = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const size_t n_threads = (size_t)gridDim.x * blockDim.x;
    for (size_t first = thread; first < n_words; first += n_at_once * n_threads) {
        W words[n_at_once];
#pragma unroll
        for (int k = 0; k < n_at_once; k++)
            if (first + k * n_threads < n_words)
                words[k] = *zr_access<W>(source + first + k * n_threads);
#pragma unroll 1
        for (int i = 0; i < n_places; i++) {
            W *place = static_cast<W *>(places.array[i]);
#pragma unroll
            for (int k = 0; k < n_at_once; k++)
                if (first + k * n_threads < n_words)
                    *zr_access<W>(place + first + k * n_threads) = words[k];
        }
    }
    if (thread < n_rest_bytes) {
        unsigned char byte = reinterpret_cast<const unsigned char *>(source + n_words)[thread];
        for (int i = 0; i < n_places; i++)
            reinterpret_cast<unsigned char *>(static_cast<W *>(places.array[i]) + n_words)[thread] =
                byte;
    }
}

/* ---- launches ---- */

template <int CAPACITY> static arrays_t<CAPACITY> list_of(void *const *arrays, int n_arrays) {
    arrays_t<CAPACITY> list = {};
    for (int i = 0; i < n_arrays; i++)
        list.array[i] = arrays[i];
    return list;
}

static bool are_wide(void *const *arrays, int n_arrays) {
    bool wide = true;
    for (int i = 0; i < n_arrays; i++)
        wide = wide && zr_is_wide(arrays[i]);
    return wide;
}

template <typename T, int CAPACITY>
static void launch_sum(cudaStream_t queue, void *const *arrays, int n_sources, int n_arrays,
                       size_t n_elems) {
    ZR_CUDA_LAUNCH((sum_kernel<T, CAPACITY>), zr_cuda_blocks(n_elems), ZR_CUDA_THREADS, 0, queue,
                   list_of<CAPACITY>(arrays, n_arrays), n_sources, n_arrays, n_elems,
                   are_wide(arrays, n_arrays));
}

template <typename W, int CAPACITY>
static void launch_copy(cudaStream_t queue, void *const *places, int n_places, const void *source,
                        size_t size_bytes) {
    size_t n_words = size_bytes / sizeof(W);
    ZR_CUDA_LAUNCH((copy_kernel<W, CAPACITY>), zr_cuda_blocks(n_words * ZR_PACK_ELEMS),
                   ZR_CUDA_THREADS, 0, queue, list_of<CAPACITY>(places, n_places), n_places,
                   static_cast<const W *>(source), n_words, size_bytes % sizeof(W));
}

/* In words of 16 bytes where all arrays are aligned to them, otherwise in elements. */
template <int CAPACITY>
static void copy_words(cudaStream_t queue, void *const *places, int n_places, const void *source,
                       const zr_spread_t *args) {
    size_t elem_bytes = zr_dtype_size(args->dtype), size_bytes = args->n_elems * elem_bytes;
    if (zr_is_wide(source) && are_wide(places, n_places))
        launch_copy<zr_words_t<uint32_t>, CAPACITY>(queue, places, n_places, source, size_bytes);
    else if (elem_bytes == 8)
        launch_copy<uint64_t, CAPACITY>(queue, places, n_places, source, size_bytes);
    else if (elem_bytes == 4)
        launch_copy<uint32_t, CAPACITY>(queue, places, n_places, source, size_bytes);
    else if (elem_bytes == 2)
        launch_copy<uint16_t, CAPACITY>(queue, places, n_places, source, size_bytes);
    else
        launch_copy<uint8_t, CAPACITY>(queue, places, n_places, source, size_bytes);
}

static zr_status_t sum_to_places(zr_stream_t *stream, const zr_spread_t *args, const char *name) {
    void *arrays[ZR_CUDA_MAX_ARRAYS];
    cudaStream_t queue = zr_cuda_queue(stream);
    int n_arrays = 0;
    for (int i = 0; i < args->n_sources; i++)
        arrays[n_arrays++] = const_cast<void *>(args->sources[i]);
    for (int i = 0; i < args->n_dsts; i++)
        arrays[n_arrays++] = args->dsts[i];
    bool few = n_arrays <= ZR_CUDA_FEW_ARRAYS;
    zr_by_dtype(args->dtype, [&](auto element) {
        using T = decltype(element);
        if (few)
            launch_sum<T, ZR_CUDA_FEW_ARRAYS>(queue, arrays, args->n_sources, n_arrays,
                                              args->n_elems);
        else
            launch_sum<T, ZR_CUDA_MAX_ARRAYS>(queue, arrays, args->n_sources, n_arrays,
                                              args->n_elems);
    });
    return zr_cuda_launched(stream, name);
}

/* The one source, bit by bit, to the places that it is not itself. */
static zr_status_t copy_to_places(zr_stream_t *stream, const zr_spread_t *args, const char *name) {
    void *places[ZR_CUDA_MAX_ARRAYS];
    cudaStream_t queue = zr_cuda_queue(stream);
    int n_places = 0;
    for (int i = 0; i < args->n_dsts; i++)
        if (args->dsts[i] != args->sources[0])
            places[n_places++] = args->dsts[i];
    if (n_places == 0)
        return ZR_OK;
    if (n_places <= ZR_CUDA_FEW_ARRAYS)
        copy_words<ZR_CUDA_FEW_ARRAYS>(queue, places, n_places, args->sources[0], args);
    else
        copy_words<ZR_CUDA_MAX_ARRAYS>(queue, places, n_places, args->sources[0], args);
    return zr_cuda_launched(stream, name);
}

zr_status_t zr_cuda_spread(zr_stream_t *stream, const zr_spread_t *args, const char *name) {
    ZR_TRY(zr_cuda_enter(stream->device));
    if (args->n_sources + args->n_dsts > ZR_CUDA_MAX_ARRAYS)
        return zr_fail(&stream->device->log, ZR_ERR_UNSUPPORTED,
                       "%s: %s and %s; on cuda, in this build, %d together are allowed", name,
                       zr_count_text((uint64_t)args->n_sources, "source").text,
                       zr_count_text((uint64_t)args->n_dsts, "place").text, ZR_CUDA_MAX_ARRAYS);
    return args->n_sources > 1 ? sum_to_places(stream, args, name)
                               : copy_to_places(stream, args, name);
}
