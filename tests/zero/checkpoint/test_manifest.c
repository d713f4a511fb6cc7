/*
 * Manifests: what is written is read back as it was, and of each thing that may be wrong the reason
 * is said, whatever it is: hostile ones neither crash nor take time or memory beyond their size.
 */
#include "tests/common/test.h"
#include "tests/zero/checkpoint/sample.h"

static zr_status_t parse(const char *text, size_t n_bytes, kept_log_t *kept) {
    zr_log_t log = kept_log(kept, ZR_LOG_INFO);
    zr_manifest_t manifest = {0};
    char *copy = malloc(n_bytes + 1); /* exactly so large, for AddressSanitizer */
    assert_non_null(copy);
    memcpy(copy, text, n_bytes);
    copy[n_bytes] = '\0';
    zr_status_t status = zr_manifest_parse(copy, n_bytes, "sample", &log, &manifest);
    free(copy);
    zr_manifest_clear(&manifest);
    return status;
}

static void expect(const char *what, zr_status_t status, const kept_log_t *kept, const char *part) {
    if (status != ZR_ERR_FORMAT || kept->n_messages != 1 || strstr(kept->text, part) == NULL)
        fail_msg("%s: %s, %d messages instead of one with \"%s\": %s", what, zr_status_name(status),
                 kept->n_messages, part, kept->text);
}

TEST(test_round_trip) {
    zr_manifest_t written = sample_manifest(), read = {0};
    char *text = NULL, *again = NULL;
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    assert_ok(zr_manifest_print(&written, "sample", &log, &text));
    assert_ok(zr_manifest_parse(text, strlen(text), "sample", &log, &read));
    assert_int_equal(kept.n_messages, 0);
    assert_int_equal(read.step, 60);
    assert_int_equal(read.n_updates, 59);
    assert_int_equal(read.n_ranks, 2);
    assert_int_equal(read.stage, 3);
    assert_int_equal(read.dtype, ZR_DTYPE_BF16);
    assert_string_equal(read.trainer_json, written.trainer_json);
    for (size_t i = 0; i < read.n_tensors; i++) {
        const zr_manifest_tensor_t *a = &written.tensors[i], *b = &read.tensors[i];
        assert_string_equal(a->tensor.name, b->tensor.name);
        assert_string_equal(b->tensor.unit, written.units[a->unit]);
        assert_int_equal(a->tensor.n_dims, b->tensor.n_dims);
        assert_memory_equal(a->tensor.dims, b->tensor.dims, sizeof(a->tensor.dims));
        assert_int_equal(a->tensor.n_elems, b->tensor.n_elems);
        assert_int_equal(a->tensor.frozen, b->tensor.frozen);
        assert_int_equal(b->tensor.has_moments, !b->tensor.frozen);
        assert_int_equal(a->offset_elems, b->offset_elems);
    }
    assert_memory_equal(read.files, written.files, read.n_files * sizeof(*read.files));
    assert_int_equal(read.n_extents, 4);
    for (size_t i = 0; i < read.n_extents; i++) {
        const zr_manifest_extent_t *a = &written.extents[i], *b = &read.extents[i];
        assert_true(a->unit == b->unit && a->frozen == b->frozen && a->first == b->first);
        assert_true(a->n_elems == b->n_elems && a->group_elems == b->group_elems);
        assert_true(a->n_arrays == b->n_arrays && a->dtype == b->dtype && a->file == b->file);
        assert_true(a->offset_bytes == b->offset_bytes && a->first_chunk == b->first_chunk);
        assert_true(a->xxh3 == b->xxh3);
    }
    assert_int_equal(read.n_carried, 1);
    assert_memory_equal(read.carried, written.carried, sizeof(*read.carried));
    assert_ok(zr_manifest_print(&read, "sample", &log, &again));
    assert_string_equal(text, again);
    free(text);
    free(again);
    zr_manifest_clear(&written);
    zr_manifest_clear(&read);
}

