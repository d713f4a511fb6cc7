/* Streams and events of a host device: see host_beside.h. */
#include "kernels/host/host_beside.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- how far a stream has come -------------------------------------------------------------- */

/* It outlives its stream where an event, or another stream's work, still looks at it. */
typedef struct zr_host_progress {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    _Atomic uint64_t n_done; /* pieces of work; written under the mutex */
    atomic_int n_users;
    zr_status_t failed; /* of the first piece that failed; under the mutex */
} zr_host_progress_t;

/* NULL: no memory. */
static zr_host_progress_t *create_progress(void) {
    zr_host_progress_t *progress = calloc(1, sizeof(*progress));
    if (progress == NULL)
        return NULL;
    pthread_mutex_init(&progress->mutex, NULL);
    pthread_cond_init(&progress->moved, NULL);
    atomic_init(&progress->n_users, 1);
    return progress;
}

static zr_host_progress_t *share_progress(zr_host_progress_t *progress) {
    atomic_fetch_add(&progress->n_users, 1);
    return progress;
}

static void leave_progress(zr_host_progress_t **progress) {
    if (*progress != NULL && atomic_fetch_sub(&(*progress)->n_users, 1) == 1) {
        pthread_cond_destroy(&(*progress)->moved);
        pthread_mutex_destroy(&(*progress)->mutex);
        free(*progress);
    }
    *progress = NULL;
}

static bool has_come(const zr_host_progress_t *progress, uint64_t ticket) {
    return atomic_load_explicit(&progress->n_done, memory_order_acquire) >= ticket;
}

static zr_status_t await(zr_host_progress_t *progress, uint64_t ticket) {
    pthread_mutex_lock(&progress->mutex);
    while (!has_come(progress, ticket))
        pthread_cond_wait(&progress->moved, &progress->mutex);
    zr_status_t failed = progress->failed;
    pthread_mutex_unlock(&progress->mutex);
    return failed;
}

/* ---- the queue ------------------------------------------------------------------------------ */

typedef struct item {
    struct item *next;
    zr_host_work_t work;
} item_t;

struct zr_host_beside {
    zr_host_device_t view;   /* of the device: what the thread works on */
    zr_host_stream_t stream; /* of the view */
    zr_host_progress_t *progress;
    uint64_t n_queued; /* the calling thread's */
    pthread_t thread;
    pthread_mutex_t mutex; /* guards what follows */
    pthread_cond_t queued;
    item_t *first, **last_p;
    bool is_ending;
};

/* The next piece of work; NULL: there is none to come. */
static item_t *take_first(zr_host_beside_t *beside) {
    pthread_mutex_lock(&beside->mutex);
    while (beside->first == NULL && !beside->is_ending)
        pthread_cond_wait(&beside->queued, &beside->mutex);
    item_t *item = beside->first;
    if (item != NULL && (beside->first = item->next) == NULL)
        beside->last_p = &beside->first;
    pthread_mutex_unlock(&beside->mutex);
    return item;
}

static void pass(zr_host_progress_t *progress, zr_status_t status) {
    pthread_mutex_lock(&progress->mutex);
    if (progress->failed == ZR_OK)
        progress->failed = status;
    atomic_fetch_add_explicit(&progress->n_done, 1, memory_order_release);
    pthread_cond_broadcast(&progress->moved);
    pthread_mutex_unlock(&progress->mutex);
}

static void *thread_main(void *argument) {
    zr_host_beside_t *beside = argument;
    for (item_t *item = take_first(beside); item != NULL; item = take_first(beside)) {
        zr_status_t status = item->work.run(&beside->stream.base, &item->work);
        free(item);
        pass(beside->progress, status);
    }
    return NULL;
}

zr_status_t zr_host_queue(zr_stream_t *stream, const zr_host_work_t *work) {
    zr_host_beside_t *beside = ((zr_host_stream_t *)stream)->beside;
    item_t *item = malloc(sizeof(*item));
    if (item == NULL)
        return zr_fail(&stream->device->log, ZR_ERR_MEMORY,
                       "stream \"%s\": no memory to queue on it (%zu bytes)", stream->name,
                       sizeof(*item));
    *item = (item_t){.work = *work};
    beside->n_queued++;
    pthread_mutex_lock(&beside->mutex);
    *beside->last_p = item;
    beside->last_p = &item->next;
    pthread_cond_signal(&beside->queued);
    pthread_mutex_unlock(&beside->mutex);
    return ZR_OK;
}

/* ---- streams -------------------------------------------------------------------------------- */

zr_status_t zr_host_stream_create(zr_device_t *device, const char *name, zr_stream_t **stream_p) {
    zr_host_stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "stream \"%s\": no memory (%zu bytes)", name,
                       sizeof(*stream));
    stream->base.is_synchronous = true;
    *stream_p = &stream->base;
    return ZR_OK;
}

static void free_beside(zr_host_beside_t *beside) {
    leave_progress(&beside->progress);
    pthread_cond_destroy(&beside->queued);
    pthread_mutex_destroy(&beside->mutex);
    free(beside);
}

/* NULL: no memory, or no thread. */
static zr_host_beside_t *create_beside(const zr_host_device_t *host, const char *name) {
    zr_host_beside_t *beside = calloc(1, sizeof(*beside));
    if (beside == NULL)
        return NULL;
    beside->view = *host;
    beside->view.base.ranges = NULL;
    beside->view.base.trace = NULL; /* who queues work records it */
    beside->view.base.info.synchronous = true;
    beside->view.is_beside = true;
    beside->stream.base =
        (zr_stream_t){.device = &beside->view.base, .name = name, .is_synchronous = true};
    beside->last_p = &beside->first;
    pthread_mutex_init(&beside->mutex, NULL);
    pthread_cond_init(&beside->queued, NULL);
    beside->progress = create_progress();
    if (beside->progress == NULL ||
        pthread_create(&beside->thread, NULL, thread_main, beside) != 0) {
        free_beside(beside);
        return NULL;
    }
    return beside;
}

