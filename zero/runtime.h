/*
 * The runtime of one rank: units of parameters, sharded by stage, and their life.
 *
 *   create -> add groups, units, parameters -> commit
 *   for each micro-batch:
 *     zr_runtime_begin_micro_batch
 *     forward:   acquire(unit, ZR_FORWARD), compute, release
 *     backward:  acquire(unit, ZR_BACKWARD), compute, reduce when its gradients are complete,
 *                release
 *   zr_runtime_step
 *
 * A unit may be acquired any number of times in a micro-batch, also while it is acquired:
 * a tied parameter belongs to one unit, and whoever uses it acquires that unit. Its
 * gradients add up until the one zr_unit_reduce of the micro-batch.
 *
 * All pointers are device memory, valid on the compute stream (zr_runtime_stream).
 * Threads: a runtime and everything it owns belongs to one thread, the rank's own.
 */
#pragma once

#include "allocator/allocator.h"
#include "allocator/replay.h"
#include "offload/store.h"
#include "zero/comm/comm.h"
#include "zero/config.h"

ZR_BEGIN_C

typedef struct zr_runtime zr_runtime_t;
typedef struct zr_unit zr_unit_t;   /* owned by its runtime */
typedef struct zr_param zr_param_t; /* owned by its unit */

/**
 * Create the runtime of a rank.
 *
 * @param config  resolved (zr_config_resolve); copied; the same on every rank, which is checked
 * @param comm    borrowed until destroy
 * @param device  borrowed until destroy
 * @param log     copied, with the rank set; NULL: default.
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET; ZR_ERR_DEVICE;
 *         ZR_ERR_COMM when the ranks' configurations differ
 *
 * ZR_ERR_ARGUMENT and ZR_ERR_STATE change nothing, except from zr_runtime_commit. After any other
 * error a runtime can only be destroyed. A rank that stops early must call zr_comm_abort, so that
 * the others do not wait for it.
 */
ZR_NODISCARD zr_status_t zr_runtime_create(const zr_config_t *config, zr_comm_t *comm,
                                           zr_device_t *device, const zr_log_t *log,
                                           zr_runtime_t **runtime_p);
void zr_runtime_destroy(zr_runtime_t **runtime);

/** Hyperparameters that a set of parameters shares. */
typedef struct zr_group {
    const char *name;    /* copied */
    double weight_decay; /* decoupled */
    double lr_scale;     /* factor on the step's learning rate */
} zr_group_t;

/**
 * Add a parameter group. Group 0 exists: config's weight decay, scale 1.
 *
 * @param group_p  its number, for zr_param_desc_t.group
 */
ZR_NODISCARD zr_status_t zr_runtime_add_group(zr_runtime_t *runtime, const zr_group_t *group,
                                              int *group_p);

/**
 * Change a group's hyperparameters from the next update on, for trainers that schedule rates
 * themselves. All ranks call it, after commit.
 *
 * @param group         its number; 0 is the default group
 * @param weight_decay  as in zr_group_t, and finite in fp32
 * @param lr_scale as in zr_group_t, and finite in fp32
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE before commit; ZR_ERR_COMM when ranks differ in it
 */
ZR_NODISCARD zr_status_t zr_runtime_change_group(zr_runtime_t *runtime, int group,
                                                 double weight_decay, double lr_scale);

/**
 * Change one of the optimizer's hyperparameters for a group, from the next update on. All groups
 * start with the configuration's. All ranks call it, after commit. Not saved in checkpoints.
 *
 * @param group  its number; 0 is the default group
 * @param name   as in the optimizer's rule: "beta1", "momentum"; borrowed
 * @param value  in the hyperparameter's range when rounded to fp32; a switch is 0 or 1
 * @return ZR_OK; ZR_ERR_ARGUMENT, also when the optimizer has no such hyperparameter; ZR_ERR_STATE
 *         before commit; ZR_ERR_COMM when ranks differ in it
 */
ZR_NODISCARD zr_status_t zr_runtime_change_hyper(zr_runtime_t *runtime, int group, const char *name,
                                                 double value);

/** Add a unit: parameters that are gathered, reduced and released together. */
ZR_NODISCARD zr_status_t zr_runtime_add_unit(zr_runtime_t *runtime, const char *name,
                                             zr_unit_t **unit_p);

