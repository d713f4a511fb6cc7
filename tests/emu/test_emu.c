/*
 * What the emulation promises (emu.h), and what the CUDA device does where CUDA fails or has less:
 * no GPU, an old one, no virtual memory, several devices, too little that can be pinned, and the
 * failure of every single call.
 */
#include <cuda_runtime_api.h>
#include <sys/wait.h>

#include "kernels/device_backend.h"
#include "kernels/device_fixture.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_probe.h"
#include "tests/kernels/native_kernel.h"

#define N_ELEMS 256

/* ---- the emulation ------------------------------------------------------------------------ */

static int setup(void **state) {
    static fixture_t fixture;
    fixture_open(&fixture, "cuda", 1, NULL);
    *state = &fixture;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    assert_int_equal(emu_n_live(), 0);
    return 0;
}

/* Others each time: shared memory keeps what the last block left there. */
static float *place_numbers(fixture_t *f) {
    static int n_calls;
    float numbers[N_ELEMS];
    n_calls++;
    for (int i = 0; i < N_ELEMS; i++)
        numbers[i] = (float)((i + n_calls) * i % 97);
    return fixture_place(f, numbers, sizeof(numbers), 0);
}

/* Whether the kernel turned the numbers around. */
static bool reverses(fixture_t *f, bool with_barrier) {
    float in[N_ELEMS], out[N_ELEMS];
    fixture_reset(f);
    float *from = place_numbers(f), *to = fixture_take(f, sizeof(out), 0);
    assert_ok(probe_reverse(f->stream, to, from, with_barrier));
    fixture_download(f, in, from, sizeof(in));
    fixture_download(f, out, to, sizeof(out));
    bool is_right = true;
    for (int i = 0; i < N_ELEMS; i++)
        is_right = is_right && out[i] == in[N_ELEMS - 1 - i];
    return is_right;
}

static void a_barrier_that_is_missing_is_noticed(void **state) {
    int n_wrong = 0;
    for (int i = 0; i < 20; i++) {
        assert_true(reverses(*state, true));
        n_wrong += !reverses(*state, false);
    }
    assert_int_equal(n_wrong, 20);
}

static void shuffles_move_values_between_lanes(void **state) {
    fixture_t *f = *state;
    float in[N_ELEMS], out[N_ELEMS / 32];
    fixture_reset(f);
    float *from = place_numbers(f), *to = fixture_take(f, sizeof(out), 0);
    assert_ok(probe_warp_sums(f->stream, to, from));
    fixture_download(f, in, from, sizeof(in));
    fixture_download(f, out, to, sizeof(out));
    for (int warp = 0; warp < N_ELEMS / 32; warp++) {
        float sum = 0;
        for (int i = 0; i < 32; i++)
            sum += in[warp * 32 + i];
        assert_true(out[warp] == sum);
    }
}

static void lanes_vote(void **state) {
    fixture_t *f = *state;
    unsigned out[4][32];
    fixture_reset(f);
    unsigned *to = fixture_take(f, sizeof(out), 0);
    assert_ok(probe_votes(f->stream, to));
    fixture_download(f, out, to, sizeof(out));
    for (unsigned lane = 0; lane < 32; lane++) {
        unsigned first = lane / 10 * 10, n = lane < 30 ? 10 : 2;
        assert_int_equal(out[0][lane], 0xaaaaaaaau);
        assert_int_equal(out[1][lane], ((1u << n) - 1) << first);
        assert_int_equal(out[2][lane], lane % 8 == 0 ? lane : lane - 1);
        assert_int_equal(out[3][lane], (lane < 16 ? lane ^ 8 : 0) + 100);
    }
}

static void warps_run_ahead_and_shared_memory_is_spoilt(void **state) {
    fixture_t *f = *state;
    int n_late = 0;
    fixture_reset(f);
    float *to = fixture_take(f, sizeof(float), 0), out = 0;
    for (int i = 0; i < 40; i++) {
        assert_ok(probe_ahead(f->stream, to));
        fixture_download(f, &out, to, sizeof(out));
        assert_true(out == 1.0f || out != out);
        n_late += out != out;
    }
    assert_true(n_late > 0 && n_late < 40);
}

