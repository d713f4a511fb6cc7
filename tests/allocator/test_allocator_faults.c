/*
 * The system has no memory for metadata: every allocation of creating and using an
 * allocator fails once, and then all from it on. Whatever was asked for is either there
 * or refused, everything can still be freed, and nothing leaks. A recording that has no memory
 * ends, and what it records goes on.
 *
 * The linker sends malloc, calloc and realloc of the library here (--wrap).
 */
#include <jansson.h>

#include "allocator/snapshot.h"
#include "tests/allocator/fail_malloc.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define GRANULE ((size_t)16384)
#define N_POINTERS 160

static zr_status_t allocate_one(zr_allocator_t *allocator, int i, void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = (size_t)(i * 37 % 23) * 700,
                                       .tier = (zr_tier_t)(i % 2),
                                       .tag = ZR_TAG_OTHER,
                                       .lifetime = (zr_lifetime_t)(i % ZR_N_LIFETIMES)};
    return zr_allocate(allocator, &request, pointer_p);
}

/* Fill, free half behind a stream, fill again under pressure, free all. */
static void use(zr_allocator_t *allocator, zr_stream_t *stream) {
    void *pointers[N_POINTERS] = {NULL};
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N_POINTERS; i++) {
            if (pointers[i] != NULL)
                continue;
            zr_status_t status = allocate_one(allocator, i, &pointers[i]);
            assert_true(status == ZR_OK || status == ZR_ERR_MEMORY || status == ZR_ERR_BUDGET);
            assert_int_equal(status == ZR_OK, pointers[i] != NULL);
        }
        assert_true(zr_allocator_is_valid(allocator));
        for (int i = round; i < N_POINTERS; i += 2 - round) {
            fake_stream_queue(stream);
            zr_free(allocator, &pointers[i], i % 3 == 0 ? NULL : stream);
            assert_null(pointers[i]);
        }
    }
    for (int i = 0; i < N_POINTERS; i++)
        zr_free(allocator, &pointers[i], NULL);
    zr_status_t status = zr_allocator_trim(allocator, ZR_TIER_DEVICE);
    assert_true(status == ZR_OK || status == ZR_ERR_MEMORY);
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(allocator, ZR_TIER_DEVICE, &statistics);
    assert_int_equal(statistics.live.live, 0);
    assert_true(zr_allocator_is_valid(allocator));
}

/* A whole life with a fault at the n-th allocation; how many there were to fail. */
static size_t run(size_t n, bool stays) {
    fake_t *fake = fake_open(GRANULE, true);
    zr_stream_t *stream = NULL;
    assert_ok(zr_stream_create(fake->device, "test", &stream));
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fake);
    options.budget_bytes[ZR_TIER_DEVICE] = options.budget_bytes[ZR_TIER_HOST] = 90 * GRANULE;

    fault.countdown = n;
    fault.stays = stays;
    fault.n_failed = 0;
    zr_allocator_t *allocator = NULL;
    zr_status_t status = zr_allocator_create(fake->device, &options, &allocator);
    if (status == ZR_OK) {
        use(allocator, stream);
        zr_allocator_destroy(&allocator);
    } else {
        assert_int_equal(status, ZR_ERR_MEMORY);
        assert_null(allocator);
    }
    fault.countdown = 0;
    zr_stream_destroy(&stream);
    fake_close(fake);
    return fault.n_failed;
}

TEST(test_each_allocation_fails_once) {
    size_t n = 1;
    while (run(n, false) > 0)
        n++;
    printf("%zu allocations failed, one per run\n", n - 1);
    assert_true(n > 50);
}

TEST(test_all_allocations_fail_from_one_on) {
    size_t n = 1;
    while (run(n, true) > 0)
        n++;
    assert_true(n > 50);
}

/* ---- recording ------------------------------------------------------------------- */

#define N_ROUNDS 3

/* Allocate and free under a recording, all of which has to succeed. Names differ by round, so
 * that the table of names grows, too. */
