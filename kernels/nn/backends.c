/* A transformer's kernels by device. A file of its own: a test program may link another list. */
#include "kernels/nn/host/host_nn.h"

#ifdef ZR_HAVE_CUDA
extern const zr_nn_backend_t zr_cuda_nn_backend;
#endif

const zr_nn_backend_t *const zr_nn_backends[] = {
    &zr_host_nn_backend,
    &zr_sim_nn_backend,
#ifdef ZR_HAVE_CUDA
    &zr_cuda_nn_backend,
#endif
    NULL,
};
