/*
 * Traces of a device that works late, on the emulated CUDA device: work has the time at which it
 * ran, which its timers tell, and the place at which it was queued.
 */
#include <time.h>

#include "kernels/device_trace.h"
#include "kernels/kernels.h"
#include "tests/common/test.h"
#include "tests/common/trace_file.h"

#define FILE_NAME "test_emu_trace.json"

enum { N_ELEMS = 1000, N_PIECES = 300 };

typedef struct setting {
    zr_trace_t *trace;
    zr_device_t *device;
    zr_stream_t *compute, *comm;
    zr_event_t *event;
    double opened; /* seconds of the machine's clock */
    void *memory;
    size_t size_bytes;
} setting_t;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int setup(void **state) {
    static setting_t s;
    zr_device_options_t options = zr_device_options_default();
    zr_trace_options_t trace_options = zr_trace_options_default();
    trace_options.last_step = 1;
    s.opened = seconds_now();
    assert_ok(zr_trace_create(&trace_options, &s.trace));
    options.trace = s.trace;
    assert_ok(zr_device_open("cuda", &options, &s.device));
    size_t granule = zr_device_info(s.device)->granule_bytes;
    s.size_bytes = (N_ELEMS * sizeof(float) + granule - 1) / granule * granule;
    assert_ok(zr_stream_create(s.device, "compute", &s.compute));
    assert_ok(zr_stream_create(s.device, "comm", &s.comm));
    assert_ok(zr_event_create(s.device, &s.event));
    assert_ok(zr_range_reserve(s.device, ZR_TIER_DEVICE, s.size_bytes, &s.memory));
    assert_ok(zr_range_map(s.device, ZR_TIER_DEVICE, s.memory, 0, s.size_bytes));
    *state = &s;
    return 0;
}

static void go_to(setting_t *s, size_t step, const char *phase) {
    zr_trace_at(s->trace, zr_device_now(s->device),
                &(zr_trace_place_t){.step = step, .phase = phase});
}

static void fill(zr_stream_t *stream, void *memory) {
    assert_ok(zr_kernel_fill(stream, memory, ZR_DTYPE_F32, N_ELEMS, 1.0f));
}

/* Everything but the trace. */
static void close_device(setting_t *s) {
    zr_event_destroy(&s->event);
    zr_stream_destroy(&s->compute);
    zr_stream_destroy(&s->comm);
    zr_range_release(s->device, ZR_TIER_DEVICE, &s->memory, s->size_bytes);
    zr_device_close(&s->device);
}

/* A collective, and kernels that wait for it: none has begun before the collective has ended,
 * though all were queued at once. */
static void work_has_its_own_time(void **state) {
    setting_t *s = *state;
    char tensor[] = "h.0 parameters";
    size_t n_comm, n;
    go_to(s, 1, "norm");
    zr_stream_group_begin(s->comm);
    fill(s->comm, s->memory);
    fill(s->comm, s->memory);
    zr_stream_group_end(
        s->comm,
        &(zr_trace_slice_t){.kind = ZR_SLICE_COLLECTIVE, .name = "all_gather", .subject = tensor});
    memset(tensor, 'x', sizeof(tensor) - 1);
    assert_ok(zr_event_record(s->event, s->comm));
    assert_ok(zr_stream_wait(s->compute, s->event));
    for (int i = 0; i < N_PIECES; i++)
        fill(s->compute, s->memory);
    go_to(s, 2, NULL);
    fill(s->compute, s->memory); /* of a step that is not recorded */
    assert_ok(zr_stream_synchronize(s->compute));
    close_device(s);
    /* Timers have the digits of a float, of all the time since the device was opened. */
    long long off_ns = 1000 + (long long)(1e9 * (seconds_now() - s->opened) / 1e6);

    assert_ok(zr_trace_save(&s->trace, 1, FILE_NAME, NULL));
    json_t *file = trace_file_load(FILE_NAME);
    assert_int_equal(trace_file_count(file, 1, "comm", "all_gather h.0 parameters"), 1);
    assert_int_equal(trace_file_count(file, 1, "compute", "norm"), 1);
    json_t **comm = trace_file_slices(file, 1, "comm", "collective", &n_comm);
    json_t **compute = trace_file_slices(file, 1, "compute", "work", &n);
    assert_int_equal(n_comm, 1);
    assert_int_equal(n, N_PIECES);
    long long end = trace_file_end(comm[0]);
    assert_true(end > trace_file_begin(comm[0]));
    for (size_t i = 0; i < n; i++) {
        assert_true(trace_file_begin(compute[i]) >= end - off_ns);
        end = trace_file_end(compute[i]);
        json_t *args = json_object_get(compute[i], "args");
        assert_int_equal(json_integer_value(json_object_get(args, "step")), 1);
    }
    free(comm);
    free(compute);
    json_t *about = json_object_get(json_object_get(file, "otherData"), "rank 0");
    assert_memory_equal(json_string_value(json_object_get(about, "times")), "measured", 8);
    json_decref(file);
}

static int teardown(void **state) {
    setting_t *s = *state;
    zr_trace_destroy(&s->trace);
    remove(FILE_NAME);
    return 0;
}

/* Times are told although nothing has run but what was waited for: not even, by chance, what the
 * device has queued to compare clocks with. */
static void times_need_no_more_than_the_work(void **state) {
    for (int i = 0; i < 16; i++) {
        size_t n;
        if (i > 0) {
            assert_int_equal(teardown(state), 0);
            assert_int_equal(setup(state), 0);
        }
        setting_t *s = *state;
        go_to(s, 1, "norm");
        fill(s->compute, s->memory);
        assert_ok(zr_stream_synchronize(s->compute));
        close_device(s);
        assert_ok(zr_trace_save(&s->trace, 1, FILE_NAME, NULL));
        json_t *file = trace_file_load(FILE_NAME);
        free(trace_file_slices(file, 1, "compute", "work", &n));
        json_decref(file);
        assert_int_equal(n, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(work_has_its_own_time, setup, teardown),
        cmocka_unit_test_setup_teardown(times_need_no_more_than_the_work, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
