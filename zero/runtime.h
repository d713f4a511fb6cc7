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
 * Threads: a runtime and all that belongs to it: one thread, the rank's own.
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
 * @param log     copied; NULL: default. The rank is set here.
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; ZR_ERR_BUDGET; ZR_ERR_DEVICE;
 *         ZR_ERR_COMM when the ranks' configurations differ
 *
 * ZR_ERR_ARGUMENT and ZR_ERR_STATE change nothing, but for zr_runtime_commit; after any other error
 * a runtime can only be destroyed. A rank that does not go on has to call zr_comm_abort, so that
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
    double lr_scale;     /* times the learning rate of the step */
} zr_group_t;

/**
 * Add a parameter group. Group 0 exists: config's weight decay, scale 1.
 *
 * @param group_p  its number, for zr_param_desc_t.group
 */
ZR_NODISCARD zr_status_t zr_runtime_add_group(zr_runtime_t *runtime, const zr_group_t *group,
                                              int *group_p);

/**
 * Change what a group's parameters share, from the next update on: for trainers that move rates by
 * themselves. All ranks call it, after commit.
 *
 * @param group         its number; 0 is the one that exists
 * @param weight_decay  as in zr_group_t, and finite in fp32
 * @param lr_scale      likewise
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE before commit; ZR_ERR_COMM when ranks differ in it
 */
ZR_NODISCARD zr_status_t zr_runtime_change_group(zr_runtime_t *runtime, int group,
                                                 double weight_decay, double lr_scale);

/** Add a unit: parameters that are gathered, reduced and released together. */
ZR_NODISCARD zr_status_t zr_runtime_add_unit(zr_runtime_t *runtime, const char *name,
                                             zr_unit_t **unit_p);

/**
 * Give initial values of elements [first, first + n_elems) of a parameter. Called during commit,
 * in pieces, in any order; the values may depend on nothing but the arguments.
 */
typedef void (*zr_param_fill_fn)(void *context, size_t first, size_t n_elems, float *values);

typedef struct zr_param_desc {
    const char *name; /* copied; unique in the runtime */
    int n_dims;       /* 0 to 4; 0: one element */
    size_t dims[4];
    int group;
    bool frozen;                   /* no gradient, no state; still sharded */
    zr_param_fill_fn fill;         /* NULL: zeros */
    void *fill_context;            /* borrowed until commit returns */
    const zr_encoding_t *encoding; /* of its elements where they are kept, gathered and offloaded;
                                      kernels see the configuration's dtype. NULL: that, too. Of
                                      frozen ones alone, and the same of all those of a unit */
    bool may_be_new; /* a checkpoint that lacks it will do: it begins with `fill`, its state at 0 */
} zr_param_desc_t;

/** Add a parameter to a unit, before commit. ZR_ERR_ARGUMENT also when its size overflows;
 * ZR_ERR_UNSUPPORTED when a unit cannot hold its encoding. */
ZR_NODISCARD zr_status_t zr_unit_add_param(zr_unit_t *unit, const zr_param_desc_t *desc,
                                           zr_param_t **param_p);

/** What a trainer keeps in the rank's store, beside optimizer state and parameters. */
typedef struct zr_extents_desc {
    const char *name;                 /* of all together, for messages: "inputs of 6 layers" */
    const zr_store_extent_t *extents; /* [n_extents] copied; whatever account they say */
    size_t n_extents;
    size_t unit_bytes;         /* transfers begin at multiples of it, and it is a multiple of
                                  ZR_STORE_CHUNK_ALIGN_BYTES */
    size_t max_transfers;      /* of this user, at once */
    const char *const *advice; /* how it needs less room, phrases such as
                                  "--offload-activations cpu", then NULL; or NULL */
} zr_extents_desc_t;

/** Where they are: extents [first, first + n_extents) of the store, counted in one account. */
typedef struct zr_extents {
    size_t first;
    size_t n_extents;
    size_t account;
} zr_extents_t;

/**
 * Reserve room on the drives that the configuration's `nvme` names, in the one store that the rank
 * has for everything. Before commit, which opens it.
 *
 * @param desc  borrowed for the call, but its name and advice until commit has returned
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE after commit; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_runtime_add_extents(zr_runtime_t *runtime,
                                                const zr_extents_desc_t *desc,
                                                zr_extents_t *extents_p);

/**
 * Lay out, shard, allocate and fill everything; no unit, parameter or extent can be added after.
 *
 * @return ZR_OK; ZR_ERR_BUDGET, also when what is declared does not fit on the drives; and what
 *         zr_store_create and the other calls return
 */
