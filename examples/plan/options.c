/*
 * Most options are rows of zero-train's table. What is here is which of them a plan has, and what
 * it means to leave one out.
 */
#include "examples/plan/options.h"

#include <errno.h>
#include <string.h>

#include "examples/common/args.h"
#include "examples/train/report.h"
#include "examples/common/files.h"
#include "examples/common/gnuplot.h"
#include "examples/plan/hardware.h"
#include "examples/plan/this_machine.h"

/* What --help says, where it is not what zero-train says. */
static const options_use_t uses[] = {
    {"model", 1, NULL},
    {"seq", 1, NULL},
    {"freeze", 1, NULL},
    {"lora", 1, NULL},
    {"lora-base", 1, NULL},
    {"ranks", 2, PLAN_RANKS_DOC},
    {"dtype", 2, NULL},
    {"grad-accum", 2, NULL},
    {"reduce", 2, NULL},
    {"order", 2, NULL},
    {"prefetch", 2, NULL},
    {"max-live", 2, NULL},
    {"sums", 2, NULL},
    {"attention", 2, NULL},
    {"overlap-comm", 2, NULL},
    {"clip", 2, NULL},
    {"check-overflow", 2, NULL},
    {"update-at", 2, NULL},
    {"state", 2, NULL},
    {"master", 2, NULL},
    {"optimizer", 2, NULL},
    {"config", 2, "DeepSpeed's JSON; options override it, and its settings are not varied"},
    {"stage", 3,
     "what is sharded (default, and auto: each stage is tried, except those that make no "
     "difference with one rank)"},
    {"shard-group-size", 3,
     "ranks that share one sharded copy, or all (default, and auto: all; on several nodes also the "
     "ranks of one node, or of as few nodes as hold the model)"},
    {"offload-optimizer", 3,
     "where the optimizer state is stored (default: each is tried, as a whole); auto: divided "
     "among all tiers"},
    {"offload-params", 3,
     "at stage 3: where parameters are stored (default: each is tried, as a whole); auto: divided "
     "among all tiers"},
    {"recompute", 3,
     "what is recomputed in backward (default: none and unit are tried; auto: never, too)"},
    {"micro-batch", 3,
     "sequences per rank and micro-batch (default: 1, 2, 4 and so on are tried, as long as it fits "
     "and is at least 1% faster than half of it)"},
    {"device-memory", 4, "device memory of each rank (default: what the hardware has)"},
    {"host-memory", 4, "host memory of each rank (default: a rank's share of the hardware's)"},
    {"memory", 4, NULL},
    {"nvme-capacity", 4, "what each rank may use on drives (default: a rank's share)"},
    {"nvme-path", 4,
     "folders on the drives; of this machine, nothing is planned for drives without them"},
    {"device", 4, "with --hardware this: auto, host or cuda[:N] (default auto)"},
    {"threads", 4, "of --hardware this: of each rank"},
    {"matmul-choices", 4, "plan the workspace that these algorithms of matrix products need"},
    {"memory-plan", 4, NULL},
    {"offload-ratio", 5, NULL},
    {"state-in-host", 5, NULL},
    {"offload-param-ratio", 5, NULL},
    {"params-in-host", 5, NULL},
    {"offload-gradients", 5, NULL},
    {"offload-gradients-ratio", 5, NULL},
    {"gradients-in-host", 5, NULL},
    {"update-on", 5, NULL},
    {"offload-activations", 5, NULL},
    {"activations-on-device", 5, NULL},
    {"activations-in-host", 5, NULL},
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

static const char *const headers[] = {
    NULL,         "What to train:",           "How:",   "Settings that are varied unless given:",
    "Resources:", "Offload, if it is tried:", "Output:"};

static zr_status_t take_plot(void *object, const char *label, const char *text,
                             const zr_log_t *log) {
    ZR_TRY(gnuplot_check_form(label, text, log));
    ((plan_options_t *)object)->plot_path = text;
    return files_check_writable(label, text, log);
}

static zr_status_t take_trace(void *object, const char *label, const char *text,
                              const zr_log_t *log) {
    ((plan_options_t *)object)->trace_path = text;
    return files_check_writable(label, text, log);
}

static zr_status_t take_save_hardware(void *object, const char *label, const char *text,
                                      const zr_log_t *log) {
    ((plan_options_t *)object)->save_hardware_path = text;
    return files_check_writable(label, text, log);
}

static const zr_option_choice_t exactness[] = {
    {"fold", 0, NULL}, {"walk", 1, NULL}, {NULL, 0, NULL}};

static const zr_option_t own[] = {
    {"hardware", .offset = offsetof(plan_options_t, hardware_name), .type = ZR_OPTION_STRING,
     .group = 4, .arg = "NAME|FILE|this",
     .help = "machine to plan for: a built-in name (an unknown name lists them), a description "
             "file, or this machine"},
    {"documents",
     .offset = offsetof(plan_options_t, run) + offsetof(train_options_t, has_documents),
     .type = ZR_OPTION_FLAG, .group = 1,
     .help = "the data has documents (zero-train --data): 4 bytes more for each token of a "
             "micro-batch"},
    {"calibrate", .offset = offsetof(plan_options_t, calibrate_path), .type = ZR_OPTION_STRING,
     .group = 4, .arg = "RUNS.csv", .initial = "",
     .help = "do not plan; fit the rates of --hardware to these runs' measured step times, and "
             "report the prediction error for held-out runs",
     .more = "[plan.md](../guide/plan.md#fit-a-description-to-measured-steps)"},
    {"save-hardware", .type = ZR_OPTION_STRING, .group = 4, .arg = "FILE", .initial = "",
     .needs = "calibrate", .take = take_save_hardware,
     .help = "with --calibrate: write the description that was fitted to all runs"},
    {"plan-exact", .offset = offsetof(plan_options_t, walks), .type = ZR_OPTION_CHOICE, .group = 4,
     .choices = exactness,
     .help =
         "for models with at least 2048 identical layers. fold: plans other than the "
         "recommended may be extrapolated from plans with fewer layers; they "
         "are marked ~ and show bytes in use, without fragmentation. walk: simulate every layer "
         "of every plan"},
    {"top", .offset = offsetof(plan_options_t, n_lines), .type = ZR_OPTION_COUNT,
     .group = PLAN_OUTPUT, .arg = "N",
     .help = "lines of the table: the N fastest placements; 0: all"},
    {"plot", .type = ZR_OPTION_STRING, .group = PLAN_OUTPUT, .arg = "FILE", .initial = "",
     .take = take_plot,
     .help =
         "draw the memory of each placement and the timeline of a step of the recommended plan, "
         "as FILE.svg or FILE.png (needs gnuplot)"},
    {"trace", .type = ZR_OPTION_STRING, .group = PLAN_OUTPUT, .arg = "FILE", .initial = "",
     .take = take_trace,
     .help = "write a trace of a step of the recommended plan, as zero-train --trace"},
};

/* What else changes a plan. */
static const int rest[ZR_OPTION_GROUP_STEP + 1] = {
    [ZR_OPTION_GROUP_RANKS] = 2, [ZR_OPTION_GROUP_MACHINE] = 4, [ZR_OPTION_GROUP_OFFLOAD] = 5};

const options_table_t plan_table = {
    .program = "zero-plan",
    .doc = "Plan a training run on every stage and placement, without running it: what fits, in "
           "how much memory, and how fast it will be."
           "\vExit status: 0 something fits, 1 nothing does, 2 bad usage or input. --man prints "
           "this as a page for man, --completion bash a script that completes options.",
    .headers = headers,
    .n_groups = N_ELEMS(headers) - 1,
    .own = own,
    .n_own = N_ELEMS(own),
    .base = &train_table,
    .base_offset = offsetof(plan_options_t, run),
    .uses = uses,
    .n_uses = N_ELEMS(uses),
    .rest = rest};

/* ---- what is open ---------------------------------------------------------------------------- */

static bool is_in_file(const plan_options_t *o, const char *name) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n), *row = zr_option_find(rows, n, name);
    return row != NULL && o->run.in_file.is[row - rows];
}

