/*
 * The virtual clock and the simulated device: when work begins and ends, on streams that wait for
 * each other, over links and parts that do one thing at a time; and addresses that are nothing.
 */
#include <signal.h>
#include <sys/wait.h>

#include "kernels/device_fixture.h"
#include "kernels/nn/nn.h"
#include "kernels/simulation.h"
#include "zero/optim/optimizer.h"

#define assert_seconds(value, expected)                                                            \
    do {                                                                                           \
        double seconds = (value), wanted = (expected);                                             \
        if (!(seconds > wanted - 1e-12 && seconds < wanted + 1e-12))                               \
            fail_msg("%s: %.12g s, not %.12g", #value, seconds, wanted);                           \
    } while (0)

/* Round numbers: a byte takes 1 us over a link and 1 ns in memory, an operation 1 ns, and queueing
 * (almost) nothing. */
static zr_hardware_t round_hardware(zr_hardware_kind_t kind) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = kind;
    hardware.launch_s = 1e-15;
    hardware.granule_bytes = (size_t)2 << 20;
    hardware.device = (zr_processor_t){.matrix_fp32_ops_per_s = 1e9,
                                       .matrix_bf16_ops_per_s = 4e9,
                                       .attention_fraction = 0.5,
                                       .matrix_fp32_bytes_per_s = 1e30,
                                       .matrix_bf16_bytes_per_s = 1e30,
                                       .lm_head_ratio = 0.25,
                                       .vector_ops_per_s = 1e9,
                                       .memory_bytes_per_s = 1e9,
                                       .update_bytes_per_s = 5e8};
    hardware.host = hardware.device;
    hardware.host.memory_bytes_per_s = 1e8;
    hardware.to_device = hardware.to_host = (zr_link_t){.bytes_per_s = 1e6};
    return hardware;
}

typedef struct machine {
    zr_sim_clock_t *clock;
    zr_device_t *device;
    zr_stream_t *a, *b;
    zr_event_t *event;
    char *memory; /* 1 GiB of the device tier */
} machine_t;

#define MEMORY_BYTES ((size_t)1 << 30)

static machine_t open_with(const zr_hardware_t *described, bool concurrent) {
    machine_t m = {0};
    zr_hardware_t hardware = *described;
    assert_ok(zr_sim_clock_create(NULL, &m.clock));
    zr_device_options_t options = zr_device_options_default();
    options.hardware = &hardware;
    options.clock = m.clock;
    options.concurrent = concurrent;
    assert_ok(zr_device_open("sim", &options, &m.device));
    assert_ok(zr_stream_create(m.device, "a", &m.a));
    assert_ok(zr_stream_create_concurrent(m.device, "b", &m.b));
    assert_ok(zr_event_create(m.device, &m.event));
    void *base = NULL;
    assert_ok(zr_range_reserve(m.device, ZR_TIER_DEVICE, MEMORY_BYTES, &base));
    m.memory = base;
    return m;
}

static machine_t open_on(const zr_hardware_t *described) {
    return open_with(described, false);
}

static machine_t open_machine(zr_hardware_kind_t kind) {
    zr_hardware_t hardware = round_hardware(kind);
    return open_on(&hardware);
}

static void close_machine(machine_t *m) {
    zr_event_destroy(&m->event);
    zr_stream_destroy(&m->a);
    zr_stream_destroy(&m->b);
    zr_device_close(&m->device);
    zr_sim_clock_destroy(&m->clock);
    assert_null(m->clock);
}

/* A kernel of so many seconds. */
static void compute(const machine_t *m, zr_stream_t *stream, double seconds) {
    assert_ok(zr_kernel_fill(stream, m->memory, ZR_DTYPE_F32, (size_t)(seconds * 1e9 / 4.0), 0.0f));
}

static void copy_up(const machine_t *m, zr_stream_t *stream, double seconds) {
    assert_ok(zr_copy_async(stream, m->memory, m->memory + MEMORY_BYTES / 2,
                            (size_t)(seconds * 1e6), ZR_COPY_HOST_TO_DEVICE));
}

static double synchronize(const machine_t *m, zr_stream_t *stream) {
    assert_ok(zr_stream_synchronize(stream));
    return zr_sim_clock_now(m->clock);
}

