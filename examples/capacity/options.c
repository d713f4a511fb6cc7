/*
 * Options that describe a run are zero-train's: their names, values and messages come from its
 * table. What is here is the family, the sweeps, and where answers go.
 */
#include "examples/capacity/options.h"

#include <errno.h>
#include <string.h>

#include "examples/common/args.h"
#include "examples/common/files.h"
#include "examples/common/gnuplot.h"
#include "examples/plan/hardware.h"
#include "examples/common/shared_options.h"
#include "examples/train/files.h"

/* Small buffers leave the budgets to the model; docs/capacity.md has what they cost. */
#define SUB_GROUP_ELEMS ((size_t)1 << 16)
#define STATE_BUFFERS 3
#define PARAM_BUFFERS 3
#define PARAM_BUFFER_ELEMS ((size_t)1 << 17)
#define DEFAULT_SEQ 64
#define DEFAULT_VOCAB 256
#define DEFAULT_HEAD_SIZE 64
#define DEFAULT_ASPECT 12
#define DEFAULT_VERIFY_STEPS 3
#define MOST_VERIFY_STEPS 1000
#define MOST_VOCAB_OF_DATA 65536 /* tokens of the verifying runs are of 16 bits */
#define MOST_SWEPT_RANKS 1024

enum {
    KEY_HARDWARE = SHARED_OPTIONS_FIRST_KEY,
    KEY_SEQ,
    KEY_VOCAB,
    KEY_HEAD_SIZE,
    KEY_ASPECT,
    KEY_LAYERS,
    KEY_CHANNELS,
    KEY_VERIFY,
    KEY_SWEEP,
    KEY_STATE,
    KEY_RESUME,
    KEY_CSV,
    KEY_PLOT,
    KEY_GROUPS
};

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

static const char *const headers[] = {NULL,
                                      "The family of models:",
                                      "How it is trained:",
                                      "What is tried in all ways, unless it is given:",
                                      "In what:",
                                      "Buffers, small so that budgets are left to the model:",
                                      "Proof and sweeps:",
                                      "Output:"};

static const struct argp_option own[] = {
    {"seq", KEY_SEQ, "TOKENS", 0, "tokens per sequence, and positions of the model (default 64)",
     1},
    {"vocab", KEY_VOCAB, "TOKENS", 0, "size of the vocabulary (default 256)", 1},
    {"head-size", KEY_HEAD_SIZE, "CHANNELS", 0,
     "channels per head: width grows by whole heads (default 64)", 1},
    {"aspect", KEY_ASPECT, "CHANNELS", 0,
     "most channels per layer: a width has at least so many layers, and gets more until the next "
     "width is the smaller step (default 12)",
     1},
    {"layers", KEY_LAYERS, "N", 0, "hold the depth: width alone grows", 1},
    {"channels", KEY_CHANNELS, "N", 0, "hold the width: depth alone grows", 1},
    {"hardware", KEY_HARDWARE, "NAME|FILE|this", 0,
     "machines to plan for: one that is described here (an unknown name lists them), a "
     "description, or this machine (default this)",
     4},
    {"verify", KEY_VERIFY, "steps=N|off", 0,
     "train each capacity that was found for so many steps, and see that the next larger size is "
     "refused, within 3 steps at least; all that a run needs is seen in 3 (default steps=3 on this "
     "machine, where all budgets are given; described hardware cannot be trained on)",
     6},
    {"sweep", KEY_SWEEP, "NAME=VALUE,...", 0,
     "find capacities for each of these values of ranks, device-memory, host-memory or "
     "nvme-capacity; of several sweeps, for all combinations",
     6},
    {"state", KEY_STATE, "FILE", 0,
     "keep results so far in this file, whole at any time: a run that was stopped goes on from it "
     "with --resume",
     6},
    {"resume", KEY_RESUME, NULL, 0, "go on from --state, which has to be of the same question", 6},
    {"csv", KEY_CSV, "FILE", 0, "write a line for each capacity", 7},
    {"plot", KEY_PLOT, "FILE", 0,
     "draw capacities, and step times against sizes, as FILE.svg or FILE.png (needs gnuplot)", 7},
    {"shard-group-size", KEY_GROUPS, "RANKS", OPTION_HIDDEN, NULL, 7}, /* refused, with a reason */
};

