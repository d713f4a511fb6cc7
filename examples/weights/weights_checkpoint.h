/*
 * Weights of a checkpoint: the fp32 masters of a run, or what was imported.
 */
#pragma once

#include "examples/weights/weights.h"

/**
 * Take the weights of a checkpoint that is open: a model, whose shape the trainer has left in it.
 *
 * @param checkpoint  borrowed until the weights are closed
 * @param model       NULL, or the shape, which must agree with what the checkpoint says
 * @return ZR_OK; ZR_ERR_FORMAT when it says no shape and none is given, or its tensors are not
 * those of the shape; ZR_ERR_MEMORY. Logged.
 */
ZR_NODISCARD zr_status_t weights_of_checkpoint(const zr_checkpoint_t *checkpoint,
                                               const zr_model_shape_t *model, const zr_log_t *log,
                                               weights_t **weights_p);

typedef struct weights_import {
    const char *folder;        /* of checkpoints; it has none yet */
    const zr_secret_t *secret; /* that signs it; NULL, or not given: none */
    /* Called now and then with the elements written so far; NULL: not. */
    void (*progress)(void *context, uint64_t n_elems);
    void *context;
} weights_import_t;

/**
 * Make a checkpoint of weights: step 0, m and v of 0, the shape for the trainer, and the files that
 * it carries along.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT when the folder has checkpoints already; what reading and
 *         zr_checkpoint_writer_... return. Logged, and nothing is left.
 */
ZR_NODISCARD zr_status_t weights_write_checkpoint(weights_t *weights,
                                                  const weights_import_t *options,
                                                  const zr_log_t *log);
