/*
 * Plans of collectives beside compute on described hosts: on where ranks are on several machines or
 * it is asked for, and then the network works while the processors do, in the same memory.
 */
#include "examples/train/plan.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

enum { N_RANKS = 4 };

static const zr_log_t quiet = {.sink = drop_message, .level = ZR_LOG_ERROR};

/* So many ranks on a host, and a network that takes about as long as compute. */
static zr_hardware_t hosts(int ranks_per_node) {
    zr_hardware_t hardware = zr_hardware_default();
    hardware.kind = ZR_HARDWARE_HOST;
    hardware.ranks_per_node = ranks_per_node;
    hardware.within_node.bytes_per_s = hardware.between_nodes.bytes_per_s = 1e9;
    hardware.device.matrix_fp32_ops_per_s = 2e10;
    return hardware;
}

static zr_run_request_t request_of(int ranks_per_node, int stage, train_overlap_t overlap) {
    train_options_t options = train_options_default();
    zr_hardware_t hardware = hosts(ranks_per_node);
    options.n_ranks = N_RANKS;
    options.overlap = overlap;
    options.config.overlap_comm = overlap != TRAIN_OVERLAP_OFF;
    options.config.stage = stage;
    options.config.micro_batch = 1;
    options.steps = 3;
    options.model = "layers=4,channels=256,heads=4,seq=64,vocab=256";
    assert_ok(train_options_resolve_run(&options, &quiet));
    zr_run_request_t request = train_plan_request(&options, &hardware);
    request.log = quiet;
    return request;
}

static zr_run_plan_t plan(int ranks_per_node, int stage, train_overlap_t overlap) {
    zr_run_request_t request = request_of(ranks_per_node, stage, overlap);
    zr_run_plan_t plan;
    assert_ok(zr_run_plan(&request, &plan));
    return plan;
}

TEST(test_when_it_is_on) {
    assert_false(request_of(N_RANKS, 3, TRAIN_OVERLAP_AUTO).concurrent);
    assert_true(request_of(N_RANKS / 2, 3, TRAIN_OVERLAP_AUTO).concurrent);
    assert_true(request_of(N_RANKS, 3, TRAIN_OVERLAP_ON).concurrent);
    assert_false(request_of(1, 3, TRAIN_OVERLAP_OFF).concurrent);
}

TEST(test_steps_are_shorter_in_the_same_memory) {
    for (int stage = 0; stage <= 3; stage++) {
        zr_run_plan_t off = plan(1, stage, TRAIN_OVERLAP_OFF),
                      on = plan(1, stage, TRAIN_OVERLAP_AUTO);
        assert_true(on.step_seconds < 0.95 * off.step_seconds);
        assert_true(on.runtime.comm_seconds < 0.1 * off.runtime.comm_seconds);
        assert_true(on.runtime.stall_seconds > 0 &&
                    on.runtime.stall_seconds < off.runtime.comm_seconds);
        for (int tier = 0; tier < 2; tier++)
            assert_int_equal(on.tiers[tier].live.peak, off.tiers[tier].live.peak);
    }
}
