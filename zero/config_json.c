/*
 * Reads DeepSpeed's JSON. The text is jansson's to parse; what a key means is the table's to
 * say. Nothing in a file is passed over: every key is applied, allowed for a reason that the
 * table names, or refused, and all that is wrong is reported before anything is given back.
 */
#include "zero/config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/config_keys.h"
#include "zero/config_whole.h"

enum {
    FILE_MAX_BYTES = 16 << 20, /* no configuration is larger; /dev/zero is */
    SHOWN_MAX_BYTES = 80       /* of a value or an unknown key in a message */
};

/** The largest integer that a JSON number with a point or an exponent surely means. */
static const double real_integer_max = 9007199254740992.0; /* 2^53 */

/** One reading of a file. */
typedef struct reader {
    const char *path;
    const zr_log_t *log;
    zr_config_t config; /* what has been read so far */
    zr_status_t status; /* of the first error */
} reader_t;

static void report(reader_t *reader, zr_status_t status, const char *format, ...) ZR_PRINTF(3, 4);

static void report(reader_t *reader, zr_status_t status, const char *format, ...) {
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    zr_status_t logged = zr_fail(reader->log, status, "%s: %s", reader->path, message);
    if (reader->status == ZR_OK)
        reader->status = logged;
}

/* ---- what messages show ---------------------------------------------------- */

typedef struct shown {
    char text[SHOWN_MAX_BYTES];
} shown_t;

/** One line of printable text, cut where it is too long. */
static void show_bytes(shown_t *shown, const char *bytes, size_t n_bytes) {
    size_t room = sizeof(shown->text) - 4; /* "..." and the end */
    size_t n = n_bytes < room ? n_bytes : room;
    for (size_t i = 0; i < n; i++)
        shown->text[i] = (char)(isprint((unsigned char)bytes[i]) ? bytes[i] : '?');
    snprintf(shown->text + n, sizeof(shown->text) - n, "%s", n < n_bytes ? "..." : "");
}

/** Collects what json_dump_callback writes; more than fits ends the dump. */
typedef struct dump {
    char bytes[SHOWN_MAX_BYTES];
    size_t n_bytes;
} dump_t;

static int dump_append(const char *bytes, size_t n_bytes, void *context) {
    dump_t *dump = (dump_t *)context;
    size_t room = sizeof(dump->bytes) - dump->n_bytes;
    size_t n = n_bytes < room ? n_bytes : room;
    memcpy(dump->bytes + dump->n_bytes, bytes, n);
    dump->n_bytes += n;
    return n < n_bytes ? -1 : 0;
}

