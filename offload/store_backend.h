/*
 * The interface to implement a store. Start with a copy of store_memory.c.
 *
 * offload/store.c checks every argument, keeps tickets, makes transfers on the same bytes wait
 * for each other, keeps and verifies checksums, and counts. A backend sees valid transfers only:
 * whole chunks of one extent, more than 0 bytes, none that overlaps another in flight unless both
 * are gets. It splits them into pieces of whole chunks as it likes and reports each piece twice:
 * zr_store_piece_begins before its bytes are copied, zr_store_piece_ended when they have been
 * copied or have failed. Pieces may end in any order.
 */
#pragma once

#include <sys/types.h>

#include "offload/store.h"

ZR_BEGIN_C

typedef enum zr_transfer_state {
    ZR_TRANSFER_FREE = 0,
    ZR_TRANSFER_WAITING = 1, /* for others, or an event: its backend does not know it yet */
    ZR_TRANSFER_IN_FLIGHT = 2,
    ZR_TRANSFER_ENDED = 3 /* but not waited for yet */
} zr_transfer_state_t;

/** Transfers that one may wait for: one on the same bytes, and one that its caller names. */
#define ZR_STORE_MAX_AFTER 2

/** One put or get, from its start until its ticket is freed. */
typedef struct zr_store_transfer {
    zr_store_direction_t direction;
    size_t extent;
    size_t offset_bytes;
    size_t size_bytes;
    unsigned char *buffer; /* a backend must not write to a put's buffer */
    zr_status_t status;    /* of the first failed piece; the backend then begins no further piece */
    bool is_unhashed;      /* the caller computes or verifies the checksums */
    double begin;          /* when it was started; 0 without a recorder */
    double end;            /* when it ended by the backend's clock; 0: when the end was noticed */

    size_t
        ended_bytes; /* sum over ended pieces; the transfer has ended when it equals size_bytes */
    zr_transfer_state_t state;
    uint64_t generation; /* distinguishes tickets of one slot */

    zr_event_t *event;                           /* it begins when this has passed; NULL: none */
    zr_store_ticket_t after[ZR_STORE_MAX_AFTER]; /* and these have ended; or ZR_STORE_NO_TICKET */
    uint32_t line;

    size_t begun_bytes; /* used by the backend; starts at 0 */
    struct zr_store_transfer *next;
} zr_store_transfer_t;

/** A part of a transfer. */
typedef struct zr_store_piece {
    zr_store_transfer_t *transfer;
    size_t offset_bytes; /* in the extent, where a chunk begins */
    size_t size_bytes;
    const char *file; /* its file, for messages */
    uint64_t file_offset_bytes;
} zr_store_piece_t;

/** A place in a file. */
typedef struct zr_store_place {
    const char *file; /* for messages */
    uint64_t offset_bytes;
} zr_store_place_t;

typedef struct zr_store_backend {
    const char *name;    /* static */
    size_t handle_bytes; /* size of the backend's struct, whose first member is a zr_store */
    bool keeps_nothing;  /* it moves no data: buffers may be addresses without memory, and store.c
                            computes no checksums */
    bool lets_wait;      /* start takes transfers that wait, and lets them begin */

    /* Reserve room for store->extents, and fill store->info from buffer_align_bytes on. The rest
     * of the handle is zero. Logs its own failure; close is then called, too. */
    zr_status_t (*open)(zr_store_t *store);
    /* Free what open has allocated, also after a failed open. No transfer is in flight. */
    void (*close)(zr_store_t *store);
    /* Optional. Close the files' descriptors in a fork of the process that has made the store: it
     * would hold their room for as long as it lives. */
    void (*forget)(zr_store_t *store);
    /* Accept a transfer. May start it; must not wait. With lets_wait it may have an event and
     * others that it is to begin after: event, after and line; then nothing waits in store.c. */
    void (*start)(zr_store_t *store, zr_store_transfer_t *transfer);
    /* Advance the transfers. `wait`: block until at least one piece has ended, if any is in flight;
     * with zr_store_has_waiting it may return before, so that those can begin.
     * An error ends the affected transfers and is stored in them. A fatal error sets store->is_dead
     * and its cause, and ends all transfers before it returns: the caller then frees the buffers.
     */
    void (*progress)(zr_store_t *store, bool wait);
    /* Optional. Advance the transfers for one of them, which may have ended before; `wait`: until
     * it has. With it, progress is called while none is in flight, too. NULL: progress is called
     * as often as it takes. */
    void (*look)(zr_store_t *store, const zr_store_transfer_t *transfer, bool wait);
    /* Optional. The place of a chunk, for messages. */
    zr_store_place_t (*locate)(const zr_store_t *store, size_t extent, size_t offset_bytes);
    /* Optional. Flush all data to the drive; no transfer is in flight. Logs its own failure. */
    zr_status_t (*sync)(zr_store_t *store);
    /* Optional. Register store->buffers in place of the previous ones; removing buffers must not
     * fail. On failure the previous ones stay registered. Sets info.is_registered. No transfer is
     * in flight. */
    zr_status_t (*register_buffers)(zr_store_t *store);
} zr_store_backend_t;

