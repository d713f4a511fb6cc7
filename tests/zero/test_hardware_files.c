/*
 * The descriptions that come with the library: each can be read, says of every figure where it is
 * from, is of a name of its own, has rates that are possible beside each other, and is in the
 * document's table.
 */
#include <dirent.h>
#include <jansson.h>

#include "tests/common/test.h"
#include "zero/hardware_json.h"

#define FOLDER ZR_SOURCE_DIR "/hardware/"
enum { MOST_FILES = 64, SHORTEST_SOURCE = 5 };

static const char doc_path[] = ZR_SOURCE_DIR "/docs/guide/plan.md";

static int is_description(const struct dirent *entry) {
    const char *end = strrchr(entry->d_name, '.');
    return end != NULL && strcmp(end, ".json") == 0;
}

/* Every figure has a source that says something. */
static void expect_sources(const char *path) {
    json_error_t error;
    json_t *file = json_load_file(path, 0, &error);
    assert_non_null(file);
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    const json_t *sources = json_object_get(file, "sources");
    for (size_t i = 0; i < n; i++) {
        const char *source = json_string_value(json_object_get(sources, figures[i].name));
        if (source == NULL || strlen(source) < SHORTEST_SOURCE)
            fail_msg("%s: %s has no source", path, figures[i].name);
    }
    json_decref(file);
}

/* A digit too many or too few would show. */
static void expect_possible(const zr_hardware_t *hardware) {
    const zr_processor_t *device = &hardware->device;
    assert_int_equal(hardware->kind, ZR_HARDWARE_CUDA);
    assert_true(device->matrix_bf16_ops_per_s > 2.0 * device->matrix_fp32_ops_per_s);
    assert_true(device->matrix_bf16_ops_per_s < 1e15);
    assert_true(device->vector_ops_per_s <= device->matrix_fp32_ops_per_s);
    assert_true(device->memory_bytes_per_s > 10.0 * hardware->to_device.bytes_per_s);
    assert_true(hardware->host.memory_bytes_per_s < device->memory_bytes_per_s / 10.0);
    assert_true(hardware->to_device.bytes_per_s > hardware->disk_read.bytes_per_s);
    assert_true(hardware->disk_read.bytes_per_s >= hardware->disk_write.bytes_per_s);
    assert_true(hardware->between_nodes.latency_s > hardware->within_node.latency_s);
    assert_true(hardware->between_nodes.bytes_per_s <=
                hardware->ranks_per_node * hardware->within_node.bytes_per_s);
    assert_true(hardware->disk_bytes > hardware->host_memory_bytes);
}

static char *read_document(void) {
    FILE *file = fopen(doc_path, "r");
    char *text = calloc(1, 1 << 20);
    assert_true(file != NULL && text != NULL);
    assert_true(fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

TEST(descriptions_are_good) {
    struct dirent **entries = NULL;
    char names[MOST_FILES][64], path[512], row[512], *document = read_document();
    int n = scandir(FOLDER, &entries, is_description, alphasort);
    assert_true(n >= 5 && n <= MOST_FILES);
    for (int i = 0; i < n; i++) {
        zr_hardware_t hardware;
        snprintf(path, sizeof(path), FOLDER "%s", entries[i]->d_name);
        assert_ok(zr_hardware_read_json(path, NULL, &hardware));
        expect_sources(path);
        expect_possible(&hardware);
        snprintf(names[i], sizeof(names[i]), "%s", hardware.name);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(names[i], names[k]);
        *strrchr(entries[i]->d_name, '.') = '\0';
        snprintf(row, sizeof(row), "\n| `%s` |", entries[i]->d_name);
        if (strstr(document, row) == NULL)
            fail_msg("%s has no row for %s", doc_path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    free(document);
}
