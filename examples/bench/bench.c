#include "examples/bench/bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "examples/common/files.h"

zr_status_t bench_check_folder(const char *key, const char *path, const zr_log_t *log) {
    const char *problem = files_refuse_folder(path);
    if (problem == NULL)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT, "%s %s: %s; must be a writable folder", key, path,
                   problem);
}

zr_status_t bench_folders(const char *key, const char *value, const zr_log_t *log,
                          bench_folders_t *folders) {
    folders->n = 0;
    int length = snprintf(folders->text, sizeof(folders->text), "%s", value);
    if (length >= (int)sizeof(folders->text))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %d bytes; allowed: up to %zu", key, length,
                       sizeof(folders->text) - 1);
    for (char *rest = folders->text, *path; (path = strsep(&rest, ",")) != NULL;) {
        if (path[0] == '\0' || folders->n == BENCH_MOST_FOLDERS)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "%s \"%s\": 1 to %d folders are allowed, none of them empty", key, value,
                           BENCH_MOST_FOLDERS);
        folders->paths[folders->n++] = path;
    }
    for (size_t i = 0; i < folders->n; i++)
        ZR_TRY(bench_check_folder(key, folders->paths[i], log));
    return ZR_OK;
}

double bench_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double bench_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + 1e-6 * (double)usage.ru_utime.tv_usec +
           (double)usage.ru_stime.tv_sec + 1e-6 * (double)usage.ru_stime.tv_usec;
}

zr_status_t bench_times_add(bench_times_t *times, double seconds, const zr_log_t *log) {
    if (times->n_times == times->capacity) {
        size_t capacity = times->capacity == 0 ? 64 : 2 * times->capacity;
        double *larger = realloc(times->seconds, capacity * sizeof(*larger));
        if (larger == NULL)
            return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s",
                           zr_count_text(capacity, "time").text);
        times->seconds = larger;
        times->capacity = capacity;
    }
    times->seconds[times->n_times++] = seconds;
    return ZR_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_times_median(bench_times_t *times) {
    size_t n = times->n_times;
    if (n == 0)
        return 0.0;
    qsort(times->seconds, n, sizeof(times->seconds[0]), compare);
    return 0.5 * (times->seconds[(n - 1) / 2] + times->seconds[n / 2]);
}

void bench_times_free(bench_times_t *times) {
    free(times->seconds);
    *times = (bench_times_t){0};
}
