/*
 * Weights go out and come back: of safetensors as one file, in a folder and in several files, and
 * of llm.c; fp32 bit for bit, shorter dtypes rounded once. The order of bytes in a file is that of
 * the formats' descriptions, written here a second time.
 */
#include "examples/weights/llmc.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/examples/weights/made_weights.h"

#define SMALL "layers=3,channels=8,heads=2,seq=5,vocab=13"
static const zr_gpt_shape_t small = {
    .n_layers = 3, .channels = 8, .heads = 2, .seq = 5, .vocab = 13};
/* Its matrices are larger than what is transposed at a time. */
#define WIDE "layers=1,channels=800,heads=10,seq=3,vocab=200"

static kept_log_t captured;

/* What becomes of a value in a dtype. */
static float rounded(element_kind_t kind, float value) {
    uint16_t half;
    if (kind == ELEMENT_FP32)
        return value;
    assert_int_equal(elements_from_fp32(kind, &value, 1, &half), 1);
    elements_to_fp32(kind, &half, 1, &value);
    return value;
}

static void compare_tensor(weights_t *weights, const zr_model_tensor_t *tensor,
                           element_kind_t kind, size_t piece) {
    float *values = malloc(tensor->n_elems * sizeof(*values));
    assert_non_null(values);
    for (size_t first = 0; first < tensor->n_elems; first += piece) {
        size_t rest = tensor->n_elems - first;
        assert_ok(
            weights_read(weights, tensor, first, rest < piece ? rest : piece, values + first));
    }
    uint64_t key = made_key(tensor->name);
    for (size_t i = 0; i < tensor->n_elems; i++) {
        float expected = rounded(kind, made_value_of(key, i));
        if (memcmp(&values[i], &expected, sizeof(expected)) != 0)
            fail_msg("element %zu of %s is %.9g instead of %.9g", i, tensor->name,
                     (double)values[i], (double)expected);
    }
    free(values);
}

static void open_and_compare(const char *const *paths, size_t n_paths, const char *model,
                             element_kind_t kind, size_t piece) {
    weights_t *weights;
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    if (weights_open(paths, n_paths, NULL, &log, &weights) != ZR_OK)
        fail_msg("%s", captured.text);
    assert_string_equal(zr_model_shape_text(&weights->shape).text, model);
    for (size_t i = 0; i < weights->tensors.n; i++)
        compare_tensor(weights, &weights->tensors.all[i], kind, piece);
    weights_close(&weights);
}

static uint64_t progress_elems;
static void note_progress(void *context, uint64_t n_elems) {
    assert_true(n_elems > progress_elems);
    progress_elems = n_elems;
}

typedef zr_status_t (*write_fn)(weights_t *, const weights_export_t *, const zr_log_t *,
                                weights_report_t *);

static weights_report_t write_weights(write_fn write, const char *model,
                                      const weights_export_t *options) {
    made_weights_t *made = made_weights(model);
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    weights_report_t report;
    weights_export_t with_progress = *options;
    with_progress.progress = note_progress;
    progress_elems = 0;
    if (write(&made->base, &with_progress, &log, &report) != ZR_OK)
        fail_msg("%s", captured.text);
    assert_int_equal(progress_elems, zr_model_shape_n_params(&made->base.shape));
    made_weights_free(&made);
    return report;
}

/* ---- safetensors ------------------------------------------------------------------------- */

TEST(test_one_file_of_each_dtype) {
    static const char *const paths[] = {"a.safetensors", "b.safetensors", "c.safetensors"};
    for (int kind = 0; kind < 3; kind++) {
        size_t n_bytes;
        weights_report_t report =
            write_weights(weights_write_safetensors, SMALL,
                          &(weights_export_t){.path = paths[kind], .kind = (element_kind_t)kind});
        unsigned char *bytes = made_file_read(paths[kind], &n_bytes);
        assert_int_equal(report.n_files, 1);
        assert_int_equal(report.n_bytes, n_bytes);
        free(bytes);
        open_and_compare(&paths[kind], 1, SMALL, (element_kind_t)kind, 7);
    }
}

