/*
 * Store "sim": keeps nothing, and takes the time of a simulated rank's drives
 * (kernels/simulation.h) for it.
 *
 * It needs the host memory that "uring" needs, and reserves what that would.
 */

#include "kernels/base/heap_internal.h"
#include "kernels/simulation.h"
#include "offload/store_backend.h"
#include "offload/uring_internal.h"

_Static_assert((int)ZR_STORE_MAX_AFTER == (int)ZR_SIM_MAX_AFTER, "what transfers wait for");

typedef struct sim_store {
    zr_store_t base;
    zr_sim_clock_t *clock;
    const zr_hardware_t *hardware;
    zr_store_memory_t bounce_memory;
    zr_sim_drive_t *drive;
    size_t *records; /* [options.max_transfers] what to ask the drive for them by */
    size_t n_parts;  /* of buffers that are registered, at most so far */
} sim_store_t;

static uint64_t round_up(uint64_t size_bytes, uint64_t unit) {
    return (size_bytes + unit - 1) / unit * unit;
}

/* Made before a put and after a get, by the rank's thread and those of a host device. */
static double checksum_seconds(const sim_store_t *sim, const zr_store_transfer_t *transfer) {
    const zr_hardware_t *hardware = sim->hardware;
    size_t n = hardware->kind == ZR_HARDWARE_HOST ? (size_t)hardware->n_threads : 1;
    size_t n_chunks = transfer->size_bytes / sim->base.info.chunk_bytes;
    if (!sim->base.options.verify)
        return 0;
    n = n < ZR_STORE_SUM_THREADS ? n : ZR_STORE_SUM_THREADS;
    n = n < n_chunks ? n : n_chunks;
    return (double)transfer->size_bytes / hardware->checksum_bytes_per_s / (double)(n > 1 ? n : 1);
}

/* All of it at once; but a last chunk that ends within a block goes through a bounce buffer. */
static void end(void *context, size_t index, double began, double ended) {
    zr_store_t *store = context;
    zr_store_transfer_t *transfer = &store->transfers[index];
    transfer->end = ended;
    if (transfer->begin != 0)
        transfer->begin = began;
    size_t ragged = transfer->size_bytes % store->info.block_bytes == 0
                        ? 0
                        : transfer->size_bytes % store->info.chunk_bytes;
    size_t whole = transfer->size_bytes - ragged;
    bool is_aligned = (uintptr_t)transfer->buffer % store->info.buffer_align_bytes == 0;
    zr_store_piece_t piece = {.transfer = transfer,
                              .offset_bytes = transfer->offset_bytes,
                              .size_bytes = whole,
                              .file = "a simulated drive"};
    zr_store_outcome_t outcome = {.n_requests = (whole + store->info.request_bytes - 1) /
                                                store->info.request_bytes,
                                  .moved_bytes = whole,
                                  .was_bounced = !is_aligned};
    zr_store_account_of(store, transfer)->checksum_seconds +=
        checksum_seconds((sim_store_t *)store, transfer);
    if (whole > 0)
        zr_store_piece_ended(store, &piece, &outcome);
    piece.offset_bytes += whole;
    piece.size_bytes = ragged;
    outcome = (zr_store_outcome_t){.n_requests = 1,
                                   .moved_bytes = round_up(ragged, store->info.block_bytes),
                                   .was_bounced = true};
    if (ragged > 0)
        zr_store_piece_ended(store, &piece, &outcome);
}

/* ---- creation -------------------------------------------------------------------------------- */

static zr_status_t reserve(zr_store_t *store) {
    const sim_store_t *sim = (const sim_store_t *)store;
    for (size_t i = 0; i < store->info.n_extents; i++)
        store->info.reserved_bytes +=
            round_up(store->extents[i].size_bytes, zr_store_layout_bytes(store->info.block_bytes));
    /* What is kept lies elsewhere than what is not. */
    if (store->options.file_name != NULL || store->info.reserved_bytes <= sim->hardware->disk_bytes)
        return ZR_OK;
    return zr_fail(&store->options.log, ZR_ERR_BUDGET,
                   "store: drives of the machine \"%s\" have no room for %s: a rank's share of "
                   "them is %s; name more folders or larger drives, or store less there",
                   sim->hardware->name, zr_size_text(store->info.reserved_bytes).text,
                   zr_size_text(sim->hardware->disk_bytes).text);
}

/* As the system would. */
static zr_status_t pin_buffers(zr_store_t *store) {
    size_t most = ((const sim_store_t *)store)->hardware->pinned_bytes,
           before = store->pinned_bytes;
    size_t own = zr_store_uring_buffer_bytes(store);
    if (most == 0)
        return ZR_OK;
    size_t all = zr_store_count_pinned(store, own);
    if (all <= most)
        return ZR_OK;
    (void)zr_store_count_pinned(store, before);
    return zr_fail(&store->options.log, ZR_ERR_BUDGET,
                   "pinned memory: buffers for the drives take %s of a rank, and RLIMIT_MEMLOCK "
                   "allows it %s; raise it (ulimit -l), or try fewer --nvme-buffers or "
                   "--param-buffers, or a smaller --sub-group or --param-buffer",
                   zr_size_text(all).text, zr_size_text(most).text);
}

