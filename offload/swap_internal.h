/*
 * Swapping: work through what lies in a store, with few buffers.
 *
 * A pass goes through a list of items in order. Each is brought into a buffer, worked on there by
 * the caller, and written back; the next ones are read meanwhile, as many as there are buffers
 * for, and the last ones written:
 *
 *   zr_swap_begin(swap, ZR_SWAP_UPDATE, items, n_items)
 *   for each item:
 *       zr_swap_next(swap, &buffer)     it is there
 *       ... work on buffer ...
 *       zr_swap_done(swap)              it goes back
 *   zr_swap_end(swap)                   all has gone back
 *
 * The buffers are the only memory that it needs, whatever the store holds. Passes that only read
 * or only write are the halves of this; one that reads may have several buffers given out. Work on
 * a buffer may go on after the call that queued it: zr_swap_done_behind names the stream that it is
 * on, and up to all buffers may be in such work.
 *
 * Threads: the store's own.
 */
#pragma once

#include "offload/placement_internal.h"
#include "offload/store.h"

ZR_BEGIN_C

typedef struct zr_swap zr_swap_t;

typedef struct zr_swap_options {
    zr_log_t log;
    zr_allocator_t *allocator; /* the buffers come from its host tier, as staging; borrowed */
    zr_device_t *device;       /* of the streams of zr_swap_done_behind; NULL: none; borrowed */
    size_t n_buffers;          /* 1: nothing overlaps; 3 are read, worked on and written; up to
                                  ZR_SWAP_MAX_BUFFERS */
    size_t buffer_bytes;       /* the largest item */
    bool read_ahead;           /* read the next items while one is worked on */
    bool write_behind;         /* write the last ones then */
    const bool *is_idle; /* NULL: never. While it is true, of a simulated rank whose times are not
                            asked for now, passes start no transfers and may leave out items; it
                            changes between passes, or before the first item of one */
} zr_swap_options_t;

/** Transfers that a swap has in its store at a time, for the store's max_transfers. */
static inline size_t zr_swap_max_transfers(size_t n_buffers) {
    return 2 * n_buffers + 2;
}

/** What is moved at once: bytes of an extent, as zr_store_get and zr_store_put take them. */
typedef struct zr_swap_item {
    size_t extent;
    size_t offset_bytes;
    size_t size_bytes;   /* at most buffer_bytes */
    ptrdiff_t put_shift; /* in a pass that reads and writes: it goes back so many extents further */
} zr_swap_item_t;

/** Of a piece that is in the store; `first_extent` is that of the placement's first tensor. */
zr_swap_item_t zr_swap_item_of(const zr_placement_t *placement, const zr_piece_t *piece,
                               size_t first_extent);
/** Items of a tensor's pieces that are in the store, in their order. Returns their number. */
size_t zr_swap_list_items(const zr_placement_t *placement, size_t tensor, size_t first_extent,
                          zr_swap_item_t *items);

typedef enum zr_swap_pass {
    ZR_SWAP_UPDATE = 0, /* get, work, put */
    ZR_SWAP_FILL = 1,   /* the buffers come undefined: work, put. Where an item goes is read when it
                           is done: until then the caller may set it */
    ZR_SWAP_READ = 2,   /* get, work: up to n_buffers may be given out at once, and the pass may end
                           before its last item */
    ZR_SWAP_SLICES =
        3 /* as ZR_SWAP_UPDATE, with checksums slice by slice: see zr_swap_open_slice */
} zr_swap_pass_t;

/**
 * Make the buffers and register them with the store.
 *
 * @param store  borrowed until destroy
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET when the host tier does not hold
 *         them
 */
ZR_NODISCARD zr_status_t zr_swap_create(const zr_swap_options_t *options, zr_store_t *store,
                                        zr_swap_t **swap_p);

/** Wait for what is in flight, and free the buffers. NULL and *swap == NULL are fine. */
void zr_swap_destroy(zr_swap_t **swap);

/**
 * Begin a pass, and the first reads.
 *
 * @param items  [n_items], in the order of work, which zr_swap_seek changes; borrowed until
 *               zr_swap_end
 * @return ZR_OK; ZR_ERR_ARGUMENT for an item larger than a buffer; ZR_ERR_STATE when a pass was
 *         not ended; what zr_store_get returns
 *
 * After an error of this or the next seven calls the pass is over: nothing is in flight, and
 * items that were not put back, also of a pass before whose writes were not waited for, hold what
 * they did, or what the store says of puts that fail. Streams may still work on buffers that were
 * done behind them.
 */
ZR_NODISCARD zr_status_t zr_swap_begin(zr_swap_t *swap, zr_swap_pass_t pass, zr_swap_item_t *items,
                                       size_t n_items);

