/*
 * The device conformance suite: ranges, streams, events, copies, refusals. Runs on the
 * device whose name is the first argument; host when there is none.
 */
#include "kernels/device_fixture.h"
#include "zero/optim/optimizer.h"

static const char *device_name;

static int setup(void **state) {
    static fixture_t fixture;
    fixture_open(&fixture, device_name, 2, NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    return 0;
}

static bool has_data(const fixture_t *f) {
    return !zr_device_info(f->device)->stores_nothing;
}

/* ---- opening --------------------------------------------------------------------- */

TEST(test_info) {
    fixture_t *f = *state;
    const zr_device_info_t *info = zr_device_info(f->device);
    assert_string_equal(info->backend, fixture_backend(device_name));
    assert_true(strlen(info->description) > 0);
    assert_true(info->granule_bytes > 0);
    assert_int_equal(info->granule_bytes & (info->granule_bytes - 1), 0);
    assert_true(info->memory_bytes >= f->arena_bytes);
    if (!info->stores_nothing)
        assert_int_equal(info->n_threads, strcmp(info->backend, "host") == 0 ? 2 : 0);
    assert_ptr_equal(zr_device_log(f->device)->context, f);
    assert_ptr_equal(zr_stream_device(f->stream), f->device);
    assert_string_equal(zr_tier_name(ZR_TIER_DEVICE), "device");
    assert_string_equal(zr_tier_name(ZR_TIER_HOST), "host");
    assert_string_equal(zr_tier_name(ZR_TIER_NVME), "nvme");
}

TEST(test_open_refusals) {
    fixture_t *f = *state;
    zr_device_t *device = NULL;
    zr_device_options_t options = zr_device_options_default();
    options.log = fixture_log(f);
    assert_refused(f, ZR_ERR_ARGUMENT, zr_device_open("abacus", &options, &device));
    assert_has(f->last_error, "\"abacus\"");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_device_open(NULL, &options, &device));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_device_open("host", &options, NULL));
    options.index = -1;
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_device_open(fixture_backend(device_name), &options, &device));
    options.index = 1 << 20;
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_device_open(fixture_backend(device_name), &options, &device));
    options.index = 0;
    options.n_threads = -1;
    assert_refused(f, ZR_ERR_ARGUMENT, zr_device_open("host", &options, &device));
    options.n_threads = 1 << 30;
    assert_refused(f, ZR_ERR_ARGUMENT, zr_device_open("host", &options, &device));
    options.n_threads = 1;
    options.isa = "mmx";
    assert_refused(f, ZR_ERR_ARGUMENT, zr_device_open("host", &options, &device));
    assert_has(f->last_error, "\"mmx\"");
    assert_null(device);
    zr_device_close(&device);
    zr_device_close(NULL);
}

/* ---- ranges ---------------------------------------------------------------------- */

/* Write to and read from device memory at `address`: a pattern that depends on `seed`. */
static void write_pattern(fixture_t *f, void *address, size_t size_bytes, unsigned char seed) {
    unsigned char *bytes = malloc(size_bytes);
    for (size_t i = 0; i < size_bytes; i++)
        bytes[i] = (unsigned char)(seed + i * 7 + (i >> 8));
    fixture_upload(f, address, bytes, size_bytes);
    free(bytes);
}

/* Where there is no memory, zeros come instead. */
static void check_pattern(fixture_t *f, const void *address, size_t size_bytes,
                          unsigned char seed) {
    unsigned char *bytes = malloc(size_bytes);
    memset(bytes, 0x5a, size_bytes);
    fixture_download(f, bytes, address, size_bytes);
    for (size_t i = 0; i < size_bytes; i++)
        assert_int_equal(bytes[i], has_data(f) ? (unsigned char)(seed + i * 7 + (i >> 8)) : 0);
    free(bytes);
}

