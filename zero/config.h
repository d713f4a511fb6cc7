/*
 * The settings of a run. A plain struct that the caller fills, or that is read from DeepSpeed's
 * JSON. No setting is silently ignored or changed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "kernels/dtype.h"
#include "kernels/base/log.h"
#include "zero/optim/optimizer.h"

ZR_BEGIN_C

/** When gradients are reduced over the ranks. */
typedef enum zr_reduce {
    ZR_REDUCE_AUTO = 0,             /* stages 0, 1, and ZR_ORDER_BLOCK: once per step; else every
                                       micro-batch */
    ZR_REDUCE_EVERY_MICRO_BATCH = 1 /* at every stage: bitwise the same result at all four stages */
} zr_reduce_t;

/** The order of work in a step, for models that are lists of blocks (zero/schedule/order.h). */
typedef enum zr_step_order {
    ZR_ORDER_MICRO_BATCH = 0, /* each micro-batch through all blocks before the next */
    ZR_ORDER_BLOCK = 1        /* each block for all micro-batches before the next block */
} zr_step_order_t;

/** How the learning rate changes; names and formulas are DeepSpeed's. */
typedef enum zr_schedule_kind {
    ZR_SCHEDULE_CONSTANT = 0,
    ZR_SCHEDULE_WARMUP = 1,       /* WarmupLR */
    ZR_SCHEDULE_WARMUP_DECAY = 2, /* WarmupDecayLR */
    ZR_SCHEDULE_WARMUP_COSINE = 3 /* WarmupCosineLR */
} zr_schedule_kind_t;

/** CONSTANT ignores all fields. */
typedef struct zr_schedule {
    zr_schedule_kind_t kind;
    double warmup_min_lr;    /* WARMUP, WARMUP_DECAY: the rate at step 0 */
    double warmup_max_lr;    /* WARMUP, WARMUP_DECAY: the rate after warm-up; 0: adamw.lr */
    bool warmup_log;         /* rise logarithmically with the step, else linearly */
    size_t warmup_steps;     /* 0: none; 1 counts as 2, as in DeepSpeed */
    size_t total_steps;      /* WARMUP_DECAY, WARMUP_COSINE: required, 0 is refused */
    double warmup_min_ratio; /* WARMUP_COSINE: fraction of adamw.lr at step 0 */
    double cos_min_ratio;    /* WARMUP_COSINE: fraction of adamw.lr at the end */
} zr_schedule_t;

/** Optimizers of the library, in the order of zr_optimizers. */
typedef enum zr_optimizer_kind {
    ZR_OPTIMIZER_ADAMW = 0,
    ZR_OPTIMIZER_LION = 1,
    ZR_OPTIMIZER_SGD = 2
} zr_optimizer_kind_t;

typedef struct zr_adamw_options {
    double lr;
    double beta1;
    double beta2;
    double epsilon;
    double weight_decay;
} zr_adamw_options_t;

/** Where data is stored; DeepSpeed's names. */
typedef enum zr_offload_device {
    ZR_OFFLOAD_NONE = 0, /* on the device */
    ZR_OFFLOAD_CPU = 1,  /* in host memory */
    ZR_OFFLOAD_NVME = 2  /* in files, staged through host memory */
} zr_offload_device_t;

/** How the master of trained parameters is held: all have the same bits. */
typedef enum zr_master {
    ZR_MASTER_APART = 0, /* in fp32, in the optimizer's state */
    ZR_MASTER_SPLIT = 1, /* once: parameters in fp32 are it, those in bf16 a half of it */
    ZR_MASTER_AUTO = 2   /* split where that is possible and not slower */
} zr_master_t;

/** Where data that is stored in host memory or on NVMe is updated. */
typedef enum zr_update_on {
    ZR_UPDATE_ON_FASTER = 0, /* measured when the runtime is committed */
    ZR_UPDATE_ON_HOST = 1,
    ZR_UPDATE_ON_DEVICE = 2 /* copied to the device for the update, then back */
} zr_update_on_t;

