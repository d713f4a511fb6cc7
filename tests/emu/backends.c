/* The devices of a program that is linked with the emulation, in place of kernels/backends.c and
 * kernels/nn/backends.c. */
#include "kernels/device_backend.h"
#include "kernels/nn/cuda/cuda_nn.h"
#include "kernels/nn/host/host_nn.h"

const zr_device_backend_t *const zr_device_backends[] = {&zr_host_backend, &zr_cuda_backend,
                                                         &zr_sim_backend, NULL};

const zr_nn_backend_t *const zr_nn_backends[] = {&zr_host_nn_backend, &zr_cuda_nn_backend,
                                                 &zr_sim_nn_backend, NULL};
