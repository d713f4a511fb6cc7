/*
 * Frees that wait for a stream: memory is not handed out before the stream's work has
 * passed, waiting comes before refusing and before unmapping, and whatever fails on the
 * way, no block is lost.
 */
#include "allocator/internal.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define GRANULE ((size_t)65536)
#define N_GRANULES 8
#define N_STREAMS (ZR_N_PENDING_QUEUES + 4)

typedef struct fixture {
    fake_t *fake;
    zr_allocator_t *allocator;
    zr_stream_t *streams[N_STREAMS];
} fixture_t;

static int setup_device(void **state, bool is_late, bool computes_on_host) {
    fixture_t *fixture = calloc(1, sizeof(*fixture));
    fixture->fake = fake_open(GRANULE, is_late);
    fixture->fake->device->info.computes_on_host = computes_on_host;
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fixture->fake);
    options.budget_bytes[ZR_TIER_DEVICE] = N_GRANULES * GRANULE;
    if (zr_allocator_create(fixture->fake->device, &options, &fixture->allocator) != ZR_OK)
        return -1;
    for (int i = 0; i < N_STREAMS; i++) {
        if (zr_stream_create(fixture->fake->device, "test", &fixture->streams[i]) != ZR_OK)
            return -1;
    }
    *state = fixture;
    return 0;
}

static int setup(void **state) {
    return setup_device(state, true, false);
}

static int setup_synchronous(void **state) {
    return setup_device(state, false, true);
}

/* A host device with streams beside it: the last one works in the calling thread. */
static int setup_concurrent(void **state) {
    int failed = setup_device(state, true, true);
    if (failed == 0)
        ((fixture_t *)*state)->streams[N_STREAMS - 1]->is_synchronous = true;
    return failed;
}

static int teardown(void **state) {
    fixture_t *fixture = *state;
    bool is_valid = fixture->allocator == NULL || zr_allocator_is_valid(fixture->allocator);
    for (int i = 0; i < N_STREAMS; i++)
        zr_stream_destroy(&fixture->streams[i]);
    zr_allocator_destroy(&fixture->allocator);
    fake_close(fixture->fake);
    free(fixture);
    return is_valid ? 0 : -1;
}

static zr_status_t try_allocate(fixture_t *fixture, size_t size_bytes, zr_lifetime_t lifetime,
                                void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_WORKSPACE,
                                       .lifetime = lifetime};
    return zr_allocate(fixture->allocator, &request, pointer_p);
}

static void *allocate(fixture_t *fixture, size_t size_bytes) {
    void *pointer = NULL;
    assert_ok(try_allocate(fixture, size_bytes, ZR_LIFETIME_UNIT, &pointer));
    return pointer;
}

static zr_tier_statistics_t statistics_of(fixture_t *fixture) {
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(fixture->allocator, ZR_TIER_DEVICE, &statistics);
    return statistics;
}

/* Free a pointer after a new piece of work of a stream; returns the address it had. */
static void *free_late(fixture_t *fixture, void *pointer, int stream) {
    void *address = pointer;
    fake_stream_queue(fixture->streams[stream]);
    zr_free(fixture->allocator, &pointer, fixture->streams[stream]);
    assert_null(pointer);
    return address;
}

/* ---- order -------------------------------------------------------------------------- */

TEST_WITH(test_not_handed_out_before_its_event, setup, teardown) {
    fixture_t *fixture = *state;
    void *old = free_late(fixture, allocate(fixture, 1000), 0);
    zr_tier_statistics_t statistics = statistics_of(fixture);
    assert_int_equal(statistics.live.live, 0);
    assert_int_equal(statistics.by_tag[ZR_TAG_WORKSPACE].live, 0);
    assert_int_equal(statistics.pending.live, 1000);
    void *other = allocate(fixture, 1000);
    assert_ptr_not_equal(other, old);
    assert_true(zr_allocator_is_valid(fixture->allocator));

    fake_stream_pass(fixture->streams[0], 1);
    void *again = allocate(fixture, 1000);
    assert_ptr_equal(again, old);
    statistics = statistics_of(fixture);
    assert_int_equal(statistics.pending.live, 0);
    assert_int_equal(statistics.pending.peak, 1000);
    assert_int_equal(fixture->fake->n_waits, 0);
    zr_free(fixture->allocator, &other, NULL);
    zr_free(fixture->allocator, &again, NULL);
}

TEST_WITH(test_without_a_stream_it_is_free_at_once, setup, teardown) {
    fixture_t *fixture = *state;
    void *pointer = allocate(fixture, 1000), *old = pointer;
    zr_free(fixture->allocator, &pointer, NULL);
    assert_int_equal(statistics_of(fixture).pending.peak, 0);
    pointer = allocate(fixture, 1000);
    assert_ptr_equal(pointer, old);
    zr_free(fixture->allocator, &pointer, NULL);
}

