/*
 * A transformer's kernels on the simulated device: nothing to do, but workspaces and dtypes are
 * those of the device that it stands for. They come from that device's own functions, so that
 * they cannot differ.
 */
#include "kernels/nn/cuda_sizes_internal.h"
#include "kernels/nn/host/host_nn.h"
#include "kernels/sim/sim_device.h"

static zr_status_t activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                    zr_dtype_t *dtype_p) {
    return device->info.computes_on_host
               ? zr_host_nn_backend.activation_dtype(device, param_dtype, dtype_p)
               : zr_cuda_nn_activation_dtype(device, param_dtype, dtype_p);
}

static size_t workspace_bytes(const zr_device_t *device, zr_nn_kernel_t kernel, const void *args) {
    return device->info.computes_on_host ? zr_host_nn_backend.workspace_bytes(device, kernel, args)
                                         : zr_cuda_nn_workspace_bytes(device, kernel, args);
}

static zr_status_t run(zr_stream_t *stream, const zr_nn_work_t *work) {
    (void)stream, (void)work;
    return ZR_OK;
}

const zr_nn_backend_t zr_sim_nn_backend = {.name = "sim",
                                           .activation_dtype = activation_dtype,
                                           .run = run,
                                           .workspace_bytes = workspace_bytes};
