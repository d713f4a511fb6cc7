/*
 * The store of a rank, opened as its configuration says. Internal to zero/: what is kept there is
 * the business of state.h and params.h.
 */
#ifndef ZR_ZERO_NVME_H
#define ZR_ZERO_NVME_H

#include "offload/store.h"
#include "zero/runtime.h"

typedef struct zr_nvme_request {
    const zr_store_extent_t *extents; /* [n_extents] borrowed for the call */
    size_t n_extents;
    size_t group_bytes;   /* transfers begin at its multiples; itself a multiple of
                             ZR_STORE_CHUNK_ALIGN_BYTES */
    size_t max_transfers; /* at once */
} zr_nvme_request_t;

/** Errors as zr_store_create. Destroy it with zr_store_destroy, before the runtime's allocator. */
ZR_NODISCARD zr_status_t zr_nvme_open(zr_runtime_t *runtime, const zr_nvme_request_t *request,
                                      zr_store_t **store_p);

/** Add what was moved between two looks at a store to a sum. */
static inline void zr_store_count_add(zr_store_count_t *sum, const zr_store_count_t *before,
                                      const zr_store_count_t *after) {
    sum->n_transfers += after->n_transfers - before->n_transfers;
    sum->n_requests += after->n_requests - before->n_requests;
    sum->bytes += after->bytes - before->bytes;
    sum->moved_bytes += after->moved_bytes - before->moved_bytes;
    sum->bounced_bytes += after->bounced_bytes - before->bounced_bytes;
}

#endif
