/* SGD with momentum on the host: the loop; the formula is kernels/sgd_math.h. */
#include "kernels/sgd_math.h"
#include "kernels/host/isa/loops.h"

ZR_INLINE void sgd_loop(const zr_update_t *update, const void *factors, zr_dtype_t grad_dtype,
                        zr_dtype_t param_dtype, bool is_split) {
    const zr_sgd_factors_t f = *(const zr_sgd_factors_t *)factors;
    void *restrict master = update->arrays[ZR_SGD_MASTER];
    float *restrict buffer = update->arrays[ZR_SGD_MOMENTUM_BUFFER];
    const void *restrict grad = update->grad;
    void *restrict param = update->param;
    size_t n_elems = update->n_elems;
    for (size_t i = 0; i < n_elems; i++) {
        float w = load_master(master, param, param_dtype, is_split, i);
        zr_sgd_element(&f, &w, &buffer[i], load(grad, grad_dtype, i));
        store_master(master, param, param_dtype, is_split, i, w);
    }
}

ZR_HOST_UPDATE(sgd, sgd_loop)
