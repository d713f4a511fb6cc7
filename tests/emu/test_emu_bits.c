/*
 * Every kernel of the CUDA device against the host's, bit for bit: random values of all
 * magnitudes, zeros and subnormals, in every mix of dtypes, at lengths and offsets
 * that fit nothing.
 */
#include "kernels/device_fixture.h"
#include "kernels/nn/nn.h"
#include "zero/optim/optimizer.h"

#define MAX_ELEMS 100003
#define N_ARRAYS 6

static const size_t sizes[] = {1, 7, 8, 9, 255, 256, 2047, 2048, 2049, 6143, 16384, 49153, 100003};
static const zr_dtype_t dtypes[] = {ZR_DTYPE_F32, ZR_DTYPE_BF16};

/* The same arrays on both devices. */
typedef struct pair {
    fixture_t on[2]; /* host, cuda */
    void *arrays[2][N_ARRAYS];
    size_t n_elems;
    char *bytes[2];
} pair_t;

static int setup(void **state) {
    static pair_t pair;
    fixture_open(&pair.on[0], "host", 1, NULL);
    fixture_open(&pair.on[1], "cuda", 1, NULL);
    for (int i = 0; i < 2; i++)
        pair.bytes[i] = malloc(MAX_ELEMS * sizeof(double));
    *state = &pair;
    return 0;
}

static int teardown(void **state) {
    pair_t *pair = *state;
    for (int i = 0; i < 2; i++) {
        fixture_close(&pair->on[i]);
        free(pair->bytes[i]);
    }
    return 0;
}

/* Any exponent, and now and then something odd; no NaN, whose bits are not promised. */
static float draw_value(uint64_t *random, bool is_positive) {
    static const float odd[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-130f, 0x1p127f};
    uint64_t bits = random_bits(random);
    float value = ldexpf(fixture_random_float(random), (int)(bits >> 8 & 63) - 40);
    if ((bits & 63) == 0)
        value = odd[(bits >> 16) % (N_OF(odd))];
    return is_positive ? fabsf(value) : value;
}

static void place(pair_t *pair, int array, zr_dtype_t dtype, size_t skip, bool is_positive,
                  uint64_t seed) {
    size_t elem = zr_dtype_size(dtype);
    for (size_t i = 0; i < pair->n_elems; i++) {
        float value = draw_value(&seed, is_positive);
        if (dtype == ZR_DTYPE_F32)
            memcpy(pair->bytes[0] + i * elem, &value, elem);
        else
            ((zr_bf16_t *)(void *)pair->bytes[0])[i] = zr_bf16_from_f32(value);
    }
    for (int d = 0; d < 2; d++)
        pair->arrays[d][array] =
            fixture_place(&pair->on[d], pair->bytes[0], pair->n_elems * elem, skip * elem);
}

static void begin(pair_t *pair, size_t n_elems) {
    pair->n_elems = n_elems;
    for (int d = 0; d < 2; d++)
        fixture_reset(&pair->on[d]);
}

static bool is_nan(const char *bytes, zr_dtype_t dtype) {
    float value;
    zr_bf16_t narrow;
    memcpy(&value, bytes, dtype == ZR_DTYPE_F32 ? sizeof(value) : 0);
    memcpy(&narrow, bytes, sizeof(narrow));
    return isnan(dtype == ZR_DTYPE_F32 ? value : zr_bf16_to_f32(narrow));
}

static void assert_same(pair_t *pair, const char *kernel, int array, zr_dtype_t dtype) {
    size_t elem = zr_dtype_size(dtype);
    for (int d = 0; d < 2; d++)
        fixture_download(&pair->on[d], pair->bytes[d], pair->arrays[d][array],
                         pair->n_elems * elem);
    for (size_t i = 0; i < pair->n_elems; i++) {
        const char *host = pair->bytes[0] + i * elem, *cuda = pair->bytes[1] + i * elem;
        if (memcmp(host, cuda, elem) != 0 && !(is_nan(host, dtype) && is_nan(cuda, dtype)))
            fail_msg("%s: array %d (%s), element %zu of %zu differs", kernel, array,
                     zr_dtype_name(dtype), i, pair->n_elems);
    }
}

