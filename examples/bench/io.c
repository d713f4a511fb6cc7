/*
 * zero-bench io: how fast the store moves bytes on given paths, against fio on the same file
 * systems in the same run. A sweep finds the best settings of each; then the two take turns,
 * because shared drives swing. What is found can be saved, for the runs that use it.
 */
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io.h"

#define MAX_SIZE ((size_t)64 << 30)

/* ---- options -------------------------------------------------------------------------- */

/* Cut at commas; the place keeps pointers into the copy. */
static zr_status_t take_paths(const char *value, void *options) {
    io_options_t *o = options;
    free(o->paths);
    o->paths = strdup(value);
    if (o->paths == NULL)
        return zr_fail(o->log, ZR_ERR_MEMORY, "no memory for --path");
    o->place.n_paths = 0;
    for (char *rest = o->paths, *path; (path = strsep(&rest, ",")) != NULL;) {
        if (path[0] == '\0' || o->place.n_paths == IO_MAX_FILES)
            return zr_fail(o->log, ZR_ERR_ARGUMENT,
                           "--path \"%s\": 1 to %d folders are possible, none of them empty", value,
                           IO_MAX_FILES);
        o->place.paths[o->place.n_paths++] = path;
    }
    return ZR_OK;
}

static zr_status_t take_request(const char *value, void *options) {
    io_options_t *o = options;
    size_t request_bytes = 0;
    ZR_TRY(args_size("--request", value, o->log, &request_bytes));
    if (request_bytes == 0 || request_bytes % ZR_STORE_CHUNK_ALIGN_BYTES != 0 ||
        request_bytes > IO_MAX_MEMORY)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--request %s: multiples of %zu up to %zu are possible", value,
                       ZR_STORE_CHUNK_ALIGN_BYTES, IO_MAX_MEMORY);
    o->given.request_bytes = request_bytes;
    return ZR_OK;
}

static zr_status_t take_verify(const char *value, void *options) {
    io_options_t *o = options;
    static const char *const words[] = {"both", "on", "off"};
    size_t choice = 0;
    ZR_TRY(args_choice("--verify", value, words, 3, o->log, &choice));
    o->plain = choice != 1;
    o->checksummed = choice != 2;
    o->place.verify = o->checksummed; /* in the sweep: as in a run, unless it is asked for */
    return ZR_OK;
}

static const command_option_t option_table[] = {
    {"path", "DIR[,DIR...]", "folders to measure (default: the current one)", COMMAND_OTHER,
     .take = take_paths},
    {"size", "SIZE",
     "of the files of one contender, together (default 256MiB); there are up to four", COMMAND_SIZE,
     .field = offsetof(io_options_t, place.size_bytes)},
    {"request", "SIZE", "measure this request size only", COMMAND_OTHER, .take = take_request},
    {"depth", "N", "measure this number of requests at once only", COMMAND_COUNT,
     .field = offsetof(io_options_t, given.depth), 1, ZR_STORE_MAX_DEPTH},
    {"files", "N", "measure this number of files per folder only", COMMAND_COUNT,
     .field = offsetof(io_options_t, given.n_files), 1, IO_MAX_FILES},
    {"rounds", "N", "of the comparison; the median counts (default 6)", COMMAND_COUNT,
     .field = offsetof(io_options_t, n_rounds), 1, 1000},
    {"verify", "both|on|off", "measure with checksums (on), without (off), or both (default)",
     COMMAND_OTHER, .take = take_verify},
    {"fio", "on|off", "compare with fio (default on)", COMMAND_SWITCH,
     .field = offsetof(io_options_t, with_fio)},
    {"save-settings", "FILE", "write the best settings, as JSON", COMMAND_TEXT,
     .field = offsetof(io_options_t, save_path)},
    {0},
};

static const bench_parser_t parser = {
    .name = "io",
    .options = option_table,
    .doc = "Bandwidth of the store on these folders, against fio on the same file systems in the "
           "same run; finds the settings that do best."};

/* Whole requests of the largest size on every file. */
static zr_status_t check_size(io_options_t *o) {
    size_t most_files = o->given.n_files > 0 ? o->given.n_files : 4;
    size_t unit = (size_t)2 << 20;
    if (o->given.request_bytes > 0)
        unit = o->given.request_bytes;
    unit *= o->place.n_paths * most_files;
    if (o->place.n_paths * most_files > IO_MAX_FILES)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "%s with up to %s each; %d files are possible: give fewer "
                       "folders, or --files",
                       zr_count_text(o->place.n_paths, "folder").text,
                       zr_count_text(most_files, "file").text, IO_MAX_FILES);
    if (o->place.size_bytes < unit || o->place.size_bytes > MAX_SIZE)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--size %s: with these settings %s (%zu bytes) to %s are possible; a "
                       "number without a unit is bytes, others end in KiB, MiB or GiB",
                       zr_count_text(o->place.size_bytes, "byte").text, zr_size_text(unit).text,
                       unit, zr_size_text(MAX_SIZE).text);
    o->place.size_bytes -= o->place.size_bytes % unit;
    return ZR_OK;
}

/* ---- the command ---------------------------------------------------------------------------- */

static zr_status_t measure(io_options_t *o, int *code_p) {
    char fio_version[64];
    io_best_t best;
    io_comparison_t comparison;
    if (o->with_fio && !io_fio_find(fio_version, sizeof(fio_version))) {
        zr_log_write(o->log, ZR_LOG_WARNING,
                     "there is no fio, so there are no ratios; install it (bash cmake/install.sh "
                     "fio), or give --fio off");
        o->with_fio = false;
    }
    ZR_TRY(io_sweep(o, &best));
    ZR_TRY(io_compare(o, &best, &comparison));
    ZR_TRY(io_save(o, &best));
    *code_p = io_report(o, &best, &comparison, fio_version);
    return ZR_OK;
}

static zr_status_t check(io_options_t *o) {
    ZR_TRY(check_size(o));
    for (size_t i = 0; i < o->place.n_paths; i++)
        ZR_TRY(bench_check_folder("--path", o->place.paths[i], o->log));
    return io_check_save(o);
}

static int run(int argc, char **argv, const zr_log_t *log) {
    io_options_t options = {.place = {.paths = {"."},
                                      .n_paths = 1,
                                      .size_bytes = (size_t)256 << 20,
                                      .verify = true,
                                      .log = *log},
                            .n_rounds = 6,
                            .plain = true,
                            .checksummed = true,
                            .with_fio = true,
                            .log = log};
    int code = BENCH_FAILED;
    if (bench_parse(&parser, argc, argv, log, &options.common, &code)) {
        code = BENCH_FAILED;
        zr_status_t status = check(&options);
        if (status == ZR_OK)
            status = measure(&options, &code);
        if (status == ZR_ERR_ARGUMENT)
            code = BENCH_BAD_INPUT;
    }
    free(options.paths);
    return code;
}

const bench_command_t bench_io = {
    .name = "io",
    .summary = "bandwidth of the store on given paths, against fio on the same file systems",
    .run = run};
