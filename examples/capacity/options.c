/*
 * Options that describe a run are rows of zero-train's table. What is here is the family, the
 * sweeps, and where answers go.
 */
#include "examples/capacity/options.h"

#include <errno.h>
#include <string.h>

#include "examples/common/args.h"
#include "examples/common/files.h"
#include "examples/common/gnuplot.h"
#include "examples/plan/hardware.h"
#include "examples/train/files.h"

/* Small buffers leave the budgets to the model. */
#define SUB_GROUP_ELEMS ((size_t)1 << 16)
#define STATE_BUFFERS 3
#define PARAM_BUFFERS 3
#define PARAM_BUFFER_ELEMS ((size_t)1 << 17)
#define DEFAULT_SEQ 2048
#define DEFAULT_VOCAB 50257
#define DEFAULT_HEAD_SIZE 64
#define DEFAULT_ASPECT 128
#define DEFAULT_VERIFY_STEPS 3
#define MOST_VERIFY_STEPS 1000
#define MOST_SWEPT_RANKS 1024

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

static const char *const headers[] = {NULL,
                                      "The family of models:",
                                      "How it is trained:",
                                      "Settings that are varied unless given:",
                                      "Resources:",
                                      "Buffers (small, to leave memory to the model):",
                                      "Proof and sweeps:",
                                      "Output:"};

static const options_use_t uses[] = {
    {"lora", 1, NULL},
    {"lora-base", 1, NULL},
    {"ranks", 2, PLAN_RANKS_DOC},
    {"dtype", 2, NULL},
    {"micro-batch", 2, NULL},
    {"grad-accum", 2, NULL},
    {"recompute", 2, NULL},
    {"reduce", 2, NULL},
    {"order", 2, NULL},
    {"check-overflow", 2, NULL},
    {"update-at", 2, NULL},
    {"prefetch", 2, NULL},
    {"memory-plan", 2, NULL},
    {"optimizer", 2, NULL},
    {"seed", 2, "of initial weights and data of the verifying runs (default 1)"},
    {"stage", 3,
     "what is sharded (default, and auto: each stage is tried, except those that make no "
     "difference with one rank)"},
    {"offload-optimizer", 3,
     "none, cpu, nvme or auto: where the optimizer state is stored (default: each is tried)"},
    {"offload-params", 3,
     "none, cpu, nvme or auto: at stage 3, where parameters are stored (default: each is tried)"},
    {"offload-gradients", 3,
     "none, cpu or nvme: where gradients of offloaded state wait (default: what fits the larger "
     "model)"},
    {"offload-gradients-ratio", 3,
     "fraction of them that waits there (default: what fits the larger model)"},
    {"gradients-in-host", 3, NULL},
    {"offload-activations", 3,
     "none, cpu, nvme or auto: where inputs of layers wait (default: what fits the larger model)"},
    {"activations-on-device", 3, NULL},
    {"activations-in-host", 3, NULL},
    {"device-memory", 4, "device memory of each rank (default: what the hardware has)"},
    {"host-memory", 4, "host memory of each rank (default: a rank's share of the hardware's)"},
    {"memory", 4, NULL},
    {"nvme-capacity", 4, "what each rank may use on drives (default: a rank's share)"},
    {"nvme-path", 4,
     "folders on the drives; of this machine, nothing is planned for drives without them (default: "
     "the current folder where --nvme-capacity is given, none where it is not)"},
    {"device", 4, "with --hardware this: auto, host or cuda[:N] (default auto)"},
    {"threads", 4, "of --hardware this: of each rank"},
    {"update-on", 5, NULL},
    {"sub-group", 5, NULL},
    {"nvme-buffers", 5, NULL},
    {"param-buffers", 5, NULL},
    {"param-buffer", 5, NULL},
    {"nvme-verify", 5, NULL},
    {"json", 7, NULL},
    {"quiet", 7, "no progress and no table; errors and warnings only"},
    {"help", 7, NULL},
    {"version", 7, NULL},
};

const char *capacity_axis_name(capacity_axis_t axis) {
    static const char *const names[] = {"ranks", "device-memory", "host-memory", "nvme-capacity"};
    return names[axis];
}

/* ---- sweeps and verification ---------------------------------------------------------------- */