/* Run `call` with `stream` and `at` (the arrays) of either device. */
#define ON_BOTH(pair, call)                                                                        \
    for (int d = 0; d < 2; d++) {                                                                  \
        zr_stream_t *stream = (pair)->on[d].stream;                                                \
        void **at = (pair)->arrays[d];                                                             \
        (void)at;                                                                                  \
        assert_ok((call));                                                                         \
    }

static void check_update(pair_t *pair, const zr_update_rule_t *rule, zr_dtype_t grad,
                         zr_dtype_t param, size_t skip, int step) {
    for (int array = 0; array < 3; array++) /* the third may be a sum of squares */
        place(pair, array, ZR_DTYPE_F32, skip, array == 2, (uint64_t)(step + array));
    place(pair, 3, grad, skip, false, 77);
    place(pair, 4, param, skip, false, 78);
    zr_update_t args = {.n_elems = pair->n_elems,
                        .grad_dtype = grad,
                        .param_dtype = param,
                        .grad_scale = 0.37f,
                        .lr = 3e-3f,
                        .weight_decay = 0.1f,
                        .step = step};
    for (size_t i = 0; i < rule->n_hypers; i++) /* switches are on at times */
        args.hyper[i] = rule->hypers[i].is_switch ? (float)(step % 2) : 0.9f;
    ON_BOTH(pair, (args.arrays[0] = at[0], args.arrays[1] = at[1], args.arrays[2] = at[2],
                   args.grad = at[3], args.param = at[4], zr_kernel_update(stream, rule, &args)));
    for (int array = 0; array < 3; array++)
        assert_same(pair, rule->name, array, ZR_DTYPE_F32);
    assert_same(pair, rule->name, 4, param);
}

TEST(test_updates) {
    pair_t *pair = *state;
    size_t n_optimizers = 0;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n_optimizers);
    for (size_t i = 0; i < n_optimizers; i++)
        for (size_t s = 0; s < N_OF(sizes); s++)
            for (size_t mix = 0; mix < 8; mix++) {
                if (!ONE_OF(1, 3))
                    continue;
                begin(pair, sizes[s]);
                check_update(pair, &optimizers[i]->rule, dtypes[mix / 2 % 2], dtypes[mix % 2],
                             mix / 4 * 3, (int)s * 10 + (int)mix + 1);
            }
}

TEST(test_two_arrays) {
    pair_t *pair = *state;
    for (size_t s = 0; s < N_OF(sizes); s++)
        for (size_t mix = 0; mix < 8; mix++) {
            if (!ONE_OF(1, 3))
                continue;
            zr_dtype_t to = dtypes[mix / 2 % 2], from = dtypes[mix % 2];
            size_t n = sizes[s];
            begin(pair, n);
            place(pair, 0, to, mix / 4, false, s);
            place(pair, 1, from, mix / 4 * 5, false, s + 50);
            ON_BOTH(pair, zr_kernel_add(stream, at[0], to, at[1], from, n));
            assert_same(pair, "add", 0, to);
            ON_BOTH(pair, zr_kernel_cast(stream, at[0], to, at[1], from, n));
            assert_same(pair, "cast", 0, to);
            ON_BOTH(pair, zr_kernel_scale(stream, at[1], from, n, 0x1.8p-20f));
            assert_same(pair, "scale", 1, from);
            ON_BOTH(pair, zr_kernel_fill(stream, at[1], from, n, 0.1f));
            assert_same(pair, "fill", 1, from);
        }
}

/* What is computed element by element of a transformer's kernels: positions far from 0, and gates.
 */
