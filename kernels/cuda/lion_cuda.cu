/*
 * Lion on CUDA: the loop and the launch; the formula is kernels/lion_math.h. One pass: what is
 * read is read once, what is written written once.
 */
#include "kernels/lion_math.h"
#include "kernels/cuda/cuda_pack.cuh"

template <typename G, typename P>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    lion_kernel(zr_lion_factors_t factors, size_t n_elems, float *__restrict__ master,
                float *__restrict__ m, const G *__restrict__ grad, P *__restrict__ param,
                bool wide) {
    zr_for_packs<float, G, P>(n_elems, wide, [&](auto place) {
        zr_pack_t w = place.load(master);
        zr_pack_t b = place.load(m);
        zr_pack_t g = place.load(grad);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            zr_lion_element(&factors, &w.value[i], &b.value[i], g.value[i]);
        place.store(master, w);
        place.store(m, b);
        place.store(param, w);
    });
}

template <typename G, typename P>
static void launch(cudaStream_t queue, const zr_update_t *update) {
    float *master = static_cast<float *>(update->arrays[ZR_LION_MASTER]);
    float *m = static_cast<float *>(update->arrays[ZR_LION_M]);
    bool wide = zr_is_wide(master) && zr_is_wide(m) && zr_is_wide(update->grad) &&
                zr_is_wide(update->param);
    ZR_CUDA_LAUNCH((lion_kernel<G, P>), zr_cuda_blocks(update->n_elems), ZR_CUDA_THREADS, 0, queue,
                   zr_lion_factors(update), update->n_elems, master, m,
                   static_cast<const G *>(update->grad), static_cast<P *>(update->param), wide);
}

ZR_CUDA_UPDATE(lion, launch)
