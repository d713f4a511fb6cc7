/*
 * Which rank is the slowest, as zero-train's --log and its result say. Clocks are set by hand: the
 * slow rank's goes on by a long while, as often as it asks for a micro-batch, and where ranks meet,
 * the others' go on to where the latest is, as if they had waited. How long anything really takes
 * is as nothing beside that.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <jansson.h>

#include "examples/data/data.h"
#include "examples/train/train.h"
#include "tests/common/test.h"
#include "zero/comm/membership_internal.h"

#define WHILE_SECONDS 1000000

/* ---- clocks (--wrap) ------------------------------------------------------------------------ */

static int slow_rank;
static _Thread_local bool is_slow;
static _Thread_local time_t ahead_seconds;

WRAP(int, clock_gettime, clockid_t clock, struct timespec *now) {
    int error = __real_clock_gettime(clock, now);
    now->tv_sec += ahead_seconds;
    return error;
}

WRAP(zr_status_t, data_reader_create, const data_t *data, const data_part_t *part,
     data_reader_t **reader_p) {
    is_slow = part->rank == slow_rank;
    ahead_seconds = 0;
    return __real_data_reader_create(data, part, reader_p);
}

WRAP(zr_status_t, data_reader_next, data_reader_t *reader, size_t *length_p,
     const int32_t **tokens_p, const int32_t **targets_p) {
    if (is_slow)
        ahead_seconds += WHILE_SECONDS;
    return __real_data_reader_next(reader, length_p, tokens_p, targets_p);
}

/* What the clock of the rank that is furthest has gone on by, and whether this thread's rank is in
 * the meeting that begins a call. */
static atomic_long latest_seconds;
static _Thread_local bool is_meeting;

WRAP(void, zr_membership_arrive, zr_membership_t *membership, int rank, const zr_post_t *post) {
    if (ahead_seconds > atomic_load(&latest_seconds)) /* the membership is locked */
        atomic_store(&latest_seconds, ahead_seconds);
    is_meeting = true;
    __real_zr_membership_arrive(membership, rank, post);
}

/* The first that a rank does when all have come. */
WRAP(int, pthread_mutex_unlock, pthread_mutex_t *mutex) {
    if (is_meeting)
        ahead_seconds = atomic_load(&latest_seconds);
    is_meeting = false;
    return __real_pthread_mutex_unlock(mutex);
}

/* ---- a run ---------------------------------------------------------------------------------- */

static void train(const char *n_ranks, const char *stage, train_result_t *result) {
    char *words[] = {"zero-train",
                     "--model=layers=2,channels=16,heads=2,seq=16,vocab=256",
                     "--data=data",
                     "--steps=4",
                     "--grad-accum=2",
                     "--log=log",
                     "--ranks",
                     (char *)(uintptr_t)n_ranks,
                     "--stage",
                     (char *)(uintptr_t)stage,
                     NULL};
    zr_log_t log = zr_log_default();
    train_options_t options;
    assert_ok(train_options_parse(10, words, &log, &options));
    assert_ok(zero_train_run(&options, &log, NULL, result));
    train_options_free(&options);
}

/* Each step has two micro-batches. */
static void assert_is_two(double whiles) {
    if (whiles < 1.99 || whiles > 2.01)
        fail_msg("%g instead of 2", whiles);
}

static void check_lines(int n_ranks) {
    FILE *file = fopen("log", "r");
    char line[4096];
    size_t n_lines = 0;
    assert_non_null(file);
    for (; fgets(line, sizeof(line), file) != NULL; n_lines++) {
        json_t *object = json_loads(line, 0, NULL);
        const json_t *rank = json_object_get(object, "slowest_rank");
        const json_t *excess = json_object_get(object, "excess_ms");
        if (n_ranks == 1) {
            assert_true(rank == NULL && excess == NULL);
        } else {
            assert_int_equal(json_integer_value(rank), slow_rank);
            assert_is_two(1e-3 * json_number_value(excess) / WHILE_SECONDS);
        }
        json_decref(object);
    }
    assert_int_equal(n_lines, 4);
    fclose(file);
}

TEST(test_runs) {
    static const struct {
        const char *n_ranks, *stage;
        int slow;
    } runs[] = {{"3", "2", 1}, {"2", "3", 0}, {"2", "0", 1}, {"4", "1", 3}, {"1", "0", 0}};
    for (size_t i = 0; i < N_OF(runs); i++) {
        train_result_t result = {0};
        int n_ranks = atoi(runs[i].n_ranks);
        slow_rank = runs[i].slow;
        atomic_store(&latest_seconds, 0);
        train(runs[i].n_ranks, runs[i].stage, &result);
        check_lines(n_ranks);
        assert_int_equal(result.n_delayed_steps, n_ranks == 1 ? 0 : 3);
        if (n_ranks == 1)
            continue;
        assert_int_equal(result.slowest_rank, slow_rank);
        assert_int_equal(result.slowest.n_steps, 3);
        assert_is_two(result.slowest.excess_seconds / 3 / WHILE_SECONDS);
    }
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

static void check_slowest(const double *own_seconds, int n_ranks, int rank, double excess) {
    double copy[8];
    memcpy(copy, own_seconds, (size_t)n_ranks * sizeof(*copy));
    train_slowest_t slowest = train_slowest_of(copy, n_ranks);
    assert_int_equal(slowest.rank, rank);
    assert_true(slowest.excess_seconds == excess);
}

TEST(test_excess_is_over_the_others_median) {
    check_slowest((const double[]){3, 5}, 2, 1, 2);
    check_slowest((const double[]){5, 3}, 2, 0, 2);
    check_slowest((const double[]){1, 9, 2}, 3, 1, 7.5);
    check_slowest((const double[]){1, 2, 3, 10}, 4, 3, 8);
    check_slowest((const double[]){10, 2, 8, 1, 4}, 5, 0, 7);
    check_slowest((const double[]){4, 4, 4}, 3, 0, 0);
}

TEST(test_slowest_of_all_steps) {
    const train_delays_t delays[] = {{.n_steps = 5, .excess_seconds = 1},
                                     {.n_steps = 1, .excess_seconds = 3},
                                     {.n_steps = 0},
                                     {.n_steps = 2, .excess_seconds = 3}};
    assert_int_equal(train_slowest_of_all(delays, 4), 1);
    assert_int_equal(train_slowest_of_all(delays, 1), 0);
    assert_int_equal(train_slowest_of_all(delays + 2, 2), 1);
}

static int prepare(void **state) {
    return enter_test_folder(state) | system("seq 1000 >data");
}

const test_group_t test_group = {prepare, leave_test_folder};