TEST(test_rotary_and_swiglu) {
    static const size_t head_sizes[] = {2, 6, 64, 128, 256};
    static const zr_nn_rotary_positions_t positions = {.theta = 500000};
    float frequencies[ZR_NN_ROTARY_MAX_HEAD_SIZE / 2];
    zr_log_t log = zr_log_default();
    pair_t *pair = *state;
    for (size_t h = 0; h < sizeof(head_sizes) / sizeof(head_sizes[0]); h++) {
        size_t size = head_sizes[h], seq = 15000 / size;
        zr_nn_qkv_shape_t shape = {
            .batch = 1, .seq = seq, .heads = 3, .kv_heads = 1, .head_size = size};
        assert_ok(zr_nn_rotary_frequencies(&positions, size, &log, frequencies));
        begin(pair, seq * 5 * size);
        for (int array = 0; array < 4; array++)
            place(pair, array, ZR_DTYPE_F32, h % 2, false, (uint64_t)array + h);
        const size_t n_rows = pair->n_elems / (2 * (size + 1));
        ON_BOTH(pair, zr_nn_rotary(stream, &(zr_nn_rotary_t){.shape = shape,
                                                             .qkv = at[0],
                                                             .out = at[1],
                                                             .frequencies = frequencies}));
        assert_same(pair, "rotary", 1, ZR_DTYPE_F32);
        ON_BOTH(pair, zr_nn_rotary_backward(stream,
                                            &(zr_nn_rotary_backward_t){.shape = shape,
                                                                       .dqkv = at[1],
                                                                       .frequencies = frequencies},
                                            (zr_nn_workspace_t){NULL, 0}));
        assert_same(pair, "rotary_backward", 1, ZR_DTYPE_F32);
        ON_BOTH(pair, zr_nn_swiglu(stream, &(zr_nn_swiglu_t){.n_rows = n_rows,
                                                             .channels = size + 1,
                                                             .gate_up = at[0],
                                                             .y = at[2]}));
        assert_same(pair, "swiglu", 2, ZR_DTYPE_F32);
        ON_BOTH(pair, zr_nn_swiglu_backward(stream, &(zr_nn_swiglu_backward_t){.n_rows = n_rows,
                                                                               .channels = size + 1,
                                                                               .dy = at[2],
                                                                               .gate_up = at[0],
                                                                               .dgate_up = at[3]}));
        assert_same(pair, "swiglu_backward", 3, ZR_DTYPE_F32);
    }
}

static void check_sums(pair_t *pair, zr_dtype_t dtype, size_t skip) {
    size_t n = pair->n_elems, workspace_bytes = zr_sum_of_squares_workspace_bytes(n);
    const void *sources[40];
    for (int array = 0; array < 4; array++)
        place(pair, array, dtype, skip, false, (uint64_t)array);
    for (int d = 0; d < 2; d++) {
        pair->arrays[d][4] = fixture_take(&pair->on[d], n * sizeof(double), 0);
        pair->arrays[d][5] = fixture_take(&pair->on[d], workspace_bytes, 8);
    }
    for (int n_sources = 1; n_sources <= 40; n_sources += 13) {
        for (int d = 0; d < 2; d++) {
            for (int i = 0; i < n_sources; i++)
                sources[i] = pair->arrays[d][1 + i % 3];
            assert_ok(zr_kernel_sum(pair->on[d].stream, pair->arrays[d][0], sources, n_sources,
                                    dtype, n));
        }
        assert_same(pair, "sum", 0, dtype);
    }
    ON_BOTH(pair, zr_kernel_sum_of_squares(stream, at[1], dtype, n, at[4], at[5]));
    double results[2];
    for (int d = 0; d < 2; d++)
        fixture_download(&pair->on[d], &results[d], pair->arrays[d][4], sizeof(double));
    assert_memory_equal(&results[0], &results[1], sizeof(double));
}

TEST(test_sums) {
    pair_t *pair = *state;
    for (size_t s = 0; s < N_OF(sizes); s++)
        for (size_t mix = 0; mix < 4; mix++) {
            begin(pair, sizes[s]);
            check_sums(pair, dtypes[mix % 2], mix / 2);
        }
}

const test_group_t test_group = {setup, teardown};
