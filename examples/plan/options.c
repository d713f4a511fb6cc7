/*
 * Most options are zero-train's: their names, values and messages come from its table. What is here
 * is which of them a plan has, and what it means to leave one out.
 */
#include "examples/plan/options.h"

#include <errno.h>
#include <string.h>

#include "examples/common/args.h"
#include "examples/common/files.h"
#include "examples/common/gnuplot.h"
#include "examples/plan/hardware.h"
#include "examples/common/shared_options.h"
#include "examples/plan/this_machine.h"

enum { KEY_HARDWARE = SHARED_OPTIONS_FIRST_KEY, KEY_PLOT, KEY_TRACE };

/* What --help says, where it is not what zero-train says. */
static const shared_option_t shared[] = {
    {"model", 1, NULL},
    {"seq", 1, NULL},
    {"freeze", 1, NULL},
    {"ranks", 2, PLAN_RANKS_DOC},
    {"dtype", 2, NULL},
    {"grad-accum", 2, NULL},
    {"reduce", 2, NULL},
    {"prefetch", 2, NULL},
    {"max-live", 2, NULL},
    {"sums", 2, NULL},
    {"overlap-comm", 2, NULL},
    {"clip", 2, NULL},
    {"check-overflow", 2, NULL},
    {"config", 2,
     "DeepSpeed's JSON; options override it, and what it gives is not tried in all ways"},
    {"stage", 3, "what is sharded (default, and auto: each stage is tried)"},
    {"shard-group-size", 3,
     "ranks that share one copy of what is sharded, or all of them (default, and auto: all; on "
     "several nodes, where their links cost time, also those of a node, or of as few nodes as "
     "hold the model)"},
    {"offload-optimizer", 3,
     "where the optimizer's state lives (default: each is tried, as a whole); auto: as far up as "
     "fits"},
    {"offload-params", 3,
     "at stage 3: where parameters live (default: each is tried, as a whole); auto: as far up as "
     "fits"},
    {"recompute", 3, "whether layers are computed again in backward (default: both are tried)"},
    {"micro-batch", 3,
     "sequences per rank and micro-batch (default: 1, 2, 4 and so on are tried, as long as it fits "
     "and is at least 1% faster than half of it)"},
    {"device-memory", 4, "device memory of each rank (default: what the hardware has)"},
    {"host-memory", 4, "host memory of each rank (default: a rank's share of the hardware's)"},
    {"nvme-capacity", 4, "what each rank may use on drives (default: a rank's share)"},
    {"nvme-path", 4,
     "folders on the drives; of this machine, nothing is planned for drives without them"},
    {"device", 4, "of --hardware this: auto, host or cuda[:N] (default auto)"},
    {"threads", 4, "of --hardware this: of each rank"},
    {"memory-plan", 4, NULL},
    {"offload-ratio", 5, NULL},
    {"state-in-host", 5, NULL},
    {"offload-param-ratio", 5, NULL},
    {"params-in-host", 5, NULL},
    {"offload-gradients", 5, NULL},
    {"offload-gradients-ratio", 5, NULL},
    {"update-on", 5, NULL},
    {"offload-activations", 5, NULL},
    {"sub-group", 5, NULL},
    {"param-buffers", 5, NULL},
    {"param-buffer", 5, NULL},
    {"nvme-buffers", 5, NULL},
    {"nvme-verify", 5, NULL},
    {"json", 6, NULL},
    {"quiet", 6, "no progress; the table stays"},
    {"help", 6, NULL},
    {"version", 6, NULL},
};
#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

static const char *const headers[] = {NULL,       "What to train:",
                                      "How:",     "What is tried in all ways, unless it is given:",
                                      "In what:", "Offload, where it is tried:",
                                      "Output:"};

static const struct argp_option own[] = {
    {"hardware", KEY_HARDWARE, "NAME|FILE|this", 0,
     "machines to plan for: one that is described here (an unknown name lists them), a "
     "description, or this machine (default this)",
     4},
    {"plot", KEY_PLOT, "FILE", 0,
     "draw memory of each placement, and the time line of a step of the recommended plan, as "
     "FILE.svg or FILE.png (needs gnuplot)",
     6},
    {"trace", KEY_TRACE, "FILE", 0,
     "write what runs when in a step of the recommended plan, as zero-train --trace does of a run",
     6},
};

static zr_status_t take(void *context, int key, const char *name, const char *value);

static const shared_options_t all = {
    .program = "zero-plan",
    .doc = "Plan a training run on every stage and placement, without running it: what fits, in "
           "how much memory, and how fast it will be."
           "\vExit status: 0 something fits, 1 nothing does, 2 bad usage or input.",
    .shared = shared,
    .n_shared = N_ELEMS(shared),
    .own = own,
    .n_own = N_ELEMS(own),
    .headers = headers,
    .n_groups = N_ELEMS(headers) - 1,
    .take = take};

