/*
 * A ring of io_uring: the few calls of liburing that the store needs, with no type of its in
 * sight. Tests put their faults between these and the store.
 *
 * Errors are negative errno values, as in the kernel's own interface.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

typedef struct zr_ring zr_ring_t;

/** A read or write; everything but `tag` is as in pread and pwrite. */
typedef struct zr_ring_request {
    bool is_write;
    int file;   /* a descriptor; with registered files, its place among them */
    int buffer; /* the registered buffer that the memory lies in; -1: none */
    void *memory;
    uint32_t size_bytes;
    uint64_t offset_bytes;
    uint64_t tag; /* comes back with the completion */
} zr_ring_request_t;

typedef struct zr_ring_completion {
    uint64_t tag;
    int result; /* bytes, or a negative errno */
} zr_ring_completion_t;

/** Make a ring for `depth` requests; `poll`: completions are polled for on the drive. */
int zr_ring_open(unsigned depth, bool poll, zr_ring_t **ring_p);
/** Make one without io_uring: a request is a call of pread or pwrite, made when its completion is
 * asked for. Files and buffers need no registering. */
int zr_ring_open_plain(unsigned depth, zr_ring_t **ring_p);
void zr_ring_close(zr_ring_t **ring);

/** Register all files at once; requests then name them by place. */
int zr_ring_register_files(zr_ring_t *ring, const int *files, unsigned n_files);
/** Register these buffers instead of those before; after an error, none are. */
int zr_ring_register_buffers(zr_ring_t *ring, const struct iovec *buffers, unsigned n_buffers);

/** Note a request down, for the next zr_ring_submit; -EBUSY when `depth` are noted. */
int zr_ring_queue(zr_ring_t *ring, const zr_ring_request_t *request);
/** Hand over what is noted, in order; how many of them. */
int zr_ring_submit(zr_ring_t *ring);
/**
 * Take a completion: 1. With none there, wait for one so long (0: not at all; a polled ring,
 * and a kernel before 5.11, wait without end), and give 0 if none has come.
 */
int zr_ring_next(zr_ring_t *ring, int timeout_ms, zr_ring_completion_t *completion_p);
