/*
 * Matrices of linear layers lie transposed. A band of our rows is collected from every row of the
 * file's, and kept: who reads on asks for what it has.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "examples/weights/in_file.h"
#include "examples/weights/llmc.h"

typedef struct llmc_weights {
    weights_t base;
    zr_log_t log;
    in_file_t file;
    llmc_header_t header;
    unsigned char *staging; /* [WEIGHTS_PIECE_ELEMS] of the file's kind */

    /* A band: rows [first_row, first_row + n_rows) of a matrix of ours, none when n_rows is 0. */
    float *band;
    size_t band_elems; /* that it has room for */
    zr_gpt_kind_t kind;
    size_t layer, first_row, n_rows;
} llmc_weights_t;

/* Elements that lie in a row in the file, from so many behind the parameter's beginning. */
static zr_status_t read_run(llmc_weights_t *w, const zr_gpt_tensor_t *tensor, uint64_t first,
                            size_t n_elems, float *values) {
    size_t size_bytes = element_type_of(w->header.kind)->size_bytes;
    uint64_t offset_bytes = llmc_offset_bytes(&w->header, tensor) + first * size_bytes;
    for (size_t done = 0; done < n_elems;) {
        size_t n = n_elems - done < WEIGHTS_PIECE_ELEMS ? n_elems - done : WEIGHTS_PIECE_ELEMS;
        ZR_TRY(in_file_read(&w->file, w->staging, n * size_bytes, offset_bytes + done * size_bytes,
                            &w->log));
        elements_to_fp32(w->header.kind, w->staging, n, values + done);
        done += n;
    }
    return ZR_OK;
}

/* ---- bands ------------------------------------------------------------------------------- */

/* Room for whole rows of ours, and behind them for a part of one of the file's. */
static zr_status_t make_room(llmc_weights_t *w, size_t n_rows, size_t n_columns) {
    size_t n_elems = n_rows * n_columns + n_rows;
    if (n_elems <= w->band_elems)
        return ZR_OK;
    free(w->band);
    w->band = malloc(n_elems * sizeof(*w->band));
    w->band_elems = w->band == NULL ? 0 : n_elems;
    w->n_rows = 0;
    return w->band != NULL ? ZR_OK
                           : zr_fail(&w->log, ZR_ERR_MEMORY, "no memory to transpose %s",
                                     zr_size_text(n_elems * sizeof(float)).text);
}

static zr_status_t read_band(llmc_weights_t *w, const zr_gpt_tensor_t *tensor, size_t first_row) {
    size_t n_in = tensor->dims[0], n_out = tensor->dims[1];
    size_t n_rows = WEIGHTS_BAND_BYTES / sizeof(float) / n_out;
    n_rows = n_rows == 0 ? 1 : n_rows;
    n_rows = n_rows < n_in - first_row ? n_rows : n_in - first_row;
    ZR_TRY(make_room(w, n_rows, n_out));
    float *run = w->band + n_rows * n_out;
    w->n_rows = 0;
    for (size_t column = 0; column < n_out; column++) {
        ZR_TRY(read_run(w, tensor, (uint64_t)column * n_in + first_row, n_rows, run));
        for (size_t row = 0; row < n_rows; row++)
            w->band[row * n_out + column] = run[row];
    }
    w->kind = tensor->kind;
    w->layer = tensor->layer;
    w->first_row = first_row;
    w->n_rows = n_rows;
    return ZR_OK;
}

static bool is_in_band(const llmc_weights_t *w, const zr_gpt_tensor_t *tensor, size_t row) {
    return w->n_rows > 0 && w->kind == tensor->kind && w->layer == tensor->layer &&
           row >= w->first_row && row - w->first_row < w->n_rows;
}

static zr_status_t read_transposed(llmc_weights_t *w, const zr_gpt_tensor_t *tensor, size_t first,
                                   size_t n_elems, float *values) {
    size_t n_out = tensor->dims[1];
    for (size_t done = 0; done < n_elems;) {
        size_t at = first + done;
        if (!is_in_band(w, tensor, at / n_out))
            ZR_TRY(read_band(w, tensor, at / n_out));
        size_t begin = w->first_row * n_out, n = w->n_rows * n_out - (at - begin);
        n = n < n_elems - done ? n : n_elems - done;
        memcpy(values + done, w->band + (at - begin), n * sizeof(*values));
        done += n;
    }
    return ZR_OK;
}

/* ---- as weights -------------------------------------------------------------------------- */

