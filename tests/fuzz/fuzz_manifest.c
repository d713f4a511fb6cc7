/*
 * Manifests of checkpoints: any text is parsed or refused with one reason, and what is accepted
 * keeps what zr_manifest_check promises, which is asked here in the plainest way: element by
 * element and pair by pair.
 */
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "zero/checkpoint/manifest_internal.h"

/* Asking all pairs takes quadratic time. */
#define MOST_ASKED 64

static bool has_elem(const zr_manifest_extent_t *e, const zr_manifest_tensor_t *t, size_t elem) {
    return e->unit == t->unit && e->frozen == t->tensor.frozen && e->first <= elem &&
           elem - e->first < e->n_elems;
}

static void ask_elem(const zr_manifest_t *m, const zr_manifest_tensor_t *t, size_t elem) {
    size_t n_found = 0;
    for (size_t i = 0; i < m->n_extents; i++) {
        const zr_manifest_extent_t *e = &m->extents[i];
        bool is_found = has_elem(e, t, t->offset_elems + elem);
        FUZZ_REQUIRE(!is_found || t->tensor.has_moments == (e->n_arrays > 1));
        n_found += is_found;
    }
    FUZZ_REQUIRE(n_found == 1);
}

static void ask_tensor(const zr_manifest_t *m, const zr_manifest_tensor_t *t) {
    size_t n = t->tensor.n_elems;
    FUZZ_REQUIRE(t->unit < m->n_units && t->tensor.unit == m->units[t->unit]);
    for (size_t i = 0; i < n; i += n / 16 + 1)
        ask_elem(m, t, i);
    if (n > 0)
        ask_elem(m, t, n - 1);
}

static void ask_pair(const zr_manifest_t *m, const zr_manifest_extent_t *a,
                     const zr_manifest_extent_t *b) {
    unsigned __int128 end_a = (unsigned __int128)a->offset_bytes + zr_manifest_extent_bytes(m, a);
    unsigned __int128 end_b = (unsigned __int128)b->offset_bytes + zr_manifest_extent_bytes(m, b);
    if (a->file == b->file)
        FUZZ_REQUIRE(end_a <= b->offset_bytes || end_b <= a->offset_bytes);
    if (a->unit == b->unit && a->frozen == b->frozen)
        FUZZ_REQUIRE(a->first + a->n_elems <= b->first || b->first + b->n_elems <= a->first);
}

static void ask_extent(const zr_manifest_t *m, const zr_manifest_extent_t *e) {
    unsigned __int128 n_bytes = 0;
    for (int i = 0; i < e->n_arrays; i++)
        n_bytes +=
            (unsigned __int128)e->n_elems * zr_manifest_encoding(m, e, (size_t)i)->block_bytes;
    FUZZ_REQUIRE(e->file < m->n_files && e->n_elems > 0 && e->group_elems > 0);
    const zr_manifest_file_t *file = &m->files[e->file];
    FUZZ_REQUIRE(n_bytes > 0 && e->offset_bytes + n_bytes <= file->data_bytes);
    FUZZ_REQUIRE(e->first_chunk + (n_bytes + file->chunk_bytes - 1) / file->chunk_bytes <=
                 file->n_chunks);
    FUZZ_REQUIRE(strchr(file->data, '/') == NULL && file->data[0] != '.');
    FUZZ_REQUIRE(strchr(file->sums, '/') == NULL && file->sums[0] != '.');
}

static void ask(const zr_manifest_t *m) {
    for (size_t i = 0; i < m->n_extents; i++)
        ask_extent(m, &m->extents[i]);
    for (size_t i = 0; i < m->n_extents && m->n_extents <= MOST_ASKED; i++)
        for (size_t k = 0; k < i; k++)
            ask_pair(m, &m->extents[i], &m->extents[k]);
    for (size_t i = 0; i < m->n_tensors && m->n_tensors <= MOST_ASKED; i++)
        ask_tensor(m, &m->tensors[i]);
}

static const zr_secret_t secret = {.is_given = true, .key = "a"};
static const zr_secret_t other_secret = {.is_given = true, .key = "b"};

/* What is accepted can be signed, and is signed then with this secret and no other. */
static void ask_signed(zr_manifest_t *m) {
    char *text = NULL;
    zr_manifest_t second = {0};
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    m->secret = &secret;
    FUZZ_REQUIRE(zr_manifest_print(m, "fuzz", &log, &text) == ZR_OK);
    size_t n_bytes = strlen(text);
    FUZZ_REQUIRE(zr_manifest_is_signed(text, n_bytes, &secret));
    FUZZ_REQUIRE(!zr_manifest_is_signed(text, n_bytes, &other_secret));
    FUZZ_REQUIRE(zr_manifest_parse(text, n_bytes, "fuzz", &log, &second) == ZR_OK);
    FUZZ_REQUIRE(second.is_signed && n_errors == 0);
    m->secret = NULL;
    zr_manifest_clear(&second);
    free(text);
}

/* What is accepted can be printed, and what is printed is accepted and the same. */
static void ask_again(const zr_manifest_t *m) {
    char *text = NULL, *again = NULL;
    zr_manifest_t second = {0};
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    FUZZ_REQUIRE(zr_manifest_print(m, "fuzz", &log, &text) == ZR_OK);
    FUZZ_REQUIRE(zr_manifest_parse(text, strlen(text), "fuzz", &log, &second) == ZR_OK);
    FUZZ_REQUIRE(zr_manifest_print(&second, "fuzz", &log, &again) == ZR_OK);
    FUZZ_REQUIRE(strcmp(text, again) == 0 && n_errors == 0);
    zr_manifest_clear(&second);
    free(text);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes) {
    int n_errors;
    zr_log_t log = fuzz_log(&n_errors);
    zr_manifest_t manifest = {0};
    char *text = malloc(n_bytes + 1);
    FUZZ_REQUIRE(text != NULL);
    if (n_bytes > 0)
        memcpy(text, bytes, n_bytes);
    text[n_bytes] = '\0';
    zr_status_t status = zr_manifest_parse(text, n_bytes, "fuzz", &log, &manifest);
    bool is_signed = zr_manifest_is_signed(text, n_bytes, &secret);
    FUZZ_REQUIRE(!is_signed || status != ZR_OK || manifest.is_signed);
    FUZZ_REQUIRE(!is_signed || !zr_manifest_is_signed(text, n_bytes, &other_secret));
    free(text);
    FUZZ_REQUIRE(status == ZR_OK || status == ZR_ERR_FORMAT);
    FUZZ_REQUIRE(n_errors == (status != ZR_OK));
    if (status == ZR_OK) {
        ask(&manifest);
        ask_again(&manifest);
        ask_signed(&manifest);
    }
    zr_manifest_clear(&manifest);
    return 0;
}

/* Mostly as JSON, and mostly with the checksum that belongs to it. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed) {
    uint64_t state = seed;
    size_t n = 0;
    if (fuzz_random(&state) % 8 != 0 && most_bytes > 0)
        n = fuzz_mutate_json((char *)bytes, n_bytes, most_bytes - 1, seed);
    if (n > 0)
        bytes[n++] = '\n';
    else
        n = LLVMFuzzerMutate(bytes, n_bytes, most_bytes);
    if (fuzz_random(&state) % 16 != 0)
        (void)zr_manifest_seal((char *)bytes, n);
    return n;
}
