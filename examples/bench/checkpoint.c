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
    bench_common_t common;
    const char *path;
    size_t size_bytes;
    zr_offload_device_t offload;
    size_t n_rounds;
    const zr_log_t *log;
} checkpoint_options_t;

typedef struct checkpoint_bench {
    const checkpoint_options_t *options;
    char folder[512]; /* of checkpoints */
    bool has_folder;  /* it was made, and goes in the end */
    io_setting_t setting;
    io_store_t *io;
    zr_device_t *device;
    zr_comm_t *comm;
    zr_runtime_t *runtime;
    uint64_t n_bytes; /* of a checkpoint */
    bench_times_t times[N_PARTS];
} checkpoint_bench_t;

/* ---- options ------------------------------------------------------------------------------- */

static const command_option_t option_table[] = {
    {"path", "DIR", "the folder to save in (default: the current one)", COMMAND_TEXT,
     .field = offsetof(checkpoint_options_t, path)},
    {"size", "SIZE", "of the optimizer's state that is saved (default 1GiB)", COMMAND_SIZE,
     .field = offsetof(checkpoint_options_t, size_bytes)},
    {"offload", "none|cpu|nvme",
     "where the state lives (default none: in the host device's memory); nvme: in --path",
     COMMAND_CHOICE, .field = offsetof(checkpoint_options_t, offload)},
    {"rounds", "N", "the median counts (default 6)", COMMAND_COUNT,
     .field = offsetof(checkpoint_options_t, n_rounds), 1, 1000},
    {0},
};

static const bench_parser_t parser = {
    .name = "checkpoint",
    .options = option_table,
    .doc = "What saving a checkpoint costs, against writing as many bytes with the best settings "
           "in the same run, and how long training stands still for it."};

static zr_status_t check(const checkpoint_options_t *o) {
    if (o->size_bytes < LEAST_SIZE || o->size_bytes > MOST_SIZE)
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "--size %s: %s to %s are possible",
                       zr_count_text(o->size_bytes, "byte").text, zr_size_text(LEAST_SIZE).text,
                       zr_size_text(MOST_SIZE).text);
    return bench_check_folder("--path", o->path, o->log);
}

/* ---- making -------------------------------------------------------------------------------- */

static zr_status_t find_setting(checkpoint_bench_t *b) {
    const checkpoint_options_t *o = b->options;
    io_best_t best;
    io_options_t io = {.place = {.paths = {o->path},
                                 .n_paths = 1,
                                 .size_bytes = o->size_bytes / LEAST_SIZE * LEAST_SIZE,
                                 .verify = true,
                                 .log = *o->log},
                       .given = {.n_files = 1},
                       .n_rounds = o->n_rounds,
                       .checksummed = true,
                       .log = o->log};
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
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "--path: %zu bytes; allowed are up to 400",
                       strlen(o->path));
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", o->path);
    return zr_config_resolve(config, 1, o->log);
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

static zr_status_t make_runtime(checkpoint_bench_t *b) {
    zr_config_t config;
    zr_comm_options_t comm_options = zr_comm_options_default();
    zr_device_options_t device_options = zr_device_options_default();
    comm_options.log = device_options.log = *b->options->log;
    ZR_TRY(make_config(b, &config));
    ZR_TRY(zr_device_open("host", &device_options, &b->device));
    ZR_TRY(zr_comm_create_threads(1, &comm_options, &b->comm));
    ZR_TRY(zr_runtime_create(&config, b->comm, b->device, b->options->log, &b->runtime));
    ZR_TRY(add_units(b));
    ZR_TRY(zr_runtime_expect_saves(b->runtime, true));
    return zr_runtime_commit(b->runtime);
}

