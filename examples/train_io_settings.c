#include "examples/train_io_settings.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

/* Reading one file. */
typedef struct settings {
    const char *path;
    const zr_log_t *log;
    zr_nvme_options_t nvme;
    bool has_paths; /* of their own: those of the file do not count */
} settings_t;

static zr_status_t read_count(const settings_t *s, const char *key, const json_t *value,
                              size_t *count_p) {
    if (!json_is_integer(value) || json_integer_value(value) < 1)
        return zr_fail(s->log, ZR_ERR_ARGUMENT,
                       "--io-settings %s: %s has to be an integer, more "
                       "than 0",
                       s->path, key);
    *count_p = (size_t)json_integer_value(value);
    return ZR_OK;
}

static zr_status_t read_paths(settings_t *s, const json_t *paths) {
    char *text = s->nvme.paths;
    size_t index, used = 0, room = sizeof(s->nvme.paths);
    const json_t *path;
    if (s->has_paths)
        return ZR_OK;
    if (!json_is_array(paths) || json_array_size(paths) == 0)
        return zr_fail(s->log, ZR_ERR_ARGUMENT, "--io-settings %s: paths has to be a list of names",
                       s->path);
    json_array_foreach(paths, index, path) {
        const char *name = json_string_value(path);
        if (name == NULL || name[0] == '\0' || strchr(name, ',') != NULL)
            return zr_fail(s->log, ZR_ERR_ARGUMENT,
                           "--io-settings %s: path %zu has to be a name without comma", s->path,
                           index + 1);
        used += (size_t)snprintf(text + used, room - used, "%s%s", index > 0 ? "," : "", name);
        if (used >= room)
            return zr_fail(s->log, ZR_ERR_ARGUMENT,
                           "--io-settings %s: paths have to have less than %zu bytes together",
                           s->path, room);
    }
    return ZR_OK;
}

static zr_status_t read_key(settings_t *s, const char *key, const json_t *value) {
    if (strcmp(key, "request_bytes") == 0)
        return read_count(s, key, value, &s->nvme.request_bytes);
    if (strcmp(key, "depth") == 0)
        return read_count(s, key, value, &s->nvme.depth);
    if (strcmp(key, "submit_batch") == 0)
        return read_count(s, key, value, &s->nvme.submit_batch);
    if (strcmp(key, "files_per_path") == 0)
        return read_count(s, key, value, &s->nvme.files_per_path);
    if (strcmp(key, "paths") == 0)
        return read_paths(s, value);
    return zr_fail(
        s->log, ZR_ERR_ARGUMENT,
        "--io-settings %s: there is no setting \"%.40s\"; there are request_bytes, depth, "
        "submit_batch, files_per_path, paths",
        s->path, key);
}

static zr_status_t read_object(settings_t *s, json_t *object) {
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return zr_fail(s->log, ZR_ERR_FORMAT,
                       "--io-settings %s: not an object; zero-bench io --save-settings writes one",
                       s->path);
    json_object_foreach(object, key, value) {
        ZR_TRY(read_key(s, key, value));
    }
    return ZR_OK;
}

zr_status_t train_io_settings_read(const char *path, const zr_log_t *log, zr_nvme_options_t *nvme) {
    settings_t settings = {
        .path = path, .log = log, .nvme = *nvme, .has_paths = nvme->paths[0] != '\0'};
    json_error_t error;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return zr_fail(log, ZR_ERR_IO, "cannot read --io-settings %s: %s", path, strerror(errno));
    json_t *object = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    if (object == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "--io-settings %s: line %d, column %d: %s", path,
                       error.line, error.column, error.text);
    zr_status_t status = read_object(&settings, object);
    json_decref(object);
    if (status == ZR_OK)
        *nvme = settings.nvme;
    return status;
}