/**
 * Give initial values of elements [first, first + n_elems) of a parameter. Called during commit,
 * in pieces, in any order; the values must depend only on the arguments.
 */
typedef void (*zr_param_fill_fn)(void *context, size_t first, size_t n_elems, float *values);

typedef struct zr_param_desc {
    const char *name; /* copied; unique in the runtime */
    int n_dims;       /* 0 to 4; 0: one element */
    size_t dims[4];
    int group;
    bool frozen;           /* no gradient, no state; still sharded */
    zr_param_fill_fn fill; /* NULL: zeros */
    void *fill_context;    /* borrowed until commit returns */
    const zr_encoding_t
        *encoding; /* encoding of its elements when stored, gathered and offloaded; kernels see the
                      configuration's dtype. NULL: the configuration's dtype. For frozen parameters
                      only; all frozen parameters of a unit must have the same */
    bool may_be_new; /* it may be missing in a checkpoint: it then starts with `fill`, and its state
                        with 0 */
} zr_param_desc_t;

/** Add a parameter to a unit, before commit. ZR_ERR_ARGUMENT also when its size overflows;
 * ZR_ERR_UNSUPPORTED when a unit cannot hold its encoding. */
ZR_NODISCARD zr_status_t zr_unit_add_param(zr_unit_t *unit, const zr_param_desc_t *desc,
                                           zr_param_t **param_p);

/** What a trainer keeps in the rank's store, in addition to optimizer state and parameters. */
typedef struct zr_extents_desc {
    const char *name; /* one name for all extents, for messages: "inputs of 6 layers" */
    const zr_store_extent_t *extents; /* [n_extents] copied; their `account` is ignored */
    size_t n_extents;
    size_t unit_bytes;         /* transfers begin at multiples of it; a multiple of
                                  ZR_STORE_CHUNK_ALIGN_BYTES */
    size_t max_transfers;      /* transfers in flight for these extents */
    const char *const *advice; /* NULL-terminated phrases that tell how to need less room, such as
                                  "--offload-activations cpu"; or NULL */
} zr_extents_desc_t;

/** The reserved extents: [first, first + n_extents) of the store, counted in one account. */
typedef struct zr_extents {
    size_t first;
    size_t n_extents;
    size_t account;
} zr_extents_t;

/**
 * Reserve room in the rank's store, on the drives that the configuration's `nvme` names. To be
 * called before commit, which opens the store.
 *
 * @param desc  borrowed for the call; its name and advice until commit has returned
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE after commit; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_runtime_add_extents(zr_runtime_t *runtime,
                                                const zr_extents_desc_t *desc,
                                                zr_extents_t *extents_p);

/**
 * Lay out, shard, allocate and fill everything; no unit, parameter or extent can be added after.
 *
 * @return ZR_OK; ZR_ERR_BUDGET, also if the declared extents do not fit on the drives; errors of
 *         zr_store_create and of the calls above
 */
ZR_NODISCARD zr_status_t zr_runtime_commit(zr_runtime_t *runtime);

/** Begin the next of config's grad_accum micro-batches; zr_runtime_step ends the step. */
ZR_NODISCARD zr_status_t zr_runtime_begin_micro_batch(zr_runtime_t *runtime);
/**
 * Begin the next n micro-batches together: a unit's parameters are acquired once for all n. With
 * ZR_REDUCE_AUTO a unit is also reduced once for all n, and gradients add up locally first, at
 * every stage. With ZR_REDUCE_EVERY_MICRO_BATCH a unit is reduced n times, once per micro-batch in
 * order, and acquired with gradients again after each reduction.
 *
 * @return also ZR_ERR_ARGUMENT if fewer than n are left in the step
 */
ZR_NODISCARD zr_status_t zr_runtime_begin_micro_batches(zr_runtime_t *runtime, size_t n);
/**
 * Begin one micro-batch more than config's grad_accum: after the last one, and before
 * zr_runtime_step. Its gradients are added to those of the others; the divisor stays as it is. All
 * ranks must call it.
 *
 * @return ZR_OK; ZR_ERR_STATE when the step has micro-batches left, or a unit is acquired, was
 *         updated in backward, or was not reduced; ZR_ERR_UNSUPPORTED where several groups of ranks
 *         have added up gradients that are offloaded
 */