static zr_status_t read_piece(weights_t *weights, const zr_model_tensor_t *tensor, size_t first,
                              size_t n_elems, float *values) {
    llmc_weights_t *w = (llmc_weights_t *)weights;
    zr_gpt_tensor_t of_gpt;
    if (!zr_gpt_tensor_find(&w->header.shape, tensor->name, &of_gpt))
        return zr_fail(&w->log, ZR_ERR_STATE, "%s has no %s", w->file.path, tensor->name);
    ZR_TRY(zr_gpt_kind_is_linear(of_gpt.kind) ? read_transposed(w, &of_gpt, first, n_elems, values)
                                              : read_run(w, &of_gpt, first, n_elems, values));
    return weights_check_finite(values, n_elems, first, tensor->name, w->file.path, &w->log);
}

static void destroy(weights_t *weights) {
    llmc_weights_t *w = (llmc_weights_t *)weights;
    in_file_close(&w->file);
    weights_clear(weights);
    free(w->staging);
    free(w->band);
    free(w);
}

static const weights_backend_t backend = {.read = read_piece, .destroy = destroy};

/* The rows behind the vocabulary are dropped; that they say something is unusual. */
static zr_status_t look_at_padding(llmc_weights_t *w) {
    zr_gpt_tensor_t wte = zr_gpt_tensor(&w->header.shape, ZR_GPT_WTE, 0);
    size_t n = w->header.padded_vocab - w->header.shape.vocab;
    size_t n_elems = n * w->header.shape.channels, n_others = 0;
    float *values = malloc(WEIGHTS_PIECE_ELEMS * sizeof(*values));
    zr_status_t status =
        values != NULL ? ZR_OK
                       : zr_fail(&w->log, ZR_ERR_MEMORY, "no memory to read %s", w->file.path);
    for (size_t done = 0; status == ZR_OK && done < n_elems; done += WEIGHTS_PIECE_ELEMS) {
        size_t rest = n_elems - done, k = rest < WEIGHTS_PIECE_ELEMS ? rest : WEIGHTS_PIECE_ELEMS;
        status = read_run(w, &wte, wte.n_elems + done, k, values);
        for (size_t i = 0; status == ZR_OK && i < k; i++)
            n_others += values[i] != 0.0f;
    }
    free(values);
    if (status == ZR_OK && n_others > 0)
        zr_log_write(&w->log, ZR_LOG_WARNING,
                     "%s: not read: %s behind the vocabulary of %s, with %s that %s not 0",
                     w->file.path, zr_count_text(n, "row").text,
                     zr_count_text(w->header.shape.vocab, "word").text,
                     zr_count_text(n_others, "element").text, n_others == 1 ? "is" : "are");
    return status;
}

static zr_status_t open_all(llmc_weights_t *w, const char *path, const zr_model_shape_t *model) {
    unsigned char bytes[LLMC_HEADER_BYTES];
    ZR_TRY(in_file_open(path, &w->log, &w->file));
    if (w->file.size_bytes < sizeof(bytes))
        return zr_fail(&w->log, ZR_ERR_FORMAT,
                       "%s: it has %s, and the header of llm.c %zu: it is truncated", path,
                       zr_count_text(w->file.size_bytes, "byte").text, sizeof(bytes));
    ZR_TRY(in_file_read(&w->file, bytes, sizeof(bytes), 0, &w->log));
    ZR_TRY(llmc_parse(bytes, w->file.size_bytes, path, &w->log, &w->header));
    w->base.shape = (zr_model_shape_t){.kind = ZR_MODEL_GPT, .of.gpt = w->header.shape};
    w->base.dtype = element_kind_name(w->header.kind);
    if (model != NULL)
        ZR_TRY(weights_expect_shape(model, "--model", &w->base.shape, path, &w->log));
    ZR_TRY(weights_list_tensors(&w->base, &w->log));
    w->staging = malloc(WEIGHTS_PIECE_ELEMS * element_type_of(w->header.kind)->size_bytes);
    if (w->staging == NULL)
        return zr_fail(&w->log, ZR_ERR_MEMORY, "no memory to read %s", path);
    return look_at_padding(w);
}

zr_status_t weights_open_llmc(const char *path, const zr_model_shape_t *model, const zr_log_t *log,
                              weights_t **weights_p) {
    llmc_weights_t *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", path);
    w->base = (weights_t){.backend = &backend, .format = "llm.c"};
    w->log = *log;
    w->file.fd = -1;
    zr_status_t status = open_all(w, path, model);
    if (status == ZR_OK)
        *weights_p = &w->base;
    else
        destroy(&w->base);
    return status;
}
