/*
 * The store's front: what every backend shares.
 *
 * Arguments are checked here once. Tickets name slots of a table made with the store, so that
 * starting a transfer takes no memory. Of transfers on the same bytes the later one waits for the
 * earlier ones, as others wait for what their caller names: it begins when they have ended.
 */
#include <assert.h>
#include <string.h>

#include "allocator/heap_internal.h"
#include "kernels/base/owner_internal.h"
#include "kernels/base/waiting_internal.h"
#include "kernels/device_trace.h"
#include "offload/store_backend.h"

static const zr_store_backend_t *const backends[] = {
    &zr_store_memory_backend, &zr_store_uring_backend, &zr_store_posix_backend,
    &zr_store_sim_backend, &zr_store_sim_plain_backend};
#define N_BACKENDS (sizeof(backends) / sizeof(backends[0]))

const char *zr_store_direction_name(zr_store_direction_t direction) {
    return direction == ZR_STORE_PUT ? "put" : "get";
}

zr_store_options_t zr_store_options_default(void) {
    return (zr_store_options_t){
        .log = zr_log_default(),
        .chunk_bytes = (size_t)256 << 10,
        .max_transfers = 256,
        .verify = true,
        .request_bytes = (size_t)512 << 10,
        .depth = 64,
        .submit_batch = 4,
        .n_bounce_buffers = 4,
    };
}

/* ---- creation ---------------------------------------------------------------------------- */

/* One option that is a count. */
typedef struct count_rule {
    const char *name;
    size_t value, least, most;
} count_rule_t;

static zr_status_t check_counts(const zr_store_options_t *o) {
    const count_rule_t rules[] = {
        {"max_transfers", o->max_transfers, 1, ZR_STORE_MAX_TRANSFERS},
        {"chunk_bytes", o->chunk_bytes, ZR_STORE_CHUNK_ALIGN_BYTES, ZR_STORE_MAX_REQUEST_BYTES},
        {"request_bytes", o->request_bytes, o->chunk_bytes, ZR_STORE_MAX_REQUEST_BYTES},
        {"depth", o->depth, 1, ZR_STORE_MAX_DEPTH},
        {"submit_batch", o->submit_batch, 1, o->depth},
        {"n_bounce_buffers", o->n_bounce_buffers, 1, ZR_STORE_MAX_BOUNCE_BUFFERS},
    };
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        const count_rule_t *rule = &rules[i];
        if (rule->value < rule->least || rule->value > rule->most)
            return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                           "store: %s is %zu; %zu to %zu are allowed, the nearest is %zu",
                           rule->name, rule->value, rule->least, rule->most,
                           rule->value < rule->least ? rule->least : rule->most);
    }
    return ZR_OK;
}

static zr_status_t check_multiple(const zr_store_options_t *o, const char *name, size_t value,
                                  const char *unit_name, size_t unit) {
    if (value % unit == 0)
        return ZR_OK;
    return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                   "store: %s is %zu, but must be a multiple of %s, %zu; the next is %zu", name,
                   value, unit_name, unit, (value / unit + 1) * unit);
}

static zr_status_t check_options(const zr_store_options_t *o) {
    ZR_TRY(check_counts(o));
    ZR_TRY(check_multiple(o, "chunk_bytes", o->chunk_bytes, "ZR_STORE_CHUNK_ALIGN_BYTES",
                          ZR_STORE_CHUNK_ALIGN_BYTES));
    return check_multiple(o, "request_bytes", o->request_bytes, "chunk_bytes", o->chunk_bytes);
}

static zr_status_t check_extents(const zr_store_options_t *o, const zr_store_extent_t *extents,
                                 size_t n_extents) {
    if (extents == NULL && n_extents > 0)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "store: %s, but no array of them (NULL)",
                       zr_count_text(n_extents, "extent").text);
    /* With padding, a sum of sizes that is far from the largest off_t. */
    size_t left = (size_t)1 << 60;
    for (size_t i = 0; i < n_extents; i++) {
        if (extents[i].name == NULL)
            return zr_fail(&o->log, ZR_ERR_ARGUMENT, "store: extent %zu has no name (NULL)", i);
        if (extents[i].size_bytes > left)
            return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                           "store: with extent %zu, \"%s\" of %s, they are more than the %zu bytes "
                           "that are allowed",
                           i, extents[i].name, zr_count_text(extents[i].size_bytes, "byte").text,
                           (size_t)1 << 60);
        if (extents[i].account >= ZR_STORE_MAX_ACCOUNTS)
            return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                           "store: extent %zu, \"%s\", is of account %zu; there are 0 to %d", i,
                           extents[i].name, extents[i].account, ZR_STORE_MAX_ACCOUNTS - 1);
        left -= extents[i].size_bytes;
    }
    return ZR_OK;
}

static zr_status_t find_backend(const char *name, const zr_log_t *log,
                                const zr_store_backend_t **backend_p) {
    for (size_t i = 0; i < N_BACKENDS; i++) {
        if (name != NULL && strcmp(name, backends[i]->name) == 0) {
            *backend_p = backends[i];
            return ZR_OK;
        }
    }
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "store: unknown backend \"%s\"; allowed: memory, uring, posix, sim",
                   name != NULL ? name : "(NULL)");
}

