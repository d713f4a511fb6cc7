/* See nccl_link.h. */
#include "zero/comm/nccl/nccl_link.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/cuda/cuda_device.h"

/* How often the watch looks while something is queued. */
#define WATCH_MS 20

/* Moments between looks at what is in progress. NCCL's thread takes tens of microseconds to queue a
 * group, and a nap takes longer than it says; so naps begin after a millisecond or two. */
static void pause_a_little(int n_looks) {
    if (n_looks < 2048) {
        sched_yield();
        return;
    }
    struct timespec moment = {.tv_nsec = n_looks < 3072 ? 20000 : 1000000};
    nanosleep(&moment, NULL);
}

/* ---- failures: the control ends, with what failed as the reason ------------------------------ */

static zr_status_t status_of(ncclResult_t result) {
    return result == ncclUnhandledCudaError ? ZR_ERR_DEVICE : ZR_ERR_COMM;
}

static zr_status_t fail_nccl(zr_nccl_link_t *link, const char *call, const char *action,
                             ncclResult_t result) {
    zr_status_t status = status_of(result);
    const char *detail = link->handle != NULL ? link->nccl.ncclGetLastError_p(link->handle) : "";
    zr_control_kill(link->control,
                    "failed with %s in %s: %s: %s%s%.256s; NCCL_DEBUG=WARN says more",
                    zr_status_name(status), call, action, link->nccl.ncclGetErrorString_p(result),
                    *detail != '\0' ? ": " : "", detail);
    return status;
}

static zr_status_t fail_cuda(zr_nccl_link_t *link, const char *call, const char *action,
                             cudaError_t error) {
    (void)cudaGetLastError();
    zr_control_kill(link->control, "failed with %s in %s: cuda:%d: %s: %s (%s)",
                    zr_status_name(ZR_ERR_DEVICE), call, link->device, action,
                    cudaGetErrorString(error), cudaGetErrorName(error));
    return ZR_ERR_DEVICE;
}

static void fail_late(zr_nccl_link_t *link, const char *call, const char *what) {
    zr_control_kill(link->control, "has waited %d ms for %s to %s", link->timeout_ms, call, what);
}

/* ---- giving up ------------------------------------------------------------------------------- */

/* Lock held; given up while NCCL works, which may take long. */
static void abort_locked(zr_nccl_link_t *link) {
    ncclComm_t handle = link->handle;
    link->handle = NULL; /* nobody else uses it from now on */
    if (handle == NULL)
        return;
    pthread_mutex_unlock(&link->lock);
    (void)link->nccl.ncclCommAbort_p(handle); /* the reason is known, and there is no other way */
    pthread_mutex_lock(&link->lock);
}

void zr_nccl_link_abort(zr_nccl_link_t *link) {
    pthread_mutex_lock(&link->lock);
    abort_locked(link);
    pthread_mutex_unlock(&link->lock);
}

static bool is_given_up(zr_nccl_link_t *link) {
    return zr_control_has_failed(link->control);
}

/* ---- the watch ------------------------------------------------------------------------------- */

/* Count off the launches that have passed. Lock held. */
static cudaError_t count_passed(zr_nccl_link_t *link) {
    while (link->n_passed < link->n_queued) {
        cudaError_t error = cudaEventQuery(link->notes[link->n_passed % ZR_NCCL_NOTES].end);
        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* which is no failure of the next launch */
            return cudaSuccess;
        }
        if (error != cudaSuccess)
            return error;
        link->n_passed++;
    }
    return cudaSuccess;
}

/* Whether the oldest launch, which there is, has been at the head of its stream for too long. Lock
 * held. */
static bool is_late(zr_nccl_link_t *link) {
    zr_nccl_note_t *note = &link->notes[link->n_passed % ZR_NCCL_NOTES];
    int64_t now_ms = zr_lived_ms(&link->clock);
    if (note->begun_ms < 0 && cudaEventQuery(note->begin) == cudaSuccess)
        note->begun_ms = now_ms;
    return note->begun_ms >= 0 && now_ms - note->begun_ms > link->timeout_ms;
}

/* Look at everything once; abort where it is time to. Lock held. */
static void look(zr_nccl_link_t *link) {
    ncclResult_t result = ncclSuccess;
    cudaError_t error = count_passed(link);
    if (link->handle == NULL || link->n_passed == link->n_queued)
        return;
    const char *call = link->notes[link->n_passed % ZR_NCCL_NOTES].call;
    ncclResult_t asked = link->nccl.ncclCommGetAsyncError_p(link->handle, &result);
    if (asked != ncclSuccess)
        result = asked;
    if (error != cudaSuccess)
        fail_cuda(link, call, "the work before it", error);
    else if (result != ncclSuccess && result != ncclInProgress)
        fail_nccl(link, call, "ncclCommGetAsyncError", result);
    else if (is_late(link))
        fail_late(link, call, "be done on its device");
    if (is_given_up(link))
        abort_locked(link);
}