static zr_status_t take_value(capacity_sweep_t *sweep, const char *text, const zr_log_t *log) {
    char key[64];
    size_t value = 0;
    snprintf(key, sizeof(key), "--sweep %s", capacity_axis_name(sweep->axis));
    if (sweep->n_values == CAPACITY_MOST_VALUES)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: allowed: %d values at most; split the sweep", key,
                       CAPACITY_MOST_VALUES);
    if (sweep->axis == CAPACITY_RANKS)
        ZR_TRY(args_count(key, text, 1, MOST_SWEPT_RANKS, log, &value));
    else
        ZR_TRY(args_size(key, text, log, &value));
    for (size_t i = 0; i < sweep->n_values; i++)
        if (sweep->values[i] == value)
            return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s is given twice; leave one out", key, text);
    sweep->values[sweep->n_values++] = value;
    return ZR_OK;
}

static zr_status_t find_axis(const char *text, size_t length, const zr_log_t *log,
                             capacity_axis_t *axis_p) {
    const char *names[CAPACITY_N_AXES];
    char word[32];
    size_t choice = 0;
    for (int i = 0; i < CAPACITY_N_AXES; i++)
        names[i] = capacity_axis_name((capacity_axis_t)i);
    snprintf(word, sizeof(word), "%.*s", (int)length, text);
    ZR_TRY(args_choice("--sweep", word, names, CAPACITY_N_AXES, log, &choice));
    *axis_p = (capacity_axis_t)choice;
    return ZR_OK;
}

static zr_status_t take_sweep(void *object, const char *label, const char *text,
                              const zr_log_t *log) {
    capacity_options_t *o = object;
    capacity_sweep_t sweep = {.n_values = 0};
    const char *values = strchr(text, '=');
    if (values == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s %s: allowed: NAME=VALUE,VALUE and so on, such as ranks=1,2,4", label,
                       text);
    ZR_TRY(find_axis(text, (size_t)(values - text), log, &sweep.axis));
    for (size_t i = 0; i < o->n_sweeps; i++)
        if (o->sweeps[i].axis == sweep.axis)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "%s %s: is swept already; give all its values in one --sweep", label,
                           capacity_axis_name(sweep.axis));
    for (const char *value = values + 1;; value++) {
        char word[64];
        size_t length = strcspn(value, ",");
        snprintf(word, sizeof(word), "%.*s", (int)length, value);
        ZR_TRY(take_value(&sweep, word, log));
        value += length;
        if (*value == '\0')
            break;
    }
    o->sweeps[o->n_sweeps++] = sweep;
    return ZR_OK;
}

static zr_status_t take_verify(void *object, const char *label, const char *text,
                               const zr_log_t *log) {
    capacity_options_t *o = object;
    (void)label;
    o->verify_steps = 0;
    if (strcmp(text, "off") == 0)
        return ZR_OK;
    if (strncmp(text, "steps=", 6) != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--verify %s: allowed: off, and steps=N such as steps=3", text);
    return args_count("--verify steps", text + 6, 1, MOST_VERIFY_STEPS, log, &o->verify_steps);
}

static zr_status_t take_groups(void *object, const char *label, const char *text,
                               const zr_log_t *log) {
    (void)object;
    if (strcmp(text, "all") == 0)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "%s %s: every group holds a copy of the model, so groups do not allow larger "
                   "models; allowed: all; use --ranks N for the capacity of groups of N ranks",
                   label, text);
}

static const zr_option_choice_t state_forms[] = {{"fp32", ZR_STATE_FP32, NULL},
                                                 {"bf16", ZR_STATE_BF16, NULL},
                                                 {"8bit", ZR_STATE_8BIT, NULL},
                                                 {NULL, 0, NULL}};

static zr_status_t take_model(void *object, const char *label, const char *text,
                              const zr_log_t *log) {
    capacity_options_t *o = object;
    files_log_t named = {*log, label};
    zr_log_t own_log = files_log(&named);
    o->model = text;
    ZR_TRY(zr_model_shape_read(strcmp(text, "llama") == 0 ? "llama-3.1-8b" : text, &own_log,
                               &o->family.like));
    zr_model_sizes_t like = zr_model_shape_sizes(&o->family.like);
    /* Unless they are given: rows that follow. */
    o->family.head_size = o->family.like.kind == ZR_MODEL_DECODER
                              ? o->family.like.of.decoder.head_size
                              : like.channels / like.heads;
    o->family.vocab = like.vocab;
    return ZR_OK;
}

