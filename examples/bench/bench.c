#include "examples/bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "examples/common/files.h"

/* ---- options -------------------------------------------------------------------------- */

typedef struct parsing {
    const bench_parser_t *parser;
    bench_common_t *common;
    const zr_log_t *log;
} parsing_t;

static zr_status_t take(const parsing_t *parsing, int key, const char *value) {
    switch (key) {
    case BENCH_KEY_JSON:
        parsing->common->json = true;
        return ZR_OK;
    case BENCH_KEY_HELP:
        parsing->common->help = true;
        return ZR_OK;
    case BENCH_KEY_VERSION:
        parsing->common->version = true;
        return ZR_OK;
    case ARGP_KEY_ARG:
        return zr_fail(parsing->log, ZR_ERR_ARGUMENT, "%s takes options only, but got \"%s\"",
                       parsing->parser->name, value);
    }
    return parsing->parser->take(key, value, parsing->common);
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    switch (take(state->input, key, value)) {
    case ZR_OK:
        return 0;
    case ZR_ERR_UNSUPPORTED:
        return ARGP_ERR_UNKNOWN;
    default:
        return EINVAL;
    }
}

bool bench_parse(const bench_parser_t *parser, int argc, char **argv, const zr_log_t *log,
                 bench_common_t *common, int *code_p) {
    parsing_t parsing = {.parser = parser, .common = common, .log = log};
    const struct argp argp = {
        .options = parser->options, .parser = parse_option, .doc = parser->doc};
    zr_status_t status = args_parse(&argp, argc, argv, log, &parsing);
    if (status != ZR_OK) {
        *code_p = status == ZR_ERR_ARGUMENT ? BENCH_BAD_INPUT : BENCH_FAILED;
        return false;
    }
    char name[64];
    snprintf(name, sizeof(name), "zero-bench %s", parser->name);
    if (common->help)
        args_help(&argp, name, stdout);
    else if (common->version)
        printf("zero-bench %s (%s)\n", zr_version(), zr_build_description());
    *code_p = BENCH_MEASURED;
    return !common->help && !common->version;
}

zr_status_t bench_check_folder(const char *key, const char *path, const zr_log_t *log) {
    const char *problem = files_refuse_folder(path);
    if (problem == NULL)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT, "%s %s: %s; it has to be a folder that can be written to",
                   key, path, problem);
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