/** When units are updated, at stages 2 and 3. */
typedef enum zr_update_at {
    ZR_UPDATE_AT_END = 0,     /* at the end of the step, when the norm of all gradients is known */
    ZR_UPDATE_AT_BACKWARD = 1 /* each after its last reduction. Without clip, gradients of a single
                                 micro-batch, or with ZR_ORDER_BLOCK, are not kept. With clip or
                                 check_overflow the old state is kept until the norm is known */
} zr_update_at_t;

/** The encoding of values sent between ranks. All but PLAIN lose some bits. */
typedef enum zr_wire {
    ZR_MESSAGE_PLAIN = 0, /* in their own dtype */
    ZR_MESSAGE_BF16 = 1,
    ZR_MESSAGE_8BIT = 2, /* in blocks with one scale each */
    ZR_MESSAGE_4BIT = 3
} zr_message_as_t;

typedef struct zr_offload_options {
    zr_offload_device_t device;
    double ratio; /* at least this fraction is stored there, in whole sub-groups; the rest stays on
                     the device; 0 to 1 */
    size_t max_in_cpu_elems; /* nvme: parameters per rank whose state stays in host memory, in whole
                                sub-groups */
    zr_offload_device_t gradients; /* stages 2 and 3: where gradient shards wait if their optimizer
                                      state is not on the device; NONE: on the device */
    double gradients_ratio; /* with CPU or NVME: at least this fraction of those gradients waits
                               there, in whole sub-groups; the rest waits on the device; 0 to 1 */
    size_t gradients_in_cpu_elems; /* with NVME: parameters per rank whose gradients wait in host
                                      memory, in whole sub-groups */
    zr_update_on_t update_on;      /* no difference if the device works on host memory */
    size_t n_buffers;  /* nvme: sub-groups that are read, updated and written concurrently; 0: the
                          run chooses, at least ZR_CONFIG_USUAL_BUFFERS */
    bool read_ahead;   /* nvme: read the next sub-groups while one is updated */
    bool write_behind; /* nvme: write finished sub-groups while another is updated */
} zr_offload_options_t;

/** The smallest units that offloaded data is moved in. */
#define ZR_CONFIG_LEAST_SUB_GROUP_ELEMS ((size_t)1024)
#define ZR_CONFIG_LEAST_BUFFER_BYTES ((size_t)4096)

/** Buffers where n_buffers is 0: with updates at the end, and within backward at most. */
#define ZR_CONFIG_USUAL_BUFFERS ((size_t)4)
#define ZR_CONFIG_USUAL_PARAM_BUFFERS ((size_t)5)
#define ZR_CONFIG_MOST_AUTO_BUFFERS ((size_t)1024)
#define ZR_CONFIG_MOST_AUTO_PARAM_BUFFERS ((size_t)32)

/** Offload of parameter shards, at stage 3. */
typedef struct zr_offload_param_options {
    zr_offload_device_t device;
    double ratio;     /* at least this fraction is stored there, in whole shards of units; the rest
                         stays on the device; 0 to 1 */
    size_t n_buffers; /* nvme: staging buffers in host memory; 0: the run chooses, at least
                         ZR_CONFIG_USUAL_PARAM_BUFFERS */
    size_t buffer_elems; /* nvme: parameters per buffer, rounded down to a multiple of 256 KiB (of
                            4096 bytes if smaller than 256 KiB); at least 4096 bytes; larger shards
                            are split */
    size_t
        max_in_cpu_elems; /* nvme: parameters per rank that stay in host memory, in whole shards */
} zr_offload_param_options_t;

#define ZR_CONFIG_PATHS_BYTES 1024

