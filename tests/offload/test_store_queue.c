/*
 * Transfers that wait: for a stream that runs late, for each other, and in lines.
 */
#include "tests/common/late_device.h"

#include "kernels/base/waiting_internal.h"
#include "offload/store_backend.h"
#include "offload/uring_ring_internal.h"
#include "tests/offload/store_fixture.h"

enum { N_PARTS = 4 };
#define SIZE (3 * CHUNK)

typedef struct queue_fixture {
    fixture_t store;
    zr_device_t *device;
    zr_stream_t *stream;
    zr_event_t *event;
    unsigned char *source, *buffer; /* [N_PARTS * SIZE] */
} queue_fixture_t;

static const char *backend = "memory";

static int setup(void **state) {
    static const size_t size = N_PARTS * SIZE;
    queue_fixture_t *f = calloc(1, sizeof(*f));
    fixture_open(&f->store, backend, 1);
    assert_ok(fixture_create(&f->store, &size, 1));
    assert_ok(late_device_open(&f->device));
    assert_ok(zr_stream_create(f->device, "late", &f->stream));
    assert_ok(zr_event_create(f->device, &f->event));
    f->source = new_buffer(size, 0);
    f->buffer = new_buffer(size, 0);
    fill_pattern(f->source, size, 1);
    memset(f->buffer, 0xee, size);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    queue_fixture_t *f = *state;
    fixture_close(&f->store);
    zr_event_destroy(&f->event);
    zr_stream_destroy(&f->stream);
    zr_device_close(&f->device);
    free_buffer(f->source);
    free_buffer(f->buffer);
    free(f);
    return 0;
}

/* The stream will copy all of the source to the buffer; the event passes then. */
static void work_late(queue_fixture_t *f) {
    assert_ok(
        zr_copy_async(f->stream, f->buffer, f->source, N_PARTS * SIZE, ZR_COPY_DEVICE_TO_HOST));
    assert_ok(zr_event_record(f->event, f->stream));
}

static zr_store_call_t call_of(const queue_fixture_t *f, size_t part) {
    return (zr_store_call_t){
        .offset_bytes = part * SIZE, .size_bytes = SIZE, .buffer = f->buffer + part * SIZE};
}

static void put_behind(queue_fixture_t *f, size_t part, uint32_t line, zr_store_ticket_t *ticket) {
    zr_store_call_t call = call_of(f, part);
    call.after = (zr_store_after_t){.event = f->event, .line = line};
    assert_ok(zr_store_queue_put(f->store.store, &call, ticket));
}

static void expect_part(queue_fixture_t *f, size_t part) {
    unsigned char *got = new_buffer(SIZE, 0);
    assert_ok(get_now(f->store.store, 0, part * SIZE, SIZE, got));
    assert_memory_equal(got, f->source + part * SIZE, SIZE);
    free_buffer(got);
}

static size_t n_waiting(const queue_fixture_t *f) {
    return f->store.store->waiting->n;
}

TEST_WITH(test_a_put_waits_for_its_stream, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_ticket_t tickets[2];
    bool is_done = true;
    work_late(f);
    put_behind(f, 0, ZR_NO_LINE, &tickets[0]);
    put_behind(f, 1, ZR_NO_LINE, &tickets[1]);
    for (size_t i = 0; i < 3; i++)
        zr_store_progress(f->store.store);
    assert_ok(zr_store_poll(f->store.store, tickets[0], &is_done));
    assert_false(is_done);
    assert_int_equal(n_waiting(f), 2);

    assert_ok(zr_store_wait(f->store.store, tickets[1])); /* waits for the stream, too */
    zr_store_progress(f->store.store);
    assert_int_equal(n_waiting(f), 0);
    assert_ok(zr_store_wait(f->store.store, tickets[0]));
    expect_part(f, 0);
    expect_part(f, 1);
}

