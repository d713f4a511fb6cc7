/*
 * The command line is parsed twice where it names a configuration file: first to find the
 * file, then over what the file says, so that options override it whatever their order.
 */
#include "examples/train/options.h"
#include "examples/train/auto.h"
#include "examples/train/io_settings.h"
#include "examples/train/launch.h"
#include "examples/train/trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/args.h"
#include "examples/common/device.h"
#include "examples/common/files.h"

#define DEFAULT_MODEL "layers=4,channels=256,heads=4,seq=256,vocab=256"
#define MOST_THREADS 1024
#define MOST_COUNT ((size_t)1 << 40) /* of steps, sequences, tokens */
#define MOST_TIMEOUT_SECONDS 86400
/* What the update can work with in fp32. */
#define LARGEST_BETA 0.999999
#define LEAST_EPSILON 1e-37

enum option_key {
    KEY_MODEL = 0x100, /* beyond characters: no short options */
    KEY_DATA,
    KEY_SEQ,
    KEY_SEQ_MIN,
    KEY_SEED,
    KEY_STEPS,
    KEY_STAGE,
    KEY_HARDWARE,
    KEY_RANKS,
    KEY_DTYPE,
    KEY_REDUCE,
    KEY_PREFETCH,
    KEY_MEMORY_PLAN,
    KEY_MAX_LIVE,
    KEY_SUMS,
    KEY_OVERLAP_COMM,
    KEY_SHARD_GROUP_SIZE,
    KEY_RECOMPUTE,
    KEY_FREEZE,
    KEY_DEVICE,
    KEY_DEVICE_MEMORY,
    KEY_HOST_MEMORY,
    KEY_THREADS,
    KEY_COMM_TIMEOUT,
    KEY_COMM,
    KEY_MICRO_BATCH,
    KEY_GRAD_ACCUM,
    KEY_LR,
    KEY_CLIP,
    KEY_CHECK_OVERFLOW,
    KEY_WEIGHT_DECAY,
    KEY_BETA1,
    KEY_BETA2,
    KEY_EPSILON,
    KEY_SCHEDULE,
    KEY_WARMUP,
    KEY_MIN_LR_RATIO,
    KEY_CONFIG,
    KEY_LOG,
    KEY_MEMORY_SNAPSHOT,
    KEY_JSON,
    KEY_QUIET,
    KEY_HELP,
    KEY_VERSION,
    KEY_OFFLOAD_OPTIMIZER,
    KEY_OFFLOAD_RATIO,
    KEY_STATE_IN_HOST,
    KEY_OFFLOAD_GRADIENTS,
    KEY_OFFLOAD_GRADIENTS_RATIO,
    KEY_UPDATE_ON,
    KEY_OFFLOAD_ACTIVATIONS,
    KEY_NVME_PATH,
    KEY_NVME_CAPACITY,
    KEY_NVME_BUFFERS,
    KEY_NVME_VERIFY,
    KEY_NVME_TBW,
    KEY_IO_SETTINGS,
    KEY_SUB_GROUP,
    KEY_OFFLOAD_PARAMS,
    KEY_OFFLOAD_PARAM_RATIO,
    KEY_PARAM_BUFFERS,
    KEY_PARAM_BUFFER,
    KEY_PARAM_IN_HOST,
    KEY_CHECKPOINT_DIR,
    KEY_CHECKPOINT_EVERY,
    KEY_CHECKPOINT_KEEP,
    KEY_CHECKPOINT_ASYNC,
    KEY_RESUME,
    KEY_RESUME_DATA,
    KEY_TRACE,
    KEY_TRACE_STEPS,
};

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "What to train:", 1},
    {"model", KEY_MODEL, "NAME|SIZES", 0,
     "gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt3-6.7b, gpt3-13b, gpt3-175b, or sizes such "
     "as " DEFAULT_MODEL " (the default)",
     1},
    {"data", KEY_DATA, "PATH...", 0,
     "text files or folders (a token is a byte), or llm.c's token files; further paths may follow",
     1},
    {"seq", KEY_SEQ, "TOKENS", 0, "tokens per sequence (default: the model's seq)", 1},
    {"seq-min", KEY_SEQ_MIN, "TOKENS", 0,
     "vary the length: cut each micro-batch's sequences to their first TOKENS to --seq tokens, "
     "drawn from the seed (default: --seq, all are equally long)",
     1},
    {"steps", KEY_STEPS, "N", 0, "optimizer steps (default 100)", 1},
    {"seed", KEY_SEED, "N", 0,
     "of the initial weights and of the order and lengths of the data (default 1)", 1},
    {"freeze", KEY_FREEZE, "NAMES", 0,
     "parameters that are not trained, by name or the part of it before a dot: wte,h.0", 1},

    {NULL, 0, NULL, 0, "How it is spread over ranks:", 2},
    {"stage", KEY_STAGE, "0|1|2|3|auto", 0,
     "what is sharded: nothing, optimizer state, gradients too, parameters too (default 0); auto: "
     "the fastest that fits, by planning all",
     2},
    {"hardware", KEY_HARDWARE, "FILE", 0,
     "what auto plans with: rates of this machine, as zero-bench --save-hardware FILE has measured "
     "them with as many ranks (default: those of an assumed one)",
     2},
    {"ranks", KEY_RANKS, "N", 0, "ranks, as threads of this process (default 1)", 2},
    {"shard-group-size", KEY_SHARD_GROUP_SIZE, "RANKS|all|auto", 0,
     "ranks that share one copy of what is sharded: gathers stay within groups of so many, in "
     "order of rank, and gradients are added between them once per step; auto, and the default "
     "with --stage auto: what a plan finds best, which on one machine is all (default: all ranks)",
     2},
    {"dtype", KEY_DTYPE, "fp32|bf16", 0, "of parameters and gradients (default fp32)", 2},
    {"reduce", KEY_REDUCE, "auto|every-micro-batch", 0,
     "when gradients are added over ranks; auto: once per step at stages 0 and 1", 2},
    {"prefetch", KEY_PREFETCH, "ELEMS", 0,
     "stage 3: parameters that may be gathered ahead of their use (default 50000000)", 2},
    {"max-live", KEY_MAX_LIVE, "ELEMS", 0,
     "stage 3: stop gathering ahead at so many gathered parameters (default 1000000000)", 2},
    {"sums", KEY_SUMS, "rank-order|any", 0,
     "of ranks' numbers: rank-order, the same bits wherever they are made; any: with --comm nccl, "
     "NCCL's order and rounding, which sends less between nodes (default rank-order)",
     2},
    {"overlap-comm", KEY_OVERLAP_COMM, "auto|on|off", 0,
     "compute while ranks gather and reduce; auto: on GPUs, and on the host where ranks are on "
     "several machines (default auto)",
     2},
    {"recompute", KEY_RECOMPUTE, "none|unit", 0,
     "unit: keep each layer's input only and compute the rest again (default none)", 2},

    {NULL, 0, NULL, 0, "The machine:", 3},
    {"device", KEY_DEVICE, "auto|host|cuda[:N]", 0, "where it runs (default auto)", 3},
    {"device-memory", KEY_DEVICE_MEMORY, "SIZE", 0,
     "device memory of each rank, such as 512MiB or 16GB (default: no limit)", 3},
    {"host-memory", KEY_HOST_MEMORY, "SIZE", 0, "host memory of each rank (default: no limit)", 3},
    {"memory-plan", KEY_MEMORY_PLAN, "on|off", 0,
     "on: place what lives within a step by a plan of the step before (default on)", 3},
    {"threads", KEY_THREADS, "N", 0, "of each rank (default 0: the cores, divided by the ranks)",
     3},
    {"comm", KEY_COMM, "threads|nccl|mpi", 0,
     "how ranks exchange data: threads of this process (default threads); nccl: with a GPU each; "
     "mpi: processes on the host, as mpirun starts them (default there)",
     3},
    {"comm-timeout", KEY_COMM_TIMEOUT, "SECONDS", 0,
     "how long a rank waits for another (default 60)", 3},

    {NULL, 0, NULL, 0, "Offload (cpu: to host memory, nvme: to files on drives):", 4},
    {"offload-optimizer", KEY_OFFLOAD_OPTIMIZER, "none|cpu|nvme|auto", 0,
     "where the optimizer's state lives (default none: on the device); auto: as far up as fits", 4},
    {"offload-ratio", KEY_OFFLOAD_RATIO, "RATIO", 0,
     "how much of the optimizer's state is offloaded, at least; the rest stays on the device "
     "(default 1)",
     4},
    {"state-in-host", KEY_STATE_IN_HOST, "ELEMS", 0,
     "with --offload-optimizer nvme: as many parameters' state, in whole sub-groups, stays in host "
     "memory (default 0)",
     4},
    {"offload-gradients", KEY_OFFLOAD_GRADIENTS, "none|cpu", 0,
     "with --offload-optimizer, at stages 2 and 3: where gradients wait for an update on the host "
     "(default cpu)",
     4},
    {"offload-gradients-ratio", KEY_OFFLOAD_GRADIENTS_RATIO, "RATIO", 0,
     "how much of them waits in host memory, at least; the rest waits on the device (default 1)",
     4},
    {"update-on", KEY_UPDATE_ON, "auto|host|device", 0,
     "with --offload-optimizer: where what is offloaded is updated (default auto: the faster, "
     "measured at the start)",
     4},
    {"offload-activations", KEY_OFFLOAD_ACTIVATIONS, "none|cpu|nvme", 0,
     "with --recompute unit: where each layer's input waits for backward (default none: on the "
     "device)",
     4},
    {"sub-group", KEY_SUB_GROUP, "ELEMS", 0,
     "parameters that are updated at a time (default 1000000000); what is offloaded is moved in "
     "sub-groups of 1024 to 1048576",
     4},
    {"offload-params", KEY_OFFLOAD_PARAMS, "none|cpu|nvme|auto", 0,
     "at stage 3: where each rank's parameters live (default none: on the device)", 4},
    {"offload-param-ratio", KEY_OFFLOAD_PARAM_RATIO, "RATIO", 0,
     "with --offload-params: how much of each rank's parameters is offloaded, at least, in whole "
     "shards of units; the rest stays on the device (default 1)",
     4},
    {"param-buffers", KEY_PARAM_BUFFERS, "N", 0,
     "with --offload-params nvme: buffers in host memory that parameters pass through (default 5)",
     4},
    {"param-buffer", KEY_PARAM_BUFFER, "ELEMS", 0,
     "with --offload-params nvme: parameters in each of those buffers, at most (default 4194304)",
     4},
    {"params-in-host", KEY_PARAM_IN_HOST, "ELEMS", 0,
     "with --offload-params nvme: as many of each rank's parameters stay in host memory, in whole "
     "shards (default 0)",
     4},
    {"nvme-path", KEY_NVME_PATH, "DIR[,DIR...]", 0,
     "folders on the drives, for everything that is offloaded to nvme", 4},
    {"nvme-capacity", KEY_NVME_CAPACITY, "SIZE", 0,
     "what each rank may use on the drives (default: no limit)", 4},
    {"nvme-buffers", KEY_NVME_BUFFERS, "N", 0,
     "buffers in host memory: so many sub-groups of the optimizer's state are read, updated and "
     "written at once, and as many inputs of layers (default 4)",
     4},
    {"nvme-verify", KEY_NVME_VERIFY, "on|off", 0,
     "make checksums of what is written to the drives, and verify them when it is read (default "
     "on)",
     4},
    {"io-settings", KEY_IO_SETTINGS, "FILE", 0,
     "read and write on the drives as zero-bench io --save-settings FILE has found best; also in "
     "its folders, without --nvme-path",
     4},
    {"nvme-tbw", KEY_NVME_TBW, "SIZE", 0,
     "what the drives are rated to be written in their life, such as 600TB: reports how long they "
     "last at this rate",
     4},

    {NULL, 0, NULL, 0, "The step:", 5},
    {"micro-batch", KEY_MICRO_BATCH, "N", 0, "sequences per rank and micro-batch (default 1)", 5},
    {"grad-accum", KEY_GRAD_ACCUM, "N", 0, "micro-batches per step (default 1)", 5},
    {"lr", KEY_LR, "RATE", 0, "learning rate after warm-up (default 3e-4)", 5},
    {"schedule", KEY_SCHEDULE, "cosine|constant", 0,
     "how the rate moves; cosine: warm-up, then down (default cosine)", 5},
    {"warmup", KEY_WARMUP, "STEPS", 0, "of the rate's rise (default: a tenth of the steps)", 5},
    {"min-lr-ratio", KEY_MIN_LR_RATIO, "RATIO", 0, "of the last rate to --lr (default 0.1)", 5},
    {"check-overflow", KEY_CHECK_OVERFLOW, "on|off", 0,
     "skip steps whose norm is not finite (default on); off: such a step ends the run, and updates "
     "on "
     "the host need not wait for the norm",
     5},
    {"clip", KEY_CLIP, "NORM", 0, "largest global gradient norm; 0: no clipping (default 0)", 5},
    {"weight-decay", KEY_WEIGHT_DECAY, "RATE", 0, "decoupled, of matrices (default 0)", 5},
    {"beta1", KEY_BETA1, "B", 0, "AdamW's (default 0.9)", 5},
    {"beta2", KEY_BETA2, "B", 0, "AdamW's (default 0.95)", 5},
    {"epsilon", KEY_EPSILON, "E", 0, "AdamW's (default 1e-8)", 5},
    {"config", KEY_CONFIG, "FILE", 0, "DeepSpeed's JSON; options override it", 5},

    {NULL, 0, NULL, 0, "Checkpoints:", 6},
    {"checkpoint-dir", KEY_CHECKPOINT_DIR, "DIR", 0,
     "save the run in this folder: at its end, and when it is asked to end (SIGTERM, SIGUSR1, "
     "SIGINT)",
     6},
    {"checkpoint-every", KEY_CHECKPOINT_EVERY, "STEPS", 0, "save after each so many steps as well",
     6},
    {"checkpoint-keep", KEY_CHECKPOINT_KEEP, "N", 0,
     "keep the newest N checkpoints only (default 0: all)", 6},
    {"checkpoint-async", KEY_CHECKPOINT_ASYNC, NULL, 0,
     "train on while a checkpoint is written, where host memory has room for a copy of what is "
     "saved",
     6},
    {"resume", KEY_RESUME, NULL, 0,
     "go on from the newest complete checkpoint of --checkpoint-dir, if there is one; any ranks, "
     "stage, placement and dtype",
     6},
    {"resume-data", KEY_RESUME_DATA, "continue|restart", 0,
     "with --resume: go on in the data as well, which have to be the same, or begin them anew, "
     "whatever they are (default continue)",
     6},

    {NULL, 0, NULL, 0, "Output:", 7},
    {"log", KEY_LOG, "FILE", 0, "write each step to this file as a line of JSON", 7},
    {"memory-snapshot", KEY_MEMORY_SNAPSHOT, "FILE", 0,
     "write what was allocated in a typical step, the first that followed its memory plan, or else "
     "the last: FILE.csv (device memory; for planners of offsets), FILE.json (for ui.perfetto.dev) "
     "or FILE.pickle (for pytorch.org/memory_viz); rank N > 0 writes FILE.rankN.csv and so on. Of "
     "a single step, all since the start; of a run that fails, the last as far as it came",
     7},
    {"trace", KEY_TRACE, "FILE", 0,
     "write what ran when on every rank, for ui.perfetto.dev or chrome://tracing: kernels, "
     "collectives, copies, transfers of drives, what a rank waited for, and memory (of ranks that "
     "are processes, rank N > 0 writes NAME.rankN.json)",
     7},
    {"trace-steps", KEY_TRACE_STEPS, "FIRST:LAST", 0,
     "with --trace: of these steps (default: the first ten of the run)", 7},
    {"json", KEY_JSON, NULL, 0, "print the result as one JSON object", 7},
    {"quiet", KEY_QUIET, NULL, 0, "no progress and no summary; errors and warnings only", 7},
    {"help", KEY_HELP, NULL, 0, "print this", 7},
    {"version", KEY_VERSION, NULL, 0, "print the version and how it was built", 7},
    {0},
};

