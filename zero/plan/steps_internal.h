/*
 * Which steps of a run are simulated to know what it needs.
 *
 * Where all sequences are equally long, the first few are: all others are like the last of them.
 *
 * Where lengths vary, what is mapped depends on all steps before: a step that is longer than those
 * leaves the plan of memory, and what it finds free or mapped is what they have left. So steps are
 * simulated as the run makes them, but for those that would follow the plan that is in force, since
 * they leave everything as it is. What is live at most may still be theirs: the longest micro-batch
 * in each place is simulated for all that were left out, in one step, which follows the plan too.
 *
 * Micro-batches that are trained together are live at once. A step of such is left out only where
 * one that was simulated has no shorter micro-batch in any place.
 *
 * A run has an end of that only if it comes to follow plans. After so much work all that is left
 * is simulated as one step, whose micro-batches are the longest that there are in their place: what
 * is live is exact still, or, of micro-batches together, no less than is needed.
 */
#pragma once

#include "zero/plan/run_plan.h"

typedef struct zr_run_steps {
    const zr_run_request_t *request; /* borrowed */
    size_t n_blocks;                 /* of the model */
    size_t n_done;                   /* steps of the run when this one has been made */
    size_t next; /* of the run: the first that has been neither simulated nor left out */
    size_t n_simulated, n_looked_at; /* the latter are micro-batches */
    /* Lengths [grad_accum], where they vary. */
    uint32_t *now;      /* of the step that is to be simulated */
    uint32_t *left_out; /* the longest of those */
    uint32_t *seen;     /* the longest that were simulated in a step like all others */
    uint32_t *covering; /* [n_covering][grad_accum] micro-batches together: such steps */
    size_t n_covering;
    zr_replay_reach_t *reach; /* that follow the plan */
} zr_run_steps_t;

/** Free it with zr_run_steps_clear. False: no memory. */
bool zr_run_steps_create(const zr_run_request_t *request, size_t n_blocks, zr_run_steps_t *steps_p);
void zr_run_steps_clear(zr_run_steps_t *steps);

/**
 * Choose the next step, after the one before has been made.
 *
 * @param allocator  of the simulated rank
 * @return false when there are no more
 */
bool zr_run_steps_next(zr_run_steps_t *steps, zr_allocator_t *allocator);

/** Whether the step that is to be made may be the last. */
bool zr_run_steps_may_end(const zr_run_steps_t *steps);

/** Whether the run evaluates after that step, counted from 1 in this run; but for its last. */
bool zr_run_steps_evaluate_after(const zr_run_request_t *request, size_t step);

/** What sequences of a micro-batch of that step are cut to. */
size_t zr_run_steps_length(const zr_run_steps_t *steps, size_t micro_batch);
