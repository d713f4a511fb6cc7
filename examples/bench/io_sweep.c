/*
 * The sweep of zero-bench io: which settings move a byte there and back fastest, for the store and
 * for fio, each on its own.
 */
#include <stdlib.h>

#include "examples/bench/io.h"

#define MAX_SWEEP 64

/* The fastest of the sweep run once more: a drive that others use makes lucky ones look best. */
#define N_FINALISTS 4
/* Of settings that are as fast for the store but for so much, which is what a drive swings by, the
 * one that takes the least of the processor. Of fio's the fastest: it is what the store is held to.
 */
#define AS_FAST 1.10

/* How a setting did: seconds to write and read a byte, and of the processor for it. 0: not tried.
 */
typedef struct result {
    double seconds, cpu_seconds;
} result_t;

typedef struct trial {
    io_setting_t setting;
    result_t store, fio;
} trial_t;

typedef struct sweep {
    trial_t trials[MAX_SWEEP];
    size_t n_trials;
    io_best_t best;
} sweep_t;

static result_t result_of(const io_speed_t *write, const io_speed_t *read) {
    return (result_t){.seconds = 1.0 / write->bytes_per_s + 1.0 / read->bytes_per_s,
                      .cpu_seconds = write->cpu_seconds_per_byte + read->cpu_seconds_per_byte};
}

static zr_status_t try_store(const io_place_t *place, trial_t *trial) {
    io_store_t *io = NULL;
    io_speed_t write, read;
    zr_status_t status = io_store_open(place, &trial->setting, &io);
    ZR_THEN(status, io_store_pass(io, IO_WRITE, place->size_bytes, &write));
    ZR_THEN(status, io_store_pass(io, IO_READ, place->size_bytes, &read));
    io_store_close(&io);
    if (status == ZR_OK)
        trial->store = result_of(&write, &read);
    return status;
}

static zr_status_t try_fio(const io_place_t *place, const io_fio_t *fio, trial_t *trial) {
    io_speed_t write, read;
    ZR_TRY(io_fio_pass(fio, &(io_fio_job_t){trial->setting, IO_WRITE, place->size_bytes, NULL},
                       &place->log, &write));
    ZR_TRY(io_fio_pass(fio, &(io_fio_job_t){trial->setting, IO_READ, place->size_bytes, NULL},
                       &place->log, &read));
    trial->fio = result_of(&write, &read);
    return ZR_OK;
}

static zr_status_t try_setting(const io_options_t *o, sweep_t *sweep, const io_setting_t *setting,
                               const io_fio_t *fio) {
    trial_t *trial = &sweep->trials[sweep->n_trials++];
    *trial = (trial_t){.setting = *setting};
    ZR_TRY(try_store(&o->place, trial));
    if (fio != NULL)
        ZR_TRY(try_fio(&o->place, fio, trial));
    fprintf(stderr, "  %5zu KiB  depth %3zu  files %2zu  batch %2zu   store %6.2f GB/s",
            setting->request_bytes >> 10, setting->depth, setting->n_files, setting->submit_batch,
            2e-9 / trial->store.seconds);
    if (fio != NULL)
        fprintf(stderr, "   fio %6.2f GB/s", 2e-9 / trial->fio.seconds);
    fputc('\n', stderr);
    return ZR_OK;
}

static const result_t *result_in(const trial_t *trial, bool of_fio) {
    return of_fio ? &trial->fio : &trial->store;
}

/* The fastest that was tried and took longer than `above`; NULL: none. */
static trial_t *fastest(sweep_t *sweep, bool of_fio, double above) {
    trial_t *best = NULL;
    for (size_t i = 0; i < sweep->n_trials; i++) {
        double seconds = result_in(&sweep->trials[i], of_fio)->seconds;
        if (seconds > above && (best == NULL || seconds < result_in(best, of_fio)->seconds))
            best = &sweep->trials[i];
    }
    return best;
}

static const trial_t *choose_store(sweep_t *sweep) {
    const trial_t *best = fastest(sweep, false, 0.0);
    double most = AS_FAST * best->store.seconds;
    for (size_t i = 0; i < sweep->n_trials; i++) {
        const result_t *result = &sweep->trials[i].store;
        if (result->seconds <= most && result->cpu_seconds < best->store.cpu_seconds)
            best = &sweep->trials[i];
    }
    return best;
}

static void choose_best(sweep_t *sweep) {
    const trial_t *store = choose_store(sweep), *fio = fastest(sweep, true, 0.0);
    sweep->best.store = store->setting;
    sweep->best.fio = fio != NULL ? fio->setting : store->setting;
}

/* A second look at a result: both count, by their average. */
static void average(result_t *result, const result_t *again) {
    result->seconds = (result->seconds + again->seconds) / 2;
    result->cpu_seconds = (result->cpu_seconds + again->cpu_seconds) / 2;
}