/* Where there is no memory, nothing can be taken from it. */
static zr_status_t check_device(const zr_store_options_t *o, const zr_store_backend_t *backend) {
    if (o->device == NULL || !zr_device_info(o->device)->stores_nothing || backend->keeps_nothing)
        return ZR_OK;
    return zr_fail(&o->log, ZR_ERR_UNSUPPORTED,
                   "store: device \"%s\" is simulated and has no data for \"%s\"; use \"sim\"",
                   zr_device_info(o->device)->backend, backend->name);
}

static const zr_waiting_rules_t waiting_rules;

static bool make_waiting(zr_store_t *store) {
    zr_waiting_thing_t *things =
        zr_heap_alloc(store->heap, store->options.max_transfers, sizeof(*things));
    store->waiting = zr_heap_alloc(store->heap, 1, sizeof(*store->waiting));
    if (store->waiting == NULL || things == NULL)
        return false;
    *store->waiting = (zr_waiting_t){.rules = &waiting_rules, .context = store, .things = things};
    return true;
}

/* The tables of the front, as large as they will ever be. */
static zr_status_t make_tables(zr_store_t *store, const zr_store_extent_t *extents) {
    size_t n_extents = store->info.n_extents, n_chunks = 0;
    bool has_sums = store->options.verify && !store->backend->keeps_nothing;
    store->extents = zr_heap_alloc(store->heap, n_extents, sizeof(*store->extents));
    store->chunks = zr_heap_alloc(store->heap, n_extents, sizeof(*store->chunks));
    store->transfers =
        zr_heap_alloc(store->heap, store->options.max_transfers, sizeof(*store->transfers));
    if (store->extents == NULL || store->chunks == NULL || store->transfers == NULL ||
        !make_waiting(store))
        goto err_no_memory;
    for (size_t i = 0; i < n_extents; i++) {
        store->extents[i] = extents[i];
        store->extents[i].name = zr_heap_text(store->heap, extents[i].name);
        if (store->extents[i].name == NULL)
            goto err_no_memory;
        size_t size = extents[i].size_bytes, chunk = store->options.chunk_bytes;
        store->chunks[i].first = n_chunks;
        store->chunks[i].n_chunks = size / chunk + (size % chunk != 0);
        n_chunks += store->chunks[i].n_chunks;
    }
    store->is_present = zr_heap_alloc(store->heap, n_chunks, sizeof(*store->is_present));
    if (has_sums)
        store->sums = zr_heap_alloc(store->heap, n_chunks, sizeof(*store->sums));
    if (store->is_present == NULL || (has_sums && store->sums == NULL))
        goto err_no_memory;
    store->info.has_checksums = has_sums;
    store->info.counts_checksums = store->options.verify;
    store->info.host_bytes = store->backend->handle_bytes +
                             store->options.max_transfers *
                                 (sizeof(*store->transfers) + sizeof(*store->waiting->things)) +
                             n_extents * (sizeof(*store->extents) + sizeof(*store->chunks)) +
                             n_chunks * (1 + (has_sums ? sizeof(*store->sums) : 0));
    return ZR_OK;

err_no_memory:
    return zr_fail(&store->options.log, ZR_ERR_MEMORY,
                   "store: no memory for the tables of %s and %s",
                   zr_count_text(n_extents, "extent").text,
                   zr_count_text(store->options.max_transfers, "transfer").text);
}

zr_status_t zr_store_create(const char *name, const zr_store_options_t *options,
                            const zr_store_extent_t *extents, size_t n_extents,
                            zr_store_t **store_p) {
    const zr_store_backend_t *backend = NULL;
    ZR_TRY(find_backend(name, options != NULL ? &options->log : NULL, &backend));
    return zr_store_create_from(backend, options, extents, n_extents, store_p);
}

zr_status_t zr_store_create_from(const zr_store_backend_t *backend,
                                 const zr_store_options_t *options,
                                 const zr_store_extent_t *extents, size_t n_extents,
                                 zr_store_t **store_p) {
    zr_store_options_t o = options != NULL ? *options : zr_store_options_default();
    if (store_p == NULL)
        return zr_fail(&o.log, ZR_ERR_ARGUMENT, "store: the output pointer is NULL");
    ZR_TRY(check_options(&o));
    ZR_TRY(check_device(&o, backend));
    ZR_TRY(check_extents(&o, extents, n_extents));

    zr_heap_t *heap = zr_heap_create(o.allocator != NULL ? zr_allocator_heap(o.allocator) : NULL);
    zr_store_t *store = heap != NULL ? zr_heap_alloc(heap, 1, backend->handle_bytes) : NULL;
    if (store == NULL) {
        zr_heap_destroy(&heap);
        return zr_fail(&o.log, ZR_ERR_MEMORY, "store: no memory for its handle");
    }
    store->heap = heap;
    store->owner = getpid();
    store->backend = backend;
    store->options = o;
    store->info = (zr_store_info_t){.backend = backend->name,
                                    .n_extents = n_extents,
                                    .chunk_bytes = o.chunk_bytes,
                                    .buffer_align_bytes = 1,
                                    .block_bytes = 1};
    zr_status_t status = make_tables(store, extents);
    if (status != ZR_OK)
        goto err_free_store;
    status = backend->open(store);
    if (status != ZR_OK)
        goto err_close;
    store->options.paths = NULL;
    store->options.n_paths = 0;
    store->options.file_name = NULL;
    *store_p = store;
    return ZR_OK;

err_close:
    backend->close(store);
err_free_store:
    zr_heap_destroy(&heap);
    return status;
}

