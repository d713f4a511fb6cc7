/*
 * Encodings say what is: their bytes, and functions that agree with each other on the host and on a
 * stream of the device that the first argument names, for any bits. Blocks are held to levels that
 * are computed in double.
 */
#include <float.h>

#include "kernels/device_fixture.h"
#include "kernels/encoding.h"
#include "ref/ref_kernels.h"

#define N_ELEMS 10007

static const zr_encoding_t *const encodings[] = {&zr_encoding_fp32, &zr_encoding_bf16};

TEST(names_find_encodings) {
    for (int i = 0; i < 2; i++)
        assert_ptr_equal(zr_encoding_find(encodings[i]->name), encodings[i]);
    assert_null(zr_encoding_find("fp16"));
    assert_ptr_equal(zr_encoding_of(ZR_DTYPE_F32), &zr_encoding_fp32);
    assert_ptr_equal(zr_encoding_of(ZR_DTYPE_BF16), &zr_encoding_bf16);
    assert_null(zr_encoding_of(ZR_DTYPE_F64));
    assert_string_equal(zr_encoding_bf16.name, zr_dtype_name(ZR_DTYPE_BF16));
    for (size_t i = 0; zr_encoding_at(i) != NULL; i++)
        assert_ptr_equal(zr_encoding_find(zr_encoding_at(i)->name), zr_encoding_at(i));
}

TEST(bytes_are_of_whole_blocks) {
    const zr_encoding_t packed = {.block_elems = 256, .block_bytes = 260};
    assert_int_equal(zr_encoding_bytes(&packed, 0), 0);
    assert_int_equal(zr_encoding_bytes(&packed, 1), 260);
    assert_int_equal(zr_encoding_bytes(&packed, 256), 260);
    assert_int_equal(zr_encoding_bytes(&packed, 257), 520);
    assert_int_equal(zr_encoding_elems(&packed, 519), 256);
    assert_int_equal(zr_encoding_bytes(&zr_encoding_bf16, 7), 14);
    assert_int_equal(zr_encoding_elems(&zr_encoding_fp32, 31), 7);
    assert_true(zr_encode_cost(&packed, 512).bytes == 512 * 4 + 520);
    assert_true(zr_decode_cost(&zr_encoding_bf16, 10).bytes == 60);
}

/* Numbers around 1, and any bits: tiny, huge, infinite, NaN. */
static void draw(float *values) {
    uint64_t random = 5;
    for (size_t i = 0; i < N_ELEMS; i++) {
        uint32_t bits = (uint32_t)random_bits(&random);
        values[i] = fixture_random_float(&random);
        if (i % 8 == 0)
            memcpy(&values[i], &bits, sizeof(bits));
    }
}

TEST(host_and_stream_agree) {
    static const size_t sizes[] = {0, 1, 2, 257, N_ELEMS};
    fixture_t *f = *state;
    static float values[N_ELEMS], decoded[N_ELEMS], back[N_ELEMS];
    static unsigned char blocks[4 * N_ELEMS], encoded[4 * N_ELEMS];
    draw(values);
    for (size_t k = 0; k < 2 * N_OF(sizes); k++) {
        const zr_encoding_t *encoding = encodings[k % 2];
        size_t n = sizes[k / 2], n_bytes = zr_encoding_bytes(encoding, n);
        fixture_reset(f);
        float *source = fixture_place(f, values, sizeof(values), 0);
        void *target = fixture_take(f, n_bytes, 0);
        float *result = fixture_take(f, sizeof(values), 0);
        encoding->encode(encoding, values, n, blocks);
        encoding->decode(encoding, blocks, n, decoded);
        assert_ok(encoding->queue_encode(encoding, f->stream, source, ZR_DTYPE_F32, n, target));
        assert_ok(encoding->queue_decode(encoding, f->stream, target, n, result, ZR_DTYPE_F32));
        fixture_download(f, encoded, target, n_bytes);
        fixture_download(f, back, result, n * sizeof(float));
        assert_memory_equal(encoded, blocks, n_bytes);
        assert_memory_equal(back, decoded, n * sizeof(float));
        for (size_t i = 0; i < n; i++) {
            uint16_t bits = ref_bf16_nearest(values[i]);
            float want = k % 2 == 0 ? values[i] : (float)ref_bf16_value(bits);
            assert_true(isnan(want) ? isnan(decoded[i]) != 0 : decoded[i] == want);
        }
    }
}

/* ---- blocks with a scale --------------------------------------------------------------------- */

static const size_t sizes[] = {1, 2, 63, 64, 65, 131, 255, 256, 257, 4099, N_ELEMS};

