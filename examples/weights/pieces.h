/*
 * From weights to elements of a file, piece by piece: what all that write files share. A value that
 * the file's dtype does not have is found here.
 */
#pragma once

#include "examples/weights/weights.h"

typedef struct pieces {
    weights_t *weights;
    const weights_export_t *options;
    element_kind_t kind; /* of the file, or the tensor at hand; set by who writes */
    zr_log_t log;
    float *values;   /* [WEIGHTS_PIECE_ELEMS] */
    void *elements;  /* likewise, of the file's kind */
    uint64_t n_done; /* elements, for progress */
} pieces_t;

/** Borrows all but the log. ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t pieces_create(weights_t *weights, const weights_export_t *options,
                                       const zr_log_t *log, pieces_t *pieces_p);
void pieces_free(pieces_t *pieces);

/** Elements [first, first + n_elems) of the tensor at hand. */
typedef zr_status_t (*pieces_take_fn)(void *context, const void *elements, size_t first,
                                      size_t n_elems);

/**
 * Read a tensor from its first to its last element, and hand on what it becomes.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT for a value that the dtype does not have; what reading and `take`
 *         return
 */
ZR_NODISCARD zr_status_t pieces_of_tensor(pieces_t *pieces, const zr_model_tensor_t *tensor,
                                          pieces_take_fn take, void *context);

/** Convert values that were read already: elements first, first + stride, ... of the tensor.
 * ZR_ERR_ARGUMENT. */
ZR_NODISCARD zr_status_t pieces_convert(const pieces_t *pieces, const zr_model_tensor_t *tensor,
                                        size_t first, size_t stride, const float *values,
                                        size_t n_elems, void *elements);
/** So many elements more are written. */
void pieces_note(pieces_t *pieces, size_t n_elems);
