/* See comm_run.h. */
#include "examples/bench/comm_run.h"

#include <stdlib.h>
#include <string.h>

#include "examples/bench/comm_rank.h"

#define BATCH_SECONDS 0.005
#define MAX_CALLS 1000

/* ---- what ranks tell each other ------------------------------------------------------------- */

/* The largest of what the ranks give. */
static zr_status_t agree_on_most(comm_rank_t *rank, double own, double *most_p) {
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

/* ---- time -------------------------------------------------------------------------------------
 */

/* Of one call, on the slowest rank. All begin together; what does not end together waits. */
static zr_status_t time_work(comm_rank_t *rank, const comm_row_t *row, int work, size_t n_calls,
                             double *seconds_p) {
    ZR_TRY(zr_comm_barrier(rank->comm, "begin"));
    double begin = bench_seconds();
    for (size_t i = 0; i < n_calls; i++)
        ZR_TRY(comm_do_work(rank, row, work));
    ZR_TRY(zr_stream_synchronize(rank->on.stream));
    if (work != COMM_WORK_OURS)
        ZR_TRY(zr_comm_barrier(rank->comm, "end"));
    double seconds = bench_seconds() - begin;
    ZR_TRY(agree_on_most(rank, seconds, &seconds));
    *seconds_p = seconds / (double)n_calls;
    return ZR_OK;
}

static zr_status_t warm_up(comm_rank_t *rank, const comm_row_t *row, int work, size_t *n_calls_p) {
    double seconds = 0.0;
    ZR_TRY(time_work(rank, row, work, 1, &seconds));
    ZR_TRY(time_work(rank, row, work, 1, &seconds));
    double n_calls = BATCH_SECONDS / (seconds + 1e-9);
    *n_calls_p = n_calls >= MAX_CALLS ? MAX_CALLS : n_calls < 1.0 ? 1 : (size_t)n_calls;
    return ZR_OK;
}

static zr_status_t time_in_turns(comm_rank_t *rank, const comm_row_t *row, const size_t *n_calls) {
    double spent = 0.0;
    for (size_t round = 0; round < ON_DEVICE_MIN_ROUNDS || spent < rank->options->seconds;
         round++) {
        for (int work = 0; work < N_COMM_WORKS; work++) {
            double seconds;
            if (!comm_has_work(rank, work))
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
static zr_status_t median_of(comm_rank_t *rank, const bench_times_t *values, double *median_p) {
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
static zr_status_t note_medians(comm_rank_t *rank, comm_row_t *row) {
    const bench_times_t *calls = &rank->times[COMM_WORK_OURS];
    int best = 0;
    for (int way = 0; way < N_COMM_COPIES; way++) {
        double seconds = 0.0;
        if (!comm_has_work(rank, way))
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

static zr_status_t measure_row(comm_rank_t *rank, comm_row_t *row) {
    size_t n_calls[N_COMM_WORKS] = {0};
    double tensor_bytes = (double)comm_block_bytes(rank, row) * rank->options->n_ranks;
    row->bytes =
        comm_least_bytes(row->collective, row->in_place, tensor_bytes, rank->options->n_ranks);
    ZR_TRY(comm_check(rank, row));
    for (int work = 0; work < N_COMM_WORKS; work++) {
        rank->times[work].n_times = 0;
        if (comm_has_work(rank, work))
            ZR_TRY(warm_up(rank, row, work, &n_calls[work]));
    }
    ZR_TRY(time_in_turns(rank, row, n_calls));
    row->n_rounds = rank->times[COMM_WORK_OURS].n_times;
    row->calls_a_round = n_calls[COMM_WORK_OURS];
    return note_medians(rank, row);
}

/* ---- a rank -----------------------------------------------------------------------------------
 */

static zr_status_t set_up(comm_rank_t *rank) {
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
        size_t n_bytes = comm_block_bytes(rank, &rank->rows[i]) * (size_t)o->n_ranks;
        most_bytes = n_bytes > most_bytes ? n_bytes : most_bytes;
    }
    ZR_TRY(on_device_map(&rank->on, 2 * on_device_array_bytes(most_bytes) +
                                        on_device_array_bytes(shown_bytes)));
    rank->whole = on_device_take(&rank->on, most_bytes);
    rank->other = on_device_take(&rank->on, most_bytes);
    rank->shown = on_device_take(&rank->on, shown_bytes);
    rank->staging = malloc(COMM_STAGING_BYTES);
    rank->crew = crew_create(rank->is_host ? o->n_threads : 1);
    if (rank->staging == NULL || rank->crew == NULL)
        return zr_fail(&log, ZR_ERR_MEMORY, "no memory or threads for a rank's copies");
    return ZR_OK;
}

static void tear_down(comm_rank_t *rank) {
    for (int work = 0; work < N_COMM_WORKS; work++)
        bench_times_free(&rank->times[work]);
    crew_destroy(&rank->crew);
    free(rank->staging);
    zr_comm_destroy(&rank->comm); /* it has events of the device */
    on_device_close(&rank->on);
}

static void *run_rank(void *argument) {
    comm_rank_t *rank = argument;
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
static zr_status_t start_ranks(const comm_options_t *options, zr_comm_t **comms, comm_rank_t *ranks,
                               int *n_started_p) {
    for (int i = 0; i < options->n_ranks; i++) {
        if (comms[i] == NULL)
            continue;
        comm_rank_t *rank = &ranks[*n_started_p];
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

static zr_status_t run_ranks(const comm_options_t *options, comm_rank_t *ranks) {
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
    comm_rank_t *ranks = calloc(n_ranks, sizeof(*ranks));
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
