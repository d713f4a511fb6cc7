/*
 * Prints a manifest: an object for each part, one key a line, and a checksum of the text at its
 * end.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store.h"
#include "zero/checkpoint/manifest_fields_internal.h"
#include "zero/comm/secret_internal.h"
#include "zero/zero.h"

/* ---- the checksum ---------------------------------------------------------------------------- */

#define N_DIGITS ((size_t)16)
#define BEFORE_BYTES (sizeof(ZR_MANIFEST_BEFORE_SUM) - 1)
#define BEHIND_BYTES (sizeof(ZR_MANIFEST_BEHIND_SUM) - 1)

/* Where the digits are, which everything before is hashed for; NULL: it does not end so. */
static const char *find_digits(const char *text, size_t n_bytes) {
    if (n_bytes < BEFORE_BYTES + N_DIGITS + BEHIND_BYTES)
        return NULL;
    const char *digits = text + n_bytes - BEHIND_BYTES - N_DIGITS;
    bool is_end = memcmp(digits - BEFORE_BYTES, ZR_MANIFEST_BEFORE_SUM, BEFORE_BYTES) == 0 &&
                  memcmp(digits + N_DIGITS, ZR_MANIFEST_BEHIND_SUM, BEHIND_BYTES) == 0;
    return is_end ? digits : NULL;
}

/* Before what ends every manifest stands, of a signed one, its signature. */
#define BEFORE_SIGNATURE "\"" ZR_MANIFEST_SIGNATURE "\": \""
#define BEHIND_SIGNATURE "\",\n " ZR_MANIFEST_BEFORE_SUM
#define SIGNATURE_PURPOSE "libzero checkpoint manifest"
enum { N_SIGNATURE_DIGITS = ZR_MANIFEST_SIGNATURE_DIGITS };
_Static_assert(N_SIGNATURE_DIGITS == 2 * ZR_SIGNATURE_BYTES, "two digits for a byte");

const char *zr_manifest_signature(const char *text, size_t n_bytes) {
    const char *sum = find_digits(text, n_bytes);
    size_t before = strlen(BEFORE_SIGNATURE), behind = strlen(BEHIND_SIGNATURE);
    if (sum == NULL || (size_t)(sum - text) < before + N_SIGNATURE_DIGITS + behind)
        return NULL;
    const char *digits = sum - behind - N_SIGNATURE_DIGITS;
    bool is_there = memcmp(digits - before, BEFORE_SIGNATURE, before) == 0 &&
                    memcmp(digits + N_SIGNATURE_DIGITS, BEHIND_SIGNATURE, behind) == 0;
    return is_there ? digits : NULL;
}

/* Of all before its digits. */
static void sign(const char *text, const char *digits, const zr_secret_t *secret,
                 char signature[N_SIGNATURE_DIGITS + 1]) {
    unsigned char bytes[ZR_SIGNATURE_BYTES];
    zr_secret_sign(secret, SIGNATURE_PURPOSE, text, (size_t)(digits - text), bytes);
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(signature + 2 * i, 3, "%02x", bytes[i]);
}

bool zr_manifest_is_signed(const char *text, size_t n_bytes, const zr_secret_t *secret) {
    char right[N_SIGNATURE_DIGITS + 1];
    const char *digits = zr_manifest_signature(text, n_bytes);
    if (digits == NULL)
        return false;
    sign(text, digits, secret, right);
    return zr_signatures_equal(digits, right, N_SIGNATURE_DIGITS);
}

static void print_sum(uint64_t sum, char digits[N_DIGITS + 1]) {
    snprintf(digits, N_DIGITS + 1, "%016" PRIx64, sum);
}

bool zr_manifest_seal(char *text, size_t n_bytes) {
    char digits[N_DIGITS + 1];
    const char *place = find_digits(text, n_bytes);
    if (place == NULL)
        return false;
    print_sum(zr_store_checksum(text, (size_t)(place - text)), digits);
    memcpy(text + (place - text), digits, N_DIGITS);
    return true;
}

bool zr_manifest_is_sealed(const char *text, size_t n_bytes) {
    char digits[N_DIGITS + 1];
    const char *place = find_digits(text, n_bytes);
    if (place == NULL)
        return false;
    print_sum(zr_store_checksum(text, (size_t)(place - text)), digits);
    return memcmp(place, digits, N_DIGITS) == 0;
}

/* ---- the parts ------------------------------------------------------------------------------- */

static json_t *print_shape(const zr_checkpoint_tensor_t *tensor) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->n_dims; i++)
        if (json_array_append_new(shape, json_integer((json_int_t)tensor->dims[i])) != 0) {
            json_decref(shape);
            return NULL;
        }
    return shape;
}