/* How a process of its own ends. */
static int outcome_of(void (*run)(fixture_t *), fixture_t *f) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(2);
        f->device->owner = getpid(); /* devices refuse forks */
        run(f);
        _exit(0);
    }
    int outcome = 0;
    assert_int_equal(waitpid(child, &outcome, 0), child);
    return outcome;
}

static void touch(fixture_t *f) {
    *(volatile char *)f->arena = 1;
}

static void wait_at_two_places(fixture_t *f) {
    if (probe_split_barrier(f->stream, (float *)f->arena) == ZR_OK)
        (void)!zr_stream_synchronize(f->stream);
}

static void the_host_cannot_touch_device_memory(void **state) {
    assert_int_not_equal(outcome_of(touch, *state), 0);
}

static void barriers_that_never_meet_end_the_program(void **state) {
    assert_int_not_equal(outcome_of(wait_at_two_places, *state), 0);
}

/* One stream writes what another reads, with an event between them. */
static bool ordered_by_event(fixture_t *f) {
    zr_stream_t *second = NULL;
    zr_event_t *written = NULL;
    float result[N_ELEMS];
    fixture_reset(f);
    float *x = fixture_take(f, sizeof(result), 0), *sum = fixture_take(f, sizeof(result), 0);
    assert_ok(zr_stream_create(f->device, "second", &second));
    assert_ok(zr_event_create(f->device, &written));
    assert_ok(zr_kernel_fill(f->stream, x, ZR_DTYPE_F32, N_ELEMS, 0.0f));
    assert_ok(zr_kernel_fill(f->stream, sum, ZR_DTYPE_F32, N_ELEMS, 0.0f));
    assert_ok(zr_stream_synchronize(f->stream));
    assert_ok(zr_kernel_fill(f->stream, x, ZR_DTYPE_F32, N_ELEMS, 3.0f));
    assert_ok(zr_event_record(written, f->stream));
    assert_ok(zr_stream_wait(second, written));
    assert_ok(zr_kernel_add(second, sum, ZR_DTYPE_F32, x, ZR_DTYPE_F32, N_ELEMS));
    assert_ok(zr_copy_async(second, result, sum, sizeof(result), ZR_COPY_DEVICE_TO_HOST));
    assert_ok(zr_stream_synchronize(second));
    zr_event_destroy(&written);
    zr_stream_destroy(&second);
    return result[0] == 3.0f;
}

static void a_wait_that_is_missing_is_noticed(void **state) {
    int n_wrong = 0;
    for (int i = 0; i < 20; i++) {
        assert_true(ordered_by_event(*state));
        emu_ignore_waits(true);
        n_wrong += !ordered_by_event(*state);
        emu_ignore_waits(false);
    }
    assert_true(n_wrong > 0);
}

/* Collectives do not queue behind products. */
static void concurrent_streams_have_priority(void **state) {
    fixture_t *f = *state;
    zr_stream_t *streams[2] = {NULL, NULL};
    int priorities[2] = {0, 0}, least = 0, greatest = 0;
    assert_ok(zr_stream_create(f->device, "compute", &streams[0]));
    assert_ok(zr_stream_create_concurrent(f->device, "comm", &streams[1]));
    assert_int_equal(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cudaStreamGetPriority(zr_stream_native(streams[i]), &priorities[i]),
                         cudaSuccess);
        zr_stream_destroy(&streams[i]);
    }
    assert_int_equal(priorities[0], least);
    assert_int_equal(priorities[1], greatest);
    assert_true(greatest < least);
}

/* Destroying a stream waits for its work: what it writes may be gone after that. */
static void a_stream_that_is_destroyed_has_passed(void **state) {
    fixture_t *f = *state;
    for (int i = 1; i < 20; i++) {
        zr_stream_t *stream = NULL;
        float result = 0;
        fixture_reset(f);
        float *x = fixture_take(f, 4, 0);
        assert_ok(zr_stream_create(f->device, "short", &stream));
        assert_ok(zr_kernel_fill(stream, x, ZR_DTYPE_F32, 1, (float)i));
        assert_ok(zr_copy_async(stream, &result, x, 4, ZR_COPY_DEVICE_TO_HOST));
        zr_stream_destroy(&stream);
        assert_true(result == (float)i);
    }
}

