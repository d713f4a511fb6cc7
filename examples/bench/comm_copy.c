#include "examples/bench/comm_copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define LINE_BYTES ((size_t)64)

typedef struct job {
    void (*copy)(char *dst, const char *src, size_t size_bytes);
    char *dst;
    const char *src;
} job_t;

static void copy_plainly(char *dst, const char *src, size_t size_bytes) {
    memcpy(dst, src, size_bytes);
}

#if defined(__x86_64__)
/* Both cut at the lines of dst; what is left over at the ends is copied plainly. */
static size_t bytes_before_line(const char *dst, size_t size_bytes) {
    size_t n_bytes = (size_t)(-(uintptr_t)dst % LINE_BYTES);
    return n_bytes < size_bytes ? n_bytes : size_bytes;
}

__attribute__((target("avx2"))) static void stream_avx2(char *dst, const char *src,
                                                        size_t size_bytes) {
    size_t i = bytes_before_line(dst, size_bytes);
    memcpy(dst, src, i);
    for (; size_bytes - i >= LINE_BYTES; i += LINE_BYTES) {
        __m256i low = _mm256_loadu_si256((const void *)(src + i));
        __m256i high = _mm256_loadu_si256((const void *)(src + i + LINE_BYTES / 2));
        _mm256_stream_si256((void *)(dst + i), low);
        _mm256_stream_si256((void *)(dst + i + LINE_BYTES / 2), high);
    }
    memcpy(dst + i, src + i, size_bytes - i);
    _mm_sfence();
}

__attribute__((target("avx512f"))) static void stream_avx512(char *dst, const char *src,
                                                             size_t size_bytes) {
    size_t i = bytes_before_line(dst, size_bytes);
    memcpy(dst, src, i);
    for (; size_bytes - i >= LINE_BYTES; i += LINE_BYTES)
        _mm512_stream_si512((void *)(dst + i), _mm512_loadu_si512(src + i));
    memcpy(dst + i, src + i, size_bytes - i);
    _mm_sfence();
}
#endif

static void (*find(comm_copy_t copy))(char *dst, const char *src, size_t size_bytes) {
    if (copy == COMM_COPY_MEMCPY)
        return copy_plainly;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        return stream_avx512;
    if (__builtin_cpu_supports("avx2"))
        return stream_avx2;
#endif
    return NULL;
}

const char *comm_copy_name(comm_copy_t copy) {
    return copy == COMM_COPY_MEMCPY ? "memcpy" : "streaming stores";
}

bool comm_copy_exists(comm_copy_t copy) {
    return find(copy) != NULL;
}

static void copy_part(void *context, size_t first, size_t last) {
    const job_t *job = context;
    job->copy(job->dst + first, job->src + first, last - first);
}

void comm_copy_run(comm_copy_t copy, crew_t *crew, int n_threads, void *dst, const void *src,
                   size_t size_bytes) {
    job_t job = {.copy = find(copy), .dst = dst, .src = src};
    size_t part_bytes = size_bytes / (size_t)n_threads + 1;
    crew_run(crew, size_bytes, part_bytes, copy_part, &job);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* The loop, for each instruction set. Nobody wants the sum, but it is there to be made. */
static inline __attribute__((always_inline)) void read_numbers(const uint64_t *numbers, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += numbers[i];
    __asm__ volatile("" : : "r"(sum));
}

static void read_plainly(const uint64_t *numbers, size_t n) {
    read_numbers(numbers, n);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read_avx2(const uint64_t *numbers, size_t n) {
    read_numbers(numbers, n);
}

__attribute__((target("avx512f,prefer-vector-width=512"))) static void
read_avx512(const uint64_t *numbers, size_t n) {
    read_numbers(numbers, n);
}
#endif

typedef struct read_job {
    void (*read)(const uint64_t *numbers, size_t n);
    const uint64_t *numbers;
} read_job_t;

static void read_part(void *context, size_t first, size_t last) {
    const read_job_t *job = context;
    job->read(job->numbers + first, last - first);
}

void comm_read_run(crew_t *crew, int n_threads, const void *src, size_t size_bytes) {
    read_job_t job = {.read = read_plainly, .numbers = src};
    size_t n_numbers = size_bytes / sizeof(uint64_t);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        job.read = read_avx512;
    else if (__builtin_cpu_supports("avx2"))
        job.read = read_avx2;
#endif
    crew_run(crew, n_numbers, n_numbers / (size_t)n_threads + 1, read_part, &job);
}
