/*
 * One NCCL communicator, and the thread that watches over it.
 *
 * Nothing here waits without a limit, although NCCL does: communicators are non-blocking, and what
 * waits for them is ended by ncclCommAbort. Who aborts cannot be the rank's own thread, which may
 * be waiting for a stream that hangs in a collective. So a thread per link looks after what is
 * queued, a few times a second: it aborts when NCCL reports an error, when a collective that has
 * begun does not end within the time limit, and when another rank has ended the communicator. The
 * stream then passes, with whatever is in the tensors; that this was no success is known by then
 * (control.h), and the next call or zr_comm_check says why.
 *
 * Threads: calls belong to the rank's thread.
 */
#pragma once

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "kernels/base/lived_internal.h"
#include "zero/comm/control_internal.h"
#include "zero/comm/nccl/nccl_library.h"

/* Launches that are queued and not known to have passed; more of them wait. */
#define ZR_NCCL_NOTES 64

/* A launch in a stream, between two events. */
typedef struct zr_nccl_note {
    cudaEvent_t begin, end;
    int64_t begun_ms; /* of the watch's clock, when it was first seen at the head of its stream;
                         -1: not yet */
    char call[ZR_COMM_DESCRIPTION_BYTES];
} zr_nccl_note_t;

typedef struct zr_nccl_link {
    zr_nccl_library_t nccl;
    zr_control_t *control; /* borrowed */
    int timeout_ms;
    int device; /* CUDA's number */
    pthread_t watch;
    zr_lived_t clock; /* the watch's own */

    /* Guards what follows, and is held for each call of NCCL. Such calls are short. */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something was queued, or the link is closing */
    ncclComm_t handle;      /* NULL: aborted */
    bool is_closing;
    size_t n_queued, n_passed; /* notes, ever; note i is notes[i % ZR_NCCL_NOTES] */
    zr_nccl_note_t notes[ZR_NCCL_NOTES];
} zr_nccl_link_t;

/** What a rank gives NCCL in one group; `handle` is the link's. */
typedef ncclResult_t (*zr_nccl_parts_fn)(zr_nccl_link_t *link, void *context);

/**
 * Make the NCCL communicator of these ranks, on the CUDA device of the call's stream.
 *
 * @param nccl  copied
 * @param call  the first to need it
 * @param id    the same on every rank; one rank asks NCCL for it
 * @return ZR_OK; otherwise the control has ended, with the reason, and nothing is logged:
 *         ZR_ERR_MEMORY, ZR_ERR_DEVICE, ZR_ERR_COMM
 */
ZR_NODISCARD zr_status_t zr_nccl_link_open(const zr_nccl_library_t *nccl, zr_control_t *control,
                                           int timeout_ms, const zr_comm_call_t *call,
                                           const ncclUniqueId *id, zr_nccl_link_t **link_p);

/**
 * Queue what `parts` gives NCCL, as one group, on the call's stream. Status as above.
 */
ZR_NODISCARD zr_status_t zr_nccl_link_queue(zr_nccl_link_t *link, const zr_comm_call_t *call,
                                            zr_nccl_parts_fn parts, void *context);

/** Give up whatever is queued. */
void zr_nccl_link_abort(zr_nccl_link_t *link);

/** Wait for what is queued, within the time limit, and free; *link == NULL is fine. */
void zr_nccl_link_close(zr_nccl_link_t **link);
