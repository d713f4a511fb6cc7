/*
 * zero-bench comm: collectives of a communicator, from small tensors to large ones, against copies
 * of as many bytes as they have to read and write, made by the same threads in the same run.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/comm_report.h"
#include "examples/common/device.h"

#define MAX_TENSOR_BYTES ((size_t)1 << 40)

static const comm_choice_t choices[] = {
    {.name = "threads", .device = "host"},
    {.name = "nccl", .device = "cuda"},
    {.name = "processes", .device = "host", .is_launched = true},
};

static const zr_option_choice_t collectives[] = {
    {"all_gather", ZR_ALL_GATHER, NULL}, {"reduce_scatter", ZR_REDUCE_SCATTER, NULL},
    {"all_reduce", ZR_ALL_REDUCE, NULL}, {"broadcast", ZR_BROADCAST, NULL},
    {"all_to_all", ZR_ALL_TO_ALL, NULL}, {NULL, 0, NULL}};

typedef struct options {
    command_common_t common;
    comm_options_t comm;
    int choice;     /* of `choices` */
    size_t n_ranks; /* 0: not said */
    size_t n_threads, factor;
    bool is_silent; /* another process reports */
    size_t least_bytes, most_bytes;
    int collective; /* -1: all */
    int in_place;   /* 0: both, 1: in place, 2: apart */
} options_t;

/* ---- options -------------------------------------------------------------------------- */

static const zr_option_choice_t comms[] = {{"threads", 0, NULL},
                                           {"nccl", 1, NULL},
                                           {"processes", 2, NULL},
                                           {"mpi", 2, NULL}, /* its former name */
                                           {NULL, 0, NULL}};
static const zr_option_choice_t in_places[] = {
    {"both", 0, NULL}, {"on", 1, NULL}, {"off", 2, NULL}, {NULL, 0, NULL}};

#define AT(member) .offset = offsetof(options_t, member)

static const zr_option_t rows[] = {
    {"comm", AT(choice), .type = ZR_OPTION_CHOICE, .choices = comms,
     .arg = "threads|nccl|processes",
     .help = "the communicator; processes: those that mpirun, or you, have "
             "started (docs/guide/clusters.md)"},
    {"ranks", AT(n_ranks), .type = ZR_OPTION_COUNT, .least = 2, .most = ZR_MAX_SUM_SOURCES,
     .arg = "N", .initial = "2; of processes those that were started", .help = "ranks, 2 or more"},
    {"threads", AT(n_threads), .type = ZR_OPTION_COUNT, .least = 1, .most = 1024, .arg = "N",
     .initial = "all cores, shared out", .help = "threads of each rank"},
    {"dtype", AT(comm.dtype), .type = ZR_OPTION_CHOICE, .choices = command_dtypes,
     .help = "of the tensors"},
    {"collective", AT(collective), .type = ZR_OPTION_CHOICE, .choices = collectives, .initial = "",
     .help = "measure this one only"},
    {"in-place", AT(in_place), .type = ZR_OPTION_CHOICE, .choices = in_places,
     .help = "with a rank's block in place in the whole tensor, in separate memory, or both"},
    {"min", AT(least_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .help = "smallest size of each rank's whole tensor"},
    {"max", AT(most_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .help = "largest size; a rank needs twice that"},
    {"factor", AT(factor), .type = ZR_OPTION_COUNT, .least = 2, .most = 1 << 20, .arg = "N",
     .help = "factor from one size to the next"},
    {"seconds", AT(comm.seconds), .type = ZR_OPTION_NUMBER, .most = 3600, .arg = "S",
     .help = "measure each for about this long"}};

/* The number of ranks, where it is not for the caller to say. */
static zr_status_t count_ranks(options_t *o) {
    zr_launch_t launch;
    bool is_launched = false;
    if (!o->comm.comm->is_launched) {
        o->n_ranks = o->n_ranks > 0 ? o->n_ranks : 2;
        return ZR_OK;
    }
    ZR_TRY(zr_launch_from_environment(o->common.log, &launch, &is_launched));
    if (!is_launched || (o->n_ranks > 0 && o->n_ranks != (size_t)launch.n_ranks))
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT,
                       "--comm %s: ranks are processes, 2 or more, and started are %d; start it "
                       "with mpirun -n N and without --ranks (docs/guide/clusters.md)",
                       o->comm.comm->name, is_launched ? launch.n_ranks : 1);
    o->n_ranks = (size_t)launch.n_ranks;
    o->is_silent = launch.rank > 0;
    return ZR_OK;
}

/* What follows from several options together. */
static zr_status_t complete(options_t *o) {
    o->comm.comm = &choices[o->choice];
    ZR_TRY(count_ranks(o));
    size_t smallest = o->n_ranks * zr_dtype_size(o->comm.dtype);
    if (o->least_bytes < smallest || o->least_bytes > MAX_TENSOR_BYTES)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT,
                       "--min %zu: allowed: %zu, an element of each rank, to %zu bytes",
                       o->least_bytes, smallest, MAX_TENSOR_BYTES);
    if (o->most_bytes < o->least_bytes || o->most_bytes > MAX_TENSOR_BYTES)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT,
                       "--max %zu: allowed: %zu, that of --min, to %zu bytes", o->most_bytes,
                       o->least_bytes, MAX_TENSOR_BYTES);
    bool is_host = strcmp(o->comm.comm->device, "host") == 0;
    if (!is_host && o->n_threads > 0)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT,
                       "--threads is for ranks on the host: GPUs do not support it; leave it out");
    o->comm.n_ranks = (int)o->n_ranks;
    o->comm.n_threads = is_host ? device_threads(o->n_threads, o->comm.n_ranks) : 1;
    o->comm.log = *o->common.log;
    return ZR_OK;
}

