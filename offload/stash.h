/*
 * A stash moves tensors from the device to host memory or to a store for a while, and back: for
 * example activations until backward needs them.
 *
 * It has slots of one tensor each. A put takes over an allocation of the device tier and frees it
 * when it has been copied; a get allocates, copies back and hands over. Copies run on separate
 * streams, concurrently with the caller's work. The tensor put last is expected back first: the
 * store is prefetched in that order. Any other order works too; a caller that knows it controls
 * prefetching itself (reads_when_told).
 *
 *   zr_stash_put(stash, i, &tensor, size_bytes, stream)   tensor is NULL now
 *   ...
 *   zr_stash_prefetch(stash, i, stream)                   optional: begin before it is needed
 *   zr_stash_get(stash, i, stream, &tensor)               to be freed by the caller
 *
 * A tensor may be fetched several times (zr_stash_put_for): it stays until the last get.
 *
 * With a store, host memory use is constant: tensors pass through a few buffers. The store is
 * borrowed and may be shared.
 *
 * Threads: one at a time, the thread of the allocator's device.
 */
#pragma once

#include "offload/store.h"

ZR_BEGIN_C

typedef struct zr_stash zr_stash_t;

typedef struct zr_stash_options {
    zr_log_t log;
    zr_allocator_t *allocator; /* for tensors that are put and fetched; borrowed */
    zr_device_t *device;       /* the allocator's; borrowed */
    zr_tier_t tier;            /* ZR_TIER_HOST, or ZR_TIER_NVME (a store) */
    size_t n_slots;
    size_t slot_bytes; /* the largest tensor */
    const char *name;  /* what the tensors are, for messages; borrowed until destroy */
    zr_tag_t tag;      /* tag of the tensors' memory, on host and device */
    zr_lifetime_t lifetime;

    /* Only with ZR_TIER_NVME. */
    size_t n_buffers;    /* buffers of slot_bytes in host memory: 1 to ZR_STASH_MAX_BUFFERS */
    zr_store_t *store;   /* borrowed until destroy; may have other users */
    size_t first_extent; /* extent of slot 0; the following extents are the next slots. All have the
                            same size, at least slot_bytes, and the same account */
    size_t n_in_host;    /* the last so many slots are in host memory; they need no extents */
    bool reads_when_told; /* prefetch from the store only by zr_stash_read_ahead */
} zr_stash_options_t;

#define ZR_STASH_MAX_BUFFERS ((size_t)1024)
#define ZR_STASH_MAX_SLOTS ((size_t)1 << 20)

/**
 * The largest suitable chunk size of a store for slots of this size: transfers are whole chunks,
 * and tensors smaller than a slot should not move many more bytes than they have.
 */
size_t zr_stash_most_chunk_bytes(size_t slot_bytes);

/** Maximum transfers that a stash has in flight, for the store's max_transfers. */
static inline size_t zr_stash_max_transfers(size_t n_buffers) {
    return 2 * n_buffers + 2;
}

/**
 * Create an empty stash. It has up to zr_stash_max_transfers in flight in its store.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET if the buffers do not fit in the
 *         host tier
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
 * @param slot an empty slot
 * @param pointer     an allocation of the device tier; on success the stash owns it and *pointer is
 *                    NULL
 * @param size_bytes  its size, at most slot_bytes; may differ from put to put
 * @param stream      whose work queued so far is the last to use it
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE when the slot is full, or after an error;
 *         ZR_ERR_BUDGET when host memory has no room; ZR_ERR_DEVICE; errors of zr_store_wait, also
 *         for an earlier put
 *
 * Blocks only if all buffers are in use. After any error but ZR_ERR_ARGUMENT the stash
 * can only be cleared or destroyed; the same holds for the calls below.
 */
ZR_NODISCARD zr_status_t zr_stash_put(zr_stash_t *stash, size_t slot, void **pointer,
                                      size_t size_bytes, zr_stream_t *stream);

/** The same for `n_gets` gets, at least 1: the slot stays full until the last get. */
ZR_NODISCARD zr_status_t zr_stash_put_for(zr_stash_t *stash, size_t slot, void **pointer,
                                          size_t size_bytes, zr_stream_t *stream, size_t n_gets);

/**
 * Begin to read a tensor from the store into a buffer, which it occupies until the get. Does
 * nothing if the tensor is in a buffer or in host memory already, or was not put yet. Errors as
 * zr_stash_get.
 *
 * Blocks if its buffer is one that is being read into. At most zr_stash_most_ahead tensors at
 * a time; with more, the first ones are read again.
 */
ZR_NODISCARD zr_status_t zr_stash_read_ahead(zr_stash_t *stash, size_t slot);

/** How many tensors the buffers hold for zr_stash_read_ahead; the other buffers are for puts. */
size_t zr_stash_most_ahead(const zr_stash_t *stash);

/**
 * Begin to copy a tensor back to device memory, which is allocated now. `stream` must be the stream
 * of the zr_stash_get that follows. Does nothing if it was begun already. Errors as zr_stash_get.
 */
ZR_NODISCARD zr_status_t zr_stash_prefetch(zr_stash_t *stash, size_t slot, zr_stream_t *stream);

/**
 * Get a tensor back; the slot is empty after the last get.
 *
 * @param stream     work queued on it from now on can use the tensor
 * @param pointer_p  an allocation of the device tier; the caller frees it
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE when the slot is empty, or after an error;
 *         ZR_ERR_BUDGET; ZR_ERR_DEVICE; what zr_store_wait returns
 *
 * Blocks only for reading from the store.
 */
ZR_NODISCARD zr_status_t zr_stash_get(zr_stash_t *stash, size_t slot, zr_stream_t *stream,
                                      void **pointer_p);

/** Drop all tensors and errors. Waits for transfers in flight, if there is anything to drop.
 */
void zr_stash_clear(zr_stash_t *stash);

/** Counts since creation, by direction as in a store. */
typedef struct zr_stash_statistics {
    uint64_t n_tensors[ZR_N_STORE_DIRECTIONS];
    uint64_t bytes[ZR_N_STORE_DIRECTIONS]; /* put away, brought back */
    double seconds[ZR_N_STORE_DIRECTIONS]; /* time spent in the calls */
    size_t peak_bytes;                     /* peak of bytes in the stash */
    bool has_store;                        /* the fields below are valid */
    /* Bytes of begun transfers, in whole chunks. Tensors that are still in a buffer are not read
     * again, and tensors that return before they were written are not written. */
    uint64_t drive_bytes[ZR_N_STORE_DIRECTIONS];
    size_t store_peak_bytes;                /* of bytes in slots that are in the store */
    size_t staging_bytes;                   /* size of all buffers */
    zr_store_info_t store;                  /* including other users' extents */
    zr_store_statistics_t store_statistics; /* for the slots' account */
} zr_stash_statistics_t;
void zr_stash_statistics(const zr_stash_t *stash, zr_stash_statistics_t *statistics_p);

ZR_END_C
