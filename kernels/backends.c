/* The devices of this build. A file of its own: a test program may link another list instead. */
#include "kernels/device_backend.h"

const zr_device_backend_t *const zr_device_backends[] = {
    &zr_host_backend,
    &zr_sim_backend,
#ifdef ZR_HAVE_CUDA
    &zr_cuda_backend,
#endif
    NULL,
};
