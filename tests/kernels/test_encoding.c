/*
 * Encodings say what is: their bytes, and functions that agree with each other on the host and on a
 * stream of the device that the first argument names, for any bits.
 */
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
    fixture_t *f = *state;
    static float values[N_ELEMS], decoded[N_ELEMS], back[N_ELEMS];
    static unsigned char blocks[4 * N_ELEMS], encoded[4 * N_ELEMS];
    draw(values);
    for (int e = 0; e < 2; e++) {
        const zr_encoding_t *encoding = encodings[e];
        size_t n_bytes = zr_encoding_bytes(encoding, N_ELEMS);
        fixture_reset(f);
        float *source = fixture_place(f, values, sizeof(values), 0);
        void *target = fixture_take(f, n_bytes, 0);
        float *result = fixture_take(f, sizeof(values), 0);
        encoding->encode(encoding, values, N_ELEMS, blocks);
        encoding->decode(encoding, blocks, N_ELEMS, decoded);
        assert_int_equal(encoding->queue_encode(encoding, f->stream, source, N_ELEMS, target),
                         ZR_OK);
        assert_int_equal(encoding->queue_decode(encoding, f->stream, target, N_ELEMS, result),
                         ZR_OK);
        fixture_download(f, encoded, target, n_bytes);
        fixture_download(f, back, result, sizeof(back));
        assert_memory_equal(encoded, blocks, n_bytes);
        assert_memory_equal(back, decoded, sizeof(back));
        for (size_t i = 0; i < N_ELEMS; i++) {
            uint16_t bits = ref_bf16_nearest(values[i]);
            float want = e == 0 ? values[i] : (float)ref_bf16_value(bits);
            assert_true(isnan(want) ? isnan(decoded[i]) != 0 : decoded[i] == want);
        }
    }
}

static const char *device_name;

static int setup(void **state) {
    fixture_t *f = calloc(1, sizeof(*f));
    fixture_open(f, device_name, 2, NULL);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    free(*state);
    return 0;
}

int main(int argc, char **argv) {
    device_name = fixture_device_name(argc, argv);
    if (fixture_probe(device_name) != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(setup, teardown);
}