typedef struct parsing {
    train_options_t *options;
    const zr_log_t *log;
} parsing_t;

/* ---- values ----------------------------------------------------------------------------- */

static zr_status_t choose(parsing_t *p, const char *key, const char *value,
                          const char *const *names, size_t n_names, int *choice_p) {
    size_t choice = 0;
    ZR_TRY(args_choice(key, value, names, n_names, p->log, &choice));
    *choice_p = (int)choice;
    return ZR_OK;
}

static zr_status_t set_stage(parsing_t *p, const char *value) {
    static const char *const stages[] = {"0", "1", "2", "3", "auto"};
    int choice = 0;
    ZR_TRY(choose(p, "--stage", value, stages, 5, &choice));
    p->options->auto_stage = choice == 4;
    p->options->config.stage = choice == 4 ? 0 : choice;
    return ZR_OK;
}

static zr_status_t set_reduce(parsing_t *p, const char *value) {
    static const char *const names[] = {"auto", "every-micro-batch"};
    int choice = 0;
    ZR_TRY(choose(p, "--reduce", value, names, 2, &choice));
    p->options->config.reduce = choice == 0 ? ZR_REDUCE_AUTO : ZR_REDUCE_EVERY_MICRO_BATCH;
    return ZR_OK;
}

static zr_status_t set_recompute(parsing_t *p, const char *value) {
    static const char *const names[] = {"none", "unit"};
    int choice = 0;
    ZR_TRY(choose(p, "--recompute", value, names, 2, &choice));
    p->options->recompute = choice == 1;
    return ZR_OK;
}