/* No byte of the text can be left out or changed. */
TEST(test_every_byte_counts) {
    char *text = sample_text();
    size_t n_bytes = strlen(text);
    kept_log_t kept;
    for (size_t i = 0; i < n_bytes; i++) {
        if (parse(text, i, &kept) != ZR_ERR_FORMAT || kept.n_messages != 1)
            fail_msg("cut at %zu: %s", i, kept.text);
        text[i] ^= 1;
        if (parse(text, n_bytes, &kept) != ZR_ERR_FORMAT || kept.n_messages != 1)
            fail_msg("changed at %zu: %s", i, kept.text);
        text[i] ^= 1;
    }
    expect("cut", parse(text, n_bytes / 2, &kept), &kept, "the file is truncated");
    free(text);
}

/* ---- signatures ---- */

static const zr_secret_t secret = {.is_given = true, .key = "the run's"};
static const zr_secret_t other_secret = {.is_given = true, .key = "another's"};

static char *signed_text(void) {
    zr_manifest_t manifest = sample_manifest();
    char *text = NULL;
    manifest.secret = &secret;
    assert_ok(zr_manifest_print(&manifest, "sample", NULL, &text));
    zr_manifest_clear(&manifest);
    return text;
}

/* Whoever changes a byte can set the checksum right, and not the signature. */
TEST(test_a_signature_is_of_every_byte) {
    char *text = signed_text();
    size_t n_bytes = strlen(text);
    assert_true(zr_manifest_is_signed(text, n_bytes, &secret));
    assert_false(zr_manifest_is_signed(text, n_bytes, &other_secret));
    size_t n_signed = (size_t)(zr_manifest_signature(text, n_bytes) - text) + 64;
    for (size_t i = 0; i < n_signed; i++) {
        text[i] ^= 1;
        assert_true(zr_manifest_seal(text, n_bytes));
        if (zr_manifest_is_signed(text, n_bytes, &secret))
            fail_msg("changed at %zu", i);
        text[i] ^= 1;
    }
    assert_true(zr_manifest_seal(text, n_bytes));
    assert_true(zr_manifest_is_signed(text, n_bytes, &secret));
    free(text);
    text = sample_text();
    assert_false(zr_manifest_is_signed(text, strlen(text), &secret));
    free(text);
}

/* It is read as what it is: 64 digits at its place, or the manifest is refused. */
TEST(test_a_signature_has_its_place) {
    static const char *const others[] = {
        "\"\"",
        "\"0123\"",
        "7",
        "null",
        "\"000000000000000000000000000000000000000000000000000000000000000G\"",
        "\"00000000000000000000000000000000000000000000000000000000000000000\""};
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    zr_manifest_t read = {0};
    char *text = signed_text();
    assert_ok(zr_manifest_parse(text, strlen(text), "sample", &log, &read));
    assert_true(read.is_signed);
    zr_manifest_clear(&read);
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    assert_ok(sample_parse(root, &kept));
    for (size_t i = 0; i < N_OF(others); i++) {
        json_object_set_new(root, "signature", json_loads(others[i], JSON_DECODE_ANY, NULL));
        expect(others[i], sample_parse(root, &kept), &kept, "signature must be a text of 64");
    }
    json_decref(root);
    root = sample_json(); /* and not the last */
    json_object_set_new(root, "signature",
                        json_string("00000000000000000000000000000000"
                                    "00000000000000000000000000000000"));
    assert_ok(sample_parse(root, &kept));
    json_object_del(root, "trainer");
    json_object_set_new(root, "trainer", json_object());
    expect("before trainer", sample_parse(root, &kept), &kept, "signature must be a text of 64");
    json_decref(root);
}

/* ---- what is wrong with one value ---- */

/* A value of the sample, at a path such as "extents.1.first", and what is said of it. */
typedef struct wrong {
    const char *path;
    const char *json; /* the value; NULL: it is left out */
    const char *said;
} wrong_t;

