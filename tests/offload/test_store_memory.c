/*
 * The system has no memory for metadata: every allocation of making and using a store fails once.
 * The store is made or refused, and nothing is left behind.
 */
#include "tests/allocator/fail_malloc.h"
#include "tests/offload/store_fixture.h"
#include "tests/offload/store_oracle.h"

/* A whole life with a fault at the n-th allocation; how many there were to fail. */
static size_t run(const char *backend, size_t n) {
    static const zr_store_extent_t extents[] = {{"a", 100, 0}, {"b", 3 * REQUEST + 1, 0}};
    fixture_t f;
    zr_store_ticket_t ticket;
    fixture_open(&f, backend, 2);
    unsigned char *buffer = new_buffer(4 * REQUEST, 0);
    const zr_store_buffer_t registered = {buffer, REQUEST};
    memset(buffer, 1, 4 * REQUEST);

    fault.countdown = n;
    fault.n_failed = 0;
    zr_status_t status = zr_store_create(backend, &f.options, extents, 2, &f.store);
    if (status == ZR_OK) {
        assert_ok(zr_store_put(f.store, 1, 0, 3 * REQUEST + 1, buffer, &ticket));
        status = zr_store_register(f.store, &registered, 1);
        assert_ok(zr_store_wait(f.store, ticket));
        memset(buffer, 2, 4 * REQUEST);
        assert_ok(get_now(f.store, 1, 0, 3 * REQUEST + 1, buffer));
        assert_int_equal(buffer[3 * REQUEST], 1);
        zr_store_unregister(f.store, &registered, 1); /* takes no memory */
        assert_ok(get_now(f.store, 1, 0, 3 * REQUEST + 1, buffer));
    }
    fault.countdown = 0;
    assert_true(status == ZR_OK || status == ZR_ERR_MEMORY || status == ZR_ERR_BUDGET ||
                status == ZR_ERR_UNSUPPORTED); /* the ring itself */
    assert_int_equal(status == ZR_OK, fault.n_failed == 0);
    assert_int_equal(f.n_logged[ZR_LOG_ERROR], fault.n_failed);
    free_buffer(buffer);
    fixture_close(&f);
    return fault.n_failed;
}

static void run_all(const char *backend, size_t least) {
    size_t n = 1;
    while (run(backend, n) > 0)
        n++;
    printf("%s: %zu allocations failed, one per run\n", backend, n - 1);
    assert_true(n > least);
}

TEST(test_memory) {
    run_all("memory", 6);
}

TEST(test_uring) {
    if (fixture_probe() != 0)
        skip();
    run_all("uring", 12);
}
