/* Lion: its description. The formula is kernels/lion_math.h. */
#include "kernels/lion_math.h"
#include "zero/optim/optimizer_internal.h"

ZR_DECLARE_UPDATE(lion);

static void prepare(const zr_update_t *update, void *factors) {
    *(zr_lion_factors_t *)factors = zr_lion_factors(update);
}

const zr_optimizer_type_t zr_lion = {
    .name = "Lion",
    .rule = {.name = "lion",
             .arrays = {{"master", &zr_encoding_fp32}, {"exp_avg", &zr_encoding_fp32}},
             .n_arrays = ZR_LION_N_ARRAYS,
             .hypers = {{.name = "beta1",
                         .key = "betas",
                         .index = 0,
                         .usual = 0.9,
                         .below = 1,
                         .help = "share of the running mean in the step"},
                        {.name = "beta2",
                         .key = "betas",
                         .index = 1,
                         .usual = 0.99,
                         .below = 1,
                         .help = "decay of the running mean"}},
             .n_hypers = ZR_LION_N_HYPERS,
             .operations_per_elem = 11,
             .prepare = prepare,
             ZR_UPDATE_KERNELS(lion)},
};