static zr_status_t set_schedule(parsing_t *p, const char *value) {
    static const char *const names[] = {"cosine", "constant"};
    zr_schedule_t *schedule = &p->options->config.schedule;
    int choice = 0;
    ZR_TRY(choose(p, "--schedule", value, names, 2, &choice));
    zr_schedule_kind_t kind = choice == 0 ? ZR_SCHEDULE_WARMUP_COSINE : ZR_SCHEDULE_CONSTANT;
    if (schedule->kind != kind)
        *schedule = train_options_default().config.schedule;
    schedule->kind = kind;
    return ZR_OK;
}

static zr_status_t set_warmup(parsing_t *p, const char *value) {
    p->options->warmup_given = true;
    return args_count("--warmup", value, 0, MOST_COUNT, p->log, &p->options->warmup_steps);
}

static zr_status_t set_min_lr_ratio(parsing_t *p, const char *value) {
    p->options->min_lr_ratio_given = true;
    return args_number("--min-lr-ratio", value, 0, 1, p->log, &p->options->min_lr_ratio);
}

static zr_status_t set_ranks(parsing_t *p, const char *value) {
    size_t n_ranks = 0;
    ZR_TRY(args_count("--ranks", value, 1, TRAIN_MOST_RANKS, p->log, &n_ranks));
    p->options->n_ranks = (int)n_ranks;
    return ZR_OK;
}

static zr_status_t set_shard_group_size(parsing_t *p, const char *value) {
    train_options_t *o = p->options;
    size_t size = 0;
    o->auto_group = strcmp(value, "auto") == 0;
    o->has_group = !o->auto_group;
    if (o->auto_group || strcmp(value, "all") == 0) {
        o->config.shard_group_size = zr_config_default().shard_group_size;
        return ZR_OK;
    }
    if (value[0] < '0' || value[0] > '9')
        return zr_fail(
            p->log, ZR_ERR_ARGUMENT,
            "--shard-group-size %s: allowed are all, auto, and 1 to %d, what divides the "
            "ranks",
            value, TRAIN_MOST_RANKS);
    ZR_TRY(args_count("--shard-group-size", value, 1, TRAIN_MOST_RANKS, p->log, &size));
    o->config.shard_group_size = (int)size;
    return ZR_OK;
}

static zr_status_t set_comm_timeout(parsing_t *p, const char *value) {
    size_t seconds = 0;
    ZR_TRY(args_count("--comm-timeout", value, 1, MOST_TIMEOUT_SECONDS, p->log, &seconds));
    p->options->comm_timeout_ms = (int)(seconds * 1000);
    return ZR_OK;
}

static zr_status_t set_sums(parsing_t *p, const char *value) {
    static const char *const names[] = {"rank-order", "any"};
    size_t choice = 0;
    ZR_TRY(args_choice("--sums", value, names, 2, p->log, &choice));
    p->options->sums = choice == 1 ? ZR_SUM_ANY : ZR_SUM_RANK_ORDER;
    return ZR_OK;
}

static zr_status_t set_overlap(parsing_t *p, const char *value) {
    static const char *const names[] = {"auto", "on", "off"};
    size_t choice = 0;
    ZR_TRY(args_choice("--overlap-comm", value, names, 3, p->log, &choice));
    p->options->overlap = (train_overlap_t)choice;
    p->options->config.overlap_comm = p->options->overlap != TRAIN_OVERLAP_OFF;
    return ZR_OK;
}

