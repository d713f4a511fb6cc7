/*
 * The conformance suite of the store: what store.h promises, on every backend and in several
 * forms of each.
 */
#include <pthread.h>
#include <sys/mman.h>

#include "tests/common/kept_log.h"
#include "tests/offload/store_fixture.h"
#include "tests/offload/store_oracle.h"

/* A backend, and the options in which its forms differ. */
typedef struct variant {
    const char *name, *backend;
    size_t n_paths, depth, submit_batch, n_bounce_buffers;
    bool no_verify, poll;
} variant_t;

static const variant_t variants[] = {
    {.name = "memory", .backend = "memory"},
    {.name = "memory, not verified", .backend = "memory", .no_verify = true},
    {.name = "sim", .backend = "sim"},
    {.name = "sim, not verified", .backend = "sim", .no_verify = true},
    {.name = "posix", .backend = "posix", .n_paths = 1},
    {.name = "posix, three paths",
     .backend = "posix",
     .n_paths = 3,
     .depth = 3,
     .submit_batch = 2,
     .n_bounce_buffers = 1},
    {.name = "uring", .backend = "uring", .n_paths = 1},
    {.name = "uring, three paths", .backend = "uring", .n_paths = 3},
    {.name = "uring, one request at once",
     .backend = "uring",
     .n_paths = 2,
     .depth = 1,
     .submit_batch = 1,
     .n_bounce_buffers = 1},
    {.name = "uring, deep",
     .backend = "uring",
     .n_paths = 1,
     .depth = 64,
     .submit_batch = 64,
     .n_bounce_buffers = 9},
    {.name = "uring, not verified", .backend = "uring", .n_paths = 1, .no_verify = true},
    {.name = "uring, polled where possible", .backend = "uring", .n_paths = 1, .poll = true},
};
static const variant_t *variant;

static int setup(void **state) {
    fixture_t *f = malloc(sizeof(*f));
    assert_non_null(f);
    fixture_open(f, variant->backend, variant->n_paths);
    if (variant->depth > 0) {
        f->options.depth = variant->depth;
        f->options.submit_batch = variant->submit_batch;
        f->options.n_bounce_buffers = variant->n_bounce_buffers;
    }
    f->options.verify = !variant->no_verify;
    f->options.poll = variant->poll;
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    free(*state);
    return 0;
}

/* What came back is what went out, where a store keeps anything. */
static void expect_bytes(const void *bytes, const void *expected, size_t size_bytes) {
    if (strcmp(variant->backend, "sim") != 0)
        assert_memory_equal(bytes, expected, size_bytes);
}

static zr_store_statistics_t statistics(const fixture_t *f) {
    zr_store_statistics_t s;
    zr_store_statistics(f->store, &s);
    return s;
}

/* ---- sizes ------------------------------------------------------------------------------- */

static const size_t sizes[] = {
    0,         1,           2,         509,       4095,         4096,    4099,
    CHUNK - 1, CHUNK,       CHUNK + 1, 2 * CHUNK, REQUEST - 1,  REQUEST, REQUEST + 1,
    65537,     3 * REQUEST, 104729,    299993,    12 * REQUEST, 0,       (size_t)1 << 20};
#define N_SIZES N_OF(sizes)
#define GUARD 64

/* Put each extent, then get each, into buffers that begin `skew` bytes after a page. */
static void go_round(fixture_t *f, size_t skew, uint64_t seed) {
    for (size_t e = 0; e < N_SIZES; e++) {
        unsigned char *buffer = new_buffer(sizes[e], skew);
        fill_pattern(buffer, sizes[e], seed + e);
        assert_ok(put_now(f->store, e, 0, sizes[e], buffer));
        free_buffer(buffer);
    }
    for (size_t e = 0; e < N_SIZES; e++) {
        unsigned char *expected = new_buffer(sizes[e], 0);
        unsigned char *buffer = new_buffer(GUARD + sizes[e] + GUARD, skew);
        memset(buffer, 0x77, GUARD + sizes[e] + GUARD);
        fill_pattern(expected, sizes[e], seed + e);
        assert_ok(get_now(f->store, e, 0, sizes[e], buffer + GUARD));
        expect_bytes(buffer + GUARD, expected, sizes[e]);
        for (size_t i = 0; i < GUARD; i++) {
            assert_int_equal(buffer[i], 0x77);
            assert_int_equal(buffer[GUARD + sizes[e] + i], 0x77);
        }
        free_buffer(buffer);
        free_buffer(expected);
    }
}

