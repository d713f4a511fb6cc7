/*
 * The stash: see stash.h.
 *
 * Two streams of its own copy: `down` to host memory, `up` from it. A put makes `down` wait for
 * the caller's stream and frees the tensor behind `down`; a get makes `up` wait for the caller's
 * stream, where the memory may have been in use before, and the caller's stream wait for `up`.
 *
 * In the host tier each tensor has host memory of its own. With a store it is in a buffer, in the
 * store, or in both:
 *
 *   COMING down -> HOLDING, and being written -> another tensor's
 *   READING -> HOLDING -> LEAVING up -> another tensor's       prefetch, get
 *
 * and from COMING straight to LEAVING, when it is wanted so early. A write is queued at the next
 * put, not at its own: the tensor that is put last comes back first and is never written. Of
 * buffers that hold something, the one is needed first whose tensor was put first, because that
 * comes back last. What was read ahead on a caller's word stays longest. Transfers are queued with
 * what they wait for, a write for the copy down, a read for the copy up and the last write of its
 * buffer, and nobody asks whether they have ended: so nothing of this depends on time.
 *
 * A tensor that stays after a get is lent: its buffer is as it was, but has to wait for the copy up
 * (`left`) before it takes another. One that came from the store is there still, and not lent.
 */
#include "allocator/heap_internal.h"
#include "offload/stash.h"

#include "allocator/replay.h"
#include "offload/staging_internal.h"
#include "offload/store_backend.h"

#define NO_BUFFER ((size_t)-1)
#define MOST_CHUNK_BYTES ((size_t)256 << 10)
/* Transfers are whole chunks: what varies in size is padded by this fraction of the largest. */
#define CHUNKS_PER_SLOT 8

typedef enum buffer_state {
    BUFFER_FREE,
    BUFFER_COMING, /* `came` passes when the copy down is done; its write is not queued */
    BUFFER_HOLDING,
    BUFFER_READING,
    BUFFER_LEAVING /* `left` passes when the copy up is done */
} buffer_state_t;

typedef struct buffer {
    char *base;
    buffer_state_t state;
    size_t slot;    /* that it is of, unless FREE or LEAVING */
    uint64_t order; /* of the slot's put, of leaving, or of reading ahead */
    bool was_read;  /* what it has is in the store as well */
    bool is_ahead;  /* read by zr_stash_read_ahead, and not brought back yet */
    bool is_lent;   /* `left` has to pass before it takes another tensor */
    zr_event_t *came, *left;
    zr_store_ticket_t write; /* its last, and the read behind that, until they are waited for */
    zr_store_ticket_t read;
} buffer_t;

typedef struct slot {
    bool is_full;
    size_t n_gets; /* until it is empty */
    size_t size_bytes;
    uint64_t order;   /* of puts */
    void *host;       /* host tier */
    size_t buffer;    /* NVMe: that has it, or NO_BUFFER */
    void *device;     /* brought back, and not yet got */
    zr_event_t *came; /* passes when its last copy down is done */
    zr_event_t *back; /* passes when its last copy up is done */
} slot_t;

struct zr_stash {
    zr_heap_t *heap; /* of its tables, and itself */
    zr_stash_options_t options;
    slot_t *slots;
    zr_stream_t *down, *up;
    zr_event_t *handed_down, *handed_up; /* when the caller's stream is done with the memory */
    uint64_t n_orders;
    bool has_failed;
    size_t n_full;
    size_t live_bytes;
    zr_stash_statistics_t statistics;

    /* NVMe. */
    size_t n_in_store; /* slots; those from there on are in host memory */
    size_t store_live_bytes;
    zr_store_t *store;
    uint32_t reads, writes; /* lines of it */
    size_t extent_bytes;
    zr_staging_t staging;
    buffer_t *buffers; /* [options.n_buffers] */
};

/* ---- creation ---------------------------------------------------------------------------- */