static zr_status_t set_comm(parsing_t *p, const char *value) {
    static const char *const names[] = {"threads", "nccl", "mpi"};
    size_t choice = 0;
    ZR_TRY(args_choice("--comm", value, names, 3, p->log, &choice));
    p->options->comm = (train_comm_t)(choice + TRAIN_COMM_THREADS);
    p->options->use_nccl = p->options->comm == TRAIN_COMM_NCCL;
    return ZR_OK;
}

static zr_status_t set_switch(parsing_t *p, const char *key, const char *value, bool *is_on_p) {
    static const char *const names[] = {"off", "on"};
    size_t choice = 0;
    ZR_TRY(args_choice(key, value, names, 2, p->log, &choice));
    *is_on_p = choice == 1;
    return ZR_OK;
}

static zr_status_t set_device(parsing_t *p, const char *value) {
    ZR_TRY(device_check(value, p->log));
    p->options->device = value;
    return ZR_OK;
}

static zr_status_t set_offload(parsing_t *p, const char *key, const char *value,
                               zr_offload_device_t *device_p) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    int choice = 0;
    ZR_TRY(choose(p, key, value, names, 3, &choice));
    *device_p = (zr_offload_device_t)choice;
    return ZR_OK;
}

/* `auto` begins with everything on the device. */
static zr_status_t set_placement(parsing_t *p, const char *key, const char *value,
                                 zr_offload_device_t *device_p, bool *auto_p) {
    static const char *const names[] = {"none", "cpu", "nvme", "auto"};
    int choice = 0;
    ZR_TRY(choose(p, key, value, names, 4, &choice));
    *auto_p = choice == 3;
    *device_p = *auto_p ? ZR_OFFLOAD_NONE : (zr_offload_device_t)choice;
    return ZR_OK;
}

static zr_status_t set_offload_gradients(parsing_t *p, const char *value) {
    static const char *const names[] = {"none", "cpu"};
    int choice = 0;
    ZR_TRY(choose(p, "--offload-gradients", value, names, 2, &choice));
    p->options->offload_given = p->options->gradients_given = "--offload-gradients";
    p->options->config.offload_optimizer.gradients = (zr_offload_device_t)choice;
    return ZR_OK;
}

static zr_status_t set_offload_gradients_ratio(parsing_t *p, const char *value) {
    p->options->offload_given = p->options->gradients_given = "--offload-gradients-ratio";
    p->options->gradients_ratio_given = true;
    return args_number("--offload-gradients-ratio", value, 0, 1, p->log,
                       &p->options->config.offload_optimizer.gradients_ratio);
}

static zr_status_t set_update_on(parsing_t *p, const char *value) {
    static const char *const names[] = {"auto", "host", "device"};
    int choice = 0;
    ZR_TRY(choose(p, "--update-on", value, names, 3, &choice));
    p->options->offload_given = "--update-on";
    p->options->config.offload_optimizer.update_on = (zr_update_on_t)choice;
    return ZR_OK;
}

static zr_status_t set_nvme_path(parsing_t *p, const char *value) {
    zr_nvme_options_t *nvme = &p->options->config.nvme;
    if (strlen(value) >= sizeof(nvme->paths))
        return zr_fail(
            p->log, ZR_ERR_ARGUMENT,
            "--nvme-path \"%.40s\": %zu bytes; allowed are names of folders, with commas "
            "between, of at most %zu bytes together",
            value, strlen(value), sizeof(nvme->paths) - 1);
    snprintf(nvme->paths, sizeof(nvme->paths), "%s", value);
    p->options->nvme_paths_from = TRAIN_PATHS_OF_OPTION;
    return ZR_OK;
}

static zr_status_t set_checkpoint_option(parsing_t *p, int key, const char *value) {
    static const char *const data_names[] = {"continue", "restart"};
    train_checkpoint_options_t *checkpoint = &p->options->checkpoint;
    size_t choice = 0;
    switch (key) {
    case KEY_CHECKPOINT_DIR:
        checkpoint->dir = value;
        return ZR_OK;
    case KEY_CHECKPOINT_EVERY:
        checkpoint->given = "--checkpoint-every";
        return args_count("--checkpoint-every", value, 1, MOST_COUNT, p->log, &checkpoint->every);
    case KEY_CHECKPOINT_KEEP:
        checkpoint->given = "--checkpoint-keep";
        return args_count("--checkpoint-keep", value, 0, MOST_COUNT, p->log, &checkpoint->keep);
    case KEY_CHECKPOINT_ASYNC:
        checkpoint->given = "--checkpoint-async";
        checkpoint->is_async = true;
        return ZR_OK;
    case KEY_RESUME:
        checkpoint->given = "--resume";
        checkpoint->resume = true;
        return ZR_OK;
    default:
        ZR_TRY(args_choice("--resume-data", value, data_names, 2, p->log, &choice));
        checkpoint->given = "--resume-data";
        checkpoint->resume_data = value;
        checkpoint->restarts_data = choice == 1;
        return ZR_OK;
    }
}

static zr_status_t check_checkpoint(const train_options_t *options, const zr_log_t *log) {
    const train_checkpoint_options_t *checkpoint = &options->checkpoint;
    if (checkpoint->dir == NULL && checkpoint->given != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: of which folder? add --checkpoint-dir DIR",
                       checkpoint->given);
    if (checkpoint->resume_data != NULL && !checkpoint->resume)
        return zr_fail(log, ZR_ERR_ARGUMENT, "--resume-data %s: nothing is resumed; add --resume",
                       checkpoint->resume_data);
    return ZR_OK;
}

/* ---- parsing ---------------------------------------------------------------------------- */

static zr_status_t set_model_option(parsing_t *p, int key, const char *value) {
    train_options_t *o = p->options;
    switch (key) {
    case KEY_MODEL:
        o->model = value;
        return ZR_OK;
    case KEY_DATA:
    case ARGP_KEY_ARG:
        o->data_paths[o->n_data_paths++] = value;
        return ZR_OK;
    case KEY_SEQ:
        o->seq_text = value;
        return ZR_OK;
    case KEY_SEQ_MIN:
        o->seq_min_text = value;
        return ZR_OK;
    case KEY_SEED:
        return args_u64("--seed", value, p->log, &o->seed);
    case KEY_STEPS:
        return args_count("--steps", value, 1, MOST_COUNT, p->log, &o->steps);
    case KEY_RECOMPUTE:
        return set_recompute(p, value);
    case KEY_FREEZE:
        o->freeze = value;
        return ZR_OK;
    default:
        return ZR_ERR_ARGUMENT; /* no option of the table */
    }
}

