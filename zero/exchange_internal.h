/*
 * What ranks tell each other apart from the model's own traffic: words of agreements and of
 * checkpoints, values that a trainer shares; and the staging that they, initial values and values
 * that are looked at pass through. Internal to zero/. None of it takes memory, which a rank may
 * not have, after it was created.
 */
#pragma once

#include "zero/base_internal.h"

typedef struct zr_exchange {
    const zr_base_t *base;
    double *scalars_device; /* [n_ranks * ZR_MAX_SHARED_VALUES] */
    double *scalars_host;
    float *staging_device; /* [ZR_STAGING_ELEMS], and more where a word of every rank needs it */
    float *staging_host;
} zr_exchange_t;

ZR_NODISCARD zr_status_t zr_exchange_create(zr_exchange_t *exchange, const zr_base_t *base);
void zr_exchange_destroy(zr_exchange_t *exchange);

/**
 * Words of every rank, to all ranks, and wait for them. Where nothing is stored, `all` stays as it
 * was.
 *
 * @param all  [n_ranks][n_words] host memory
 */
ZR_NODISCARD zr_status_t zr_exchange_words(zr_exchange_t *exchange, const char *tensor,
                                           const uint64_t *words, size_t n_words, uint64_t *all);

/**
 * Values of every rank, to all ranks, and wait for them.
 *
 * @param n_values  at most ZR_MAX_SHARED_VALUES
 * @param all_p     [n_ranks][n_values], until the next such call
 */
ZR_NODISCARD zr_status_t zr_exchange_values(zr_exchange_t *exchange, const double *values,
                                            size_t n_values, const double **all_p);
