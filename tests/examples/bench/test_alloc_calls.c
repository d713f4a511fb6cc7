/* The sequences of calls that allocators are timed with are what they are said to be. */
#include "examples/bench/alloc_calls.h"
#include "tests/common/test.h"

static zr_log_t quiet;

typedef struct counts {
    size_t n_most, most_bytes; /* alive at once */
    size_t least_size, most_size;
    bool has_lifetime[ZR_N_LIFETIMES];
} counts_t;

/* Slots are empty when they are allocated and full when they are freed, and empty at the end. */
static counts_t check_calls(const calls_t *calls) {
    counts_t counts = {.least_size = SIZE_MAX};
    size_t slots[1024] = {0}, n_live = 0, live_bytes = 0, n_pairs = 0, n_marks = 0;
    assert_in_range(calls->n_slots, 1, 1024);
    for (size_t i = 0; i < calls->n_calls; i++) {
        const call_t *call = &calls->calls[i];
        if (call->kind == CALL_MARK) {
            assert_int_equal(call->slot, n_marks++);
            continue;
        }
        assert_true(call->slot < calls->n_slots);
        size_t *slot = &slots[call->slot];
        bool allocates = call->kind == CALL_ALLOCATE;
        assert_int_equal(*slot != 0, !allocates);
        n_pairs += allocates;
        n_live += allocates ? 1 : (size_t)-1;
        live_bytes += allocates ? call->size_bytes : (size_t) - *slot;
        *slot = call->size_bytes;
        counts.n_most = n_live > counts.n_most ? n_live : counts.n_most;
        counts.most_bytes = live_bytes > counts.most_bytes ? live_bytes : counts.most_bytes;
        if (!allocates)
            continue;
        assert_true(call->size_bytes > 0 && call->tag < ZR_N_TAGS);
        counts.least_size =
            call->size_bytes < counts.least_size ? call->size_bytes : counts.least_size;
        counts.most_size =
            call->size_bytes > counts.most_size ? call->size_bytes : counts.most_size;
        counts.has_lifetime[call->lifetime] = true;
    }
    assert_int_equal(n_live, 0);
    assert_int_equal(n_pairs, calls->n_pairs);
    assert_int_equal(n_marks, calls->n_marks);
    return counts;
}

TEST(test_step) {
    calls_t calls;
    assert_int_equal(calls_make_step(&quiet, &calls), ZR_OK);
    counts_t counts = check_calls(&calls);
    assert_in_range(calls.n_pairs, 300, 600);
    assert_int_equal(calls.n_marks, 2 * 2 * 12 + 1);
    assert_int_equal(calls.calls[0].kind, CALL_MARK);
    assert_false(counts.has_lifetime[ZR_LIFETIME_PERSISTENT]);

    trace_t trace;
    assert_int_equal(calls_trace(&calls, &quiet, &trace), ZR_OK);
    assert_int_equal(trace.n_buffers, calls.n_pairs);
    assert_int_equal(zr_plan_max_live(trace.buffers, trace.n_buffers), counts.most_bytes);
    assert_string_equal(trace.ids[0], "1");
    assert_string_equal(trace.ids[299], "300");
    trace_free(&trace);
    calls_free(&calls);
}

TEST(test_irregular) {
    calls_t calls;
    assert_int_equal(calls_make_irregular(20000, &quiet, &calls), ZR_OK);
    counts_t counts = check_calls(&calls);
    assert_int_equal(calls.n_pairs, 20000);
    assert_int_equal(counts.n_most, 512);
    assert_in_range(counts.least_size, 256, 400);
    assert_in_range(counts.most_size, 1 << 19, 1 << 20);
    for (int lifetime = 0; lifetime < ZR_N_LIFETIMES; lifetime++)
        assert_int_equal(counts.has_lifetime[lifetime], lifetime != ZR_LIFETIME_PERSISTENT);
    calls_free(&calls);
}

TEST(test_same_size) {
    calls_t calls;
    assert_int_equal(calls_make_same_size(100, &quiet, &calls), ZR_OK);
    counts_t counts = check_calls(&calls);
    assert_int_equal(calls.n_pairs, 100);
    assert_int_equal(counts.n_most, 1);
    assert_int_equal(counts.least_size, counts.most_size);
    calls_free(&calls);
}
