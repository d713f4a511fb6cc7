/*
 * Rounding to bf16 against one that measures distances: every bf16, every edge between
 * two of them, NaNs of all kinds; by the inline functions and by every instruction set.
 */
#include "kernels/device_fixture.h"
#include "ref/ref_kernels.h"

/* For each of the 2^16 upper halves: at, just off, and around the tie. */
static const uint32_t lower_halves[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
#define N_LOWER N_OF(lower_halves)
#define N_PATTERNS (65536 * N_LOWER)

static float *patterns;    /* [N_PATTERNS] */
static uint16_t *expected; /* [N_PATTERNS] */

static int setup(void **state) {
    patterns = malloc(N_PATTERNS * sizeof(float));
    expected = malloc(N_PATTERNS * sizeof(uint16_t));
    for (uint32_t i = 0; i < N_PATTERNS; i++) {
        uint32_t bits = (i / N_LOWER) << 16 | lower_halves[i % N_LOWER];
        memcpy(&patterns[i], &bits, sizeof(bits));
        expected[i] = ref_bf16_nearest(patterns[i]);
    }
    return 0;
}

static int teardown(void **state) {
    free(patterns);
    free(expected);
    return 0;
}

TEST(test_inline) {
    for (size_t i = 0; i < N_PATTERNS; i++) {
        if (zr_bf16_from_f32(patterns[i]) != expected[i])
            fail_msg("%a is rounded to %04x, expected %04x", (double)patterns[i],
                     zr_bf16_from_f32(patterns[i]), expected[i]);
    }
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float value = zr_bf16_to_f32((uint16_t)bits);
        double want = ref_bf16_value((uint16_t)bits);
        assert_true(isnan(want) ? isnan(value) : (double)value == want);
        assert_int_equal(signbit(value) != 0, bits >> 15);
        if (!isnan(want))
            assert_int_equal(zr_bf16_from_f32(value), bits);
    }
}

TEST(test_known_values) {
    assert_int_equal(zr_bf16_from_f32(1.0f), 0x3f80);
    assert_int_equal(zr_bf16_from_f32(-2.0f), 0xc000);
    assert_int_equal(zr_bf16_from_f32(1.00390625f), 0x3f80);   /* a tie, down to even */
    assert_int_equal(zr_bf16_from_f32(1.01171875f), 0x3f82);   /* a tie, up to even */
    assert_int_equal(zr_bf16_from_f32(3.4028235e38f), 0x7f80); /* past the largest */
    assert_int_equal(zr_bf16_from_f32(-INFINITY), 0xff80);
    assert_int_equal(zr_bf16_from_f32(-0.0f), 0x8000);
    assert_int_equal(zr_dtype_size(ZR_DTYPE_BF16), 2);
    assert_int_equal(zr_dtype_size((zr_dtype_t)17), 0);
}

static void check_casts(const char *isa) {
    zr_device_options_t options = zr_device_options_default();
    options.log.level = ZR_LOG_ERROR;
    options.isa = isa;
    options.n_threads = 1;
    zr_device_t *device = NULL;
    zr_status_t status = zr_device_open("host", &options, &device);
    if (status == ZR_ERR_UNSUPPORTED)
        return; /* said by the log */
    assert_ok(status);
    zr_stream_t *stream = NULL;
    assert_ok(zr_stream_create(device, "cast", &stream));
    uint16_t *narrow = malloc(N_PATTERNS * sizeof(uint16_t));
    float *wide = malloc(N_PATTERNS * sizeof(float));
    assert_ok(zr_kernel_cast(stream, narrow, ZR_DTYPE_BF16, patterns, ZR_DTYPE_F32, N_PATTERNS));
    assert_memory_equal(narrow, expected, N_PATTERNS * sizeof(uint16_t));
    assert_ok(zr_kernel_cast(stream, wide, ZR_DTYPE_F32, narrow, ZR_DTYPE_BF16, N_PATTERNS));
    for (size_t i = 0; i < N_PATTERNS; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof(bits));
        assert_int_equal(bits, (uint32_t)narrow[i] << 16);
    }
    free(narrow);
    free(wide);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
}

TEST(test_casts) {
    check_casts("baseline");
    check_casts("avx2");
    check_casts("avx512");
}

const test_group_t test_group = {setup, teardown};
