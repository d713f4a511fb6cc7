/*
 * The store of a rank: one ring, and one file per path, for everything that is kept on NVMe.
 * Internal to zero/.
 *
 * Whoever keeps something there declares its extents before the store is opened: a part, which is
 * an account of the store. The trainer's parts come before commit (zr_runtime_add_extents), those
 * of state_internal.h and params_internal.h in it. Opening checks that all of them fit what the
 * rank may use.
 */
#pragma once

#include "offload/store.h"
#include "zero/base_internal.h"

typedef struct zr_nvme_part {
    const char *name;
    const char *const *advice;
    uint64_t size_bytes; /* that its extents take on the drives */
} zr_nvme_part_t;

typedef struct zr_nvme {
    const zr_base_t *base;
    zr_nvme_part_t parts[ZR_STORE_MAX_ACCOUNTS]; /* [n_parts] an account each */
    size_t n_parts;
    zr_heap_t *heap;            /* of the extents; NULL: there are none */
    zr_store_extent_t *extents; /* [n_extents] with names of their own; NULL once opened */
    size_t n_extents;
    size_t chunk_bytes; /* divides where transfers begin; 0: nothing is declared */
    size_t max_transfers;
    zr_store_t *store; /* NULL: not opened, or nothing is kept there */
} zr_nvme_t;

/** Options of a store of this rank, but for what it is to hold and where. */
zr_store_options_t zr_nvme_store_options(const zr_base_t *base);
/** The largest chunk, halved as often as needed, at whose multiples transfers of unit_bytes begin.
 */
size_t zr_nvme_common_chunk(size_t chunk_bytes, size_t unit_bytes);
/** Declare a part: as zr_runtime_add_extents, also in commit. */
ZR_NODISCARD zr_status_t zr_nvme_declare(zr_nvme_t *nvme, const zr_extents_desc_t *desc,
                                         zr_extents_t *extents_p);
/** Open the store with all that is declared, if that is anything. Errors as zr_store_create;
 * ZR_ERR_BUDGET also for what does not fit config's nvme.capacity_bytes, before anything is
 * reserved. */
ZR_NODISCARD zr_status_t zr_nvme_open(zr_nvme_t *nvme);
/** Nobody uses it any more. */
void zr_nvme_close(zr_nvme_t *nvme);