/** Files for everything that is offloaded to NVMe. See offload/store.h. */
typedef struct zr_nvme_options {
    char paths[ZR_CONFIG_PATHS_BYTES]; /* comma-separated folders; "": none */
    size_t capacity_bytes;             /* budget per rank; ZR_CONFIG_NO_BUDGET: none */
    size_t request_bytes;              /* size of one request; a multiple of 4096 */
    size_t depth;                      /* requests in flight; 1 to 1024 */
    size_t submit_batch;               /* requests submitted per system call, at most depth; > 0 */
    size_t files_per_path;             /* 1 to 16 files in total */
    bool verify;                       /* compute checksums and verify them */
    const char
        *store; /* backend: "uring"; "memory" for tests; "sim" on a simulated device; static */
    const struct zr_store_backend
        *backend; /* a custom store that replaces `store` and paths (offload/store_backend.h),
                     borrowed until the runtime is destroyed; NULL: none */
} zr_nvme_options_t;

typedef struct zr_config {
    int stage;          /* 0 to 3 */
    zr_dtype_t dtype;   /* dtype of parameters and gradients: F32 or BF16 */
    size_t train_batch; /* sequences per step over all ranks; 0: micro * accum * ranks */
    size_t micro_batch; /* sequences per rank and micro-batch; 0: from train_batch, or 1 */
    size_t grad_accum;  /* micro-batches per step; 0: from train_batch, or 1 */
    zr_reduce_t reduce;
    zr_step_order_t order;
    double clip; /* largest global gradient norm; 0: no clipping */
    zr_optimizer_kind_t optimizer;
    const zr_optimizer_type_t *own_optimizer; /* a user-defined optimizer, used instead of
                                                 `optimizer`; static; NULL: none */
    double own_hyper[ZR_MAX_HYPERS];          /* its hyperparameters, in the order of its rule */
    zr_adamw_options_t adamw;   /* learning rate and weight decay for every optimizer; betas and
                                   epsilon for those that use them */
    double momentum;            /* for optimizers that use it */
    bool nesterov;              /* likewise */
    zr_state_form_t state_form; /* precision of the optimizer's arrays, except the master */
    zr_master_t master;
    zr_schedule_t schedule;
    size_t prefetch_elems; /* stage 3: prefetch units of at most this many parameters;
                              ZR_CONFIG_ALL: of any size; 0: none */
    size_t reuse_elems;    /* stage 3: keep a released unit gathered if its next use is at most this
                              many gathered parameters away; 0: never */
    size_t max_live_elems; /* stage 3: prefetch and keep only up to this many gathered parameters;
                              ZR_CONFIG_ALL: no limit; > 0 */
    size_t sub_group_elems; /* update at most this many parameters at a time; > 0, and at least 1024
                               if the optimizer is offloaded */
    int shard_group_size; /* ranks that share one sharded copy (hybrid sharding): consecutive groups
                             of this size hold the same; must divide the number of ranks; -1: all
                             ranks */
    zr_message_as_t gather_encoding; /* for gathered parameters, at stages 1 to 3: every rank
                                        computes with the decoded values, its own included. Frozen
                                        ones are gathered at stage 3 alone */
    zr_message_as_t reduce_encoding; /* for gradients: each rank's part of a sum, and sums that are
                                        gathered (stage 0, and between groups); sums are computed in
                                        fp32, in rank order */
    bool error_feedback; /* with groups: the encoding error of messages to other groups is added to
                            the messages of the next step; saving drops it */
    size_t outer_every; /* with groups: each group takes this many local steps, then all groups take
                           an outer step; 0: every step involves all ranks */
    double outer_lr, outer_momentum; /* learning rate and momentum of the outer step (SGD with
                                        Nesterov momentum) */
    bool overlap_comm;   /* run gathers and reductions on a separate stream, concurrent with compute
                            if the device supports it (zr_stream_create_concurrent) */
    bool check_overflow; /* skip a step whose norm is not finite; false: such a step ends the run */
    zr_update_at_t update_at;   /* BACKWARD: at stages 2 and 3 */
    size_t device_memory_bytes; /* budget per rank; ZR_CONFIG_NO_BUDGET: none */
    size_t host_memory_bytes;
    size_t process_memory_bytes; /* host memory budget of the process. It covers the host tier, the
                                    device tier if that is host memory, the library's tables and
                                    ZR_CONFIG_PROGRAM_BYTES; ZR_CONFIG_NO_BUDGET: none */
    int process_ranks; /* ranks that are threads of one process, share that budget equally, and the
                          tables (zr_allocator_share_tables; zr_run_ranks calls it); > 0 */
    bool plan_check;   /* plan a run first and refuse one that does not fit in memory */
    zr_offload_options_t offload_optimizer; /* optimizer state: master, m and v */
    zr_offload_param_options_t offload_param;
    zr_nvme_options_t nvme;
    int host_threads; /* threads for updates on the host, if the device is not the host; 0: all
                         cores */
    bool plan_memory; /* place allocations by a plan made from the previous step: see
                         allocator/replay.h */
    bool wall_clock_breakdown; /* log the parts of each step */
    size_t steps_per_print;    /* print progress every this many steps; at least 1 */
} zr_config_t;

