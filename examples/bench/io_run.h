/*
 * Passes over files: by the store, and by fio on files of the same kind in the same folders.
 * All files are without a name, so that none is left behind, and as long as they will be.
 */
#pragma once

#include "examples/bench/bench.h"

#define IO_MAX_FILES BENCH_MOST_FOLDERS

typedef enum io_pattern { IO_WRITE = 0, IO_READ = 1, IO_MIXED = 2 } io_pattern_t;
#define IO_N_PATTERNS 3
/** "write", "read", "mixed". */
const char *io_pattern_name(io_pattern_t pattern);

/** Where, and how much. */
typedef struct io_place {
    const char *paths[IO_MAX_FILES];
    size_t n_paths;
    size_t size_bytes; /* of all files together; a multiple of the largest request */
    bool verify;       /* the store makes and verifies checksums */
    zr_log_t log;
} io_place_t;

/** What is tuned. */
typedef struct io_setting {
    size_t request_bytes, depth, submit_batch;
    size_t n_files; /* per path */
} io_setting_t;

/** How a pass went. */
typedef struct io_speed {
    double bytes_per_s;
    double cpu_seconds_per_byte;      /* of user and system, all threads */
    double checksum_seconds_per_byte; /* of these */
} io_speed_t;

/* ---- the store ------------------------------------------------------------------------------ */

typedef struct io_store io_store_t;

/** Make a store and write all of it once. Destroy it with io_store_close, also after an error. */
ZR_NODISCARD zr_status_t io_store_open(const io_place_t *place, const io_setting_t *setting,
                                       io_store_t **io_p);
void io_store_close(io_store_t **io);
/** Move so many bytes, from the beginning and again. */
ZR_NODISCARD zr_status_t io_store_pass(io_store_t *io, io_pattern_t pattern, uint64_t n_bytes,
                                       io_speed_t *speed_p);
const zr_store_info_t *io_store_info(const io_store_t *io);

/* ---- fio ------------------------------------------------------------------------------------ */

/** fio's files: a descriptor each. */
typedef struct io_fio {
    int files[IO_MAX_FILES];
    size_t n_files;
    size_t size_bytes;
} io_fio_t;

/** Whether there is a fio to be run; its version. */
bool io_fio_find(char *version, size_t version_bytes);
/** Make its files, and let it write them once. Close with io_fio_close, also after an error. */
ZR_NODISCARD zr_status_t io_fio_open(const io_place_t *place, size_t n_files_per_path,
                                     io_fio_t *fio);
void io_fio_close(io_fio_t *fio);

/** One pass of it. */
typedef struct io_fio_job {
    io_setting_t setting;
    io_pattern_t pattern;
    uint64_t n_bytes;   /* from the beginning and again; with `verify`, the files' size */
    const char *verify; /* of its checksums, per 256 KiB; NULL: none. They are made when it writes,
                           and verified when it reads what the same job has written last */
} io_fio_job_t;

ZR_NODISCARD zr_status_t io_fio_pass(const io_fio_t *fio, const io_fio_job_t *job,
                                     const zr_log_t *log, io_speed_t *speed_p);
