/*
 * What planning costs: everything that GPT-3 175B could do on 1,024 ranks, in little memory and in
 * so many pieces of simulated work and of searching that it takes seconds. They are counted: how
 * long anything takes says nothing here.
 */
#include <inttypes.h>
#include <sys/resource.h>

#include "allocator/planner_internal.h"
#include "examples/plan/ask.h"
#include "kernels/simulation.h"
#include "tests/common/test.h"

/* ---- what is counted (--wrap) --------------------------------------------------------------- */

static size_t n_works;   /* pieces of simulated work */
static uint64_t n_steps; /* of searches for places in memory */

WRAP(double, zr_sim_clock_work, zr_sim_clock_t *clock, zr_sim_part_t part, const char *name,
     double earliest, double seconds) {
    n_works++;
    return __real_zr_sim_clock_work(clock, part, name, earliest, seconds);
}

WRAP(zr_status_t, zr_plan_offsets_in, zr_heap_t *counted_in, const zr_plan_buffer_t *buffers,
     size_t n_buffers, const zr_plan_options_t *options, size_t *offsets_p,
     zr_plan_result_t *result_p) {
    zr_plan_result_t result = {0};
    zr_status_t status =
        __real_zr_plan_offsets_in(counted_in, buffers, n_buffers, options, offsets_p, &result);
    n_steps += result.n_steps;
    if (status == ZR_OK && result_p != NULL)
        *result_p = result;
    return status;
}

/* ---- the largest question ------------------------------------------------------------------- */

/* It took 18.7 million and 3.3 million when this was written. */
enum { MOST_WORKS = 25000000, MOST_STEPS = 5000000, MOST_KIB = 200 * 1024 };

TEST(test_planning_is_cheap) {
    char *words[] = {"zero-plan",    "--model=gpt3-175b", "--hardware=8x-a100-80g",
                     "--ranks=1024", "--dtype=bf16",      NULL};
    zr_log_t log = zr_log_default();
    plan_options_t options;
    zr_run_rows_t rows = {0};
    struct rusage usage;
    assert_ok(plan_options_parse(5, words, &log, &options));
    assert_ok(plan_search(&options, &log, NULL, &rows));
    print_message("%zu plans of %zu tried, %zu pieces of work, %" PRIu64 " steps of searches\n",
                  rows.n, rows.n_tried, n_works, n_steps);
    zr_run_rows_free(&rows);
    assert_in_range(n_works, 1, MOST_WORKS);
    assert_in_range(n_steps, 1, MOST_STEPS);
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    assert_in_range(usage.ru_maxrss, 1, MOST_KIB);
}
