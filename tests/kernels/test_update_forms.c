/*
 * Updates of states in fewer bits: what is computed is the oracle's, of what was decoded; what is
 * kept is next to it and right in the mean; slices, devices and positions give the same bits. The
 * first argument names the device.
 */
#include "kernels/device_fixture.h"
#include "ref/ref_kernels.h"
#include "zero/optim/optimizer.h"

enum { MOST = 3, N_ELEMS = 1543 };

/* A state, as it is on the device and here. */
typedef struct work {
    fixture_t *f;
    zr_update_rule_t rule;
    zr_update_t args;
    size_t n_elems, n_bytes[MOST];
    float before[MOST][N_ELEMS], after[MOST][N_ELEMS], grad[N_ELEMS];
    unsigned char bytes[MOST][4 * N_ELEMS], start[MOST][4 * N_ELEMS];
} work_t;

/* A block of zeros, one of denormals, and one with a huge value. */
static float hostile(float value, size_t i, size_t array) {
    if (i / 256 == 2)
        return 0;
    if (i / 256 == 3 && array > 0)
        return value * 1e-39f;
    return i == 1029 && array > 0 ? array == 2 ? 1e36f : 1e30f : value;
}

static void make(work_t *w, fixture_t *f, const zr_optimizer_type_t *type, zr_state_form_t form) {
    uint64_t random = 9;
    w->f = f;
    w->n_elems = N_ELEMS;
    w->rule = zr_update_rule_in(&type->rule, form);
    w->args = (zr_update_t){.n_elems = N_ELEMS,
                            .grad_scale = 0.5f,
                            .lr = 1e-2f,
                            .weight_decay = 0.1f,
                            .step = 7,
                            .rounding = {3, 4},
                            .first = 1024};
    for (size_t i = 0; i < w->rule.n_hypers; i++)
        w->args.hyper[i] = w->rule.hypers[i].is_switch ? 1 : 0.75f + 0.125f * (float)i;
    for (size_t a = 0; a < w->rule.n_arrays; a++) {
        const zr_encoding_t *encoding = w->rule.arrays[a].encoding;
        for (size_t i = 0; i < N_ELEMS; i++) {
            float value = ldexpf(fixture_random_float(&random), -(int)(random_bits(&random) % 8));
            value = type->rule.never_negative >> a & 1 ? value * value : value;
            w->before[a][i] = hostile(value, i, a);
        }
        w->n_bytes[a] = zr_encoding_bytes(encoding, N_ELEMS);
        encoding->encode(encoding, w->before[a], N_ELEMS, w->start[a]);
        encoding->decode(encoding, w->start[a], N_ELEMS, w->before[a]);
    }
    for (size_t i = 0; i < N_ELEMS; i++)
        w->grad[i] = i % 64 < 3 ? 0 : fixture_random_float(&random) * (i / 256 == 3 ? 1e-20f : 1);
}

/* Elements [first, first + n) as one call, on a device. */
static void run_slice(work_t *w, zr_stream_t *stream, size_t first, size_t n_elems) {
    zr_update_t args = w->args;
    args.n_elems = n_elems;
    args.first += first;
    for (size_t a = 0; a < w->rule.n_arrays; a++)
        args.arrays[a] =
            (char *)args.arrays[a] + zr_encoding_bytes(w->rule.arrays[a].encoding, first);
    args.grad = (const float *)args.grad + first;
    args.param = (float *)args.param + first;
    assert_ok(zr_kernel_update(stream, &w->rule, &args));
}

static void run(work_t *w, size_t slice) {
    fixture_reset(w->f);
    for (size_t a = 0; a < w->rule.n_arrays; a++) {
        const zr_encoding_t *encoding = w->rule.arrays[a].encoding;
        encoding->encode(encoding, w->before[a], w->n_elems, w->start[a]);
        w->args.arrays[a] = fixture_place(w->f, w->start[a], w->n_bytes[a], 0);
    }
    w->args.grad = fixture_place(w->f, w->grad, sizeof(w->grad), 0);
    w->args.param = fixture_take(w->f, sizeof(w->grad), 0);
    for (size_t first = 0; first < w->n_elems; first += slice)
        run_slice(w, w->f->stream, first,
                  w->n_elems - first < slice ? w->n_elems - first : slice);
    for (size_t a = 0; a < w->rule.n_arrays; a++) {
        const zr_encoding_t *encoding = w->rule.arrays[a].encoding;
        fixture_download(w->f, w->bytes[a], w->args.arrays[a], w->n_bytes[a]);
        encoding->decode(encoding, w->bytes[a], N_ELEMS, w->after[a]);
    }
}