ZR_NODISCARD zr_status_t zr_runtime_commit(zr_runtime_t *runtime);

/** The next of config's grad_accum micro-batches; zr_runtime_step ends them. */
ZR_NODISCARD zr_status_t zr_runtime_begin_micro_batch(zr_runtime_t *runtime);
/**
 * The next n of them at once: a unit's parameters are acquired once for all. With ZR_REDUCE_AUTO
 * it is reduced once for all, too, and its gradients add up before ranks meet, at every stage, as
 * they do at stages 0 and 1. With ZR_REDUCE_EVERY_MICRO_BATCH it is reduced n times, once for each
 * of them in their order, and acquired with gradients again after each time.
 *
 * @return also ZR_ERR_ARGUMENT when the step has fewer left
 */
ZR_NODISCARD zr_status_t zr_runtime_begin_micro_batches(zr_runtime_t *runtime, size_t n);
/**
 * Of micro-batches that began together: which one is worked on from now on, for traces, and for
 * plans of memory, which tell them apart. The first one, until this is called.
 *
 * @param index  from 0; ignored where there is no such one
 */
void zr_runtime_at_micro_batch(zr_runtime_t *runtime, size_t index);
/** Micro-batches of the step that have not begun. */
size_t zr_runtime_micro_batches_left(const zr_runtime_t *runtime);

/**
 * Give this step up, behind any of its micro-batches: their gradients are dropped, and all is as it
 * was after the step before. On all ranks alike. Nothing happens when none was begun.
 *
 * @return ZR_OK; ZR_ERR_STATE when a unit is acquired, was updated in backward, or was not reduced
 */
ZR_NODISCARD zr_status_t zr_runtime_drop_step(zr_runtime_t *runtime);

/**
 * Between steps, and until the next micro-batch begins: the parameters of units are acquired, with
 * ZR_FORWARD, for one pass of an evaluation. Later passes that begin and acquire in the same order
 * have them gathered, and read from drives, ahead of their use. Training goes on as if none had
 * been.
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
 * @return ZR_OK; ZR_ERR_STATE before commit, outside a micro-batch (parameters alone are allowed
 *         there, for evaluation), or for gradients after the last zr_unit_reduce;
 *         ZR_ERR_BUDGET; ZR_ERR_COMM
 *
 * Every acquire is paired with a release.
 */
ZR_NODISCARD zr_status_t zr_unit_acquire(zr_unit_t *unit, zr_pass_t pass);

/**
 * Give a unit back: the compute stream's work queued so far is its last use. Gathered
 * parameters are freed; gradients stay until they are reduced.
 */
ZR_NODISCARD zr_status_t zr_unit_release(zr_unit_t *unit);

/**
 * Reduce a unit's gradients over the ranks and keep what the stage keeps: everything at stage
 * 0, this rank's shard at stages 1 to 3. Once per unit and micro-batch (of those that began
 * together, see zr_runtime_begin_micro_batches), while it is acquired with gradients. Parameters
 * whose gradient nobody asked for count as zero.
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
 * @param accumulate_p  false: whoever asks has to overwrite every element; true: has to add.
 *                      NULL: the gradient is zeroed first where it has to be, so adding is right
 * @return ZR_OK; ZR_ERR_STATE when the unit is not acquired with gradients, or is frozen
 */
ZR_NODISCARD zr_status_t zr_param_grad(zr_param_t *param, void **grad_p, bool *accumulate_p);

size_t zr_param_n_elems(const zr_param_t *param);
bool zr_param_is_frozen(const zr_param_t *param);
const char *zr_param_name(const zr_param_t *param);
const zr_unit_t *zr_param_unit(const zr_param_t *param);
/** How many dimensions it has; dims_p[i] is set for each of them. */
int zr_param_dims(const zr_param_t *param, size_t dims_p[4]);
/** The parameter of this name; NULL: there is none. */
zr_param_t *zr_runtime_param(const zr_runtime_t *runtime, const char *name);
/** Parameter `index`, in the order in which they were added; NULL behind the last. */
zr_param_t *zr_runtime_param_at(const zr_runtime_t *runtime, size_t index);
const char *zr_unit_name(const zr_unit_t *unit);