static zr_status_t set_params_option(parsing_t *p, int key, const char *value) {
    train_options_t *o = p->options;
    zr_offload_param_options_t *param = &o->config.offload_param;
    switch (key) {
    case KEY_OFFLOAD_PARAMS:
        return set_placement(p, "--offload-params", value, &param->device,
                             &p->options->auto_params);
    case KEY_OFFLOAD_PARAM_RATIO:
        o->params_given = "--offload-param-ratio";
        return args_number("--offload-param-ratio", value, 0, 1, p->log, &param->ratio);
    case KEY_PARAM_BUFFERS:
        o->nvme_params_given = "--param-buffers";
        return args_count("--param-buffers", value, 1, ZR_SWAP_MAX_BUFFERS, p->log,
                          &param->n_buffers);
    case KEY_PARAM_BUFFER:
        o->nvme_params_given = "--param-buffer";
        return args_count("--param-buffer", value, 1, MOST_COUNT, p->log, &param->buffer_elems);
    case KEY_PARAM_IN_HOST:
        o->nvme_params_given = "--params-in-host";
        return args_count("--params-in-host", value, 0, MOST_COUNT, p->log,
                          &param->max_in_cpu_elems);
    default:
        return set_model_option(p, key, value);
    }
}

static zr_status_t set_offload_option(parsing_t *p, int key, const char *value) {
    train_options_t *o = p->options;
    switch (key) {
    case KEY_OFFLOAD_OPTIMIZER:
        return set_placement(p, "--offload-optimizer", value, &o->config.offload_optimizer.device,
                             &o->auto_optimizer);
    case KEY_OFFLOAD_ACTIVATIONS:
        return set_offload(p, "--offload-activations", value, &o->offload_activations);
    case KEY_OFFLOAD_RATIO:
        o->offload_given = "--offload-ratio";
        return args_number("--offload-ratio", value, 0, 1, p->log,
                           &o->config.offload_optimizer.ratio);
    case KEY_UPDATE_ON:
        return set_update_on(p, value);
    case KEY_STATE_IN_HOST:
        return args_count("--state-in-host", value, 0, MOST_COUNT, p->log,
                          &o->config.offload_optimizer.max_in_cpu_elems);
    case KEY_OFFLOAD_GRADIENTS_RATIO:
        return set_offload_gradients_ratio(p, value);
    case KEY_OFFLOAD_GRADIENTS:
        return set_offload_gradients(p, value);
    case KEY_SUB_GROUP:
        return args_count("--sub-group", value, 1, MOST_COUNT, p->log, &o->config.sub_group_elems);
    case KEY_NVME_PATH:
        o->nvme_given = "--nvme-path";
        return set_nvme_path(p, value);
    case KEY_NVME_CAPACITY:
        o->nvme_given = "--nvme-capacity";
        return args_size("--nvme-capacity", value, p->log, &o->config.nvme.capacity_bytes);
    case KEY_NVME_BUFFERS:
        o->nvme_optimizer_given = "--nvme-buffers";
        return args_count("--nvme-buffers", value, 1, ZR_SWAP_MAX_BUFFERS, p->log,
                          &o->config.offload_optimizer.n_buffers);
    case KEY_NVME_VERIFY:
        o->nvme_given = "--nvme-verify";
        return set_switch(p, "--nvme-verify", value, &o->config.nvme.verify);
    case KEY_IO_SETTINGS:
        o->nvme_given = "--io-settings";
        o->io_settings_path = value;
        return ZR_OK;
    case KEY_NVME_TBW:
        o->nvme_given = "--nvme-tbw";
        ZR_TRY(args_size("--nvme-tbw", value, p->log, &o->nvme_tbw_bytes));
        if (o->nvme_tbw_bytes == 0)
            return zr_fail(p->log, ZR_ERR_ARGUMENT,
                           "--nvme-tbw %s: such drives could not be written to; allowed is more "
                           "than 0, such as 600TB",
                           value);
        return ZR_OK;
    default:
        return set_params_option(p, key, value);
    }
}

static zr_status_t set_machine_option(parsing_t *p, int key, const char *value) {
    train_options_t *o = p->options;
    switch (key) {
    case KEY_STAGE:
        return set_stage(p, value);
    case KEY_HARDWARE:
        o->hardware_path = value;
        return ZR_OK;
    case KEY_RANKS:
        return set_ranks(p, value);
    case KEY_SHARD_GROUP_SIZE:
        return set_shard_group_size(p, value);
    case KEY_DTYPE:
        return args_dtype("--dtype", value, p->log, &p->options->config.dtype);
    case KEY_REDUCE:
        return set_reduce(p, value);
    case KEY_PREFETCH:
        o->stage3_given |= TRAIN_STAGE3_PREFETCH;
        return args_count("--prefetch", value, 0, MOST_COUNT, p->log, &o->config.prefetch_elems);
    case KEY_MAX_LIVE:
        o->stage3_given |= TRAIN_STAGE3_MAX_LIVE;
        return args_count("--max-live", value, 1, MOST_COUNT, p->log, &o->config.max_live_elems);
    case KEY_SUMS:
        return set_sums(p, value);
    case KEY_OVERLAP_COMM:
        return set_overlap(p, value);
    case KEY_DEVICE:
        return set_device(p, value);
    case KEY_MEMORY_PLAN:
        return set_switch(p, "--memory-plan", value, &p->options->config.plan_memory);
    case KEY_DEVICE_MEMORY:
        return args_size("--device-memory", value, p->log, &o->config.device_memory_bytes);
    case KEY_HOST_MEMORY:
        return args_size("--host-memory", value, p->log, &o->config.host_memory_bytes);
    case KEY_THREADS:
        return args_count("--threads", value, 0, MOST_THREADS, p->log, &o->n_threads);
    case KEY_COMM_TIMEOUT:
        return set_comm_timeout(p, value);
    case KEY_COMM:
        return set_comm(p, value);
    default:
        return set_offload_option(p, key, value);
    }
}

static zr_status_t set_step_option(parsing_t *p, int key, const char *value) {
    zr_config_t *c = &p->options->config;
    switch (key) {
    case KEY_MICRO_BATCH:
        return args_count("--micro-batch", value, 1, MOST_COUNT, p->log, &c->micro_batch);
    case KEY_GRAD_ACCUM:
        return args_count("--grad-accum", value, 1, MOST_COUNT, p->log, &c->grad_accum);
    case KEY_LR:
        return args_number("--lr", value, 0, 1e3, p->log, &c->adamw.lr);
    case KEY_CHECK_OVERFLOW:
        return set_switch(p, "--check-overflow", value, &c->check_overflow);
    case KEY_CLIP:
        return args_number("--clip", value, 0, 1e30, p->log, &c->clip);
    case KEY_WEIGHT_DECAY:
        return args_number("--weight-decay", value, 0, 1e3, p->log, &c->adamw.weight_decay);
    case KEY_BETA1:
        return args_number("--beta1", value, 0, LARGEST_BETA, p->log, &c->adamw.beta1);
    case KEY_BETA2:
        return args_number("--beta2", value, 0, LARGEST_BETA, p->log, &c->adamw.beta2);
    case KEY_EPSILON:
        return args_number("--epsilon", value, LEAST_EPSILON, 1, p->log, &c->adamw.epsilon);
    case KEY_SCHEDULE:
        return set_schedule(p, value);
    case KEY_WARMUP:
        return set_warmup(p, value);
    case KEY_MIN_LR_RATIO:
        return set_min_lr_ratio(p, value);
    default:
        return set_machine_option(p, key, value);
    }
}

