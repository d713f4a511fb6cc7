/*
 * The swap pipeline: see swap_internal.h.
 *
 * Item i uses buffer i modulo their number, for its read, its work and its write: no list of free
 * buffers, and no item can be overtaken. Transfers are queued with what they wait for: a write for
 * the stream that works on its buffer, a read for the last write of its own. So what is queued, and
 * in which order, depends on the calls alone, and on no time.
 *
 * A store works through reads before writes, each in about the order in which they were started
 * (zr_store_turn_t), so that at the end of a pass nobody waits for more than the reads. So that it
 * always has both to do at the same time, at most half of the buffers read ahead: otherwise all
 * would be read, then all written. Where other work goes on between items, there is time for both.
 */
#include "allocator/heap_internal.h"
#include "offload/swap_internal.h"

#include <string.h>

#include "offload/staging_internal.h"
#include "offload/store_backend.h"

/* What is known of a chunk of an item that is worked on in slices. */
typedef enum chunk_state {
    CHUNK_UNVERIFIED = 0, /* as it came */
    CHUNK_OPEN = 1,       /* verified; may have changed since */
    CHUNK_HASHED = 2      /* it has its new value, and its checksum is made */
} chunk_state_t;

typedef struct chunk {
    chunk_state_t state;
    size_t closed_bytes; /* of it, while it is open */
} chunk_t;

/* A buffer, and what is under way with it. */
typedef struct slot {
    char *base;
    zr_store_ticket_t write; /* its last, and the read behind that, until they are waited for */
    zr_store_ticket_t read;
    zr_event_t *passed; /* when the stream is done with it that it was done behind */
    bool is_behind;     /* of a pass that only reads: the next read waits for that */
    bool is_loaded;     /* by zr_swap_load: holds `item` */
    zr_swap_item_t item;
    chunk_t *chunks; /* [swap->most_chunks] of the item */
    uint64_t *sums;  /* likewise, of those that are hashed */
} slot_t;

struct zr_swap {
    zr_heap_t *heap; /* of its tables, and itself */
    zr_swap_options_t options;
    zr_store_t *store;
    zr_staging_t staging;
    slot_t *slots;          /* [options.n_buffers] */
    size_t most_chunks;     /* of an item; 0: the store makes no checksums */
    chunk_t *chunks;        /* [options.n_buffers][most_chunks] */
    uint64_t *sums;         /* likewise */
    uint32_t reads, writes; /* lines of the store */
    size_t next_load;
    zr_status_t late; /* the first error that zr_swap_await has met, until it is returned */
    zr_swap_statistics_t statistics;

    /* The pass. n_returned <= n_given <= n_returned + most_given; n_given <= n_begun, which is
     * ahead of n_given by half of the buffers at most (ZR_SWAP_READ, or with pauses: all), and of
     * n_returned by all of them. */
    bool is_open;
    zr_swap_pass_t pass;
    zr_swap_item_t *items;
    size_t n_items;
    bool has_pauses;   /* between items, for other work */
    size_t n_begun;    /* whose read is queued, or needs none */
    size_t n_given;    /* to the caller */
    size_t n_returned; /* by the caller */
    size_t most_given;
    double begin_seconds;
};

static bool is_idle(const zr_swap_t *swap) {
    return swap->options.is_idle != NULL && *swap->options.is_idle;
}

/* ---- items ----------------------------------------------------------------------------------- */

zr_swap_item_t zr_swap_item_of(const zr_placement_t *placement, const zr_piece_t *piece,
                               size_t first_extent) {
    return (zr_swap_item_t){.extent = first_extent + piece->tensor,
                            .offset_bytes = piece->offset_bytes,
                            .size_bytes = zr_piece_bytes(placement, piece)};
}

size_t zr_swap_list_items(const zr_placement_t *placement, size_t tensor, size_t first_extent,
                          zr_swap_item_t *items) {
    size_t n_items = 0;
    for (size_t i = placement->first_piece[tensor]; i < placement->first_piece[tensor + 1]; i++)
        if (placement->pieces[i].tier == ZR_TIER_NVME)
            items[n_items++] = zr_swap_item_of(placement, &placement->pieces[i], first_extent);
    return n_items;
}

/* ---- creation ---------------------------------------------------------------------------- */

