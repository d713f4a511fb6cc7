/*
 * The weights of a GPT, wherever they are: a checkpoint, safetensors files, a file of llm.c. Who
 * reads them gets any piece of any parameter as fp32, in our shapes; who writes them asks for the
 * pieces in the order in which it wants them. So nothing of the size of a model is in memory.
 */
#pragma once

#include "models/gpt2/tensors.h"
#include "examples/weights/elements.h"

/** Elements that readers and writers move at a time. */
#define WEIGHTS_PIECE_ELEMS ((size_t)65536)
/** The most that one which transposes keeps of a matrix, unless one row of it has more. */
#define WEIGHTS_BAND_BYTES ((size_t)8 << 20)

typedef struct weights weights_t;

typedef struct weights_backend {
    /* Elements [first, first + n_elems) of a parameter, which has so many. What is wrong is logged
       with file and place. */
    zr_status_t (*read)(weights_t *weights, const zr_gpt_tensor_t *tensor, size_t first,
                        size_t n_elems, float *values);
    void (*destroy)(weights_t *weights); /* frees it as well */
} weights_backend_t;

struct weights {
    const weights_backend_t *backend;
    zr_gpt_shape_t shape;
    const char *format; /* "checkpoint", "safetensors" or "llm.c"; static */
    const char *dtype;  /* of the file: "fp32", ..., "mixed"; static */
    size_t n_ignored;   /* buffers that are no parameters; they have been logged */
};

/**
 * Open files of another tool.
 *
 * @param paths  [n_paths] a folder with a model of Hugging Face, an index, one or more safetensors
 *               files, or one file of llm.c; what they are is found by what is in them
 * @param model  NULL, or what the files do not say: a shape, which must agree with what they do
 * @return ZR_OK; ZR_ERR_ARGUMENT when a path is none of these; ZR_ERR_FORMAT when what is there is
 *         damaged, hostile or another model; ZR_ERR_IO; ZR_ERR_MEMORY. Logged.
 *
 * Threads: one.
 */
ZR_NODISCARD zr_status_t weights_open(const char *const *paths, size_t n_paths,
                                      const zr_gpt_shape_t *model, const zr_log_t *log,
                                      weights_t **weights_p);
/** NULL and *weights == NULL are fine. */
void weights_close(weights_t **weights);

static inline zr_status_t weights_read(weights_t *weights, const zr_gpt_tensor_t *tensor,
                                       size_t first, size_t n_elems, float *values) {
    return weights->backend->read(weights, tensor, first, n_elems, values);
}

/* ---- writing ----------------------------------------------------------------------------- */

typedef struct weights_export {
    const char *path;
    element_kind_t kind;
    uint64_t shard_bytes; /* of safetensors: the most that a file has; 0: one file */
    /* Called now and then with the elements written so far; NULL: not. */
    void (*progress)(void *context, uint64_t n_elems);
    void *context;
} weights_export_t;

typedef struct weights_report {
    size_t n_files; /* of weights */
    uint64_t n_bytes;
} weights_report_t;

/**
 * Write safetensors. A path that ends with .safetensors is one file; any other a folder as Hugging
 * Face reads it: config.json, and model.safetensors or several files with their index.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT when something is at the path, for a value that the dtype does not
 *         have, or several files where one is named; ZR_ERR_IO; ZR_ERR_MEMORY; what reading
 *         returns. Logged, and nothing is left.
 */
ZR_NODISCARD zr_status_t weights_write_safetensors(weights_t *weights,
                                                   const weights_export_t *options,
                                                   const zr_log_t *log, weights_report_t *report_p);
/** Write a file of llm.c, of fp32 or bf16; errors as above. */
ZR_NODISCARD zr_status_t weights_write_llmc(weights_t *weights, const weights_export_t *options,
                                            const zr_log_t *log, weights_report_t *report_p);
