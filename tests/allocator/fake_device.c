/*
 * The fake device. It keeps its own picture of what is mapped, so that the allocator's
 * idea of it can be held against something.
 */
#include "tests/allocator/fake_device.h"
#include "tests/common/one_thing.h"
#include "tests/common/test.h"

/* Work after the first `after` pieces of a stream passes no sooner than what `clock` covers. */
typedef struct fake_wait {
    size_t after;
    fake_clock_t clock;
} fake_wait_t;

struct fake_stream {
    zr_stream_t base;
    fake_stream_t *next;
    int index; /* in clocks */
    bool is_destroyed;
    size_t n_queued, n_passed;
    fake_clock_t clock;
    fake_wait_t *waits; /* in order; those that have been reached may be gone */
    size_t n_waits, waits_capacity;
};

typedef struct fake_event {
    zr_event_t base;
    bool is_recorded;
    fake_clock_t clock; /* of its stream then: pieces that must have passed */
} fake_event_t;

static fake_t *fake_of(const zr_device_t *device) {
    return (fake_t *)((char *)(uintptr_t)device->backend - offsetof(fake_t, backend));
}

/* ---- memory ---------------------------------------------------------------------- */

static zr_status_t range_reserve(zr_device_t *device, zr_tier_t tier, size_t size_bytes,
                                 void **base_p) {
    fake_t *fake = fake_of(device);
    if (size_bytes > fake->max_range_bytes)
        return ZR_ERR_BUDGET;
    int slot = 0;
    while (slot < fake->n_ranges && fake->ranges[slot].base != NULL)
        slot++;
    assert_true(slot < FAKE_MAX_RANGES);
    fake_range_t *range = &fake->ranges[slot];
    range->is_mapped = calloc(size_bytes / device->info.granule_bytes, 1);
    if (range->is_mapped == NULL)
        return ZR_ERR_MEMORY;
    zr_status_t status = zr_host_backend.range_reserve(device, tier, size_bytes, base_p);
    if (status != ZR_OK) {
        free(range->is_mapped);
        return status;
    }
    range->tier = tier;
    range->base = *base_p;
    range->size_bytes = size_bytes;
    if (slot == fake->n_ranges)
        fake->n_ranges++;
    return ZR_OK;
}

fake_range_t *fake_range_of(fake_t *fake, const void *pointer) {
    for (int i = 0; i < fake->n_ranges; i++) {
        fake_range_t *range = &fake->ranges[i];
        if (range->base != NULL && (const char *)pointer >= range->base &&
            (const char *)pointer < range->base + range->size_bytes)
            return range;
    }
    return NULL;
}

/* Flip granules from one state to the other; those in a wrong state are violations. */
static void flip(fake_t *fake, void *base, size_t offset, size_t size, unsigned char to) {
    fake_range_t *range = fake_range_of(fake, base);
    size_t granule = fake->device->info.granule_bytes;
    assert_non_null(range);
    assert_ptr_equal(range->base, base);
    for (size_t i = offset / granule; i < (offset + size) / granule; i++) {
        fake->n_violations += range->is_mapped[i] == to;
        range->is_mapped[i] = to;
    }
    if (to)
        fake->mapped_bytes[range->tier] += size;
    else
        fake->mapped_bytes[range->tier] -= size;
}

static void range_release(zr_device_t *device, zr_tier_t tier, void *base, size_t size_bytes) {
    fake_t *fake = fake_of(device);
    size_t granule = device->info.granule_bytes;
    fake_range_t *range = fake_range_of(fake, base);
    for (size_t i = 0; i < size_bytes / granule; i++)
        fake->mapped_bytes[tier] -= range->is_mapped[i] ? granule : 0;
    free(range->is_mapped);
    *range = (fake_range_t){0};
    zr_host_backend.range_release(device, tier, base, size_bytes);
}

void fake_note(fake_t *fake, char letter) {
    if (fake->n_calls + 1 == FAKE_CALLS_BYTES)
        fake_forget_calls(fake);
    fake->calls[fake->n_calls++] = letter;
    fake->calls[fake->n_calls] = '\0';
}

void fake_forget_calls(fake_t *fake) {
    fake->n_calls = 0;
    fake->calls[0] = '\0';
}

