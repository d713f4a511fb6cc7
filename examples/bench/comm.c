/*
 * zero-bench comm: collectives of a communicator, from small tensors to large ones, against copies
 * of as many bytes as they have to read and write, made by the same threads in the same run.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/comm_report.h"
#include "examples/common/device.h"

#define MAX_TENSOR_BYTES ((size_t)1 << 40)
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
    int in_place; /* 0: both, 1: in place, 2: apart */
    const zr_log_t *log;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

static zr_status_t take_comm(const char *value, void *options) {
    options_t *o = options;
    const char *names[N_CHOICES];
    size_t choice = 0;
    for (size_t i = 0; i < N_CHOICES; i++)
        names[i] = choices[i].name;
    ZR_TRY(args_choice("--comm", value, names, N_CHOICES, o->log, &choice));
    o->comm.comm = &choices[choice];
    return ZR_OK;
}

static zr_status_t take_collective(const char *value, void *options) {
    options_t *o = options;
    const char *names[N_COLLECTIVES];
    size_t choice = 0;
    for (size_t i = 0; i < N_COLLECTIVES; i++)
        names[i] = zr_collective_name(collectives[i]);
    ZR_TRY(args_choice("--collective", value, names, N_COLLECTIVES, o->log, &choice));
    o->has_collective = true;
    o->collective = collectives[choice];
    return ZR_OK;
}

static const command_option_t option_table[] = {
    {"comm", "threads|nccl|mpi",
     "the communicator (default threads); mpi: of processes that mpirun, or you, have started "
     "(docs/clusters.md)",
     COMMAND_OTHER, .take = take_comm},
    {"ranks", "N", "ranks, 2 or more (default 2; of mpi: those that were started)", COMMAND_COUNT,
     .field = offsetof(options_t, n_ranks), 2, ZR_MAX_SUM_SOURCES},
    {"threads", "N", "threads of each rank (default: all cores, shared out)", COMMAND_COUNT,
     .field = offsetof(options_t, n_threads), 1, 1024},
    {"dtype", "NAME", "of the tensors: fp32 (default) or bf16", COMMAND_DTYPE,
     .field = offsetof(options_t, comm.dtype)},
    {"collective", "NAME",
     "measure this one only: all_gather, reduce_scatter, all_reduce or broadcast", COMMAND_OTHER,
     .take = take_collective},
    {"in-place", "both|on|off",
     "with a rank's block at its place in the whole tensor, apart from it, or both (default)",
     COMMAND_CHOICE, .field = offsetof(options_t, in_place)},
    {"min", "SIZE", "of each rank's whole tensor, the smallest (default 1KiB)", COMMAND_SIZE,
     .field = offsetof(options_t, least_bytes)},
    {"max", "SIZE", "the largest (default 256MiB); a rank takes twice that", COMMAND_SIZE,
     .field = offsetof(options_t, most_bytes)},
    {"factor", "N", "from one size to the next (default 4)", COMMAND_COUNT,
     .field = offsetof(options_t, factor), 2, 1 << 20},
    {"seconds", "S", "measure each for about so long (default 0.2)", COMMAND_NUMBER,
     .field = offsetof(options_t, comm.seconds), 0, 3600},
    {0},
};

static const bench_parser_t parser = {
    .name = "comm",
    .options = option_table,
    .doc = "Bytes per second of collectives, against copies of the bytes that they have to read "
           "and write, by as many threads, in the same run. Results are checked. With --comm mpi "
           "under mpirun, MPI's own collectives take turns with them."};

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
                       "--comm %s: ranks are processes, 2 or more, and started are %d; start it "
                       "with mpirun -n N and without --ranks (docs/clusters.md)",
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
            bool is_measured = o->in_place == 0 || in_place == (o->in_place == 1);
            if (is_always_in_place(collectives[i]) ? in_place : is_measured)
                n_rows +=
                    list_sizes(o, collectives[i], in_place, rows != NULL ? rows + n_rows : NULL);
        }
    }
    return n_rows;
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
                         .log = log};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    if (complete(&options) != ZR_OK)
        return BENCH_BAD_INPUT;
    comm_report_t report = {.options = &options.comm, .n_rows = list_rows(&options, NULL)};
    report.rows = calloc(report.n_rows, sizeof(*report.rows));
    if (report.rows == NULL) {
        zr_log_write(log, ZR_LOG_ERROR, "no memory for %s",
                     zr_count_text(report.n_rows, "measurement").text);
        return BENCH_FAILED;
    }
    list_rows(&options, report.rows);
    zr_status_t status = comm_measure(&options.comm, report.rows, report.n_rows, &report.about);
    code = exit_code(status);
    if (status == ZR_OK && !options.is_silent)
        comm_report_print(&report);
    if (status == ZR_OK && options.common.json && !options.is_silent)
        code = command_print(comm_report_describe(&report), BENCH_MEASURED, log);
    free(report.rows);
    return code;
}

const bench_command_t bench_comm = {
    .name = "comm",
    .summary =
        "collectives of a communicator against copies of the bytes that they have to move, and "
        "against MPI's own",
    .run = run};
