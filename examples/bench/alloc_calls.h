/*
 * Sequences of allocations and frees that are made up, to time allocators with: each ends with
 * nothing live, so that it can be played again and again.
 */
#pragma once

#include "examples/bench/trace.h"

typedef enum call_kind { CALL_ALLOCATE, CALL_FREE, CALL_MARK } call_kind_t;

/* Small, so that reading it costs little of what is timed. */
typedef struct call {
    uint32_t size_bytes;
    uint16_t slot; /* where the pointer is kept; CALL_MARK: place in marks */
    uint8_t kind;
    uint8_t tag, lifetime;
} call_t;

typedef struct calls {
    call_t *calls;
    size_t n_calls, capacity;
    size_t n_pairs; /* allocations; as many are freed */
    size_t n_slots;
    zr_mark_t *marks; /* their step is not set */
    size_t n_marks, marks_capacity;
    bool failed; /* there was no memory for one more */
} calls_t;

/**
 * A training step of a GPT: 12 layers, 256 channels, 2 micro-batches of 256 tokens, fp32,
 * parameters gathered per layer (stage 3). A mark stands before each pass of a layer.
 */
ZR_NODISCARD zr_status_t calls_make_step(const zr_log_t *log, calls_t *calls_p);
/** Some hundreds live: each pair frees what a random slot holds and allocates another size there.
 */
ZR_NODISCARD zr_status_t calls_make_irregular(size_t n_pairs, const zr_log_t *log,
                                              calls_t *calls_p);
/** One size, allocated and freed n_pairs times. */
ZR_NODISCARD zr_status_t calls_make_same_size(size_t n_pairs, const zr_log_t *log,
                                              calls_t *calls_p);
void calls_free(calls_t *calls);

/** The buffers of these calls; time is the number of the call. */
ZR_NODISCARD zr_status_t calls_trace(const calls_t *calls, const zr_log_t *log, trace_t *trace_p);
