/*
 * Streams of a host device that run beside the calling thread. Where order matters, a queued
 * function is held until the caller has come to a point: nothing here depends on time, and what
 * would not run beside the caller would not end.
 */
#include <semaphore.h>

#include "kernels/host/host_concurrent.h"
#include "kernels/kernels.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "zero/optim/optimizer.h"

enum { N_ELEMS = 300000 };

typedef struct setting {
    zr_device_t *device;
    zr_stream_t *plain, *concurrent, *other; /* the last two beside the caller */
    zr_event_t *event;
    sem_t may_go, has_gone;
    float *x;
} setting_t;

static int setup(void **state) {
    static setting_t s;
    void *memory = NULL;
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 2;
    options.concurrent = true;
    assert_ok(zr_device_open("host", &options, &s.device));
    assert_ok(zr_stream_create(s.device, "plain", &s.plain));
    assert_ok(zr_stream_create_concurrent(s.device, "beside", &s.concurrent));
    assert_ok(zr_stream_create_concurrent(s.device, "other", &s.other));
    assert_ok(zr_event_create(s.device, &s.event));
    sem_init(&s.may_go, 0, 0);
    sem_init(&s.has_gone, 0, 0);
    assert_int_equal(posix_memalign(&memory, 64, N_ELEMS * sizeof(float)), 0);
    s.x = memory;
    *state = &s;
    return 0;
}

static int teardown(void **state) {
    setting_t *s = *state;
    zr_event_destroy(&s->event);
    zr_stream_destroy(&s->plain);
    zr_stream_destroy(&s->concurrent);
    zr_stream_destroy(&s->other);
    zr_device_close(&s->device);
    sem_destroy(&s->may_go);
    sem_destroy(&s->has_gone);
    free(s->x);
    return 0;
}

/* ---- what is queued -------------------------------------------------------------------------- */

static void wait_for_caller(void *context, zr_stream_t *stream) {
    setting_t *s = context;
    sem_wait(&s->may_go);
    sem_post(&s->has_gone);
}

static void hold(setting_t *s, zr_stream_t *stream) {
    assert_ok(zr_stream_call(stream, wait_for_caller, s));
}

static void let_go(setting_t *s) {
    sem_post(&s->may_go);
    sem_wait(&s->has_gone);
}

static bool has_passed(const setting_t *s) {
    bool passed = false;
    assert_ok(zr_event_query(s->event, &passed));
    return passed;
}

static void fill(setting_t *s, zr_stream_t *stream, float value) {
    assert_ok(zr_kernel_fill(stream, s->x, ZR_DTYPE_F32, N_ELEMS, value));
}

