/*
 * zero-bench io: how fast the store moves bytes on given paths, against fio on the same file
 * systems in the same run. A sweep finds the best settings of each; then the two take turns,
 * because shared drives swing. What is found can be saved, for the runs that use it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "examples/bench/io_run.h"

#define MAX_SIZE ((size_t)64 << 30)
#define MAX_SWEEP 64
#define MAX_MEMORY ((size_t)64 << 20) /* of requests at once */

typedef struct options {
    bench_common_t common;
    char *paths; /* copy of the option, cut at commas */
    io_place_t place;
    io_setting_t given; /* 0: sweep it */
    size_t n_rounds;
    bool without_fio;
    const char *save_path;
    const zr_log_t *log;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

enum {
    KEY_PATH = BENCH_KEY_FIRST_OWN,
    KEY_SIZE,
    KEY_REQUEST,
    KEY_DEPTH,
    KEY_FILES,
    KEY_ROUNDS,
    KEY_VERIFY,
    KEY_FIO,
    KEY_SAVE
};

static const struct argp_option option_table[] = {
    {"path", KEY_PATH, "DIR[,DIR...]", 0, "folders to measure (default: the current one)", 0},
    {"size", KEY_SIZE, "SIZE", 0, "of the files, together (default 256MiB)", 0},
    {"request", KEY_REQUEST, "SIZE", 0, "measure this request size only", 0},
    {"depth", KEY_DEPTH, "N", 0, "measure this number of requests at once only", 0},
    {"files", KEY_FILES, "N", 0, "measure this number of files per folder only", 0},
    {"rounds", KEY_ROUNDS, "N", 0, "of the comparison; the median counts (default 6)", 0},
    {"verify", KEY_VERIFY, "on|off", 0, "make and verify checksums (default on)", 0},
    {"fio", KEY_FIO, "on|off", 0, "compare with fio (default on)", 0},
    {"save-settings", KEY_SAVE, "FILE", 0, "write the best settings, as JSON", 0},
    BENCH_COMMON_OPTIONS,
    {0},
};

/* Cut at commas; the place keeps pointers into the copy. */
static zr_status_t take_paths(const char *value, options_t *o) {
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

static zr_status_t take_request(const char *value, options_t *o) {
    size_t request_bytes = 0;
    ZR_TRY(args_size("--request", value, o->log, &request_bytes));
    if (request_bytes == 0 || request_bytes % ZR_STORE_CHUNK_ALIGN_BYTES != 0 ||
        request_bytes > MAX_MEMORY)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--request %s: multiples of %zu up to %zu are possible", value,
                       ZR_STORE_CHUNK_ALIGN_BYTES, MAX_MEMORY);
    o->given.request_bytes = request_bytes;
    return ZR_OK;
}

static zr_status_t take_switch(const char *key, const char *value, options_t *o, bool *on_p) {
    static const char *const words[] = {"off", "on"};
    size_t choice = 0;
    ZR_TRY(args_choice(key, value, words, 2, o->log, &choice));
    *on_p = choice == 1;
    return ZR_OK;
}

static zr_status_t take_option(int key, const char *value, options_t *o) {
    bool with_fio = true;
    switch (key) {
    case KEY_PATH:
        return take_paths(value, o);
    case KEY_SIZE:
        return args_size("--size", value, o->log, &o->place.size_bytes);
    case KEY_REQUEST:
        return take_request(value, o);
    case KEY_DEPTH:
        return args_count("--depth", value, 1, ZR_STORE_MAX_DEPTH, o->log, &o->given.depth);
    case KEY_FILES:
        return args_count("--files", value, 1, IO_MAX_FILES, o->log, &o->given.n_files);
    case KEY_ROUNDS:
        return args_count("--rounds", value, 1, 1000, o->log, &o->n_rounds);
    case KEY_VERIFY:
        return take_switch("--verify", value, o, &o->place.verify);
    case KEY_FIO:
        ZR_TRY(take_switch("--fio", value, o, &with_fio));
        o->without_fio = !with_fio;
        return ZR_OK;
    case KEY_SAVE:
        o->save_path = value;
        return ZR_OK;
    case ARGP_KEY_ARG:
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "io takes options only, but got \"%s\"", value);
    }
    return ZR_ERR_UNSUPPORTED;
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    options_t *options = state->input;
    if (bench_take_common(key, &options->common))
        return 0;
    return bench_taken(take_option(key, value, options));
}