static zr_status_t check(const zr_swap_options_t *o, const zr_store_t *store) {
    if (o->allocator == NULL || store == NULL)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "swap: needs a store and an allocator");
    if (o->n_buffers == 0 || o->n_buffers > ZR_SWAP_MAX_BUFFERS)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "swap: %zu buffers; 1 to %zu are allowed",
                       o->n_buffers, ZR_SWAP_MAX_BUFFERS);
    return ZR_OK;
}

static zr_status_t make_buffers(zr_swap_t *swap) {
    const zr_swap_options_t *o = &swap->options;
    zr_staging_options_t options = {.log = &o->log,
                                    .allocator = o->allocator,
                                    .user = "swap",
                                    .name = "staging buffers of the store",
                                    .n_buffers = o->n_buffers,
                                    .buffer_bytes = o->buffer_bytes};
    ZR_TRY(zr_staging_make(&options, swap->store, &swap->staging));
    for (size_t i = 0; i < o->n_buffers; i++) {
        swap->slots[i].base = zr_staging_buffer(&swap->staging, i);
        if (o->device != NULL)
            ZR_TRY(zr_event_create(o->device, &swap->slots[i].passed));
    }
    swap->statistics.host_bytes = swap->staging.size_bytes;
    return ZR_OK;
}

static zr_status_t make_chunks(zr_swap_t *swap) {
    const zr_swap_options_t *o = &swap->options;
    const zr_store_info_t *info = zr_store_info(swap->store);
    size_t most_chunks = o->buffer_bytes / info->chunk_bytes + 1;
    if (!info->has_checksums) {
        if (info->counts_checksums)
            zr_heap_count_absent(swap->heap, o->n_buffers * most_chunks *
                                                 (sizeof(*swap->chunks) + sizeof(*swap->sums)));
        return ZR_OK;
    }
    swap->most_chunks = most_chunks;
    swap->chunks =
        zr_heap_alloc(swap->heap, o->n_buffers * swap->most_chunks, sizeof(*swap->chunks));
    swap->sums = zr_heap_alloc(swap->heap, o->n_buffers * swap->most_chunks, sizeof(*swap->sums));
    if (swap->chunks == NULL || swap->sums == NULL)
        return zr_fail(&o->log, ZR_ERR_MEMORY, "swap: no memory for %s of %s",
                       zr_count_text(swap->most_chunks, "chunk").text,
                       zr_count_text(o->n_buffers, "buffer").text);
    for (size_t i = 0; i < o->n_buffers; i++) {
        swap->slots[i].chunks = swap->chunks + i * swap->most_chunks;
        swap->slots[i].sums = swap->sums + i * swap->most_chunks;
    }
    return ZR_OK;
}

zr_status_t zr_swap_create(const zr_swap_options_t *options, zr_store_t *store,
                           zr_swap_t **swap_p) {
    ZR_TRY(check(options, store));
    zr_heap_t *heap = zr_heap_create(zr_allocator_heap(options->allocator));
    zr_swap_t *swap = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*swap)) : NULL;
    slot_t *slots = swap != NULL ? zr_heap_alloc(heap, options->n_buffers, sizeof(*slots)) : NULL;
    if (slots == NULL) {
        zr_heap_destroy(&heap);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "swap: no memory for the table of %s",
                       zr_count_text(options->n_buffers, "buffer").text);
    }
    swap->heap = heap;
    swap->options = *options;
    swap->store = store;
    swap->slots = slots;
    swap->reads = zr_store_make_line(store);
    swap->writes = zr_store_make_line(store);
    zr_status_t status = make_buffers(swap);
    ZR_THEN(status, make_chunks(swap));
    if (status != ZR_OK) {
        zr_swap_destroy(&swap);
        return status;
    }
    *swap_p = swap;
    return ZR_OK;
}

/* Nothing of this is in flight afterwards; how it ended has been logged. */
static void drain(zr_swap_t *swap) {
    for (size_t i = 0; i < swap->options.n_buffers; i++) {
        slot_t *slot = &swap->slots[i];
        slot->is_loaded = false;
        zr_store_drop(swap->store, slot->read);
        zr_store_drop(swap->store, slot->write);
        slot->read = slot->write = ZR_STORE_NO_TICKET;
        slot->is_behind = false;
    }
    swap->is_open = false;
}

