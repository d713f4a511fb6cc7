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
_Static_assert(sizeof(zr_master_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");
_Static_assert(sizeof(zr_optimizer_kind_t) == sizeof(int), "ZR_OPTION_CHOICE stores ints");

enum {
    AGREE = ZR_OPTION_AGREE,
    AUTO = ZR_OPTION_AUTO,
    UNSET0 = ZR_OPTION_UNSET0,
    FILE_AUTO = ZR_OPTION_FILE_AUTO,
    SAID = ZR_OPTION_SAID,
    KEPT = ZR_OPTION_KEPT,
    TOLD = ZR_OPTION_KEPT_TO_TELL,
    FILE_USUAL = ZR_OPTION_FILE_USUAL,
    FILE_ZERO = ZR_OPTION_FILE_ZERO,
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

static const zr_option_choice_t masters[] = {{"apart", ZR_MASTER_APART, NULL},
                                             {"split", ZR_MASTER_SPLIT, NULL},
                                             {"auto", ZR_MASTER_AUTO, NULL},
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
    is_stage_3, "has an effect only at stage 3; add --stage 3, or leave it out", true};
static const zr_option_when_t at_stages_1_3 = {
    gathers_params, "no parameters are gathered at stage 0; add --stage 1, 2 or 3", false};
static const zr_option_when_t between_groups = {
    feeds_errors_back,
    "nothing is encoded between groups of ranks; add --reduce-encoding and --shard-group-size "
    "RANKS",
    false};
static const zr_option_when_t with_outer_steps = {
    takes_outer_steps, "there are no outer steps; add --outer-every and --shard-group-size", false};
static const zr_option_when_t at_stages_2_3 = {
    shards_gradients,
    "at stages 0 and 1 every rank accumulates all gradients on the device; only gradient shards "
    "can be offloaded, at --stage 2 or 3",
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
    is_cosine, "this schedule does not use it; add --schedule cosine", false};

/* ---- rows ---------------------------------------------------------------------------------- */

#define ZERO "zero_optimization."
#define STATE ZERO "offload_optimizer."
#define PARAM ZERO "offload_param."

static const zr_option_t rows[] = {
    /* ---- ranks --------------------------------------------------------------------------- */
    {"stage", ZERO "stage", FIELD(stage), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | AUTO | FILE_AUTO | SAID, .choices = stages, .group = RANKS, .usual = "0",
     .help = "ZeRO stage: what is sharded. 0: nothing, 1: optimizer state, 2: gradients too, 3: "
             "parameters too; auto: the fastest stage that fits, by planning all",
     .more = "[plan.md](../guide/plan.md#let-zero-train-choose)"},
    {"shard-group-size", ZERO "mics_shard_size", FIELD(shard_group_size), .type = ZR_OPTION_INT,
     .flags = AGREE | AUTO | FILE_AUTO | ZR_OPTION_OR_ALL, .least = 1, .most = ZR_MAX_SUM_SOURCES,
     .arg = "RANKS|all|auto", .group = RANKS, .usual = "-1",
     .help =
         "ranks that share one sharded copy (hybrid sharding): gathers stay within groups of this "
         "many consecutive ranks, and gradients are summed between groups once per step; auto, and "
         "the default with --stage auto: the best planned size, on one machine all ranks",
     .more = "must divide the ranks ([clusters.md](../guide/clusters.md#groups-hybrid-sharding))"},
    {"dtype", "bf16.enabled", FIELD(dtype), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | FILE_AUTO | SAID | KEPT, .choices = dtypes, .group = RANKS, .usual = "false",
     .help = "dtype of parameters and gradients", .note = "true: bf16; false: fp32"},
    {"reduce", NULL, FIELD(reduce), .type = ZR_OPTION_CHOICE, .flags = AGREE | KEPT,
     .choices = reductions, .group = RANKS,
     .help = "when gradients are reduced over ranks; auto: once per step at stages 0 and 1 and "
             "with --order block, else every micro-batch",
     .more = "the other makes all four stages bitwise equal with `--grad-accum`, but for what "
             "[encodings](../guide/lean.md#on-the-wire) change"},
    {"prefetch", ZERO "stage3_prefetch_bucket_size", FIELD(prefetch_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | ZR_OPTION_OR_ALL, .arg = "ELEMS|all", .group = RANKS,
     .usual = "50000000",
     .help = "stage 3: gather the next unit while one computes, if it has at most this many "
             "parameters; all: of any size, where the plan says that it fits",
     .when = {&at_stage_3}, .idle = "0"},
    {"max-live", ZERO "stage3_max_live_parameters", FIELD(max_live_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | ZR_OPTION_OR_ALL, .arg = "ELEMS|all", .group = RANKS,
     .usual = "1000000000",
     .help =
         "stage 3: maximum number of parameters that are gathered at a time by a prefetch; 0: none "
         "is gathered ahead",
     .when = {&at_stage_3}},
    {NULL, ZERO "stage3_max_reuse_distance", FIELD(reuse_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO, .usual = "1000000000",
     .help = "stage 3: keep a released unit gathered if its next use is at most this many gathered "
             "parameters away (libzero's default is 0: never)",
     .when = {&at_stage_3}},
    {"gather-encoding", NULL, FIELD(gather_encoding), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | TOLD, .choices = gathered, .group = RANKS,
     .help = "encoding of gathered parameters (lossy): all ranks compute with the same decoded "
             "values; masters are not affected; frozen ones are gathered, and so encoded, at stage "
             "3 alone, whose result differs then",
     .more = "[lean.md](../guide/lean.md#on-the-wire)", .when = {&at_stages_1_3}, .idle = "none"},
    {"reduce-encoding", NULL, FIELD(reduce_encoding), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | TOLD, .choices = reduced, .group = RANKS,
     .help = "encoding of gradients between ranks (lossy); sums are computed in fp32; at stage 0 "
             "they are sent to all ranks encoded, too, so that its result differs",
     .more = "[lean.md](../guide/lean.md#on-the-wire)"},
    {"error-feedback", NULL, FIELD(error_feedback), .type = ZR_OPTION_SWITCH, .flags = AGREE | TOLD,
     .group = RANKS,
     .help = "with --reduce-encoding and groups: add the encoding error of messages between groups "
             "to those of the next step; a checkpoint drops them, which changes the result",
     .more = "[lean.md](../guide/lean.md#on-the-wire)", .when = {&between_groups}, .idle = "off"},
    {"outer-every", NULL, FIELD(outer_every), .type = ZR_OPTION_COUNT, .flags = AGREE | TOLD,
     .arg = "STEPS", .group = RANKS,
     .help = "with --shard-group-size: each group takes this many local steps before an outer step "
             "of all groups (DiLoCo), which changes the result; 0: no local steps",
     .more = "[lean.md](../guide/lean.md#local-steps)"},
    {"outer-lr", NULL, FIELD(outer_lr), .type = ZR_OPTION_NUMBER, .flags = AGREE | TOLD,
     .most = LARGEST_RATE, .arg = "RATE", .group = RANKS, .when = {&with_outer_steps},
     .help = "learning rate of outer steps"},
    {"outer-momentum", NULL, FIELD(outer_momentum), .type = ZR_OPTION_NUMBER, .flags = AGREE | TOLD,
     .most = LARGEST_BETA, .arg = "BETA", .group = RANKS, .when = {&with_outer_steps},
     .help = "Nesterov momentum of outer steps"},
    {"overlap-comm", ZERO "overlap_comm", FIELD(overlap_comm), .type = ZR_OPTION_SWITCH,
     .flags = FILE_AUTO, .group = RANKS, .usual = "null",
     .help = "overlap gathers and reductions with compute, on GPUs and between hosts",
     .note = "DeepSpeed: by default at stage 3 only"},

    /* ---- the machine ---------------------------------------------------------------------- */
    {"device-memory", NULL, FIELD(device_memory_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = MACHINE, .initial = "no limit", .least = 1,
     .help = "device memory of each rank, such as 512MiB or 16GB"},
    {"host-memory", NULL, FIELD(host_memory_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = MACHINE, .initial = "no limit", .least = 1, .help = "host memory of each rank"},
    {"memory", NULL, FIELD(process_memory_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = MACHINE, .initial = "no limit", .least = 1,
     .help = "host memory of the whole process: tensors of all its ranks, pinned memory, the "
             "library's tables, and 64 MiB for the program and its threads' stacks",
     .more = "[offload.md](../guide/offload.md#the-process)"},
    {"plan-check", NULL, FIELD(plan_check), .type = ZR_OPTION_SWITCH, .group = MACHINE,
     .help = "plan the run first, and refuse one that does not fit; off: start it without a check",
     .more = "[plan.md](../guide/plan.md#let-zero-train-choose)"},
    {"memory-plan", NULL, FIELD(plan_memory), .type = ZR_OPTION_SWITCH, .group = MACHINE,
     .help = "place allocations within a step by a plan made from the previous step",
     .more = "[allocator.md](../internals/allocator.md)"},
    {NULL, NULL, FIELD(host_threads), .type = ZR_OPTION_INT,
     .help = "threads for updates on the host, if the device is not the host; 0: all cores"},

    /* ---- offload -------------------------------------------------------------------------- */
    {"offload-optimizer", STATE "device", FIELD(offload_optimizer.device), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | AUTO | FILE_AUTO, .choices = places, .group = OFFLOAD, .usual = "\"none\"",
     .help = "where the optimizer state is stored: on the device, in host memory, or in files on "
             "drives; auto: divided among all tiers",
     .more = "[offload.md](../guide/offload.md)"},
    {"offload-ratio", STATE "ratio", FIELD(offload_optimizer.ratio), .type = ZR_OPTION_NUMBER,
     .flags = FILE_AUTO, .most = 1, .arg = "RATIO", .group = OFFLOAD, .usual = "1.0",
     .help = "minimum fraction of the optimizer state that is offloaded, in whole sub-groups, at "
             "any stage; the rest stays on the device",
     .when = {&state_offloaded}, .idle = "0"},
    {"state-in-host", NULL, FIELD(offload_optimizer.max_in_cpu_elems), .type = ZR_OPTION_COUNT,
     .arg = "ELEMS", .group = OFFLOAD,
     .help = "with --offload-optimizer nvme: parameters whose state stays in host memory, in whole "
             "sub-groups",
     .when = {&state_on_nvme}, .idle = "0"},
    {"offload-gradients", NULL, FIELD(offload_optimizer.gradients), .type = ZR_OPTION_CHOICE,
     .flags = AGREE, .choices = places, .group = OFFLOAD,
     .help = "with --offload-optimizer, at stages 2 and 3: where gradients of offloaded state wait "
             "for the update",
     .more = "[offload.md](../guide/offload.md#gradients)",
     .when = {&state_offloaded, &at_stages_2_3}, .idle = "none"},
    {"offload-gradients-ratio", NULL, FIELD(offload_optimizer.gradients_ratio),
     .type = ZR_OPTION_NUMBER, .flags = AGREE, .most = 1, .arg = "RATIO", .group = OFFLOAD,
     .help = "with --offload-gradients cpu or nvme: minimum fraction of these gradients that waits "
             "there, in whole sub-groups; the rest waits on the device",
     .more = "[offload.md](../guide/offload.md#gradients)",
     .when = {&state_offloaded, &at_stages_2_3}, .idle = "0"},
    {"gradients-in-host", NULL, FIELD(offload_optimizer.gradients_in_cpu_elems),
     .type = ZR_OPTION_COUNT, .arg = "ELEMS", .group = OFFLOAD,
     .help = "with --offload-gradients nvme: parameters whose gradients wait in host memory, in "
             "whole sub-groups",
     .more = "[offload.md](../guide/offload.md#gradients)", .when = {&grads_on_nvme}, .idle = "0"},
    {"update-on", NULL, FIELD(offload_optimizer.update_on), .type = ZR_OPTION_CHOICE,
     .choices = updates, .group = OFFLOAD,
     .help = "with --offload-optimizer: where offloaded state is updated; auto: the faster place, "
             "measured at the start",
     .more = "[offload.md](../guide/offload.md)", .when = {&state_offloaded},
     .idle = "auto device"},
    {"sub-group", ZERO "sub_group_size", FIELD(sub_group_elems), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | FILE_ZERO, .least = 1, .arg = "ELEMS", .group = OFFLOAD,
     .usual = "1000000000",
     .help = "parameters that are updated at a time; offloaded state is moved in sub-groups of "
             "1024 to 1048576",
     .note = "at least 1024 if the optimizer is offloaded"},
    {"offload-params", PARAM "device", FIELD(offload_param.device), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | AUTO | FILE_AUTO, .choices = places, .group = OFFLOAD, .usual = "\"none\"",
     .help =
         "at stage 3: where each rank's parameter shards are stored; auto: divided among all tiers",
     .more = "[offload.md](../guide/offload.md)"},
    {"offload-param-ratio", PARAM "ratio", FIELD(offload_param.ratio), .type = ZR_OPTION_NUMBER,
     .flags = FILE_AUTO, .most = 1, .arg = "RATIO", .group = OFFLOAD,
     .help = "with --offload-params: minimum fraction of each rank's parameters that is offloaded, "
             "in whole shards of units; the rest stays on the device",
     .note = "DeepSpeed has no such key", .when = {&params_offloaded}, .idle = "0"},
    {"param-buffers", PARAM "buffer_count", FIELD(offload_param.n_buffers), .type = ZR_OPTION_COUNT,
     .flags = FILE_AUTO | ZR_OPTION_OR_AUTO | FILE_ZERO, .least = 1, .most = ZR_SWAP_MAX_BUFFERS,
     .arg = "N", .group = OFFLOAD, .usual = "5",
     .help = "with --offload-params nvme: staging buffers in host memory; "
             "auto: as with --nvme-buffers, else 5",
     .when = {&params_on_nvme}},
    {"param-buffer", PARAM "buffer_size", FIELD(offload_param.buffer_elems),
     .type = ZR_OPTION_COUNT, .flags = FILE_AUTO | FILE_ZERO, .least = 1, .arg = "ELEMS",
     .group = OFFLOAD, .usual = "100000000",
     .help = "with --offload-params nvme: maximum parameters per staging buffer",
     .more = "at least 4096 bytes, or 1024 parameters in fp32",
     .note = "rounded down to a multiple of 256 KiB (of 4 KiB if less than 256 KiB), at least 4 "
             "KiB; buffers are at most as large as the largest shard, and larger shards are split",
     .when = {&params_on_nvme}},
    {"params-in-host", PARAM "max_in_cpu", FIELD(offload_param.max_in_cpu_elems),
     .type = ZR_OPTION_COUNT, .flags = FILE_AUTO, .arg = "ELEMS", .group = OFFLOAD,
     .usual = "1000000000",
     .help = "with --offload-params nvme: parameters of each rank that stay in host memory, in "
             "whole shards of units",
     .when = {&params_on_nvme}, .idle = "0"},
    /* nvme.store has no row: it names a backend that a program brings along (nvme.backend), which
     * neither a command line nor a file chooses. */
    {"nvme-path", STATE "nvme_path", FIELD(nvme.paths), .type = ZR_OPTION_PATHS, .flags = FILE_AUTO,
     .arg = "DIR[,DIR...]", .group = OFFLOAD, .initial = "none", .usual = "null",
     .help = "comma-separated folders on the drives, for everything that is offloaded to nvme",
     .more = "required for `nvme`. Overrides the folders of `--io-settings`, which override the "
             "file's; a message tells when the file's are overridden"},
    {NULL, PARAM "nvme_path", FIELD(nvme.paths), .type = ZR_OPTION_PATHS, .flags = FILE_AUTO,
     .usual = "null",
     .help = "comma-separated folders on the drives; the same as the optimizer's if both are set"},
    {"nvme-capacity", NULL, FIELD(nvme.capacity_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .group = OFFLOAD, .initial = "no limit", .help = "space on the drives for each rank",
     .flags = ZR_OPTION_OF_TRANSFERS, .when = {&on_nvme}, .idle = "0"},
    {"nvme-buffers", STATE "buffer_count", FIELD(offload_optimizer.n_buffers),
     .type = ZR_OPTION_COUNT,
     .flags = FILE_AUTO | ZR_OPTION_OR_AUTO | ZR_OPTION_OF_TRANSFERS | FILE_ZERO, .least = 1,
     .most = ZR_SWAP_MAX_BUFFERS, .arg = "N", .group = OFFLOAD, .usual = "4",
     .help =
         "buffers in host memory: this many sub-groups of optimizer state are read, updated and "
         "written concurrently, and as many inputs of layers; auto: with --update-at backward as "
         "many as the largest unit fills four times, in 9/10 of what the host budget leaves, else "
         "4",
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
     .help = "compute checksums of data written to the drives, and verify them when it is read",
     .flags = ZR_OPTION_OF_TRANSFERS, .when = {&on_nvme}, .idle = "on off"},
    {NULL, "aio.block_size", FIELD(nvme.request_bytes), .type = ZR_OPTION_BYTES, .least = 4096,
     .most = (double)ZR_STORE_MAX_REQUEST_BYTES, .usual = "1048576",
     .help = "bytes per request; a multiple of 4096"},
    {NULL, "aio.queue_depth", FIELD(nvme.depth), .type = ZR_OPTION_COUNT, .least = 1,
     .most = ZR_STORE_MAX_DEPTH, .usual = "8", .help = "requests at once"},
    {NULL, NULL, FIELD(nvme.submit_batch), .type = ZR_OPTION_COUNT, .least = 1,
     .most = ZR_STORE_MAX_DEPTH, .help = "requests submitted per system call"},
    {NULL, NULL, FIELD(nvme.files_per_path), .type = ZR_OPTION_COUNT, .least = 1,
     .most = ZR_STORE_MAX_PATHS, .help = "files in each folder; at most 16 in total"},

    /* ---- the step ------------------------------------------------------------------------- */
    {NULL, "train_batch_size", FIELD(train_batch), .type = ZR_OPTION_COUNT,
     .flags = FILE_AUTO | UNSET0 | KEPT, .least = 1, .usual = "null",
     .help = "sequences per optimizer step, over all ranks"},
    {"micro-batch", "train_micro_batch_size_per_gpu", FIELD(micro_batch), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | UNSET0 | KEPT, .least = 1, .arg = "N", .group = STEP,
     .initial = "1", .usual = "null", .help = "sequences per rank and micro-batch"},
    {"grad-accum", "gradient_accumulation_steps", FIELD(grad_accum), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | UNSET0 | KEPT, .least = 1, .arg = "N", .group = STEP,
     .initial = "1", .usual = "null", .help = "micro-batches per step"},
    {"order", NULL, FIELD(order), .type = ZR_OPTION_CHOICE, .flags = AGREE | AUTO | KEPT,
     .choices = orders, .group = STEP,
     .help =
         "order of a step with several micro-batches. micro-batch: each micro-batch goes through "
         "all blocks; block: each block computes all micro-batches, which gathers and reads "
         "parameters once per pass but holds all activations; auto: the faster one that fits",
     .more = "[architecture.md](../internals/architecture.md#the-order-of-a-step)"},
    {"schedule", "scheduler.type", FIELD(schedule.kind), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | KEPT, .choices = schedules, .refused = "LRRangeTest OneCycle", .group = STEP,
     .usual = "null",
     .help = "learning rate schedule after warm-up. cosine: cosine decay to --min-lr-ratio; "
             "linear: linear decay to 0; constant: no decay",
     .more = "`WarmupCosineLR`, `WarmupDecayLR`, `WarmupLR`",
     .note = "absent: the rate is constant"},
    {"warmup", "scheduler.params.warmup_num_steps", FIELD(schedule.warmup_steps),
     .type = ZR_OPTION_COUNT, .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .arg = "STEPS",
     .group = STEP, .initial = "a tenth of the steps", .usual = "1000", .help = "warm-up steps",
     .note = "0: no warm-up (DeepSpeed refuses 0); 1 counts as 2, as in DeepSpeed",
     .when = {&with_warmup}, .idle = "0", .schedules = W | D | C},
    {"min-lr-ratio", "scheduler.params.cos_min_ratio", FIELD(schedule.cos_min_ratio),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_USUAL | KEPT, .most = 1, .arg = "RATIO",
     .group = STEP, .usual = "0.0001",
     .help = "final learning rate, as a fraction of --lr (the optimizer's lr)",
     .when = {&with_cosine}, .idle = "1", .schedules = C},
    {NULL, "scheduler.params.warmup_min_lr", FIELD(schedule.warmup_min_lr),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .most = LARGEST_RATE,
     .usual = "0.0", .help = "the rate at step 0", .schedules = W | D},
    {NULL, "scheduler.params.warmup_max_lr", FIELD(schedule.warmup_max_lr),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_AUTO | UNSET0 | KEPT, .least = 1e-37,
     .most = LARGEST_RATE, .usual = "null",
     .help = "the rate after warm-up; absent: the optimizer's lr, of WarmupDecayLR 0.001, as in "
             "DeepSpeed",
     .schedules = W | D},
    {NULL, "scheduler.params.warmup_type", FIELD(schedule.warmup_log), .type = ZR_OPTION_SWITCH,
     .flags = AGREE | FILE_USUAL | KEPT, .choices = rises, .usual = "\"log\"",
     .help = "shape of the warm-up", .schedules = W | D | C},
    {NULL, "scheduler.params.total_num_steps", FIELD(schedule.total_steps), .type = ZR_OPTION_COUNT,
     .flags = AGREE | FILE_AUTO | UNSET0 | KEPT, .least = 1,
     .help = "required; \"auto\" or absent: the trainer's number of steps", .schedules = D | C},
    {NULL, "scheduler.params.warmup_min_ratio", FIELD(schedule.warmup_min_ratio),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_USUAL | KEPT, .most = 1, .usual = "0.0",
     .help = "fraction of the optimizer's lr at step 0", .schedules = C},
    {"state", NULL, FIELD(state_form), .type = ZR_OPTION_CHOICE, .flags = AGREE | KEPT,
     .choices = state_forms, .group = STEP,
     .help = "precision of the optimizer's moments (m and v of AdamW; 8bit: with one scale per 256 "
             "values), stochastically rounded; the master stays fp32. Values other than fp32 "
             "change the result",
     .more = "[lean.md](../guide/lean.md)"},
    {"master", NULL, FIELD(master), .type = ZR_OPTION_CHOICE, .flags = AGREE, .choices = masters,
     .group = STEP,
     .help = "where the fp32 master of trained parameters is: apart: in the optimizer's state, 4 "
             "bytes; split: parameters in fp32 are it, those in bf16 its upper half with 2 bytes "
             "more in the state; same bits. auto: split where it is possible and not slower",
     .more = "[lean.md](../guide/lean.md)"},
    {"update-at", NULL, FIELD(update_at), .type = ZR_OPTION_CHOICE, .flags = AGREE | AUTO,
     .choices = moments, .group = STEP,
     .help =
         "at stages 2 and 3. end: update all parameters at the end of the step; backward: update "
         "each unit right after the reduction of its gradients; with --clip or --check-overflow "
         "on, the old state is then kept until the norm is known; auto: the faster one that fits",
     .more = "[offload.md](../guide/offload.md#updates-in-backward)"},
    {"check-overflow", "bf16.check_grad_overflow", FIELD(check_overflow), .type = ZR_OPTION_SWITCH,
     .flags = AGREE | FILE_AUTO | KEPT, .group = STEP, .usual = "true",
     .help = "skip steps whose gradient norm is not finite; off: such a step ends the run"},
    {"clip", "gradient_clipping", FIELD(clip), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .most = 1e30, .arg = "NORM", .group = STEP,
     .usual = "1.0", .help = "maximum global gradient norm; 0: no clipping"},

    /* ---- the optimizer, and its hyperparameters --------------------------------------------- */
    {"optimizer", "optimizer.type", FIELD(optimizer), .type = ZR_OPTION_CHOICE,
     .flags = AGREE | KEPT, .choices = optimizers, .store = store_optimizer,
     .refused = "Adagrad Lamb Muon MuAdam MuAdamW MuSGD OneBitAdam OneBitLamb ZeroOneAdam RMSprop",
     .group = STEP, .usual = "null", .help = "optimizer", .note = "Adam is AdamW, as in DeepSpeed"},
    {"lr", "optimizer.params.lr", FIELD(adamw.lr), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .most = LARGEST_RATE, .arg = "RATE",
     .group = STEP, .usual = "0.001", .help = "learning rate after warm-up",
     .note = "see scheduler.params.warmup_max_lr"},
    {"beta1", "optimizer.params.betas[0]", FIELD(adamw.beta1), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .most = LARGEST_BETA, .arg = "B",
     .group = STEP, .usual = "0.9", .when = {&with_betas},
     .help = "AdamW's and Lion's: decay of the running mean"},
    {"beta2", "optimizer.params.betas[1]", FIELD(adamw.beta2), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .most = LARGEST_BETA, .arg = "B",
     .group = STEP, .usual = "0.999", .when = {&with_betas}, .initial = "0.95, Lion's 0.99",
     .help = "AdamW's: decay of the running square; Lion's: of its running mean"},
    {"epsilon", "optimizer.params.eps", FIELD(adamw.epsilon), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .least = LEAST_EPSILON, .most = 1, .arg = "E",
     .group = STEP, .usual = "1e-08", .when = {&with_epsilon},
     .help = "AdamW's: added to the denominator"},
    {"weight-decay", "optimizer.params.weight_decay", FIELD(adamw.weight_decay),
     .type = ZR_OPTION_NUMBER, .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .most = LARGEST_RATE,
     .arg = "RATE", .group = STEP, .usual = "0.0",
     .help = "weight decay of matrices; decoupled, for SGD coupled",
     .note = "of parameter group 0"},
    {"momentum", "optimizer.params.momentum", FIELD(momentum), .type = ZR_OPTION_NUMBER,
     .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .most = LARGEST_BETA, .arg = "M",
     .group = STEP, .usual = "0.0", .when = {&with_momentum},
     .help = "SGD's: decay of the running sum of gradients"},
    {"nesterov", "optimizer.params.nesterov", FIELD(nesterov), .type = ZR_OPTION_SWITCH,
     .flags = AGREE | FILE_AUTO | FILE_USUAL | KEPT, .group = STEP, .usual = "false",
     .when = {&with_momentum}, .help = "SGD's: Nesterov's momentum"},

    /* ---- progress ------------------------------------------------------------------------- */
    {NULL, "steps_per_print", FIELD(steps_per_print), .type = ZR_OPTION_COUNT, .least = 1,
     .usual = "null", .help = "print progress every N steps"},
    {NULL, "wall_clock_breakdown", FIELD(wall_clock_breakdown), .type = ZR_OPTION_SWITCH,
     .usual = "false", .help = "log the parts of each step"},
};

const zr_option_t *zr_options(size_t *n_p) {
    *n_p = sizeof(rows) / sizeof(rows[0]);
    return rows;
}
