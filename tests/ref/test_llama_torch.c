/*
 * The kernels of Llama's family against Hugging Face's transformers: values and gradients agree to
 * what fp32 can hold. The reference and how it was made: llama_torch_reference.json,
 * make_llama_torch_reference.py.
 */
#include <jansson.h>
#include <math.h>

#include "kernels/nn/nn.h"
#include "tests/common/test.h"

enum { MAX_ELEMS = 512 };

static json_t *reference;
static zr_device_t *device;
static zr_stream_t *stream;
static _Alignas(ZR_NN_WORKSPACE_ALIGNMENT) char room[1 << 20];
static const zr_nn_workspace_t workspace = {room, sizeof(room)};

static int set_up(void **state) {
    json_error_t error;
    (void)state;
    reference = json_load_file(LLAMA_TORCH_REFERENCE, JSON_REJECT_DUPLICATES, &error);
    if (reference == NULL)
        fail_msg("%s:%d: %s", LLAMA_TORCH_REFERENCE, error.line, error.text);
    assert_ok(zr_device_open("host", NULL, &device));
    assert_ok(zr_stream_create(device, "test", &stream));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    json_decref(reference);
    return 0;
}

/* ---- the reference ------------------------------------------------------------------------- */

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

/* The script's numbers, from -scale to scale. */
static void draw(uint64_t seed, double scale, float *values, size_t n) {
    assert_true(n <= MAX_ELEMS);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(scale * ((double)((seed >> 40) % 2049) - 1024) / 1024);
    }
}

/* All elements agree, to 2e-6 of the largest. */
static void compare(const json_t *object, const char *key, const float *values, size_t n) {
    const json_t *list = member(object, key);
    double largest = 0;
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(json_number_value(json_array_get(list, i))));
    for (size_t i = 0; i < n; i++) {
        double expected = json_number_value(json_array_get(list, i));
        if (!(fabs((double)values[i] - expected) <= 2e-6 * largest))
            fail_msg("%s[%zu] is %.9g, transformers has %.9g", key, i, (double)values[i], expected);
    }
}

/* ---- parts ----------------------------------------------------------------------------------- */

TEST(test_norm) {
    enum { N_ROWS = 4, CHANNELS = 12, N = N_ROWS * CHANNELS };
    float x[N], y[N], dy[N], dx[N], weight[CHANNELS], dweight[CHANNELS], rstd[N_ROWS];
    const json_t *expected = member(reference, "norm");
    draw(5, 1, x, N);
    draw(6, 1, weight, CHANNELS);
    draw(7, 1, dy, N);
    assert_ok(zr_nn_layernorm(
        stream, &(zr_nn_layernorm_t){.n_rows = N_ROWS,
                                     .channels = CHANNELS,
                                     .is_rms = true,
                                     .x = x,
                                     .weight = weight,
                                     .y = y,
                                     .rstd = rstd,
                                     .epsilon = (float)number_at(reference, "epsilon")}));
    assert_ok(zr_nn_layernorm_backward(stream,
                                       &(zr_nn_layernorm_backward_t){.n_rows = N_ROWS,
                                                                     .channels = CHANNELS,
                                                                     .is_rms = true,
                                                                     .dy = dy,
                                                                     .x = x,
                                                                     .weight = weight,
                                                                     .rstd = rstd,
                                                                     .dx = dx,
                                                                     .dweight = {dweight, false}},
                                       workspace));
    compare(expected, "y", y, N);
    compare(expected, "dx", dx, N);
    compare(expected, "dweight", dweight, CHANNELS);
}

TEST(test_swiglu) {
    enum { N_ROWS = 4, CHANNELS = 5, N = N_ROWS * CHANNELS };
    float gate_up[2 * N], y[N], dy[N];
    const json_t *expected = member(reference, "swiglu");
    draw(8, 8, gate_up, 2 * N);
    draw(9, 1, dy, N);
    assert_ok(zr_nn_swiglu(
        stream,
        &(zr_nn_swiglu_t){.n_rows = N_ROWS, .channels = CHANNELS, .gate_up = gate_up, .y = y}));
    assert_ok(zr_nn_swiglu_backward(stream, &(zr_nn_swiglu_backward_t){.n_rows = N_ROWS,
                                                                       .channels = CHANNELS,
                                                                       .dy = dy,
                                                                       .gate_up = gate_up,
                                                                       .dgate_up = gate_up}));
    compare(expected, "y", y, N);
    compare(expected, "dgate_up", gate_up, 2 * N);
}