/* Note a mapping call; true: it is the one to fail. */
static bool begin_call(fake_t *fake, char letter) {
    fake_note(fake, letter);
    return fake->fail_call_at > 0 && --fake->fail_call_at == 0;
}

static zr_status_t range_map(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                             size_t size_bytes) {
    fake_t *fake = fake_of(device);
    fake->n_maps++;
    if (begin_call(fake, FAKE_MAP) || (fake->fail_map_at > 0 && --fake->fail_map_at == 0))
        return ZR_ERR_BUDGET;
    if (fake->mapped_bytes[tier] + size_bytes > fake->machine_bytes)
        return ZR_ERR_BUDGET;
    ZR_TRY(zr_host_backend.range_map(device, tier, base, offset_bytes, size_bytes));
    flip(fake, base, offset_bytes, size_bytes, 1);
    return ZR_OK;
}

static zr_status_t range_unmap(zr_device_t *device, zr_tier_t tier, void *base, size_t offset_bytes,
                               size_t size_bytes) {
    fake_t *fake = fake_of(device);
    fake->n_unmaps++;
    if (begin_call(fake, FAKE_UNMAP) || fake->fail_unmap)
        return ZR_ERR_DEVICE;
    ZR_TRY(zr_host_backend.range_unmap(device, tier, base, offset_bytes, size_bytes));
    flip(fake, base, offset_bytes, size_bytes, 0);
    return ZR_OK;
}

static zr_status_t range_move(zr_device_t *device, zr_tier_t tier, void *from, void *to,
                              size_t size_bytes) {
    fake_t *fake = fake_of(device);
    if (fake->cannot_move)
        return ZR_ERR_UNSUPPORTED;
    fake->n_moves++;
    if (begin_call(fake, FAKE_MOVE) || fake->fail_move)
        return ZR_ERR_DEVICE;
    ZR_TRY(zr_host_backend.range_move(device, tier, from, to, size_bytes));
    const fake_range_t *source = fake_range_of(fake, from), *target = fake_range_of(fake, to);
    flip(fake, source->base, (size_t)((char *)from - source->base), size_bytes, 0);
    flip(fake, target->base, (size_t)((char *)to - target->base), size_bytes, 1);
    return ZR_OK;
}

bool fake_is_mapped(fake_t *fake, const void *pointer, size_t size_bytes) {
    const fake_range_t *range = fake_range_of(fake, pointer);
    size_t granule = fake->device->info.granule_bytes;
    if (range == NULL || size_bytes == 0)
        return range != NULL;
    size_t offset = (size_t)((const char *)pointer - range->base);
    for (size_t i = offset / granule; i <= (offset + size_bytes - 1) / granule; i++) {
        if (!range->is_mapped[i])
            return false;
    }
    return true;
}

/* ---- streams and events ------------------------------------------------------------ */

static void merge(fake_clock_t *clock, const fake_clock_t *other) {
    for (int i = 0; i < FAKE_MAX_STREAMS; i++) {
        if (clock->ticks[i] < other->ticks[i])
            clock->ticks[i] = other->ticks[i];
    }
}

/* A stream that is gone is of no use to anybody. */
static fake_stream_t *late_stream(zr_stream_t *stream) {
    fake_stream_t *late = (fake_stream_t *)stream;
    fake_of(stream->device)->n_violations += late->is_destroyed;
    return late;
}

static zr_status_t stream_create(zr_device_t *device, const char *name, zr_stream_t **stream_p) {
    fake_t *fake = fake_of(device);
    fake_stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return ZR_ERR_MEMORY;
    assert_true(fake->n_streams < FAKE_MAX_STREAMS);
    stream->index = fake->n_streams++;
    stream->next = fake->streams; /* kept until the device closes: events refer to it */
    fake->streams = stream;
    *stream_p = &stream->base;
    return ZR_OK;
}

/* Let the first pieces of every stream pass, as many as the clock says. */
static void pass_clock(fake_t *fake, const fake_clock_t *clock) {
    for (fake_stream_t *stream = fake->streams; stream != NULL; stream = stream->next) {
        if (stream->n_passed < clock->ticks[stream->index])
            stream->n_passed = clock->ticks[stream->index];
    }
}