/** In the pass that was begun, other work goes on between items and after it, and
 * zr_store_progress is called: all buffers read ahead, since writes have the pauses to end in, and
 * zr_swap_end does not wait for the last writes, nor for the streams that they wait for. Later
 * calls do that need their buffers, and return their errors. */
ZR_NODISCARD zr_status_t zr_swap_expect_pauses(zr_swap_t *swap);

/**
 * The next item's buffer, the caller's until zr_swap_done or zr_swap_done_behind. ZR_ERR_STATE:
 * there is no next, or as many are given out as may be: 1, in ZR_SWAP_READ n_buffers. This waits
 * for what its buffer is in use for.
 */
ZR_NODISCARD zr_status_t zr_swap_next(zr_swap_t *swap, void **buffer_p);

/**
 * Make an item, and those behind it, the next ones; those before it come last. What was read ahead
 * of others is read again. The array of the pass keeps this order. ZR_ERR_STATE: it is not among
 * those that were not given out.
 */
ZR_NODISCARD zr_status_t zr_swap_seek(zr_swap_t *swap, const zr_swap_item_t *item);

/**
 * ZR_SWAP_SLICES: some bytes of the item are about to be used. Chunks that have any of them are
 * verified, each once: close to their use, so that memory is passed once, and what went wrong in
 * the buffer is found as well.
 *
 * @param offset_bytes, size_bytes  within the item
 * @return ZR_OK; ZR_ERR_FORMAT when they are not what was put; ZR_ERR_STATE when no item of such a
 *         pass is worked on; ZR_ERR_ARGUMENT
 *
 * Bytes that are changed without this are refused by zr_swap_done, which verifies what was not.
 */
ZR_NODISCARD zr_status_t zr_swap_open_slice(zr_swap_t *swap, size_t offset_bytes,
                                            size_t size_bytes);

/**
 * ZR_SWAP_SLICES: bytes of opened slices have their new values. A chunk is hashed when all of its
 * bytes have been closed, each once; what is not, when the item is done. One that is opened again
 * counts as not closed.
 *
 * @return ZR_OK; ZR_ERR_STATE also when they were not opened, or have been closed; ZR_ERR_ARGUMENT
 */
ZR_NODISCARD zr_status_t zr_swap_close_slice(zr_swap_t *swap, size_t offset_bytes,
                                             size_t size_bytes);

/** Put the item back whose buffer was given out first of those that are, after those before it.
 * ZR_SWAP_READ: nothing is put; the buffer is free for the next items. */
ZR_NODISCARD zr_status_t zr_swap_done(zr_swap_t *swap);

/** As zr_swap_done, once what is queued on the stream so far has passed. This does not wait: the
 * store goes on with it in zr_store_progress, and calls that need it wait. Not in ZR_SWAP_SLICES.
 */
ZR_NODISCARD zr_status_t zr_swap_done_behind(zr_swap_t *swap, zr_stream_t *stream);

/**
 * End the pass: streams are done with its buffers, and all that was put is in the store, or after
 * zr_swap_expect_pauses on its way.
 * ZR_ERR_STATE when items are left, or, where they are dropped, when a buffer is given out: in
 * ZR_SWAP_READ, and in a pass that reads and writes as long as no item was given out.
 */
ZR_NODISCARD zr_status_t zr_swap_end(zr_swap_t *swap);

/** Outside of a pass: the last writes have ended. Errors as zr_store_wait. */
ZR_NODISCARD zr_status_t zr_swap_settle(zr_swap_t *swap);
/** The same, but an error is returned by the next zr_swap_settle or zr_swap_begin. */
void zr_swap_await(zr_swap_t *swap);

/**
 * Look at bytes outside of a pass: they stay in a buffer until others need it.
 *
 * @param buffer_p  valid until the next call of zr_swap_load or zr_swap_begin
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE within a pass; what zr_store_get returns
 */
ZR_NODISCARD zr_status_t zr_swap_load(zr_swap_t *swap, const zr_swap_item_t *item,
                                      const void **buffer_p);

typedef struct zr_swap_statistics {
    size_t host_bytes; /* of the buffers, with what aligns them */
    size_t n_passes;   /* ended well */
    size_t n_items;    /* worked on */
    size_t n_loads;    /* that read */
    size_t most_ahead; /* buffers that were read, there, or worked on at once */
    uint64_t n_unused; /* items that were read and not given out before their pass ended */
    uint64_t unused_bytes;
    double pass_seconds; /* from begin to end */
} zr_swap_statistics_t;

/** Counts since creation. */
void zr_swap_statistics(const zr_swap_t *swap, zr_swap_statistics_t *statistics_p);

ZR_END_C