static void *watch_main(void *argument) {
    zr_nccl_link_t *link = argument;
    (void)cudaSetDevice(link->device); /* what fails for want of it is reported there */
    pthread_mutex_lock(&link->lock);
    while (!link->is_closing) {
        if (link->n_passed == link->n_queued) {
            pthread_cond_wait(&link->changed, &link->lock);
            continue;
        }
        zr_lived_wait(&link->changed, &link->lock, WATCH_MS);
        look(link);
    }
    pthread_mutex_unlock(&link->lock);
    return NULL;
}

/* ---- what is in progress --------------------------------------------------------------------- */

/*
 * Wait until NCCL has done what it was asked for: not the work, which is queued then, but the
 * queueing. `what` is for the message.
 */
static zr_status_t settle(zr_nccl_link_t *link, const char *call, const char *what) {
    zr_lived_t clock = {0};
    for (int n_looks = 0;; n_looks++) {
        ncclResult_t result = ncclSuccess, asked = ncclSuccess;
        pthread_mutex_lock(&link->lock);
        bool is_aborted = link->handle == NULL || is_given_up(link);
        if (!is_aborted)
            asked = link->nccl.ncclCommGetAsyncError_p(link->handle, &result);
        zr_status_t status = ZR_OK;
        if (asked != ncclSuccess || (result != ncclSuccess && result != ncclInProgress))
            status = fail_nccl(link, call, what, asked != ncclSuccess ? asked : result);
        pthread_mutex_unlock(&link->lock);
        if (is_aborted || status != ZR_OK)
            return is_aborted ? ZR_ERR_COMM : status;
        if (result == ncclSuccess)
            return ZR_OK;
        if (zr_lived_ms(&clock) > link->timeout_ms) {
            fail_late(link, call, what);
            return ZR_ERR_COMM;
        }
        pause_a_little(n_looks);
    }
}

/* ---- queueing -------------------------------------------------------------------------------- */

static zr_status_t find_room(zr_nccl_link_t *link, const char *call) {
    for (int n_looks = 0;; n_looks++) {
        pthread_mutex_lock(&link->lock);
        cudaError_t error =
            link->n_queued - link->n_passed < ZR_NCCL_NOTES ? cudaSuccess : count_passed(link);
        bool has_room = link->n_queued - link->n_passed < ZR_NCCL_NOTES;
        pthread_mutex_unlock(&link->lock);
        if (error != cudaSuccess)
            return fail_cuda(link, call, "the work before it", error);
        if (has_room)
            return ZR_OK;
        pause_a_little(n_looks);
    }
}

/* Note, in the stream, that what comes is this call. */
static zr_status_t begin_note(zr_nccl_link_t *link, const char *call, cudaStream_t stream) {
    ZR_TRY(find_room(link, call));
    zr_nccl_note_t *note = &link->notes[link->n_queued % ZR_NCCL_NOTES];
    cudaError_t error = cudaSetDevice(link->device);
    if (error == cudaSuccess && note->begin == NULL)
        error = cudaEventCreateWithFlags(&note->begin, cudaEventDisableTiming);
    if (error == cudaSuccess && note->end == NULL)
        error = cudaEventCreateWithFlags(&note->end, cudaEventDisableTiming);
    if (error == cudaSuccess)
        error = cudaEventRecord(note->begin, stream);
    if (error != cudaSuccess)
        return fail_cuda(link, call, "an event", error);
    note->begun_ms = -1;
    snprintf(note->call, sizeof(note->call), "%s", call);
    return ZR_OK;
}

static zr_status_t end_note(zr_nccl_link_t *link, const char *call, cudaStream_t stream) {
    cudaError_t error = cudaEventRecord(link->notes[link->n_queued % ZR_NCCL_NOTES].end, stream);
    if (error != cudaSuccess)
        return fail_cuda(link, call, "an event", error);
    pthread_mutex_lock(&link->lock);
    link->n_queued++;
    pthread_cond_signal(&link->changed);
    pthread_mutex_unlock(&link->lock);
    return ZR_OK;
}

static bool is_fine(ncclResult_t result) {
    return result == ncclSuccess || result == ncclInProgress;
}

/* The group, whose end comes also where a part has failed: it belongs to the thread. */
static zr_status_t launch(zr_nccl_link_t *link, const char *call, zr_nccl_parts_fn parts,
                          void *context) {
    const char *action = "ncclGroupStart";
    pthread_mutex_lock(&link->lock);
    if (link->handle == NULL) {
        pthread_mutex_unlock(&link->lock);
        return ZR_ERR_COMM;
    }
    ncclResult_t result = link->nccl.ncclGroupStart_p();
    if (is_fine(result)) {
        action = "queueing it";
        result = parts(link, context);
        ncclResult_t ended = link->nccl.ncclGroupEnd_p();
        if (is_fine(result) && !is_fine(ended)) {
            action = "ncclGroupEnd";
            result = ended;
        }
    }
    zr_status_t status = is_fine(result) ? ZR_OK : fail_nccl(link, call, action, result);
    pthread_mutex_unlock(&link->lock);
    return status;
}

