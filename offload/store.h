/*
 * The store: extents that are put and got asynchronously, for what fits neither device nor
 * host memory.
 *
 * All extents are declared when a store is created, so that everything they need is reserved
 * then: what does not fit is refused before the first step. A put takes bytes from the caller's
 * buffer, a get brings them there; both return a ticket at once, and the buffer is the store's
 * until the ticket has been waited for, or polled to its end. Any number of transfers up to
 * max_transfers may be in flight. Transfers that touch the same bytes take effect in the order
 * of the calls.
 *
 * An extent is divided into chunks of chunk_bytes (the last one may be shorter). A transfer
 * covers whole chunks, so that each has one checksum, made when it is put and verified when it
 * is got: what comes back is what went out, or an error.
 *
 * Several users can share a store. Each extent is of an account, what is moved is counted by
 * account, and users register their buffers independently of each other.
 *
 * A store is scratch memory of one run: nothing in it outlives the handle, whichever way the
 * process ends, and two stores on one path share nothing. But for one whose file is given a name:
 * that is how something is written to be kept.
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

/** What is declared of an extent. Transfers name it by its place in the array, from 0. */
typedef struct zr_store_extent {
    const char *name;  /* for messages: "h.3 optimizer_state" */
    size_t size_bytes; /* 0 is fine; multiples of zr_store_info_t.block_bytes need no copy */
    size_t account;    /* whose transfers of it are: below ZR_STORE_MAX_ACCOUNTS */
} zr_store_extent_t;

/** A transfer that was started; good until it has been waited for, or polled to its end. */
typedef uint64_t zr_store_ticket_t;
/** No transfer: waiting for it is waiting for nothing. */
#define ZR_STORE_NO_TICKET ((zr_store_ticket_t)0)

#define ZR_STORE_MAX_PATHS 16
#define ZR_STORE_MAX_DEPTH 1024
#define ZR_STORE_MAX_TRANSFERS 65536
#define ZR_STORE_MAX_ACCOUNTS 8
#define ZR_STORE_MAX_REQUEST_BYTES ((size_t)1 << 30)
#define ZR_STORE_MAX_BOUNCE_BUFFERS 1024
/** Of those who work through what lies in a store: buffers of one of them. */
#define ZR_SWAP_MAX_BUFFERS ((size_t)1024)
/** Every chunk is a multiple of this, whatever the block size of the files. */
#define ZR_STORE_CHUNK_ALIGN_BYTES ((size_t)4096)

typedef struct zr_store_buffer {
    void *base;
    size_t size_bytes;
} zr_store_buffer_t;

typedef struct zr_store_options {
    zr_log_t log;              /* with the rank, which the file's name in messages repeats */
    zr_allocator_t *allocator; /* for buffers, in the host tier; borrowed for the store's life;
                                  NULL: the system's memory, within no budget */
    zr_store_buffer_t lent;    /* host memory for the bounce buffers, taken where it is enough for
                                  them; borrowed likewise. All zeros: none */
    size_t chunk_bytes;        /* one checksum each; a multiple of ZR_STORE_CHUNK_ALIGN_BYTES */
    zr_device_t *device;  /* whose clock times are of, borrowed likewise; "sim" needs a simulated
                             one, whose hardware description it takes. NULL: none */
    size_t max_transfers; /* in flight, or ended and not yet waited for */
    bool verify;          /* make checksums and verify them */

    /* Of the backend "uring"; "sim" takes the sizes as well. */
    const char *const *paths; /* [n_paths] folders; extents are striped over them; borrowed for
                                 the call */
    size_t n_paths;
    const char *file_name;   /* NULL: the files have no names, and end with the store. Else there is
                                one path, and the file in it is made with this name, and stays;
                                borrowed for the call */
    bool overwrites;         /* a file of this name is there, and is written over */
    size_t request_bytes;    /* transfers are cut into requests of so much; a multiple of
                                chunk_bytes, and the stripe where there are several paths */
    size_t depth;            /* requests given to the system at once */
    size_t submit_batch;     /* requests handed over per system call, 1 to depth */
    size_t n_bounce_buffers; /* of request_bytes each, for what is not aligned; >= 1 */
    bool poll;               /* poll the drive for completions, where a probe shows that it can */
} zr_store_options_t;

/** Default log, no paths, verify on, no polling; sizes that do well on most drives. */
zr_store_options_t zr_store_options_default(void);