static const struct argp parser = {
    .options = option_table,
    .parser = parse_option,
    .doc = "Bandwidth of the store on these folders, against fio on the same file systems in the "
           "same run; finds the settings that do best."};

/* Whole requests of the largest size on every file. */
static zr_status_t check_size(options_t *o) {
    size_t most_files = o->given.n_files > 0 ? o->given.n_files : 4;
    size_t unit = (size_t)2 << 20;
    if (o->given.request_bytes > 0)
        unit = o->given.request_bytes;
    unit *= o->place.n_paths * most_files;
    if (o->place.n_paths * most_files > IO_MAX_FILES)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "%zu folders with up to %zu files each; %d files are possible: give fewer "
                       "folders, or --files",
                       o->place.n_paths, most_files, IO_MAX_FILES);
    if (o->place.size_bytes < unit || o->place.size_bytes > MAX_SIZE)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--size %zu: %zu to %zu bytes are possible with these settings",
                       o->place.size_bytes, unit, MAX_SIZE);
    o->place.size_bytes -= o->place.size_bytes % unit;
    return ZR_OK;
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/* Settings that are tried, and how each did: seconds to write and read a byte. 0: not. */
typedef struct trial {
    io_setting_t setting;
    double store_seconds, fio_seconds;
} trial_t;

typedef struct sweep {
    trial_t trials[MAX_SWEEP];
    size_t n_trials;
    io_setting_t store_best, fio_best;
} sweep_t;

static zr_status_t try_store(const io_place_t *place, trial_t *trial) {
    io_store_t *io = NULL;
    io_speed_t write, read;
    zr_status_t status = io_store_open(place, &trial->setting, &io);
    if (status == ZR_OK)
        status = io_store_pass(io, IO_WRITE, place->size_bytes, &write);
    if (status == ZR_OK)
        status = io_store_pass(io, IO_READ, place->size_bytes, &read);
    io_store_close(&io);
    if (status == ZR_OK)
        trial->store_seconds = 1.0 / write.bytes_per_s + 1.0 / read.bytes_per_s;
    return status;
}

static zr_status_t try_fio(const io_place_t *place, const io_fio_t *fio, trial_t *trial) {
    io_speed_t write, read;
    ZR_TRY(io_fio_pass(fio, &trial->setting, IO_WRITE, place->size_bytes, &place->log, &write));
    ZR_TRY(io_fio_pass(fio, &trial->setting, IO_READ, place->size_bytes, &place->log, &read));
    trial->fio_seconds = 1.0 / write.bytes_per_s + 1.0 / read.bytes_per_s;
    return ZR_OK;
}

static zr_status_t try_setting(const options_t *o, sweep_t *sweep, const io_setting_t *setting,
                               const io_fio_t *fio) {
    trial_t *trial = &sweep->trials[sweep->n_trials++];
    *trial = (trial_t){.setting = *setting};
    ZR_TRY(try_store(&o->place, trial));
    if (fio != NULL)
        ZR_TRY(try_fio(&o->place, fio, trial));
    fprintf(stderr, "  %5zu KiB  depth %3zu  files %2zu  batch %2zu   store %6.2f GB/s",
            setting->request_bytes >> 10, setting->depth, setting->n_files, setting->submit_batch,
            2e-9 / trial->store_seconds);
    if (fio != NULL)
        fprintf(stderr, "   fio %6.2f GB/s", 2e-9 / trial->fio_seconds);
    fputc('\n', stderr);
    return ZR_OK;
}

static void choose_best(sweep_t *sweep) {
    const trial_t *store = NULL, *fio = NULL;
    for (size_t i = 0; i < sweep->n_trials; i++) {
        const trial_t *trial = &sweep->trials[i];
        if (store == NULL || trial->store_seconds < store->store_seconds)
            store = trial;
        if (trial->fio_seconds > 0.0 && (fio == NULL || trial->fio_seconds < fio->fio_seconds))
            fio = trial;
    }
    sweep->store_best = store->setting;
    sweep->fio_best = fio != NULL ? fio->setting : store->setting;
}