zr_status_t zr_nccl_link_queue(zr_nccl_link_t *link, const zr_comm_call_t *call,
                               zr_nccl_parts_fn parts, void *context) {
    char text[ZR_COMM_DESCRIPTION_BYTES];
    zr_comm_call_describe(call, text, sizeof(text));
    cudaStream_t stream = zr_cuda_queue(call->stream);
    ZR_TRY(begin_note(link, text, stream));
    ZR_TRY(launch(link, text, parts, context));
    ZR_TRY(settle(link, text, "be queued"));
    return end_note(link, text, stream);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void free_link(zr_nccl_link_t *link) {
    for (size_t i = 0; i < ZR_NCCL_NOTES; i++) {
        if (link->notes[i].begin != NULL)
            (void)cudaEventDestroy(link->notes[i].begin);
        if (link->notes[i].end != NULL)
            (void)cudaEventDestroy(link->notes[i].end);
    }
    pthread_cond_destroy(&link->changed);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

/* The communicator, and its watch. */
static zr_status_t connect_ranks(zr_nccl_link_t *link, const char *call, const ncclUniqueId *id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    cudaError_t error = cudaSetDevice(link->device);
    if (error != cudaSuccess)
        return fail_cuda(link, call, "using the device", error);
    ncclComm_t handle = NULL;
    ncclResult_t result = link->nccl.ncclCommInitRankConfig_p(&handle, link->control->n_ranks, *id,
                                                              link->control->rank, &config);
    link->handle = handle;
    if (!is_fine(result))
        return fail_nccl(link, call, "ncclCommInitRankConfig", result);
    ZR_TRY(settle(link, call, "connect its ranks through NCCL"));
    if (pthread_create(&link->watch, NULL, watch_main, link) != 0) {
        zr_control_kill(link->control, "has no memory for the thread that monitors NCCL");
        return ZR_ERR_MEMORY;
    }
    return ZR_OK;
}

zr_status_t zr_nccl_link_open(const zr_nccl_library_t *nccl, zr_control_t *control, int timeout_ms,
                              const zr_comm_call_t *call, const ncclUniqueId *id,
                              zr_nccl_link_t **link_p) {
    char text[ZR_COMM_DESCRIPTION_BYTES];
    zr_nccl_link_t *link = calloc(1, sizeof(*link));
    if (link == NULL || !zr_lived_init(&link->lock, &link->changed)) {
        free(link);
        zr_control_kill(control, "has no memory for its part of NCCL's communicator");
        return ZR_ERR_MEMORY;
    }
    link->nccl = *nccl;
    link->control = control;
    link->timeout_ms = timeout_ms;
    link->device = ((zr_cuda_device_t *)zr_stream_device(call->stream))->index;
    zr_comm_call_describe(call, text, sizeof(text));
    zr_status_t status = connect_ranks(link, text, id);
    if (status != ZR_OK) {
        zr_nccl_link_abort(link);
        free_link(link);
        return status;
    }
    *link_p = link;
    return ZR_OK;
}

/* Wait for the queued work: it passes, or the watch ends it. */
static void drain(zr_nccl_link_t *link) {
    for (int n_looks = 0;; n_looks++) {
        pthread_mutex_lock(&link->lock);
        cudaError_t error = count_passed(link);
        bool is_drained = link->n_passed == link->n_queued || error != cudaSuccess;
        pthread_mutex_unlock(&link->lock);
        if (is_drained)
            return;
        pause_a_little(n_looks);
    }
}

/* The regular end; what it does not end within the time limit is aborted. */
static void finalize(zr_nccl_link_t *link) {
    pthread_mutex_lock(&link->lock);
    ncclComm_t handle = link->handle;
    if (handle != NULL && is_fine(link->nccl.ncclCommFinalize_p(handle))) {
        pthread_mutex_unlock(&link->lock);
        zr_status_t status = settle(link, "the end", "finalize NCCL");
        pthread_mutex_lock(&link->lock);
        if (status == ZR_OK) {
            (void)link->nccl.ncclCommDestroy_p(handle); /* nothing is left that could be lost */
            link->handle = NULL;
        }
    }
    pthread_mutex_unlock(&link->lock);
}

void zr_nccl_link_close(zr_nccl_link_t **link_pp) {
    zr_nccl_link_t *link = *link_pp;
    if (link == NULL)
        return;
    *link_pp = NULL;
    drain(link);
    pthread_mutex_lock(&link->lock);
    link->is_closing = true;
    pthread_cond_signal(&link->changed);
    pthread_mutex_unlock(&link->lock);
    pthread_join(link->watch, NULL);
    if (!is_given_up(link))
        finalize(link);
    zr_nccl_link_abort(link);
    free_link(link);
}