static const shared_option_t shared[] = {
    {"ranks", 2, PLAN_RANKS_DOC},
    {"dtype", 2, "of parameters and gradients: fp32 or bf16 (default bf16)"},
    {"micro-batch", 2, NULL},
    {"grad-accum", 2, NULL},
    {"recompute", 2,
     "unit: keep each layer's input only and compute the rest again (default unit)"},
    {"reduce", 2, NULL},
    {"prefetch", 2, NULL},
    {"memory-plan", 2, NULL},
    {"seed", 2, "of initial weights and data of the verifying runs (default 1)"},
    {"stage", 3, "what is sharded (default, and auto: each stage is tried)"},
    {"offload-optimizer", 3,
     "none, cpu, nvme or auto: where the optimizer's state lives (default: each is tried)"},
    {"offload-params", 3,
     "none, cpu, nvme or auto: at stage 3, where parameters live (default: each is tried)"},
    {"offload-gradients", 3,
     "none or cpu: where gradients of offloaded state wait (default: what fits the larger model)"},
    {"offload-gradients-ratio", 3,
     "how much of them waits in host memory (default: what fits the larger model)"},
    {"offload-activations", 3,
     "none, cpu or nvme: where inputs of layers wait (default: what fits the larger model)"},
    {"device-memory", 4, "device memory of each rank (default: what the hardware has)"},
    {"host-memory", 4, "host memory of each rank (default: a rank's share of the hardware's)"},
    {"nvme-capacity", 4, "what each rank may use on drives (default: a rank's share)"},
    {"nvme-path", 4,
     "folders on the drives; of this machine, nothing is planned for drives without them (default: "
     "the current folder where --nvme-capacity is given, none where it is not)"},
    {"device", 4, "of --hardware this: auto, host or cuda[:N] (default auto)"},
    {"threads", 4, "of --hardware this: of each rank"},
    {"update-on", 5, NULL},
    {"sub-group", 5, "parameters that are updated at a time (default 65536)"},
    {"nvme-buffers", 5,
     "buffers in host memory for sub-groups, and for inputs of layers (default 3)"},
    {"param-buffers", 5, "buffers in host memory that parameters pass through (default 3)"},
    {"param-buffer", 5, "parameters in each of those buffers, at most (default 131072)"},
    {"nvme-verify", 5, NULL},
    {"json", 7, NULL},
    {"quiet", 7, "no progress and no table; errors and warnings only"},
    {"help", 7, NULL},
    {"version", 7, NULL},
};

static zr_status_t take(void *context, int key, const char *name, const char *value);

static const shared_options_t all = {
    .program = "zero-capacity",
    .doc = "Find the largest model of a family that these budgets train, at each stage and "
           "placement: by planning, then by training it."
           "\vExit status: 0 capacities were found, and proved as far as asked for; 1 not, or not "
           "all; 2 bad usage or input.",
    .shared = shared,
    .n_shared = N_ELEMS(shared),
    .own = own,
    .n_own = N_ELEMS(own),
    .headers = headers,
    .n_groups = N_ELEMS(headers) - 1,
    .take = take};

const char *capacity_axis_name(capacity_axis_t axis) {
    static const char *const names[] = {"ranks", "device-memory", "host-memory", "nvme-capacity"};
    return names[axis];
}

/* ---- sweeps and verification ------------------------------------------------------------------
 */

typedef struct parsing {
    capacity_options_t *options;
    const zr_log_t *log;
    bool has_device;   /* --device or --threads was given */
    bool has_verify;   /* --verify was */
    bool has_capacity; /* --nvme-capacity was, or is swept */
    bool fixed[CAPACITY_N_AXES];
} parsing_t;

static zr_status_t take_value(capacity_sweep_t *sweep, const char *text, const zr_log_t *log) {
    char key[64];
    size_t value = 0;
    snprintf(key, sizeof(key), "--sweep %s", capacity_axis_name(sweep->axis));
    if (sweep->n_values == CAPACITY_MOST_VALUES)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: allowed are %d values at most; split the sweep",
                       key, CAPACITY_MOST_VALUES);
    if (sweep->axis == CAPACITY_RANKS)
        ZR_TRY(args_count(key, text, 1, MOST_SWEPT_RANKS, log, &value));
    else
        ZR_TRY(args_size(key, text, log, &value));
    for (size_t i = 0; i < sweep->n_values; i++)
        if (sweep->values[i] == value)
            return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s stands there twice; leave one out", key,
                           text);
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

