/*
 * The allocator on the CUDA device, where streams are late and memory cannot be looked at: random
 * tensors of all classes on three streams, in budgets so tight that granules move between classes
 * all the time. Each tensor keeps its own number until it is freed, which a copy shows. Without a
 * GPU it is skipped; tests/emu/ runs it with an emulated one, which tells how much memory is used.
 */
#include "allocator/allocator.h"
#include "tests/kernels/device_fixture.h"
#if defined(ZR_TESTS_EMULATED)
#include "tests/emu/emu.h"
#endif

#define N_STREAMS 3
#define MAX_LIVE 60
#define N_OPERATIONS 4000

typedef struct tensor {
    void *pointer;
    size_t n_elems;
    zr_stream_t *stream; /* everything that is done with it */
    float value;
} tensor_t;

typedef struct run {
    fixture_t f;
    zr_allocator_t *allocator;
    zr_stream_t *streams[N_STREAMS];
    tensor_t live[MAX_LIVE];
    size_t n_live, n_refused, n_checked;
    uint64_t random;
} run_t;

static size_t draw(run_t *run, size_t below) {
    return (size_t)(random_bits(&run->random) % below);
}

static void make_tensor(run_t *run, size_t granule) {
    tensor_t *tensor = &run->live[run->n_live];
    size_t most = draw(run, 4) == 0 ? 3 * granule : granule / 8;
    tensor->n_elems = 1 + draw(run, most / sizeof(float));
    tensor->stream = run->streams[draw(run, N_STREAMS)];
    tensor->value = (float)draw(run, 1 << 20);
    zr_allocation_request_t request = {.size_bytes = tensor->n_elems * sizeof(float),
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = ZR_TAG_OTHER,
                                       .lifetime = (zr_lifetime_t)draw(run, 5),
                                       .name = "tensor",
                                       .stream = tensor->stream};
    zr_status_t status = zr_allocate(run->allocator, &request, &tensor->pointer);
    if (status == ZR_ERR_BUDGET) {
        run->n_refused++;
        return;
    }
    assert_ok(status);
    assert_ok(zr_kernel_fill(tensor->stream, tensor->pointer, ZR_DTYPE_F32, tensor->n_elems,
                             tensor->value));
    run->n_live++;
}

static void check_tensor(run_t *run, const tensor_t *tensor) {
    float *values = malloc(tensor->n_elems * sizeof(float));
    assert_ok(zr_copy_async(tensor->stream, values, tensor->pointer,
                            tensor->n_elems * sizeof(float), ZR_COPY_DEVICE_TO_HOST));
    assert_ok(zr_stream_synchronize(tensor->stream));
    for (size_t i = 0; i < tensor->n_elems; i++)
        if (values[i] != tensor->value)
            fail_msg("element %zu of %zu is another tensor's", i, tensor->n_elems);
    free(values);
    run->n_checked++;
}

/* Most are freed with their work still queued. */
static void free_tensor(run_t *run) {
    size_t index = draw(run, run->n_live);
    tensor_t *tensor = &run->live[index];
    if (draw(run, 3) == 0)
        check_tensor(run, tensor);
    zr_free(run->allocator, &tensor->pointer, tensor->stream);
    *tensor = run->live[--run->n_live];
}

#if defined(ZR_TESTS_EMULATED)
static size_t used_bytes(void) {
    return emu_used_bytes(0);
}

/* Small granules are filled in less time, and are often too small. */
static void use_machine(void) {
    emu_options_t machine = emu_options_default();
    machine.granule_bytes = (size_t)64 << 10;
    emu_configure(&machine);
}
#else
/* A GPU does not tell what one process of several has of it. */
static size_t used_bytes(void) {
    return 0;
}
static void use_machine(void) {
}
#endif

static void run_random(uint64_t seed, size_t budget_granules) {
    run_t run = {.random = seed};
    fixture_open(&run.f, "cuda", 1, NULL);
    size_t granule = zr_device_info(run.f.device)->granule_bytes, before = used_bytes();
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fixture_log(&run.f);
    options.budget_bytes[ZR_TIER_DEVICE] = budget_granules * granule;
    assert_ok(zr_allocator_create(run.f.device, &options, &run.allocator));
    for (int i = 0; i < N_STREAMS; i++)
        assert_ok(zr_stream_create(run.f.device, "s", &run.streams[i]));
    for (int i = 0; i < N_OPERATIONS; i++) {
        if (run.n_live == 0 || (run.n_live < MAX_LIVE && draw(&run, 2) == 0))
            make_tensor(&run, granule);
        else
            free_tensor(&run);
        assert_true(used_bytes() - before <= budget_granules * granule);
    }
    assert_true(zr_allocator_is_valid(run.allocator));
    while (run.n_live > 0)
        free_tensor(&run);
    assert_true(run.n_refused > 10 && run.n_checked > 100);
    zr_allocator_destroy(&run.allocator);
    assert_int_equal(used_bytes(), before);
    for (int i = 0; i < N_STREAMS; i++)
        zr_stream_destroy(&run.streams[i]);
    fixture_close(&run.f);
}

TEST(tensors_keep_their_numbers) {
    use_machine();
    run_random(1, 12);
    run_random(2, 20);
}

int main(void) {
    if (fixture_probe("cuda") != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(NULL, NULL);
}
