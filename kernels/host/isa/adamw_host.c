/* AdamW on the host: the loop; the formula is kernels/adamw_math.h. */
#include "kernels/adamw_math.h"
#include "kernels/host/isa/loops.h"

ZR_INLINE void adamw_loop(const zr_update_t *update, const void *factors, zr_dtype_t grad_dtype,
                          zr_dtype_t param_dtype, bool is_split) {
    const zr_adamw_factors_t f = *(const zr_adamw_factors_t *)factors;
    void *restrict master = update->arrays[ZR_ADAMW_MASTER];
    float *restrict m = update->arrays[ZR_ADAMW_M];
    float *restrict v = update->arrays[ZR_ADAMW_V];
    const void *restrict grad = update->grad;
    void *restrict param = update->param;
    size_t n_elems = update->n_elems;
    for (size_t i = 0; i < n_elems; i++) {
        float w = load_master(master, param, param_dtype, is_split, i);
        zr_adamw_element(&f, &w, &m[i], &v[i], load(grad, grad_dtype, i));
        store_master(master, param, param_dtype, is_split, i, w);
    }
}

ZR_HOST_UPDATE(adamw, adamw_loop)
