/*
 * The emulation's matrix instructions against a plain product, its copies to shared memory and
 * its dynamic shared memory.
 */
#include <sys/wait.h>

#include "kernels/device_backend.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_matrix_probe.h"
#include "tests/kernels/device_fixture.h"

static int setup(void **state) {
    static fixture_t fixture;
    fixture_open(&fixture, "cuda", 1, NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    emu_forget_failures();
    return 0;
}

/* Small whole numbers: every sum is exact, in any order. */
static void draw_small(zr_bf16_t *values, uint64_t seed) {
    for (int i = 0; i < 256; i++)
        values[i] = zr_bf16_from_f32((float)(int)(random_bits(&seed) % 17) - 8.0f);
}

static void check_product(fixture_t *f, probe_layout_t layout) {
    zr_bf16_t a[256], b[256];
    float c[256];
    draw_small(a, 1);
    draw_small(b, 2);
    fixture_reset(f);
    void *on_a = fixture_place(f, a, sizeof(a), 0), *on_b = fixture_place(f, b, sizeof(b), 0);
    float *on_c = fixture_take(f, sizeof(c), 0);
    assert_ok(probe_product(f->stream, on_c, on_a, on_b, layout, 48));
    fixture_download(f, c, on_c, sizeof(c));
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 16; n++) {
            float sum = 0;
            for (int k = 0; k < 16; k++)
                sum += zr_bf16_to_f32(a[m * 16 + k]) *
                       zr_bf16_to_f32(b[layout == PROBE_ROWS_OF_N ? n * 16 + k : k * 16 + n]);
            assert_true(c[m * 16 + n] == sum);
        }
}

TEST_WITH(test_product, setup, teardown) {
    check_product(*state, PROBE_ROWS_OF_N);
    check_product(*state, PROBE_ROWS_OF_K);
}

/* Rows 64 bytes apart: every second one begins at the same bank. */
TEST_WITH(test_banks, setup, teardown) {
    fixture_t *f = *state;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        f->device->owner = getpid(); /* devices refuse forks */
        fixture_reset(f);
        zr_bf16_t *matrix = fixture_take(f, 512, 0);
        float *c = fixture_take(f, 1024, 0);
        if (freopen("/dev/null", "w", stderr) != NULL &&
            probe_product(f->stream, c, matrix, matrix, PROBE_ROWS_OF_K, 64) == ZR_OK)
            (void)!zr_stream_synchronize(f->stream);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

/* How many of 256 words came out as they should, `n_words` of them being there. */
static int n_right_copies(fixture_t *f, size_t n_words, bool with_wait) {
    float in[256], out[256];
    int n_right = 0;
    for (int i = 0; i < 256; i++)
        in[i] = (float)(i + 1);
    fixture_reset(f);
    const float *from = fixture_place(f, in, n_words * sizeof(float), 0);
    float *to = fixture_take(f, sizeof(out), 0);
    assert_ok(probe_copies(f->stream, to, from, n_words, with_wait));
    fixture_download(f, out, to, sizeof(out));
    for (size_t i = 0; i < 256; i++)
        n_right += out[255 - i] == (i < n_words ? in[i] : 0.0f);
    return n_right;
}

TEST_WITH(test_copies, setup, teardown) {
    assert_int_equal(n_right_copies(*state, 256, true), 256);
    assert_int_equal(n_right_copies(*state, 100, true), 256);
    int n_right = n_right_copies(*state, 256, false); /* some are early */
    assert_true(n_right > 0 && n_right < 256);
}

TEST_WITH(test_shared, setup, teardown) {
    fixture_t *f = *state;
    float out[512];
    fixture_reset(f);
    float *to = fixture_take(f, sizeof(out), 0);
    assert_ok(probe_shared(f->stream, to, false));
    fixture_download(f, out, to, sizeof(out));
    for (int i = 0; i < 512; i++)
        assert_true(isnan(out[i])); /* also in the second block */

    assert_refused(f, ZR_ERR_DEVICE, probe_much_shared(f->stream, to, (48 << 10) + 128, false));
    assert_refused(f, ZR_ERR_DEVICE, probe_much_shared(f->stream, to, (99 << 10) + 128, true));
    assert_ok(probe_much_shared(f->stream, to, 48 << 10, false));
    assert_ok(probe_much_shared(f->stream, to, 99 << 10, true));
    assert_ok(zr_stream_synchronize(f->stream));

    assert_ok(probe_shared(f->stream, to, true));
    assert_refused(f, ZR_ERR_DEVICE, zr_stream_synchronize(f->stream));
}

/* Each tile of each head is taken once: all of a group of heads, whose rows fit the L2, before any
 * of the next, and of the group's heads in turn. */
static void check_order(const probe_heads_t *heads, bool by_keys, size_t n_tiles) {
    size_t n_shared = heads->heads / heads->kv_heads;
    size_t n_heads = heads->batch * (by_keys ? heads->kv_heads : heads->heads);
    size_t n_group = by_keys ? heads->n_cached / n_shared : heads->n_cached * n_shared;
    bool *is_taken = calloc(n_heads * n_tiles, sizeof(bool));
    n_group = n_group == 0 ? 1 : n_group;
    for (size_t item = 0; item < n_heads * n_tiles; item++) {
        size_t head, tile, group = item / (n_group * n_tiles);
        size_t n = n_heads - group * n_group < n_group ? n_heads - group * n_group : n_group;
        probe_attention_item(heads, by_keys, n_tiles, item, &head, &tile);
        assert_true(head < n_heads && tile < n_tiles);
        assert_int_equal(head / n_group, group);
        assert_int_equal(tile, (item - group * n_group * n_tiles) / n);
        assert_false(is_taken[head * n_tiles + tile]);
        is_taken[head * n_tiles + tile] = true;
    }
    free(is_taken);
}

TEST(test_attention_order) {
    static const probe_heads_t cases[] = {
        {1, 1, 1, 1}, {2, 3, 3, 1}, {2, 3, 3, 4}, {3, 5, 5, 2},  {1, 8, 2, 1},
        {2, 8, 2, 3}, {3, 6, 1, 6}, {2, 6, 3, 7}, {1, 4, 4, 99}, {12, 25, 25, 48}};
    for (size_t i = 0; i < N_OF(cases); i++)
        for (size_t n_tiles = 1; n_tiles < 9; n_tiles += 3) {
            check_order(&cases[i], false, n_tiles);
            check_order(&cases[i], true, n_tiles);
        }
}
