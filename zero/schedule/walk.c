/*
 * The schedule: it walks an order, and is the only place that gathers, recomputes, puts away,
 * reduces and releases. A turn gathers a block's parameters once, and reduces its gradients once,
 * for all of its micro-batches.
 */
#include "zero/schedule/schedule_internal.h"

#include "allocator/replay.h"
#include "kernels/base/background_internal.h"
#include "zero/runtime_internal.h"

/* What a walk works on. */
typedef struct walk {
    zr_model_t *model;
    const zr_host_batch_t *batches;
    const zr_order_t *order;
    bool trains; /* else evaluates */
    double *loss;
} walk_t;

/* ---- memory of a visit ----------------------------------------------------------------------- */

zr_status_t zr_visit_take(zr_visit_t *visit, zr_memory_t memory, size_t size_bytes,
                          void **pointer_p) {
    const zr_model_t *model = visit->block->model;
    zr_allocation_request_t request = {
        .size_bytes = size_bytes,
        .tier = ZR_TIER_DEVICE,
        .tag = memory == ZR_MEMORY_WORKSPACE ? ZR_TAG_WORKSPACE : ZR_TAG_ACTIVATIONS,
        .lifetime = memory == ZR_MEMORY_KEPT ? ZR_LIFETIME_MICRO_BATCH : ZR_LIFETIME_UNIT,
        .name = visit->name,
        .stream = visit->stream};
    return zr_allocate(model->allocator, &request, pointer_p);
}

void zr_visit_drop(zr_visit_t *visit, void **pointer_p) {
    zr_free(visit->block->model->allocator, pointer_p, visit->stream);
}

/* A block computes, and transfers of drives go on meanwhile. */
static zr_status_t compute(zr_visit_t *visit, zr_status_t (*function)(zr_visit_t *visit)) {
    zr_runtime_t *runtime = visit->block->model->runtime;
    zr_background_begin(zr_rt_keep_moving, runtime);
    zr_status_t status = function(visit);
    zr_background_end();
    return status;
}

static zr_visit_t make_visit(const walk_t *walk, zr_block_t *block, zr_flight_t *flight) {
    zr_model_t *model = walk->model;
    return (zr_visit_t){.block = block,
                        .shape = model->options.shape,
                        .self = block->self,
                        .tensors = flight->tensors + block->tensors_offset,
                        .batch = &flight->batch,
                        .stream = model->stream,
                        .device = model->device,
                        .name = block->name,
                        .x = flight->x[block->index],
                        .loss = walk->loss};
}

/* ---- parameters of a turn -------------------------------------------------------------------- */

static zr_status_t acquire_units(zr_block_t *block, zr_pass_t own, zr_pass_t used) {
    if (block->encoded != NULL && own != ZR_GRADIENTS)
        ZR_TRY(zr_unit_acquire(block->encoded, own == ZR_FORWARD ? own : ZR_BACKWARD_PARAMS));
    if (block->unit != NULL)
        ZR_TRY(zr_unit_acquire(block->unit, own));
    for (size_t i = 0; i < block->n_used; i++)
        ZR_TRY(zr_unit_acquire(block->used[i]->unit, used));
    return ZR_OK;
}

static zr_status_t release_units(zr_block_t *block, zr_pass_t own) {
    for (size_t i = block->n_used; i-- > 0;)
        ZR_TRY(zr_unit_release(block->used[i]->unit));
    if (block->unit != NULL)
        ZR_TRY(zr_unit_release(block->unit));
    return block->encoded != NULL && own != ZR_GRADIENTS ? zr_unit_release(block->encoded) : ZR_OK;
}

/* ---- which micro-batch is worked on ---------------------------------------------------------- */

/* For who tells them apart: plans of memory, and traces. */
static void enter(const walk_t *walk, size_t index) {
    const zr_model_t *model = walk->model;
    if (!walk->trains)
        return;
    zr_runtime_at_micro_batch(model->runtime, index);
    zr_allocator_replay_scale(model->allocator, (uint32_t)walk->batches[index].seq);
}