static const wrong_t wrongs[] = {
    {"format", "\"safetensors\"", "it is not a manifest"},
    {"version", "2", "it is of version 2; this library reads version 1"},
    {"version", "1.0", "no \"version\", which is a whole number"},
    {"version", NULL, "no \"version\""},
    {"library", NULL, "library is missing"},
    {"stepp", "1", "no key \"stepp\"; is it \"step\"?"},
    {"quite_different", "1", "no key \"quite_different\"\n"},
    {"a\\u0007b", "1", "no key \"a?b\""},
    {"step", NULL, "step is missing"},
    {"step", "-1", "step is negative"},
    {"step", "60.0", "step is a number with a point"},
    {"step", "\"60\"", "step is a text"},
    {"step", "true", "step is true"},
    {"step", "null", "step is null"},
    {"step", "58", "59 updates in 58 steps"},
    {"ranks", "0", "ranks is 0"},
    {"ranks", "65537", "ranks is 65537"},
    {"ranks", "4294967298", "ranks is 4294967298; at most 2147483647"},
    {"stage", "4", "stage is 4"},
    {"dtype", "\"fp16\"", "dtype is \"fp16\""},
    {"dtype", "1", "dtype is a whole number"},
    {"trainer", "[]", "trainer is missing, or is not an object"},
    {"trainer", NULL, "trainer is missing"},
    {"units", NULL, "units is missing"},
    {"units", "{}", "units is an object"},
    {"units.0", "[]", "units[0] is a list, and must be an object"},
    {"units.0.name", "\"\"", "units[0] has no name"},
    {"units.0.name", "\"h.0\"", "two units \"h.0\""},
    {"units.0.name", "\"a\\nb\"", "units[0] has a control character, 10"},
    {"tensors.1.name", "\"wte\"", "two tensors \"wte\""},
    {"tensors.1.name", "\"\\u001b[2J\"", "tensors[1] has a control character, 27"},
    {"tensors.1.unit", "2", "tensors[1].unit is 2, and there are 2 units"},
    {"tensors.1.shape", "[1,1,1,1,64]", "tensors[1].shape is a list, and must be a list of at"},
    {"tensors.1.shape", "[64.5]", "tensors[1].shape is a number with a point"},
    {"tensors.1.shape", "[-64]", "tensors[1].shape is negative"},
    {"tensors.1.shape", "[4503599627370496,4096]",
     "tensors[1].shape has more than 4503599627370496"},
    {"tensors.1.shape", "[9007199254740992]", "at most 4503599627370496"},
    {"tensors.1.offset", "9223372036854775807", "tensors[1].offset is 9223372036854775807"},
    {"tensors.1.offset", "1", "element 63 of tensor \"h.0.weight\" is in no extent"},
    {"tensors.1.frozen", "0", "tensors[1].frozen is a whole number"},
    {"tensors.1.frozen", "true", "tensors \"h.0.weight\" and \"h.0.mask\" share elements"},
    {"tensors.2.offset", "32", "element 0 of tensor \"h.0.mask\" is in no extent"},
    {"tensors.0.unit", "1", "tensors \"wte\" and \"h.0.weight\" share elements of unit \"h.0\""},
    {"tensors.0.shap", "[]", "no key \"tensors[0].shap\"; is it \"shape\"?"},
    {"files.0.data", "\"../rank-00000.data\"", "files[0].data is not a name of a file"},
    {"files.0.data", "\"a/b\"", "files[0].data is not a name of a file"},
    {"files.0.data", "\".hidden\"", "files[0].data is not a name of a file"},
    {"files.0.data", "\"\"", "files[0].data is not a name of a file"},
    {"files.0.sums", "\"a b\"", "files[0].sums is not a name of a file"},
    {"files.0.sums", "\"\xc3\xa4\"", "files[0].sums is not a name of a file"},
    {"files.0.sums", "\"0123456789012345678901234567890123456789012345678901234567890123\"",
     "files[0].sums is a text, and must be a text of at most 63"},
    {"files.0.sums", "\"rank-00000.data\"", "two files \"rank-00000.data\""},
    {"files.1.data", "\"rank-00000.data\"", "two files \"rank-00000.data\""},
    {"files.1.data", "\"manifest.json\"", "two files \"manifest.json\""},
    {"files.0.chunk_bytes", "0", "files[0].chunk_bytes is 0"},
    {"files.0.chunk_bytes", "4097", "files[0].chunk_bytes is 4097"},
    {"files.0.chunk_bytes", "1073745920", "files[0].chunk_bytes is 1073745920"},
    {"files.0.n_chunks", "5", "files[0].n_chunks is 5, and its extents have 4"},
    {"files.0.n_chunks", "3", "1 chunk from 3 on, and rank-00000.sums 3"},
    {"files.0.n_chunks", "9000000000000000000", "files[0] has 9000000000000000000 chunks in 8192"},
    {"files.0.data_bytes", "6144", "extents[1] has 384 bytes at offset 6144"},
    {"files.0.data_bytes", "18446744073709551615", "too big integer"},
    {"extents.1.unit", "2", "extents[1].unit is 2"},
    {"extents.1.file", "2", "extents[1].file is 2"},
    {"extents.1.n_elems", "0", "extents[1] has 0 elements"},
    {"extents.1.n_elems", "9223372036854775807", "extents[1] has 9223372036854775807 elements"},
    {"extents.1.n_elems", "1000000000000", "extents[1] has 12000000000000 bytes at offset 6144"},
    {"extents.1.n_elems", "33", "extents[1] and extents[2] share trainable elements of unit"},
    {"extents.1.n_elems", "31", "element 31 of tensor \"h.0.weight\" is in no extent"},
    {"extents.1.first", "9223372036854775807",
     "extents[1] has 32 elements from 9223372036854775807"},
    {"extents.1.first", "64", "element 0 of tensor \"h.0.weight\" is in no extent"},
    {"extents.1.group_elems", "0", "extents[1].group_elems is 0"},
    {"extents.1.n_arrays", "2", "extents[1].n_arrays is 2"},
    {"extents.1.n_arrays", "1", "in two forms: 1 array of fp32, and 3 of fp32"},
    {"extents.3.n_arrays", "3", "extents[3].n_arrays is 3"},
    {"extents.1.dtype", "\"bf16\"", "extents[1].dtype is bf16"},
    {"extents.1.offset_bytes", "9223372036854775807", "extents[1] has 384 bytes at offset 92233"},
    {"extents.1.offset_bytes", "6143", "extents[0] and extents[1] share bytes of rank-00000.data"},
    {"extents.1.first_chunk", "1", "extents[1].first_chunk is 1; the next chunk of rank-0"},
    {"extents.1.first_chunk", "9223372036854775807", "1 chunk from 9223372036854775807 on"},
    {"extents.1.xxh3", "\"0123456789ABCDEF\"", "extents[1].xxh3 is a text, and must be a text of"},
    {"extents.1.xxh3", "7", "extents[1].xxh3 is a whole number"},
    {"carried", "{}", "carried is an object"},
    {"carried.0.name", "\"../x\"", "carried[0].name is not a name of a file to carry along"},
    {"carried.0.name", "\".x\"", "carried[0].name is not a name of a file to carry along"},
    {"carried.0.name", "\"rank-00007.data\"", "carried[0].name is not a name of a file to carry"},
    {"carried.0.name", "\"manifest.json\"", "carried[0].name is not a name of a file to carry"},
    {"carried.0.bytes", "1073741825", "carried[0] has 1073741825 bytes; at most 1073741824"},
    {"carried.0.bytes", "-1", "carried[0].bytes is negative"},
    {"carried.0.sum", "\"0\"", "there is no key \"carried[0].sum\""},
    {"extents.1.frist", "7", "no key \"extents[1].frist\"; is it \"first\"?"},
    {"extents.1.first", NULL, "extents[1].first is missing"},
};

