/*
 * The recorder of traces: what comes into the file, in which lanes, and what does not; bounds; what
 * happens to a file that cannot be written; and that nothing is allocated without one.
 */
#include <semaphore.h>
#include <sys/stat.h>

#include "kernels/base/trace.h"
#include "kernels/device_trace.h"
#include "kernels/kernels.h"
#include "kernels/simulation.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "tests/common/trace_file.h"

#define FILE_NAME "test_trace.json"

/* ---- the system's memory ---- */

static size_t n_allocations;
static bool has_no_memory;

WRAP(void *, malloc, size_t size) {
    n_allocations++;
    return has_no_memory ? NULL : __real_malloc(size);
}

WRAP(void *, calloc, size_t n, size_t size) {
    n_allocations++;
    return has_no_memory ? NULL : __real_calloc(n, size);
}

WRAP(void *, realloc, void *old, size_t size) {
    n_allocations++;
    return has_no_memory ? NULL : __real_realloc(old, size);
}

/* ---- helpers ---- */

static void quiet(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    (void)level, (void)rank;
    snprintf(context, 512, "%s", message);
}

static char said[512];

static zr_log_t log_here(void) {
    said[0] = '\0';
    return (zr_log_t){.sink = quiet, .context = said, .level = ZR_LOG_WARNING};
}

static zr_trace_t *make(size_t first, size_t last, bool from_start) {
    zr_trace_options_t options = zr_trace_options_default();
    zr_trace_t *trace = NULL;
    options.log = log_here();
    options.first_step = first;
    options.last_step = last;
    options.from_start = from_start;
    assert_ok(zr_trace_create(&options, &trace));
    return trace;
}

static void work(zr_trace_t *trace, const char *lane, const char *name, double begin, double end) {
    zr_trace_slice(trace, &(zr_trace_slice_t){.kind = ZR_SLICE_WORK,
                                              .lane = lane,
                                              .name = name,
                                              .begin = begin,
                                              .end = end,
                                              .bytes = 8});
}

static void at(zr_trace_t *trace, double now, size_t step, size_t micro_batch, const char *phase,
               const char *unit) {
    zr_trace_at(trace, now,
                &(zr_trace_place_t){
                    .step = step, .micro_batch = micro_batch, .phase = phase, .unit = unit});
}

static json_t *save(zr_trace_t *trace) {
    const zr_log_t log = log_here();
    assert_ok(zr_trace_save(&trace, 1, FILE_NAME, &log));
    return trace_file_load(FILE_NAME);
}

static const char *name_of(json_t *slice) {
    return json_string_value(json_object_get(slice, "name"));
}

static void check_names(json_t *file, const char *lane, const char *const *names, size_t n_names) {
    size_t n;
    json_t **slices = trace_file_slices(file, 1, lane, NULL, &n);
    assert_int_equal(n, n_names);
    for (size_t i = 0; i < n; i++)
        assert_string_equal(name_of(slices[i]), names[i]);
    free(slices);
}

/* ---- tests ---- */

TEST(places_enclose_work) {
    static const char *const schedule[] = {"step 1", "micro-batch 1", "forward h.0", "backward h.0",
                                           "norm"};
    static const char *const compute[] = {"step 1", "micro-batch 1", "forward h.0",  "matmul",
                                          "gelu",   "backward h.0",  "gelu_backward"};
    zr_trace_t *trace = make(1, SIZE_MAX, true);
    at(trace, 1, 1, 1, NULL, NULL);
    at(trace, 2, 1, 1, "forward", "h.0");
    work(trace, "compute", "matmul", 2.5, 3);
    work(trace, "compute", "gelu", 3, 3.25);
    at(trace, 4, 1, 1, "backward", "h.0");
    work(trace, "compute", "gelu_backward", 4, 5);
    at(trace, 6, 1, 0, "norm", NULL);
    at(trace, 7, 0, 0, NULL, NULL);
    json_t *file = save(trace);
    check_names(file, "schedule", schedule, 5);
    check_names(file, "compute", compute, 7);
    size_t n;
    json_t **slices = trace_file_slices(file, 1, "schedule", NULL, &n);
    assert_true(trace_file_begin(slices[0]) == 0 && trace_file_end(slices[0]) == 6000000000);
    assert_true(trace_file_begin(slices[4]) == 5000000000);
    free(slices);
    json_decref(file);
    zr_trace_destroy(&trace);
}

