/* Orders of a step, as lists of turns. */
#include "zero/schedule/order.h"

#include <stdlib.h>

static zr_status_t allocate_turns(size_t n_turns, zr_order_t *order_p) {
    *order_p = (zr_order_t){.turns = calloc(n_turns, sizeof(zr_turn_t)), .n_turns = 0};
    return order_p->turns != NULL ? ZR_OK : ZR_ERR_MEMORY;
}

static void add_turn(zr_order_t *order, size_t block, zr_turn_pass_t pass, size_t n) {
    order->turns[order->n_turns] = (zr_turn_t){
        .block = block, .pass = pass, .n_micro_batches = n, .n_begun = order->n_turns == 0 ? n : 0};
    order->n_turns++;
}

zr_status_t zr_order_through(size_t n_blocks, size_t first_trained, size_t n_micro_batches,
                             zr_order_t *order_p) {
    ZR_TRY(allocate_turns(2 * n_blocks, order_p));
    for (size_t i = 0; i + 1 < n_blocks; i++)
        add_turn(order_p, i, ZR_TURN_FORWARD, n_micro_batches);
    for (size_t i = n_blocks; i-- > first_trained;)
        add_turn(order_p, i, ZR_TURN_BACKWARD, n_micro_batches);
    return ZR_OK;
}

zr_status_t zr_order_forward(size_t n_blocks, zr_order_t *order_p) {
    ZR_TRY(allocate_turns(n_blocks, order_p));
    for (size_t i = 0; i < n_blocks; i++)
        add_turn(order_p, i, ZR_TURN_FORWARD, 1);
    return ZR_OK;
}

void zr_order_clear(zr_order_t *order) {
    free(order->turns);
    *order = (zr_order_t){0};
}