/* Tensors lie in the order of the model, from the first to the last element, in fp32. */
TEST(test_the_bytes_of_safetensors) {
    size_t n_bytes, at = 0;
    write_weights(weights_write_safetensors, SMALL,
                  &(weights_export_t){.path = "bytes.safetensors"});
    unsigned char *bytes = made_file_read("bytes.safetensors", &n_bytes);
    uint64_t n_header;
    memcpy(&n_header, bytes, sizeof(n_header));
    assert_int_equal(n_header % 8, 0);
    assert_int_equal(n_bytes, 8 + n_header + 4 * zr_gpt_n_params(&small));
    assert_has((char *)bytes + 8, "\"transformer.h.2.mlp.c_fc.weight\":{\"dtype\":"
                                  "\"F32\",\"shape\":[8,32],\"data_offsets\":[");
    const float *values = (const float *)(bytes + 8 + n_header);
    for (size_t i = 0; i < zr_gpt_n_tensors(&small); i++) {
        zr_gpt_tensor_t tensor = zr_gpt_tensor_at(&small, i);
        for (size_t k = 0; k < tensor.n_elems; k++, at++) {
            float expected = made_value(tensor.name, k);
            assert_memory_equal(&values[at], &expected, sizeof(expected));
        }
    }
    free(bytes);
}

TEST(test_folder) {
    const char *folder = "folder/";
    write_weights(weights_write_safetensors, SMALL, &(weights_export_t){.path = folder});
    assert_true(made_file_is_there("folder/config.json"));
    assert_true(made_file_is_there("folder/model.safetensors"));
    assert_int_equal(made_folder_count("folder"), 2);
    open_and_compare(&folder, 1, SMALL, ELEMENT_FP32, 1000);
}

TEST(test_several_files_and_their_index) {
    static const char *const all[] = {
        "shards/model-00003-of-00005.safetensors", "shards/model-00001-of-00005.safetensors",
        "shards/model-00002-of-00005.safetensors", "shards/model-00005-of-00005.safetensors",
        "shards/model-00004-of-00005.safetensors"};
    const char *folder = "shards", *index = "shards/model.safetensors.index.json";
    weights_report_t report =
        write_weights(weights_write_safetensors, SMALL,
                      &(weights_export_t){.path = folder, .shard_bytes = 3000});
    assert_int_equal(report.n_files, 5);
    assert_int_equal(made_folder_count(folder), 7);
    for (size_t i = 0; i < 5; i++) { /* 3000 and the header */
        size_t n_bytes;
        uint64_t n_header;
        unsigned char *bytes = made_file_read(all[i], &n_bytes);
        memcpy(&n_header, bytes, sizeof(n_header));
        assert_in_range(n_bytes - 8 - n_header, 1, 3000);
        free(bytes);
    }
    open_and_compare(&folder, 1, SMALL, ELEMENT_FP32, 64);
    open_and_compare(&index, 1, SMALL, ELEMENT_FP32, 64);
    open_and_compare(all, 5, SMALL, ELEMENT_FP32, 64);
}

/* A tensor larger than files are to be has one of its own. */
TEST(test_tiny_files) {
    const char *folder = "tiny";
    weights_report_t report = write_weights(weights_write_safetensors, SMALL,
                                            &(weights_export_t){.path = folder, .shard_bytes = 1});
    assert_int_equal(report.n_files, zr_gpt_n_tensors(&small));
    open_and_compare(&folder, 1, SMALL, ELEMENT_FP32, 64);
}

/* ---- llm.c ------------------------------------------------------------------------------- */

TEST(test_llmc_of_both_dtypes) {
    static const char *const paths[] = {"small.bin", "small_bf16.bin"};
    for (int kind = 0; kind < 2; kind++) {
        write_weights(weights_write_llmc, SMALL,
                      &(weights_export_t){.path = paths[kind], .kind = (element_kind_t)kind});
        open_and_compare(&paths[kind], 1, SMALL, (element_kind_t)kind, 7);
    }
}

TEST(test_llmc_in_bands) {
    const char *path = "wide.bin";
    assert_true((size_t)800 * 4 * 800 * sizeof(float) > WEIGHTS_BAND_BYTES);
    write_weights(weights_write_llmc, WIDE, &(weights_export_t){.path = path});
    open_and_compare(&path, 1, WIDE, ELEMENT_FP32, 100000);
}

/* A parameter of all layers in llm.c's order, [layers][out][in], from our [in][out]. */
static size_t expect_linear(const float *values, const char *part, size_t n_in, size_t n_out) {
    size_t at = 0;
    for (size_t layer = 0; layer < small.n_layers; layer++) {
        char name[64];
        snprintf(name, sizeof(name), "h.%zu.%s.weight", layer, part);
        for (size_t out = 0; out < n_out; out++)
            for (size_t in = 0; in < n_in; in++)
                assert_true(values[at++] == made_value(name, in * n_out + out));
    }
    return at;
}

