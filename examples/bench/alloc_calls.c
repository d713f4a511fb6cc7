#include "examples/bench/alloc_calls.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_SLOTS 1024

void calls_free(calls_t *calls) {
    free(calls->calls);
    free(calls->marks);
    *calls = (calls_t){0};
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* Room for one element more; the array as it is when there is no memory. */
static void *grow(calls_t *calls, void *array, size_t n, size_t *capacity, size_t element_bytes) {
    if (n < *capacity || calls->failed)
        return array;
    size_t larger = *capacity == 0 ? 256 : 2 * *capacity;
    void *grown = realloc(array, larger * element_bytes);
    calls->failed = grown == NULL;
    if (grown == NULL)
        return array;
    *capacity = larger;
    return grown;
}

static void add_call(calls_t *calls, call_t call) {
    calls->calls =
        grow(calls, calls->calls, calls->n_calls, &calls->capacity, sizeof(*calls->calls));
    if (!calls->failed)
        calls->calls[calls->n_calls++] = call;
}

static void add_allocation(calls_t *calls, size_t slot, size_t size_bytes, zr_tag_t tag,
                           zr_lifetime_t lifetime) {
    add_call(calls, (call_t){.kind = CALL_ALLOCATE,
                             .slot = (uint16_t)slot,
                             .size_bytes = (uint32_t)size_bytes,
                             .tag = (uint8_t)tag,
                             .lifetime = (uint8_t)lifetime});
    calls->n_pairs++;
    if (slot >= calls->n_slots)
        calls->n_slots = slot + 1;
}

static void add_free(calls_t *calls, size_t slot) {
    add_call(calls, (call_t){.kind = CALL_FREE, .slot = (uint16_t)slot});
}

static void add_mark(calls_t *calls, size_t micro_batch, size_t unit, int pass) {
    calls->marks =
        grow(calls, calls->marks, calls->n_marks, &calls->marks_capacity, sizeof(*calls->marks));
    add_call(calls, (call_t){.kind = CALL_MARK, .slot = (uint16_t)calls->n_marks});
    if (!calls->failed)
        calls->marks[calls->n_marks++] =
            (zr_mark_t){.micro_batch = micro_batch, .unit = unit, .pass = pass};
}

static zr_status_t finish(calls_t *calls, const zr_log_t *log, calls_t *calls_p) {
    if (!calls->failed) {
        *calls_p = *calls;
        return ZR_OK;
    }
    size_t n = calls->n_calls;
    calls_free(calls);
    return zr_fail(log, ZR_ERR_MEMORY, "no memory for more than %s to time",
                   zr_count_text(n, "call").text);
}

/* ---- a training step ------------------------------------------------------------------------- */

#define N_LAYERS ((size_t)12)
#define N_MICRO_BATCHES ((size_t)2)
#define N_KEPT ((size_t)8)
#define N_WORKSPACES ((size_t)3)

static const size_t channels = 256, tokens = 256, n_heads = 4;

enum { FORWARD = 1, BACKWARD };
/* Slots: what a layer keeps for its backward pass, then what only one pass has. */
enum { SLOT_PASS = N_LAYERS * N_KEPT, SLOT_GATHERED = SLOT_PASS + N_WORKSPACES, SLOT_BUCKET };

/* Layer norm, qkv, probabilities, attention, projection, layer norm, and the wide ones of the MLP.
 */
static size_t kept_bytes(size_t i) {
    size_t rows = 4 * tokens * channels;
    const size_t sizes[N_KEPT] = {
        rows, 3 * rows, 4 * n_heads * tokens * tokens, rows, rows, rows, 4 * rows, 4 * rows};
    return sizes[i];
}

static size_t layer_bytes(void) {
    return 4 * (12 * channels * channels + 13 * channels);
}

static void add_workspaces(calls_t *calls) {
    for (size_t i = 0; i < N_WORKSPACES; i++)
        add_allocation(calls, SLOT_PASS + i, (i + 1) * 4 * tokens * channels, ZR_TAG_WORKSPACE,
                       ZR_LIFETIME_UNIT);
    for (size_t i = N_WORKSPACES; i > 0; i--)
        add_free(calls, SLOT_PASS + i - 1);
}

static void add_pass(calls_t *calls, size_t micro_batch, size_t layer, int pass) {
    add_mark(calls, micro_batch, layer, pass);
    add_allocation(calls, SLOT_GATHERED, layer_bytes(), ZR_TAG_GATHERED_PARAMETERS,
                   ZR_LIFETIME_UNIT);
    if (pass == BACKWARD)
        add_allocation(calls, SLOT_BUCKET, layer_bytes(), ZR_TAG_GRADIENT_BUCKETS,
                       ZR_LIFETIME_COLLECTIVE);
    for (size_t i = 0; pass == FORWARD && i < N_KEPT; i++)
        add_allocation(calls, layer * N_KEPT + i, kept_bytes(i), ZR_TAG_ACTIVATIONS,
                       ZR_LIFETIME_MICRO_BATCH);
    add_workspaces(calls);
    for (size_t i = N_KEPT; pass == BACKWARD && i > 0; i--)
        add_free(calls, layer * N_KEPT + i - 1);
    if (pass == BACKWARD)
        add_free(calls, SLOT_BUCKET);
    add_free(calls, SLOT_GATHERED);
}

zr_status_t calls_make_step(const zr_log_t *log, calls_t *calls_p) {
    calls_t calls = {0};
    for (size_t micro_batch = 1; micro_batch <= N_MICRO_BATCHES; micro_batch++) {
        for (size_t layer = 0; layer < N_LAYERS; layer++)
            add_pass(&calls, micro_batch, layer, FORWARD);
        for (size_t layer = N_LAYERS; layer > 0; layer--)
            add_pass(&calls, micro_batch, layer - 1, BACKWARD);
    }
    add_mark(&calls, 0, ZR_NO_UNIT, 0);
    return finish(&calls, log, calls_p);
}

/* ---- others ---------------------------------------------------------------------------------- */

#define IRREGULAR_SLOTS 512
#define SAME_BYTES 65536

/* xorshift: the same calls in every run. */
static uint64_t draw(uint64_t *random, uint64_t n) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random % n;
}

