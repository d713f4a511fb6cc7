/*
 * AdamW on CUDA: the loop and the launch; the formula is kernels/adamw_math.h. One pass: master,
 * m, v and gradient are read once, master, m, v and parameter written once.
 */
#include "kernels/adamw_math.h"
#include "kernels/cuda/cuda_blocks.cuh"

template <zr_state_form_t F, bool S, typename G, typename P>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    adamw_kernel(zr_adamw_factors_t factors, size_t n_elems, void *__restrict__ master,
                 void *__restrict__ m, void *__restrict__ v, const G *__restrict__ grad,
                 P *__restrict__ param, zr_rounding_t m_rounding, zr_rounding_t v_rounding,
                 bool wide) {
    zr_for_warps(n_elems, wide, [&](auto place) {
        zr_pack_t w = zr_load_master<S>(master, param, place);
        zr_pack_t m1 = zr_load_state<F, ZR_CODE_FLOAT8>(m, place);
        zr_pack_t m2 = zr_load_state<F, ZR_CODE_UFLOAT8>(v, place);
        zr_pack_t g = place.load(grad);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            zr_adamw_element(&factors, &w.value[i], &m1.value[i], &m2.value[i], g.value[i]);
        zr_store_state<F, ZR_CODE_FLOAT8>(m, place, m1, m_rounding);
        zr_store_state<F, ZR_CODE_UFLOAT8>(v, place, m2, v_rounding);
        zr_store_master<S>(master, param, place, w);
    });
}

template <zr_state_form_t F, bool S, typename G, typename P>
static void launch(cudaStream_t queue, const zr_update_t *update) {
    ZR_CUDA_LAUNCH((adamw_kernel<F, S, G, P>), zr_cuda_blocks(update->n_elems), ZR_CUDA_THREADS, 0,
                   queue, zr_adamw_factors(update), update->n_elems,
                   update->arrays[ZR_ADAMW_MASTER], update->arrays[ZR_ADAMW_M],
                   update->arrays[ZR_ADAMW_V], static_cast<const G *>(update->grad),
                   static_cast<P *>(update->param), zr_update_rounding(update, ZR_ADAMW_M),
                   zr_update_rounding(update, ZR_ADAMW_V),
                   zr_update_is_wide(update, ZR_ADAMW_N_ARRAYS));
}

ZR_CUDA_UPDATE(adamw, launch)
