/*
 * The comparison of zero-bench io: store and fio with their best settings in turns, because shared
 * drives swing. fio makes no checksums by itself, so there are two: both without, and the store
 * with its own against fio with the cheapest of its. What hashing alone takes is measured beside
 * them.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io.h"

#define CHUNK_BYTES ((size_t)256 << 10) /* what the store makes a checksum of */
#define COLD_BYTES ((size_t)256 << 20)  /* more than caches hold */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

enum { SPEED, CPU, CHECKSUM, N_FIGURES };
enum { COLD, CACHED, N_HASHES };

typedef struct compare {
    const io_options_t *options;
    const io_best_t *best;
    io_store_t *stores[IO_N_CONTENDERS]; /* NULL: not a store, or not compared */
    io_fio_t fios[IO_N_CONTENDERS];      /* n_files 0: likewise */
    const char *fio_verify;
    unsigned char *cold; /* [COLD_BYTES] */
    bench_times_t figures[IO_N_CONTENDERS][IO_N_PATTERNS][N_FIGURES];
    bench_times_t hashes[N_HASHES];
} compare_t;

/* ---- who takes part ------------------------------------------------------------------------- */

static bool takes_part(const compare_t *c, io_contender_t who) {
    return c->stores[who] != NULL || c->fios[who].n_files > 0;
}

static zr_status_t open_contender(compare_t *c, io_contender_t who) {
    const io_options_t *o = c->options;
    bool is_fio = who == IO_FIO_PLAIN || who == IO_FIO_CHECKSUMMED;
    bool is_checksummed = who == IO_STORE_CHECKSUMMED || who == IO_FIO_CHECKSUMMED;
    io_place_t place = o->place;
    place.verify = is_checksummed;
    if (is_fio && !o->with_fio)
        return ZR_OK;
    /* Bandwidth with checksums is compared with that of plain fio, too. */
    if (who != IO_FIO_PLAIN && !(is_checksummed ? o->checksummed : o->plain))
        return ZR_OK;
    if (is_fio)
        return io_fio_open(&place, c->best->fio.n_files, &c->fios[who]);
    return io_store_open(&place, &c->best->store, &c->stores[who]);
}

/* The checksum of fio's that costs it least processor time to make and to verify. */
static zr_status_t choose_fio_verify(compare_t *c) {
    static const char *const names[] = {"crc32c", "xxhash"};
    const io_fio_t *fio = &c->fios[IO_FIO_CHECKSUMMED];
    double least = 0.0;
    for (size_t i = 0; i < 2 && fio->n_files > 0; i++) {
        io_fio_job_t job = {c->best->fio, IO_WRITE, fio->size_bytes, names[i]};
        io_speed_t write, read;
        ZR_TRY(io_fio_pass(fio, &job, c->options->common.log, &write));
        job.pattern = IO_READ;
        ZR_TRY(io_fio_pass(fio, &job, c->options->common.log, &read));
        double cpu = write.cpu_seconds_per_byte + read.cpu_seconds_per_byte;
        if (c->fio_verify == NULL || cpu < least) {
            c->fio_verify = names[i];
            least = cpu;
        }
    }
    return ZR_OK;
}

static zr_status_t open_all(compare_t *c) {
    void *memory = NULL;
    for (io_contender_t who = IO_STORE_PLAIN; who < IO_N_CONTENDERS; who++)
        ZR_TRY(open_contender(c, who));
    if (c->options->checksummed) {
        if (posix_memalign(&memory, HUGE_PAGE_BYTES, COLD_BYTES) != 0)
            return zr_fail(c->options->common.log, ZR_ERR_MEMORY, "no %s of memory to hash",
                           zr_size_text(COLD_BYTES).text);
        c->cold = memory;
        memset(memory, 0x5a, COLD_BYTES);
    }
    return choose_fio_verify(c);
}

static void close_all(compare_t *c) {
    for (io_contender_t who = IO_STORE_PLAIN; who < IO_N_CONTENDERS; who++) {
        io_store_close(&c->stores[who]);
        io_fio_close(&c->fios[who]);
        for (int i = 0; i < IO_N_PATTERNS * N_FIGURES; i++)
            bench_times_free(&c->figures[who][i / N_FIGURES][i % N_FIGURES]);
    }
    for (int i = 0; i < N_HASHES; i++)
        bench_times_free(&c->hashes[i]);
    free(c->cold);
}

/* ---- measuring ------------------------------------------------------------------------------ */