/* Sizes of a turn's own work depend on no micro-batch of several. */
static void leave(const walk_t *walk) {
    if (walk->trains && walk->model->n_together > 1)
        zr_allocator_replay_scale(walk->model->allocator, 0);
}

/* ---- tensors that wait elsewhere for their turn ----------------------------------------------
 *
 * Where several micro-batches are walked together, what a block gives one of them waits until the
 * next block comes to it: its output, which is the next one's x, and, in backward, the gradient of
 * its x. Each visit begins by bringing back what it works on, and what the next one does.
 */

#define MOST_WAITING 3 /* for a visit */

static bool waits(const walk_t *walk) {
    return walk->trains && walk->model->n_together > 1 && walk->model->stash != NULL;
}

/* The slots that a visit empties, or reads, in this order. */
static size_t list_waiting(const zr_model_t *model, const zr_turn_t *turn, size_t index,
                           size_t slots[MOST_WAITING]) {
    const zr_block_t *block = model->blocks[turn->block];
    bool is_backward = turn->pass == ZR_TURN_BACKWARD;
    size_t n = 0;
    if (is_backward && block->late != NULL)
        slots[n++] = block->late->slot + index;
    if (is_backward && turn->block + 1 < model->n_blocks)
        slots[n++] = model->gradient_slot + index;
    if (block->slot != ZR_NO_SLOT)
        slots[n++] = block->slot + index;
    return n;
}

/* How often the x of a block is got. */
static size_t count_gets(const zr_model_t *model, const zr_block_t *block) {
    bool is_last = block->index + 1 == model->n_blocks;
    bool is_late = is_last && block->n_used == 1 && block->used[0]->late == block;
    return 1 + (is_last ? is_late : block->index >= model->first_trained);
}

/* The next visit. False: this was the last. */
static bool step_on(const zr_order_t *order, size_t *turn, size_t *index) {
    if (++*index < order->turns[*turn].n_micro_batches)
        return true;
    *index = 0;
    return ++*turn < order->n_turns;
}

/* What the next visit needs comes to the device while this one computes; what those behind it need
 * is read from drives. */
static zr_status_t bring_ahead(walk_t *walk, size_t turn, size_t index) {
    zr_model_t *model = walk->model;
    size_t slots[MOST_WAITING], n_ahead = 0, most = zr_stash_most_ahead(model->stash);
    if (!step_on(walk->order, &turn, &index))
        return ZR_OK;
    enter(walk, index);
    size_t n = list_waiting(model, &walk->order->turns[turn], index, slots);
    for (size_t i = 0; i < n; i++)
        ZR_TRY(zr_stash_prefetch(model->stash, slots[i], model->stream));
    while (step_on(walk->order, &turn, &index)) {
        n = list_waiting(model, &walk->order->turns[turn], index, slots);
        if (n_ahead + n > most)
            return ZR_OK;
        for (size_t i = 0; i < n; i++)
            ZR_TRY(zr_stash_read_ahead(model->stash, slots[i]));
        n_ahead += n;
    }
    return ZR_OK;
}

/* What a visit works on. */
static zr_status_t bring_back(walk_t *walk, const zr_turn_t *turn, size_t index) {
    zr_model_t *model = walk->model;
    zr_block_t *block = model->blocks[turn->block];
    zr_flight_t *flight = &model->flights[index];
    size_t slots[MOST_WAITING], n = 0;
    if (!waits(walk))
        return ZR_OK;
    (void)list_waiting(model, turn, index, slots);
    bool is_backward = turn->pass == ZR_TURN_BACKWARD;
    if (is_backward && block->late != NULL)
        ZR_TRY(
            zr_stash_get(model->stash, slots[n++], model->stream, &flight->x[block->late->index]));
    if (is_backward && turn->block + 1 < model->n_blocks)
        ZR_TRY(zr_stash_get(model->stash, slots[n++], model->stream, &flight->gradient));
    if (block->slot != ZR_NO_SLOT)
        ZR_TRY(zr_stash_get(model->stash, slots[n++], model->stream, &flight->x[block->index]));
    ZR_TRY(bring_ahead(walk, (size_t)(turn - walk->order->turns), index));
    enter(walk, index);
    return ZR_OK;
}

