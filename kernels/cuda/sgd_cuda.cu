/*
 * SGD with momentum on CUDA: the loop and the launch; the formula is kernels/sgd_math.h. One pass:
 * what is read is read once, what is written written once.
 */
#include "kernels/sgd_math.h"
#include "kernels/cuda/cuda_blocks.cuh"

template <zr_state_form_t F, bool S, typename G, typename P>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    sgd_kernel(zr_sgd_factors_t factors, size_t n_elems, void *__restrict__ master,
               void *__restrict__ buffer, const G *__restrict__ grad, P *__restrict__ param,
               zr_rounding_t rounding, bool wide) {
    zr_for_warps(n_elems, wide, [&](auto place) {
        zr_pack_t w = zr_load_master<S>(master, param, place);
        zr_pack_t b = zr_load_state<F, ZR_CODE_FLOAT8>(buffer, place);
        zr_pack_t g = place.load(grad);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            zr_sgd_element(&factors, &w.value[i], &b.value[i], g.value[i]);
        zr_store_state<F, ZR_CODE_FLOAT8>(buffer, place, b, rounding);
        zr_store_master<S>(master, param, place, w);
    });
}

template <zr_state_form_t F, bool S, typename G, typename P>
static void launch(cudaStream_t queue, const zr_update_t *update) {
    ZR_CUDA_LAUNCH((sgd_kernel<F, S, G, P>), zr_cuda_blocks(update->n_elems), ZR_CUDA_THREADS, 0,
                   queue, zr_sgd_factors(update), update->n_elems, update->arrays[ZR_SGD_MASTER],
                   update->arrays[ZR_SGD_MOMENTUM_BUFFER], static_cast<const G *>(update->grad),
                   static_cast<P *>(update->param),
                   zr_update_rounding(update, ZR_SGD_MOMENTUM_BUFFER),
                   zr_update_is_wide(update, ZR_SGD_N_ARRAYS));
}

ZR_CUDA_UPDATE(sgd, launch)
