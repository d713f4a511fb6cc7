/*
 * A model as a list of blocks, and its training.
 *
 * A block declares parameters, computes forward and backward, and keeps what backward needs: that
 * is all that a model's author writes. The schedule decides, for all models, when parameters are
 * gathered and released, in which order blocks and micro-batches are computed, what is recomputed,
 * where activations wait for backward, and when gradients are reduced.
 *
 *   zr_model_create -> zr_model_add for each block, in order -> zr_model_commit
 *   for each step:
 *     zr_model_train for each micro-batch, or for all at once
 *     zr_model_take_loss, zr_runtime_step
 *
 * The last block computes the loss. A trainer with its own control flow uses the lower-level
 * interface: units, with acquire, release and reduce (zero/runtime.h).
 *
 * Threads: a model and everything it owns belongs to one thread, its runtime's.
 */
#pragma once

#include <stdint.h>

#include "offload/stash.h"
#include "zero/runtime.h"
#include "zero/schedule/order.h"

ZR_BEGIN_C

typedef struct zr_model zr_model_t;
typedef struct zr_block zr_block_t; /* owned by its model */

/* ---- for authors of models ------------------------------------------------------------------- */

/** Maximum number of input arrays of a micro-batch. */
#define ZR_MAX_INPUTS 8

/** A micro-batch on the device, as a block sees it. */
typedef struct zr_batch {
    size_t n_sequences;
    size_t seq;  /* positions per sequence */
    size_t rows; /* n_sequences * seq */
    const void
        *inputs[ZR_MAX_INPUTS]; /* [rows] elements of what the model declares, in its order */
    double loss_scale; /* factor on the sum of its rows' losses: 1 / rows, unless targets are
                          ignored (zr_host_batch_t.n_targets) */
} zr_batch_t;

/** Which gradients backward computes, for a block that uses another block's parameters: see
 * zr_block_type_t.separates. */
typedef enum zr_backward_part {
    ZR_BACKWARD_WHOLE = 0,
    ZR_BACKWARD_BUT_USED = 1, /* all except gradients of the other block's parameters */
    ZR_BACKWARD_USED = 2 /* only gradients of the other block's parameters, from x: the loss is not
                            added, and `gradient` is NULL */
} zr_backward_part_t;

/** Arguments of a block's forward or backward for one micro-batch. Borrowed for the call. */
typedef struct zr_visit {
    zr_block_t *block;
    const void *shape; /* the model's: zr_model_options_t.shape */
    void *self;        /* the block's own: zr_block_type_t.self_bytes */
    void *tensors;     /* the block's struct of pointers, for this micro-batch */
    const zr_batch_t *batch;
    zr_stream_t *stream; /* everything is queued here */
    zr_device_t *device;
    const char *name; /* the block's */

    void *x;        /* in: output of the previous block; NULL for the first block */
    void *y;        /* forward: output, from zr_visit_take; the schedule frees it */
    void *gradient; /* backward: in, the gradient of y, NULL in the last block; out, the gradient of
                       x: in the same memory, or in new memory from zr_visit_take after dropping the
                       old. The schedule frees what the first block leaves */
    double *loss;   /* [1] on the device: the last block adds the loss of the micro-batch, the sum
                       over its rows times batch->loss_scale */
    zr_backward_part_t part; /* backward */
    bool keeps;              /* forward: keep what backward needs in `tensors` */
    bool is_wanted;          /* forward: y is needed; else only what backward needs */
} zr_visit_t;

/** Purpose of memory. It is freed by zr_visit_drop, or by the schedule at the end of the
 * micro-batch.
 */
typedef enum zr_memory {
    ZR_MEMORY_KEPT = 0,      /* activations, until backward has used them */
    ZR_MEMORY_TEMPORARY = 1, /* activations within a visit */
    ZR_MEMORY_WORKSPACE = 2  /* a kernel's, within a visit */
} zr_memory_t;

/** A kind of block. */
typedef struct zr_block_type {
    const char *name; /* for messages */

    /** Add the block's parameters (zr_block_add_param); NULL: no parameters. `self` is zeroed
     * memory for their handles and lives as long as the block. */
    zr_status_t (*declare)(zr_block_t *block, const void *shape, void *self);
    /** x -> y. In the last block: only the loss, for evaluation. */
    zr_status_t (*forward)(zr_visit_t *visit);
    /** gradient of y, x and `tensors` -> gradient of x, and of parameters (zr_param_grad). In the
     * last block: forward and backward together, as the gradient starts with the loss. */
    zr_status_t (*backward)(zr_visit_t *visit);

    size_t self_bytes;
    /* Size of a struct that contains only pointers to device memory, which forward and backward
     * fill. All pointers are NULL at the start of a micro-batch, and the remaining ones are freed
     * at its end. */
    size_t tensors_bytes;
    bool recomputes;      /* with recomputation, only x is kept and forward is called again before
                             backward, with is_wanted false; x may be offloaded */
    bool reads_no_params; /* backward needs no parameters: they are not gathered for it */
    bool separates; /* for a last block that uses another block's parameters: backward supports
                       zr_visit_t.part. With ZR_ORDER_BLOCK, gradients of those parameters are
                       computed in the turn of the block that owns them, so that gradients are added
                       in the same order with any order of the step */
} zr_block_type_t;

