/*
 * What backends call: checksums and counts of the pieces of a transfer, and host memory.
 *
 * A checksum is made from the caller's buffer when the piece begins, so that whatever happens to
 * the bytes from then on, in memory or on the drive, does not agree with it.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/base/background_internal.h"
#include "kernels/host/host_pool.h"
#include "offload/store_backend.h"

double zr_store_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double zr_store_now(const zr_store_t *store) {
    return store->options.device != NULL ? zr_device_now(store->options.device) : zr_store_clock();
}

static zr_store_chunk_range_t range_of(const zr_store_piece_t *piece) {
    const zr_store_transfer_t *transfer = piece->transfer;
    return (zr_store_chunk_range_t){.extent = transfer->extent,
                                    .offset_bytes = piece->offset_bytes,
                                    .size_bytes = piece->size_bytes,
                                    .buffer = transfer->buffer +
                                              (piece->offset_bytes - transfer->offset_bytes)};
}

static size_t chunk_size(const zr_store_t *store, const zr_store_chunk_range_t *range,
                         size_t done) {
    size_t left = range->size_bytes - done;
    return left < store->info.chunk_bytes ? left : store->info.chunk_bytes;
}

/* Chunks whose checksums are made, or compared, by several threads. */
typedef struct chunk_sums {
    const zr_store_t *store;
    const zr_store_chunk_range_t *range;
    size_t n, n_tasks;
    uint64_t *made;            /* [n]; NULL: they are compared */
    const uint64_t *put;       /* [n] with these */
    atomic_size_t first_other; /* that differs; n: none */
} chunk_sums_t;

static uint64_t sum_of_chunk(const chunk_sums_t *sums, size_t chunk) {
    size_t done = chunk * sums->store->info.chunk_bytes;
    return zr_store_checksum(sums->range->buffer + done,
                             chunk_size(sums->store, sums->range, done));
}

static void note_other(chunk_sums_t *sums, size_t chunk) {
    size_t first = atomic_load(&sums->first_other);
    while (chunk < first && !atomic_compare_exchange_weak(&sums->first_other, &first, chunk))
        ;
}

static void sum_some(void *context, size_t task) {
    chunk_sums_t *sums = context;
    size_t end = (task + 1) * sums->n / sums->n_tasks;
    for (size_t i = task * sums->n / sums->n_tasks; i < end; i++) {
        uint64_t sum = sum_of_chunk(sums, i);
        if (sums->made != NULL)
            sums->made[i] = sum;
        else if (sum != sums->put[i])
            note_other(sums, i);
    }
}

/* On the threads of the store's device, where that has some; the time is the caller's. */
static void sum_chunks(zr_store_t *store, chunk_sums_t *sums) {
    double begin = zr_store_clock();
    size_t chunk = store->info.chunk_bytes;
    sums->store = store;
    sums->n = (sums->range->size_bytes + chunk - 1) / chunk;
    sums->n_tasks = sums->n < ZR_STORE_SUM_THREADS ? sums->n : ZR_STORE_SUM_THREADS;
    atomic_init(&sums->first_other, sums->n);
    zr_background_hold(true); /* the store is not to move transfers meanwhile */
    zr_host_share_tasks(store->options.device, sums->n_tasks, sum_some, sums);
    zr_background_hold(false);
    store->accounts[store->extents[sums->range->extent].account].checksum_seconds +=
        zr_store_clock() - begin;
}

void zr_store_hash_chunks(zr_store_t *store, const zr_store_chunk_range_t *range, uint64_t *sums) {
    sum_chunks(store, &(chunk_sums_t){.range = range, .made = sums});
}

void zr_store_piece_begins(zr_store_t *store, const zr_store_piece_t *piece) {
    const zr_store_transfer_t *transfer = piece->transfer;
    if (store->sums == NULL || transfer->direction != ZR_STORE_PUT || transfer->is_unhashed)
        return;
    zr_store_chunk_range_t range = range_of(piece);
    zr_store_hash_chunks(store, &range,
                         store->sums +
                             zr_store_chunk_at(store, transfer->extent, piece->offset_bytes));
}