ZR_NODISCARD zr_status_t zr_runtime_begin_extra_micro_batch(zr_runtime_t *runtime);
/** Before commit: micro-batches' gradients are added, and averaged over the ranks alone; for
 * trainers that have divided their losses. The same on every rank. */
void zr_runtime_sum_micro_batches(zr_runtime_t *runtime);
/**
 * Tell which one of the micro-batches that began together is computed from now on, for traces and
 * memory plans. The default is the first.
 *
 * @param index  from 0; ignored if out of range
 */
void zr_runtime_at_micro_batch(zr_runtime_t *runtime, size_t index);
/** Number of micro-batches of the step that have not begun. */
size_t zr_runtime_micro_batches_left(const zr_runtime_t *runtime);

/**
 * Abandon this step after any of its micro-batches, or in one of which no unit was reduced: their
 * gradients are dropped, and the state is that after the previous step. All ranks must call it.
 * Without a begun micro-batch it does nothing.
 *
 * @return ZR_OK; ZR_ERR_STATE when a unit is acquired, was updated in backward, or was not reduced
 *         where others were
 */
ZR_NODISCARD zr_status_t zr_runtime_drop_step(zr_runtime_t *runtime);

/**
 * Begin one pass of an evaluation, between steps: until the next micro-batch begins, units may be
 * acquired with ZR_FORWARD. Later passes with the same order of units prefetch their parameters.
 * Evaluation does not affect training.
 *
 * @return ZR_OK; ZR_ERR_STATE before commit and within a step
 */
ZR_NODISCARD zr_status_t zr_runtime_begin_evaluation(zr_runtime_t *runtime);

typedef enum zr_pass {
    ZR_FORWARD = 0,        /* parameters */
    ZR_BACKWARD = 1,       /* parameters and gradients */
    ZR_GRADIENTS = 2,      /* gradients only: nothing is gathered */
    ZR_BACKWARD_PARAMS = 3 /* parameters only, in backward */
} zr_pass_t;

/**
 * Make a unit's full parameters, gradients or both available to the compute stream.
 *
 * @return ZR_OK; ZR_ERR_STATE before commit, outside a micro-batch (only parameters are allowed
 *         there, for evaluation), or for gradients after the last zr_unit_reduce; ZR_ERR_BUDGET;
 *         ZR_ERR_COMM
 *
 * Every acquire is paired with a release.
 */
ZR_NODISCARD zr_status_t zr_unit_acquire(zr_unit_t *unit, zr_pass_t pass);

/**
 * Release a unit: the compute stream's work queued so far is its last use. Gathered
 * parameters are freed; gradients stay until they are reduced.
 */
ZR_NODISCARD zr_status_t zr_unit_release(zr_unit_t *unit);

/**
 * Reduce a unit's gradients over the ranks and keep what the stage keeps: everything at stage
 * 0, this rank's shard at stages 1 to 3. Once per unit and micro-batch (of those that began
 * together, see zr_runtime_begin_micro_batches), while it is acquired with gradients. A parameter
 * whose zr_param_grad was not called has gradient zero.
 *
 * @return ZR_OK; ZR_ERR_STATE; ZR_ERR_COMM
 *
 * Shapes: [n_elems padded to a multiple of ranks]. Source: Rajbhandari et al. 2020, section 5.2.
 */
ZR_NODISCARD zr_status_t zr_unit_reduce(zr_unit_t *unit);

/** Full parameter, [dims] of config's dtype. NULL while its unit is not acquired with parameters.
 */
const void *zr_param_data(const zr_param_t *param);

/**
 * Full gradient of a trainable parameter, [dims] of config's dtype.
 *
 * @param grad_p        device pointer
 * @param accumulate_p  false: the caller must overwrite every element; true: must add. NULL: the
 *                      gradient is zeroed first if needed, so the caller always adds
 * @return ZR_OK; ZR_ERR_STATE when the unit is not acquired with gradients, or is frozen
 */
ZR_NODISCARD zr_status_t zr_param_grad(zr_param_t *param, void **grad_p, bool *accumulate_p);

/**
 * Full gradient of a trainable parameter between its unit's last reduction and zr_runtime_step,
 * [dims] of config's dtype, on the device: the sum over ranks that the step divides. What is
 * written there counts. NULL where it is not kept in full (stages 1 to 3 with several ranks, stages
 * 2 and 3, updates in backward), and for frozen parameters.
 */
