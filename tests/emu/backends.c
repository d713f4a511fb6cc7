/* The devices of a program that is linked with the emulation, in place of kernels/backends.c. */
#include "kernels/device_backend.h"

const zr_device_backend_t *const zr_device_backends[] = {&zr_host_backend, &zr_cuda_backend,
                                                         &zr_sim_backend, NULL};
