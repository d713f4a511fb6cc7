/*
 * See gpt_fixture.h.
 */
#include "tests/ref/gpt_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/one_thing.h"

static void keep_error(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    fixture_t *fixture = context;
    if (level == ZR_LOG_ERROR)
        snprintf(fixture->last_error, sizeof(fixture->last_error), "%s", message);
}

static zr_config_t make_config(const fixture_options_t *options) {
    zr_config_t config = zr_config_default();
    config.dtype = options->dtype;
    config.micro_batch = options->micro_batch;
    config.grad_accum = options->grad_accum;
    config.train_batch = 0;
    config.adamw.lr = options->lr;
    if (options->device_memory_bytes != 0)
        config.device_memory_bytes = options->device_memory_bytes;
    return config;
}

zr_status_t fixture_open(fixture_t *fixture, const fixture_options_t *options) {
    *fixture = (fixture_t){0};
    zr_log_t log = {.sink = keep_error, .context = fixture, .level = ZR_LOG_WARNING, .rank = -1};
    zr_comm_options_t comm_options = zr_comm_options_default();
    comm_options.log = log;
    assert_ok(zr_comm_create_threads(1, &comm_options, &fixture->comm));
    zr_device_options_t device_options = zr_device_options_default();
    device_options.n_threads = options->n_threads;
    device_options.log = log;
    assert_ok(zr_device_open("host", &device_options, &fixture->device));
    zr_config_t config = make_config(options);
    assert_ok(zr_config_resolve(&config, 1, &log));
    assert_ok(zr_runtime_create(&config, fixture->comm, fixture->device, &log, &fixture->runtime));
    zr_status_t status = zr_gpt_create(fixture->runtime, &options->shape, &options->gpt,
                                       &options->activations, &fixture->gpt);
    if (status != ZR_OK)
        return status;
    fixture->n_of_model = fixture->n_tensors = 4 + 12 * options->shape.n_layers;
    if (options->gpt.adapter != NULL)
        fixture->n_tensors += 8 * options->shape.n_layers;
    return zr_model_commit(fixture->gpt);
}

void fixture_close(fixture_t *fixture) {
    zr_model_destroy(&fixture->gpt);
    zr_runtime_destroy(&fixture->runtime);
    zr_device_close(&fixture->device);
    zr_comm_destroy(&fixture->comm);
}

/* The block of a parameter: each layer has 12, and 8 of adapters, the others two. */
static zr_block_t *block_of(fixture_t *fixture, size_t index) {
    if (index >= fixture->n_of_model)
        return zr_model_block(fixture->gpt, 1 + (index - fixture->n_of_model) / 8);
    return zr_model_block(fixture->gpt, index < 2 ? 0 : 1 + (index - 2) / 12);
}

zr_param_t *fixture_param(fixture_t *fixture, size_t index) {
    void *self = zr_block_self(block_of(fixture, index));
    const zr_part_tables_t *embed = self;
    const zr_part_norm_t *norm = self;
    const zr_gpt_layer_t *layer = self;
    if (index < 2)
        return index == 0 ? embed->words : embed->positions;
    const zr_part_linear_t *linear[] = {&layer->attn_in, &layer->attn_out, &layer->mlp_in,
                                        &layer->mlp_out};
    if (index >= fixture->n_of_model) {
        index -= fixture->n_of_model;
        return linear[index / 2 % 4]->added[index % 2];
    }
    if (index + 2 >= fixture->n_of_model)
        return index + 2 == fixture->n_of_model ? norm->weight : norm->bias;
    zr_param_t *params[] = {layer->ln_1.weight,  layer->ln_1.bias,       layer->attn_in.weight,
                            layer->attn_in.bias, layer->attn_out.weight, layer->attn_out.bias,
                            layer->ln_2.weight,  layer->ln_2.bias,       layer->mlp_in.weight,
                            layer->mlp_in.bias,  layer->mlp_out.weight,  layer->mlp_out.bias};
    return params[(index - 2) % 12];
}

zr_unit_t *fixture_unit(fixture_t *fixture, size_t index) {
    return zr_block_unit(block_of(fixture, index));
}

/* ---- tensors ------------------------------------------------------------------------ */

/* Arrays of the right sizes, zeroed. */
static double **fixture_tensors(const fixture_t *fixture) {
    double **tensors = calloc(fixture->n_tensors, sizeof(double *));
    assert_non_null(tensors);
    for (size_t i = 0; i < fixture->n_tensors; i++) {
        tensors[i] =
            calloc(zr_param_n_elems(fixture_param((fixture_t *)fixture, i)), sizeof(double));
        assert_non_null(tensors[i]);
    }
    return tensors;
}

void fixture_free_tensors(const fixture_t *fixture, double **tensors) {
    for (size_t i = 0; i < fixture->n_tensors; i++)
        free(tensors[i]);
    free(tensors);
}

double **fixture_read_params(fixture_t *fixture) {
    double **tensors = fixture_tensors(fixture);
    bool bf16 = zr_runtime_config(fixture->runtime)->dtype == ZR_DTYPE_BF16;
    for (size_t i = 0; i < fixture->n_tensors; i++) {
        zr_param_t *param = fixture_param(fixture, i);
        size_t n = zr_param_n_elems(param);
        float *values = malloc(n * sizeof(float));
        assert_non_null(values);
        assert_ok(zr_param_read(param, 0, n, values));
        for (size_t j = 0; j < n; j++)
            tensors[i][j] = bf16 ? zr_bf16_to_f32(zr_bf16_from_f32(values[j])) : values[j];
        free(values);
    }
    return tensors;
}

static void read_gradient(fixture_t *fixture, zr_param_t *param, double *values) {
    size_t n = zr_param_n_elems(param);
    void *gradient;
    bool accumulate;
    assert_ok(zr_param_grad(param, &gradient, &accumulate));
    assert_true(accumulate); /* the model has written it */
    zr_dtype_t dtype = zr_runtime_config(fixture->runtime)->dtype;
    void *copy = malloc(n * zr_dtype_size(dtype));
    assert_non_null(copy);
    zr_stream_t *stream = zr_runtime_stream(fixture->runtime);
    assert_ok(
        zr_copy_async(stream, copy, gradient, n * zr_dtype_size(dtype), ZR_COPY_DEVICE_TO_HOST));
    assert_ok(zr_stream_synchronize(stream));
    for (size_t j = 0; j < n; j++)
        values[j] =
            dtype == ZR_DTYPE_F32 ? ((float *)copy)[j] : zr_bf16_to_f32(((zr_bf16_t *)copy)[j]);
    free(copy);
}

double **fixture_read_gradients(fixture_t *fixture) {
    double **tensors = fixture_tensors(fixture);
    assert_ok(zr_runtime_begin_micro_batch(fixture->runtime));
    for (size_t i = 0; i < fixture->n_tensors; i++) {
        zr_param_t *param = fixture_param(fixture, i);
        zr_unit_t *unit = fixture_unit(fixture, i);
        if (zr_param_is_frozen(param))
            continue;
        assert_ok(zr_unit_acquire(unit, ZR_GRADIENTS));
        read_gradient(fixture, param, tensors[i]);
        assert_ok(zr_unit_release(unit));
    }
    return tensors;
}

void fixture_tokens(size_t vocab, uint64_t seed, size_t n, int32_t *tokens, int32_t *targets) {
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    for (size_t i = 0; i <= n; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        int32_t token = (int32_t)((state >> 33) % vocab);
        if (i < n)
            tokens[i] = token;
        if (i > 0)
            targets[i - 1] = token;
    }
}
