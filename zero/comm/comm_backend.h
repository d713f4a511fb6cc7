/*
 * The interface to implement a communicator. Start with a copy of comm_threads.c. All backends
 * share the agreement of ranks before data moves: control_internal.h.
 *
 * Entries may be called from a thread of the stream (queued_internal.h), one at a time.
 *
 * zero/comm/comm.c checks every argument, numbers the calls and counts the traffic, so
 * a backend sees valid calls only: known dtypes, tensors aligned and either in place or
 * apart, sizes whose bytes fit a size_t, streams of one device. A backend moves data through the
 * device of the call's stream and never touches device memory itself.
 *
 * Events cross ranks here: a backend whose ranks are threads of one process may call
 * zr_stream_wait(own stream, another rank's event). A device, with its events, belongs to
 * one thread, so this is allowed only while the event's owner is held in the same
 * collective call: it records before the ranks meet and leaves after they have met again.
 */
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include "zero/comm/comm.h"

ZR_BEGIN_C

/** One rank's part in a collective. Fields above the line must be the same on all ranks; fields
 * below it may differ.
 */
typedef struct zr_comm_call {
    zr_collective_t collective;
    zr_message_t
        message;    /* barrier and split: name, U8, ZR_TRAFFIC_CONTROL. Encoded blocks are passed as
                       bytes, U8, and their name says so; the encoding is used for counts */
    size_t n_elems; /* as in the public call, in elements of dtype; 0 for barrier and split */
    int root;       /* broadcast; otherwise 0 */
    uint64_t sequence; /* this communicator's calls, from 1 */
    /* ---- */
    const void *send;    /* all_reduce and broadcast: the buffer, in both */
    void *recv;          /* may be NULL if n_elems is 0 */
    zr_stream_t *stream; /* NULL for barrier and split */
    bool is_agreement;   /* barrier: its name is the text that ranks must agree on */
    int color;           /* split */
    int key;             /* split */
    zr_comm_t **group_p; /* split: set on success */
    int group_ranks;     /* split evenly: ranks of a group; otherwise 0 */
    int group_stride;    /* split evenly: distance from one of its ranks to the next */
    int *n_machines_p;   /* output of count_machines, which is a barrier */
} zr_comm_call_t;

/*
 * An entry returns ZR_OK only when the collective has been queued or executed on every rank.
 * Otherwise it logs the call (zr_comm_call_describe) and the cause, and the communicator
 * is dead. No entry may block for longer than the timeout when a rank is missing, and
 * none may return while another rank can still read or write this rank's tensors outside
 * the order of this rank's stream: after an error the caller frees them.
 */
typedef struct zr_comm_backend {
    const char *name; /* static */

    /* Leave, tell the other ranks, free. After this no rank waits for this one. */
    void (*destroy)(zr_comm_t *comm);
    /* Make all waiting and later calls fail with this rank and reason. May be called from any
     * thread. */
    void (*abort)(zr_comm_t *comm, const char *reason);

    /* The collectives of comm.h. Sums: fp32, in rank order, rounded once (zr_kernel_sum). */
    zr_status_t (*all_gather)(zr_comm_t *comm, const zr_comm_call_t *call);
    zr_status_t (*reduce_scatter)(zr_comm_t *comm, const zr_comm_call_t *call);
    zr_status_t (*all_reduce)(zr_comm_t *comm, const zr_comm_call_t *call);
    zr_status_t (*broadcast)(zr_comm_t *comm, const zr_comm_call_t *call);
    zr_status_t (*all_to_all)(zr_comm_t *comm, const zr_comm_call_t *call);
    zr_status_t (*barrier)(zr_comm_t *comm, const zr_comm_call_t *call);
    /* The only one that may fail, with ZR_ERR_MEMORY on every rank, and leave comm alive. */
    zr_status_t (*split)(zr_comm_t *comm, const zr_comm_call_t *call);
    /* Optional. See zr_comm_count_machines; *call->n_machines_p is set on success. NULL: 1. */
    zr_status_t (*count_machines)(zr_comm_t *comm, const zr_comm_call_t *call);
    /* Check the collectives whose streams have been synchronized; logs a failure. NULL: queued
     * collectives cannot fail, or the device reports it. */
    zr_status_t (*check)(zr_comm_t *comm);
} zr_comm_backend_t;

