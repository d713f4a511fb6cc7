/* AdamW: its description. The formula is kernels/adamw_math.h. */
#include "kernels/adamw_math.h"
#include "zero/optim/optimizer_internal.h"

ZR_DECLARE_UPDATE(adamw);

static void prepare(const zr_update_t *update, void *factors) {
    *(zr_adamw_factors_t *)factors = zr_adamw_factors(update);
}

const zr_optimizer_type_t zr_adamw = {
    .name = "AdamW",
    .alias = "Adam",
    .rule = {.name = "adamw",
             .arrays = {{"master", &zr_encoding_fp32},
                        {"exp_avg", &zr_encoding_fp32},
                        {"exp_avg_sq", &zr_encoding_fp32}},
             .n_arrays = ZR_ADAMW_N_ARRAYS,
             .never_negative = 1u << ZR_ADAMW_V,
             .hypers = {{.name = "beta1",
                         .key = "betas",
                         .index = 0,
                         .usual = 0.9,
                         .below = 1,
                         .help = "decay of the running mean"},
                        {.name = "beta2",
                         .key = "betas",
                         .index = 1,
                         .usual = 0.95,
                         .below = 1,
                         .help = "decay of the running square"},
                        {.name = "epsilon",
                         .key = "eps",
                         .index = -1,
                         .is_positive = true,
                         .usual = 1e-8,
                         .below = INFINITY,
                         .help = "added to the denominator"}},
             .n_hypers = ZR_ADAMW_N_HYPERS,
             .operations_per_elem = 15,
             .prepare = prepare,
             ZR_UPDATE_KERNELS(adamw)},
};
