/*
 * The weights of a model, wherever they are: a checkpoint, safetensors files, a file of llm.c. Who
 * reads them gets any piece of any parameter as fp32, in our shapes; who writes them asks for the
 * pieces in the order in which it wants them. So nothing of the size of a model is in memory.
 */
#pragma once

#include "models/lora.h"
#include "examples/weights/elements.h"

/** Elements that readers and writers move at a time. */
#define WEIGHTS_PIECE_ELEMS ((size_t)65536)
/** The most that one which transposes keeps of a matrix, unless one row of it has more. */
#define WEIGHTS_BAND_BYTES ((size_t)8 << 20)

typedef struct weights weights_t;

typedef struct weights_backend {
    /* Elements [first, first + n_elems) of a parameter, which has so many. What is wrong is logged
       with file and place. */
    zr_status_t (*read)(weights_t *weights, const zr_model_tensor_t *tensor, size_t first,
                        size_t n_elems, float *values);
    void (*destroy)(weights_t *weights); /* frees it as well */
} weights_backend_t;

/** How a model of Hugging Face had its weights, so that it is given back so. */
typedef struct weights_origin {
    element_kind_t *kinds;    /* [of the tensors]; NULL: they are not of Hugging Face */
    bool has_prefix;          /* of names, where models of this kind may have one (hf_names.h) */
    bool is_bare;             /* names lack the prefix that they have here */
    bool has_head;            /* a tied head's weight is there beside the embedding */
    element_kind_t head_kind; /* of it */
} weights_origin_t;

struct weights {
    const weights_backend_t *backend;
    zr_model_shape_t shape;
    bool has_lora;              /* adapters are among the tensors */
    bool is_adapter;            /* and nothing else is */
    zr_lora_t lora;             /* of those, also where they are merged */
    zr_model_tensors_t tensors; /* of the shape */
    const char *format;         /* "checkpoint", "safetensors" or "llm.c"; static */
    const char *dtype;          /* of the file: "fp32", ..., "mixed"; static */
    size_t n_ignored;           /* buffers that are no parameters; they have been logged */
    weights_origin_t origin;
    char *folder; /* whose other files a checkpoint carries along (carry.h); NULL: none */
    const zr_checkpoint_t *carrier; /* whose files an export gives back; NULL: none */
};

/**
 * Open files of another tool.
 *
 * @param paths  [n_paths] a folder with a model of Hugging Face, an index, one or more safetensors
 *               files, or one file of llm.c; what they are is found by what is in them
 * @param model  NULL, or what the files do not say: a shape, which must agree with what they do
 * @return ZR_OK; ZR_ERR_ARGUMENT when a path is none of these; ZR_ERR_FORMAT or ZR_ERR_UNSUPPORTED
 *         when what is there is damaged, hostile or another model; ZR_ERR_IO; ZR_ERR_MEMORY.
 * Logged.
 *
 * Threads: one.
 */
ZR_NODISCARD zr_status_t weights_open(const char *const *paths, size_t n_paths,
                                      const zr_model_shape_t *model, const zr_log_t *log,
                                      weights_t **weights_p);
/** NULL and *weights == NULL are fine. */
void weights_close(weights_t **weights);

static inline zr_status_t weights_read(weights_t *weights, const zr_model_tensor_t *tensor,
                                       size_t first, size_t n_elems, float *values) {
    return weights->backend->read(weights, tensor, first, n_elems, values);
}

/** Elements of all tensors. */
uint64_t weights_n_elems(const weights_t *weights);

/** For backends: refuse a file that is known not to be weights by what it begins with: a pointer of
 * git-lfs, a pickle, GGUF. ZR_ERR_FORMAT, ZR_ERR_ARGUMENT, ZR_ERR_IO, logged. */
ZR_NODISCARD zr_status_t weights_look_at(const char *path, const zr_log_t *log, bool *is_llmc_p);
/** For backends: list the tensors of the shape, which is set. */
ZR_NODISCARD zr_status_t weights_list_tensors(weights_t *weights, const zr_log_t *log);
/** For backends: what is not theirs. */
void weights_clear(weights_t *weights);
/** For backends: two that say what model it is, and differ. ZR_ERR_FORMAT, logged. */
ZR_NODISCARD zr_status_t weights_expect_shape(const zr_model_shape_t *a, const char *where_a,
                                              const zr_model_shape_t *b, const char *where_b,
                                              const zr_log_t *log);
/** For backends of files: refuse values that no training can go on from. ZR_ERR_FORMAT, logged. */
ZR_NODISCARD zr_status_t weights_check_finite(const float *values, size_t n_elems, size_t first,
                                              const char *tensor, const char *path,
                                              const zr_log_t *log);

/* ---- writing ----------------------------------------------------------------------------- */

typedef struct weights_export {
    const char *path;
    bool as_origin;       /* each tensor as it was imported, fp32 where it was not; else: */
    element_kind_t kind;  /* of all */
    uint64_t shard_bytes; /* of safetensors: the most that a file has; 0: one file */
    /* Called now and then with the elements written so far; NULL: not. */
    void (*progress)(void *context, uint64_t n_elems);
    void *context;
} weights_export_t;

typedef struct weights_report {
    size_t n_files; /* of weights */
    uint64_t n_bytes;
    const char *dtype; /* of the files, as weights_t has it */
} weights_report_t;

/**
 * Write safetensors. A path that ends with .safetensors is one file; any other a folder as Hugging
 * Face reads it: config.json, model.safetensors or several files with their index, and what was
 * carried along.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT when something is at the path, for a value that the dtype does not
 *         have, or several files where one is named; ZR_ERR_UNSUPPORTED for a model that no
 *         configuration of Hugging Face describes; ZR_ERR_IO; ZR_ERR_MEMORY; what reading returns.
 *         Logged, and nothing is left.
 */
ZR_NODISCARD zr_status_t weights_write_safetensors(weights_t *weights,
                                                   const weights_export_t *options,
                                                   const zr_log_t *log, weights_report_t *report_p);
/** Write a file of llm.c, of fp32 or bf16; errors as above. */
ZR_NODISCARD zr_status_t weights_write_llmc(weights_t *weights, const weights_export_t *options,
                                            const zr_log_t *log, weights_report_t *report_p);
