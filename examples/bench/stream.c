#include "examples/bench/stream.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* Elements that a thread takes at once. */
#define PIECE ((size_t)16384)

struct stream {
    stream_arrays_t arrays;
    void (*loop)(const stream_arrays_t *arrays, size_t first, size_t last);
    pthread_t *threads;
    int n_started; /* the caller is not among them */
    atomic_size_t next;

    pthread_mutex_t mutex; /* over what follows */
    pthread_cond_t begin, end;
    unsigned n_runs;
    int n_working;
    bool ending;
};

/* ---- the loop, for the widest vectors that the processor has ------------------------- */

/* Unknown to the compiler, so that adding it is not left out. */
static const volatile float zero = 0.0f;

#define INLINE static inline __attribute__((always_inline))

INLINE void wide_loop(const stream_arrays_t *arrays, size_t first, size_t last) {
    float *restrict a = arrays->a, *restrict b = arrays->b, *restrict c = arrays->c;
    const float *restrict grad = arrays->grad;
    float *restrict param = arrays->param;
    float nothing = zero;
    for (size_t i = first; i < last; i++) {
        a[i] += nothing;
        b[i] += nothing;
        c[i] += nothing;
        param[i] = grad[i] + nothing;
    }
}

INLINE void half_loop(const stream_arrays_t *arrays, size_t first, size_t last) {
    float *restrict a = arrays->a, *restrict b = arrays->b, *restrict c = arrays->c;
    const uint16_t *restrict grad = arrays->grad;
    uint16_t *restrict param = arrays->param;
    float nothing = zero;
    uint16_t no_bits = (uint16_t)nothing;
    for (size_t i = first; i < last; i++) {
        a[i] += nothing;
        b[i] += nothing;
        c[i] += nothing;
        param[i] = grad[i] | no_bits;
    }
}

INLINE void any_loop(const stream_arrays_t *arrays, size_t first, size_t last) {
    if (arrays->half)
        half_loop(arrays, first, last);
    else
        wide_loop(arrays, first, last);
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

/* ---- threads ---------------------------------------------------------------------------- */

static void work_off(stream_t *stream) {
    size_t n_elems = stream->arrays.n_elems;
    for (;;) {
        size_t first = atomic_fetch_add_explicit(&stream->next, PIECE, memory_order_relaxed);
        if (first >= n_elems)
            return;
        stream->loop(&stream->arrays, first, n_elems - first < PIECE ? n_elems : first + PIECE);
    }
}

static void *thread_main(void *argument) {
    stream_t *stream = argument;
    unsigned n_runs = 0;
    for (;;) {
        pthread_mutex_lock(&stream->mutex);
        while (stream->n_runs == n_runs && !stream->ending)
            pthread_cond_wait(&stream->begin, &stream->mutex);
        bool ending = stream->ending;
        n_runs = stream->n_runs;
        pthread_mutex_unlock(&stream->mutex);
        if (ending)
            return NULL;
        work_off(stream);
        pthread_mutex_lock(&stream->mutex);
        if (--stream->n_working == 0)
            pthread_cond_signal(&stream->end);
        pthread_mutex_unlock(&stream->mutex);
    }
}

void stream_run(stream_t *stream) {
    pthread_mutex_lock(&stream->mutex);
    atomic_store_explicit(&stream->next, 0, memory_order_relaxed);
    stream->n_working = stream->n_started;
    stream->n_runs++;
    pthread_cond_broadcast(&stream->begin);
    pthread_mutex_unlock(&stream->mutex);
    work_off(stream);
    pthread_mutex_lock(&stream->mutex);
    while (stream->n_working > 0)
        pthread_cond_wait(&stream->end, &stream->mutex);
    pthread_mutex_unlock(&stream->mutex);
}

void stream_destroy(stream_t **stream_p) {
    if (stream_p == NULL || *stream_p == NULL)
        return;
    stream_t *stream = *stream_p;
    pthread_mutex_lock(&stream->mutex);
    stream->ending = true;
    pthread_cond_broadcast(&stream->begin);
    pthread_mutex_unlock(&stream->mutex);
    for (int i = 0; i < stream->n_started; i++)
        pthread_join(stream->threads[i], NULL);
    pthread_cond_destroy(&stream->end);
    pthread_cond_destroy(&stream->begin);
    pthread_mutex_destroy(&stream->mutex);
    free(stream->threads);
    free(stream);
    *stream_p = NULL;
}

stream_t *stream_create(const stream_arrays_t *arrays, int n_threads) {
    stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return NULL;
    stream->arrays = *arrays;
    stream->loop = best_loop();
    pthread_mutex_init(&stream->mutex, NULL);
    pthread_cond_init(&stream->begin, NULL);
    pthread_cond_init(&stream->end, NULL);
    stream->threads = calloc((size_t)n_threads, sizeof(*stream->threads));
    while (stream->threads != NULL && stream->n_started < n_threads - 1 &&
           pthread_create(&stream->threads[stream->n_started], NULL, thread_main, stream) == 0)
        stream->n_started++;
    if (stream->n_started < n_threads - 1 || stream->threads == NULL)
        stream_destroy(&stream);
    return stream;
}
