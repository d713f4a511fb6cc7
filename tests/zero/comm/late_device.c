/*
 * See late_device.h. Work is queued and runs only when somebody waits: then the heads of the
 * streams run, as their events allow, in an order that is drawn anew for each wait: the
 * waiter's stream before all others, after them, or mixed. A wait that was forgotten lets a
 * stream run ahead of what it needs, and the data shows it.
 */
#include "tests/zero/comm/late_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device_backend.h"

typedef struct late_event {
    zr_event_t base;
    uint64_t n_recorded; /* records queued */
    uint64_t n_passed;   /* the latest of them that has run */
    int n_users;         /* its owner, and work that is queued */
} late_event_t;

typedef struct work {
    struct work *next;
    late_event_t *event; /* a record or a wait; NULL for a sum */
    uint64_t ticket;     /* which record */
    bool is_wait;
    void *dst;
    zr_dtype_t dtype;
    size_t n_elems;
    int n_sources; /* 1: a copy, of U8 */
    const void *sources[];
} work_t;

typedef struct late_stream {
    zr_stream_t base;
    struct late_stream *next; /* of all */
    work_t *first, **last_p;
    bool fails_copy;
} late_stream_t;

/* The device: what `mutex` guards is all but `device`, which stays as it is while open. */
static struct {
    pthread_mutex_t mutex;
    zr_device_t device;
    int n_references;
    late_stream_t *streams;
    uint64_t draws;
} late = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static unsigned draw(unsigned below) {
    late.draws = late.draws * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(late.draws >> 33) % below;
}

static float load(const void *elems, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_F32 ? ((const float *)elems)[i]
                                 : zr_bf16_to_f32(((const zr_bf16_t *)elems)[i]);
}

static void run_sum(const work_t *work) {
    for (size_t i = 0; i < work->n_elems; i++) {
        float total = load(work->sources[0], work->dtype, i);
        for (int s = 1; s < work->n_sources; s++)
            total += load(work->sources[s], work->dtype, i);
        if (work->dtype == ZR_DTYPE_F32)
            ((float *)work->dst)[i] = total;
        else
            ((zr_bf16_t *)work->dst)[i] = zr_bf16_from_f32(total);
    }
}

static void drop_event(late_event_t *event) {
    if (--event->n_users == 0)
        free(event);
}

static bool is_ready(const late_stream_t *stream) {
    const work_t *work = stream->first;
    return work != NULL && (!work->is_wait || work->event->n_passed >= work->ticket);
}

static void run_first(late_stream_t *stream) {
    work_t *work = stream->first;
    if (work->event == NULL) {
        if (work->n_sources == 1)
            memcpy(work->dst, work->sources[0], work->n_elems);
        else
            run_sum(work);
    } else {
        if (!work->is_wait)
            work->event->n_passed = work->ticket;
        drop_event(work->event);
    }
    stream->first = work->next;
    if (stream->first == NULL)
        stream->last_p = &stream->first;
    free(work);
}

/* A ready stream, drawn; not `except` where there is another. NULL: none is ready. */
static late_stream_t *draw_ready(const late_stream_t *except) {
    late_stream_t *drawn = NULL;
    unsigned n_ready = 0;
    for (late_stream_t *stream = late.streams; stream != NULL; stream = stream->next)
        if (stream != except && is_ready(stream) && draw(++n_ready) == 0)
            drawn = stream;
    return drawn;
}

/* Run until the stream is empty. Mutex held. */
static void run_all_of(late_stream_t *target) {
    enum { TARGET_FIRST, TARGET_LAST, MIXED, N_ORDERS } order = draw(N_ORDERS);
    while (target->first != NULL) {
        late_stream_t *next = NULL;
        if (order == TARGET_FIRST && is_ready(target))
            next = target;
        if (next == NULL)
            next = draw_ready(order == TARGET_LAST ? target : NULL);
        if (next == NULL && is_ready(target))
            next = target;
        if (next == NULL) {
            fprintf(stderr, "late device: stream \"%s\" waits for what nobody records\n",
                    target->base.name);
            abort();
        }
        run_first(next);
    }
}

static work_t *make_work(int n_sources) {
    work_t *work = calloc(1, sizeof(*work) + (size_t)n_sources * sizeof(work->sources[0]));
    if (work == NULL)
        abort();
    work->n_sources = n_sources;
    return work;
}

/* Mutex held. */
static void queue_work(zr_stream_t *stream, work_t *work) {
    late_stream_t *own = (late_stream_t *)stream;
    *own->last_p = work;
    own->last_p = &work->next;
}

static void queue_event(zr_stream_t *stream, late_event_t *event, bool is_wait) {
    work_t *work = make_work(0);
    pthread_mutex_lock(&late.mutex);
    work->event = event;
    work->is_wait = is_wait;
    work->ticket = is_wait ? event->n_recorded : ++event->n_recorded;
    event->n_users++;
    queue_work(stream, work);
    pthread_mutex_unlock(&late.mutex);
}

/* ---- the table ---- */

static zr_status_t late_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                      void **base_p) {
    (void)device, (void)tier;
    void *base = aligned_alloc(4096, size_bytes);
    if (base == NULL)
        return ZR_ERR_BUDGET;
    *base_p = base;
    return ZR_OK;
}