/* Neither an option nor the file says it. */
static bool is_open(const plan_options_t *o, const char *name) {
    return options_value(&o->run.given, name) == NULL && !is_in_file(o, name);
}

static bool says_train_batch(const plan_options_t *o) {
    return o->run.config.train_batch != 0;
}

static void note_open(plan_options_t *o) {
    const options_given_t *given = &o->run.given;
    o->ranks_open = is_open(o, "ranks");
    o->stage_open = is_open(o, "stage") || options_is_auto(given, "stage");
    o->optimizer_open = is_open(o, "offload-optimizer");
    o->params_open = is_open(o, "offload-params");
    o->recompute_open = is_open(o, "recompute") || options_is_auto(given, "recompute");
    o->micro_batch_open = is_open(o, "micro-batch") && !says_train_batch(o);
    o->group_open = is_open(o, "shard-group-size") || options_is_auto(given, "shard-group-size");
    o->run.auto_stage = o->run.auto_group = false; /* they are tried in all ways, as without */
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* What is read, and the picture, would be written over. */
static zr_status_t check_trace(const plan_options_t *o, const zr_log_t *log) {
    const files_named_t trace = {"--trace", o->trace_path};
    const files_named_t others[] = {{"--config", o->run.config_path},
                                    {"--hardware", o->hardware_name},
                                    {"--plot", o->plot_path}};
    return files_check_apart(trace, others, N_ELEMS(others), log);
}

static zr_status_t check(plan_options_t *o, const zr_log_t *log) {
    ZR_TRY(check_trace(o, log));
    ZR_TRY(options_check_needs(&plan_table, &o->run.given, log));
    ZR_TRY(plan_hardware_check_given(o->hardware_name, &o->run.given, log));
    ZR_TRY(train_options_check_auto_parts(&o->run, log));
    bool are_params_down =
        o->run.auto_params ||
        (!o->params_open && o->run.config.offload_param.device != ZR_OFFLOAD_NONE);
    if (are_params_down && !o->stage_open)
        ZR_TRY(train_options_check_params_stage(&o->run, log));
    train_open_t open = {.stage = o->stage_open,
                         .optimizer = o->optimizer_open || o->run.auto_optimizer,
                         .params = o->params_open || o->run.auto_params,
                         .no_drives = o->is_this && o->run.config.nvme.paths[0] == '\0'};
    ZR_TRY(train_options_check_given(&o->run, open, log));
    if (o->stage_open)
        o->run.config.stage = o->least_stage = train_options_least_stage(&o->run);
    return o->recompute_open ? ZR_OK : train_options_check_recompute(&o->run, log);
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
    train_options_warn_idle(&o->run, o->stage_open, o->hardware.kind == ZR_HARDWARE_CUDA, log);
}

plan_options_t plan_options_default(void) {
    return (plan_options_t){.run = train_options_default(), .hardware_name = "this", .n_lines = 8};
}

void plan_options_describe(options_print_t *print, FILE *file) {
    plan_options_t options = plan_options_default();
    print(&plan_table, &options, file);
}

void plan_options_help(FILE *file) {
    plan_options_describe(options_help, file);
}

/* Once to see what was given, and then over defaults and the file. */
static zr_status_t parse(int argc, char **argv, const zr_log_t *log, plan_options_t *o) {
    options_given_t given;
    ZR_TRY(options_parse(&plan_table, argc, argv, log, o, &given));
    if (o->run.help || o->run.version)
        return ZR_OK;
    *o = plan_options_default();
    o->run.given = given;
    ZR_TRY(train_options_read_under(&o->run, log));
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n), *schedule = zr_option_find(rows, n, "schedule");
    o->schedule = o->run.config.schedule;
    o->has_schedule = o->run.in_file.is[schedule - rows];
    ZR_TRY(options_apply(&plan_table, &given, log, o));
    train_options_note_given(&o->run);
    note_open(o);
    return ZR_OK;
}