#define ZR_CONFIG_NO_BUDGET ((size_t)-1)
#define ZR_CONFIG_ALL ((size_t)-1)
/** The part of process_memory_bytes reserved for the program, its threads' stacks and heap
 * overhead. */
#define ZR_CONFIG_PROGRAM_BYTES ((size_t)64 << 20)

/**
 * Stage 0, fp32, one micro-batch of one sequence, AdamW, lr 3e-4, betas 0.9 and 0.95, eps 1e-8, no
 * decay, no momentum, no clipping, constant rate, prefetch of units of any size, one group of all
 * ranks, overlap, no budgets, nothing offloaded (optimizer: ratio 1, gradients included, 4 buffers;
 * parameters: ratio 1, 5 buffers of 4194304, none in host memory; requests of 512 KiB, 32 in
 * flight, checksums), progress every 10 steps. The schedule's other fields have DeepSpeed's
 * defaults: set the steps when you set a kind.
 *
 * Threads: thread-safe, like every function of this header: there is no shared state.
 */
zr_config_t zr_config_default(void);

/**
 * Read DeepSpeed's JSON over what `config` holds: JSON with comments, or as DeepSpeed reads it else
 * (docs/reference/deepspeed.md, which lists all keys). A key leaves its field unchanged if it is
 * "auto", or null where null is DeepSpeed's default. Absent keys that decide the result take
 * DeepSpeed's default: those of an optimizer and of a scheduler whose type the file has, and
 * gradient_clipping. Other absent keys leave their field unchanged; a warning names those whose
 * default is not DeepSpeed's. Two different nvme_path values are ignored if paths were set before,
 * and refused otherwise.
 *
 * @param path    file to read
 * @param log     NULL: default; every wrong key of the file is logged, not only the first
 * @param config  in and out; unchanged on error
 * @return ZR_OK; the first error of: ZR_ERR_IO; ZR_ERR_MEMORY; ZR_ERR_FORMAT with line and column
 *         if the file is not valid JSON or has a key twice; ZR_ERR_UNSUPPORTED for a DeepSpeed key
 *         or value that libzero does not support; ZR_ERR_ARGUMENT for an unknown key (the message
 *         has the nearest known one) or a value of the wrong type or out of range
 */
ZR_NODISCARD zr_status_t zr_config_read_json(const char *path, const zr_log_t *log,
                                             zr_config_t *config);

/**
 * The same run on a simulated device (kernels/simulation.h): its store is simulated too and needs
 * no folder.
 *
 * @param config  in and out
 */
void zr_config_simulate(zr_config_t *config);

