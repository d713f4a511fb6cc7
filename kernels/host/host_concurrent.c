/* Streams and events of a host device: see host_concurrent.h. */
#include "kernels/host/host_concurrent.h"

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

struct zr_host_concurrent {
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
static item_t *take_first(zr_host_concurrent_t *concurrent) {
    pthread_mutex_lock(&concurrent->mutex);
    while (concurrent->first == NULL && !concurrent->is_ending)
        pthread_cond_wait(&concurrent->queued, &concurrent->mutex);
    item_t *item = concurrent->first;
    if (item != NULL && (concurrent->first = item->next) == NULL)
        concurrent->last_p = &concurrent->first;
    pthread_mutex_unlock(&concurrent->mutex);
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
    zr_host_concurrent_t *concurrent = argument;
    for (item_t *item = take_first(concurrent); item != NULL; item = take_first(concurrent)) {
        zr_status_t status = item->work.run(&concurrent->stream.base, &item->work);
        free(item);
        pass(concurrent->progress, status);
    }
    return NULL;
}

zr_status_t zr_host_queue(zr_stream_t *stream, const zr_host_work_t *work) {
    zr_host_concurrent_t *concurrent = ((zr_host_stream_t *)stream)->concurrent;
    item_t *item = malloc(sizeof(*item));
    if (item == NULL)
        return zr_fail(&stream->device->log, ZR_ERR_MEMORY,
                       "stream \"%s\": no memory to queue on it (%zu bytes)", stream->name,
                       sizeof(*item));
    *item = (item_t){.work = *work};
    concurrent->n_queued++;
    pthread_mutex_lock(&concurrent->mutex);
    *concurrent->last_p = item;
    concurrent->last_p = &item->next;
    pthread_cond_signal(&concurrent->queued);
    pthread_mutex_unlock(&concurrent->mutex);
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

static void free_concurrent(zr_host_concurrent_t *concurrent) {
    leave_progress(&concurrent->progress);
    pthread_cond_destroy(&concurrent->queued);
    pthread_mutex_destroy(&concurrent->mutex);
    free(concurrent);
}

/* NULL: no memory, or no thread. */
static zr_host_concurrent_t *create_concurrent(const zr_host_device_t *host, const char *name) {
    zr_host_concurrent_t *concurrent = calloc(1, sizeof(*concurrent));
    if (concurrent == NULL)
        return NULL;
    concurrent->view = *host;
    concurrent->view.base.ranges = NULL;
    concurrent->view.base.trace = NULL; /* who queues work records it */
    concurrent->view.base.info.synchronous = true;
    concurrent->view.is_concurrent = true;
    concurrent->stream.base =
        (zr_stream_t){.device = &concurrent->view.base, .name = name, .is_synchronous = true};
    concurrent->last_p = &concurrent->first;
    pthread_mutex_init(&concurrent->mutex, NULL);
    pthread_cond_init(&concurrent->queued, NULL);
    concurrent->progress = create_progress();
    if (concurrent->progress == NULL ||
        pthread_create(&concurrent->thread, NULL, thread_main, concurrent) != 0) {
        free_concurrent(concurrent);
        return NULL;
    }
    return concurrent;
}

zr_status_t zr_host_stream_create_concurrent(zr_device_t *device, const char *name,
                                             zr_stream_t **stream_p) {
    zr_stream_t *stream = NULL;
    ZR_TRY(zr_host_stream_create(device, name, &stream));
    if (!device->info.synchronous) {
        zr_host_stream_t *own = (zr_host_stream_t *)stream;
        own->concurrent = create_concurrent((zr_host_device_t *)device, name);
        own->base.is_synchronous = false;
        if (own->concurrent == NULL) {
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
    zr_host_concurrent_t *concurrent = ((zr_host_stream_t *)stream)->concurrent;
    if (concurrent != NULL) {
        pthread_mutex_lock(&concurrent->mutex);
        concurrent->is_ending = true;
        pthread_cond_signal(&concurrent->queued);
        pthread_mutex_unlock(&concurrent->mutex);
        pthread_join(concurrent->thread, NULL);
        free_concurrent(concurrent);
    }
    free(stream);
}

bool zr_host_stream_takes_calls(const zr_stream_t *stream) {
    return ((const zr_host_stream_t *)stream)->concurrent != NULL;
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
    zr_host_concurrent_t *concurrent = ((zr_host_stream_t *)stream)->concurrent;
    return concurrent != NULL ? hold(stream->device, concurrent->progress, concurrent->n_queued)
                              : ZR_OK;
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
    const zr_host_concurrent_t *concurrent = ((const zr_host_stream_t *)stream)->concurrent;
    leave_progress(&own->progress);
    if (concurrent != NULL) {
        own->progress = share_progress(concurrent->progress);
        own->ticket = concurrent->n_queued;
    }
    return ZR_OK;
}

zr_status_t zr_host_stream_wait(zr_stream_t *stream, zr_event_t *event) {
    const host_event_t *own = (const host_event_t *)event;
    const zr_host_concurrent_t *concurrent = ((const zr_host_stream_t *)stream)->concurrent;
    if (own->progress == NULL || (concurrent != NULL && concurrent->progress == own->progress))
        return ZR_OK;
    if (concurrent == NULL)
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