TEST(test_map_granule_by_granule) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        void *base = NULL;
        assert_ok(zr_range_reserve(f->device, (zr_tier_t)tier, 8 * granule, &base));
        assert_int_equal((uintptr_t)base % granule, 0);
        assert_int_equal((uintptr_t)base % 4096, 0);
        char *bytes = base;
        /* 1 and 3..6; then 2 joins them; then 4 and 5 leave, and the others keep their bytes. */
        assert_ok(zr_range_map(f->device, (zr_tier_t)tier, base, granule, granule));
        assert_ok(zr_range_map(f->device, (zr_tier_t)tier, base, 3 * granule, 4 * granule));
        write_pattern(f, bytes + granule, granule, 1);
        write_pattern(f, bytes + 3 * granule, 4 * granule, 3);
        assert_ok(zr_range_map(f->device, (zr_tier_t)tier, base, 2 * granule, granule));
        write_pattern(f, bytes + 2 * granule, granule, 2);
        check_pattern(f, bytes + granule, granule, 1);
        check_pattern(f, bytes + 3 * granule, 4 * granule, 3);
        assert_ok(zr_range_unmap(f->device, (zr_tier_t)tier, base, 4 * granule, 2 * granule));
        check_pattern(f, bytes + 2 * granule, granule, 2);
        check_pattern(f, bytes + 3 * granule, granule, 3);
        /* Memory comes back at the same addresses. */
        assert_ok(zr_range_map(f->device, (zr_tier_t)tier, base, 4 * granule, 2 * granule));
        write_pattern(f, bytes + 4 * granule, 2 * granule, 9);
        check_pattern(f, bytes + 4 * granule, 2 * granule, 9);
        zr_range_release(f->device, (zr_tier_t)tier, &base, 8 * granule);
        assert_null(base);
    }
}

/* Two ranges of 8 granules, the first mapped whole. */
static void reserve_two(fixture_t *f, zr_tier_t tier, void **first_p, void **second_p) {
    size_t granule = zr_device_info(f->device)->granule_bytes;
    assert_ok(zr_range_reserve(f->device, tier, 8 * granule, first_p));
    assert_ok(zr_range_reserve(f->device, tier, 8 * granule, second_p));
    assert_ok(zr_range_map(f->device, tier, *first_p, 0, 8 * granule));
}

/* What is moved can be used there, can be mapped anew here, and leaves its neighbours alone. */
TEST(test_move) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    for (int i = ZR_TIER_DEVICE; i <= ZR_TIER_HOST; i++) {
        zr_tier_t tier = (zr_tier_t)i;
        void *a = NULL, *b = NULL;
        reserve_two(f, tier, &a, &b);
        char *first = a, *second = b;
        write_pattern(f, first, 8 * granule, 5);
        assert_ok(zr_range_map(f->device, tier, b, 4 * granule, granule));
        write_pattern(f, second + 4 * granule, granule, 6);
        assert_ok(zr_range_move(f->device, tier, a, 2 * granule, b, granule, 3 * granule));
        check_pattern(f, first, 2 * granule, 5);
        check_pattern(f, second + 4 * granule, granule, 6);
        write_pattern(f, second + granule, 3 * granule, 7);
        /* Here it can be mapped again, and there it can be unmapped. */
        assert_ok(zr_range_map(f->device, tier, a, 2 * granule, 3 * granule));
        write_pattern(f, first + 2 * granule, 3 * granule, 8);
        check_pattern(f, second + granule, 3 * granule, 7);
        check_pattern(f, first, 2 * granule, 5);
        assert_ok(zr_range_unmap(f->device, tier, b, 2 * granule, granule));
        check_pattern(f, second + granule, granule, 7);
        check_pattern(f, second + 4 * granule, granule, 6);
        /* Within a range, side by side. */
        assert_ok(zr_range_move(f->device, tier, b, granule, b, 2 * granule, granule));
        write_pattern(f, second + 2 * granule, granule, 9);
        check_pattern(f, second + 4 * granule, granule, 6);
        zr_range_release(f->device, tier, &a, 8 * granule);
        zr_range_release(f->device, tier, &b, 8 * granule);
    }
}

