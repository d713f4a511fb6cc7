/*
 * The conformance suite on nccl, with as many ranks as there are GPUs here; without one it is
 * skipped. That NCCL can be loaded, or that the build says there is none, is seen anywhere.
 */
#include <string.h>

#include "tests/zero/comm/comm_suite.h"

static int n_opened; /* devices since the communicator was made: rank by rank */

static zr_status_t create(int n_ranks, const zr_comm_options_t *options, zr_comm_t **comms) {
    n_opened = 0;
    return zr_comm_create_nccl_threads(n_ranks, options, comms);
}

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.index = n_opened++;
    return zr_device_open("cuda", &options, device_p);
}

/* How many GPUs there are: until one is refused. */
static int count_devices(void) {
    for (int n_devices = 0;; n_devices++) {
        zr_device_t *device = NULL;
        zr_device_options_t options = zr_device_options_default();
        options.index = n_devices;
        if (zr_device_open("cuda", &options, &device) != ZR_OK)
            return n_devices;
        zr_device_close(&device);
    }
}

int main(void) {
    zr_comm_t *comm = NULL;
    zr_status_t status = zr_comm_create_nccl_threads(1, NULL, &comm);
    if (status != (zr_comm_has_nccl() ? ZR_OK : ZR_ERR_UNSUPPORTED))
        return 1;
    zr_comm_destroy(&comm);
    comm_suite_t suite = {
        .name = "nccl",
        .most_ranks = status == ZR_OK ? count_devices() : 0,
        .create = create,
        .open_device = open_device,
        .close_device = zr_device_close,
    };
    return suite.most_ranks == 0 ? 77 : run_comm_suite(&suite);
}
