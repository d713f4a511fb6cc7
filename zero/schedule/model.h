/*
 * A model as a list of blocks, and its training.
 *
 * A block declares parameters, computes forward and backward, and says what it keeps between the
 * two: that is all that a model's author writes. When its parameters are gathered and released, in
 * which order blocks and micro-batches are worked on, what is computed twice to save memory, where
 * activations wait for backward, and when gradients are reduced, is decided here, once for all
 * models.
 *
 *   zr_model_create -> zr_model_add for each block, in order -> zr_model_commit
 *   for each step:
 *     zr_model_train for each micro-batch, or for all at once
 *     zr_model_take_loss, zr_runtime_step
 *
 * The last block computes the loss. A trainer with a control flow of its own uses the layer below:
 * units, with acquire, release and reduce (zero/runtime.h).
 *
 * Threads: a model and all that belongs to it: one thread, its runtime's.
 */
#pragma once

#include <stdint.h>

#include "offload/stash.h"
#include "zero/runtime.h"
#include "zero/schedule/order.h"

ZR_BEGIN_C

typedef struct zr_model zr_model_t;
typedef struct zr_block zr_block_t; /* owned by its model */

/* ---- what an author writes ------------------------------------------------------------------- */

/** How many arrays a micro-batch may have. */
#define ZR_MAX_INPUTS 8

/** A micro-batch on the device, as a block sees it. */
typedef struct zr_batch {
    size_t n_sequences;
    size_t seq;  /* positions of each */
    size_t rows; /* n_sequences * seq */
    const void
        *inputs[ZR_MAX_INPUTS]; /* [rows] elements of what the model declares, in its order */
    double loss_scale;          /* what the sum of its rows' losses is multiplied by: 1 / rows,
                                   unless targets are ignored (zr_host_batch_t.n_targets) */
} zr_batch_t;

/** What backward of a block that uses another's parameters is asked for: see
 * zr_block_type_t.separates. */
typedef enum zr_backward_part {
    ZR_BACKWARD_WHOLE = 0,
    ZR_BACKWARD_BUT_USED = 1, /* all but the gradients of the parameters that it uses */
    ZR_BACKWARD_USED = 2      /* these alone, from x: no loss counts, and `gradient` is NULL */
} zr_backward_part_t;

/** A block's work on one micro-batch, in one pass. Borrowed for the call. */
typedef struct zr_visit {
    zr_block_t *block;
    const void *shape; /* the model's: zr_model_options_t.shape */
    void *self;        /* the block's own: zr_block_type_t.self_bytes */
    void *tensors;     /* the block's struct of pointers, for this micro-batch */
    const zr_batch_t *batch;
    zr_stream_t *stream; /* everything is queued here */
    zr_device_t *device;
    const char *name; /* the block's */

    void *x;        /* in: what the block before gave; NULL: this is the first */
    void *y;        /* forward: out, of zr_visit_take; the schedule frees it */
    void *gradient; /* backward: in, of y, NULL in the last block; out, of x: the same memory, or
                       other of zr_visit_take after that was dropped. The schedule frees what the
                       first block leaves */
    double *loss;   /* [1] on the device: the last block adds the loss of the micro-batch, the sum
                       over its rows times batch->loss_scale */
    zr_backward_part_t part; /* backward */
    bool keeps;              /* forward: what backward needs has to stay in `tensors` */
    bool is_wanted;          /* forward: y is; else only what backward needs */
} zr_visit_t;

/** What memory is for. It is given back by zr_visit_drop, or by the schedule with the micro-batch.
 */
typedef enum zr_memory {
    ZR_MEMORY_KEPT = 0,      /* activations, until backward has used them */
    ZR_MEMORY_TEMPORARY = 1, /* activations within a visit */
    ZR_MEMORY_WORKSPACE = 2  /* a kernel's, within a visit */
} zr_memory_t;

/** A kind of block. */
typedef struct zr_block_type {
    const char *name; /* of the kind, for messages */

    /** Add the block's parameters (zr_block_add_param); NULL: it has none. `self` is zeroed memory
     * that lives as long as the block, for their handles. */
    zr_status_t (*declare)(zr_block_t *block, const void *shape, void *self);
    /** x -> y. In the last block: the loss alone, for evaluation. */
    zr_status_t (*forward)(zr_visit_t *visit);
    /** gradient of y, x and `tensors` -> gradient of x, and of parameters (zr_param_grad). In the
     * last block: forward and backward in one, as the gradient starts with the loss. */
    zr_status_t (*backward)(zr_visit_t *visit);

    size_t self_bytes;
    /* Of a struct of pointers to device memory, and nothing else, that forward and backward take
     * memory into. Those of each micro-batch begin as NULL, and what is left is freed. */
    size_t tensors_bytes;
    bool recomputes;      /* where the model recomputes, forward keeps x alone, and is called
                             again before backward, without y being wanted; x may wait elsewhere */
    bool reads_no_params; /* backward needs none: they are not gathered for it */
    bool separates;       /* of the last block, where it uses another's parameters: backward knows
                             zr_visit_t.part. Where each block works on all micro-batches before the next
                             (ZR_ORDER_BLOCK), their gradients are asked for when that block comes, so
                             that each micro-batch's are added together, in any order of the step */
} zr_block_type_t;