static bool is_filled(const setting_t *s, float value) {
    for (size_t i = 0; i < N_ELEMS; i++)
        if (s->x[i] != value)
            return false;
    return true;
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST_WITH(test_kinds, setup, teardown) {
    setting_t *s = *state;
    assert_false(zr_device_info(s->device)->synchronous);
    assert_true(zr_stream_is_synchronous(s->plain));
    assert_false(zr_stream_is_synchronous(s->concurrent));
    assert_false(zr_stream_takes_calls(s->plain));
    assert_true(zr_stream_takes_calls(s->concurrent));
    assert_int_equal(zr_stream_call(s->plain, wait_for_caller, s), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_stream_call(s->concurrent, NULL, s), ZR_ERR_ARGUMENT);

    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    assert_ok(zr_device_open("host", &options, &device));
    assert_ok(zr_stream_create_concurrent(device, "comm", &stream));
    assert_true(zr_device_info(device)->synchronous && zr_stream_is_synchronous(stream));
    assert_false(zr_stream_takes_calls(stream));
    zr_stream_destroy(&stream);
    zr_device_close(&device);
}

TEST_WITH(test_caller_goes_on, setup, teardown) {
    setting_t *s = *state;
    hold(s, s->concurrent);
    assert_ok(zr_event_record(s->event, s->concurrent));
    assert_false(has_passed(s));
    fill(s, s->plain, 3.0f); /* at once, while the stream beside is held */
    assert_true(is_filled(s, 3.0f));
    let_go(s);
    assert_ok(zr_event_synchronize(s->event));
    assert_true(has_passed(s));
}

TEST_WITH(test_work_keeps_its_order, setup, teardown) {
    setting_t *s = *state;
    fill(s, s->plain, 1.0f);
    hold(s, s->concurrent);
    fill(s, s->concurrent, 2.0f);
    assert_ok(zr_kernel_scale(s->concurrent, s->x, ZR_DTYPE_F32, N_ELEMS, 10.0f));
    assert_ok(zr_event_record(s->event, s->concurrent));
    assert_true(is_filled(s, 1.0f));
    let_go(s);
    assert_ok(zr_stream_wait(s->plain, s->event)); /* holds the caller */
    assert_true(is_filled(s, 20.0f));
    assert_true(has_passed(s));
}

/* One stream beside waits for another, while the caller waits for neither. */
TEST_WITH(test_streams_wait_for_each_other, setup, teardown) {
    setting_t *s = *state;
    fill(s, s->plain, 1.0f);
    hold(s, s->concurrent);
    fill(s, s->concurrent, 5.0f);
    assert_ok(zr_event_record(s->event, s->concurrent));
    assert_ok(zr_stream_wait(s->other, s->event));
    assert_ok(zr_kernel_scale(s->other, s->x, ZR_DTYPE_F32, N_ELEMS, 2.0f));
    assert_ok(zr_event_record(s->event, s->other)); /* the wait was for the first */
    assert_true(is_filled(s, 1.0f));
    let_go(s);
    assert_ok(zr_stream_synchronize(s->other));
    assert_true(is_filled(s, 10.0f));
}

/* ---- every kernel ---- */

enum { N_ARRAYS = 6 };

/* One call of each, whose arguments all matter; what they leave is in the arrays. */
static void run_kernels(zr_stream_t *stream, float *const *x) {
    const void *sources[] = {x[0], x[1], x[2]};
    void *dst = x[3];
    const zr_update_t adamw = {.n_elems = N_ELEMS,
                               .arrays = {x[0], x[1], x[2]},
                               .grad = x[3],
                               .param = x[4],
                               .grad_dtype = ZR_DTYPE_F32,
                               .param_dtype = ZR_DTYPE_F32,
                               .lr = 0.1f,
                               .hyper = {0.9f, 0.95f, 1e-8f},
                               .weight_decay = 0.1f,
                               .grad_scale = 0.5f,
                               .step = 2};
    assert_ok(zr_kernel_fill(stream, x[3], ZR_DTYPE_F32, N_ELEMS, 0.25f));
    assert_ok(zr_kernel_scale(stream, x[1], ZR_DTYPE_F32, N_ELEMS - 3, 0.5f));
    assert_int_equal(zr_kernel_add(stream, x[0], ZR_DTYPE_F32, x[1], ZR_DTYPE_BF16, N_ELEMS - 1),
                     ZR_OK);
    assert_int_equal(zr_kernel_cast(stream, x[5], ZR_DTYPE_BF16, x[0], ZR_DTYPE_F32, N_ELEMS),
                     ZR_OK);
    assert_ok(zr_kernel_sum(stream, x[4], sources, 3, ZR_DTYPE_F32, N_ELEMS));
    assert_int_equal(zr_kernel_spread(stream, &dst, 1, sources, 2, ZR_DTYPE_F32, N_ELEMS / 2),
                     ZR_OK);
    assert_ok(zr_copy_async(stream, x[5] + N_ELEMS / 2, x[4], N_ELEMS, ZR_COPY_DEVICE_TO_DEVICE));
    assert_ok(zr_kernel_update(stream, &zr_adamw.rule, &adamw));
    assert_int_equal(zr_kernel_sum_of_squares(stream, x[0], ZR_DTYPE_F32, N_ELEMS - 7,
                                              (double *)x[4], x[4] + 64),
                     ZR_OK);
}

static void take_arrays(float **x) {
    for (int i = 0; i < N_ARRAYS; i++) {
        void *memory = NULL;
        assert_int_equal(posix_memalign(&memory, 64, N_ELEMS * sizeof(float)), 0);
        x[i] = memory;
        for (size_t j = 0; j < N_ELEMS; j++)
            x[i][j] = (float)((j * 7 + (size_t)i * 13) % 1000) * 0x1p-10f;
    }
}

TEST_WITH(test_every_kernel_is_queued, setup, teardown) {
    setting_t *s = *state;
    float *here[N_ARRAYS], *concurrent[N_ARRAYS];
    take_arrays(here);
    take_arrays(concurrent);
    run_kernels(s->plain, here);
    run_kernels(s->concurrent, concurrent);
    assert_ok(zr_stream_synchronize(s->concurrent));
    for (int i = 0; i < N_ARRAYS; i++) {
        assert_memory_equal(here[i], concurrent[i], N_ELEMS * sizeof(float));
        free(here[i]);
        free(concurrent[i]);
    }
}

static void count_task(void *context, size_t index) {
    int *counts = context;
    counts[index]++;
}

static void run_tasks(void *context, zr_stream_t *stream) {
    setting_t *s = context;
    int counts[100] = {0};
    sem_wait(&s->may_go);
    zr_host_parallel_for(zr_stream_device(stream), 100, count_task, counts);
    for (int i = 0; i < 100; i++)
        if (counts[i] != 1)
            return; /* the caller would wait without end */
    sem_post(&s->has_gone);
}

static void wait_for_concurrent_tasks(void *context, size_t index) {
    setting_t *s = context;
    if (index == 0)
        let_go(s);
}

/* The device's threads are at the caller's work: the stream's thread works alone, and waits not. */
TEST_WITH(test_threads_are_shared, setup, teardown) {
    setting_t *s = *state;
    assert_ok(zr_stream_call(s->concurrent, run_tasks, s));
    zr_host_parallel_for(s->device, 2, wait_for_concurrent_tasks, s);
    assert_ok(zr_stream_synchronize(s->concurrent));
    assert_ok(zr_stream_call(s->concurrent, run_tasks, s)); /* nobody has them now */
    let_go(s);
    assert_ok(zr_stream_synchronize(s->concurrent));
}

static zr_status_t fail_work(zr_stream_t *stream, const zr_host_work_t *work) {
    return ZR_ERR_DEVICE;
}

static void say(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
}

/* In the stream's thread, on what it knows of the device. */
static void fail_and_ask(void *context, zr_stream_t *stream) {
    zr_device_t *device = zr_stream_device(stream);
    (void)!zr_fail(&device->log, ZR_ERR_DEVICE, "%s", "what has failed");
    zr_device_last_error(device, context);
}

TEST_WITH(test_words_of_a_failure, setup, teardown) {
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    char words[2][ZR_DEVICE_ERROR_BYTES] = {"?", "?"};
    options.concurrent = true;
    options.log.sink = say;
    assert_ok(zr_device_open("host", &options, &device));
    assert_ok(zr_stream_create_concurrent(device, "comm", &stream));
    zr_device_last_error(device, words[0]);
    assert_string_equal(words[0], "");
    assert_ok(zr_stream_call(stream, fail_and_ask, words[1]));
    assert_ok(zr_stream_synchronize(stream));
    assert_string_equal(words[1], "what has failed");
    zr_device_last_error(device, words[0]);
    assert_string_equal(words[0], "what has failed");
    zr_stream_destroy(&stream);
    zr_device_close(&device);
}

/* The first failure is told by whoever waits, and what is behind it runs. */
TEST_WITH(test_failure_is_told_by_waits, setup, teardown) {
    setting_t *s = *state;
    const zr_host_work_t work = {.run = fail_work};
    zr_event_t *before = NULL;
    assert_ok(zr_event_create(s->device, &before));
    fill(s, s->plain, 0.0f);
    assert_ok(zr_event_record(before, s->concurrent));
    assert_ok(zr_stream_wait(s->plain, before));
    assert_ok(zr_host_queue(s->concurrent, &work));
    fill(s, s->concurrent, 4.0f);
    assert_ok(zr_event_record(s->event, s->concurrent));
    assert_int_equal(zr_stream_synchronize(s->concurrent), ZR_ERR_DEVICE);
    assert_true(is_filled(s, 4.0f));
    assert_int_equal(zr_stream_wait(s->plain, s->event), ZR_ERR_DEVICE);
    assert_int_equal(zr_event_synchronize(s->event), ZR_ERR_DEVICE);
    assert_int_equal(zr_stream_synchronize(s->concurrent), ZR_ERR_DEVICE);
    assert_ok(zr_stream_synchronize(s->plain));
    zr_event_destroy(&before);
}

TEST_WITH(test_destroying_does_what_is_queued, setup, teardown) {
    setting_t *s = *state;
    fill(s, s->plain, 1.0f);
    hold(s, s->concurrent);
    fill(s, s->concurrent, 7.0f);
    assert_ok(zr_event_record(s->event, s->concurrent));
    assert_ok(zr_stream_wait(s->other, s->event));
    let_go(s);
    zr_stream_destroy(&s->concurrent);
    assert_true(is_filled(s, 7.0f));
    assert_true(has_passed(s)); /* an event outlives its stream */
    assert_ok(zr_stream_synchronize(s->other));
}

TEST_WITH(test_what_has_passed_holds_nobody, setup, teardown) {
    setting_t *s = *state;
    assert_true(zr_device_wait_seconds(s->device) == 0);
    assert_ok(zr_event_record(s->event, s->plain));
    assert_ok(zr_stream_wait(s->plain, s->event));
    assert_ok(zr_stream_wait(s->other, s->event));
    assert_ok(zr_stream_synchronize(s->plain));
    assert_ok(zr_event_record(s->event, s->concurrent)); /* nothing was queued */
    assert_true(has_passed(s));
    assert_ok(zr_event_synchronize(s->event));
    assert_true(zr_device_wait_seconds(s->device) == 0);
    hold(s, s->concurrent);
    assert_ok(zr_event_record(s->event, s->concurrent));
    sem_post(&s->may_go); /* now, or while the caller waits */
    assert_ok(zr_event_synchronize(s->event));
    sem_wait(&s->has_gone);
    assert_true(zr_device_wait_seconds(s->device) >= 0);
}