/* The table of the store that it stands for. */
static zr_status_t register_buffers(zr_store_t *store) {
    sim_store_t *sim = (sim_store_t *)store;
    size_t n_parts = zr_store_uring_most_parts(store);
    if (n_parts > sim->n_parts) {
        zr_heap_count_absent(store->heap, (n_parts - sim->n_parts) * sizeof(struct iovec));
        sim->n_parts = n_parts;
    }
    return pin_buffers(store);
}

static zr_status_t open_sim(zr_store_t *store, bool has_drives) {
    sim_store_t *sim = (sim_store_t *)store;
    const zr_device_t *device = store->options.device;
    sim->clock = device != NULL ? zr_sim_clock_of(device) : NULL;
    if (sim->clock == NULL)
        return zr_fail(&store->options.log, ZR_ERR_ARGUMENT,
                       "store: \"sim\" stores no data and requires a simulated device in its "
                       "options; use \"uring\"");
    sim->hardware = zr_sim_hardware_of(device);
    store->info.request_bytes = store->options.request_bytes;
    store->info.depth = store->options.depth;
    if (has_drives) { /* which move whole blocks */
        store->info.block_bytes = sim->hardware->disk_block_bytes;
        store->info.buffer_align_bytes = sim->hardware->disk_align_bytes;
        store->info.is_direct = true;
    }
    if (has_drives) /* before its own tables, which may be larger: the peak is that of the other's */
        zr_heap_count_absent(store->heap, zr_store_uring_table_bytes(store) - sizeof(*sim) -
                                              store->options.max_transfers * sizeof(*sim->records));
    sim->records = zr_heap_alloc(store->heap, store->options.max_transfers, sizeof(*sim->records));
    sim->drive = zr_sim_drive_create(sim->clock, store->options.max_transfers,
                                     sim->hardware->launch_s, end, sim);
    if (sim->records == NULL || sim->drive == NULL)
        return zr_fail(&store->options.log, ZR_ERR_MEMORY, "store: no memory for the times of %s",
                       zr_count_text(store->options.max_transfers, "transfer").text);
    ZR_TRY(reserve(store));
    if (!has_drives)
        return ZR_OK;
    ZR_TRY(register_buffers(store));
    return zr_store_bounce_allocate(store, &sim->bounce_memory);
}

static zr_status_t open_drives(zr_store_t *store) {
    return open_sim(store, true);
}

static zr_status_t open_plain(zr_store_t *store) {
    return open_sim(store, false);
}

static void close_sim(zr_store_t *store) {
    sim_store_t *sim = (sim_store_t *)store;
    zr_store_memory_free(store, &sim->bounce_memory);
    zr_sim_drive_destroy(&sim->drive);
}

/* ---- transfers ------------------------------------------------------------------------------- */

static size_t record_of(const sim_store_t *sim, zr_store_ticket_t ticket) {
    const zr_store_transfer_t *transfer = zr_store_find(&sim->base, ticket);
    return transfer != NULL ? sim->records[transfer - sim->base.transfers] : 0;
}

/* The rank's thread queues a transfer's requests and sees them end; both are counted when it
 * begins. */
static void start(zr_store_t *store, zr_store_transfer_t *transfer) {
    sim_store_t *sim = (sim_store_t *)store;
    bool is_put = transfer->direction == ZR_STORE_PUT;
    const zr_link_t *disk = is_put ? &sim->hardware->disk_write : &sim->hardware->disk_read;
    double moved = (double)round_up(transfer->size_bytes, store->info.block_bytes);
    double checksum = checksum_seconds(sim, transfer);
    zr_sim_start_t how = {.is_write = is_put,
                          .turn = zr_store_turn_of(store, transfer),
                          .name = zr_store_direction_name(transfer->direction),
                          .checksum = is_put ? checksum : 0,
                          .core = moved / sim->hardware->disk_core_bytes_per_s,
                          .seconds = moved / disk->bytes_per_s,
                          .of_both = moved / sim->hardware->disk_both_bytes_per_s,
                          .latency = disk->latency_s,
                          .after = is_put ? 0 : checksum,
                          .event = transfer->event,
                          .line = transfer->line};
    for (size_t i = 0; i < ZR_STORE_MAX_AFTER; i++)
        how.records[i] = record_of(sim, transfer->after[i]);
    size_t index = (size_t)(transfer - store->transfers);
    sim->records[index] = zr_sim_drive_start(sim->drive, &how, index);
}

static void progress(zr_store_t *store, bool wait) {
    zr_sim_drive_progress(((sim_store_t *)store)->drive, wait);
}

static void look(zr_store_t *store, const zr_store_transfer_t *transfer, bool wait) {
    const sim_store_t *sim = (const sim_store_t *)store;
    (void)zr_sim_drive_ask(sim->drive, sim->records[transfer - store->transfers], wait);
}

const zr_store_backend_t zr_store_sim_backend = {
    .name = "sim",
    .handle_bytes = sizeof(sim_store_t),
    .keeps_nothing = true,
    .lets_wait = true,
    .open = open_drives,
    .close = close_sim,
    .register_buffers = register_buffers,
    .start = start,
    .progress = progress,
    .look = look,
};

/* As a store that is none of files: without their blocks. */
const zr_store_backend_t zr_store_sim_plain_backend = {
    .name = "sim-plain",
    .handle_bytes = sizeof(sim_store_t),
    .keeps_nothing = true,
    .lets_wait = true,
    .open = open_plain,
    .close = close_sim,
    .start = start,
    .progress = progress,
    .look = look,
};
