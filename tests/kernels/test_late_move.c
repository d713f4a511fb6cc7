/*
 * Moving memory on the late device, which every test of schedules runs on: what is queued when
 * memory moves elsewhere runs later and finds its own.
 */
#include "tests/common/late_device.h"
#include "tests/common/test.h"

#define N_GRANULES 8

TEST(test_move_beside_queued_work) {
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    void *from = NULL, *to = NULL;
    assert_ok(late_device_open(&device));
    assert_ok(zr_stream_create(device, "test", &stream));
    size_t granule = zr_device_info(device)->granule_bytes, size = N_GRANULES * granule;
    char *text = malloc(granule), *result = malloc(granule);
    assert_non_null(text);
    assert_non_null(result);
    memset(text, 7, granule);
    for (int i = ZR_TIER_DEVICE; i <= ZR_TIER_HOST; i++) {
        zr_tier_t tier = (zr_tier_t)i;
        assert_ok(zr_range_reserve(device, tier, size, &from));
        assert_ok(zr_range_reserve(device, tier, size, &to));
        assert_ok(zr_range_map(device, tier, from, 0, size));
        assert_ok(zr_copy_async(stream, from, text, granule, ZR_COPY_HOST_TO_DEVICE));
        assert_ok(zr_range_move(device, tier, from, granule, to, 2 * granule, 4 * granule));
        char *there = (char *)to + 5 * granule;
        assert_ok(zr_copy_async(stream, there, from, granule, ZR_COPY_DEVICE_TO_DEVICE));
        assert_ok(zr_copy_async(stream, result, there, granule, ZR_COPY_DEVICE_TO_HOST));
        memset(result, 0, granule);
        assert_ok(zr_stream_synchronize(stream));
        assert_memory_equal(result, text, granule);
        assert_ok(zr_range_map(device, tier, from, granule, 4 * granule));
        zr_range_release(device, tier, &from, size);
        zr_range_release(device, tier, &to, size);
    }
    free(text);
    free(result);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
}