/* Let the first `tick` pieces pass, and what they wait for. */
static void pass_to(fake_stream_t *stream, size_t tick) {
    fake_clock_t behind = {{0}};
    size_t n_kept = 0;
    if (stream->n_passed < tick)
        stream->n_passed = tick;
    for (size_t i = 0; i < stream->n_waits; i++) {
        if (stream->waits[i].after < stream->n_passed)
            merge(&behind, &stream->waits[i].clock);
        else
            stream->waits[n_kept++] = stream->waits[i];
    }
    stream->n_waits = n_kept;
    pass_clock(fake_of(stream->base.device), &behind);
}

/* The CPU waits until all that the clock says has passed. */
static zr_status_t wait_for(fake_t *fake, const fake_clock_t *clock) {
    fake->n_waits++;
    fake_note(fake, FAKE_WAIT);
    if (fake->fail_waits)
        return ZR_ERR_DEVICE;
    pass_clock(fake, clock);
    merge(&fake->host, clock);
    return ZR_OK;
}

static zr_status_t stream_synchronize(zr_stream_t *stream) {
    return wait_for(fake_of(stream->device), &late_stream(stream)->clock);
}

static void stream_destroy(zr_stream_t *stream) {
    fake_stream_t *late = late_stream(stream);
    pass_to(late, late->n_queued);
    late->is_destroyed = true;
}

size_t fake_stream_queue(zr_stream_t *stream) {
    fake_stream_t *late = (fake_stream_t *)stream;
    return late->clock.ticks[late->index] = ++late->n_queued;
}

void fake_stream_pass(zr_stream_t *stream, size_t n) {
    fake_stream_t *late = (fake_stream_t *)stream;
    size_t left = late->n_queued - late->n_passed;
    pass_to(late, late->n_passed + (n < left ? n : left));
}

size_t fake_stream_n_passed(const zr_stream_t *stream) {
    return ((const fake_stream_t *)stream)->n_passed;
}

bool fake_is_ordered(const fake_t *fake, const zr_stream_t *before, size_t tick,
                     const zr_stream_t *after) {
    int index = ((const fake_stream_t *)before)->index;
    if (fake->host.ticks[index] >= tick)
        return true;
    return after != NULL && ((const fake_stream_t *)after)->clock.ticks[index] >= tick;
}

static zr_status_t event_create(zr_device_t *device, zr_event_t **event_p) {
    fake_event_t *event = fake_of(device)->fail_event_create ? NULL : calloc(1, sizeof(*event));
    if (event == NULL)
        return ZR_ERR_MEMORY;
    fake_of(device)->n_events++;
    *event_p = &event->base;
    return ZR_OK;
}

static void event_destroy(zr_event_t *event) {
    fake_of(event->device)->n_events--;
    free(event);
}

static zr_status_t event_record(zr_event_t *event, zr_stream_t *stream) {
    fake_event_t *late = (fake_event_t *)event;
    if (fake_of(event->device)->fail_event_record)
        return ZR_ERR_DEVICE;
    late->clock = late_stream(stream)->clock;
    late->is_recorded = true;
    return ZR_OK;
}

/* Room for one wait more; those that have been reached make it where they can. */
static zr_status_t make_room_for_wait(fake_stream_t *stream) {
    if (stream->n_waits < stream->waits_capacity)
        return ZR_OK;
    pass_to(stream, stream->n_passed);
    if (2 * stream->n_waits < stream->waits_capacity)
        return ZR_OK;
    size_t capacity = stream->waits_capacity == 0 ? 64 : 2 * stream->waits_capacity;
    fake_wait_t *waits = realloc(stream->waits, capacity * sizeof(*waits));
    if (waits == NULL)
        return ZR_ERR_MEMORY;
    stream->waits = waits;
    stream->waits_capacity = capacity;
    return ZR_OK;
}

