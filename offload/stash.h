/*
 * A stash: tensors that are put away from the device for a while, to host memory or to a store,
 * and got back. Activations that backward needs late are its use.
 *
 * It has slots, of one tensor each. A put takes over an allocation of the device tier and frees
 * it when it has been copied; a get allocates, copies back and hands over. Copies run on streams
 * of their own, beside the caller's work. What was put last is expected back first: the store is
 * read ahead in that order. Any other order works as well; whoever knows it says what is read ahead
 * (reads_when_told).
 *
 *   zr_stash_put(stash, i, &tensor, size_bytes, stream)   tensor is NULL now
 *   ...
 *   zr_stash_prefetch(stash, i, stream)                   optional: begin before it is needed
 *   zr_stash_get(stash, i, stream, &tensor)               to be freed by the caller
 *
 * A tensor may be got several times (zr_stash_put_for): it stays until the last.
 *
 * With a store, host memory does not grow with what is put: tensors pass through few buffers. The
 * store is borrowed, and may be shared.
 *
 * Threads: one at a time, the one of allocator's device.
 */
#pragma once

#include "offload/store.h"

ZR_BEGIN_C

typedef struct zr_stash zr_stash_t;

typedef struct zr_stash_options {
    zr_log_t log;
    zr_allocator_t *allocator; /* of what is put, and of what is got; borrowed */
    zr_device_t *device;       /* the allocator's; borrowed */
    zr_tier_t tier;            /* ZR_TIER_HOST, or ZR_TIER_NVME: a store */
    size_t n_slots;
    size_t slot_bytes; /* the largest tensor */
    const char *name;  /* of what is put, for messages; borrowed until destroy */
    zr_tag_t tag;      /* of it, on host and device */
    zr_lifetime_t lifetime;

    /* ZR_TIER_NVME alone. */
    size_t n_buffers;     /* of slot_bytes each, in host memory: 1 to ZR_STASH_MAX_BUFFERS */
    zr_store_t *store;    /* borrowed until destroy; others may use it, too */
    size_t first_extent;  /* of it: slots are this one and the next ones, all of one size and
                             account, of slot_bytes or more */
    bool reads_when_told; /* nothing is read ahead but what zr_stash_read_ahead names */
} zr_stash_options_t;

#define ZR_STASH_MAX_BUFFERS ((size_t)1024)
#define ZR_STASH_MAX_SLOTS ((size_t)1 << 20)

/**
 * The largest chunk of a store that suits slots of this size: transfers are whole chunks, and
 * tensors smaller than a slot shall not move much more than they have.
 */
size_t zr_stash_most_chunk_bytes(size_t slot_bytes);

/** Transfers of a stash in a store at once, for the store's max_transfers. */
static inline size_t zr_stash_max_transfers(size_t n_buffers) {
    return 2 * n_buffers + 2;
}

/**
 * Make an empty stash. It has up to zr_stash_max_transfers in flight in its store.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET when the host tier does not hold
 *         the buffers
 */
ZR_NODISCARD zr_status_t zr_stash_create(const zr_stash_options_t *options, zr_stash_t **stash_p);

/**
 * zr_stash_clear, and free everything. NULL and *stash == NULL are fine. Ends replay on its
 * allocator (allocator/replay.h), which must not outlive the stash's streams.
 */
void zr_stash_destroy(zr_stash_t **stash);

/**
 * Put a tensor away.
 *
 * @param slot        that is empty
 * @param pointer     an allocation of the device tier, which is taken over on success, and *pointer
 *                    is NULL then
 * @param size_bytes  of it, at most slot_bytes; may differ from put to put
 * @param stream      whose work queued so far is the last to use it
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE when the slot is full, or after an error;
 *         ZR_ERR_BUDGET when host memory has no room; ZR_ERR_DEVICE; what zr_store_wait returns,
 *         also of an earlier put
 *
 * Blocks only for a buffer, when all are in use. After any error but ZR_ERR_ARGUMENT the stash
 * can only be cleared or destroyed; this holds for the next two calls as well.
 */
ZR_NODISCARD zr_status_t zr_stash_put(zr_stash_t *stash, size_t slot, void **pointer,
                                      size_t size_bytes, zr_stream_t *stream);

/** The same, for so many gets, at least 1: the slot is full until the last. */
ZR_NODISCARD zr_status_t zr_stash_put_for(zr_stash_t *stash, size_t slot, void **pointer,
                                          size_t size_bytes, zr_stream_t *stream, size_t n_gets);

/**
 * Begin to read a tensor from the store into a buffer, which it takes until it is got. What is in
 * one already, is in host memory, or is not there yet is fine. Errors as zr_stash_get.
 *
 * Blocks where a buffer's write has not ended. At most zr_stash_most_ahead at a time: of more, the
 * first are read again.
 */
ZR_NODISCARD zr_status_t zr_stash_read_ahead(zr_stash_t *stash, size_t slot);

/** Tensors that buffers hold for zr_stash_read_ahead: the others are for what is put. */
size_t zr_stash_most_ahead(const zr_stash_t *stash);

/**
 * Begin to bring a tensor back to device memory, which it takes from now on. `stream` is the one
 * that zr_stash_get will name. What was begun already is fine. Errors as zr_stash_get.
 */
ZR_NODISCARD zr_status_t zr_stash_prefetch(zr_stash_t *stash, size_t slot, zr_stream_t *stream);

/**
 * Get a tensor back; the slot is empty then, unless there are gets left.
 *
 * @param stream     whose work queued from now on finds it
 * @param pointer_p  an allocation of the device tier, the caller's
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE when the slot is empty, or after an error;
 *         ZR_ERR_BUDGET; ZR_ERR_DEVICE; what zr_store_wait returns
 *
 * Blocks only for reading from the store.
 */
ZR_NODISCARD zr_status_t zr_stash_get(zr_stash_t *stash, size_t slot, zr_stream_t *stream,
                                      void **pointer_p);

/** Forget what is in it, and errors. Waits for what is in flight, if there is anything to forget.
 */
void zr_stash_clear(zr_stash_t *stash);

/** Counts since creation; of the two directions as of a store. */
typedef struct zr_stash_statistics {
    uint64_t n_tensors[ZR_N_STORE_DIRECTIONS];
    uint64_t bytes[ZR_N_STORE_DIRECTIONS]; /* put away, brought back */
    double seconds[ZR_N_STORE_DIRECTIONS]; /* the caller was in the calls for it */
    size_t peak_bytes;                     /* the largest that was in it at once */
    bool has_store;                        /* what follows says something */
    /* Of transfers that were begun, in whole chunks. What is served from a buffer is not read, and
     * what comes back before it had to be written is not written. */
    uint64_t drive_bytes[ZR_N_STORE_DIRECTIONS];
    size_t staging_bytes;                   /* of all buffers */
    zr_store_info_t store;                  /* with what others have in it */
    zr_store_statistics_t store_statistics; /* of the slots' account */
} zr_stash_statistics_t;
void zr_stash_statistics(const zr_stash_t *stash, zr_stash_statistics_t *statistics_p);

ZR_END_C