void zr_swap_destroy(zr_swap_t **swap_pp) {
    if (swap_pp == NULL || *swap_pp == NULL)
        return;
    zr_swap_t *swap = *swap_pp;
    if (!swap->is_open)
        zr_swap_await(swap);
    drain(swap);
    for (size_t i = 0; i < swap->options.n_buffers; i++)
        zr_event_destroy(&swap->slots[i].passed);
    zr_staging_clear(&swap->staging);
    zr_heap_t *heap = swap->heap;
    zr_heap_destroy(&heap);
    *swap_pp = NULL;
}

void zr_swap_statistics(const zr_swap_t *swap, zr_swap_statistics_t *statistics_p) {
    *statistics_p = swap->statistics;
}

/* ---- a pass -------------------------------------------------------------------------------- */

static slot_t *slot_of(const zr_swap_t *swap, size_t item) {
    return &swap->slots[item % swap->options.n_buffers];
}

/* After an error nothing goes on by itself. */
static zr_status_t end_if_failed(zr_swap_t *swap, zr_status_t status) {
    if (status != ZR_OK)
        drain(swap);
    return status;
}

/* Its last write has ended, its read too, and what works on it behind a stream. */
static zr_status_t finish_slot(zr_swap_t *swap, slot_t *slot) {
    bool is_behind = slot->is_behind;
    slot->is_behind = false;
    ZR_TRY(zr_staging_finish(swap->store, &slot->write));
    ZR_TRY(zr_staging_finish(swap->store, &slot->read));
    return is_behind ? zr_event_synchronize(slot->passed) : ZR_OK;
}

static bool is_in_slices(const zr_swap_t *swap) {
    return swap->pass == ZR_SWAP_SLICES && swap->most_chunks > 0;
}

static zr_store_call_t call_of(const zr_swap_item_t *item, const slot_t *slot) {
    return (zr_store_call_t){.extent = item->extent,
                             .offset_bytes = item->offset_bytes,
                             .size_bytes = item->size_bytes,
                             .buffer = slot->base};
}

/* Queue the read of item n_begun. */
static zr_status_t begin_item(zr_swap_t *swap) {
    slot_t *slot = slot_of(swap, swap->n_begun);
    zr_store_call_t call = call_of(&swap->items[swap->n_begun], slot);
    call.is_unverified = is_in_slices(swap);
    call.after = (zr_store_after_t){
        .event = slot->is_behind ? slot->passed : NULL, .ticket = slot->write, .line = swap->reads};
    if (is_in_slices(swap))
        memset(slot->chunks, 0, swap->most_chunks * sizeof(*slot->chunks));
    if (swap->pass != ZR_SWAP_FILL)
        ZR_TRY(zr_store_queue_get(swap->store, &call, &slot->read));
    swap->n_begun++;
    size_t n_ahead = swap->n_begun - swap->n_returned;
    if (n_ahead > swap->statistics.most_ahead)
        swap->statistics.most_ahead = n_ahead;
    return ZR_OK;
}

/* Where reading ahead ends: at half of the buffers, but at least at the next item. Where nothing is
 * written, or in pauses, at all of them. */
static size_t ahead_end(const zr_swap_t *swap) {
    size_t n_buffers = swap->options.n_buffers, ahead = n_buffers > 3 ? n_buffers / 2 : 1;
    ahead = swap->pass == ZR_SWAP_READ || swap->has_pauses ? n_buffers : ahead;
    size_t end = swap->n_given + ahead, most = swap->n_returned + n_buffers;
    end = end < most ? end : most;
    return end < swap->n_items ? end : swap->n_items;
}

static zr_status_t read_ahead(zr_swap_t *swap) {
    bool reads = swap->options.read_ahead && !is_idle(swap);
    size_t end = reads ? ahead_end(swap) : 0;
    while (swap->n_begun < end)
        ZR_TRY(begin_item(swap));
    return ZR_OK;
}

static zr_status_t take_late(zr_swap_t *swap) {
    zr_status_t late = swap->late;
    swap->late = ZR_OK;
    return late;
}

