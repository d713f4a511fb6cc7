/*
 * A run of two ranks, threads with a GPU each, of which one wait for an event cannot be queued:
 * each in turn. It ends for both, with an error that was said, and nothing runs any more on memory
 * that the other rank has given back: on a GPU that would be the end of everything in the process.
 */
#include <cuda_runtime_api.h>

#include "tests/common/test.h"
#include "tests/emu/emu.h"
#include "tests/zero/toy.h"

enum {
    N_RANKS = 2,
    STRIDE = 11,
    WATCHDOG_SECONDS = 100 /* a run takes milliseconds; one that takes this long hangs */
};

/* What has run on memory that is gone is the device's state from then on. */
static void check_devices(int nth) {
    for (int index = 0; index < N_RANKS; index++) {
        zr_device_options_t options = zr_device_options_default();
        zr_device_t *device = NULL;
        options.index = index;
        if (zr_device_open("cuda", &options, &device) != ZR_OK)
            fail_msg("wait %d fails: device %d cannot be used any more", nth, index);
        zr_device_close(&device);
    }
}

/* False: fewer waits were queued than were to fail. */
static bool survives_failure_of(int nth) {
    toy_options_t options = toy_options_default(2, N_RANKS);
    toy_result_t result;
    options.device_name = "cuda";
    options.n_steps = 1;
    options.quiet = true;
    alarm(WATCHDOG_SECONDS);
    emu_fail_call("cudaStreamWaitEvent", nth, cudaErrorLaunchFailure);
    toy_train(&options, &result);
    bool has_failed = emu_has_failed_call();
    emu_fail_call(NULL, 0, 0);
    alarm(0);
    bool is_fine = true;
    for (int rank = 0; rank < N_RANKS; rank++) {
        is_fine &= result.status[rank] == ZR_OK;
        if (result.status[rank] == ZR_ERR_DEVICE && result.last_error[rank][0] == '\0')
            fail_msg("wait %d fails: rank %d has not said so", nth, rank);
    }
    assert_true(is_fine != has_failed);
    assert_int_equal(emu_n_live(), 0);
    check_devices(nth);
    return has_failed;
}

TEST(every_wait_may_fail) {
    int n = 1;
    while (survives_failure_of(n))
        n += STRIDE;
    print_message("a run has about %d waits\n", n);
    assert_true(n > 100);
}
