/*
 * config.json of models of Hugging Face: any text is refused with a reason, or is a shape.
 */
#include "models/shape.h"
#include "tests/fuzz/fuzz.h"

static void try_config(const char *text, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    zr_model_shape_t shape;
    zr_status_t status = zr_model_shape_read_config(text, n_bytes, "fuzz", &log, &shape);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT || status == ZR_ERR_UNSUPPORTED ||
                 status == ZR_ERR_ARGUMENT);
    FUZZ_REQUIRE((n_errors > 0) == (status != ZR_OK));
    if (status == ZR_OK)
        FUZZ_REQUIRE(zr_model_shape_check(&shape, &log) == ZR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    try_config((const char *)bytes, n_bytes);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed) {
    uint64_t state = seed;
    size_t n = 0;
    if (fuzz_random(&state) % 8 != 0)
        n = fuzz_mutate_json((char *)bytes, n_bytes, most_bytes, seed);
    return n > 0 ? n : LLVMFuzzerMutate(bytes, n_bytes, most_bytes);
}
