/*
 * The model against finite differences of its own loss, and against itself: with recomputation, in
 * bf16, with its micro-batch in two, and with frozen parameters; with adapters, too. That its loss
 * and gradients are GPT-2's, transformers has said (test_decoder_transformers.c).
 */
#include "tests/ref/gpt_batch.h"
#include "tests/ref/gpt_fixture.h"
#include "tests/ref/low_rank.h"

/* ThreadSanitizer has nothing to see where there is one thread. */
#if defined(__SANITIZE_THREAD__)
enum { IS_WATCHING_THREADS = true };
#else
enum { IS_WATCHING_THREADS = false };
#endif

/* One learning step away from the initial values, so that biases and norms are not trivial. */
static fixture_options_t options_of(const size_t shape[5], zr_dtype_t dtype, int n_threads) {
    return (fixture_options_t){.shape = {shape[0], shape[1], shape[2], shape[3], shape[4]},
                               .gpt = {.seed = 7, .weight_decay = 0.1},
                               .dtype = dtype,
                               .micro_batch = 1,
                               .grad_accum = 2,
                               .n_threads = n_threads,
                               .lr = 0.02};
}

static void take_step(fixture_t *fixture, size_t vocab) {
    int32_t tokens[3], targets[3];
    for (uint64_t i = 0; i < 2; i++) {
        fixture_tokens(vocab, 100 + i, 3, tokens, targets);
        assert_ok(gpt_train(fixture->gpt, tokens, targets, 1, 3));
    }
    assert_ok(zr_runtime_step(fixture->runtime, NULL));
    double loss;
    assert_ok(zr_model_take_loss(fixture->gpt, &loss));
}

static void compare(fixture_t *fixture, double **gradients, double **expected, double tolerance) {
    for (size_t i = 0; i < fixture->n_tensors; i++) {
        size_t n = zr_param_n_elems(fixture_param(fixture, i));
        double difference = 0.0, norm = 0.0;
        for (size_t j = 0; j < n; j++) {
            difference += pow(gradients[i][j] - expected[i][j], 2);
            norm += pow(expected[i][j], 2);
        }
        if (!(sqrt(difference) <= tolerance * sqrt(norm)))
            fail_msg("%s: gradient off by %.3g of %.3g (relative %.3g, tolerated %.3g)",
                     zr_param_name(fixture_param(fixture, i)), sqrt(difference), sqrt(norm),
                     sqrt(difference / norm), tolerance);
    }
}

/* ---- finite differences --------------------------------------------------------------------- */

/* Move a parameter along a direction. At stage 0 on the host its memory can be written. */
static void move_param(fixture_t *fixture, size_t index, const double *start,
                       const double *direction, double distance) {
    zr_param_t *param = fixture_param(fixture, index);
    assert_ok(zr_unit_acquire(fixture_unit(fixture, index), ZR_FORWARD));
    float *data = (float *)(uintptr_t)zr_param_data(param);
    for (size_t j = 0; j < zr_param_n_elems(param); j++)
        data[j] = (float)(start[j] + distance * direction[j]);
    assert_ok(zr_unit_release(fixture_unit(fixture, index)));
}

/* Loss with a parameter moved along a direction. */
static double moved_loss(fixture_t *fixture, size_t index, const double *start,
                         const double *direction, double distance) {
    int32_t tokens[24], targets[24];
    double loss;
    fixture_tokens(23, 4, 24, tokens, targets);
    move_param(fixture, index, start, direction, distance);
    assert_ok(gpt_evaluate(fixture->gpt, tokens, targets, 3, 8, &loss));
    return loss;
}

/* Along its own normalised gradient, each parameter changes the loss by the gradient's norm. What
 * is evaluated is a model of its own, which is between steps. */