static void show_value(shown_t *shown, const json_t *value) {
    dump_t dump = {.n_bytes = 0};
    json_dump_callback(value, dump_append, &dump,
                       JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    show_bytes(shown, dump.bytes, dump.n_bytes);
}

static void show_key(shown_t *shown, const zr_config_key_t *section, const char *name) {
    char path[SHOWN_MAX_BYTES];
    snprintf(path, sizeof(path), "%s%s%s", section ? section->path : "", section ? "." : "", name);
    show_bytes(shown, path, strlen(path));
}

/* ---- values ---------------------------------------------------------------- */

static bool is_auto(const json_t *value) {
    return json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
}

/** Whether a value says "as it is": "auto", or null where that is DeepSpeed's default. */
static bool leaves_field(const zr_config_key_t *key, const json_t *value) {
    if (json_is_null(value))
        return strcmp(key->usual, "null") == 0;
    return (key->flags & ZR_KEY_AUTO) && is_auto(value);
}

static bool is_integer(const json_t *value) {
    if (json_is_integer(value))
        return true;
    double real = json_real_value(value);
    return json_is_real(value) && real == floor(real) && fabs(real) <= real_integer_max;
}

static bool has_type(const zr_config_key_t *key, const json_t *value) {
    switch (key->type) {
    case ZR_KEY_BOOL:
        return json_is_boolean(value);
    case ZR_KEY_INTEGER:
        return is_integer(value);
    case ZR_KEY_NUMBER:
        return json_is_number(value);
    case ZR_KEY_STRING:
        return json_is_string(value);
    case ZR_KEY_PAIR:
        return json_is_array(value) && json_array_size(value) == 2 &&
               json_is_number(json_array_get(value, 0)) && json_is_number(json_array_get(value, 1));
    case ZR_KEY_LIST:
        return json_is_array(value);
    case ZR_KEY_OBJECT:
        return json_is_object(value);
    case ZR_KEY_ANY:
        return true;
    }
    return false;
}

/** Whether a scalar is what `text`, JSON of the table, says. Numbers compare as numbers. */
static bool value_is(const json_t *value, const char *text) {
    if (json_is_boolean(value))
        return strcmp(text, json_is_true(value) ? "true" : "false") == 0;
    if (json_is_number(value)) {
        char *end;
        double number = strtod(text, &end);
        return end != text && json_number_value(value) == number;
    }
    if (json_is_string(value)) {
        size_t n = json_string_length(value);
        return text[0] == '"' && strlen(text) == n + 2 &&
               strncasecmp(text + 1, json_string_value(value), n) == 0;
    }
    return false;
}

static const zr_key_choice_t *find_choice(const zr_config_key_t *key, const json_t *value) {
    for (const zr_key_choice_t *choice = key->choices; choice->name; choice++)
        if (strcasecmp(choice->name, json_string_value(value)) == 0)
            return choice;
    return NULL;
}

/** "supported names" of a key's choices, for messages. */
static void show_choices(const zr_config_key_t *key, char *text, size_t text_bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (const zr_key_choice_t *choice = key->choices; choice->name; choice++)
        if (choice->supported && used < text_bytes)
            used += (size_t)snprintf(text + used, text_bytes - used, "%s\"%s\"", used ? " or " : "",
                                     choice->name);
}

/* ---- one key --------------------------------------------------------------- */

static void refuse_type(reader_t *reader, const zr_config_key_t *key, const json_t *value) {
    shown_t shown;
    show_value(&shown, value);
    const char *range = zr_key_range_text(key->range);
    const char *advice = "";
    if (json_is_string(value) &&
        (key->type == ZR_KEY_INTEGER || key->type == ZR_KEY_NUMBER || key->type == ZR_KEY_BOOL))
        advice = is_auto(value) ? "; \"auto\" is not known for this key" : "; without quotes";
    else if (json_is_real(value) && fabs(json_real_value(value)) > real_integer_max)
        advice = "; write an integer of this size without point and exponent";
    report(reader, ZR_ERR_ARGUMENT, "%s is %s, has to be %s%s%s%s", key->path, shown.text,
           zr_key_type_text(key->type), range[0] ? ", " : "", range, advice);
}

/** @return false, and the error reported, when a string is not a supported one of its choices */
static bool check_choice(reader_t *reader, const zr_config_key_t *key, const json_t *value) {
    const zr_key_choice_t *choice = find_choice(key, value);
    if (choice && choice->supported)
        return true;
    shown_t shown;
    char allowed[160];
    show_value(&shown, value);
    show_choices(key, allowed, sizeof(allowed));
    if (choice) {
        const char *why = key->action == ZR_KEY_FIXED ? key->note : NULL;
        report(reader, ZR_ERR_UNSUPPORTED, "%s is %s, which is not supported%s%s; write %s",
               key->path, shown.text, why ? ": " : "", why ? why : "", allowed);
        return false;
    }
    const zr_key_choice_t *nearest = zr_key_choice_nearest(key->choices, json_string_value(value));
    if (nearest)
        report(reader, ZR_ERR_ARGUMENT, "%s is %s, which is not known; did you mean \"%s\"?",
               key->path, shown.text, nearest->name);
    else
        report(reader, ZR_ERR_ARGUMENT, "%s is %s, which is not known; write %s", key->path,
               shown.text, allowed);
    return false;
}

/** A text has to fit its field. */
static bool check_length(reader_t *reader, const zr_config_key_t *key, const json_t *value) {
    if (key->store != ZR_STORE_TEXT || json_string_length(value) < ZR_CONFIG_PATHS_BYTES)
        return true;
    shown_t shown;
    show_value(&shown, value);
    report(reader, ZR_ERR_ARGUMENT, "%s is %s, which has %zu bytes, has to have less than %d",
           key->path, shown.text, json_string_length(value), ZR_CONFIG_PATHS_BYTES);
    return false;
}

static bool check_range(reader_t *reader, const zr_config_key_t *key, const json_t *value) {
    bool is_pair = key->type == ZR_KEY_PAIR;
    for (size_t i = 0; i < (is_pair ? 2 : 1); i++) {
        const json_t *part = is_pair ? json_array_get(value, i) : value;
        double number = json_number_value(part);
        if (!json_is_number(part) || zr_key_range_holds(key->range, number))
            continue;
        shown_t shown;
        show_value(&shown, value);
        report(reader, ZR_ERR_ARGUMENT, "%s is %s, has to be %s%s", key->path, shown.text,
               zr_key_range_text(key->range), zr_key_range_hint(key->range, number));
        return false;
    }
    return true;
}

static json_int_t integer_of(const json_t *value) {
    return json_is_integer(value) ? json_integer_value(value) : (json_int_t)json_real_value(value);
}

/** The value has its type, range and choice, so it fits its field. */
static void store_field(zr_config_t *config, const zr_config_key_t *key, const json_t *value) {
    void *field = (char *)config + key->offset;
    switch (key->store) {
    case ZR_STORE_NOTHING:
        break;
    case ZR_STORE_BOOL:
        *(bool *)field =
            key->choices ? find_choice(key, value)->value != 0 : (bool)json_is_true(value);
        break;
    case ZR_STORE_INT:
        *(int *)field = key->choices ? find_choice(key, value)->value : (int)integer_of(value);
        break;
    case ZR_STORE_SIZE:
        *(size_t *)field = (size_t)integer_of(value);
        break;
    case ZR_STORE_DOUBLE:
        *(double *)field = json_number_value(value);
        break;
    case ZR_STORE_PAIR:
        ((double *)field)[0] = json_number_value(json_array_get(value, 0));
        ((double *)field)[1] = json_number_value(json_array_get(value, 1));
        break;
    case ZR_STORE_DTYPE:
        *(zr_dtype_t *)field = json_is_true(value) ? ZR_DTYPE_BF16 : ZR_DTYPE_F32;
        break;
    case ZR_STORE_TEXT:
        snprintf(field, ZR_CONFIG_PATHS_BYTES, "%s", json_string_value(value));
        break;
    }
}

static void read_scalar(reader_t *reader, const zr_config_key_t *key, const json_t *value) {
    shown_t shown;
    if (leaves_field(key, value))
        return;
    if (!has_type(key, value)) {
        refuse_type(reader, key, value);
        return;
    }
    if (key->choices && !check_choice(reader, key, value))
        return;
    switch (key->action) {
    case ZR_KEY_FIELD:
        if (check_range(reader, key, value) && check_length(reader, key, value))
            store_field(&reader->config, key, value);
        break;
    case ZR_KEY_FIXED:
        if (value_is(value, key->only))
            break;
        show_value(&shown, value);
        report(reader, ZR_ERR_UNSUPPORTED, "%s is %s, only %s is supported: %s", key->path,
               shown.text, key->only, key->note);
        break;
    case ZR_KEY_REFUSED:
        report(reader, ZR_ERR_UNSUPPORTED, "%s is not supported: %s", key->path, key->note);
        break;
    case ZR_KEY_INERT:
    case ZR_KEY_SECTION:
        break;
    }
}

/** The one key that is spelt so in another section, or, with dots, as a whole path. */
static const zr_config_key_t *find_elsewhere(const char *name) {
    size_t n_keys;
    const zr_config_key_t *keys = zr_config_keys(&n_keys);
    const zr_config_key_t *found = NULL;
    for (size_t i = 0; i < n_keys; i++) {
        if (strcmp(keys[i].path, name) == 0)
            return &keys[i];
        if (strcmp(zr_config_key_name(&keys[i]), name) != 0)
            continue;
        if (found)
            return NULL;
        found = &keys[i];
    }
    return found;
}

static void refuse_unknown(reader_t *reader, const zr_config_key_t *section, const char *name) {
    shown_t shown;
    show_key(&shown, section, name);
    const zr_config_key_t *nearest = zr_config_key_nearest(section, name);
    const zr_config_key_t *elsewhere = find_elsewhere(name);
    if (elsewhere && strchr(name, '.'))
        report(reader, ZR_ERR_ARGUMENT,
               "%s is not a key of DeepSpeed's: keys have no dots, write %s inside the section",
               shown.text, zr_config_key_name(elsewhere));
    else if (elsewhere)
        report(reader, ZR_ERR_ARGUMENT, "%s is not a key of DeepSpeed's; did you mean %s?",
               shown.text, elsewhere->path);
    else if (nearest)
        report(reader, ZR_ERR_ARGUMENT, "%s is not a key of DeepSpeed's; did you mean %s?",
               shown.text, nearest->path);
    else
        report(reader, ZR_ERR_ARGUMENT,
               "%s is not a key of DeepSpeed's, nor like one; docs/config.md has all of them",
               shown.text);
}

/* ---- sections --------------------------------------------------------------- */

/** Read the keys of a section (NULL: of the file). As deep as the table, not as the file. */
static void read_section(reader_t *reader, const zr_config_key_t *section, json_t *object) {
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value) {
        const zr_config_key_t *key = zr_config_key_find(section, name);
        if (!key)
            refuse_unknown(reader, section, name);
        else if (key->action == ZR_KEY_SECTION && json_is_object(value))
            read_section(reader, key, value);
        else
            read_scalar(reader, key, value);
    }
}