typedef struct zr_step_report {
    size_t step;          /* optimizer steps done, skipped ones included, from 1 */
    double lr;            /* of this step */
    double gradient_norm; /* global, of the averaged gradients, before clipping */
    double clip_factor;   /* 1: not clipped */
    bool skipped;         /* the norm was not finite: nothing was updated */
    size_t n_skipped;     /* so far */
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
 * Tell all ranks a few values, and learn theirs (losses, times). Traffic is control.
 *
 * @param values    [n_values] of this rank, borrowed for the call
 * @param n_values  1 to ZR_MAX_SHARED_VALUES, the same on every rank
 * @param all       [n_ranks * n_values] in rank order; set on success
 */
ZR_NODISCARD zr_status_t zr_runtime_share(zr_runtime_t *runtime, const double *values,
                                          size_t n_values, double *all);

/** Average of a value over the ranks (losses), summed in rank order. Traffic is control. */
ZR_NODISCARD zr_status_t zr_runtime_average(zr_runtime_t *runtime, double value, double *average_p);

/**
 * With outer steps (config's outer_every): groups that have taken steps of their own since they met
 * meet now, before their number is full. Saving a checkpoint does the same. Collective; outside
 * micro-batches only.
 *
 * @return ZR_OK, also where they have just met, or there are no such steps; ZR_ERR_STATE;
 *         ZR_ERR_COMM; ZR_ERR_MEMORY and ZR_ERR_BUDGET
 */
ZR_NODISCARD zr_status_t zr_runtime_join_groups(zr_runtime_t *runtime);

/** All parameters together. */
typedef struct zr_weights {
    uint64_t xxh3;       /* as of zr_runtime_weights_xxh3 */
    size_t n_non_finite; /* elements that are infinite or NaN: training has gone astray */
} zr_weights_t;

/** Look at all parameters in one pass. Collective; the same on every rank, or else ZR_ERR_STATE
 * where groups of ranks should hold copies of each other; with outer steps that is where they have
 * just met (zr_runtime_join_groups), else it is the group's own. Outside micro-batches only.
 * ZR_ERR_UNSUPPORTED on a device that stores nothing. */
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
 * Give elements [first, first + n_elems) of a parameter new values: its fp32 master, its shard in
 * config's dtype wherever it lives, and what of it is gathered. The optimizer's other arrays, such
 * as moments, stay. Collective; outside micro-batches only.
 *
 * @param values  [n_elems] of rank `root`, borrowed for the call; those of other ranks are ignored,
 *                and may be NULL
 * @param root    the rank that gives, the same on every rank
 * @return ZR_OK; ZR_ERR_STATE; ZR_ERR_ARGUMENT; ZR_ERR_COMM; ZR_ERR_STORE;
 *         ZR_ERR_UNSUPPORTED on a device that stores nothing
 */
ZR_NODISCARD zr_status_t zr_param_write(zr_param_t *param, size_t first, size_t n_elems,
                                        const float *values, int root);

/** The stream that a trainer's kernels go to. */
zr_stream_t *zr_runtime_stream(zr_runtime_t *runtime);
/** The rank's allocator: activations and workspaces come from it as well. */
zr_allocator_t *zr_runtime_allocator(zr_runtime_t *runtime);
zr_device_t *zr_runtime_device(zr_runtime_t *runtime);
zr_comm_t *zr_runtime_comm(zr_runtime_t *runtime);
/** The rank's store, after commit; NULL: nothing is kept in one. Its users share max_transfers and
 * register buffers of their own. */
zr_store_t *zr_runtime_store(zr_runtime_t *runtime);
const zr_config_t *zr_runtime_config(const zr_runtime_t *runtime);

const zr_log_t *zr_runtime_log(const zr_runtime_t *runtime);

/**
 * Host memory that is not tensors and in no tier: what was asked of the rank's heaps for the tables
 * of the runtime, its allocator, plans, store and model. They go as a whole when the rank ends.
 *
 * @param count_p  bytes now, and at most so far. What mimalloc needs beside them is not counted
 */
void zr_runtime_metadata(const zr_runtime_t *runtime, zr_byte_count_t *count_p);

/** What there is, in elements; of frozen parameters also in bytes, as they have an encoding. Padding
 * makes shards equal and aligned. */
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

/** Traffic by how far it goes. With one group of ranks (config's shard_group_size) all is of ALL.
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
    double stall_seconds;     /* waiting for other ranks, and for collectives beside compute */
    double optimizer_seconds; /* norm and update, without their collectives and io_seconds */
    double io_seconds;        /* an update, or a gather, was waiting for the store */
    /* Of collectives that a stream's thread made beside all of that: part of none of them. */
    double beside_seconds;
} zr_runtime_time_t;