TEST(test_streams_overlap) {
    machine_t m = open_machine(ZR_HARDWARE_CUDA);
    compute(&m, m.a, 0.25);
    copy_up(&m, m.b, 0.375);
    assert_seconds(zr_sim_clock_now(m.clock), 0.0); /* nothing was waited for */
    assert_seconds(synchronize(&m, m.a), 0.25);
    assert_seconds(synchronize(&m, m.b), 0.375);
    assert_seconds(synchronize(&m, m.a), 0.375); /* time does not go back */
    assert_seconds(zr_sim_clock_busy(m.clock, ZR_SIM_COMPUTE), 0.25);
    assert_seconds(zr_sim_clock_busy(m.clock, ZR_SIM_TO_DEVICE), 0.375);
    assert_seconds(zr_sim_clock_busy(m.clock, ZR_SIM_TO_HOST), 0.0);
    compute(&m, m.a, 0.125); /* begins now, not when the stream became idle */
    assert_seconds(synchronize(&m, m.a), 0.5);
    close_machine(&m);
}

TEST(test_events) {
    machine_t m = open_machine(ZR_HARDWARE_CUDA);
    bool passed = true;
    copy_up(&m, m.b, 0.25);
    assert_ok(zr_event_record(m.event, m.b));
    copy_up(&m, m.b, 0.25); /* behind the record */
    assert_ok(zr_event_query(m.event, &passed));
    assert_false(passed);
    assert_ok(zr_stream_wait(m.a, m.event));
    compute(&m, m.a, 0.125);
    assert_ok(zr_event_synchronize(m.event));
    assert_seconds(zr_sim_clock_now(m.clock), 0.25);
    assert_ok(zr_event_query(m.event, &passed));
    assert_true(passed);
    assert_seconds(synchronize(&m, m.a), 0.375);
    assert_seconds(synchronize(&m, m.b), 0.5);
    close_machine(&m);
}

/* Two streams share a link; and what was queued first, but waits, leaves its time to others. */
TEST(test_parts_do_one_thing_at_a_time) {
    machine_t m = open_machine(ZR_HARDWARE_CUDA);
    copy_up(&m, m.a, 0.25);
    copy_up(&m, m.b, 0.25);
    assert_seconds(synchronize(&m, m.b), 0.5);
    close_machine(&m);

    m = open_machine(ZR_HARDWARE_CUDA);
    copy_up(&m, m.b, 0.25);
    compute(&m, m.b, 0.125);  /* at 0.25 */
    compute(&m, m.a, 0.125);  /* at 0 */
    compute(&m, m.a, 0.1875); /* does not fit between: at 0.375 */
    assert_seconds(synchronize(&m, m.b), 0.375);
    assert_seconds(synchronize(&m, m.a), 0.5625);
    close_machine(&m);
}

TEST(test_host_kind_is_synchronous) {
    machine_t m = open_machine(ZR_HARDWARE_HOST);
    const zr_device_info_t *info = zr_device_info(m.device);
    assert_true(info->synchronous && info->host_addressable && info->computes_on_host);
    compute(&m, m.a, 0.25);
    assert_seconds(zr_sim_clock_now(m.clock), 0.25);
    assert_ok(zr_copy_async(m.b, m.memory, m.memory + MEMORY_BYTES / 2, (size_t)125000000,
                            ZR_COPY_HOST_TO_DEVICE)); /* read and written */
    assert_seconds(zr_sim_clock_now(m.clock), 0.5);
    assert_seconds(zr_sim_clock_busy(m.clock, ZR_SIM_TO_DEVICE), 0.0);
    close_machine(&m);
}

/* On a host whose streams beside the thread do not hold it, all others do, and what waits on them
 * for one beside holds it as long. */
