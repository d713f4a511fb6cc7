/*
 * The kernels that move memory and hardly compute, on arrays of a size.
 */
#pragma once

#include "examples/bench/on_device.h"

typedef struct memory_kernels_shape {
    size_t n_rows, channels, vocab;
    zr_dtype_t dtype; /* of parameters */
} memory_kernels_shape_t;

/** Arrays of rows x channels, of which kernels read x and dy and write y; parameters and the rest.
 */
typedef struct memory_kernels {
    on_device_t *on;
    size_t n_rows, channels, vocab, n_elems, n_positions;
    zr_dtype_t activation_dtype, param_dtype;
    char *x, *dy, *y;
    char *param, *param_grad; /* [vocab, channels] */
    char *positions;          /* [MEMORY_KERNELS_POSITIONS, channels] */
    float *wide;              /* [n_elems] */
    float *mean, *rstd;       /* [n_rows] */
    int32_t *tokens;          /* [n_rows] */
    double *result;
    zr_nn_workspace_t workspace;
} memory_kernels_t;

#define MEMORY_KERNELS_POSITIONS 1024

/**
 * Make the arrays and fill them.
 *
 * @param on  nothing was mapped there yet; borrowed for the arrays' life, and it has their memory
 */
ZR_NODISCARD zr_status_t memory_kernels_make(on_device_t *on, const memory_kernels_shape_t *shape,
                                             memory_kernels_t *kernels);

/** One of them: `queue` takes a memory_kernels_t. */
typedef struct memory_kernel {
    const char *name;
    zr_status_t (*queue)(void *context, zr_stream_t *stream);
    bool is_of_layers; /* layers of a model are made of it, and it computes next to nothing */
} memory_kernel_t;

#define N_MEMORY_KERNELS 14
extern const memory_kernel_t memory_kernels_all[N_MEMORY_KERNELS];

/** The device's own copy of one array. */
ZR_NODISCARD zr_status_t memory_kernels_copy(void *context, zr_stream_t *stream);
/** The one of them that computes most. */
ZR_NODISCARD zr_status_t memory_kernels_gelu(void *context, zr_stream_t *stream);