/* Scattered one by one and collected again: what came from many places moves in one call. */
TEST(test_move_what_was_moved) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    void *a = NULL, *b = NULL;
    reserve_two(f, ZR_TIER_DEVICE, &a, &b);
    for (int round = 0; round < 3; round++) {
        write_pattern(f, a, 8 * granule, (unsigned char)round);
        for (size_t i = 0; i < 8; i++) {
            assert_ok(zr_range_move(f->device, ZR_TIER_DEVICE, a, i * granule, b,
                                    i * 3 % 8 * granule, granule));
            write_pattern(f, (char *)b + i * 3 % 8 * granule, granule, (unsigned char)(20 + i));
        }
        for (size_t i = 0; i < 8; i++)
            check_pattern(f, (char *)b + i * 3 % 8 * granule, granule, (unsigned char)(20 + i));
        assert_ok(zr_range_move(f->device, ZR_TIER_DEVICE, b, 0, a, 0, 8 * granule));
    }
    zr_range_release(f->device, ZR_TIER_DEVICE, &a, 8 * granule);
    zr_range_release(f->device, ZR_TIER_DEVICE, &b, 8 * granule);
}

TEST(test_move_refusals) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    zr_tier_t tier = ZR_TIER_DEVICE;
    void *a = NULL, *b = NULL, *host = NULL;
    reserve_two(f, tier, &a, &b);
    assert_ok(zr_range_reserve(f->device, ZR_TIER_HOST, 8 * granule, &host));
    write_pattern(f, a, 8 * granule, 1);
    int n_errors = f->n_errors;
    assert_ok(zr_range_move(f->device, tier, a, granule, b, granule, 0));
    assert_int_equal(f->n_errors, n_errors);
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_move(f->device, tier, a, 1, b, 0, granule));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_move(f->device, tier, a, 0, b, 1, granule));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_move(f->device, tier, a, 0, b, 0, granule - 1));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_move(f->device, tier, a, 0, b, 7 * granule, 2 * granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_move(f->device, tier, a, 7 * granule, b, 0, 2 * granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_move(f->device, tier, (char *)a + granule, 0, b, 0, granule));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_move(f->device, tier, a, 0, host, 0, granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_move(f->device, tier, a, 0, a, granule, 2 * granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_move(f->device, tier, a, granule, a, 0, 2 * granule));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_move(f->device, tier, a, 0, a, 0, granule));
    check_pattern(f, a, 8 * granule, 1);
    zr_range_release(f->device, ZR_TIER_HOST, &host, 8 * granule);
    zr_range_release(f->device, tier, &a, 8 * granule);
    zr_range_release(f->device, tier, &b, 8 * granule);
}

TEST(test_map_nothing) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    int n_errors = f->n_errors;
    void *base = NULL;
    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, granule, &base));
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, base, granule, 0));
    assert_ok(zr_range_unmap(f->device, ZR_TIER_DEVICE, base, 0, 0));
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, granule);
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, granule);
    zr_range_release(f->device, ZR_TIER_DEVICE, NULL, granule);
    assert_int_equal(f->n_errors, n_errors);
}