TEST(test_host_with_streams_beside) {
    zr_hardware_t hardware = round_hardware(ZR_HARDWARE_HOST);
    machine_t m = open_with(&hardware, true);
    const zr_device_info_t *info = zr_device_info(m.device);
    assert_true(!info->synchronous && info->host_addressable && info->computes_on_host);
    assert_true(zr_stream_is_synchronous(m.a) && !zr_stream_is_synchronous(m.b));
    zr_sim_queue(m.b, ZR_SIM_NETWORK, "all_gather", 0.5);
    assert_ok(zr_event_record(m.event, m.b));
    assert_seconds(zr_sim_clock_now(m.clock), 0.0);
    compute(&m, m.a, 0.125); /* beside it */
    assert_seconds(zr_sim_clock_now(m.clock), 0.125);
    assert_seconds(zr_device_wait_seconds(m.device), 0.0);
    assert_ok(zr_stream_wait(m.a, m.event));
    assert_seconds(zr_sim_clock_now(m.clock), 0.5);
    assert_seconds(zr_device_wait_seconds(m.device), 0.375);
    compute(&m, m.b, 0.25);
    assert_seconds(zr_sim_clock_now(m.clock), 0.5);
    assert_seconds(synchronize(&m, m.b), 0.75);
    assert_seconds(zr_device_wait_seconds(m.device), 0.625);
    assert_ok(zr_event_record(m.event, m.a)); /* has passed */
    assert_ok(zr_stream_wait(m.b, m.event));
    assert_seconds(zr_device_wait_seconds(m.device), 0.625);
    close_machine(&m);
}

static void run_matmul(const machine_t *m, zr_dtype_t a, zr_dtype_t b, size_t side) {
    zr_nn_matmul_t args = {.m = side,
                           .n = side,
                           .k = side,
                           .a = m->memory,
                           .b = m->memory,
                           .c = m->memory,
                           .a_dtype = a,
                           .b_dtype = b,
                           .c_dtype = a};
    assert_ok(zr_nn_matmul(m->a, &args, (zr_nn_workspace_t){m->memory, MEMORY_BYTES}));
}

/* Operations or bytes, whichever take longer; products at the rate of their dtypes. */
TEST(test_kernels_cost) {
    machine_t m = open_machine(ZR_HARDWARE_CUDA);
    run_matmul(&m, ZR_DTYPE_F32, ZR_DTYPE_F32, 512); /* 2^28 operations */
    assert_seconds(synchronize(&m, m.a), 0x1p28 / 1e9);
    run_matmul(&m, ZR_DTYPE_BF16, ZR_DTYPE_BF16, 512);
    assert_seconds(synchronize(&m, m.a), 0x1p28 / 1e9 * 1.25);
    run_matmul(&m, ZR_DTYPE_F32, ZR_DTYPE_BF16, 512);
    assert_seconds(synchronize(&m, m.a), 0x1p28 / 1e9 * 1.5);
    double before = zr_sim_clock_now(m.clock);
    run_matmul(&m, ZR_DTYPE_F32, ZR_DTYPE_F32, 2); /* 16 operations, 48 bytes */
    assert_seconds(synchronize(&m, m.a) - before, 48e-9);
    const zr_nn_attention_t attention = {
        .shape = {.batch = 1, .seq = 1023, .heads = 1, .kv_heads = 1, .head_size = 64},
        .qkv = m.memory,
        .out = m.memory,
        .log_sum = (float *)m.memory,
        .activation_dtype = ZR_DTYPE_BF16};
    before = zr_sim_clock_now(m.clock);
    assert_ok(zr_nn_attention(m.a, &attention, (zr_nn_workspace_t){0}));
    assert_seconds(synchronize(&m, m.a) - before,
                   zr_nn_attention_cost(&attention).operations / 2e9);
    close_machine(&m);
}

/* Bytes of products that operations do not hide come on top, at the rate of the dtype. */
TEST(test_products_take_operations_and_bytes) {
    zr_hardware_t hardware = round_hardware(ZR_HARDWARE_CUDA);
    hardware.device.matrix_fp32_bytes_per_s = 1e8;
    hardware.device.matrix_bf16_bytes_per_s = 2e7;
    machine_t m = open_on(&hardware);
    run_matmul(&m, ZR_DTYPE_F32, ZR_DTYPE_F32, 512);
    assert_seconds(synchronize(&m, m.a), 0x1p28 / 1e9 + 3 * 0x1p20 / 1e8);
    double before = zr_sim_clock_now(m.clock);
    run_matmul(&m, ZR_DTYPE_BF16, ZR_DTYPE_BF16, 512);
    assert_seconds(synchronize(&m, m.a) - before, 0x1p28 / 4e9 + 3 * 0x1p19 / 2e7);
    close_machine(&m);
}

