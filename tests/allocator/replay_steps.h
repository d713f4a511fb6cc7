/*
 * Steps of a training that is nothing but marks, allocations and frees, carried out on a fake
 * device beside a naive oracle. It knows that nothing that lives overlaps, that contents survive,
 * what every count must be, that the budget holds, and of every address who had it before: whoever
 * gets it next has to be ordered behind them, on the device or by the CPU.
 */
#pragma once

#include "allocator/allocator.h"
#include "allocator/replay.h"
#include "tests/allocator/fake_device.h"

#define STEPS_N_STREAMS 10 /* more than a plan knows */
#define STEPS_NO_STREAM (-1)
#define STEPS_MAX_SLOTS 256
#define STEPS_MAX_OPS 1024
#define STEPS_MAX_EXTENTS 8192
#define STEPS_N_TIERS 2

typedef enum step_op_kind { STEP_MARK, STEP_ALLOCATE, STEP_FREE } step_op_kind_t;

typedef struct step_op {
    step_op_kind_t kind;
    int slot;   /* names the tensor within the step */
    int stream; /* that uses it first, or last; STEPS_NO_STREAM: NULL */
    size_t size_bytes;
    zr_tier_t tier;
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    bool is_idle;   /* allocate: nothing is queued that uses it */
    zr_mark_t mark; /* the step apart */
    uint32_t scale; /* mark: of what comes behind it */
} step_op_t;

typedef struct step {
    step_op_t ops[STEPS_MAX_OPS];
    size_t n_ops;
} step_t;

/** Append to a step. */
void step_mark(step_t *step, size_t micro_batch, size_t unit, int pass);
/** On the device, with tag workspace; returns the operation, to be changed. */
step_op_t *step_allocate(step_t *step, int slot, size_t size_bytes, zr_lifetime_t lifetime,
                         int stream);
void step_free(step_t *step, int slot, int stream);
/** Put an operation before the one at an index. */
void step_insert(step_t *step, size_t index, step_op_t op);
void step_remove(step_t *step, size_t index);

typedef struct steps_tensor {
    unsigned char *pointer; /* NULL: not live */
    size_t size_bytes;
    zr_tier_t tier;
    zr_tag_t tag;
    zr_lifetime_t lifetime;
    int stream;
    bool is_used;
    unsigned char pattern;
} steps_tensor_t;

/* Addresses that were freed, and the work that comes before their next use. */
typedef struct steps_extent {
    const unsigned char *begin, *end;
    int stream;
    size_t tick;
} steps_extent_t;

typedef struct steps_options {
    size_t granule_bytes;
    bool is_late;
    size_t budget_bytes; /* of each tier; what is never reached keeps ranges, and the test, small */
} steps_options_t;

typedef struct steps {
    fake_t *fake;
    zr_allocator_t *allocator;
    zr_stream_t *streams[STEPS_N_STREAMS];
    steps_options_t options;
    size_t step; /* that runs, from 1 */
    steps_tensor_t tensors[STEPS_MAX_SLOTS];
    int live[STEPS_MAX_SLOTS]; /* slots */
    int n_live;
    steps_extent_t extents[STEPS_MAX_EXTENTS];
    size_t n_extents;
    zr_tier_statistics_t expected[STEPS_N_TIERS];
    uint64_t places;     /* hash of where the tensors of the step that runs are */
    size_t n_user_waits; /* of streams for each other, not the allocator's */
    size_t n_operations, n_refused;
} steps_t;

/** Open a device and an allocator; replay is off. */
steps_t *steps_open(const steps_options_t *options);
/** Free what is live, check that nothing is left, close all. */
void steps_close(steps_t **steps);

/** Carry one operation out; a free of what is not live does nothing. */
zr_status_t steps_do(steps_t *steps, const step_op_t *op);
/** Carry a step out, of which no operation fails, and check all there is to check. Its places. */
uint64_t steps_run(steps_t *steps, const step_t *step);
void steps_run_times(steps_t *steps, const step_t *step, size_t n);
/** Check counts, budget and invariants; or the first two alone. */
void steps_check(steps_t *steps);
void steps_check_counts(steps_t *steps);
/** Of the allocator, and of what is expected of it. */
void steps_reset_peaks(steps_t *steps);

zr_replay_statistics_t steps_replay(steps_t *steps);
zr_tier_statistics_t steps_memory(steps_t *steps, zr_tier_t tier);
/** Waits of streams for each other that the allocator has queued so far. */
size_t steps_n_waits(const steps_t *steps);
