/*
 * Twenty AdamW steps of a small model against PyTorch: the losses agree to 1e-4. The reference
 * and how it was made: gpt_torch_reference.json, make_gpt_torch_reference.py. The latter runs this
 * with a new one, which ZR_GPT_TORCH_REFERENCE names.
 */
#include <jansson.h>

#include "tests/ref/gpt_fixture.h"

static json_t *reference;

static double number_at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("the reference has no number \"%s\"", key);
    return json_number_value(value);
}

static size_t count_at(const json_t *object, const char *key) {
    return (size_t)number_at(object, key);
}

static int set_up(void **state) {
    const char *made_now = getenv("ZR_GPT_TORCH_REFERENCE");
    const char *path = made_now != NULL ? made_now : GPT_TORCH_REFERENCE;
    json_error_t error;
    reference = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (reference == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return 0;
}

static int tear_down(void **state) {
    json_decref(reference);
    return 0;
}

static fixture_options_t options_of_reference(void) {
    const json_t *shape = json_object_get(reference, "shape");
    return (fixture_options_t){.shape = {.n_layers = count_at(shape, "layers"),
                                         .channels = count_at(shape, "channels"),
                                         .heads = count_at(shape, "heads"),
                                         .seq = count_at(shape, "seq"),
                                         .vocab = count_at(shape, "vocab")},
                               .gpt = {.seed = count_at(reference, "seed"),
                                       .weight_decay = number_at(reference, "weight_decay")},
                               .dtype = ZR_DTYPE_F32,
                               .micro_batch = count_at(reference, "batch"),
                               .grad_accum = 1,
                               .n_threads = 2,
                               .lr = number_at(reference, "lr"),
                               .beta1 = number_at(reference, "beta1"),
                               .beta2 = number_at(reference, "beta2"),
                               .epsilon = number_at(reference, "epsilon")};
}

/* Each token follows from the one before: the rule of the script. */
static void make_batch(const fixture_options_t *options, size_t step, int32_t *tokens,
                       int32_t *targets) {
    size_t t = options->shape.seq, vocab = options->shape.vocab;
    for (size_t b = 0; b < options->micro_batch; b++) {
        size_t token = (37 * step + 11 * b) % vocab;
        for (size_t i = 0; i < t; i++) {
            tokens[b * t + i] = (int32_t)token;
            token = (3 * token + 5) % vocab;
            targets[b * t + i] = (int32_t)token;
        }
    }
}

/* The two generators of initial weights give the same bits. */
TEST(test_initial_values) {
    fixture_options_t options = options_of_reference();
    fixture_t fixture;
    assert_ok(fixture_open(&fixture, &options));
    const json_t *first_values = json_object_get(reference, "first_values");
    size_t n_compared = 0;
    for (size_t i = 0; i < fixture.n_tensors; i++) {
        zr_param_t *param = fixture_param(&fixture, i);
        const json_t *expected = json_object_get(first_values, zr_param_name(param));
        float values[3];
        if (expected == NULL)
            continue;
        assert_ok(zr_param_read(param, 0, 3, values));
        for (size_t j = 0; j < 3; j++) {
            if (values[j] != (float)json_number_value(json_array_get(expected, j)))
                fail_msg("%s[%zu] starts at %.9g", zr_param_name(param), j, values[j]);
        }
        n_compared++;
    }
    assert_int_equal(n_compared, 2 + 4 * options.shape.n_layers);
    fixture_close(&fixture);
}

static void check_losses(bool recompute, int n_threads) {
    fixture_options_t options = options_of_reference();
    options.activations.recompute = recompute;
    options.n_threads = n_threads;
    fixture_t fixture;
    assert_ok(fixture_open(&fixture, &options));
    size_t n = options.micro_batch * options.shape.seq;
    int32_t *tokens = malloc(2 * n * sizeof(int32_t));
    assert_non_null(tokens);
    const json_t *losses = json_object_get(reference, "losses");
    assert_int_equal(json_array_size(losses), 20);
    for (size_t step = 0; step < json_array_size(losses); step++) {
        double expected = json_number_value(json_array_get(losses, step)), loss;
        make_batch(&options, step, tokens, tokens + n);
        assert_ok(zr_gpt_train_micro_batch(fixture.gpt, tokens, tokens + n, options.micro_batch,
                                           options.shape.seq));
        assert_ok(zr_model_take_loss(fixture.gpt, &loss));
        assert_ok(zr_runtime_step(fixture.runtime, NULL));
        if (!(fabs(loss - expected) <= 1e-4))
            fail_msg("step %zu: loss %.7f, PyTorch's %.7f", step, loss, expected);
    }
    free(tokens);
    fixture_close(&fixture);
}

TEST(test_losses) {
    check_losses(false, 1);
    check_losses(true, 2);
}

/* The reference itself shows learning, so that agreeing with it means something. */
TEST(test_reference_learns) {
    const json_t *losses = json_object_get(reference, "losses");
    double first = json_number_value(json_array_get(losses, 0));
    double last = json_number_value(json_array_get(losses, 19));
    assert_true(fabs(first - log(257.0)) < 0.1);
    assert_true(last < first - 0.5);
}

const test_group_t test_group = {set_up, tear_down};