/* The head's products have a rate of their own, and so have the bytes of the update. */
TEST(test_rates_of_their_own) {
    machine_t m = open_machine(ZR_HARDWARE_CUDA);
    double *loss = (double *)m.memory;
    const zr_nn_lm_head_t head = {.n_rows = 512,
                                  .channels = 512,
                                  .vocab = 512,
                                  .vocab_chunk = 512,
                                  .x = m.memory,
                                  .weight = m.memory,
                                  .targets = (const int32_t *)m.memory,
                                  .loss = loss,
                                  .scale = 1.0f,
                                  .activation_dtype = ZR_DTYPE_BF16,
                                  .param_dtype = ZR_DTYPE_BF16};
    assert_ok(zr_nn_lm_head(m.a, &head, (zr_nn_workspace_t){m.memory, MEMORY_BYTES}));
    assert_seconds(synchronize(&m, m.a), 0x1p28 / 1e9); /* a quarter of 4e9 */
    double before = zr_sim_clock_now(m.clock);
    float *numbers = (float *)m.memory;
    const zr_update_t update = {.n_elems = 1000000,
                                .arrays = {numbers, numbers, numbers},
                                .grad = numbers,
                                .param = numbers,
                                .grad_dtype = ZR_DTYPE_F32,
                                .param_dtype = ZR_DTYPE_BF16,
                                .grad_scale = 1.0f,
                                .step = 1};
    assert_ok(zr_kernel_update(m.a, &zr_adamw.rule, &update));
    assert_seconds(synchronize(&m, m.a) - before, 30e6 / 5e8);
    close_machine(&m);
}