static void check_differences(const fixture_options_t *options) {
    fixture_t trained, fixture;
    assert_ok(fixture_open(&trained, options));
    assert_ok(fixture_open(&fixture, options));
    take_step(&trained, 23);
    take_step(&fixture, 23);
    int32_t tokens[24], targets[24];
    fixture_tokens(23, 4, 24, tokens, targets);
    double **params = fixture_read_params(&fixture);
    assert_ok(gpt_train(trained.gpt, tokens, targets, 3, 8));
    double **gradients = fixture_read_gradients(&trained);
    const double h = 5e-3;
    for (size_t i = 0; i < fixture.n_tensors; i++) {
        size_t n = zr_param_n_elems(fixture_param(&fixture, i));
        double norm = 0.0;
        for (size_t j = 0; j < n; j++)
            norm += gradients[i][j] * gradients[i][j];
        norm = sqrt(norm);
        for (size_t j = 0; j < n; j++)
            gradients[i][j] /= norm;
        const double *start = params[i], *direction = gradients[i];
        double difference = (8.0 * (moved_loss(&fixture, i, start, direction, h) -
                                    moved_loss(&fixture, i, start, direction, -h)) -
                             (moved_loss(&fixture, i, start, direction, 2.0 * h) -
                              moved_loss(&fixture, i, start, direction, -2.0 * h))) /
                            (12.0 * h);
        move_param(&fixture, i, start, direction, 0.0);
        if (fabs(difference - norm) > 1e-3 * norm + 5e-5)
            fail_msg("%s: gradient of norm %.6g, finite difference %.6g",
                     zr_param_name(fixture_param(&fixture, i)), norm, difference);
    }
    fixture_free_tensors(&fixture, params);
    fixture_free_tensors(&fixture, gradients);
    fixture_close(&trained);
    fixture_close(&fixture);
}

TEST(test_finite_differences) {
    static const size_t shape[] = {2, 16, 2, 8, 23};
    fixture_options_t options = options_of(shape, ZR_DTYPE_F32, 2);
    check_differences(&options);
    options.gpt.adapter = low_rank_adapter();
    check_differences(&options);
}

/* ---- against itself ------------------------------------------------------------------------- */

/* Of four sequences, as they come or in two micro-batches. */
static double **gradients_of(const fixture_options_t *options, bool is_halved, fixture_t *fixture,
                             double *loss_p) {
    assert_ok(fixture_open(fixture, options));
    int32_t tokens[60], targets[60];
    fixture_tokens(options->shape.vocab, 6, 60, tokens, targets);
    for (size_t i = 0; i < (is_halved ? 2 : 1); i++)
        assert_ok(
            gpt_train(fixture->gpt, tokens + 30 * i, targets + 30 * i, is_halved ? 2 : 4, 15));
    assert_ok(zr_model_take_loss(fixture->gpt, loss_p));
    return fixture_read_gradients(fixture);
}

/* The same bits for every parameter that `other` trains. */
static void assert_same_gradients(const fixture_options_t *options,
                                  const fixture_options_t *other_options) {
    fixture_t fixture, other;
    double loss, other_loss;
    double **gradients = gradients_of(options, false, &fixture, &loss);
    double **others = gradients_of(other_options, false, &other, &other_loss);
    assert_memory_equal(&loss, &other_loss, sizeof(loss));
    for (size_t i = 0; i < fixture.n_tensors; i++) {
        zr_param_t *param = fixture_param(&other, i);
        if (!zr_param_is_frozen(param) &&
            memcmp(gradients[i], others[i], zr_param_n_elems(param) * sizeof(double)) != 0)
            fail_msg("%s: the gradients differ", zr_param_name(param));
    }
    fixture_free_tensors(&fixture, gradients);
    fixture_free_tensors(&other, others);
    fixture_close(&fixture);
    fixture_close(&other);
}

static const size_t middle_shape[] = {3, 32, 4, 16, 301};

/* Two micro-batches add up to what one of both has twice; bf16 rounds. */
TEST(test_sums_and_dtypes) {
    fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 2), halved = options;
    fixture_t fixture, other;
    double loss, other_loss;
    options.gpt.adapter = halved.gpt.adapter = low_rank_adapter();
    halved.grad_accum = 3;
    double **gradients = gradients_of(&options, false, &fixture, &loss);
    double **sums = gradients_of(&halved, true, &other, &other_loss);
    for (size_t i = 0; i < fixture.n_tensors; i++)
        for (size_t j = 0; j < zr_param_n_elems(fixture_param(&other, i)); j++)
            sums[i][j] /= 2.0;
    compare(&other, sums, gradients, 1e-5);
    fixture_free_tensors(&other, sums);
    fixture_close(&other);
    options.dtype = ZR_DTYPE_BF16;
    double **rounded = gradients_of(&options, false, &other, &other_loss);
    compare(&other, rounded, gradients, 2e-2);
    assert_true(fabs(other_loss - loss) < 1e-3 * loss);
    fixture_free_tensors(&fixture, gradients);
    fixture_free_tensors(&other, rounded);
    fixture_close(&fixture);
    fixture_close(&other);
}