TEST(test_head) {
    enum { N_ROWS = 6, CHANNELS = 5, VOCAB = 7 };
    float x[N_ROWS * CHANNELS], dx[N_ROWS * CHANNELS];
    float weight[VOCAB * CHANNELS], dweight[VOCAB * CHANNELS];
    int32_t targets[N_ROWS];
    double loss = 0;
    const json_t *expected = member(reference, "head");
    draw(10, 1, x, N_ROWS * CHANNELS);
    draw(11, 4, weight, VOCAB * CHANNELS);
    for (size_t i = 0; i < N_ROWS; i++)
        targets[i] = (int32_t)json_integer_value(json_array_get(member(expected, "targets"), i));
    assert_ok(zr_nn_lm_head(stream,
                            &(zr_nn_lm_head_t){.n_rows = N_ROWS,
                                               .channels = CHANNELS,
                                               .vocab = VOCAB,
                                               .vocab_chunk = 4,
                                               .x = x,
                                               .weight = weight,
                                               .targets = targets,
                                               .loss = &loss,
                                               .scale = 1,
                                               .dx = dx,
                                               .dweight = {dweight, false}},
                            workspace));
    compare(expected, "loss", &(float){(float)loss}, 1);
    compare(expected, "dx", dx, N_ROWS * CHANNELS);
    compare(expected, "dweight", dweight, VOCAB * CHANNELS);
}

/* ---- rotary positions and attention ---------------------------------------------------------- */

static zr_nn_rotary_positions_t positions_of(const json_t *rope) {
    const char *type = json_string_value(member(rope, "rope_type"));
    zr_nn_rotary_positions_t positions = {.theta = number_at(rope, "rope_theta")};
    if (strcmp(type, "default") == 0)
        return positions;
    positions.factor = number_at(rope, "factor");
    positions.scaling = ZR_NN_ROTARY_LINEAR;
    if (strcmp(type, "linear") == 0)
        return positions;
    assert_string_equal(type, "llama3");
    positions.scaling = ZR_NN_ROTARY_LLAMA3;
    positions.low_freq_factor = number_at(rope, "low_freq_factor");
    positions.high_freq_factor = number_at(rope, "high_freq_factor");
    positions.original_max_position_embeddings =
        number_at(rope, "original_max_position_embeddings");
    return positions;
}

static void find_frequencies(const json_t *rope, size_t head_size, float *frequencies) {
    zr_nn_rotary_positions_t positions = positions_of(rope);
    zr_log_t log = zr_log_default();
    assert_ok(zr_nn_rotary_frequencies(&positions, head_size, &log, frequencies));
}

TEST(test_frequencies) {
    const json_t *cases = member(reference, "frequencies"), *test_case;
    size_t i;
    json_array_foreach(cases, i, test_case) {
        size_t head_size = count_at(test_case, "head_size");
        float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
        find_frequencies(member(test_case, "rope"), head_size, frequencies);
        for (size_t k = 0; k < head_size / 2; k++) { /* each, not to the largest */
            double expected =
                json_number_value(json_array_get(member(test_case, "frequencies"), k));
            assert_true(fabs((double)frequencies[k] - expected) <= 3e-7 * expected);
        }
    }
    assert_int_equal(i, 3);
}

/* The arguments of both passes. */
typedef struct attention {
    zr_nn_qkv_shape_t shape;
    size_t window, n_qkv, n_out;
    bool has_norms, is_turned;
    int32_t starts[MAX_ELEMS];
    float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
    float before[MAX_ELEMS], qkv[MAX_ELEMS], dqkv[MAX_ELEMS], out[MAX_ELEMS], dout[MAX_ELEMS];
    float weights[2][MAX_ELEMS], dweights[2][MAX_ELEMS], log_sum[MAX_ELEMS], rstd[MAX_ELEMS];
} attention_t;