/* Whoever reads what a stream has not made yet gets what it makes. */
TEST_WITH(test_a_get_waits_for_a_put_that_waits, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_ticket_t tickets[2];
    unsigned char *got = new_buffer(SIZE, 0);
    work_late(f);
    put_behind(f, 2, ZR_NO_LINE, &tickets[0]);
    assert_ok(zr_store_get(f->store.store, 0, 2 * SIZE, SIZE, got, &tickets[1]));
    zr_store_progress(f->store.store);
    assert_int_equal(n_waiting(f), 2);
    assert_ok(zr_store_wait(f->store.store, tickets[1]));
    assert_memory_equal(got, f->source + 2 * SIZE, SIZE);
    assert_ok(zr_store_wait(f->store.store, tickets[0]));
    free_buffer(got);
}

/* A buffer is filled again once its content has been put, in whatever order they are waited for. */
TEST_WITH(test_a_get_takes_the_buffer_of_a_put, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_ticket_t put, get;
    assert_ok(put_now(f->store.store, 0, SIZE, SIZE, f->source));
    work_late(f);
    put_behind(f, 0, ZR_NO_LINE, &put);
    zr_store_call_t call = call_of(f, 1);
    call.buffer = f->buffer;
    call.after.ticket = put;
    assert_ok(zr_store_queue_get(f->store.store, &call, &get));
    assert_ok(zr_store_wait(f->store.store, get));
    assert_memory_equal(f->buffer, f->source, SIZE);
    assert_ok(zr_store_wait(f->store.store, put));
    expect_part(f, 0);
}

/* What could begin does not, as long as something before it in its line waits. */
TEST_WITH(test_lines_keep_their_order, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_t *store = f->store.store;
    zr_store_ticket_t tickets[N_PARTS];
    uint32_t one = zr_store_make_line(store), other = zr_store_make_line(store);
    assert_true(one != ZR_NO_LINE && other != ZR_NO_LINE && one != other);
    zr_event_t *passed = NULL;
    assert_ok(zr_event_create(f->device, &passed));
    assert_ok(zr_event_record(passed, f->stream));
    assert_ok(zr_event_synchronize(passed));
    work_late(f);
    put_behind(f, 0, one, &tickets[0]);
    for (size_t part = 1; part < N_PARTS; part++) {
        zr_store_call_t call = call_of(f, part);
        call.buffer = f->source + part * SIZE;
        call.after = (zr_store_after_t){.event = passed, .line = part == 1 ? one : other};
        assert_ok(zr_store_queue_put(store, &call, &tickets[part]));
    }
    zr_store_progress(store);
    assert_int_equal(n_waiting(f), 2);
    zr_store_call_t call = call_of(f, 2); /* nor does what waits for nothing else */
    zr_store_ticket_t last;
    call.buffer = f->source + 2 * SIZE;
    call.after.line = one;
    assert_ok(zr_store_queue_put(store, &call, &last));
    assert_int_equal(n_waiting(f), 3);
    assert_ok(zr_store_wait(store, tickets[1]));
    zr_store_progress(store);
    assert_int_equal(n_waiting(f), 0);
    assert_ok(zr_store_wait_all(store));
    for (size_t part = 0; part < N_PARTS; part++)
        expect_part(f, part);
    zr_event_destroy(&passed);
    while (zr_store_make_line(store) != ZR_NO_LINE)
        ;
}

/* A put that is taken back leaves what was there. */
TEST_WITH(test_what_waits_can_be_dropped, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_ticket_t put, behind;
    assert_ok(put_now(f->store.store, 0, 0, SIZE, f->source));
    work_late(f);
    put_behind(f, 0, ZR_NO_LINE, &put);
    put_behind(f, 1, ZR_NO_LINE, &behind);
    f->source[0] ^= 1; /* so that it would be another */
    zr_store_drop(f->store.store, put);
    assert_int_equal(n_waiting(f), 1);
    f->source[0] ^= 1;
    expect_part(f, 0);
    assert_refused(&f->store, ZR_ERR_STATE, zr_store_wait(f->store.store, put), "is invalid");
    zr_store_drop(f->store.store, put);
    zr_store_drop(f->store.store, ZR_STORE_NO_TICKET);
    zr_store_drop(f->store.store, behind);
    assert_refused(&f->store, ZR_ERR_STATE, get_now(f->store.store, 0, SIZE, SIZE, f->buffer),
                   "has no data");
}