zr_status_t zr_swap_begin(zr_swap_t *swap, zr_swap_pass_t pass, zr_swap_item_t *items,
                          size_t n_items) {
    if (swap->is_open)
        return zr_fail(&swap->options.log, ZR_ERR_STATE, "swap: the last pass was not ended");
    for (size_t i = 0; i < n_items; i++)
        if (items[i].size_bytes > swap->options.buffer_bytes)
            return zr_fail(
                &swap->options.log, ZR_ERR_ARGUMENT, "swap: item %zu has %s, a buffer %zu", i,
                zr_count_text(items[i].size_bytes, "byte").text, swap->options.buffer_bytes);
    ZR_TRY(take_late(swap));
    for (size_t i = 0; i < swap->options.n_buffers; i++)
        swap->slots[i].is_loaded = false;
    swap->is_open = true;
    swap->pass = pass;
    swap->items = items;
    swap->n_items = n_items;
    swap->has_pauses = false;
    swap->most_given = pass == ZR_SWAP_READ ? swap->options.n_buffers : 1;
    swap->n_begun = swap->n_given = swap->n_returned = 0;
    swap->begin_seconds = zr_store_clock();
    return end_if_failed(swap, read_ahead(swap));
}

zr_status_t zr_swap_expect_pauses(zr_swap_t *swap) {
    swap->has_pauses = true;
    return end_if_failed(swap, read_ahead(swap));
}

/* ---- slices -------------------------------------------------------------------------------- */

/* Chunks of the item that is worked on, up to `end`. */
typedef struct chunks {
    size_t first, end;
} chunks_t;

static size_t bytes_before(const zr_swap_t *swap, size_t chunk) {
    size_t bytes = chunk * zr_store_info(swap->store)->chunk_bytes;
    size_t item_bytes = swap->items[swap->n_returned].size_bytes;
    return bytes < item_bytes ? bytes : item_bytes;
}

static zr_status_t verify_chunks(zr_swap_t *swap, const chunks_t *chunks) {
    const zr_swap_item_t *item = &swap->items[swap->n_returned];
    slot_t *slot = slot_of(swap, swap->n_returned);
    size_t begin = bytes_before(swap, chunks->first);
    ZR_TRY(zr_store_verify(swap->store, item->extent, item->offset_bytes + begin,
                           bytes_before(swap, chunks->end) - begin, slot->base + begin));
    for (size_t i = chunks->first; i < chunks->end; i++)
        slot->chunks[i] = (chunk_t){.state = CHUNK_OPEN};
    return ZR_OK;
}

/* Where an item goes back to. */
static size_t put_extent(const zr_swap_t *swap, const zr_swap_item_t *item) {
    return swap->pass == ZR_SWAP_FILL ? item->extent : item->extent + (size_t)item->put_shift;
}

static zr_status_t hash_chunks(zr_swap_t *swap, const chunks_t *chunks) {
    const zr_swap_item_t *item = &swap->items[swap->n_returned];
    slot_t *slot = slot_of(swap, swap->n_returned);
    size_t begin = bytes_before(swap, chunks->first);
    ZR_TRY(zr_store_hash(swap->store, put_extent(swap, item), item->offset_bytes + begin,
                         bytes_before(swap, chunks->end) - begin, slot->base + begin,
                         &slot->sums[chunks->first]));
    for (size_t i = chunks->first; i < chunks->end; i++)
        slot->chunks[i].state = CHUNK_HASHED;
    return ZR_OK;
}

static bool is_unverified(const zr_swap_t *swap, size_t chunk) {
    return slot_of(swap, swap->n_returned)->chunks[chunk].state == CHUNK_UNVERIFIED;
}

static bool is_closed(const zr_swap_t *swap, size_t chunk) {
    const chunk_t *own = &slot_of(swap, swap->n_returned)->chunks[chunk];
    return own->state == CHUNK_OPEN &&
           own->closed_bytes == bytes_before(swap, chunk + 1) - bytes_before(swap, chunk);
}

static bool is_unhashed(const zr_swap_t *swap, size_t chunk) {
    return slot_of(swap, swap->n_returned)->chunks[chunk].state != CHUNK_HASHED;
}

/* Those of some that are so: as many at a time as are next to each other, for several threads. */
static zr_status_t pass_those(zr_swap_t *swap, const chunks_t *all,
                              bool (*is_so)(const zr_swap_t *, size_t),
                              zr_status_t (*pass)(zr_swap_t *, const chunks_t *)) {
    for (chunks_t own = {all->first, all->first}; own.end < all->end; own.first = own.end) {
        while (own.first < all->end && !is_so(swap, own.first))
            own.first++;
        for (own.end = own.first; own.end < all->end && is_so(swap, own.end); own.end++)
            ;
        if (own.end > own.first)
            ZR_TRY(pass(swap, &own));
    }
    return ZR_OK;
}