/* What an element should be, without rounding of the state. */
typedef struct want {
    double value[MOST], bound[MOST];
} want_t;

static want_t expect(const work_t *w, const zr_optimizer_type_t *type, size_t i) {
    const float *h = w->args.hyper;
    double master = w->before[0][i], other = w->before[1][i], grad = w->grad[i];
    double scale = w->args.grad_scale, lr = w->args.lr, decay = w->args.weight_decay;
    if (type == &zr_adamw) {
        ref_adamw_t args = {scale, lr, h[0], h[1], h[2], decay, w->args.step};
        ref_adamw_result_t r = ref_adamw_element(&args, master, other, w->before[2][i], grad);
        return (want_t){{r.master, r.m, r.v}, {r.master_bound, r.m_bound, r.v_bound}};
    }
    ref_two_result_t r;
    if (type == &zr_lion)
        r = ref_lion_element(&(ref_lion_t){scale, lr, h[0], h[1], decay}, master, other, grad);
    else
        r = ref_sgd_element(&(ref_sgd_t){scale, lr, h[0], decay, h[1] != 0}, master, other, grad);
    return (want_t){{r.master, r.other}, {r.master_bound, r.other_bound}};
}

/* How far apart levels are around a value: of bf16, or of a code and its block's scale. */
static double spacing(const zr_encoding_t *encoding, const unsigned char *bytes, size_t i,
                      double value) {
    float scale;
    if (encoding->code == ZR_CODE_NONE)
        return fabs(value) * 0x1p-7 + 0x1p-133;
    memcpy(&scale, bytes + zr_encoding_bytes(encoding, i / 256 * 256), sizeof(scale));
    bool is_unsigned = encoding == &zr_encoding_ufloat8;
    return fabs(value) / (is_unsigned ? 16 : 8) * 1.01 + (double)scale * 0x1p-15;
}

static void check_elements(const work_t *w, const zr_optimizer_type_t *type) {
    for (size_t i = 0; i < N_ELEMS; i++) {
        want_t want = expect(w, type, i);
        assert_true(fabs((double)w->after[0][i] - want.value[0]) <= want.bound[0]);
        for (size_t a = 1; a < w->rule.n_arrays; a++) {
            double apart = spacing(w->rule.arrays[a].encoding, w->bytes[a], i, want.value[a]);
            assert_true(fabs((double)w->after[a][i] - want.value[a]) <= want.bound[a] + apart);
            if (a == 2 && want.value[a] > 0x1p-133)
                assert_true(w->after[a][i] > 0);
        }
    }
}

/* On average what is kept is what was computed: of each element, over many keys. */
static void check_mean(work_t *w, const zr_optimizer_type_t *type) {
    enum { N_KEYS = 64 };
    static double sum[MOST][N_ELEMS];
    memset(sum, 0, sizeof(sum));
    for (uint32_t key = 0; key < N_KEYS; key++) {
        w->args.rounding[1] = 1000 * key;
        run(w, N_ELEMS);
        for (size_t a = 1; a < w->rule.n_arrays; a++)
            for (size_t i = 0; i < N_ELEMS; i++)
                sum[a][i] += w->after[a][i];
    }
    for (size_t a = 1; a < w->rule.n_arrays; a++) {
        double error = 0, n = 0;
        for (size_t i = 0; i < N_ELEMS; i++) {
            double want = expect(w, type, i).value[a];
            double apart = spacing(w->rule.arrays[a].encoding, w->bytes[a], i, want);
            double off = sum[a][i] / N_KEYS - want;
            bool is_kept_off_0 = a == 2 && fabs(want) < 2 * apart;
            if (apart == 0 || is_kept_off_0)
                continue;
            assert_true(fabs(off) < 5 * 0.5 * apart / sqrt(N_KEYS));
            error += off / apart;
            n++;
        }
        assert_true(n > N_ELEMS / 2 && fabs(error / n) < 5 * 0.5 / sqrt(N_KEYS * n));
    }
}

