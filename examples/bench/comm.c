/*
 * zero-bench comm: collectives of a communicator, from small tensors to large ones, against copies
 * of as many bytes as they have to read and write, made by the same threads in the same run.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/comm_run.h"
#include "examples/common/device.h"

#define MAX_TENSOR_BYTES ((size_t)1 << 40)
/* From here on tensors are no matter of caches or of meeting: what the object's ratio is about. */
#define LARGE_BYTES ((size_t)16 << 20)

/* This process's rank, of those that a launcher has started. */
static zr_status_t create_mpi(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    zr_launch_t launch;
    bool is_launched = false;
    (void)n_ranks; /* is the launch's */
    ZR_TRY(zr_launch_from_environment(&options->log, &launch, &is_launched));
    return zr_comm_create_mpi(&launch, options, &comms[launch.rank]);
}

static const comm_choice_t choices[] = {
    {.name = "threads", .device = "host", .create = zr_comm_create_threads},
    {.name = "nccl", .device = "cuda", .create = zr_comm_create_nccl_threads},
    {.name = "mpi", .device = "host", .is_launched = true, .create = create_mpi},
};
#define N_CHOICES (sizeof(choices) / sizeof(choices[0]))

static const zr_collective_t collectives[] = {ZR_ALL_GATHER, ZR_REDUCE_SCATTER, ZR_ALL_REDUCE,
                                              ZR_BROADCAST};
#define N_COLLECTIVES (sizeof(collectives) / sizeof(collectives[0]))

typedef struct options {
    bench_common_t common;
    comm_options_t comm;
    size_t n_ranks; /* 0: not said */
    size_t n_threads, factor;
    bool is_silent; /* another process reports */
    size_t least_bytes, most_bytes;
    bool has_collective;
    zr_collective_t collective;
    bool measures[2]; /* apart, in place */
    const zr_log_t *log;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

enum {
    KEY_COMM = BENCH_KEY_FIRST_OWN,
    KEY_RANKS,
    KEY_THREADS,
    KEY_DTYPE,
    KEY_COLLECTIVE,
    KEY_IN_PLACE,
    KEY_LEAST,
    KEY_MOST,
    KEY_FACTOR,
    KEY_SECONDS
};

static const struct argp_option option_table[] = {
    {"comm", KEY_COMM, "threads|nccl|mpi", 0,
     "the communicator (default threads); mpi: of processes that mpirun has started", 0},
    {"ranks", KEY_RANKS, "N", 0, "ranks, 2 or more (default 2; of mpi: those that were started)",
     0},
    {"threads", KEY_THREADS, "N", 0, "threads of each rank (default: all cores, shared out)", 0},
    {"dtype", KEY_DTYPE, "NAME", 0, "of the tensors: fp32 (default) or bf16", 0},
    {"collective", KEY_COLLECTIVE, "NAME", 0,
     "measure this one only: all_gather, reduce_scatter, all_reduce or broadcast", 0},
    {"in-place", KEY_IN_PLACE, "both|on|off", 0,
     "with a rank's block at its place in the whole tensor, apart from it, or both (default)", 0},
    {"min", KEY_LEAST, "SIZE", 0, "of each rank's whole tensor, the smallest (default 1KiB)", 0},
    {"max", KEY_MOST, "SIZE", 0, "the largest (default 256MiB); a rank takes twice that", 0},
    {"factor", KEY_FACTOR, "N", 0, "from one size to the next (default 4)", 0},
    {"seconds", KEY_SECONDS, "S", 0, "measure each for about so long (default 0.2)", 0},
    BENCH_COMMON_OPTIONS,
    {0},
};

static zr_status_t take_choice(int key, const char *value, options_t *o) {
    static const char *const in_place[] = {"both", "on", "off"};
    const char *names[N_CHOICES], *collective_names[N_COLLECTIVES];
    size_t choice = 0;
    switch (key) {
    case KEY_COMM:
        for (size_t i = 0; i < N_CHOICES; i++)
            names[i] = choices[i].name;
        ZR_TRY(args_choice("--comm", value, names, N_CHOICES, o->log, &choice));
        o->comm.comm = &choices[choice];
        return ZR_OK;
    case KEY_COLLECTIVE:
        for (size_t i = 0; i < N_COLLECTIVES; i++)
            collective_names[i] = zr_collective_name(collectives[i]);
        ZR_TRY(
            args_choice("--collective", value, collective_names, N_COLLECTIVES, o->log, &choice));
        o->has_collective = true;
        o->collective = collectives[choice];
        return ZR_OK;
    case KEY_IN_PLACE:
        ZR_TRY(args_choice("--in-place", value, in_place, 3, o->log, &choice));
        o->measures[0] = choice != 1;
        o->measures[1] = choice != 2;
        return ZR_OK;
    case KEY_DTYPE:
        return args_dtype("--dtype", value, o->log, &o->comm.dtype);
    }
    return ZR_ERR_UNSUPPORTED;
}

static zr_status_t take_option(int key, const char *value, void *options) {
    options_t *o = options;
    switch (key) {
    case KEY_RANKS:
        return args_count("--ranks", value, 2, ZR_MAX_SUM_SOURCES, o->log, &o->n_ranks);
    case KEY_THREADS:
        return args_count("--threads", value, 1, 1024, o->log, &o->n_threads);
    case KEY_LEAST:
        return args_size("--min", value, o->log, &o->least_bytes);
    case KEY_MOST:
        return args_size("--max", value, o->log, &o->most_bytes);
    case KEY_FACTOR:
        return args_count("--factor", value, 2, 1 << 20, o->log, &o->factor);
    case KEY_SECONDS:
        return args_number("--seconds", value, 0.0, 3600.0, o->log, &o->comm.seconds);
    }
    return take_choice(key, value, o);
}

static const bench_parser_t parser = {
    .name = "comm",
    .options = option_table,
    .take = take_option,
    .doc = "Bytes per second of collectives, against copies of the bytes that they have to read "
           "and write, by as many threads, in the same run. Results are checked."};

/* The number of ranks, where it is not for the caller to say. */
static zr_status_t count_ranks(options_t *o) {
    zr_launch_t launch;
    bool is_launched = false;
    if (!o->comm.comm->is_launched) {
        o->n_ranks = o->n_ranks > 0 ? o->n_ranks : 2;
        return ZR_OK;
    }
    ZR_TRY(zr_launch_from_environment(o->log, &launch, &is_launched));
    if (!is_launched || (o->n_ranks > 0 && o->n_ranks != (size_t)launch.n_ranks))
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--comm %s: ranks are processes, 2 or more, and here %d are started; start "
                       "it with mpirun -n N and without --ranks (docs/clusters.md)",
                       o->comm.comm->name, is_launched ? launch.n_ranks : 1);
    o->n_ranks = (size_t)launch.n_ranks;
    o->is_silent = launch.rank > 0;
    return ZR_OK;
}

