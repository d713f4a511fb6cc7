/*
 * The store: extents that are written (put) and read (get) asynchronously, for data that fits
 * neither in device nor in host memory.
 *
 * All extents are declared when a store is created, so that all space is reserved then: lack of
 * space is an error before the first step. A put copies bytes from the caller's buffer, a get
 * copies them to it. Both return a ticket at once, and the buffer must not be touched until the
 * ticket has been waited for or polled to its end. Any number of transfers up to max_transfers may
 * be in flight. Transfers that touch the same bytes take effect in the order of the calls.
 *
 * An extent is divided into chunks of chunk_bytes (the last one may be shorter). A transfer
 * covers whole chunks, so that each chunk has one checksum, computed at the put and verified at the
 * get: a get returns exactly what was put, or an error.
 *
 * Several users can share a store. Each extent belongs to an account, traffic is counted by
 * account, and users register their buffers independently.
 *
 * A store is scratch memory of one run: nothing in it outlives the handle, however the process
 * ends, and two stores on one path are independent. Exception: with a file name, the file is kept.
 *
 * Threads: a handle belongs to one thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "allocator/allocator.h"
#include "kernels/base/log.h"
#include "kernels/base/status.h"

ZR_BEGIN_C

typedef struct zr_store zr_store_t;

/** The declaration of an extent. Transfers refer to it by its index in the array. */
typedef struct zr_store_extent {
    const char *name;  /* for messages: "h.3 optimizer_state" */
    size_t size_bytes; /* 0 is fine; multiples of zr_store_info_t.block_bytes need no copy */
    size_t account;    /* account of its transfers: less than ZR_STORE_MAX_ACCOUNTS */
    bool goes_first;   /* its transfers go ahead of others: computation waits for them */
} zr_store_extent_t;

/** A started transfer; valid until it has been waited for or polled to its end. */
typedef uint64_t zr_store_ticket_t;
/** No transfer: waiting for it returns at once. */
#define ZR_STORE_NO_TICKET ((zr_store_ticket_t)0)

#define ZR_STORE_MAX_PATHS 16
#define ZR_STORE_MAX_DEPTH 1024
#define ZR_STORE_MAX_TRANSFERS 65536
#define ZR_STORE_MAX_ACCOUNTS 8
#define ZR_STORE_MAX_REQUEST_BYTES ((size_t)1 << 30)
#define ZR_STORE_MAX_BOUNCE_BUFFERS 1024
/** Maximum buffers of one user that cycles data through a store. */
#define ZR_SWAP_MAX_BUFFERS ((size_t)1024)
/** Every chunk is a multiple of this, whatever the block size of the files. */
#define ZR_STORE_CHUNK_ALIGN_BYTES ((size_t)4096)

typedef struct zr_store_buffer {
    void *base;
    size_t size_bytes;
} zr_store_buffer_t;

typedef struct zr_store_options {
    zr_log_t log;              /* with the rank, which file names in messages include */
    zr_allocator_t *allocator; /* for buffers, in the host tier; borrowed for the store's life;
                                  NULL: memory of the system, without a budget */
    zr_store_buffer_t lent;    /* host memory for the bounce buffers, used if it is large enough;
                                  borrowed for the store's life. All zeros: none */
    size_t chunk_bytes;        /* unit of checksums; a multiple of ZR_STORE_CHUNK_ALIGN_BYTES */
    zr_device_t *device; /* device whose clock is used, borrowed for the store's life; "sim" needs a
                            simulated device and uses its hardware description. NULL: none */
    size_t max_transfers; /* transfers in flight, or ended and not yet waited for */
    bool verify;          /* compute checksums and verify them */

    /* For the backend "uring"; "sim" uses the sizes too. */
    const char *const *paths; /* [n_paths] folders; extents are striped over them; borrowed for
                                 the call */
    size_t n_paths;
    const char
        *file_name;  /* NULL: files are unnamed and vanish with the store. Otherwise there must be
                        one path; the file in it gets this name and is kept; borrowed for the call */
    bool overwrites; /* overwrite an existing file with this name */
    size_t request_bytes;    /* size of requests, and stripe size with several paths; a multiple of
                                chunk_bytes */
    size_t depth;            /* requests in flight */
    size_t submit_batch;     /* requests submitted per system call, 1 to depth */
    size_t n_bounce_buffers; /* buffers of request_bytes for unaligned data; >= 1 */
    bool poll; /* poll the drive for completions, if a probe shows that it supports it */
} zr_store_options_t;