static zr_status_t take_sweep(parsing_t *p, const char *text) {
    capacity_options_t *o = p->options;
    capacity_sweep_t sweep = {.n_values = 0};
    const char *values = strchr(text, '=');
    if (values == NULL)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--sweep %s: allowed is NAME=VALUE,VALUE and so on, such as ranks=1,2,4",
                       text);
    ZR_TRY(find_axis(text, (size_t)(values - text), p->log, &sweep.axis));
    for (size_t i = 0; i < o->n_sweeps; i++)
        if (o->sweeps[i].axis == sweep.axis)
            return zr_fail(p->log, ZR_ERR_ARGUMENT,
                           "--sweep %s: is swept already; give all its values in one --sweep",
                           capacity_axis_name(sweep.axis));
    for (const char *value = values + 1;; value++) {
        char word[64];
        size_t length = strcspn(value, ",");
        snprintf(word, sizeof(word), "%.*s", (int)length, value);
        ZR_TRY(take_value(&sweep, word, p->log));
        value += length;
        if (*value == '\0')
            break;
    }
    if (sweep.axis == CAPACITY_NVME_CAPACITY) {
        p->has_capacity = true;
        o->run.nvme_given = "--sweep nvme-capacity";
    }
    o->sweeps[o->n_sweeps++] = sweep;
    return ZR_OK;
}

static zr_status_t take_verify(parsing_t *p, const char *text) {
    p->has_verify = true;
    p->options->verify_steps = 0;
    if (strcmp(text, "off") == 0)
        return ZR_OK;
    if (strncmp(text, "steps=", 6) != 0)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--verify %s: allowed are off, and steps=N such as steps=3", text);
    return args_count("--verify steps", text + 6, 1, MOST_VERIFY_STEPS, p->log,
                      &p->options->verify_steps);
}

/* ---- parsing --------------------------------------------------------------------------------- */

static zr_status_t take_output(parsing_t *p, int key, const char *value) {
    capacity_options_t *o = p->options;
    if (key == KEY_STATE)
        o->state_path = value;
    else if (key == KEY_CSV)
        o->csv_path = value;
    else if (key == KEY_PLOT)
        o->plot_path = value;
    else
        o->resume = true;
    return ZR_OK;
}

static zr_status_t take_own(parsing_t *p, int key, const char *value) {
    capacity_family_t *family = &p->options->family;
    const zr_log_t *log = p->log;
    switch (key) {
    case KEY_HARDWARE:
        p->options->hardware_name = value;
        return ZR_OK;
    case KEY_SEQ:
        return args_count("--seq", value, 1, 1000000, log, &family->seq);
    case KEY_VOCAB:
        return args_count("--vocab", value, 2, INT32_MAX, log, &family->vocab);
    case KEY_HEAD_SIZE:
        return args_count("--head-size", value, 1, 1024, log, &family->head_size);
    case KEY_ASPECT:
        return args_count("--aspect", value, 1, 100000, log, &family->aspect);
    case KEY_LAYERS:
        return args_count("--layers", value, 1, 100000, log, &family->layers);
    case KEY_CHANNELS:
        return args_count("--channels", value, 1, 1000000, log, &family->channels);
    case KEY_VERIFY:
        return take_verify(p, value);
    default:
        return take_sweep(p, value);
    }
}

static void note_fixed(parsing_t *p, const char *name) {
    for (int axis = 0; axis < CAPACITY_N_AXES; axis++)
        p->fixed[axis] |= strcmp(name, capacity_axis_name((capacity_axis_t)axis)) == 0;
    p->has_capacity |= strcmp(name, "nvme-capacity") == 0;
    p->has_device |= strcmp(name, "device") == 0 || strcmp(name, "threads") == 0;
}

static capacity_where_t where(zr_offload_device_t device, bool is_auto) {
    return is_auto ? CAPACITY_AUTO : (capacity_where_t)device;
}

