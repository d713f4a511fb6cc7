/* SGD with momentum: its description. The formula is kernels/sgd_math.h. */
#include "kernels/sgd_math.h"
#include "zero/optim/optimizer_internal.h"

ZR_DECLARE_UPDATE(sgd);

static void prepare(const zr_update_t *update, void *factors) {
    *(zr_sgd_factors_t *)factors = zr_sgd_factors(update);
}

const zr_optimizer_type_t zr_sgd = {
    .name = "SGD",
    .rule = {.name = "sgd",
             .arrays = {{"master", &zr_encoding_fp32}, {"momentum_buffer", &zr_encoding_fp32}},
             .n_arrays = ZR_SGD_N_ARRAYS,
             .hypers = {{.name = "momentum",
                         .key = "momentum",
                         .index = -1,
                         .usual = 0,
                         .below = 1,
                         .help = "decay of the running sum of gradients"},
                        {.name = "nesterov",
                         .key = "nesterov",
                         .index = -1,
                         .is_switch = true,
                         .usual = 0,
                         .below = 2,
                         .help = "Nesterov's momentum"}},
             .n_hypers = ZR_SGD_N_HYPERS,
             .operations_per_elem = 9,
             .prepare = prepare,
             ZR_UPDATE_KERNELS(sgd)},
};
