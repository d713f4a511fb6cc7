/*
 * See late_device.h. Work is queued and runs only when somebody waits: then the heads of the
 * streams of all late devices run, as their events allow, in an order that is drawn anew for
 * each wait: the waiter's stream before all others, after them, or mixed. A wait that was
 * forgotten lets a stream run ahead of what it needs, and the data shows it.
 *
 * Each device keeps a host device, whose kernels do the work when its time has come.
 */
#include "tests/common/late_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "allocator/internal.h"
#include "kernels/nn/nn.h"

typedef struct late_device {
    zr_device_t base;
    zr_device_t *host;
    zr_stream_t *host_stream;
} late_device_t;

typedef struct late_event {
    zr_event_t base;
    uint64_t n_recorded; /* records queued */
    uint64_t n_passed;   /* the latest of them that has run */
    int n_users;         /* its owner, and work that is queued */
} late_event_t;

/* Arguments of a kernel or copy, as they were when it was queued. */
typedef struct late_args {
    zr_kernel_work_t kernel; /* of a copy dst, src, and its bytes */
    zr_update_t update;
    zr_copy_t kind;
    void *dst;            /* of a sum */
    const void **sources; /* of it; owned */
    zr_nn_work_t nn;      /* a transformer's kernel, with these arguments */
    _Alignas(16) unsigned char nn_args[256];
} late_args_t;

typedef zr_status_t (*late_run_fn)(zr_stream_t *host_stream, const late_args_t *args);

typedef struct work {
    struct work *next;
    uint64_t number;     /* work of a stream is numbered in its order, from 1 */
    late_event_t *event; /* a record or a wait; NULL: run(args) */
    uint64_t ticket;     /* which record */
    bool is_wait;
    late_run_fn run;
    late_args_t args;
} work_t;

typedef struct late_stream {
    zr_stream_t base;
    struct late_stream *next; /* of all devices */
    work_t *first, **last_p;
    uint64_t n_works; /* queued so far */
    uint64_t
        n_before; /* while frees are checked: so many of them come before what is asked about */
    bool fails_copy;
    int fails_work; /* the n-th from now; 0: none */
} late_stream_t;

/* All late devices: the mutex guards everything here, and what is queued. */
static struct {
    pthread_mutex_t mutex;
    late_stream_t *streams;
    uint64_t draws;
    bool ignores_waits;
} late = {.mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP}; /* a kernel that runs asks for events:
                                                                transfers go on (zr_background) */

/* ---- running ---- */

static unsigned draw(unsigned below) {
    late.draws = late.draws * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(late.draws >> 33) % below;
}

static void drop_event(late_event_t *event) {
    if (--event->n_users == 0)
        free(event);
}

static bool is_ready(const late_stream_t *stream) {
    const work_t *work = stream->first;
    return work != NULL &&
           (!work->is_wait || late.ignores_waits || work->event->n_passed >= work->ticket);
}

static void run_first(late_stream_t *stream) {
    work_t *work = stream->first;
    late_device_t *device = (late_device_t *)stream->base.device;
    if (work->event == NULL) {
        if (work->run(device->host_stream, &work->args) != ZR_OK)
            abort();
        free(work->args.sources);
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

/* ---- queueing ---- */

static zr_status_t queue_work(zr_stream_t *stream, const work_t *content) {
    late_stream_t *own = (late_stream_t *)stream;
    work_t *work = malloc(sizeof(*work));
    if (work == NULL)
        abort();
    *work = *content;
    work->number = ++own->n_works;
    *own->last_p = work;
    own->last_p = &work->next;
    return ZR_OK;
}

static zr_status_t queue_run(zr_stream_t *stream, late_run_fn run, const late_args_t *args) {
    late_stream_t *own = (late_stream_t *)stream;
    work_t work = {.run = run, .args = *args};
    if (own->fails_work > 0 && --own->fails_work == 0) {
        free(args->sources);
        return ZR_ERR_DEVICE;
    }
    pthread_mutex_lock(&late.mutex);
    zr_status_t status = queue_work(stream, &work);
    pthread_mutex_unlock(&late.mutex);
    return status;
}

static zr_status_t queue_event(zr_stream_t *stream, zr_event_t *event, bool is_wait) {
    late_event_t *own = (late_event_t *)event;
    pthread_mutex_lock(&late.mutex);
    work_t work = {
        .event = own, .is_wait = is_wait, .ticket = is_wait ? own->n_recorded : ++own->n_recorded};
    own->n_users++;
    zr_status_t status = queue_work(stream, &work);
    pthread_mutex_unlock(&late.mutex);
    return status;
}

/* ---- ranges ---- */

static zr_device_t *host_of(zr_device_t *device) {
    return ((late_device_t *)device)->host;
}

static zr_status_t late_range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                      void **base_p) {
    pthread_mutex_lock(&late.mutex);
    zr_status_t status = zr_range_reserve(host_of(device), tier, size_bytes, base_p);
    pthread_mutex_unlock(&late.mutex);
    return status;
}

static void late_range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes) {
    pthread_mutex_lock(&late.mutex);
    zr_range_release(host_of(device), tier, &base, size_bytes);
    pthread_mutex_unlock(&late.mutex);
}