static zr_status_t set_output_option(parsing_t *p, int key, const char *value) {
    train_options_t *o = p->options;
    switch (key) {
    case KEY_CONFIG:
        o->config_path = value;
        return ZR_OK;
    case KEY_CHECKPOINT_DIR:
    case KEY_CHECKPOINT_EVERY:
    case KEY_CHECKPOINT_KEEP:
    case KEY_CHECKPOINT_ASYNC:
    case KEY_RESUME:
    case KEY_RESUME_DATA:
        return set_checkpoint_option(p, key, value);
    case KEY_LOG:
        o->log_path = value;
        return ZR_OK;
    case KEY_MEMORY_SNAPSHOT:
        o->memory_snapshot_path = value;
        return ZR_OK;
    case KEY_TRACE:
        o->trace_path = value;
        return ZR_OK;
    case KEY_TRACE_STEPS:
        return train_trace_take_steps(o, value, p->log);
    case KEY_JSON:
        o->json = true;
        return ZR_OK;
    case KEY_QUIET:
        o->quiet = true;
        return ZR_OK;
    case KEY_HELP:
        o->help = true;
        return ZR_OK;
    case KEY_VERSION:
        o->version = true;
        return ZR_OK;
    default:
        return set_step_option(p, key, value);
    }
}

const struct argp_option *train_options_find(const char *name) {
    for (const struct argp_option *o = option_table; o->name != NULL || o->doc != NULL; o++)
        if (o->name != NULL && strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

zr_status_t train_options_take(train_options_t *options, int key, const char *value,
                               const zr_log_t *log) {
    parsing_t parsing = {.options = options, .log = log};
    return set_output_option(&parsing, key, value);
}

static error_t set_option(int key, char *value, struct argp_state *state) {
    if (key != ARGP_KEY_ARG && (key < KEY_MODEL || key > KEY_TRACE_STEPS))
        return ARGP_ERR_UNKNOWN;
    parsing_t *p = state->input;
    if (p->options->help || p->options->version)
        return 0;
    return set_output_option(p, key, value) == ZR_OK ? 0 : EINVAL;
}

static const struct argp parser = {
    .options = option_table,
    .parser = set_option,
    .args_doc = "--data PATH...",
    .doc = "Train a GPT with its optimizer state, gradients and parameters sharded over ranks."
           "\vExit status: 0 success, 1 the run failed, 2 bad usage or input.",
};

void train_options_help(FILE *file) {
    args_help(&parser, "zero-train", file);
}

/* ---- defaults and checks ---------------------------------------------------------------- */

train_options_t train_options_default(void) {
    train_options_t options = {.model = DEFAULT_MODEL,
                               .seed = 1,
                               .steps = 100,
                               .config = zr_config_default(),
                               .n_ranks = 1,
                               .device = "auto",
                               .comm_timeout_ms = 60 * 1000};
    options.config.schedule = (zr_schedule_t){.kind = ZR_SCHEDULE_WARMUP_COSINE,
                                              .warmup_steps = SIZE_MAX, /* of --steps */
                                              .warmup_min_ratio = 0.1,
                                              .cos_min_ratio = 0.1};
    return options;
}

static zr_status_t resolve_shape(train_options_t *options, const zr_log_t *log) {
    char error[512] = "";
    if (!gpt_shape_parse(options->model, &options->shape, error, sizeof(error)))
        return zr_fail(log, ZR_ERR_ARGUMENT, "--model %s: %s", options->model, error);
    if (options->seq_text != NULL)
        ZR_TRY(args_count("--seq", options->seq_text, 1, options->shape.seq, log, &options->seq));
    if (options->seq == 0)
        options->seq = options->shape.seq;
    if (options->seq > options->shape.seq)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--seq %zu: the model has %s; allowed are 1 to %zu; the nearest "
                       "is %zu",
                       options->seq, zr_count_text(options->shape.seq, "position").text,
                       options->shape.seq, options->shape.seq);
    if (options->seq_min_text != NULL)
        ZR_TRY(args_count("--seq-min", options->seq_min_text, 1, options->seq, log,
                          &options->seq_min));
    if (options->seq_min == 0)
        options->seq_min = options->seq;
    if (options->seq_min > options->seq)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--seq-min %zu: sequences have at most %s (--seq); allowed are 1 to "
                       "%zu; the nearest is %zu",
                       options->seq_min, zr_count_text(options->seq, "token").text, options->seq,
                       options->seq);
    return ZR_OK;
}

static zr_status_t resolve_schedule(train_options_t *options, const zr_log_t *log) {
    zr_schedule_t *schedule = &options->config.schedule;
    if (options->warmup_given && schedule->kind == ZR_SCHEDULE_CONSTANT)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--warmup %zu: a constant rate has no warm-up; add --schedule cosine",
                       options->warmup_steps);
    if (options->min_lr_ratio_given && schedule->kind != ZR_SCHEDULE_WARMUP_COSINE)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--min-lr-ratio %g: this schedule does not come down to it; add --schedule "
                       "cosine",
                       options->min_lr_ratio);
    if (options->warmup_given)
        schedule->warmup_steps = options->warmup_steps;
    if (options->min_lr_ratio_given)
        schedule->cos_min_ratio = options->min_lr_ratio;
    bool open_warmup = schedule->warmup_steps == SIZE_MAX;
    if (schedule->kind == ZR_SCHEDULE_CONSTANT)
        *schedule = zr_config_default().schedule;
    else if (open_warmup)
        schedule->warmup_steps = options->steps / 10;
    bool has_end =
        schedule->kind == ZR_SCHEDULE_WARMUP_COSINE || schedule->kind == ZR_SCHEDULE_WARMUP_DECAY;
    if (has_end && schedule->total_steps == 0)
        schedule->total_steps = options->steps;
    if (options->warmup_given && has_end && schedule->warmup_steps > schedule->total_steps)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--warmup %zu: longer than the schedule; allowed are 0 to %zu; the nearest "
                       "is %zu",
                       schedule->warmup_steps, schedule->total_steps, schedule->total_steps);
    return ZR_OK;
}

/* What a step reads and what a run counts has to fit its numbers. */
static zr_status_t check_sizes(const train_options_t *options, const zr_log_t *log) {
    const zr_config_t *c = &options->config;
    size_t n = 0;
    if (__builtin_mul_overflow(c->micro_batch, c->grad_accum, &n) ||
        __builtin_mul_overflow(n, (size_t)options->n_ranks, &n) ||
        __builtin_mul_overflow(n, options->seq, &n) ||
        __builtin_mul_overflow(n, options->steps, &n))
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--micro-batch %zu, --grad-accum %zu, --ranks %d, --seq %zu and --steps %zu: "
            "the number of tokens overflows; allowed are less than 2^64 together",
            c->micro_batch, c->grad_accum, options->n_ranks, options->seq, options->steps);
    if (c->micro_batch > (size_t)INT32_MAX / options->seq)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--micro-batch %zu: of sequences of %s, allowed are at most %d tokens; "
                       "the nearest is %zu",
                       c->micro_batch, zr_count_text(options->seq, "token").text, INT32_MAX,
                       (size_t)INT32_MAX / options->seq);
    return ZR_OK;
}