/** The supported choice of scheduler.type that is in force; NULL: the rate is constant. */
static const zr_key_choice_t *scheduler_choice(const zr_config_key_t *key,
                                               zr_schedule_kind_t kind) {
    for (const zr_key_choice_t *choice = key->choices; choice->name; choice++)
        if (choice->supported && choice->value == (int)kind)
            return choice;
    return NULL;
}

/** A parameter that the chosen schedule does not have would have no effect: refuse it. */
static void check_scheduler_params(reader_t *reader, const json_t *root) {
    const zr_config_key_t *section = zr_config_key_find(NULL, "scheduler");
    const zr_config_key_t *type_key = zr_config_key_find(section, "type");
    const zr_config_key_t *params = zr_config_key_find(section, "params");
    const json_t *scheduler = json_object_get(root, "scheduler");
    const json_t *type = json_object_get(scheduler, "type");
    zr_schedule_kind_t kind = reader->config.schedule.kind;
    const zr_key_choice_t *choice = scheduler_choice(type_key, kind);
    if (type && !leaves_field(type_key, type) &&
        !(json_is_string(type) && choice && find_choice(type_key, type) == choice))
        return; /* a type that is wrong, and reported */
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(scheduler, "params"), name, value) {
        const zr_config_key_t *key = zr_config_key_find(params, name);
        if (!key || key->action != ZR_KEY_FIELD || leaves_field(key, value) ||
            (key->schedules & (1u << kind)))
            continue;
        if (choice)
            report(reader, ZR_ERR_ARGUMENT, "%s is not a parameter of %s (scheduler.type)",
                   key->path, choice->name);
        else
            report(reader, ZR_ERR_ARGUMENT,
                   "%s has no effect without scheduler.type, which is not set", key->path);
    }
}