/* From aligned buffers, only the chunk at a ragged end is copied. */
static void check_bounces(const fixture_t *f) {
    const zr_store_info_t *info = zr_store_info(f->store);
    uint64_t ragged_bytes = 0;
    for (size_t e = 0; e < N_SIZES; e++)
        ragged_bytes += sizes[e] % info->block_bytes != 0 ? sizes[e] % CHUNK : 0;
    assert_int_equal(statistics(f).count[ZR_STORE_PUT].bounced_bytes, ragged_bytes);
}

TEST_WITH(test_sizes, setup, teardown) {
    fixture_t *f = *state;
    uint64_t total = 0;
    assert_ok(fixture_create(f, sizes, N_SIZES));
    static const size_t skews[] = {0, 1, 512, 4032};
    for (size_t i = 0; i < 4; i++) {
        go_round(f, skews[i], 100 * i);
        if (i == 0)
            check_bounces(f);
    }
    for (size_t e = 0; e < N_SIZES; e++)
        total += sizes[e];
    zr_store_statistics_t s = statistics(f);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        assert_int_equal(s.count[d].bytes, 4 * total);
        assert_int_equal(s.count[d].n_transfers, 4 * N_SIZES);
        assert_true(s.count[d].moved_bytes >= s.count[d].bytes);
        assert_true(s.count[d].moved_bytes <= s.count[d].bytes + 4 * N_SIZES * 4096);
        assert_true(s.count[d].bounced_bytes <= s.count[d].bytes);
    }
    assert_int_equal(s.n_failed, 0);
    assert_int_equal(f->n_logged[ZR_LOG_ERROR], 0);
}

/* An extent's size as declared can be asked for; there is none beyond the last. */
TEST_WITH(test_facts, setup, teardown) {
    fixture_t *f = *state;
    assert_ok(fixture_create(f, sizes, N_SIZES));
    const zr_store_info_t *info = zr_store_info(f->store);
    assert_string_equal(info->backend, variant->backend);
    assert_int_equal(info->n_extents, N_SIZES);
    assert_int_equal(info->chunk_bytes, CHUNK);
    assert_int_equal(CHUNK % info->block_bytes, 0);
    assert_int_equal(zr_store_extent(f->store, 16)->size_bytes, 104729);
    assert_string_equal(zr_store_extent(f->store, 16)->name, "extent 16");
    assert_null(zr_store_extent(f->store, N_SIZES));
    uint64_t total = 0;
    for (size_t e = 0; e < N_SIZES; e++)
        total += sizes[e];
    assert_true(info->reserved_bytes >= total);
    assert_true(info->reserved_bytes <= total + N_SIZES * 4096);
    assert_true(info->host_bytes > 0);
}

/* Nothing at all, and extents that are all empty, are fine. */
TEST_WITH(test_empty, setup, teardown) {
    fixture_t *f = *state;
    static const size_t nothing[3] = {0};
    assert_ok(fixture_create(f, NULL, 0));
    assert_ok(zr_store_wait_all(f->store));
    assert_ok(fixture_create(f, nothing, 3));
    assert_ok(put_now(f->store, 1, 0, 0, NULL));
    assert_ok(get_now(f->store, 2, 0, 0, NULL));
}

/* ---- sub-ranges, order ----------------------------------------------------------------------- */

TEST_WITH(test_sub_ranges, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 9 * CHUNK + 77;
    assert_ok(fixture_create(f, &size, 1));
    unsigned char *whole = new_buffer(size, 0), *part = new_buffer(size, 0);
    fill_pattern(whole, size, 1);
    assert_ok(put_now(f->store, 0, 0, size, whole));
    for (size_t first = 0; first <= 9; first++) {
        for (size_t last = first + 1; last <= 10; last++) {
            size_t begin = first * CHUNK, end = last * CHUNK < size ? last * CHUNK : size;
            memset(part, 0, size);
            assert_ok(get_now(f->store, 0, begin, end - begin, part));
            expect_bytes(part, whole + begin, end - begin);
            fill_pattern(whole + begin, end - begin, first * 100 + last);
            assert_ok(put_now(f->store, 0, begin, end - begin, whole + begin));
            assert_ok(get_now(f->store, 0, 0, size, part));
            expect_bytes(part, whole, size);
        }
    }
    assert_ok(put_now(f->store, 0, size, 0, NULL)); /* nothing, at the end */
    free_buffer(part);
    free_buffer(whole);
}

