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
 * A run has an end of that only if it comes to follow plans. After so much work all that is left
 * is simulated as one step, whose micro-batches are the longest that there are in their place: what
 * is live is exact still.
 */
#ifndef EXAMPLES_PLAN_STEPS_H
#define EXAMPLES_PLAN_STEPS_H

#include "examples/plan/simulate.h"

/** Layers of micro-batches that are simulated before all that is left becomes one step. */
#define GPT_PLAN_MOST_LAYERS 65536

typedef struct gpt_plan_steps {
    const gpt_plan_request_t *request; /* borrowed */
    size_t n_done;                     /* steps of the run when this one has been made */
    size_t next; /* of the run: the first that has been neither simulated nor left out */
    size_t n_simulated, n_looked_at; /* the latter are micro-batches */
    /* Lengths [grad_accum], where they vary. */
    uint32_t *now;            /* of the step that is to be simulated */
    uint32_t *left_out;       /* the longest of those */
    uint32_t *seen;           /* the longest that were simulated in a step like all others */
    zr_replay_reach_t *reach; /* that follow the plan */
} gpt_plan_steps_t;

/** Free it with gpt_plan_steps_clear. False: no memory. */
bool gpt_plan_steps_create(const gpt_plan_request_t *request, gpt_plan_steps_t *steps_p);
void gpt_plan_steps_clear(gpt_plan_steps_t *steps);

/**
 * Choose the next step, after the one before has been made.
 *
 * @param allocator  of the simulated rank
 * @return false when there are no more
 */
bool gpt_plan_steps_next(gpt_plan_steps_t *steps, zr_allocator_t *allocator);

/** What sequences of a micro-batch of that step are cut to. */
size_t gpt_plan_steps_length(const gpt_plan_steps_t *steps, size_t micro_batch);

#endif