/* ---- failures of queued work ---------------------------------------------------------------- */

static void assert_says(const fixture_t *f, const char *text) {
    if (strstr(f->last_error, text) == NULL)
        fail_msg("\"%s\" is not in: %s", text, f->last_error);
}

static void assert_says_not(const fixture_t *f, const char *text) {
    if (strstr(f->last_error, text) != NULL)
        fail_msg("\"%s\" is in: %s", text, f->last_error);
}

/* What is one access on a GPU is a fault on an address that is not aligned for it, which the host's
 * instructions would not mind. */
static void a_misaligned_access_is_a_fault(void **state) {
    fixture_t *f = *state;
    fixture_reset(f);
    float *in = fixture_take(f, 64, 0), *out = fixture_take(f, 64, 0);
    assert_ok(probe_copy_words(f->stream, out, in));
    assert_ok(zr_stream_synchronize(f->stream));
    for (int off = 0; off < 2; off++) {
        assert_ok(probe_copy_words(f->stream, out + off, in + !off));
        assert_refused(f, ZR_ERR_DEVICE, zr_stream_synchronize(f->stream));
        assert_says(f, "copy_words on \"test\"");
        emu_forget_failures();
    }
    assert_ok(zr_stream_synchronize(f->stream));
}

/* The next wait names what may have failed: what was queued since the last good wait. */
static void a_kernel_that_fails_is_named(void **state) {
    fixture_t *f = *state;
    fixture_reset(f);
    float *x = fixture_take(f, 4096, 0);
    assert_ok(zr_kernel_scale(f->stream, x, ZR_DTYPE_F32, 100, 1.0f));
    assert_ok(zr_stream_synchronize(f->stream));
    emu_fail_kernel("fill_kernel", 1, cudaErrorLaunchFailure);
    assert_ok(zr_kernel_fill(f->stream, x, ZR_DTYPE_F32, 100, 1.0f));
    assert_refused(f, ZR_ERR_DEVICE, zr_stream_synchronize(f->stream));
    assert_says(f, "waiting for stream \"test\"");
    assert_says(f, "cudaErrorLaunchFailure");
    assert_says(f, "fill on \"test\"");
    assert_says_not(f, "scale");
    /* It is the device's end: all else says so, too. */
    assert_refused(f, ZR_ERR_DEVICE, zr_kernel_scale(f->stream, x, ZR_DTYPE_F32, 100, 1.0f));
    assert_says(f, "fill on \"test\"");
    emu_forget_failures();
    assert_ok(zr_stream_synchronize(f->stream));
}

/* So is a kernel that is none of the library's; one that is refused is not charged. */
static void a_kernel_of_a_callers_own_is_named(void **state) {
    fixture_t *f = *state;
    const zr_charge_t charge = {.kernel = "own", .cost = {1.0, 1.0}};
    zr_cost_t before, after;
    fixture_reset(f);
    float *x = fixture_take(f, 4096, 0);
    emu_fail_kernel("own_kernel", 1, cudaErrorLaunchFailure);
    native_kernel(zr_stream_native(f->stream), x, 100);
    assert_ok(zr_stream_launched(f->stream, &charge));
    assert_refused(f, ZR_ERR_DEVICE, zr_stream_synchronize(f->stream));
    assert_says(f, "own on \"test\"");
    emu_forget_failures();

    emu_fail_call("cudaLaunchKernel", 1, cudaErrorInvalidConfiguration);
    assert_ok(zr_stream_cost(f->stream, &before));
    native_kernel(zr_stream_native(f->stream), x, 100);
    assert_refused(f, ZR_ERR_DEVICE, zr_stream_launched(f->stream, &charge));
    assert_says(f, "launching own");
    assert_ok(zr_stream_cost(f->stream, &after));
    assert_memory_equal(&before, &after, sizeof(after));
    assert_ok(zr_stream_synchronize(f->stream));
}

