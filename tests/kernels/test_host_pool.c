/*
 * The host's threads: every task runs exactly once, writes are seen on both sides, and
 * thousands of short jobs with more threads than cores come to an end. Written to be
 * run under ThreadSanitizer as well.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "kernels/device_fixture.h"
#include "kernels/host/host_pool.h"

#define MAX_TASKS 1000

typedef struct work {
    size_t n_tasks;
    unsigned runs[MAX_TASKS]; /* not atomic: a task that runs twice at once is a data race */
    unsigned round;           /* written by the caller, read by the tasks */
} work_t;

static void count_run(void *context, size_t index) {
    work_t *work = context;
    work->runs[index] += work->round;
}

static zr_device_t *open_host(int n_threads) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = n_threads;
    zr_device_t *device = NULL;
    assert_ok(zr_device_open("host", &options, &device));
    return device;
}

static void hammer(zr_device_t *device, unsigned n_rounds) {
    const size_t counts[] = {0, 1, 2, 3, 7, 64, MAX_TASKS};
    work_t *work = calloc(1, sizeof(*work));
    for (size_t c = 0; c < N_OF(counts); c++) {
        memset(work, 0, sizeof(*work));
        unsigned expected = 0;
        for (unsigned round = 1; round <= n_rounds; round++) {
            work->round = round;
            expected += round;
            zr_host_parallel_for(device, counts[c], count_run, work);
            if (counts[c] > 0)
                assert_int_equal(work->runs[counts[c] - 1], expected);
        }
        for (size_t i = 0; i < MAX_TASKS; i++)
            assert_int_equal(work->runs[i], i < counts[c] ? expected : 0);
    }
    free(work);
}

TEST(test_every_task_once) {
    for (int n_threads = 1; n_threads <= 8; n_threads++) {
        zr_device_t *device = open_host(n_threads);
        hammer(device, 300);
        zr_device_close(&device);
    }
}

/* Two tasks, one for the caller and one for the other thread, which is made to end last. */
typedef struct pair {
    pthread_t caller;
    atomic_bool other_began, other_ended;
} pair_t;

static void outlast_the_caller(void *context, size_t index) {
    pair_t *pair = context;
    if (pthread_equal(pthread_self(), pair->caller)) {
        while (!atomic_load(&pair->other_began))
            sched_yield();
        return;
    }
    atomic_store(&pair->other_began, true);
    usleep(2000);
    atomic_store(&pair->other_ended, true);
}

TEST(test_returns_when_all_are_done) {
    zr_device_t *device = open_host(2);
    for (int i = 0; i < 20; i++) {
        pair_t pair = {.caller = pthread_self()};
        zr_host_parallel_for(device, 2, outlast_the_caller, &pair);
        assert_true(atomic_load(&pair.other_ended));
    }
    zr_device_close(&device);
}

/* Short jobs with pauses: threads that wake after a job's end must not meet the next one. */
TEST(test_pauses) {
    zr_device_t *device = open_host(4);
    work_t *work = calloc(1, sizeof(*work));
    work->round = 1;
    for (unsigned i = 1; i <= 2000; i++) {
        zr_host_parallel_for(device, 2 + i % 3, count_run, work);
        assert_int_equal(work->runs[0], i);
        assert_int_equal(work->runs[1], i);
        if (i % 2 == 0)
            usleep(i % 100);
    }
    free(work);
    zr_device_close(&device);
}

static void *own_device(void *argument) {
    zr_device_t *device = open_host(3);
    hammer(device, *(unsigned *)argument);
    zr_device_close(&device);
    return NULL;
}

/* As ranks do: several devices in one process, each with its own threads. */
TEST(test_devices_side_by_side) {
    pthread_t ranks[4];
    unsigned n_rounds = 100;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&ranks[i], NULL, own_device, &n_rounds), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(ranks[i], NULL), 0);
}

/* A device that is closed at once, while its threads may not even have started. */
TEST(test_open_and_close) {
    for (int i = 0; i < 200; i++) {
        zr_device_t *device = open_host(4);
        work_t work = {.round = 1};
        if (i % 2 == 0)
            zr_host_parallel_for(device, 2, count_run, &work);
        zr_device_close(&device);
        assert_null(device);
        assert_int_equal(work.runs[0] + work.runs[1], i % 2 == 0 ? 2 : 0);
    }
}