/** How a parameter's values begin: as a function of seed, name and index alone, on any rank. */
typedef enum zr_init {
    ZR_INIT_ZERO = 0,
    ZR_INIT_ONE = 1,
    ZR_INIT_NORMAL = 2,
    ZR_INIT_UNIFORM = 3 /* within sqrt(3) deviations of 0 */
} zr_init_t;

typedef struct zr_block_param {
    const char *name; /* copied; unique in the model */
    int n_dims;       /* 0 to 4 */
    size_t dims[4];
    zr_init_t init;
    double deviation;              /* of NORMAL and UNIFORM */
    const zr_encoding_t *encoding; /* as zr_param_desc_t has it; not of a block that others use */
    bool is_added; /* beside the model's own, as an adapter's: a checkpoint may lack it,
                      and it then begins with its first values */
} zr_block_param_t;

/**
 * Add a parameter to a block, in `declare`. It is frozen where the model's options name it; those
 * of one dimension, or none, have no weight decay.
 */
ZR_NODISCARD zr_status_t zr_block_add_param(zr_block_t *block, const zr_block_param_t *desc,
                                            zr_param_t **param_p);

/**
 * Use another block's parameters as well: a tied head does. In `declare`.
 *
 * @param used  an earlier block of the model with parameters of its own; its gradients are
 * complete, and reduced, after its own backward. With ZR_ORDER_BLOCK and several micro-batches the
 * user has to be the last block, and its type to separate
 */
ZR_NODISCARD zr_status_t zr_block_use(zr_block_t *block, zr_block_t *used);

/** The block's `self`, for those that use its parameters. */
void *zr_block_self(zr_block_t *block);
/** Block `index` of those that were added so far, or NULL. */
zr_block_t *zr_model_block(const zr_model_t *model, size_t index);
/** The model that a block is of, its place there, and its unit; NULL: it has no parameters. Frozen
 * ones with an encoding of their own are of a second unit, "h.0.nf4_64". */
zr_model_t *zr_block_model(const zr_block_t *block);
size_t zr_block_index(const zr_block_t *block);
zr_unit_t *zr_block_unit(const zr_block_t *block);

/**
 * Device memory for the stream of a visit.
 *
 * @param pointer_p  in `tensors`, or the visit's y or gradient
 * @return ZR_OK; ZR_ERR_BUDGET; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_visit_take(zr_visit_t *visit, zr_memory_t memory, size_t size_bytes,
                                       void **pointer_p);
/** Give it back, behind the work queued so far: *pointer_p is NULL then. NULL in it is fine. */
void zr_visit_drop(zr_visit_t *visit, void **pointer_p);

/* ---- what a trainer writes ------------------------------------------------------------------- */

/** One array of a micro-batch: an element of it belongs to each position. */
typedef struct zr_input_desc {
    const char *name; /* "token": for messages; static */
    size_t elem_bytes;
    size_t n_values; /* 0; or the elements are int32_t, each in [0, n_values), which is checked */
    int32_t ignored; /* with n_values: a negative element that is allowed as well, and is a target
                        without a loss (ZR_NN_TARGET_IGNORED); 0: none. Of one input at most */
    bool are_starts; /* int32_t: where in its sequence the document of a position begins, which is
                        the position itself, or what the one before has; checked */
} zr_input_desc_t;

/** How activations are held until backward: what a run chooses, and what plans try. */
typedef struct zr_activation_options {
    bool recompute;             /* of blocks that can be recomputed, only x is kept */
    zr_offload_device_t device; /* where the x of those waits for backward; but on the device it
                                   needs recompute and most_rows */
    size_t most_rows;  /* of the largest micro-batch there will be; 0: each needs what it needs */
    size_t least_rows; /* of the smallest, for blocks whose kernels take a workspace that is enough
                          for any in between; 0: as each needs it */
} zr_activation_options_t;

/** In zr_model_options_t.freeze: every parameter. Nothing is trained, and there are no gradients
 * and no optimizer state. */
#define ZR_MODEL_FREEZE_ALL "*"