/* zero-train has another option of this name. */
static zr_status_t take_state(void *object, const char *label, const char *text,
                              const zr_log_t *log) {
    capacity_options_t *o = object;
    for (size_t i = 0; state_forms[i].name != NULL; i++)
        if (strcmp(state_forms[i].name, text) == 0)
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "%s %s: here it is a file that keeps results; the precision of the "
                           "optimizer's state is --optimizer-state %s (a file of this name: ./%s)",
                           label, text, text, text);
    o->state_path = text;
    return ZR_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define AT(member) .offset = offsetof(capacity_options_t, member)

static const zr_option_choice_t masters[] = {{"apart", ZR_MASTER_APART, NULL},
                                             {"split", ZR_MASTER_SPLIT, NULL},
                                             {"auto", ZR_MASTER_AUTO, NULL},
                                             {NULL, 0, NULL}};

static const zr_option_t own[] = {
    {"model", AT(model), .type = ZR_OPTION_STRING, .take = take_model, .group = 1,
     .arg = "gpt2|llama|NAME|PATH",
     .help = "the family: GPTs, or models of the Llama family with the proportions and switches of "
             "this one (llama: llama-3.1-8b)"},
    {"seq", AT(family.seq), .type = ZR_OPTION_COUNT, .least = 1, .most = 1000000, .group = 1,
     .arg = "TOKENS", .help = "tokens per sequence, and positions of the model"},
    {"vocab", AT(family.vocab), .type = ZR_OPTION_COUNT, .least = 2, .most = INT32_MAX, .group = 1,
     .arg = "TOKENS", .initial = "that of --model", .help = "size of the vocabulary"},
    {"head-size", AT(family.head_size), .type = ZR_OPTION_COUNT, .least = 1, .most = 1024,
     .group = 1, .arg = "CHANNELS", .initial = "that of --model",
     .help = "channels per head: width grows by whole heads"},
    {"aspect", AT(family.aspect), .type = ZR_OPTION_COUNT, .least = 1, .most = 100000, .group = 1,
     .arg = "CHANNELS",
     .help = "most channels per layer: minimum number of layers per width; more are added until "
             "the next width is the smaller step"},
    {"layers", AT(family.layers), .type = ZR_OPTION_COUNT, .least = 1, .most = 100000,
     .initial = "", .group = 1, .arg = "N", .help = "fix the depth: only the width grows"},
    {"channels", AT(family.channels), .type = ZR_OPTION_COUNT, .least = 1, .most = 1000000,
     .initial = "", .group = 1, .arg = "N", .help = "fix the width: only the depth grows"},
    {"hardware", AT(hardware_name), .type = ZR_OPTION_STRING, .group = 4, .arg = "NAME|FILE|this",
     .help = "machine to plan for: a built-in name (an unknown name lists them), a description "
             "file, or this machine"},
    {"min-tokens-per-s", AT(least_tokens_per_s), .type = ZR_OPTION_NUMBER, .least = 0, .most = 1e12,
     .group = 1, .arg = "N",
     .help =
         "the largest whose planned steps train so many tokens per second, of all ranks: slower "
         "ones count as too large"},
    {"verify", .type = ZR_OPTION_STRING, .initial = "", .take = take_verify, .group = 6,
     .arg = "steps=N|off",
     .help = "train each capacity that was found for so many steps, and see that the next larger "
             "size is "
             "refused, within 3 steps at least; all that a run needs is seen in 3 (default steps=3 "
             "on this "
             "machine, where all budgets are given; described hardware cannot be trained on)"},
    {"sweep", .type = ZR_OPTION_STRING, .flags = ZR_OPTION_SEVERAL, .initial = "",
     .take = take_sweep, .group = 6, .arg = "NAME=VALUE,...",
     .help = "find capacities for each of these values of ranks, device-memory, host-memory or "
             "nvme-capacity; of several sweeps, for all combinations"},
    {"optimizer-state", AT(run.config.state_form), .type = ZR_OPTION_CHOICE, .group = 2,
     .choices = state_forms,
     .help = "in how many bits the optimizer keeps what it adds up: --state of zero-train"},
    {"master", AT(run.config.master), .type = ZR_OPTION_CHOICE, .group = 2, .choices = masters,
     .help = "how the master is held: --master of zero-train"},
    {"state", AT(state_path), .type = ZR_OPTION_STRING, .initial = "", .take = take_state,
     .group = 6, .arg = "FILE",
     .help =
         "keep results in this file, written atomically: a stopped search continues with --resume"},
    {"resume", AT(resume), .type = ZR_OPTION_FLAG, .needs = "state", .group = 6,
     .help = "resume from --state, which must be of the same question"},
    {"csv", AT(csv_path), .type = ZR_OPTION_STRING, .initial = "", .group = 7, .arg = "FILE",
     .help = "write a line for each capacity"},
    {"plot", AT(plot_path), .type = ZR_OPTION_STRING, .initial = "", .group = 7, .arg = "FILE",
     .help = "draw capacities, and tokens per second against sizes, as FILE.svg or FILE.png (needs "
             "gnuplot)"},
    {"shard-group-size", .type = ZR_OPTION_STRING, .flags = ZR_OPTION_HIDDEN, .initial = "",
     .take = take_groups, .group = 7, .arg = "RANKS", .help = ""},
};