/* From 256 bytes to 1 MiB, every power of two as often. */
static size_t draw_size(uint64_t *random) {
    size_t power = (size_t)256 << draw(random, 12);
    return power + (size_t)draw(random, power);
}

zr_status_t calls_make_irregular(size_t n_pairs, const zr_log_t *log, calls_t *calls_p) {
    calls_t calls = {0};
    bool is_live[IRREGULAR_SLOTS] = {false};
    uint64_t random = UINT64_C(0x9E3779B97F4A7C15);
    for (size_t i = 0; i < n_pairs && !calls.failed; i++) {
        size_t slot = (size_t)draw(&random, IRREGULAR_SLOTS);
        if (is_live[slot])
            add_free(&calls, slot);
        is_live[slot] = true;
        zr_lifetime_t lifetime = (zr_lifetime_t)(ZR_LIFETIME_STEP + draw(&random, 4));
        add_allocation(&calls, slot, draw_size(&random), (zr_tag_t)draw(&random, ZR_N_TAGS),
                       lifetime);
    }
    for (size_t slot = 0; slot < IRREGULAR_SLOTS; slot++)
        if (is_live[slot])
            add_free(&calls, slot);
    return finish(&calls, log, calls_p);
}

zr_status_t calls_make_same_size(size_t n_pairs, const zr_log_t *log, calls_t *calls_p) {
    calls_t calls = {0};
    for (size_t i = 0; i < n_pairs && !calls.failed; i++) {
        add_allocation(&calls, 0, SAME_BYTES, ZR_TAG_WORKSPACE, ZR_LIFETIME_UNIT);
        add_free(&calls, 0);
    }
    return finish(&calls, log, calls_p);
}

/* ---- as a trace ------------------------------------------------------------------------------ */

#define MAX_ID_BYTES 24

zr_status_t calls_trace(const calls_t *calls, const zr_log_t *log, trace_t *trace_p) {
    size_t n = calls->n_pairs, buffer_of[MAX_SLOTS];
    trace_t trace = {.text = malloc(n * MAX_ID_BYTES + 1),
                     .ids = malloc((n + 1) * sizeof(*trace.ids)),
                     .buffers = malloc((n + 1) * sizeof(*trace.buffers)),
                     .capacity = n};
    if (trace.text == NULL || trace.ids == NULL || trace.buffers == NULL) {
        trace_free(&trace);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a trace of %s",
                       zr_count_text(n, "buffer").text);
    }
    for (size_t i = 0; i < calls->n_calls; i++) {
        const call_t *call = &calls->calls[i];
        if (call->kind == CALL_FREE)
            trace.buffers[buffer_of[call->slot]].upper = (int64_t)i;
        if (call->kind != CALL_ALLOCATE)
            continue;
        char *id = trace.text + trace.n_buffers * MAX_ID_BYTES;
        snprintf(id, MAX_ID_BYTES, "%zu", trace.n_buffers + 1);
        trace.ids[trace.n_buffers] = id;
        trace.buffers[trace.n_buffers] =
            (zr_plan_buffer_t){.lower = (int64_t)i, .size_bytes = call->size_bytes};
        buffer_of[call->slot] = trace.n_buffers++;
    }
    *trace_p = trace;
    return ZR_OK;
}