TEST(test_range_refusals) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    void *base = NULL;
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_reserve(f->device, ZR_TIER_NVME, granule, &base));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_reserve(f->device, ZR_TIER_DEVICE, 0, &base));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_reserve(f->device, ZR_TIER_DEVICE, granule + 1, &base));
    int n_errors_before = f->n_errors; /* what a caller may get over is no error */
    assert_int_equal(zr_range_reserve(f->device, ZR_TIER_DEVICE, (size_t)1 << 62, &base),
                     ZR_ERR_BUDGET);
    assert_int_equal(f->n_errors, n_errors_before);
    assert_null(base);

    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, 4 * granule, &base));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_range_map(f->device, ZR_TIER_DEVICE, base, 1, granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_map(f->device, ZR_TIER_DEVICE, base, 0, granule - 1));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_map(f->device, ZR_TIER_DEVICE, base, 3 * granule, 2 * granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_map(f->device, ZR_TIER_DEVICE, base, 5 * granule, granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_map(f->device, ZR_TIER_DEVICE, base, granule, SIZE_MAX - granule + 1));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_map(f->device, ZR_TIER_HOST, base, 0, granule)); /* of other tier */
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_unmap(f->device, ZR_TIER_DEVICE, (char *)base + granule, 0, granule));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_range_unmap(f->device, ZR_TIER_DEVICE, base, granule / 2, granule));

    void *kept = base;
    int n_errors = f->n_errors;
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, granule); /* wrong size */
    assert_ptr_equal(base, kept);
    assert_int_equal(f->n_errors, n_errors + 1);
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, 4 * granule);
    assert_null(base);
}

/* More than the machine has: refused as budget, and what was mapped before is untouched. */
TEST(test_map_too_much) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    size_t size_bytes = (size_t)1 << 45;
    void *base = NULL;
    if (zr_range_reserve(f->device, ZR_TIER_DEVICE, size_bytes, &base) != ZR_OK)
        skip(); /* fewer addresses than that: a limit of the system on this process */
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, base, 0, granule));
    write_pattern(f, base, granule, 77);
    int n_errors_before = f->n_errors; /* what a caller may get over is no error */
    assert_int_equal(zr_range_map(f->device, ZR_TIER_DEVICE, base, granule, size_bytes - granule),
                     ZR_ERR_BUDGET);
    assert_int_equal(f->n_errors, n_errors_before);
    check_pattern(f, base, granule, 77);
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, base, granule, granule));
    write_pattern(f, (char *)base + granule, granule, 78);
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, size_bytes);
}

/* A device that is closed gives back the ranges that were forgotten. */
TEST(test_close_releases_ranges) {
    for (int i = 0; i < 64; i++) {
        fixture_t other;
        fixture_open(&other, device_name, 1, NULL); /* 96 MiB mapped and partly written */
        write_pattern(&other, other.arena, 1 << 20, (unsigned char)i);
        zr_stream_destroy(&other.stream);
        zr_device_close(&other.device);
        assert_null(other.device);
        assert_int_equal(other.n_errors, 0);
    }
}

/* ---- streams and events ------------------------------------------------------------ */

typedef zr_status_t (*create_stream_fn)(zr_device_t *device, const char *name,
                                        zr_stream_t **stream_p);

static void check_order(fixture_t *f, create_stream_fn create_second) {
    enum { n_elems = 100003, n_rounds = 20 };
    zr_stream_t *second = NULL;
    zr_event_t *produced = NULL, *consumed = NULL;
    assert_ok(create_second(f->device, "second", &second));
    assert_ok(zr_event_create(f->device, &produced));
    assert_ok(zr_event_create(f->device, &consumed));
    fixture_reset(f);
    float *x = fixture_take(f, n_elems * sizeof(float), 0);
    float *sum = fixture_take(f, n_elems * sizeof(float), 0);
    float *result = malloc(n_elems * sizeof(float));

    assert_ok(zr_kernel_fill(f->stream, sum, ZR_DTYPE_F32, n_elems, 0.0f));
    for (int round = 1; round <= n_rounds; round++) {
        /* The first stream writes x, the second adds it up; neither overtakes the other. */
        assert_ok(zr_stream_wait(f->stream, consumed));
        assert_ok(zr_kernel_fill(f->stream, x, ZR_DTYPE_F32, n_elems, (float)round));
        assert_ok(zr_event_record(produced, f->stream));
        assert_ok(zr_stream_wait(second, produced));
        assert_ok(zr_kernel_add(second, sum, ZR_DTYPE_F32, x, ZR_DTYPE_F32, n_elems));
        assert_ok(zr_event_record(consumed, second));
    }
    assert_ok(zr_copy_async(second, result, sum, n_elems * sizeof(float), ZR_COPY_DEVICE_TO_HOST));
    assert_ok(zr_stream_synchronize(second));
    for (size_t i = 0; i < n_elems; i++)
        assert_true(result[i] == (has_data(f) ? (float)(n_rounds * (n_rounds + 1) / 2) : 0.0f));
    free(result);
    zr_event_destroy(&produced);
    zr_event_destroy(&consumed);
    zr_stream_destroy(&second);
    assert_null(second);
}

