/*
 * Staging buffers: host memory through which a user of a store moves what it puts and gets. They
 * are as large as needed, aligned as the store's files ask for, registered with the store, and
 * counted in the host tier's budget.
 */
#pragma once

#include "offload/store.h"

ZR_BEGIN_C

typedef struct zr_staging {
    zr_allocator_t *allocator;
    zr_store_t *store;
    zr_store_buffer_t registered;
    void *allocation; /* NULL: what was lent */
    char *base;
    size_t stride;     /* from one buffer to the next */
    size_t size_bytes; /* that are allocated */
} zr_staging_t;

typedef struct zr_staging_options {
    const zr_log_t *log;
    zr_allocator_t *allocator; /* borrowed until zr_staging_clear */
    const char *user;          /* for messages: "swap" */
    const char *name;          /* of the memory; borrowed likewise */
    zr_store_buffer_t lent;    /* where they lie, if it is enough for them, instead of memory of
                                  their own; borrowed likewise. All zeros: none */
    size_t n_buffers;
    size_t buffer_bytes;
} zr_staging_options_t;

/**
 * Make the buffers and register them.
 *
 * @param store      borrowed until zr_staging_clear
 * @param staging_p  zeroed before; on failure zr_staging_clear has to be called, too
 * @return ZR_OK; ZR_ERR_ARGUMENT when their size overflows; ZR_ERR_MEMORY; ZR_ERR_BUDGET
 *
 * Waits for what is in flight in the store. Threads: the store's own.
 */
ZR_NODISCARD zr_status_t zr_staging_make(const zr_staging_options_t *options, zr_store_t *store,
                                         zr_staging_t *staging_p);

/** Take them back from the store, and free them. A zeroed one is fine. */
void zr_staging_clear(zr_staging_t *staging);

static inline char *zr_staging_buffer(const zr_staging_t *staging, size_t number) {
    return staging->base + number * staging->stride;
}

/** Wait for a buffer's transfer, if there is one, and forget it. Errors as zr_store_wait. */
ZR_NODISCARD static inline zr_status_t zr_staging_finish(zr_store_t *store,
                                                         zr_store_ticket_t *ticket) {
    zr_store_ticket_t own = *ticket;
    *ticket = ZR_STORE_NO_TICKET;
    return zr_store_wait(store, own);
}

ZR_END_C
