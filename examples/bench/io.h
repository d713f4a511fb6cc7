/*
 * zero-bench io in its parts: options (io.c), the sweep for the best settings (io_sweep.c), the
 * comparison with them (io_compare.c), and what is printed of it (io_report.c).
 */
#pragma once

#include "examples/bench/io_run.h"

#define IO_MAX_MEMORY ((size_t)64 << 20) /* of requests at once */

typedef struct io_options {
    command_common_t common;
    const char *paths; /* as written */
    bench_folders_t folders;
    io_place_t place;
    io_setting_t given; /* 0: sweep it */
    size_t n_rounds;
    int verify;              /* 0: both, 1: on, 2: off */
    bool plain, checksummed; /* what is compared; one of them at least */
    bool with_fio;
    const char *save_path;
} io_options_t;

typedef struct io_best {
    io_setting_t store, fio;
} io_best_t;

/** Find the best settings of both; prints each trial on standard error. */
ZR_NODISCARD zr_status_t io_sweep(const io_options_t *o, io_best_t *best_p);

/** Who is compared. fio makes and verifies checksums where it can: writing, and reading. */
typedef enum io_contender {
    IO_STORE_PLAIN = 0,
    IO_FIO_PLAIN = 1,
    IO_STORE_CHECKSUMMED = 2,
    IO_FIO_CHECKSUMMED = 3
} io_contender_t;
#define IO_N_CONTENDERS 4

/** Medians of all rounds. */
typedef struct io_comparison {
    io_speed_t speed[IO_N_CONTENDERS][IO_N_PATTERNS]; /* bytes_per_s 0: not measured */
    const char *fio_verify; /* the checksum that is cheapest for fio; NULL: it makes none */
    double cold_cpu_seconds_per_byte;   /* of a checksum alone, of memory that is not in a cache */
    double cached_cpu_seconds_per_byte; /* and of memory that is */
    bool is_direct, is_registered;
} io_comparison_t;

ZR_NODISCARD zr_status_t io_compare(const io_options_t *o, const io_best_t *best,
                                    io_comparison_t *comparison_p);

/** NULL: no memory. */
json_t *io_describe(const io_options_t *o, const io_best_t *best, const io_comparison_t *comparison,
                    const char *fio_version);

/** Whether --save-settings can be written to, now, before hours are spent. */
ZR_NODISCARD zr_status_t io_check_save(const io_options_t *o);
ZR_NODISCARD zr_status_t io_save(const io_options_t *o, const io_best_t *best);
