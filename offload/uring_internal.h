/*
 * The handle of the store "uring": store_uring.c makes it, uring_requests.c moves the bytes.
 */
#pragma once

#include "offload/store_backend.h"
#include "offload/uring_file_internal.h"
#include "offload/uring_ring_internal.h"

/* One piece of a transfer on its way. */
typedef struct zr_uring_request {
    zr_store_piece_t piece;
    size_t file;
    unsigned char *memory; /* the caller's, or a bounce buffer */
    int bounce;            /* its number; -1: none */
    size_t io_bytes;       /* piece.size_bytes, rounded up to blocks */
    size_t done_bytes;     /* < io_bytes */
    size_t n_requests;     /* made for the piece so far */
    int n_fruitless;       /* in a row that moved nothing */
} zr_uring_request_t;

typedef struct zr_uring_store {
    zr_store_t base;
    zr_ring_t *ring;
    bool is_plain; /* it is one without io_uring */
    size_t n_files;
    uint64_t lengths[ZR_STORE_MAX_PATHS]; /* of their files */
    zr_uring_file_t files[ZR_STORE_MAX_PATHS];
    bool has_registered_files;

    /* Stripe k of extent e lies in file (first_file[e] + k) % n_files, as its stripe
     * k / n_files, from begins[e * n_files + file] on. */
    unsigned char *first_file;
    uint64_t *begins;

    zr_uring_request_t *requests; /* [depth] */
    uint32_t *free_requests;      /* [n_free_requests], a stack */
    size_t n_free_requests;
    size_t n_noted;  /* in the ring and not handed over */
    size_t n_handed; /* with the system */
    int quiet_ms;    /* of waits for the next of them to end */

    zr_store_memory_t bounce_memory; /* n_bounce_buffers of request_bytes */
    uint32_t *free_bounces;
    size_t n_free_bounces;

    struct iovec *registered; /* [n_registered]; the first is bounce_memory */
    size_t n_registered;
    size_t registered_capacity;
    size_t refused_bytes; /* the most that the system did not register */

    zr_store_transfer_t *oldest, *newest; /* not begun to their ends, in the order of requests */
} zr_uring_store_t;

/** What "uring" has in tables with such options, extents and chunks, itself included. */
size_t zr_store_uring_table_bytes(const zr_store_t *store);
/** Into so many parts buffers are cut that are registered, at most: an iovec each. */
size_t zr_store_uring_most_parts(const zr_store_t *store);
/** Bytes that "uring" registers: bounce buffers, and those of users. */
size_t zr_store_uring_buffer_bytes(const zr_store_t *store);
/** Bytes of host memory that lie in one registered buffer: its number, or -1. */
int zr_uring_find_registered(const zr_uring_store_t *uring, const void *memory, size_t size_bytes);

/* Entries of the backend: see store_backend.h. */
void zr_uring_start(zr_store_t *store, zr_store_transfer_t *transfer);
void zr_uring_progress(zr_store_t *store, bool wait);
zr_store_place_t zr_uring_locate(const zr_store_t *store, size_t extent, size_t offset_bytes);