/* What the bytes have to be for zr_swap_open_slice and zr_swap_close_slice. */
static zr_status_t check_slice(const zr_swap_t *swap, size_t offset_bytes, size_t size_bytes) {
    const zr_log_t *log = &swap->options.log;
    if (!swap->is_open || swap->pass != ZR_SWAP_SLICES || swap->n_given == swap->n_returned)
        return zr_fail(log, ZR_ERR_STATE, "swap: no item is processed in slices");
    size_t item_bytes = swap->items[swap->n_returned].size_bytes;
    if (offset_bytes <= item_bytes && size_bytes <= item_bytes - offset_bytes)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT, "swap: a slice of %s at %zu; the item has %zu",
                   zr_count_text(size_bytes, "byte").text, offset_bytes, item_bytes);
}

/* What was hashed may change again. */
static void open_chunks(zr_swap_t *swap, const chunks_t *chunks) {
    chunk_t *all = slot_of(swap, swap->n_returned)->chunks;
    for (size_t i = chunks->first; i < chunks->end; i++)
        if (all[i].state != CHUNK_OPEN)
            all[i] = (chunk_t){.state = CHUNK_OPEN};
}

static zr_status_t close_chunk(zr_swap_t *swap, size_t number, size_t size_bytes) {
    chunk_t *chunk = &slot_of(swap, swap->n_returned)->chunks[number];
    size_t begin = bytes_before(swap, number), chunk_bytes = bytes_before(swap, number + 1) - begin;
    if (chunk->state != CHUNK_OPEN || size_bytes > chunk_bytes - chunk->closed_bytes)
        return zr_fail(&swap->options.log, ZR_ERR_STATE,
                       "swap: closing %s of the chunk at %zu of the item, which was not opened or "
                       "was closed before",
                       zr_count_text(size_bytes, "byte").text, begin);
    chunk->closed_bytes += size_bytes;
    return ZR_OK;
}

/* The bytes of a slice, chunk by chunk. */
static zr_status_t close_chunks(zr_swap_t *swap, size_t begin, size_t end) {
    size_t chunk = zr_store_info(swap->store)->chunk_bytes;
    for (size_t at = begin, next; at < end; at = next) {
        next = (at / chunk + 1) * chunk;
        next = next < end ? next : end;
        ZR_TRY(close_chunk(swap, at / chunk, next - at));
    }
    return ZR_OK;
}

static zr_status_t pass_slice(zr_swap_t *swap, size_t offset_bytes, size_t size_bytes,
                              bool is_opened) {
    size_t chunk = zr_store_info(swap->store)->chunk_bytes, end = offset_bytes + size_bytes;
    ZR_TRY(check_slice(swap, offset_bytes, size_bytes));
    if (swap->most_chunks == 0 || size_bytes == 0)
        return ZR_OK;
    const chunks_t chunks = {offset_bytes / chunk, (end - 1) / chunk + 1};
    if (!is_opened) {
        ZR_TRY(close_chunks(swap, offset_bytes, end));
        return pass_those(swap, &chunks, is_closed, hash_chunks);
    }
    ZR_TRY(pass_those(swap, &chunks, is_unverified, verify_chunks));
    open_chunks(swap, &chunks);
    return ZR_OK;
}

zr_status_t zr_swap_open_slice(zr_swap_t *swap, size_t offset_bytes, size_t size_bytes) {
    if (is_idle(swap))
        return ZR_OK;
    return end_if_failed(swap, pass_slice(swap, offset_bytes, size_bytes, true));
}

zr_status_t zr_swap_close_slice(zr_swap_t *swap, size_t offset_bytes, size_t size_bytes) {
    if (is_idle(swap))
        return ZR_OK;
    return end_if_failed(swap, pass_slice(swap, offset_bytes, size_bytes, false));
}

/* Verify and hash what was not. */
static zr_status_t finish_chunks(zr_swap_t *swap) {
    size_t chunk = zr_store_info(swap->store)->chunk_bytes;
    const chunks_t all = {0, (swap->items[swap->n_returned].size_bytes + chunk - 1) / chunk};
    ZR_TRY(pass_those(swap, &all, is_unverified, verify_chunks));
    return pass_those(swap, &all, is_unhashed, hash_chunks);
}

/* ---- going on with a pass ------------------------------------------------------------------ */