/* Data that store.c keeps for an extent. */
typedef struct zr_store_chunks {
    size_t first; /* index among the store's chunks */
    size_t n_chunks;
} zr_store_chunks_t;

/* The error that made a store unusable. */
typedef struct zr_store_death {
    const char *operation; /* static */
    int error;             /* errno */
} zr_store_death_t;

/** First member of every backend's handle. */
struct zr_store {
    const zr_store_backend_t *backend;
    pid_t owner;                /* process that has created it (kernels/base/owner_internal.h) */
    zr_store_options_t options; /* paths: during open only */
    zr_store_info_t info;
    zr_store_statistics_t accounts[ZR_STORE_MAX_ACCOUNTS]; /* see zr_store_account_of */
    zr_store_extent_t *extents;                            /* [info.n_extents] */
    bool is_dead;                                          /* later transfers are refused */
    zr_store_death_t death;                                /* the reason, if is_dead */

    /* Used by store.c. */
    struct zr_heap *heap;           /* memory of its tables and of the handle */
    zr_store_chunks_t *chunks;      /* [info.n_extents] */
    unsigned char *is_present;      /* [chunks of all extents] whether the chunk was put */
    uint64_t *sums;                 /* [chunks of all extents] checksums; NULL without verify */
    zr_store_transfer_t *transfers; /* [options.max_transfers] */
    size_t n_slots;                 /* of these, the first that were ever used */
    size_t n_in_flight;
    struct zr_waiting *waiting; /* transfers, by their index */
    uint32_t n_lines;
    zr_store_buffer_t *buffers; /* [n_buffers] registered by users */
    size_t n_buffers;
    size_t pinned_bytes; /* registered with the system: zr_store_count_pinned */
};

/**
 * Create a store with a given backend, as zr_store_create does by name. A custom backend needs no
 * other registration; a runtime uses this for zr_nvme_options_t.backend.
 *
 * @param backend  borrowed until the store is destroyed
 */
ZR_NODISCARD zr_status_t zr_store_create_from(const zr_store_backend_t *backend,
                                              const zr_store_options_t *options,
                                              const zr_store_extent_t *extents, size_t n_extents,
                                              zr_store_t **store_p);

/** The library's backends. */ extern const zr_store_backend_t zr_store_memory_backend;
extern const zr_store_backend_t zr_store_uring_backend;
extern const zr_store_backend_t zr_store_posix_backend;
extern const zr_store_backend_t zr_store_sim_backend;
extern const zr_store_backend_t zr_store_sim_plain_backend;

/** Extents on drives begin and end at multiples of the larger of this and a drive's block. */
static inline size_t zr_store_layout_bytes(size_t block_bytes) {
    return block_bytes > 4096 ? block_bytes : 4096;
}

/** The recorder of the store's device; NULL: none. */
static inline zr_trace_t *zr_store_trace(const zr_store_t *store) {
    return store->options.device != NULL ? zr_device_trace(store->options.device) : NULL;
}

/** Whether transfers wait to begin. */
bool zr_store_has_waiting(const zr_store_t *store);
/** The transfer of a ticket; NULL: it has been waited for. */
zr_store_transfer_t *zr_store_find(const zr_store_t *store, zr_store_ticket_t ticket);

/** Transfers that were not begun go in the order of these, and of their starts: what computation
 * waits for, then what is read, which somebody will wait for, then what is written. */
