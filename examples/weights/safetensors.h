/*
 * safetensors: 8 bytes with the length of a header, the header, JSON, and the tensors' bytes one
 * behind the other. The header has, of each tensor, its dtype, its shape, and where its bytes begin
 * and end behind the header; "__metadata__" has strings. A file that is too large for one is
 * written as several, with an index beside them.
 *
 * Nothing that a file says of itself is taken on trust: a header is read only when every byte
 * behind it belongs to one tensor, which its dtype and shape need.
 */
#pragma once

#include "examples/weights/elements.h"

/** The most that a header or an index may have: room for 100 000 tensors. */
#define SAFETENSORS_MAX_HEADER_BYTES ((uint64_t)16 << 20)
#define SAFETENSORS_LENGTH_BYTES 8
#define SAFETENSORS_MAX_DIMS 8
/** The most files that an index may name: all are open together. */
#define SAFETENSORS_MAX_FILES 512
/** The key of "__metadata__" that has the text of a model's shape. */
#define SAFETENSORS_MODEL_KEY "libzero.model"

typedef struct safetensors_tensor {
    char *name; /* owned by the header */
    const element_type_t *type;
    int n_dims;
    size_t dims[SAFETENSORS_MAX_DIMS];
    size_t n_elems;
    uint64_t offset_bytes; /* from the header's end */
    uint64_t size_bytes;
} safetensors_tensor_t;

typedef struct safetensors_header {
    safetensors_tensor_t *tensors; /* [n_tensors] sorted by name */
    size_t n_tensors;
    char *model; /* of SAFETENSORS_MODEL_KEY; NULL: it has none */
} safetensors_header_t;

/** Frees what it has; a zeroed one is fine. */
void safetensors_clear(safetensors_header_t *header);

/**
 * The length of the header, from a file's first bytes.
 *
 * @param bytes       [SAFETENSORS_LENGTH_BYTES]
 * @param file_bytes  of the whole file
 * @param where       for messages: its path
 * @return ZR_OK; ZR_ERR_FORMAT, logged, when the file cannot have such a header
 */
ZR_NODISCARD zr_status_t safetensors_length(const void *bytes, uint64_t file_bytes,
                                            const char *where, const zr_log_t *log,
                                            size_t *length_p);

/**
 * Read a header, and check all of it.
 *
 * @param text        [n_bytes] behind the length
 * @param data_bytes  of the file behind the header
 * @param header_p    clear it
 * @return ZR_OK; ZR_ERR_FORMAT: the first reason is logged; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t safetensors_parse(const char *text, size_t n_bytes, uint64_t data_bytes,
                                           const char *where, const zr_log_t *log,
                                           safetensors_header_t *header_p);

/** The tensor of this name; NULL: none. */
const safetensors_tensor_t *safetensors_find(const safetensors_header_t *header, const char *name);

/**
 * Make the beginning of a file, up to the first tensor's bytes, which are aligned to 8.
 *
 * @param tensors   [n_tensors] in the order of their bytes; offset_bytes is not read
 * @param model     for SAFETENSORS_MODEL_KEY; NULL: none
 * @param bytes_p   [*n_bytes_p] free it
 * @return ZR_OK; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t safetensors_build(const safetensors_tensor_t *tensors, size_t n_tensors,
                                           const char *model, const zr_log_t *log, char **bytes_p,
                                           size_t *n_bytes_p);

/* ---- the index of several files ---------------------------------------------------------- */

typedef struct safetensors_index_entry {
    char *tensor; /* a name */
    size_t file;
} safetensors_index_entry_t;

typedef struct safetensors_index {
    char **files; /* [n_files] names in the folder of the index */
    size_t n_files;
    safetensors_index_entry_t *entries; /* [n_entries] */
    size_t n_entries;
} safetensors_index_t;

/** Frees what it has; a zeroed one is fine. */
void safetensors_index_clear(safetensors_index_t *index);

/**
 * Read an index. Files are names of safetensors files, without a folder: what it can name lies
 * beside it. Whether they are there, and have what it says, is for who opens them.
 *
 * @return ZR_OK; ZR_ERR_FORMAT: logged; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t safetensors_index_parse(const char *text, size_t n_bytes,
                                                 const char *where, const zr_log_t *log,
                                                 safetensors_index_t *index_p);