/* What is given is no longer tried in all ways. */
static void note_open(capacity_options_t *o, const char *name) {
    const zr_config_t *config = &o->run.config;
    if (strcmp(name, "stage") == 0) {
        o->stage_open = o->run.auto_stage; /* each is tried, as without it */
        o->run.auto_stage = false;
    } else if (strcmp(name, "offload-gradients") == 0 ||
               strcmp(name, "offload-gradients-ratio") == 0)
        o->gradients_open = false;
    else if (strcmp(name, "offload-activations") == 0)
        o->activations_open = false;
    else if (strcmp(name, "offload-optimizer") == 0)
        o->optimizer_open = false;
    else if (strcmp(name, "offload-params") == 0)
        o->params_open = false;
    o->optimizer = where(config->offload_optimizer.device, o->run.auto_optimizer);
    o->params = where(config->offload_param.device, o->run.auto_params);
}

static bool is_of_output(const char *name) {
    static const char *const names[] = {"json", "quiet", "help", "version", "nvme-path"};
    for (size_t i = 0; i < N_ELEMS(names); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static zr_status_t check_groups(const char *value, const zr_log_t *log) {
    if (strcmp(value, "all") == 0)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--shard-group-size %s: groups hold a copy of the model each, and copies train "
                   "nothing larger; allowed is all; what groups of N ranks can train is what "
                   "--ranks N can",
                   value);
}

static zr_status_t take(void *context, int key, const char *name, const char *value) {
    parsing_t *p = context;
    capacity_options_t *o = p->options;
    if (key == KEY_STATE || key == KEY_CSV || key == KEY_PLOT || key == KEY_RESUME)
        return take_output(p, key, value);
    if (key == KEY_GROUPS)
        return check_groups(value, p->log);
    if (key >= SHARED_OPTIONS_FIRST_KEY) {
        ZR_TRY(take_own(p, key, value));
    } else {
        ZR_TRY(train_options_take(&o->run, key, value, p->log));
        note_fixed(p, name);
        note_open(o, name);
    }
    if (is_of_output(name))
        return ZR_OK;
    return shared_givens_note(&o->given, name, value, strcmp(name, "sweep") == 0, p->log);
}

void capacity_options_help(FILE *file) {
    shared_options_help(&all, file);
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* Of those that are a multiple of the head size. */
static size_t nearest_channels(const capacity_family_t *family) {
    size_t rest = family->channels % family->head_size, below = family->channels - rest;
    bool is_below = below > 0 && rest <= family->head_size - rest;
    return is_below ? below : below + family->head_size;
}

static zr_status_t check_family(const capacity_family_t *family, const zr_log_t *log) {
    if (family->layers != 0 && family->channels != 0)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--layers %zu --channels %zu: nothing is left to grow; leave one out, or ask "
            "zero-plan about this one model",
            family->layers, family->channels);
    if (family->channels % family->head_size != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--channels %zu: has to be a multiple of the head size, %zu; the nearest is "
                       "%zu",
                       family->channels, family->head_size, nearest_channels(family));
    return ZR_OK;
}

static zr_status_t check_placements(const capacity_options_t *o, const zr_log_t *log) {
    const train_options_t *run = &o->run;
    if (!o->params_open && o->params != CAPACITY_NONE && !o->stage_open && run->config.stage != 3)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-params: at stage %d every rank computes with all parameters at "
                       "all times; allowed is none, or --stage 3",
                       run->config.stage);
    train_open_t open = {.stage = o->stage_open,
                         .optimizer = o->optimizer_open || o->optimizer == CAPACITY_AUTO,
                         .params = o->params_open || o->params == CAPACITY_AUTO,
                         .activations = o->activations_open,
                         .no_drives = !o->has_drives};
    ZR_TRY(train_options_check_offload(run, open, log));
    if (run->offload_activations != ZR_OFFLOAD_NONE && !run->recompute)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-activations: only inputs of layers can be offloaded, and without "
                       "recomputation everything is kept; add --recompute unit");
    if (!o->has_drives && ((!o->optimizer_open && o->optimizer == CAPACITY_NVME) ||
                           (!o->params_open && o->params == CAPACITY_NVME) ||
                           (!o->activations_open && run->offload_activations == ZR_OFFLOAD_NVME)))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "what is asked for is on drives, and of this machine none were named; add "
                       "--nvme-path DIR");
    return ZR_OK;
}

static zr_status_t check_sweeps(const parsing_t *p) {
    for (size_t i = 0; i < p->options->n_sweeps; i++) {
        const char *name = capacity_axis_name(p->options->sweeps[i].axis);
        if (p->fixed[p->options->sweeps[i].axis])
            return zr_fail(p->log, ZR_ERR_ARGUMENT,
                           "--sweep %s: --%s gives one value for all; leave one of both out", name,
                           name);
    }
    return ZR_OK;
}