const options_table_t capacity_table = {
    .program = "zero-capacity",
    .doc = "Find the largest model of a family that these budgets train, at each stage and "
           "placement: by planning, then by training it."
           "\vExit status: 0 capacities were found, and proved as far as asked for; 1 not, or not "
           "all; 2 bad usage or input. --man prints this as a page for man, --completion bash a "
           "script that completes options.",
    .headers = headers,
    .n_groups = N_ELEMS(headers) - 1,
    .own = own,
    .n_own = N_ELEMS(own),
    .base = &train_table,
    .base_offset = offsetof(capacity_options_t, run),
    .uses = uses,
    .n_uses = N_ELEMS(uses)};

/* ---- what is open ---------------------------------------------------------------------------- */

static bool is_given(const capacity_options_t *o, const char *name) {
    return options_value(&o->run.given, name) != NULL;
}

static bool is_fixed(const capacity_options_t *o, capacity_axis_t axis) {
    return is_given(o, capacity_axis_name(axis));
}

static const capacity_sweep_t *find_sweep(const capacity_options_t *o, capacity_axis_t axis) {
    for (size_t i = 0; i < o->n_sweeps; i++)
        if (o->sweeps[i].axis == axis)
            return &o->sweeps[i];
    return NULL;
}

static capacity_where_t where(zr_offload_device_t device, bool is_auto) {
    return is_auto ? CAPACITY_AUTO : (capacity_where_t)device;
}

/* What is given is no longer tried in all ways. */
static void note_open(capacity_options_t *o) {
    const zr_config_t *config = &o->run.config;
    o->stage_open = !is_given(o, "stage") || o->run.auto_stage; /* each is tried, as without it */
    o->run.auto_stage = false;
    o->gradients_open = !o->run.has_gradients;
    o->activations_open = !is_given(o, "offload-activations");
    if (o->stage_open)
        o->run.config.stage = o->least_stage = train_options_least_stage(&o->run);
    o->optimizer_open = !is_given(o, "offload-optimizer");
    o->params_open = !is_given(o, "offload-params");
    o->optimizer = where(config->offload_optimizer.device, o->run.auto_optimizer);
    o->params = where(config->offload_param.device, o->run.auto_params);
    o->sub_group_open = !is_given(o, "sub-group");
    o->param_buffer_open = !is_given(o, "param-buffer");
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Of those that are a multiple of the head size. */
static size_t nearest_channels(const capacity_family_t *family) {
    size_t step = capacity_family_step(family);
    size_t rest = family->channels % step, below = family->channels - rest;
    bool is_below = below > 0 && rest <= step - rest;
    return is_below ? below : below + step;
}

static zr_status_t check_family(const capacity_family_t *family, const zr_log_t *log) {
    if (family->layers != 0 && family->channels != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--layers %zu --channels %zu: nothing can grow; leave one out, or use "
                       "zero-plan for a single model",
                       family->layers, family->channels);
    if (family->like.kind == ZR_MODEL_DECODER && family->head_size % 2 != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--head-size %zu: heads of this family have an even size; the nearest is %zu",
                       family->head_size, family->head_size + 1);
    size_t step = capacity_family_step(family);
    if (family->channels % step != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--channels %zu: must be a multiple of %s, %zu; the nearest is %zu",
                       family->channels,
                       step == family->head_size ? "the head size" : "those of a head of keys",
                       step, nearest_channels(family));
    return ZR_OK;
}

/* A sweep of drives' capacity is as if one was given. */
static zr_status_t check_given(const capacity_options_t *o, train_open_t open,
                               const zr_log_t *log) {
    train_options_t run = o->run;
    if (find_sweep(o, CAPACITY_NVME_CAPACITY) != NULL)
        ZR_TRY(options_note(&run.given, "nvme-capacity", "(--sweep)", true, log));
    return train_options_check_given(&run, open, log);
}

static zr_status_t check_placements(const capacity_options_t *o, const zr_log_t *log) {
    const train_options_t *run = &o->run;
    if (!o->params_open && o->params != CAPACITY_NONE && !o->stage_open)
        ZR_TRY(train_options_check_params_stage(run, log));
    train_open_t open = {.stage = o->stage_open,
                         .optimizer = o->optimizer_open || o->optimizer == CAPACITY_AUTO,
                         .params = o->params_open || o->params == CAPACITY_AUTO,
                         .activations = o->activations_open,
                         .no_drives = !o->has_drives};
    ZR_TRY(check_given(o, open, log));
    if (run->auto_recompute)
        return zr_fail(log, ZR_ERR_ARGUMENT, "--recompute auto: allowed here: none, unit, never");
    ZR_TRY(train_options_check_recompute(run, log));
    if (!o->has_drives && ((!o->optimizer_open && o->optimizer == CAPACITY_NVME) ||
                           (!o->params_open && o->params == CAPACITY_NVME) ||
                           (!o->activations_open && run->offload_activations == ZR_OFFLOAD_NVME)))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "what is asked for is on drives, and of this machine none were named; add "
                       "--nvme-path DIR");
    return ZR_OK;
}

