/*
 * Files that come with a model's weights: tokenizers, and how its files had them. An input's first
 * byte says which; any text behind it is refused with one reason, or is what it promises: asked
 * here of a tokenizer's ids by a second walk, and of an origin by printing it again.
 */
#include <jansson.h>
#include <string.h>

#include "examples/weights/carry.h"
#include "examples/weights/origin.h"
#include "tests/fuzz/fuzz.h"

#define VOCAB 11

static void ask_id(const json_t *id) {
    FUZZ_REQUIRE(json_is_number(id) && json_number_value(id) >= 0 && json_number_value(id) < VOCAB);
}

static void ask_map(json_t *map) {
    for (void *at = json_object_iter(map); at != NULL; at = json_object_iter_next(map, at))
        ask_id(json_object_iter_value(at));
}

static void ask_tokenizer(const char *name, const char *text, size_t n_bytes) {
    json_t *root = json_loadb(text, n_bytes, JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    FUZZ_REQUIRE(root != NULL);
    if (strcmp(name, "vocab.json") == 0) {
        ask_map(root);
    } else if (strcmp(name, "tokenizer.json") == 0) {
        json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
        const json_t *added = json_object_get(root, "added_tokens");
        ask_map(vocab);
        FUZZ_REQUIRE(json_array_size(vocab) <= VOCAB);
        for (size_t i = 0; i < json_array_size(added); i++)
            ask_id(json_object_get(json_array_get(added, i), "id"));
    }
    json_decref(root);
}

static void try_tokenizer(const char *name, const char *text, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    zr_status_t status = carry_check_text(name, text, n_bytes, VOCAB, "fuzz", &log);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK)
        ask_tokenizer(name, text, n_bytes);
}

/* In the plainest way: how often a piece begins, of those that lie one behind the other. */
static void try_pieces(const char *bytes, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    zr_status_t status = carry_check_text("tokenizer.model", bytes, n_bytes, VOCAB, "fuzz", &log);
    size_t n = 0, at = 0;
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    for (; at + 1 < n_bytes && bytes[at] == '\n' && bytes[at + 1] >= 0; n++)
        at += 2 + (size_t)bytes[at + 1];
    FUZZ_REQUIRE(status != ZR_OK || n <= VOCAB);
    FUZZ_REQUIRE(at != n_bytes || n == 0 || (status == ZR_OK) == (n <= VOCAB));
}

static void ask_origin(const weights_t *weights, const zr_log_t *log) {
    weights_t again = {.tensors = weights->tensors};
    char *text;
    FUZZ_REQUIRE(origin_print(weights, log, &text) == ZR_OK);
    FUZZ_REQUIRE(origin_parse(text, strlen(text), "fuzz", log, &again) == ZR_OK);
    FUZZ_REQUIRE(again.origin.has_prefix == weights->origin.has_prefix);
    FUZZ_REQUIRE(again.origin.is_bare == weights->origin.is_bare);
    FUZZ_REQUIRE(again.origin.has_head == weights->origin.has_head);
    FUZZ_REQUIRE(memcmp(again.origin.kinds, weights->origin.kinds,
                        weights->tensors.n * sizeof(*again.origin.kinds)) == 0);
    free(again.origin.kinds);
    free(text);
}

static void try_origin(const char *text, size_t n_bytes) {
    static weights_t weights;
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    if (weights.tensors.n == 0) {
        FUZZ_REQUIRE(zr_model_shape_read("layers=1,channels=4,heads=2,seq=3,vocab=11", &log,
                                         &weights.shape) == ZR_OK);
        FUZZ_REQUIRE(weights_list_tensors(&weights, &log) == ZR_OK);
    }
    zr_status_t status = origin_parse(text, n_bytes, "fuzz", &log, &weights);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK) {
        ask_origin(&weights, &log);
        free(weights.origin.kinds);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    const char *text = (const char *)bytes + 1;
    if (n_bytes == 0)
        return 0;
    if (bytes[0] == 'S') { /* of SentencePiece */
        try_pieces(text, n_bytes - 1);
        return 0;
    }
    switch (bytes[0] % 4) {
    case 0:
        try_tokenizer("tokenizer.json", text, n_bytes - 1);
        break;
    case 1:
        try_tokenizer("vocab.json", text, n_bytes - 1);
        break;
    case 2:
        try_tokenizer("tokenizer_config.json", text, n_bytes - 1);
        break;
    default:
        try_origin(text, n_bytes - 1);
    }
    return 0;
}

/* Mostly as JSON. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed) {
    uint64_t state = seed;
    size_t n = 0;
    if (n_bytes > 1 && fuzz_random(&state) % 8 != 0)
        n = fuzz_mutate_json((char *)bytes + 1, n_bytes - 1, most_bytes - 1, seed);
    return n > 0 ? n + 1 : LLVMFuzzerMutate(bytes, n_bytes, most_bytes);
}
