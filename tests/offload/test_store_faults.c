/*
 * The store "uring" on a drive and a system that fail: at each of many requests, whatever was
 * asked for is either there and right, or refused with the precise error. Nothing hangs, nothing
 * is left behind, and what has not failed goes on.
 */
#include "tests/offload/fault_ring.h"
#include "tests/offload/store_fixture.h"
#include "tests/offload/store_oracle.h"

#define N_RUNS 200
#define N_TRANSFERS 20

static int setup(void **state) {
    fixture_t *f = malloc(sizeof(*f));
    assert_non_null(f);
    fault_arm(FAULT_NONE, 0, 0, 0);
    fixture_open(f, "uring", 2);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture_t *f = *state;
    fault_arm(FAULT_NONE, 0, 0, 0);
    fixture_close(f);
    free(f);
    return 0;
}

/* Random transfers with a fault at the n-th request. */
static void run_with_fault(fixture_t *f, fault_kind_t kind, long result, size_t n, uint64_t seed,
                           oracle_result_t *result_p) {
    fault_arm(FAULT_NONE, 0, 0, 0);
    fixture_log_clear(f);
    assert_ok(fixture_create(f, oracle_sizes, ORACLE_N_EXTENTS));
    fault_arm(kind, result, n, 1);
    oracle_run(f->store, N_TRANSFERS, 8, seed, result_p);
    zr_store_destroy(&f->store);
    assert_int_equal(count_descriptors(), f->n_files_before);
    for (size_t i = 0; i < f->options.n_paths; i++)
        assert_int_equal(count_names(f->folders[i]), 0);
}

/* The same at many requests; how often it was met, and transfers ended by status. */
static size_t run_with_faults(fixture_t *f, fault_kind_t kind, long result, size_t n_runs,
                              oracle_result_t *sum_p) {
    uint64_t random = (uint64_t)kind * 1000 + (uint64_t)result;
    oracle_result_t one;
    size_t n_hits = 0, most = kind == FAULT_RESULT || kind == FAULT_SHORT ? 50 : 20;
    memset(sum_p, 0, sizeof(*sum_p));
    for (size_t run = 0; run < n_runs; run++) {
        run_with_fault(f, kind, result, 1 + random_bits(&random) % most, run, &one);
        n_hits += fault.n_hits;
        for (size_t i = 0; i < ORACLE_N_STATUSES; i++)
            sum_p->n_ended[i] += one.n_ended[i];
        sum_p->n_refused += one.n_refused;
        if (kind == FAULT_RESULT && fault.n_hits > 0 && result < 0 && result != -EAGAIN &&
            result != -EINTR) {
            char text[64];
            assert_int_equal(one.n_ended[-ZR_ERR_IO], 1);
            snprintf(text, sizeof(text), "%s (errno %ld)", strerror((int)-result), -result);
            assert_logged(f, text);
            assert_logged(f, "rank 3's file in test-store-");
            assert_logged(f, ", offset ");
            assert_logged(f, ", length ");
        }
    }
    return n_hits;
}

TEST_WITH(test_the_drive_fails, setup, teardown) {
    fixture_t *f = *state;
    static const int errors[] = {EIO, ENOSPC};
    static const size_t n_runs[] = {N_RUNS, 60};
    for (size_t i = 0; i < 2; i++) {
        oracle_result_t sum;
        size_t n_hits = run_with_faults(f, FAULT_RESULT, -errors[i], n_runs[i], &sum);
        assert_true(n_hits > n_runs[i] / 4);
        assert_int_equal(sum.n_ended[-ZR_ERR_IO], n_hits);
        assert_int_equal(sum.n_ended[-ZR_ERR_FORMAT], 0);
    }
}