typedef enum zr_store_turn {
    ZR_STORE_TURN_FIRST = 0,
    ZR_STORE_TURN_GET = 1,
    ZR_STORE_TURN_PUT = 2
} zr_store_turn_t;

static inline zr_store_turn_t zr_store_turn_of(const zr_store_t *store,
                                               const zr_store_transfer_t *transfer) {
    if (store->extents[transfer->extent].goes_first)
        return ZR_STORE_TURN_FIRST;
    return transfer->direction == ZR_STORE_GET ? ZR_STORE_TURN_GET : ZR_STORE_TURN_PUT;
}

/** The statistics that a transfer is counted in. The backend updates n_continued and n_retried. */
static inline zr_store_statistics_t *zr_store_account_of(zr_store_t *store,
                                                         const zr_store_transfer_t *transfer) {
    return &store->accounts[store->extents[transfer->extent].account];
}

/** Whole chunks of an extent, in memory. */
typedef struct zr_store_chunk_range {
    size_t extent;
    size_t offset_bytes; /* in the extent, where a chunk begins */
    size_t size_bytes;
    const unsigned char *buffer;
} zr_store_chunk_range_t;

/** Index in the store's tables of the chunk that begins at an offset. */
static inline size_t zr_store_chunk_at(const zr_store_t *store, size_t extent,
                                       size_t offset_bytes) {
    return store->chunks[extent].first + offset_bytes / store->info.chunk_bytes;
}

/** To be called before the bytes of a put are copied: computes their checksums. Does nothing for a
 * get. */
void zr_store_piece_begins(zr_store_t *store, const zr_store_piece_t *piece);

/** The result of a piece, for zr_store_piece_ended. */
typedef struct zr_store_outcome {
    zr_status_t status; /* errors are logged already */
    size_t n_requests;
    size_t moved_bytes;
    bool was_bounced;
} zr_store_outcome_t;

/** To be called when a piece was copied or has failed: verifies a get, and counts. */
void zr_store_piece_ended(zr_store_t *store, const zr_store_piece_t *piece,
                          const zr_store_outcome_t *outcome);

/**
 * Compare whole chunks of an extent with their checksums; counts the time.
 *
 * @param place  where they begin in their file, for messages; NULL: they may be in several */
ZR_NODISCARD zr_status_t zr_store_verify_chunks(zr_store_t *store,
                                                const zr_store_chunk_range_t *range,
                                                const zr_store_place_t *place);
/** Threads of a host device that compute checksums at a time: more than drives are ever as fast as.
 */
#define ZR_STORE_SUM_THREADS ((size_t)4)
/** Compute their checksums: [chunks]. */
void zr_store_hash_chunks(zr_store_t *store, const zr_store_chunk_range_t *range, uint64_t *sums);

/** End the pieces that were not begun, of a transfer whose status is an error. */
void zr_store_abandon_rest(zr_store_t *store, zr_store_transfer_t *transfer);

/** Seconds of a monotonic clock. */
double zr_store_clock(void);
/** Seconds of the store's clock: its device's clock, if it has a device. */
double zr_store_now(const zr_store_t *store);

/** Host memory that the store has registered with the system, all of it; with an allocator counted
 * there. Returns the bytes of all stores of the allocator. */
size_t zr_store_count_pinned(zr_store_t *store, size_t size_bytes);

/**
 * Host memory of the store, aligned to a power of two, counted in info.host_bytes and, with an
 * allocator, in its budget under `tag`. 0 bytes give NULL.
 */
typedef struct zr_store_memory {
    void *base; /* aligned */
    void *allocation;
    size_t size_bytes;
} zr_store_memory_t;
ZR_NODISCARD zr_status_t zr_store_memory_allocate(zr_store_t *store, zr_tag_t tag, const char *name,
                                                  size_t size_bytes, size_t align_bytes,
                                                  zr_store_memory_t *memory_p);
void zr_store_memory_free(zr_store_t *store, zr_store_memory_t *memory);

/** Allocate the bounce buffers of the options, contiguously. */
ZR_NODISCARD zr_status_t zr_store_bounce_allocate(zr_store_t *store, zr_store_memory_t *memory_p);

ZR_END_C
