#include "examples/train/io_settings.h"

#include <jansson.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"

#define FILE_MAX_BYTES ((size_t)1 << 20) /* none is larger; /dev/zero is */

/* Reading one file. */
typedef struct settings {
    const char *path;
    const zr_log_t *log;
    zr_config_t config; /* nvme of it is read */
    bool keep_paths;    /* those of the file do not count */
} settings_t;

/* A number: a multiple of `unit`, up to `most`. */
typedef struct setting {
    const char *key;
    size_t offset; /* in zr_config_t */
    size_t unit, most;
} setting_t;

/* Settings are the rows that only a file can say: those of numbers of zr_nvme_options_t without an
 * option of their own. NULL: no option has this key. */
static const zr_option_t *next_setting(size_t *index) {
    static const char group[] = "nvme.";
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    while (*index < n) {
        const zr_option_t *row = &rows[(*index)++];
        bool is_number = row->type == ZR_OPTION_BYTES || row->type == ZR_OPTION_COUNT;
        if (row->name == NULL && row->field != NULL && is_number &&
            strncmp(row->field, group, strlen(group)) == 0)
            return row;
    }
    return NULL;
}

static setting_t setting_of(const zr_option_t *row) {
    return (setting_t){.key = strchr(row->field, '.') + 1,
                       .offset = row->offset,
                       .unit = row->type == ZR_OPTION_BYTES ? ZR_STORE_CHUNK_ALIGN_BYTES : 1,
                       .most = (size_t)row->most};
}

static bool find_setting(const char *key, setting_t *setting_p) {
    const zr_option_t *row;
    for (size_t i = 0; (row = next_setting(&i)) != NULL;) {
        *setting_p = setting_of(row);
        if (strcmp(setting_p->key, key) == 0)
            return true;
    }
    return false;
}

static zr_status_t refuse_number(const settings_t *s, const setting_t *setting, const char *value,
                                 size_t nearest) {
    char allowed[64];
    if (setting->unit == 1)
        snprintf(allowed, sizeof(allowed), "1 to %zu", setting->most);
    else
        snprintf(allowed, sizeof(allowed), "multiples of %zu, up to %zu", setting->unit,
                 setting->most);
    return zr_fail(s->log, ZR_ERR_ARGUMENT,
                   "--io-settings %s: %s is %s; allowed: %s; the nearest is %zu", s->path,
                   setting->key, value, allowed, nearest);
}

static zr_status_t read_number(settings_t *s, const setting_t *setting, const json_t *value) {
    char text[32];
    json_int_t number = json_integer_value(value);
    if (!json_is_integer(value))
        return refuse_number(s, setting, "no integer", setting->unit);
    size_t count = number < 0 ? 0 : (size_t)number;
    if (count != 0 && count <= setting->most && count % setting->unit == 0) {
        *(size_t *)((char *)&s->config + setting->offset) = count;
        return ZR_OK;
    }
    size_t whole = (count < setting->most ? count : setting->most) / setting->unit;
    snprintf(text, sizeof(text), "%lld", (long long)number);
    return refuse_number(s, setting, text, (whole == 0 ? 1 : whole) * setting->unit);
}

static zr_status_t read_paths(settings_t *s, const json_t *paths) {
    char *text = s->config.nvme.paths;
    size_t index, used = 0, room = sizeof(s->config.nvme.paths);
    const json_t *path;
    if (s->keep_paths)
        return ZR_OK;
    if (!json_is_array(paths) || json_array_size(paths) == 0)
        return zr_fail(s->log, ZR_ERR_ARGUMENT, "--io-settings %s: paths must be a list of names",
                       s->path);
    json_array_foreach(paths, index, path) {
        const char *name = json_string_value(path);
        if (name == NULL || name[0] == '\0' || strchr(name, ',') != NULL)
            return zr_fail(s->log, ZR_ERR_ARGUMENT,
                           "--io-settings %s: path %zu must be a name without comma", s->path,
                           index + 1);
        used += (size_t)snprintf(text + used, room - used, "%s%s", index > 0 ? "," : "", name);
        if (used >= room)
            return zr_fail(s->log, ZR_ERR_ARGUMENT,
                           "--io-settings %s: paths must have less than %zu bytes together",
                           s->path, room);
    }
    return ZR_OK;
}

static zr_status_t read_key(settings_t *s, const char *key, const json_t *value) {
    setting_t setting;
    char list[256] = "";
    const zr_option_t *row;
    if (find_setting(key, &setting))
        return read_number(s, &setting, value);
    if (strcmp(key, "paths") == 0)
        return read_paths(s, value);
    for (size_t i = 0, n = 0; (row = next_setting(&i)) != NULL && n < sizeof(list);)
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s, ", setting_of(row).key);
    return zr_fail(s->log, ZR_ERR_ARGUMENT,
                   "--io-settings %s: there is no setting \"%.40s\"; there are %spaths", s->path,
                   key, list);
}

/* Each folder has as many files. */
static zr_status_t check_files(const settings_t *s) {
    size_t n_paths = 1;
    for (const char *at = s->config.nvme.paths; *at != '\0'; at++)
        n_paths += *at == ',';
    if (s->config.nvme.files_per_path * n_paths <= ZR_STORE_MAX_PATHS)
        return ZR_OK;
    return zr_fail(s->log, ZR_ERR_ARGUMENT,
                   "--io-settings %s: files_per_path is %zu, with %s; allowed: %d files together: "
                   "name fewer folders, or write a smaller files_per_path",
                   s->path, s->config.nvme.files_per_path, zr_count_text(n_paths, "folder").text,
                   ZR_STORE_MAX_PATHS);
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
    return check_files(s);
}

zr_status_t train_io_settings_read(const char *path, bool keep_paths, const zr_log_t *log,
                                   zr_nvme_options_t *nvme) {
    settings_t settings = {
        .path = path, .log = log, .config.nvme = *nvme, .keep_paths = keep_paths};
    json_error_t error;
    zr_log_t own = files_log(&(files_log_t){*log, "--io-settings"});
    char *text;
    size_t n_bytes;
    ZR_TRY(zr_text_file_read(path, FILE_MAX_BYTES, &own, &text, &n_bytes));
    json_t *object = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (object == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "--io-settings %s: line %d, column %d: %s", path,
                       error.line, error.column, error.text);
    zr_status_t status = read_object(&settings, object);
    json_decref(object);
    if (status == ZR_OK)
        *nvme = settings.config.nvme;
    return status;
}
