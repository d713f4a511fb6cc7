/*
 * Headers of safetensors files and indexes of several: what is written, to the byte, what is read,
 * and what is refused for which reason.
 */
#include "examples/weights/safetensors.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

static kept_log_t captured;

/* In memory of its own length: what reads beyond it is found. */
static zr_status_t parse(const char *text, size_t n, uint64_t data_bytes,
                         safetensors_header_t *header_p) {
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    char *copy = malloc(n == 0 ? 1 : n);
    assert_non_null(copy);
    memcpy(copy, text, n);
    zr_status_t status = safetensors_parse(copy, n, data_bytes, "x.safetensors", &log, header_p);
    free(copy);
    return status;
}

/* ---- writing ----------------------------------------------------------------------------- */

TEST(test_header_to_the_byte) {
    static char matrix_name[] = "a", vector_name[] = "b";
    safetensors_tensor_t tensors[] = {
        {.name = matrix_name,
         .type = element_type_of(ELEMENT_BF16),
         .n_dims = 2,
         .dims = {2, 3},
         .n_elems = 6,
         .size_bytes = 12},
        {.name = vector_name,
         .type = element_type_of(ELEMENT_FP32),
         .n_dims = 1,
         .dims = {4},
         .n_elems = 4,
         .size_bytes = 16},
    };
    static const char text[] = "{\"__metadata__\":{\"format\":\"pt\",\"libzero.model\":\"m\"},"
                               "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                               "\"b\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[12,28]}}";
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    char *bytes;
    size_t n_bytes, n_text = strlen(text), n_padded = (n_text + 7) / 8 * 8;
    assert_ok(safetensors_build(tensors, 2, "m", &log, &bytes, &n_bytes));
    assert_int_equal(n_bytes, 8 + n_padded);
    for (int i = 0; i < 8; i++)
        assert_int_equal((unsigned char)bytes[i], i < 2 ? n_padded >> 8 * i & 255 : 0);
    assert_memory_equal(bytes + 8, text, n_text);
    for (size_t i = 8 + n_text; i < n_bytes; i++)
        assert_int_equal(bytes[i], ' ');

    size_t length;
    safetensors_header_t header;
    assert_ok(safetensors_length(bytes, n_bytes + 28, "x", &log, &length));
    assert_int_equal(length, n_padded);
    assert_ok(parse(bytes + 8, length, 28, &header));
    assert_string_equal(header.model, "m");
    assert_int_equal(safetensors_find(&header, "b")->offset_bytes, 12);
    safetensors_clear(&header);
    free(bytes);
}

/* ---- reading ----------------------------------------------------------------------------- */

TEST(test_what_is_read) {
    /* In any order, with buffers of other dtypes, without elements, without dimensions. */
    static const char text[] =
        "{\"z\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[9,13]},"
        "\"mask\":{\"shape\":[1,1,3,3],\"dtype\":\"BOOL\",\"data_offsets\":[0,9]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[7,0],\"data_offsets\":[9,9]},"
        "\"__metadata__\":{\"format\":\"pt\"},"
        "\"one\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[13,17]}}   ";
    safetensors_header_t header;
    assert_ok(parse(text, strlen(text), 17, &header));
    assert_int_equal(header.n_tensors, 4);
    assert_null(header.model);
    const safetensors_tensor_t *z = safetensors_find(&header, "z");
    assert_int_equal(z->n_dims, 2);
    assert_int_equal(z->dims[0], 2);
    assert_int_equal(z->n_elems, 2);
    assert_int_equal(z->type->kind, ELEMENT_FP16);
    assert_int_equal(z->offset_bytes, 9);
    assert_int_equal(safetensors_find(&header, "one")->n_elems, 1);
    assert_int_equal(safetensors_find(&header, "none")->n_elems, 0);
    assert_null(safetensors_find(&header, "__metadata__"));
    assert_null(safetensors_find(&header, "y"));
    safetensors_clear(&header);
    assert_ok(parse("{}", 2, 0, &header));
    assert_null(safetensors_find(&header, "y"));
    safetensors_clear(&header);
}

#define TENSOR(name, shape, range)                                                                 \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" range "}"
#define ONE(shape, range) "{" TENSOR("a", shape, range) "}"