static void use_recorded(zr_allocator_t *allocator, zr_stream_t *stream, int round) {
    void *pointers[N_POINTERS] = {NULL};
    char name[32];
    for (int i = 0; i < N_POINTERS; i++) {
        snprintf(name, sizeof(name), "tensor %d of %d", i % 50, round);
        zr_allocation_request_t request = {.size_bytes = (size_t)(1 + i * 37 % 23) * 100,
                                           .tier = (zr_tier_t)(i % 2),
                                           .tag = ZR_TAG_OTHER,
                                           .lifetime = (zr_lifetime_t)(i % ZR_N_LIFETIMES),
                                           .name = name};
        assert_ok(zr_allocate(allocator, &request, &pointers[i]));
        zr_allocator_mark(allocator,
                          &(zr_mark_t){.step = (size_t)round + 1, .micro_batch = (size_t)i});
    }
    assert_true(zr_allocator_is_valid(allocator));
    for (int i = 0; i < N_POINTERS; i++)
        zr_free(allocator, &pointers[i], i % 3 == 0 ? NULL : stream);
    assert_true(zr_allocator_is_valid(allocator));
}

/* Each form is written whole, or refused and said so. */
static void save(const zr_recording_t *recording, const zr_log_t *log, fake_t *fake) {
    static const char *const paths[] = {"faults.csv", "faults.json", "faults.pickle"};
    zr_recording_info_t info;
    zr_recording_info(recording, &info);
    for (int i = 0; i < 3; i++) {
        size_t n_errors = fake->n_logged[ZR_LOG_ERROR];
        zr_status_t status = zr_snapshot_save(recording, paths[i], log);
        assert_true(status == ZR_OK || status == ZR_ERR_MEMORY || !info.is_complete);
        assert_int_equal(fake->n_logged[ZR_LOG_ERROR], n_errors + (status != ZR_OK));
        remove(paths[i]);
    }
}

/* A recording with a fault at its n-th allocation. The run itself has what it needs: the same
 * has been done before. */
static size_t run_recorded(size_t n, bool stays) {
    fake_t *fake = fake_open(GRANULE, true);
    zr_stream_t *stream = NULL;
    zr_allocator_t *allocator = NULL;
    zr_recording_t *recording = NULL;
    zr_recording_info_t info;
    assert_ok(zr_stream_create(fake->device, "test", &stream));
    zr_allocator_options_t options = zr_allocator_options_default();
    zr_log_t log = options.log = fake_log(fake);
    assert_ok(zr_allocator_create(fake->device, &options, &allocator));
    for (int round = 0; round < N_ROUNDS; round++)
        use_recorded(allocator, stream, round);

    fault.n_failed = 0;
    fault.stays = stays;
    fault.countdown = n;
    json_set_alloc_funcs(__wrap_malloc, free);
    zr_status_t started = zr_allocator_record_start(allocator, 0);
    for (int round = 0; round < N_ROUNDS; round++) {
        if (round == 1 && started == ZR_OK)
            started = zr_allocator_record_start(allocator, 0);
        use_recorded(allocator, stream, round);
    }
    if (started == ZR_OK) {
        assert_ok(zr_allocator_record_stop(allocator, &recording));
        zr_recording_info(recording, &info);
        assert_true(info.is_complete || fault.n_failed > 0);
        assert_true(!info.is_complete || info.n_lives >= (N_ROUNDS - 1) * N_POINTERS);
        save(recording, &log, fake);
    } else {
        assert_int_equal(started, ZR_ERR_MEMORY);
    }
    fault.countdown = 0;
    json_set_alloc_funcs(malloc, free);
    zr_recording_destroy(&recording);
    zr_stream_destroy(&stream);
    assert_true(zr_allocator_is_valid(allocator));
    zr_allocator_destroy(&allocator);
    fake_close(fake);
    return fault.n_failed;
}

TEST(test_recording_fails_and_the_run_does_not) {
    for (int stays = 0; stays < 2; stays++) {
        size_t n = 1;
        /* Beyond the arrays, each event of the trace makes objects: some of them are enough. */
        while (run_recorded(n, stays) > 0)
            n += n < 60 ? 1 : n;
        assert_true(n > 1000);
    }
}