static void check_form(fixture_t *f, const zr_optimizer_type_t *type, zr_state_form_t form) {
    work_t *w = malloc(sizeof(*w)), *other = malloc(sizeof(*other));
    make(w, f, type, form);
    run(w, N_ELEMS);
    check_elements(w, type);
    *other = *w;
    run(other, 512);
    assert_memory_equal(other->bytes, w->bytes, sizeof(w->bytes));
    check_mean(other, type);
    free(w), free(other);
}

TEST(states_are_computed_in_fp32_and_rounded_at_random) {
    size_t n = 0;
    const zr_optimizer_type_t *const *types = zr_optimizers(&n);
    for (size_t i = 0; i < n; i++)
        for (int form = ZR_STATE_BF16; form < ZR_N_STATE_FORMS; form++)
            check_form(*state, types[i], (zr_state_form_t)form);
}

/* All devices have the host's bits, of all sizes, and of numbers that are none. */
TEST(devices_agree) {
    static const size_t sizes[] = {0, 1, 2, 257, N_ELEMS};
    fixture_t *f = *state, host;
    fixture_open(&host, "host", 2, NULL);
    work_t *w = malloc(sizeof(*w)), *other = malloc(sizeof(*other));
    size_t n = 0;
    const zr_optimizer_type_t *const *types = zr_optimizers(&n);
    for (size_t i = 0; i < n; i++)
        for (int form = ZR_STATE_BF16; form < ZR_N_STATE_FORMS; form++) {
            make(w, f, types[i], (zr_state_form_t)form);
            w->grad[300] = NAN;
            w->grad[1540] = INFINITY;
            w->args.grad_dtype = w->args.param_dtype = ZR_DTYPE_F32;
            *other = *w;
            other->f = &host;
            for (size_t k = 0; k < N_OF(sizes); k++) {
                w->n_elems = other->n_elems = sizes[k];
                run(w, 1024);
                run(other, N_ELEMS);
                for (size_t a = 1; a < w->rule.n_arrays; a++)
                    assert_memory_equal(w->bytes[a], other->bytes[a], w->n_bytes[a]);
            }
            for (size_t a = 1; a < w->rule.n_arrays; a++) {
                for (size_t k = 256; k < 512; k++)
                    assert_true(form == ZR_STATE_BF16 || isnan(w->after[a][k]));
                assert_true(isnan(w->after[a][300]) && !isnan(w->after[a][255]));
            }
        }
    free(w), free(other);
    fixture_close(&host);
}

/* A running square follows small changes that are less than half of what lies between levels. */
TEST(small_changes_are_not_lost) {
    enum { N = 256, STEPS = 400 };
    fixture_t *f = *state;
    for (int form = ZR_STATE_BF16; form < ZR_N_STATE_FORMS; form++) {
        zr_update_rule_t rule = zr_update_rule_in(&zr_adamw.rule, (zr_state_form_t)form);
        const zr_encoding_t *encoding = rule.arrays[2].encoding;
        float grad[N], zeros[N] = {0}, v[N];
        unsigned char bytes[4 * N];
        for (size_t i = 0; i < N; i++)
            grad[i] = 1 + (float)i / N;
        fixture_reset(f);
        zr_update_t args = {.n_elems = N,
                            .arrays = {fixture_place(f, zeros, sizeof(zeros), 0),
                                       fixture_place(f, zeros, sizeof(zeros), 0),
                                       fixture_place(f, zeros, sizeof(zeros), 0)},
                            .grad = fixture_place(f, grad, sizeof(grad), 0),
                            .param = fixture_take(f, sizeof(zeros), 0),
                            .grad_scale = 1,
                            .lr = 1e-3f,
                            .hyper = {0.9f, 0.999f, 1e-8f}};
        for (args.step = 1; args.step <= STEPS; args.step++) {
            args.rounding[1] = (uint32_t)args.step;
            assert_ok(zr_kernel_update(f->stream, &rule, &args));
        }
        fixture_download(f, bytes, args.arrays[2], zr_encoding_bytes(encoding, N));
        encoding->decode(encoding, bytes, N, v);
        double sum = 0;
        for (size_t i = 0; i < N; i++)
            sum += (double)v[i] / ((double)grad[i] * (double)grad[i] * (1 - pow(0.999, STEPS)));
        assert_true(fabs(sum / N - 1) < 0.05);
    }
}

int main(int argc, char **argv) {
    return fixture_run_tests(argc, argv);
}
