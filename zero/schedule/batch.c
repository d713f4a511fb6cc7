/* A micro-batch: its inputs on the device, its memory, and its loss. */
#include <math.h>
#include <string.h>

#include "zero/schedule/schedule_internal.h"

/* ---- flights --------------------------------------------------------------------------------- */

void zr_flights_free(zr_model_t *model) {
    zr_heap_destroy(&model->flights_heap);
    model->flights = NULL;
    model->n_flights = 0;
    zr_order_clear(&model->train_order);
    zr_order_clear(&model->evaluation_order);
}

zr_status_t zr_flights_prepare(zr_model_t *model) {
    const size_t n_flights = model->n_together;
    if (model->n_flights == n_flights)
        return ZR_OK;
    zr_flights_free(model);
    zr_status_t status = ZR_ERR_MEMORY;
    model->flights_heap = zr_heap_create(model->heap);
    if (model->flights_heap != NULL)
        model->flights = zr_heap_alloc(model->flights_heap, n_flights, sizeof(*model->flights));
    for (; model->flights != NULL && model->n_flights < n_flights; model->n_flights++) {
        zr_flight_t *flight = &model->flights[model->n_flights];
        flight->x =
            zr_heap_alloc(model->flights_heap, model->n_blocks + model->n_tensors, sizeof(void *));
        if (flight->x == NULL)
            break;
        flight->tensors = flight->x + model->n_blocks;
    }
    if (model->flights != NULL && model->n_flights == n_flights)
        status =
            zr_order_through(model->n_blocks, model->first_trained, n_flights, &model->train_order);
    ZR_THEN(status, zr_order_forward(model->n_blocks, &model->evaluation_order));
    if (status == ZR_OK)
        return ZR_OK;
    zr_flights_free(model);
    return zr_fail(model->log, status, "the system has no memory for %s of %s",
                   zr_count_text(n_flights, "micro-batch").text,
                   zr_count_text(model->n_blocks, "block").text);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static bool is_ignored(const zr_input_desc_t *input, int32_t value) {
    return input->ignored < 0 && value == input->ignored;
}

static zr_status_t check_values(const zr_model_t *model, const zr_input_desc_t *input,
                                const int32_t *values, size_t n) {
    for (size_t i = 0; input->n_values != 0 && i < n; i++) {
        bool is_value = values[i] >= 0 && (size_t)values[i] < input->n_values;
        if (!is_value && !is_ignored(input, values[i]))
            return zr_fail(model->log, ZR_ERR_ARGUMENT,
                           "%s %zu is %d, outside the model's vocabulary of %zu", input->name, i,
                           (int)values[i], input->n_values);
    }
    return ZR_OK;
}

static zr_status_t check_starts(const zr_model_t *model, const zr_input_desc_t *input,
                                const int32_t *starts, const zr_host_batch_t *batch) {
    for (size_t i = 0; input->are_starts && i < batch->n_sequences * batch->seq; i++) {
        size_t t = i % batch->seq;
        if (starts[i] != (int32_t)t && (t == 0 || starts[i] != starts[i - 1]))
            return zr_fail(model->log, ZR_ERR_ARGUMENT,
                           "%s of position %zu of sequence %zu is %d; it must be the position, or "
                           "the value of the previous position",
                           input->name, t, i / batch->seq, (int)starts[i]);
    }
    return ZR_OK;
}

static zr_status_t check_input(const zr_model_t *model, size_t index,
                               const zr_host_batch_t *batch) {
    const zr_input_desc_t *input = &model->options.inputs[index];
    const void *values = batch->inputs[index];
    if (values == NULL)
        return zr_fail(model->log, ZR_ERR_ARGUMENT, "the micro-batch has no input \"%s\"",
                       input->name);
    if (zr_device_info(model->device)->stores_nothing)
        return ZR_OK; /* nor does it look at any */
    ZR_TRY(check_values(model, input, values, batch->n_sequences * batch->seq));
    return check_starts(model, input, values, batch);
}

zr_status_t zr_flight_check(const zr_model_t *model, const zr_host_batch_t *batch) {
    const zr_model_options_t *options = &model->options;
    size_t b = batch->n_sequences, t = batch->seq;
    size_t most = options->max_seq != 0 ? options->max_seq : INT32_MAX;
    if (b == 0 || t == 0 || t > most)
        return zr_fail(model->log, ZR_ERR_ARGUMENT, "a batch of %s of %s; the model takes 1 to %s",
                       zr_count_text(b, "sequence").text, zr_count_text(t, "token").text,
                       zr_count_text(most, "token").text);
    if (b > INT32_MAX / t)
        return zr_fail(model->log, ZR_ERR_ARGUMENT, "a batch of %s of %s; at most %s are allowed",
                       zr_count_text(b, "sequence").text, zr_count_text(t, "token").text,
                       zr_count_text((uint64_t)INT32_MAX, "token").text);
    for (size_t i = 0; i < options->n_inputs; i++)
        ZR_TRY(check_input(model, i, batch));
    if (!(batch->n_targets >= 0 && isfinite(batch->n_targets)))
        return zr_fail(model->log, ZR_ERR_ARGUMENT,
                       "n_targets of a micro-batch is %g; it must be 0, or a positive number",
                       batch->n_targets);
    return ZR_OK;
}

/* What the sum over the rows is multiplied by; without targets, that is 0. */
static double loss_scale(const zr_model_t *model, const zr_host_batch_t *batch) {
    size_t rows = batch->n_sequences * batch->seq, n_ignored = 0;
    if (batch->n_targets > 0)
        return 1.0 / batch->n_targets;
    for (size_t k = 0; k < model->options.n_inputs; k++) {
        const zr_input_desc_t *input = &model->options.inputs[k];
        const int32_t *values = batch->inputs[k];
        for (size_t i = 0; input->ignored < 0 && i < rows; i++)
            n_ignored += is_ignored(input, values[i]);
    }
    return n_ignored < rows ? 1.0 / (double)(rows - n_ignored) : 0.0;
}

static zr_status_t allocate(zr_model_t *model, zr_tier_t tier, zr_tag_t tag, size_t size_bytes,
                            void **field) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = tier,
                                       .tag = tag,
                                       .lifetime = ZR_LIFETIME_MICRO_BATCH,
                                       .name = "tokens",
                                       .stream = tier == ZR_TIER_DEVICE ? model->stream : NULL};
    return zr_allocate(model->allocator, &request, field);
}