/* What is not an error to anybody: all goes on. */
TEST_WITH(test_what_goes_on, setup, teardown) {
    fixture_t *f = *state;
    static const struct {
        fault_kind_t kind;
        long result;
        size_t n_runs;
    } cases[] = {{FAULT_SHORT, 4096, N_RUNS}, {FAULT_SHORT, 1, 50},
                 {FAULT_SHORT, 5000, 50},     {FAULT_LATE, 0, N_RUNS},
                 {FAULT_RESULT, -EAGAIN, 50}, {FAULT_RESULT, -EINTR, 50}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        oracle_result_t sum;
        size_t n_runs = cases[i].n_runs;
        assert_true(run_with_faults(f, cases[i].kind, cases[i].result, n_runs, &sum) > n_runs / 4);
        for (int status = 1; status < ORACLE_N_STATUSES; status++)
            assert_int_equal(sum.n_ended[status], 0);
    }
}

/* The drive says that all is well, and it is not. Some of these are written over unseen. */
TEST_WITH(test_the_drive_lies, setup, teardown) {
    fixture_t *f = *state;
    static const fault_kind_t kinds[] = {FAULT_LOST, FAULT_MISPLACED, FAULT_FLIP};
    static const size_t n_runs[] = {N_RUNS, 60, N_RUNS};
    for (size_t i = 0; i < 3; i++) {
        oracle_result_t sum;
        size_t n_hits = run_with_faults(f, kinds[i], 0, n_runs[i], &sum);
        assert_true(n_hits > n_runs[i] / 2);
        assert_true(sum.n_ended[-ZR_ERR_FORMAT] > n_runs[i] / 10);
        assert_int_equal(sum.n_ended[-ZR_ERR_IO], 0);
        printf("%zu lies, %zu found out\n", n_hits, sum.n_ended[-ZR_ERR_FORMAT]);
        if (kinds[i] == FAULT_FLIP)
            assert_int_equal(sum.n_ended[-ZR_ERR_FORMAT], n_hits);
    }
}

/* ---- single requests ------------------------------------------------------------------------ */

static const size_t one_size = 6 * REQUEST;

/* A store of one extent that has been put, and a buffer. */
static unsigned char *put_one(fixture_t *f) {
    unsigned char *buffer = new_buffer(one_size, 0);
    fault_arm(FAULT_NONE, 0, 0, 0);
    assert_ok(fixture_create(f, &one_size, 1));
    fill_pattern(buffer, one_size, 1);
    assert_ok(put_now(f->store, 0, 0, one_size, buffer));
    fixture_log_clear(f);
    return buffer;
}

TEST_WITH(test_messages, setup, teardown) {
    fixture_t *f = *state;
    unsigned char *buffer = put_one(f);
    f->options.n_paths = 1;
    free_buffer(buffer);
    buffer = put_one(f);
    fault_arm(FAULT_RESULT, -EIO, 3, 1);
    assert_refused(f, ZR_ERR_IO, get_now(f->store, 0, 0, one_size, buffer),
                   "get of \"extent 0\": 32768 bytes at 65536: read from rank 3's file in ");
    fault_arm(FAULT_RESULT, -EIO, 2, 1);
    assert_refused(f, ZR_ERR_IO, put_now(f->store, 0, CHUNK, one_size - CHUNK, buffer),
                   ", offset 32768, length 32768: Input/output error (errno 5)");
    fault_arm(FAULT_NONE, 0, 0, 0);
    assert_refused(f, ZR_ERR_STATE, get_now(f->store, 0, 0, one_size, buffer),
                   "the chunk at 32768 has no data");
    assert_ok(put_now(f->store, 0, 0, one_size, buffer));
    fault_arm(FAULT_FLIP, 0, 1, 1);
    assert_refused(f, ZR_ERR_FORMAT, get_now(f->store, 0, 0, one_size, buffer),
                   "the 8192 bytes at 0 are not those that were put: rank 3's file in ");
    free_buffer(buffer);
}

