/*
 * What lives where, in fractions: of the optimizer's state, of parameters, of gradients, and of
 * inputs of blocks. What a tier has to hold, and what a step moves, are sums of them, so that the
 * best is found without a plan; a plan then tells what else a tier holds.
 */
#pragma once

#include "zero/plan/run_search.h"

/** What is kept from step to step, or until backward. */
typedef enum zr_kept {
    ZR_KEPT_STATE = 0,
    ZR_KEPT_PARAMS = 1,
    ZR_KEPT_GRADS = 2, /* of all state: those of state on the device are there as well */
    ZR_KEPT_INPUTS = 3 /* of blocks that are recomputed */
} zr_kept_t;
#define ZR_N_KEPT 4

/** Of each of them 1 in all. */
typedef struct zr_shares {
    double of[ZR_N_KEPT][ZR_N_TIERS];
} zr_shares_t;

/** What is known of a run. */
typedef struct zr_shares_facts {
    bool is_open[ZR_N_KEPT];   /* it may be moved; else it is where `given` says */
    zr_shares_t given;         /* of what is not open */
    bool has_drives;           /* something may go there */
    bool params_leave_device;  /* if open: none of them may stay there */
    double bytes[ZR_N_KEPT];   /* of a rank; those of what is in `rest` are 0 */
    double rest[ZR_N_TIERS];   /* what a tier holds at its peak beside these */
    double budget[ZR_N_TIERS]; /* may be infinite */
    double both;               /* what device and host hold together; may be infinite */
    double compute_seconds;    /* of a step: beside it things are moved */
    double n_param_reads;      /* that a step makes of each parameter */
    double n_micro_batches;    /* passes over all blocks */
    double n_input_reads;      /* in a pass; they are written once less, but once at least */
    bool updates_in_backward;
    double n_sides;                     /* of the state, of which an update moves one */
    double offloaded_grads[ZR_N_TIERS]; /* gradients are not open: where those of offloaded state
                                           are; 1 in all */
    const zr_hardware_t *hardware;
} zr_shares_facts_t;

/** What is wanted of shares that fit. */
typedef enum zr_shares_aim {
    ZR_SHARES_FASTEST = 0,  /* least time of a step, as far as what is moved tells it */
    ZR_SHARES_UPMOST = 1,   /* parameters stay up before state does, state before gradients */
    ZR_SHARES_GRADS_UP = 2, /* likewise, but all gradients stay on the device */
    ZR_SHARES_DOWNMOST = 3  /* parameters go down first, then state */
} zr_shares_aim_t;

/** The best that fits; false: nothing does. */
bool zr_shares_find(const zr_shares_facts_t *facts, zr_shares_aim_t aim, zr_shares_t *shares_p);

/** Bytes that a tier holds for them. */
double zr_shares_bytes(const zr_shares_facts_t *facts, const zr_shares_t *shares, zr_tier_t tier);

/** Of a step, as far as what is moved and compute_seconds tell it. */
double zr_shares_seconds(const zr_shares_facts_t *facts, const zr_shares_t *shares);