TEST(test_recompute) {
    for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++) {
        for (int n_threads = 1; n_threads <= 2; n_threads++) {
            fixture_options_t options = options_of(middle_shape, (zr_dtype_t)dtype, n_threads);
            fixture_options_t other = options;
            for (int i = ZR_RECOMPUTE_UNIT; i <= ZR_RECOMPUTE_NEVER; i++) {
                options.gpt.adapter = other.gpt.adapter = NULL;
                other.activations.recompute = (zr_recompute_t)i;
                assert_same_gradients(&options, &other);
                options.gpt.adapter = other.gpt.adapter = low_rank_adapter();
                assert_same_gradients(&options, &other);
            }
        }
    }
}

TEST(test_freeze) {
    static const char *const lists[] = {"wte",
                                        "wpe,h.0",
                                        "wte,wpe",
                                        "wte,wpe,h.0.mlp,h.0.ln_1",
                                        "wte,wpe,h.0,h.1",
                                        "h.2.attn.c_attn.bias,ln_f",
                                        "wte,wpe,h.0,h.1,h.2",
                                        "h.1.mlp.c_fc.weight"};
    for (size_t i = 0; i < N_OF(lists); i++) {
        fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 1);
        fixture_options_t other = options;
        other.gpt.freeze = lists[i];
        assert_same_gradients(&options, &other);
        other.activations.recompute = i % 2 == 0 ? ZR_RECOMPUTE_UNIT : ZR_RECOMPUTE_NEVER;
        assert_same_gradients(&options, &other);
        options.gpt.adapter = other.gpt.adapter = low_rank_adapter();
        assert_same_gradients(&options, &other);
    }
}

/* A step changes what is trained and nothing else. */
TEST(test_frozen_stay) {
    fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 1);
    options.gpt.freeze = "wte,h.1,h.0.ln_2.bias";
    fixture_t fixture;
    assert_ok(fixture_open(&fixture, &options));
    double **before = fixture_read_params(&fixture);
    take_step(&fixture, options.shape.vocab);
    double **after = fixture_read_params(&fixture);
    for (size_t i = 0; i < fixture.n_tensors; i++) {
        zr_param_t *param = fixture_param(&fixture, i);
        const char *name = zr_param_name(param);
        bool frozen = strcmp(name, "wte.weight") == 0 || strncmp(name, "h.1.", 4) == 0 ||
                      strcmp(name, "h.0.ln_2.bias") == 0;
        bool same = memcmp(before[i], after[i], zr_param_n_elems(param) * sizeof(double)) == 0;
        assert_int_equal(zr_param_is_frozen(param), frozen);
        if (same != frozen)
            fail_msg("%s is %s", name, same ? "not trained" : "trained, though frozen");
    }
    fixture_free_tensors(&fixture, before);
    fixture_free_tensors(&fixture, after);
    fixture_close(&fixture);
}

/* What a layer's weights in an encoding are decoded to, written into a model without. */
static void write_decoded(fixture_t *fixture, const zr_encoding_t *encoding) {
    for (size_t i = 0; i < fixture->n_tensors; i++) {
        zr_param_t *param = fixture_param(fixture, i);
        const char *name = zr_param_name(param), *end = strstr(name, ".weight");
        size_t n = zr_param_n_elems(param), dims[4];
        bool is_of_layer = strncmp(name, "h.", 2) == 0 && end != NULL && end[7] == '\0';
        if (!is_of_layer || zr_param_dims(param, dims) != 2 || zr_lora_is_factor(name))
            continue;
        float *values = malloc(n * sizeof(*values));
        void *blocks = malloc(zr_encoding_bytes(encoding, n));
        assert_true(values != NULL && blocks != NULL);
        assert_ok(zr_param_read(param, 0, n, values));
        encoding->encode(encoding, values, n, blocks);
        encoding->decode(encoding, blocks, n, values);
        assert_ok(zr_param_write(param, 0, n, values, 0));
        free(values);
        free(blocks);
    }
}