/* A request that never moves anything ends, too. */
TEST_WITH(test_patience_ends, setup, teardown) {
    fixture_t *f = *state;
    unsigned char *buffer = put_one(f);
    fault_arm(FAULT_RESULT, -EAGAIN, 1, SIZE_MAX / 2);
    assert_refused(f, ZR_ERR_IO, get_now(f->store, 0, 0, CHUNK, buffer), "(errno 11)");
    fault_arm(FAULT_RESULT, 5, 1, SIZE_MAX / 2);
    assert_refused(f, ZR_ERR_IO, put_now(f->store, 0, 0, CHUNK, buffer),
                   "less than a whole block was written");
    fault_arm(FAULT_RESULT, 0, 1, 1);
    assert_refused(f, ZR_ERR_IO, get_now(f->store, 0, CHUNK, CHUNK, buffer),
                   "unexpected end of file");
    fault_arm(FAULT_RESULT, 0, 1, 2); /* nothing was written, twice */
    assert_ok(put_now(f->store, 0, 0, CHUNK, buffer));
    zr_store_statistics_t s;
    zr_store_statistics(f->store, &s);
    assert_int_equal(s.n_failed, 3);
    assert_true(s.n_retried > 200);
    fault_arm(FAULT_RESULT, 4096, 1, 1); /* short */
    assert_ok(put_now(f->store, 0, 0, CHUNK, buffer));
    zr_store_account_statistics(f->store, FIXTURE_ACCOUNT, &s);
    assert_int_equal(s.n_failed, 3);
    assert_true(s.n_retried > 200);
    assert_int_equal(s.n_continued, 1);
    free_buffer(buffer);
}

/* ---- the ring ------------------------------------------------------------------------------- */

/* How many requests are handed over at once depends on when others end; but each chunk that is got
 * in the end is a submission of its own, and after so many transfers there are as many as it takes.
 */
TEST_WITH(test_submissions_that_pass, setup, teardown) {
    fixture_t *f = *state;
    static const int results[] = {-EAGAIN, -EBUSY, -EINTR, 0};
    for (size_t i = 0; i < 4; i++) {
        for (size_t at = 1; at < 40; at += TEST_IS_SLOW ? 9 : 3) {
            oracle_result_t result;
            assert_ok(fixture_create(f, oracle_sizes, ORACLE_N_EXTENTS));
            fault_arm(FAULT_SUBMIT, results[i], at, 5);
            oracle_run(f->store, 3 * N_TRANSFERS, 8, at, &result);
            assert_true(fault.n_hits > 0);
            for (int status = 1; status < ORACLE_N_STATUSES; status++)
                assert_int_equal(result.n_ended[status], 0);
        }
    }
}

/* The ring is of no use any more: all ends with an error, once, and the store takes no more. */
TEST_WITH(test_the_ring_fails, setup, teardown) {
    fixture_t *f = *state;
    static const fault_kind_t kinds[] = {FAULT_SUBMIT, FAULT_NEXT};
    for (size_t i = 0; i < 2; i++) {
        for (size_t at = 1; at < 30; at += TEST_IS_SLOW ? 3 : 1) {
            oracle_result_t result;
            zr_store_ticket_t ticket;
            unsigned char byte[CHUNK] = {0};
            fault_arm(FAULT_NONE, 0, 0, 0);
            assert_ok(fixture_create(f, oracle_sizes, ORACLE_N_EXTENTS));
            fixture_log_clear(f);
            fault_arm(kinds[i], -EBADF, at, 1);
            oracle_run(f->store, N_TRANSFERS, 8, at, &result);
            if (fault.n_hits == 0)
                continue;
            assert_logged(f, "(errno 9)");
            assert_logged(f, "the store with them");
            assert_true(result.n_ended[-ZR_ERR_IO] > 0);
            fixture_log_clear(f);
            assert_refused(f, ZR_ERR_IO, zr_store_put(f->store, 0, 0, CHUNK, byte, &ticket),
                           "the store is unusable since ");
        }
    }
}

/* Not even what the system has can be waited for: no hang. Puts only read the buffer. */
TEST_WITH(test_the_ring_fails_twice, setup, teardown) {
    fixture_t *f = *state;
    unsigned char *buffer = put_one(f);
    fault_arm(FAULT_NEXT, -EBADF, 1, 2);
    assert_int_equal(put_now(f->store, 0, 0, one_size, buffer), ZR_ERR_IO);
    assert_logged(f, "still in flight");
    zr_store_destroy(&f->store);
    free_buffer(buffer);
}