void *zr_param_kept_grad(const zr_param_t *param);

/** Whether trained parameters in fp32, where they are kept in full, are their own masters: the next
 * update begins with what is written there. After commit. */
bool zr_runtime_params_are_masters(const zr_runtime_t *runtime);

/**
 * Leave a parameter out of the next update, because nothing has computed a gradient for it: its
 * values, its state and the count of its updates stay as they are. To be called in a step, on all
 * ranks alike; with updates in backward, before its unit's last reduction. An optimizer of the
 * program's own must know zr_update_t.is_left_out.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT for a frozen parameter; ZR_ERR_STATE outside of a step, and where
 *         it was updated already
 */
ZR_NODISCARD zr_status_t zr_param_leave_out(zr_param_t *param);
/** Number of updates that a parameter was left out of; checkpoints do not have it. */
size_t zr_param_n_left_out(const zr_param_t *param);
/** Set it to what zr_param_n_left_out was when the state was saved, between steps. */
void zr_param_set_n_left_out(zr_param_t *param, size_t n);

size_t zr_param_n_elems(const zr_param_t *param);
bool zr_param_is_frozen(const zr_param_t *param);
/** Lives until commit; as asked for after it, as long as the runtime. */
const char *zr_param_name(const zr_param_t *param);
const zr_unit_t *zr_param_unit(const zr_param_t *param);
/** Number of dimensions; dims_p[i] is set for each of them. */
int zr_param_dims(const zr_param_t *param, size_t dims_p[4]);
/** The parameter of this name; NULL: not found. */
zr_param_t *zr_runtime_param(const zr_runtime_t *runtime, const char *name);
/** Parameter `index`, in the order in which they were added; NULL after the last. */
zr_param_t *zr_runtime_param_at(const zr_runtime_t *runtime, size_t index);
const char *zr_unit_name(const zr_unit_t *unit);

typedef struct zr_step_report {
    size_t step;          /* optimizer steps done, skipped ones included, from 1 */
    double lr;            /* learning rate of this step */
    double gradient_norm; /* global, of the averaged gradients, before clipping */
    double clip_factor;   /* 1: not clipped */
    bool skipped;         /* the norm was not finite: nothing was updated */
    size_t n_skipped;     /* skipped steps so far */
} zr_step_report_t;

/**
 * End a step: global norm, clip, update where the state lives, publish new parameters.
 * Gradients are averaged over ranks and micro-batches.
 *
 * @param report_p  may be NULL
 * @return ZR_OK, also for a skipped step; ZR_ERR_STATE when micro-batches are missing or a unit
 *         is still acquired or was not reduced; ZR_ERR_COMM; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_runtime_step(zr_runtime_t *runtime, zr_step_report_t *report_p);

/** How many values a rank can share at once. */
#define ZR_MAX_SHARED_VALUES 4

/**
 * Exchange a few values (losses, times) among all ranks. Traffic is control.
 *
 * @param values    [n_values] this rank's values, borrowed for the call
 * @param n_values  1 to ZR_MAX_SHARED_VALUES, the same on every rank
 * @param all       [n_ranks * n_values] in rank order; set on success
 */
ZR_NODISCARD zr_status_t zr_runtime_share(zr_runtime_t *runtime, const double *values,
                                          size_t n_values, double *all);

/** Average of a value over the ranks (losses), summed in rank order. Traffic is control. */
ZR_NODISCARD zr_status_t zr_runtime_average(zr_runtime_t *runtime, double value, double *average_p);

/**
 * With outer steps (config's outer_every): take an outer step now, before the groups have taken all
 * outer_every local steps. Saving a checkpoint does the same. Collective; outside micro-batches
 * only.
 *
 * @return ZR_OK, also if there was no local step since the last outer step, or without outer steps;
 *         ZR_ERR_STATE; ZR_ERR_COMM; ZR_ERR_MEMORY and ZR_ERR_BUDGET
 */
ZR_NODISCARD zr_status_t zr_runtime_join_groups(zr_runtime_t *runtime);

/** All parameters together. */
typedef struct zr_weights {
    uint64_t xxh3;       /* see zr_runtime_weights_xxh3 */
    size_t n_non_finite; /* elements that are infinite or NaN: training has diverged */
} zr_weights_t;

