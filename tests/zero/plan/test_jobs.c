/*
 * Jobs on several threads: each runs, who waits is told in order, and errors are those of doing
 * one job after the other.
 */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "zero/plan/run_search.h"

#define N_JOBS ((size_t)300)
#define NONE SIZE_MAX

typedef struct seen {
    atomic_size_t n_runs[N_JOBS];
    size_t fails, fails_once, end_fails; /* NONE: no job does */
    size_t n_told, n_wrong;
} seen_t;

/* Every seventh gives way to those behind it. */
static zr_status_t run_job(void *context, size_t index, const zr_log_t *log) {
    seen_t *seen = context;
    size_t n_before = atomic_fetch_add(&seen->n_runs[index], 1);
    for (int i = 0; i < 20 && index % 7 == 0; i++)
        sched_yield();
    if (index == seen->fails || (index == seen->fails_once && n_before == 0))
        return zr_fail(log, ZR_ERR_IO, "job %zu fails", index);
    return ZR_OK;
}

static zr_status_t job_ended(void *context, size_t index, const zr_log_t *log) {
    seen_t *seen = context;
    seen->n_wrong += index != seen->n_told++ || seen->n_runs[index] == 0;
    return index == seen->end_fails ? zr_fail(log, ZR_ERR_FORMAT, "end %zu fails", index) : ZR_OK;
}

/* Job `fails` always does, `once` in its first run, and so does what ends `end`. */
static void do_jobs(seen_t *seen, size_t n_threads, size_t fails, size_t once, size_t end,
                    zr_status_t expected) {
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
    memset(seen, 0, sizeof(*seen));
    seen->fails = fails;
    seen->fails_once = once;
    seen->end_fails = end;
    zr_run_jobs_t jobs = {
        .n = N_JOBS, .run = run_job, .ended = job_ended, .context = seen, .n_threads = n_threads};
    assert_int_equal(zr_run_jobs(&jobs, &log), expected);
    assert_int_equal(seen->n_wrong, 0);
    assert_int_equal(kept.n_messages, expected != ZR_OK);
    if (expected != ZR_OK)
        assert_has(kept.text, expected == ZR_ERR_IO ? "job 50 fails" : "end 60 fails");
}

TEST(all_are_run_and_told_in_order) {
    seen_t seen;
    for (size_t n_threads = 0; n_threads <= 5; n_threads++) {
        do_jobs(&seen, n_threads, NONE, NONE, NONE, ZR_OK);
        assert_int_equal(seen.n_told, N_JOBS);
        for (size_t i = 0; i < N_JOBS; i++)
            assert_int_equal(seen.n_runs[i], 1);
    }
}

TEST(the_first_error_counts) {
    seen_t seen;
    for (size_t n_threads = 1; n_threads <= 5; n_threads++) {
        do_jobs(&seen, n_threads, 50, NONE, NONE, ZR_ERR_IO);
        assert_int_equal(seen.n_told, 50);
        assert_int_equal(seen.n_runs[50], 2);
        do_jobs(&seen, n_threads, NONE, NONE, 60, ZR_ERR_FORMAT);
        assert_int_equal(seen.n_told, 61);
    }
}

/* As where memory has become free: what has run is not run again. */
TEST(an_error_may_pass) {
    seen_t seen;
    for (size_t n_threads = 1; n_threads <= 5; n_threads++) {
        do_jobs(&seen, n_threads, NONE, 77, NONE, ZR_OK);
        assert_int_equal(seen.n_told, N_JOBS);
        for (size_t i = 0; i < N_JOBS; i++)
            assert_int_equal(seen.n_runs[i], i == 77 ? 2 : 1);
    }
}