/* Transfers on the same bytes take effect in the order of the calls. */
TEST_WITH(test_order_on_the_same_bytes, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 5 * REQUEST + 13;
    assert_ok(fixture_create(f, &size, 1));
    unsigned char *a = new_buffer(size, 0), *b = new_buffer(size, 8), *c = new_buffer(size, 0);
    unsigned char *d = new_buffer(size, 0);
    zr_store_ticket_t tickets[5];
    fill_pattern(a, size, 1);
    fill_pattern(b, size, 2);
    assert_ok(zr_store_put(f->store, 0, 0, size, a, &tickets[0]));
    assert_ok(zr_store_get(f->store, 0, 0, size, c, &tickets[1]));
    assert_ok(zr_store_put(f->store, 0, REQUEST, size - REQUEST, b + REQUEST, &tickets[2]));
    assert_ok(zr_store_put(f->store, 0, 0, REQUEST, b, &tickets[3]));
    assert_ok(zr_store_get(f->store, 0, 0, size, d, &tickets[4]));
    for (int i = 4; i >= 0; i--)
        assert_ok(zr_store_wait(f->store, tickets[i]));
    expect_bytes(c, a, size);
    expect_bytes(d, b, size);
    assert_true(statistics(f).n_conflicts >= 3);
    free_buffer(a);
    free_buffer(b);
    free_buffer(c);
    free_buffer(d);
}

/* ---- many in flight ------------------------------------------------------------------------- */

#define MANY 32 /* the fixture's max_transfers */

TEST_WITH(test_many_in_flight, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = MANY * 3 * CHUNK, part = 3 * CHUNK;
    assert_ok(fixture_create(f, &size, 1));
    unsigned char *from = new_buffer(size, 0), *to = new_buffer(size, 0);
    zr_store_ticket_t tickets[MANY], one_more = 99;
    fill_pattern(from, size, 5);
    for (size_t i = 0; i < MANY; i++)
        assert_ok(zr_store_put(f->store, 0, i * part, part, from + i * part, &tickets[i]));
    assert_refused(f, ZR_ERR_STATE, zr_store_put(f->store, 0, 0, part, from, &one_more),
                   "max_transfers, 32, have been started and not waited for");
    assert_int_equal(one_more, 99);
    for (size_t i = 0; i < MANY; i++) /* not in the order of the calls */
        assert_ok(zr_store_wait(f->store, tickets[(i * 11 + 5) % MANY]));
    for (size_t i = MANY; i-- > 0;)
        assert_ok(zr_store_get(f->store, 0, i * part, part, to + i * part, &tickets[i]));
    assert_ok(zr_store_wait_all(f->store));
    expect_bytes(from, to, size);
    for (size_t i = 0; i < MANY; i++)
        assert_refused(f, ZR_ERR_STATE, zr_store_wait(f->store, tickets[i]), "is invalid");
    assert_ok(put_now(f->store, 0, 0, part, from));
    for (size_t i = 0; i < MANY; i++) /* nor when its place in the table is used again */
        assert_ok(zr_store_get(f->store, 0, i * part, part, to + i * part, &one_more));
    for (size_t i = 0; i < MANY; i++)
        assert_refused(f, ZR_ERR_STATE, zr_store_wait(f->store, tickets[i]), "is invalid");
    assert_ok(zr_store_wait_all(f->store));
    free_buffer(to);
    free_buffer(from);
}

/* Polling alone brings every transfer to its end. */
TEST_WITH(test_poll, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 12 * REQUEST;
    assert_ok(fixture_create(f, &size, 1));
    unsigned char *from = new_buffer(size, 3), *to = new_buffer(size, 0);
    zr_store_ticket_t ticket;
    bool done = true;
    fill_pattern(from, size, 6);
    assert_ok(zr_store_put(f->store, 0, 0, size, from, &ticket));
    for (done = false; !done;)
        assert_ok(zr_store_poll(f->store, ticket, &done));
    assert_refused(f, ZR_ERR_STATE, zr_store_poll(f->store, ticket, &done), "is invalid");
    assert_ok(zr_store_get(f->store, 0, 0, size, to, &ticket));
    while (statistics(f).count[ZR_STORE_GET].n_transfers + statistics(f).n_failed == 0)
        zr_store_progress(f->store);
    done = false;
    assert_ok(zr_store_poll(f->store, ticket, &done));
    assert_true(done);
    expect_bytes(from, to, size);
    done = false;
    assert_ok(zr_store_poll(f->store, ZR_STORE_NO_TICKET, &done));
    assert_true(done);
    assert_ok(zr_store_wait(f->store, ZR_STORE_NO_TICKET));
    free_buffer(to);
    free_buffer(from);
}