/** Default log, no paths, verify on, no polling; sizes that perform well on most drives. */
zr_store_options_t zr_store_options_default(void);

/**
 * Create a store and reserve the space for its extents.
 *
 * @param backend    "memory" (reference: host memory), "uring" (files, by io_uring), "posix"
 *                   (files, by pread and pwrite), or on a simulated device, without keeping data,
 *                   "sim" (files) or "sim-plain" (memory, or a custom store)
 * @param options    NULL means the defaults; borrowed for the call
 * @param extents    [n_extents], copied with their names
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET if a path has no room for the
 *         extents or host memory has no room for the buffers; ZR_ERR_IO; ZR_ERR_UNSUPPORTED if the
 *         system refuses io_uring
 *
 * A get of bytes that were never put is refused.
 */
ZR_NODISCARD zr_status_t zr_store_create(const char *backend, const zr_store_options_t *options,
                                         const zr_store_extent_t *extents, size_t n_extents,
                                         zr_store_t **store_p);

/**
 * The backend for files on this system: "uring", or "posix" if io_uring is missing or forbidden, as
 * in some containers.
 *
 * @param log  gets a warning for "posix"; NULL: no warning
 */
const char *zr_store_drive_backend(const zr_log_t *log);

/**
 * Find an aligned part of a memory block that is large enough.
 *
 * @return its start; NULL: too small, or no memory
 */
void *zr_store_buffer_fit(const zr_store_buffer_t *lent, size_t size_bytes, size_t align_bytes);

/** Wait for transfers in flight and free everything. NULL and *store == NULL are fine. */
void zr_store_destroy(zr_store_t **store);

typedef struct zr_store_info {
    const char *backend; /* static */
    size_t n_extents;
    size_t
        chunk_bytes; /* transfers start at multiples of it, and end at one or at the extent's end */
    size_t buffer_align_bytes; /* buffers with this alignment are used without a copy */
    size_t block_bytes;        /* extents whose size is a multiple of it need no copy at the end */
    size_t request_bytes;
    size_t depth;
    size_t host_bytes;       /* host memory of the store: buffers, checksums, tables */
    uint64_t reserved_bytes; /* reserved for the extents, with padding */
    bool has_checksums;      /* it computes and verifies checksums */
    bool counts_checksums; /* host_bytes includes checksums: it has them, or simulates a store that
                              has */
    bool is_direct;        /* bypasses the page cache */
    bool is_registered;    /* the system registered all buffers of zr_store_register */
    bool is_polled;
} zr_store_info_t;

/** Information about the store, valid for its life; is_registered may change when buffers are
 * registered. */
const zr_store_info_t *zr_store_info(const zr_store_t *store);

/** An extent as declared; NULL if the index is out of range. */
const zr_store_extent_t *zr_store_extent(const zr_store_t *store, size_t extent);

/**
 * Register more buffers for transfers: the system pins them once instead of at every request. Other
 * memory may be used too.
 *
 * @param buffers  [n_buffers]; the memory must stay valid until zr_store_unregister or the store's
 *                 end
 * @return ZR_OK, also when the system refuses: a warning then tells which limit to raise, and
 *         zr_store_info_t.is_registered is false; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY: none was
 *         registered
 *
 * Waits for what is in flight.
 */
ZR_NODISCARD zr_status_t zr_store_register(zr_store_t *store, const zr_store_buffer_t *buffers,
                                           size_t n_buffers);

/**
 * Unregister buffers: the system no longer pins them. Buffers that are not registered are ignored.
 * Waits for what is in flight.
 *
 * @param buffers  [n_buffers], each as it was registered
 */
void zr_store_unregister(zr_store_t *store, const zr_store_buffer_t *buffers, size_t n_buffers);

/**
 * Start to take bytes [offset_bytes, offset_bytes + size_bytes) of an extent from a buffer.
 *
 * @param offset_bytes  a multiple of chunk_bytes
 * @param size_bytes    a multiple of chunk_bytes, or up to the extent's end; 0 is fine
 * @param buffer        [size_bytes], unchanged until the transfer has ended
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE when max_transfers are not waited for; ZR_ERR_IO
 *         when the store has failed as a whole. Nothing was started then.
 *
 * It begins when earlier transfers on the same bytes have ended. A put that fails leaves each
 * chunk of these bytes either as put or without content, and all others as they were.
 */
