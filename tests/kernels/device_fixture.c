#include "kernels/device_fixture.h"

#include <stdio.h>
#include <string.h>

#include "tests/common/one_thing.h"
#include "tests/common/test.h"

#define ARENA_BYTES ((size_t)96 << 20)

static bool is_concurrent;

const char *fixture_device_name(int argc, char **argv) {
    is_concurrent = argc > 1 && strcmp(argv[1], "beside") == 0;
    return argc > 1 && !is_concurrent ? argv[1] : "host";
}

const char *fixture_backend(const char *device_name) {
    return strcmp(device_name, "shared") == 0 ? "host" : device_name;
}

int fixture_probe(const char *device_name) {
    zr_device_t *device = NULL;
    zr_device_options_t options = zr_device_options_default();
    options.shares_memory = strcmp(device_name, "shared") == 0;
    zr_status_t status = zr_device_open(fixture_backend(device_name), &options, &device);
    if (status == ZR_OK && options.shares_memory && !zr_device_info(device)->shares_memory)
        status = ZR_ERR_UNSUPPORTED;
    zr_device_close(&device);
    if (status == ZR_ERR_UNSUPPORTED || status == ZR_ERR_DEVICE) {
        printf("skipped: no device \"%s\" here\n", device_name);
        return FIXTURE_SKIPPED;
    }
    return 0;
}

static void count_error(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    fixture_t *fixture = context;
    if (level != ZR_LOG_ERROR)
        return;
    fixture->n_errors++;
    snprintf(fixture->last_error, sizeof(fixture->last_error), "%s", message);
}

zr_log_t fixture_log(fixture_t *fixture) {
    return (zr_log_t){.sink = count_error, .context = fixture, .level = ZR_LOG_WARNING, .rank = -1};
}

void fixture_open(fixture_t *fixture, const char *device_name, int n_threads, const char *isa) {
    memset(fixture, 0, sizeof(*fixture));
    zr_device_options_t options = {.log = fixture_log(fixture),
                                   .n_threads = n_threads,
                                   .isa = isa,
                                   .concurrent = is_concurrent};
    options.shares_memory = strcmp(device_name, "shared") == 0;
    assert_ok(zr_device_open(fixture_backend(device_name), &options, &fixture->device));
    assert_ok(zr_stream_create_concurrent(fixture->device, "test", &fixture->stream));
    size_t granule = zr_device_info(fixture->device)->granule_bytes;
    fixture->arena_bytes = (ARENA_BYTES + granule - 1) / granule * granule;
    void *arena = NULL;
    assert_ok(zr_range_reserve(fixture->device, ZR_TIER_DEVICE, fixture->arena_bytes, &arena));
    assert_ok(zr_range_map(fixture->device, ZR_TIER_DEVICE, arena, 0, fixture->arena_bytes));
    fixture->arena = arena;
}

void fixture_close(fixture_t *fixture) {
    void *arena = fixture->arena;
    zr_stream_destroy(&fixture->stream);
    zr_range_release(fixture->device, ZR_TIER_DEVICE, &arena, fixture->arena_bytes);
    zr_device_close(&fixture->device);
}

void *fixture_take(fixture_t *fixture, size_t size_bytes, size_t skip_bytes) {
    size_t offset = (fixture->used_bytes + 255) / 256 * 256 + skip_bytes;
    assert_true(offset + size_bytes <= fixture->arena_bytes);
    fixture->used_bytes = offset + size_bytes;
    return fixture->arena + offset;
}

void fixture_reset(fixture_t *fixture) {
    fixture->used_bytes = 0;
}

void fixture_upload(fixture_t *fixture, void *dst, const void *src, size_t size_bytes) {
    assert_ok(zr_copy_async(fixture->stream, dst, src, size_bytes, ZR_COPY_HOST_TO_DEVICE));
    assert_ok(zr_stream_synchronize(fixture->stream));
}

void fixture_download(fixture_t *fixture, void *dst, const void *src, size_t size_bytes) {
    assert_ok(zr_copy_async(fixture->stream, dst, src, size_bytes, ZR_COPY_DEVICE_TO_HOST));
    assert_ok(zr_stream_synchronize(fixture->stream));
}

void *fixture_place(fixture_t *fixture, const void *src, size_t size_bytes, size_t skip_bytes) {
    void *dst = fixture_take(fixture, size_bytes, skip_bytes);
    fixture_upload(fixture, dst, src, size_bytes);
    return dst;
}

float fixture_random_float(uint64_t *state) {
    return (float)((double)(random_bits(state) >> 40) * 0x1p-23 - 1.0);
}

void fixture_random_values(void *values, zr_dtype_t dtype, size_t n, float scale, uint64_t *state) {
    for (size_t i = 0; i < n; i++) {
        float value = scale * fixture_random_float(state);
        if (dtype == ZR_DTYPE_F32)
            ((float *)values)[i] = value;
        else
            ((zr_bf16_t *)values)[i] = zr_bf16_from_f32(value);
    }
}

static const char *device_of_tests;

static int open_fixture(void **state) {
    fixture_t *f = calloc(1, sizeof(*f));
    fixture_open(f, device_of_tests, 2, NULL);
    *state = f;
    return 0;
}

static int close_fixture(void **state) {
    fixture_close(*state);
    free(*state);
    return 0;
}

int fixture_run_tests(int argc, char **argv) {
    device_of_tests = fixture_device_name(argc, argv);
    if (fixture_probe(device_of_tests) != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(open_fixture, close_fixture);
}