/** Initial values of a parameter: a function of seed, name and index only, the same on any rank. */
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
    double deviation;              /* for NORMAL and UNIFORM */
    const zr_encoding_t *encoding; /* see zr_param_desc_t; not for a block that other blocks use */
    bool is_added; /* added to the model, such as an adapter's: a checkpoint may lack it, and it
                      then starts with its initial values */
} zr_block_param_t;

/**
 * Add a parameter to a block, in `declare`. It is frozen if the model's options name it. Parameters
 * with one dimension or none have no weight decay.
 */
ZR_NODISCARD zr_status_t zr_block_add_param(zr_block_t *block, const zr_block_param_t *desc,
                                            zr_param_t **param_p);

/**
 * Use another block's parameters too, as a tied head does. In `declare`.
 *
 * @param used  an earlier block of the model with parameters of its own; its gradients are reduced
 *              after its own backward. With ZR_ORDER_BLOCK and several micro-batches, `block` must
 *              be the last block and its type must have `separates`
 */
ZR_NODISCARD zr_status_t zr_block_use(zr_block_t *block, zr_block_t *used);

/** The block's `self`, for those that use its parameters. */
void *zr_block_self(zr_block_t *block);
/** Block `index` of those added so far, or NULL. */
zr_block_t *zr_model_block(const zr_model_t *model, size_t index);
/** A block's model, its index, and its unit (NULL: no parameters). Frozen parameters with their own
 * encoding are in a second unit, "h.0.nf4_64". */
zr_model_t *zr_block_model(const zr_block_t *block);
size_t zr_block_index(const zr_block_t *block);
zr_unit_t *zr_block_unit(const zr_block_t *block);

/**
 * Allocate device memory for the stream of a visit.
 *
 * @param pointer_p  in `tensors`, or the visit's y or gradient
 * @return ZR_OK; ZR_ERR_BUDGET; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_visit_take(zr_visit_t *visit, zr_memory_t memory, size_t size_bytes,
                                       void **pointer_p);
/** Free it after the work queued so far, and set *pointer_p to NULL. *pointer_p == NULL is fine. */
void zr_visit_drop(zr_visit_t *visit, void **pointer_p);

/* ---- for trainers ------------------------------------------------------------------- */

/** One input array of a micro-batch, with one element per position. */
typedef struct zr_input_desc {
    const char *name; /* "token": for messages; static */
    size_t elem_bytes;
    size_t n_values; /* 0; or the elements are int32_t, each in [0, n_values), which is checked */
    int32_t ignored; /* with n_values: a negative element that marks a target without a loss
                        (ZR_NN_TARGET_IGNORED); 0: none. For one input at most */
    bool are_starts; /* int32_t: index in the sequence where the document of a position begins: the
                        position itself, or the value of the previous position; checked */
} zr_input_desc_t;

/** What of a block is computed again in backward instead of being kept. */
typedef enum zr_recompute {
    ZR_RECOMPUTE_CHEAP = 0, /* what takes little time, as the block decides: outputs of norms and of
                               activation functions */
    ZR_RECOMPUTE_UNIT = 1,  /* all but x, of blocks that can be recomputed */
    ZR_RECOMPUTE_NEVER = 2  /* nothing */
} zr_recompute_t;
#define ZR_N_RECOMPUTES 3
/** "none", "unit" or "never", as options name them. */
const char *zr_recompute_name(zr_recompute_t recompute);

/** How activations are kept until backward: chosen by a run, and varied by plans. */
typedef struct zr_activation_options {
    zr_recompute_t recompute;
    zr_offload_device_t
        device; /* where x waits for backward; CPU and NVME need RECOMPUTE_UNIT and most_rows */
    /* Of the last so many of these blocks x waits higher up: on the device (ZR_ORDER_MICRO_BATCH
     * alone), and before them, with NVME, in host memory. */
    size_t n_on_device, n_in_host;
    size_t most_rows;  /* rows of the largest micro-batch; 0: unknown */
    size_t least_rows; /* rows of the smallest micro-batch, so that kernels take workspaces that
                          suffice for all sizes in between; 0: each takes what it needs */
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
    uint64_t seed;       /* for initial values */
    double weight_decay; /* for matrices; vectors have none */
    const char *freeze; /* comma-separated parameters to freeze, by name or by a prefix before a dot
                           ("wte,h.0"); NULL: none. Copied */
    bool trains_added;  /* also freeze all parameters without zr_block_param_t.is_added */
    zr_activation_options_t activations;
    size_t x_row_bytes; /* bytes per row of offloaded x, and of its gradient */
} zr_model_options_t;

