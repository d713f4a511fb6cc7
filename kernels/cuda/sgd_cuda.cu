/*
 * SGD with momentum on CUDA: the loop and the launch; the formula is kernels/sgd_math.h. One pass:
 * what is read is read once, what is written written once.
 */
#include "kernels/sgd_math.h"
#include "kernels/cuda/cuda_pack.cuh"

template <typename G, typename P>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    sgd_kernel(zr_sgd_factors_t factors, size_t n_elems, float *__restrict__ master,
               float *__restrict__ buffer, const G *__restrict__ grad, P *__restrict__ param,
               bool wide) {
    zr_for_packs<float, G, P>(n_elems, wide, [&](auto place) {
        zr_pack_t w = place.load(master);
        zr_pack_t b = place.load(buffer);
        zr_pack_t g = place.load(grad);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            zr_sgd_element(&factors, &w.value[i], &b.value[i], g.value[i]);
        place.store(master, w);
        place.store(buffer, b);
        place.store(param, w);
    });
}

template <typename G, typename P>
static void launch(cudaStream_t queue, const zr_update_t *update) {
    float *master = static_cast<float *>(update->arrays[ZR_SGD_MASTER]);
    float *buffer = static_cast<float *>(update->arrays[ZR_SGD_MOMENTUM_BUFFER]);
    bool wide = zr_is_wide(master) && zr_is_wide(buffer) && zr_is_wide(update->grad) &&
                zr_is_wide(update->param);
    ZR_CUDA_LAUNCH((sgd_kernel<G, P>), zr_cuda_blocks(update->n_elems), ZR_CUDA_THREADS, 0, queue,
                   zr_sgd_factors(update), update->n_elems, master, buffer,
                   static_cast<const G *>(update->grad), static_cast<P *>(update->param), wide);
}

ZR_CUDA_UPDATE(sgd, launch)
