/*
 * The tensors of one safetensors file, or of several as if they were one.
 */
#pragma once

#include "examples/weights/in_file.h"
#include "examples/weights/safetensors.h"

typedef struct safetensors_set {
    struct safetensors_set_file {
        in_file_t file;
        safetensors_header_t header;
        uint64_t data_offset_bytes; /* where its tensors begin */
    } * files;
    size_t n_files;
} safetensors_set_t;

/** Where a tensor is. */
typedef struct safetensors_place {
    size_t file;
    const safetensors_tensor_t *tensor; /* NULL: nowhere */
} safetensors_place_t;

/** Closes what it has; a zeroed one is fine. */
void safetensors_set_close(safetensors_set_t *set);

/**
 * Open files; no two have a tensor of the same name.
 *
 * @return ZR_OK; ZR_ERR_FORMAT; what in_file_open returns; ZR_ERR_MEMORY. Logged.
 */
ZR_NODISCARD zr_status_t safetensors_set_open(const char *const *paths, size_t n_paths,
                                              const zr_log_t *log, safetensors_set_t *set_p);

/** Open the files that an index names: each has exactly the tensors that it says. */
ZR_NODISCARD zr_status_t safetensors_set_open_index(const char *path, const zr_log_t *log,
                                                    safetensors_set_t *set_p);

safetensors_place_t safetensors_set_find(const safetensors_set_t *set, const char *name);

/** Elements [first, first + n_elems) of a tensor of a kind that is read, as fp32. ZR_ERR_IO. */
ZR_NODISCARD zr_status_t safetensors_set_read(const safetensors_set_t *set,
                                              safetensors_place_t place, size_t first,
                                              size_t n_elems, float *values, const zr_log_t *log);