/* @param passed  when the stream is done with it; NULL: it is */
static zr_status_t put(zr_swap_t *swap, const zr_swap_item_t *item, slot_t *slot,
                       zr_event_t *passed) {
    zr_store_call_t call = call_of(item, slot);
    call.extent = put_extent(swap, item);
    call.after = (zr_store_after_t){.event = passed, .line = swap->writes};
    if (!is_in_slices(swap))
        return zr_store_queue_put(swap->store, &call, &slot->write);
    ZR_TRY(finish_chunks(swap));
    return zr_store_put_hashed(swap->store, call.extent, item->offset_bytes, item->size_bytes,
                               slot->base, slot->sums, &slot->write);
}

/* The caller is done with the item that it was given first. */
static zr_status_t take_back(zr_swap_t *swap, zr_event_t *passed) {
    slot_t *slot = slot_of(swap, swap->n_returned);
    if (swap->pass == ZR_SWAP_READ)
        slot->is_behind = passed != NULL;
    else
        ZR_TRY(put(swap, &swap->items[swap->n_returned], slot, passed));
    swap->n_returned++;
    swap->statistics.n_items++;
    if (!swap->options.write_behind && passed == NULL)
        ZR_TRY(finish_slot(swap, slot));
    return read_ahead(swap);
}

static zr_status_t next(zr_swap_t *swap, void **buffer_p) {
    slot_t *slot = slot_of(swap, swap->n_given);
    if (swap->n_begun == swap->n_given)
        ZR_TRY(begin_item(swap));
    ZR_TRY(zr_staging_finish(swap->store, &slot->write));
    ZR_TRY(zr_staging_finish(swap->store, &slot->read));
    bool was_read = swap->pass != ZR_SWAP_FILL && swap->items[swap->n_given].size_bytes > 0;
    if (slot->is_behind && !was_read) /* the read was behind it */
        ZR_TRY(zr_event_synchronize(slot->passed));
    slot->is_behind = false;
    swap->n_given++;
    ZR_TRY(read_ahead(swap));
    *buffer_p = slot->base;
    return ZR_OK;
}

zr_status_t zr_swap_next(zr_swap_t *swap, void **buffer_p) {
    if (is_idle(swap)) {
        *buffer_p = swap->slots[0].base;
        return ZR_OK;
    }
    if (!swap->is_open || swap->n_given - swap->n_returned == swap->most_given ||
        swap->n_given == swap->n_items)
        return zr_fail(&swap->options.log, ZR_ERR_STATE,
                       "swap: no next item: %zu of %zu are given, %zu are done", swap->n_given,
                       swap->n_items, swap->n_returned);
    return end_if_failed(swap, next(swap, buffer_p));
}

static bool is_same(const zr_swap_item_t *a, const zr_swap_item_t *b) {
    return a->extent == b->extent && a->offset_bytes == b->offset_bytes &&
           a->size_bytes == b->size_bytes;
}

static void reverse(zr_swap_item_t *items, size_t first, size_t end) {
    for (; first + 1 < end; first++, end--) {
        zr_swap_item_t item = items[first];
        items[first] = items[end - 1];
        items[end - 1] = item;
    }
}

/* What was begun and not given out is begun again, in another order. */
static zr_status_t restart(zr_swap_t *swap, size_t at) {
    for (size_t i = swap->n_given; i < swap->n_begun; i++)
        ZR_TRY(zr_staging_finish(swap->store, &slot_of(swap, i)->read));
    swap->n_begun = swap->n_given;
    reverse(swap->items, swap->n_given, at);
    reverse(swap->items, at, swap->n_items);
    reverse(swap->items, swap->n_given, swap->n_items);
    return read_ahead(swap);
}

zr_status_t zr_swap_seek(zr_swap_t *swap, const zr_swap_item_t *item) {
    if (is_idle(swap))
        return ZR_OK;
    size_t at = swap->n_given;
    while (swap->is_open && at < swap->n_items && !is_same(&swap->items[at], item))
        at++;
    if (!swap->is_open || at == swap->n_items)
        return zr_fail(&swap->options.log, ZR_ERR_STATE,
                       "swap: no item to come is extent %zu at %zu", item->extent,
                       item->offset_bytes);
    return at == swap->n_given ? ZR_OK : end_if_failed(swap, restart(swap, at));
}

static zr_status_t check_given(const zr_swap_t *swap) {
    if (!swap->is_open || swap->n_given == swap->n_returned)
        return zr_fail(&swap->options.log, ZR_ERR_STATE, "swap: no item is being processed");
    return ZR_OK;
}