/* Until nothing is in flight, and nothing waits. */
static void drain(zr_store_t *store) {
    while (store->waiting->n > 0)
        zr_waiting_finish(store->waiting, store->waiting->things[0].number);
    while (store->n_in_flight > 0)
        store->backend->progress(store, true);
}

static zr_status_t check_owner(const zr_store_t *store, const char *call) {
    return zr_owner_check(store->owner, &store->options.log, call, "the store");
}

void zr_store_destroy(zr_store_t **store) {
    if (store == NULL || *store == NULL)
        return;
    if (!zr_owner_is_here((*store)->owner)) {
        if ((*store)->backend->forget != NULL)
            (*store)->backend->forget(*store);
        *store = NULL;
        return;
    }
    drain(*store);
    (*store)->backend->close(*store);
    (void)zr_store_count_pinned(*store, 0);
    zr_heap_t *heap = (*store)->heap;
    zr_heap_destroy(&heap);
    *store = NULL;
}

/* ---- facts ---------------------------------------------------------------------------------- */

const zr_store_info_t *zr_store_info(const zr_store_t *store) {
    return &store->info;
}

const zr_store_extent_t *zr_store_extent(const zr_store_t *store, size_t extent) {
    return extent < store->info.n_extents ? &store->extents[extent] : NULL;
}

void zr_store_account_statistics(const zr_store_t *store, size_t account,
                                 zr_store_statistics_t *statistics_p) {
    *statistics_p = store->accounts[account];
}

void zr_store_count_add(zr_store_count_t *sum, const zr_store_count_t *count) {
    sum->n_transfers += count->n_transfers;
    sum->n_requests += count->n_requests;
    sum->bytes += count->bytes;
    sum->moved_bytes += count->moved_bytes;
    sum->bounced_bytes += count->bounced_bytes;
}

zr_store_count_t zr_store_count_between(const zr_store_count_t *before,
                                        const zr_store_count_t *after) {
    return (zr_store_count_t){.n_transfers = after->n_transfers - before->n_transfers,
                              .n_requests = after->n_requests - before->n_requests,
                              .bytes = after->bytes - before->bytes,
                              .moved_bytes = after->moved_bytes - before->moved_bytes,
                              .bounced_bytes = after->bounced_bytes - before->bounced_bytes};
}

void zr_store_statistics(const zr_store_t *store, zr_store_statistics_t *statistics_p) {
    zr_store_statistics_t sum = {0};
    for (size_t i = 0; i < ZR_STORE_MAX_ACCOUNTS; i++) {
        const zr_store_statistics_t *account = &store->accounts[i];
        for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
            zr_store_count_add(&sum.count[d], &account->count[d]);
            sum.wait_seconds[d] += account->wait_seconds[d];
        }
        sum.n_continued += account->n_continued;
        sum.n_retried += account->n_retried;
        sum.n_conflicts += account->n_conflicts;
        sum.n_failed += account->n_failed;
        sum.checksum_seconds += account->checksum_seconds;
    }
    *statistics_p = sum;
}

/* ---- starting a transfer -------------------------------------------------------------------- */

/* Everything that a put or get has been told. */
typedef struct call {
    zr_store_direction_t direction;
    size_t extent, offset_bytes, size_bytes;
    void *buffer;
    zr_store_ticket_t *ticket_p; /* NULL: nothing is transferred */
    const char *verb;            /* for messages */
    bool is_unhashed;
    const uint64_t *sums; /* of a put that is unhashed */
    zr_store_after_t after;
} call_t;

static call_t call_of(const char *verb, zr_store_direction_t direction, size_t extent,
                      size_t offset_bytes, size_t size_bytes, const void *buffer,
                      zr_store_ticket_t *ticket_p) {
    return (call_t){.direction = direction,
                    .extent = extent,
                    .offset_bytes = offset_bytes,
                    .size_bytes = size_bytes,
                    .buffer = (void *)(uintptr_t)buffer, /* of a put, it is only read */
                    .ticket_p = ticket_p,
                    .verb = verb};
}

static zr_status_t check_bytes(const zr_store_t *store, const call_t *call) {
    const zr_log_t *log = &store->options.log;
    const char *verb = call->verb;
    const zr_store_extent_t *extent = &store->extents[call->extent];
    size_t chunk = store->info.chunk_bytes;
    if (call->offset_bytes > extent->size_bytes ||
        call->size_bytes > extent->size_bytes - call->offset_bytes)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s of \"%s\": %s at %zu; the extent has %zu", verb,
                       extent->name, zr_count_text(call->size_bytes, "byte").text,
                       call->offset_bytes, extent->size_bytes);
    if (call->size_bytes == 0)
        return ZR_OK;
    if (call->offset_bytes % chunk != 0 ||
        (call->size_bytes % chunk != 0 &&
         call->offset_bytes + call->size_bytes != extent->size_bytes))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s of \"%s\": %s at %zu: not whole chunks: begin at a multiple of "
                       "chunk_bytes, %zu, and end at one or at the extent's end, %zu",
                       verb, extent->name, zr_count_text(call->size_bytes, "byte").text,
                       call->offset_bytes, chunk, extent->size_bytes);
    if (call->buffer == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s of \"%s\": no buffer (NULL) for %s", verb,
                       extent->name, zr_count_text(call->size_bytes, "byte").text);
    return ZR_OK;
}