ZR_NODISCARD zr_status_t zr_store_put(zr_store_t *store, size_t extent, size_t offset_bytes,
                                      size_t size_bytes, const void *buffer,
                                      zr_store_ticket_t *ticket_p);

/**
 * Start to bring bytes of an extent to a buffer: as zr_store_put, but for
 *
 * @param buffer  [size_bytes], the store's until the transfer has ended, undefined when it fails
 * @return ZR_ERR_STATE also when some of the bytes were never put, or their put has failed; the
 *         error of that put as long as it was not waited for, also when it fails later: then
 *         zr_store_wait returns it
 */
ZR_NODISCARD zr_status_t zr_store_get(zr_store_t *store, size_t extent, size_t offset_bytes,
                                      size_t size_bytes, void *buffer, zr_store_ticket_t *ticket_p);

/** What a transfer waits for besides. */
typedef struct zr_store_after {
    zr_event_t *event; /* it has passed; recorded before the call, and not again until the transfer
                          has begun; NULL: none */
    zr_store_ticket_t ticket; /* this transfer has ended, well or not; ZR_STORE_NO_TICKET: none */
    uint32_t line;            /* those before it in this line have begun: zr_store_make_line */
} zr_store_after_t;

/** A transfer that is queued. */
typedef struct zr_store_call {
    size_t extent, offset_bytes, size_bytes;
    void *buffer;
    bool is_unverified; /* a get: as zr_store_get_unverified */
    zr_store_after_t after;
} zr_store_call_t;

/** Make a line, for zr_store_after_t. Returns 0, without a line, when there are 63. */
uint32_t zr_store_make_line(zr_store_t *store);

/**
 * As zr_store_put and zr_store_get, but the transfer begins once all has happened that it waits
 * for: at once, in zr_store_progress, or while some other call waits for transfers. Waiting for
 * its ticket waits for that, too; an event that fails is its error. 0 bytes wait for nothing.
 */
ZR_NODISCARD zr_status_t zr_store_queue_put(zr_store_t *store, const zr_store_call_t *call,
                                            zr_store_ticket_t *ticket_p);
ZR_NODISCARD zr_status_t zr_store_queue_get(zr_store_t *store, const zr_store_call_t *call,
                                            zr_store_ticket_t *ticket_p);

/*
 * Checksums at another time: whoever works on bytes in slices passes memory once instead of three
 * times when a chunk is verified just before its bytes are used, and hashed just after they have
 * changed. Without checksums (zr_store_info_t.has_checksums) these do nothing but what is
 * transferred.
 */

/**
 * As zr_store_get, but nothing is verified: the caller does it, by zr_store_verify, for each chunk
 * before it uses any of its bytes, and before the next put of the chunk.
 */
ZR_NODISCARD zr_status_t zr_store_get_unverified(zr_store_t *store, size_t extent,
                                                 size_t offset_bytes, size_t size_bytes,
                                                 void *buffer, zr_store_ticket_t *ticket_p);

/**
 * Verify bytes of an extent in a buffer.
 *
 * @param offset_bytes, size_bytes  whole chunks, as in a transfer; of no put that is in flight
 * @param buffer                    [size_bytes]
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE when some were never put; ZR_ERR_FORMAT when they
 *         are not what was put
 */
ZR_NODISCARD zr_status_t zr_store_verify(zr_store_t *store, size_t extent, size_t offset_bytes,
                                         size_t size_bytes, const void *buffer);

/** Compute the checksums of bytes for zr_store_put_hashed: [number of chunks]. Errors as
 * zr_store_verify, but the extent may be empty. */
ZR_NODISCARD zr_status_t zr_store_hash(zr_store_t *store, size_t extent, size_t offset_bytes,
                                       size_t size_bytes, const void *buffer, uint64_t *sums);

/** As zr_store_put, with checksums from zr_store_hash, borrowed for the call. If bytes changed in
 * between, a later get fails. */
ZR_NODISCARD zr_status_t zr_store_put_hashed(zr_store_t *store, size_t extent, size_t offset_bytes,
                                             size_t size_bytes, const void *buffer,
                                             const uint64_t *sums, zr_store_ticket_t *ticket_p);

