/* See sample.h. */
#include <fcntl.h>

#include "tests/common/test.h"
#include "tests/zero/checkpoint/sample.h"

static void *copy_of(const void *from, size_t n_bytes) {
    void *copy = malloc(n_bytes);
    assert_non_null(copy);
    memcpy(copy, from, n_bytes);
    return copy;
}

zr_manifest_t sample_manifest(void) {
    char *units[] = {strdup("embedding"), strdup("h.0")};
    const zr_manifest_tensor_t tensors[] = {
        {.tensor = {.name = strdup("wte"), .n_dims = 2, .dims = {10, 3}, .n_elems = 30}},
        {.tensor = {.name = strdup("h.0.weight"), .n_dims = 1, .dims = {64}, .n_elems = 64},
         .unit = 1},
        {.tensor = {.name = strdup("h.0.mask"), .n_elems = 1, .frozen = true}, .unit = 1},
    };
    const zr_manifest_file_t files[] = {
        {.data = "rank-00000.data",
         .sums = "rank-00000.sums",
         .data_bytes = 8192,
         .chunk_bytes = 4096,
         .n_chunks = 3},
        {.data = "rank-00001.data",
         .sums = "rank-00001.sums",
         .data_bytes = 384,
         .chunk_bytes = 4096,
         .n_chunks = 1},
    };
    const zr_manifest_extent_t extents[] = {
        {.n_elems = 512, .group_elems = 512, .n_arrays = 3},
        {.unit = 1,
         .n_elems = 32,
         .group_elems = 16,
         .n_arrays = 3,
         .offset_bytes = 6144,
         .first_chunk = 2},
        {.unit = 1, .first = 32, .n_elems = 32, .group_elems = 32, .n_arrays = 3, .file = 1},
    };
    zr_manifest_t manifest = {
        .step = 60,
        .n_updates = 59,
        .n_ranks = 2,
        .stage = 3,
        .dtype = ZR_DTYPE_BF16,
        .units = copy_of(units, sizeof(units)),
        .n_units = 2,
        .tensors = copy_of(tensors, sizeof(tensors)),
        .n_tensors = 3,
        .files = copy_of(files, sizeof(files)),
        .n_files = 2,
        .extents = calloc(4, sizeof(*extents)),
        .n_extents = 4,
        .trainer_json = strdup("{\"lr\":0.10000000000000001}"),
    };
    assert_non_null(manifest.extents);
    memcpy(manifest.extents, extents, sizeof(extents));
    manifest.extents[3] = (zr_manifest_extent_t){.unit = 1,
                                                 .frozen = true,
                                                 .n_elems = 32,
                                                 .group_elems = 32,
                                                 .n_arrays = 1,
                                                 .dtype = ZR_DTYPE_BF16,
                                                 .offset_bytes = 7000,
                                                 .first_chunk = 3,
                                                 .xxh3 = UINT64_MAX};
    manifest.files[0].n_chunks = 4;
    manifest.n_carried = 1;
    zr_manifest_carried_t carried = {.name = "tokenizer.json", .n_bytes = 5, .xxh3 = 7};
    manifest.carried = copy_of(&carried, sizeof(carried));
    return manifest;
}

char *sample_text(void) {
    zr_manifest_t manifest = sample_manifest();
    char *text = NULL;
    assert_ok(zr_manifest_check(&manifest, "sample", NULL));
    assert_ok(zr_manifest_print(&manifest, "sample", NULL, &text));
    zr_manifest_clear(&manifest);
    return text;
}

json_t *sample_json(void) {
    char *text = sample_text();
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    assert_non_null(root);
    return root;
}

char *sample_seal(json_t *root) {
    json_object_del(root, "xxh3");
    assert_int_equal(json_object_set_new(root, "xxh3", json_string("0000000000000000")), 0);
    char *text = json_dumps(root, JSON_INDENT(1));
    size_t n_bytes = strlen(text);
    text = realloc(text, n_bytes + 2);
    memcpy(text + n_bytes, "\n", 2);
    assert_true(zr_manifest_seal(text, n_bytes + 1));
    return text;
}

zr_status_t sample_parse(json_t *root, kept_log_t *kept) {
    char *text = sample_seal(root);
    zr_manifest_t manifest = {0};
    zr_log_t log = kept_log(kept, ZR_LOG_INFO);
    zr_status_t status = zr_manifest_parse(text, strlen(text), "sample", &log, &manifest);
    free(text);
    zr_manifest_clear(&manifest);
    return status;
}

static void write_zeros(const char *folder, const char *name, uint64_t n_bytes) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)n_bytes), 0);
    assert_int_equal(close(fd), 0);
}

void sample_write(const char *folder, size_t step) {
    zr_manifest_t manifest = sample_manifest();
    manifest.step = step;
    manifest.n_updates = step;
    for (size_t i = 0; i < manifest.n_files; i++) {
        write_zeros(folder, manifest.files[i].data, manifest.files[i].data_bytes);
        write_zeros(folder, manifest.files[i].sums, 8 * manifest.files[i].n_chunks);
    }
    write_zeros(folder, manifest.carried[0].name, manifest.carried[0].n_bytes);
    assert_ok(zr_manifest_write(&manifest, folder, NULL));
    zr_manifest_clear(&manifest);
}
