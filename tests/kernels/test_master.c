/*
 * Masters that are held once: halves are the oracle's and come back to the bit, and updates of
 * split masters have the bits of updates with masters apart. The first argument names the device.
 */
#include "kernels/device_fixture.h"
#include "kernels/master_math.h"
#include "ref/ref_kernels.h"
#include "tests/common/test.h"
#include "zero/optim/optimizer.h"

static void check_halves(uint32_t bits) {
    float master = zr_float_of_bits(bits);
    zr_bf16_t upper = zr_master_upper(master);
    uint32_t joined = zr_float_bits(zr_master_join(zr_bf16_to_f32(upper), zr_master_lower(master)));
    bool is_back = isnan(master) ? isnan(zr_float_of_bits(joined)) && joined >> 31 == bits >> 31
                                 : joined == bits;
    if (!is_back || upper != ref_bf16_of_master(master))
        fail_msg("%08x: parameter %04x, joined %08x", bits, upper, joined);
}

/* All upper halves with those lower ones at which something changes, and others. */
TEST(masters_come_back_from_their_halves) {
    static const uint32_t edges[] = {0,      1,      2,      0x3fff, 0x4000, 0x7ffe, 0x7fff,
                                     0x8000, 0x8001, 0x8002, 0xbfff, 0xc000, 0xfffe, 0xffff};
    uint64_t random = 5;
    (void)state;
    for (uint32_t upper = 0; upper <= 0xffffu; upper++) {
        for (size_t i = 0; i < N_OF(edges); i++)
            check_halves(upper << 16 | edges[i]);
        for (int i = 0; i < 8; i++)
            check_halves(upper << 16 | (uint32_t)(random_bits(&random) & 0xffffu));
    }
}

/* Ties, denormals, infinities and NaNs with payloads, from the first on; the others are random. */
static void fill(float *values, size_t n, uint64_t *random) {
    static const uint32_t hostile[] = {0x3f808000, 0x80000000, 1,          0x80008000, 0x00008000,
                                       0x7f7fffff, 0xff7f8000, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0x7f800001, 0xffffffff, 0x7f80ffff, 0xffc08000, 0,
                                       0xbf818000, 0x007fffff, 0x7fff8000};
    for (size_t i = 0; i < n; i++)
        values[i] = i < N_OF(hostile) ? zr_float_of_bits(hostile[i]) : fixture_random_float(random);
}

/* Bits of numbers; signs of NaNs alone. */
static void check_values(const float *are, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t is = zr_float_bits(are[i]), wanted = zr_float_bits(want[i]);
        if (isnan(are[i]) && isnan(want[i]) ? is >> 31 != wanted >> 31 : is != wanted)
            fail_msg("element %zu of %zu: %08x, not %08x", i, n, is, wanted);
    }
}

TEST(devices_split_and_join) {
    static const size_t sizes[] = {0, 1, 7, 256, 1009, 5003};
    fixture_t *f = *state;
    uint64_t random = 6;
    for (size_t s = 0; s < N_OF(sizes); s++) {
        size_t n = sizes[s];
        float masters[5003], back[5003];
        uint16_t upper[5003], lower[5003];
        const zr_encoding_t *halves[] = {&zr_encoding_upper, &zr_encoding_lower};
        fixture_reset(f);
        fill(masters, n, &random);
        float *from = fixture_place(f, masters, sizeof(masters), 0);
        float *to = fixture_take(f, sizeof(masters), 0);
        uint16_t *out[] = {fixture_take(f, sizeof(upper), 0), fixture_take(f, sizeof(lower), 2)};
        for (int i = 0; i < 2; i++) {
            assert_ok(halves[i]->queue_encode(halves[i], f->stream, from, ZR_DTYPE_F32, n, out[i]));
            assert_ok(halves[i]->queue_decode(halves[i], f->stream, out[i], n, to, ZR_DTYPE_F32));
        }
        fixture_download(f, upper, out[0], n * sizeof(upper[0]));
        fixture_download(f, lower, out[1], n * sizeof(lower[0]));
        fixture_download(f, back, to, n * sizeof(float));
        for (size_t i = 0; i < n; i++)
            assert_true(upper[i] == zr_master_upper(masters[i]) &&
                        lower[i] == zr_master_lower(masters[i]));
        check_values(back, masters, n);
    }
}

/* ---- updates --------------------------------------------------------------------------------- */

enum { N = 2593, MOST = 3 }; /* several of the host's parts, and a rest; a prime */

typedef struct work {
    fixture_t *f;
    zr_update_rule_t rule;
    zr_update_t args;
    size_t n_bytes[MOST];
    unsigned char arrays[MOST][4 * N], param[4 * N];
    float masters[N];
} work_t;

static void make(work_t *w, fixture_t *f, const zr_update_rule_t *rule, const float *masters,
                 const float *grads) {
    const zr_encoding_t *own = &zr_encoding_fp32;
    w->f = f;
    w->rule = *rule;
    if (w->args.param_dtype == ZR_DTYPE_BF16)
        own = &zr_encoding_upper;
    own->encode(own, masters, N, w->param);
    for (size_t a = 0; a < rule->n_arrays; a++) {
        float values[N];
        for (size_t i = 0; i < N; i++) {
            float some = fabsf(grads[(i + 77 * a) % N]) * 0.25f;
            values[i] = a == 0 ? masters[i] : some < 1 ? some : 0.5f;
        }
        const zr_encoding_t *encoding = rule->arrays[a].encoding;
        w->n_bytes[a] = zr_encoding_bytes(encoding, N);
        encoding->encode(encoding, values, N, w->arrays[a]);
        w->args.arrays[a] = fixture_place(f, w->arrays[a], w->n_bytes[a] + 1, 0);
    }
    w->args.param = fixture_place(f, w->param, sizeof(w->param), 0);
}

