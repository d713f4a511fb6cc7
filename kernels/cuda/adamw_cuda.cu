/*
 * AdamW on CUDA: the loop and the launch; the formula is kernels/adamw_math.h. One pass: master,
 * m, v and gradient are read once, master, m, v and parameter written once.
 */
#include "kernels/adamw_math.h"
#include "kernels/cuda/cuda_pack.cuh"

template <typename G, typename P>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    adamw_kernel(zr_adamw_factors_t factors, size_t n_elems, float *__restrict__ master,
                 float *__restrict__ m, float *__restrict__ v, const G *__restrict__ grad,
                 P *__restrict__ param, bool wide) {
    zr_for_packs<float, G, P>(n_elems, wide, [&](auto place) {
        zr_pack_t w = place.load(master);
        zr_pack_t m1 = place.load(m);
        zr_pack_t m2 = place.load(v);
        zr_pack_t g = place.load(grad);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            zr_adamw_element(&factors, &w.value[i], &m1.value[i], &m2.value[i], g.value[i]);
        place.store(master, w);
        place.store(m, m1);
        place.store(v, m2);
        place.store(param, w);
    });
}

template <typename G, typename P>
static void launch(cudaStream_t queue, const zr_update_t *update) {
    float *master = static_cast<float *>(update->arrays[ZR_ADAMW_MASTER]);
    float *m = static_cast<float *>(update->arrays[ZR_ADAMW_M]);
    float *v = static_cast<float *>(update->arrays[ZR_ADAMW_V]);
    bool wide = zr_is_wide(master) && zr_is_wide(m) && zr_is_wide(v) && zr_is_wide(update->grad) &&
                zr_is_wide(update->param);
    ZR_CUDA_LAUNCH((adamw_kernel<G, P>), zr_cuda_blocks(update->n_elems), ZR_CUDA_THREADS, 0, queue,
                   zr_adamw_factors(update), update->n_elems, master, m, v,
                   static_cast<const G *>(update->grad), static_cast<P *>(update->param), wide);
}

ZR_CUDA_UPDATE(adamw, launch)