/* What an event has shown to have passed is not named. */
static void what_has_passed_is_not_named(void **state) {
    fixture_t *f = *state;
    zr_event_t *event = NULL;
    fixture_reset(f);
    float *x = fixture_take(f, 4096, 0);
    assert_ok(zr_event_create(f->device, &event));
    assert_ok(zr_kernel_scale(f->stream, x, ZR_DTYPE_F32, 100, 1.0f));
    assert_ok(zr_event_record(event, f->stream));
    assert_ok(zr_event_synchronize(event));
    emu_fail_kernel("add_kernel", 1, cudaErrorLaunchFailure);
    for (int i = 0; i < 200; i++) /* more than the device remembers */
        assert_ok(zr_kernel_fill(f->stream, x, ZR_DTYPE_F32, 100, 1.0f));
    assert_ok(zr_kernel_add(f->stream, x, ZR_DTYPE_F32, x + 500, ZR_DTYPE_F32, 100));
    assert_ok(zr_event_record(event, f->stream));
    assert_refused(f, ZR_ERR_DEVICE, zr_event_synchronize(event));
    assert_says(f, "fill on \"test\", add on \"test\"");
    assert_says_not(f, "scale");
    emu_forget_failures();
    zr_event_destroy(&event);
}

static void work_on_memory_that_is_gone_fails(void **state) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    void *base = NULL;
    assert_ok(zr_range_reserve(f->device, ZR_TIER_DEVICE, 4 * granule, &base));
    assert_ok(zr_range_map(f->device, ZR_TIER_DEVICE, base, 0, 2 * granule));
    size_t n_elems = 2 * granule / sizeof(float);
    assert_ok(zr_kernel_fill(f->stream, base, ZR_DTYPE_F32, n_elems, 1.0f));
    assert_ok(zr_stream_synchronize(f->stream));
    assert_ok(zr_kernel_fill(f->stream, base, ZR_DTYPE_F32, n_elems + 1, 1.0f));
    assert_refused(f, ZR_ERR_DEVICE, zr_stream_synchronize(f->stream));
    assert_says(f, "cudaErrorIllegalAddress");
    emu_forget_failures();
    assert_ok(zr_range_unmap(f->device, ZR_TIER_DEVICE, base, granule, granule));
    char *bytes = malloc(2 * granule);
    assert_ok(zr_copy_async(f->stream, bytes, base, 2 * granule, ZR_COPY_DEVICE_TO_HOST));
    assert_refused(f, ZR_ERR_DEVICE, zr_stream_synchronize(f->stream));
    assert_says(f, "copy to the host on \"test\"");
    emu_forget_failures();
    free(bytes);
    zr_range_release(f->device, ZR_TIER_DEVICE, &base, 4 * granule);
}

/* ---- memory --------------------------------------------------------------------------------- */

static void exactly_what_is_mapped_is_used_and_pinned(void **state) {
    fixture_t *f = *state;
    size_t granule = zr_device_info(f->device)->granule_bytes;
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        size_t before = tier == ZR_TIER_DEVICE ? emu_used_bytes(0) : emu_pinned_bytes();
#define ASSERT_MORE(n)                                                                             \
    assert_int_equal((tier == ZR_TIER_DEVICE ? emu_used_bytes(0) : emu_pinned_bytes()) - before,   \
                     (n)*granule)
        void *base = NULL;
        assert_ok(zr_range_reserve(f->device, (zr_tier_t)tier, 64 * granule, &base));
        ASSERT_MORE(0);
        assert_ok(zr_range_map(f->device, (zr_tier_t)tier, base, granule, 5 * granule));
        ASSERT_MORE(5);
        assert_ok(zr_range_unmap(f->device, (zr_tier_t)tier, base, 3 * granule, granule));
        ASSERT_MORE(4);
        assert_ok(
            zr_range_move(f->device, (zr_tier_t)tier, base, granule, base, 8 * granule, granule));
        ASSERT_MORE(4);
        zr_range_release(f->device, (zr_tier_t)tier, &base, 64 * granule);
        ASSERT_MORE(0);
#undef ASSERT_MORE
    }
}

