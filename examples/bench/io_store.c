/*
 * Passes over files by the store, as a pipeline would make them: registered buffers, and enough
 * transfers in flight that the queue never runs dry. Buffers lie in huge pages, as the runtime's
 * do.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "examples/bench/io_run.h"

#define REQUESTS_PER_TRANSFER 4
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

struct io_store {
    zr_store_t *store;
    size_t size_bytes, transfer_bytes, n_slots;
    unsigned char *memory; /* [n_slots * transfer_bytes] */
    zr_store_ticket_t *tickets;
};

const char *io_pattern_name(io_pattern_t pattern) {
    static const char *const names[] = {"write", "read", "mixed"};
    return names[pattern];
}

const zr_store_info_t *io_store_info(const io_store_t *io) {
    return zr_store_info(io->store);
}

static zr_status_t make_store(io_store_t *io, const io_place_t *place,
                              const io_setting_t *setting) {
    const char *paths[IO_MAX_FILES];
    size_t n_paths = place->n_paths * setting->n_files;
    for (size_t i = 0; i < n_paths; i++)
        paths[i] = place->paths[i % place->n_paths];
    zr_store_options_t options = zr_store_options_default();
    options.log = place->log;
    options.paths = paths;
    options.n_paths = n_paths;
    options.request_bytes = setting->request_bytes;
    if (options.chunk_bytes > setting->request_bytes)
        options.chunk_bytes = setting->request_bytes;
    options.depth = setting->depth;
    options.submit_batch = setting->submit_batch;
    options.n_bounce_buffers = 1;
    options.max_transfers = io->n_slots;
    options.verify = place->verify;
    const zr_store_extent_t extent = {.name = "bench", .size_bytes = place->size_bytes};
    ZR_TRY(zr_store_create(zr_store_drive_backend(NULL), &options, &extent, 1, &io->store));
    const zr_store_buffer_t buffer = {io->memory, io->n_slots * io->transfer_bytes};
    return zr_store_register(io->store, &buffer, 1);
}

zr_status_t io_store_open(const io_place_t *place, const io_setting_t *setting, io_store_t **io_p) {
    io_store_t *io = calloc(1, sizeof(*io));
    io_speed_t speed;
    void *memory = NULL;
    if (io == NULL)
        return zr_fail(&place->log, ZR_ERR_MEMORY, "no memory for a store");
    *io_p = io;
    io->size_bytes = place->size_bytes;
    io->transfer_bytes = REQUESTS_PER_TRANSFER * setting->request_bytes;
    io->n_slots = 2 * ((setting->depth + REQUESTS_PER_TRANSFER - 1) / REQUESTS_PER_TRANSFER);
    io->tickets = calloc(io->n_slots, sizeof(*io->tickets));
    size_t memory_bytes = io->n_slots * io->transfer_bytes;
    if (io->tickets == NULL || posix_memalign(&memory, HUGE_PAGE_BYTES, memory_bytes) != 0)
        return zr_fail(&place->log, ZR_ERR_MEMORY, "no %zu bytes of memory for buffers",
                       memory_bytes);
    io->memory = memory;
    madvise(memory, memory_bytes, MADV_HUGEPAGE); /* refused, it is slower */
    memset(memory, 0x5a, memory_bytes);
    ZR_TRY(make_store(io, place, setting));
    return io_store_pass(io, IO_WRITE, place->size_bytes, &speed);
}

void io_store_close(io_store_t **io) {
    if (*io == NULL)
        return;
    zr_store_destroy(&(*io)->store);
    free((*io)->tickets);
    free((*io)->memory);
    free(*io);
    *io = NULL;
}

/* One transfer after the other, each into the slot of the one that is the longest under way. */
static zr_status_t move(io_store_t *io, io_pattern_t pattern, uint64_t n_bytes) {
    size_t offset = 0, number = 0;
    for (uint64_t moved = 0; moved < n_bytes; number++) {
        size_t slot = number % io->n_slots, left = io->size_bytes - offset;
        size_t size = left < io->transfer_bytes ? left : io->transfer_bytes;
        unsigned char *buffer = io->memory + slot * io->transfer_bytes;
        zr_store_ticket_t *ticket = &io->tickets[slot];
        zr_status_t status = zr_store_wait(io->store, *ticket);
        *ticket = ZR_STORE_NO_TICKET;
        ZR_TRY(status);
        bool is_put = pattern == IO_WRITE || (pattern == IO_MIXED && number % 2 == 1);
        if (is_put)
            ZR_TRY(zr_store_put(io->store, 0, offset, size, buffer, ticket));
        else
            ZR_TRY(zr_store_get(io->store, 0, offset, size, buffer, ticket));
        moved += size;
        offset = offset + size == io->size_bytes ? 0 : offset + size;
    }
    zr_status_t status = zr_store_wait_all(io->store);
    memset(io->tickets, 0, io->n_slots * sizeof(*io->tickets));
    return status;
}

zr_status_t io_store_pass(io_store_t *io, io_pattern_t pattern, uint64_t n_bytes,
                          io_speed_t *speed_p) {
    zr_store_statistics_t before, after;
    zr_store_statistics(io->store, &before);
    double begin = bench_seconds(), cpu_begin = bench_cpu_seconds();
    ZR_TRY(move(io, pattern, n_bytes));
    double seconds = bench_seconds() - begin, cpu = bench_cpu_seconds() - cpu_begin;
    zr_store_statistics(io->store, &after);
    double n = (double)(after.count[ZR_STORE_PUT].bytes + after.count[ZR_STORE_GET].bytes -
                        before.count[ZR_STORE_PUT].bytes - before.count[ZR_STORE_GET].bytes);
    *speed_p = (io_speed_t){.bytes_per_s = n / seconds,
                            .cpu_seconds_per_byte = cpu / n,
                            .checksum_seconds_per_byte =
                                (after.checksum_seconds - before.checksum_seconds) / n};
    return ZR_OK;
}