static zr_status_t late_range_map(zr_device_t *device, zr_tier_t tier, void *base,
                                  size_t offset_bytes, size_t size_bytes) {
    pthread_mutex_lock(&late.mutex);
    zr_status_t status = zr_range_map(host_of(device), tier, base, offset_bytes, size_bytes);
    pthread_mutex_unlock(&late.mutex);
    return status;
}

static zr_status_t late_range_unmap(zr_device_t *device, zr_tier_t tier, void *base,
                                    size_t offset_bytes, size_t size_bytes) {
    pthread_mutex_lock(&late.mutex);
    zr_status_t status = zr_range_unmap(host_of(device), tier, base, offset_bytes, size_bytes);
    pthread_mutex_unlock(&late.mutex);
    return status;
}

static zr_status_t late_range_move(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                                   size_t size_bytes) {
    const zr_device_t *host = host_of(device);
    pthread_mutex_lock(&late.mutex);
    zr_status_t status = host->backend->range_move(host_of(device), tier, from, to, size_bytes);
    pthread_mutex_unlock(&late.mutex);
    return status;
}

/* ---- streams and events ---- */

static zr_status_t late_stream_create(zr_device_t *device, const char *name,
                                      zr_stream_t **stream_p) {
    late_stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return ZR_ERR_MEMORY;
    stream->base = (zr_stream_t){.device = device, .name = name};
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
    return queue_event(stream, event, false);
}

static zr_status_t late_stream_wait(zr_stream_t *stream, zr_event_t *event) {
    return queue_event(stream, event, true);
}

static zr_status_t late_event_synchronize(zr_event_t *event) {
    late_event_t *own = (late_event_t *)event;
    pthread_mutex_lock(&late.mutex);
    while (own->n_passed != own->n_recorded) {
        late_stream_t *next = draw_ready(NULL);
        if (next == NULL)
            abort();
        run_first(next);
    }
    pthread_mutex_unlock(&late.mutex);
    return ZR_OK;
}

static zr_status_t late_event_query(zr_event_t *event, bool *passed_p) {
    const late_event_t *own = (const late_event_t *)event;
    pthread_mutex_lock(&late.mutex);
    *passed_p = own->n_passed == own->n_recorded;
    pthread_mutex_unlock(&late.mutex);
    return ZR_OK;
}

/* ---- copies and kernels: queued here, run by the host device ---- */

static zr_status_t run_copy(zr_stream_t *stream, const late_args_t *args) {
    const zr_kernel_work_t *copy = &args->kernel;
    return zr_copy_async(stream, copy->dst, copy->src, copy->n_elems, args->kind);
}

static zr_status_t late_copy(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                             zr_copy_t kind) {
    late_stream_t *own = (late_stream_t *)stream;
    if (own->fails_copy && kind == ZR_COPY_DEVICE_TO_DEVICE) {
        own->fails_copy = false;
        return zr_fail(&stream->device->log, ZR_ERR_DEVICE, LATE_DEVICE_FAILURE);
    }
    late_args_t args = {.kernel = {.dst = dst, .src = src, .n_elems = size_bytes}, .kind = kind};
    return queue_run(stream, run_copy, &args);
}

static zr_status_t run_kernel(zr_stream_t *stream, const late_args_t *args) {
    zr_kernel_work_t work = args->kernel;
    work.update = &args->update;
    work.spread.dsts = &args->dst;
    work.spread.sources = args->sources;
    return stream->device->backend->run(stream, &work);
}