/* A viewer shows what overlaps in one thread as nonsense. */
TEST(overlapping_work_is_spread) {
    static const char *const names[] = {"a", "b", "c", "d"};
    size_t n_threads = 0, i;
    json_t *event;
    zr_trace_t *trace = make(1, SIZE_MAX, true);
    work(trace, "read", "a", 1, 3);
    work(trace, "read", "c", 2.5, 5);
    work(trace, "read", "b", 2, 4);
    work(trace, "read", "d", 3, 6);
    json_t *file = save(trace);
    check_names(file, "read", names, 4);
    json_array_foreach(json_object_get(file, "traceEvents"), i, event) {
        const char *name =
            json_string_value(json_object_get(json_object_get(event, "args"), "name"));
        n_threads += name != NULL && strncmp(name, "read", 4) == 0;
    }
    assert_int_equal(n_threads, 3);
    json_decref(file);
    zr_trace_destroy(&trace);
}

TEST(names_cannot_break_the_file) {
    static const char *const names[] = {"\"quoted\\ \xc3\xa9 ??", "a\"}]"};
    zr_trace_t *trace = make(1, SIZE_MAX, true);
    work(trace, "compute\n", "\"quoted\\ \xc3\xa9 \x01\xff", 1, 2);
    work(trace, "compute\n", "a\"}]", 2, 3);
    json_t *file = save(trace);
    check_names(file, "compute?", names, 2);
    json_decref(file);
    zr_trace_destroy(&trace);
}

/* Of three steps the second; counters have their values from its beginning. */
TEST(steps_that_are_wanted) {
    zr_trace_info_t info;
    zr_trace_t *trace = make(2, 2, false);
    zr_trace_count(trace, 0.5, "device memory", "parameters", 70);
    work(trace, "compute", "before", 0.5, 0.75);
    for (size_t step = 1; step <= 3; step++) {
        char name[16];
        snprintf(name, sizeof(name), "work %zu", step);
        at(trace, (double)step, step, 1, NULL, NULL);
        assert_true(zr_trace_is_on(trace) == (step == 2));
        work(trace, "compute", name, (double)step, (double)step + 0.5);
        at(trace, (double)step + 0.5, 0, 0, NULL, NULL);
        zr_trace_phase(trace, (double)step + 0.75, "checkpoint");
    }
    json_t *file = save(trace);
    assert_int_equal(trace_file_count(file, 1, "compute", "work"), 1);
    assert_int_equal(trace_file_count(file, 1, "compute", "work 2"), 1);
    assert_int_equal(trace_file_count(file, 1, "schedule", "step"), 1);
    assert_int_equal(trace_file_count(file, 1, "schedule", "checkpoint"), 1);
    assert_true(trace_file_peak(file, 1, "device memory: parameters") == 70);
    zr_trace_info(trace, &info);
    assert_true(info.first_step == 2 && info.last_step == 2 && info.n_left_out == 0);
    json_t *about = json_object_get(json_object_get(file, "otherData"), "rank 0");
    assert_int_equal(json_integer_value(json_object_get(about, "first_step")), 2);
    assert_int_equal(json_integer_value(json_object_get(about, "last_step")), 2);
    json_decref(file);
    zr_trace_destroy(&trace);
}

/* Bounded memory: what comes later is counted, said once, and the file is whole. */
TEST(full) {
    zr_trace_options_t options = zr_trace_options_default();
    zr_trace_t *trace = NULL;
    zr_trace_info_t info;
    options.log = log_here();
    options.most_bytes = ZR_TRACE_LEAST_BYTES;
    assert_ok(zr_trace_create(&options, &trace));
    at(trace, 0, 1, 1, "forward", "h.0");
    for (int i = 0; i < 20000; i++)
        work(trace, "compute", i % 2 == 0 ? "a" : "b", i, i + 1);
    zr_trace_info(trace, &info);
    assert_true(info.memory_bytes <= ZR_TRACE_LEAST_BYTES && info.memory_bytes > 100000);
    assert_true(info.n_events > 1000 && info.n_events + info.n_left_out == 20001);
    assert_has(said, "events are dropped");
    json_t *file = save(trace);
    assert_int_equal(trace_file_count(file, 1, "compute", "a") +
                         trace_file_count(file, 1, "compute", "b"),
                     info.n_events - 1);
    json_t *about = json_object_get(json_object_get(file, "otherData"), "rank 0");
    assert_int_equal(json_integer_value(json_object_get(about, "left_out")), info.n_left_out);
    json_decref(file);
    zr_trace_destroy(&trace);
}

