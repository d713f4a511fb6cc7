/* See comm_run.h. */
#include "examples/bench/comm_run.h"

#include <stdlib.h>
#include <string.h>

#include "examples/bench/comm_rank.h"

/* ---- MPI's own ------------------------------------------------------------------------------ */

/* Whether all ranks have something; `why` is for those that have. */
static zr_status_t agree_on_having(comm_rank_t *rank, bool has, char *why, bool *have_all_p) {
    double lacks = has ? 0.0 : 1.0;
    ZR_TRY(comm_agree_on_most(rank, lacks, &lacks));
    *have_all_p = lacks == 0.0;
    if (has && !*have_all_p)
        snprintf(why, COMM_MPI_ERROR_BYTES, "another rank cannot");
    return ZR_OK;
}

/* On all ranks, or on none; why not is told beside what was measured. */
static zr_status_t begin_mpi(comm_rank_t *rank) {
    char error[COMM_MPI_ERROR_BYTES] = "";
    bool have_all = false;
    if (!rank->options->comm->is_launched)
        return ZR_OK;
    const comm_mpi_module_t *mpi = comm_mpi_find(rank->about.mpi);
    ZR_TRY(agree_on_having(rank, mpi != NULL, rank->about.mpi, &have_all));
    if (!have_all)
        return ZR_OK;
    rank->mpi_ranks = mpi->begin(error);
    if (rank->mpi_ranks == NULL)
        return zr_fail(zr_device_log(rank->on.device), ZR_ERR_COMM, "%s", error);
    rank->mpi = mpi;
    rank->about.has_mpi = true;
    return ZR_OK;
}

/* Begin, and measure all rows before malloc is told anything. */
static zr_status_t prepare_mpi(comm_rank_t *rank) {
    rank->untouched = calloc(rank->n_rows, sizeof(*rank->untouched));
    if (rank->untouched == NULL)
        return zr_fail(zr_device_log(rank->on.device), ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(rank->n_rows, "time").text);
    ZR_TRY(begin_mpi(rank));
    for (size_t i = 0; i < rank->n_rows; i++)
        for (int way = 0; way < N_COMM_MPI_WAYS; way++)
            if (comm_has_work(rank, &rank->rows[i], COMM_WORK_MPI + way))
                ZR_TRY(comm_measure_untouched(rank, &rank->rows[i], COMM_WORK_MPI + way,
                                              &rank->untouched[i][way]));
    if (rank->mpi != NULL)
        comm_mpi_keep_memory();
    return ZR_OK;
}

/* ---- a rank --------------------------------------------------------------------------------- */

static zr_status_t set_up(comm_rank_t *rank) {
    const comm_options_t *o = rank->options;
    const zr_log_t *log = &rank->of->log;
    rank->is_host = strcmp(o->comm->device, "host") == 0;
    ZR_TRY(on_device_borrow(rank->of->device, &rank->on));
    snprintf(rank->about.device, sizeof(rank->about.device), "%s",
             zr_device_info(rank->on.device)->description);

    size_t most_bytes = 0, shown_bytes = (size_t)o->n_ranks * sizeof(*rank->shown);
    for (size_t i = 0; i < rank->n_rows; i++) {
        size_t n_bytes = comm_block_bytes(rank, &rank->rows[i]) * (size_t)o->n_ranks;
        most_bytes = n_bytes > most_bytes ? n_bytes : most_bytes;
    }
    ZR_TRY(ON_DEVICE_TAKE(&rank->on, {&rank->whole, most_bytes}, {&rank->other, most_bytes},
                          {&rank->shown, shown_bytes}));
    rank->staging = malloc(COMM_STAGING_BYTES);
    rank->crew = crew_create(rank->is_host ? o->n_threads : 1);
    if (rank->staging == NULL || rank->crew == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory or threads for a rank's copies");
    return ZR_OK;
}

static zr_status_t measure_rows(comm_rank_t *rank) {
    ZR_TRY(set_up(rank));
    ZR_TRY(prepare_mpi(rank));
    for (size_t i = 0; i < rank->n_rows; i++)
        ZR_TRY(comm_measure_row(rank, &rank->rows[i]));
    return ZR_OK;
}

static zr_status_t run_rank(zr_rank_t *of) {
    comm_rank_t *all = of->context, *rank = &all[all->options->comm->is_launched ? 0 : of->rank];
    rank->of = of;
    zr_status_t status = measure_rows(rank);
    if (status != ZR_OK) /* before what is under way is waited for */
        zr_comm_abort(of->comm, zr_status_name(status));
    for (int work = 0; work < N_COMM_WORKS; work++)
        bench_times_free(&rank->times[work]);
    crew_destroy(&rank->crew);
    free(rank->staging);
    free(rank->untouched);
    if (rank->mpi != NULL && status == ZR_OK) /* else others may not come to it */
        rank->mpi->end(rank->mpi_ranks);
    zr_comm_destroy(&of->comm); /* it has events of the device */
    on_device_close(&rank->on);
    return status;
}

/* ---- all ranks ------------------------------------------------------------------------------ */

static zr_status_t run_ranks(const comm_options_t *options, comm_rank_t *all) {
    zr_run_options_t run = zr_run_options_default();
    run.log = options->log;
    run.comm = options->comm->name;
    run.device = options->comm->device;
    run.device_options.n_threads = strcmp(run.device, "host") == 0 ? options->n_threads : 0;
    if (options->comm->is_launched)
        comm_mpi_share_heap();
    return zr_run_ranks(NULL, options->n_ranks, run_rank, all, &run);
}

zr_status_t comm_measure(const comm_options_t *options, comm_row_t *rows, size_t n_rows,
                         comm_about_t *about_p) {
    size_t n_ranks = (size_t)options->n_ranks;
    comm_rank_t *ranks = calloc(n_ranks, sizeof(*ranks));
    comm_row_t *copies = calloc(n_ranks * n_rows, sizeof(*copies));
    zr_status_t status = ZR_OK;
    if (ranks == NULL || copies == NULL)
        status = zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %s",
                         zr_count_text(n_ranks, "rank").text);
    for (size_t i = 0; i < n_ranks && status == ZR_OK; i++) {
        ranks[i].options = options;
        ranks[i].rows = memcpy(copies + i * n_rows, rows, n_rows * sizeof(*rows));
        ranks[i].n_rows = n_rows;
    }
    ZR_THEN(status, run_ranks(options, ranks));
    if (status == ZR_OK) { /* the first of this process; all ranks have the same times */
        memcpy(rows, ranks[0].rows, n_rows * sizeof(*rows));
        *about_p = ranks[0].about;
    }
    free(copies);
    free(ranks);
    return status;
}
