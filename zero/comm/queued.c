/* See queued_internal.h. */
#include "zero/comm/queued_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct queued_call {
    zr_comm_t *comm;
    zr_comm_call_t call;
    zr_comm_entry_fn entry;
    char tensor[]; /* its name */
} queued_call_t;

void zr_comm_queue_init(zr_comm_queue_t *queue) {
    *queue = (zr_comm_queue_t){0};
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->emptied, NULL);
}

static void drain(zr_comm_queue_t *queue) {
    pthread_mutex_lock(&queue->lock);
    while (queue->n_calls > 0)
        pthread_cond_wait(&queue->emptied, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
}

void zr_comm_queue_clear(zr_comm_queue_t *queue) {
    drain(queue);
    pthread_cond_destroy(&queue->emptied);
    pthread_mutex_destroy(&queue->lock);
}

zr_status_t zr_comm_queue_status(zr_comm_queue_t *queue) {
    pthread_mutex_lock(&queue->lock);
    zr_status_t failed = queue->failed;
    pthread_mutex_unlock(&queue->lock);
    return failed;
}

void zr_comm_queue_seconds(zr_comm_queue_t *queue, zr_comm_statistics_t *statistics_p) {
    pthread_mutex_lock(&queue->lock);
    statistics_p->wait_seconds = queue->own.wait;
    statistics_p->move_seconds = queue->own.move;
    statistics_p->queued_wait_seconds = queue->queued.wait;
    statistics_p->queued_move_seconds = queue->queued.move;
    pthread_mutex_unlock(&queue->lock);
}

/* ---- calls ---- */

/* The backend adds up what its calls take; here it is told apart whose time that is. */
static zr_status_t make(zr_comm_t *comm, const zr_comm_call_t *call, zr_comm_entry_fn entry,
                        zr_comm_seconds_t *seconds) {
    zr_comm_statistics_t *statistics = &comm->statistics;
    double waited = statistics->wait_seconds, moved = statistics->move_seconds;
    comm->call_device = call->stream != NULL ? zr_stream_device(call->stream) : comm->device;
    zr_status_t status = entry(comm, call);
    pthread_mutex_lock(&comm->queue.lock);
    seconds->wait += statistics->wait_seconds - waited;
    seconds->move += statistics->move_seconds - moved;
    pthread_mutex_unlock(&comm->queue.lock);
    return status;
}

/* In the stream's thread. */
static void run_queued(void *context, zr_stream_t *stream) {
    queued_call_t *queued = context;
    zr_comm_queue_t *queue = &queued->comm->queue;
    zr_status_t status = zr_comm_queue_status(queue);
    if (status == ZR_OK) {
        queued->call.stream = stream;
        status = make(queued->comm, &queued->call, queued->entry, &queue->queued);
    }
    free(queued);
    pthread_mutex_lock(&queue->lock);
    if (queue->failed == ZR_OK)
        queue->failed = status;
    if (--queue->n_calls == 0)
        pthread_cond_broadcast(&queue->emptied);
    pthread_mutex_unlock(&queue->lock);
}

static zr_status_t queue_call(zr_comm_t *comm, const zr_comm_call_t *call, zr_comm_entry_fn entry) {
    zr_comm_queue_t *queue = &comm->queue;
    size_t name_bytes = strlen(call->message.tensor) + 1;
    queued_call_t *queued = malloc(sizeof(*queued) + name_bytes);
    if (queued == NULL)
        return zr_fail(&comm->options.log, ZR_ERR_MEMORY,
                       "%s of \"%s\": no memory to queue it (%zu bytes)",
                       zr_collective_name(call->collective), call->message.tensor,
                       sizeof(*queued) + name_bytes);
    *queued = (queued_call_t){.comm = comm, .call = *call, .entry = entry};
    memcpy(queued->tensor, call->message.tensor, name_bytes);
    queued->call.message.tensor = queued->tensor;
    queue->stream = call->stream;
    pthread_mutex_lock(&queue->lock);
    queue->n_calls++;
    pthread_mutex_unlock(&queue->lock);
    zr_status_t status = zr_stream_call(call->stream, run_queued, queued);
    if (status == ZR_OK)
        return ZR_OK;
    pthread_mutex_lock(&queue->lock);
    queue->n_calls--;
    pthread_mutex_unlock(&queue->lock);
    free(queued);
    return status;
}

/* A communicator that is dead has said why. */
static bool is_deadly(zr_status_t status) {
    return status == ZR_ERR_COMM || status == ZR_ERR_DEVICE;
}

zr_status_t zr_comm_queue_run(zr_comm_t *comm, const zr_comm_call_t *call, zr_comm_entry_fn entry) {
    zr_comm_queue_t *queue = &comm->queue;
    bool can_queue = call->stream != NULL && zr_stream_takes_calls(call->stream);
    zr_status_t failed = zr_comm_queue_status(queue);
    if (!can_queue || queue->stream != call->stream || failed != ZR_OK) {
        drain(queue);
        failed = zr_comm_queue_status(queue); /* of what was queued, too */
    }
    if (can_queue && failed == ZR_OK)
        return queue_call(comm, call, entry);
    if (failed != ZR_OK && !is_deadly(failed))
        return zr_fail(&comm->options.log, failed,
                       "%s of \"%s\": an earlier queued call has failed",
                       zr_collective_name(call->collective), call->message.tensor);
    return make(comm, call, entry, &queue->own);
}