/* Host memory that the system will not pin is a tier that is full, not an error. */
static void what_cannot_be_pinned_is_refused_whole(void **state) {
    emu_options_t machine = emu_options_default();
    machine.pinned_bytes = 8 * machine.granule_bytes;
    emu_configure(&machine);
    fixture_t fixture;
    fixture_open(&fixture, "cuda", 1, NULL);
    size_t granule = machine.granule_bytes;
    void *base = NULL;
    assert_ok(zr_range_reserve(fixture.device, ZR_TIER_HOST, 32 * granule, &base));
    assert_ok(zr_range_map(fixture.device, ZR_TIER_HOST, base, 0, 5 * granule));
    assert_int_equal(zr_range_map(fixture.device, ZR_TIER_HOST, base, 5 * granule, 4 * granule),
                     ZR_ERR_BUDGET);
    assert_int_equal(emu_pinned_bytes(), 5 * granule);
    assert_ok(zr_range_map(fixture.device, ZR_TIER_HOST, base, 5 * granule, 3 * granule));
    assert_int_equal(fixture.n_errors, 0);
    zr_range_release(fixture.device, ZR_TIER_HOST, &base, 32 * granule);
    fixture_close(&fixture);
    machine = emu_options_default();
    emu_configure(&machine);
}

/* ---- other machines ------------------------------------------------------------------------- */

static void assert_no_device(const emu_options_t *machine, int index, zr_status_t expected,
                             const char *text) {
    fixture_t f = {0};
    zr_device_t *device = NULL;
    zr_device_options_t options = {.log = fixture_log(&f), .index = index};
    emu_configure(machine);
    assert_refused(&f, expected, zr_device_open("cuda", &options, &device));
    assert_says(&f, text);
    assert_null(device);
}

static void machines_without_a_gpu_say_so(void **state) {
    emu_options_t machine = emu_options_default();
    machine.has_driver = false;
    assert_no_device(&machine, 0, ZR_ERR_UNSUPPORTED, "no NVIDIA driver");
    machine.has_driver = true;
    machine.n_devices = 0;
    assert_no_device(&machine, 0, ZR_ERR_UNSUPPORTED, "cudaErrorNoDevice");
    machine.n_devices = 2;
    assert_no_device(&machine, 2, ZR_ERR_ARGUMENT, "index 2; this machine has 2");
    machine.major = 7;
    assert_no_device(&machine, 1, ZR_ERR_UNSUPPORTED, "compute capability 7.0");
    machine = emu_options_default();
    emu_configure(&machine);
}

/* Two devices of one process copy from each other, where they may. */
static zr_status_t copy_between_devices(fixture_t *near, fixture_t *far, bool has_no_peers) {
    float result[N_ELEMS] = {0};
    zr_device_options_t options = {
        .log = fixture_log(far), .index = 1, .has_no_peers = has_no_peers};
    assert_ok(zr_device_open("cuda", &options, &far->device));
    assert_ok(zr_stream_create(far->device, "far", &far->stream));
    size_t granule = zr_device_info(far->device)->granule_bytes;
    void *base = NULL;
    assert_ok(zr_range_reserve(far->device, ZR_TIER_DEVICE, granule, &base));
    assert_ok(zr_range_map(far->device, ZR_TIER_DEVICE, base, 0, granule));
    assert_ok(zr_kernel_fill(far->stream, base, ZR_DTYPE_F32, N_ELEMS, 5.0f));
    assert_ok(zr_stream_synchronize(far->stream));
    float *here = fixture_take(near, sizeof(result), 0);
    assert_ok(zr_copy_async(near->stream, here, base, sizeof(result), ZR_COPY_DEVICE_TO_DEVICE));
    zr_status_t status = zr_stream_synchronize(near->stream);
    if (status == ZR_OK) {
        fixture_download(near, result, here, sizeof(result));
        assert_true(result[N_ELEMS - 1] == 5.0f);
        /* A kernel may read there, too. */
        assert_ok(probe_copy_one(near->stream, here, base));
        assert_ok(zr_stream_synchronize(near->stream));
    }
    emu_forget_failures();
    zr_range_release(far->device, ZR_TIER_DEVICE, &base, granule);
    zr_stream_destroy(&far->stream);
    zr_device_close(&far->device);
    return status;
}