/* A drive that does not answer for long is waited for, and named. */
TEST_WITH(test_a_silent_drive, setup, teardown) {
    fixture_t *f = *state;
    unsigned char *buffer = put_one(f);
    fault_arm(FAULT_NEXT, 0, 1, 2);
    assert_ok(get_now(f->store, 0, 0, one_size, buffer));
    assert_int_equal(f->n_logged[ZR_LOG_WARNING], 2);
    assert_logged(f, "requests has ended for 60 s; the drive of rank 3's file in ");
    free_buffer(buffer);
}

/* ---- making a store ------------------------------------------------------------------------- */

typedef struct creation {
    fault_kind_t kind;
    long result;
    size_t at;
    zr_status_t status;
    const char *text;
} creation_t;

TEST_WITH(test_refused_creations, setup, teardown) {
    fixture_t *f = *state;
    static const creation_t cases[] = {
        {FAULT_OPEN_RING, -ENOSYS, 1, ZR_ERR_UNSUPPORTED, "this kernel has no io_uring"},
        {FAULT_OPEN_RING, -EPERM, 1, ZR_ERR_UNSUPPORTED, "kernel.io_uring_disabled must be 0"},
        {FAULT_OPEN_RING, -ENOMEM, 1, ZR_ERR_UNSUPPORTED, "raise RLIMIT_MEMLOCK"},
        {FAULT_OPEN_RING, -EMFILE, 1, ZR_ERR_UNSUPPORTED, "raise RLIMIT_NOFILE"},
        {FAULT_OPEN, ENOENT, 1, ZR_ERR_IO, "No such file or directory (errno 2)"},
        {FAULT_OPEN, EACCES, 2, ZR_ERR_IO, "making of rank 3's file in "},
        {FAULT_OPEN, ENOSPC, 2, ZR_ERR_BUDGET, "there is no room for a file in "},
        {FAULT_FALLOCATE, ENOSPC, 1, ZR_ERR_BUDGET, "cannot be reserved for rank 3's file in "},
        {FAULT_FALLOCATE, ENOSPC, 3, ZR_ERR_BUDGET, "98304 bytes) cannot be reserved"},
        {FAULT_FALLOCATE, EDQUOT, 4, ZR_ERR_BUDGET, "is free there"},
        {FAULT_FALLOCATE, EIO, 4, ZR_ERR_IO, "reserving the room of rank 3's file in "},
        {FAULT_PWRITE, EIO, 1, ZR_ERR_IO, "a first transfer of rank 3's file in "},
        {FAULT_BLOCK, 16384, 1, ZR_ERR_ARGUMENT, "multiple of the block size of the drives, 16384"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        fault_arm(cases[i].kind, cases[i].result, cases[i].at, 1);
        assert_refused(f, cases[i].status, fixture_create(f, &one_size, 1), cases[i].text);
        assert_null(f->store);
        assert_int_equal(count_descriptors(), f->n_files_before);
    }
}

/* Where io_uring is forbidden there is another way, and it is said; what can be raised is no reason
 * for it. */
TEST_WITH(test_forbidden, setup, teardown) {
    fixture_t *f = *state;
    static const struct {
        int error;
        const char *backend;
    } cases[] = {{0, "uring"},       {-EPERM, "posix"},  {-ENOSYS, "posix"},
                 {-EACCES, "posix"}, {-ENOMEM, "uring"}, {-EMFILE, "uring"}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        fixture_log_clear(f);
        fault_arm(cases[i].error == 0 ? FAULT_NONE : FAULT_OPEN_RING, cases[i].error, 1, 1);
        assert_string_equal(zr_store_drive_backend(&f->options.log), cases[i].backend);
        if (strcmp(cases[i].backend, "posix") == 0)
            assert_logged(f, "using pread and pwrite");
        else
            assert_int_equal(f->n_logged[ZR_LOG_WARNING], 0);
        assert_int_equal(count_descriptors(), f->n_files_before);
    }
    fixture_log_clear(f);
}

/* A store that goes on with less, and says so. */
static void use(fixture_t *f, const char *warning) {
    oracle_result_t result;
    assert_ok(fixture_create(f, oracle_sizes, ORACLE_N_EXTENTS));
    assert_true(fault.n_hits > 0 || fault.kind == FAULT_BLOCK || fault.kind == FAULT_ALIGN);
    assert_int_equal(f->n_logged[ZR_LOG_WARNING] > 0, warning != NULL);
    if (warning != NULL)
        assert_logged(f, warning);
    fixture_log_clear(f);
    oracle_run(f->store, 60, 8, 1, &result);
    assert_true(result.n_ended[0] > 30);
    for (int status = 1; status < ORACLE_N_STATUSES; status++)
        assert_int_equal(result.n_ended[status], 0);
}

TEST_WITH(test_lesser_creations, setup, teardown) {
    fixture_t *f = *state;
    fault_arm(FAULT_OPEN, EOPNOTSUPP, 1, 2); /* no files without names */
    use(f, NULL);
    fault_arm(FAULT_FALLOCATE, EINTR, 1, 3);
    use(f, NULL);
    fault_arm(FAULT_FALLOCATE, EOPNOTSUPP, 1, 4); /* written once instead */
    use(f, NULL);
    fault_arm(FAULT_REGISTER_FILES, -ENOMEM, 1, 1);
    use(f, NULL);
    fault_arm(FAULT_REGISTER_BUFFERS, -ENOMEM, 1, 1);
    use(f, "raise RLIMIT_MEMLOCK (ulimit -l");
    assert_false(zr_store_info(f->store)->is_registered);
    fault_arm(FAULT_REGISTER_BUFFERS, -EFAULT, 1, 1);
    use(f, "use plain host memory for them");
    fault_arm(FAULT_SET_FLAGS, EINVAL, 1, 1); /* of two files, one is not direct */
    use(f, "using the page cache");
    assert_false(zr_store_info(f->store)->is_direct);
    fault_arm(FAULT_BLOCK, (long)1 << 30, 1, 1);
    use(f, "no direct transfers to rank 3's file in ");
    assert_int_equal(zr_store_info(f->store)->buffer_align_bytes, 1);
    fault_arm(FAULT_ALIGN, 2048, 1, 1);
    use(f, NULL);
    assert_int_equal(zr_store_info(f->store)->buffer_align_bytes, 2048);
    fault_arm(FAULT_BLOCK, 8192, 1, 1);
    use(f, NULL);
    assert_int_equal(zr_store_info(f->store)->block_bytes, 8192);
}

/* Every request from registered memory is one, wherever huge pages begin in it. */
static void move_registered(fixture_t *f, unsigned char *base, size_t size_bytes) {
    const zr_store_buffer_t buffer = {base, size_bytes};
    assert_ok(zr_store_register(f->store, &buffer, 1));
    for (size_t at = 0; at < size_bytes; at += 3 * CHUNK) {
        size_t left = size_bytes - at, size = left < 2 * REQUEST ? left : 2 * REQUEST;
        fill_pattern(base + at, size, at);
        assert_ok(put_now(f->store, 0, 0, size, base + at));
        memset(base + at, 0, size);
        assert_ok(get_now(f->store, 0, 0, size, base + at));
    }
}

TEST_WITH(test_registered_memory, setup, teardown) {
    fixture_t *f = *state;
    const size_t huge = (size_t)2 << 20, extent = 2 * REQUEST;
    static const size_t begins[] = {0, CHUNK, ((size_t)1 << 20) + 4096, ((size_t)2 << 20) - 4096};
    static const size_t sizes[] = {CHUNK, 2 << 20, 3 << 20, 5 << 20};
    unsigned char *memory = aligned_alloc(huge, 4 * huge);
    assert_non_null(memory);
    assert_ok(fixture_create(f, &extent, 1));
    if (!zr_store_info(f->store)->is_registered)
        print_message("nothing can be registered here, so nothing is tested\n");
    for (size_t i = 0; i < 16 && zr_store_info(f->store)->is_registered; i++) {
        size_t n_before = fault_n_unregistered;
        move_registered(f, memory + begins[i / 4], sizes[i % 4]);
        if (zr_store_info(f->store)->is_registered)
            assert_int_equal(fault_n_unregistered, n_before);
    }
    zr_store_destroy(&f->store);
    free(memory);
}

int main(void) {
    if (fixture_probe() != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(NULL, NULL);
}