static zr_status_t stream_wait(zr_stream_t *stream, zr_event_t *event) {
    fake_t *fake = fake_of(stream->device);
    fake_stream_t *late = late_stream(stream);
    const fake_event_t *awaited = (const fake_event_t *)event;
    if (fake->fail_stream_waits)
        return ZR_ERR_DEVICE;
    fake->n_stream_waits++;
    if (!awaited->is_recorded)
        return ZR_OK;
    ZR_TRY(make_room_for_wait(late));
    merge(&late->clock, &awaited->clock);
    late->waits[late->n_waits++] = (fake_wait_t){.after = late->n_queued, .clock = awaited->clock};
    return ZR_OK;
}

static zr_status_t event_synchronize(zr_event_t *event) {
    return wait_for(fake_of(event->device), &((const fake_event_t *)event)->clock);
}

static zr_status_t event_query(zr_event_t *event, bool *passed_p) {
    fake_t *fake = fake_of(event->device);
    const fake_event_t *late = (const fake_event_t *)event;
    if (fake->fail_queries)
        return ZR_ERR_DEVICE;
    *passed_p = true;
    for (const fake_stream_t *stream = fake->streams; stream != NULL; stream = stream->next)
        *passed_p = *passed_p && stream->n_passed >= late->clock.ticks[stream->index];
    if (*passed_p)
        merge(&fake->host, &late->clock);
    return ZR_OK;
}

/* ---- the log ------------------------------------------------------------------------- */

static void sink(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    fake_t *fake = context;
    pthread_mutex_lock(&fake->log_lock);
    size_t used = strlen(fake->text);
    snprintf(fake->text + used, sizeof(fake->text) - used, "%s\n", message);
    fake->n_logged[level]++;
    pthread_mutex_unlock(&fake->log_lock);
}

zr_log_t fake_log(fake_t *fake) {
    return (zr_log_t){.sink = sink, .context = fake, .level = ZR_LOG_DEBUG, .rank = -1};
}

void fake_log_clear(fake_t *fake) {
    pthread_mutex_lock(&fake->log_lock);
    fake->text[0] = '\0';
    memset(fake->n_logged, 0, sizeof(fake->n_logged));
    pthread_mutex_unlock(&fake->log_lock);
}

/* ---- the device ------------------------------------------------------------------------ */

fake_t *fake_open(size_t granule_bytes, bool is_late) {
    fake_t *fake = calloc(1, sizeof(*fake));
    assert_non_null(fake);
    pthread_mutex_init(&fake->log_lock, NULL);
    zr_device_options_t options = zr_device_options_default();
    options.log = fake_log(fake);
    options.n_threads = 1;
    assert_ok(zr_device_open("host", &options, &fake->device));
    fake->backend = zr_host_backend;
    fake->backend.range_reserve = range_reserve;
    fake->backend.range_release = range_release;
    fake->backend.range_map = range_map;
    fake->backend.range_unmap = range_unmap;
    fake->backend.range_move = range_move;
    fake->backend.stream_create = stream_create;
    fake->backend.stream_destroy = stream_destroy;
    fake->backend.stream_synchronize = stream_synchronize;
    fake->backend.event_create = event_create;
    fake->backend.event_destroy = event_destroy;
    fake->backend.event_record = event_record;
    fake->backend.stream_wait = stream_wait;
    fake->backend.event_synchronize = event_synchronize;
    fake->backend.event_query = event_query;
    fake->device->backend = &fake->backend;
    fake->device->info.granule_bytes = granule_bytes;
    fake->device->info.memory_bytes = (size_t)64 << 20;
    fake->device->info.synchronous = !is_late;
    fake->device->info.computes_on_host = !is_late;
    fake->machine_bytes = fake->max_range_bytes = SIZE_MAX / 2;
    return fake;
}

void fake_close(fake_t *fake) {
    for (int i = 0; i < fake->n_ranges; i++)
        assert_null(fake->ranges[i].base);
    assert_int_equal(fake->mapped_bytes[ZR_TIER_DEVICE], 0);
    assert_int_equal(fake->mapped_bytes[ZR_TIER_HOST], 0);
    assert_int_equal(fake->n_events, 0);
    assert_int_equal(fake->n_violations, 0);
    while (fake->streams != NULL) {
        fake_stream_t *next = fake->streams->next;
        free(fake->streams->waits);
        free(fake->streams);
        fake->streams = next;
    }
    zr_device_close(&fake->device);
    pthread_mutex_destroy(&fake->log_lock);
    free(fake);
}