/* The processors beside a device: their own rates, the same clock, the device's memory. */
TEST(test_host_concurrent) {
    machine_t m = open_machine(ZR_HARDWARE_CUDA);
    zr_device_t *host = NULL;
    zr_stream_t *stream = NULL;
    assert_ok(zr_device_open_host(m.device, NULL, &host));
    assert_ok(zr_stream_create(host, "host", &stream));
    assert_true(zr_device_info(host)->computes_on_host && zr_device_info(host)->stores_nothing);
    assert_false(zr_device_info(m.device)->computes_on_host);
    compute(&m, m.a, 0.25);
    compute(&m, stream, 0.0125); /* ten times as long, beside the other */
    assert_seconds(zr_sim_clock_now(m.clock), 0.125);
    assert_seconds(zr_sim_clock_busy(m.clock, ZR_SIM_HOST), 0.125);
    assert_seconds(synchronize(&m, m.a), 0.25);
    zr_stream_destroy(&stream);
    zr_device_close(&host);
    close_machine(&m);

    assert_ok(zr_device_open("host", NULL, &m.device));
    assert_ok(zr_device_open_host(m.device, NULL, &host));
    assert_string_equal(zr_device_info(host)->backend, "host");
    zr_device_close(&host);
    zr_device_close(&m.device);
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Whether a child that reads an address dies of it: which of two signals it is depends on the
 * register that has the address. */
static bool is_fault(const char *address) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        _exit(*(volatile const char *)address & 0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    int cause = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    return cause == SIGSEGV || cause == SIGBUS;
}

TEST(test_addresses_are_nothing) {
    machine_t m = open_machine(ZR_HARDWARE_CUDA);
    void *host = NULL;
    double loss = 5.0;
    assert_ok(zr_range_map(m.device, ZR_TIER_DEVICE, m.memory, 0, MEMORY_BYTES));
    assert_ok(zr_range_reserve(m.device, ZR_TIER_HOST, MEMORY_BYTES, &host));
    assert_ok(zr_range_map(m.device, ZR_TIER_HOST, host, 0, MEMORY_BYTES));
    assert_true(is_fault(m.memory));
    assert_true(is_fault(host));
    /* Reading from it gives zeros, but no copy writes where there is nothing. */
    assert_ok(zr_copy_async(m.a, &loss, m.memory, sizeof(loss), ZR_COPY_DEVICE_TO_HOST));
    assert_true(loss == 0.0);
    assert_ok(zr_copy_async(m.a, host, m.memory, MEMORY_BYTES, ZR_COPY_DEVICE_TO_HOST));
    assert_ok(zr_copy_async(m.a, m.memory, host, MEMORY_BYTES, ZR_COPY_HOST_TO_DEVICE));
    zr_range_release(m.device, ZR_TIER_HOST, &host, MEMORY_BYTES);
    close_machine(&m);
}

/* Each tier has what the description says, no granule more, also after moves and releases. */
static void check_tier(zr_hardware_kind_t kind, zr_tier_t tier, size_t expected_bytes) {
    zr_hardware_t hardware = round_hardware(kind);
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    void *base = NULL, *other = NULL;
    size_t granule = hardware.granule_bytes, size = expected_bytes + 4 * granule;
    hardware.device_memory_bytes = ((size_t)3 << 30) + ((size_t)500 << 20);
    hardware.device_in_use_bytes = (size_t)500 << 20; /* by a context: no tensor may have it */
    hardware.host_memory_bytes = (size_t)5 << 30;
    options.hardware = &hardware;
    assert_ok(zr_device_open("sim", &options, &device));
    assert_ok(zr_range_reserve(device, tier, size, &base));
    assert_ok(zr_range_reserve(device, tier, size, &other));
    assert_int_equal((uintptr_t)base % granule, 0);
    assert_ok(zr_range_map(device, tier, base, 0, expected_bytes));
    assert_int_equal(zr_range_map(device, tier, base, expected_bytes, granule), ZR_ERR_BUDGET);
    assert_ok(zr_range_move(device, tier, base, 0, other, granule, 2 * granule));
    assert_int_equal(zr_range_map(device, tier, base, 0, granule), ZR_ERR_BUDGET);
    assert_ok(zr_range_unmap(device, tier, other, granule, granule));
    assert_ok(zr_range_map(device, tier, base, 0, granule));
    assert_int_equal(zr_range_map(device, tier, base, granule, granule), ZR_ERR_BUDGET);
    zr_range_release(device, tier, &other, size); /* with one granule that was mapped */
    assert_ok(zr_range_map(device, tier, base, granule, granule));
    assert_ok(zr_range_reserve(device, tier, size, &other));
    assert_int_equal(zr_range_map(device, tier, other, 0, granule), ZR_ERR_BUDGET);
    zr_device_close(&device);
}

TEST(test_memory_is_limited) {
    check_tier(ZR_HARDWARE_CUDA, ZR_TIER_DEVICE, (size_t)3 << 30);
    check_tier(ZR_HARDWARE_CUDA, ZR_TIER_HOST, (size_t)5 << 30);
    check_tier(ZR_HARDWARE_HOST, ZR_TIER_DEVICE, (size_t)5 << 30);
    check_tier(ZR_HARDWARE_HOST, ZR_TIER_HOST, (size_t)5 << 30);
}

/* ---- workspaces ----------------------------------------------------------------------------- */

/* As large as those of the device that it stands for, at any number of threads. */
static void check_workspaces(int n_threads, size_t rows, zr_dtype_t param) {
    zr_hardware_t hardware = round_hardware(ZR_HARDWARE_HOST);
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *devices[2] = {NULL, NULL};
    size_t bytes[2][8];
    hardware.n_threads = options.n_threads = n_threads;
    options.hardware = &hardware;
    assert_ok(zr_device_open("host", &options, &devices[0]));
    assert_ok(zr_device_open("sim", &options, &devices[1]));
    const zr_nn_matmul_t matmul = {
        .m = rows, .n = 300, .k = 200, .b_dtype = param, .transpose_b = true};
    const zr_nn_bias_grad_t bias_grad = {.n_rows = rows, .n_columns = 77, .param_dtype = param};
    const zr_nn_layernorm_backward_t norm = {.n_rows = rows, .channels = 77, .param_dtype = param};
    const zr_nn_attention_t attention = {
        .shape = {.batch = 3, .seq = rows, .heads = 5, .kv_heads = 5, .head_size = 8}};
    const zr_nn_attention_backward_t backward = {
        .shape = {.batch = 3, .seq = rows, .heads = 5, .kv_heads = 5, .head_size = 8}};
    float gradient;
    const zr_nn_rotary_backward_t rotary = {.shape = backward.shape,
                                            .dq_weight = {.data = devices}};
    const zr_nn_embedding_backward_t embedding = {
        .batch = 3, .seq = rows, .dtoken_table = {.data = &gradient}};
    const zr_nn_lm_head_t head = {
        .n_rows = rows, .channels = 100, .vocab = 999, .vocab_chunk = 333, .param_dtype = param};
    for (int i = 0; i < 2; i++) {
        const zr_device_t *device = devices[i];
        bytes[i][0] = zr_nn_matmul_workspace_bytes(device, &matmul);
        bytes[i][1] = zr_nn_bias_grad_workspace_bytes(device, &bias_grad);
        bytes[i][2] = zr_nn_layernorm_backward_workspace_bytes(device, &norm);
        bytes[i][3] = zr_nn_attention_workspace_bytes(device, &attention);
        bytes[i][4] = zr_nn_attention_backward_workspace_bytes(device, &backward);
        bytes[i][5] = zr_nn_embedding_backward_workspace_bytes(device, &embedding);
        bytes[i][6] = zr_nn_lm_head_workspace_bytes(device, &head);
        bytes[i][7] = zr_nn_rotary_backward_workspace_bytes(device, &rotary);
        zr_dtype_t dtype = ZR_DTYPE_U8;
        assert_ok(zr_nn_activation_dtype(device, param, &dtype));
        assert_int_equal(dtype, ZR_DTYPE_F32);
    }
    assert_memory_equal(bytes[0], bytes[1], sizeof(bytes[0]));
    assert_true(bytes[0][3] > 0 && bytes[0][6] > 0);
    zr_device_close(&devices[0]);
    zr_device_close(&devices[1]);
}

TEST(test_workspaces) {
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        for (size_t rows = 10; rows <= 1000; rows *= 10) {
            check_workspaces(n_threads, rows, ZR_DTYPE_F32);
            check_workspaces(n_threads, rows, ZR_DTYPE_BF16);
        }
    }
}