TEST(test_events_order_streams) {
    check_order(*state, zr_stream_create);
    check_order(*state, zr_stream_create_concurrent);
}

TEST(test_events) {
    fixture_t *f = *state;
    zr_event_t *event = NULL;
    bool passed = false;
    assert_ok(zr_event_create(f->device, &event));
    assert_ok(zr_event_query(event, &passed));
    assert_true(passed); /* never recorded */
    assert_ok(zr_event_synchronize(event));
    assert_ok(zr_stream_wait(f->stream, event));
    for (int i = 0; i < 3; i++) {
        assert_ok(zr_event_record(event, f->stream));
        assert_ok(zr_event_synchronize(event));
        passed = false;
        assert_ok(zr_event_query(event, &passed));
        assert_true(passed);
    }
    zr_event_destroy(&event);
    assert_null(event);
    zr_event_destroy(&event);
    zr_event_destroy(NULL);
}

TEST(test_stream_refusals) {
    fixture_t *f = *state;
    zr_stream_t *stream = NULL;
    assert_refused(f, ZR_ERR_ARGUMENT, zr_stream_create(f->device, NULL, &stream));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_stream_create(f->device, "x", NULL));
    fixture_t other;
    fixture_open(&other, device_name, 1, NULL);
    zr_event_t *event = NULL;
    assert_ok(zr_event_create(other.device, &event));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_event_record(event, f->stream));
    assert_ok(zr_stream_wait(f->stream, event)); /* ranks wait for each other */
    zr_event_destroy(&event);
    fixture_close(&other);
    zr_stream_destroy(&stream);
    zr_stream_destroy(NULL);
}

/* ---- copies ---------------------------------------------------------------------- */

TEST(test_copies) {
    fixture_t *f = *state;
    const size_t sizes[] = {0, 1, 3, 4096, 65537, 262144, 262145, 5000011};
    for (size_t s = 0; s < N_OF(sizes); s++) {
        size_t n = sizes[s];
        for (size_t skip = 0; skip < 4; skip += 3) {
            fixture_reset(f);
            unsigned char *there = fixture_take(f, n + 2, skip);
            unsigned char *back = fixture_take(f, n + 2, 5);
            unsigned char *source = malloc(n + 2), *result = malloc(n + 2);
            uint64_t random = n + skip;
            for (size_t i = 0; i < n + 2; i++)
                source[i] = (unsigned char)random_bits(&random);
            memset(result, 0xa5, n + 2);
            fixture_upload(f, back, result, n + 2); /* the bytes around must stay */
            fixture_upload(f, there, source, n + 2);
            assert_ok(zr_copy_async(f->stream, back + 1, there + 1, n, ZR_COPY_DEVICE_TO_DEVICE));
            fixture_download(f, result, back, n + 2);
            assert_int_equal(result[0], has_data(f) ? 0xa5 : 0);
            assert_int_equal(result[n + 1], has_data(f) ? 0xa5 : 0);
            if (!has_data(f))
                memset(source, 0, n + 2);
            assert_memory_equal(result + 1, source + 1, n);
            free(source);
            free(result);
        }
    }
}

