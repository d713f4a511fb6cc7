/* Plans of zero-train's runs: see train_plan.h. */
#include "examples/train_plan.h"

gpt_plan_request_t train_plan_request(const train_options_t *options,
                                      const zr_hardware_t *hardware) {
    return (gpt_plan_request_t){.shape = options->shape,
                                .options = {.recompute = options->recompute,
                                            .seed = options->seed,
                                            .freeze = options->freeze,
                                            .weight_decay = options->config.adamw.weight_decay},
                                .config = options->config,
                                .activations = options->offload_activations,
                                .seq = options->seq,
                                .n_steps = PLAN_N_STEPS,
                                .n_ranks = options->n_ranks,
                                .hardware = *hardware};
}