/* The end of the store waits for what waits. */
TEST_WITH(test_the_end_waits, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_ticket_t tickets[2];
    work_late(f);
    put_behind(f, 0, ZR_NO_LINE, &tickets[0]);
    zr_store_call_t call = call_of(f, 0);
    call.buffer = f->buffer + SIZE;
    call.after.ticket = tickets[0];
    assert_ok(zr_store_queue_get(f->store.store, &call, &tickets[1]));
    zr_store_destroy(&f->store.store);
    assert_memory_equal(f->buffer + SIZE, f->source, SIZE);
}

static zr_status_t fail_query(zr_event_t *event, bool *passed_p) {
    (void)passed_p;
    return zr_fail(&event->device->log, ZR_ERR_DEVICE, "the device is lost");
}

static zr_status_t fail_synchronize(zr_event_t *event) {
    return zr_fail(&event->device->log, ZR_ERR_DEVICE, "the device is lost");
}

/* Its ticket has the error, and what would get its bytes, which are not what they were. */
TEST_WITH(test_a_stream_that_fails, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_t *store = f->store.store;
    for (size_t is_asked = 0; is_asked < 2; is_asked++) {
        zr_store_ticket_t put, get;
        assert_ok(put_now(store, 0, 0, SIZE, f->source));
        work_late(f);
        put_behind(f, 0, ZR_NO_LINE, &put);
        assert_ok(zr_store_get(store, 0, 0, SIZE, f->buffer + SIZE, &get));
        zr_device_backend_t lost = *f->device->backend;
        const zr_device_backend_t *own = f->device->backend;
        lost.event_query = fail_query;
        lost.event_synchronize = fail_synchronize;
        f->device->backend = &lost;
        if (is_asked)
            zr_store_progress(store);
        assert_int_equal(zr_store_wait(store, put), ZR_ERR_DEVICE);
        f->device->backend = own;
        assert_int_equal(zr_store_wait(store, get), is_asked ? ZR_ERR_DEVICE : ZR_ERR_STATE);
        assert_ok(zr_stream_synchronize(f->stream));
    }
}

/* ---- while the thread waits ------------------------------------------------------------------ */

/* The ring has nothing for this many waits, and the event passes at the last but one. */
static size_t n_quiet, n_until_passed;

WRAP(int, zr_ring_next, zr_ring_t *ring, int timeout_ms, zr_ring_completion_t *completion_p) {
    if (n_quiet == 0)
        return __real_zr_ring_next(ring, timeout_ms, completion_p);
    n_quiet -= timeout_ms > 0;
    return 0;
}

static zr_status_t pass_late(zr_event_t *event, bool *passed_p) {
    (void)event;
    n_until_passed -= n_until_passed > 0;
    *passed_p = n_until_passed == 0;
    return ZR_OK;
}

/* What a stream is done with goes to the drive while the thread waits for the drive. */
TEST_WITH(test_others_begin_in_the_meantime, setup, teardown) {
    queue_fixture_t *f = *state;
    zr_store_t *store = f->store.store;
    zr_store_ticket_t put, get;
    if (strcmp(backend, "uring") != 0)
        return;
    assert_ok(put_now(store, 0, SIZE, SIZE, f->source + SIZE));
    work_late(f);
    assert_ok(zr_event_synchronize(f->event));
    zr_device_backend_t late = *f->device->backend;
    const zr_device_backend_t *own = f->device->backend;
    late.event_query = pass_late;
    f->device->backend = &late;
    n_until_passed = 20;
    n_quiet = 40;
    put_behind(f, 0, ZR_NO_LINE, &put);
    assert_ok(zr_store_get(store, 0, SIZE, SIZE, f->buffer + SIZE, &get));
    assert_ok(zr_store_wait(store, get));
    assert_int_equal(n_quiet, 0);
    assert_int_equal(n_until_passed, 0);
    assert_int_equal(n_waiting(f), 0);
    f->device->backend = own;
    assert_ok(zr_store_wait(store, put));
    expect_part(f, 0);
}

int main(void) {
    static const char *const backends[] = {"memory", "posix", "uring"};
    size_t n_backends = fixture_probe() == 0 ? 3 : 2;
    int n_failed = 0;
    for (size_t i = 0; i < n_backends; i++) {
        backend = backends[i];
        printf("---- %s\n", backend);
        n_failed += run_all_tests(NULL, NULL);
    }
    return n_failed;
}