static zr_status_t check(const zr_stash_options_t *o) {
    bool is_nvme = o->tier == ZR_TIER_NVME;
    if (o->allocator == NULL || o->device == NULL || o->name == NULL)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "stash: needs an allocator, its device, a name");
    if (!is_nvme && o->tier != ZR_TIER_HOST)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "stash of %s: tier %d; allowed: host and nvme",
                       o->name, (int)o->tier);
    if (o->n_slots > ZR_STASH_MAX_SLOTS || o->slot_bytes > SIZE_MAX / 2)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "stash of %s: %s of %s; at most %zu of %zu are allowed", o->name,
                       zr_count_text(o->n_slots, "slot").text,
                       zr_count_text(o->slot_bytes, "byte").text, ZR_STASH_MAX_SLOTS, SIZE_MAX / 2);
    if (!is_nvme)
        return ZR_OK;
    if (o->store == NULL)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "stash of %s: nvme needs a store", o->name);
    if (o->n_in_host > o->n_slots)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "stash of %s: %zu of %s in host memory", o->name,
                       o->n_in_host, zr_count_text(o->n_slots, "slot").text);
    if (o->n_buffers == 0 || o->n_buffers > ZR_STASH_MAX_BUFFERS)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "stash of %s: %zu buffers; 1 to %zu are allowed",
                       o->name, o->n_buffers, ZR_STASH_MAX_BUFFERS);
    return ZR_OK;
}

static size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

size_t zr_stash_most_chunk_bytes(size_t slot_bytes) {
    size_t chunk = MOST_CHUNK_BYTES;
    while (chunk > ZR_STORE_CHUNK_ALIGN_BYTES && chunk > slot_bytes / CHUNKS_PER_SLOT)
        chunk /= 2;
    return chunk;
}

/* Extents for all slots, alike. */
static zr_status_t check_extents(const zr_stash_options_t *o) {
    const zr_store_extent_t *first = zr_store_extent(o->store, o->first_extent);
    for (size_t i = 0; i < o->n_slots - o->n_in_host; i++) {
        const zr_store_extent_t *extent = zr_store_extent(o->store, o->first_extent + i);
        if (extent == NULL)
            return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                           "stash of %s: slot %zu of %zu is extent %zu of the store, which has %zu",
                           o->name, i, o->n_slots - o->n_in_host, o->first_extent + i,
                           zr_store_info(o->store)->n_extents);
        if (extent->size_bytes < o->slot_bytes || extent->size_bytes != first->size_bytes ||
            extent->account != first->account)
            return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                           "stash of %s: extent \"%s\" has %s of account %zu; all slots "
                           "need %zu or more, and be as the first, %zu of account %zu",
                           o->name, extent->name, zr_count_text(extent->size_bytes, "byte").text,
                           extent->account, o->slot_bytes, first->size_bytes, first->account);
    }
    return ZR_OK;
}

static zr_status_t take_store(zr_stash_t *stash) {
    const zr_stash_options_t *o = &stash->options;
    ZR_TRY(check_extents(o));
    stash->store = o->store;
    stash->reads = zr_store_make_line(o->store);
    stash->writes = zr_store_make_line(o->store);
    stash->n_in_store = o->n_slots - o->n_in_host;
    if (stash->n_in_store > 0)
        stash->extent_bytes = zr_store_extent(o->store, o->first_extent)->size_bytes;
    return ZR_OK;
}

static zr_status_t create_buffers(zr_stash_t *stash) {
    const zr_stash_options_t *o = &stash->options;
    zr_staging_options_t options = {.log = &o->log,
                                    .allocator = o->allocator,
                                    .user = "stash",
                                    .name = "staging buffers of the stash",
                                    .n_buffers = o->n_buffers,
                                    .buffer_bytes = stash->extent_bytes};
    stash->buffers = zr_heap_alloc(stash->heap, o->n_buffers, sizeof(*stash->buffers));
    if (stash->buffers == NULL)
        return zr_fail(&o->log, ZR_ERR_MEMORY, "stash of %s: no memory for the table of %s",
                       o->name, zr_count_text(o->n_buffers, "buffer").text);
    ZR_TRY(zr_staging_make(&options, stash->store, &stash->staging));
    for (size_t i = 0; i < o->n_buffers; i++) {
        stash->buffers[i].base = zr_staging_buffer(&stash->staging, i);
        ZR_TRY(zr_event_create(o->device, &stash->buffers[i].came));
        ZR_TRY(zr_event_create(o->device, &stash->buffers[i].left));
    }
    return ZR_OK;
}