/* ---- parsing --------------------------------------------------------------------------------- */

typedef struct parsing {
    plan_options_t *options;
    const zr_log_t *log;
    bool has_device; /* --device or --threads was given */
} parsing_t;

/* Those that describe the plan and not the run are not repeated to zero-train; nor are those that
 * are said of each plan by its own configuration. */
static bool is_of_plan(const char *name) {
    static const char *const names[] = {"json",          "quiet",         "help",
                                        "version",       "nvme-path",     "config",
                                        "offload-ratio", "state-in-host", "offload-param-ratio",
                                        "params-in-host"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Note an option that was given; an earlier one of its name no longer counts. */
static zr_status_t note_given(plan_options_t *o, const char *name, const char *value,
                              const zr_log_t *log) {
    struct {
        const char *name;
        bool *open;
    } const open[] = {{"stage", &o->stage_open},
                      {"offload-optimizer", &o->optimizer_open},
                      {"offload-params", &o->params_open},
                      {"recompute", &o->recompute_open},
                      {"micro-batch", &o->micro_batch_open},
                      {"shard-group-size", &o->group_open}};
    for (size_t k = 0; k < sizeof(open) / sizeof(open[0]); k++)
        if (strcmp(name, open[k].name) == 0) {
            *open[k].open = false;
            return ZR_OK;
        }
    if (is_of_plan(name))
        return ZR_OK;
    if (strcmp(name, "ranks") == 0)
        o->ranks_open = false;
    return shared_givens_note(&o->given, name, value, false, log);
}

static zr_status_t set_plot(parsing_t *p, const char *value) {
    if (!gnuplot_has_form(value))
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--plot %s: the form is chosen by the ending; allowed are NAME.svg, "
                       "NAME.png",
                       value);
    p->options->plot_path = value;
    return files_check_writable("--plot", value, p->log);
}

static zr_status_t take(void *context, int key, const char *name, const char *value) {
    parsing_t *p = context;
    plan_options_t *o = p->options;
    if (key == KEY_HARDWARE) {
        o->hardware_name = value;
        return ZR_OK;
    }
    if (key == KEY_PLOT)
        return set_plot(p, value);
    if (key == KEY_TRACE) {
        o->trace_path = value;
        return files_check_writable("--trace", value, p->log);
    }
    ZR_TRY(train_options_take(&o->run, key, value, p->log));
    p->has_device |= strcmp(name, "device") == 0 || strcmp(name, "threads") == 0;
    ZR_TRY(note_given(o, name, value, p->log));
    o->stage_open |= o->run.auto_stage;
    o->group_open |= o->run.auto_group;
    o->run.auto_stage = o->run.auto_group = false;
    return ZR_OK;
}

void plan_options_help(FILE *file) {
    shared_options_help(&all, file);
}

/* ---- the file -------------------------------------------------------------------------------- */

static bool is_same_schedule(const zr_schedule_t *a, const zr_schedule_t *b) {
    return a->kind == b->kind && a->warmup_steps == b->warmup_steps &&
           a->total_steps == b->total_steps && a->warmup_min_ratio == b->warmup_min_ratio &&
           a->cos_min_ratio == b->cos_min_ratio && a->warmup_min_lr == b->warmup_min_lr &&
           a->warmup_max_lr == b->warmup_max_lr && a->warmup_log == b->warmup_log;
}

/* Read it over the defaults. What it gives is known by what it changes, from values that no file
 * can give. */
static zr_status_t read_config(plan_options_t *o, const char *path, const zr_log_t *log) {
    zr_config_t *config = &o->run.config;
    const zr_config_t own = *config;
    config->stage = -1;
    config->shard_group_size = 0;
    config->offload_optimizer.device = config->offload_param.device = (zr_offload_device_t)-1;
    ZR_TRY(train_options_read_config(&o->run, path, log));
    o->stage_open = config->stage < 0;
    o->optimizer_open = (int)config->offload_optimizer.device < 0;
    o->params_open = (int)config->offload_param.device < 0;
    o->group_open = config->shard_group_size == 0;
    o->micro_batch_open = config->micro_batch == 0 && config->train_batch == 0;
    o->schedule = config->schedule;
    o->has_schedule = !is_same_schedule(&o->schedule, &own.schedule);
    if (o->stage_open)
        config->stage = own.stage;
    if (o->group_open)
        config->shard_group_size = own.shard_group_size;
    if (o->optimizer_open)
        config->offload_optimizer.device = own.offload_optimizer.device;
    if (o->params_open)
        config->offload_param.device = own.offload_param.device;
    return ZR_OK;
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What is read, and the picture, would be written over. */
static zr_status_t check_trace(const plan_options_t *o, const zr_log_t *log) {
    const char *const others[][2] = {{"--config", o->run.config_path},
                                     {"--hardware", o->hardware_name},
                                     {"--plot", o->plot_path}};
    for (size_t i = 0; i < N_ELEMS(others) && o->trace_path != NULL; i++)
        if (others[i][1] != NULL && files_are_same(o->trace_path, others[i][1]))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "%s %s and --trace %s: are one file; give another name", others[i][0],
                           others[i][1], o->trace_path);
    return ZR_OK;
}

static zr_status_t check(const plan_options_t *o, const parsing_t *p) {
    ZR_TRY(check_trace(o, p->log));
    if (p->has_device && !o->is_this)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--device and --threads are of this machine, and --hardware %s is planned "
                       "for; leave them out, or plan for --hardware this",
                       o->hardware_name);
    ZR_TRY(train_options_check_auto_parts(&o->run, p->log));
    bool are_params_down =
        o->run.auto_params ||
        (!o->params_open && o->run.config.offload_param.device != ZR_OFFLOAD_NONE);
    if (are_params_down && !o->stage_open && o->run.config.stage != 3)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--offload-params: at stage %d every rank computes with all parameters at "
                       "all times; allowed is none, or --stage 3",
                       o->run.config.stage);
    train_open_t open = {.stage = o->stage_open,
                         .optimizer = o->optimizer_open || o->run.auto_optimizer,
                         .params = o->params_open || o->run.auto_params,
                         .no_drives = o->is_this && o->run.config.nvme.paths[0] == '\0'};
    ZR_TRY(train_options_check_offload(&o->run, open, p->log));
    if (o->run.offload_activations != ZR_OFFLOAD_NONE && !o->recompute_open && !o->run.recompute)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--offload-activations: only inputs of layers can be offloaded, and without "
                       "recomputation everything is kept; add --recompute unit");
    return ZR_OK;
}