static zr_status_t put_away(walk_t *walk, size_t slot, zr_flight_t *flight, void **tensor,
                            size_t n_gets) {
    zr_model_t *model = walk->model;
    return zr_stash_put_for(model->stash, slot, tensor,
                            flight->batch.rows * model->options.x_row_bytes, model->stream, n_gets);
}

/* ---- forward --------------------------------------------------------------------------------- */

static bool is_reached(const walk_t *walk, const zr_block_t *block) {
    return walk->trains && block->index >= walk->model->first_trained;
}

static bool is_recomputed(const zr_block_t *block) {
    return block->model->options.activations.recompute == ZR_RECOMPUTE_UNIT &&
           block->type->recomputes;
}

static zr_status_t visit_forward(walk_t *walk, zr_block_t *block, zr_flight_t *flight) {
    bool is_last = block->index + 1 == walk->model->n_blocks;
    zr_visit_t visit = make_visit(walk, block, flight);
    visit.keeps = is_reached(walk, block) && !is_recomputed(block);
    visit.is_wanted = true;
    zr_status_t status = compute(&visit, block->type->forward);
    if (is_last)
        zr_visit_drop(&visit, &visit.y);
    else
        flight->x[block->index + 1] = visit.y;
    return status;
}

/* A block has computed forward: its input waits for backward, here or elsewhere, or nobody needs
 * it. Its output waits where the next block comes to it only after other micro-batches.
 */
static zr_status_t settle(walk_t *walk, zr_block_t *block, size_t index) {
    zr_model_t *model = walk->model;
    zr_flight_t *flight = &model->flights[index];
    void **x = &flight->x[block->index];
    if (!is_reached(walk, block) || waits(walk))
        zr_free(model->allocator, x, model->stream);
    if (waits(walk)) {
        const zr_block_t *next = model->blocks[block->index + 1];
        return put_away(walk, next->slot + index, flight, &flight->x[next->index],
                        count_gets(model, next));
    }
    if (model->stash == NULL || block->slot == ZR_NO_SLOT || *x == NULL)
        return ZR_OK;
    return put_away(walk, block->slot, flight, x, 1);
}