/* Sizes of requests times depths, with one number of files. */
static zr_status_t sweep_requests(const options_t *o, sweep_t *sweep, size_t n_files) {
    io_fio_t fio = {.n_files = 0};
    zr_status_t status = o->without_fio ? ZR_OK : io_fio_open(&o->place, n_files, &fio);
    for (size_t size = (size_t)128 << 10; size <= (size_t)2 << 20 && status == ZR_OK; size *= 2) {
        if (o->given.request_bytes > 0)
            size = o->given.request_bytes;
        for (size_t depth = 4; depth <= 64 && status == ZR_OK; depth *= 2) {
            if (o->given.depth > 0)
                depth = o->given.depth;
            const io_setting_t setting = {size, depth, depth < 4 ? depth : 4, n_files};
            if (size * depth <= MAX_MEMORY || o->given.depth > 0)
                status = try_setting(o, sweep, &setting, o->without_fio ? NULL : &fio);
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
static zr_status_t sweep_files(const options_t *o, sweep_t *sweep) {
    for (size_t n_files = 2; n_files <= 4 && o->given.n_files == 0; n_files *= 2) {
        io_fio_t fio = {.n_files = 0};
        io_setting_t setting = sweep->store_best;
        setting.n_files = n_files;
        zr_status_t status = o->without_fio ? ZR_OK : io_fio_open(&o->place, n_files, &fio);
        if (status == ZR_OK)
            status = try_setting(o, sweep, &setting, o->without_fio ? NULL : &fio);
        setting = sweep->fio_best;
        setting.n_files = n_files;
        if (status == ZR_OK && !o->without_fio)
            status = try_setting(o, sweep, &setting, &fio);
        io_fio_close(&fio);
        ZR_TRY(status);
    }
    return ZR_OK;
}

/* Other batches of submissions; fio's are its own. */
static zr_status_t sweep_batches(const options_t *o, sweep_t *sweep) {
    static const size_t batches[] = {1, 16};
    for (size_t i = 0; i < 2; i++) {
        io_setting_t setting = sweep->store_best;
        setting.submit_batch = batches[i];
        if (batches[i] <= setting.depth)
            ZR_TRY(try_setting(o, sweep, &setting, NULL));
    }
    return ZR_OK;
}

static zr_status_t run_sweep(const options_t *o, sweep_t *sweep) {
    fprintf(stderr, "written and read once, %zu MiB:\n", o->place.size_bytes >> 20);
    ZR_TRY(sweep_requests(o, sweep, o->given.n_files > 0 ? o->given.n_files : 1));
    choose_best(sweep);
    ZR_TRY(sweep_files(o, sweep));
    choose_best(sweep);
    ZR_TRY(sweep_batches(o, sweep));
    choose_best(sweep);
    return ZR_OK;
}

/* ---- the comparison
 * ------------------------------------------------------------------------------ */

/* Medians of one pattern. */
typedef struct comparison {
    io_speed_t store, fio;
} comparison_t;

enum { SPEED, CPU, CHECKSUM, N_FIGURES };

typedef struct figures {
    bench_times_t of[2][IO_N_PATTERNS][N_FIGURES]; /* by store and fio */
} figures_t;

static zr_status_t keep(figures_t *figures, int who, io_pattern_t pattern, const io_speed_t *speed,
                        const zr_log_t *log) {
    bench_times_t *of = figures->of[who][pattern];
    if (bench_times_add(&of[SPEED], speed->bytes_per_s) &&
        bench_times_add(&of[CPU], speed->cpu_seconds_per_byte) &&
        bench_times_add(&of[CHECKSUM], speed->checksum_seconds_per_byte))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_MEMORY, "no memory for the figures");
}

/* One pass of the store (who = 0) or of fio (1). */
static zr_status_t pass(const options_t *o, const sweep_t *sweep, io_store_t *io,
                        const io_fio_t *fio, io_pattern_t pattern, int who, figures_t *figures) {
    uint64_t n_bytes = 2 * (uint64_t)o->place.size_bytes;
    io_speed_t speed;
    if (who == 0)
        ZR_TRY(io_store_pass(io, pattern, n_bytes, &speed));
    else
        ZR_TRY(io_fio_pass(fio, &sweep->fio_best, pattern, n_bytes, o->log, &speed));
    return keep(figures, who, pattern, &speed, o->log);
}

/* Who is first changes with every round: what came before is still in some drive's cache. */
static zr_status_t take_turns(const options_t *o, const sweep_t *sweep, io_store_t *io,
                              const io_fio_t *fio, figures_t *figures) {
    for (size_t round = 0; round < o->n_rounds; round++) {
        for (io_pattern_t pattern = IO_WRITE; pattern <= IO_MIXED; pattern++) {
            int first = o->without_fio ? 0 : (int)(round % 2);
            ZR_TRY(pass(o, sweep, io, fio, pattern, first, figures));
            if (!o->without_fio)
                ZR_TRY(pass(o, sweep, io, fio, pattern, 1 - first, figures));
        }
    }
    return ZR_OK;
}

static io_speed_t median(bench_times_t *of) {
    return (io_speed_t){.bytes_per_s = bench_times_median(&of[SPEED]),
                        .cpu_seconds_per_byte = bench_times_median(&of[CPU]),
                        .checksum_seconds_per_byte = bench_times_median(&of[CHECKSUM])};
}

static zr_status_t compare(const options_t *o, const sweep_t *sweep, zr_store_info_t *info_p,
                           comparison_t *comparisons) {
    figures_t figures = {0};
    io_store_t *io = NULL;
    io_fio_t fio = {.n_files = 0};
    zr_status_t status = io_store_open(&o->place, &sweep->store_best, &io);
    if (status == ZR_OK && !o->without_fio)
        status = io_fio_open(&o->place, sweep->fio_best.n_files, &fio);
    if (status == ZR_OK) {
        *info_p = *io_store_info(io);
        status = take_turns(o, sweep, io, &fio, &figures);
    }
    for (int pattern = 0; pattern < IO_N_PATTERNS; pattern++) {
        comparisons[pattern] = (comparison_t){.store = median(figures.of[0][pattern]),
                                              .fio = median(figures.of[1][pattern])};
        for (int i = 0; i < 2 * N_FIGURES; i++)
            bench_times_free(&figures.of[i / N_FIGURES][pattern][i % N_FIGURES]);
    }
    io_fio_close(&fio);
    io_store_close(&io);
    return status;
}

/* ---- the report -------------------------------------------------------------------------- */

static json_t *describe_setting(const io_setting_t *setting, bool is_store) {
    json_t *object = json_object();
    if (json_put(object, "request_bytes", json_count(setting->request_bytes)) &&
        json_put(object, "depth", json_count(setting->depth)) &&
        json_put(object, "files_per_path", json_count(setting->n_files)) &&
        (!is_store || json_put(object, "submit_batch", json_count(setting->submit_batch))))
        return object;
    json_decref(object);
    return NULL;
}

static json_t *describe_comparison(const comparison_t *comparison, bool with_fio) {
    json_t *object = json_object();
    const io_speed_t *store = &comparison->store, *fio = &comparison->fio;
    bool made =
        json_put(object, "bytes_per_s", json_number(store->bytes_per_s)) &&
        json_put(object, "cpu_s_per_gb", json_number(1e9 * store->cpu_seconds_per_byte)) &&
        json_put(object, "checksum_s_per_gb", json_number(1e9 * store->checksum_seconds_per_byte));
    if (with_fio)
        made = made && json_put(object, "fio_bytes_per_s", json_number(fio->bytes_per_s)) &&
               json_put(object, "fio_cpu_s_per_gb", json_number(1e9 * fio->cpu_seconds_per_byte)) &&
               json_put(object, "ratio", json_number(store->bytes_per_s / fio->bytes_per_s));
    if (made)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *describe_paths(const io_place_t *place) {
    json_t *array = json_array();
    for (size_t i = 0; i < place->n_paths; i++)
        json_array_append_new(array, json_text(place->paths[i]));
    return array;
}

static void print_for_people(const options_t *o, const sweep_t *sweep,
                             const comparison_t *comparisons) {
    const io_setting_t *best = &sweep->store_best, *fio = &sweep->fio_best;
    fprintf(stderr,
            "best for the store: %zu KiB, depth %zu, %zu file(s) per path, batches of %zu\n",
            best->request_bytes >> 10, best->depth, best->n_files, best->submit_batch);
    if (!o->without_fio)
        fprintf(stderr, "best for fio:       %zu KiB, depth %zu, %zu file(s) per path\n",
                fio->request_bytes >> 10, fio->depth, fio->n_files);
    fprintf(stderr, "medians of %zu rounds, checksums %s\n", o->n_rounds,
            o->place.verify ? "on" : "off");
    for (int pattern = 0; pattern < IO_N_PATTERNS; pattern++) {
        const comparison_t *c = &comparisons[pattern];
        fprintf(stderr, "  %-6s store %6.2f GB/s, %.3f s of processor per GB (%.3f of checksums)",
                io_pattern_name((io_pattern_t)pattern), 1e-9 * c->store.bytes_per_s,
                1e9 * c->store.cpu_seconds_per_byte, 1e9 * c->store.checksum_seconds_per_byte);
        if (!o->without_fio)
            fprintf(stderr, "   fio %6.2f GB/s, %.3f   ratio %.3f", 1e-9 * c->fio.bytes_per_s,
                    1e9 * c->fio.cpu_seconds_per_byte, c->store.bytes_per_s / c->fio.bytes_per_s);
        fputc('\n', stderr);
    }
}

static int report(const options_t *o, const sweep_t *sweep, const zr_store_info_t *info,
                  const comparison_t *comparisons, const char *fio_version) {
    print_for_people(o, sweep, comparisons);
    if (!o->common.json)
        return BENCH_MEASURED;
    json_t *object = json_object();
    bool made = json_put(object, "command", json_string("io")) &&
                json_put(object, "paths", describe_paths(&o->place)) &&
                json_put(object, "size_bytes", json_count(o->place.size_bytes)) &&
                json_put(object, "verify", json_boolean(o->place.verify)) &&
                json_put(object, "direct", json_boolean(info->is_direct)) &&
                json_put(object, "registered", json_boolean(info->is_registered)) &&
                json_put(object, "rounds", json_count(o->n_rounds)) &&
                json_put(object, "settings", describe_setting(&sweep->store_best, true));
    if (!o->without_fio)
        made = made && json_put(object, "fio", json_text(fio_version)) &&
               json_put(object, "fio_settings", describe_setting(&sweep->fio_best, false));
    for (int pattern = 0; pattern < IO_N_PATTERNS; pattern++)
        made = made && json_put(object, io_pattern_name((io_pattern_t)pattern),
                                describe_comparison(&comparisons[pattern], !o->without_fio));
    if (made)
        return bench_print(object, o->log);
    json_decref(object);
    return bench_print(NULL, o->log);
}

static zr_status_t save_settings(const options_t *o, const sweep_t *sweep) {
    if (o->save_path == NULL)
        return ZR_OK;
    json_t *object = describe_setting(&sweep->store_best, true);
    FILE *file = fopen(o->save_path, "w");
    bool written = object != NULL && file != NULL &&
                   json_put(object, "paths", describe_paths(&o->place)) &&
                   json_print(object, true, file);
    int error = errno;
    if (file != NULL && fclose(file) != 0) {
        written = false;
        error = errno;
    }
    json_decref(object);
    return written ? ZR_OK
                   : zr_fail(o->log, ZR_ERR_IO, "--save-settings %s: cannot write it: %s",
                             o->save_path, strerror(error));
}

/* ---- the command ---------------------------------------------------------------------------- */

static zr_status_t measure(options_t *o, int *code_p) {
    char fio_version[64];
    comparison_t comparisons[IO_N_PATTERNS];
    zr_store_info_t info = {0};
    sweep_t *sweep = calloc(1, sizeof(*sweep));
    if (sweep == NULL)
        return zr_fail(o->log, ZR_ERR_MEMORY, "no memory for the sweep");
    if (!o->without_fio && !io_fio_find(fio_version, sizeof(fio_version))) {
        zr_log_write(o->log, ZR_LOG_WARNING,
                     "there is no fio, so there are no ratios; install it (bash cmake/install.sh "
                     "fio), or give --fio off");
        o->without_fio = true;
    }
    zr_status_t status = run_sweep(o, sweep);
    if (status == ZR_OK)
        status = compare(o, sweep, &info, comparisons);
    if (status == ZR_OK)
        status = save_settings(o, sweep);
    if (status == ZR_OK)
        *code_p = report(o, sweep, &info, comparisons, fio_version);
    free(sweep);
    return status;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.place = {.paths = {"."},
                                   .n_paths = 1,
                                   .size_bytes = (size_t)256 << 20,
                                   .verify = true,
                                   .log = *log},
                         .n_rounds = 6,
                         .log = log};
    int code = BENCH_FAILED;
    zr_status_t status = args_parse(&parser, argc, argv, log, &options);
    if (status == ZR_OK && bench_answer_common(&options.common, &parser, "io")) {
        free(options.paths);
        return BENCH_MEASURED;
    }
    if (status == ZR_OK)
        status = check_size(&options);
    if (status == ZR_OK)
        status = measure(&options, &code);
    free(options.paths);
    return status == ZR_ERR_ARGUMENT ? BENCH_BAD_INPUT : code;
}

const bench_command_t bench_io = {
    .name = "io",
    .summary = "bandwidth of the store on given paths, against fio on the same file systems",
    .run = run};
