/*
 * What the tests of the transformer's kernels share: devices of several kinds, arrays that
 * exist for the kernel and for the oracle, and how the two are compared.
 *
 * A program's first argument names the device, "host" without one. Tests see device memory only
 * through the functions below, so they run on any device.
 */
#pragma once

#include "kernels/nn/nn.h"
#include "tests/common/test.h"

/* Sanitizers make what they watch many times slower, an emulated device's fibres most: fewer sizes
 * then, which go through the same code. */
#if defined(__SANITIZE_THREAD__) || (defined(__SANITIZE_ADDRESS__) && defined(ZR_TESTS_EMULATED))
#define IS_SLOW true
#else
#define IS_SLOW false
#endif

/* A device to run every case on. */
typedef struct nn_device {
    const char *isa; /* NULL: the best one */
    int n_threads;
    size_t skip_elems; /* arrays begin so many elements after a multiple of 256 bytes */
    zr_device_t *device;
    zr_stream_t *stream;
} nn_device_t;

/**
 * Run `body` on several devices, and say which one when it fails. The host: with 1, 2 and 3 threads
 * and every instruction set that this machine has. Others: with arrays that are aligned and that
 * are not. Arrays and workspaces belong to the device of the moment, and are all freed by `body`.
 */
void nn_on_every_device(void (*body)(nn_device_t *device));

/** A test that is such a body. */
#define NN_TEST(name)                                                                              \
    static void name##_on(nn_device_t *device);                                                    \
    TEST(name) {                                                                                   \
        nn_on_every_device(name##_on);                                                             \
    }                                                                                              \
    static void name##_on(nn_device_t *device)

/** The dtype of activations for such parameters. */
zr_dtype_t nn_activation_dtype(const nn_device_t *device, zr_dtype_t param_dtype);

/* An array: `data` in its dtype for the kernel, `ref` with the same values for the oracle. */
typedef struct nn_array {
    void *data; /* on the device */
    void *host; /* what was there last, for the test; on the host the same as data */
    double *ref;
    size_t n;
    zr_dtype_t dtype;
} nn_array_t;

/** Random values in [-scale, scale], the same for the same seed. */
nn_array_t nn_array_random(size_t n, zr_dtype_t dtype, double scale, uint64_t seed);
/** These values. */
nn_array_t nn_array_of(const double *values, size_t n, zr_dtype_t dtype);
/** Random int32 numbers in [0, limit). */
nn_array_t nn_tokens_random(size_t n, size_t limit, uint64_t seed);
/** zr_nn_qkv_shape_t's document_starts, of documents of step, 2 step, 3 step, ... tokens. */
nn_array_t nn_documents(size_t batch, size_t seq, size_t step);
void nn_array_free(nn_array_t *array);
/** Several: &x, &y, ... */
#define nn_arrays_free(...) nn_array_free_all((nn_array_t *[]){__VA_ARGS__, NULL})
void nn_array_free_all(nn_array_t *const *arrays);

/** Wait for the stream, and bring `host` up to date; the other way round. */
const void *nn_download(const nn_array_t *array);
void nn_upload(const nn_array_t *array);
/** An element of `host`; the same, with its `ref`, to be uploaded. */
double nn_value(const nn_array_t *array, size_t i);
void nn_set_value(nn_array_t *array, size_t i, double value);

/** A workspace of exactly the size asked for, with guards behind it; NULL data when it is 0. */
zr_nn_workspace_t nn_workspace(size_t size_bytes);
/** Check the guards and free. */
void nn_workspace_free(zr_nn_workspace_t *workspace);
/** Run a kernel that takes a workspace with one of exactly its size: nn_call(device, matmul,
 * &args).
 */
#define nn_call(on, kernel, args)                                                                  \
    do {                                                                                           \
        zr_nn_workspace_t own =                                                                    \
            nn_workspace(zr_nn_##kernel##_workspace_bytes((on)->device, args));                    \
        assert_ok(zr_nn_##kernel((on)->stream, args, own));                                        \
        nn_workspace_free(&own);                                                                   \
    } while (0)

/**
 * ||data - ref|| / ||ref|| <= tolerance, nothing is NaN; 0 against 0 is fine.
 *
 * A bf16 array may also be off by half a unit of bf16 in each element.
 */
void nn_assert_close(const char *what, const nn_array_t *array, double tolerance);

/** Bytes, which the test can reach, are equal. */
void nn_assert_same(const char *what, const void *a, const void *b, size_t size_bytes);
