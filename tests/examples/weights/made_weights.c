/* See made_weights.h. */
#include <dirent.h>
#include <sys/stat.h>

#include "tests/common/test.h"
#include "tests/examples/weights/made_weights.h"

static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 31) * 0xd6e8feb86659fd93u;
    return z ^ z >> 32;
}

uint64_t made_key(const char *name) {
    uint64_t key = 17;
    for (const char *c = name; *c != '\0'; c++)
        key = mix(key + (unsigned char)*c);
    return key;
}

float made_value_of(uint64_t key, size_t index) {
    uint64_t z = mix(key + index);
    uint32_t bits = (uint32_t)(z & 0x807fffffu) | (uint32_t)(87 + (z >> 32) % 43) << 23;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

float made_value(const char *name, size_t index) {
    return made_value_of(made_key(name), index);
}

static zr_status_t read_made(weights_t *weights, const zr_model_tensor_t *tensor, size_t first,
                             size_t n_elems, float *values) {
    const made_weights_t *made = (const made_weights_t *)weights;
    if (made->failing != NULL && strcmp(made->failing, tensor->name) == 0)
        return ZR_ERR_IO;
    assert_true(first <= tensor->n_elems && n_elems <= tensor->n_elems - first);
    uint64_t key = made_key(tensor->name);
    for (size_t i = 0; i < n_elems; i++)
        values[i] = made_value_of(key, first + i);
    if (made->spoiled != NULL && strcmp(made->spoiled, tensor->name) == 0 &&
        made->spoiled_at >= first && made->spoiled_at - first < n_elems)
        values[made->spoiled_at - first] = made->spoil;
    return ZR_OK;
}

static void destroy_made(weights_t *weights) {
    weights_clear(weights);
    free(weights);
}

static const weights_backend_t backend = {.read = read_made, .destroy = destroy_made};

zr_model_shape_t made_shape(const char *text) {
    zr_model_shape_t shape;
    zr_log_t log = zr_log_default();
    assert_ok(zr_model_shape_read(text, &log, &shape));
    return shape;
}

made_weights_t *made_weights(const char *model) {
    made_weights_t *made = calloc(1, sizeof(*made));
    zr_log_t log = zr_log_default();
    assert_non_null(made);
    made->base = (weights_t){
        .backend = &backend, .shape = made_shape(model), .format = "made", .dtype = "fp32"};
    assert_ok(weights_list_tensors(&made->base, &log));
    return made;
}

void made_weights_free(made_weights_t **made) {
    weights_t *weights = &(*made)->base;
    weights_close(&weights);
    *made = NULL;
}

/* ---- files ------------------------------------------------------------------------------- */

void made_file(const char *path, const void *bytes, size_t n_bytes) {
    FILE *file = fopen(path, "wb");
    if (file == NULL)
        fail_msg("cannot write %s", path);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

unsigned char *made_file_read(const char *path, size_t *n_bytes_p) {
    size_t most = (size_t)64 << 20;
    unsigned char *bytes = malloc(most + 1);
    FILE *file = fopen(path, "rb");
    if (bytes == NULL || file == NULL)
        fail_msg("cannot read %s", path);
    *n_bytes_p = fread(bytes, 1, most, file);
    assert_int_equal(fclose(file), 0);
    return bytes;
}

bool made_file_is_there(const char *path) {
    return access(path, F_OK) == 0;
}

size_t made_folder_count(const char *path) {
    DIR *entries = opendir(path);
    size_t n = 0;
    if (entries == NULL)
        fail_msg("cannot read %s", path);
    while (readdir(entries) != NULL)
        n++;
    closedir(entries);
    return n - 2;
}
