/*
 * Which ranks share a machine, and how one of them reads another's memory.
 *
 * A rank reads its neighbours' tensors where they are, through the kernel (process_vm_readv): every
 * byte is copied once, as among threads, tensors may be any memory, nothing waits in between, and
 * a neighbour whose process has ended is an error and no fault. docs/decisions.md has what shared
 * windows take instead. Whether ranks may do that is tried, on both sides' word, before it is used.
 *
 * Threads: the rank's own.
 */
#pragma once

#include "zero/comm/control_internal.h"
#include "zero/comm/peer_internal.h"

typedef struct zr_machines {
    int rank, n_ranks;
    int n_machines;
    int most_members;       /* of a machine */
    int *machine_of;        /* [n_ranks] 0 to n_machines - 1, by their lowest ranks */
    int *place_of;          /* [n_ranks] among the ranks of its machine, in order */
    int *first_of;          /* [n_ranks + 1] a machine's first place in by_machine */
    int *by_machine;        /* [n_ranks] ranks, machine by machine */
    const zr_card_t *cards; /* [n_ranks] */
} zr_machines_t;

/**
 * This rank's card.
 *
 * @param proof          some memory of the communicator's that stays as it is
 * @param machine_ranks  0, or ranks that are taken for one machine's, by their number
 */
void zr_card_fill(zr_card_t *card, const uint64_t *proof, int origin_rank, int machine_ranks,
                  zr_device_t *device);

/** What tells a machine from others, as in a card. otherwise: where it cannot be found out. */
uint64_t zr_machine_identity(int origin_rank, int machine_ranks, uint64_t otherwise);

/** The whole of zr_comm_count_machines: ranks show each other what tells their machines apart. */
ZR_NODISCARD zr_status_t zr_machines_count(zr_comm_t *comm, const zr_comm_call_t *call,
                                           uint64_t own);

/** Bytes of the four arrays of so many ranks, to be at `arrays`. */
size_t zr_machines_bytes(int n_ranks);

/**
 * Group the ranks by their cards.
 *
 * @param cards     [n_ranks] as all ranks have them, checked; borrowed
 * @param is_apart  every rank is a machine of its own
 */
void zr_machines_fill(zr_machines_t *machines, int *arrays, int rank, int n_ranks,
                      const zr_card_t *cards, bool is_apart);

/** Whether this rank can read its neighbours' memory. 0, or the errno, and the first whose not. */
int zr_machines_try(const zr_machines_t *machines, int *rank_p);

bool zr_machines_is_neighbour(const zr_machines_t *machines, int rank);

/** The rank of a machine that gets what `rank`, of another one, sends to that machine. */
int zr_machines_receiver(const zr_machines_t *machines, int rank, int machine);

/** Copy from a neighbour's memory. 0, or an errno: EFAULT where it is not the neighbour's, ESRCH
 * when its process has ended. */
int zr_machines_read(const zr_machines_t *machines, int rank, void *dst, uint64_t src,
                     size_t size_bytes);