/* Each with 8 bytes of data behind the header. */
static const struct {
    const char *text, *said;
} refusals[] = {
    {"", "does not begin with {"},
    {"[]", "does not begin with {"},
    {" {}", "does not begin with {"},
    {"{", "its JSON, at byte"},
    {"{}x", "its JSON, at byte"},
    {"{\"a\\u0000\":1}", "its JSON, at byte"},
    {"{\"\xff\":1}", "its JSON, at byte"},
    {"{" TENSOR("a", "[1]", "[0,4]") "," TENSOR("a", "[1]", "[4,8]") "}", "duplicate"},
    {"{\"\":{}}", "name is empty"},
    {"{\"a\\n\":{}}", "control characters"},
    {"{\"a\":1}", "\"a\": it is not an object"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "other keys"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", "other keys"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"offsets\":[0,8]}}", "its data_offsets are missing"},
    {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", "unknown dtype \"F99\""},
    {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", "its dtype is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", "its shape is missing"},
    {ONE("[1,1,1,1,1,1,1,1,2]", "[0,8]"), "9 dimensions; at most 8"},
    {ONE("[-2]", "[0,8]"), "that is not a size"},
    {ONE("[2.0]", "[0,8]"), "that is not a size"},
    {ONE("[18446744073709551616]", "[0,8]"), "its JSON, at byte"},
    {ONE("[4294967296,4294967296]", "[0,8]"), "more elements than there are numbers"},
    {ONE("[4294967296,4294967296,0]", "[0,8]"), "more elements than there are numbers"},
    {ONE("[4611686018427387906]", "[0,8]"), "4611686018427387906 elements of 4 bytes"},
    {ONE("[3]", "[0,8]"), "3 elements of 4 bytes, and its data_offsets 8 bytes"},
    {ONE("[1]", "[0,8]"), "1 element of 4 bytes, and its data_offsets 8 bytes"},
    {ONE("[2]", "[0]"), "no two whole numbers"},
    {ONE("[2]", "[0,8,8]"), "no two whole numbers"},
    {ONE("[2]", "[0.0,8]"), "no two whole numbers"},
    {ONE("[2]", "{}"), "no two whole numbers"},
    {ONE("[2]", "[-8,0]"), "the file has 8 bytes of data"},
    {ONE("[2]", "[8,0]"), "the file has 8 bytes of data"},
    {ONE("[2]", "[4,12]"), "the file has 8 bytes of data"},
    {ONE("[4]", "[0,16]"), "truncated"},
    {ONE("[1]", "[0,4]"), "its tensors have 4 bytes, and the file 8"},
    {ONE("[1]", "[4,8]"), "with a hole behind where that of \"the header\" ends, 0"},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[1]", "[4,8]") "}",
     "the data of \"b\" begins at 4, before where that of \"a\" ends, 8"},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[2]", "[0,8]") "}", "begins at 0, before"},
    {"{" TENSOR("a", "[2]", "[0,8]") "," TENSOR("b", "[0]", "[4,4]") "}", "begins at 4, before"},
    {"{\"__metadata__\":1}", "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"x\":{}}}", "__metadata__: \"x\" is not a string"},
    {"{}", "its tensors have 0 bytes, and the file 8"},
};

TEST(test_refused_headers) {
    for (size_t i = 0; i < N_OF(refusals); i++) {
        safetensors_header_t header;
        zr_status_t status = parse(refusals[i].text, strlen(refusals[i].text), 8, &header);
        if (status != ZR_ERR_FORMAT || strstr(captured.text, refusals[i].said) == NULL)
            fail_msg("%s: %s, and not \"%s\": %s", refusals[i].text, zr_status_name(status),
                     refusals[i].said, captured.text);
    }
}

/* What begins well and ends too early, wherever it is cut. */
TEST(test_header_cut_anywhere) {
    static const char text[] =
        "{\"__metadata__\":{\"format\":\"pt\"}," TENSOR("a", "[2]", "[0,8]") "}";
    for (size_t n = 0; n < strlen(text); n++) {
        safetensors_header_t header;
        assert_int_equal(parse(text, n, 8, &header), ZR_ERR_FORMAT);
    }
}