static zr_status_t check_sweeps(const capacity_options_t *o, const zr_log_t *log) {
    for (size_t i = 0; i < o->n_sweeps; i++) {
        const char *name = capacity_axis_name(o->sweeps[i].axis);
        if (is_fixed(o, o->sweeps[i].axis))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "--sweep %s: --%s gives one value for all; leave one of the two out",
                           name, name);
    }
    return ZR_OK;
}

static zr_status_t check_files(const capacity_options_t *o, const zr_log_t *log) {
    const files_named_t files[] = {
        {"--csv", o->csv_path}, {"--plot", o->plot_path}, {"--state", o->state_path}};
    if (o->plot_path != NULL)
        ZR_TRY(gnuplot_check_form("--plot", o->plot_path, log));
    for (size_t i = 0; i < N_ELEMS(files); i++) {
        ZR_TRY(files_check_apart(files[i], files, i, log));
        if (files[i].path != NULL)
            ZR_TRY(files_check_writable(files[i].option, files[i].path, log));
    }
    return ZR_OK;
}

/* A run without a budget is refused nothing, until the machine has no more. */
static const char *find_open_budget(const capacity_options_t *o) {
    for (int axis = CAPACITY_DEVICE_MEMORY; axis < CAPACITY_N_AXES; axis++) {
        bool is_said = is_fixed(o, (capacity_axis_t)axis) ||
                       (axis == CAPACITY_NVME_CAPACITY && !o->has_drives) ||
                       find_sweep(o, (capacity_axis_t)axis) != NULL;
        if (!is_said)
            return capacity_axis_name((capacity_axis_t)axis);
    }
    return NULL;
}

/* The default: wherever it is possible. */
static void choose_verify(capacity_options_t *o) {
    if (!is_given(o, "verify"))
        o->verify_steps = o->is_this && find_open_budget(o) == NULL ? DEFAULT_VERIFY_STEPS : 0;
}

/* Why not where it is not; once everything else is as it should be. */
static void warn_of_open_budget(const capacity_options_t *o, const zr_log_t *log) {
    const char *open = find_open_budget(o);
    if (!is_given(o, "verify") && o->is_this && open != NULL)
        zr_log_write(log, ZR_LOG_WARNING,
                     "capacities are planned but not verified: without --%s a run would use the "
                     "whole machine; give it, or --verify off",
                     open);
}

static zr_status_t check_verify(const capacity_options_t *o, const zr_log_t *log) {
    const char *open = find_open_budget(o);
    if (o->verify_steps == 0)
        return ZR_OK;
    if (!o->is_this)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--verify steps=%zu: --hardware %s is only a description and cannot train; "
                       "leave it out, or use --hardware this",
                       o->verify_steps, o->hardware_name);
    if (open != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--verify steps=%zu: without --%s a run would use the whole machine; give "
                       "it, or --verify off",
                       o->verify_steps, open);
    return ZR_OK;
}

static zr_status_t check(const capacity_options_t *o, const zr_log_t *log) {
    ZR_TRY(options_check_needs(&capacity_table, &o->run.given, log));
    ZR_TRY(check_family(&o->family, log));
    ZR_TRY(plan_hardware_check_given(o->hardware_name, &o->run.given, log));
    ZR_TRY(check_placements(o, log));
    ZR_TRY(check_sweeps(o, log));
    ZR_TRY(check_verify(o, log));
    return check_files(o, log);
}