/** Inspect all parameters in one pass. Collective; the result is the same on every rank. With
 * groups, ZR_ERR_STATE if their copies differ; with outer steps and local steps since the last one,
 * each group gets its own result (zr_runtime_join_groups first avoids that). Outside micro-batches
 * only. ZR_ERR_UNSUPPORTED on a device that stores nothing. */
ZR_NODISCARD zr_status_t zr_runtime_weights(zr_runtime_t *runtime, zr_weights_t *weights_p);

/**
 * XXH3 (64 bits) of all parameters in registration order: fp32 master, or the fp32 value of
 * frozen ones. Collective; the same number on every rank. Outside micro-batches only.
 * ZR_ERR_UNSUPPORTED on a device that stores nothing.
 */
ZR_NODISCARD zr_status_t zr_runtime_weights_xxh3(zr_runtime_t *runtime, uint64_t *hash_p);

/**
 * Read elements [first, first + n_elems) of a parameter's fp32 master (frozen: its value) into
 * host memory. Collective; outside micro-batches only.
 */
ZR_NODISCARD zr_status_t zr_param_read(zr_param_t *param, size_t first, size_t n_elems,
                                       float *values);

/**
 * Overwrite elements [first, first + n_elems) of a parameter: its fp32 master, its shard in
 * config's dtype on any tier, and its gathered copy. The optimizer's other arrays, such as moments,
 * are unchanged. Collective; outside micro-batches only.
 *
 * @param values  [n_elems] read on rank `root` only, borrowed for the call; may be NULL on other
 *                ranks
 * @param root    the rank whose values are used, the same on every rank
 * @return ZR_OK; ZR_ERR_STATE; ZR_ERR_ARGUMENT; ZR_ERR_COMM; ZR_ERR_STORE;
 *         ZR_ERR_UNSUPPORTED on a device that stores nothing
 */
ZR_NODISCARD zr_status_t zr_param_write(zr_param_t *param, size_t first, size_t n_elems,
                                        const float *values, int root);

/** The stream for the trainer's kernels. */
zr_stream_t *zr_runtime_stream(zr_runtime_t *runtime);
/** The rank's allocator: activations and workspaces come from it as well. */
zr_allocator_t *zr_runtime_allocator(zr_runtime_t *runtime);
zr_device_t *zr_runtime_device(zr_runtime_t *runtime);
zr_comm_t *zr_runtime_comm(zr_runtime_t *runtime);
/** The rank's store, after commit; NULL if nothing is stored there. Its users share max_transfers,
 * and each registers its own buffers. */
zr_store_t *zr_runtime_store(zr_runtime_t *runtime);
const zr_config_t *zr_runtime_config(const zr_runtime_t *runtime);

const zr_log_t *zr_runtime_log(const zr_runtime_t *runtime);

/**
 * Host memory outside the tiers: the rank's heap memory for tables of the runtime, its allocator,
 * plans, store and model. It is freed as a whole when the rank ends.
 *
 * @param count_p  bytes now, and the peak so far. mimalloc's own overhead is not counted
 */
void zr_runtime_metadata(const zr_runtime_t *runtime, zr_byte_count_t *count_p);

/** Model size in elements. Padding makes shards equal and aligned. */
typedef struct zr_model_size {
    size_t n_units;
    size_t n_params;
    size_t trainable_elems;
    size_t frozen_elems;
    size_t trainable_padded_elems; /* trainable plus padding: N shards of equal length */
    size_t frozen_padded_elems;
    uint64_t frozen_bytes, frozen_padded_bytes;
    size_t largest_unit_padded_elems; /* trainable and frozen of one unit */
} zr_model_size_t;
void zr_runtime_model_size(const zr_runtime_t *runtime, zr_model_size_t *size_p);

/** Traffic by scope. With one group of ranks (config's shard_group_size) all traffic counts as ALL.
 */
typedef enum zr_level {
    ZR_LEVEL_ALL = 0,     /* among all ranks */
    ZR_LEVEL_GROUP = 1,   /* within groups: gathers, and sums of each group */
    ZR_LEVEL_REPLICAS = 2 /* between groups: sums of their sums */
} zr_level_t;
#define ZR_N_LEVELS 3

/** What this rank has sent at a level since the runtime was created (ALL: its communicator). */
void zr_runtime_comm_statistics(const zr_runtime_t *runtime, zr_level_t level,
                                zr_comm_statistics_t *statistics_p);