/* Weights in an encoding are those that they are decoded to, and are not written. */
TEST(test_encoded_weights) {
    static const zr_encoding_t *const encodings[] = {&zr_encoding_bf16, &zr_encoding_int8,
                                                     &zr_encoding_nf4};
    for (size_t i = 0; i < N_OF(encodings); i++) {
        fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 1);
        options.gpt.adapter = low_rank_adapter();
        options.gpt.trains_added = true;
        fixture_options_t encoded_options = options;
        encoded_options.gpt.encoding = encodings[i];
        fixture_t plain, encoded;
        double loss, encoded_loss;
        assert_ok(fixture_open(&plain, &options));
        assert_ok(fixture_open(&encoded, &encoded_options));
        write_decoded(&plain, encodings[i]);
        for (int step = 0; step < 3; step++) {
            int32_t tokens[30], targets[30];
            for (uint64_t k = 0; k < 2; k++) {
                fixture_tokens(301, 10 * (uint64_t)step + k, 30, tokens, targets);
                assert_ok(gpt_train(plain.gpt, tokens, targets, 2, 15));
                assert_ok(gpt_train(encoded.gpt, tokens, targets, 2, 15));
            }
            assert_ok(zr_model_take_loss(plain.gpt, &loss));
            assert_ok(zr_model_take_loss(encoded.gpt, &encoded_loss));
            assert_true(loss == encoded_loss);
            assert_ok(zr_runtime_step(plain.runtime, NULL));
            assert_ok(zr_runtime_step(encoded.runtime, NULL));
        }
        double **a = fixture_read_params(&plain), **b = fixture_read_params(&encoded);
        for (size_t k = 0; k < plain.n_tensors; k++)
            assert_memory_equal(a[k], b[k],
                                zr_param_n_elems(fixture_param(&plain, k)) * sizeof(double));
        zr_param_t *param = zr_runtime_param(encoded.runtime, "h.1.mlp.c_fc.weight");
        float part[7], whole[200];
        assert_ok(zr_param_read(param, 0, 200, whole));
        assert_ok(zr_param_read(param, 60, 7, part));
        assert_memory_equal(part, whole + 60, sizeof(part));
        assert_int_equal(zr_param_write(param, 0, 7, part, 0), ZR_ERR_UNSUPPORTED);
        fixture_free_tensors(&plain, a);
        fixture_free_tensors(&encoded, b);
        fixture_close(&plain);
        fixture_close(&encoded);
    }
}

/* Evaluation gives the loss that training gives, and changes nothing. */
TEST(test_evaluate) {
    fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 2);
    fixture_t fixture;
    assert_ok(fixture_open(&fixture, &options));
    int32_t tokens[30], targets[30];
    fixture_tokens(301, 8, 30, tokens, targets);
    double loss, again, trained;
    uint64_t before, after;
    assert_ok(zr_runtime_weights_xxh3(fixture.runtime, &before));
    assert_ok(gpt_evaluate(fixture.gpt, tokens, targets, 2, 15, &loss));
    assert_ok(gpt_evaluate(fixture.gpt, tokens, targets, 2, 15, &again));
    assert_ok(zr_runtime_weights_xxh3(fixture.runtime, &after));
    assert_ok(gpt_train(fixture.gpt, tokens, targets, 2, 15));
    assert_ok(zr_model_take_loss(fixture.gpt, &trained));
    assert_true(loss == again && loss == trained && before == after);
    assert_true(fabs(loss - log(301.0)) < 0.1); /* it knows nothing yet */
    fixture_close(&fixture);
}

/* ---- memory --------------------------------------------------------------------------------- */

static zr_tier_statistics_t device_statistics(const fixture_t *fixture) {
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(zr_runtime_allocator(fixture->runtime), ZR_TIER_DEVICE, &statistics);
    return statistics;
}

static void assert_same_live(const zr_tier_statistics_t *a, const zr_tier_statistics_t *b) {
    assert_int_equal(a->by_tag[ZR_TAG_ACTIVATIONS].live, b->by_tag[ZR_TAG_ACTIVATIONS].live);
    assert_int_equal(a->by_tag[ZR_TAG_WORKSPACE].live, b->by_tag[ZR_TAG_WORKSPACE].live);
    assert_int_equal(a->by_tag[ZR_TAG_DATA].live, b->by_tag[ZR_TAG_DATA].live);
}

static size_t peak_activations(bool recompute, size_t n_layers) {
    fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 1);
    options.shape.n_layers = n_layers;
    options.activations.recompute = recompute;
    fixture_t fixture;
    assert_ok(fixture_open(&fixture, &options));
    zr_tier_statistics_t before = device_statistics(&fixture);
    int32_t tokens[64], targets[64];
    fixture_tokens(301, 6, 64, tokens, targets);
    assert_ok(gpt_train(fixture.gpt, tokens, targets, 4, 16));
    zr_tier_statistics_t after = device_statistics(&fixture);
    assert_same_live(&before, &after);
    fixture_close(&fixture);
    return after.by_tag[ZR_TAG_ACTIVATIONS].peak;
}