static zr_status_t check_files(const capacity_options_t *o, const zr_log_t *log) {
    const char *const files[][2] = {
        {"--csv", o->csv_path}, {"--plot", o->plot_path}, {"--state", o->state_path}};
    if (o->plot_path != NULL && !gnuplot_has_form(o->plot_path))
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--plot %s: the form is chosen by the ending; allowed are NAME.svg, NAME.png",
            o->plot_path);
    if (o->resume && o->state_path == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--resume: there is nothing to go on from; add --state FILE");
    for (size_t i = 0; i < N_ELEMS(files); i++) {
        if (files[i][1] == NULL)
            continue;
        for (size_t k = 0; k < i; k++)
            if (files[k][1] != NULL && files_are_same(files[i][1], files[k][1]))
                return zr_fail(log, ZR_ERR_ARGUMENT,
                               "%s %s and %s %s: are one file; give another name", files[k][0],
                               files[k][1], files[i][0], files[i][1]);
        ZR_TRY(files_check_writable(files[i][0], files[i][1], log));
    }
    return ZR_OK;
}

static const capacity_sweep_t *find_sweep(const capacity_options_t *o, capacity_axis_t axis) {
    for (size_t i = 0; i < o->n_sweeps; i++)
        if (o->sweeps[i].axis == axis)
            return &o->sweeps[i];
    return NULL;
}

/* A run without a budget is refused nothing, until the machine has no more. */
static const char *find_open_budget(const parsing_t *p) {
    const capacity_options_t *o = p->options;
    for (int axis = CAPACITY_DEVICE_MEMORY; axis < CAPACITY_N_AXES; axis++) {
        bool is_given = p->fixed[axis] || (axis == CAPACITY_NVME_CAPACITY && !o->has_drives) ||
                        find_sweep(o, (capacity_axis_t)axis) != NULL;
        if (!is_given)
            return capacity_axis_name((capacity_axis_t)axis);
    }
    return NULL;
}

/* The default: wherever it is possible. */
static void choose_verify(const parsing_t *p) {
    capacity_options_t *o = p->options;
    if (!p->has_verify)
        o->verify_steps = o->is_this && find_open_budget(p) == NULL ? DEFAULT_VERIFY_STEPS : 0;
}

/* Why not where it is not; once everything else is as it should be. */
static void warn_of_open_budget(const parsing_t *p) {
    const char *open = find_open_budget(p);
    if (!p->has_verify && p->options->is_this && open != NULL)
        zr_log_write(p->log, ZR_LOG_WARNING,
                     "capacities are planned and not verified: without --%s a run would take what "
                     "the machine has; give it, or --verify off",
                     open);
}

static zr_status_t check_verify(const capacity_options_t *o, const parsing_t *p) {
    const char *open = find_open_budget(p);
    if (o->verify_steps == 0)
        return ZR_OK;
    if (!o->is_this)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--verify steps=%zu: --hardware %s is only described, and cannot be trained "
                       "on; leave it out, or ask about --hardware this",
                       o->verify_steps, o->hardware_name);
    if (open != NULL)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--verify steps=%zu: without --%s a run would take what the machine has; "
                       "give it, or --verify off",
                       o->verify_steps, open);
    if (o->family.vocab > MOST_VOCAB_OF_DATA)
        return zr_fail(
            p->log, ZR_ERR_ARGUMENT,
            "--vocab %zu: what verifying runs train on has tokens of 16 bits; allowed are "
            "%d at most, or --verify off",
            o->family.vocab, MOST_VOCAB_OF_DATA);
    return ZR_OK;
}

static zr_status_t check(const capacity_options_t *o, const parsing_t *p) {
    ZR_TRY(check_family(&o->family, p->log));
    if (p->has_device && !o->is_this)
        return zr_fail(p->log, ZR_ERR_ARGUMENT,
                       "--device and --threads are of this machine, and --hardware %s is planned "
                       "for; leave them out, or ask about --hardware this",
                       o->hardware_name);
    ZR_TRY(check_placements(o, p->log));
    ZR_TRY(check_sweeps(p));
    ZR_TRY(check_verify(o, p));
    return check_files(o, p->log);
}