/* What follows from several options together. */
static zr_status_t complete(options_t *o) {
    ZR_TRY(count_ranks(o));
    size_t smallest = o->n_ranks * zr_dtype_size(o->comm.dtype);
    if (o->least_bytes < smallest || o->least_bytes > MAX_TENSOR_BYTES)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--min %zu: allowed are %zu, an element of each rank, to %zu bytes",
                       o->least_bytes, smallest, MAX_TENSOR_BYTES);
    if (o->most_bytes < o->least_bytes || o->most_bytes > MAX_TENSOR_BYTES)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--max %zu: allowed are %zu, that of --min, to %zu bytes", o->most_bytes,
                       o->least_bytes, MAX_TENSOR_BYTES);
    bool is_host = strcmp(o->comm.comm->device, "host") == 0;
    if (!is_host && o->n_threads > 0)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--threads is for ranks on the host: a GPU has no such thing; leave it out");
    o->comm.n_ranks = (int)o->n_ranks;
    o->comm.n_threads = is_host ? device_threads(o->n_threads, o->comm.n_ranks) : 1;
    o->comm.log = *o->log;
    return ZR_OK;
}

/* ---- what is measured ---------------------------------------------------------------------- */

static bool is_always_in_place(zr_collective_t collective) {
    return collective == ZR_ALL_REDUCE || collective == ZR_BROADCAST;
}

/* The rows of one collective and one place; how many they are, also without `rows`. */
static size_t list_sizes(const options_t *o, zr_collective_t collective, bool in_place,
                         comm_row_t *rows) {
    size_t n_rows = 0, elem_bytes = zr_dtype_size(o->comm.dtype);
    for (size_t size = o->least_bytes; size <= o->most_bytes; size *= o->factor) {
        if (rows != NULL)
            rows[n_rows] = (comm_row_t){.collective = collective,
                                        .in_place = in_place,
                                        .block_elems = size / elem_bytes / o->n_ranks};
        n_rows++;
    }
    return n_rows;
}