/* Placements are set for each plan, and checked with it: here nothing is offloaded. */
static zr_status_t resolve(plan_options_t *o, const zr_log_t *log) {
    zr_config_t *config = &o->run.config;
    zr_offload_device_t optimizer = config->offload_optimizer.device;
    zr_offload_device_t params = config->offload_param.device;
    config->offload_optimizer.device = config->offload_param.device = ZR_OFFLOAD_NONE;
    zr_status_t status = train_options_resolve_run(&o->run, log);
    config->offload_optimizer.device = optimizer;
    config->offload_param.device = params;
    return status;
}

/* Of described machines first, as they say how many ranks there are. */
static zr_status_t find_hardware(plan_options_t *o, const zr_log_t *log) {
    if (o->is_this)
        return ZR_OK;
    ZR_TRY(plan_hardware_find(o->hardware_name, &o->run, log, &o->hardware));
    if (o->ranks_open)
        o->run.n_ranks = plan_hardware_ranks(&o->hardware);
    plan_hardware_warn(o->hardware_name, &o->hardware, o->run.n_ranks, log);
    return ZR_OK;
}

/* A stage that is open is 3 as well. */
static void warn_idle(plan_options_t *o, const zr_log_t *log) {
    if (o->stage_open)
        o->run.stage3_given = 0;
    train_options_warn_idle(&o->run, o->hardware.kind == ZR_HARDWARE_CUDA, log);
}

static plan_options_t default_options(void) {
    return (plan_options_t){.run = train_options_default(),
                            .hardware_name = "this",
                            .ranks_open = true,
                            .stage_open = true,
                            .optimizer_open = true,
                            .params_open = true,
                            .recompute_open = true,
                            .micro_batch_open = true,
                            .group_open = true};
}

/* Options over the file that they name. */
static zr_status_t parse(int argc, char **argv, parsing_t *parsing) {
    plan_options_t *o = parsing->options;
    *o = default_options();
    ZR_TRY(shared_options_parse(&all, argc, argv, &o->run, parsing, parsing->log));
    const char *path = o->run.config_path;
    if (path == NULL || o->run.help || o->run.version)
        return ZR_OK;
    zr_nvme_options_t given = o->run.config.nvme;
    *o = default_options();
    memcpy(o->run.config.nvme.paths, given.paths, sizeof(given.paths));
    ZR_TRY(read_config(o, path, parsing->log));
    return shared_options_parse(&all, argc, argv, &o->run, parsing, parsing->log);
}

zr_status_t plan_options_parse(int argc, char **argv, const zr_log_t *log,
                               plan_options_t *options_p) {
    plan_options_t options;
    parsing_t parsing = {.options = &options, .log = log};
    ZR_TRY(parse(argc, argv, &parsing));
    if (!options.run.help && !options.run.version) {
        options.is_this = strcmp(options.hardware_name, "this") == 0;
        ZR_TRY(check(&options, &parsing));
        ZR_TRY(find_hardware(&options, log));
        ZR_TRY(resolve(&options, log));
        if (options.is_this)
            ZR_TRY(this_machine_describe(&options.run, log, &options.hardware));
        warn_idle(&options, log);
    }
    *options_p = options;
    return ZR_OK;
}
