/*
 * zero-bench io: how fast the store moves bytes on given paths, against fio on the same file
 * systems in the same run. A sweep finds the best settings of each; then the two take turns,
 * because shared drives swing. What is found can be saved, for the runs that use it.
 */
#include <string.h>

#include "examples/bench/io.h"

#define MAX_SIZE ((size_t)64 << 30)

static const zr_option_choice_t verifies[] = {
    {"both", 0, NULL}, {"on", 1, NULL}, {"off", 2, NULL}, {NULL, 0, NULL}};

#define AT(member) .offset = offsetof(io_options_t, member)

static const zr_option_t rows[] = {
    {"path", AT(paths), .type = ZR_OPTION_STRING, .arg = "DIR[,DIR...]",
     .help = "folders to measure"},
    {"size", AT(place.size_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .help = "of the files of one contender, together; there are up to four"},
    {"request", AT(given.request_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE", .initial = "",
     .help = "measure this request size only"},
    {"depth", AT(given.depth), .type = ZR_OPTION_COUNT, .least = 1, .most = ZR_STORE_MAX_DEPTH,
     .arg = "N", .initial = "", .help = "measure this number of requests at once only"},
    {"files", AT(given.n_files), .type = ZR_OPTION_COUNT, .least = 1, .most = IO_MAX_FILES,
     .arg = "N", .initial = "", .help = "measure this number of files per folder only"},
    {"rounds", AT(n_rounds), .type = ZR_OPTION_COUNT, .least = 1, .most = 1000, .arg = "N",
     .help = "repetitions of the comparison; the median is used"},
    {"verify", AT(verify), .type = ZR_OPTION_CHOICE, .choices = verifies,
     .help = "measure with checksums (on), without (off), or both"},
    {"fio", AT(with_fio), .type = ZR_OPTION_SWITCH, .help = "compare with fio"},
    {"save-settings", AT(save_path), .type = ZR_OPTION_STRING, .arg = "FILE",
     .help = "write the best settings, as JSON"}};

static zr_status_t check_request(const io_options_t *o) {
    size_t request_bytes = o->given.request_bytes;
    const char *text = options_value(&o->common.given, "request");
    if (text == NULL || (request_bytes > 0 && request_bytes % ZR_STORE_CHUNK_ALIGN_BYTES == 0 &&
                         request_bytes <= IO_MAX_MEMORY))
        return ZR_OK;
    return zr_fail(o->common.log, ZR_ERR_ARGUMENT,
                   "--request %s: multiples of %zu up to %zu are allowed", text,
                   ZR_STORE_CHUNK_ALIGN_BYTES, IO_MAX_MEMORY);
}

/* Whole requests of the largest size on every file. */
static zr_status_t check_size(io_options_t *o) {
    size_t most_files = o->given.n_files > 0 ? o->given.n_files : 4;
    size_t unit = (size_t)2 << 20;
    if (o->given.request_bytes > 0)
        unit = o->given.request_bytes;
    unit *= o->place.n_paths * most_files;
    if (o->place.n_paths * most_files > IO_MAX_FILES)
        return zr_fail(
            o->common.log, ZR_ERR_ARGUMENT,
            "%s with up to %s each; %d files are allowed: give fewer folders, or --files",
            zr_count_text(o->place.n_paths, "folder").text, zr_count_text(most_files, "file").text,
            IO_MAX_FILES);
    if (o->place.size_bytes < unit || o->place.size_bytes > MAX_SIZE)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT,
                       "--size %s: with these settings %s (%zu bytes) to %s are allowed; a number "
                       "without a unit is bytes, others end in KiB, MiB or GiB",
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
        zr_log_write(o->common.log, ZR_LOG_WARNING,
                     "there is no fio, so there are no ratios; install it (bash cmake/install.sh "
                     "fio), or give --fio off");
        o->with_fio = false;
    }
    ZR_TRY(io_sweep(o, &best));
    ZR_TRY(io_compare(o, &best, &comparison));
    ZR_TRY(io_save(o, &best));
    *code_p =
        bench_report(&o->common, io_describe(o, &best, &comparison, fio_version), COMMAND_DONE);
    return ZR_OK;
}

static zr_status_t check(io_options_t *o) {
    ZR_TRY(bench_folders("--path", o->paths, o->common.log, &o->folders));
    o->place.n_paths = o->folders.n;
    memcpy(o->place.paths, o->folders.paths, sizeof(o->place.paths));
    o->place.log = *o->common.log;
    o->plain = o->verify != 1;
    o->checksummed = o->verify != 2;
    o->place.verify = o->checksummed; /* in the sweep: as in a run, unless it is asked for */
    ZR_TRY(check_request(o));
    ZR_TRY(check_size(o));
    (void)zr_store_drive_backend(o->common.log); /* says it where io_uring cannot be had */
    return io_check_save(o);
}

static int run(void *options) {
    int code = COMMAND_FAILED;
    zr_status_t status = check(options);
    ZR_THEN(status, measure(options, &code));
    return status == ZR_ERR_ARGUMENT ? COMMAND_BAD_INPUT : code;
}

static const io_options_t defaults = {
    .paths = ".", .place = {.size_bytes = (size_t)256 << 20}, .n_rounds = 6, .with_fio = true};

const command_t bench_io = {
    .name = "io",
    .summary = "bandwidth of the store on given paths, against fio on the same file systems",
    .doc = "Bandwidth of the store on these folders, against fio on the same file systems in the "
           "same run; finds the settings that do best.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