static void devices_reach_their_peers(void **state) {
    for (int i = 0; i < 3; i++) {
        emu_options_t machine = emu_options_default();
        bool are_peers = i > 0, has_no_peers = i == 2;
        machine.are_peers = are_peers;
        emu_configure(&machine);
        fixture_t near, far = {0};
        fixture_open(&near, "cuda", 1, NULL);
        assert_int_equal(copy_between_devices(&near, &far, has_no_peers),
                         are_peers && !has_no_peers ? ZR_OK : ZR_ERR_DEVICE);
        fixture_close(&near);
    }
}

/* Of large memory a granule is larger, so that there are not too many; and a device tells what was
 * in use before it. */
static void memory_is_described(void **state) {
    (void)state;
    emu_options_t machine = emu_options_default();
    machine.granule_bytes = (size_t)2 << 20;
    machine.memory_bytes = (size_t)143771 << 20;
    machine.in_use_bytes = (size_t)500 << 20;
    emu_configure(&machine);
    fixture_t f, second;
    fixture_open(&f, "cuda", 1, NULL);
    const zr_device_info_t *info = zr_device_info(f.device);
    assert_int_equal(info->granule_bytes, (size_t)16 << 20);
    assert_int_equal(info->memory_bytes, machine.memory_bytes);
    assert_int_equal(info->in_use_bytes, machine.in_use_bytes);
    fixture_open(&second, "cuda", 1, NULL); /* beside it, what the first has is in use as well */
    assert_int_equal(zr_device_info(second.device)->in_use_bytes,
                     machine.in_use_bytes + emu_used_bytes(0) / 2);
    fixture_close(&second);
    fixture_close(&f);
    machine = emu_options_default();
    emu_configure(&machine);
}

/* ---- every call fails ----------------------------------------------------------------------- */

/* All that the device does, in one go; the first failure ends it. */
typedef struct everything {
    fixture_t f;
    zr_stream_t *second;
    zr_event_t *event;
    void *a, *b, *host;
    size_t granule;
} everything_t;

static zr_status_t make_everything(everything_t *e) {
    zr_device_options_t options = {.log = fixture_log(&e->f)};
    ZR_TRY(zr_device_open("cuda", &options, &e->f.device));
    e->granule = zr_device_info(e->f.device)->granule_bytes;
    ZR_TRY(zr_stream_create(e->f.device, "first", &e->f.stream));
    ZR_TRY(zr_stream_create(e->f.device, "second", &e->second));
    ZR_TRY(zr_event_create(e->f.device, &e->event));
    ZR_TRY(zr_range_reserve(e->f.device, ZR_TIER_DEVICE, 8 * e->granule, &e->a));
    ZR_TRY(zr_range_reserve(e->f.device, ZR_TIER_DEVICE, 8 * e->granule, &e->b));
    ZR_TRY(zr_range_reserve(e->f.device, ZR_TIER_HOST, 8 * e->granule, &e->host));
    ZR_TRY(zr_range_map(e->f.device, ZR_TIER_DEVICE, e->a, 0, 3 * e->granule));
    return zr_range_map(e->f.device, ZR_TIER_HOST, e->host, 0, 3 * e->granule);
}