/* Store, extent and bytes. */
static zr_status_t check_range(const zr_store_t *store, const call_t *call) {
    if (store == NULL)
        return zr_fail(NULL, ZR_ERR_ARGUMENT, "%s: no store (NULL)", call->verb);
    if (call->extent >= store->info.n_extents)
        return zr_fail(&store->options.log, ZR_ERR_ARGUMENT, "%s: extent %zu; declared: %s",
                       call->verb, call->extent,
                       zr_count_text(store->info.n_extents, "extent").text);
    return check_bytes(store, call);
}

static zr_status_t check_call(const zr_store_t *store, const call_t *call) {
    if (store != NULL && call->ticket_p == NULL)
        return zr_fail(&store->options.log, ZR_ERR_ARGUMENT,
                       "%s: the output pointer for the ticket is NULL", call->verb);
    return check_range(store, call);
}

static zr_status_t check_alive(const zr_store_t *store, const call_t *call) {
    if (!store->is_dead)
        return ZR_OK;
    return zr_fail(&store->options.log, ZR_ERR_IO,
                   "%s of \"%s\": the store is unusable since %s failed: %s (errno %d)",
                   zr_store_direction_name(call->direction), store->extents[call->extent].name,
                   store->death.operation, strerror(store->death.error), store->death.error);
}

/* ---- waiting for transfers ------------------------------------------------------------------- */

static bool is_going_on(const zr_store_transfer_t *transfer) {
    return transfer->state == ZR_TRANSFER_WAITING || transfer->state == ZR_TRANSFER_IN_FLIGHT;
}

static void progress(zr_store_t *store, bool wait) {
    if (store->n_in_flight > 0)
        store->backend->progress(store, wait);
    zr_waiting_progress(store->waiting);
}

/* See whether a transfer has ended. */
static void look(zr_store_t *store, const zr_store_transfer_t *transfer, bool wait) {
    if (store->backend->look != NULL)
        store->backend->look(store, transfer, wait);
    else if (is_going_on(transfer))
        progress(store, wait);
}

/* Block until a transfer has ended. */
static void finish(zr_store_t *store, const zr_store_transfer_t *transfer) {
    if (transfer->state == ZR_TRANSFER_WAITING)
        zr_waiting_finish(store->waiting, (size_t)(transfer - store->transfers));
    if (transfer->state == ZR_TRANSFER_IN_FLIGHT)
        zr_waiting_progress(store->waiting); /* so that others begin before this thread blocks */
    bool was_in_flight = transfer->state == ZR_TRANSFER_IN_FLIGHT;
    double begin = was_in_flight ? zr_store_now(store) : 0;
    zr_store_direction_t direction = transfer->direction;
    do
        look(store, transfer, true);
    while (transfer->state == ZR_TRANSFER_IN_FLIGHT);
    if (!was_in_flight)
        return;
    zr_store_account_of(store, transfer)->wait_seconds[direction] += zr_store_now(store) - begin;
    if (store->options.device != NULL)
        zr_device_waited(store->options.device, begin,
                         direction == ZR_STORE_PUT ? "wait for write" : "wait for read",
                         store->extents[transfer->extent].name);
}

static zr_store_ticket_t ticket_of(const zr_store_t *store, const zr_store_transfer_t *transfer) {
    return transfer->generation * ZR_STORE_MAX_TRANSFERS + (size_t)(transfer - store->transfers);
}

bool zr_store_has_waiting(const zr_store_t *store) {
    return store->waiting->n > 0;
}

zr_store_transfer_t *zr_store_find(const zr_store_t *store, zr_store_ticket_t ticket) {
    size_t slot = (size_t)(ticket % ZR_STORE_MAX_TRANSFERS);
    zr_store_transfer_t *transfer =
        slot < store->options.max_transfers ? &store->transfers[slot] : NULL;
    if (transfer == NULL || transfer->state == ZR_TRANSFER_FREE ||
        transfer->generation != ticket / ZR_STORE_MAX_TRANSFERS)
        return NULL;
    return transfer;
}

/* ---- transfers on the same bytes ------------------------------------------------------------- */

static bool are_same_bytes(const zr_store_transfer_t *a, const zr_store_transfer_t *b) {
    return a->extent == b->extent && a->offset_bytes < b->offset_bytes + b->size_bytes &&
           b->offset_bytes < a->offset_bytes + a->size_bytes;
}

/* Whether one of the two changes bytes of the other. */
static bool conflict(const zr_store_transfer_t *a, const zr_store_transfer_t *b) {
    return a->state != ZR_TRANSFER_FREE && are_same_bytes(a, b) &&
           (a->direction == ZR_STORE_PUT || b->direction == ZR_STORE_PUT);
}

/* Whether one more has room among those that a transfer waits for. */
static bool add_after(zr_store_transfer_t *transfer, zr_store_ticket_t ticket) {
    size_t n = 0;
    while (n < ZR_STORE_MAX_AFTER && transfer->after[n] != ZR_STORE_NO_TICKET &&
           transfer->after[n] != ticket)
        n++;
    if (n < ZR_STORE_MAX_AFTER)
        transfer->after[n] = ticket;
    return n < ZR_STORE_MAX_AFTER;
}