static zr_status_t keep(compare_t *c, io_contender_t who, io_pattern_t pattern,
                        const io_speed_t *speed) {
    bench_times_t *of = c->figures[who][pattern];
    const zr_log_t *log = c->options->common.log;
    ZR_TRY(bench_times_add(&of[SPEED], speed->bytes_per_s, log));
    ZR_TRY(bench_times_add(&of[CPU], speed->cpu_seconds_per_byte, log));
    return bench_times_add(&of[CHECKSUM], speed->checksum_seconds_per_byte, log);
}

/* fio with checksums reads what it wrote in this order, once; of both at once it verifies nothing.
 */
static zr_status_t pass(compare_t *c, io_contender_t who, io_pattern_t pattern) {
    uint64_t n_bytes = 2 * (uint64_t)c->options->place.size_bytes;
    io_speed_t speed;
    if (!takes_part(c, who) || (who == IO_FIO_CHECKSUMMED && pattern == IO_MIXED))
        return ZR_OK;
    if (c->stores[who] != NULL) {
        ZR_TRY(io_store_pass(c->stores[who], pattern, n_bytes, &speed));
        return keep(c, who, pattern, &speed);
    }
    io_fio_job_t job = {c->best->fio, pattern, n_bytes, NULL};
    if (who == IO_FIO_CHECKSUMMED) {
        job.n_bytes = c->fios[who].size_bytes;
        job.verify = c->fio_verify;
    }
    ZR_TRY(io_fio_pass(&c->fios[who], &job, c->options->common.log, &speed));
    return keep(c, who, pattern, &speed);
}

/* Seconds of processor per byte that a checksum takes; stride_bytes 0: always of the same bytes. */
static double hash(const unsigned char *memory, size_t stride_bytes) {
    double begin = bench_cpu_seconds();
    for (size_t i = 0; i < COLD_BYTES / CHUNK_BYTES; i++)
        (void)zr_store_checksum(memory + i * stride_bytes, CHUNK_BYTES);
    return (bench_cpu_seconds() - begin) / (double)COLD_BYTES;
}

static zr_status_t time_hashes(compare_t *c) {
    if (c->cold == NULL)
        return ZR_OK;
    const zr_log_t *log = c->options->common.log;
    ZR_TRY(bench_times_add(&c->hashes[COLD], hash(c->cold, CHUNK_BYTES), log));
    return bench_times_add(&c->hashes[CACHED], hash(c->cold, 0), log);
}

/* The order turns round with every round: what came before is still in some drive's cache. */
static zr_status_t take_turns(compare_t *c) {
    for (size_t round = 0; round < c->options->n_rounds; round++) {
        for (io_pattern_t pattern = IO_WRITE; pattern <= IO_MIXED; pattern++)
            for (int i = 0; i < IO_N_CONTENDERS; i++)
                ZR_TRY(pass(c, (io_contender_t)(round % 2 == 0 ? i : IO_N_CONTENDERS - 1 - i),
                            pattern));
        ZR_TRY(time_hashes(c));
    }
    return ZR_OK;
}

static void take_medians(compare_t *c, io_comparison_t *comparison) {
    *comparison =
        (io_comparison_t){.fio_verify = c->fio_verify,
                          .cold_cpu_seconds_per_byte = bench_times_median(&c->hashes[COLD]),
                          .cached_cpu_seconds_per_byte = bench_times_median(&c->hashes[CACHED])};
    for (io_contender_t who = IO_STORE_PLAIN; who < IO_N_CONTENDERS; who++) {
        for (io_pattern_t pattern = IO_WRITE; pattern <= IO_MIXED; pattern++) {
            bench_times_t *of = c->figures[who][pattern];
            comparison->speed[who][pattern] =
                (io_speed_t){.bytes_per_s = bench_times_median(&of[SPEED]),
                             .cpu_seconds_per_byte = bench_times_median(&of[CPU]),
                             .checksum_seconds_per_byte = bench_times_median(&of[CHECKSUM])};
        }
        if (c->stores[who] != NULL) {
            comparison->is_direct = io_store_info(c->stores[who])->is_direct;
            comparison->is_registered = io_store_info(c->stores[who])->is_registered;
        }
    }
}

zr_status_t io_compare(const io_options_t *o, const io_best_t *best,
                       io_comparison_t *comparison_p) {
    compare_t *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return zr_fail(o->common.log, ZR_ERR_MEMORY, "no memory for the comparison");
    c->options = o;
    c->best = best;
    zr_status_t status = open_all(c);
    ZR_THEN(status, take_turns(c));
    take_medians(c, comparison_p);
    close_all(c);
    free(c);
    return status;
}
