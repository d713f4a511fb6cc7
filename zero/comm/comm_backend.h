/*
 * For those who implement a communicator. Copy comm_threads.c to start one. What ranks agree on
 * before data moves is shared by all of them: control_internal.h.
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

#include "zero/comm/comm.h"

ZR_BEGIN_C

/** One rank's part in a collective. Ranks must agree in all above the line, and on nothing below.
 */
typedef struct zr_comm_call {
    zr_collective_t collective;
    zr_message_t message; /* barrier and split: name, U8, ZR_TRAFFIC_CONTROL. Blocks of an encoding
                             are bytes here, U8, and the name says it; the encoding is for counts */
    size_t n_elems;       /* as in the public call, of dtype; 0 for barrier and split */
    int root;             /* broadcast; otherwise 0 */
    uint64_t sequence;    /* this communicator's calls, from 1 */
    /* ---- */
    const void *send;    /* all_reduce and broadcast: the buffer, in both */
    void *recv;          /* NULL is possible where n_elems is 0 */
    zr_stream_t *stream; /* NULL for barrier and split */
    bool is_agreement;   /* barrier: its name is what ranks have to have in common */
    int color;           /* split */
    int key;             /* split */
    zr_comm_t **group_p; /* split: set on success */
    int group_ranks;     /* split evenly: ranks of a group; otherwise 0 */
    int group_stride;    /* and from one of its ranks to the next */
    int *n_machines_p;   /* of count_machines, which is a barrier */
} zr_comm_call_t;

/*
 * An entry returns ZR_OK only when the collective has been queued, or made, on every rank.
 * Otherwise it logs the call (zr_comm_call_describe) and the cause, and the communicator
 * is dead. No entry may block for longer than the time limit when a rank does not come, and
 * none may return while another rank can still read or write this rank's tensors outside
 * the order of this rank's stream: after an error the caller frees them.
 */
typedef struct zr_comm_backend {
    const char *name; /* static */

    /* Leave, tell the other ranks, free. After this no rank waits for this one. */
    void (*destroy)(zr_comm_t *comm);
    /* Make all calls, waiting and later, fail with this rank and reason. From any thread. */
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
    /* Whether queued collectives were made as far as their streams have passed; otherwise logs why.
     * NULL: what was queued is made, or the device reports it. */
    zr_status_t (*check)(zr_comm_t *comm);
} zr_comm_backend_t;

typedef zr_status_t (*zr_comm_entry_fn)(zr_comm_t *comm, const zr_comm_call_t *call);

typedef struct zr_comm_seconds {
    double wait, move; /* as in zr_comm_statistics_t */
} zr_comm_seconds_t;

/** Calls on a stream that has a thread: queued_internal.h. */
typedef struct zr_comm_queue {
    zr_stream_t *stream;  /* of the latest queued call; the rank's own */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t emptied;
    size_t n_calls;     /* queued, and not made yet */
    zr_status_t failed; /* the first of them */
    zr_comm_seconds_t own, queued;
} zr_comm_queue_t;

/** First member of every backend's handle. */
struct zr_comm {
    const zr_comm_backend_t *backend;
    zr_comm_options_t options; /* log: with the rank in the first communicator, not in a group */
    int rank;
    int n_ranks;
    struct zr_control *control; /* by which ranks agree; owned. NULL: by nothing of this folder */
    zr_device_t *device;        /* of the first call's stream, and so of every call's */
    const zr_device_t *call_device;  /* that the call being made works on; NULL: none yet */
    struct zr_allocator *allocator;  /* the caller's; NULL: there is none */
    uint64_t n_calls;                /* sequence of the latest call */
    zr_comm_statistics_t statistics; /* counts by comm.c; seconds by the backend, of all its calls,
                                        whatever thread makes them */
    zr_comm_queue_t queue;           /* queued.c's */
};

/** Fill the common part of a handle that a backend has made. */
void zr_comm_init(zr_comm_t *comm, const zr_comm_backend_t *backend,
                  const zr_comm_options_t *options, int rank, int n_ranks);

/** ZR_OK when a communicator can have these; otherwise logged, ZR_ERR_ARGUMENT. */
ZR_NODISCARD zr_status_t zr_comm_check_options(const zr_comm_options_t *options, int n_ranks);

/**
 * Tell the others some words, and hear theirs: a barrier that brings them along, on no device.
 *
 * @param own  [n_bytes] at most ZR_COMM_TELL_BYTES, as many on every rank
 * @param all  [n_ranks * n_bytes], by rank
 * @return as zr_comm_barrier
 */
ZR_NODISCARD zr_status_t zr_comm_tell(zr_comm_t *comm, const char *name, const void *own,
                                      size_t n_bytes, void *all);
#define ZR_COMM_TELL_BYTES ((size_t)256)

/** `all_gather of "h.3 parameters" (bf16, 1024 elements, model, call 17)`; cut to fit. */
void zr_comm_call_describe(const zr_comm_call_t *call, char *text, size_t text_bytes);
#define ZR_COMM_DESCRIPTION_BYTES 256

/** First element of all_reduce's slice of a rank: n_elems * rank / n_ranks without overflow. */
size_t zr_comm_slice_begin(size_t n_elems, int rank, int n_ranks);

/** Elements that one rank adds in a reduce_scatter or all_reduce: the most of any rank. */
size_t zr_comm_longest_slice(const zr_comm_t *comm, const zr_comm_call_t *call);

/**
 * Elements of each slice that ranks exchange at once, where sums in rank order go through a
 * workspace with room for one such piece of every other rank: at least a line of memory, and no
 * more than the longest slice. At least two ranks.
 */
size_t zr_comm_piece_elems(const zr_comm_t *comm, const zr_comm_call_t *call);

/** Seconds of a clock that only goes forward, for the statistics. */
double zr_comm_clock(void);

ZR_END_C