static void late_range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes) {
    (void)device, (void)tier, (void)size_bytes;
    free(base);
}

static zr_status_t late_range_map(zr_device_t *device, zr_tier_t tier, void *base,
                                  size_t offset_bytes, size_t size_bytes) {
    (void)device, (void)tier, (void)base, (void)offset_bytes, (void)size_bytes;
    return ZR_OK;
}

static zr_status_t late_stream_create(zr_device_t *device, const char *name,
                                      zr_stream_t **stream_p) {
    (void)device, (void)name;
    late_stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return ZR_ERR_MEMORY;
    stream->last_p = &stream->first;
    pthread_mutex_lock(&late.mutex);
    stream->next = late.streams;
    late.streams = stream;
    pthread_mutex_unlock(&late.mutex);
    *stream_p = &stream->base;
    return ZR_OK;
}

static zr_status_t late_stream_synchronize(zr_stream_t *stream) {
    pthread_mutex_lock(&late.mutex);
    run_all_of((late_stream_t *)stream);
    pthread_mutex_unlock(&late.mutex);
    return ZR_OK;
}

static void late_stream_destroy(zr_stream_t *stream) {
    late_stream_t *own = (late_stream_t *)stream;
    pthread_mutex_lock(&late.mutex);
    run_all_of(own);
    late_stream_t **link = &late.streams;
    while (*link != own)
        link = &(*link)->next;
    *link = own->next;
    pthread_mutex_unlock(&late.mutex);
    free(own);
}

static zr_status_t late_event_create(zr_device_t *device, zr_event_t **event_p) {
    (void)device;
    late_event_t *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return ZR_ERR_MEMORY;
    event->n_users = 1;
    *event_p = &event->base;
    return ZR_OK;
}

static void late_event_destroy(zr_event_t *event) {
    pthread_mutex_lock(&late.mutex);
    drop_event((late_event_t *)event);
    pthread_mutex_unlock(&late.mutex);
}

static zr_status_t late_event_record(zr_event_t *event, zr_stream_t *stream) {
    queue_event(stream, (late_event_t *)event, false);
    return ZR_OK;
}

static zr_status_t late_stream_wait(zr_stream_t *stream, zr_event_t *event) {
    queue_event(stream, (late_event_t *)event, true);
    return ZR_OK;
}

static zr_status_t late_event_query(zr_event_t *event, bool *passed_p) {
    const late_event_t *own = (const late_event_t *)event;
    pthread_mutex_lock(&late.mutex);
    *passed_p = own->n_passed == own->n_recorded;
    pthread_mutex_unlock(&late.mutex);
    return ZR_OK;
}

static zr_status_t late_copy(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                             zr_copy_t kind) {
    late_stream_t *own = (late_stream_t *)stream;
    if (own->fails_copy && kind == ZR_COPY_DEVICE_TO_DEVICE) {
        own->fails_copy = false;
        return ZR_ERR_DEVICE;
    }
    work_t *work = make_work(1);
    work->dst = dst;
    work->sources[0] = src;
    work->n_elems = size_bytes;
    pthread_mutex_lock(&late.mutex);
    queue_work(stream, work);
    pthread_mutex_unlock(&late.mutex);
    return ZR_OK;
}

static zr_status_t late_sum(zr_stream_t *stream, void *dst, const void *const *sources,
                            int n_sources, zr_dtype_t dtype, size_t n_elems) {
    work_t *work = make_work(n_sources);
    work->dst = dst;
    memcpy(work->sources, sources, (size_t)n_sources * sizeof(sources[0]));
    work->dtype = dtype;
    work->n_elems = n_elems;
    pthread_mutex_lock(&late.mutex);
    queue_work(stream, work);
    pthread_mutex_unlock(&late.mutex);
    return ZR_OK;
}

static const zr_device_backend_t late_backend = {
    .name = "late",
    .range_reserve = late_range_reserve,
    .range_release = late_range_release,
    .range_map = late_range_map,
    .range_unmap = late_range_map,
    .stream_create = late_stream_create,
    .stream_destroy = late_stream_destroy,
    .stream_synchronize = late_stream_synchronize,
    .event_create = late_event_create,
    .event_destroy = late_event_destroy,
    .event_record = late_event_record,
    .stream_wait = late_stream_wait,
    .event_query = late_event_query,
    .copy_async = late_copy,
    .sum = late_sum,
};

zr_status_t late_device_open(zr_device_t **device_p) {
    pthread_mutex_lock(&late.mutex);
    if (late.n_references++ == 0)
        late.device = (zr_device_t){.backend = &late_backend,
                                    .log = zr_log_default(),
                                    .info = {.backend = "late", .granule_bytes = 4096}};
    pthread_mutex_unlock(&late.mutex);
    *device_p = &late.device;
    return ZR_OK;
}

void late_device_close(zr_device_t **device) {
    pthread_mutex_lock(&late.mutex);
    late.n_references--;
    pthread_mutex_unlock(&late.mutex);
    *device = NULL;
}

void late_device_fail_copy(zr_stream_t *stream) {
    ((late_stream_t *)stream)->fails_copy = true;
}