static zr_status_t create(zr_stash_t *stash) {
    const zr_stash_options_t *o = &stash->options;
    for (size_t i = 0; i < o->n_slots; i++) {
        stash->slots[i].buffer = NO_BUFFER;
        ZR_TRY(zr_event_create(o->device, &stash->slots[i].came));
        ZR_TRY(zr_event_create(o->device, &stash->slots[i].back));
    }
    ZR_TRY(zr_event_create(o->device, &stash->handed_down));
    ZR_TRY(zr_event_create(o->device, &stash->handed_up));
    ZR_TRY(zr_stream_create(o->device, "stash down", &stash->down));
    ZR_TRY(zr_stream_create(o->device, "stash up", &stash->up));
    if (o->tier != ZR_TIER_NVME)
        return ZR_OK;
    ZR_TRY(take_store(stash));
    return create_buffers(stash);
}

zr_status_t zr_stash_create(const zr_stash_options_t *options, zr_stash_t **stash_p) {
    ZR_TRY(check(options));
    zr_heap_t *heap = zr_heap_create(zr_allocator_heap(options->allocator));
    zr_stash_t *stash = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*stash)) : NULL;
    slot_t *slots = stash != NULL ? zr_heap_alloc(heap, options->n_slots, sizeof(*slots)) : NULL;
    if (slots == NULL) {
        zr_heap_destroy(&heap);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "stash of %s: no memory for %s", options->name,
                       zr_count_text(options->n_slots, "slot").text);
    }
    stash->heap = heap;
    stash->options = *options;
    stash->slots = slots;
    zr_status_t status = create(stash);
    if (status != ZR_OK) {
        zr_stash_destroy(&stash);
        return status;
    }
    *stash_p = stash;
    return ZR_OK;
}

/* ---- end --------------------------------------------------------------------------------- */

/* Until its transfers have ended. */
static zr_status_t finish(zr_stash_t *stash, buffer_t *buffer) {
    zr_status_t of_write = zr_staging_finish(stash->store, &buffer->write);
    zr_status_t of_read = zr_staging_finish(stash->store, &buffer->read);
    return of_write != ZR_OK ? of_write : of_read;
}

/* Nothing is in flight afterwards. How it ended has been logged, and is nobody's concern now. */
static void drain(zr_stash_t *stash) {
    bool is_idle = stash->down == NULL || zr_stream_synchronize(stash->down) == ZR_OK;
    is_idle = (stash->up == NULL || zr_stream_synchronize(stash->up) == ZR_OK) && is_idle;
    for (size_t i = 0; stash->buffers != NULL && i < stash->options.n_buffers; i++) {
        buffer_t *buffer = &stash->buffers[i];
        is_idle = finish(stash, buffer) == ZR_OK && is_idle;
        buffer->state = BUFFER_FREE;
        buffer->is_lent = buffer->is_ahead = false;
    }
    if (!is_idle)
        zr_log_write(&stash->options.log, ZR_LOG_INFO, "stash of %s: cleared after an error",
                     stash->options.name);
}

static void empty(zr_stash_t *stash) {
    drain(stash);
    for (size_t i = 0; i < stash->options.n_slots; i++) {
        slot_t *slot = &stash->slots[i];
        zr_free(stash->options.allocator, &slot->host, NULL); /* nothing is in flight */
        zr_free(stash->options.allocator, &slot->device, NULL);
        slot->buffer = NO_BUFFER;
        slot->is_full = false;
    }
    stash->n_full = 0;
    stash->live_bytes = stash->store_live_bytes = 0;
    stash->has_failed = false;
}

void zr_stash_clear(zr_stash_t *stash) {
    if (stash->n_full != 0 || stash->has_failed)
        empty(stash);
}

static void destroy_buffers(zr_stash_t *stash) {
    for (size_t i = 0; stash->buffers != NULL && i < stash->options.n_buffers; i++) {
        zr_event_destroy(&stash->buffers[i].came);
        zr_event_destroy(&stash->buffers[i].left);
    }
    zr_staging_clear(&stash->staging);
}

