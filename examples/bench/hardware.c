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
    bench_common_t common;
    machine_options_t machine;
    size_t n_ranks, n_threads;
    const char *file; /* NULL: it is not saved */
    const zr_log_t *log;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

static const command_option_t option_table[] = {
    {"save-hardware", "FILE", "write the description, for --hardware FILE", COMMAND_TEXT,
     .field = offsetof(options_t, file)},
    {"ranks", "N", "ranks that share the machine, and work at once (default 1)", COMMAND_COUNT,
     .field = offsetof(options_t, n_ranks), 1, MAX_RANKS},
    {"threads", "N", "threads of each rank (default: all cores, shared out)", COMMAND_COUNT,
     .field = offsetof(options_t, n_threads), 1, ON_DEVICE_MAX_THREADS},
    {"device", "host|cuda[:N]|auto", "of all ranks (default host)", COMMAND_DEVICE,
     .field = offsetof(options_t, machine.device)},
    {"path", "DIR[,DIR...]",
     "measure the drives of these folders, with 256 MiB of each rank (default: none)", COMMAND_TEXT,
     .field = offsetof(options_t, machine.paths)},
    {"seconds", "S", "of each of the 7 groups of measurements, one round at least (default 1)",
     COMMAND_NUMBER, .field = offsetof(options_t, machine.seconds), 0, 3600},
    {"quick", NULL, "measure on next to nothing: the form is the same, figures say nothing",
     COMMAND_FLAG, .field = offsetof(options_t, machine.is_quick)},
    {0},
};

static const bench_parser_t parser = {
    .name = "hardware",
    .options = option_table,
    .doc = "What a rank's share of this machine reaches while all ranks work at once, as a "
           "description of hardware for zero-plan and zero-train."};

static zr_status_t complete(options_t *o) {
    o->machine.log = *o->log;
    if (o->machine.is_quick)
        o->machine.seconds = 0.0;
    o->machine.n_ranks = (int)o->n_ranks;
    o->machine.n_threads = device_threads(o->n_threads, o->machine.n_ranks);
    if (o->file != NULL)
        ZR_TRY(files_check_writable("--save-hardware", o->file, o->log));
    if (o->machine.paths != NULL)
        ZR_TRY(bench_check_folders("--path", o->machine.paths, o->log));
    device_choice_t chosen;
    return device_choose(o->machine.device, o->log, &chosen);
}

/* ---- the report -------------------------------------------------------------------------- */

static bool is_used(const machine_t *machine, const zr_figure_t *figure) {
    return !figure->is_of_cuda || machine->hardware.kind != ZR_HARDWARE_HOST;
}

static void print_for_people(const options_t *o, const machine_t *machine) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++)
        if (is_used(machine, &figures[i]))
            fprintf(stderr, "  %-30s %12.4g  %s\n", figures[i].name,
                    zr_hardware_figure(&machine->hardware, &figures[i]), machine->sources[i]);
    if (o->file != NULL)
        fprintf(stderr, "saved; --hardware %s%s plans with it\n",
                strchr(o->file, '/') != NULL || strstr(o->file, ".json") != NULL ? "" : "./",
                o->file);
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
    json_put(&object, "figures", values);
    json_put(&object, "sources", sources);
    json_put(&object, "command", json_string("hardware"));
    json_put(&object, "kind", json_string(zr_hardware_kind_name(machine->hardware.kind)));
    json_put(&object, "ranks", json_count(o->n_ranks));
    json_put(&object, "threads_per_rank", json_count((uint64_t)o->machine.n_threads));
    if (o->file != NULL)
        json_put(&object, "file", json_string(o->file));
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.n_ranks = 1, .machine = {.device = "host", .seconds = 1.0}, .log = log};
    machine_t machine;
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    if (complete(&options) != ZR_OK)
        return BENCH_BAD_INPUT;
    if (machine_measure(&options.machine, &machine) != ZR_OK)
        return BENCH_FAILED;
    if (options.file != NULL && machine_save(&machine, options.file, log) != ZR_OK)
        return BENCH_FAILED;
    print_for_people(&options, &machine);
    return options.common.json ? command_print(describe(&options, &machine), BENCH_MEASURED, log)
                               : BENCH_MEASURED;
}

const bench_command_t bench_hardware = {
    .name = "hardware",
    .summary = "what a rank's share of this machine reaches, for plans",
    .run = run,
    .option = "--save-hardware"};
