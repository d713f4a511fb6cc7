/*
 * What the tests of the transformer's kernels share: devices of several kinds, arrays that
 * exist for the kernel and for the oracle, and how the two are compared.
 */
#ifndef ZR_TESTS_KERNELS_NN_NN_TEST_H
#define ZR_TESTS_KERNELS_NN_NN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/nn/nn.h"

/* A device to run every case on. */
typedef struct nn_device {
    const char *isa; /* NULL: the best one */
    int n_threads;
    zr_device_t *device;
    zr_stream_t *stream;
} nn_device_t;

/**
 * Run `body` on devices of 1, 2 and 3 threads and of every instruction set that this machine
 * has, and say which one when it fails.
 */
void nn_on_every_device(void (*body)(nn_device_t *device));

/* An array: `data` in its dtype for the kernel, `ref` with the same values for the oracle. */
typedef struct nn_array {
    void *data;
    double *ref;
    size_t n;
    zr_dtype_t dtype;
} nn_array_t;

/** Random values in [-scale, scale], the same for the same seed. */
nn_array_t nn_array_random(size_t n, zr_dtype_t dtype, double scale, uint64_t seed);
void nn_array_free(nn_array_t *array);

/** Random numbers in [0, limit). */
int32_t *nn_tokens_random(size_t n, size_t limit, uint64_t seed);

/** A workspace of exactly the size asked for, with guards behind it; NULL data when it is 0. */
zr_nn_workspace_t nn_workspace(size_t size_bytes);
/** Check the guards and free. */
void nn_workspace_free(zr_nn_workspace_t *workspace);

/**
 * ||data - ref|| / ||ref|| <= tolerance, nothing is NaN; 0 against 0 is fine.
 *
 * A bf16 array may also be off by half a unit of bf16 in each element.
 */
void nn_assert_close(const char *what, const nn_array_t *array, double tolerance);

/** Bytes are equal. */
void nn_assert_same(const char *what, const void *a, const void *b, size_t size_bytes);

#endif