enum { N_ROW_WORKSPACES = 8 };

static void measure_workspaces(const zr_device_t *device, size_t rows, size_t channels,
                               zr_dtype_t param, size_t bytes_p[N_ROW_WORKSPACES]) {
    float gradient;
    const zr_nn_bias_grad_t bias = {.n_rows = rows, .n_columns = channels, .param_dtype = param};
    const zr_nn_layernorm_backward_t norm = {
        .n_rows = rows, .channels = channels, .dweight = {.data = &gradient}, .param_dtype = param};
    const zr_nn_attention_t attention = {
        .shape = {.batch = 1, .seq = rows, .heads = 4, .kv_heads = 4, .head_size = channels / 4}};
    const zr_nn_attention_backward_t backward = {
        .shape = {.batch = 1, .seq = rows, .heads = 4, .kv_heads = 4, .head_size = channels / 4}};
    const zr_nn_embedding_backward_t embedding = {
        .batch = 1, .seq = rows, .dtoken_table = {.data = &gradient}};
    const zr_nn_rotary_backward_t rotary = {.shape = backward.shape,
                                            .dq_weight = {.data = &gradient}};
    const zr_nn_lm_head_t head = {.n_rows = rows,
                                  .channels = channels,
                                  .vocab = 999,
                                  .vocab_chunk = 333,
                                  .row_chunk = 128,
                                  .dweight = {.data = &gradient},
                                  .param_dtype = param};
    const zr_nn_matmul_t matmul = {.m = rows,
                                   .least_m = 1,
                                   .n = channels,
                                   .k = 3 * channels,
                                   .c = &gradient,
                                   .b_dtype = param,
                                   .transpose_b = true};
    bytes_p[0] = zr_nn_bias_grad_workspace_bytes(device, &bias);
    bytes_p[1] = zr_nn_layernorm_backward_workspace_bytes(device, &norm);
    bytes_p[2] = zr_nn_attention_workspace_bytes(device, &attention);
    bytes_p[3] = zr_nn_attention_backward_workspace_bytes(device, &backward);
    bytes_p[4] = zr_nn_embedding_backward_workspace_bytes(device, &embedding);
    bytes_p[5] = zr_nn_lm_head_workspace_bytes(device, &head);
    bytes_p[6] = zr_nn_matmul_workspace_bytes(device, &matmul);
    bytes_p[7] = zr_nn_rotary_backward_workspace_bytes(device, &rotary);
}

