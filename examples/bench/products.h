/*
 * The matrix products of a GPT layer, forward and backward, as the model makes them: with bias,
 * residual stream and GELU.
 */
#pragma once

#include "examples/bench/on_device.h"

/** Forward, and for the gradients of input and weight: those of a linear layer. */
#define PRODUCTS_OF_A_LINEAR 3
#define N_PRODUCTS (4 * PRODUCTS_OF_A_LINEAR)

typedef struct product {
    const char *layer, *pass; /* static */
    zr_nn_matmul_t args;
    zr_nn_workspace_t workspace;
} product_t;

/* Arrays of as many elements as the largest product needs. */
typedef struct products {
    on_device_t *on;
    size_t n_rows, channels;
    zr_dtype_t activation_dtype, param_dtype;
    void *x, *dy, *y, *pre_gelu; /* [n_rows, 4 channels] */
    void *weight, *weight_grad;  /* [4 channels, channels] */
    void *bias;                  /* [4 channels] */
    product_t products[N_PRODUCTS];
    work_t works[N_PRODUCTS];
} products_t;

/**
 * Make them, with all of their memory.
 *
 * @param on     nothing was mapped there yet; borrowed for the products' life
 * @param dtype  of parameters
 *
 * Ownership: free with works_free what was timed; the memory is the device's.
 */
ZR_NODISCARD zr_status_t products_make(on_device_t *on, size_t n_rows, size_t channels,
                                       zr_dtype_t dtype, products_t *products);

/** Operations per second of all of them, one after another, by the medians of what was timed. */
double products_per_s(products_t *products);