zr_status_t zr_swap_done(zr_swap_t *swap) {
    if (is_idle(swap))
        return ZR_OK;
    ZR_TRY(check_given(swap));
    return end_if_failed(swap, take_back(swap, NULL));
}

static zr_status_t done_behind(zr_swap_t *swap, zr_stream_t *stream) {
    zr_event_t *passed = slot_of(swap, swap->n_returned)->passed;
    ZR_TRY(zr_event_record(passed, stream));
    return take_back(swap, passed);
}

zr_status_t zr_swap_done_behind(zr_swap_t *swap, zr_stream_t *stream) {
    if (is_idle(swap))
        return ZR_OK;
    ZR_TRY(check_given(swap));
    return end_if_failed(swap, done_behind(swap, stream));
}

/* The oldest first. */
static zr_status_t finish_slots(zr_swap_t *swap) {
    for (size_t i = 0; i < swap->options.n_buffers; i++)
        ZR_TRY(finish_slot(swap, slot_of(swap, swap->n_returned + i)));
    return ZR_OK;
}

static zr_status_t end(zr_swap_t *swap) {
    bool only_writes = swap->has_pauses && swap->n_given == swap->n_items;
    return only_writes ? ZR_OK : finish_slots(swap);
}

zr_status_t zr_swap_end(zr_swap_t *swap) {
    bool may_drop =
        swap->pass == ZR_SWAP_READ || (swap->pass != ZR_SWAP_FILL && swap->n_given == 0);
    size_t n_due = may_drop ? swap->n_given : swap->n_items;
    n_due = is_idle(swap) ? 0 : n_due;
    if (!swap->is_open || swap->n_returned != n_due)
        return zr_fail(&swap->options.log, ZR_ERR_STATE,
                       "swap: %zu of %zu %sitems are done; the pass cannot end", swap->n_returned,
                       n_due, may_drop ? "given " : "");
    ZR_TRY(end_if_failed(swap, end(swap)));
    for (size_t i = swap->n_given; i < swap->n_begun; i++) {
        swap->statistics.n_unused++;
        swap->statistics.unused_bytes += swap->items[i].size_bytes;
    }
    swap->is_open = false;
    swap->statistics.n_passes++;
    swap->statistics.pass_seconds += zr_store_clock() - swap->begin_seconds;
    return ZR_OK;
}

/* ---- outside of passes ----------------------------------------------------------------------- */

void zr_swap_await(zr_swap_t *swap) {
    for (size_t i = 0; i < swap->options.n_buffers; i++) {
        zr_status_t status = finish_slot(swap, slot_of(swap, swap->n_returned + i));
        swap->late = swap->late == ZR_OK ? status : swap->late;
    }
}

zr_status_t zr_swap_settle(zr_swap_t *swap) {
    zr_swap_await(swap);
    return take_late(swap);
}

static zr_status_t load(zr_swap_t *swap, slot_t *slot, const zr_swap_item_t *item) {
    if (is_idle(swap))
        return ZR_OK;
    slot->is_loaded = false;
    ZR_TRY(finish_slot(swap, slot)); /* its last write, where that was not waited for */
    ZR_TRY(zr_store_get(swap->store, item->extent, item->offset_bytes, item->size_bytes, slot->base,
                        &slot->read));
    ZR_TRY(finish_slot(swap, slot));
    slot->item = *item;
    slot->is_loaded = true;
    swap->statistics.n_loads++;
    return ZR_OK;
}

zr_status_t zr_swap_load(zr_swap_t *swap, const zr_swap_item_t *item, const void **buffer_p) {
    if (swap->is_open)
        return zr_fail(&swap->options.log, ZR_ERR_STATE, "swap: a pass is in progress");
    if (item->size_bytes > swap->options.buffer_bytes)
        return zr_fail(&swap->options.log, ZR_ERR_ARGUMENT, "swap: %s, a buffer has %zu",
                       zr_count_text(item->size_bytes, "byte").text, swap->options.buffer_bytes);
    for (size_t i = 0; i < swap->options.n_buffers; i++) {
        slot_t *slot = &swap->slots[i];
        if (slot->is_loaded && is_same(&slot->item, item)) {
            *buffer_p = slot->base;
            return ZR_OK;
        }
    }
    slot_t *slot = &swap->slots[swap->next_load++ % swap->options.n_buffers];
    ZR_TRY(load(swap, slot, item));
    *buffer_p = slot->base;
    return ZR_OK;
}
