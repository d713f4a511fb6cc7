/*
 * A micro-batch of a model of tokens, as tests have it: zr_model_train and zr_model_evaluate of
 * one.
 */
#pragma once

#include "models/parts.h"

/** Inputs [b, t], borrowed; target i is the token that follows token i. */
static inline zr_host_batch_t gpt_batch(const int32_t *tokens, const int32_t *targets, size_t b,
                                        size_t t) {
    return (zr_host_batch_t){.n_sequences = b,
                             .seq = t,
                             .inputs = {[ZR_PART_TOKENS] = tokens, [ZR_PART_TARGETS] = targets}};
}

ZR_NODISCARD static inline zr_status_t gpt_train(zr_model_t *model, const int32_t *tokens,
                                                 const int32_t *targets, size_t b, size_t t) {
    zr_host_batch_t batch = gpt_batch(tokens, targets, b, t);
    return zr_model_train(model, &batch, 1);
}

ZR_NODISCARD static inline zr_status_t gpt_evaluate(zr_model_t *model, const int32_t *tokens,
                                                    const int32_t *targets, size_t b, size_t t,
                                                    double *loss_p) {
    zr_host_batch_t batch = gpt_batch(tokens, targets, b, t);
    return zr_model_evaluate(model, &batch, loss_p);
}