static size_t expect_vectors(const float *values, const char *part, size_t n) {
    size_t at = 0;
    for (size_t layer = 0; layer < small.n_layers; layer++) {
        char name[64];
        snprintf(name, sizeof(name), "h.%zu.%s", layer, part);
        for (size_t i = 0; i < n; i++)
            assert_true(values[at++] == made_value(name, i));
    }
    return at;
}

static size_t expect_one(const float *values, const char *name, size_t n, size_t n_padding) {
    for (size_t i = 0; i < n; i++)
        assert_true(values[i] == made_value(name, i));
    for (size_t i = n; i < n + n_padding; i++)
        assert_true(values[i] == 0.0f);
    return n + n_padding;
}

TEST(test_the_bytes_of_llmc) {
    size_t n_bytes, c = small.channels;
    static const int32_t begin[9] = {20240326, 3, 5, 13, 3, 2, 8, 128, 0};
    write_weights(weights_write_llmc, SMALL, &(weights_export_t){.path = "bytes.bin"});
    unsigned char *bytes = made_file_read("bytes.bin", &n_bytes);
    assert_memory_equal(bytes, begin, sizeof(begin));
    for (size_t i = sizeof(begin); i < 1024; i++)
        assert_int_equal(bytes[i], 0);
    const float *at = (const float *)(bytes + 1024);
    at += expect_one(at, "wte.weight", 13 * c, (128 - 13) * c);
    at += expect_one(at, "wpe.weight", 5 * c, 0);
    at += expect_vectors(at, "ln_1.weight", c);
    at += expect_vectors(at, "ln_1.bias", c);
    at += expect_linear(at, "attn.c_attn", c, 3 * c);
    at += expect_vectors(at, "attn.c_attn.bias", 3 * c);
    at += expect_linear(at, "attn.c_proj", c, c);
    at += expect_vectors(at, "attn.c_proj.bias", c);
    at += expect_vectors(at, "ln_2.weight", c);
    at += expect_vectors(at, "ln_2.bias", c);
    at += expect_linear(at, "mlp.c_fc", c, 4 * c);
    at += expect_vectors(at, "mlp.c_fc.bias", 4 * c);
    at += expect_linear(at, "mlp.c_proj", 4 * c, c);
    at += expect_vectors(at, "mlp.c_proj.bias", c);
    at += expect_one(at, "ln_f.weight", c, 0);
    at += expect_one(at, "ln_f.bias", c, 0);
    assert_ptr_equal(at, bytes + n_bytes);
    free(bytes);
}

/* What is kept of one layer's matrix is not taken for another's. */
TEST(test_layers_of_one_kind_in_turn) {
    const char *path = "turns.bin";
    weights_t *weights;
    write_weights(weights_write_llmc, SMALL, &(weights_export_t){.path = path});
    zr_log_t log = kept_log(&captured, ZR_LOG_INFO);
    assert_ok(weights_open(&path, 1, NULL, &log, &weights));
    for (size_t turn = 0; turn < 2 * small.n_layers; turn++) {
        char name[64];
        snprintf(name, sizeof(name), "h.%zu.mlp.c_fc.weight", turn % small.n_layers);
        compare_tensor(weights, zr_model_tensors_find(&weights->tensors, name), ELEMENT_FP32, 50);
    }
    weights_close(&weights);
}

TEST(test_padding_that_says_something) {
    size_t n_bytes, first_padding = 1024 + 13 * small.channels * sizeof(float);
    const char *path = "padded.bin";
    write_weights(weights_write_llmc, SMALL, &(weights_export_t){.path = path});
    unsigned char *bytes = made_file_read(path, &n_bytes);
    float one = 1.0f;
    memcpy(bytes + first_padding + 4 * sizeof(float), &one, sizeof(one));
    made_file(path, bytes, n_bytes);
    free(bytes);
    open_and_compare(&path, 1, SMALL, ELEMENT_FP32, 64);
    assert_has(captured.text, "not read: 115 rows behind the vocabulary of 13 words, "
                              "with 1 element that is not 0");
}

const test_group_t test_group = {enter_test_folder, leave_test_folder};
