/*
 * What budgets were used for, of all ranks together. The parts add up to the budgets.
 */
#ifndef EXAMPLES_CAPACITY_BYTES_H
#define EXAMPLES_CAPACITY_BYTES_H

#include "examples/train/plan.h"

typedef struct capacity_bytes {
    uint64_t budget[ZR_N_TIERS]; /* a rank's, times the ranks; 0: nothing is kept there */
    uint64_t all_budgets;        /* less than their sum where two of them are one memory */
    uint64_t states;             /* the model's, once: parameters and gradients in their dtype, and
                                    12 bytes of optimizer state for each */
    uint64_t replicas;           /* further copies of them, at stages 0 to 2 */
    uint64_t padding;            /* that makes shards equal and aligned */
    uint64_t work[ZR_N_TIERS];   /* everything else that was alive at the peak: gathered units,
                                    activations, workspaces, staging buffers */
    uint64_t holes[ZR_N_TIERS];  /* reserved, and nobody's: on drives, what rounds up to blocks */
    int64_t unused;              /* of all budgets */
} capacity_bytes_t;

/**
 * Account for a plan that fits.
 *
 * @param run         the plan is of it
 * @param has_drives  whether the budgets count drives
 */
capacity_bytes_t capacity_bytes_of(const train_options_t *run, const zr_hardware_t *hardware,
                                   const zr_run_plan_t *plan, bool has_drives);

/** States to all budgets. */
double capacity_efficiency(const capacity_bytes_t *bytes);

#endif
