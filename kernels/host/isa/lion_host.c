/* Lion on the host: the loop; the formula is kernels/lion_math.h. */
#include "kernels/lion_math.h"
#include "kernels/host/isa/loops.h"

ZR_INLINE void lion_loop(const zr_update_t *update, const void *factors, zr_dtype_t grad_dtype,
                         zr_dtype_t param_dtype, bool is_split) {
    const zr_lion_factors_t f = *(const zr_lion_factors_t *)factors;
    void *restrict master = update->arrays[ZR_LION_MASTER];
    float *restrict m = update->arrays[ZR_LION_M];
    const void *restrict grad = update->grad;
    void *restrict param = update->param;
    size_t n_elems = update->n_elems;
    for (size_t i = 0; i < n_elems; i++) {
        float w = load_master(master, param, param_dtype, is_split, i);
        zr_lion_element(&f, &w, &m[i], load(grad, grad_dtype, i));
        store_master(master, param, param_dtype, is_split, i, w);
    }
}

ZR_HOST_UPDATE(lion, lion_loop)