/* Let a transfer begin after those on the same bytes. Those that have ended count until they are
 * waited for, so that what waits for what does not depend on time. Checksums that come with the
 * call are the caller's after it, so that one does not wait. */
static void wait_for_conflicts(zr_store_t *store, const call_t *call,
                               zr_store_transfer_t *transfer) {
    bool waits = false;
    for (size_t i = 0; i < store->n_slots; i++) {
        zr_store_transfer_t *other = &store->transfers[i];
        if (!conflict(other, transfer))
            continue;
        waits |= is_going_on(other);
        if (call->sums != NULL || !add_after(transfer, ticket_of(store, other)))
            finish(store, other);
    }
    store->accounts[store->extents[call->extent].account].n_conflicts += waits;
}

static size_t first_chunk(const zr_store_t *store, const call_t *call) {
    return zr_store_chunk_at(store, call->extent, call->offset_bytes);
}

static size_t n_chunks(const zr_store_t *store, const call_t *call) {
    size_t chunk = store->info.chunk_bytes;
    return call->size_bytes / chunk + (call->size_bytes % chunk != 0);
}

/* Whether a put of the chunk is going on. */
static bool is_expected(const zr_store_t *store, size_t extent, size_t offset_bytes) {
    for (size_t i = 0; i < store->n_slots; i++) {
        const zr_store_transfer_t *transfer = &store->transfers[i];
        if (is_going_on(transfer) && transfer->direction == ZR_STORE_PUT &&
            transfer->extent == extent && transfer->offset_bytes <= offset_bytes &&
            offset_bytes < transfer->offset_bytes + transfer->size_bytes)
            return true;
    }
    return false;
}

/* The offset of the first chunk that is not there; the end of the call's bytes: all are.
 * @param expects  puts that go on count, too */
static size_t first_absent(const zr_store_t *store, const call_t *call, bool expects) {
    const unsigned char *is_present = store->is_present + first_chunk(store, call);
    for (size_t i = 0; i < n_chunks(store, call); i++) {
        size_t offset = call->offset_bytes + i * store->info.chunk_bytes;
        if (!is_present[i] && !(expects && is_expected(store, call->extent, offset)))
            return offset;
    }
    return call->offset_bytes + call->size_bytes;
}

static zr_status_t check_present(const zr_store_t *store, const call_t *call, bool expects) {
    size_t offset = first_absent(store, call, expects);
    if (offset == call->offset_bytes + call->size_bytes)
        return ZR_OK;
    return zr_fail(
        &store->options.log, ZR_ERR_STATE,
        "%s of \"%s\": %s at %zu: the chunk at %zu has no data: it was never put, or its "
        "put failed",
        call->verb, store->extents[call->extent].name, zr_count_text(call->size_bytes, "byte").text,
        call->offset_bytes, offset);
}

void zr_store_presume_put(zr_store_t *store) {
    size_t n_extents = store->backend->keeps_nothing ? store->info.n_extents : 0;
    for (size_t i = 0; i < n_extents; i++)
        memset(store->is_present + store->chunks[i].first, 1, store->chunks[i].n_chunks);
}

static zr_status_t find_free_slot(zr_store_t *store, const call_t *call, size_t *slot_p) {
    for (size_t i = 0; i < store->n_slots; i++) {
        if (store->transfers[i].state == ZR_TRANSFER_FREE) {
            *slot_p = i;
            return ZR_OK;
        }
    }
    if (store->n_slots < store->options.max_transfers) {
        *slot_p = store->n_slots++;
        return ZR_OK;
    }
    return zr_fail(&store->options.log, ZR_ERR_STATE,
                   "%s of \"%s\": max_transfers, %zu, have been started and not waited for; wait "
                   "for some, or raise max_transfers",
                   zr_store_direction_name(call->direction), store->extents[call->extent].name,
                   store->options.max_transfers);
}

static void clear_bytes(zr_store_t *store, const call_t *call) {
    memset(store->is_present + first_chunk(store, call), 0, n_chunks(store, call));
}

/* No earlier transfer is on them any more. */
static zr_status_t open_bytes(zr_store_t *store, const call_t *call) {
    ZR_TRY(check_alive(store, call));
    if (call->direction == ZR_STORE_GET)
        return check_present(store, call, false);
    clear_bytes(store, call);
    if (call->sums != NULL && store->sums != NULL)
        memcpy(store->sums + first_chunk(store, call), call->sums,
               n_chunks(store, call) * sizeof(*call->sums));
    return ZR_OK;
}

static void begin(zr_store_t *store, zr_store_transfer_t *transfer) {
    if (zr_store_trace(store) != NULL)
        transfer->begin = zr_store_now(store);
    transfer->state = ZR_TRANSFER_IN_FLIGHT;
    store->n_in_flight++;
    store->backend->start(store, transfer);
}

static bool has_ended(const zr_store_t *store, zr_store_ticket_t ticket) {
    const zr_store_transfer_t *transfer = zr_store_find(store, ticket);
    return transfer == NULL || !is_going_on(transfer);
}