static zr_status_t resolve(capacity_options_t *o, const zr_log_t *log) {
    train_options_t run = o->run;
    zr_model_shape_t shape;
    if (!capacity_family_shape(&o->family, 0, &shape))
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "the smallest model of the family is not valid: too large to count, or heads of more "
            "than %d channels; give a smaller --vocab, --layers, --channels or --head-size",
            ZR_NN_ROTARY_MAX_HEAD_SIZE);
    zr_model_text_t text = zr_model_shape_text(&shape);
    run.model = text.text;
    ZR_TRY(train_options_resolve_without_offload(&run, log));
    run.model = "";
    o->run = run;
    return ZR_OK;
}

static train_options_t default_run(void) {
    train_options_t run = train_options_default();
    zr_config_t *config = &run.config;
    run.recompute = ZR_RECOMPUTE_UNIT;
    config->dtype = ZR_DTYPE_BF16;
    config->sub_group_elems = SUB_GROUP_ELEMS;
    config->offload_optimizer.n_buffers = STATE_BUFFERS;
    config->offload_param.n_buffers = PARAM_BUFFERS;
    config->offload_param.buffer_elems = PARAM_BUFFER_ELEMS;
    return run;
}

/* Of described machines first, as they say how many ranks there are. */
static zr_status_t find_hardware(capacity_options_t *o, const zr_log_t *log) {
    const capacity_sweep_t *sweep = find_sweep(o, CAPACITY_RANKS);
    size_t most = 0;
    o->ranks_open = !o->is_this && !is_fixed(o, CAPACITY_RANKS) && sweep == NULL;
    if (o->is_this)
        return ZR_OK;
    ZR_TRY(plan_hardware_find(o->hardware_name, &o->run, log, &o->hardware));
    if (o->ranks_open)
        o->run.n_ranks = plan_hardware_ranks(&o->hardware);
    for (size_t i = 0; sweep != NULL && i < sweep->n_values; i++)
        most = sweep->values[i] > most ? sweep->values[i] : most;
    plan_hardware_warn(o->hardware_name, &o->hardware, sweep != NULL ? (int)most : o->run.n_ranks,
                       log);
    return ZR_OK;
}

static zr_status_t finish(capacity_options_t *o, const zr_log_t *log) {
    zr_nvme_options_t *nvme = &o->run.config.nvme;
    bool has_capacity =
        is_fixed(o, CAPACITY_NVME_CAPACITY) || find_sweep(o, CAPACITY_NVME_CAPACITY) != NULL;
    o->is_this = strcmp(o->hardware_name, "this") == 0;
    if (nvme->paths[0] == '\0' && (has_capacity || !o->is_this))
        snprintf(nvme->paths, sizeof(nvme->paths), "."); /* of described drives, never opened */
    o->has_drives = nvme->paths[0] != '\0';
    choose_verify(o);
    if (o->verify_steps > 0)
        o->run.steps = o->verify_steps;
    ZR_TRY(check(o, log));
    ZR_TRY(find_hardware(o, log));
    ZR_TRY(resolve(o, log));
    train_options_warn_idle(&o->run, o->stage_open, false, log);
    warn_of_open_budget(o, log);
    return ZR_OK;
}

capacity_options_t capacity_options_default(void) {
    return (capacity_options_t){.run = default_run(),
                                .model = "gpt2",
                                .family = {.head_size = DEFAULT_HEAD_SIZE,
                                           .aspect = DEFAULT_ASPECT,
                                           .seq = DEFAULT_SEQ,
                                           .vocab = DEFAULT_VOCAB},
                                .hardware_name = "this"};
}

void capacity_options_describe(options_print_t *print, FILE *file) {
    capacity_options_t options = capacity_options_default();
    print(&capacity_table, &options, file);
}

void capacity_options_help(FILE *file) {
    capacity_options_describe(options_help, file);
}

zr_status_t capacity_options_parse(int argc, char **argv, const zr_log_t *log,
                                   capacity_options_t *options_p) {
    capacity_options_t options = capacity_options_default();
    options_given_t given;
    ZR_TRY(options_parse(&capacity_table, argc, argv, log, &options, &given));
    if (!options.run.help && !options.run.version) {
        options = capacity_options_default();
        options.run.given = given;
        ZR_TRY(options_apply(&capacity_table, &given, log, &options));
        train_options_note_given(&options.run);
        note_open(&options);
        ZR_TRY(finish(&options, log));
    }
    *options_p = options;
    return ZR_OK;
}