bool train_options_overlap(const train_options_t *options, int n_machines) {
    return options->config.overlap_comm && (options->overlap == TRAIN_OVERLAP_ON || n_machines > 1);
}

bool train_options_use_nvme(const train_options_t *options) {
    return options->config.offload_optimizer.device == ZR_OFFLOAD_NVME ||
           options->config.offload_param.device == ZR_OFFLOAD_NVME ||
           options->offload_activations == ZR_OFFLOAD_NVME;
}

static zr_status_t check_offloaded_activations(const train_options_t *options,
                                               const zr_log_t *log) {
    if (options->offload_activations == ZR_OFFLOAD_NONE)
        return ZR_OK;
    if (!options->recompute)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-activations: only inputs of layers can be offloaded, and without "
                       "recomputation everything is kept; add --recompute unit");
    if (options->offload_activations == ZR_OFFLOAD_NVME && options->config.nvme.paths[0] == '\0')
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-activations nvme: no path is named; add --nvme-path DIR, a "
                       "folder on the drive");
    return ZR_OK;
}

zr_status_t train_options_check_auto_parts(const train_options_t *options, const zr_log_t *log) {
    const zr_offload_options_t *optimizer = &options->config.offload_optimizer;
    const zr_offload_param_options_t *param = &options->config.offload_param;
    if (options->auto_optimizer && (optimizer->ratio < 1 || optimizer->max_in_cpu_elems != 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-optimizer auto: --offload-ratio and --state-in-host are what it "
                       "chooses; leave them out, or name cpu or nvme");
    if (options->auto_params && (param->ratio < 1 || param->max_in_cpu_elems != 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-params auto: --offload-param-ratio and --params-in-host are what "
                       "it chooses; leave them out, or name cpu or nvme");
    return ZR_OK;
}

static zr_status_t check_auto(const train_options_t *options, const zr_log_t *log) {
    if (options->auto_params && !options->auto_stage && options->config.stage != 3)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-params auto: at stage %d every rank computes with all parameters "
                       "at all times; allowed is none, or --stage 3",
                       options->config.stage);
    return train_options_check_auto_parts(options, log);
}

/* Rates that nothing is planned with. */
static zr_status_t check_hardware(const train_options_t *options, const zr_log_t *log) {
    if (options->hardware_path != NULL && !train_auto_is_wanted(options))
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "--hardware %s: nothing is chosen, so nothing is planned with it; add --stage "
            "auto, --offload-optimizer auto, --offload-params auto or --shard-group-size auto, or "
            "ask zero-plan",
            options->hardware_path);
    if (options->hardware_path != NULL && access(options->hardware_path, R_OK) != 0)
        return zr_fail(log, ZR_ERR_IO,
                       "--hardware %s: cannot read it: %s; give a file that zero-bench "
                       "--save-hardware has written (names of machines are zero-plan's)",
                       options->hardware_path, strerror(errno));
    return ZR_OK;
}

/* Of options that mean something on drives only. */
static zr_status_t refuse_without_drives(const char *given, bool no_drives, const char *otherwise,
                                         const zr_log_t *log) {
    if (no_drives)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s: no drives are named, and nothing is offloaded to NVMe without; add "
                       "--nvme-path DIR",
                       given);
    return zr_fail(log, ZR_ERR_ARGUMENT, "%s: %s", given, otherwise);
}

static zr_status_t check_offload_to_nvme(const train_options_t *options, train_open_t open,
                                         const zr_log_t *log) {
    bool may_be = !open.no_drives, is_open = open.optimizer || open.params || open.activations;
    bool has_activations =
        (may_be && open.activations) || options->offload_activations == ZR_OFFLOAD_NVME;
    bool has_params =
        (may_be && open.params) || options->config.offload_param.device == ZR_OFFLOAD_NVME;
    bool has_state =
        (may_be && open.optimizer) || options->config.offload_optimizer.device == ZR_OFFLOAD_NVME;
    if (!has_state && options->config.offload_optimizer.max_in_cpu_elems != 0)
        return refuse_without_drives("--state-in-host", open.optimizer,
                                     "no optimizer state is offloaded to NVMe; add "
                                     "--offload-optimizer nvme",
                                     log);
    if (!has_state && !has_activations && options->nvme_optimizer_given != NULL)
        return refuse_without_drives(options->nvme_optimizer_given,
                                     open.optimizer || open.activations,
                                     "neither optimizer state nor activations are offloaded to "
                                     "NVMe; add --offload-optimizer nvme or --offload-activations "
                                     "nvme",
                                     log);
    if (!has_params && options->nvme_params_given != NULL)
        return refuse_without_drives(
            options->nvme_params_given, open.params,
            "no parameters are offloaded to NVMe; add --offload-params nvme", log);
    if (!has_state && !has_params && !has_activations && options->nvme_given != NULL)
        return refuse_without_drives(options->nvme_given, is_open,
                                     "nothing is offloaded to NVMe; add --offload-optimizer nvme, "
                                     "--offload-params nvme or --offload-activations nvme",
                                     log);
    return ZR_OK;
}

zr_status_t train_options_check_offload(const train_options_t *options, train_open_t open,
                                        const zr_log_t *log) {
    zr_offload_device_t state = options->config.offload_optimizer.device;
    zr_offload_device_t params = options->config.offload_param.device;
    if (!open.optimizer && state == ZR_OFFLOAD_NONE && options->offload_given != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s: nothing is offloaded; add --offload-optimizer cpu or nvme",
                       options->offload_given);
    if (options->gradients_given != NULL && !open.stage && options->config.stage < 2)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s: at stage %d every rank adds up all gradients on the device; only "
                       "shards of them can be offloaded, at --stage 2 or 3",
                       options->gradients_given, options->config.stage);
    if (options->gradients_ratio_given &&
        options->config.offload_optimizer.gradients == ZR_OFFLOAD_NONE)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--offload-gradients-ratio: with --offload-gradients none all of them wait "
                       "on the device; leave one of the two out");
    if (!open.params && params == ZR_OFFLOAD_NONE && options->params_given != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "%s: no parameters are offloaded; add --offload-params cpu or nvme",
                       options->params_given);
    return check_offload_to_nvme(options, open, log);
}

/* What is said about offload that does not happen is a slip. */
static zr_status_t check_offload(const train_options_t *options, const zr_log_t *log) {
    train_open_t open = {.stage = options->auto_stage,
                         .optimizer = options->auto_optimizer,
                         .params = options->auto_params,
                         .no_drives = options->config.nvme.paths[0] == '\0'};
    if (options->auto_optimizer || options->auto_params)
        ZR_TRY(check_auto(options, log));
    ZR_TRY(train_options_check_offload(options, open, log));
    return check_offloaded_activations(options, log);
}

static zr_status_t check_memory_snapshot(const train_options_t *options, const zr_log_t *log) {
    zr_snapshot_form_t form;
    const char *path = options->memory_snapshot_path;
    if (path == NULL || zr_snapshot_form_of(path, &form))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--memory-snapshot %s: the form is chosen by the ending; allowed are NAME.csv, "
                   "NAME.json, NAME.pickle",
                   path);
}