static json_t *print_value(const void *place, zr_manifest_type_t type) {
    char digits[N_DIGITS + 1];
    switch (type) {
    case ZR_MANIFEST_COUNT:
        return json_integer((json_int_t) * (const size_t *)place);
    case ZR_MANIFEST_INT:
        return json_integer(*(const int *)place);
    case ZR_MANIFEST_BOOL:
        return json_boolean(*(const bool *)place);
    case ZR_MANIFEST_DTYPE:
        return json_string(zr_dtype_name(*(const zr_dtype_t *)place));
    case ZR_MANIFEST_SUM:
        print_sum(*(const uint64_t *)place, digits);
        return json_string(digits);
    case ZR_MANIFEST_TEXT:
        return json_string(*(const char *const *)place);
    case ZR_MANIFEST_FILE:
        return json_string(place);
    case ZR_MANIFEST_ENCODING:
        return json_string((*(const zr_encoding_t *const *)place)->name);
    case ZR_MANIFEST_SHAPE:
        return print_shape(place);
    }
    return NULL;
}

static bool put_fields(json_t *object, const void *from, const zr_manifest_field_t *fields,
                       size_t n_fields) {
    int failed = 0;
    for (size_t i = 0; i < n_fields; i++)
        failed |=
            json_object_set_new(object, fields[i].name,
                                print_value((const char *)from + fields[i].offset, fields[i].type));
    return failed == 0;
}

static bool put_list(json_t *root, const zr_manifest_t *manifest, const zr_manifest_list_t *list) {
    json_t *items = json_array();
    const char *item = *(const char *const *)((const char *)manifest + list->items_offset);
    size_t n = *(const size_t *)((const char *)manifest + list->n_offset);
    if (json_object_set_new(root, list->name, items) != 0)
        return false;
    for (size_t i = 0; i < n; i++, item += list->item_bytes) {
        json_t *object = json_object();
        if (json_array_append_new(items, object) != 0 ||
            !put_fields(object, item, list->fields, list->n_fields))
            return false;
    }
    return true;
}

/* Until it is signed. */
static const char unsigned_digits[] =
    "0000000000000000000000000000000000000000000000000000000000000000";

/* What could not be made shows in the result of putting it. */
static bool put_all(json_t *root, const zr_manifest_t *manifest, json_t *trainer) {
    int failed = json_object_set_new(root, "format", json_string(ZR_MANIFEST_FORMAT));
    failed |= json_object_set_new(root, "version", json_integer(ZR_MANIFEST_VERSION));
    failed |= json_object_set_new(root, "library", json_string(zr_version()));
    if (failed != 0 || !put_fields(root, manifest, zr_manifest_numbers, ZR_N_MANIFEST_NUMBERS))
        return false;
    for (size_t i = 0; i < ZR_N_MANIFEST_LISTS; i++)
        if (!put_list(root, manifest, &zr_manifest_lists[i]))
            return false;
    if (manifest->optimizer != NULL &&
        (json_object_set_new(root, ZR_MANIFEST_OPTIMIZER, json_string(manifest->optimizer)) != 0 ||
         !put_list(root, manifest, &zr_manifest_arrays)))
        return false;
    if (manifest->messages != NULL &&
        json_object_set_new(root, ZR_MANIFEST_MESSAGES, json_string(manifest->messages)) != 0)
        return false;
    if (manifest->n_carried > 0 && !put_list(root, manifest, &zr_manifest_carried))
        return false;
    failed = json_object_set(root, "trainer", trainer);
    if (manifest->secret != NULL && manifest->secret->is_given)
        failed |= json_object_set_new(root, ZR_MANIFEST_SIGNATURE, json_string(unsigned_digits));
    failed |= json_object_set_new(root, "xxh3", json_string("0000000000000000"));
    return failed == 0;
}

/* jansson ends the text with the last brace. */
static char *print(const json_t *root, const zr_secret_t *secret) {
    char signature[N_SIGNATURE_DIGITS + 1];
    char *text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    size_t n_bytes = text != NULL ? strlen(text) : 0;
    char *longer = text != NULL ? realloc(text, n_bytes + 2) : NULL;
    if (longer == NULL) {
        free(text);
        return NULL;
    }
    memcpy(longer + n_bytes, "\n", 2);
    const char *digits = zr_manifest_signature(longer, n_bytes + 1);
    if (digits != NULL) {
        sign(longer, digits, secret, signature);
        memcpy(longer + (digits - longer), signature, N_SIGNATURE_DIGITS);
    }
    if (zr_manifest_seal(longer, n_bytes + 1))
        return longer;
    free(longer);
    return NULL;
}

zr_status_t zr_manifest_print(const zr_manifest_t *manifest, const char *where, const zr_log_t *log,
                              char **text_p) {
    json_error_t error;
    json_t *trainer = json_loads(manifest->trainer_json, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(trainer)) {
        json_decref(trainer);
        return zr_fail(log, ZR_ERR_FORMAT, "%s: trainer must be an object of JSON: %s", where,
                       trainer != NULL ? "it is not an object" : error.text);
    }
    json_t *root = json_object();
    char *text = put_all(root, manifest, trainer) ? print(root, manifest->secret) : NULL;
    json_decref(root);
    json_decref(trainer);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY,
                       "%s: no memory to write it, or a name in it that is not UTF-8", where);
    *text_p = text;
    return ZR_OK;
}