static zr_status_t late_run(zr_stream_t *stream, const zr_kernel_work_t *work) {
    late_args_t args = {.kernel = *work};
    const zr_spread_t *sum = &work->spread;
    args.kernel.update = NULL;
    if (work->kernel == ZR_KERNEL_UPDATE)
        args.update = *work->update;
    if (work->kernel == ZR_KERNEL_SUM) {
        size_t size_bytes = (size_t)sum->n_sources * sizeof(*sum->sources);
        args.dst = sum->dsts[0];
        args.sources = malloc(size_bytes);
        if (args.sources == NULL)
            abort();
        memcpy(args.sources, sum->sources, size_bytes);
    }
    return queue_run(stream, run_kernel, &args);
}

/* ---- a transformer's kernels: queued with a copy of their arguments ---- */

static const zr_nn_backend_t *host_nn(const zr_device_t *device) {
    return zr_nn_backend_of(((const late_device_t *)device)->host);
}

static zr_status_t late_activation_dtype(const zr_device_t *device, zr_dtype_t param_dtype,
                                         zr_dtype_t *dtype_p) {
    return host_nn(device)->activation_dtype(((const late_device_t *)device)->host, param_dtype,
                                             dtype_p);
}

static zr_status_t run_nn(zr_stream_t *stream, const late_args_t *args) {
    zr_nn_work_t work = args->nn;
    work.args = args->nn_args;
    return zr_nn_backend_of(stream->device)->run(stream, &work);
}

static zr_status_t late_nn(zr_stream_t *stream, const zr_nn_work_t *work) {
    late_args_t args = {.nn = *work};
    if (work->args_bytes > sizeof(args.nn_args))
        abort();
    memcpy(args.nn_args, work->args, work->args_bytes);
    return queue_run(stream, run_nn, &args);
}

/* No kernel is without, as some are on the host and none on a GPU: each workspace is freed behind
 * its kernel, and late devices see whether it is. */
static size_t late_workspace_bytes(const zr_device_t *device, zr_nn_kernel_t kernel,
                                   const void *args) {
    const zr_device_t *host = ((const late_device_t *)device)->host;
    return host_nn(device)->workspace_bytes(host, kernel, args) + 1;
}

static const zr_nn_backend_t late_nn_backend = {.name = "late",
                                                .activation_dtype = late_activation_dtype,
                                                .run = late_nn,
                                                .workspace_bytes = late_workspace_bytes};

/* ---- memory that is given back ---- */

/* Whether one of these words is an address in the memory. */
static bool points_into(const void *words, size_t size_bytes, uintptr_t memory, size_t n_bytes) {
    for (size_t at = 0; at + sizeof(uintptr_t) <= size_bytes; at += sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, (const char *)words + at, sizeof(word));
        if (word - memory < n_bytes)
            return true;
    }
    return false;
}

/* All up to a record of an event comes before what waits for it. Whether that is news. */
static bool note_before(const work_t *wait) {
    for (late_stream_t *stream = late.streams; stream != NULL; stream = stream->next)
        for (const work_t *work = stream->first; work != NULL; work = work->next) {
            if (work->event != wait->event || work->is_wait || work->ticket != wait->ticket)
                continue;
            bool is_news = work->number > stream->n_before;
            if (is_news)
                stream->n_before = work->number;
            return is_news;
        }
    return false;
}

/* Find out what comes before all that is queued on a stream from now on; NULL: nothing. */
static void find_before(const zr_stream_t *behind) {
    bool is_new = true;
    for (late_stream_t *stream = late.streams; stream != NULL; stream = stream->next)
        stream->n_before = &stream->base == behind ? stream->n_works : 0;
    while (is_new) {
        is_new = false;
        for (const late_stream_t *stream = late.streams; stream != NULL; stream = stream->next)
            for (const work_t *work = stream->first;
                 work != NULL && work->number <= stream->n_before; work = work->next)
                is_new |= work->is_wait && note_before(work);
    }
}

static bool uses(const work_t *work, uintptr_t memory, size_t n_bytes) {
    const late_args_t *args = &work->args;
    return work->event == NULL &&
           (points_into(args, sizeof(*args), memory, n_bytes) ||
            points_into(args->sources,
                        (size_t)args->kernel.spread.n_sources * sizeof(*args->sources), memory,
                        n_bytes));
}

/* What uses memory comes before its free, which is behind a stream, or now (NULL). Where waits are
 * ignored, data is to show it. */