/**
 * Block until a transfer has ended, and free its ticket.
 *
 * @return how it ended: ZR_OK; ZR_ERR_IO (the log has operation, file, offset, length and cause);
 *         ZR_ERR_FORMAT if the data read differs from the data put. ZR_ERR_STATE if the ticket is
 *         invalid: it was freed before.
 */
ZR_NODISCARD zr_status_t zr_store_wait(zr_store_t *store, zr_store_ticket_t ticket);

/** Take a transfer back that has not begun: a put has changed nothing then. Of others, as
 * zr_store_wait, however it ends. */
void zr_store_drop(zr_store_t *store, zr_store_ticket_t ticket);

/** As zr_store_wait when the transfer has ended; otherwise ZR_OK at once, and *done_p false. */
ZR_NODISCARD zr_status_t zr_store_poll(zr_store_t *store, zr_store_ticket_t ticket, bool *done_p);

/** Wait for all transfers and free all tickets; ZR_OK, or the error of a failed transfer. */
ZR_NODISCARD zr_status_t zr_store_wait_all(zr_store_t *store);

/**
 * Wait for all transfers, and until all data has reached the drive. The file then has the length of
 * its extents.
 *
 * @return as zr_store_wait_all; ZR_ERR_IO if the drive reports an error
 */
ZR_NODISCARD zr_status_t zr_store_sync(zr_store_t *store);

/** Bytes of the tables that an extent takes in a store on one drive, where they differ by extent.
 */
size_t zr_store_extent_table_bytes(const zr_store_extent_t *extent, size_t chunk_bytes,
                                   bool verify);

/** Offset of an extent in the file, for a store with a file name. */
uint64_t zr_store_file_offset(const zr_store_t *store, size_t extent);

/** Checksums of an extent's chunks, valid for the store's life: [*n_chunks_p]; NULL without
 * checksums. */
const uint64_t *zr_store_checksums(const zr_store_t *store, size_t extent, size_t *n_chunks_p);

/** For simulated stores ("sim"), which keep no data: treat all chunks as put. No effect on other
 * stores. For plans, which skip initial values. */
void zr_store_presume_put(zr_store_t *store);

/**
 * Advance transfers without blocking: collect completions, submit further requests. Call it now and
 * then during long computations with transfers in flight.
 */
void zr_store_progress(zr_store_t *store);

typedef enum zr_store_direction { ZR_STORE_PUT = 0, ZR_STORE_GET = 1 } zr_store_direction_t;
#define ZR_N_STORE_DIRECTIONS 2

/** "put" or "get". */
const char *zr_store_direction_name(zr_store_direction_t direction);

/** Counts of successful transfers of one direction. */
typedef struct zr_store_count {
    uint64_t n_transfers;
    uint64_t n_requests;
    uint64_t bytes;         /* as requested */
    uint64_t moved_bytes;   /* with padding to whole blocks */
    uint64_t bounced_bytes; /* part of `bytes` that was copied because it was unaligned */
} zr_store_count_t;

/** Add a count to a sum. */
void zr_store_count_add(zr_store_count_t *sum, const zr_store_count_t *count);
/** The difference between two readings of the same count. */
zr_store_count_t zr_store_count_between(const zr_store_count_t *before,
                                        const zr_store_count_t *after);

typedef struct zr_store_statistics {
    zr_store_count_t count[ZR_N_STORE_DIRECTIONS];
    uint64_t n_continued; /* short transfers that were continued */
    uint64_t n_retried;   /* requests that were interrupted and made again */
    uint64_t n_conflicts; /* transfers that had to wait for an earlier one on the same bytes */
    uint64_t n_failed;    /* transfers */
    double wait_seconds[ZR_N_STORE_DIRECTIONS]; /* time the caller was blocked, by direction */
    double checksum_seconds; /* computing and verifying checksums, on the caller's thread */
} zr_store_statistics_t;

/** The checksum of a chunk: its XXH3 (64 bits), with the fastest available instructions. */
uint64_t zr_store_checksum(const void *bytes, size_t size_bytes);

/** Counts since creation, summed over all accounts. */
void zr_store_statistics(const zr_store_t *store, zr_store_statistics_t *statistics_p);
/** Counts of one existing account: transfers of its extents, and waiting for them. */
void zr_store_account_statistics(const zr_store_t *store, size_t account,
                                 zr_store_statistics_t *statistics_p);

ZR_END_C
