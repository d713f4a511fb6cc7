/*
 * zero-bench checkpoint: what a save costs, against writing as many bytes by the store with the
 * settings that do best here (and reading them, where the state is on the drive), and how long
 * training stands still for it, with and without --checkpoint-async. All take turns, because shared
 * drives swing.
 */
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io.h"

#define DEFAULT_SIZE ((size_t)1 << 30)
#define LEAST_SIZE ((size_t)16 << 20)
#define MOST_SIZE ((size_t)256 << 30)
#define STATE_BYTES ((size_t)12)
#define N_UNITS 8

/* What takes turns. */
enum { SAVE, SAVE_STILL, WRITE, N_PARTS };

typedef struct checkpoint_options {
    command_common_t common;
    const char *path;
    size_t size_bytes;
    zr_offload_device_t offload;
    size_t n_rounds;
} checkpoint_options_t;

typedef struct checkpoint_bench {
    const checkpoint_options_t *options;
    char folder[512]; /* of checkpoints */
    bool has_folder;  /* it was made, and goes in the end */
    io_setting_t setting;
    io_store_t *io;
    zr_runtime_t *runtime; /* the rank's */
    uint64_t n_bytes;      /* of a checkpoint */
    bench_times_t times[N_PARTS];
} checkpoint_bench_t;

/* ---- options ------------------------------------------------------------------------------- */

#define AT(member) .offset = offsetof(checkpoint_options_t, member)

static const zr_option_t rows[] = {
    {"path", AT(path), .type = ZR_OPTION_STRING, .arg = "DIR", .help = "the folder to save in"},
    {"size", AT(size_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .help = "of the optimizer's state that is saved"},
    {"offload", AT(offload), .type = ZR_OPTION_CHOICE, .choices = command_places,
     .help = "where the state lives; none: in the host device's memory; nvme: in --path"},
    {"rounds", AT(n_rounds), .type = ZR_OPTION_COUNT, .least = 1, .most = 1000, .arg = "N",
     .help = "the median counts"}};

static zr_status_t check(const checkpoint_options_t *o) {
    if (o->size_bytes < LEAST_SIZE || o->size_bytes > MOST_SIZE)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT, "--size %s: %s to %s are allowed",
                       zr_count_text(o->size_bytes, "byte").text, zr_size_text(LEAST_SIZE).text,
                       zr_size_text(MOST_SIZE).text);
    return bench_check_folder("--path", o->path, o->common.log);
}

/* ---- making -------------------------------------------------------------------------------- */

static zr_status_t find_setting(checkpoint_bench_t *b) {
    const checkpoint_options_t *o = b->options;
    io_best_t best;
    io_options_t io = {.place = {.paths = {o->path},
                                 .n_paths = 1,
                                 .size_bytes = o->size_bytes / LEAST_SIZE * LEAST_SIZE,
                                 .verify = true,
                                 .log = *o->common.log},
                       .given = {.n_files = 1},
                       .n_rounds = o->n_rounds,
                       .checksummed = true,
                       .common = {.log = o->common.log}};
    ZR_TRY(io_sweep(&io, &best));
    b->setting = best.store;
    return io_store_open(&io.place, &b->setting, &b->io);
}

static zr_status_t make_config(const checkpoint_bench_t *b, zr_config_t *config) {
    const checkpoint_options_t *o = b->options;
    *config = zr_config_default();
    config->offload_optimizer.device = o->offload;
    config->nvme.request_bytes = b->setting.request_bytes;
    config->nvme.depth = b->setting.depth;
    config->nvme.submit_batch = b->setting.submit_batch;
    if (strlen(o->path) >= sizeof(config->nvme.paths) || strlen(o->path) > 400)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT, "--path: %zu bytes; allowed: up to 400",
                       strlen(o->path));
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", o->path);
    return ZR_OK;
}

static void fill(void *context, size_t first, size_t n_elems, float *values) {
    (void)context;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = 1e-6f * (float)((first + i) % 1000);
}

static zr_status_t add_units(checkpoint_bench_t *b) {
    size_t n_elems = b->options->size_bytes / STATE_BYTES / N_UNITS;
    for (size_t i = 0; i < N_UNITS; i++) {
        char name[32];
        zr_unit_t *unit = NULL;
        zr_param_t *param = NULL;
        snprintf(name, sizeof(name), "unit %zu", i);
        zr_param_desc_t desc = {.name = name, .n_dims = 1, .dims = {n_elems}, .fill = fill};
        ZR_TRY(zr_runtime_add_unit(b->runtime, name, &unit));
        ZR_TRY(zr_unit_add_param(unit, &desc, &param));
    }
    return ZR_OK;
}

static zr_status_t set_up(checkpoint_bench_t *b) {
    ZR_TRY(add_units(b));
    ZR_TRY(zr_runtime_expect_saves(b->runtime, true));
    ZR_TRY(zr_runtime_commit(b->runtime));
    snprintf(b->folder, sizeof(b->folder), "%.400s/zero-bench-checkpoint-XXXXXX", b->options->path);
    b->has_folder = mkdtemp(b->folder) != NULL;
    if (b->has_folder)
        return ZR_OK;
    return zr_fail(b->options->common.log, ZR_ERR_IO, "no folder can be made in %s: %s",
                   b->options->path, strerror(errno));
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status;
    (void)kind;
    (void)place;
    return remove(path);
}

