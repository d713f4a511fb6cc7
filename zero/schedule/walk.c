/*
 * The schedule: it walks an order, and is the only place that gathers, recomputes, puts away,
 * reduces and releases. A turn gathers a block's parameters once, and reduces its gradients once,
 * for all of its micro-batches.
 */
#include "zero/schedule/schedule_internal.h"

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

static zr_status_t acquire_units(zr_block_t *block, zr_pass_t pass) {
    if (block->unit != NULL)
        ZR_TRY(zr_unit_acquire(block->unit, pass));
    for (size_t i = 0; i < block->n_used; i++)
        ZR_TRY(zr_unit_acquire(block->used[i]->unit, pass));
    return ZR_OK;
}

static zr_status_t release_units(zr_block_t *block) {
    for (size_t i = block->n_used; i-- > 0;)
        ZR_TRY(zr_unit_release(block->used[i]->unit));
    return block->unit != NULL ? zr_unit_release(block->unit) : ZR_OK;
}

/* ---- forward --------------------------------------------------------------------------------- */

static bool is_reached(const walk_t *walk, const zr_block_t *block) {
    return walk->trains && block->index >= walk->model->first_trained;
}

static bool is_recomputed(const zr_block_t *block) {
    return block->model->options.activations.recompute && block->type->recomputes;
}

static zr_status_t visit_forward(walk_t *walk, zr_block_t *block, zr_flight_t *flight) {
    bool is_last = block->index + 1 == walk->model->n_blocks;
    zr_visit_t visit = make_visit(walk, block, flight);
    visit.keeps = is_reached(walk, block) && !is_recomputed(block);
    visit.is_wanted = true;
    zr_status_t status = block->type->forward(&visit);
    if (is_last)
        zr_visit_drop(&visit, &visit.y);
    else
        flight->x[block->index + 1] = visit.y;
    return status;
}

/* A block has computed forward: its input waits for backward, here or elsewhere, or nobody needs
 * it.
 */
static zr_status_t settle_x(walk_t *walk, zr_block_t *block, zr_flight_t *flight) {
    zr_model_t *model = walk->model;
    void **x = &flight->x[block->index];
    if (!is_reached(walk, block)) {
        zr_free(model->allocator, x, model->stream);
        return ZR_OK;
    }
    if (model->stash == NULL || block->slot == ZR_NO_SLOT || *x == NULL)
        return ZR_OK;
    return zr_stash_put(model->stash, block->slot, x,
                        flight->batch.rows * model->options.x_row_bytes, model->stream);
}

static zr_status_t turn_forward(walk_t *walk, const zr_turn_t *turn) {
    zr_block_t *block = walk->model->blocks[turn->block];
    zr_flight_t *flights = &walk->model->flights[turn->first_micro_batch];
    ZR_TRY(acquire_units(block, ZR_FORWARD));
    for (size_t i = 0; i < turn->n_micro_batches; i++) {
        if (i > 0)
            ZR_TRY(settle_x(walk, block, &flights[i - 1]));
        ZR_TRY(visit_forward(walk, block, &flights[i]));
    }
    ZR_TRY(release_units(block));
    return settle_x(walk, block, &flights[turn->n_micro_batches - 1]);
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

static zr_status_t visit_backward(walk_t *walk, zr_block_t *block, zr_flight_t *flight) {
    zr_model_t *model = walk->model;
    ZR_TRY(bring_back_x(model, block, flight));
    zr_visit_t visit = make_visit(walk, block, flight);
    visit.gradient = flight->gradient;
    flight->gradient = NULL;
    zr_status_t status = ZR_OK;
    if (is_recomputed(block)) {
        visit.keeps = true;
        status = block->type->forward(&visit);
    }
    ZR_THEN(status, block->type->backward(&visit));
    flight->gradient = visit.gradient;
    zr_visit_drop(&visit, &visit.y);
    zr_free(model->allocator, &flight->x[block->index], model->stream);
    return status;
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

static zr_status_t turn_backward(walk_t *walk, const zr_turn_t *turn) {
    zr_model_t *model = walk->model;
    zr_block_t *block = model->blocks[turn->block];
    zr_flight_t *flights = &model->flights[turn->first_micro_batch];
    ZR_TRY(acquire_units(block, block->type->reads_no_params ? ZR_GRADIENTS : ZR_BACKWARD));
    for (size_t i = 0; i < turn->n_micro_batches; i++) {
        ZR_TRY(visit_backward(walk, block, &flights[i]));
        ZR_TRY(reduce_gradients(block, i + 1 == turn->n_micro_batches));
    }
    if (turn->block + 1 == model->n_blocks)
        model->n_losses += turn->n_micro_batches;
    return release_units(block);
}

/* ---- walking --------------------------------------------------------------------------------- */

static zr_status_t begin_micro_batches(walk_t *walk, const zr_turn_t *turn) {
    if (turn->n_begun == 0)
        return ZR_OK;
    if (walk->trains)
        ZR_TRY(zr_runtime_begin_micro_batches(walk->model->runtime, turn->n_begun));
    for (size_t i = 0; i < turn->n_begun; i++) {
        size_t index = turn->first_micro_batch + i;
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
    if (n_batches == 0 || (n_batches > 1 && model->stash != NULL))
        return zr_fail(model->log, ZR_ERR_ARGUMENT, "%s at a time are not possible%s",
                       zr_count_text(n_batches, "micro-batch").text,
                       n_batches > 1 ? " with activations that wait elsewhere" : "");
    for (size_t i = 0; i < n_batches; i++)
        ZR_TRY(zr_flight_check(model, &batches[i]));
    return zr_flights_prepare(model, n_batches);
}

zr_status_t zr_model_train(zr_model_t *model, const zr_host_batch_t *batches, size_t n_batches) {
    ZR_TRY(check_walk(model, batches, n_batches));
    ZR_TRY(zr_losses_prepare(model));
    walk_t walk = {.model = model,
                   .batches = batches,
                   .order = &model->train_order,
                   .trains = true,
                   .loss = &model->loss[0]};
    zr_status_t status = walk_order(&walk);
    end_flights(model);
    return status;
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