/** Times since creation. What is left of a step is the trainer's compute. */
void zr_runtime_time(const zr_runtime_t *runtime, zr_runtime_time_t *time_p);

/** What gathers took of a store. */
typedef struct zr_params_reads {
    uint64_t n_parts;
    uint64_t bytes;
    uint64_t moved_bytes; /* with padding to whole blocks */
} zr_params_reads_t;

/** Where this rank's shards of parameters live when they are offloaded; all 0 when not. */
typedef struct zr_params_report {
    size_t bytes[ZR_N_TIERS];   /* of shards, by where they live */
    uint64_t copied_up_bytes;   /* to gathered buffers */
    uint64_t copied_down_bytes; /* from updates on a device whose memory the CPU cannot touch */
    bool has_store;             /* what follows says something */
    zr_store_info_t store;      /* the rank's, also of what is not parameters */
    size_t n_buffers;
    size_t staging_bytes; /* of all buffers */
    uint64_t n_foreseen;  /* transfers of gathers that were started ahead of them, or could
                             have been, had there been buffers */
    zr_params_reads_t gathers;
    uint64_t n_unused; /* parts that were read ahead of gathers, and dropped */
    uint64_t unused_bytes;
    zr_store_count_t updates;   /* put */
    zr_store_count_t looked;    /* got for looking at parameters */
    double gather_wait_seconds; /* this thread was blocked */
    double update_wait_seconds;
    zr_store_statistics_t all; /* of parameters, since commit: initial values as well */
} zr_params_report_t;

/** Summed gradients, between their reduction and the update. After commit. */
typedef struct zr_grads_report {
    size_t bytes[ZR_N_TIERS];  /* that are kept between micro-batches, by where they wait */
    bool has_store;            /* the fields below are valid */
    zr_store_info_t store;     /* the rank's, also of what is not gradients */
    size_t staging_bytes;      /* of the buffers that NVMe goes through */
    zr_store_statistics_t all; /* moved, waited for and verified, since commit */
} zr_grads_report_t;

/** Where this rank's optimizer state lives, and what moving it took. After commit. */
typedef struct zr_offload_report {
    size_t largest_group_elems;     /* of the sub-groups that are moved; 0: none are */
    size_t n_groups[ZR_N_TIERS];    /* sub-groups that live there */
    size_t state_bytes[ZR_N_TIERS]; /* of them; twice that where the old state is kept, too */
    bool has_copies;                /* the CPU cannot touch device memory: what the host updates
                                       needs gradients brought down and parameters brought up */
    bool is_updated_on_device;      /* what is moved; else on the host */
    uint64_t n_early_groups;        /* sub-groups that were updated in backward */
    bool was_measured;              /* what follows says something: it was the faster way */
    double host_elems_per_s;        /* as measured at the start, if all parts of it overlap */
    double device_elems_per_s;
    uint64_t copied_down_bytes; /* gradients; state that was updated on the device */
    uint64_t copied_up_bytes;   /* parameters; gradients that are added to; state to be updated */
    double update_seconds;      /* of updates of which the host did a part */
    bool has_store;             /* what follows says something */
    zr_store_info_t store;      /* the rank's, also of what is not optimizer state */
    size_t staging_bytes;       /* of the buffers that NVMe goes through */
    zr_store_count_t updates[ZR_N_STORE_DIRECTIONS]; /* moved by updates */
    double update_wait_seconds[ZR_N_STORE_DIRECTIONS];
    zr_store_statistics_t all; /* of the state, since commit: initial values, updates, reading */
    zr_params_report_t params;
    zr_grads_report_t grads;
} zr_offload_report_t;
void zr_runtime_offload(const zr_runtime_t *runtime, zr_offload_report_t *report_p);

ZR_END_C
