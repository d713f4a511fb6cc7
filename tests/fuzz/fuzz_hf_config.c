/*
 * config.json of models of Hugging Face: any text is refused with one reason, or is a shape.
 */
#include "examples/weights/shape.h"
#include "tests/fuzz/fuzz.h"

static void try_config(const char *text, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    zr_gpt_shape_t shape;
    zr_status_t status = shape_from_hf_config(text, n_bytes, "fuzz", &log, &shape);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK)
        FUZZ_REQUIRE(shape.n_layers > 0 && shape.heads > 0 && shape.channels % shape.heads == 0 &&
                     shape.channels > 0 && shape.seq > 0 && shape.vocab > 0);
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