/** Size of a maker's context. */
#define ZR_MODEL_MAKER_BYTES 320

/** A recipe to create a model on any runtime, for plans, searches and training. */
typedef struct zr_model_maker {
    /**
     * zr_model_create and zr_model_add, on a runtime that is not committed.
     *
     * @param context  the maker's context, for example the model's sizes
     */
    zr_status_t (*make)(const void *context, zr_runtime_t *runtime,
                        const zr_activation_options_t *activations, zr_model_t **model_p);
    /* Equal blocks in a row, and the same model with `n` of them, for searches of plans (see
     * zr_run_ask_t.folds). NULL or 0: there are none. */
    size_t (*n_repeated)(const void *context);
    void (*repeat)(void *context, size_t n);
    uint64_t context[ZR_MODEL_MAKER_BYTES / sizeof(uint64_t)]; /* copied with the maker */
} zr_model_maker_t;

/**
 * Create an empty model on a runtime that is not committed yet.
 *
 * @param runtime  borrowed until zr_model_destroy, which comes first
 * @param options  borrowed for the call
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY; what zr_runtime_add_group returns
 */
ZR_NODISCARD zr_status_t zr_model_create(zr_runtime_t *runtime, const zr_model_options_t *options,
                                         zr_model_t **model_p);
void zr_model_destroy(zr_model_t **model);

/**
 * Append a block.
 *
 * @param type     borrowed until zr_model_destroy
 * @param name     of the block, and of its unit if it has parameters; copied
 * @param block_p  may be NULL
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_STATE after commit; ZR_ERR_MEMORY; what `declare` returns
 */
ZR_NODISCARD zr_status_t zr_model_add(zr_model_t *model, const zr_block_type_t *type,
                                      const char *name, zr_block_t **block_p);

/** Check the model, reserve memory for offloaded activations, and call zr_runtime_commit. */
ZR_NODISCARD zr_status_t zr_model_commit(zr_model_t *model);

/** A micro-batch in host memory, as a trainer passes it. */
typedef struct zr_host_batch {
    size_t n_sequences;
    size_t seq;
    const void *inputs[ZR_MAX_INPUTS]; /* [n_sequences, seq] elements each, borrowed for the call */
    /* Divisor of the sum of its targets' losses. 0: the number of targets that are not ignored, so
     * that each micro-batch has the same weight. To average a step over all targets that are not
     * ignored, of all micro-batches and ranks, pass in each micro-batch their total number divided
     * by the number of those micro-batches. */
    double n_targets;
} zr_host_batch_t;

/**
 * Train the next micro-batches of a step: forward, backward, and reduction of gradients.
 * After the last one of a step, call zr_runtime_step. Work is queued on the runtime's stream
 * without waiting. Gradients are those of the mean loss.
 *
 * @param batches    [n_batches], all of the step with ZR_ORDER_BLOCK, else at most as many as are
 *                   left in the step
 * @return ZR_OK; ZR_ERR_ARGUMENT for an invalid size or element; errors of the runtime, the
 *         allocator and the blocks
 */
ZR_NODISCARD zr_status_t zr_model_train(zr_model_t *model, const zr_host_batch_t *batches,
                                        size_t n_batches);

/** Abandon an incomplete step: zr_runtime_drop_step, and drop the losses of its micro-batches.
 */
ZR_NODISCARD zr_status_t zr_model_drop_step(zr_model_t *model);

/**
 * Loss of a micro-batch, without gradients; between steps only. All ranks call it. It is 0 if all
 * targets are ignored.
 *
 * @param loss_p  of this rank only: zr_runtime_average gives that of all ranks
 *
 * Waits for the stream.
 */
ZR_NODISCARD zr_status_t zr_model_evaluate(zr_model_t *model, const zr_host_batch_t *batch,
                                           double *loss_p);

/**
 * Mean loss of this rank's micro-batches since the last call. Waits for the stream.
 *
 * @return ZR_OK; ZR_ERR_STATE when there was none; ZR_ERR_DEVICE
 */
ZR_NODISCARD zr_status_t zr_model_take_loss(zr_model_t *model, double *loss_p);

/** Statistics of offloaded activations; false if none are offloaded, and nothing is set. */
bool zr_model_activations_statistics(const zr_model_t *model, zr_stash_statistics_t *statistics_p);

/** Bytes of all inputs of a micro-batch with `rows` rows. */
size_t zr_model_input_bytes(const zr_model_t *model, size_t rows);
/** Number of blocks. */
size_t zr_model_n_blocks(const zr_model_t *model);
zr_runtime_t *zr_model_runtime(const zr_model_t *model);

ZR_END_C