static size_t list_rows(const options_t *o, comm_row_t *rows) {
    size_t n_rows = 0;
    for (size_t i = 0; i < N_COLLECTIVES; i++) {
        if (o->has_collective && collectives[i] != o->collective)
            continue;
        for (int in_place = 0; in_place < 2; in_place++) {
            if (is_always_in_place(collectives[i]) ? in_place : o->measures[in_place])
                n_rows +=
                    list_sizes(o, collectives[i], in_place, rows != NULL ? rows + n_rows : NULL);
        }
    }
    return n_rows;
}

/* ---- the report -------------------------------------------------------------------------- */

typedef struct report {
    const options_t *options;
    comm_row_t *rows;
    size_t n_rows;
    comm_about_t about;
} report_t;

static size_t tensor_bytes(const report_t *report, const comm_row_t *row) {
    return row->block_elems * report->options->n_ranks * zr_dtype_size(report->options->comm.dtype);
}

/* What is left out so that all ranks have as much is no matter. */
static bool is_large_tensor(size_t size_bytes) {
    return size_bytes >= LARGE_BYTES - LARGE_BYTES / 64;
}

static double copy_ratio(const comm_row_t *row) {
    return row->ratio;
}

/* MPI's own reduce-scatters; 0: it is none, or was not measured. */
static double mpi_ratio(const comm_row_t *row) {
    return row->collective == ZR_REDUCE_SCATTER ? row->mpi_ratio : 0.0;
}

/* The least above 0 among large tensors, or among all where none is large. 0: there is none. */
static double least_ratio(const report_t *report, double (*ratio_of)(const comm_row_t *row),
                          bool *are_large_p) {
    double least = 0.0;
    *are_large_p = false;
    for (size_t i = 0; i < report->n_rows; i++) {
        double ratio = ratio_of(&report->rows[i]);
        bool is_large = is_large_tensor(tensor_bytes(report, &report->rows[i]));
        if (ratio <= 0.0)
            continue;
        if (least <= 0.0 || (is_large && !*are_large_p) ||
            (is_large == *are_large_p && ratio < least))
            least = ratio;
        *are_large_p = *are_large_p || is_large;
    }
    return least;
}

/* The end of a row's line. */
static void print_mpi(const comm_row_t *row) {
    if (row->mpi != NULL)
        fprintf(stderr, "  %s %10.1f us%s  ratio %6.2f", row->mpi, 1e6 * row->mpi_seconds,
                row->mpi_keeps_memory ? "" : " (malloc as it comes)", row->mpi_ratio);
    fputc('\n', stderr);
}

static void print_for_people(const report_t *report) {
    const comm_options_t *o = &report->options->comm;
    bool are_large;
    double least = least_ratio(report, copy_ratio, &are_large);
    fprintf(stderr, "%s\n%s, %d ranks of %d thread%s, %s; a tensor of each rank, checked\n",
            report->about.device, o->comm->name, o->n_ranks, o->n_threads,
            messages_plural((size_t)o->n_threads), zr_dtype_name(o->dtype));
    for (size_t i = 0; i < report->n_rows; i++) {
        const comm_row_t *row = &report->rows[i];
        fprintf(stderr, "  %-14s %-8s %11s  %10.1f us  %7.2f GB/s  copy %7.2f GB/s  ratio %6.3f",
                zr_collective_name(row->collective), row->in_place ? "in place" : "apart",
                zr_size_text(tensor_bytes(report, row)).text, 1e6 * row->seconds,
                1e-9 * row->bytes / row->seconds, 1e-9 * row->bytes / row->copy_seconds,
                row->ratio);
        if (row->read_ratio > 0.0)
            fprintf(stderr, "  of reading alone %6.3f", row->read_ratio);
        print_mpi(row);
    }
    fprintf(stderr, "  ratio %.3f, the least%s\n", least, are_large ? " from 16 MiB on" : "");
    if (report->about.mpi[0] != '\0' && !report->about.has_mpi)
        fprintf(stderr, "  MPI's own collectives are left out: %s\n", report->about.mpi);
    least = least_ratio(report, mpi_ratio, &are_large);
    if (least > 0.0)
        fprintf(stderr, "  %s: its reduce-scatter takes %.2f times as long, the least%s\n",
                report->about.mpi, least, are_large ? " from 16 MiB on" : "");
}

