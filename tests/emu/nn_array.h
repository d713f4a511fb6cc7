/* Arrays on a device and their values for an oracle, for tests of the CUDA device's products. */
#ifndef ZR_TESTS_EMU_NN_ARRAY_H
#define ZR_TESTS_EMU_NN_ARRAY_H

#include "kernels/device_fixture.h"

typedef struct emu_array {
    void *data;  /* on the device, in the fixture's arena */
    double *ref; /* the same values */
    size_t n;
    zr_dtype_t dtype;
} emu_array_t;

/** Random values in [-scale, scale], the same for the same seed; `skip_bytes` as in fixture_take.
 */
emu_array_t emu_array_random(fixture_t *fixture, size_t n, zr_dtype_t dtype, double scale,
                             uint64_t seed, size_t skip_bytes);
void emu_array_free(emu_array_t *array);

/** ||data - ref|| / ||ref|| <= tolerance; an element of bf16 may also be off by `bf16_units`
 * halves of its last place. Waits for the stream. */
void emu_assert_close(fixture_t *fixture, const char *what, const emu_array_t *array,
                      double tolerance, int bf16_units);

#endif
