/*
 * The file is written beside its place, brought to the drive and renamed, so that a reader finds
 * the old one or the new one, whole.
 */
#include "examples/capacity/state.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/files.h"
#include "examples/common/json.h"

#define QUESTION "question"
#define POINTS "points"

/* ---- the question ---------------------------------------------------------------------------- */

#define FILE_MAX_BYTES ((size_t)256 << 20) /* none is larger; /dev/zero is */

/* The figures of a description; this machine's own are as they are. */
static void put_hardware(json_t **object_p, const zr_hardware_t *hardware) {
    size_t n_figures = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n_figures);
    for (size_t i = 0; i < n_figures; i++) {
        char name[96], value[32];
        snprintf(name, sizeof(name), "hardware %s", figures[i].name);
        snprintf(value, sizeof(value), "%.9g", zr_hardware_figure(hardware, &figures[i]));
        json_put(object_p, name, json_text(value));
    }
}

/* What does not change the answers. */
static bool is_of_output(const char *name) {
    static const char *const names[] = {"json",  "quiet",  "help", "version", "nvme-path",
                                        "state", "resume", "csv",  "plot",    "shard-group-size"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

json_t *capacity_question(const capacity_options_t *options, const zr_hardware_t *hardware) {
    json_t *object = json_object();
    json_put(&object, "version", json_text(zr_version()));
    for (size_t i = 0; i < options->run.given.n; i++) {
        const char *option = options->run.given.all[i].name;
        const char *value = options->run.given.all[i].value;
        char name[96];
        if (is_of_output(option))
            continue;
        snprintf(name, sizeof(name), "--%s", option);
        if (strcmp(option, "sweep") == 0)
            snprintf(name, sizeof(name), "--sweep %.*s", (int)strcspn(value, "="), value);
        json_put(&object, name, json_text(value));
    }
    if (!options->is_this)
        put_hardware(&object, hardware);
    return object;
}

static const char *text_of(const json_t *object, const char *name) {
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "not given";
}

/* The first name whose text differs; NULL: none does. */
static const char *find_difference(const json_t *asked, const json_t *kept) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)asked, name, value) {
        if (!json_equal(value, json_object_get(kept, name)))
            return name;
    }
    json_object_foreach((json_t *)kept, name, value) {
        if (json_object_get(asked, name) == NULL)
            return name;
    }
    return NULL;
}

/* ---- the file -------------------------------------------------------------------------------- */

static bool are_points(const json_t *points) {
    size_t i;
    json_t *point;
    if (!json_is_array(points))
        return false;
    json_array_foreach((json_t *)points, i, point) {
        if (!json_is_object(point))
            return false;
    }
    return true;
}

static zr_status_t check(const char *path, const json_t *state, const json_t *question,
                         const zr_log_t *log) {
    const json_t *kept = json_object_get(state, QUESTION);
    if (!json_is_object(kept) || !are_points(json_object_get(state, POINTS)))
        return zr_fail(
            log, ZR_ERR_FORMAT,
            "--state %s: is not a state of zero-capacity; give another name, or leave out --resume",
            path);
    const char *name = find_difference(question, kept);
    if (name == NULL)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--resume: %s belongs to another search: %s was %s and is %s now; use the same "
                   "options, or leave out --resume to start again",
                   path, name, text_of(kept, name), text_of(question, name));
}

zr_status_t capacity_state_read(const char *path, const json_t *question, const zr_log_t *log,
                                json_t **points_p) {
    json_error_t error;
    char *text;
    size_t n_bytes;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        zr_log_write(log, ZR_LOG_WARNING,
                     "--resume: %s does not exist: starting from the beginning", path);
        *points_p = NULL;
        return ZR_OK;
    }
    zr_log_t own = files_log(&(files_log_t){*log, "--state"});
    ZR_TRY(zr_text_file_read(path, FILE_MAX_BYTES, &own, &text, &n_bytes));
    json_t *state = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (state == NULL)
        return zr_fail(log, ZR_ERR_FORMAT, "--state %s: line %d, column %d: %s", path, error.line,
                       error.column, error.text);
    zr_status_t status = check(path, state, question, log);
    if (status == ZR_OK)
        *points_p = json_incref(json_object_get(state, POINTS));
    json_decref(state);
    return status;
}

/* True: it is on the drive, and closed. */
static bool write_whole(FILE *file, const json_t *state) {
    bool good = json_print(state, true, file);
    good = good && fflush(file) == 0 && fsync(fileno(file)) == 0;
    return fclose(file) == 0 && good;
}

static zr_status_t replace(const char *path, const json_t *state, const zr_log_t *log) {
    char sibling[PATH_MAX];
    int n = snprintf(sibling, sizeof(sibling), "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof(sibling))
        return zr_fail(log, ZR_ERR_IO, "--state %s: the name is too long", path);
    FILE *file = fopen(sibling, "w");
    bool written = file != NULL && write_whole(file, state);
    if (written && rename(sibling, path) == 0)
        return ZR_OK;
    int error = errno;
    if (file != NULL)
        unlink(sibling);
    return zr_fail(log, ZR_ERR_IO, "--state %s cannot be written: %s", path, strerror(error));
}

zr_status_t capacity_state_write(const char *path, const json_t *question, const json_t *points,
                                 const zr_log_t *log) {
    json_t *state = json_object();
    bool made = json_object_set(state, QUESTION, (json_t *)question) == 0;
    made &= json_object_set(state, POINTS, (json_t *)points) == 0;
    zr_status_t status =
        made ? replace(path, state, log) : zr_fail(log, ZR_ERR_MEMORY, "no memory for the state");
    json_decref(state);
    return status;
}