void zr_stash_destroy(zr_stash_t **stash_pp) {
    if (stash_pp == NULL || *stash_pp == NULL)
        return;
    zr_stash_t *stash = *stash_pp;
    empty(stash);
    destroy_buffers(stash);
    zr_allocator_replay_stop(stash->options.allocator);
    for (size_t i = 0; i < stash->options.n_slots; i++) {
        zr_event_destroy(&stash->slots[i].came);
        zr_event_destroy(&stash->slots[i].back);
    }
    zr_event_destroy(&stash->handed_down);
    zr_event_destroy(&stash->handed_up);
    zr_stream_destroy(&stash->down);
    zr_stream_destroy(&stash->up);
    zr_heap_t *heap = stash->heap;
    zr_heap_destroy(&heap);
    *stash_pp = NULL;
}

/* ---- buffers ----------------------------------------------------------------------------- */

static size_t moved_bytes(const zr_stash_t *stash, const slot_t *slot) {
    size_t whole_chunks = round_up(slot->size_bytes, zr_store_info(stash->store)->chunk_bytes);
    return whole_chunks < stash->extent_bytes ? whole_chunks : stash->extent_bytes;
}

static size_t extent_of(const zr_stash_t *stash, size_t slot) {
    return stash->options.first_extent + slot;
}

static zr_store_call_t call_of(const zr_stash_t *stash, const buffer_t *buffer, size_t slot) {
    return (zr_store_call_t){.extent = extent_of(stash, slot),
                             .size_bytes = moved_bytes(stash, &stash->slots[slot]),
                             .buffer = buffer->base};
}

/* Those of earlier puts. Behind what is more urgent: a write that can begin takes this thread its
 * checksum. */
static zr_status_t queue_writes(zr_stash_t *stash) {
    for (size_t i = 0; i < stash->options.n_buffers; i++) {
        buffer_t *buffer = &stash->buffers[i];
        if (buffer->state != BUFFER_COMING)
            continue;
        zr_store_call_t call = call_of(stash, buffer, buffer->slot);
        call.after = (zr_store_after_t){.event = buffer->came, .line = stash->writes};
        ZR_TRY(zr_store_queue_put(stash->store, &call, &buffer->write));
        buffer->state = BUFFER_HOLDING;
        stash->statistics.drive_bytes[ZR_STORE_PUT] += call.size_bytes;
    }
    return ZR_OK;
}

static zr_status_t queue_read(zr_stash_t *stash, size_t index, buffer_t *buffer) {
    slot_t *slot = &stash->slots[index];
    zr_store_call_t call = call_of(stash, buffer, index);
    call.after = (zr_store_after_t){.event = buffer->is_lent ? buffer->left : NULL,
                                    .ticket = buffer->write,
                                    .line = stash->reads};
    ZR_TRY(zr_store_queue_get(stash->store, &call, &buffer->read));
    buffer->state = BUFFER_READING;
    buffer->slot = index;
    buffer->order = slot->order;
    buffer->was_read = true;
    buffer->is_ahead = false;
    slot->buffer = (size_t)(buffer - stash->buffers);
    stash->statistics.drive_bytes[ZR_STORE_GET] += call.size_bytes;
    return ZR_OK;
}

/* What is read is there. */
static zr_status_t end_read(zr_stash_t *stash, buffer_t *buffer) {
    ZR_TRY(finish(stash, buffer));
    if (moved_bytes(stash, &stash->slots[buffer->slot]) > 0)
        buffer->is_lent = false; /* the read was behind that */
    buffer->state = BUFFER_HOLDING;
    return ZR_OK;
}

/* What holds nothing that is needed. */
static bool is_spare(const buffer_t *buffer) {
    return buffer->state == BUFFER_FREE || buffer->state == BUFFER_LEAVING;
}

/* Whether a comes before b when one has to be emptied: what is empty, then what leaves, then what
 * was put first, then what was read ahead last. */
static bool is_before(const buffer_t *a, const buffer_t *b) {
    if ((a->state == BUFFER_FREE) != (b->state == BUFFER_FREE))
        return a->state == BUFFER_FREE;
    if (is_spare(a) != is_spare(b))
        return is_spare(a);
    if (a->is_ahead != b->is_ahead)
        return b->is_ahead;
    return a->is_ahead ? a->order > b->order : a->order < b->order;
}

/* The one that is needed first. */
static buffer_t *find_first(zr_stash_t *stash) {
    buffer_t *first = &stash->buffers[0];
    for (size_t i = 1; i < stash->options.n_buffers; i++)
        if (is_before(&stash->buffers[i], first))
            first = &stash->buffers[i];
    return first;
}

