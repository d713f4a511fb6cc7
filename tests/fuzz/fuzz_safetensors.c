/*
 * Headers and indices of safetensors files: any text is parsed or refused with one reason, and in
 * what is accepted the tensors have all bytes behind the header, each of them once.
 */
#include <jansson.h>
#include <string.h>

#include "examples/weights/safetensors.h"
#include "tests/fuzz/fuzz.h"

/* As many bytes behind the header as it speaks of, so that it may be right. */
static uint64_t data_bytes_of(const char *text, size_t n_bytes) {
    const char *key;
    json_t *tensor, *root = json_loadb(text, n_bytes, 0, NULL);
    json_int_t most = 0;
    json_object_foreach(root, key, tensor) {
        json_int_t end =
            json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 1));
        most = end > most ? end : most;
    }
    json_decref(root);
    return (uint64_t)most;
}

static void ask(const safetensors_header_t *header, uint64_t data_bytes) {
    unsigned __int128 sum = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        const safetensors_tensor_t *t = &header->tensors[i];
        unsigned __int128 n_elems = 1;
        for (int d = 0; d < t->n_dims; d++)
            n_elems *= t->dims[d];
        FUZZ_REQUIRE(n_elems == t->n_elems && n_elems * t->type->size_bytes == t->size_bytes);
        FUZZ_REQUIRE((unsigned __int128)t->offset_bytes + t->size_bytes <= data_bytes);
        FUZZ_REQUIRE(i == 0 || strcmp(header->tensors[i - 1].name, t->name) < 0);
        FUZZ_REQUIRE(safetensors_find(header, t->name) == t);
        FUZZ_REQUIRE(t->n_dims >= 0 && t->n_dims <= SAFETENSORS_MAX_DIMS);
        for (const char *c = t->name; *c != '\0'; c++) /* messages show names */
            FUZZ_REQUIRE((unsigned char)*c >= 0x20 && *c != 0x7f);
        for (size_t k = 0; k < i && header->n_tensors <= 64; k++) {
            const safetensors_tensor_t *other = &header->tensors[k];
            FUZZ_REQUIRE(t->offset_bytes + t->size_bytes <= other->offset_bytes ||
                         other->offset_bytes + other->size_bytes <= t->offset_bytes);
        }
        sum += t->size_bytes;
    }
    FUZZ_REQUIRE(sum == data_bytes);
}

static void try_header(const char *text, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    safetensors_header_t header = {0};
    uint64_t data_bytes = data_bytes_of(text, n_bytes);
    zr_status_t status = safetensors_parse(text, n_bytes, data_bytes, "fuzz", &log, &header);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK)
        ask(&header, data_bytes);
    safetensors_clear(&header);
}

static void try_index(const char *text, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    safetensors_index_t index = {0};
    zr_status_t status = safetensors_index_parse(text, n_bytes, "fuzz", &log, &index);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    for (size_t i = 0; status == ZR_OK && i < index.n_files; i++)
        FUZZ_REQUIRE(strchr(index.files[i], '/') == NULL && index.files[i][0] != '\0' &&
                     index.files[i][0] != '.');
    FUZZ_REQUIRE(index.n_files <= SAFETENSORS_MAX_FILES);
    for (size_t i = 0; status == ZR_OK && i < index.n_entries; i++)
        FUZZ_REQUIRE(index.entries[i].file < index.n_files);
    safetensors_index_clear(&index);
}

/* The length that stands before a header, taken from these bytes. */
static void try_length(const char *text, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    size_t length = 0;
    if (n_bytes < SAFETENSORS_LENGTH_BYTES)
        return;
    zr_status_t status = safetensors_length(text, n_bytes, "fuzz", &log, &length);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK)
        FUZZ_REQUIRE(length <= n_bytes - SAFETENSORS_LENGTH_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    const char *text = (const char *)bytes;
    try_header(text, n_bytes);
    try_index(text, n_bytes);
    try_length(text, n_bytes);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed) {
    uint64_t state = seed;
    size_t n = fuzz_random(&state) % 8 != 0
                   ? fuzz_mutate_json((char *)bytes, n_bytes, most_bytes, seed)
                   : 0;
    return n > 0 ? n : LLVMFuzzerMutate(bytes, n_bytes, most_bytes);
}
