/*
 * A machine on which tapes are asked again.
 */
#pragma once

#include "kernels/base/heap_internal.h"
#include "kernels/sim/sim_drive.h"

typedef struct zr_sim_machine {
    zr_sim_clock_t *clock;
    zr_sim_queue_t *queues;  /* [n_queues] of the tape */
    zr_sim_drive_t **drives; /* [n_drives] */
    uint32_t n_queues, n_drives;
    double *passes; /* [n_passes] when events pass, by the numbers of their records */
    size_t n_passes, n_records;
    zr_sim_mark_fn mark;
    void *context;
} zr_sim_machine_t;

/* At rest. It is in the heap, but for what zr_sim_machine_close frees, also after an error.
 * passes: borrowed. false: no memory. */
bool zr_sim_machine_open(zr_sim_machine_t *machine, zr_heap_t *heap, zr_sim_clock_t *clock,
                         uint32_t n_queues, uint32_t n_drives);
void zr_sim_machine_close(zr_sim_machine_t *machine);

/* false: something else is found than on the tape. */
bool zr_sim_machine_ask(zr_sim_machine_t *machine, zr_sim_op_t *op);

/* How many of an op's names count. */
size_t zr_sim_n_names(const zr_sim_op_t *op);

/* What is asked again and again. */
typedef struct zr_sim_round {
    zr_sim_op_t *ops;                  /* [n] as in the next round */
    size_t (*further)[ZR_N_SIM_NAMES]; /* [n] that much further is what an op tells of in the round
                                          after it; modulo 2^64 */
    size_t n;
} zr_sim_round_t;

/* One round. false: as zr_sim_machine_ask. */
bool zr_sim_machine_go_round(zr_sim_machine_t *machine, zr_sim_round_t *round);

/*
 * So many rounds. Once each is the one before at a later time, the machine leaps: those that are
 * left are not asked, but it is as after them. That it would be is seen by asking for the last.
 * false: as zr_sim_machine_ask; or no memory
 */
bool zr_sim_machine_go_rounds(zr_sim_machine_t *machine, zr_sim_round_t *round, size_t n_rounds);