typedef zr_status_t (*zr_comm_entry_fn)(zr_comm_t *comm, const zr_comm_call_t *call);

typedef struct zr_comm_seconds {
    double wait, move; /* as in zr_comm_statistics_t */
} zr_comm_seconds_t;

/** Calls on a stream with its own thread: queued_internal.h. */
typedef struct zr_comm_queue {
    zr_stream_t *stream;  /* of the latest queued call; used by the rank's thread only */
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t emptied;
    size_t n_calls;     /* queued and not executed yet */
    zr_status_t failed; /* status of the first failed call */
    zr_comm_seconds_t own, queued;
} zr_comm_queue_t;

/** First member of every backend's handle. */
struct zr_comm {
    const zr_comm_backend_t *backend;
    pid_t owner;               /* process that has created it (kernels/base/owner_internal.h) */
    zr_comm_options_t options; /* log: with the rank in the first communicator, not in a group */
    int rank;
    int n_ranks;
    struct zr_control *control;      /* agreement of ranks; owned. NULL: the backend has its own */
    zr_device_t *device;             /* device of all calls' streams */
    const zr_device_t *call_device;  /* device of the current call; NULL: none yet */
    struct zr_allocator *allocator;  /* the caller's, or NULL */
    uint64_t n_calls;                /* sequence of the latest call */
    zr_comm_statistics_t statistics; /* comm.c updates counts; the backend updates seconds, for
                                        calls on any thread */
    zr_comm_queue_t queue;           /* queued.c's */
};

/** Fill in the common part of a backend's handle. */
void zr_comm_init(zr_comm_t *comm, const zr_comm_backend_t *backend,
                  const zr_comm_options_t *options, int rank, int n_ranks);

/** ZR_OK if the options are valid; otherwise ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t zr_comm_check_options(const zr_comm_options_t *options, int n_ranks);

/**
 * Exchange a few bytes among all ranks: a barrier that carries data, without a device.
 *
 * @param own  [n_bytes] at most ZR_COMM_TELL_BYTES, the same number on every rank
 * @param all  [n_ranks * n_bytes], by rank
 * @return as zr_comm_barrier
 */
ZR_NODISCARD zr_status_t zr_comm_tell(zr_comm_t *comm, const char *name, const void *own,
                                      size_t n_bytes, void *all);
#define ZR_COMM_TELL_BYTES ((size_t)256)

/** `all_gather of "h.3 parameters" (bf16, 1024 elements, model, call 17)`; truncated to fit. */
void zr_comm_call_describe(const zr_comm_call_t *call, char *text, size_t text_bytes);
#define ZR_COMM_DESCRIPTION_BYTES 256

/** First element of all_reduce's slice of a rank: n_elems * rank / n_ranks without overflow. */
size_t zr_comm_slice_begin(size_t n_elems, int rank, int n_ranks);

/** Elements that one rank adds in a reduce_scatter or all_reduce: the maximum over ranks. */
size_t zr_comm_longest_slice(const zr_comm_t *comm, const zr_comm_call_t *call);

/** How a sum in rank order is cut, so that what the other ranks send fits a workspace. */
typedef struct zr_comm_pieces {
    size_t n_elems; /* of each slice in a piece: at least a cache line, at most the longest slice */
    size_t n_pieces;
    size_t n_in_flight;     /* 1 if there is one piece, else 2 */
    size_t workspace_bytes; /* of all pieces in flight, each with n_elems of every other rank */
} zr_comm_pieces_t;

/** Needs at least two ranks, and elements. */
zr_comm_pieces_t zr_comm_cut_sum(const zr_comm_t *comm, const zr_comm_call_t *call);

/**
 * The workspace of a sum, freed with zr_free on the call's stream. Status of zr_allocate.
 */
ZR_NODISCARD zr_status_t zr_comm_take_workspace(struct zr_allocator *allocator,
                                                const zr_comm_call_t *call,
                                                const zr_comm_pieces_t *pieces, void **workspace_p);

/** Seconds of a monotonic clock, for the statistics. */
double zr_comm_clock(void);

ZR_END_C