/* The object that a path's last part is in, and that part. */
static json_t *parent_of(json_t *root, const char *path, char last[64]) {
    char copy[128], *part, *next;
    snprintf(copy, sizeof(copy), "%s", path);
    part = strtok(copy, ".");
    while ((next = strtok(NULL, ".")) != NULL) {
        root = json_is_array(root) ? json_array_get(root, (size_t)atoi(part))
                                   : json_object_get(root, part);
        assert_non_null(root);
        part = next;
    }
    snprintf(last, 64, "%s", part);
    return root;
}

/* A text instead of a value, so that it may be one that jansson does not make. */
static char *text_with(const wrong_t *wrong) {
    json_t *root = sample_json();
    char last[64];
    json_t *parent = parent_of(root, wrong->path, last);
    if (wrong->json == NULL)
        assert_int_equal(json_object_del(parent, last), 0);
    else if (json_is_array(parent))
        json_array_set_new(parent, (size_t)atoi(last), json_string("<here>"));
    else
        json_object_set_new(parent, strchr(last, '\\') ? "<key>" : last, json_string("<here>"));
    char *text = sample_seal(root), *result = NULL;
    json_decref(root);
    char *here = strstr(text, "\"<here>\""), *key = strstr(text, "<key>");
    if (here == NULL)
        return text;
    if (key == NULL)
        key = here;
    int n = asprintf(&result, "%.*s%s%.*s%s%s", (int)(key - text), text, key == here ? "" : last,
                     (int)(here - key - (key == here ? 0 : 5)), key + (key == here ? 0 : 5),
                     wrong->json, here + strlen("\"<here>\""));
    assert_true(n > 0 && zr_manifest_seal(result, (size_t)n));
    free(text);
    return result;
}