/* A buffer for another tensor, in which transfers, and where it is lent the copy up, may still be
 * under way. */
static zr_status_t take_buffer(zr_stash_t *stash, buffer_t **buffer_p) {
    buffer_t *buffer = find_first(stash);
    if (buffer->state == BUFFER_COMING)
        ZR_TRY(queue_writes(stash));
    if (buffer->state == BUFFER_READING)
        ZR_TRY(end_read(stash, buffer));
    if (buffer->state == BUFFER_HOLDING)
        stash->slots[buffer->slot].buffer = NO_BUFFER;
    buffer->state = BUFFER_FREE;
    buffer->is_ahead = buffer->was_read = false;
    *buffer_p = buffer;
    return ZR_OK;
}

/* What is read next: of what is in the store alone, the one that was put last. */
static size_t next_to_read(const zr_stash_t *stash) {
    size_t next = NO_BUFFER;
    for (size_t i = 0; i < stash->n_in_store; i++) {
        const slot_t *slot = &stash->slots[i];
        if (slot->is_full && slot->device == NULL && slot->buffer == NO_BUFFER &&
            (next == NO_BUFFER || slot->order > stash->slots[next].order))
            next = i;
    }
    return next;
}

/* Into the buffers that hold nothing that is needed. */
static zr_status_t read_ahead(zr_stash_t *stash) {
    zr_store_progress(stash->store);
    for (size_t next; (next = next_to_read(stash)) != NO_BUFFER;) {
        buffer_t *buffer = find_first(stash);
        if (!is_spare(buffer))
            return ZR_OK;
        ZR_TRY(queue_read(stash, next, buffer));
    }
    return ZR_OK;
}

/* ---- putting away ------------------------------------------------------------------------ */

static zr_status_t check_call(zr_stash_t *stash, const char *call, size_t slot) {
    const zr_stash_options_t *o = &stash->options;
    if (slot >= o->n_slots)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "stash of %s: %s of slot %zu, there are %zu",
                       o->name, call, slot, o->n_slots);
    if (stash->has_failed)
        return zr_fail(&o->log, ZR_ERR_STATE,
                       "stash of %s: %s of slot %zu after an error; clear it first", o->name, call,
                       slot);
    return ZR_OK;
}

static zr_status_t allocate(zr_stash_t *stash, zr_tier_t tier, size_t size_bytes,
                            zr_stream_t *stream, void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = tier,
                                       .tag = stash->options.tag,
                                       .lifetime = stash->options.lifetime,
                                       .name = stash->options.name,
                                       .stream = stream};
    return zr_allocate(stash->options.allocator, &request, pointer_p);
}

/* Work queued on `later` from now on comes after what is queued on `stream`. */
static zr_status_t hand_over(zr_stream_t *stream, zr_event_t *event, zr_stream_t *later) {
    ZR_TRY(zr_event_record(event, stream));
    return zr_stream_wait(later, event);
}

/* Where a tensor goes on the host. */
static zr_status_t make_room(zr_stash_t *stash, size_t index, void **host_p) {
    slot_t *slot = &stash->slots[index];
    if (index >= stash->n_in_store) {
        ZR_TRY(allocate(stash, ZR_TIER_HOST, slot->size_bytes, stash->down, &slot->host));
        *host_p = slot->host;
        return ZR_OK;
    }
    buffer_t *buffer = NULL;
    ZR_TRY(take_buffer(stash, &buffer));
    ZR_TRY(finish(stash, buffer));
    if (buffer->is_lent)
        ZR_TRY(zr_stream_wait(stash->down, buffer->left));
    buffer->is_lent = false;
    *host_p = buffer->base;
    slot->buffer = (size_t)(buffer - stash->buffers);
    return ZR_OK;
}

static zr_status_t put(zr_stash_t *stash, size_t index, const void *device, zr_stream_t *stream) {
    slot_t *slot = &stash->slots[index];
    void *host = NULL;
    slot->order = ++stash->n_orders;
    ZR_TRY(make_room(stash, index, &host));
    ZR_TRY(hand_over(stream, stash->handed_down, stash->down));
    ZR_TRY(zr_copy_async(stash->down, host, device, slot->size_bytes, ZR_COPY_DEVICE_TO_HOST));
    if (index < stash->n_in_store) {
        ZR_TRY(queue_writes(stash));
        buffer_t *buffer = &stash->buffers[slot->buffer];
        ZR_TRY(zr_event_record(buffer->came, stash->down));
        buffer->state = BUFFER_COMING;
        buffer->slot = index;
        buffer->order = slot->order;
    }
    return zr_event_record(slot->came, stash->down);
}