/* Where bytes of a range are; begin: where it begins, in one file. NULL: it may be in several. */
static zr_store_place_t place_of(const chunk_sums_t *sums, const zr_store_place_t *begin,
                                 size_t done) {
    const zr_store_t *store = sums->store;
    size_t offset_bytes = sums->range->offset_bytes + done;
    if (begin != NULL)
        return (zr_store_place_t){begin->file, begin->offset_bytes + done};
    if (store->backend->locate != NULL)
        return store->backend->locate(store, sums->range->extent, offset_bytes);
    return (zr_store_place_t){"the store", offset_bytes};
}

static zr_status_t refuse_chunk(const chunk_sums_t *sums, const zr_store_place_t *begin) {
    const zr_store_t *store = sums->store;
    const zr_store_chunk_range_t *range = sums->range;
    size_t chunk = atomic_load(&sums->first_other), done = chunk * store->info.chunk_bytes;
    size_t size_bytes = chunk_size(store, range, done);
    zr_store_place_t place = place_of(sums, begin, done);
    return zr_fail(&store->options.log, ZR_ERR_FORMAT,
                   "get of \"%s\": the %zu bytes at %zu are not those that were put: %s, offset "
                   "%llu, length %zu: XXH3 %016llx was put, %016llx came back; the drive, its "
                   "connection or the memory is at fault",
                   store->extents[range->extent].name, size_bytes, range->offset_bytes + done,
                   place.file, (unsigned long long)place.offset_bytes, size_bytes,
                   (unsigned long long)sums->put[chunk],
                   (unsigned long long)sum_of_chunk(sums, chunk));
}

zr_status_t zr_store_verify_chunks(zr_store_t *store, const zr_store_chunk_range_t *range,
                                   const zr_store_place_t *place) {
    chunk_sums_t sums = {.range = range,
                         .put = store->sums +
                                zr_store_chunk_at(store, range->extent, range->offset_bytes)};
    sum_chunks(store, &sums);
    return atomic_load(&sums.first_other) == sums.n ? ZR_OK : refuse_chunk(&sums, place);
}

static zr_status_t verify(zr_store_t *store, const zr_store_piece_t *piece) {
    const zr_store_place_t place = {piece->file, piece->file_offset_bytes};
    zr_store_chunk_range_t range = range_of(piece);
    if (store->sums == NULL || piece->transfer->is_unhashed)
        return ZR_OK;
    return zr_store_verify_chunks(store, &range, &place);
}

static void mark_present(zr_store_t *store, const zr_store_piece_t *piece) {
    unsigned char *is_present =
        store->is_present + zr_store_chunk_at(store, piece->transfer->extent, piece->offset_bytes);
    for (size_t done = 0; done < piece->size_bytes; done += store->info.chunk_bytes)
        *is_present++ = 1;
}

static void record(const zr_store_t *store, const zr_store_transfer_t *transfer) {
    bool is_put = transfer->direction == ZR_STORE_PUT;
    const zr_trace_slice_t slice = {.kind = ZR_SLICE_TRANSFER,
                                    .lane = is_put ? "write" : "read",
                                    .name = is_put ? "write" : "read",
                                    .subject = store->extents[transfer->extent].name,
                                    .begin = transfer->begin,
                                    .end = transfer->end != 0 ? transfer->end : zr_store_now(store),
                                    .bytes = (double)transfer->size_bytes};
    zr_trace_slice(zr_store_trace(store), &slice);
}

static void end_bytes(zr_store_t *store, zr_store_transfer_t *transfer, size_t size_bytes) {
    transfer->ended_bytes += size_bytes;
    if (transfer->ended_bytes < transfer->size_bytes)
        return;
    transfer->state = ZR_TRANSFER_ENDED;
    store->n_in_flight--;
    if (transfer->begin != 0)
        record(store, transfer);
    if (transfer->status == ZR_OK)
        zr_store_account_of(store, transfer)->count[transfer->direction].n_transfers++;
    else
        zr_store_account_of(store, transfer)->n_failed++;
}