TEST(test_carried_files) {
    zr_manifest_t m = sample_manifest();
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    m.carried = realloc(m.carried, 65 * sizeof(*m.carried));
    assert_non_null(m.carried);
    m.n_carried = 2;
    m.carried[1] = m.carried[0];
    expect("twice", zr_manifest_check(&m, "sample", &log), &kept, "two files \"tokenizer.json\"");
    m.n_carried = 65;
    log = kept_log(&kept, ZR_LOG_INFO);
    expect("too many", zr_manifest_check(&m, "sample", &log), &kept, "carried has 65 files");
    zr_manifest_clear(&m);
}

TEST(test_wrong_values) {
    for (size_t i = 0; i < N_OF(wrongs); i++) {
        char *text = text_with(&wrongs[i]), what[256];
        kept_log_t kept;
        zr_status_t status = parse(text, strlen(text), &kept);
        snprintf(what, sizeof(what), "%s: %s", wrongs[i].path,
                 wrongs[i].json != NULL ? wrongs[i].json : "left out");
        expect(what, status, &kept, wrongs[i].said);
        free(text);
    }
}

/* What is changed by hand is refused, and so is another end. */
TEST(test_seal) {
    char *text = sample_text(), *place = strstr(text, "\"step\": 60");
    kept_log_t kept;
    place[9] = '2';
    expect("another step", parse(text, strlen(text), &kept), &kept, "it was changed");
    place[9] = '0';
    assert_ok(parse(text, strlen(text), &kept));
    text[strlen(text) - 1] = ' ';
    expect("another end", parse(text, strlen(text), &kept), &kept, "it was changed");
    free(text);
}

TEST(test_no_manifest) {
    kept_log_t kept;
    expect("nothing", parse("", 0, &kept), &kept, "line 1, column 0");
    expect("a list", parse("[]", 2, &kept), &kept, "it is not an object");
    expect("a number", parse("1", 1, &kept), &kept, "'[' or '{' expected");
    expect("an object", parse("{}", 2, &kept), &kept, "it is not a manifest");
    expect("zeros", parse("\0\0\0", 3, &kept), &kept, "its byte 0 is 0");
    expect("a zero that jansson passes over", parse("{\"a\": 1\0}", 10, &kept), &kept,
           "its byte 7 is 0");
    expect("a key twice", parse("{\"a\":1,\"a\":2}", 13, &kept), &kept, "duplicate object key");
    expect("no UTF-8", parse("{\"\xff\":1}", 7, &kept), &kept, "unable to decode byte 0xff");
    expect("a zero in a name", parse("{\"a\\u0000b\":1}", 14, &kept), &kept,
           "NUL byte in object key");
}

/* ---- large ones ---- */

/* Refused by looking through, before anything is made of them. */
TEST(test_greedy) {
    kept_log_t kept;
    size_t n_bytes = 1 << 20;
    char *text = malloc(n_bytes);
    assert_non_null(text);
    memset(text, '[', n_bytes);
    expect("deep", parse(text, n_bytes, &kept), &kept, "65 deep at byte 64");
    for (size_t i = 0; i + 3 <= n_bytes; i += 3)
        memcpy(text + i, "{},", 3);
    text[0] = '[';
    expect("many objects", parse(text, n_bytes, &kept), &kept,
           "objects and lists in 1048576 bytes");
    memset(text, '"', n_bytes);
    assert_int_equal(parse(text, n_bytes, &kept), ZR_ERR_FORMAT);
    free(text);
    assert_int_equal(zr_manifest_parse("", ZR_MANIFEST_MAX_BYTES + 1, "sample", NULL, NULL),
                     ZR_ERR_FORMAT);
}