zr_status_t zr_host_stream_create_beside(zr_device_t *device, const char *name,
                                         zr_stream_t **stream_p) {
    zr_stream_t *stream = NULL;
    ZR_TRY(zr_host_stream_create(device, name, &stream));
    if (!device->info.synchronous) {
        zr_host_stream_t *own = (zr_host_stream_t *)stream;
        own->beside = create_beside((zr_host_device_t *)device, name);
        own->base.is_synchronous = false;
        if (own->beside == NULL) {
            free(own);
            return zr_fail(&device->log, ZR_ERR_MEMORY,
                           "stream \"%s\": no memory for it, or no thread can be started", name);
        }
    }
    *stream_p = stream;
    return ZR_OK;
}

/* What is queued is done first. */
void zr_host_stream_destroy(zr_stream_t *stream) {
    zr_host_beside_t *beside = ((zr_host_stream_t *)stream)->beside;
    if (beside != NULL) {
        pthread_mutex_lock(&beside->mutex);
        beside->is_ending = true;
        pthread_cond_signal(&beside->queued);
        pthread_mutex_unlock(&beside->mutex);
        pthread_join(beside->thread, NULL);
        free_beside(beside);
    }
    free(stream);
}

bool zr_host_stream_takes_calls(const zr_stream_t *stream) {
    return ((const zr_host_stream_t *)stream)->beside != NULL;
}

static zr_status_t run_call(zr_stream_t *stream, const zr_host_work_t *work) {
    work->fn(work->context, stream);
    return ZR_OK;
}

zr_status_t zr_host_stream_call(zr_stream_t *stream, zr_stream_fn fn, void *context) {
    zr_host_work_t work = {.run = run_call, .fn = fn, .context = context};
    return zr_host_queue(stream, &work);
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Hold the calling thread, and count it where it has to wait. */
static zr_status_t hold(zr_device_t *device, zr_host_progress_t *progress, uint64_t ticket) {
    if (has_come(progress, ticket))
        return await(progress, ticket); /* whether it has failed */
    double begin = zr_device_now(device);
    zr_status_t status = await(progress, ticket);
    ((zr_host_device_t *)device)->wait_seconds += zr_device_now(device) - begin;
    return status;
}

double zr_host_wait_seconds(const zr_device_t *device) {
    return ((const zr_host_device_t *)device)->wait_seconds;
}

zr_status_t zr_host_stream_synchronize(zr_stream_t *stream) {
    zr_host_beside_t *beside = ((zr_host_stream_t *)stream)->beside;
    return beside != NULL ? hold(stream->device, beside->progress, beside->n_queued) : ZR_OK;
}

static zr_status_t run_wait(zr_stream_t *stream, const zr_host_work_t *work) {
    zr_host_progress_t *until = work->until;
    zr_status_t status = await(until, work->ticket);
    (void)stream;
    leave_progress(&until);
    return status;
}

/* ---- events --------------------------------------------------------------------------------- */

typedef struct host_event {
    zr_event_t base;
    zr_host_progress_t *progress; /* NULL: it has passed */
    uint64_t ticket;
} host_event_t;

zr_status_t zr_host_event_create(zr_device_t *device, zr_event_t **event_p) {
    host_event_t *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "no memory for an event (%zu bytes)",
                       sizeof(*event));
    *event_p = &event->base;
    return ZR_OK;
}

void zr_host_event_destroy(zr_event_t *event) {
    leave_progress(&((host_event_t *)event)->progress);
    free(event);
}

zr_status_t zr_host_event_record(zr_event_t *event, zr_stream_t *stream) {
    host_event_t *own = (host_event_t *)event;
    const zr_host_beside_t *beside = ((const zr_host_stream_t *)stream)->beside;
    leave_progress(&own->progress);
    if (beside != NULL) {
        own->progress = share_progress(beside->progress);
        own->ticket = beside->n_queued;
    }
    return ZR_OK;
}

zr_status_t zr_host_stream_wait(zr_stream_t *stream, zr_event_t *event) {
    const host_event_t *own = (const host_event_t *)event;
    const zr_host_beside_t *beside = ((const zr_host_stream_t *)stream)->beside;
    if (own->progress == NULL || (beside != NULL && beside->progress == own->progress))
        return ZR_OK;
    if (beside == NULL)
        return hold(stream->device, own->progress, own->ticket);
    zr_host_work_t work = {
        .run = run_wait, .until = share_progress(own->progress), .ticket = own->ticket};
    zr_status_t status = zr_host_queue(stream, &work);
    if (status != ZR_OK)
        leave_progress(&work.until);
    return status;
}

zr_status_t zr_host_event_synchronize(zr_event_t *event) {
    const host_event_t *own = (const host_event_t *)event;
    return own->progress == NULL ? ZR_OK : hold(event->device, own->progress, own->ticket);
}

zr_status_t zr_host_event_query(zr_event_t *event, bool *passed_p) {
    const host_event_t *own = (const host_event_t *)event;
    *passed_p = own->progress == NULL || has_come(own->progress, own->ticket);
    return ZR_OK;
}