typedef struct zr_runtime_time {
    double comm_seconds;      /* moving data in collectives */
    double stall_seconds;     /* waiting for other ranks and for concurrent collectives */
    double optimizer_seconds; /* norm and update, without their collectives and io_seconds */
    double io_seconds;        /* updates and gathers waiting for the store */
    /* Collectives executed concurrently by a stream's thread; not included in any field above. */
    double concurrent_seconds;
} zr_runtime_time_t;

/** Times since creation. The rest of a step is the trainer's compute. */
void zr_runtime_time(const zr_runtime_t *runtime, zr_runtime_time_t *time_p);

/** What gathers read from a store. */
typedef struct zr_params_reads {
    uint64_t n_parts;
    uint64_t bytes;
    uint64_t moved_bytes; /* with padding to whole blocks */
} zr_params_reads_t;

/** Where this rank's shards of parameters live when they are offloaded; all 0 when not. */
typedef struct zr_params_report {
    size_t bytes[ZR_N_TIERS];   /* shard bytes by tier */
    uint64_t copied_up_bytes;   /* to gathered buffers */
    uint64_t copied_down_bytes; /* from updates on a device whose memory the CPU cannot touch */
    bool has_store;             /* the fields below are valid */
    zr_store_info_t store;      /* the rank's store, which holds more than parameters */
    size_t n_buffers;
    size_t staging_bytes; /* size of all buffers */
    uint64_t n_foreseen; /* transfers for gathers that were prefetched, or would have been with more
                            buffers */
    zr_params_reads_t gathers;
    uint64_t n_unused; /* parts that were prefetched and dropped unused */
    uint64_t unused_bytes;
    zr_store_count_t updates;   /* put */
    zr_store_count_t inspected; /* read to inspect parameters */
    double gather_wait_seconds; /* this thread was blocked */
    double update_wait_seconds;
    zr_store_statistics_t all; /* for parameters, since commit, initial values included */
} zr_params_report_t;

/** Summed gradients, between their reduction and the update. After commit. */
typedef struct zr_grads_report {
    size_t bytes[ZR_N_TIERS];  /* gradients kept between micro-batches, by tier */
    bool has_store;            /* the fields below are valid */
    zr_store_info_t store;     /* the rank's store, which holds more than gradients */
    size_t staging_bytes;      /* size of the staging buffers for NVMe */
    zr_store_statistics_t all; /* moved, waited for and verified, since commit */
} zr_grads_report_t;

/** Where this rank's optimizer state lives, and what moving it took. After commit. */
typedef struct zr_offload_report {
    size_t largest_group_elems;     /* the largest sub-group that is moved; 0: none */
    size_t n_groups[ZR_N_TIERS];    /* sub-groups stored in each tier */
    size_t state_bytes[ZR_N_TIERS]; /* their state; doubled if the old state is kept too */
    bool has_copies; /* the CPU cannot access device memory: for updates on the host, gradients are
                        copied to the host and parameters to the device */
    bool is_updated_on_device; /* moved state is updated on the device; else on the host */
    uint64_t n_early_groups;   /* sub-groups that were updated in backward */
    bool has_split_masters;    /* as zr_config_t.master asks, or chosen */
    bool was_measured; /* the next two fields are valid: the faster place was chosen by measurement
                        */
    double host_elems_per_s; /* as measured at the start, if all parts of it overlap */
    double device_elems_per_s;
    uint64_t copied_down_bytes; /* gradients; state that was updated on the device */
    uint64_t copied_up_bytes;   /* parameters; gradients that are added to; state to be updated */
    double update_seconds;      /* updates that ran at least partly on the host */
    bool has_store;             /* the fields below are valid */
    zr_store_info_t store;      /* the rank's store, which holds more than optimizer state */
    size_t staging_bytes;       /* size of the staging buffers for NVMe */
    zr_store_count_t updates[ZR_N_STORE_DIRECTIONS]; /* moved by updates */
    double update_wait_seconds[ZR_N_STORE_DIRECTIONS];
    zr_store_statistics_t all; /* for the state, since commit: initial values, updates, reads */
    zr_params_report_t params;
    zr_grads_report_t grads;
} zr_offload_report_t;
void zr_runtime_offload(const zr_runtime_t *runtime, zr_offload_report_t *report_p);

ZR_END_C