/* ---- what is measured ---------------------------------------------------------------------- */

/* Whether a collective can be measured there. */
static bool has_place(zr_collective_t collective, bool in_place) {
    return in_place ? collective != ZR_ALL_TO_ALL
                    : collective != ZR_ALL_REDUCE && collective != ZR_BROADCAST;
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
    for (const zr_option_choice_t *c = collectives; c->name != NULL; c++) {
        zr_collective_t collective = (zr_collective_t)c->value;
        if (o->collective >= 0 && c->value != o->collective)
            continue;
        for (int in_place = 0; in_place < 2; in_place++) {
            bool is_measured = o->in_place == 0 || in_place == (o->in_place == 1);
            if (has_place(collective, in_place) &&
                (is_measured || !has_place(collective, !in_place)))
                n_rows += list_sizes(o, collective, in_place, rows != NULL ? rows + n_rows : NULL);
        }
    }
    return n_rows;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(void *argument) {
    options_t *options = argument;
    const zr_log_t *log = options->common.log;
    if (complete(options) != ZR_OK)
        return COMMAND_BAD_INPUT;
    comm_report_t report = {.options = &options->comm, .n_rows = list_rows(options, NULL)};
    report.rows = calloc(report.n_rows, sizeof(*report.rows));
    if (report.rows == NULL) {
        zr_log_write(log, ZR_LOG_ERROR, "no memory for %s",
                     zr_count_text(report.n_rows, "measurement").text);
        return COMMAND_FAILED;
    }
    list_rows(options, report.rows);
    zr_status_t status = comm_measure(&options->comm, report.rows, report.n_rows, &report.about);
    int code = command_code(status);
    if (status == ZR_OK && !options->is_silent)
        code = bench_report(&options->common, comm_report_describe(&report), COMMAND_DONE);
    free(report.rows);
    return code;
}

static const options_t defaults = {.comm = {.seconds = 0.2, .dtype = ZR_DTYPE_F32},
                                   .collective = -1,
                                   .factor = 4,
                                   .least_bytes = 1024,
                                   .most_bytes = (size_t)256 << 20};

const command_t bench_comm = {
    .name = "comm",
    .summary = "collectives of a communicator against copies of the bytes that they have to move, "
               "and against MPI's own",
    .doc = "Bytes per second of collectives, against copies of the bytes that they have to read "
           "and write, by as many threads, in the same run. Results are checked. With --comm "
           "processes under mpirun, MPI's own collectives take turns with them.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