/* Placements are set for each capacity, and checked with it: here nothing is offloaded. */
static zr_status_t resolve(capacity_options_t *o, const zr_log_t *log) {
    train_options_t run = o->run;
    char text[CAPACITY_MODEL_BYTES];
    gpt_shape_t shape;
    zr_config_t *config = &run.config;
    zr_offload_device_t optimizer = config->offload_optimizer.device;
    zr_offload_device_t params = config->offload_param.device;
    config->offload_optimizer.device = config->offload_param.device = ZR_OFFLOAD_NONE;
    if (!capacity_family_shape(&o->family, 0, &shape))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "the smallest model of the family is too large to count; give a smaller "
                       "--vocab, --layers or --channels");
    capacity_model_text(&shape, text);
    run.model = text;
    ZR_TRY(train_options_resolve_run(&run, log));
    config->offload_optimizer.device = optimizer;
    config->offload_param.device = params;
    run.model = "";
    o->run = run;
    return ZR_OK;
}

static train_options_t default_run(void) {
    train_options_t run = train_options_default();
    zr_config_t *config = &run.config;
    run.recompute = true;
    config->dtype = ZR_DTYPE_BF16;
    config->sub_group_elems = SUB_GROUP_ELEMS;
    config->offload_optimizer.n_buffers = STATE_BUFFERS;
    config->offload_param.n_buffers = PARAM_BUFFERS;
    config->offload_param.buffer_elems = PARAM_BUFFER_ELEMS;
    return run;
}

/* Of described machines first, as they say how many ranks there are. */
static zr_status_t find_hardware(parsing_t *p) {
    capacity_options_t *o = p->options;
    const capacity_sweep_t *sweep = find_sweep(o, CAPACITY_RANKS);
    size_t most = 0;
    o->ranks_open = !o->is_this && !p->fixed[CAPACITY_RANKS] && sweep == NULL;
    if (o->is_this)
        return ZR_OK;
    ZR_TRY(plan_hardware_find(o->hardware_name, &o->run, p->log, &o->hardware));
    if (o->ranks_open)
        o->run.n_ranks = plan_hardware_ranks(&o->hardware);
    for (size_t i = 0; sweep != NULL && i < sweep->n_values; i++)
        most = sweep->values[i] > most ? sweep->values[i] : most;
    plan_hardware_warn(o->hardware_name, &o->hardware, sweep != NULL ? (int)most : o->run.n_ranks,
                       p->log);
    return ZR_OK;
}

static zr_status_t finish(parsing_t *p) {
    capacity_options_t *o = p->options;
    zr_nvme_options_t *nvme = &o->run.config.nvme;
    o->is_this = strcmp(o->hardware_name, "this") == 0;
    if (nvme->paths[0] == '\0' && (p->has_capacity || !o->is_this))
        snprintf(nvme->paths, sizeof(nvme->paths), "."); /* of described drives, never opened */
    o->has_drives = nvme->paths[0] != '\0';
    choose_verify(p);
    if (o->verify_steps > 0)
        o->run.steps = o->verify_steps;
    ZR_TRY(check(o, p));
    ZR_TRY(find_hardware(p));
    ZR_TRY(resolve(o, p->log));
    if (o->stage_open)
        o->run.stage3_given = 0; /* 3 is tried, too */
    train_options_warn_idle(&o->run, false, p->log);
    warn_of_open_budget(p);
    return ZR_OK;
}

zr_status_t capacity_options_parse(int argc, char **argv, const zr_log_t *log,
                                   capacity_options_t *options_p) {
    capacity_options_t options = {.run = default_run(),
                                  .family = {.head_size = DEFAULT_HEAD_SIZE,
                                             .aspect = DEFAULT_ASPECT,
                                             .seq = DEFAULT_SEQ,
                                             .vocab = DEFAULT_VOCAB},
                                  .hardware_name = "this",
                                  .stage_open = true,
                                  .optimizer_open = true,
                                  .params_open = true,
                                  .gradients_open = true,
                                  .activations_open = true};
    parsing_t parsing = {.options = &options, .log = log};
    ZR_TRY(shared_options_parse(&all, argc, argv, &options.run, &parsing, log));
    if (!options.run.help && !options.run.version)
        ZR_TRY(finish(&parsing));
    *options_p = options;
    return ZR_OK;
}
