/* See comm_rank.h: how long works take that ranks do together, in turns. */
#include "examples/bench/comm_rank.h"

#define BATCH_SECONDS 0.005
#define MAX_CALLS 1000

/* ---- what ranks tell each other ------------------------------------------------------------- */

zr_status_t comm_agree_on_most(comm_rank_t *rank, double own, double *most_p) {
    const zr_message_t message = {
        .tensor = "times", .dtype = ZR_DTYPE_F64, .traffic = ZR_TRAFFIC_CONTROL};
    double all[ZR_MAX_SUM_SOURCES];
    size_t n_ranks = (size_t)zr_comm_n_ranks(rank->of->comm);
    double *place = rank->shown + rank->of->rank;
    zr_stream_t *stream = rank->on.stream;
    ZR_TRY(zr_copy_async(stream, place, &own, sizeof(own), ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_comm_all_gather(rank->of->comm, &message, place, rank->shown, 1, stream));
    ZR_TRY(zr_copy_async(stream, all, rank->shown, n_ranks * sizeof(*all), ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(stream));
    ZR_TRY(zr_comm_check(rank->of->comm));
    *most_p = own;
    for (size_t i = 0; i < n_ranks; i++)
        *most_p = all[i] > *most_p ? all[i] : *most_p;
    return ZR_OK;
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Of one call, on the slowest rank. All begin together; what does not end together waits. */
static zr_status_t time_work(comm_rank_t *rank, const comm_row_t *row, int work, size_t n_calls,
                             double *seconds_p) {
    ZR_TRY(zr_comm_barrier(rank->of->comm, "begin"));
    double begin = bench_seconds();
    for (size_t i = 0; i < n_calls; i++)
        ZR_TRY(comm_do_work(rank, row, work));
    ZR_TRY(zr_stream_synchronize(rank->on.stream));
    if (work < COMM_WORK_OURS)
        ZR_TRY(zr_comm_barrier(rank->of->comm, "end"));
    double seconds = bench_seconds() - begin;
    ZR_TRY(comm_agree_on_most(rank, seconds, &seconds));
    *seconds_p = seconds / (double)n_calls;
    return ZR_OK;
}

static zr_status_t note_time(comm_rank_t *rank, int work, double seconds) {
    return bench_times_add(&rank->times[work], seconds, zr_device_log(rank->on.device));
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
            if (!comm_has_work(rank, row, work))
                continue;
            ZR_TRY(time_work(rank, row, work, n_calls[work], &seconds));
            spent += seconds * (double)n_calls[work];
            ZR_TRY(note_time(rank, work, seconds));
        }
    }
    return ZR_OK;
}

/* The median of what is kept in its order. */
static zr_status_t median_of(comm_rank_t *rank, const bench_times_t *values, double *median_p) {
    bench_times_t sorted = {0};
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < values->n_times && status == ZR_OK; i++)
        status = bench_times_add(&sorted, values->seconds[i], zr_device_log(rank->on.device));
    *median_p = bench_times_median(&sorted);
    bench_times_free(&sorted);
    return status;
}

/* Seconds of other work to those of the collective's calls. Other work on the machine comes and
 * goes: what was measured side by side met the same. */
static zr_status_t note_ratio(comm_rank_t *rank, int work, double *ratio_p) {
    const bench_times_t *calls = &rank->times[COMM_WORK_OURS];
    for (size_t i = 0; i < calls->n_times; i++)
        rank->times[work].seconds[i] /= calls->seconds[i];
    return median_of(rank, &rank->times[work], ratio_p);
}

static zr_status_t note_medians(comm_rank_t *rank, comm_row_t *row) {
    int best = 0;
    for (int way = 0; way < N_COMM_COPIES; way++) {
        double seconds = 0.0;
        if (!comm_has_work(rank, row, way))
            continue;
        ZR_TRY(median_of(rank, &rank->times[way], &seconds));
        if (way > 0 && seconds >= row->copy_seconds)
            continue;
        best = way;
        row->copy_seconds = seconds;
        row->copy = rank->is_host ? comm_copy_name((comm_copy_t)way) : "device";
    }
    ZR_TRY(note_ratio(rank, best, &row->ratio));
    if (comm_has_work(rank, row, COMM_WORK_READ))
        ZR_TRY(note_ratio(rank, COMM_WORK_READ, &row->read_ratio));
    return median_of(rank, &rank->times[COMM_WORK_OURS], &row->seconds);
}

/* The faster of MPI's ways; with malloc as it comes where even that was faster. */
static zr_status_t note_mpi(comm_rank_t *rank, comm_row_t *row) {
    const double *untouched = rank->untouched[row - rank->rows];
    int best = -1;
    for (int way = 0; way < N_COMM_MPI_WAYS; way++) {
        double seconds = 0.0;
        if (!comm_has_work(rank, row, COMM_WORK_MPI + way))
            continue;
        ZR_TRY(median_of(rank, &rank->times[COMM_WORK_MPI + way], &seconds));
        if (best < 0 || seconds < row->mpi_seconds) {
            best = way;
            row->mpi_seconds = seconds;
        }
    }
    if (best < 0)
        return ZR_OK;
    row->mpi_keeps_memory = true;
    ZR_TRY(note_ratio(rank, COMM_WORK_MPI + best, &row->mpi_ratio));
    for (int way = 0; way < N_COMM_MPI_WAYS; way++) {
        if (untouched[way] <= 0.0 || untouched[way] >= row->mpi_seconds)
            continue;
        best = way;
        row->mpi_keeps_memory = false;
        row->mpi_seconds = untouched[way];
        row->mpi_ratio = untouched[way] / row->seconds;
    }
    row->mpi = comm_work_name(rank, row, COMM_WORK_MPI + best);
    return ZR_OK;
}

zr_status_t comm_measure_row(comm_rank_t *rank, comm_row_t *row) {
    size_t n_calls[N_COMM_WORKS] = {0};
    double tensor_bytes = (double)comm_block_bytes(rank, row) * rank->options->n_ranks;
    row->bytes =
        comm_least_bytes(row->collective, row->in_place, tensor_bytes, rank->options->n_ranks);
    ZR_TRY(comm_check(rank, row, COMM_WORK_OURS));
    for (int work = 0; work < N_COMM_WORKS; work++) {
        rank->times[work].n_times = 0;
        if (comm_has_work(rank, row, work))
            ZR_TRY(warm_up(rank, row, work, &n_calls[work]));
    }
    ZR_TRY(time_in_turns(rank, row, n_calls));
    row->n_rounds = rank->times[COMM_WORK_OURS].n_times;
    row->calls_a_round = n_calls[COMM_WORK_OURS];
    ZR_TRY(note_medians(rank, row));
    return note_mpi(rank, row);
}

zr_status_t comm_measure_untouched(comm_rank_t *rank, const comm_row_t *row, int work,
                                   double *median_p) {
    enum { N_TIMES = 3 };
    bench_times_t *times = &rank->times[work];
    times->n_times = 0;
    ZR_TRY(comm_check(rank, row, work));
    for (int i = 0; i < N_TIMES; i++) {
        double seconds;
        ZR_TRY(time_work(rank, row, work, 1, &seconds));
        ZR_TRY(note_time(rank, work, seconds));
    }
    *median_p = bench_times_median(times);
    return ZR_OK;
}
