#include "tests/emu/nn_array.h"

#include <math.h>
#include <stdlib.h>

static double value_at(const void *data, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_F32 ? (double)((const float *)data)[i]
                                 : (double)zr_bf16_to_f32(((const zr_bf16_t *)data)[i]);
}

emu_array_t emu_array_random(fixture_t *fixture, size_t n, zr_dtype_t dtype, double scale,
                             uint64_t seed, size_t skip_bytes) {
    emu_array_t array = {.n = n, .dtype = dtype, .ref = malloc(n * sizeof(double) + 1)};
    void *values = malloc(n * sizeof(float) + 1);
    assert_non_null(array.ref);
    assert_non_null(values);
    fixture_random_values(values, dtype, n, (float)scale, &seed);
    for (size_t i = 0; i < n; i++)
        array.ref[i] = value_at(values, dtype, i);
    array.data = fixture_place(fixture, values, n * zr_dtype_size(dtype), skip_bytes);
    free(values);
    return array;
}

void emu_array_free(emu_array_t *array) {
    free(array->ref);
    *array = (emu_array_t){0};
}

void emu_assert_close(fixture_t *fixture, const char *what, const emu_array_t *array,
                      double tolerance, int bf16_units) {
    double difference = 0.0, norm = 0.0;
    void *values = malloc(array->n * sizeof(float) + 1);
    assert_non_null(values);
    fixture_download(fixture, values, array->data, array->n * zr_dtype_size(array->dtype));
    for (size_t i = 0; i < array->n; i++) {
        double value = value_at(values, array->dtype, i), d = fabs(value - array->ref[i]);
        if (isnan(value))
            fail_msg("%s: element %zu of %zu is NaN, not %g", what, i, array->n, array->ref[i]);
        if (array->dtype == ZR_DTYPE_BF16) /* half a unit: at most 1/256 of the value */
            d = fmax(0.0, d - bf16_units * fabs(array->ref[i]) / 256.0);
        difference += d * d;
        norm += array->ref[i] * array->ref[i];
    }
    free(values);
    if (sqrt(difference) > tolerance * sqrt(norm))
        fail_msg("%s: off by %.3g of %.3g (tolerated %.3g), %zu elements", what, sqrt(difference),
                 sqrt(norm), tolerance, array->n);
}
