#include "examples/bench/step_apart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io_run.h"
#include "offload/store_backend.h"

#define FILE_BYTES ((uint64_t)2 << 30) /* of transfers alone; they go over it again */

/* ---- a store that moves nothing ----------------------------------------------------------------
 *
 * Parameters are what they were first, and computed with. Of all else it gives back what was in the
 * buffer: updates go on with any numbers, and what they write is not computed with. But moments
 * that are updated again and again end as denormal numbers, which many processors compute with at a
 * hundredth of their speed; then the buffer is filled with others.
 */

#define LEAST_USUAL 1e-20f

typedef struct idle_backend {
    zr_store_backend_t base;
    double seconds; /* of copies of parameters, which are no compute */
} idle_backend_t;

/* The first bytes that were put of an extent of parameters. */
typedef struct kept {
    unsigned char *data; /* NULL: none */
    size_t n_bytes;
} kept_t;

typedef struct idle_store {
    zr_store_t base;
    zr_store_transfer_t *started;
    kept_t *kept; /* [n_extents] */
} idle_store_t;

static zr_status_t open_idle(zr_store_t *store) {
    idle_store_t *idle = (idle_store_t *)store;
    store->info.request_bytes = store->options.request_bytes;
    store->info.depth = store->options.depth;
    idle->kept = calloc(store->info.n_extents, sizeof(*idle->kept));
    return idle->kept != NULL ? ZR_OK
                              : zr_fail(&store->options.log, ZR_ERR_MEMORY, "no memory for %s",
                                        zr_count_text(store->info.n_extents, "extent").text);
}

static void close_idle(zr_store_t *store) {
    idle_store_t *idle = (idle_store_t *)store;
    for (size_t i = 0; idle->kept != NULL && i < store->info.n_extents; i++)
        free(idle->kept[i].data);
    free(idle->kept);
}

static void start(zr_store_t *store, zr_store_transfer_t *transfer) {
    idle_store_t *idle = (idle_store_t *)store;
    transfer->next = idle->started;
    idle->started = transfer;
}

static zr_status_t keep(idle_store_t *idle, const zr_store_transfer_t *transfer) {
    size_t size_bytes = idle->base.extents[transfer->extent].size_bytes;
    kept_t *kept = &idle->kept[transfer->extent];
    if (kept->n_bytes == size_bytes)
        return ZR_OK; /* an update's */
    if (kept->data == NULL)
        kept->data = malloc(size_bytes);
    if (kept->data == NULL)
        return zr_fail(&idle->base.options.log, ZR_ERR_MEMORY, "no memory for parameters (%s)",
                       zr_size_text(size_bytes).text);
    memcpy(kept->data + transfer->offset_bytes, transfer->buffer, transfer->size_bytes);
    kept->n_bytes += transfer->size_bytes;
    return ZR_OK;
}

static void bring(const idle_store_t *idle, const zr_store_transfer_t *transfer) {
    idle_backend_t *backend = (idle_backend_t *)idle->base.backend;
    double begin = bench_seconds();
    memcpy(transfer->buffer, idle->kept[transfer->extent].data + transfer->offset_bytes,
           transfer->size_bytes);
    backend->seconds += bench_seconds() - begin;
}

static void refill(const zr_store_transfer_t *transfer) {
    const float usual = 0.01f;
    float first = usual;
    if (transfer->size_bytes >= sizeof(first))
        memcpy(&first, transfer->buffer, sizeof(first));
    if (fabsf(first) < LEAST_USUAL)
        for (size_t i = 0; i + sizeof(usual) <= transfer->size_bytes; i += sizeof(usual))
            memcpy(transfer->buffer + i, &usual, sizeof(usual));
}

static zr_status_t move(idle_store_t *idle, const zr_store_transfer_t *transfer) {
    bool is_param = idle->base.extents[transfer->extent].goes_first;
    if (transfer->direction == ZR_STORE_PUT)
        return is_param ? keep(idle, transfer) : ZR_OK;
    if (is_param)
        bring(idle, transfer);
    else
        refill(transfer);
    return ZR_OK;
}

