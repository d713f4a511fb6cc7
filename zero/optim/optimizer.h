/*
 * Optimizers. An optimizer is a description: names, and a rule (kernels/update.h) with its state
 * arrays, hyperparameters, kernels and their costs. Sharding, placement, offload, checkpoints,
 * plans and configurations read this description. To add your own, fill in such a struct and pass
 * it to zr_config_set_optimizer.
 */
#pragma once

#include "kernels/update.h"

ZR_BEGIN_C

typedef struct zr_optimizer_type {
    const char *name;  /* in configurations (optimizer.type, --optimizer; compared without case) and
                          checkpoints; static, as all here */
    const char *alias; /* another name in configurations, or NULL */
    zr_update_rule_t rule;
} zr_optimizer_type_t;

/** Loshchilov and Hutter 2019: decoupled weight decay. Its state is master, m and v. */
extern const zr_optimizer_type_t zr_adamw;
/** Chen et al. 2023: the sign of a mean of gradients; decoupled weight decay. Its state is master
 * and m. */
extern const zr_optimizer_type_t zr_lion;
/** torch.optim.SGD with momentum, Nesterov's or not, and coupled weight decay. Its state is master
 * and momentum. */
extern const zr_optimizer_type_t zr_sgd;

/** The library's optimizer with this name; NULL: not found. */
const zr_optimizer_type_t *zr_optimizer_find(const char *name);
/** [*n_p] all optimizers of the library. */
const zr_optimizer_type_t *const *zr_optimizers(size_t *n_p);

ZR_END_C
