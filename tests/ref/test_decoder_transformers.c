/*
 * Small decoders of each type against transformers: the losses of twenty AdamW steps agree to 1e-4,
 * each parameter's gradient to 1e-5; and stages and recomputation end in the same bits. The
 * reference and how it was made: decoder_transformers_reference.json,
 * make_decoder_transformers_reference.py. The latter runs this with a new one, which
 * ZR_DECODER_REFERENCE names.
 */
#include <jansson.h>

#include "examples/models/decoder/decoder.h"
#include "tests/common/test.h"

static json_t *reference;

static const json_t *member(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("the reference has no \"%s\"", key);
    return value;
}

static double number_at(const json_t *object, const char *key) {
    return json_number_value(member(object, key));
}

static size_t count_at(const json_t *object, const char *key) {
    return (size_t)number_at(object, key);
}

static bool flag_at(const json_t *object, const char *key) {
    return json_is_true(member(object, key));
}

static int set_up(void **state) {
    const char *made_now = getenv("ZR_DECODER_REFERENCE");
    const char *path = made_now != NULL ? made_now : DECODER_REFERENCE;
    json_error_t error;
    (void)state;
    reference = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (reference == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    json_decref(reference);
    return 0;
}

const test_group_t test_group = {set_up, tear_down};

/* ---- a model of the reference ---------------------------------------------------------------- */

static void set_bits(const json_t *of_layers, uint64_t *bits) {
    for (size_t i = 0; i < json_array_size(of_layers); i++)
        if (json_integer_value(json_array_get(of_layers, i)) != 0)
            bits[i / 64] |= (uint64_t)1 << (i % 64);
}

static zr_decoder_shape_t read_shape(const json_t *s) {
    static const char *const scalings[] = {"default", "linear", "llama3"};
    zr_decoder_shape_t shape = {
        .n_layers = count_at(s, "layers"),
        .channels = count_at(s, "channels"),
        .heads = count_at(s, "heads"),
        .kv_heads = count_at(s, "kv_heads"),
        .head_size = count_at(s, "head_size"),
        .wide = count_at(s, "wide"),
        .seq = count_at(s, "seq"),
        .vocab = count_at(s, "vocab"),
        .epsilon = number_at(s, "epsilon"),
        .rotary = {.theta = number_at(s, "theta"),
                   .factor = number_at(s, "factor"),
                   .low_freq_factor = number_at(s, "low_freq_factor"),
                   .high_freq_factor = number_at(s, "high_freq_factor"),
                   .original_max_position_embeddings = number_at(s, "original")},
        .is_tied = flag_at(s, "tied"),
        .has_qkv_bias = flag_at(s, "qkv_bias"),
        .has_out_bias = flag_at(s, "out_bias"),
        .has_mlp_bias = flag_at(s, "mlp_bias"),
        .normalises_qk = flag_at(s, "normalises_qk"),
        .window = count_at(s, "window")};
    for (int i = 0; i < 3; i++)
        if (strcmp(json_string_value(member(s, "scaling")), scalings[i]) == 0)
            shape.rotary.scaling = (zr_nn_rotary_scaling_t)i;
    set_bits(member(s, "windowed"), shape.windowed);
    set_bits(member(s, "unrotated"), shape.unrotated);
    return shape;
}

/* What ranks are told, and what the first one answers. */
typedef struct training {
    zr_decoder_shape_t shape;
    zr_decoder_options_t options;
    zr_activation_options_t activations;
    const json_t *gradients; /* compare those of the first step, whose rate is GRADIENT_RATE */
    size_t n_steps;
    double losses[20];
    uint64_t hash;
    size_t peak[2]; /* rank 0's, on the device and the host */
} training_t;

/* Of plain gradient descent: a gradient is what a weight has moved, so much larger. */
#define GRADIENT_RATE 1000.0

/* Each token follows from the one before: the rule of the script. Ranks share the sequences. */
static zr_status_t train_step(const zr_rank_t *rank, zr_model_t *model, size_t step,
                              double *loss_p) {
    const training_t *training = rank->context;
    size_t seq = count_at(reference, "seq"), vocab = training->shape.vocab;
    size_t n_own = count_at(reference, "batch") / (size_t)rank->n_ranks;
    int32_t *tokens = malloc(2 * n_own * seq * sizeof(*tokens)), *targets = tokens + n_own * seq;
    double own = 0;
    assert_non_null(tokens);
    for (size_t i = 0; i < n_own; i++) {
        size_t token = (37 * step + 11 * ((size_t)rank->rank * n_own + i)) % vocab;
        for (size_t at = i * seq; at < (i + 1) * seq; at++) {
            tokens[at] = (int32_t)token;
            token = (3 * token + 5) % vocab;
            targets[at] = (int32_t)token;
        }
    }
    zr_host_batch_t batch = {.n_sequences = n_own, .seq = seq, .inputs = {tokens, targets}};
    zr_status_t status = zr_model_train(model, &batch, 1);
    free(tokens);
    ZR_TRY(status);
    ZR_TRY(zr_model_take_loss(model, &own));
    ZR_TRY(zr_runtime_average(rank->runtime, own, loss_p));
    return zr_runtime_step(rank->runtime, NULL);
}

/* The generator of initial values, written again: of the probe that the script multiplies with. */
static double probe_at(uint64_t key, uint64_t i) {
    double sum = -4.0 * 65535.0;
    for (uint64_t k = 0; k < 2; k++) {
        uint64_t z = key + 2 * i + k + 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        for (int shift = 0; shift < 64; shift += 16)
            sum += (double)(z >> shift & 0xFFFF);
    }
    return sum / sqrt(8.0 * (65536.0 * 65536.0 - 1.0) / 12.0);
}

static uint64_t probe_key(const char *name) {
    char text[128];
    snprintf(text, sizeof(text), "%s.probe", name);
    uint64_t key = count_at(reference, "seed");
    for (size_t i = 0; i <= strlen(text); i++) {
        uint64_t z = (i == 0 ? key : key ^ (uint8_t)text[i - 1]) + 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        key = z ^ (z >> 31);
    }
    return key;
}

static float *read_param(zr_param_t *param) {
    size_t n = zr_param_n_elems(param);
    float *values = malloc(n * sizeof(*values));
    assert_non_null(values);
    assert_ok(zr_param_read(param, 0, n, values));
    return values;
}

static void check_gradient(const char *name, zr_param_t *param, const float *before,
                           const json_t *expected) {
    double norm = json_number_value(json_array_get(expected, 0)), squares = 0;
    double product = json_number_value(json_array_get(expected, 1)), sum = 0;
    float *after = read_param(param);
    uint64_t key = probe_key(name);
    for (size_t i = 0; i < zr_param_n_elems(param); i++) {
        double gradient = ((double)before[i] - after[i]) / GRADIENT_RATE;
        squares += gradient * gradient;
        sum += gradient * probe_at(key, i);
    }
    free(after);
    if (!(fabs(sqrt(squares) - norm) <= 1e-5 * norm) || !(fabs(sum - product) <= 1e-5 * norm))
        fail_msg("%s: gradient of norm %.9g, %.9g expected; product %.9g, %.9g expected", name,
                 sqrt(squares), norm, sum, product);
}

static zr_status_t check_gradients(const zr_rank_t *rank, zr_model_t *model) {
    const training_t *training = rank->context;
    float *before[128];
    const char *name;
    const json_t *expected;
    size_t n = 0;
    double loss;
    assert_true(json_object_size(training->gradients) <= 128);
    json_object_foreach((json_t *)training->gradients, name, expected) {
        zr_param_t *param = zr_runtime_param(rank->runtime, name);
        if (param == NULL)
            fail_msg("the model has no %s", name);
        before[n++] = read_param(param);
    }
    ZR_TRY(train_step(rank, model, 0, &loss));
    n = 0;
    json_object_foreach((json_t *)training->gradients, name, expected) {
        check_gradient(name, zr_runtime_param(rank->runtime, name), before[n], expected);
        free(before[n++]);
    }
    return ZR_OK;
}

static zr_status_t train_rank(zr_rank_t *rank) {
    training_t *training = rank->context;
    zr_model_t *model = NULL;
    uint64_t hash = 0;
    double loss = 0;
    ZR_TRY(zr_decoder_create(rank->runtime, &training->shape, &training->options,
                             &training->activations, &model));
    zr_status_t status = zr_model_commit(model);
    if (status == ZR_OK && training->gradients != NULL)
        status = check_gradients(rank, model);
    for (size_t step = 0; step < training->n_steps && status == ZR_OK; step++) {
        status = train_step(rank, model, step, &loss);
        if (rank->rank == 0)
            training->losses[step] = loss;
    }
    for (int tier = 0; tier < 2 && rank->rank == 0; tier++) {
        zr_tier_statistics_t measured;
        zr_allocator_statistics(zr_runtime_allocator(rank->runtime), (zr_tier_t)tier, &measured);
        training->peak[tier] = measured.live.peak;
    }
    if (status == ZR_OK)
        status = zr_runtime_weights_xxh3(rank->runtime, &hash);
    if (rank->rank == 0)
        training->hash = hash;
    zr_model_destroy(&model);
    return status;
}

static training_t make_training(const json_t *model, size_t n_steps) {
    return (training_t){.shape = read_shape(member(model, "shape")),
                        .options = {.seed = count_at(reference, "seed"),
                                    .weight_decay = number_at(reference, "weight_decay")},
                        .n_steps = n_steps};
}

static zr_config_t make_config(int stage, zr_dtype_t dtype) {
    zr_config_t config = zr_config_default();
    config.stage = stage;
    config.dtype = dtype;
    config.micro_batch = count_at(reference, "batch");
    config.adamw.lr = number_at(reference, "lr");
    config.adamw.beta1 = number_at(reference, "beta1");
    config.adamw.beta2 = number_at(reference, "beta2");
    config.adamw.epsilon = number_at(reference, "epsilon");
    config.adamw.weight_decay = number_at(reference, "weight_decay");
    return config;
}

/* ---- tests ----------------------------------------------------------------------------------- */

#define FOR_EACH_MODEL(name, model)                                                                \
    const char *name;                                                                              \
    json_t *model;                                                                                 \
    json_object_foreach((json_t *)member(reference, "models"), name, model)

static void check_losses(const char *name, const json_t *model, zr_dtype_t dtype,
                         double tolerance) {
    training_t training = make_training(model, 20);
    zr_config_t config = make_config(0, dtype);
    const json_t *losses = member(model, "losses");
    assert_int_equal(json_array_size(losses), 20);
    assert_ok(zr_run_ranks(&config, 1, train_rank, &training, NULL));
    for (size_t i = 0; i < 20; i++) {
        double expected = json_number_value(json_array_get(losses, i));
        if (!(fabs(training.losses[i] - expected) <= tolerance))
            fail_msg("%s, step %zu: loss %.7f, transformers' %.7f", name, i, training.losses[i],
                     expected);
    }
}

TEST(test_losses) {
    FOR_EACH_MODEL(name, model) {
        check_losses(name, model, ZR_DTYPE_F32, 1e-4);
        check_losses(name, model, ZR_DTYPE_BF16, 1e-2);
    }
}

TEST(test_gradients) {
    FOR_EACH_MODEL(name, model) {
        training_t training = make_training(model, 0);
        zr_config_t config = make_config(0, ZR_DTYPE_F32);
        print_message("%s\n", name);
        zr_config_set_optimizer(&config, &zr_sgd);
        config.adamw.lr = GRADIENT_RATE;
        config.adamw.weight_decay = training.options.weight_decay = 0;
        training.gradients = member(model, "gradients");
        assert_ok(zr_run_ranks(&config, 1, train_rank, &training, NULL));
    }
}

/* The reference itself shows learning, so that agreeing with it means something. */
TEST(test_reference_learns) {
    FOR_EACH_MODEL(name, model) {
        const json_t *losses = member(model, "losses");
        double first = json_number_value(json_array_get(losses, 0));
        double last = json_number_value(json_array_get(losses, 19));
        if (!(fabs(first - log(131.0)) < 0.1 && last < first - 0.5))
            fail_msg("%s: from %g to %g", name, first, last);
    }
}

static uint64_t hash_of(const json_t *model, int n_ranks, int stage, zr_dtype_t dtype,
                        bool recompute) {
    training_t training = make_training(model, 3);
    zr_config_t config = make_config(stage, dtype);
    config.micro_batch /= (size_t)n_ranks;
    training.activations.recompute = recompute;
    assert_ok(zr_run_ranks(&config, n_ranks, train_rank, &training, NULL));
    return training.hash;
}

TEST(test_stages_and_recomputation) {
    FOR_EACH_MODEL(name, model) {
        for (int variant = 0; variant < 4; variant++) {
            int n_ranks = variant < 2 ? 2 : 4;
            zr_dtype_t dtype = variant % 2 ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
            uint64_t expected = hash_of(model, n_ranks, 0, dtype, false);
            for (int stage = 0; stage <= 3; stage++)
                if (hash_of(model, n_ranks, stage, dtype, stage != 2) != expected)
                    fail_msg("%s, %d ranks, stage %d: other weights", name, n_ranks, stage);
        }
    }
}

/* The same training planned: its peaks are those that were measured, to the byte. */
static void check_plan(const json_t *model, int n_ranks, int stage, bool recompute) {
    training_t training = make_training(model, 3);
    zr_config_t config = make_config(stage, recompute ? ZR_DTYPE_BF16 : ZR_DTYPE_F32);
    zr_run_plan_t plan;
    config.micro_batch /= (size_t)n_ranks;
    assert_ok(zr_config_resolve(&config, n_ranks, NULL));
    training.activations.recompute = recompute;
    zr_run_request_t request = {.model = zr_decoder_maker(&training.shape, &training.options),
                                .recompute = recompute,
                                .config = config,
                                .seq = count_at(reference, "seq"),
                                .n_steps = 3,
                                .n_ranks = n_ranks,
                                .hardware = zr_hardware_default(),
                                .log = zr_log_default()};
    zr_run_options_t options = zr_run_options_default();
    options.device_options.n_threads = request.hardware.n_threads;
    assert_ok(zr_run_plan(&request, &plan));
    assert_ok(zr_run_ranks(&config, n_ranks, train_rank, &training, &options));
    for (int tier = 0; tier < 2; tier++)
        assert_int_equal(plan.tiers[tier].live.peak, training.peak[tier]);
}

TEST(test_planned_peaks) {
    FOR_EACH_MODEL(name, model) {
        for (int stage = 0; stage <= 3; stage++) {
            print_message("%s, stage %d\n", name, stage);
            check_plan(model, 1 + stage % 2, stage, false);
            check_plan(model, 2, stage, true);
        }
    }
}
