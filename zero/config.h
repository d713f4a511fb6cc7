/*
 * What a run is asked to do. A plain struct that the caller fills, or that is read
 * from DeepSpeed's JSON; nothing in it is ever ignored or quietly changed.
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
    ZR_REDUCE_EVERY_MICRO_BATCH = 1 /* at every stage: bitwise the same at all four */
} zr_reduce_t;

/** The order of a step, of models that are lists of blocks (zero/schedule/order.h). */
typedef enum zr_step_order {
    ZR_ORDER_MICRO_BATCH = 0, /* each micro-batch through all blocks before the next */
    ZR_ORDER_BLOCK = 1        /* each block for all micro-batches before the next block */
} zr_step_order_t;

/** How the learning rate moves; names and formulas are DeepSpeed's. */
typedef enum zr_schedule_kind {
    ZR_SCHEDULE_CONSTANT = 0,
    ZR_SCHEDULE_WARMUP = 1,       /* WarmupLR */
    ZR_SCHEDULE_WARMUP_DECAY = 2, /* WarmupDecayLR */
    ZR_SCHEDULE_WARMUP_COSINE = 3 /* WarmupCosineLR */
} zr_schedule_kind_t;

/** All fields: ignored by CONSTANT. */
typedef struct zr_schedule {
    zr_schedule_kind_t kind;
    double warmup_min_lr;    /* WARMUP, WARMUP_DECAY: the rate at step 0 */
    double warmup_max_lr;    /* WARMUP, WARMUP_DECAY: the rate after warm-up; 0: adamw.lr */
    bool warmup_log;         /* rise with the logarithm of the step, else linearly */
    size_t warmup_steps;     /* 0: none; 1 counts as 2, as in DeepSpeed */
    size_t total_steps;      /* WARMUP_DECAY, WARMUP_COSINE: has to be known, 0 is refused */
    double warmup_min_ratio; /* WARMUP_COSINE: of adamw.lr, at step 0 */
    double cos_min_ratio;    /* WARMUP_COSINE: of adamw.lr, at the end */
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

/** Where something lives; DeepSpeed's names. */
typedef enum zr_offload_device {
    ZR_OFFLOAD_NONE = 0, /* on the device */
    ZR_OFFLOAD_CPU = 1,  /* in host memory */
    ZR_OFFLOAD_NVME = 2  /* in files, through host memory */
} zr_offload_device_t;

/** Where what lives in host memory or on NVMe is updated. */
typedef enum zr_update_on {
    ZR_UPDATE_ON_FASTER = 0, /* measured when the runtime is committed */
    ZR_UPDATE_ON_HOST = 1,
    ZR_UPDATE_ON_DEVICE = 2 /* it comes up for it, and goes back */
} zr_update_on_t;

/** When units are updated, at stages 2 and 3. */
typedef enum zr_update_at {
    ZR_UPDATE_AT_END = 0,     /* at the end of the step, when the norm of all gradients is known */
    ZR_UPDATE_AT_BACKWARD = 1 /* each behind its last reduction. Without clip gradients of one
                                 micro-batch, or of ZR_ORDER_BLOCK, are not kept. With clip or
                                 check_overflow the state of before is kept beside the new one until
                                 the norm is known */
} zr_update_at_t;

/** What values lie in while they pass between ranks; those below FP32 of PLAIN lose some of their
 * bits. */
typedef enum zr_wire {
    ZR_MESSAGE_PLAIN = 0, /* as they are */
    ZR_MESSAGE_BF16 = 1,
    ZR_MESSAGE_8BIT = 2, /* by blocks, with a scale each */
    ZR_MESSAGE_4BIT = 3
} zr_message_as_t;

typedef struct zr_offload_options {
    zr_offload_device_t device;
    double ratio; /* at least this fraction lives there, in whole sub-groups; the rest stays on
                     the device; 0 to 1 */
    size_t max_in_cpu_elems; /* nvme: state of as many parameters per rank, in whole sub-groups,
                                stays in host memory */
    zr_offload_device_t gradients; /* stages 2 and 3: where shards of gradients wait whose state is
                                      not on the device; NONE: there all the same */
    double gradients_ratio;        /* with CPU or NVME: at least this fraction of them waits there,
                                      in whole sub-groups; the rest on the device; 0 to 1 */
    size_t gradients_in_cpu_elems; /* with NVME: gradients of as many parameters per rank, in whole
                                      sub-groups, wait in host memory */
    zr_update_on_t update_on;      /* the same where the device works on host memory */
    size_t n_buffers;  /* nvme: sub-groups that are read, worked on and written at once; > 0 */
    bool read_ahead;   /* nvme: read the next sub-groups while one is worked on */
    bool write_behind; /* nvme: write the last ones then */
} zr_offload_options_t;

/** What is moved is moved in no less than this. */
#define ZR_CONFIG_LEAST_SUB_GROUP_ELEMS ((size_t)1024)
#define ZR_CONFIG_LEAST_BUFFER_BYTES ((size_t)4096)

/** Shards of parameters, at stage 3. */
typedef struct zr_offload_param_options {
    zr_offload_device_t device;
    double ratio;            /* at least this fraction lives there, in whole shards of units; the
                                rest stays on the device; 0 to 1 */
    size_t n_buffers;        /* nvme: staging buffers in host memory; > 0 */
    size_t buffer_elems;     /* nvme: parameters in a buffer, rounded down to whole 256 KiB, or to
                                4096 bytes where that is less, which is the least; a shard that is
                                larger is split */
    size_t max_in_cpu_elems; /* nvme: as many parameters per rank, in whole shards, stay in host
                                memory */
} zr_offload_param_options_t;

#define ZR_CONFIG_PATHS_BYTES 1024

/** Files of everything that is offloaded to NVMe. See offload/store.h. */
typedef struct zr_nvme_options {
    char paths[ZR_CONFIG_PATHS_BYTES]; /* folders, with commas between; "": none */
    size_t capacity_bytes;             /* budget per rank; ZR_CONFIG_NO_BUDGET: none */
    size_t request_bytes;              /* of a transfer; a multiple of 4096 */
    size_t depth;                      /* requests at once; 1 to 1024 */
    size_t submit_batch;   /* of them handed over at once, or depth where that is less; > 0 */
    size_t files_per_path; /* 1 to 16 together */
    bool verify;           /* make checksums, and verify them */
    const char
        *store; /* backend: "uring"; "memory" for tests; "sim" on a simulated device; static */
    const struct zr_store_backend *backend; /* NULL; or a store of the program's own, in place of
                                               `store` and paths (offload/store_backend.h);
                                               borrowed until the runtime is destroyed */
} zr_nvme_options_t;

typedef struct zr_config {
    int stage;          /* 0 to 3 */
    zr_dtype_t dtype;   /* of parameters and gradients: F32 or BF16 */
    size_t train_batch; /* sequences per step over all ranks; 0: micro * accum * ranks */
    size_t micro_batch; /* sequences per rank and micro-batch; 0: from train_batch, or 1 */
    size_t grad_accum;  /* micro-batches per step; 0: from train_batch, or 1 */
    zr_reduce_t reduce;
    zr_step_order_t order;
    double clip; /* largest global gradient norm; 0: no clipping */
    zr_optimizer_kind_t optimizer;
    const zr_optimizer_type_t *own_optimizer; /* of a user's own, instead; static; NULL: none */
    double own_hyper[ZR_MAX_HYPERS];          /* its numbers, in the order of its rule */
    zr_adamw_options_t adamw;   /* the rate and weight decay of any; betas and epsilon of those that
                                   have them */
    double momentum;            /* of those that have one */
    bool nesterov;              /* likewise */
    zr_state_form_t state_form; /* of the optimizer's arrays but the master */
    zr_schedule_t schedule;
    size_t prefetch_elems;  /* stage 3: gather ahead at most so many parameters; 0: none */
    size_t reuse_elems;     /* stage 3: keep a released unit gathered when its next use is at
                               most so many gathered parameters away; 0: never */
    size_t max_live_elems;  /* stage 3: gather ahead and keep only up to so many gathered
                               parameters; > 0 */
    size_t sub_group_elems; /* update at most so many parameters at a time; > 0, and where
                               the optimizer is offloaded at least 1024 */
    int shard_group_size;   /* ranks that share one copy of what is sharded: groups of so many in
                               order of rank hold the same (hybrid sharding); has to divide the
                               ranks; -1: all of them */
    zr_message_as_t gather_encoding; /* of parameters, at stages 1 to 3: every rank computes with
                                  what it decodes, also from itself */
    zr_message_as_t reduce_encoding; /* of gradients: each rank's part of a sum, and sums that are
                                        gathered; they are added in fp32, in rank order */
    bool error_feedback; /* with groups: what the encoding leaves out of what a rank sends to other
                            groups is added to what it sends in the next step */
    size_t outer_every;  /* with groups: they take so many steps of their own, and then meet in an
                            outer step; 0: every step is one of all */
    double outer_lr, outer_momentum; /* of the outer step's SGD, with Nesterov's momentum */
    bool overlap_comm;   /* gathers and reductions on a stream of their own, beside compute where
                            the device has such (zr_stream_create_beside) */
    bool check_overflow; /* a step whose norm is not finite is skipped; false: it ends the run */
    zr_update_at_t update_at;   /* BACKWARD: at stages 2 and 3 */
    size_t device_memory_bytes; /* budget per rank; ZR_CONFIG_NO_BUDGET: none */
    size_t host_memory_bytes;
    size_t process_memory_bytes; /* budget of the process in host memory: of both tiers, where the
                                    device's memory is the host's, of the library's tables and of
                                    ZR_CONFIG_PROGRAM_BYTES; ZR_CONFIG_NO_BUDGET: none */
    int process_ranks; /* ranks that are threads of one process, and share it equally; > 0 */
    bool plan_check;   /* a program that plans its run does not begin one that does not fit */
    zr_offload_options_t offload_optimizer; /* master, m and v */
    zr_offload_param_options_t offload_param;
    zr_nvme_options_t nvme;
    int host_threads;          /* of the host's updates, where the device is not the host; 0: all
                                  cores */
    bool plan_memory;          /* allocate by a plan of the step before: see allocator/replay.h */
    bool wall_clock_breakdown; /* log the parts of each step */
    size_t steps_per_print;    /* progress every so many steps; at least 1 */
} zr_config_t;

#define ZR_CONFIG_NO_BUDGET ((size_t)-1)
/** Of process_memory_bytes: for the program, the stacks of its threads, and what heaps lose. */
#define ZR_CONFIG_PROGRAM_BYTES ((size_t)64 << 20)

/**
 * Stage 0, fp32, one micro-batch of one sequence, AdamW, lr 3e-4, betas 0.9 and 0.95, eps 1e-8, no
 * decay, no momentum, no clipping, constant rate, prefetch of 50,000,000 elements, one group of all
 * ranks, overlap, no budgets, nothing offloaded (ratio 1, all gradients with it, 4 buffers; of
 * parameters ratio 1, 5 buffers of 4194304, none in host memory; requests of 512 KiB, 32 at once,
 * checksums), progress every 10 steps. The schedule's other fields are DeepSpeed's defaults:
 * whoever sets a kind sets steps too.
 *
 * Threads: thread-safe, as everything here: nothing is shared.
 */
zr_config_t zr_config_default(void);

/**
 * Read DeepSpeed's JSON over what `config` holds. Keys that are absent, "auto" or null where
 * that is DeepSpeed's default leave it as it is, and so do two different nvme_path where paths were
 * set before; where none were they are refused. docs/reference/config.md tables all keys.
 *
 * @param path    file to read
 * @param log     NULL: default; every wrong key of the file is logged, not only the first
 * @param config  in and out; unchanged on error
 * @return ZR_OK; the first error of: ZR_ERR_IO; ZR_ERR_MEMORY; ZR_ERR_FORMAT with line and
 *         column where it is no JSON, or a key stands twice;
 *         ZR_ERR_UNSUPPORTED for a key of DeepSpeed's, or a value of one, that does not exist
 *         here; ZR_ERR_ARGUMENT for an unknown key (the message has the nearest known one) or a
 *         value of the wrong type or out of range
 */
ZR_NODISCARD zr_status_t zr_config_read_json(const char *path, const zr_log_t *log,
                                             zr_config_t *config);

/**
 * The same run on a simulated device (kernels/simulation.h): its store is simulated, too, and needs
 * no folder.
 *
 * @param config  in and out
 */
void zr_config_simulate(zr_config_t *config);

/**
 * Write as DeepSpeed's JSON what a configuration says: read over zr_config_default, the text gives
 * it back, but for the fields below. A key is left out where DeepSpeed and libzero both take the
 * same without it, and where it says nothing, such as stage3_... at other stages. Numbers have 15
 * digits.
 *
 * DeepSpeed's JSON has no keys for reduce, order, state_form, update_at, gather_encoding,
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
 * Check every field and fill in the batch sizes that are 0, as DeepSpeed does: two of
 * train_batch, micro_batch and grad_accum give the third; what is still missing is 1.
 *
 * @param config  in and out; unchanged on error
 * @return ZR_OK; ZR_ERR_ARGUMENT, with field, value and what is allowed (every wrong field is
 *         logged)
 */
ZR_NODISCARD zr_status_t zr_config_resolve(zr_config_t *config, int n_ranks, const zr_log_t *log);

/** The optimizer, and its hyperparameters in the order of its rule. */
const zr_optimizer_type_t *zr_config_optimizer(const zr_config_t *config);
double zr_config_hyper(const zr_config_t *config, size_t index);
/** Arrays of the state that outer steps keep: the parameters that groups began with, and their
 * momentum. */
#define ZR_N_OUTER_ARRAYS 2
/** Its rule, with the state in the form that is asked for, and behind it, with outer_every, what
 * outer steps keep: ZR_N_OUTER_ARRAYS in fp32. */
zr_update_rule_t zr_config_rule(const zr_config_t *config);
/** Take an optimizer. Of one of a user's own, hyperparameters get their default values; of one of
 * the library's those that are as the one before has them by default. */
void zr_config_set_optimizer(zr_config_t *config, const zr_optimizer_type_t *optimizer);

/** Whether gradients wait on NVMe; whether these, optimizer state or parameters do. */
bool zr_config_has_grads_on_nvme(const zr_config_t *config);
bool zr_config_uses_nvme(const zr_config_t *config);
/** Whether updates in backward may have to be taken back when the norm is known: the old state is
 * kept beside the new one. */
bool zr_config_takes_back(const zr_config_t *config);

/** The encoding of messages; NULL: the dtype's own, as with PLAIN. `config` is resolved. */
const struct zr_encoding *zr_config_message(const zr_config_t *config, zr_message_as_t as);

/** What messages lose, for reports: "parameters in 8bit, gradients in 4bit, groups that meet every
 * 20 steps"; "": nothing. */
typedef struct zr_messages_text {
    char text[160];
} zr_messages_text_t;
zr_messages_text_t zr_config_messages(const zr_config_t *config);

/** Micro-batches that a model of blocks trains together: all of a step with ZR_ORDER_BLOCK, else 1.
 * `config` is resolved. */
size_t zr_config_n_together(const zr_config_t *config);

/** What a rank may have of process_memory_bytes, tables and tensors; ZR_CONFIG_NO_BUDGET: there is
 * no such budget. `config` is resolved. */
size_t zr_config_rank_memory(const zr_config_t *config);

/** Shards that each flat buffer is cut into: ranks of a group. `config` is resolved. */
int zr_config_n_shards(const zr_config_t *config, int n_ranks);

/**
 * Learning rate of a step, counted from 0. `config` is resolved.
 *
 * Source: DeepSpeed's deepspeed/runtime/lr_schedules.py with `step` for its
 * last_batch_iteration; docs/reference/config.md has the formulas.
 */
double zr_config_lr(const zr_config_t *config, size_t step);

ZR_END_C
