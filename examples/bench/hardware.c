/*
 * zero-bench hardware: what this machine's processors, memory, collectives and drives reach, as a
 * description that zero-plan and zero-train take. `zero-bench --save-hardware FILE` is the same.
 */
#include <string.h>

#include "examples/bench/machine.h"
#include "examples/bench/on_device.h"
#include "examples/common/device.h"
#include "examples/common/files.h"

#define MAX_RANKS 1024

typedef struct options {
    on_device_options_t on;
    machine_options_t machine;
    size_t n_ranks;
    const char *file; /* NULL: it is not saved */
} options_t;

#define AT(member) .offset = offsetof(options_t, member)

static const zr_option_t rows[] = {
    {"save-hardware", AT(file), .type = ZR_OPTION_STRING, .arg = "FILE",
     .help = "write the description, for --hardware FILE"},
    {"ranks", AT(n_ranks), .type = ZR_OPTION_COUNT, .least = 1, .most = MAX_RANKS, .arg = "N",
     .help = "ranks that share the machine and run concurrently"},
    {"path", AT(machine.paths), .type = ZR_OPTION_STRING, .arg = "DIR[,DIR...]", .initial = "none",
     .help = "measure the drives of these folders, with 256 MiB of each rank"},
    {"seconds", AT(machine.seconds), .type = ZR_OPTION_NUMBER, .most = 3600, .arg = "S",
     .help = "of each of the 7 groups of measurements, one round at least"},
    {"quick", AT(machine.is_quick), .type = ZR_OPTION_FLAG,
     .help = "measure with tiny sizes: only the format is meaningful, not the figures"}};

static zr_status_t complete(options_t *o) {
    const zr_log_t *log = o->on.common.log;
    bench_folders_t folders;
    o->machine.log = *log;
    o->machine.device = o->on.device;
    if (o->machine.is_quick)
        o->machine.seconds = 0.0;
    o->machine.n_ranks = (int)o->n_ranks;
    o->machine.n_threads = device_threads(o->on.n_threads, o->machine.n_ranks);
    if (o->file != NULL)
        ZR_TRY(files_check_writable("--save-hardware", o->file, log));
    if (o->machine.paths != NULL)
        ZR_TRY(bench_folders("--path", o->machine.paths, log, &folders));
    device_choice_t chosen;
    return device_choose(o->machine.device, log, &chosen);
}

/* ---- the report -------------------------------------------------------------------------- */

static bool is_used(const machine_t *machine, const zr_figure_t *figure) {
    return !figure->is_of_cuda || machine->hardware.kind != ZR_HARDWARE_HOST;
}

static json_t *describe(const options_t *o, const machine_t *machine) {
    json_t *object = json_object(), *values = json_object(), *sources = json_object();
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++) {
        if (!is_used(machine, &figures[i]))
            continue;
        double value = zr_hardware_figure(&machine->hardware, &figures[i]);
        json_put(&values, figures[i].name, json_number(value));
        json_put(&sources, figures[i].name, json_string(machine->sources[i]));
    }
    JSON_PUT(&object, {"figures", values}, {"sources", sources},
             {"command", json_string("hardware")},
             {"kind", json_string(zr_hardware_kind_name(machine->hardware.kind))},
             {"ranks", json_count(o->n_ranks)},
             {"threads_per_rank", json_count((uint64_t)o->machine.n_threads)});
    if (o->file != NULL)
        json_put(&object, "file", json_string(o->file));
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(void *argument) {
    options_t *options = argument;
    const zr_log_t *log = options->on.common.log;
    machine_t machine;
    if (complete(options) != ZR_OK)
        return COMMAND_BAD_INPUT;
    if (machine_measure(&options->machine, &machine) != ZR_OK ||
        (options->file != NULL && machine_save(&machine, options->file, log) != ZR_OK))
        return COMMAND_FAILED;
    int code = bench_report(&options->on.common, describe(options, &machine), COMMAND_DONE);
    if (options->file != NULL)
        zr_log_write(log, ZR_LOG_INFO, "saved; --hardware %s%s plans with it",
                     strchr(options->file, '/') != NULL || strstr(options->file, ".json") != NULL
                         ? ""
                         : "./",
                     options->file);
    return code;
}

static const options_t defaults = {
    .on = ON_DEVICE_DEFAULTS, .n_ranks = 1, .machine = {.seconds = 1.0}};

const command_t bench_hardware = {
    .name = "hardware",
    .summary = "rates of a rank's share of this machine, for plans",
    .doc = "Measure the rates of a rank's share of this machine while all ranks run concurrently, "
           "as a description of hardware for zero-plan and zero-train.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .base = &on_ranks_table,
    .option = "--save-hardware",
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