static bool is_ready(void *context, size_t index) {
    const zr_store_t *store = context;
    zr_store_transfer_t *transfer = &store->transfers[index];
    bool has_passed = true;
    for (size_t i = 0; i < ZR_STORE_MAX_AFTER; i++)
        if (!has_ended(store, transfer->after[i]))
            return false;
    if (transfer->event != NULL)
        transfer->status = zr_event_query(transfer->event, &has_passed);
    return has_passed || transfer->status != ZR_OK;
}

static void make_ready(void *context, size_t index) {
    zr_store_t *store = context;
    const zr_store_transfer_t waiting = store->transfers[index];
    for (size_t i = 0; i < ZR_STORE_MAX_AFTER; i++) {
        const zr_store_transfer_t *before = zr_store_find(store, waiting.after[i]);
        if (before != NULL)
            finish(store, before);
    }
    zr_store_transfer_t *transfer = &store->transfers[index];
    if (transfer->state == ZR_TRANSFER_WAITING && waiting.event != NULL)
        transfer->status = zr_event_synchronize(waiting.event);
}

/* Of a put that a get has waited for: there is nothing to get, and nobody has been told why. */
static zr_status_t error_before(const zr_store_t *store, const zr_store_transfer_t *transfer,
                                const call_t *call) {
    if (transfer->direction == ZR_STORE_PUT || transfer->after[0] == ZR_STORE_NO_TICKET ||
        first_absent(store, call, true) == call->offset_bytes + call->size_bytes)
        return ZR_OK;
    for (size_t i = 0; i < ZR_STORE_MAX_AFTER; i++) {
        const zr_store_transfer_t *before = zr_store_find(store, transfer->after[i]);
        if (before != NULL && conflict(before, transfer))
            ZR_TRY(before->status);
    }
    return ZR_OK;
}

/* Nobody is told of an error before its ticket is waited for. */
static void begin_waiting(void *context, size_t index) {
    zr_store_t *store = context;
    zr_store_transfer_t *transfer = &store->transfers[index];
    const call_t call =
        call_of(zr_store_direction_name(transfer->direction), transfer->direction, transfer->extent,
                transfer->offset_bytes, transfer->size_bytes, NULL, NULL);
    zr_status_t status = transfer->status;
    ZR_THEN(status, error_before(store, transfer, &call));
    ZR_THEN(status, open_bytes(store, &call));
    if (status == ZR_OK) {
        begin(store, transfer);
        return;
    }
    transfer->status = status;
    transfer->state = ZR_TRANSFER_ENDED;
    zr_store_account_of(store, transfer)->n_failed++;
    if (transfer->direction == ZR_STORE_PUT) /* what was there is not what was to be */
        clear_bytes(store, &call);
}

static const zr_waiting_rules_t waiting_rules = {is_ready, make_ready, begin_waiting};

static bool waits(const zr_store_t *store, const zr_store_transfer_t *transfer) {
    return transfer->event != NULL || transfer->after[0] != ZR_STORE_NO_TICKET ||
           zr_waiting_has_line(store->waiting, transfer->line);
}

static zr_status_t start(zr_store_t *store, const call_t *call) {
    size_t slot = 0;
    ZR_TRY(check_call(store, call));
    ZR_TRY(check_owner(store, call->verb));
    ZR_TRY(check_alive(store, call));
    ZR_TRY(find_free_slot(store, call, &slot));
    zr_store_transfer_t *transfer = &store->transfers[slot];
    zr_store_transfer_t one = {.direction = call->direction,
                               .extent = call->extent,
                               .offset_bytes = call->offset_bytes,
                               .size_bytes = call->size_bytes,
                               .buffer = call->buffer,
                               .status = ZR_OK,
                               .is_unhashed = call->is_unhashed,
                               .generation = transfer->generation + 1,
                               .event = call->after.event,
                               .after = {call->after.ticket},
                               .line = call->after.line};
    wait_for_conflicts(store, call, &one);
    ZR_TRY(error_before(store, &one, call));
    if (!waits(store, &one))
        ZR_TRY(open_bytes(store, call));
    else if (call->direction == ZR_STORE_GET)
        ZR_TRY(check_present(store, call, true));
    *transfer = one;
    *call->ticket_p = ticket_of(store, transfer);
    if (call->size_bytes == 0) {
        transfer->state = ZR_TRANSFER_ENDED;
        zr_store_account_of(store, transfer)->count[call->direction].n_transfers++;
    } else if (!waits(store, transfer) || store->backend->lets_wait) {
        begin(store, transfer);
    } else {
        transfer->state = ZR_TRANSFER_WAITING;
        zr_waiting_add(store->waiting, slot, transfer->line);
    }
    return ZR_OK;
}

static zr_status_t queue(zr_store_t *store, const zr_store_call_t *what,
                         zr_store_direction_t direction, zr_store_ticket_t *ticket_p) {
    call_t call = call_of(zr_store_direction_name(direction), direction, what->extent,
                          what->offset_bytes, what->size_bytes, what->buffer, ticket_p);
    call.is_unhashed = what->is_unverified;
    call.after = what->after;
    return start(store, &call);
}

zr_status_t zr_store_queue_put(zr_store_t *store, const zr_store_call_t *call,
                               zr_store_ticket_t *ticket_p) {
    return queue(store, call, ZR_STORE_PUT, ticket_p);
}