/* The end of the store is the end of its transfers: the buffers are the caller's again. */
TEST_WITH(test_destroy_waits, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 12 * REQUEST;
    assert_ok(fixture_create(f, &size, 1));
    unsigned char *from = new_buffer(size, 0), *to = new_buffer(size, 0);
    zr_store_ticket_t ticket;
    fill_pattern(from, size, 7);
    assert_ok(zr_store_put(f->store, 0, 0, size, from, &ticket));
    assert_ok(zr_store_get(f->store, 0, 0, size, to, &ticket));
    zr_store_destroy(&f->store);
    expect_bytes(from, to, size);
    zr_store_destroy(&f->store);
    zr_store_destroy(NULL);
    free_buffer(to);
    free_buffer(from);
}

TEST_WITH(test_random, setup, teardown) {
    fixture_t *f = *state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        oracle_result_t result;
        assert_ok(fixture_create(f, oracle_sizes, ORACLE_N_EXTENTS));
        f->options.log.level = ZR_LOG_ERROR;
        oracle_run(f->store, 400, 20, seed, &result);
        for (size_t i = 1; i < ORACLE_N_STATUSES; i++)
            assert_int_equal(result.n_ended[i], 0);
        assert_true(result.n_ended[0] > 200);
    }
}

/* Ranks are threads, each with a store of its own on the same paths. */
static void *run_rank(void *context) {
    zr_store_options_t *options = context;
    zr_store_extent_t extents[ORACLE_N_EXTENTS];
    zr_store_t *store = NULL;
    oracle_result_t result;
    for (size_t e = 0; e < ORACLE_N_EXTENTS; e++)
        extents[e] = (zr_store_extent_t){.name = "of a rank", .size_bytes = oracle_sizes[e]};
    if (options->device != NULL && zr_device_open("sim", NULL, &options->device) != ZR_OK)
        return NULL; /* a rank has its own */
    zr_status_t status =
        zr_store_create(variant->backend, options, extents, ORACLE_N_EXTENTS, &store);
    if (status != ZR_OK)
        return NULL;
    oracle_run(store, 100, 10, (uint64_t)options->log.rank, &result);
    zr_store_destroy(&store);
    zr_device_close(&options->device);
    return result.n_ended[0] > 50 ? context : NULL; /* what came back has been compared */
}

TEST_WITH(test_ranks_in_threads, setup, teardown) {
    fixture_t *f = *state;
    pthread_t ranks[4];
    zr_store_options_t options[4];
    for (int rank = 0; rank < 4; rank++) {
        options[rank] = f->options;
        options[rank].log = (zr_log_t){.sink = drop_message, .level = ZR_LOG_ERROR, .rank = rank};
        assert_int_equal(pthread_create(&ranks[rank], NULL, run_rank, &options[rank]), 0);
    }
    for (int rank = 0; rank < 4; rank++) {
        void *result = NULL;
        assert_int_equal(pthread_join(ranks[rank], &result), 0);
        assert_ptr_equal(result, &options[rank]);
    }
}

/* ---- accounts ------------------------------------------------------------------------------- */

static zr_store_statistics_t of_account(const fixture_t *f, size_t account) {
    zr_store_statistics_t s;
    zr_store_account_statistics(f->store, account, &s);
    return s;
}