TEST(test_copy_refusals) {
    fixture_t *f = *state;
    fixture_reset(f);
    char *x = fixture_take(f, 64, 0);
    char host[64] = {0};
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_copy_async(f->stream, x, NULL, 64, ZR_COPY_HOST_TO_DEVICE));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_copy_async(f->stream, NULL, x, 64, ZR_COPY_DEVICE_TO_HOST));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_copy_async(f->stream, x, host, 64, (zr_copy_t)3));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_copy_async(f->stream, x + 8, x, 16, ZR_COPY_DEVICE_TO_DEVICE));
    assert_refused(f, ZR_ERR_ARGUMENT,
                   zr_copy_async(f->stream, x, x + 8, 16, ZR_COPY_DEVICE_TO_DEVICE));
    assert_ok(zr_copy_async(f->stream, x, x + 16, 16, ZR_COPY_DEVICE_TO_DEVICE));
    assert_ok(zr_copy_async(f->stream, NULL, NULL, 0, ZR_COPY_DEVICE_TO_DEVICE));
    assert_ok(zr_stream_synchronize(f->stream));
}

/* ---- costs ----------------------------------------------------------------------- */

static void check_cost(fixture_t *f, zr_stream_t *stream, double operations, double bytes) {
    static zr_cost_t before; /* of the one stream that the test uses */
    zr_cost_t cost;
    assert_ok(zr_stream_cost(stream, &cost));
    assert_true(cost.operations - before.operations == operations);
    assert_true(cost.bytes - before.bytes == bytes);
    before = cost;
}

TEST(test_costs) {
    fixture_t *f = *state;
    zr_stream_t *stream = NULL;
    assert_ok(zr_stream_create(f->device, "costs", &stream));
    fixture_reset(f);
    float *x = fixture_take(f, 4000, 0), *y = fixture_take(f, 4000, 0);
    check_cost(f, stream, 0, 0);
    assert_ok(zr_kernel_fill(stream, x, ZR_DTYPE_F32, 1000, 1.0f));
    check_cost(f, stream, 0, 4000);
    assert_ok(zr_copy_async(stream, y, x, 4000, ZR_COPY_DEVICE_TO_DEVICE));
    check_cost(f, stream, 0, 8000);
    assert_ok(zr_kernel_add(stream, x, ZR_DTYPE_F32, y, ZR_DTYPE_BF16, 1000));
    check_cost(f, stream, 1000, 10000);
    assert_ok(zr_kernel_scale(stream, x, ZR_DTYPE_BF16, 1000, 1.0f));
    check_cost(f, stream, 1000, 4000);
    assert_ok(zr_kernel_cast(stream, y, ZR_DTYPE_BF16, x, ZR_DTYPE_F32, 1000));
    check_cost(f, stream, 0, 6000);
    const void *sources[] = {x, y, x};
    assert_ok(zr_kernel_sum(stream, y, sources, 3, ZR_DTYPE_F32, 1000));
    check_cost(f, stream, 2000, 16000);
    assert_ok(zr_kernel_sum_of_squares(stream, x, ZR_DTYPE_BF16, 900, (double *)y, NULL));
    check_cost(f, stream, 1800, 1800);
    assert_refused(f, ZR_ERR_ARGUMENT, zr_kernel_scale(stream, NULL, ZR_DTYPE_F32, 1, 1.0f));
    check_cost(f, stream, 0, 0);
    zr_update_t adamw = {.n_elems = 100, .grad_dtype = ZR_DTYPE_BF16, .param_dtype = ZR_DTYPE_F32};
    assert_true(zr_update_cost(&zr_adamw.rule, &adamw).bytes == 100.0 * (24 + 2 + 4));
    zr_stream_destroy(&stream);
}

int main(int argc, char **argv) {
    device_name = fixture_device_name(argc, argv);
    if (fixture_probe(device_name) != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(setup, teardown);
}