/* The default is zero-train's, and costs what those who know the weights do not expect. */
static void say_dtype(const train_options_t *run, const zr_log_t *log) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n), *dtype = zr_option_find(rows, n, "dtype");
    size_t n_params = zr_model_shape_n_params(&run->shape);
    if (options_value(&run->given, "dtype") != NULL || run->in_file.is[dtype - rows] ||
        run->config.dtype != ZR_DTYPE_F32 || run->quiet ||
        !zr_model_is_published_in_16_bits(run->model))
        return;
    zr_log_write(
        log, ZR_LOG_INFO,
        "planned in fp32, the default: parameters and gradients of --model %s take %s; its "
        "weights are published with 16 bits, and --dtype bf16 takes %s",
        run->model, train_bytes(8.0 * (double)n_params).text,
        train_bytes(4.0 * (double)n_params).text);
}

/* A plan has their workspace alone. */
static zr_status_t take_matmul_choices(train_options_t *run, const zr_log_t *log) {
    matmul_choices_t *choices = NULL;
    if (run->matmul_choices_path == NULL)
        return ZR_OK;
    ZR_TRY(matmul_choices_read(run->matmul_choices_path, log, &choices));
    run->matmul_workspace_bytes = zr_nn_matmul_choices_workspace(matmul_choices_of(choices));
    matmul_choices_free(&choices);
    return ZR_OK;
}

zr_status_t plan_options_parse(int argc, char **argv, const zr_log_t *log,
                               plan_options_t *options_p) {
    plan_options_t options = plan_options_default();
    ZR_TRY(parse(argc, argv, log, &options));
    if (!options.run.help && !options.run.version) {
        options.is_this = strcmp(options.hardware_name, "this") == 0;
        ZR_TRY(check(&options, log));
        ZR_TRY(find_hardware(&options, log));
        ZR_TRY(train_options_resolve_without_offload(&options.run, log));
        ZR_TRY(take_matmul_choices(&options.run, log));
        if (options.is_this)
            ZR_TRY(this_machine_describe(&options.run, log, &options.hardware));
        if (options.run.matmul_choices_path != NULL && options.hardware.kind == ZR_HARDWARE_HOST)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "--matmul-choices %s: is for GPUs, and --hardware %s has none; leave it "
                           "out",
                           options.run.matmul_choices_path, options.hardware_name);
        warn_idle(&options, log);
        say_dtype(&options.run, log);
    }
    *options_p = options;
    return ZR_OK;
}
