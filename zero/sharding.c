/*
 * Groups of ranks: see sharding_internal.h.
 */
#include "zero/sharding_internal.h"

zr_status_t zr_sharding_create(zr_comm_t *comm, int group_size, zr_sharding_t *sharding_p) {
    int n_ranks = zr_comm_n_ranks(comm), rank = zr_comm_rank(comm);
    int size = group_size > 0 ? group_size : n_ranks;
    zr_sharding_t sharding = {.all = comm,
                              .group = comm,
                              .rank = rank % size,
                              .n_shards = size,
                              .n_groups = n_ranks / size};
    if (sharding.n_groups > 1) {
        sharding.group = NULL;
        ZR_TRY(zr_comm_split_evenly(comm, ZR_GROUPS_NEAR, size, &sharding.group));
        zr_status_t status = zr_comm_split_evenly(comm, ZR_GROUPS_ACROSS, size, &sharding.replicas);
        if (status != ZR_OK) {
            zr_comm_destroy(&sharding.group);
            return status;
        }
    }
    *sharding_p = sharding;
    return ZR_OK;
}

void zr_sharding_destroy(zr_sharding_t *sharding) {
    zr_comm_destroy(&sharding->replicas);
    if (sharding->group != sharding->all)
        zr_comm_destroy(&sharding->group);
    *sharding = (zr_sharding_t){0};
}

/* Those that there are, each once. */
static int list(const zr_sharding_t *sharding, zr_comm_t *comms[3]) {
    int n = 0;
    if (sharding->all != NULL)
        comms[n++] = sharding->all;
    if (sharding->group != sharding->all)
        comms[n++] = sharding->group;
    if (sharding->replicas != NULL)
        comms[n++] = sharding->replicas;
    return n;
}

void zr_sharding_set_allocator(const zr_sharding_t *sharding, struct zr_allocator *allocator) {
    zr_comm_t *comms[3];
    int n = list(sharding, comms);
    for (int i = 0; i < n; i++)
        zr_comm_set_allocator(comms[i], allocator);
}

zr_status_t zr_sharding_check(const zr_sharding_t *sharding) {
    zr_comm_t *comms[3];
    int n = list(sharding, comms);
    for (int i = 0; i < n; i++)
        ZR_TRY(zr_comm_check(comms[i]));
    return ZR_OK;
}

static void add_counts(const zr_comm_count_t *count, zr_comm_count_t *sum) {
    sum->n_calls += count->n_calls;
    sum->elems_sent += count->elems_sent;
    sum->bytes_sent += count->bytes_sent;
}

void zr_sharding_statistics(const zr_sharding_t *sharding, zr_comm_statistics_t *statistics_p) {
    zr_comm_t *comms[3];
    int n = list(sharding, comms);
    *statistics_p = (zr_comm_statistics_t){.wait_seconds = 0};
    for (int i = 0; i < n; i++) {
        zr_comm_statistics_t own;
        zr_comm_statistics(comms[i], &own);
        for (int traffic = 0; traffic < ZR_N_TRAFFICS; traffic++)
            for (int j = 0; j < ZR_N_COLLECTIVES; j++)
                add_counts(&own.count[traffic][j], &statistics_p->count[traffic][j]);
        statistics_p->wait_seconds += own.wait_seconds;
        statistics_p->move_seconds += own.move_seconds;
        statistics_p->queued_wait_seconds += own.queued_wait_seconds;
        statistics_p->queued_move_seconds += own.queued_move_seconds;
    }
}
