#include "examples/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

bool bench_take_common(int key, bench_common_t *common) {
    switch (key) {
    case BENCH_KEY_JSON:
        common->json = true;
        return true;
    case BENCH_KEY_HELP:
        common->help = true;
        return true;
    case BENCH_KEY_VERSION:
        common->version = true;
        return true;
    }
    return false;
}

error_t bench_taken(zr_status_t status) {
    if (status == ZR_ERR_UNSUPPORTED)
        return ARGP_ERR_UNKNOWN;
    return status == ZR_OK ? 0 : EINVAL;
}

bool bench_answer_common(const bench_common_t *common, const struct argp *argp, const char *name) {
    char full_name[64];
    snprintf(full_name, sizeof(full_name), "zero-bench %s", name);
    if (common->help)
        argp_help(argp, stdout, ARGP_HELP_SHORT_USAGE | ARGP_HELP_LONG | ARGP_HELP_DOC, full_name);
    else if (common->version)
        printf("zero-bench %s (%s)\n", zr_version(), zr_build_description());
    return common->help || common->version;
}

zr_status_t bench_check_folder(const char *key, const char *path, const zr_log_t *log) {
    struct stat what;
    int error = stat(path, &what) != 0           ? errno
                : !S_ISDIR(what.st_mode)         ? ENOTDIR
                : access(path, W_OK | X_OK) != 0 ? errno
                                                 : 0;
    if (error == 0)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT, "%s %s: %s; it has to be a folder that can be written to",
                   key, path, strerror(error));
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

bool bench_times_add(bench_times_t *times, double seconds) {
    if (times->n_times == times->capacity) {
        size_t capacity = times->capacity == 0 ? 64 : 2 * times->capacity;
        double *larger = realloc(times->seconds, capacity * sizeof(*larger));
        if (larger == NULL)
            return false;
        times->seconds = larger;
        times->capacity = capacity;
    }
    times->seconds[times->n_times++] = seconds;
    return true;
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

int bench_print(json_t *object, const zr_log_t *log) {
    bool printed = json_print(object, true, stdout);
    json_decref(object);
    if (!printed)
        zr_log_write(log, ZR_LOG_ERROR, "cannot print the result on standard output");
    return printed ? BENCH_MEASURED : BENCH_FAILED;
}
