/*
 * What the files of the schedule share: model.c (blocks and their parameters), walk.c (turns),
 * batch.c (a micro-batch's memory, losses), init.c (initial values).
 */
#pragma once

#include "allocator/heap_internal.h"
#include "zero/schedule/model.h"

#define ZR_MAX_USED 4

struct zr_block {
    zr_model_t *model;
    const zr_block_type_t *type;
    char *name;
    size_t index;
    zr_unit_t *unit;    /* NULL: it has no parameters */
    zr_unit_t *encoded; /* of its frozen parameters with an encoding of their own; NULL: none */
    void *self;
    zr_block_t *used[ZR_MAX_USED]; /* whose parameters it uses as well */
    size_t n_used;
    bool is_trained;       /* a parameter of its own is */
    size_t tensors_offset; /* in zr_flight_t.tensors, in pointers */
    size_t n_tensors;
    size_t slot; /* of the stash, where its x waits, and those of the next micro-batches that are
                    walked together in the next; NO_SLOT: on the device */
    zr_block_t *late; /* the last block, where that uses this one's parameters, and their gradients
                         are made when this one's are */
};
#define ZR_NO_SLOT ((size_t)-1)

/* How one parameter begins; the runtime calls zr_init_fill with it. */
typedef struct zr_param_init {
    zr_init_t kind;
    uint64_t key; /* of seed and name */
    double deviation;
} zr_param_init_t;

uint64_t zr_init_key(uint64_t seed, const char *name);
void zr_init_fill(void *context, size_t first, size_t n_elems, float *values);

/* A micro-batch between its upload and its end. */
typedef struct zr_flight {
    zr_batch_t batch;
    void *inputs[ZR_MAX_INPUTS]; /* on the device; batch.inputs are these */
    void *staging;               /* on the host, until they are copied */
    void *gradient;              /* of the output of the block that backward comes to next */
    void **x;                    /* [n_blocks] inputs of blocks */
    void **tensors;              /* [n_tensors of all blocks] */
    bool has_begun;
} zr_flight_t;

struct zr_model {
    zr_heap_t *heap; /* of its tables, of its blocks, and itself */
    zr_runtime_t *runtime;
    zr_allocator_t *allocator;
    zr_device_t *device;
    zr_stream_t *stream;
    const zr_log_t *log;
    zr_model_options_t options; /* shape and freeze are copies, owned */
    zr_heap_t *inits;           /* how parameters begin; ends when they have */
    bool *freeze_is_used;       /* of each entry of freeze: it names a parameter */
    int matrices, vectors;      /* groups */

    zr_block_t **blocks; /* owned */
    size_t n_blocks, capacity;
    size_t n_tensors; /* of all blocks */
    size_t first_trained;
    size_t n_together; /* micro-batches that are walked together: all of a step, or 1 */
    bool is_committed;

    zr_stash_t *stash; /* x of blocks, a slot each: of those that are recomputed, or, where several
                          micro-batches are walked together, of all; NULL: on the device */
    size_t gradient_slot; /* several together: the first of those where gradients wait */
    zr_stash_options_t stash_options; /* n_slots 0: nothing was planned */
    char stash_name[96];

    zr_order_t train_order;
    zr_order_t evaluation_order;
    zr_heap_t *flights_heap; /* NULL: there are none */
    zr_flight_t *flights;    /* [n_flights] */
    size_t n_flights;
    double *loss; /* [3] on the device: of training since it was taken; of evaluation; of nobody */
    size_t n_losses; /* micro-batches in loss[0] */
};

/* ---- batch.c ---- */

/** Room for the micro-batches that are walked together, and the orders that work on them. */
ZR_NODISCARD zr_status_t zr_flights_prepare(zr_model_t *model);
void zr_flights_free(zr_model_t *model);
ZR_NODISCARD zr_status_t zr_flight_check(const zr_model_t *model, const zr_host_batch_t *batch);
/** Bring a micro-batch's inputs to the device. */
ZR_NODISCARD zr_status_t zr_flight_begin(zr_model_t *model, zr_flight_t *flight,
                                         const zr_host_batch_t *batch);
/** Give everything of it back; most is gone already, unless it failed. */
void zr_flight_end(zr_model_t *model, zr_flight_t *flight);
ZR_NODISCARD zr_status_t zr_losses_prepare(zr_model_t *model);
/** Read a sum of losses, and start it again from 0. */
ZR_NODISCARD zr_status_t zr_losses_read(zr_model_t *model, size_t index, double *sum_p);

/** Blocks whose input may wait elsewhere, and the bytes of all that are held at once: of a
 * micro-batch, or of those that are walked together. */
size_t zr_model_count_inputs(const zr_model_t *model, size_t *size_bytes_p);