/**
 * Make a store and reserve everything that its extents need.
 *
 * @param backend    "memory" (reference: host memory), "uring" (files, by io_uring), "posix"
 * (files, by pread and pwrite), or on a simulated device, where nothing is kept, "sim" (as files)
 * or "sim-plain" (as memory, or a store of a program's own)
 * @param options    NULL means the defaults; borrowed for the call
 * @param extents    [n_extents], copied with their names
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET when a path has no room for the
 *         extents, or host memory none for the buffers; ZR_ERR_IO; ZR_ERR_UNSUPPORTED when the
 *         system refuses io_uring
 *
 * What was never put holds nothing, and a get of it is refused.
 */
ZR_NODISCARD zr_status_t zr_store_create(const char *backend, const zr_store_options_t *options,
                                         const zr_store_extent_t *extents, size_t n_extents,
                                         zr_store_t **store_p);

/**
 * What to have files by on this system: "uring"; or "posix" where there is no io_uring, or it is
 * forbidden, as containers may do.
 *
 * @param log  where the latter is said, as a warning; NULL: nowhere
 */
const char *zr_store_drive_backend(const zr_log_t *log);

/**
 * The part of a piece of memory that is aligned, if it is large enough.
 *
 * @return where it begins; NULL: it is too small, or there is none
 */
void *zr_store_buffer_fit(const zr_store_buffer_t *lent, size_t size_bytes, size_t align_bytes);

/** Wait for what is in flight, and free everything. NULL and *store == NULL are fine. */
void zr_store_destroy(zr_store_t **store);

typedef struct zr_store_info {
    const char *backend; /* static */
    size_t n_extents;
    size_t chunk_bytes; /* transfers start at multiples of it, and end at one or at the end */
    size_t buffer_align_bytes; /* buffers so aligned are used without a copy */
    size_t block_bytes;        /* extents that are a multiple of it end without a copy */
    size_t request_bytes;
    size_t depth;
    size_t host_bytes;       /* host memory that the store holds: buffers, checksums, tables */
    uint64_t reserved_bytes; /* held where the extents lie, with padding */
    bool has_checksums;      /* it makes and verifies them */
    bool counts_checksums;   /* tables count as if: it has them, or stands for a store that has */
    bool is_direct;          /* past the page cache */
    bool is_registered;      /* the system took the buffers of zr_store_register, all of them */
    bool is_polled;
} zr_store_info_t;

/** Facts of the store, for its life; is_registered may change when buffers are registered. */
const zr_store_info_t *zr_store_info(const zr_store_t *store);

/** An extent as it was declared; NULL when there is none of this number. */
const zr_store_extent_t *zr_store_extent(const zr_store_t *store, size_t extent);

/**
 * Name buffers that transfers will mostly use, beside those named before: the system pins them
 * once instead of at every request. Any other memory may be used as well.
 *
 * @param buffers  [n_buffers]; the memory stays where it is until zr_store_unregister or the
 *                 store's end
 * @return ZR_OK, also when the system refuses: a warning then says which limit to raise, and
 *         zr_store_info_t.is_registered is false; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY: none was named
 *
 * Waits for what is in flight.
 */
ZR_NODISCARD zr_status_t zr_store_register(zr_store_t *store, const zr_store_buffer_t *buffers,
                                           size_t n_buffers);

/**
 * Take buffers back: afterwards the system has nothing of them. Those that are not named are
 * passed over. Waits for what is in flight.
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
 * Blocks only while an earlier transfer touches the same bytes. A put that fails leaves each
 * chunk of these bytes either as put or without content, and all others as they were.
 */
ZR_NODISCARD zr_status_t zr_store_put(zr_store_t *store, size_t extent, size_t offset_bytes,
                                      size_t size_bytes, const void *buffer,
                                      zr_store_ticket_t *ticket_p);

/**
 * Start to bring bytes of an extent to a buffer: as zr_store_put, but for
 *
 * @param buffer  [size_bytes], the store's until the transfer has ended, undefined when it fails
 * @return ZR_ERR_STATE also when some of the bytes were never put, or their put has failed
 */
ZR_NODISCARD zr_status_t zr_store_get(zr_store_t *store, size_t extent, size_t offset_bytes,
                                      size_t size_bytes, void *buffer, zr_store_ticket_t *ticket_p);

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
 * are not what was put
 */
ZR_NODISCARD zr_status_t zr_store_verify(zr_store_t *store, size_t extent, size_t offset_bytes,
                                         size_t size_bytes, const void *buffer);

/** Make the checksums of bytes that zr_store_put_hashed is to put: [chunks of them]. Errors as of
 * zr_store_verify, but nothing has to be there. */