/* What is moved, waited for and verified is counted where the extent belongs, and in total. */
TEST_WITH(test_accounts, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 2 * REQUEST;
    const zr_store_extent_t extents[] = {{"a", size, 0}, {"b", CHUNK, 7}, {"c", size, 0}};
    assert_ok(zr_store_create(f->backend, &f->options, extents, 3, &f->store));
    assert_int_equal(zr_store_extent(f->store, 1)->account, 7);
    unsigned char *buffer = new_buffer(size, 0);
    zr_store_ticket_t tickets[3];
    fill_pattern(buffer, size, 3);
    for (size_t e = 0; e < 3; e++)
        assert_ok(zr_store_put(f->store, e, 0, extents[e].size_bytes, buffer, &tickets[e]));
    assert_ok(zr_store_wait(f->store, tickets[1]));
    assert_true(of_account(f, 7).wait_seconds[ZR_STORE_PUT] > 0);
    assert_true(of_account(f, 0).wait_seconds[ZR_STORE_PUT] == 0); /* though it moved on */
    assert_ok(zr_store_wait_all(f->store));
    assert_ok(get_now(f->store, 2, 0, size, buffer));
    assert_ok(get_now(f->store, 1, 0, 0, buffer));

    zr_store_statistics_t a = of_account(f, 0), b = of_account(f, 7), sum = statistics(f);
    assert_int_equal(a.count[ZR_STORE_PUT].bytes, 2 * size);
    assert_int_equal(a.count[ZR_STORE_GET].bytes, size);
    assert_int_equal(a.count[ZR_STORE_PUT].n_transfers, 2);
    assert_int_equal(b.count[ZR_STORE_PUT].bytes, CHUNK);
    assert_int_equal(b.count[ZR_STORE_PUT].n_requests, 1);
    assert_int_equal(b.count[ZR_STORE_GET].n_transfers, 1);
    assert_int_equal(b.count[ZR_STORE_GET].bytes, 0);
    assert_int_equal(of_account(f, 1).count[ZR_STORE_PUT].bytes, 0);
    assert_int_equal(sum.count[ZR_STORE_PUT].bytes, 2 * size + CHUNK);
    assert_int_equal(sum.count[ZR_STORE_GET].n_transfers, 2);
    assert_true((b.checksum_seconds > 0) == f->options.verify);
    assert_true(sum.checksum_seconds == a.checksum_seconds + b.checksum_seconds);
    free_buffer(buffer);
}

/* ---- registered buffers ---------------------------------------------------------------------- */

TEST_WITH(test_register, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 4 * REQUEST;
    assert_ok(fixture_create(f, &size, 1));
    unsigned char *from = new_buffer(size, 0), *to = new_buffer(size, 0);
    unsigned char *more = new_buffer(size, 0);
    const zr_store_buffer_t buffers[] = {{from, size}, {to, size / 2}}, third = {more, size};
    zr_store_ticket_t ticket;
    fill_pattern(from, size, 8);
    assert_ok(zr_store_register(f->store, buffers, 2));
    assert_ok(zr_store_put(f->store, 0, 0, size, from, &ticket));
    assert_ok(zr_store_register(f->store, &third, 1));          /* with one in flight */
    assert_ok(zr_store_get(f->store, 0, 0, size, to, &ticket)); /* in and beyond */
    assert_ok(zr_store_wait_all(f->store));
    expect_bytes(from, to, size);
    memset(to, 0, size);
    zr_store_unregister(f->store, buffers, 2); /* others' stay */
    assert_ok(get_now(f->store, 0, 0, size, to));
    assert_ok(get_now(f->store, 0, 0, size, more));
    expect_bytes(from, to, size);
    expect_bytes(from, more, size);
    zr_store_unregister(f->store, buffers, 2); /* which are not named any more */
    zr_store_unregister(f->store, &third, 1);
    assert_ok(zr_store_register(f->store, NULL, 0));
    assert_ok(get_now(f->store, 0, 0, size, to));
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_register(f->store, NULL, 1), "no array");
    const zr_store_buffer_t none = {NULL, 5}, empty = {to, 0};
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_register(f->store, &none, 1), "buffer 0 is 5");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_register(f->store, &empty, 1), "buffer 0 is 0");
    free_buffer(more);
    free_buffer(to);
    free_buffer(from);
}

static unsigned char *map_pages(void *at, size_t size) {
    unsigned char *pages = mmap(at, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | (at != NULL ? MAP_FIXED : 0), -1, 0);
    assert_true(pages != MAP_FAILED);
    return pages;
}

/* The system has nothing of what was taken back: other memory at its address is what is used. */
TEST_WITH(test_unregister, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 4 * REQUEST;
    assert_ok(fixture_create(f, &size, 1));
    unsigned char *from = new_buffer(size, 0);
    for (size_t i = 0; i < 3; i++) {
        unsigned char *pages[3];
        zr_store_buffer_t buffers[3];
        for (size_t j = 0; j < 3; j++) {
            pages[j] = map_pages(NULL, size);
            memset(pages[j], (int)j, size);
            buffers[j] = (zr_store_buffer_t){pages[j], size};
            assert_ok(zr_store_register(f->store, &buffers[j], 1));
        }
        fill_pattern(from, size, i);
        assert_ok(put_now(f->store, 0, 0, size, from));
        zr_store_unregister(f->store, &buffers[i], 1);
        (void)map_pages(pages[i], size);
        for (size_t j = 0; j < 3; j++) {
            assert_ok(get_now(f->store, 0, 0, size, pages[j]));
            expect_bytes(pages[j], from, size);
        }
        zr_store_unregister(f->store, buffers, 3);
        for (size_t j = 0; j < 3; j++)
            munmap(pages[j], size);
    }
    free_buffer(from);
}

