/* A piece is small enough to stay in a cache between being read, converted and written. */
#include "examples/weights/pieces.h"

#include <stdlib.h>

zr_status_t pieces_create(weights_t *weights, const weights_export_t *options, const zr_log_t *log,
                          pieces_t *pieces_p) {
    pieces_t pieces = {.weights = weights, .options = options, .log = *log};
    pieces.values = malloc(WEIGHTS_PIECE_ELEMS * sizeof(*pieces.values));
    pieces.elements = malloc(WEIGHTS_PIECE_ELEMS * sizeof(*pieces.values));
    if (pieces.values == NULL || pieces.elements == NULL) {
        pieces_free(&pieces);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to write %s", options->path);
    }
    *pieces_p = pieces;
    return ZR_OK;
}

void pieces_free(pieces_t *pieces) {
    free(pieces->values);
    free(pieces->elements);
    pieces->values = NULL;
    pieces->elements = NULL;
}

zr_status_t pieces_convert(const pieces_t *pieces, const zr_model_tensor_t *tensor, size_t first,
                           size_t stride, const float *values, size_t n_elems, void *elements) {
    size_t n = elements_from_fp32(pieces->kind, values, n_elems, elements);
    if (n == n_elems)
        return ZR_OK;
    return zr_fail(&pieces->log, ZR_ERR_ARGUMENT,
                   "element %zu of %s is %g, which %s does not have; write fp32%s",
                   first + n * stride, tensor->name, (double)values[n],
                   pieces->kind == ELEMENT_BF16 ? "bf16" : "fp16",
                   pieces->kind == ELEMENT_BF16 ? "" : " or bf16");
}

void pieces_note(pieces_t *pieces, size_t n_elems) {
    pieces->n_done += n_elems;
    if (pieces->options->progress != NULL)
        pieces->options->progress(pieces->options->context, pieces->n_done);
}

zr_status_t pieces_of_tensor(pieces_t *pieces, const zr_model_tensor_t *tensor, pieces_take_fn take,
                             void *context) {
    for (size_t first = 0; first < tensor->n_elems; first += WEIGHTS_PIECE_ELEMS) {
        size_t rest = tensor->n_elems - first;
        size_t n = rest < WEIGHTS_PIECE_ELEMS ? rest : WEIGHTS_PIECE_ELEMS;
        ZR_TRY(weights_read(pieces->weights, tensor, first, n, pieces->values));
        ZR_TRY(pieces_convert(pieces, tensor, first, 1, pieces->values, n, pieces->elements));
        ZR_TRY(take(context, pieces->elements, first, n));
        pieces_note(pieces, n);
    }
    return ZR_OK;
}
