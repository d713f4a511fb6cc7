/*
 * Drives, through the store, as the runtime uses it: all ranks write, read, and do both at once.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io_run.h"
#include "examples/bench/machine_rank.h"

#define SMALL_FILE_BYTES ((size_t)512 << 10)
#define BLOCK_BYTES ((size_t)4096)

static zr_status_t meet(machine_rank_t *rank) {
    return zr_comm_barrier(rank->comm, "measuring drives");
}

/* All ranks at once. */
static zr_status_t pass(machine_rank_t *rank, io_store_t *io, io_pattern_t pattern,
                        uint64_t n_bytes, io_speed_t *speed_p) {
    ZR_TRY(meet(rank));
    ZR_TRY(io_store_pass(io, pattern, n_bytes, speed_p));
    return meet(rank);
}

static zr_status_t measure_large(machine_rank_t *rank, io_store_t *io) {
    machine_figures_t *figures = &rank->figures;
    io_speed_t written, read, mixed;
    ZR_TRY(pass(rank, io, IO_WRITE, rank->sizes.pass_bytes, &written));
    ZR_TRY(pass(rank, io, IO_READ, rank->sizes.pass_bytes, &read));
    ZR_TRY(pass(rank, io, IO_MIXED, rank->sizes.pass_bytes, &mixed));
    figures->disk_both_bytes_per_s = mixed.bytes_per_s;
    figures->disk_bytes_per_s[ZR_STORE_PUT] = written.bytes_per_s;
    figures->disk_bytes_per_s[ZR_STORE_GET] = read.bytes_per_s;
    /* Processor time is the process's, bytes are this rank's, of ranks that move as many. */
    double sums = written.checksum_seconds_per_byte + read.checksum_seconds_per_byte;
    double cores =
        (written.cpu_seconds_per_byte + read.cpu_seconds_per_byte) / rank->options->n_ranks;
    figures->checksum_bytes_per_s = 2.0 / sums;
    figures->disk_core_bytes_per_s = 2.0 / (cores > 1.1 * sums ? cores - sums : 0.1 * sums);
    return ZR_OK;
}

static zr_status_t measure_small(machine_rank_t *rank, io_store_t *io) {
    io_speed_t speed;
    ZR_TRY(pass(rank, io, IO_WRITE, SMALL_FILE_BYTES, &speed));
    rank->figures.disk_s[ZR_STORE_PUT] = (double)BLOCK_BYTES / speed.bytes_per_s;
    ZR_TRY(pass(rank, io, IO_READ, SMALL_FILE_BYTES, &speed));
    rank->figures.disk_s[ZR_STORE_GET] = (double)BLOCK_BYTES / speed.bytes_per_s;
    return ZR_OK;
}

static zr_status_t measure_on(machine_rank_t *rank, const io_place_t *place,
                              const io_setting_t *setting,
                              zr_status_t (*measure)(machine_rank_t *, io_store_t *)) {
    io_store_t *io = NULL;
    zr_status_t status = io_store_open(place, setting, &io);
    ZR_THEN(status, measure(rank, io));
    io_store_close(&io);
    return status;
}

zr_status_t machine_rank_disk(machine_rank_t *rank) {
    const zr_nvme_options_t nvme = zr_config_default().nvme;
    io_place_t place = {
        .size_bytes = rank->sizes.file_bytes, .verify = true, .log = rank->options->log};
    const io_setting_t large = {.request_bytes = nvme.request_bytes,
                                .depth = nvme.depth,
                                .submit_batch =
                                    nvme.submit_batch < nvme.depth ? nvme.submit_batch : nvme.depth,
                                .n_files = nvme.files_per_path};
    const io_setting_t small = {
        .request_bytes = BLOCK_BYTES, .depth = 1, .submit_batch = 1, .n_files = 1};
    bench_folders_t folders;
    ZR_TRY(bench_folders("--path", rank->options->paths, &place.log, &folders));
    place.n_paths = folders.n;
    memcpy(place.paths, folders.paths, sizeof(place.paths));
    if (rank->number == 0)
        (void)zr_store_drive_backend(&place.log); /* says it where io_uring cannot be had */
    ZR_TRY(measure_on(rank, &place, &large, measure_large));
    place.size_bytes = SMALL_FILE_BYTES;
    return measure_on(rank, &place, &small, measure_small);
}