/* ---- text ------------------------------------------------------------------- */

static zr_status_t fail_io(const reader_t *reader, const char *what) {
    return zr_fail(reader->log, ZR_ERR_IO, "%s: cannot %s: %s", reader->path, what,
                   strerror(errno));
}

/** Read what is left of an open file, and end it with a zero; the caller frees *text_p. */
static zr_status_t read_rest(const reader_t *reader, int fd, char **text_p, size_t *n_bytes_p) {
    char *text = NULL;
    size_t n_bytes = 0, capacity = 0;
    zr_status_t status;
    for (;;) {
        if (n_bytes == capacity) {
            capacity = capacity ? 2 * capacity : 4096;
            char *larger = (char *)realloc(text, capacity + 1);
            if (!larger) {
                status = zr_fail(reader->log, ZR_ERR_MEMORY, "%s: no memory for %s of it",
                                 reader->path, zr_count_text(capacity, "byte").text);
                goto err_free_text;
            }
            text = larger;
        }
        ssize_t n = read(fd, text + n_bytes, capacity - n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = fail_io(reader, "read it");
            goto err_free_text;
        }
        if (n == 0)
            break;
        n_bytes += (size_t)n;
        if (n_bytes > FILE_MAX_BYTES) {
            status = zr_fail(reader->log, ZR_ERR_FORMAT,
                             "%s: more than %d MiB, which is no configuration", reader->path,
                             FILE_MAX_BYTES >> 20);
            goto err_free_text;
        }
    }
    text[n_bytes] = '\0';
    *text_p = text;
    *n_bytes_p = n_bytes;
    return ZR_OK;

err_free_text:
    free(text);
    return status;
}

