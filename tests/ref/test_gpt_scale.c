/*
 * The largest model on many ranks, planned: what that costs does not grow with the model, the same
 * plan takes the same time to the bit, and times go where the hardware sends them.
 */
#include <sys/resource.h>

#include "models/shape.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

/* Eight devices to a node, of the order of present ones. */
static zr_hardware_t cluster(void) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = ZR_HARDWARE_CUDA;
    hardware.granule_bytes = (size_t)2 << 20;
    hardware.device = (zr_processor_t){.matrix_fp32_ops_per_s = 60e12,
                                       .matrix_bf16_ops_per_s = 400e12,
                                       .attention_fraction = 0.5,
                                       .matrix_fp32_bytes_per_s = 1e18,
                                       .matrix_bf16_bytes_per_s = 1e18,
                                       .lm_head_ratio = 1.0,
                                       .vector_ops_per_s = 20e12,
                                       .memory_bytes_per_s = 2.5e12,
                                       .update_bytes_per_s = 2.5e12,
                                       .kernel_latency_s = 3e-6};
    hardware.host.memory_bytes_per_s = hardware.host.update_bytes_per_s = 30e9;
    hardware.host.vector_ops_per_s = 100e9;
    hardware.to_device = hardware.to_host = (zr_link_t){25e9, 10e-6};
    hardware.within_node = (zr_link_t){200e9, 3e-6};
    hardware.between_nodes = (zr_link_t){200e9, 10e-6};
    hardware.reduce_bytes_per_s = 600e9;
    hardware.ranks_per_node = 8;
    hardware.device_memory_bytes = (size_t)80 << 30;
    hardware.host_memory_bytes = (size_t)4 << 40;
    hardware.disk_bytes = (size_t)16 << 40;
    return hardware;
}

static zr_model_shape_t shape_of(const char *model) {
    zr_model_shape_t shape;
    assert_ok(zr_model_shape_read(model, NULL, &shape));
    return shape;
}

static zr_run_request_t request_of(const zr_model_shape_t *shape, int stage, int n_ranks) {
    zr_run_request_t request = {
        .model = zr_model_shape_maker(shape, &(zr_transformer_options_t){.seed = 1}),
        .recompute = true,
        .config = zr_config_default(),
        .n_steps = 3,
        .n_ranks = n_ranks,
        .sums = ZR_SUM_ANY,
        .hardware = cluster(),
        .log = {.sink = drop_message, .level = ZR_LOG_ERROR}};
    request.seq = zr_model_shape_sizes(shape).seq;
    request.config.stage = stage;
    request.config.dtype = ZR_DTYPE_BF16;
    request.config.plan_memory = true;
    snprintf(request.config.nvme.paths, sizeof(request.config.nvme.paths), ".");
    assert_ok(zr_config_resolve(&request.config, n_ranks, NULL));
    return request;
}

static double step_seconds(const zr_run_request_t *request) {
    zr_run_plan_t plan;
    assert_ok(zr_run_plan(request, &plan));
    assert_true(plan.step_seconds > 0.0);
    return plan.step_seconds;
}

/* Everything that a device of 80 GB could do, and it cannot: terabytes on drives included. */
TEST(test_memory_of_planning) {
    size_t n_fitted = 0;
    for (int stage = 0; stage <= 3; stage++) {
        for (int optimizer = 0; optimizer <= 2; optimizer++) {
            for (int params = 0; params <= (stage == 3 ? 2 : 0); params++) {
                zr_model_shape_t shape = shape_of("gpt3-175b");
                zr_run_request_t request = request_of(&shape, stage, 1024);
                zr_run_plan_t plan;
                request.config.offload_optimizer.device = (zr_offload_device_t)optimizer;
                request.config.offload_param.device = (zr_offload_device_t)params;
                zr_status_t status = zr_run_plan(&request, &plan);
                assert_true(status == (stage == 3 ? ZR_OK : ZR_ERR_BUDGET));
                n_fitted += status == ZR_OK;
            }
        }
    }
    assert_int_equal(n_fitted, 9);
    /* One rank alone, with 1.7 TB of state on its drives and 350 GB of parameters. */
    zr_model_shape_t shape = shape_of("gpt3-175b");
    zr_run_request_t request = request_of(&shape, 3, 1);
    request.config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    request.config.offload_optimizer.gradients = ZR_OFFLOAD_CPU;
    request.config.offload_param.device = ZR_OFFLOAD_NVME;
    request.config.offload_param.buffer_elems = (size_t)1 << 26;
    zr_run_plan_t plan;
    assert_ok(zr_run_plan(&request, &plan));
    assert_true(plan.nvme_bytes >= 12 * zr_model_shape_n_params(&shape));
    assert_true(plan.tiers[ZR_TIER_HOST].by_tag[ZR_TAG_GRADIENTS].peak >=
                2 * zr_model_shape_n_params(&shape));
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
#if !defined(__SANITIZE_ADDRESS__)
    assert_true(usage.ru_maxrss < 200 * 1024); /* KiB */
#endif
}

TEST(test_times) {
    zr_model_shape_t shape = shape_of("gpt3-13b");
    zr_run_request_t request = request_of(&shape, 3, 64);
    double seconds = step_seconds(&request);
    assert_true(step_seconds(&request) == seconds);
    /* At least what its operations take, and its bytes between nodes, whichever is more. */
    double operations =
        (double)request.seq * zr_model_shape_flops_per_token(&shape, request.seq) / 3.0 * 4.0;
    double moved = 3.0 * 2.0 * (double)zr_model_shape_n_params(&shape) * 63.0 / 64.0;
    double compute = operations / 400e12, network = moved / 200e9;
    assert_true(seconds > compute && seconds > network);
    assert_true(seconds < compute + network + 0.5 * (compute + network));

    /* In rank order, each of a node's 8 ranks sends its gradients to the 56 of other nodes. */
    double scattered = 2.0 * (double)zr_model_shape_n_params(&shape) * 8.0 * 56.0 / 64.0;
    request.sums = ZR_SUM_RANK_ORDER;
    double in_order = step_seconds(&request);
    assert_true(in_order > moved / 200e9 * 2.0 / 3.0 + scattered / 200e9);
    assert_true(in_order < seconds + scattered / 200e9);
    request.sums = ZR_SUM_ANY;

    request.config.overlap_comm = false; /* nothing beside anything else */
    double apart = step_seconds(&request);
    assert_true(apart > compute + network && apart > seconds);
    request = request_of(&shape, 3, 64);
    request.hardware.between_nodes.bytes_per_s = 25e9; /* slow links between nodes */
    double slow = step_seconds(&request);
    assert_true(slow > moved / 25e9 && slow > 2.0 * seconds);
    request.hardware.ranks_per_node = 64; /* all in one */
    assert_true(step_seconds(&request) < slow / 2.0);

    /* State on the host costs its way over the link and the update there; on drives, more. */
    request = request_of(&shape, 3, 64);
    request.config.offload_optimizer.device = ZR_OFFLOAD_CPU;
    double on_host = step_seconds(&request);
    request.config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    double on_drives = step_seconds(&request);
    double elems = (double)zr_model_shape_n_params(&shape) / 64.0;
    assert_true(on_host > seconds + 28.0 * elems / 30e9 / 2.0);
    assert_true(on_drives > seconds + 12.0 * elems / 1e9);
    assert_true(on_drives > on_host);
}
