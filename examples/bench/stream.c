#include "examples/bench/stream.h"

#include <stdint.h>
#include <stdlib.h>

#include "examples/bench/crew.h"

/* Elements that a thread takes at once. */
#define PIECE ((size_t)16384)

struct stream {
    stream_arrays_t arrays;
    void (*loop)(const stream_arrays_t *arrays, size_t first, size_t last);
    crew_t *crew;
};

/* ---- the loop, for the widest vectors that the processor has ------------------------- */

/* Unknown to the compiler, so that adding it is not left out. */
static const volatile float zero = 0.0f;

#define INLINE static inline __attribute__((always_inline))

INLINE void wide_loop(const stream_arrays_t *arrays, bool has_c, size_t first, size_t last) {
    float *restrict a = arrays->a, *restrict b = arrays->b, *restrict c = arrays->c;
    const float *restrict grad = arrays->grad;
    float *restrict param = arrays->param;
    float nothing = zero;
    for (size_t i = first; i < last; i++) {
        a[i] += nothing;
        b[i] += nothing;
        if (has_c)
            c[i] += nothing;
        param[i] = grad[i] + nothing;
    }
}

INLINE void half_loop(const stream_arrays_t *arrays, bool has_c, size_t first, size_t last) {
    float *restrict a = arrays->a, *restrict b = arrays->b, *restrict c = arrays->c;
    const uint16_t *restrict grad = arrays->grad;
    uint16_t *restrict param = arrays->param;
    float nothing = zero;
    uint16_t no_bits = (uint16_t)nothing;
    for (size_t i = first; i < last; i++) {
        a[i] += nothing;
        b[i] += nothing;
        if (has_c)
            c[i] += nothing;
        param[i] = grad[i] | no_bits;
    }
}

INLINE void copy_half(const stream_arrays_t *arrays, size_t first, size_t last) {
    const uint16_t *restrict grad = arrays->grad;
    uint16_t *restrict param = arrays->param, no_bits = (uint16_t)zero;
    for (size_t i = first; i < last; i++)
        param[i] = grad[i] | no_bits;
}

INLINE void copy_wide(const stream_arrays_t *arrays, size_t first, size_t last) {
    const float *restrict grad = arrays->grad;
    float *restrict param = arrays->param, nothing = zero;
    for (size_t i = first; i < last; i++)
        param[i] = grad[i] + nothing;
}

/* As many elements as have a block of 256 each of arrays that are encoded. */
INLINE void add_nothing(float *restrict x, size_t n) {
    float nothing = zero;
    for (size_t i = 0; i < n; i++)
        x[i] += nothing;
}

INLINE void encoded_loop(const stream_arrays_t *arrays, size_t first, size_t last) {
    for (size_t begin = first; begin < last; begin += 256) {
        size_t n = last - begin < 256 ? last - begin : 256, floats = arrays->b_floats;
        add_nothing(arrays->a + begin, n);
        add_nothing(arrays->b + begin / 256 * floats, floats);
        if (arrays->c != NULL)
            add_nothing(arrays->c + begin / 256 * floats, floats);
        if (arrays->half)
            copy_half(arrays, begin, begin + n);
        else
            copy_wide(arrays, begin, begin + n);
    }
}

INLINE void any_loop(const stream_arrays_t *arrays, size_t first, size_t last) {
    if (arrays->b_floats < 256)
        encoded_loop(arrays, first, last);
    else if (arrays->half && arrays->c != NULL)
        half_loop(arrays, true, first, last);
    else if (arrays->half)
        half_loop(arrays, false, first, last);
    else if (arrays->c != NULL)
        wide_loop(arrays, true, first, last);
    else
        wide_loop(arrays, false, first, last);
}

static void loop_baseline(const stream_arrays_t *arrays, size_t first, size_t last) {
    any_loop(arrays, first, last);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void loop_avx2(const stream_arrays_t *arrays, size_t first,
                                                      size_t last) {
    any_loop(arrays, first, last);
}

#if defined(__clang__)
#define AVX512 "avx512f,avx512bw"
#else
#define AVX512 "avx512f,avx512bw,prefer-vector-width=512"
#endif
__attribute__((target(AVX512))) static void loop_avx512(const stream_arrays_t *arrays, size_t first,
                                                        size_t last) {
    any_loop(arrays, first, last);
}
#endif

static void (*best_loop(void))(const stream_arrays_t *arrays, size_t first, size_t last) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw"))
        return loop_avx512;
    if (__builtin_cpu_supports("avx2"))
        return loop_avx2;
#endif
    return loop_baseline;
}

/* ---- life ------------------------------------------------------------------------------- */

static void run_piece(void *context, size_t first, size_t last) {
    const stream_t *stream = context;
    stream->loop(&stream->arrays, first, last);
}

void stream_run(stream_t *stream) {
    crew_run(stream->crew, stream->arrays.n_elems, PIECE, run_piece, stream);
}

void stream_destroy(stream_t **stream_p) {
    if (stream_p == NULL || *stream_p == NULL)
        return;
    crew_destroy(&(*stream_p)->crew);
    free(*stream_p);
    *stream_p = NULL;
}

stream_t *stream_create(const stream_arrays_t *arrays, int n_threads) {
    stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return NULL;
    stream->arrays = *arrays;
    stream->loop = best_loop();
    stream->crew = crew_create(n_threads);
    if (stream->crew == NULL)
        stream_destroy(&stream);
    return stream;
}