/* More rows never need less: runs whose sequences vary in length are planned by their longest. */
static void check_growth(zr_hardware_kind_t kind, zr_dtype_t param, int most_telling) {
    const size_t channels[] = {64, 1024, 4096};
    zr_hardware_t hardware = round_hardware(kind);
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *device = NULL;
    options.hardware = &hardware;
    assert_ok(zr_device_open("sim", &options, &device));
    for (size_t c = 0; c < 3; c++) {
        size_t before[N_ROW_WORKSPACES] = {0}, bytes[N_ROW_WORKSPACES];
        for (size_t rows = 1; rows <= 5000; rows++) {
            measure_workspaces(device, rows, channels[c], param, bytes);
            for (int i = 0; i < N_ROW_WORKSPACES; i++)
                assert_true(bytes[i] >= before[i]);
            memcpy(before, bytes, sizeof(before));
        }
        assert_true(before[most_telling] > 0);
    }
    float gradient;
    const zr_nn_layernorm_backward_t none = {.n_rows = 1, .dweight = {.data = &gradient}};
    assert_int_equal(zr_nn_layernorm_backward_workspace_bytes(device, &none), 0);
    zr_device_close(&device);
}

TEST(test_workspaces_grow) {
    check_growth(ZR_HARDWARE_CUDA, ZR_DTYPE_BF16, 1);
    check_growth(ZR_HARDWARE_HOST, ZR_DTYPE_F32, 6);
    check_growth(ZR_HARDWARE_HOST, ZR_DTYPE_BF16, 6);
}

/* ---- the clock alone ------------------------------------------------------------------------ */

typedef struct seen {
    zr_sim_span_t spans[400];
    size_t n;
} seen_t;

static void see(void *context, const zr_sim_span_t *span) {
    seen_t *seen = context;
    assert_true(seen->n < 400);
    seen->spans[seen->n++] = *span;
}

/* Whatever is asked for in any order, no two pieces of work of a part overlap, none begins too
 * early, and none could have begun earlier. Every second time much of it has soon passed. */
TEST(test_random_work) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        zr_sim_clock_t *clock = NULL;
        seen_t seen = {.n = 0};
        uint64_t random = seed;
        assert_ok(zr_sim_clock_create(NULL, &clock));
        zr_sim_clock_observe(clock, see, &seen);
        for (size_t i = 0; i < 400; i++) {
            bool passes = seed % 2 == 0;
            double earliest = (double)(random_bits(&random) % 512) / 4.0;
            double seconds = (double)(random_bits(&random) % (passes ? 3 : 16)) / 4.0;
            if (random_bits(&random) % 8 == 0)
                zr_sim_clock_spend(clock, passes ? 4.0 : 0.25);
            if (passes) /* now, or later */
                earliest = zr_sim_clock_now(clock) + (i % 3 == 0 ? 0.0 : earliest);
            double end = zr_sim_clock_work(clock, ZR_SIM_NETWORK, "x", earliest, seconds);
            double now = zr_sim_clock_now(clock);
            double first = earliest > now ? earliest : now, begin = end - seconds;
            assert_true(begin >= first);
            bool is_late = begin > first; /* then what is before it leaves less room than needed */
            for (size_t k = 0; k < i; k++) {
                const zr_sim_span_t *other = &seen.spans[k];
                bool is_empty = other->begin == other->end || seconds == 0.0;
                assert_true(is_empty || other->end <= begin || other->begin >= end);
                is_late = is_late && !(other->end == begin);
            }
            assert_false(is_late);
        }
        zr_sim_clock_destroy(&clock);
    }
}
