#include "kernels/sim/sim_tape.h"

#include <stdlib.h>

/* ---- tapes ----------------------------------------------------------------------------------- */

zr_sim_tape_t *zr_sim_tape_create(void) {
    return calloc(1, sizeof(zr_sim_tape_t));
}

void zr_sim_tape_destroy(zr_sim_tape_t **tape) {
    if (*tape != NULL)
        free((*tape)->ops);
    free(*tape);
    *tape = NULL;
}

bool zr_sim_is_of_drive(const zr_sim_op_t *op) {
    return op->kind >= ZR_SIM_OP_START && op->kind <= ZR_SIM_OP_ASK_TRANSFER;
}

void zr_sim_keep(zr_sim_clock_t *clock, const zr_sim_op_t *op) {
    zr_sim_tape_t *tape = zr_sim_clock_tape(clock);
    if (tape == NULL || tape->has_failed)
        return;
    if (tape->n == tape->capacity) {
        size_t capacity = tape->capacity != 0 ? 2 * tape->capacity : 4096;
        zr_sim_op_t *grown = realloc(tape->ops, capacity * sizeof(*grown));
        tape->has_failed = grown == NULL;
        if (grown == NULL)
            return;
        tape->ops = grown;
        tape->capacity = capacity;
    }
    zr_sim_op_t *kept = &tape->ops[tape->n++];
    *kept = *op;
    for (size_t i = 0; i < ZR_N_SIM_NAMES; i++) {
        size_t record = op->records[i];
        kept->records[i] = record > tape->first_record ? record - tape->first_record : 0;
        if (kept->records[i] > tape->n_records)
            tape->n_records = kept->records[i];
    }
    uint32_t *n_numbers = zr_sim_is_of_drive(op) ? &tape->n_drives : &tape->n_queues;
    if (op->number >= *n_numbers)
        *n_numbers = op->number + 1;
}

/* ---- what is asked --------------------------------------------------------------------------- */

static double later(double a, double b) {
    return a > b ? a : b;
}

static void work(zr_sim_clock_t *clock, const zr_sim_op_t *op, zr_sim_queue_t *queue) {
    zr_sim_clock_spend(clock, op->launch);
    queue->ready = zr_sim_clock_work(clock, op->part, op->name, queue->ready, op->seconds);
    queue->begin = queue->ready - op->seconds;
    if (op->holds)
        zr_sim_clock_wait(clock, queue->ready);
}

static bool has_passed(zr_sim_clock_t *clock, const zr_sim_op_t *op,
                       const zr_sim_record_t *record) {
    bool passed = record->passes <= zr_sim_clock_now(clock) + ZR_SIM_INSTANT;
    if (!passed) /* looking takes time, so that whoever does nothing else sees it pass */
        zr_sim_clock_spend(clock, op->launch);
    return passed;
}

bool zr_sim_do(zr_sim_clock_t *clock, const zr_sim_op_t *op, zr_sim_queue_t *queue,
               zr_sim_record_t *record) {
    zr_sim_clock_tell_update(clock, op->is_update);
    switch (op->kind) {
    case ZR_SIM_OP_WORK:
        work(clock, op, queue);
        break;
    case ZR_SIM_OP_RECORD:
        record->passes = queue->ready;
        break;
    case ZR_SIM_OP_FOLLOW:
        queue->ready = later(queue->ready, record->passes);
        if (op->holds)
            zr_sim_clock_wait(clock, queue->ready);
        break;
    case ZR_SIM_OP_AWAIT_EVENT:
        zr_sim_clock_wait(clock, record->passes);
        break;
    case ZR_SIM_OP_AWAIT_QUEUE:
        zr_sim_clock_wait(clock, queue->ready);
        break;
    case ZR_SIM_OP_ASK_EVENT:
        return has_passed(clock, op, record);
    case ZR_SIM_OP_SPEND:
        zr_sim_clock_spend(clock, op->seconds);
        break;
    case ZR_SIM_OP_BUSY:
        zr_sim_clock_wait(clock, zr_sim_clock_work(clock, op->part, op->name,
                                                   zr_sim_clock_now(clock), op->seconds));
        break;
    default: /* drives do theirs, and marks are only kept */
        break;
    }
    return true;
}

bool zr_sim_ask(zr_sim_clock_t *clock, zr_sim_op_t *op, zr_sim_queue_t *queue,
                zr_sim_record_t *record) {
    if (queue != NULL)
        op->number = queue->number;
    if (op->kind == ZR_SIM_OP_RECORD)
        record->number = zr_sim_number_record(clock);
    if (record != NULL)
        op->records[ZR_SIM_OWN] = record->number;
    op->found = zr_sim_do(clock, op, queue, record);
    zr_sim_keep(clock, op);
    return op->found;
}

void zr_sim_spend(zr_sim_clock_t *clock, double seconds) {
    zr_sim_op_t op = {.kind = ZR_SIM_OP_SPEND, .seconds = seconds};
    (void)zr_sim_ask(clock, &op, NULL, NULL);
}

void zr_sim_busy(zr_sim_clock_t *clock, zr_sim_part_t part, const char *name, double seconds) {
    zr_sim_op_t op = {.kind = ZR_SIM_OP_BUSY, .part = part, .name = name, .seconds = seconds};
    (void)zr_sim_ask(clock, &op, NULL, NULL);
}

void zr_sim_mark(zr_sim_clock_t *clock, uint32_t mark) {
    zr_sim_op_t op = {.kind = ZR_SIM_OP_MARK, .number = mark};
    zr_sim_keep(clock, &op);
}