static json_t *describe_mpi(const comm_row_t *row) {
    json_t *object = json_object();
    if (json_put(object, "call", json_string(row->mpi)) &&
        json_put(object, "malloc", json_string(row->mpi_keeps_memory ? "kept" : "as it comes")) &&
        json_put(object, "seconds", json_number(row->mpi_seconds)) &&
        json_put(object, "ratio", json_number(row->mpi_ratio)))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *describe_row(const report_t *report, const comm_row_t *row) {
    json_t *object = json_object();
    if (json_put(object, "collective", json_string(zr_collective_name(row->collective))) &&
        json_put(object, "in_place", json_boolean(row->in_place)) &&
        json_put(object, "tensor_bytes", json_count(tensor_bytes(report, row))) &&
        json_put(object, "bytes", json_number(row->bytes)) &&
        json_put(object, "seconds", json_number(row->seconds)) &&
        json_put(object, "bytes_per_s", json_number(row->bytes / row->seconds)) &&
        json_put(object, "copy", json_string(row->copy)) &&
        json_put(object, "copy_bytes_per_s", json_number(row->bytes / row->copy_seconds)) &&
        json_put(object, "ratio", json_number(row->ratio)) &&
        (row->read_ratio <= 0.0 || json_put(object, "read_ratio", json_number(row->read_ratio))) &&
        json_put(object, "rounds", json_count(row->n_rounds)) &&
        json_put(object, "calls_a_round", json_count(row->calls_a_round)) &&
        (row->mpi == NULL || json_put(object, "mpi", describe_mpi(row))))
        return object;
    json_decref(object);
    return NULL;
}

/* Whose collectives were measured beside, or why none; where they were asked for. */
static bool put_mpi(json_t *object, const report_t *report) {
    bool are_large;
    double least = least_ratio(report, mpi_ratio, &are_large);
    if (report->about.mpi[0] == '\0')
        return true;
    if (!report->about.has_mpi)
        return json_put(object, "mpi_left_out", json_text(report->about.mpi));
    return json_put(object, "mpi", json_text(report->about.mpi)) &&
           (least <= 0.0 || json_put(object, "mpi_reduce_scatter_ratio", json_number(least)));
}

static json_t *describe(const report_t *report) {
    const comm_options_t *o = &report->options->comm;
    json_t *object = json_object(), *list = json_array();
    bool is_whole = list != NULL, are_large;
    for (size_t i = 0; i < report->n_rows && is_whole; i++)
        is_whole = json_array_append_new(list, describe_row(report, &report->rows[i])) == 0;
    is_whole = json_put(object, "measurements", list) && is_whole;
    if (is_whole && json_put(object, "command", json_string("comm")) &&
        json_put(object, "comm", json_string(o->comm->name)) &&
        json_put(object, "device", json_string(report->about.device)) &&
        json_put(object, "ranks", json_count((uint64_t)o->n_ranks)) &&
        json_put(object, "threads_per_rank", json_count((uint64_t)o->n_threads)) &&
        json_put(object, "dtype", json_string(zr_dtype_name(o->dtype))) &&
        json_put(object, "ratio", json_number(least_ratio(report, copy_ratio, &are_large))) &&
        put_mpi(object, report))
        return object;
    json_decref(object);
    return NULL;
}

/* ---- the command --------------------------------------------------------------------------- */

static int exit_code(zr_status_t status) {
    if (status == ZR_OK)
        return BENCH_MEASURED;
    return status == ZR_ERR_UNSUPPORTED || status == ZR_ERR_ARGUMENT ? BENCH_BAD_INPUT
                                                                     : BENCH_FAILED;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.comm = {.comm = &choices[0], .seconds = 0.2, .dtype = ZR_DTYPE_F32},
                         .factor = 4,
                         .least_bytes = 1024,
                         .most_bytes = (size_t)256 << 20,
                         .measures = {true, true},
                         .log = log};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    if (complete(&options) != ZR_OK)
        return BENCH_BAD_INPUT;
    report_t report = {.options = &options, .n_rows = list_rows(&options, NULL)};
    report.rows = calloc(report.n_rows, sizeof(*report.rows));
    if (report.rows == NULL) {
        zr_log_write(log, ZR_LOG_ERROR, "no memory for %zu measurements", report.n_rows);
        return BENCH_FAILED;
    }
    list_rows(&options, report.rows);
    zr_status_t status = comm_measure(&options.comm, report.rows, report.n_rows, &report.about);
    code = exit_code(status);
    if (status == ZR_OK && !options.is_silent)
        print_for_people(&report);
    if (status == ZR_OK && options.common.json && !options.is_silent)
        code = bench_print(describe(&report), log);
    free(report.rows);
    return code;
}

const bench_command_t bench_comm = {
    .name = "comm",
    .summary = "collectives of a communicator against copies of the bytes that they have to move",
    .run = run};