static zr_status_t set_up(checkpoint_bench_t *b) {
    snprintf(b->folder, sizeof(b->folder), "%.400s/zero-bench-checkpoint-XXXXXX", b->options->path);
    ZR_TRY(find_setting(b));
    ZR_TRY(make_runtime(b));
    b->has_folder = mkdtemp(b->folder) != NULL;
    if (b->has_folder)
        return ZR_OK;
    return zr_fail(b->options->log, ZR_ERR_IO, "no folder can be made in %s: %s", b->options->path,
                   strerror(errno));
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
    zr_runtime_destroy(&b->runtime);
    zr_comm_destroy(&b->comm);
    zr_device_close(&b->device);
    if (b->has_folder && nftw(b->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS) != 0)
        zr_log_write(b->options->log, ZR_LOG_WARNING, "%s cannot be removed: %s", b->folder,
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
        if (!bench_times_add(&b->times[part], seconds[part]))
            return zr_fail(b->options->log, ZR_ERR_MEMORY, "no memory for times");
    return ZR_OK;
}

static zr_status_t measure(checkpoint_bench_t *b) {
    ZR_TRY(set_up(b));
    for (size_t i = 0; i <= b->options->n_rounds; i++)
        ZR_TRY(run_round(b, i > 0));
    return ZR_OK;
}

/* ---- reporting ----------------------------------------------------------------------------- */

static const char *offload_name(const checkpoint_options_t *o) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    return names[o->offload];
}

static int print_json(checkpoint_bench_t *b) {
    json_t *object = json_object();
    double save = bench_times_median(&b->times[SAVE]), write = bench_times_median(&b->times[WRITE]);
    json_put(&object, "command", json_string("checkpoint"));
    json_put(&object, "offload", json_string(offload_name(b->options)));
    json_put(&object, "bytes", json_count(b->n_bytes));
    json_put(&object, "rounds", json_count(b->options->n_rounds));
    json_put(&object, "request_bytes", json_count(b->setting.request_bytes));
    json_put(&object, "depth", json_count(b->setting.depth));
    json_put(&object, "save_seconds", json_number(save));
    json_put(&object, "write_seconds", json_number(write));
    json_put(&object, "ratio", json_number(save / write));
    json_put(&object, "stands_still_seconds", json_number(save));
    json_put(&object, "stands_still_async_seconds",
             json_number(bench_times_median(&b->times[SAVE_STILL])));
    return command_print(object, BENCH_MEASURED, b->options->log);
}

static int print_table(checkpoint_bench_t *b) {
    double save = bench_times_median(&b->times[SAVE]), write = bench_times_median(&b->times[WRITE]);
    double n_mb = 1e-6 * (double)b->n_bytes;
    fprintf(stderr,
            "a checkpoint of %.1f MB, state %s; medians of %s; requests of %s, %zu at once\n", n_mb,
            offload_name(b->options), zr_count_text(b->options->n_rounds, "round").text,
            zr_size_text(b->setting.request_bytes).text, b->setting.depth);
    fprintf(stderr, "  save                       %8.3f s  %8.0f MB/s\n", save, n_mb / save);
    fprintf(stderr, "  %-26s %8.3f s  %8.0f MB/s\n",
            b->options->offload == ZR_OFFLOAD_NVME ? "reading and writing as many"
                                                   : "writing as many bytes",
            write, n_mb / write);
    fprintf(stderr, "  save / that                %8.2f\n", save / write);
    fprintf(stderr, "training stands still for    %8.3f s, with --checkpoint-async %.3f s\n", save,
            bench_times_median(&b->times[SAVE_STILL]));
    return BENCH_MEASURED;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    checkpoint_options_t options = {
        .path = ".", .size_bytes = DEFAULT_SIZE, .n_rounds = 6, .log = log};
    checkpoint_bench_t bench = {.options = &options};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    zr_status_t status = check(&options);
    if (status == ZR_OK)
        status = measure(&bench);
    if (status == ZR_OK)
        code = options.common.json ? print_json(&bench) : print_table(&bench);
    else
        code = status == ZR_ERR_ARGUMENT ? BENCH_BAD_INPUT : BENCH_FAILED;
    tear_down(&bench);
    return code;
}

const bench_command_t bench_checkpoint = {
    .name = "checkpoint",
    .summary = "a save, against writing as many bytes, and how long training stands still",
    .run = run};