/**
 * Write a configuration as DeepSpeed's JSON. Reading the text over zr_config_default restores the
 * configuration, except for the fields listed here. A key is left out if DeepSpeed and libzero have
 * the same default, or if it has no effect, such as stage3_... at other stages. Numbers have 15
 * digits.
 *
 * DeepSpeed's JSON has no keys for reduce, order, state_form, master, update_at, gather_encoding,
 * reduce_encoding, error_feedback, outer_every, outer_lr, outer_momentum,
 * device_memory_bytes, host_memory_bytes,
 * process_memory_bytes, process_ranks, plan_check,
 * offload_optimizer.max_in_cpu_elems, .gradients, .gradients_ratio,
 * .gradients_in_cpu_elems and .update_on, host_threads, plan_memory, and of nvme capacity_bytes,
 * submit_batch, files_per_path, verify, store and backend.
 *
 * @param log     NULL: default
 * @param text_p  JSON, indented; the caller frees it with free()
 * @return ZR_OK; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_config_write_json(const zr_config_t *config, const zr_log_t *log,
                                              char **text_p);

/**
 * Check every field and fill in the batch sizes that are 0, as DeepSpeed does: two of train_batch,
 * micro_batch and grad_accum determine the third; any other missing value is 1.
 *
 * @param config  in and out; unchanged on error
 * @return ZR_OK; ZR_ERR_ARGUMENT, with field, value and what is allowed (every wrong field is
 *         logged)
 */
ZR_NODISCARD zr_status_t zr_config_resolve(zr_config_t *config, int n_ranks, const zr_log_t *log);

/** The optimizer, and its hyperparameter `index` in the order of its rule. */
const zr_optimizer_type_t *zr_config_optimizer(const zr_config_t *config);
double zr_config_hyper(const zr_config_t *config, size_t index);
/** State arrays of outer steps: the parameters at the last outer step, and their momentum. */
#define ZR_N_OUTER_ARRAYS 2
/** The update rule with state in the configured precision. With outer_every, ZR_N_OUTER_ARRAYS
 * arrays in fp32 are appended for outer steps. */
zr_update_rule_t zr_config_rule(const zr_config_t *config);

/** Whether sub-groups of n_elems are whole blocks: of offloaded optimizer state on drives and in
 * checkpoints, and of gradients on drives. */
bool zr_config_suits_drives(const zr_config_t *config, size_t n_elems);
/** Set the optimizer. A user-defined optimizer gets its default hyperparameters. For one of the
 * library's, only hyperparameters that still have the previous optimizer's defaults are replaced by
 * new defaults. */
void zr_config_set_optimizer(zr_config_t *config, const zr_optimizer_type_t *optimizer);

/** Whether gradients wait on NVMe; whether gradients, optimizer state or parameters are on NVMe. */
bool zr_config_has_grads_on_nvme(const zr_config_t *config);
bool zr_config_uses_nvme(const zr_config_t *config);
/** Whether updates in backward may be undone when the norm is known: the old state is kept
 * until then. */
bool zr_config_takes_back(const zr_config_t *config);

/** The smallest stage that has what is asked for: what `auto` may choose begins there. */
int zr_config_least_stage(const zr_config_t *config);

/** The encoding of messages; NULL: the dtype itself, as with PLAIN. `config` is resolved. */
const struct zr_encoding *zr_config_message(const zr_config_t *config, zr_message_as_t as);

/** How messages are reduced in precision or number, for reports: "parameters in 8bit, gradients in
 * 4bit, groups that meet every 20 steps"; "": not at all. */
typedef struct zr_messages_text {
    char text[160];
} zr_messages_text_t;
zr_messages_text_t zr_config_messages(const zr_config_t *config);

/** Micro-batches that a model of blocks trains together: all of a step with ZR_ORDER_BLOCK, else 1.
 * `config` is resolved. */
size_t zr_config_n_together(const zr_config_t *config);

/** One rank's share of process_memory_bytes, for tables and tensors; ZR_CONFIG_NO_BUDGET: no
 * budget. `config` is resolved. */
size_t zr_config_rank_memory(const zr_config_t *config);

/** Number of shards of each flat buffer: the ranks of a group. `config` is resolved. */
int zr_config_n_shards(const zr_config_t *config, int n_ranks);

/**
 * Learning rate of a step, counted from 0. `config` is resolved.
 *
 * Source: DeepSpeed's deepspeed/runtime/lr_schedules.py where `step` is last_batch_iteration;
 * docs/guide/train.md has the formulas.
 */
double zr_config_lr(const zr_config_t *config, size_t step);

ZR_END_C
