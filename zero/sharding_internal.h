/*
 * Who holds which shard. Internal to zero/.
 *
 * Ranks form groups of equal size, in order of rank. The ranks of a group hold one copy of
 * everything that is sharded, and gather and reduce among themselves; ranks at the same place of
 * all groups hold the same shard, and add their gradients up once per step. One group of all ranks
 * is the usual case. Several are hybrid sharding: with a node as a group, gathers stay within
 * nodes.
 *
 * A sum over all ranks is then one of sums: of each group in order of rank, rounded to the
 * gradients' type, then of the groups in their order. It is the same at every stage.
 *
 * Source: Zhang et al. 2022, "MiCS"; Zhao et al. 2023, "PyTorch FSDP", section 3.2.2.
 */
#pragma once

#include "zero/comm/comm.h"

/** A rank's place. */
typedef struct zr_sharding {
    zr_comm_t *all;      /* every rank; borrowed */
    zr_comm_t *group;    /* this rank's group; owned, but where it is `all` */
    zr_comm_t *replicas; /* the ranks that hold what this one holds, one of each group; owned. NULL:
                            there is one group */
    int rank;            /* in the group: which shard is this rank's */
    int n_shards;        /* ranks of a group */
    int n_groups;
} zr_sharding_t;

/**
 * Form the groups. Collective.
 *
 * @param comm        every rank
 * @param group_size  -1: one group; otherwise divides the ranks
 * @return as zr_comm_split_evenly; after an error there is nothing to destroy
 */
ZR_NODISCARD zr_status_t zr_sharding_create(zr_comm_t *comm, int group_size,
                                            zr_sharding_t *sharding_p);

/** Leave the groups. What is all 0 is fine. */
void zr_sharding_destroy(zr_sharding_t *sharding);

/** As zr_comm_set_allocator, of the communicator of every rank and of those of groups. */
void zr_sharding_set_allocator(const zr_sharding_t *sharding, struct zr_allocator *allocator);

/** As zr_comm_check, of all of them. */
ZR_NODISCARD zr_status_t zr_sharding_check(const zr_sharding_t *sharding);

/** What this rank has sent, and how long it took, over all of them. */
void zr_sharding_statistics(const zr_sharding_t *sharding, zr_comm_statistics_t *statistics_p);