static void check_unused(const void *pointer, size_t n_bytes, const zr_stream_t *behind) {
    bool is_known = false;
    if (late.ignores_waits)
        return;
    for (const late_stream_t *stream = late.streams; stream != NULL; stream = stream->next)
        for (const work_t *work = stream->first; work != NULL; work = work->next) {
            if (&stream->base == behind || !uses(work, (uintptr_t)pointer, n_bytes))
                continue;
            if (!is_known)
                find_before(behind);
            is_known = true;
            if (work->number <= stream->n_before)
                continue;
            fprintf(stderr, "late device: %zu bytes are freed behind %s, and used by work on %s\n",
                    n_bytes, behind != NULL ? behind->name : "nothing", stream->base.name);
            abort();
        }
}

void late_device_check_free(zr_allocator_t *allocator, const void *pointer,
                            const zr_stream_t *stream) {
    if (pointer == NULL)
        return;
    pthread_mutex_lock(&allocator->lock);
    const zr_block_t *block = zr_block_table_find(&allocator->table, pointer);
    size_t n_bytes = block != NULL ? block->requested_bytes : 0;
    pthread_mutex_unlock(&allocator->lock);
    pthread_mutex_lock(&late.mutex);
    check_unused(pointer, n_bytes, stream);
    pthread_mutex_unlock(&late.mutex);
}

#ifndef ZR_TAKE_AWAY_WAITS /* there waits/taken_away.c does it */
void __real_zr_free(zr_allocator_t *allocator, void **pointer, zr_stream_t *stream);
void __wrap_zr_free(zr_allocator_t *allocator, void **pointer, zr_stream_t *stream);
void __wrap_zr_free(zr_allocator_t *allocator, void **pointer, zr_stream_t *stream) {
    late_device_check_free(allocator, pointer != NULL ? *pointer : NULL, stream);
    __real_zr_free(allocator, pointer, stream);
}
#endif

/* ---- the device ---- */

static zr_status_t late_open(const zr_device_options_t *asked, zr_device_t **device_p) {
    (void)asked;
    late_device_t *device = calloc(1, sizeof(*device));
    if (device == NULL)
        return ZR_ERR_MEMORY;
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    zr_status_t status = zr_device_open("host", &options, &device->host);
    ZR_THEN(status, zr_stream_create(device->host, "late", &device->host_stream));
    if (status != ZR_OK)
        abort();
    device->base.info = *zr_device_info(device->host);
    device->base.info.host_addressable = false;
    device->base.info.synchronous = false;
    device->base.info.computes_on_host = false;
    *device_p = &device->base;
    return ZR_OK;
}

static void late_close(zr_device_t *base) {
    late_device_t *device = (late_device_t *)base;
    zr_stream_destroy(&device->host_stream);
    zr_device_close(&device->host);
    free(device);
}

const zr_device_backend_t late_device_backend = {
    .name = "late",
    .open = late_open,
    .close = late_close,
    .range_reserve = late_range_reserve,
    .range_release = late_range_release,
    .range_map = late_range_map,
    .range_unmap = late_range_unmap,
    .range_move = late_range_move,
    .stream_create = late_stream_create,
    .stream_destroy = late_stream_destroy,
    .stream_synchronize = late_stream_synchronize,
    .event_create = late_event_create,
    .event_destroy = late_event_destroy,
    .event_record = late_event_record,
    .stream_wait = late_stream_wait,
    .event_synchronize = late_event_synchronize,
    .event_query = late_event_query,
    .copy_async = late_copy,
    .run = late_run,
    .nn = &late_nn_backend,
};

zr_status_t late_device_open(zr_device_t **device_p) {
    return zr_device_open_from(&late_device_backend, NULL, device_p);
}

void late_device_fail_copy(zr_stream_t *stream) {
    ((late_stream_t *)stream)->fails_copy = true;
}

void late_device_fail_work(zr_stream_t *stream, int nth) {
    ((late_stream_t *)stream)->fails_work = nth;
}

void late_device_ignore_waits(bool ignore) {
    pthread_mutex_lock(&late.mutex);
    late.ignores_waits = ignore;
    pthread_mutex_unlock(&late.mutex);
}

void late_device_draw_anew(unsigned seed) {
    pthread_mutex_lock(&late.mutex);
    late.draws ^= 0x9e3779b97f4a7c15u * (seed + 1);
    pthread_mutex_unlock(&late.mutex);
}