zr_status_t zr_store_queue_get(zr_store_t *store, const zr_store_call_t *call,
                               zr_store_ticket_t *ticket_p) {
    return queue(store, call, ZR_STORE_GET, ticket_p);
}

uint32_t zr_store_make_line(zr_store_t *store) {
    return store->n_lines < ZR_MAX_LINE ? ++store->n_lines : ZR_NO_LINE;
}

zr_status_t zr_store_put(zr_store_t *store, size_t extent, size_t offset_bytes, size_t size_bytes,
                         const void *buffer, zr_store_ticket_t *ticket_p) {
    const call_t call =
        call_of("put", ZR_STORE_PUT, extent, offset_bytes, size_bytes, buffer, ticket_p);
    return start(store, &call);
}

zr_status_t zr_store_put_hashed(zr_store_t *store, size_t extent, size_t offset_bytes,
                                size_t size_bytes, const void *buffer, const uint64_t *sums,
                                zr_store_ticket_t *ticket_p) {
    call_t call = call_of("put", ZR_STORE_PUT, extent, offset_bytes, size_bytes, buffer, ticket_p);
    call.is_unhashed = true;
    call.sums = sums;
    if (store != NULL && sums == NULL && store->sums != NULL && size_bytes > 0)
        return zr_fail(&store->options.log, ZR_ERR_ARGUMENT, "put: no checksums (NULL)");
    return start(store, &call);
}

zr_status_t zr_store_get(zr_store_t *store, size_t extent, size_t offset_bytes, size_t size_bytes,
                         void *buffer, zr_store_ticket_t *ticket_p) {
    const call_t call =
        call_of("get", ZR_STORE_GET, extent, offset_bytes, size_bytes, buffer, ticket_p);
    return start(store, &call);
}

zr_status_t zr_store_get_unverified(zr_store_t *store, size_t extent, size_t offset_bytes,
                                    size_t size_bytes, void *buffer, zr_store_ticket_t *ticket_p) {
    call_t call = call_of("get", ZR_STORE_GET, extent, offset_bytes, size_bytes, buffer, ticket_p);
    call.is_unhashed = true;
    return start(store, &call);
}

/* ---- checksums at another time -------------------------------------------------------------- */

zr_status_t zr_store_verify(zr_store_t *store, size_t extent, size_t offset_bytes,
                            size_t size_bytes, const void *buffer) {
    const zr_store_chunk_range_t range = {extent, offset_bytes, size_bytes, buffer};
    const call_t call =
        call_of("verifying", ZR_STORE_GET, extent, offset_bytes, size_bytes, buffer, NULL);
    ZR_TRY(check_range(store, &call));
    ZR_TRY(check_present(store, &call, false));
    if (store->sums == NULL || size_bytes == 0)
        return ZR_OK;
    return zr_store_verify_chunks(store, &range, NULL);
}

zr_status_t zr_store_hash(zr_store_t *store, size_t extent, size_t offset_bytes, size_t size_bytes,
                          const void *buffer, uint64_t *sums) {
    const zr_store_chunk_range_t range = {extent, offset_bytes, size_bytes, buffer};
    const call_t call =
        call_of("hashing", ZR_STORE_GET, extent, offset_bytes, size_bytes, buffer, NULL);
    ZR_TRY(check_range(store, &call));
    if (store->sums != NULL)
        zr_store_hash_chunks(store, &range, sums);
    return ZR_OK;
}

/* ---- ending it ------------------------------------------------------------------------------ */

static zr_status_t find_transfer(zr_store_t *store, zr_store_ticket_t ticket, const char *verb,
                                 zr_store_transfer_t **transfer_p) {
    if (store == NULL)
        return zr_fail(NULL, ZR_ERR_ARGUMENT, "%s: no store (NULL)", verb);
    ZR_TRY(check_owner(store, verb));
    *transfer_p = zr_store_find(store, ticket);
    if (*transfer_p != NULL)
        return ZR_OK;
    return zr_fail(&store->options.log, ZR_ERR_STATE,
                   "%s: ticket %llu is invalid; each ticket can be waited for once", verb,
                   (unsigned long long)ticket);
}

static zr_status_t give_back(zr_store_transfer_t *transfer) {
    transfer->state = ZR_TRANSFER_FREE;
    return transfer->status;
}

zr_status_t zr_store_wait(zr_store_t *store, zr_store_ticket_t ticket) {
    zr_store_transfer_t *transfer = NULL;
    if (ticket == ZR_STORE_NO_TICKET)
        return ZR_OK;
    ZR_TRY(find_transfer(store, ticket, "wait", &transfer));
    finish(store, transfer);
    return give_back(transfer);
}

void zr_store_drop(zr_store_t *store, zr_store_ticket_t ticket) {
    zr_store_transfer_t *transfer = zr_store_find(store, ticket);
    if (transfer == NULL)
        return;
    if (transfer->state == ZR_TRANSFER_WAITING)
        zr_waiting_remove(store->waiting, (size_t)(transfer - store->transfers));
    else
        finish(store, transfer);
    transfer->state = ZR_TRANSFER_FREE;
}