static zr_status_t try_store_again(const io_options_t *o, trial_t *trial) {
    trial_t again = {.setting = trial->setting};
    ZR_TRY(try_store(&o->place, &again));
    average(&trial->store, &again.store);
    return ZR_OK;
}

static zr_status_t try_fio_again(const io_options_t *o, trial_t *trial) {
    trial_t again = {.setting = trial->setting};
    io_fio_t fio = {.n_files = 0};
    zr_status_t status = io_fio_open(&o->place, trial->setting.n_files, &fio);
    ZR_THEN(status, try_fio(&o->place, &fio, &again));
    io_fio_close(&fio);
    ZR_TRY(status);
    average(&trial->fio, &again.fio);
    return ZR_OK;
}

static zr_status_t run_finals(const io_options_t *o, sweep_t *sweep, bool of_fio) {
    trial_t *finalists[N_FINALISTS];
    size_t n = 0;
    double above = 0.0;
    for (; n < N_FINALISTS; n++) {
        trial_t *next = fastest(sweep, of_fio, above);
        if (next == NULL)
            break;
        above = result_in(next, of_fio)->seconds;
        finalists[n] = next;
    }
    for (size_t i = 0; i < n; i++)
        ZR_TRY(of_fio ? try_fio_again(o, finalists[i]) : try_store_again(o, finalists[i]));
    return ZR_OK;
}

/* Sizes of requests times depths, with one number of files. */
static zr_status_t sweep_requests(const io_options_t *o, sweep_t *sweep, size_t n_files) {
    io_fio_t fio = {.n_files = 0};
    zr_status_t status = o->with_fio ? io_fio_open(&o->place, n_files, &fio) : ZR_OK;
    for (size_t size = (size_t)128 << 10; size <= (size_t)2 << 20 && status == ZR_OK; size *= 2) {
        if (o->given.request_bytes > 0)
            size = o->given.request_bytes;
        for (size_t depth = 4; depth <= 64 && status == ZR_OK; depth *= 2) {
            if (o->given.depth > 0)
                depth = o->given.depth;
            const io_setting_t setting = {size, depth, depth < 4 ? depth : 4, n_files};
            if (size * depth <= IO_MAX_MEMORY || o->given.depth > 0)
                status = try_setting(o, sweep, &setting, o->with_fio ? &fio : NULL);
            if (o->given.depth > 0)
                break;
        }
        if (o->given.request_bytes > 0)
            break;
    }
    io_fio_close(&fio);
    return status;
}

/* More files, with the requests that did best on one. */
static zr_status_t sweep_files(const io_options_t *o, sweep_t *sweep) {
    for (size_t n_files = 2; n_files <= 4 && o->given.n_files == 0; n_files *= 2) {
        io_fio_t fio = {.n_files = 0};
        io_setting_t setting = sweep->best.store;
        setting.n_files = n_files;
        zr_status_t status = o->with_fio ? io_fio_open(&o->place, n_files, &fio) : ZR_OK;
        if (status == ZR_OK)
            status = try_setting(o, sweep, &setting, o->with_fio ? &fio : NULL);
        setting = sweep->best.fio;
        setting.n_files = n_files;
        if (status == ZR_OK && o->with_fio)
            status = try_setting(o, sweep, &setting, &fio);
        io_fio_close(&fio);
        ZR_TRY(status);
    }
    return ZR_OK;
}

/* Other batches of submissions; fio's are its own. */
static zr_status_t sweep_batches(const io_options_t *o, sweep_t *sweep) {
    static const size_t batches[] = {1, 16};
    for (size_t i = 0; i < 2; i++) {
        io_setting_t setting = sweep->best.store;
        setting.submit_batch = batches[i];
        if (batches[i] <= setting.depth)
            ZR_TRY(try_setting(o, sweep, &setting, NULL));
    }
    return ZR_OK;
}

static zr_status_t run_sweep(const io_options_t *o, sweep_t *sweep) {
    fprintf(stderr, "written and read once, %zu MiB:\n", o->place.size_bytes >> 20);
    ZR_TRY(sweep_requests(o, sweep, o->given.n_files > 0 ? o->given.n_files : 1));
    choose_best(sweep);
    ZR_TRY(sweep_files(o, sweep));
    choose_best(sweep);
    ZR_TRY(sweep_batches(o, sweep));
    fprintf(stderr, "once more: the %d fastest of each\n", N_FINALISTS);
    ZR_TRY(run_finals(o, sweep, false));
    if (o->with_fio)
        ZR_TRY(run_finals(o, sweep, true));
    choose_best(sweep);
    return ZR_OK;
}

zr_status_t io_sweep(const io_options_t *o, io_best_t *best_p) {
    sweep_t *sweep = calloc(1, sizeof(*sweep));
    if (sweep == NULL)
        return zr_fail(o->common.log, ZR_ERR_MEMORY, "no memory for the sweep");
    zr_status_t status = run_sweep(o, sweep);
    *best_p = sweep->best;
    free(sweep);
    return status;
}