/* ---- refusals ------------------------------------------------------------------------------- */

TEST_WITH(test_refused_transfers, setup, teardown) {
    fixture_t *f = *state;
    static const size_t two[] = {3 * CHUNK + 5, 10};
    assert_ok(fixture_create(f, two, 2));
    unsigned char *buffer = new_buffer(4 * CHUNK, 0);
    zr_store_ticket_t t = 99;
    zr_store_t *s = f->store;
    memset(buffer, 1, 4 * CHUNK);
    fixture_log_clear(f);
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_put(s, 2, 0, 1, buffer, &t),
                   "put: extent 2; declared: 2 extents");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_get(s, 0, 0, 3 * CHUNK + 6, buffer, &t),
                   "get of \"extent 0\": 24582 bytes at 0; the extent has 24581");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_put(s, 0, 4 * CHUNK, 0, buffer, &t), "0 bytes at");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_put(s, 0, CHUNK, SIZE_MAX, buffer, &t),
                   "the extent has");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_put(s, 0, 1, CHUNK, buffer, &t),
                   "not whole chunks");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_put(s, 0, 0, CHUNK + 1, buffer, &t),
                   "begin at a multiple of chunk_bytes, 8192");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_put(s, 0, 0, CHUNK, NULL, &t), "no buffer (NULL)");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_put(s, 0, 0, CHUNK, buffer, NULL), "ticket");
    assert_refused(f, ZR_ERR_STATE, zr_store_get(s, 1, 0, 10, buffer, &t), "has no data");
    assert_ok(put_now(s, 0, CHUNK, CHUNK, buffer));
    assert_refused(f, ZR_ERR_STATE, zr_store_get(s, 0, CHUNK, 2 * CHUNK, buffer, &t),
                   "the chunk at 16384 has no data");
    assert_ok(get_now(s, 0, CHUNK, CHUNK, buffer));
    assert_int_equal(t, 99);
    assert_refused(f, ZR_ERR_STATE, zr_store_wait(s, 12345678), "ticket 12345678 is invalid");
    assert_refused(f, ZR_ERR_STATE, zr_store_wait(s, UINT64_MAX), "is invalid");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_poll(s, 1, NULL), "the output pointer is NULL");
    free_buffer(buffer);
}

/* ---- checksums at another time -------------------------------------------------------------- */

#define N_CHUNKS ((size_t)7)
static const size_t later_bytes = (N_CHUNKS - 1) * CHUNK + 333;

static zr_status_t verify_chunk(const fixture_t *f, const unsigned char *buffer, size_t number) {
    size_t at = number * CHUNK, left = later_bytes - at;
    return zr_store_verify(f->store, 0, at, left < CHUNK ? left : CHUNK, buffer + at);
}

/* All at once the same is said of it, also where it is in another file than the first. */
static void flip_one_of_all(fixture_t *f, const unsigned char *buffer, size_t number) {
    static char text[sizeof(f->text)];
    if (!zr_store_info(f->store)->has_checksums)
        return;
    fixture_log_clear(f);
    assert_int_equal(verify_chunk(f, buffer, number), ZR_ERR_FORMAT);
    memcpy(text, f->text, sizeof(text));
    fixture_log_clear(f);
    assert_int_equal(zr_store_verify(f->store, 0, 0, later_bytes, buffer), ZR_ERR_FORMAT);
    assert_string_equal(f->text, text);
}

/* A bit of any chunk that changes between get and use is found in that chunk, and in no other. */
static void flip_each_chunk(fixture_t *f, unsigned char *buffer) {
    for (size_t i = 0; i < N_CHUNKS; i++) {
        size_t size = i + 1 < N_CHUNKS ? CHUNK : later_bytes - i * CHUNK;
        unsigned char *byte = buffer + i * CHUNK + (i * 977 + 1) % size;
        *byte ^= (unsigned char)(1 << i % 8);
        for (size_t j = 0; j < N_CHUNKS; j++) {
            fixture_log_clear(f);
            if (j == i && zr_store_info(f->store)->has_checksums)
                assert_refused(f, ZR_ERR_FORMAT, verify_chunk(f, buffer, j), "are not those that");
            else
                assert_ok(verify_chunk(f, buffer, j));
        }
        flip_one_of_all(f, buffer, i);
        *byte ^= (unsigned char)(1 << i % 8);
    }
}