static zr_status_t read_text(const reader_t *reader, char **text_p, size_t *n_bytes_p) {
    int fd = open(reader->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_io(reader, "open it");
    struct stat about;
    zr_status_t status;
    if (fstat(fd, &about) == 0 && S_ISDIR(about.st_mode))
        status = zr_fail(reader->log, ZR_ERR_IO, "%s: is a directory, not a file", reader->path);
    else
        status = read_rest(reader, fd, text_p, n_bytes_p);
    close(fd);
    return status;
}

/** What a reader of the message may want to know beyond what the parser says; "" if nothing. */
static const char *advise(const char *text, size_t n_bytes, const json_error_t *error) {
    size_t at = error->position > 0 ? (size_t)error->position : 0;
    if (at > n_bytes)
        at = n_bytes;
    if (n_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return "; the file begins with a byte order mark, remove it";
    if (json_error_code(error) == json_error_premature_end_of_input)
        return "; is the file cut off?";
    if (at == 0)
        return "";
    char last = text[at - 1];
    if (last == '#' || (last == '/' && at < n_bytes && (text[at] == '/' || text[at] == '*')))
        return "; JSON has no comments, remove it";
    if (last == '\'')
        return "; JSON's strings stand in double quotes";
    if (last == '}' || last == ']') {
        size_t before = at - 1;
        while (before > 0 && isspace((unsigned char)text[before - 1]))
            before--;
        if (before > 0 && text[before - 1] == ',')
            return "; JSON has no comma after the last item, remove it";
    }
    return "";
}

static zr_status_t fail_no_memory(const reader_t *reader, size_t n_bytes) {
    return zr_fail(reader->log, ZR_ERR_MEMORY, "%s: no memory to parse %s", reader->path,
                   zr_count_text(n_bytes, "byte").text);
}

static zr_status_t fail_parse(const reader_t *reader, const char *text, size_t n_bytes,
                              const json_error_t *error) {
    enum json_error_code code = json_error_code(error);
    if (code == json_error_out_of_memory || error->text[0] == '\0')
        return fail_no_memory(reader, n_bytes);
    char message[JSON_ERROR_TEXT_LENGTH];
    snprintf(message, sizeof(message), "%s", error->text);
    for (char *letter = message; *letter; letter++)
        if (!isprint((unsigned char)*letter))
            *letter = '?';
    zr_status_t status = code == json_error_numeric_overflow ? ZR_ERR_ARGUMENT : ZR_ERR_FORMAT;
    return zr_fail(reader->log, status, "%s: line %d, column %d: %s%s", reader->path, error->line,
                   error->column, message, advise(text, n_bytes, error));
}

/** Parse the file; the caller drops *root_p. */
static zr_status_t parse(const reader_t *reader, json_t **root_p) {
    char *text = NULL;
    size_t n_bytes = 0;
    ZR_TRY(read_text(reader, &text, &n_bytes));

    zr_status_t status = ZR_OK;
    bool blank = true;
    for (size_t i = 0; i < n_bytes && blank; i++)
        blank = isspace((unsigned char)text[i]);
    if (blank) {
        status = zr_fail(reader->log, ZR_ERR_FORMAT,
                         "%s: is empty; a configuration without keys is {}", reader->path);
        goto out_free_text;
    }
    const char *zero = memchr(text, '\0', n_bytes); /* jansson passes over some */
    if (zero) {
        status = zr_fail(reader->log, ZR_ERR_FORMAT, "%s: its byte %zu is 0, which no text has",
                         reader->path, (size_t)(zero - text));
        goto out_free_text;
    }
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!root) {
        status = fail_parse(reader, text, n_bytes, &error);
    } else if (!zr_config_is_whole(text, root)) {
        status = fail_no_memory(reader, n_bytes);
        json_decref(root);
    } else {
        *root_p = root;
    }

out_free_text:
    free(text);
    return status;
}

/** Two keys that set one field have to agree, unless the field was set before: then it stays. */
static void check_nvme_paths(reader_t *reader, const zr_config_t *before, const json_t *root) {
    const json_t *zero = json_object_get(root, "zero_optimization");
    const char *paths[2];
    static const char *const sections[] = {"offload_optimizer", "offload_param"};
    for (int i = 0; i < 2; i++) {
        const json_t *path = json_object_get(json_object_get(zero, sections[i]), "nvme_path");
        paths[i] = is_auto(path) ? NULL : json_string_value(path);
    }
    if (paths[0] == NULL || paths[1] == NULL || strcmp(paths[0], paths[1]) == 0)
        return;
    if (before->nvme.paths[0] == '\0') {
        report(reader, ZR_ERR_UNSUPPORTED,
               "zero_optimization.offload_param.nvme_path is \"%s\", offload_optimizer.nvme_path "
               "\"%s\"; only the same for both is supported: name all drives in both, with commas "
               "between",
               paths[1], paths[0]);
        return;
    }
    memcpy(reader->config.nvme.paths, before->nvme.paths, sizeof(before->nvme.paths));
    zr_log_write(reader->log, ZR_LOG_INFO,
                 "%s: zero_optimization.offload_param.nvme_path \"%s\" and "
                 "offload_optimizer.nvme_path \"%s\" differ; used is \"%s\", which was set before",
                 reader->path, paths[1], paths[0], before->nvme.paths);
}

zr_status_t zr_config_read_json(const char *path, const zr_log_t *log, zr_config_t *config) {
    if (!path || !config)
        return zr_fail(log, ZR_ERR_ARGUMENT, "configuration: no %s",
                       path ? "place to read it to" : "file to read");
    reader_t reader = {.path = path, .log = log, .config = *config, .status = ZR_OK};
    json_t *root = NULL;
    ZR_TRY(parse(&reader, &root));
    if (json_is_object(root)) {
        read_section(&reader, NULL, root);
        check_scheduler_params(&reader, root);
        check_nvme_paths(&reader, config, root);
    } else {
        shown_t shown;
        show_value(&shown, root);
        report(&reader, ZR_ERR_FORMAT, "is %s, has to be an object: {\"key\": value, ...}",
               shown.text);
    }
    json_decref(root);
    if (reader.status == ZR_OK)
        *config = reader.config;
    return reader.status;
}