void zr_store_piece_ended(zr_store_t *store, const zr_store_piece_t *piece,
                          const zr_store_outcome_t *outcome) {
    zr_store_transfer_t *transfer = piece->transfer;
    zr_status_t status = outcome->status;
    if (status == ZR_OK && transfer->direction == ZR_STORE_GET && transfer->status == ZR_OK)
        status = verify(store, piece);
    if (status == ZR_OK) {
        zr_store_count_t *count = &zr_store_account_of(store, transfer)->count[transfer->direction];
        count->n_requests += outcome->n_requests;
        count->bytes += piece->size_bytes;
        count->moved_bytes += outcome->moved_bytes;
        count->bounced_bytes += outcome->was_bounced ? piece->size_bytes : 0;
        if (transfer->direction == ZR_STORE_PUT)
            mark_present(store, piece);
    } else if (transfer->status == ZR_OK) {
        transfer->status = status;
    }
    end_bytes(store, transfer, piece->size_bytes);
}

void zr_store_abandon_rest(zr_store_t *store, zr_store_transfer_t *transfer) {
    size_t rest_bytes = transfer->size_bytes - transfer->begun_bytes;
    transfer->begun_bytes = transfer->size_bytes;
    if (rest_bytes > 0)
        end_bytes(store, transfer, rest_bytes);
}

/* ---- host memory ---------------------------------------------------------------------------- */

zr_status_t zr_store_memory_allocate(zr_store_t *store, zr_tag_t tag, const char *name,
                                     size_t size_bytes, size_t align_bytes,
                                     zr_store_memory_t *memory_p) {
    size_t with_slack = size_bytes + align_bytes - 1;
    void *allocation = NULL;
    if (size_bytes == 0) {
        *memory_p = (zr_store_memory_t){0};
        return ZR_OK;
    }
    if (store->options.allocator != NULL) {
        const zr_allocation_request_t request = {.size_bytes = with_slack,
                                                 .tier = ZR_TIER_HOST,
                                                 .tag = tag,
                                                 .lifetime = ZR_LIFETIME_PERSISTENT,
                                                 .name = name};
        ZR_TRY(zr_allocate(store->options.allocator, &request, &allocation));
    } else if ((allocation = malloc(with_slack)) == NULL) {
        return zr_fail(&store->options.log, ZR_ERR_BUDGET,
                       "store: the system has no %zu bytes of host memory for %s", with_slack,
                       name);
    }
    uintptr_t base = ((uintptr_t)allocation + align_bytes - 1) & ~(uintptr_t)(align_bytes - 1);
    *memory_p = (zr_store_memory_t){
        .base = (void *)base, .allocation = allocation, .size_bytes = with_slack};
    store->info.host_bytes += with_slack;
    return ZR_OK;
}

void zr_store_memory_free(zr_store_t *store, zr_store_memory_t *memory) {
    if (memory->allocation == NULL)
        return;
    if (store->options.allocator != NULL)
        zr_free(store->options.allocator, &memory->allocation, NULL);
    else
        free(memory->allocation);
    store->info.host_bytes -= memory->size_bytes;
    *memory = (zr_store_memory_t){0};
}

void *zr_store_buffer_fit(const zr_store_buffer_t *lent, size_t size_bytes, size_t align_bytes) {
    size_t skew = (uintptr_t)lent->base % align_bytes, before = skew == 0 ? 0 : align_bytes - skew;
    bool fits = lent->size_bytes >= before && lent->size_bytes - before >= size_bytes;
    return lent->base != NULL && fits ? (char *)lent->base + before : NULL;
}

zr_status_t zr_store_bounce_allocate(zr_store_t *store, zr_store_memory_t *memory_p) {
    const zr_store_options_t *o = &store->options;
    size_t align = store->info.buffer_align_bytes > 4096 ? store->info.buffer_align_bytes : 4096;
    size_t size_bytes = o->n_bounce_buffers * o->request_bytes;
    void *lent = zr_store_buffer_fit(&o->lent, size_bytes, align);
    *memory_p = (zr_store_memory_t){.base = lent};
    if (lent != NULL)
        return ZR_OK;
    return zr_store_memory_allocate(store, ZR_TAG_STAGING, "the store's bounce buffers", size_bytes,
                                    align, memory_p);
}
