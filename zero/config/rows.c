/*
 * The options of a run: a row for each field of zr_config_t. Adding one is adding a member to
 * zr_config_t, its default (config.c) and a row here; `build/tests/test_config_doc --write` writes
 * the documents. Fields come in the order in which --help has them.
 *
 * Hyperparameters of the optimizer are the rows under that heading; `optimizer.params` of a file
 * are these and no others.
 */
#include "zero/options.h"

#include <string.h>

#include "kernels/kernels.h"
#include "offload/store.h"
#include "offload/swap_internal.h"
#include "zero/config/keys.h"

/* A field's name and place, which must not differ. */
#define FIELD(member) .field = #member, .offset = offsetof(zr_config_t, member)

_Static_assert(sizeof(zr_schedule_kind_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_offload_device_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_update_at_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_message_as_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_dtype_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_step_order_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_state_form_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_optimizer_kind_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");

enum {
    AGREE = ZR_OPTION_AGREE,
    AUTO = ZR_OPTION_AUTO,
    UNSET0 = ZR_OPTION_UNSET0,
    FILE_AUTO = ZR_OPTION_FILE_AUTO,
    SAID = ZR_OPTION_SAID,
    RANKS = ZR_OPTION_GROUP_RANKS,
    MACHINE = ZR_OPTION_GROUP_MACHINE,
    OFFLOAD = ZR_OPTION_GROUP_OFFLOAD,
    STEP = ZR_OPTION_GROUP_STEP,
    W = 1 << ZR_SCHEDULE_WARMUP,
    D = 1 << ZR_SCHEDULE_WARMUP_DECAY,
    C = 1 << ZR_SCHEDULE_WARMUP_COSINE
};

/* What the update can work with in fp32. */
#define LARGEST_RATE 1e3
#define LARGEST_BETA 0.999999
#define LEAST_EPSILON 1e-37

/* ---- words --------------------------------------------------------------------------------- */

static const zr_option_choice_t stages[] = {
    {"0", 0, "0"}, {"1", 1, "1"}, {"2", 2, "2"}, {"3", 3, "3"}, {NULL, 0, NULL}};

static const zr_option_choice_t dtypes[] = {
    {"fp32", ZR_DTYPE_F32, "false"}, {"bf16", ZR_DTYPE_BF16, "true"}, {NULL, 0, NULL}};

static const zr_option_choice_t reductions[] = {
    {"auto", ZR_REDUCE_AUTO, NULL},
    {"every-micro-batch", ZR_REDUCE_EVERY_MICRO_BATCH, NULL},
    {NULL, 0, NULL}};

static const zr_option_choice_t gathered[] = {{"none", ZR_MESSAGE_PLAIN, NULL},
                                              {"bf16", ZR_MESSAGE_BF16, NULL},
                                              {"8bit", ZR_MESSAGE_8BIT, NULL},
                                              {NULL, 0, NULL}};

static const zr_option_choice_t reduced[] = {{"none", ZR_MESSAGE_PLAIN, NULL},
                                             {"bf16", ZR_MESSAGE_BF16, NULL},
                                             {"8bit", ZR_MESSAGE_8BIT, NULL},
                                             {"4bit", ZR_MESSAGE_4BIT, NULL},
                                             {NULL, 0, NULL}};

static const zr_option_choice_t orders[] = {
    {"micro-batch", ZR_ORDER_MICRO_BATCH, NULL}, {"block", ZR_ORDER_BLOCK, NULL}, {NULL, 0, NULL}};

static const zr_option_choice_t places[] = {{"none", ZR_OFFLOAD_NONE, NULL},
                                            {"cpu", ZR_OFFLOAD_CPU, NULL},
                                            {"nvme", ZR_OFFLOAD_NVME, NULL},
                                            {NULL, 0, NULL}};

static const zr_option_choice_t updates[] = {{"auto", ZR_UPDATE_ON_FASTER, NULL},
                                             {"host", ZR_UPDATE_ON_HOST, NULL},
                                             {"device", ZR_UPDATE_ON_DEVICE, NULL},
                                             {NULL, 0, NULL}};

static const zr_option_choice_t moments[] = {
    {"end", ZR_UPDATE_AT_END, NULL}, {"backward", ZR_UPDATE_AT_BACKWARD, NULL}, {NULL, 0, NULL}};

static const zr_option_choice_t state_forms[] = {{"fp32", ZR_STATE_FP32, NULL},
                                                 {"bf16", ZR_STATE_BF16, NULL},
                                                 {"8bit", ZR_STATE_8BIT, NULL},
                                                 {NULL, 0, NULL}};

static const zr_option_choice_t schedules[] = {
    {"cosine", ZR_SCHEDULE_WARMUP_COSINE, "\"WarmupCosineLR\""},
    {"linear", ZR_SCHEDULE_WARMUP_DECAY, "\"WarmupDecayLR\""},
    {"constant", ZR_SCHEDULE_CONSTANT, ""},
    {NULL, ZR_SCHEDULE_WARMUP, "\"WarmupLR\""},
    {NULL, 0, NULL}};

static const zr_option_choice_t rises[] = {{"linear", 0, NULL}, {"log", 1, NULL}, {NULL, 0, NULL}};

static const zr_option_choice_t optimizers[] = {{"adamw", ZR_OPTIMIZER_ADAMW, "\"AdamW\""},
                                                {"lion", ZR_OPTIMIZER_LION, "\"Lion\""},
                                                {"sgd", ZR_OPTIMIZER_SGD, "\"SGD\""},
                                                {NULL, ZR_OPTIMIZER_ADAMW, "\"Adam\""},
                                                {NULL, 0, NULL}};

static void store_optimizer(void *object, uint64_t value) {
    zr_config_t *config = object;
    size_t n = 0;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n);
    if (value < n)
        zr_config_set_optimizer(config, optimizers[value]);
    else
        config->optimizer = (zr_optimizer_kind_t)value; /* which zr_config_resolve refuses */
}

/* ---- when an option means something --------------------------------------------------------- */

static bool is_stage_3(const zr_config_t *config) {
    return config->stage == 3;
}
static bool gathers_params(const zr_config_t *config) {
    return config->stage >= 1;
}
static bool feeds_errors_back(const zr_config_t *config) {
    return config->reduce_encoding != ZR_MESSAGE_PLAIN && config->shard_group_size > 0;
}
static bool takes_outer_steps(const zr_config_t *config) {
    return config->outer_every > 0;
}
static bool shards_gradients(const zr_config_t *config) {
    return config->stage >= 2;
}
static bool offloads_state(const zr_config_t *config) {
    return config->offload_optimizer.device != ZR_OFFLOAD_NONE;
}
static bool has_state_on_nvme(const zr_config_t *config) {
    return config->offload_optimizer.device == ZR_OFFLOAD_NVME;
}
static bool offloads_params(const zr_config_t *config) {
    return config->offload_param.device != ZR_OFFLOAD_NONE;
}
static bool has_params_on_nvme(const zr_config_t *config) {
    return config->offload_param.device == ZR_OFFLOAD_NVME;
}
static bool has_state_or_grads_on_nvme(const zr_config_t *config) {
    return has_state_on_nvme(config) || zr_config_has_grads_on_nvme(config);
}
static bool has_warmup(const zr_config_t *config) {
    return config->schedule.kind != ZR_SCHEDULE_CONSTANT;
}
static bool is_cosine(const zr_config_t *config) {
    return config->schedule.kind == ZR_SCHEDULE_WARMUP_COSINE;
}

static bool has_hyper(const zr_config_t *config, const char *name) {
    const zr_update_rule_t *rule = &zr_config_optimizer(config)->rule;
    for (size_t i = 0; i < rule->n_hypers; i++)
        if (strcmp(rule->hypers[i].name, name) == 0)
            return true;
    return false;
}
static bool has_betas(const zr_config_t *config) {
    return has_hyper(config, "beta1");
}
static bool has_epsilon(const zr_config_t *config) {
    return has_hyper(config, "epsilon");
}
static bool has_momentum(const zr_config_t *config) {
    return has_hyper(config, "momentum");
}

static const zr_option_when_t with_betas = {
    has_betas, "the optimizer has no betas; --optimizer adamw and lion have", false};
static const zr_option_when_t with_epsilon = {
    has_epsilon, "the optimizer has no epsilon; --optimizer adamw has", false};
static const zr_option_when_t with_momentum = {
    has_momentum, "the optimizer has no momentum of this kind; --optimizer sgd has", false};

static const zr_option_when_t at_stage_3 = {
    is_stage_3, "where no parameters are gathered for a layer; add --stage 3, or leave it out",
    true};
static const zr_option_when_t at_stages_1_3 = {
    gathers_params, "no parameters are gathered at stage 0; add --stage 1, 2 or 3", false};
static const zr_option_when_t between_groups = {
    feeds_errors_back,
    "nothing is encoded between groups of ranks; add --reduce-encoding and --shard-group-size",
    false};
static const zr_option_when_t with_outer_steps = {
    takes_outer_steps, "there are no outer steps; add --outer-every and --shard-group-size", false};
static const zr_option_when_t at_stages_2_3 = {
    shards_gradients,
    "below stage 2 every rank adds up all gradients on the device; only shards of them can be "
    "offloaded, at --stage 2 or 3",
    false};
static const zr_option_when_t state_offloaded = {
    offloads_state, "nothing is offloaded; add --offload-optimizer cpu or nvme", false};
static const zr_option_when_t state_on_nvme = {
    has_state_on_nvme, "no optimizer state is offloaded to NVMe; add --offload-optimizer nvme",
    false};
static const zr_option_when_t grads_on_nvme = {
    zr_config_has_grads_on_nvme,
    "no gradients are offloaded to NVMe; add --offload-gradients nvme at --stage 2 or 3", false};
static const zr_option_when_t slices_on_nvme = {
    has_state_or_grads_on_nvme,
    "neither optimizer state nor activations are offloaded to NVMe; add --offload-optimizer nvme "
    "or "
    "--offload-activations nvme",
    false};
static const zr_option_when_t params_offloaded = {
    offloads_params, "no parameters are offloaded; add --offload-params cpu or nvme", false};
static const zr_option_when_t params_on_nvme = {
    has_params_on_nvme, "no parameters are offloaded to NVMe; add --offload-params nvme", false};
static const zr_option_when_t on_nvme = {
    zr_config_uses_nvme,
    "nothing is offloaded to NVMe; add --offload-optimizer nvme, --offload-params nvme or "
    "--offload-activations nvme",
    false};
static const zr_option_when_t with_warmup = {
    has_warmup, "a constant rate has no warm-up; add --schedule cosine or linear", false};
static const zr_option_when_t with_cosine = {
    is_cosine, "this schedule does not come down to it; add --schedule cosine", false};

/* ---- rows ---------------------------------------------------------------------------------- */

#define ZERO "zero_optimization."
#define STATE ZERO "offload_optimizer."
#define PARAM ZERO "offload_param."

static const zr_option_t rows[] = {
    /* ---- ranks --------------------------------------------------------------------------- */
    {"stage", ZERO "stage", FIELD(stage), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | AUTO | FILE_AUTO | SAID, .choices = stages, .group = RANKS, .usual = "0",
     .help = "what is sharded: nothing, optimizer state, gradients too, parameters too; auto: the "
             "fastest that fits, by planning all",
     .more = "[plan.md](../guide/plan.md#let-zero-train-choose)"},
    {"shard-group-size", ZERO "mics_shard_size", FIELD(shard_group_size), .type = ZR_OPTION_INT,
     .flags = AGREE | AUTO | FILE_AUTO | ZR_OPTION_OR_ALL, .least = 1, .most = ZR_MAX_SUM_SOURCES,
     .arg = "RANKS|all|auto", .group = RANKS, .usual = "-1",
     .help = "ranks that share one copy of what is sharded, at any stage: gathers stay within "
             "groups of so many, in order of rank, and gradients are added between them once per "
             "step; auto, and the default with --stage auto: what a plan finds best, which on one "
             "machine is all",
     .more =
         "has to divide the ranks ([clusters.md](../guide/clusters.md#groups-hybrid-sharding))"},
    {"dtype", "bf16.enabled", FIELD(dtype), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | FILE_AUTO | SAID, .choices = dtypes, .group = RANKS, .usual = "false",
     .help = "of parameters and gradients", .note = "true: bf16; false: fp32"},
    {"reduce", NULL, FIELD(reduce), .type = ZR_OPTION_CHOICE, .flags = AGREE, .choices = reductions,
     .group = RANKS,
     .help = "when gradients are added over ranks; auto: once per step at stages 0 and 1, and with "
             "--order block",
     .more = "the other makes all four stages bitwise equal with `--grad-accum`"},
    {"prefetch", ZERO "stage3_prefetch_bucket_size", FIELD(prefetch_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO, .arg = "ELEMS", .group = RANKS, .usual = "50000000",
     .help = "stage 3: parameters that may be gathered ahead of their use", .when = {&at_stage_3},
     .idle = "0"},
    {"max-live", ZERO "stage3_max_live_parameters", FIELD(max_live_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO, .least = 1, .arg = "ELEMS", .group = RANKS, .usual = "1000000000",
     .help = "stage 3: gather ahead, and keep gathered, only up to so many parameters",
     .when = {&at_stage_3}},
    {NULL, ZERO "stage3_max_reuse_distance", FIELD(reuse_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO, .usual = "1000000000",
     .help = "stage 3: keep a released unit gathered when its next use is at most so many gathered "
             "parameters away (here 0 when absent: never)",
     .when = {&at_stage_3}},
    {"gather-encoding", NULL, FIELD(gather_encoding), .type = ZR_OPTION_CHOICE, .flags = AGREE,
     .choices = gathered, .group = RANKS,
     .help = "what parameters are sent in when ranks gather them, which loses some of their bits: "
             "ranks compute with what is left, equal on all; masters stay as they are",
     .more = "[lean.md](../guide/lean.md#on-the-wire)", .when = {&at_stages_1_3}, .idle = "none"},
    {"reduce-encoding", NULL, FIELD(reduce_encoding), .type = ZR_OPTION_CHOICE, .flags = AGREE,
     .choices = reduced, .group = RANKS,
     .help = "what gradients are sent in when ranks add them, which loses some of their bits; sums "
             "are made in fp32",
     .more = "[lean.md](../guide/lean.md#on-the-wire)"},
    {"error-feedback", NULL, FIELD(error_feedback), .type = ZR_OPTION_SWITCH, .flags = AGREE,
     .group = RANKS,
     .help = "with --reduce-encoding and groups: what encoding leaves out of what is sent between "
             "groups is added to what is sent in the next step",
     .more = "[lean.md](../guide/lean.md#on-the-wire)", .when = {&between_groups}, .idle = "off"},
    {"outer-every", NULL, FIELD(outer_every), .type = ZR_OPTION_COUNT, .flags = AGREE,
     .arg = "STEPS", .group = RANKS,
     .help = "with --shard-group-size: groups take so many steps of their own, and then meet in an "
             "outer step (DiLoCo), which changes the result; 0: every step is one of all ranks",
     .more = "[lean.md](../guide/lean.md#local-steps)"},
    {"outer-lr", NULL, FIELD(outer_lr), .type = ZR_OPTION_NUMBER, .flags = AGREE,
     .most = LARGEST_RATE, .arg = "RATE", .group = RANKS, .when = {&with_outer_steps},
     .help = "learning rate of outer steps"},
    {"outer-momentum", NULL, FIELD(outer_momentum), .type = ZR_OPTION_NUMBER, .flags = AGREE,
     .most = LARGEST_BETA, .arg = "BETA", .group = RANKS, .when = {&with_outer_steps},
     .help = "Nesterov's momentum of outer steps"},
    {"overlap-comm", ZERO "overlap_comm", FIELD(overlap_comm), .type = ZR_OPTION_SWITCH,
     .flags = FILE_AUTO, .group = RANKS, .usual = "null",
     .help = "compute while ranks gather and reduce, on GPUs and between hosts",
     .note = "DeepSpeed: by default at stage 3 only"},

    /* ---- the machine ---------------------------------------------------------------------- */
    {"device-memory", NULL, FIELD(device_memory_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = MACHINE, .initial = "no limit", .least = 1,
     .help = "device memory of each rank, such as 512MiB or 16GB"},
    {"host-memory", NULL, FIELD(host_memory_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = MACHINE, .initial = "no limit", .least = 1, .help = "host memory of each rank"},
    {"memory", NULL, FIELD(process_memory_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = MACHINE, .initial = "no limit", .least = 1,
     .help = "host memory of the whole process: tensors of all its ranks, pinned ones too, the "
             "library's tables, and 64 MiB for the program and the stacks of its threads",
     .more = "[offload.md](../guide/offload.md#the-process)"},
    {"plan-check", NULL, FIELD(plan_check), .type = ZR_OPTION_SWITCH, .group = MACHINE,
     .help = "plan the run before it begins, and refuse one that does not fit; off: begin it, and "
             "let it end where memory does",
     .more = "[plan.md](../guide/plan.md#let-zero-train-choose)"},
    {"memory-plan", NULL, FIELD(plan_memory), .type = ZR_OPTION_SWITCH, .group = MACHINE,
     .help = "place what lives within a step by a plan of the step before",
     .more = "[allocator.md](../internals/allocator.md)"},
    {NULL, NULL, FIELD(host_threads), .type = ZR_OPTION_INT,
     .help = "threads of the host's updates, where the device is not the host; 0: all cores"},

    /* ---- offload -------------------------------------------------------------------------- */
    {"offload-optimizer", STATE "device", FIELD(offload_optimizer.device), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | AUTO | FILE_AUTO, .choices = places, .group = OFFLOAD, .usual = "\"none\"",
     .help = "where the optimizer's state lives: on the device, in host memory, or in files of "
             "drives; auto: in parts, in all tiers at once",
     .more = "[offload.md](../guide/offload.md)"},
    {"offload-ratio", STATE "ratio", FIELD(offload_optimizer.ratio), .type = ZR_OPTION_NUMBER,
     .flags = FILE_AUTO, .most = 1, .arg = "RATIO", .group = OFFLOAD, .usual = "1.0",
     .help =
         "how much of the optimizer's state is offloaded, at least, in whole sub-groups, at any "
         "stage; the rest stays on the device",
     .when = {&state_offloaded}, .idle = "0"},
    {"state-in-host", NULL, FIELD(offload_optimizer.max_in_cpu_elems), .type = ZR_OPTION_COUNT,
     .arg = "ELEMS", .group = OFFLOAD,
     .help = "with --offload-optimizer nvme: as many parameters' state, in whole sub-groups, stays "
             "in host memory",
     .when = {&state_on_nvme}, .idle = "0"},
    {"offload-gradients", NULL, FIELD(offload_optimizer.gradients), .type = ZR_OPTION_CHOICE,
     .flags = AGREE, .choices = places, .group = OFFLOAD,
     .help = "with --offload-optimizer, at stages 2 and 3: where gradients of what is offloaded "
             "wait for the update",
     .more = "[offload.md](../guide/offload.md#gradients)",
     .when = {&state_offloaded, &at_stages_2_3}, .idle = "none"},
    {"offload-gradients-ratio", NULL, FIELD(offload_optimizer.gradients_ratio),
     .type = ZR_OPTION_NUMBER, .flags = AGREE, .most = 1, .arg = "RATIO", .group = OFFLOAD,
     .help = "with --offload-gradients cpu or nvme: how much of these gradients waits there, at "
             "least, in whole sub-groups; the rest waits on the device",
     .more = "[offload.md](../guide/offload.md#gradients)",
     .when = {&state_offloaded, &at_stages_2_3}, .idle = "0"},
    {"gradients-in-host", NULL, FIELD(offload_optimizer.gradients_in_cpu_elems),
     .type = ZR_OPTION_COUNT, .arg = "ELEMS", .group = OFFLOAD,
     .help = "with --offload-gradients nvme: gradients of as many parameters, in whole sub-groups, "
             "wait in host memory",
     .more = "[offload.md](../guide/offload.md#gradients)", .when = {&grads_on_nvme}, .idle = "0"},
    {"update-on", NULL, FIELD(offload_optimizer.update_on), .type = ZR_OPTION_CHOICE,
     .choices = updates, .group = OFFLOAD,
     .help = "with --offload-optimizer: where what is offloaded is updated; auto: the faster, "
             "measured at the start",
     .more = "[offload.md](../guide/offload.md)", .when = {&state_offloaded},
     .idle = "auto device"},
    {"sub-group", ZERO "sub_group_size", FIELD(sub_group_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO, .least = 1, .arg = "ELEMS", .group = OFFLOAD,
     .usual = "1000000000",
     .help = "parameters that are updated at a time; what is offloaded is moved in sub-groups of "
             "1024 to 1048576",
     .note = "at least 1024 where the optimizer is offloaded"},
    {"offload-params", PARAM "device", FIELD(offload_param.device), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | AUTO | FILE_AUTO, .choices = places, .group = OFFLOAD, .usual = "\"none\"",
     .help = "at stage 3: where each rank's shards of parameters live; auto: in parts, in all "
             "tiers at once",
     .more = "[offload.md](../guide/offload.md)"},
    {"offload-param-ratio", PARAM "ratio", FIELD(offload_param.ratio), .type = ZR_OPTION_NUMBER,
     .flags = FILE_AUTO, .most = 1, .arg = "RATIO", .group = OFFLOAD,
     .help = "with --offload-params: how much of each rank's parameters is offloaded, at least, in "
             "whole shards of units; the rest stays on the device",
     .note = "DeepSpeed has no such key", .when = {&params_offloaded}, .idle = "0"},
    {"param-buffers", PARAM "buffer_count", FIELD(offload_param.n_buffers), .type = ZR_OPTION_COUNT,
     .flags = FILE_AUTO | ZR_OPTION_OR_AUTO, .least = 1, .most = ZR_SWAP_MAX_BUFFERS, .arg = "N",
     .group = OFFLOAD, .usual = "5",
     .help = "with --offload-params nvme: buffers in host memory that parameters pass through; "
             "auto: as with --nvme-buffers, else 5",
     .when = {&params_on_nvme}},
    {"param-buffer", PARAM "buffer_size", FIELD(offload_param.buffer_elems),
     .type = ZR_OPTION_COUNT, .flags = FILE_AUTO, .least = 1, .arg = "ELEMS", .group = OFFLOAD,
     .usual = "100000000",
     .help = "with --offload-params nvme: parameters in each of those buffers, at most",
     .more = "at least 4096 bytes of them, 1024 in fp32",
     .note = "rounded down to whole 256 KiB (or 4 KiB, where it is less than 256 KiB), at least 4 "
             "KiB; no buffer is larger than the largest shard, and a shard that is larger than a "
             "buffer is split",
     .when = {&params_on_nvme}},
    {"params-in-host", PARAM "max_in_cpu", FIELD(offload_param.max_in_cpu_elems),
     .type = ZR_OPTION_COUNT, .flags = FILE_AUTO, .arg = "ELEMS", .group = OFFLOAD,
     .usual = "1000000000",
     .help =
         "with --offload-params nvme: as many of each rank's parameters stay in host memory, in "
         "whole shards of units",
     .when = {&params_on_nvme}, .idle = "0"},
    /* nvme.store has no row: it names a backend that a program brings along (nvme.backend), which
     * neither a command line nor a file chooses. */
    {"nvme-path", STATE "nvme_path", FIELD(nvme.paths), .type = ZR_OPTION_PATHS, .flags = FILE_AUTO,
     .arg = "DIR[,DIR...]", .group = OFFLOAD, .initial = "none", .usual = "null",
     .help = "folders on the drives, with commas between, for everything that is offloaded to nvme",
     .more = "needed for `nvme`. Comes before folders of `--io-settings`, and those before the "
             "file's; it is said when one replaces the file's"},
    {NULL, PARAM "nvme_path", FIELD(nvme.paths), .type = ZR_OPTION_PATHS, .flags = FILE_AUTO,
     .usual = "null",
     .help = "folders on the drives, with commas between; the same as the optimizer's where both "
             "are"},
    {"nvme-capacity", NULL, FIELD(nvme.capacity_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = OFFLOAD, .initial = "no limit", .help = "what each rank may use on the drives",
     .flags = ZR_OPTION_OF_TRANSFERS, .when = {&on_nvme}, .idle = "0"},
    {"nvme-buffers", STATE "buffer_count", FIELD(offload_optimizer.n_buffers),
     .type = ZR_OPTION_COUNT, .flags = FILE_AUTO | ZR_OPTION_OR_AUTO | ZR_OPTION_OF_TRANSFERS,
     .least = 1, .most = ZR_SWAP_MAX_BUFFERS, .arg = "N", .group = OFFLOAD, .usual = "4",
     .help =
         "buffers in host memory: so many sub-groups of the optimizer's state are read, updated "
         "and written at once, and as many inputs of layers; auto: with --update-at backward as "
         "many as the largest unit fills, in a quarter of what the host budget leaves, else 4",
     .when = {&slices_on_nvme}},
    {NULL, STATE "pipeline_read", FIELD(offload_optimizer.read_ahead), .type = ZR_OPTION_SWITCH,
     .flags = FILE_AUTO, .usual = "false",
     .help = "for `\"nvme\"`: read the next sub-groups while one is updated",
     .when = {&state_on_nvme}},
    {NULL, STATE "pipeline_write", FIELD(offload_optimizer.write_behind), .type = ZR_OPTION_SWITCH,
     .flags = FILE_AUTO, .usual = "false",
     .help = "for `\"nvme\"`: write the last sub-groups while one is updated",
     .when = {&state_on_nvme}},
    {"nvme-verify", NULL, FIELD(nvme.verify), .type = ZR_OPTION_SWITCH, .group = OFFLOAD,
     .help = "make checksums of what is written to the drives, and verify them when it is read",
     .flags = ZR_OPTION_OF_TRANSFERS, .when = {&on_nvme}, .idle = "on off"},
    {NULL, "aio.block_size", FIELD(nvme.request_bytes), .type = ZR_OPTION_BYTES, .least = 4096,
     .most = (double)ZR_STORE_MAX_REQUEST_BYTES, .usual = "1048576",
     .help = "bytes per request; a multiple of 4096"},
    {NULL, "aio.queue_depth", FIELD(nvme.depth), .type = ZR_OPTION_COUNT, .least = 1,
     .most = ZR_STORE_MAX_DEPTH, .usual = "8", .help = "requests at once"},
    {NULL, NULL, FIELD(nvme.submit_batch), .type = ZR_OPTION_COUNT, .least = 1,
     .most = ZR_STORE_MAX_DEPTH, .help = "requests that are handed over at once"},
    {NULL, NULL, FIELD(nvme.files_per_path), .type = ZR_OPTION_COUNT, .least = 1,
     .most = ZR_STORE_MAX_PATHS, .help = "files in each folder; 16 together at most"},

    /* ---- the step ------------------------------------------------------------------------- */
    {NULL, "train_batch_size", FIELD(train_batch), .type = ZR_OPTION_COUNT,
     .flags = FILE_AUTO | UNSET0, .least = 1, .usual = "null",
     .help = "sequences per optimizer step, over all ranks"},
    {"micro-batch", "train_micro_batch_size_per_gpu", FIELD(micro_batch), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | UNSET0, .least = 1, .arg = "N", .group = STEP, .initial = "1",
     .usual = "null", .help = "sequences per rank and micro-batch"},
    {"grad-accum", "gradient_accumulation_steps", FIELD(grad_accum), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | UNSET0, .least = 1, .arg = "N", .group = STEP, .initial = "1",
     .usual = "null", .help = "micro-batches per step"},
    {"order", NULL, FIELD(order), .type = ZR_OPTION_CHOICE, .flags = AGREE | AUTO,
     .choices = orders, .group = STEP,
     .help = "of a step with several micro-batches: each of them through all blocks, or each block "
             "for all of them, which gathers and reads its parameters once per pass and holds "
             "the activations of all; auto: the faster that fits",
     .more = "[architecture.md](../internals/architecture.md#the-order-of-a-step)"},
    {"schedule", "scheduler.type", FIELD(schedule.kind), .type = ZR_OPTION_CHOICE, .flags = AGREE,
     .choices = schedules, .refused = "LRRangeTest OneCycle", .group = STEP, .usual = "null",
     .help =
         "how the learning rate moves after warm-up: down along a cosine to --min-lr-ratio, down "
         "along a line to 0, or not at all",
     .more = "`WarmupCosineLR`, `WarmupDecayLR`, `WarmupLR`",
     .note = "absent: the rate is constant"},
    {"warmup", "scheduler.params.warmup_num_steps", FIELD(schedule.warmup_steps),
     .type = ZR_OPTION_COUNT, .flags = AGREE | FILE_AUTO, .arg = "STEPS", .group = STEP,
     .initial = "a tenth of the steps", .usual = "1000", .help = "steps in which the rate rises",
     .note = "0: no warm-up (DeepSpeed refuses 0); 1 counts as 2, as in DeepSpeed",
     .when = {&with_warmup}, .idle = "0", .schedules = W | D | C},
    {"min-lr-ratio", "scheduler.params.cos_min_ratio", FIELD(schedule.cos_min_ratio),
     .type = ZR_OPTION_NUMBER, .flags = AGREE, .most = 1, .arg = "RATIO", .group = STEP,
     .usual = "0.0001", .help = "of the last rate to --lr (the optimizer's lr)",
     .when = {&with_cosine}, .idle = "1", .schedules = C},
    {NULL, "scheduler.params.warmup_min_lr", FIELD(schedule.warmup_min_lr),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_AUTO, .most = LARGEST_RATE, .usual = "0.0",
     .help = "the rate at step 0", .schedules = W | D},
    {NULL, "scheduler.params.warmup_max_lr", FIELD(schedule.warmup_max_lr),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_AUTO | UNSET0, .least = 1e-37,
     .most = LARGEST_RATE, .usual = "null",
     .help = "the rate after warm-up; absent: the optimizer's lr (WarmupDecayLR of DeepSpeed: "
             "0.001)",
     .schedules = W | D},
    {NULL, "scheduler.params.warmup_type", FIELD(schedule.warmup_log), .type = ZR_OPTION_SWITCH,
     .flags = AGREE, .choices = rises, .usual = "\"log\"", .help = "how the rate rises",
     .schedules = W | D | C},
    {NULL, "scheduler.params.total_num_steps", FIELD(schedule.total_steps), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | UNSET0, .least = 1,
     .help = "needed; \"auto\" or absent: the trainer's number of steps", .schedules = D | C},
    {NULL, "scheduler.params.warmup_min_ratio", FIELD(schedule.warmup_min_ratio),
     .type = ZR_OPTION_NUMBER, .flags = AGREE, .most = 1, .usual = "0.0",
     .help = "of the optimizer's lr, at step 0", .schedules = C},
    {"state", NULL, FIELD(state_form), .type = ZR_OPTION_CHOICE, .flags = AGREE,
     .choices = state_forms, .group = STEP,
     .help =
         "in how many bits the optimizer keeps what it adds up (m and v of AdamW, 8 bits with a "
         "scale for 256 of them), rounded at random; the master stays fp32. Other than fp32 "
         "change the result",
     .more = "[lean.md](../guide/lean.md)"},
    {"update-at", NULL, FIELD(update_at), .type = ZR_OPTION_CHOICE, .flags = AGREE | AUTO,
     .choices = moments, .group = STEP,
     .help = "at stages 2 and 3: update all parameters at the end of the step, or each unit behind "
             "the reduction of its gradients; with --clip or --check-overflow on, the old state is "
             "then kept until the norm is known; auto: the faster that fits",
     .more = "[offload.md](../guide/offload.md#updates-in-backward)"},
    {"check-overflow", "bf16.check_grad_overflow", FIELD(check_overflow), .type = ZR_OPTION_SWITCH,
     .flags = AGREE | FILE_AUTO, .group = STEP, .usual = "true",
     .help = "skip steps whose norm is not finite; off: such a step ends the run"},
    {"clip", "gradient_clipping", FIELD(clip), .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_AUTO,
     .most = 1e30, .arg = "NORM", .group = STEP, .usual = "1.0",
     .help = "largest norm of all gradients together; 0: no clipping"},

    /* ---- the optimizer, and its hyperparameters --------------------------------------------- */
    {"optimizer", "optimizer.type", FIELD(optimizer), .type = ZR_OPTION_CHOICE, .flags = AGREE,
     .choices = optimizers, .store = store_optimizer,
     .refused = "Adagrad Lamb Muon MuAdam MuAdamW MuSGD OneBitAdam OneBitLamb ZeroOneAdam RMSprop",
     .group = STEP, .usual = "null", .help = "what updates the parameters, and what state it has",
     .note = "Adam is AdamW, as in DeepSpeed"},
    {"lr", "optimizer.params.lr", FIELD(adamw.lr), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO, .most = LARGEST_RATE, .arg = "RATE", .group = STEP,
     .usual = "0.001", .help = "learning rate after warm-up",
     .note = "see scheduler.params.warmup_max_lr"},
    {"beta1", "optimizer.params.betas[0]", FIELD(adamw.beta1), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO, .most = LARGEST_BETA, .arg = "B", .group = STEP, .usual = "0.9",
     .when = {&with_betas}, .help = "AdamW's and Lion's: decay of the running mean"},
    {"beta2", "optimizer.params.betas[1]", FIELD(adamw.beta2), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO, .most = LARGEST_BETA, .arg = "B", .group = STEP, .usual = "0.999",
     .when = {&with_betas}, .initial = "0.95, Lion's 0.99",
     .help = "AdamW's: decay of the running square; Lion's: of its running mean"},
    {"epsilon", "optimizer.params.eps", FIELD(adamw.epsilon), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO, .least = LEAST_EPSILON, .most = 1, .arg = "E", .group = STEP,
     .usual = "1e-08", .when = {&with_epsilon}, .help = "AdamW's: added to the denominator"},
    {"weight-decay", "optimizer.params.weight_decay", FIELD(adamw.weight_decay),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_AUTO, .most = LARGEST_RATE, .arg = "RATE",
     .group = STEP, .usual = "0.0", .help = "of matrices; decoupled, SGD's coupled",
     .note = "of parameter group 0"},
    {"momentum", "optimizer.params.momentum", FIELD(momentum), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO, .most = LARGEST_BETA, .arg = "M", .group = STEP, .usual = "0.0",
     .when = {&with_momentum}, .help = "SGD's: decay of the running sum of gradients"},
    {"nesterov", "optimizer.params.nesterov", FIELD(nesterov), .type = ZR_OPTION_SWITCH,
     .flags = AGREE | FILE_AUTO, .group = STEP, .usual = "false", .when = {&with_momentum},
     .help = "SGD's: Nesterov's momentum"},

    /* ---- progress ------------------------------------------------------------------------- */
    {NULL, "steps_per_print", FIELD(steps_per_print), .type = ZR_OPTION_COUNT, .least = 1,
     .usual = "null", .help = "progress every so many steps"},
    {NULL, "wall_clock_breakdown", FIELD(wall_clock_breakdown), .type = ZR_OPTION_SWITCH,
     .usual = "false", .help = "log the parts of each step"},
};

const zr_option_t *zr_options(size_t *n_p) {
    *n_p = sizeof(rows) / sizeof(rows[0]);
    return rows;
}