ZR_NODISCARD zr_status_t zr_store_hash(zr_store_t *store, size_t extent, size_t offset_bytes,
                                       size_t size_bytes, const void *buffer, uint64_t *sums);

/** As zr_store_put, with the checksums of zr_store_hash, which are borrowed for the call. Bytes
 * that have changed since are refused when they are got. */
ZR_NODISCARD zr_status_t zr_store_put_hashed(zr_store_t *store, size_t extent, size_t offset_bytes,
                                             size_t size_bytes, const void *buffer,
                                             const uint64_t *sums, zr_store_ticket_t *ticket_p);

/**
 * Block until a transfer has ended, and give its ticket back.
 *
 * @return how it ended: ZR_OK; ZR_ERR_IO (the log has operation, file, offset, length and cause);
 *         ZR_ERR_FORMAT when what was got is not what was put. ZR_ERR_STATE when the ticket is
 *         of no transfer: it has been given back before.
 */
ZR_NODISCARD zr_status_t zr_store_wait(zr_store_t *store, zr_store_ticket_t ticket);

/** As zr_store_wait when the transfer has ended; otherwise ZR_OK at once, and *done_p false. */
ZR_NODISCARD zr_status_t zr_store_poll(zr_store_t *store, zr_store_ticket_t ticket, bool *done_p);

/** Wait for all transfers, and give all tickets back; ZR_OK, or how one that failed has ended. */
ZR_NODISCARD zr_status_t zr_store_wait_all(zr_store_t *store);

/**
 * Wait for all transfers, and until what was put has reached the drive. The file has the length of
 * its extents then.
 *
 * @return as zr_store_wait_all; ZR_ERR_IO when the drive did not take it
 */
ZR_NODISCARD zr_status_t zr_store_sync(zr_store_t *store);

/** Where an extent begins in the file of a store that has one, with a name. */
uint64_t zr_store_file_offset(const zr_store_t *store, size_t extent);

/** The checksums of an extent's chunks that were put, for the store's life: [*n_chunks_p]; NULL
 * where none are made. */
const uint64_t *zr_store_checksums(const zr_store_t *store, size_t extent, size_t *n_chunks_p);

/** Of a store that keeps nothing ("sim"): all chunks count as put. Others stay as they are. For
 * plans, which leave out initial values. */
void zr_store_presume_put(zr_store_t *store);

/**
 * Let transfers go on, without blocking: take what has ended, hand over what is next. Whoever
 * computes for long while transfers are in flight calls this now and then.
 */
void zr_store_progress(zr_store_t *store);

typedef enum zr_store_direction { ZR_STORE_PUT = 0, ZR_STORE_GET = 1 } zr_store_direction_t;
#define ZR_N_STORE_DIRECTIONS 2

/** "put" or "get". */
const char *zr_store_direction_name(zr_store_direction_t direction);

/** What has ended well, by direction. */
typedef struct zr_store_count {
    uint64_t n_transfers;
    uint64_t n_requests;
    uint64_t bytes;         /* as callers asked */
    uint64_t moved_bytes;   /* with padding to whole blocks */
    uint64_t bounced_bytes; /* of `bytes`: copied on the way, because they were not aligned */
} zr_store_count_t;

/** Add a count to a sum. */
void zr_store_count_add(zr_store_count_t *sum, const zr_store_count_t *count);
/** What was moved between two looks at the same count. */
zr_store_count_t zr_store_count_between(const zr_store_count_t *before,
                                        const zr_store_count_t *after);

typedef struct zr_store_statistics {
    zr_store_count_t count[ZR_N_STORE_DIRECTIONS];
    uint64_t n_continued; /* short transfers that were continued */
    uint64_t n_retried;   /* requests that were interrupted and made again */
    uint64_t n_conflicts; /* transfers that waited for an earlier one on the same bytes */
    uint64_t n_failed;    /* transfers */
    double wait_seconds[ZR_N_STORE_DIRECTIONS]; /* the caller was blocked for such a transfer */
    double checksum_seconds; /* making and verifying checksums, on the caller's thread */
} zr_store_statistics_t;

/** What a store keeps of a chunk: its XXH3 (64 bits), by the fastest instructions that are here. */
uint64_t zr_store_checksum(const void *bytes, size_t size_bytes);

/** Counts since creation, of all accounts together. */
void zr_store_statistics(const zr_store_t *store, zr_store_statistics_t *statistics_p);
/** Of one account, which exists: of transfers of its extents, and of waiting for those. */
void zr_store_account_statistics(const zr_store_t *store, size_t account,
                                 zr_store_statistics_t *statistics_p);

ZR_END_C