static void progress(zr_store_t *store, bool wait) {
    idle_store_t *idle = (idle_store_t *)store;
    (void)wait;
    while (idle->started != NULL) {
        zr_store_transfer_t *transfer = idle->started;
        const zr_store_piece_t piece = {.transfer = transfer,
                                        .offset_bytes = transfer->offset_bytes,
                                        .size_bytes = transfer->size_bytes,
                                        .file = "nothing"};
        zr_store_outcome_t outcome = {.n_requests = 1, .moved_bytes = transfer->size_bytes};
        idle->started = transfer->next;
        transfer->next = NULL;
        zr_store_piece_begins(store, &piece);
        outcome.status = move(idle, transfer);
        zr_store_piece_ended(store, &piece, &outcome);
    }
}

static zr_status_t time_compute(const step_options_t *options, double *seconds_p) {
    idle_backend_t idle = {.base = {.name = "idle",
                                    .handle_bytes = sizeof(idle_store_t),
                                    .keeps_nothing = true,
                                    .open = open_idle,
                                    .close = close_idle,
                                    .start = start,
                                    .progress = progress}};
    step_options_t own = *options;
    step_result_t result;
    own.config.nvme.backend = &idle.base;
    ZR_TRY(step_run(&own, &result));
    size_t n_steps = options->n_first_steps + options->n_steps;
    *seconds_p = result.times.step - idle.seconds / (double)n_steps;
    return ZR_OK;
}

/* ---- transfers --------------------------------------------------------------------------------
 */

static zr_status_t time_pass(io_store_t *io, io_pattern_t pattern, uint64_t n_bytes,
                             double *seconds) {
    io_speed_t speed;
    if (n_bytes == 0)
        return ZR_OK;
    ZR_TRY(io_store_pass(io, pattern, n_bytes, &speed));
    *seconds += (double)n_bytes / speed.bytes_per_s;
    return ZR_OK;
}

/* As much as there is of both directions at once, then what one has more. */
static zr_status_t time_transfers(const step_options_t *options, const uint64_t *bytes,
                                  double *seconds_p) {
    const zr_nvme_options_t *nvme = &options->config.nvme;
    uint64_t get = bytes[ZR_STORE_GET], put = bytes[ZR_STORE_PUT], least = get < put ? get : put;
    uint64_t unit = nvme->request_bytes, all = (get + put) / unit * unit;
    io_place_t place = {.size_bytes = all < unit         ? unit
                                      : all < FILE_BYTES ? all
                                                         : FILE_BYTES,
                        .log = options->log};
    const io_setting_t setting = {.request_bytes = unit,
                                  .depth = nvme->depth,
                                  .submit_batch = nvme->submit_batch,
                                  .n_files = nvme->files_per_path};
    bench_folders_t folders;
    io_store_t *io = NULL;
    *seconds_p = 0;
    ZR_TRY(bench_folders("--path", nvme->paths, &options->log, &folders));
    place.n_paths = folders.n;
    memcpy(place.paths, folders.paths, sizeof(place.paths));
    zr_status_t status = io_store_open(&place, &setting, &io);
    ZR_THEN(status, time_pass(io, IO_MIXED, 2 * least, seconds_p));
    ZR_THEN(status, time_pass(io, IO_READ, get - least, seconds_p));
    ZR_THEN(status, time_pass(io, IO_WRITE, put - least, seconds_p));
    io_store_close(&io);
    return status;
}

zr_status_t step_apart(const step_options_t *options, const step_result_t *result,
                       step_apart_t *apart_p) {
    double n_steps = (double)options->n_steps;
    step_apart_t apart = {.checksums = result->moved.checksum_seconds / n_steps};
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++)
        apart.bytes[d] = result->moved.count[d].bytes / options->n_steps;
    ZR_TRY(time_transfers(options, apart.bytes, &apart.transfers));
    ZR_TRY(time_compute(options, &apart.compute));
    apart.compute += apart.checksums;
    *apart_p = apart;
    return ZR_OK;
}
