#include "examples/bench/comm_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "examples/bench/comm_copy.h"
#include "examples/bench/on_device.h"

#define BATCH_SECONDS 0.005
#define MAX_CALLS 1000
#define STAGING_BYTES ((size_t)1 << 20)

/* What takes turns: the collective, and the ways to copy. */
enum { WORK_COLLECTIVE = N_COMM_COPIES, N_WORKS };

typedef struct rank {
    const comm_options_t *options;
    pthread_t thread;
    zr_status_t status;
    zr_comm_t *comm;
    comm_row_t *rows; /* this rank's own copy */
    size_t n_rows;
    on_device_t on;
    bool is_host;
    char *whole, *other; /* tensors of all ranks' blocks; for the work in place, the first alone */
    double *shown;       /* [n_ranks] on the device: what ranks tell each other */
    size_t n_copies;     /* made so far */
    char *staging;       /* of the host */
    crew_t *crew;        /* copies, on the host */
    bench_times_t times[N_WORKS];
    char device_text[128];
} rank_t;

double comm_least_bytes(zr_collective_t collective, bool in_place, double tensor_bytes,
                        int n_ranks) {
    double n = (double)n_ranks;
    switch (collective) {
    case ZR_ALL_GATHER: /* each block is read once; in place no rank writes its own */
        return tensor_bytes + (in_place ? n - 1.0 : n) * tensor_bytes;
    case ZR_REDUCE_SCATTER: /* all tensors are read, and a block written on each rank */
        return n * tensor_bytes + tensor_bytes;
    case ZR_ALL_REDUCE: /* all tensors are read and written */
        return 2.0 * n * tensor_bytes;
    case ZR_BROADCAST: /* root's is read, the others' are written */
        return n * tensor_bytes;
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return 0.0;
}

/* ---- what ranks tell each other ------------------------------------------------------------- */

/* The largest of what the ranks give. */
static zr_status_t agree_on_most(rank_t *rank, double own, double *most_p) {
    const zr_message_t message = {
        .tensor = "times", .dtype = ZR_DTYPE_F64, .traffic = ZR_TRAFFIC_CONTROL};
    double all[ZR_MAX_SUM_SOURCES];
    size_t n_ranks = (size_t)zr_comm_n_ranks(rank->comm);
    double *place = rank->shown + zr_comm_rank(rank->comm);
    zr_stream_t *stream = rank->on.stream;
    ZR_TRY(zr_copy_async(stream, place, &own, sizeof(own), ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_comm_all_gather(rank->comm, &message, place, rank->shown, 1, stream));
    ZR_TRY(zr_copy_async(stream, all, rank->shown, n_ranks * sizeof(*all), ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(stream));
    ZR_TRY(zr_comm_check(rank->comm));
    *most_p = own;
    for (size_t i = 0; i < n_ranks; i++)
        *most_p = all[i] > *most_p ? all[i] : *most_p;
    return ZR_OK;
}

/* ---- the calls --------------------------------------------------------------------------------
 */

static size_t block_bytes(const rank_t *rank, const comm_row_t *row) {
    return row->block_elems * zr_dtype_size(rank->options->dtype);
}

static size_t tensor_elems(const rank_t *rank, const comm_row_t *row) {
    return row->block_elems * (size_t)rank->options->n_ranks;
}

/* Where a rank's block is: its place in the whole tensor, or apart from it. */
static char *block_of(const rank_t *rank, const comm_row_t *row) {
    size_t offset = (size_t)zr_comm_rank(rank->comm) * block_bytes(rank, row);
    return row->in_place ? rank->whole + offset : rank->other;
}

static zr_status_t call(rank_t *rank, const comm_row_t *row) {
    const zr_message_t message = {
        .tensor = "measured", .dtype = rank->options->dtype, .traffic = ZR_TRAFFIC_MODEL};
    zr_stream_t *stream = rank->on.stream;
    char *block = block_of(rank, row);
    size_t n = row->block_elems, n_all = tensor_elems(rank, row);
    switch (row->collective) {
    case ZR_ALL_GATHER:
        return zr_comm_all_gather(rank->comm, &message, block, rank->whole, n, stream);
    case ZR_REDUCE_SCATTER:
        return zr_comm_reduce_scatter(rank->comm, &message, rank->whole, block, n, stream);
    case ZR_ALL_REDUCE:
        return zr_comm_all_reduce(rank->comm, &message, rank->whole, n_all, stream);
    case ZR_BROADCAST:
        return zr_comm_broadcast(rank->comm, &message, rank->whole, n_all,
                                 rank->options->n_ranks - 1, stream);
    case ZR_BARRIER:
    case ZR_SPLIT:
        break;
    }
    return ZR_ERR_UNSUPPORTED;
}

/* A rank's share of copies that read and write as much as the collective has to. Forth and back, so
 * that what is read was not read just before, and no more of it is in caches than of the tensors.
 */
static zr_status_t copy(rank_t *rank, const comm_row_t *row, comm_copy_t way) {
    size_t n_bytes = (size_t)(row->bytes / 2.0 / rank->options->n_ranks);
    bool is_back = rank->n_copies++ % 2 == 1;
    char *dst = is_back ? rank->whole : rank->other, *src = is_back ? rank->other : rank->whole;
    if (!rank->is_host)
        return zr_copy_async(rank->on.stream, dst, src, n_bytes, ZR_COPY_DEVICE_TO_DEVICE);
    comm_copy_run(way, rank->crew, rank->options->n_threads, dst, src, n_bytes);
    return ZR_OK;
}

/* ---- whether results are right ----------------------------------------------------------------
 */

/* Small whole numbers, whose sums over all ranks are exact in bf16. */
static unsigned value_of(int rank, size_t index) {
    return (((uint32_t)index * 0x9e3779b1u) ^ ((uint32_t)(rank + 1) * 0x85ebca6bu)) >> 13 & 3u;
}

/* No value, and no sum of any that are exact. */
static const float untouched = -1.0f;

static float expected_at(const rank_t *rank, const comm_row_t *row, size_t index) {
    int n_ranks = rank->options->n_ranks;
    unsigned sum = 0;
    if (row->collective == ZR_ALL_GATHER)
        return (float)value_of((int)(index / row->block_elems), index);
    if (row->collective == ZR_BROADCAST)
        return (float)value_of(n_ranks - 1, index);
    for (int other = 0; other < n_ranks; other++)
        sum += value_of(other, index);
    return (float)sum;
}

static void put(void *numbers, zr_dtype_t dtype, size_t i, float value) {
    if (dtype == ZR_DTYPE_BF16)
        ((zr_bf16_t *)numbers)[i] = zr_bf16_from_f32(value);
    else
        ((float *)numbers)[i] = value;
}

static float get(const void *numbers, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_BF16 ? zr_bf16_to_f32(((const zr_bf16_t *)numbers)[i])
                                  : ((const float *)numbers)[i];
}

/* A part of a tensor: n_elems at data, the first of which is number `first` of the tensor. */
typedef struct part {
    char *data;
    size_t first, n_elems;
} part_t;

static part_t own_block(const rank_t *rank, const comm_row_t *row) {
    return (part_t){.data = block_of(rank, row),
                    .first = (size_t)zr_comm_rank(rank->comm) * row->block_elems,
                    .n_elems = row->block_elems};
}

static part_t whole_tensor(const rank_t *rank, const comm_row_t *row) {
    return (part_t){.data = rank->whole, .n_elems = tensor_elems(rank, row)};
}

static zr_status_t write_values(rank_t *rank, part_t part) {
    zr_dtype_t dtype = rank->options->dtype;
    size_t elem_bytes = zr_dtype_size(dtype), most = STAGING_BYTES / elem_bytes;
    for (size_t done = 0; done < part.n_elems; done += most) {
        size_t n = part.n_elems - done < most ? part.n_elems - done : most;
        for (size_t i = 0; i < n; i++)
            put(rank->staging, dtype, i,
                (float)value_of(zr_comm_rank(rank->comm), part.first + done + i));
        ZR_TRY(zr_copy_async(rank->on.stream, part.data + done * elem_bytes, rank->staging,
                             n * elem_bytes, ZR_COPY_HOST_TO_DEVICE));
        ZR_TRY(zr_stream_synchronize(rank->on.stream));
    }
    return ZR_OK;
}

static zr_status_t check_values(rank_t *rank, const comm_row_t *row, part_t part) {
    zr_dtype_t dtype = rank->options->dtype;
    size_t elem_bytes = zr_dtype_size(dtype), most = STAGING_BYTES / elem_bytes;
    for (size_t done = 0; done < part.n_elems; done += most) {
        size_t n = part.n_elems - done < most ? part.n_elems - done : most;
        ZR_TRY(zr_copy_async(rank->on.stream, rank->staging, part.data + done * elem_bytes,
                             n * elem_bytes, ZR_COPY_DEVICE_TO_HOST));
        ZR_TRY(zr_stream_synchronize(rank->on.stream));
        for (size_t i = 0; i < n; i++) {
            size_t index = part.first + done + i;
            float value = get(rank->staging, dtype, i), wanted = expected_at(rank, row, index);
            if (value != wanted)
                return zr_fail(zr_device_log(rank->on.device), ZR_ERR_COMM,
                               "%s of %zu elements: element %zu is %g instead of %g",
                               zr_collective_name(row->collective), tensor_elems(rank, row), index,
                               (double)value, (double)wanted);
        }
    }
    return ZR_OK;
}

/* Make the call once on values that tell ranks and places apart. */
static zr_status_t check(rank_t *rank, const comm_row_t *row) {
    bool is_gather = row->collective == ZR_ALL_GATHER;
    size_t n = tensor_elems(rank, row);
    zr_stream_t *stream = rank->on.stream;
    ZR_TRY(zr_kernel_fill(stream, rank->whole, rank->options->dtype, n, untouched));
    ZR_TRY(zr_kernel_fill(stream, rank->other, rank->options->dtype, n, untouched));
    ZR_TRY(write_values(rank, is_gather ? own_block(rank, row) : whole_tensor(rank, row)));
    ZR_TRY(call(rank, row));
    ZR_TRY(zr_stream_synchronize(stream));
    ZR_TRY(zr_comm_check(rank->comm));
    bool is_scatter = row->collective == ZR_REDUCE_SCATTER;
    ZR_TRY(check_values(rank, row, is_scatter ? own_block(rank, row) : whole_tensor(rank, row)));
    /* What is summed again and again stays 0. */
    ZR_TRY(zr_kernel_fill(stream, rank->whole, rank->options->dtype, n, 0.0f));
    return zr_kernel_fill(stream, rank->other, rank->options->dtype, n, 0.0f);
}

/* ---- time -------------------------------------------------------------------------------------
 */

/* Of one call, on the slowest rank. All begin together; what does not end together waits. */
static zr_status_t time_work(rank_t *rank, const comm_row_t *row, int work, size_t n_calls,
                             double *seconds_p) {
    ZR_TRY(zr_comm_barrier(rank->comm, "begin"));
    double begin = bench_seconds();
    for (size_t i = 0; i < n_calls; i++)
        ZR_TRY(work == WORK_COLLECTIVE ? call(rank, row) : copy(rank, row, (comm_copy_t)work));
    ZR_TRY(zr_stream_synchronize(rank->on.stream));
    if (work != WORK_COLLECTIVE)
        ZR_TRY(zr_comm_barrier(rank->comm, "end"));
    double seconds = bench_seconds() - begin;
    ZR_TRY(agree_on_most(rank, seconds, &seconds));
    *seconds_p = seconds / (double)n_calls;
    return ZR_OK;
}

/* On a device all copies are the same. */
static bool has_work(const rank_t *rank, int work) {
    if (work == WORK_COLLECTIVE || work == COMM_COPY_MEMCPY)
        return true;
    return rank->is_host && comm_copy_exists((comm_copy_t)work);
}

static zr_status_t warm_up(rank_t *rank, const comm_row_t *row, int work, size_t *n_calls_p) {
    double seconds = 0.0;
    ZR_TRY(time_work(rank, row, work, 1, &seconds));
    ZR_TRY(time_work(rank, row, work, 1, &seconds));
    double n_calls = BATCH_SECONDS / (seconds + 1e-9);
    *n_calls_p = n_calls >= MAX_CALLS ? MAX_CALLS : n_calls < 1.0 ? 1 : (size_t)n_calls;
    return ZR_OK;
}

static zr_status_t time_in_turns(rank_t *rank, const comm_row_t *row, const size_t *n_calls) {
    double spent = 0.0;
    for (size_t round = 0; round < ON_DEVICE_MIN_ROUNDS || spent < rank->options->seconds;
         round++) {
        for (int work = 0; work < N_WORKS; work++) {
            double seconds;
            if (!has_work(rank, work))
                continue;
            ZR_TRY(time_work(rank, row, work, n_calls[work], &seconds));
            spent += seconds * (double)n_calls[work];
            if (!bench_times_add(&rank->times[work], seconds))
                return zr_fail(zr_device_log(rank->on.device), ZR_ERR_MEMORY,
                               "no memory for %zu times", round + 1);
        }
    }
    return ZR_OK;
}

/* The median of what is kept in its order. */
static zr_status_t median_of(rank_t *rank, const bench_times_t *values, double *median_p) {
    bench_times_t sorted = {0};
    bool is_whole = true;
    for (size_t i = 0; i < values->n_times && is_whole; i++)
        is_whole = bench_times_add(&sorted, values->seconds[i]);
    *median_p = bench_times_median(&sorted);
    bench_times_free(&sorted);
    return is_whole ? ZR_OK
                    : zr_fail(zr_device_log(rank->on.device), ZR_ERR_MEMORY,
                              "no memory for %zu times", values->n_times);
}

/* Other work on the machine comes and goes: what was measured side by side met the same. */
static zr_status_t note_medians(rank_t *rank, comm_row_t *row) {
    const bench_times_t *calls = &rank->times[WORK_COLLECTIVE];
    int best = 0;
    for (int way = 0; way < N_COMM_COPIES; way++) {
        double seconds = 0.0;
        if (!has_work(rank, way))
            continue;
        ZR_TRY(median_of(rank, &rank->times[way], &seconds));
        if (way > 0 && seconds >= row->copy_seconds)
            continue;
        best = way;
        row->copy_seconds = seconds;
        row->copy = rank->is_host ? comm_copy_name((comm_copy_t)way) : "device";
    }
    for (size_t i = 0; i < calls->n_times; i++)
        rank->times[best].seconds[i] /= calls->seconds[i];
    ZR_TRY(median_of(rank, &rank->times[best], &row->ratio));
    return median_of(rank, calls, &row->seconds);
}

static zr_status_t measure_row(rank_t *rank, comm_row_t *row) {
    size_t n_calls[N_WORKS] = {0};
    double tensor_bytes = (double)block_bytes(rank, row) * rank->options->n_ranks;
    row->bytes =
        comm_least_bytes(row->collective, row->in_place, tensor_bytes, rank->options->n_ranks);
    ZR_TRY(check(rank, row));
    for (int work = 0; work < N_WORKS; work++) {
        rank->times[work].n_times = 0;
        if (has_work(rank, work))
            ZR_TRY(warm_up(rank, row, work, &n_calls[work]));
    }
    ZR_TRY(time_in_turns(rank, row, n_calls));
    row->n_rounds = rank->times[WORK_COLLECTIVE].n_times;
    row->calls_a_round = n_calls[WORK_COLLECTIVE];
    return note_medians(rank, row);
}

/* ---- a rank -----------------------------------------------------------------------------------
 */

static zr_status_t set_up(rank_t *rank) {
    const comm_options_t *o = rank->options;
    zr_log_t log = zr_log_with_rank(&o->log, zr_comm_rank(rank->comm));
    on_device_options_t on_options = on_device_options_default(&log);
    char name[32];
    rank->is_host = strcmp(o->comm->device, "host") == 0;
    snprintf(name, sizeof(name), rank->is_host ? "%s" : "%s:%d", o->comm->device,
             zr_comm_rank(rank->comm));
    on_options.device = name;
    on_options.shares_memory = o->comm->is_launched;
    on_options.n_threads = rank->is_host ? (size_t)o->n_threads : 0;
    ZR_TRY(on_device_open(&on_options, &rank->on));
    snprintf(rank->device_text, sizeof(rank->device_text), "%s",
             zr_device_info(rank->on.device)->description);

    size_t most_bytes = 0, shown_bytes = (size_t)o->n_ranks * sizeof(*rank->shown);
    for (size_t i = 0; i < rank->n_rows; i++) {
        size_t n_bytes = block_bytes(rank, &rank->rows[i]) * (size_t)o->n_ranks;
        most_bytes = n_bytes > most_bytes ? n_bytes : most_bytes;
    }
    ZR_TRY(on_device_map(&rank->on, 2 * on_device_array_bytes(most_bytes) +
                                        on_device_array_bytes(shown_bytes)));
    rank->whole = on_device_take(&rank->on, most_bytes);
    rank->other = on_device_take(&rank->on, most_bytes);
    rank->shown = on_device_take(&rank->on, shown_bytes);
    rank->staging = malloc(STAGING_BYTES);
    rank->crew = crew_create(rank->is_host ? o->n_threads : 1);
    if (rank->staging == NULL || rank->crew == NULL)
        return zr_fail(&log, ZR_ERR_MEMORY, "no memory or threads for a rank's copies");
    return ZR_OK;
}

static void tear_down(rank_t *rank) {
    for (int work = 0; work < N_WORKS; work++)
        bench_times_free(&rank->times[work]);
    crew_destroy(&rank->crew);
    free(rank->staging);
    zr_comm_destroy(&rank->comm); /* it has events of the device */
    on_device_close(&rank->on);
}

static void *run_rank(void *argument) {
    rank_t *rank = argument;
    rank->status = set_up(rank);
    for (size_t i = 0; i < rank->n_rows && rank->status == ZR_OK; i++)
        rank->status = measure_row(rank, &rank->rows[i]);
    if (rank->status != ZR_OK)
        zr_comm_abort(rank->comm, zr_status_name(rank->status));
    tear_down(rank);
    return NULL;
}

/* ---- all ranks --------------------------------------------------------------------------------
 */

/* Ranks of this process, with a copy of the rows each. */
static zr_status_t start_ranks(const comm_options_t *options, zr_comm_t **comms, rank_t *ranks,
                               int *n_started_p) {
    for (int i = 0; i < options->n_ranks; i++) {
        if (comms[i] == NULL)
            continue;
        rank_t *rank = &ranks[*n_started_p];
        rank->comm = comms[i];
        if (pthread_create(&rank->thread, NULL, run_rank, rank) != 0) {
            zr_comm_abort(comms[i], "its thread could not be started");
            for (int rest = i; rest < options->n_ranks; rest++)
                zr_comm_destroy(&comms[rest]);
            return zr_fail(&options->log, ZR_ERR_MEMORY, "cannot start a thread for rank %d", i);
        }
        (*n_started_p)++;
    }
    return ZR_OK;
}

static zr_status_t run_ranks(const comm_options_t *options, rank_t *ranks) {
    zr_comm_options_t comm_options = zr_comm_options_default();
    comm_options.log = options->log;
    zr_comm_t *comms[ZR_MAX_SUM_SOURCES] = {NULL};
    int n_started = 0;
    ZR_TRY(options->comm->create(options->n_ranks, &comm_options, comms));
    zr_status_t status = start_ranks(options, comms, ranks, &n_started);
    for (int i = 0; i < n_started; i++)
        pthread_join(ranks[i].thread, NULL);
    /* That of the cause, if one is not about the communicator: the others were stopped by it. */
    for (int i = 0; i < n_started; i++) {
        if (ranks[i].status != ZR_OK && (status == ZR_OK || status == ZR_ERR_COMM))
            status = ranks[i].status;
    }
    return status;
}

zr_status_t comm_measure(const comm_options_t *options, comm_row_t *rows, size_t n_rows,
                         char *device, size_t device_bytes) {
    size_t n_ranks = (size_t)options->n_ranks;
    rank_t *ranks = calloc(n_ranks, sizeof(*ranks));
    comm_row_t *copies = calloc(n_ranks * n_rows, sizeof(*copies));
    zr_status_t status = ZR_OK;
    if (ranks == NULL || copies == NULL)
        status = zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %zu ranks", n_ranks);
    for (size_t i = 0; i < n_ranks && status == ZR_OK; i++) {
        ranks[i].options = options;
        ranks[i].rows = memcpy(copies + i * n_rows, rows, n_rows * sizeof(*rows));
        ranks[i].n_rows = n_rows;
    }
    if (status == ZR_OK)
        status = run_ranks(options, ranks);
    if (status == ZR_OK) { /* the first of this process; all ranks have the same times */
        memcpy(rows, ranks[0].rows, n_rows * sizeof(*rows));
        snprintf(device, device_bytes, "%s", ranks[0].device_text);
    }
    free(copies);
    free(ranks);
    return status;
}