TEST_WITH(test_synchronous_devices_free_at_once, setup_synchronous, teardown) {
    fixture_t *fixture = *state;
    void *old = free_late(fixture, allocate(fixture, 1000), 0);
    assert_int_equal(statistics_of(fixture).pending.peak, 0);
    assert_int_equal(fixture->fake->n_events, 0);
    void *pointer = allocate(fixture, 1000);
    assert_ptr_equal(pointer, old);
    zr_free(fixture->allocator, &pointer, NULL);
}

TEST_WITH(test_streams_pass_independently, setup, teardown) {
    fixture_t *fixture = *state;
    void *slow = free_late(fixture, allocate(fixture, 3000), 0);
    void *fast = free_late(fixture, allocate(fixture, 3000), 1);
    fake_stream_pass(fixture->streams[1], 1);
    void *pointer = allocate(fixture, 3000);
    assert_ptr_equal(pointer, fast);
    fake_stream_pass(fixture->streams[0], 1);
    void *other = allocate(fixture, 3000);
    assert_ptr_equal(other, slow);
    zr_free(fixture->allocator, &pointer, NULL);
    zr_free(fixture->allocator, &other, NULL);
}

TEST_WITH(test_more_streams_than_queues, setup, teardown) {
    fixture_t *fixture = *state;
    void *old[N_STREAMS];
    for (int i = 0; i < N_STREAMS; i++)
        old[i] = allocate(fixture, 1000);
    for (int i = 0; i < N_STREAMS; i++)
        free_late(fixture, old[i], i);
    assert_true(zr_allocator_is_valid(fixture->allocator));

    /* The last queue is shared. Its second block has passed, but stands behind the first. */
    int first = ZR_N_PENDING_QUEUES - 1;
    fake_stream_pass(fixture->streams[first + 1], 1);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_int_equal(statistics_of(fixture).pending.live, N_STREAMS * 1000);
    fake_stream_pass(fixture->streams[first], 1);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_int_equal(statistics_of(fixture).pending.live, (N_STREAMS - 2) * 1000);

    /* A queue that has become empty serves another stream. */
    fake_stream_pass(fixture->streams[0], 1);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_int_equal(statistics_of(fixture).pending.live, (N_STREAMS - 3) * 1000);
    free_late(fixture, allocate(fixture, 1000), first + 2);
    fake_stream_pass(fixture->streams[first + 2], 2); /* one is there, one in the last queue */
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_int_equal(statistics_of(fixture).pending.live, (N_STREAMS - 4) * 1000);

    for (int i = 0; i < N_STREAMS; i++)
        fake_stream_pass(fixture->streams[i], 1);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_int_equal(statistics_of(fixture).pending.live, 0);
    assert_int_equal(statistics_of(fixture).reserved.live, 0);
}

/* ---- pressure ------------------------------------------------------------------------ */

TEST_WITH(test_waits_before_it_refuses, setup, teardown) {
    fixture_t *fixture = *state;
    free_late(fixture, allocate(fixture, N_GRANULES / 2 * GRANULE), 0);
    free_late(fixture, allocate(fixture, N_GRANULES / 2 * GRANULE), 1);
    void *all = allocate(fixture, N_GRANULES * GRANULE);
    assert_int_equal(fixture->fake->n_waits, 2);
    zr_free(fixture->allocator, &all, NULL);
}

TEST_WITH(test_waits_no_longer_than_needed, setup, teardown) {
    fixture_t *fixture = *state;
    void *first = free_late(fixture, allocate(fixture, N_GRANULES / 2 * GRANULE), 1);
    free_late(fixture, allocate(fixture, N_GRANULES / 2 * GRANULE), 0);
    void *half = allocate(fixture, N_GRANULES / 2 * GRANULE);
    assert_ptr_equal(half, first); /* the oldest free, whatever its stream */
    assert_int_equal(fixture->fake->n_waits, 1);
    assert_int_equal(fixture->fake->n_unmaps, 0);
    zr_free(fixture->allocator, &half, NULL);
}

TEST_WITH(test_pending_memory_is_never_unmapped, setup, teardown) {
    fixture_t *fixture = *state;
    void *old = free_late(fixture, allocate(fixture, 4 * GRANULE), 0);
    assert_ok(zr_allocator_trim(fixture->allocator, ZR_TIER_DEVICE));
    assert_true(fake_is_mapped(fixture->fake, old, 4 * GRANULE));
    void *more = NULL; /* another class: waits, then takes the granules */
    assert_ok(try_allocate(fixture, N_GRANULES * GRANULE, ZR_LIFETIME_STEP, &more));
    assert_int_equal(fixture->fake->n_waits, 1);
    assert_false(fake_is_mapped(fixture->fake, old, 1));
    zr_free(fixture->allocator, &more, NULL);
}

TEST_WITH(test_destroy_waits, setup, teardown) {
    fixture_t *fixture = *state;
    free_late(fixture, allocate(fixture, 1000), 0);
    free_late(fixture, allocate(fixture, 1000), 1);
    zr_allocator_destroy(&fixture->allocator);
    assert_int_equal(fixture->fake->n_waits, 2);
    assert_string_equal(fixture->fake->text, "");
}

