/* Ranks as threads: see ranks.h. */
#include "examples/bench/ranks.h"

#include <stdlib.h>

static bench_rank_t *rank_at(const bench_ranks_t *ranks, int i) {
    return (bench_rank_t *)((char *)ranks->all + (size_t)i * ranks->rank_bytes);
}

static void *run_rank(void *argument) {
    bench_rank_t *rank = argument;
    rank->status = rank->ranks->work(rank);
    if (rank->status != ZR_OK)
        zr_comm_abort(rank->comm, zr_status_name(rank->status));
    rank->ranks->end(rank);
    return NULL;
}

static zr_status_t start(const bench_ranks_t *ranks, int *n_started_p) {
    zr_comm_options_t comm_options = zr_comm_options_default();
    comm_options.log = ranks->log;
    int n_ranks = ranks->n_ranks;
    zr_comm_t **comms = calloc((size_t)n_ranks, sizeof(*comms));
    if (comms == NULL)
        return zr_fail(&ranks->log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text((uint64_t)n_ranks, "rank").text);
    zr_status_t status = (ranks->create != NULL ? ranks->create : zr_comm_create_threads)(
        n_ranks, &comm_options, comms);
    for (int i = 0; i < n_ranks && status == ZR_OK; i++) {
        bench_rank_t *rank = rank_at(ranks, *n_started_p);
        if (comms[i] == NULL)
            continue;
        *rank = (bench_rank_t){.number = i, .comm = comms[i], .ranks = ranks};
        if (pthread_create(&rank->thread, NULL, run_rank, rank) == 0) {
            (*n_started_p)++;
            continue;
        }
        status = zr_fail(&ranks->log, ZR_ERR_MEMORY, "cannot start a thread for rank %d", i);
        zr_comm_abort(comms[i], "its thread could not be started");
        for (int rest = i; rest < n_ranks; rest++)
            zr_comm_destroy(&comms[rest]);
    }
    free(comms);
    return status;
}

zr_status_t bench_ranks_run(const bench_ranks_t *ranks) {
    int n_started = 0;
    zr_status_t status = start(ranks, &n_started);
    for (int i = 0; i < n_started; i++)
        pthread_join(rank_at(ranks, i)->thread, NULL);
    /* That of the cause, if one is not about the communicator: the others were stopped by it. */
    for (int i = 0; i < n_started; i++) {
        zr_status_t own = rank_at(ranks, i)->status;
        if (own != ZR_OK && (status == ZR_OK || status == ZR_ERR_COMM))
            status = own;
    }
    return status;
}