/* A layer more costs its input alone with recomputation, ten times that and a little without. */
TEST(test_memory) {
    size_t x_bytes = 64 * 32 * sizeof(float), log_sum_bytes = 64 * 4 * sizeof(float);
    assert_int_equal(peak_activations(true, 5) - peak_activations(true, 4), x_bytes);
    assert_int_equal(peak_activations(false, 5) - peak_activations(false, 4),
                     10 * x_bytes + log_sum_bytes);
}

/* Whatever does not fit, nothing of the micro-batch stays behind. */
TEST(test_out_of_memory) {
    if (IS_WATCHING_THREADS)
        skip(); /* there is one */
    fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 1);
    options.shape.channels = 128;
    fixture_t fixture;
    assert_ok(fixture_open(&fixture, &options));
    size_t states_bytes = device_statistics(&fixture).reserved.live;
    fixture_close(&fixture);

    static int32_t tokens[3840], targets[3840];
    fixture_tokens(301, 6, 3840, tokens, targets);
    zr_status_t status = ZR_ERR_BUDGET;
    size_t n_failures = 0;
    while (status != ZR_OK) {
        options.device_memory_bytes = states_bytes + (n_failures << 21);
        assert_ok(fixture_open(&fixture, &options));
        zr_tier_statistics_t before = device_statistics(&fixture);
        status = gpt_train(fixture.gpt, tokens, targets, 240, 16);
        zr_tier_statistics_t after = device_statistics(&fixture);
        assert_same_live(&before, &after);
        fixture_close(&fixture);
        if (status != ZR_OK) {
            assert_int_equal(status, ZR_ERR_BUDGET);
            n_failures++;
        }
    }
    assert_true(n_failures >= 5);
}

/* ---- refusals ------------------------------------------------------------------------------- */

TEST(test_refusals) {
    fixture_options_t options = options_of(middle_shape, ZR_DTYPE_F32, 1);
    fixture_t fixture;
    options.gpt.freeze = "wte,h.7,ln_f";
    assert_int_equal(fixture_open(&fixture, &options), ZR_ERR_ARGUMENT);
    assert_has(fixture.last_error, "\"h.7\"");
    fixture_close(&fixture);
    options.gpt.freeze = "h"; /* the part before any dot is fine, half a word is not */
    assert_ok(fixture_open(&fixture, &options));
    fixture_close(&fixture);
    static const char *const wrong[] = {"w", "", ",", "wte,", ",wte", "wte,,wpe"};
    for (size_t i = 0; i < N_OF(wrong); i++) {
        options.gpt.freeze = wrong[i];
        assert_int_equal(fixture_open(&fixture, &options), ZR_ERR_ARGUMENT);
        fixture_close(&fixture);
    }
    options.gpt.freeze = NULL;
    options.gpt.encoding = &zr_encoding_bf16;
    assert_int_equal(fixture_open(&fixture, &options), ZR_ERR_UNSUPPORTED);
    assert_string_equal(fixture.last_error,
                        "parameter \"h.0.attn.c_attn.weight\": unit \"h.0\" cannot hold bf16: its "
                        "trained parameters are fp32, and blocks have at most 256 elements");
    fixture_close(&fixture);
    options.gpt.encoding = &zr_encoding_fp32;

    assert_ok(fixture_open(&fixture, &options));
    int32_t tokens[17] = {0}, targets[17] = {0};
    double loss;
    assert_int_equal(zr_model_take_loss(fixture.gpt, &loss), ZR_ERR_STATE);
    assert_int_equal(gpt_train(fixture.gpt, tokens, targets, 1, 17), ZR_ERR_ARGUMENT);
    assert_has(fixture.last_error, "17 tokens");
    assert_int_equal(gpt_train(fixture.gpt, tokens, targets, 0, 4), ZR_ERR_ARGUMENT);
    assert_int_equal(gpt_evaluate(fixture.gpt, tokens, targets, 1, 0, &loss), ZR_ERR_ARGUMENT);
    tokens[2] = 301;
    assert_int_equal(gpt_train(fixture.gpt, tokens, targets, 1, 4), ZR_ERR_ARGUMENT);
    assert_has(fixture.last_error, "token 2 is 301");
    tokens[2] = 0;
    targets[3] = -1;
    assert_int_equal(gpt_train(fixture.gpt, tokens, targets, 1, 4), ZR_ERR_ARGUMENT);
    assert_has(fixture.last_error, "target 3 is -1");
    targets[3] = 0;
    assert_ok(gpt_train(fixture.gpt, tokens, targets, 1, 4));
    fixture_close(&fixture);
}