zr_status_t zr_stash_put(zr_stash_t *stash, size_t slot_index, void **pointer, size_t size_bytes,
                         zr_stream_t *stream) {
    return zr_stash_put_for(stash, slot_index, pointer, size_bytes, stream, 1);
}

zr_status_t zr_stash_put_for(zr_stash_t *stash, size_t slot_index, void **pointer,
                             size_t size_bytes, zr_stream_t *stream, size_t n_gets) {
    const zr_stash_options_t *o = &stash->options;
    double begin = zr_store_clock();
    ZR_TRY(check_call(stash, "put", slot_index));
    slot_t *slot = &stash->slots[slot_index];
    if (size_bytes > o->slot_bytes || *pointer == NULL)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "stash of %s: put of %s into slot %zu, which takes up to %zu", o->name,
                       zr_count_text(*pointer == NULL ? 0 : size_bytes, "byte").text, slot_index,
                       o->slot_bytes);
    if (slot->is_full)
        return zr_fail(&o->log, ZR_ERR_STATE, "stash of %s: put into slot %zu, which is full",
                       o->name, slot_index);
    slot->size_bytes = size_bytes;
    zr_status_t status = put(stash, slot_index, *pointer, stream);
    if (status != ZR_OK) {
        stash->has_failed = true;
        return status;
    }
    zr_free(o->allocator, pointer, stash->down);
    slot->is_full = true;
    slot->n_gets = n_gets;
    stash->n_full++;
    stash->live_bytes += size_bytes;
    stash->store_live_bytes += slot_index < stash->n_in_store ? size_bytes : 0;
    zr_stash_statistics_t *s = &stash->statistics;
    if (stash->live_bytes > s->peak_bytes)
        s->peak_bytes = stash->live_bytes;
    if (stash->store_live_bytes > s->store_peak_bytes)
        s->store_peak_bytes = stash->store_live_bytes;
    s->n_tensors[ZR_STORE_PUT]++;
    s->bytes[ZR_STORE_PUT] += size_bytes;
    s->seconds[ZR_STORE_PUT] += zr_store_clock() - begin;
    return ZR_OK;
}

/* ---- bringing back ----------------------------------------------------------------------- */

/* A buffer that has the tensor, or will when the copy down has passed. */
static zr_status_t load(zr_stash_t *stash, size_t index, buffer_t **buffer_p) {
    slot_t *slot = &stash->slots[index];
    if (slot->buffer == NO_BUFFER) {
        buffer_t *taken = NULL;
        ZR_TRY(take_buffer(stash, &taken));
        ZR_TRY(queue_read(stash, index, taken));
        ZR_TRY(queue_writes(stash));
    }
    buffer_t *buffer = &stash->buffers[slot->buffer];
    if (buffer->state == BUFFER_READING)
        ZR_TRY(end_read(stash, buffer));
    *buffer_p = buffer;
    return ZR_OK;
}

static zr_status_t copy_up(zr_stash_t *stash, slot_t *slot, const void *host, zr_stream_t *stream) {
    ZR_TRY(allocate(stash, ZR_TIER_DEVICE, slot->size_bytes, stream, &slot->device));
    ZR_TRY(hand_over(stream, stash->handed_up, stash->up));
    ZR_TRY(zr_stream_wait(stash->up, slot->came));
    ZR_TRY(zr_copy_async(stash->up, slot->device, host, slot->size_bytes, ZR_COPY_HOST_TO_DEVICE));
    return zr_event_record(slot->back, stash->up);
}

