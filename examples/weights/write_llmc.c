/*
 * Kind by kind, of all layers. Matrices of linear layers are written transposed: a band of our rows
 * is read and becomes a part of each of the file's rows.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "examples/weights/llmc.h"
#include "examples/weights/out_file.h"
#include "examples/weights/pieces.h"

typedef struct writing {
    pieces_t pieces;
    zr_log_t log;
    llmc_header_t header;
    out_file_t *file;
    size_t size_bytes; /* of an element */

    float *band; /* [n_rows, n_out] rows of a matrix of ours */
    size_t band_elems;
} writing_t;

static const zr_model_tensor_t *model_tensor(const writing_t *w, const zr_gpt_tensor_t *tensor) {
    return zr_model_tensors_find(&w->pieces.weights->tensors, tensor->name);
}

static zr_status_t write_piece(void *context, const void *elements, size_t first, size_t n_elems) {
    (void)first;
    const writing_t *w = context;
    return out_file_write(w->file, elements, n_elems * w->size_bytes);
}

static zr_status_t write_zeros(const writing_t *w, uint64_t n_bytes) {
    static const char zeros[4096];
    for (uint64_t done = 0; done < n_bytes; done += sizeof(zeros)) {
        uint64_t rest = n_bytes - done;
        ZR_TRY(out_file_write(w->file, zeros, rest < sizeof(zeros) ? rest : sizeof(zeros)));
    }
    return ZR_OK;
}

/* ---- transposed -------------------------------------------------------------------------- */

/* One of the file's rows, as far as the band has it: column `column` of ours. */
static zr_status_t write_column(writing_t *w, const zr_gpt_tensor_t *tensor, size_t first_row,
                                size_t n_rows, size_t column) {
    size_t n_in = tensor->dims[0], n_out = tensor->dims[1];
    for (size_t done = 0, n; done < n_rows; done += n) {
        n = n_rows - done < WEIGHTS_PIECE_ELEMS ? n_rows - done : WEIGHTS_PIECE_ELEMS;
        for (size_t i = 0; i < n; i++)
            w->pieces.values[i] = w->band[(done + i) * n_out + column];
        size_t row = first_row + done;
        ZR_TRY(pieces_convert(&w->pieces, model_tensor(w, tensor), row * n_out + column, n_out,
                              w->pieces.values, n, w->pieces.elements));
        uint64_t at =
            llmc_offset_bytes(&w->header, tensor) + ((uint64_t)column * n_in + row) * w->size_bytes;
        ZR_TRY(out_file_write_at(w->file, w->pieces.elements, n * w->size_bytes, at));
    }
    return ZR_OK;
}

static zr_status_t make_room(writing_t *w, size_t n_elems) {
    if (n_elems <= w->band_elems)
        return ZR_OK;
    free(w->band);
    w->band = malloc(n_elems * sizeof(*w->band));
    w->band_elems = w->band == NULL ? 0 : n_elems;
    return w->band != NULL ? ZR_OK
                           : zr_fail(&w->log, ZR_ERR_MEMORY, "no memory to transpose %s",
                                     zr_size_text(n_elems * sizeof(float)).text);
}

static zr_status_t write_transposed(writing_t *w, const zr_gpt_tensor_t *tensor) {
    size_t n_in = tensor->dims[0], n_out = tensor->dims[1];
    size_t most = WEIGHTS_BAND_BYTES / sizeof(float) / n_out;
    most = most == 0 ? 1 : most;
    for (size_t row = 0, n_rows; row < n_in; row += n_rows) {
        n_rows = n_in - row < most ? n_in - row : most;
        ZR_TRY(make_room(w, n_rows * n_out));
        ZR_TRY(weights_read(w->pieces.weights, model_tensor(w, tensor), row * n_out, n_rows * n_out,
                            w->band));
        for (size_t column = 0; column < n_out; column++)
            ZR_TRY(write_column(w, tensor, row, n_rows, column));
        pieces_note(&w->pieces, n_rows * n_out);
    }
    return out_file_skip(w->file, tensor->n_elems * w->size_bytes);
}

/* ---- all --------------------------------------------------------------------------------- */

static zr_status_t write_tensor(writing_t *w, zr_gpt_kind_t kind, size_t layer) {
    zr_gpt_tensor_t tensor = zr_gpt_tensor(&w->header.shape, kind, layer);
    if (zr_gpt_kind_is_linear(kind))
        return write_transposed(w, &tensor);
    ZR_TRY(pieces_of_tensor(&w->pieces, model_tensor(w, &tensor), write_piece, w));
    size_t n_more = kind == ZR_GPT_WTE ? w->header.padded_vocab - w->header.shape.vocab : 0;
    return write_zeros(w, (uint64_t)n_more * w->header.shape.channels * w->size_bytes);
}

static zr_status_t write_all(writing_t *w) {
    int32_t ints[LLMC_HEADER_INTS];
    ZR_TRY(llmc_build(&w->header, &w->log, ints));
    ZR_TRY(
        out_file_create(w->pieces.options->path, llmc_file_bytes(&w->header), &w->log, &w->file));
    ZR_TRY(out_file_write(w->file, ints, sizeof(ints)));
    for (int kind = 0; kind < ZR_GPT_N_KINDS; kind++) {
        size_t n = zr_gpt_kind_is_of_layer((zr_gpt_kind_t)kind) ? w->header.shape.n_layers : 1;
        for (size_t layer = 0; layer < n; layer++)
            ZR_TRY(write_tensor(w, (zr_gpt_kind_t)kind, layer));
    }
    return out_file_publish(w->file);
}

/* A file has one dtype: with as_origin, that which all tensors came in. */
static element_kind_t kind_of(const weights_t *weights, const weights_export_t *options) {
    const weights_origin_t *origin = &weights->origin;
    if (!options->as_origin)
        return options->kind;
    bool is_bf16 = origin->kinds != NULL && element_kinds_name(origin->kinds, weights->tensors.n) ==
                                                element_kind_name(ELEMENT_BF16);
    return is_bf16 ? ELEMENT_BF16 : ELEMENT_FP32;
}

zr_status_t weights_write_llmc(weights_t *weights, const weights_export_t *options,
                               const zr_log_t *log, weights_report_t *report_p) {
    element_kind_t kind = kind_of(weights, options);
    if (weights->shape.kind != ZR_MODEL_GPT)
        return zr_fail(
            log, ZR_ERR_UNSUPPORTED,
            "--format llm.c: its files have a GPT-2, and this model is %s; take --format "
            "safetensors",
            zr_model_kind_name(weights->shape.kind));
    writing_t w = {.log = *log,
                   .header = llmc_header_of(&weights->shape.of.gpt, kind),
                   .size_bytes = element_type_of(kind)->size_bytes};
    ZR_TRY(pieces_create(weights, options, log, &w.pieces));
    w.pieces.kind = kind;
    zr_status_t status = write_all(&w);
    if (status == ZR_OK)
        *report_p = (weights_report_t){
            .n_files = 1, .n_bytes = llmc_file_bytes(&w.header), .dtype = element_kind_name(kind)};
    out_file_destroy(&w.file);
    free(w.band);
    pieces_free(&w.pieces);
    return status;
}