static zr_status_t upload(zr_model_t *model, zr_flight_t *flight, size_t index, char *staged,
                          const void *values) {
    size_t size_bytes = flight->batch.rows * model->options.inputs[index].elem_bytes;
    if (!zr_device_info(model->device)->stores_nothing)
        memcpy(staged, values, size_bytes);
    return zr_copy_async(model->stream, flight->inputs[index], staged, size_bytes,
                         ZR_COPY_HOST_TO_DEVICE);
}

/* Inputs go by way of host memory of our own, which the allocator keeps until the copy is done. It
   is that of the largest micro-batch: what a late device copies from has no place in a plan of
   memory, and finds the same room in every step if its size is always the same. */
zr_status_t zr_flight_begin(zr_model_t *model, zr_flight_t *flight, const zr_host_batch_t *batch) {
    const zr_model_options_t *options = &model->options;
    size_t rows = batch->n_sequences * batch->seq, staging_bytes = 0, offset_bytes = 0;
    size_t most = options->activations.most_rows > rows ? options->activations.most_rows : rows;
    flight->has_begun = true;
    flight->batch = (zr_batch_t){.n_sequences = batch->n_sequences,
                                 .seq = batch->seq,
                                 .rows = rows,
                                 .loss_scale = loss_scale(model, batch)};
    for (size_t i = 0; i < options->n_inputs; i++) {
        ZR_TRY(allocate(model, ZR_TIER_DEVICE, ZR_TAG_DATA, rows * options->inputs[i].elem_bytes,
                        &flight->inputs[i]));
        flight->batch.inputs[i] = flight->inputs[i];
        staging_bytes += most * options->inputs[i].elem_bytes;
    }
    if (staging_bytes == 0)
        return ZR_OK;
    ZR_TRY(allocate(model, ZR_TIER_HOST, ZR_TAG_STAGING, staging_bytes, &flight->staging));
    for (size_t i = 0; i < options->n_inputs; i++) {
        ZR_TRY(upload(model, flight, i, (char *)flight->staging + offset_bytes, batch->inputs[i]));
        offset_bytes += rows * options->inputs[i].elem_bytes;
    }
    zr_free(model->allocator, &flight->staging, model->stream);
    return ZR_OK;
}

void zr_flight_end(zr_model_t *model, zr_flight_t *flight) {
    if (!flight->has_begun)
        return;
    for (size_t i = 0; i < ZR_MAX_INPUTS; i++)
        zr_free(model->allocator, &flight->inputs[i], model->stream);
    zr_free(model->allocator, &flight->staging, model->stream);
    zr_free(model->allocator, &flight->gradient, model->stream);
    for (size_t i = 0; i < model->n_blocks + model->n_tensors; i++)
        zr_free(model->allocator, &flight->x[i], model->stream);
    flight->has_begun = false;
}

/* ---- losses ---------------------------------------------------------------------------------- */

static zr_status_t clear_loss(zr_model_t *model, size_t index) {
    static const double zero = 0.0; /* lives until the copy is done, whenever that is */
    return zr_copy_async(model->stream, &model->loss[index], &zero, sizeof(zero),
                         ZR_COPY_HOST_TO_DEVICE);
}

zr_status_t zr_losses_prepare(zr_model_t *model) {
    zr_allocation_request_t request = {.size_bytes = 3 * sizeof(double),
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_OTHER,
                                       .lifetime = ZR_LIFETIME_PERSISTENT,
                                       .name = "losses",
                                       .stream = model->stream};
    if (model->loss != NULL)
        return ZR_OK;
    ZR_TRY(zr_allocate(model->allocator, &request, (void **)&model->loss));
    for (size_t i = 0; i < 3; i++)
        ZR_TRY(clear_loss(model, i));
    return ZR_OK;
}

zr_status_t zr_losses_read(zr_model_t *model, size_t index, double *sum_p) {
    double sum = 0.0;
    ZR_TRY(zr_copy_async(model->stream, &sum, &model->loss[index], sizeof(sum),
                         ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(model->stream));
    ZR_TRY(clear_loss(model, index));
    *sum_p = sum;
    return ZR_OK;
}

zr_status_t zr_model_drop_step(zr_model_t *model) {
    ZR_TRY(zr_runtime_drop_step(model->runtime));
    if (model->n_losses == 0)
        return ZR_OK;
    model->n_losses = 0;
    return clear_loss(model, 0);
}

zr_status_t zr_model_take_loss(zr_model_t *model, double *loss_p) {
    double sum;
    if (model->n_losses == 0)
        return zr_fail(model->log, ZR_ERR_STATE,
                       "zr_model_take_loss without a micro-batch since the last one");
    zr_trace_phase(zr_device_trace(model->device), zr_device_now(model->device), "loss");
    ZR_TRY(zr_losses_read(model, 0, &sum));
    *loss_p = sum / (double)model->n_losses;
    model->n_losses = 0;
    return ZR_OK;
}