zr_status_t zr_store_poll(zr_store_t *store, zr_store_ticket_t ticket, bool *done_p) {
    zr_store_transfer_t *transfer = NULL;
    if (done_p == NULL)
        return zr_fail(store != NULL ? &store->options.log : NULL, ZR_ERR_ARGUMENT,
                       "poll: the output pointer is NULL");
    if (ticket == ZR_STORE_NO_TICKET) {
        *done_p = true;
        return ZR_OK;
    }
    ZR_TRY(find_transfer(store, ticket, "poll", &transfer));
    look(store, transfer, false);
    *done_p = transfer->state == ZR_TRANSFER_ENDED;
    return *done_p ? give_back(transfer) : ZR_OK;
}

zr_status_t zr_store_wait_all(zr_store_t *store) {
    zr_status_t status = ZR_OK;
    if (store == NULL)
        return zr_fail(NULL, ZR_ERR_ARGUMENT, "wait: no store (NULL)");
    ZR_TRY(check_owner(store, "wait"));
    for (size_t i = 0; i < store->n_slots; i++) {
        zr_store_transfer_t *transfer = &store->transfers[i];
        if (transfer->state == ZR_TRANSFER_FREE)
            continue;
        finish(store, transfer);
        zr_status_t ended = give_back(transfer);
        status = status == ZR_OK ? ended : status;
    }
    return status;
}

zr_status_t zr_store_sync(zr_store_t *store) {
    ZR_TRY(zr_store_wait_all(store));
    return store->backend->sync == NULL ? ZR_OK : store->backend->sync(store);
}

uint64_t zr_store_file_offset(const zr_store_t *store, size_t extent) {
    if (store->backend->locate == NULL)
        return 0;
    return store->backend->locate(store, extent, 0).offset_bytes;
}

const uint64_t *zr_store_checksums(const zr_store_t *store, size_t extent, size_t *n_chunks_p) {
    *n_chunks_p = store->chunks[extent].n_chunks;
    return store->sums == NULL ? NULL : store->sums + store->chunks[extent].first;
}

void zr_store_progress(zr_store_t *store) {
    if (!zr_owner_is_here(store->owner))
        return;
    if (store->n_in_flight > 0 || store->backend->look != NULL)
        store->backend->progress(store, false);
    zr_waiting_progress(store->waiting);
}

size_t zr_store_count_pinned(zr_store_t *store, size_t size_bytes) {
    zr_allocator_t *allocator = store->options.allocator;
    size_t before = store->pinned_bytes;
    store->pinned_bytes = size_bytes;
    return allocator != NULL ? zr_allocator_count_pinned(allocator, before, size_bytes)
                             : size_bytes;
}

static zr_status_t check_buffers(const zr_store_t *store, const zr_store_buffer_t *buffers,
                                 size_t n_buffers) {
    if (buffers == NULL && n_buffers > 0)
        return zr_fail(&store->options.log, ZR_ERR_ARGUMENT,
                       "register: %s, but no array of them (NULL)",
                       zr_count_text(n_buffers, "buffer").text);
    for (size_t i = 0; i < n_buffers; i++) {
        if (buffers[i].base == NULL || buffers[i].size_bytes == 0)
            return zr_fail(&store->options.log, ZR_ERR_ARGUMENT, "register: buffer %zu is %s at %p",
                           i, zr_count_text(buffers[i].size_bytes, "byte").text, buffers[i].base);
    }
    return ZR_OK;
}

zr_status_t zr_store_register(zr_store_t *store, const zr_store_buffer_t *buffers,
                              size_t n_buffers) {
    if (store == NULL)
        return zr_fail(NULL, ZR_ERR_ARGUMENT, "register: no store (NULL)");
    ZR_TRY(check_owner(store, "register"));
    ZR_TRY(check_buffers(store, buffers, n_buffers));
    if (store->backend->register_buffers == NULL || n_buffers == 0)
        return ZR_OK;
    zr_store_buffer_t *grown =
        zr_heap_resize(store->heap, store->buffers, store->n_buffers + n_buffers, sizeof(*grown));
    if (grown == NULL)
        return zr_fail(&store->options.log, ZR_ERR_MEMORY, "store: no memory for the table of %s",
                       zr_count_text(store->n_buffers + n_buffers, "buffer").text);
    store->buffers = grown;
    memcpy(grown + store->n_buffers, buffers, n_buffers * sizeof(*grown));
    store->n_buffers += n_buffers;
    drain(store);
    zr_status_t status = store->backend->register_buffers(store);
    if (status != ZR_OK)
        store->n_buffers -= n_buffers;
    return status;
}

/* Whether it was there. */
static bool forget_buffer(zr_store_t *store, const zr_store_buffer_t *buffer) {
    for (size_t i = 0; i < store->n_buffers; i++) {
        if (store->buffers[i].base == buffer->base &&
            store->buffers[i].size_bytes == buffer->size_bytes) {
            store->buffers[i] = store->buffers[--store->n_buffers];
            return true;
        }
    }
    return false;
}

void zr_store_unregister(zr_store_t *store, const zr_store_buffer_t *buffers, size_t n_buffers) {
    size_t n_forgotten = 0;
    for (size_t i = 0; i < n_buffers; i++)
        n_forgotten += forget_buffer(store, &buffers[i]);
    if (n_forgotten == 0)
        return;
    drain(store);
    zr_status_t status = store->backend->register_buffers(store);
    assert(status == ZR_OK); /* fewer than before */
    (void)status;
}
