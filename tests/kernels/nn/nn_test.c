/*
 * See nn_test.h.
 */
#include "tests/kernels/nn/nn_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD_BYTES 64

/* ---- devices ---------------------------------------------------------------------- */

static void ignore_message(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

static void on_device(nn_device_t *device, void (*body)(nn_device_t *device)) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = device->n_threads;
    options.isa = device->isa;
    options.log.sink = ignore_message;
    zr_status_t status = zr_device_open("host", &options, &device->device);
    if (status == ZR_ERR_UNSUPPORTED && device->isa != NULL) {
        print_message("no %s here: not tested\n", device->isa);
        return;
    }
    assert_int_equal(status, ZR_OK);
    assert_int_equal(zr_stream_create(device->device, "compute", &device->stream), ZR_OK);
    print_message("%d threads, %s\n", device->n_threads,
                  device->isa == NULL ? "best instruction set" : device->isa);
    body(device);
    zr_stream_destroy(&device->stream);
    zr_device_close(&device->device);
}

void nn_on_every_device(void (*body)(nn_device_t *device)) {
#if defined(__SANITIZE_THREAD__)
    /* It looks at how threads share work, which two show; the rest would take minutes. */
    on_device(&(nn_device_t){.n_threads = 2}, body);
#else
    static const char *const isas[] = {"baseline", "avx2", "avx512"};
    for (int n_threads = 1; n_threads <= 3; n_threads++)
        on_device(&(nn_device_t){.n_threads = n_threads}, body);
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        on_device(&(nn_device_t){.isa = isas[i], .n_threads = 2}, body);
#endif
}

/* ---- arrays ------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static double value_at(const nn_array_t *array, size_t i) {
    return array->dtype == ZR_DTYPE_F32 ? (double)((float *)array->data)[i]
                                        : (double)zr_bf16_to_f32(((zr_bf16_t *)array->data)[i]);
}

nn_array_t nn_array_random(size_t n, zr_dtype_t dtype, double scale, uint64_t seed) {
    nn_array_t array = {.n = n, .dtype = dtype};
    array.data = malloc(n * zr_dtype_size(dtype) + 1); /* exact: a sanitizer sees one too far */
    array.ref = malloc(n * sizeof(double) + 1);
    assert_non_null(array.data);
    assert_non_null(array.ref);
    for (size_t i = 0; i < n; i++) {
        float value =
            (float)(scale *
                    (2.0 * ((double)(next_random(&seed) >> 11) / 9007199254740992.0) - 1.0));
        if (dtype == ZR_DTYPE_F32)
            ((float *)array.data)[i] = value;
        else
            ((zr_bf16_t *)array.data)[i] = zr_bf16_from_f32(value);
        array.ref[i] = value_at(&array, i);
    }
    return array;
}

void nn_array_free(nn_array_t *array) {
    free(array->data);
    free(array->ref);
    *array = (nn_array_t){0};
}

int32_t *nn_tokens_random(size_t n, size_t limit, uint64_t seed) {
    int32_t *tokens = malloc(n * sizeof(*tokens) + 1);
    assert_non_null(tokens);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(next_random(&seed) % limit);
    return tokens;
}

/* ---- workspaces ---------------------------------------------------------------------- */

zr_nn_workspace_t nn_workspace(size_t size_bytes) {
    zr_nn_workspace_t workspace = {NULL, size_bytes};
    if (size_bytes == 0)
        return workspace;
    size_t rounded = (size_bytes + GUARD_BYTES + 255) / 256 * 256;
    workspace.data = aligned_alloc(256, rounded);
    assert_non_null(workspace.data);
    memset(workspace.data, 0xff, rounded); /* NaN in every float dtype */
    return workspace;
}

void nn_workspace_free(zr_nn_workspace_t *workspace) {
    const unsigned char *bytes = workspace->data;
    for (size_t i = 0; bytes != NULL && i < GUARD_BYTES; i++)
        assert_int_equal(bytes[workspace->size_bytes + i], 0xff);
    free(workspace->data);
    *workspace = (zr_nn_workspace_t){0};
}

/* ---- comparisons ----------------------------------------------------------------------- */

void nn_assert_close(const char *what, const nn_array_t *array, double tolerance) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < array->n; i++) {
        double value = value_at(array, i), d = fabs(value - array->ref[i]);
        if (isnan(value))
            fail_msg("%s: element %zu of %zu is NaN, not %g", what, i, array->n, array->ref[i]);
        if (array->dtype == ZR_DTYPE_BF16) /* half a unit: at most 1/256 of the value */
            d = fmax(0.0, d - fabs(array->ref[i]) / 256.0);
        difference += d * d;
        norm += array->ref[i] * array->ref[i];
    }
    if (sqrt(difference) > tolerance * sqrt(norm))
        fail_msg("%s: off by %.3g of %.3g (relative %.3g, tolerated %.3g), %zu elements", what,
                 sqrt(difference), sqrt(norm), sqrt(difference / norm), tolerance, array->n);
}

void nn_assert_same(const char *what, const void *a, const void *b, size_t size_bytes) {
    if (memcmp(a, b, size_bytes) != 0)
        fail_msg("%s: %zu bytes differ", what, size_bytes);
}