TEST_WITH(test_events_are_used_again, setup, teardown) {
    fixture_t *fixture = *state;
    for (int i = 0; i < 1000; i++) {
        free_late(fixture, allocate(fixture, 256), 0);
        if (i % 10 == 9)
            fake_stream_pass(fixture->streams[0], 10);
    }
    assert_true(fixture->fake->n_events <= 11);
}

/* ---- failures --------------------------------------------------------------------------- */

static void check_free_without_event(fixture_t *fixture) {
    void *pointer = allocate(fixture, 1000), *old = pointer;
    fake_stream_queue(fixture->streams[0]);
    zr_free(fixture->allocator, &pointer, fixture->streams[0]);
    assert_null(pointer);
    assert_int_equal(fixture->fake->n_waits, 1); /* for the stream */
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_WARNING], 1);
    assert_int_equal(statistics_of(fixture).pending.live, 0);
    pointer = allocate(fixture, 1000);
    assert_ptr_equal(pointer, old);
    fixture->fake->fail_event_create = fixture->fake->fail_event_record = false;
    free_late(fixture, pointer, 0);
}

TEST_WITH(test_events_that_cannot_be_created, setup, teardown) {
    fixture_t *fixture = *state;
    fixture->fake->fail_event_create = true;
    check_free_without_event(fixture);
}

TEST_WITH(test_events_that_cannot_be_recorded, setup, teardown) {
    fixture_t *fixture = *state;
    fixture->fake->fail_event_record = true;
    check_free_without_event(fixture);
}

TEST_WITH(test_work_that_failed, setup, teardown) {
    fixture_t *fixture = *state;
    free_late(fixture, allocate(fixture, N_GRANULES * GRANULE), 0);
    void *pointer = NULL;
    fixture->fake->fail_queries = true;
    assert_int_equal(try_allocate(fixture, 1, ZR_LIFETIME_UNIT, &pointer), ZR_ERR_DEVICE);
    fixture->fake->fail_queries = false;
    fixture->fake->fail_waits = true;
    assert_int_equal(try_allocate(fixture, 1, ZR_LIFETIME_UNIT, &pointer), ZR_ERR_DEVICE);
    assert_null(pointer);
    assert_true(zr_allocator_is_valid(fixture->allocator));
    assert_int_equal(statistics_of(fixture).pending.live, N_GRANULES * GRANULE);
    zr_allocator_destroy(&fixture->allocator); /* gives all back even so, and says it */
    assert_int_equal(fixture->fake->mapped_bytes[ZR_TIER_DEVICE], 0);
    assert_int_equal(fixture->fake->n_logged[ZR_LOG_ERROR], 1);
}

/* ---- beside a host device -------------------------------------------------------------------- */

static void begin_segment(fixture_t *fixture, size_t unit) {
    zr_allocator_mark(fixture->allocator, &(zr_mark_t){.step = 1, .micro_batch = 1, .unit = unit});
}

/* What is freed is handed out from the second mark on, neither before nor after, whether its work
 * has passed at once or not until somebody waits. */
static void follow_marks(fixture_t *fixture, bool passes_at_once) {
    begin_segment(fixture, 0);
    void *old = free_late(fixture, allocate(fixture, 1000), 0), *pointers[3];
    if (passes_at_once)
        fake_stream_pass(fixture->streams[0], 1);
    for (size_t i = 0; i < 3; i++) {
        pointers[i] = allocate(fixture, 1000);
        assert_true((pointers[i] == old) == (i == 2));
        assert_true(zr_allocator_is_valid(fixture->allocator));
        begin_segment(fixture, i + 1);
    }
    assert_int_equal(fake_stream_n_passed(fixture->streams[0]), 1);
    assert_int_equal(statistics_of(fixture).pending.live, 0);
    for (size_t i = 0; i < 3; i++)
        zr_free(fixture->allocator, &pointers[i], NULL);
}

TEST_WITH(test_work_that_is_fast_changes_no_place, setup_concurrent, teardown) {
    follow_marks(*state, true);
}

TEST_WITH(test_work_that_is_slow_changes_no_place, setup_concurrent, teardown) {
    follow_marks(*state, false);
}

TEST_WITH(test_streams_of_the_calling_thread_are_not_waited_for, setup_concurrent, teardown) {
    fixture_t *fixture = *state;
    void *old = free_late(fixture, allocate(fixture, 1000), N_STREAMS - 1);
    void *again = allocate(fixture, 1000);
    assert_ptr_equal(again, old);
    assert_int_equal(statistics_of(fixture).pending.peak, 0);
    zr_free(fixture->allocator, &again, NULL);
}

/* Without marks, who does not wait does not grow either. */
TEST_WITH(test_without_marks_blocks_are_free_as_they_pass, setup_concurrent, teardown) {
    fixture_t *fixture = *state;
    void *old = free_late(fixture, allocate(fixture, 1000), 0);
    fake_stream_pass(fixture->streams[0], 1);
    void *again = allocate(fixture, 1000);
    assert_ptr_equal(again, old);
    zr_free(fixture->allocator, &again, NULL);
}
