/*
 * The order of a step: which block computes which micro-batches in which pass, one turn after the
 * other. An order is data that the schedule follows.
 *
 * In a turn, a block's parameters are gathered once, and its gradients reduced once, for all of the
 * turn's micro-batches.
 */
#pragma once

#include <stddef.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

typedef enum zr_turn_pass {
    ZR_TURN_FORWARD = 0,
    ZR_TURN_BACKWARD = 1 /* for the last block: forward and backward */
} zr_turn_pass_t;

typedef struct zr_turn {
    size_t block;
    zr_turn_pass_t pass;
    size_t first_micro_batch; /* index among the micro-batches of the order, from 0 */
    size_t n_micro_batches;   /* computed one after the other: gradients are added in this order */
    size_t n_begun;           /* micro-batches that begin together with this turn */
} zr_turn_t;

typedef struct zr_order {
    zr_turn_t *turns; /* [n_turns] */
    size_t n_turns;
} zr_order_t;

/**
 * Forward through all blocks, and back to the first trainable one, with `n_micro_batches` together:
 * each block computes all of them before the next block.
 *
 * @param n_blocks       at least 1; the last one's forward and backward are one turn
 * @param first_trained  block at which backward ends; less than n_blocks
 * @param order_p        the caller frees it with zr_order_clear
 * @return ZR_OK; ZR_ERR_MEMORY, not logged
 */
ZR_NODISCARD zr_status_t zr_order_through(size_t n_blocks, size_t first_trained,
                                          size_t n_micro_batches, zr_order_t *order_p);
/** The order for evaluation: forward only. */
ZR_NODISCARD zr_status_t zr_order_forward(size_t n_blocks, zr_order_t *order_p);
void zr_order_clear(zr_order_t *order);

ZR_END_C