static zr_status_t bring_back(zr_stash_t *stash, size_t index, zr_stream_t *stream) {
    slot_t *slot = &stash->slots[index];
    if (slot->device != NULL)
        return ZR_OK;
    bool stays = slot->n_gets > 1;
    if (index >= stash->n_in_store) {
        ZR_TRY(copy_up(stash, slot, slot->host, stream));
        if (!stays)
            zr_free(stash->options.allocator, &slot->host, stash->up);
        return ZR_OK;
    }
    buffer_t *buffer = NULL;
    ZR_TRY(load(stash, index, &buffer));
    ZR_TRY(copy_up(stash, slot, buffer->base, stream));
    ZR_TRY(zr_event_record(buffer->left, stash->up));
    buffer->is_lent = true;
    if (!stays || buffer->was_read) {
        buffer->state = BUFFER_LEAVING;
        buffer->is_ahead = false;
        buffer->order = ++stash->n_orders;
        slot->buffer = NO_BUFFER;
    }
    return stash->options.reads_when_told ? ZR_OK : read_ahead(stash);
}

static zr_status_t check_full(zr_stash_t *stash, const char *call, size_t slot) {
    ZR_TRY(check_call(stash, call, slot));
    if (stash->slots[slot].is_full)
        return ZR_OK;
    return zr_fail(&stash->options.log, ZR_ERR_STATE, "stash of %s: %s of slot %zu, which is empty",
                   stash->options.name, call, slot);
}

size_t zr_stash_most_ahead(const zr_stash_t *stash) {
    return stash->store != NULL ? stash->options.n_buffers / 2 : 0;
}

static zr_status_t read_one_ahead(zr_stash_t *stash, size_t index) {
    buffer_t *buffer = NULL;
    ZR_TRY(take_buffer(stash, &buffer));
    ZR_TRY(queue_read(stash, index, buffer));
    buffer->is_ahead = true;
    buffer->order = ++stash->n_orders;
    return queue_writes(stash);
}

zr_status_t zr_stash_read_ahead(zr_stash_t *stash, size_t slot_index) {
    double begin = zr_store_clock();
    ZR_TRY(check_call(stash, "read ahead", slot_index));
    const slot_t *slot = &stash->slots[slot_index];
    if (slot_index >= stash->n_in_store || !slot->is_full || slot->device != NULL ||
        slot->buffer != NO_BUFFER)
        return ZR_OK;
    zr_status_t status = read_one_ahead(stash, slot_index);
    stash->has_failed = status != ZR_OK;
    stash->statistics.seconds[ZR_STORE_GET] += zr_store_clock() - begin;
    return status;
}

zr_status_t zr_stash_prefetch(zr_stash_t *stash, size_t slot, zr_stream_t *stream) {
    double begin = zr_store_clock();
    ZR_TRY(check_full(stash, "prefetch", slot));
    zr_status_t status = bring_back(stash, slot, stream);
    stash->has_failed = status != ZR_OK;
    stash->statistics.seconds[ZR_STORE_GET] += zr_store_clock() - begin;
    return status;
}

zr_status_t zr_stash_get(zr_stash_t *stash, size_t slot_index, zr_stream_t *stream,
                         void **pointer_p) {
    double begin = zr_store_clock();
    ZR_TRY(check_full(stash, "get", slot_index));
    slot_t *slot = &stash->slots[slot_index];
    zr_status_t status = bring_back(stash, slot_index, stream);
    ZR_THEN(status, zr_stream_wait(stream, slot->back));
    if (status != ZR_OK) {
        stash->has_failed = true;
        return status;
    }
    *pointer_p = slot->device;
    slot->device = NULL;
    slot->n_gets--;
    if (slot->n_gets == 0) {
        slot->is_full = false;
        stash->n_full--;
        stash->live_bytes -= slot->size_bytes;
        stash->store_live_bytes -= slot_index < stash->n_in_store ? slot->size_bytes : 0;
    }
    zr_stash_statistics_t *s = &stash->statistics;
    s->n_tensors[ZR_STORE_GET]++;
    s->bytes[ZR_STORE_GET] += slot->size_bytes;
    s->seconds[ZR_STORE_GET] += zr_store_clock() - begin;
    return ZR_OK;
}

void zr_stash_statistics(const zr_stash_t *stash, zr_stash_statistics_t *statistics_p) {
    *statistics_p = stash->statistics;
    if (stash->store == NULL)
        return;
    statistics_p->has_store = true;
    statistics_p->staging_bytes = stash->staging.size_bytes;
    statistics_p->store = *zr_store_info(stash->store);
    const zr_store_extent_t *first = zr_store_extent(stash->store, stash->options.first_extent);
    zr_store_account_statistics(stash->store, first != NULL ? first->account : 0,
                                &statistics_p->store_statistics);
}