static void open_attention(attention_t *a, const json_t *test_case) {
    const json_t *shape = member(reference, "shape");
    a->shape = (zr_nn_qkv_shape_t){.batch = 1,
                                   .seq = count_at(shape, "seq"),
                                   .heads = count_at(shape, "heads"),
                                   .kv_heads = count_at(shape, "kv_heads"),
                                   .head_size = count_at(shape, "head_size"),
                                   .document_starts = a->starts};
    a->window = count_at(test_case, "window");
    a->has_norms = json_is_true(member(test_case, "has_norms"));
    a->is_turned = json_is_true(member(test_case, "is_turned"));
    a->n_out = a->shape.seq * a->shape.heads * a->shape.head_size;
    a->n_qkv = a->shape.seq * (a->shape.heads + 2 * a->shape.kv_heads) * a->shape.head_size;
    for (size_t t = 0; t < a->shape.seq; t++)
        a->starts[t] = (int32_t)json_integer_value(json_array_get(member(test_case, "starts"), t));
    if (a->is_turned)
        find_frequencies(member(test_case, "rope"), a->shape.head_size, a->frequencies);
    draw(1, 2, a->before, a->n_qkv);
    draw(2, 1, a->weights[0], a->shape.head_size);
    draw(3, 1, a->weights[1], a->shape.head_size);
    draw(4, 1, a->dout, a->n_out);
}

static void forward(attention_t *a) {
    const zr_nn_rotary_t rotary = {.shape = a->shape,
                                   .qkv = a->before,
                                   .out = a->qkv,
                                   .frequencies = a->is_turned ? a->frequencies : NULL,
                                   .q_weight = a->has_norms ? a->weights[0] : NULL,
                                   .k_weight = a->has_norms ? a->weights[1] : NULL,
                                   .epsilon = (float)number_at(reference, "epsilon"),
                                   .rstd = a->rstd};
    assert_ok(zr_nn_rotary(stream, &rotary));
    const zr_nn_attention_t attention = {.shape = a->shape,
                                         .window = a->window,
                                         .qkv = a->qkv,
                                         .out = a->out,
                                         .log_sum = a->log_sum};
    assert_ok(zr_nn_attention(stream, &attention, workspace));
}

static void backward(attention_t *a) {
    const zr_nn_attention_backward_t attention = {.shape = a->shape,
                                                  .window = a->window,
                                                  .qkv = a->qkv,
                                                  .out = a->out,
                                                  .log_sum = a->log_sum,
                                                  .dout = a->dout,
                                                  .dqkv = a->dqkv};
    assert_ok(zr_nn_attention_backward(stream, &attention, workspace));
    zr_nn_rotary_backward_t rotary = {
        .shape = a->shape, .dqkv = a->dqkv, .frequencies = a->is_turned ? a->frequencies : NULL};
    if (a->has_norms) {
        rotary.qkv = a->before;
        rotary.q_weight = a->weights[0];
        rotary.k_weight = a->weights[1];
        rotary.rstd = a->rstd;
        rotary.dq_weight.data = a->dweights[0];
        rotary.dk_weight.data = a->dweights[1];
    }
    assert_ok(zr_nn_rotary_backward(stream, &rotary, workspace));
}

TEST(test_attention) {
    const json_t *cases = member(reference, "cases"), *test_case;
    size_t i;
    json_array_foreach(cases, i, test_case) {
        static attention_t a;
        print_message("%s, window %zu\n", json_string_value(member(test_case, "model")),
                      count_at(test_case, "window"));
        open_attention(&a, test_case);
        forward(&a);
        compare(test_case, "out", a.out, a.n_out);
        backward(&a);
        compare(test_case, "dqkv", a.dqkv, a.n_qkv);
        if (a.has_norms)
            compare(test_case, "dq_weight", a.dweights[0], a.shape.head_size);
        if (a.has_norms)
            compare(test_case, "dk_weight", a.dweights[1], a.shape.head_size);
    }
    assert_int_equal(i, 5);
}

const test_group_t test_group = {set_up, tear_down};