/* Runs of 64 elements of every kind, so that blocks have one kind or several. */
static void draw_hostile(float *values, size_t n_elems, uint64_t seed) {
    static const float few[] = {NAN, -NAN, INFINITY, -INFINITY, FLT_MAX, 1e30f, 1e-42f, 0x1p-149f};
    uint64_t random = seed;
    for (size_t i = 0; i < n_elems; i++) {
        size_t run = (i / 64 + i / 1024) % 16;
        float value = fixture_random_float(&random);
        int exponent = (int)(random_bits(&random) % 277) - 149;
        if (run == 0 || run == 8)
            value = 0; /* whole runs, and half a block of 256 */
        else if (run == 1)
            value *= 1e-43f;
        else if (run == 2)
            value = ldexpf(value, exponent);
        else if (run == 3)
            value = ldexpf(value, exponent % 20);
        else if (run == 4 && i % 64 == 17)
            value = few[i / 1024 % 8];
        else if (run == 5)
            value *= 0x1p-102f;
        values[i] = value;
    }
}

/* A block as it was encoded and decoded, against levels in double. */
static void check_block(const zr_encoding_t *encoding, const float *values, size_t n_elems,
                        const void *block, const float *decoded) {
    double levels[256], most = 0;
    size_t n_levels = ref_code_levels(encoding->name, levels);
    bool is_unsigned = encoding == &zr_encoding_ufloat8, is_number = true;
    bool has_bf16 = encoding->block_elems == 64;
    for (size_t i = 0; i < n_elems; i++) {
        is_number = is_number && isfinite(values[i]);
        most = is_unsigned ? fmax(most, values[i]) : fmax(most, fabs((double)values[i]));
    }
    if (!is_number) {
        for (size_t i = 0; i < n_elems; i++)
            assert_true(isnan(decoded[i]));
        return;
    }
    /* Of the largest level, which the scale is a part of. */
    double want = most == 0 ? 0 : fmax(most, 0x1p-100 * ref_code_most(encoding->name));
    float scale;
    uint16_t narrow;
    memcpy(&scale, block, sizeof(scale));
    memcpy(&narrow, block, sizeof(narrow));
    double top =
        (has_bf16 ? ref_bf16_value(narrow) : (double)scale) * ref_code_most(encoding->name);
    assert_true(fabs(top - want) <= want * (has_bf16 ? 0x1p-8 : 0x1p-14));
    for (size_t i = 0; i < n_elems; i++) {
        double value = values[i], nearest = INFINITY, of_levels = INFINITY;
        value = is_unsigned && value < 0 ? 0 : value;
        for (size_t k = 0; k < n_levels; k++) {
            nearest = fmin(nearest, fabs(levels[k] * top - value));
            of_levels = fmin(of_levels, fabs(levels[k] * top - (double)decoded[i]));
        }
        assert_true(of_levels <= fabs((double)decoded[i]) * 1e-6);
        if (is_unsigned && value > 0)
            assert_true(decoded[i] > 0);
        if (!is_unsigned || decoded[i] != (float)(levels[1] * top))
            assert_true(fabs((double)decoded[i] - value) <= nearest + 1e-4 * top);
    }
}

/* The host's functions, on memory that ends where the blocks do; NULLs of 0 elements. */
static void check_host(const zr_encoding_t *encoding, const float *values, size_t n_elems,
                       unsigned char *blocks, float *decoded) {
    size_t n_bytes = zr_encoding_bytes(encoding, n_elems), size = encoding->block_elems;
    encoding->encode(encoding, values, n_elems, blocks);
    encoding->decode(encoding, blocks, n_elems, decoded);
    for (size_t i = 0; i < n_elems; i += size)
        check_block(encoding, values + i, n_elems - i < size ? n_elems - i : size,
                    blocks + zr_encoding_bytes(encoding, i), decoded + i);
    if (encoding == &zr_encoding_int8 || encoding == &zr_encoding_int4)
        return;
    unsigned char *again = malloc(n_bytes);
    float *twice = malloc(n_elems * sizeof(float));
    encoding->encode(encoding, decoded, n_elems, again);
    encoding->decode(encoding, again, n_elems, twice);
    for (size_t i = 0; i < n_elems; i++)
        assert_true(twice[i] == decoded[i] || isnan(decoded[i]));
    free(again), free(twice);
}