/* Neither the number of parts nor their order matters much: 60,000 extents of one row, backwards,
 * with as many tensors, in a file each. A check of pairs would take minutes. */
#if defined(__SANITIZE_ADDRESS__)
#define N_MANY ((size_t)6000)
#else
#define N_MANY ((size_t)60000)
#endif

static zr_manifest_t make_many(void) {
    zr_manifest_t m = {.step = 1, .n_updates = 1, .n_ranks = 1, .trainer_json = strdup("{}")};
    m.n_units = 1;
    m.n_tensors = m.n_files = m.n_extents = N_MANY;
    m.units = calloc(1, sizeof(*m.units));
    m.tensors = calloc(N_MANY, sizeof(*m.tensors));
    m.files = calloc(N_MANY, sizeof(*m.files));
    m.extents = calloc(N_MANY, sizeof(*m.extents));
    assert_true(m.units != NULL && m.tensors != NULL && m.files != NULL && m.extents != NULL);
    m.units[0] = strdup("all");
    for (size_t i = 0; i < N_MANY; i++) {
        char *name = NULL;
        assert_true(asprintf(&name, "%0100zu", i) > 0);
        m.tensors[i] =
            (zr_manifest_tensor_t){.tensor = {.name = name, .n_dims = 1, .dims = {8}, .n_elems = 8},
                                   .offset_elems = 8 * i};
        m.files[i] = (zr_manifest_file_t){.data_bytes = 32, .chunk_bytes = 4096, .n_chunks = 1};
        snprintf(m.files[i].data, sizeof(m.files[i].data), "%zu.data", i);
        snprintf(m.files[i].sums, sizeof(m.files[i].sums), "%zu.sums", i);
        m.extents[i] = (zr_manifest_extent_t){.first = 8 * (N_MANY - 1 - i),
                                              .n_elems = 8,
                                              .group_elems = 8,
                                              .n_arrays = 1,
                                              .file = i};
    }
    return m;
}

TEST(test_many) {
    zr_manifest_t many = make_many(), read = {0};
    char *text = NULL;
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    assert_ok(zr_manifest_check(&many, "many", &log));
    assert_ok(zr_manifest_print(&many, "many", &log, &text));
    assert_ok(zr_manifest_parse(text, strlen(text), "many", &log, &read));
    assert_int_equal(read.n_extents, N_MANY);
    assert_false(read.tensors[0].tensor.has_moments);
    free(text);
    many.extents[N_MANY / 2].n_elems++;
    expect("one of many is longer", zr_manifest_check(&many, "many", &log), &kept,
           "bytes at offset");
    log = kept_log(&kept, ZR_LOG_INFO);
    many.extents[N_MANY / 2].n_elems -= 2;
    expect("one of many is shorter", zr_manifest_check(&many, "many", &log), &kept,
           "is in no extent");
    zr_manifest_clear(&many);
    zr_manifest_clear(&read);
}

/* ---- writing ---- */

TEST(test_print_refuses) {
    zr_manifest_t manifest = sample_manifest();
    char *text = NULL;
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    manifest.trainer_json[0] = '[';
    expect("no JSON", zr_manifest_print(&manifest, "sample", &log, &text), &kept,
           "trainer must be an object");
    strcpy(manifest.trainer_json, "[1]");
    log = kept_log(&kept, ZR_LOG_INFO);
    expect("no object", zr_manifest_print(&manifest, "sample", &log, &text), &kept,
           "trainer must be an object");
    zr_manifest_clear(&manifest);
    manifest = sample_manifest();
    manifest.units[0][0] = (char)0xff;
    assert_int_equal(zr_manifest_print(&manifest, "sample", NULL, &text), ZR_ERR_MEMORY);
    zr_manifest_clear(&manifest);
}