TEST_WITH(test_checksums_at_another_time, setup, teardown) {
    fixture_t *f = *state;
    uint64_t sums[N_CHUNKS];
    zr_store_ticket_t ticket;
    unsigned char *buffer = new_buffer(later_bytes, 0), *back = new_buffer(later_bytes, 0);
    assert_ok(fixture_create(f, &later_bytes, 1));
    bool keeps = strcmp(variant->backend, "sim") != 0;
    assert_true(zr_store_info(f->store)->has_checksums == (f->options.verify && keeps));
    fill_pattern(buffer, later_bytes, 5);
    assert_ok(zr_store_hash(f->store, 0, 0, later_bytes, buffer, sums));
    assert_ok(zr_store_put_hashed(f->store, 0, 0, later_bytes, buffer, sums, &ticket));
    assert_ok(zr_store_wait(f->store, ticket));
    assert_ok(get_now(f->store, 0, 0, later_bytes, back));
    expect_bytes(back, buffer, later_bytes);

    memset(back, 0, later_bytes);
    assert_ok(zr_store_get_unverified(f->store, 0, 0, later_bytes, back, &ticket));
    assert_ok(zr_store_wait(f->store, ticket));
    expect_bytes(back, buffer, later_bytes);
    flip_each_chunk(f, back);
    free_buffer(back);
    free_buffer(buffer);
}

/* What was hashed and has changed before it was put is not what comes back. */
TEST_WITH(test_a_change_after_hashing, setup, teardown) {
    fixture_t *f = *state;
    uint64_t sums[N_CHUNKS] = {0};
    zr_store_ticket_t ticket = 0;
    unsigned char *buffer = new_buffer(later_bytes, 0);
    assert_ok(fixture_create(f, &later_bytes, 1));
    for (size_t i = 0; i < N_CHUNKS; i++) {
        fill_pattern(buffer, later_bytes, i);
        assert_ok(zr_store_hash(f->store, 0, 0, later_bytes, buffer, sums));
        buffer[i * CHUNK + 5] ^= 16;
        assert_ok(zr_store_put_hashed(f->store, 0, 0, later_bytes, buffer, sums, &ticket));
        assert_ok(zr_store_wait(f->store, ticket));
        fixture_log_clear(f);
        assert_int_equal(get_now(f->store, 0, 0, later_bytes, buffer),
                         zr_store_info(f->store)->has_checksums ? ZR_ERR_FORMAT : ZR_OK);
        assert_int_equal(f->n_logged[ZR_LOG_ERROR], zr_store_info(f->store)->has_checksums);
    }
    free_buffer(buffer);
}

TEST_WITH(test_refused_checksums, setup, teardown) {
    fixture_t *f = *state;
    uint64_t sums[N_CHUNKS];
    zr_store_ticket_t ticket = 0;
    unsigned char *buffer = new_buffer(later_bytes, 0);
    assert_ok(fixture_create(f, &later_bytes, 1));
    fixture_log_clear(f);
    zr_store_t *s = f->store;
    assert_refused(f, ZR_ERR_STATE, zr_store_verify(s, 0, 0, CHUNK, buffer), "has no data");
    assert_refused(f, ZR_ERR_STATE, zr_store_get_unverified(s, 0, 0, CHUNK, buffer, &ticket),
                   "has no data");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_verify(s, 1, 0, CHUNK, buffer),
                   "declared: 1 extent");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_verify(s, 0, 1, CHUNK, buffer), "not whole chunks");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_hash(s, 0, 0, CHUNK + 1, buffer, sums),
                   "hashing of \"extent 0\": 8193 bytes at 0: not whole chunks");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_hash(s, 0, 0, CHUNK, NULL, sums), "no buffer");
    if (zr_store_info(s)->has_checksums)
        assert_refused(f, ZR_ERR_ARGUMENT,
                       zr_store_put_hashed(s, 0, 0, CHUNK, buffer, NULL, &ticket),
                       "no checksums (NULL)");
    free_buffer(buffer);
}

/* One option changed, and what the refusal says. */
static void refuse_option(fixture_t *f, size_t *option, size_t value, const char *text) {
    size_t before = *option;
    *option = value;
    assert_refused(f, ZR_ERR_ARGUMENT, fixture_create(f, sizes, 3), text);
    assert_null(f->store);
    *option = before;
}