/* All streams give the host's bits, of either dtype, and write nothing else. */
static void check_stream(fixture_t *f, const zr_encoding_t *encoding, const float *values,
                         size_t n_elems, zr_dtype_t dtype) {
    enum { GUARD = 64 };
    size_t n_bytes = zr_encoding_bytes(encoding, n_elems), elem_bytes = zr_dtype_size(dtype);
    unsigned char *blocks = malloc(n_bytes), *got = malloc(n_bytes + GUARD);
    float *own = malloc(n_elems * sizeof(float)), *decoded = malloc(n_elems * sizeof(float));
    uint16_t *narrow = malloc(n_elems * sizeof(uint16_t));
    for (size_t i = 0; i < n_elems; i++) {
        narrow[i] = ref_bf16_nearest(values[i]);
        own[i] = dtype == ZR_DTYPE_F32 ? values[i] : zr_bf16_to_f32(narrow[i]);
    }
    check_host(encoding, own, n_elems, blocks, decoded);
    fixture_reset(f);
    size_t skip = n_elems % 3 * elem_bytes, skip_blocks = n_elems % 2 * encoding->align_bytes;
    const void *source = dtype == ZR_DTYPE_F32 ? (const void *)values : narrow;
    void *placed = fixture_place(f, source, n_elems * elem_bytes, skip);
    memset(got, 0xa5, n_bytes + GUARD);
    void *target = fixture_place(f, got, n_bytes + GUARD, skip_blocks);
    zr_cost_t before, after;
    assert_ok(zr_stream_cost(f->stream, &before));
    assert_ok(encoding->queue_encode(encoding, f->stream, placed, dtype, n_elems, target));
    assert_ok(zr_stream_cost(f->stream, &after));
    assert_true(after.bytes - before.bytes == (double)(n_elems * elem_bytes + n_bytes));
    fixture_download(f, got, target, n_bytes + GUARD);
    assert_memory_equal(got, blocks, n_bytes);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(got[n_bytes + i], 0xa5);
    void *result = fixture_take(f, n_elems * elem_bytes, skip);
    assert_ok(encoding->queue_decode(encoding, f->stream, target, n_elems, result, dtype));
    fixture_download(f, own, result, n_elems * elem_bytes);
    memcpy(narrow, own, n_elems * sizeof(uint16_t));
    for (size_t i = 0; i < n_elems; i++) {
        float is = dtype == ZR_DTYPE_F32 ? own[i] : zr_bf16_to_f32(narrow[i]);
        float want =
            dtype == ZR_DTYPE_F32 ? decoded[i] : zr_bf16_to_f32(ref_bf16_nearest(decoded[i]));
        assert_true(isnan(want) ? isnan(is) != 0 : is == want);
    }
    free(blocks), free(got), free(own), free(decoded), free(narrow);
}

TEST(blocks_are_represented_and_streams_agree) {
    static float values[N_ELEMS];
    for (size_t e = 2; zr_encoding_at(e) != NULL; e++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            draw_hostile(values, sizes[i], e + 100 * i);
            check_stream(*state, zr_encoding_at(e), values, sizes[i], ZR_DTYPE_F32);
            check_stream(*state, zr_encoding_at(e), values, sizes[i], ZR_DTYPE_BF16);
        }
}

/* A block of zeros is one of zero bytes, as state begins with; of 0 elements nothing is touched. */
TEST(zeros_are_zeros) {
    fixture_t *f = *state;
    for (size_t e = 2; zr_encoding_at(e) != NULL; e++) {
        const zr_encoding_t *encoding = zr_encoding_at(e);
        unsigned char blocks[260] = {0};
        float decoded[256];
        encoding->decode(encoding, blocks, encoding->block_elems, decoded);
        for (size_t i = 0; i < encoding->block_elems; i++)
            assert_true(decoded[i] == 0);
        encoding->encode(encoding, NULL, 0, NULL);
        encoding->decode(encoding, NULL, 0, NULL);
        assert_ok(encoding->queue_encode(encoding, f->stream, NULL, ZR_DTYPE_F32, 0, NULL));
        assert_ok(encoding->queue_decode(encoding, f->stream, NULL, 0, NULL, ZR_DTYPE_F32));
    }
}

TEST(bad_arguments_are_refused) {
    fixture_t *f = *state;
    const zr_encoding_t *e = &zr_encoding_float8;
    fixture_reset(f);
    char *blocks = fixture_take(f, 1024, 0), *values = fixture_take(f, 1024, 0);
    assert_refused(f, ZR_ERR_ARGUMENT,
                   e->queue_encode(e, f->stream, values, ZR_DTYPE_F32, 9, blocks + 2));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   e->queue_encode(e, f->stream, values, ZR_DTYPE_F32, 9, NULL));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   e->queue_decode(e, f->stream, blocks, 9, values + 1, ZR_DTYPE_BF16));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   e->queue_decode(e, f->stream, blocks, 9, values, ZR_DTYPE_U8));
}

int main(int argc, char **argv) {
    return fixture_run_tests(argc, argv);
}