TEST(test_deep_nesting) {
    size_t n = 1 << 20;
    char *text = malloc(n);
    safetensors_header_t header;
    assert_non_null(text);
    memset(text, '[', n);
    memcpy(text, "{\"a\":", 5);
    assert_int_equal(parse(text, n, 8, &header), ZR_ERR_FORMAT);
    assert_has(captured.text, "maximum parsing depth");
    free(text);
}

static void refuse_length(uint64_t length, uint64_t file_bytes, const char *said) {
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    size_t got;
    assert_int_equal(safetensors_length(&length, file_bytes, "x", &log, &got), ZR_ERR_FORMAT);
    assert_has(captured.text, said);
}

TEST(test_refused_lengths) {
    refuse_length(2, 7, "it has 7 bytes");
    refuse_length(2, 9, "its header has 2 bytes, and the file 1 behind the length");
    refuse_length(1, 100, "its header has 1 byte,");
    refuse_length(UINT64_MAX, 100, "its header has 18446744073709551615 bytes");
    refuse_length(UINT64_MAX - 7, 100, "and the file 92 behind");
    refuse_length(SAFETENSORS_MAX_HEADER_BYTES + 1, (uint64_t)1 << 40, "at most 16777216 are read");
}

/* ---- the index --------------------------------------------------------------------------- */

static zr_status_t parse_index(const char *text, safetensors_index_t *index_p) {
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    return safetensors_index_parse(text, strlen(text), "x.index.json", &log, index_p);
}

TEST(test_index) {
    safetensors_index_t index;
    assert_ok(parse_index("{\"metadata\":{\"total_size\":1},\"weight_map\":{"
                          "\"a\":\"one.safetensors\",\"b\":\"two.safetensors\","
                          "\"c\":\"one.safetensors\"}}",
                          &index));
    assert_int_equal(index.n_files, 2);
    assert_int_equal(index.n_entries, 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(index.files[index.entries[i].file],
                            strcmp(index.entries[i].tensor, "b") == 0 ? "two.safetensors"
                                                                      : "one.safetensors");
    safetensors_index_clear(&index);
}

TEST(test_refused_indexes) {
    static const char *const files[] = {"../x.safetensors",
                                        "/x.safetensors",
                                        "a/x.safetensors",
                                        "a\\\\x.safetensors",
                                        ".safetensors",
                                        ".hidden.safetensors",
                                        "x.index.json",
                                        "..",
                                        "",
                                        "x.bin",
                                        "x.safetensors\\u001b[31m",
                                        "x.safetensors/"};
    safetensors_index_t index;
    for (size_t i = 0; i < N_OF(files); i++) {
        char text[256];
        snprintf(text, sizeof(text), "{\"weight_map\":{\"a\":\"%s\"}}", files[i]);
        if (parse_index(text, &index) != ZR_ERR_FORMAT)
            fail_msg("%s is read", text);
        assert_has(captured.text, "names of .safetensors files in the folder of the index");
        assert_null(strchr(captured.text, '\x1b'));
    }
    assert_int_equal(parse_index("{}", &index), ZR_ERR_FORMAT);
    assert_has(captured.text, "its weight_map is missing, empty, or not an object");
    assert_int_equal(parse_index("{\"weight_map\":{}}", &index), ZR_ERR_FORMAT);
    assert_int_equal(parse_index("{\"weight_map\":[1]}", &index), ZR_ERR_FORMAT);
    assert_int_equal(parse_index("{\"weight_map\":{\"a\":1}}", &index), ZR_ERR_FORMAT);
    assert_has(captured.text, "a file that is not a string");
    assert_int_equal(
        parse_index("{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", &index),
        ZR_ERR_FORMAT);
    assert_has(captured.text, "duplicate");
}

TEST(test_index_of_too_many_files) {
    static char text[64 * (SAFETENSORS_MAX_FILES + 2)];
    size_t n = (size_t)sprintf(text, "{\"weight_map\":{");
    safetensors_index_t index;
    for (int i = 0; i <= SAFETENSORS_MAX_FILES; i++)
        n += (size_t)sprintf(text + n, "%s\"t%d\":\"f%d.safetensors\"", i > 0 ? "," : "", i, i);
    sprintf(text + n, "}}");
    assert_int_equal(parse_index(text, &index), ZR_ERR_FORMAT);
    assert_has(captured.text, "more than 512 files");
}