static void tear_down(checkpoint_bench_t *b) {
    for (int part = 0; part < N_PARTS; part++)
        bench_times_free(&b->times[part]);
    io_store_close(&b->io);
    if (b->has_folder && nftw(b->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        zr_log_write(b->options->common.log, ZR_LOG_WARNING, "%s cannot be removed: %s", b->folder,
                     strerror(errno));
}

/* ---- measuring ----------------------------------------------------------------------------- */

/* From the call to the complete checkpoint; and for how long the run stands still in it. */
static zr_status_t time_save(checkpoint_bench_t *b, bool goes_on, double *seconds_p) {
    zr_save_options_t options = {.folder = b->folder, .goes_on = goes_on, .keep = 1};
    zr_save_report_t report;
    bool ended = false;
    double begin = bench_seconds();
    ZR_TRY(zr_runtime_save_begin(b->runtime, &options));
    *seconds_p = bench_seconds() - begin;
    ZR_TRY(zr_runtime_save_end(b->runtime, true, &ended, &report));
    if (!goes_on)
        *seconds_p = bench_seconds() - begin;
    b->n_bytes = report.n_bytes;
    return ZR_OK;
}

/* State on the drive has to be read as well: then both at once are the limit. */
static zr_status_t time_write(checkpoint_bench_t *b, double *seconds_p) {
    bool is_read = b->options->offload == ZR_OFFLOAD_NVME;
    uint64_t n_bytes = is_read ? 2 * b->n_bytes : b->n_bytes;
    io_speed_t speed;
    ZR_TRY(io_store_pass(b->io, is_read ? IO_MIXED : IO_WRITE, n_bytes, &speed));
    *seconds_p = (double)n_bytes / speed.bytes_per_s;
    return ZR_OK;
}

static zr_status_t run_round(checkpoint_bench_t *b, bool counts) {
    double seconds[N_PARTS] = {0};
    ZR_TRY(time_save(b, false, &seconds[SAVE]));
    ZR_TRY(time_write(b, &seconds[WRITE]));
    ZR_TRY(time_save(b, true, &seconds[SAVE_STILL]));
    for (int part = 0; part < N_PARTS && counts; part++)
        ZR_TRY(bench_times_add(&b->times[part], seconds[part], b->options->common.log));
    return ZR_OK;
}

static zr_status_t run_rank(zr_rank_t *rank) {
    checkpoint_bench_t *b = rank->context;
    b->runtime = rank->runtime;
    ZR_TRY(set_up(b));
    for (size_t i = 0; i <= b->options->n_rounds; i++)
        ZR_TRY(run_round(b, i > 0));
    return ZR_OK;
}

static zr_status_t measure(checkpoint_bench_t *b) {
    zr_run_options_t run = zr_run_options_default();
    zr_config_t config;
    run.log = *b->options->common.log;
    run.comm = "threads";
    ZR_TRY(find_setting(b));
    ZR_TRY(make_config(b, &config));
    return zr_run_ranks(&config, 1, run_rank, b, &run);
}

/* ---- reporting ----------------------------------------------------------------------------- */

static json_t *describe(checkpoint_bench_t *b) {
    double save = bench_times_median(&b->times[SAVE]), write = bench_times_median(&b->times[WRITE]);
    return JSON_OBJECT(
        {"command", json_string("checkpoint")},
        {"offload", json_string(command_places[b->options->offload].name)},
        {"bytes", json_count(b->n_bytes)}, {"rounds", json_count(b->options->n_rounds)},
        {"request_bytes", json_count(b->setting.request_bytes)},
        {"depth", json_count(b->setting.depth)}, {"save_seconds", json_number(save)},
        {"write_seconds", json_number(write)}, {"ratio", json_number(save / write)},
        {"stands_still_seconds", json_number(save)},
        {"stands_still_async_seconds", json_number(bench_times_median(&b->times[SAVE_STILL]))});
}

static int run(void *argument) {
    const checkpoint_options_t *options = argument;
    checkpoint_bench_t bench = {.options = options};
    zr_status_t status = check(options);
    ZR_THEN(status, measure(&bench));
    int code = status == ZR_OK ? bench_report(&options->common, describe(&bench), COMMAND_DONE)
                               : command_code(status);
    tear_down(&bench);
    return code;
}

static const checkpoint_options_t defaults = {
    .path = ".", .size_bytes = DEFAULT_SIZE, .n_rounds = 6};

const command_t bench_checkpoint = {
    .name = "checkpoint",
    .summary = "a save, against writing as many bytes, and how long training is blocked",
    .doc = "What saving a checkpoint costs, against writing as many bytes with the best settings "
           "in the same run, and how long training is blocked for it.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