static zr_status_t do_everything(everything_t *e) {
    bool passed;
    ZR_TRY(make_everything(e));
    ZR_TRY(zr_copy_async(e->f.stream, e->a, e->host, 2 * e->granule, ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_kernel_fill(e->f.stream, e->a, ZR_DTYPE_F32, 1000, 2.0f));
    ZR_TRY(zr_kernel_sum_of_squares(e->f.stream, e->a, ZR_DTYPE_F32, 1000, e->a, NULL));
    ZR_TRY(zr_event_record(e->event, e->f.stream));
    ZR_TRY(zr_stream_wait(e->second, e->event));
    ZR_TRY(zr_copy_async(e->second, e->host, e->a, e->granule + 9, ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_event_query(e->event, &passed));
    ZR_TRY(zr_event_synchronize(e->event));
    ZR_TRY(zr_stream_synchronize(e->second));
    ZR_TRY(zr_range_move(e->f.device, ZR_TIER_DEVICE, e->a, 0, e->b, e->granule, 2 * e->granule));
    ZR_TRY(zr_range_unmap(e->f.device, ZR_TIER_DEVICE, e->b, e->granule, e->granule));
    return zr_range_unmap(e->f.device, ZR_TIER_HOST, e->host, e->granule, e->granule);
}

static void unmake_everything(everything_t *e) {
    if (e->f.device == NULL)
        return;
    zr_event_destroy(&e->event);
    zr_stream_destroy(&e->second);
    zr_stream_destroy(&e->f.stream);
    zr_range_release(e->f.device, ZR_TIER_HOST, &e->host, 8 * e->granule);
    zr_range_release(e->f.device, ZR_TIER_DEVICE, &e->b, 8 * e->granule);
    zr_range_release(e->f.device, ZR_TIER_DEVICE, &e->a, 8 * e->granule);
    zr_device_close(&e->f.device);
}

/* The n-th call fails; false: there were fewer. Nothing is lost, and somebody has said so. */
static bool survives_failure_of(int nth) {
    everything_t e = {0};
    size_t n_misuses = emu_n_misuses();
    emu_fail_call(NULL, nth, cudaErrorLaunchFailure);
    zr_status_t status = do_everything(&e);
    unmake_everything(&e);
    bool has_failed = emu_has_failed_call();
    emu_fail_call(NULL, 0, 0);
    assert_int_equal(emu_n_live(), 0);
    assert_int_equal(emu_n_misuses(), n_misuses);
    if (has_failed && e.f.n_errors != 1)
        fail_msg("call %d fails: %d errors were logged, the last: %s", nth, e.f.n_errors,
                 e.f.last_error);
    if (!has_failed)
        assert_ok(status);
    return has_failed;
}

static void every_call_may_fail(void **state) {
    for (int virtual_memory = 0; virtual_memory < 2; virtual_memory++) {
        emu_options_t machine = emu_options_default();
        machine.has_virtual_memory = virtual_memory;
        emu_configure(&machine);
        int n = 1;
        while (survives_failure_of(n))
            n++;
        assert_true(n > 60);
    }
}

int main(void) {
    const struct CMUnitTest on_device[] = {
        cmocka_unit_test(a_barrier_that_is_missing_is_noticed),
        cmocka_unit_test(shuffles_move_values_between_lanes),
        cmocka_unit_test(lanes_vote),
        cmocka_unit_test(warps_run_ahead_and_shared_memory_is_spoilt),
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(barriers_that_never_meet_end_the_program),
        cmocka_unit_test(a_wait_that_is_missing_is_noticed),
        cmocka_unit_test(concurrent_streams_have_priority),
        cmocka_unit_test(a_stream_that_is_destroyed_has_passed),
        cmocka_unit_test(a_kernel_that_fails_is_named),
        cmocka_unit_test(a_misaligned_access_is_a_fault),
        cmocka_unit_test(a_kernel_of_a_callers_own_is_named),
        cmocka_unit_test(what_has_passed_is_not_named),
        cmocka_unit_test(work_on_memory_that_is_gone_fails),
        cmocka_unit_test(exactly_what_is_mapped_is_used_and_pinned),
    };
    const struct CMUnitTest on_machines[] = {
        cmocka_unit_test(what_cannot_be_pinned_is_refused_whole),
        cmocka_unit_test(machines_without_a_gpu_say_so),
        cmocka_unit_test(devices_reach_their_peers),
        cmocka_unit_test(memory_is_described),
        cmocka_unit_test(every_call_may_fail),
    };
    int n_failed = cmocka_run_group_tests(on_device, setup, teardown);
    return n_failed + cmocka_run_group_tests(on_machines, NULL, NULL);
}
