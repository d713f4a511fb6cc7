/* What ranks tell each other: see exchange_internal.h. */
#include "zero/exchange_internal.h"

#include <string.h>

/* At least a word of every rank. */
static size_t staging_bytes(const zr_base_t *base) {
    size_t usual = ZR_STAGING_ELEMS * sizeof(float);
    size_t least = (size_t)base->n_ranks * sizeof(uint64_t);
    return usual > least ? usual : least;
}

zr_status_t zr_exchange_create(zr_exchange_t *exchange, const zr_base_t *base) {
    size_t n_scalars = (size_t)base->n_ranks * ZR_MAX_SHARED_VALUES;
    exchange->base = base;
    exchange->scalars_host = zr_heap_alloc(base->heap, n_scalars, sizeof(double));
    if (exchange->scalars_host == NULL)
        return zr_base_no_memory(base, "shared values");
    ZR_TRY(zr_base_allocate_host(base, staging_bytes(base), ZR_TAG_STAGING, "staging",
                                 (void **)&exchange->staging_host));
    ZR_TRY(zr_base_allocate(base, staging_bytes(base), ZR_TAG_STAGING, ZR_LIFETIME_PERSISTENT,
                            "staging", NULL, (void **)&exchange->staging_device));
    return zr_base_allocate(base, n_scalars * sizeof(double), ZR_TAG_WORKSPACE,
                            ZR_LIFETIME_PERSISTENT, "shared values", NULL,
                            (void **)&exchange->scalars_device);
}

void zr_exchange_destroy(zr_exchange_t *exchange) {
    if (exchange->base == NULL)
        return;
    zr_free(exchange->base->allocator, (void **)&exchange->scalars_device, NULL);
    zr_free(exchange->base->allocator, (void **)&exchange->staging_device, NULL);
    zr_free(exchange->base->allocator, (void **)&exchange->staging_host, NULL);
}

/* Every rank's part, from where it is in `host` to all of them there, and wait. */
static zr_status_t gather_host(const zr_base_t *base, const char *tensor, zr_dtype_t dtype,
                               char *host, char *device, size_t n_elems) {
    size_t own_bytes = n_elems * zr_dtype_size(dtype), first = own_bytes * (size_t)base->rank;
    ZR_TRY(zr_copy_async(base->compute, device + first, host + first, own_bytes,
                         ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_base_gather_control(base, base->sharding.all, tensor, dtype, device, n_elems));
    ZR_TRY(zr_copy_async(base->compute, host, device, own_bytes * (size_t)base->n_ranks,
                         ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(base->compute));
    return zr_sharding_check(&base->sharding);
}

zr_status_t zr_exchange_words(zr_exchange_t *exchange, const char *tensor, const uint64_t *words,
                              size_t n_words, uint64_t *all) {
    const zr_base_t *base = exchange->base;
    size_t n_ranks = (size_t)base->n_ranks, own = (size_t)base->rank;
    size_t most = staging_bytes(base) / sizeof(*words) / n_ranks;
    char *host = (char *)exchange->staging_host;
    for (size_t done = 0, n = 0; done < n_words; done += n) {
        n = n_words - done < most ? n_words - done : most;
        size_t n_bytes = n * sizeof(*words);
        if (zr_base_has_data(base))
            memcpy(host + own * n_bytes, words + done, n_bytes);
        ZR_TRY(gather_host(base, tensor, ZR_DTYPE_U8, host, (char *)exchange->staging_device,
                           n_bytes));
        for (size_t rank = 0; rank < n_ranks && zr_base_has_data(base); rank++)
            memcpy(all + rank * n_words + done, host + rank * n_bytes, n_bytes);
    }
    return ZR_OK;
}

zr_status_t zr_exchange_values(zr_exchange_t *exchange, const double *values, size_t n_values,
                               const double **all_p) {
    double *host = exchange->scalars_host;
    memcpy(host + (size_t)exchange->base->rank * n_values, values, n_values * sizeof(double));
    ZR_TRY(gather_host(exchange->base, "shared values", ZR_DTYPE_F64, (char *)host,
                       (char *)exchange->scalars_device, n_values));
    *all_p = host;
    return ZR_OK;
}