/* The system's memory may end as well. */
TEST(no_memory) {
    zr_trace_info_t info;
    zr_trace_t *none = NULL;
    zr_trace_t *trace = make(1, SIZE_MAX, true);
    work(trace, "compute", "a", 1, 2);
    has_no_memory = true;
    for (int i = 0; i < 1000; i++)
        work(trace, "compute", "a", 2 + i, 3 + i);
    work(trace, "compute", "a name that is new", 2, 3);
    const zr_log_t log = log_here();
    assert_int_equal(zr_trace_save(&trace, 1, FILE_NAME, &log), ZR_ERR_MEMORY);
    assert_int_equal(zr_trace_create(NULL, &none), ZR_ERR_MEMORY);
    has_no_memory = false;
    assert_int_equal(zr_trace_create(NULL, NULL), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_trace_save(&trace, 1, NULL, &log), ZR_ERR_ARGUMENT);
    assert_int_equal(zr_trace_save(NULL, 1, FILE_NAME, &log), ZR_ERR_ARGUMENT);
    zr_trace_info(trace, &info);
    assert_true(info.n_left_out > 0);
    json_decref(save(trace));
    zr_trace_destroy(&trace);
}

static void assert_file_is(const char *text) {
    char there[64] = "";
    FILE *file = fopen(FILE_NAME, "rb");
    assert_non_null(file);
    there[fread(there, 1, sizeof(there) - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(there, text);
}

/* What is there stays until all of the new one is written, and nothing is left beside it. */
TEST(a_file_that_cannot_be_written) {
    zr_trace_t *trace = make(1, SIZE_MAX, true);
    const zr_log_t log = log_here();
    work(trace, "compute", "a", 1, 2);
    assert_int_equal(zr_trace_save(&trace, 1, "/dev/full", &log), ZR_ERR_IO);
    assert_has(said, "/dev/full|No space left");
    assert_int_equal(zr_trace_save(&trace, 1, "absent/x.json", &log), ZR_ERR_IO);
    assert_has(said, "absent/x.json");

    FILE *file = fopen(FILE_NAME, "wb");
    assert_non_null(file);
    fputs("old", file);
    fclose(file);
    char concurrent[64];
    snprintf(concurrent, sizeof(concurrent), "." FILE_NAME ".partial-%ld", (long)getpid());
    assert_int_equal(mkdir(concurrent, 0777), 0); /* where it would be written */
    assert_int_equal(zr_trace_save(&trace, 1, FILE_NAME, &log), ZR_ERR_IO);
    assert_file_is("old");
    assert_int_equal(rmdir(concurrent), 0);
    json_decref(save(trace));
    assert_int_not_equal(access(concurrent, F_OK), 0);
    zr_trace_destroy(&trace);
}

TEST(bad_options) {
    zr_trace_options_t options = zr_trace_options_default();
    zr_trace_t *trace = NULL;
    options.log = log_here();
    options.first_step = 3;
    options.last_step = 2;
    assert_int_equal(zr_trace_create(&options, &trace), ZR_ERR_ARGUMENT);
    assert_has(said, "3 to 2");
    options.last_step = 3;
    options.process = 0;
    assert_int_equal(zr_trace_create(&options, &trace), ZR_ERR_ARGUMENT);
    options.process = 1;
    options.most_bytes = 1;
    assert_int_equal(zr_trace_create(&options, &trace), ZR_ERR_ARGUMENT);
    assert_null(trace);
}

/* ---- on devices ---- */

/* A fill and a copy on a stream. */
static void run_work(zr_stream_t *stream, float *memory) {
    assert_ok(zr_kernel_fill(stream, memory, ZR_DTYPE_F32, 1000, 1.0f));
    assert_ok(zr_copy_async(stream, memory + 1000, memory, 4000, ZR_COPY_DEVICE_TO_DEVICE));
}

static void on_device(const char *name, const char *times) {
    static const char *const names[] = {"fill", "copy"};
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    void *memory = NULL;
    zr_trace_t *trace = make(1, SIZE_MAX, true);
    options.trace = trace;
    options.n_threads = 1;
    assert_ok(zr_device_open(name, &options, &device));
    assert_ptr_equal(zr_device_trace(device), trace);
    size_t size = zr_device_info(device)->granule_bytes;
    size = (8000 + size - 1) / size * size;
    assert_ok(zr_stream_create(device, "compute", &stream));
    assert_ok(zr_range_reserve(device, ZR_TIER_DEVICE, size, &memory));
    assert_ok(zr_range_map(device, ZR_TIER_DEVICE, memory, 0, size));
    double begin = zr_device_now(device);
    run_work(stream, memory);
    assert_ok(zr_stream_synchronize(stream));
    double seconds = zr_device_now(device) - begin;
    json_t *file = save(trace);
    check_names(file, "compute", names, 2);
    size_t n;
    json_t **slices = trace_file_slices(file, 1, "compute", "work", &n);
    assert_true(trace_file_end(slices[0]) <= trace_file_begin(slices[1]));
    assert_true((double)trace_file_end(slices[1]) <= 1e9 * seconds + 1);
    free(slices);
    json_t *about = json_object_get(json_object_get(file, "otherData"), "rank 0");
    const char *own = json_string_value(json_object_get(about, "times"));
    assert_non_null(own);
    assert_memory_equal(own, times, strlen(times));
    json_decref(file);
    zr_range_release(device, ZR_TIER_DEVICE, &memory, size);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    zr_trace_destroy(&trace);
}

TEST(on_host) {
    on_device("host", "measured");
}

TEST(on_simulated_device) {
    on_device("sim", "virtual");
}

static void wait_for_go(void *context, zr_stream_t *stream) {
    sem_wait(context);
}

/* What is queued on a stream with a thread of its own has the time and the place of its own: it
 * runs when the caller is in the next step, which is not recorded. */
TEST(on_concurrent_stream) {
    static const char *const names[] = {"step 1", "norm", "copy", "all_gather h.0 parameters"};
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    float memory[16] = {0};
    char tensor[] = "h.0 parameters";
    sem_t may_go;
    zr_trace_t *trace = make(1, 1, true);
    options.trace = trace;
    options.n_threads = 1;
    options.concurrent = true;
    sem_init(&may_go, 0, 0);
    assert_ok(zr_device_open("host", &options, &device));
    assert_ok(zr_stream_create_concurrent(device, "comm", &stream));
    at(trace, zr_device_now(device), 1, 0, "norm", NULL);
    assert_ok(zr_stream_call(stream, wait_for_go, &may_go));
    assert_ok(zr_copy_async(stream, memory + 8, memory, 32, ZR_COPY_DEVICE_TO_DEVICE));
    zr_stream_group_begin(stream);
    assert_ok(zr_copy_async(stream, memory + 8, memory, 32, ZR_COPY_DEVICE_TO_DEVICE));
    zr_stream_group_end(
        stream,
        &(zr_trace_slice_t){.kind = ZR_SLICE_COLLECTIVE, .name = "all_gather", .subject = tensor});
    memset(tensor, 'x', sizeof(tensor) - 1);
    at(trace, zr_device_now(device), 2, 1, NULL, NULL);
    double queued = zr_device_now(device);
    sem_post(&may_go);
    assert_ok(zr_stream_synchronize(stream));
    zr_trace_set_origin(trace, queued);
    json_t *file = save(trace);
    check_names(file, "comm", names, 4);
    size_t n;
    json_t **slices = trace_file_slices(file, 1, "comm", NULL, &n);
    assert_true(trace_file_begin(slices[2]) >= 0); /* not when it was queued */
    assert_true(trace_file_begin(slices[3]) >= trace_file_end(slices[2]));
    free(slices);
    json_t *about = json_object_get(json_object_get(file, "otherData"), "rank 0");
    const char *times = json_string_value(json_object_get(about, "times"));
    assert_non_null(times);
    assert_memory_equal(times, "measured", 8);
    json_decref(file);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    zr_trace_destroy(&trace);
    sem_destroy(&may_go);
}

/* The branch that is there when nothing is recorded leads nowhere. */
TEST(off_is_not_one_allocation) {
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    float *memory = calloc(2000, sizeof(*memory));
    options.n_threads = 1;
    assert_non_null(memory);
    assert_ok(zr_device_open("host", &options, &device));
    assert_ok(zr_stream_create(device, "compute", &stream));
    size_t before = n_allocations;
    run_work(stream, memory);
    zr_trace_at(NULL, 0, &(zr_trace_place_t){.step = 1});
    zr_trace_phase(NULL, 0, "norm");
    zr_trace_count(NULL, 0, "device memory", NULL, 1);
    work(NULL, "compute", "a", 1, 2);
    assert_false(zr_trace_is_on(NULL));
    assert_int_equal(n_allocations, before);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    free(memory);
}

static int clean(void **state) {
    remove(FILE_NAME);
    return 0;
}

const test_group_t test_group = {NULL, clean};