typedef struct zr_model_options {
    const void *shape; /* [shape_bytes] copied; handed to all blocks */
    size_t shape_bytes;
    zr_input_desc_t inputs[ZR_MAX_INPUTS];
    size_t n_inputs;
    size_t max_seq;      /* the longest sequence; 0: any */
    uint64_t seed;       /* of the initial values */
    double weight_decay; /* of matrices; vectors have none */
    const char *freeze;  /* parameters to freeze, with commas between, by name or by the part of it
                            before a dot ("wte,h.0"); NULL: none. Copied */
    bool trains_added;   /* all parameters that are not zr_block_param_t.is_added are frozen, too */
    zr_activation_options_t activations;
    size_t x_row_bytes; /* of what waits there: of a row of x, and of its gradient */
} zr_model_options_t;

/** Bytes that a maker has for what it makes a model of. */
#define ZR_MODEL_MAKER_BYTES 256

/** A model that can be made on any runtime: what is planned, searched for, and trained. */
typedef struct zr_model_maker {
    /**
     * zr_model_create and zr_model_add, on a runtime that is not committed.
     *
     * @param context  of this maker: the model's sizes, say
     */
    zr_status_t (*make)(const void *context, zr_runtime_t *runtime,
                        const zr_activation_options_t *activations, zr_model_t **model_p);
    uint64_t context[ZR_MODEL_MAKER_BYTES / sizeof(uint64_t)]; /* copied with the maker */
} zr_model_maker_t;

/**
 * Make an empty model on a runtime that is not committed yet.
 *
 * @param runtime  borrowed until zr_model_destroy, which comes first
 * @param options  borrowed for the call
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; what zr_runtime_add_group returns
 */
ZR_NODISCARD zr_status_t zr_model_create(zr_runtime_t *runtime, const zr_model_options_t *options,
                                         zr_model_t **model_p);
void zr_model_destroy(zr_model_t **model);

/**
 * Add a block behind those that are there.
 *
 * @param type     borrowed until zr_model_destroy
 * @param name     of the block, and of its unit where it has parameters; copied
 * @param block_p  may be NULL
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE after commit; ZR_ERR_MEMORY; what `declare` returns
 */
ZR_NODISCARD zr_status_t zr_model_add(zr_model_t *model, const zr_block_type_t *type,
                                      const char *name, zr_block_t **block_p);

/** Check the whole, reserve room for activations that wait elsewhere, and zr_runtime_commit. */
ZR_NODISCARD zr_status_t zr_model_commit(zr_model_t *model);

/** A micro-batch in host memory, as a trainer has it. */
typedef struct zr_host_batch {
    size_t n_sequences;
    size_t seq;
    const void *inputs[ZR_MAX_INPUTS]; /* [n_sequences, seq] elements each, borrowed for the call */
    /* What the sum of its targets' losses is divided by. 0: how many of them are not ignored, so
     * that each micro-batch has the same weight. A step's loss and gradients are the mean over all
     * targets that are not ignored, of all micro-batches and ranks, where each of its micro-batches
     * has their number, divided by how many micro-batches those are. */
    double n_targets;
} zr_host_batch_t;

/**
 * The next micro-batches of a step: forward, backward, and the reduction of gradients.
 * After the last one of a step, call zr_runtime_step. Everything is queued on the runtime's stream
 * and nothing is waited for. Gradients are those of the mean of the losses.
 *
 * @param batches    [n_batches], all of the step with ZR_ORDER_BLOCK, else as many as are left in
 * it or fewer
 * @return ZR_OK; ZR_ERR_ARGUMENT for a size or an element that is not allowed; what the runtime,
 * the allocator and the blocks return
 */
ZR_NODISCARD zr_status_t zr_model_train(zr_model_t *model, const zr_host_batch_t *batches,
                                        size_t n_batches);

/** Give up the micro-batches of a step that is not complete: zr_runtime_drop_step, and their
 * losses.
 */
ZR_NODISCARD zr_status_t zr_model_drop_step(zr_model_t *model);

/**
 * Loss of a micro-batch, without gradients; between steps only. All ranks call it. It is 0 where
 * all targets are ignored.
 *
 * @param loss_p  this rank's alone: zr_runtime_average gives that of all
 *
 * Waits for the stream.
 */
ZR_NODISCARD zr_status_t zr_model_evaluate(zr_model_t *model, const zr_host_batch_t *batch,
                                           double *loss_p);

/**
 * Mean loss of the micro-batches since the last call, this rank's alone. Waits for the stream.
 *
 * @return ZR_OK; ZR_ERR_STATE when there was none; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_model_take_loss(zr_model_t *model, double *loss_p);

/** What activations that wait elsewhere took; false, and nothing is set: none do. */
bool zr_model_activations_statistics(const zr_model_t *model, zr_stash_statistics_t *statistics_p);

/** Bytes of all inputs of a micro-batch of so many rows. */
size_t zr_model_input_bytes(const zr_model_t *model, size_t rows);
/** How many blocks it has. */
size_t zr_model_n_blocks(const zr_model_t *model);
zr_runtime_t *zr_model_runtime(const zr_model_t *model);

ZR_END_C
