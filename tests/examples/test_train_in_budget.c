/*
 * Training a model whose states (16 bytes per parameter: parameters and gradients in bf16, master,
 * m and v) are 20 times the device's budget and 4 times the host's: with everything offloaded it
 * trains within both, and the process has no more memory than that; without, it is refused.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

/* 75.8 million parameters, states of 1.21 GB, 1.06 GB of them in the file. Each thread would have
 * some memory more. */
#define MODEL                                                                                      \
    "--model layers=24,channels=512,heads=8,seq=64,vocab=256 --data text --dtype bf16 --stage 3 "  \
    "--recompute unit --steps 2 --threads 2 "
#define DEVICE_BYTES 60e6
#define HOST_BYTES 300e6
#define BUDGETS "--device-memory 60MB --host-memory 300MB "
#define STATE_BYTES_PER_PARAMETER 16

TEST(everything_offloaded_trains) {
    if (!has_nvme())
        skip();
    json_t *object = run_json(0, MODEL BUDGETS
                              "--offload-optimizer nvme --offload-params nvme --nvme-path drive");
    double states = STATE_BYTES_PER_PARAMETER * number(object, "model.parameters");
    double device = number(object, "peak_bytes.device.reserved");
    double host = number(object, "peak_bytes.host.reserved");
    assert_true(states >= 20 * DEVICE_BYTES && states >= 4 * HOST_BYTES);
    assert_true(device <= DEVICE_BYTES && host <= HOST_BYTES);
    assert_true(number(object, "loss.last") < number(object, "loss.first"));
    /* Both tiers are the host's memory here. What else a process needs, its code among it, is about
     * 20 MB. */
    double resident = number(object, "peak_resident_bytes");
    if (resident > 1.1 * (device + host) || resident < 0.9 * (device + host))
        fail_msg("%.1f MB resident, %.1f MB accounted for", resident / 1e6, (device + host) / 1e6);
}

TEST(less_offloaded_is_refused) {
    assert_ran(1, MODEL BUDGETS);
    assert_said("", "--offload-optimizer");
    assert_ran(1, MODEL BUDGETS "--offload-optimizer cpu --offload-params cpu");
    assert_said("", "--offload-optimizer nvme");
}

const test_group_t test_group = {make_folder, leave_test_folder};