static zr_status_t turn_forward(walk_t *walk, const zr_turn_t *turn) {
    zr_block_t *block = walk->model->blocks[turn->block];
    size_t first = turn->first_micro_batch, last = first + turn->n_micro_batches - 1;
    leave(walk);
    ZR_TRY(acquire_units(block, ZR_FORWARD, ZR_FORWARD));
    for (size_t i = first; i <= last; i++) {
        if (i > first)
            ZR_TRY(settle(walk, block, i - 1));
        enter(walk, i);
        ZR_TRY(bring_back(walk, turn, i));
        ZR_TRY(visit_forward(walk, block, &walk->model->flights[i]));
    }
    ZR_TRY(release_units(block, ZR_FORWARD));
    return settle(walk, block, last);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The input of a block, and the next one on its way while backward computes. */
static zr_status_t bring_back_x(zr_model_t *model, const zr_block_t *block, zr_flight_t *flight) {
    if (model->stash == NULL || block->slot == ZR_NO_SLOT)
        return ZR_OK;
    ZR_TRY(zr_stash_get(model->stash, block->slot, model->stream, &flight->x[block->index]));
    const zr_block_t *next =
        block->index > model->first_trained ? model->blocks[block->index - 1] : NULL;
    return next != NULL && next->slot != ZR_NO_SLOT
               ? zr_stash_prefetch(model->stash, next->slot, model->stream)
               : ZR_OK;
}

/* Whether the gradients of parameters that a block uses come late. */
static bool is_separate(const zr_block_t *block) {
    return block->n_used == 1 && block->used[0]->late == block;
}

/* What `late` adds to the gradients of this block's parameters, before the block itself does. */
static zr_status_t visit_late(walk_t *walk, zr_block_t *late, zr_flight_t *flight) {
    zr_model_t *model = walk->model;
    zr_visit_t visit = make_visit(walk, late, flight);
    visit.part = ZR_BACKWARD_USED;
    visit.loss = &model->loss[2];
    zr_status_t status = compute(&visit, late->type->backward);
    zr_visit_drop(&visit, &visit.gradient);
    zr_visit_drop(&visit, &visit.y);
    zr_free(model->allocator, &flight->x[late->index], model->stream);
    return status;
}

static zr_status_t visit_backward(walk_t *walk, zr_block_t *block, zr_flight_t *flight) {
    zr_model_t *model = walk->model;
    if (block->late != NULL)
        ZR_TRY(visit_late(walk, block->late, flight));
    zr_visit_t visit = make_visit(walk, block, flight);
    visit.gradient = flight->gradient;
    flight->gradient = NULL;
    zr_status_t status = ZR_OK;
    if (is_recomputed(block)) {
        visit.keeps = true;
        status = compute(&visit, block->type->forward);
    }
    visit.part = is_separate(block) ? ZR_BACKWARD_BUT_USED : ZR_BACKWARD_WHOLE;
    ZR_THEN(status, compute(&visit, block->type->backward));
    flight->gradient = visit.gradient;
    zr_visit_drop(&visit, &visit.y);
    if (waits(walk) || !is_separate(block))
        zr_free(model->allocator, &flight->x[block->index], model->stream);
    return status;
}

/* The gradient of x waits for the block before, or nobody needs it. */
static zr_status_t settle_gradient(walk_t *walk, const zr_block_t *block, size_t index) {
    zr_model_t *model = walk->model;
    zr_flight_t *flight = &model->flights[index];
    if (model->n_together > 1 && block->index == model->first_trained)
        zr_free(model->allocator, &flight->gradient, model->stream);
    else if (waits(walk))
        return put_away(walk, model->gradient_slot + index, flight, &flight->gradient, 1);
    return ZR_OK;
}

/* Gradients of a micro-batch, or of all of them, are complete: ranks add theirs. */
static zr_status_t reduce_gradients(zr_block_t *block, bool is_last) {
    const zr_config_t *config = zr_runtime_config(block->model->runtime);
    if (block->unit == NULL || (!is_last && config->reduce == ZR_REDUCE_AUTO))
        return ZR_OK;
    ZR_TRY(zr_unit_reduce(block->unit));
    if (is_last)
        return ZR_OK;
    ZR_TRY(zr_unit_acquire(block->unit, ZR_GRADIENTS)); /* the next micro-batch's */
    return zr_unit_release(block->unit);
}

static zr_pass_t backward_of(const zr_block_t *block) {
    bool needs_params = !block->type->reads_no_params || block->late != NULL;
    return needs_params ? ZR_BACKWARD : ZR_GRADIENTS;
}

static zr_status_t turn_backward(walk_t *walk, const zr_turn_t *turn) {
    zr_model_t *model = walk->model;
    zr_block_t *block = model->blocks[turn->block];
    size_t first = turn->first_micro_batch, end = first + turn->n_micro_batches;
    leave(walk);
    ZR_TRY(acquire_units(block, backward_of(block),
                         is_separate(block) ? ZR_BACKWARD_PARAMS : ZR_BACKWARD));
    for (size_t i = first; i < end; i++) {
        enter(walk, i);
        ZR_TRY(waits(walk) ? bring_back(walk, turn, i)
                           : bring_back_x(model, block, &model->flights[i]));
        ZR_TRY(visit_backward(walk, block, &model->flights[i]));
        ZR_TRY(settle_gradient(walk, block, i));
        leave(walk);
        ZR_TRY(reduce_gradients(block, i + 1 == end));
    }
    if (turn->block + 1 == model->n_blocks)
        model->n_losses += turn->n_micro_batches;
    return release_units(block, backward_of(block));
}

/* ---- walking --------------------------------------------------------------------------------- */

static zr_status_t begin_micro_batches(walk_t *walk, const zr_turn_t *turn) {
    if (turn->n_begun == 0)
        return ZR_OK;
    if (walk->trains)
        ZR_TRY(zr_runtime_begin_micro_batches(walk->model->runtime, turn->n_begun));
    for (size_t i = 0; i < turn->n_begun; i++) {
        size_t index = turn->first_micro_batch + i;
        enter(walk, index);
        ZR_TRY(zr_flight_begin(walk->model, &walk->model->flights[index], &walk->batches[index]));
    }
    return ZR_OK;
}

static zr_status_t walk_order(walk_t *walk) {
    for (size_t i = 0; i < walk->order->n_turns; i++) {
        const zr_turn_t *turn = &walk->order->turns[i];
        ZR_TRY(begin_micro_batches(walk, turn));
        ZR_TRY(turn->pass == ZR_TURN_FORWARD ? turn_forward(walk, turn)
                                             : turn_backward(walk, turn));
    }
    return ZR_OK;
}

/* What is left is of a walk that failed, but for inputs and the last gradient. */
static void end_flights(zr_model_t *model) {
    if (model->stash != NULL)
        zr_stash_clear(model->stash);
    for (size_t i = 0; i < model->n_flights; i++)
        zr_flight_end(model, &model->flights[i]);
}

static zr_status_t check_walk(zr_model_t *model, const zr_host_batch_t *batches, size_t n_batches) {
    if (!model->is_committed)
        return zr_fail(model->log, ZR_ERR_STATE,
                       "the model is not committed; call zr_model_commit");
    for (size_t i = 0; i < n_batches; i++)
        ZR_TRY(zr_flight_check(model, &batches[i]));
    return zr_flights_prepare(model);
}

static zr_status_t train_together(zr_model_t *model, const zr_host_batch_t *batches) {
    walk_t walk = {.model = model,
                   .batches = batches,
                   .order = &model->train_order,
                   .trains = true,
                   .loss = &model->loss[0]};
    zr_status_t status = walk_order(&walk);
    zr_allocator_replay_scale(model->allocator, 0);
    end_flights(model);
    return status;
}

zr_status_t zr_model_train(zr_model_t *model, const zr_host_batch_t *batches, size_t n_batches) {
    ZR_TRY(check_walk(model, batches, n_batches));
    const size_t n_together = model->n_together;
    const size_t n_left = zr_runtime_micro_batches_left(model->runtime);
    if (n_batches == 0 || n_batches % n_together != 0 || (n_left > 0 && n_batches > n_left))
        return zr_fail(model->log, ZR_ERR_ARGUMENT, "%s of a step that has %zu left%s",
                       zr_count_text(n_batches, "micro-batch").text, n_left,
                       n_together > 1 ? ": --order block works on all of them together" : "");
    ZR_TRY(zr_losses_prepare(model));
    for (size_t i = 0; i < n_batches; i += n_together)
        ZR_TRY(train_together(model, &batches[i]));
    return ZR_OK;
}

zr_status_t zr_model_evaluate(zr_model_t *model, const zr_host_batch_t *batch, double *loss_p) {
    ZR_TRY(check_walk(model, batch, 1));
    ZR_TRY(zr_runtime_begin_evaluation(model->runtime));
    ZR_TRY(zr_losses_prepare(model));
    walk_t walk = {.model = model,
                   .batches = batch,
                   .order = &model->evaluation_order,
                   .loss = &model->loss[1]};
    zr_status_t status = walk_order(&walk);
    end_flights(model);
    ZR_TRY(status);
    return zr_losses_read(model, 1, loss_p);
}