/* What was asked for keeps `auto` to the stages that have it. */
static int least_stage(const train_options_t *options) {
    if (options->config.offload_param.device != ZR_OFFLOAD_NONE)
        return 3;
    return options->gradients_given != NULL ? 2 : 0;
}

zr_status_t train_options_resolve_run(train_options_t *options, const zr_log_t *log) {
    if (options->auto_stage) {
        options->config.stage = least_stage(options);
        options->auto_group |= !options->has_group && options->config.shard_group_size <= 0;
    }
    ZR_TRY(resolve_shape(options, log));
    ZR_TRY(resolve_schedule(options, log));
    ZR_TRY(zr_config_resolve(&options->config, options->n_ranks, log));
    return check_sizes(options, log);
}

zr_status_t train_options_resolve(train_options_t *options, const zr_log_t *log) {
    if (options->n_data_paths == 0)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "no data: give files or folders with --data PATH... (--help lists all options)");
    ZR_TRY(train_launch_apply(options, log));
    ZR_TRY(train_options_resolve_run(options, log));
    ZR_TRY(check_hardware(options, log));
    ZR_TRY(check_offload(options, log));
    ZR_TRY(check_checkpoint(options, log));
    ZR_TRY(train_trace_check(options, log));
    return check_memory_snapshot(options, log);
}

/* Options go over files, and what they replace is said. */
static void say_other_paths(const char *option, const char *used, const char *file,
                            const char *replaced, const zr_log_t *log) {
    if (replaced[0] != '\0' && strcmp(used, replaced) != 0)
        zr_log_write(log, ZR_LOG_INFO, "%s: %s is used instead of nvme_path \"%s\" of --config %s",
                     option, used, replaced, file);
}

static zr_status_t parse_over(int argc, char **argv, const zr_log_t *log,
                              train_options_t *options) {
    parsing_t parsing = {.options = options, .log = log};
    return args_parse(&parser, argc, argv, log, &parsing);
}

/* What the file gives is known by what it changes, from values that none can give. */
zr_status_t train_options_read_config(train_options_t *options, const char *path,
                                      const zr_log_t *log) {
    zr_config_t *config = &options->config;
    struct {
        size_t *value;
        size_t own;
        unsigned given;
    } keys[] = {{&config->prefetch_elems, config->prefetch_elems, TRAIN_STAGE3_PREFETCH_OF_CONFIG},
                {&config->max_live_elems, config->max_live_elems, TRAIN_STAGE3_MAX_LIVE_OF_CONFIG},
                {&config->reuse_elems, config->reuse_elems, TRAIN_STAGE3_REUSE_OF_CONFIG}};
    files_log_t named = {*log, "--config"};
    zr_log_t file_log = files_log(&named);
    for (size_t i = 0; i < 3; i++)
        *keys[i].value = SIZE_MAX;
    zr_status_t status = zr_config_read_json(path, &file_log, config);
    for (size_t i = 0; i < 3; i++)
        if (*keys[i].value == SIZE_MAX)
            *keys[i].value = keys[i].own;
        else
            options->stage3_given |= keys[i].given;
    if (status == ZR_OK && config->nvme.paths[0] != '\0')
        options->nvme_paths_from = TRAIN_PATHS_OF_CONFIG;
    return status;
}

static void warn_of_stage3(const train_options_t *options, const zr_log_t *log) {
    static const char *const names[] = {"--prefetch", "--max-live", "stage3_prefetch_bucket_size",
                                        "stage3_max_live_parameters", "stage3_max_reuse_distance"};
    char list[256] = "";
    size_t used = 0, n = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if ((options->stage3_given >> i & 1) != 0)
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", n++ > 0 ? ", " : "",
                                     names[i]);
    if (n > 0 && options->config.stage < 3)
        zr_log_write(log, ZR_LOG_WARNING,
                     "%s: no effect at stage %d, where no parameters are gathered for a layer; "
                     "leave %s out, or add --stage 3",
                     list, options->config.stage, n == 1 ? "it" : "them");
}

void train_options_warn_idle(train_options_t *options, bool has_nccl, const zr_log_t *log) {
    warn_of_stage3(options, log);
    if (options->sums != ZR_SUM_ANY || has_nccl)
        return;
    zr_log_write(log, ZR_LOG_WARNING,
                 "--sums any: no effect: the order is NCCL's, and ranks exchange their data "
                 "without; leave it out, or run on GPUs with --comm nccl");
    options->sums = ZR_SUM_RANK_ORDER;
}

/* Read the file under the options: parse them again over what it says. */
static zr_status_t parse_over_config(int argc, char **argv, const zr_log_t *log,
                                     train_options_t *options) {
    const char *path = options->config_path, **data_paths = options->data_paths;
    zr_nvme_options_t given = options->config.nvme, *nvme = &options->config.nvme;
    *options = train_options_default();
    options->data_paths = data_paths;
    memcpy(nvme->paths, given.paths, sizeof(nvme->paths));
    ZR_TRY(train_options_read_config(options, path, log));
    if (given.paths[0] != '\0')
        say_other_paths("--nvme-path", given.paths, path, nvme->paths, log);
    return parse_over(argc, argv, log, options);
}

static zr_status_t read_io_settings(const zr_log_t *log, train_options_t *options) {
    zr_nvme_options_t before = options->config.nvme, *nvme = &options->config.nvme;
    bool keep_paths = options->nvme_paths_from == TRAIN_PATHS_OF_OPTION;
    ZR_TRY(train_io_settings_read(options->io_settings_path, keep_paths, log, nvme));
    if (strcmp(before.paths, nvme->paths) == 0)
        return ZR_OK;
    options->nvme_paths_from = TRAIN_PATHS_OF_IO_SETTINGS;
    say_other_paths("--io-settings", nvme->paths, options->config_path, before.paths, log);
    return ZR_OK;
}

zr_status_t train_options_parse(int argc, char **argv, const zr_log_t *log,
                                train_options_t *options_p) {
    train_options_t options = train_options_default();
    options.data_paths = calloc((size_t)argc + 1, sizeof(*options.data_paths));
    if (options.data_paths == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text((uint64_t)argc, "argument").text);
    zr_status_t status = parse_over(argc, argv, log, &options);
    bool run = !options.help && !options.version;
    zr_log_t own_log = *log;
    if (options.quiet)
        own_log.level = ZR_LOG_WARNING;
    if (status == ZR_OK && run && options.config_path != NULL)
        status = parse_over_config(argc, argv, &own_log, &options);
    if (status == ZR_OK && run && options.io_settings_path != NULL)
        status = read_io_settings(&own_log, &options);
    if (status == ZR_OK && run)
        status = train_options_resolve(&options, &own_log);
    if (status != ZR_OK) {
        train_options_free(&options);
        return status;
    }
    *options_p = options;
    if (options.device == options.launched_device) /* which goes with this function */
        options_p->device = options_p->launched_device;
    return ZR_OK;
}

void train_options_free(train_options_t *options) {
    free(options->data_paths);
    options->data_paths = NULL;
    options->n_data_paths = 0;
}