TEST_WITH(test_refused_stores, setup, teardown) {
    fixture_t *f = *state;
    zr_store_options_t *o = &f->options;
    refuse_option(f, &o->chunk_bytes, 0, "chunk_bytes is 0; 4096 to");
    refuse_option(f, &o->chunk_bytes, 5000,
                  "multiple of ZR_STORE_CHUNK_ALIGN_BYTES, 4096; the next is 8192");
    refuse_option(f, &o->request_bytes, CHUNK - 1, "request_bytes is 8191; 8192 to");
    refuse_option(f, &o->request_bytes, CHUNK + 4096,
                  "multiple of chunk_bytes, 8192; the next is 16384");
    refuse_option(f, &o->request_bytes, (size_t)1 << 31, "the nearest is 1073741824");
    refuse_option(f, &o->depth, 0, "depth is 0; 1 to 1024");
    refuse_option(f, &o->depth, 1025, "depth is 1025; 1 to 1024 are allowed, the nearest is 1024");
    refuse_option(f, &o->submit_batch, 0, "submit_batch is 0");
    refuse_option(f, &o->submit_batch, o->depth + 1, "submit_batch is ");
    refuse_option(f, &o->n_bounce_buffers, 0, "n_bounce_buffers is 0");
    refuse_option(f, &o->max_transfers, 0, "max_transfers is 0");
    refuse_option(f, &o->max_transfers, 65537, "max_transfers is 65537");
    static const size_t huge[] = {(size_t)1 << 60, 1};
    assert_refused(f, ZR_ERR_ARGUMENT, fixture_create(f, huge, 2), "extent 1, \"extent 1\"");
    const zr_store_extent_t unnamed = {.size_bytes = 1};
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_create(f->backend, o, &unnamed, 1, &f->store),
                   "extent 0 has no name");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_create(f->backend, o, NULL, 1, &f->store),
                   "no array");
    const zr_store_extent_t nobodys = {"a", 1, ZR_STORE_MAX_ACCOUNTS};
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_create(f->backend, o, &nobodys, 1, &f->store),
                   "is of account 8; there are 0 to 7");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_create("floppy", o, NULL, 0, &f->store),
                   "unknown backend \"floppy\"; allowed: memory, uring, posix, sim");
    assert_refused(f, ZR_ERR_ARGUMENT, zr_store_create(f->backend, o, NULL, 0, NULL), "NULL");
    assert_null(f->store);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Buffers come out of the host tier's budget, and go back to it. */
TEST_WITH(test_budget, setup, teardown) {
    fixture_t *f = *state;
    static const size_t size = 8 * REQUEST;
    zr_device_t *device = NULL;
    zr_allocator_t *allocator = NULL;
    zr_allocator_options_t options = zr_allocator_options_default();
    zr_tier_statistics_t s;
    options.log = f->options.log;
    options.budget_bytes[ZR_TIER_HOST] = 16 * REQUEST;
    assert_ok(zr_device_open("host", NULL, &device));
    assert_ok(zr_allocator_create(device, &options, &allocator));
    f->options.allocator = allocator;
    assert_ok(fixture_create(f, &size, 1));
    zr_allocator_statistics(allocator, ZR_TIER_HOST, &s);
    assert_true(s.live.live > 0 && s.live.live <= zr_store_info(f->store)->host_bytes);
    zr_store_destroy(&f->store);
    zr_allocator_statistics(allocator, ZR_TIER_HOST, &s);
    assert_int_equal(s.live.live, 0);
    zr_allocator_destroy(&allocator);

    options.budget_bytes[ZR_TIER_HOST] = 4096;
    assert_ok(zr_allocator_create(device, &options, &allocator));
    f->options.allocator = allocator;
    assert_refused(f, ZR_ERR_BUDGET, fixture_create(f, &size, 1), "does not fit");
    assert_null(f->store);
    zr_allocator_destroy(&allocator);
    zr_device_close(&device);
}

int main(void) {
    bool has_uring = fixture_probe() == 0;
    int n_failed = 0;
    for (size_t i = 0; i < N_OF(variants); i++) {
        variant = &variants[i];
        if (!has_uring && strcmp(variant->backend, "uring") == 0)
            continue;
        printf("---- %s\n", variant->name);
        n_failed += run_all_tests(NULL, NULL);
    }
    return n_failed;
}