/* Two updates, and what they have left. */
static void run(work_t *w) {
    size_t param_bytes = N * zr_dtype_size(w->args.param_dtype);
    for (w->args.step = 3; w->args.step < 5; w->args.step++)
        assert_ok(zr_kernel_update(w->f->stream, &w->rule, &w->args));
    for (size_t a = 0; a < w->rule.n_arrays; a++)
        fixture_download(w->f, w->arrays[a], w->args.arrays[a], w->n_bytes[a]);
    fixture_download(w->f, w->param, w->args.param, param_bytes);
    if (!w->rule.splits_master) {
        memcpy(w->masters, w->arrays[0], sizeof(w->masters));
    } else if (w->args.param_dtype == ZR_DTYPE_F32) {
        memcpy(w->masters, w->param, sizeof(w->masters));
    } else {
        zr_encoding_upper.decode(&zr_encoding_upper, w->param, N, w->masters);
        zr_encoding_lower.decode(&zr_encoding_lower, w->arrays[0], N, w->masters);
    }
}

static void check_array(const zr_encoding_t *encoding, const void *is, const void *want) {
    float values[2][N];
    encoding->decode(encoding, is, N, values[0]);
    encoding->decode(encoding, want, N, values[1]);
    check_values(values[0], values[1], N);
}

/* The first n elements; no other is touched. */
static void check_update(fixture_t *f, const zr_update_rule_t *rule, zr_dtype_t grad_dtype,
                         zr_dtype_t param_dtype, size_t n) {
    work_t *apart = calloc(1, sizeof(*apart)), *split = calloc(1, sizeof(*split));
    const zr_update_rule_t split_rule = zr_update_rule_split(rule, param_dtype);
    float masters[N], grads[N];
    unsigned char grad_bytes[4 * N];
    uint64_t random = 8;
    fixture_reset(f);
    fill(masters, N, &random);
    fill(grads, N, &random);
    if (n > 1) { /* in another block of encodings: its NaNs are the whole block's */
        memmove(grads + 256, grads, (N - 256) * sizeof(float));
        for (size_t i = 0; i < 256; i++)
            grads[i] = fixture_random_float(&random);
    }
    const zr_encoding_t *of_grads = zr_encoding_of(grad_dtype);
    of_grads->encode(of_grads, grads, N, grad_bytes);
    apart->args = (zr_update_t){.n_elems = n,
                                .grad = fixture_place(f, grad_bytes, sizeof(grad_bytes), 0),
                                .grad_dtype = grad_dtype,
                                .param_dtype = param_dtype,
                                .grad_scale = 0.5f,
                                .lr = 1e-3f,
                                .weight_decay = 0.125f,
                                .rounding = {3, 4}};
    for (size_t i = 0; i < rule->n_hypers; i++)
        apart->args.hyper[i] = rule->hypers[i].is_switch ? 1 : 0.75f + 0.0625f * (float)i;
    split->args = apart->args;
    make(apart, f, rule, masters, grads);
    make(split, f, &split_rule, masters, grads);
    run(apart);
    run(split);
    check_array(zr_encoding_of(param_dtype), split->param, apart->param);
    check_values(split->masters, apart->masters, N);
    assert_int_equal(memcmp(apart->masters, masters, sizeof(masters)) != 0, n > 0);
    check_values(apart->masters + n, masters + n, N - n);
    for (size_t a = 1; a < rule->n_arrays; a++)
        check_array(rule->arrays[a].encoding, split->arrays[a], apart->arrays[a]);
    size_t saved = 2 * sizeof(float), n_bytes = (size_t)zr_update_cost(rule, &apart->args).bytes;
    saved -= param_dtype == ZR_DTYPE_F32 ? sizeof(float) : 2 * sizeof(zr_bf16_t) + 2;
    assert_int_equal((size_t)zr_update_cost(&split_rule, &apart->args).bytes, n_bytes - saved * n);
    free(apart), free(split);
}

TEST(updates_of_split_masters_have_the_same_bits) {
    static const zr_dtype_t dtypes[] = {ZR_DTYPE_F32, ZR_DTYPE_BF16};
    static const size_t sizes[] = {0, 1, 257, N};
    size_t n = 0;
    const zr_optimizer_type_t *const *types = zr_optimizers(&n);
    for (size_t i = 0; i < n; i++)
        for (int form = 0; form < ZR_N_STATE_FORMS; form++) {
            zr_update_rule_t rule = zr_update_rule_in(&types[i]->rule, (zr_state_form_t)form);
            for (size_t k = 0; k < 4 * N_OF(sizes); k++)
                check_update(*state, &rule, dtypes[k / 2 % 2], dtypes[k % 2], sizes[k / 4]);
        }
}

int main(int argc, char **argv) {
    return fixture_run_tests(argc, argv);
}
