/*
 * Reads DeepSpeed's JSON. The text is jansson's to parse; what a key means is the table's to
 * say. Nothing in a file is passed over: every key is applied, allowed for a reason that the
 * table names, or refused, and all that is wrong is reported before anything is given back.
 */
#include "zero/config.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kernels/base/text_file.h"
#include "zero/config/keys.h"
#include "zero/config/relaxed.h"
#include "zero/config/whole.h"
#include "zero/nearest_internal.h"

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
    zr_options_given_t *given;
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

/* ---- values ---------------------------------------------------------------- */

static bool is_auto(const json_t *value) {
    return json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
}

static bool is_integer(const json_t *value) {
    if (json_is_integer(value))
        return true;
    double real = json_real_value(value);
    return json_is_real(value) && real == floor(real) && fabs(real) <= real_integer_max;
}

static json_int_t integer_of(const json_t *value) {
    return json_is_integer(value) ? json_integer_value(value) : (json_int_t)json_real_value(value);
}

/** Whether a scalar is what `n` bytes of a table, JSON, say. Numbers compare as numbers. */
static bool value_is(const json_t *value, const char *text, size_t n) {
    char word[64];
    snprintf(word, sizeof(word), "%.*s", (int)n, text);
    if (json_is_null(value))
        return strcmp(word, "null") == 0;
    if (json_is_boolean(value))
        return strcmp(word, json_is_true(value) ? "true" : "false") == 0;
    if (json_is_number(value)) {
        char *end;
        double number = strtod(word, &end);
        return end != word && json_number_value(value) == number;
    }
    if (json_is_string(value)) {
        size_t length = json_string_length(value);
        return word[0] == '"' && n == length + 2 &&
               strncasecmp(word + 1, json_string_value(value), length) == 0;
    }
    return false;
}

/** Words up to the end or a bar. */
static bool value_is_one_of(const json_t *value, const char *words) {
    while (words != NULL && *words != '\0' && *words != '|') {
        size_t n = strcspn(words, " ");
        if (value_is(value, words, n) ||
            (json_is_number(value) && strncmp(words, ZR_KEY_NUMBER, n) == 0))
            return true;
        words += n + strspn(words + n, " ");
    }
    return false;
}

/* ---- an option --------------------------------------------------------------- */

/** A choice as JSON; "": a file has no word for it. */
static const char *choice_text(const zr_option_choice_t *choice, char *text, size_t text_bytes) {
    if (choice->json != NULL)
        return choice->json;
    snprintf(text, text_bytes, "\"%s\"", choice->name);
    return text;
}

/** "\"a\" or \"b\"" of an option's words. */
static void show_choices(const zr_option_t *option, char *text, size_t text_bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (const zr_option_choice_t *c = zr_option_choices(option); !zr_option_choice_is_last(c);
         c++) {
        char own[64];
        const char *word = choice_text(c, own, sizeof(own));
        if (word[0] != '\0' && used < text_bytes)
            used +=
                (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? " or " : "", word);
    }
}

zr_json_kind_t zr_option_json_kind(const zr_option_t *option) {
    char own[64] = "";
    const zr_option_choice_t *choices = zr_option_choices(option);
    const char *word = choices != NULL ? choice_text(&choices[0], own, sizeof(own)) : "";
    if (word[0] == 't' || word[0] == 'f')
        return ZR_JSON_BOOL;
    if (word[0] == '"' || option->type == ZR_OPTION_PATHS || option->type == ZR_OPTION_STRING)
        return ZR_JSON_STRING;
    return option->type == ZR_OPTION_NUMBER ? ZR_JSON_NUMBER : ZR_JSON_INTEGER;
}

const char *zr_json_kind_text(zr_json_kind_t kind) {
    static const char *const texts[] = {"true or false", "a string", "a number", "an integer"};
    return texts[kind];
}

static bool has_kind(const json_t *value, zr_json_kind_t kind) {
    switch (kind) {
    case ZR_JSON_BOOL:
        return json_is_boolean(value);
    case ZR_JSON_STRING:
        return json_is_string(value);
    case ZR_JSON_NUMBER:
        return json_is_number(value);
    case ZR_JSON_INTEGER:
        return is_integer(value);
    }
    return false;
}

static void refuse_type(reader_t *reader, const zr_key_t *key, const json_t *value) {
    zr_json_kind_t kind = zr_option_json_kind(key->option);
    bool is_number = (kind == ZR_JSON_NUMBER || kind == ZR_JSON_INTEGER) &&
                     zr_option_choices(key->option) == NULL;
    const char *advice = "";
    char what[64];
    shown_t shown;
    show_value(&shown, value);
    snprintf(what, sizeof(what), "%s", zr_json_kind_text(kind));
    if (key->n_elements > 0)
        snprintf(what, sizeof(what), "a list of %zu numbers", key->n_elements);
    if (json_is_string(value) && key->n_elements == 0)
        advice = is_auto(value) ? "; \"auto\" is not supported for this key" : "; without quotes";
    else if (json_is_real(value) && fabs(json_real_value(value)) > real_integer_max)
        advice = "; write an integer of this size without point and exponent";
    report(reader, ZR_ERR_ARGUMENT, "%s is %s, must be %s%s%s%s", key->path, shown.text, what,
           is_number ? ", " : "", is_number ? zr_option_range(key->option).text : "", advice);
}

/** Words of an option, for a message that names the nearest. */
typedef struct words {
    char text[ZR_OPTION_CHOICES_MOST][64];
    const char *names[ZR_OPTION_CHOICES_MOST];
    size_t n;
} words_t;

static void add_word(words_t *words, const char *word, size_t n) {
    if (words->n == ZR_OPTION_CHOICES_MOST)
        return;
    snprintf(words->text[words->n], sizeof(words->text[0]), "%.*s", (int)n, word);
    words->names[words->n] = words->text[words->n];
    words->n++;
}

/** A string that is none of an option's words. */
static void refuse_word(reader_t *reader, const zr_key_t *key, const json_t *value,
                        const char *allowed) {
    words_t words = {.n = 0};
    char own[64];
    shown_t shown;
    show_value(&shown, value);
    for (const zr_option_choice_t *c = key->option->choices; !zr_option_choice_is_last(c); c++) {
        const char *word = choice_text(c, own, sizeof(own));
        if (word[0] != '\0')
            add_word(&words, word + 1, strlen(word) - 2);
    }
    for (const char *at = key->option->refused; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, " ");
        add_word(&words, at, n);
        at += n + strspn(at + n, " ");
    }
    const char *nearest = zr_name_nearest(json_string_value(value), words.names, words.n);
    if (zr_words_have(key->option->refused, json_string_value(value)))
        report(reader, ZR_ERR_UNSUPPORTED, "%s is %s, which is not supported; write %s", key->path,
               shown.text, allowed);
    else if (nearest != NULL)
        report(reader, ZR_ERR_ARGUMENT, "%s is %s, which is not known; did you mean \"%s\"?",
               key->path, shown.text, nearest);
    else
        report(reader, ZR_ERR_ARGUMENT, "%s is %s, which is not known; write %s", key->path,
               shown.text, allowed);
}

/** @return false, and the error reported, when a value is none of an option's words */
static bool take_choice(reader_t *reader, const zr_key_t *key, const json_t *value) {
    char own[64], allowed[160];
    shown_t shown;
    for (const zr_option_choice_t *c = zr_option_choices(key->option); !zr_option_choice_is_last(c);
         c++) {
        const char *word = choice_text(c, own, sizeof(own));
        if (word[0] != '\0' && value_is(value, word, strlen(word))) {
            zr_option_store_whole(key->option, (uint64_t)c->value, &reader->config);
            return true;
        }
    }
    show_choices(key->option, allowed, sizeof(allowed));
    show_value(&shown, value);
    if (json_is_string(value))
        refuse_word(reader, key, value, allowed);
    else
        report(reader, ZR_ERR_ARGUMENT, "%s is %s, must be %s", key->path, shown.text, allowed);
    return false;
}

static void take_text(reader_t *reader, const zr_key_t *key, const json_t *value) {
    char *field = (char *)&reader->config + key->option->offset;
    if (json_string_length(value) < ZR_CONFIG_PATHS_BYTES) {
        snprintf(field, ZR_CONFIG_PATHS_BYTES, "%s", json_string_value(value));
        return;
    }
    shown_t shown;
    show_value(&shown, value);
    report(reader, ZR_ERR_ARGUMENT, "%s is %s, which has %zu bytes, must have less than %d",
           key->path, shown.text, json_string_length(value), ZR_CONFIG_PATHS_BYTES);
}

/** One value of an option: `whole` is what the file has, a list where `value` is of one. */
static bool take_value(reader_t *reader, const zr_key_t *key, const zr_option_t *option,
                       const json_t *value, const json_t *whole) {
    shown_t shown;
    double number = json_number_value(value);
    if (!has_kind(value, zr_option_json_kind(option))) {
        refuse_type(reader, key, whole);
        return false;
    }
    if (zr_option_choices(option) != NULL)
        return take_choice(reader, key, value);
    if (json_is_string(value)) {
        take_text(reader, key, value);
        return true;
    }
    if (!zr_option_holds(option, number)) {
        show_value(&shown, whole);
        report(reader, ZR_ERR_ARGUMENT, "%s is %s, must be %s", key->path, shown.text,
               zr_option_range(option).text);
        return false;
    }
    if (option->type == ZR_OPTION_NUMBER)
        *(double *)(void *)((char *)&reader->config + option->offset) = number;
    else
        zr_option_store_whole(option, (uint64_t)integer_of(value), &reader->config);
    return true;
}

static void read_option(reader_t *reader, const zr_key_t *key, const json_t *value) {
    if (json_is_null(value) && key->option->usual != NULL &&
        strcmp(key->option->usual, "null") == 0)
        return;
    size_t n = key->n_elements > 0 ? key->n_elements : 1, n_options = 0;
    const zr_option_t *options = zr_options(&n_options);
    if ((key->option->flags & ZR_OPTION_FILE_AUTO) != 0 && is_auto(value)) {
        for (size_t i = 0; i < n; i++)
            reader->given->is_auto[&key->option[i] - options] = true;
        return;
    }
    if ((key->option->flags & ZR_OPTION_FILE_ZERO) != 0 && json_is_number(value) &&
        json_number_value(value) == 0) {
        zr_log_write(reader->log, ZR_LOG_INFO, "%s: %s 0 has no effect: it is taken as not set",
                     reader->path, key->path);
        return;
    }
    if (key->n_elements > 0 &&
        (!json_is_array(value) || json_array_size(value) != key->n_elements)) {
        refuse_type(reader, key, value);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *part = key->n_elements > 0 ? json_array_get(value, i) : value;
        if (!take_value(reader, key, &key->option[i], part, value))
            return;
        reader->given->is[&key->option[i] - options] = true;
    }
}

/* ---- other keys -------------------------------------------------------------- */

static void read_rule(reader_t *reader, const zr_key_t *key, const json_t *value) {
    const zr_key_rule_t *rule = key->rule;
    bool is_empty = json_is_object(value) && json_object_size(value) == 0;
    if (rule->only != NULL &&
        (strcmp(rule->only, ZR_KEY_ANY) == 0 || value_is_one_of(value, rule->only)))
        return;
    if (zr_key_section_of(key)->may_be_auto && is_auto(value))
        return;
    shown_t shown;
    show_value(&shown, value);
    const char *noted = rule->only != NULL ? strstr(rule->only, "| ") : NULL;
    if (noted != NULL && value_is_one_of(value, noted + 2)) {
        zr_log_write(reader->log, ZR_LOG_INFO, "%s: %s %s has no effect: %s", reader->path,
                     key->path, shown.text, rule->note);
        return;
    }
    if (rule->only != NULL && strcmp(rule->only, "null") != 0)
        report(reader, ZR_ERR_UNSUPPORTED, "%s is %s, only %.*s is supported: %s", key->path,
               shown.text, (int)strcspn(rule->only, " "), rule->only, rule->note);
    else if (!is_empty) /* which says nothing */
        report(reader, ZR_ERR_UNSUPPORTED, "%s is not supported: %s", key->path, rule->note);
}

/** A key of a section that is not supported: what switches it off, or without effect. */
static void read_off(reader_t *reader, const zr_key_t *key, const json_t *value) {
    const zr_key_section_t *section = zr_key_section_of(key);
    if (strcmp(zr_key_name(key), section->off) != 0 ||
        value_is(value, section->only, strlen(section->only)))
        return;
    if (section->may_be_auto && is_auto(value)) {
        zr_log_write(reader->log, ZR_LOG_INFO, "%s: %s \"auto\" is taken as %s: %s", reader->path,
                     key->path, section->only, section->why);
        return;
    }
    shown_t shown;
    show_value(&shown, value);
    report(reader, ZR_ERR_UNSUPPORTED, "%s is %s, only %s is supported: %s", key->path, shown.text,
           section->only, section->why);
}

/* ---- names ------------------------------------------------------------------- */

/** What DeepSpeed's names of stage 3 may begin with. */
static const char stage_3[] = "stage3_";

/** What an unknown name may be a slip of. */
typedef struct likeness {
    const char *section; /* path of the section that it stands in */
    const char *name;
    size_t limit;
    char nearest[ZR_KEY_PATH_BYTES];
    char elsewhere[ZR_KEY_PATH_BYTES]; /* the key that is spelt so in another section */
    size_t n_elsewhere;
} likeness_t;

static bool compare_key(void *context, const zr_key_t *key) {
    likeness_t *likeness = context;
    const char *name = zr_key_name(key);
    if (strcmp(key->path, likeness->name) == 0 && strchr(key->path, '.') != NULL) {
        snprintf(likeness->elsewhere, sizeof(likeness->elsewhere), "%s", key->path);
        likeness->n_elsewhere = 1;
        return false; /* the whole path */
    }
    if (strcmp(name, likeness->name) == 0 && likeness->n_elsewhere++ == 0)
        snprintf(likeness->elsewhere, sizeof(likeness->elsewhere), "%s", key->path);
    bool is_in = key->n_section == strlen(likeness->section) &&
                 strncmp(key->path, likeness->section, key->n_section) == 0;
    size_t distance = is_in ? zr_name_distance(likeness->name, name) : SIZE_MAX;
    if (is_in && strncmp(name, stage_3, strlen(stage_3)) == 0) { /* it may be left out */
        size_t without = zr_name_distance(likeness->name, name + strlen(stage_3));
        distance = without < distance ? without : distance;
    }
    if (distance < likeness->limit) {
        likeness->limit = distance;
        snprintf(likeness->nearest, sizeof(likeness->nearest), "%s", key->path);
    }
    return true;
}

static void refuse_unknown(reader_t *reader, const char *section, const char *name) {
    likeness_t likeness = {.section = section, .name = name, .limit = zr_name_slip_limit(name) + 1};
    char path[SHOWN_MAX_BYTES];
    shown_t shown;
    zr_keys_each(compare_key, &likeness);
    snprintf(path, sizeof(path), "%s%s%s", section, section[0] != '\0' ? "." : "", name);
    show_bytes(&shown, path, strlen(path));
    const char *dot = strrchr(likeness.elsewhere, '.');
    if (likeness.n_elsewhere == 1 && strchr(name, '.') != NULL)
        report(reader, ZR_ERR_ARGUMENT,
               "%s is not a key of DeepSpeed's: keys have no dots, write %s inside the section",
               shown.text, dot + 1);
    else if (likeness.n_elsewhere == 1 || likeness.nearest[0] != '\0')
        report(reader, ZR_ERR_ARGUMENT, "%s is not a key of DeepSpeed's; did you mean %s?",
               shown.text, likeness.n_elsewhere == 1 ? likeness.elsewhere : likeness.nearest);
    else
        report(
            reader, ZR_ERR_ARGUMENT,
            "%s is not a key of DeepSpeed's, nor like one; docs/reference/deepspeed.md has all of "
            "them",
            shown.text);
}

/* ---- sections --------------------------------------------------------------- */

/** A section that is no object: null or "auto" where that is DeepSpeed's, or wrong. */
static void read_no_object(reader_t *reader, const zr_key_t *key, const json_t *value) {
    if ((json_is_null(value) && key->section->may_be_null) ||
        (is_auto(value) && zr_key_section_of(key)->may_be_auto))
        return;
    shown_t shown;
    show_value(&shown, value);
    report(reader, ZR_ERR_ARGUMENT, "%s is %s, must be an object", key->path, shown.text);
}

/** Whether a key without its prefix is there with it as well: with another value, it is refused. */
static bool is_said_otherwise(reader_t *reader, const zr_key_t *key, const char *name,
                              const json_t *value, const json_t *section) {
    const json_t *other = json_object_get(section, zr_key_name(key));
    shown_t shown[2];
    if (strcmp(zr_key_name(key), name) == 0 || other == NULL)
        return false;
    show_value(&shown[0], value);
    show_value(&shown[1], other);
    if (strcmp(shown[0].text, shown[1].text) != 0)
        report(
            reader, ZR_ERR_ARGUMENT,
            "zero_optimization.%s is %s, and %s, which is the same key, is %s; write one of them",
            name, shown[0].text, key->path, shown[1].text);
    return true;
}

/** The key of a name in a section. DeepSpeed knows those of stage 3 by their field's name, too. */
static bool find_key(const char *section, const char *name, zr_key_t *key_p) {
    const char *const prefixes[] = {"", stage_3};
    for (size_t i = 0; i < (strcmp(section, "zero_optimization") == 0 ? 2 : 1); i++) {
        char path[ZR_KEY_PATH_BYTES];
        int n = snprintf(path, sizeof(path), "%s%s%s%s", section, section[0] != '\0' ? "." : "",
                         prefixes[i], name);
        if (n < (int)sizeof(path) && strchr(name, '.') == NULL && zr_key_find(path, key_p))
            return true;
    }
    return false;
}

/** Read the keys of a section ("": of the file). As deep as the table, not as the file. */
static void read_section(reader_t *reader, const char *section, json_t *object) {
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value) {
        zr_key_t key;
        if (!find_key(section, name, &key))
            refuse_unknown(reader, section, name);
        else if (is_said_otherwise(reader, &key, name, value, object))
            continue;
        else if (key.section != NULL && json_is_object(value))
            read_section(reader, key.path, value);
        else if (key.section != NULL)
            read_no_object(reader, &key, value);
        else if (key.option != NULL)
            read_option(reader, &key, value);
        else if (key.rule != NULL)
            read_rule(reader, &key, value);
        else
            read_off(reader, &key, value);
    }
}

/** A parameter that the chosen schedule does not have would have no effect: refuse it. */
static void check_scheduler_params(reader_t *reader, const json_t *root) {
    const json_t *scheduler = json_object_get(root, "scheduler");
    zr_schedule_kind_t kind = reader->config.schedule.kind;
    zr_key_t type;
    const json_t *given = json_object_get(scheduler, "type");
    size_t n_options = 0;
    const zr_option_t *options = zr_options(&n_options);
    if (!zr_key_find("scheduler.type", &type) ||
        (given != NULL && !json_is_null(given) && !reader->given->is[type.option - options]))
        return; /* it is wrong, and reported */
    const char *word = "";
    for (const zr_option_choice_t *c = type.option->choices; !zr_option_choice_is_last(c); c++)
        if (c->value == (int)kind)
            word = c->json;
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(scheduler, "params"), name, value) {
        char path[ZR_KEY_PATH_BYTES];
        zr_key_t key;
        snprintf(path, sizeof(path), "scheduler.params.%s", name);
        if (!zr_key_find(path, &key) || key.option == NULL || json_is_null(value) ||
            is_auto(value) || (key.option->schedules & (1u << kind)) != 0)
            continue;
        if (word[0] != '\0')
            report(reader, ZR_ERR_ARGUMENT, "%s is not a parameter of %.*s (scheduler.type)",
                   key.path, (int)strlen(word) - 2, word + 1);
        else
            report(reader, ZR_ERR_ARGUMENT,
                   "%s has no effect without scheduler.type, which is not set", key.path);
    }
}

/* ---- keys that are absent ---------------------------------------------------- */

/** Whether a file says enough for a key to be meant where it is absent: hyperparameters need an
 * optimizer or a scheduler of the file's own. */
static bool is_meant(const reader_t *reader, const zr_option_t *option, const json_t *root) {
    size_t n_options = 0;
    const zr_option_t *options = zr_options(&n_options);
    zr_key_t type;
    const char *dot = strchr(option->key, '.');
    char path[ZR_KEY_PATH_BYTES];
    if (strncmp(option->key, "aio.", 4) == 0)
        return zr_config_uses_nvme(&reader->config);
    if (dot == NULL || strncmp(dot, ".params.", 8) != 0)
        return json_object_size(root) > 0;
    snprintf(path, sizeof(path), "%.*s.type", (int)(dot - option->key), option->key);
    return zr_key_find(path, &type) && reader->given->is[type.option - options] &&
           (option->schedules == 0 || (option->schedules >> reader->config.schedule.kind & 1) != 0);
}

/** DeepSpeed's default of a key that decides the result. */
static void take_usual(reader_t *reader, const zr_option_t *option) {
    zr_key_t key = {.option = option};
    json_t *value = json_loads(option->usual, JSON_DECODE_ANY, NULL);
    snprintf(key.path, sizeof(key.path), "%s", option->key);
    if (value == NULL)
        report(reader, ZR_ERR_MEMORY, "no memory for the default of %s", option->key);
    else
        take_value(reader, &key, option, value, value);
    json_decref(value);
}

/** Keys and values, with commas between. */
typedef struct listed {
    char text[640];
} listed_t;

/** A key whose default differs, and the value that is used; where that is libzero's, DeepSpeed's in
 * brackets. */
static void add_difference(reader_t *reader, const zr_option_t *option, listed_t *taken,
                           listed_t *kept) {
    bool is_taken = (option->flags & ZR_OPTION_FILE_USUAL) != 0;
    const zr_config_t own = reader->config;
    const char *dot = strrchr(option->key, '.');
    take_usual(reader, option);
    if (zr_option_idle(option, &own) != NULL || zr_option_equal(option, &own, &reader->config)) {
        reader->config = own;
        return;
    }
    listed_t *list = is_taken ? taken : kept;
    size_t used = strlen(list->text);
    zr_option_text_t text = zr_option_text(option, &own);
    used += (size_t)snprintf(list->text + used, sizeof(list->text) - used, "%s%s %.20s",
                             used > 0 ? ", " : "", dot != NULL ? dot + 1 : option->key,
                             is_taken               ? option->usual
                             : text.text[0] != '\0' ? text.text
                                                    : "auto");
    if (!is_taken && used < sizeof(list->text))
        snprintf(list->text + used, sizeof(list->text) - used, " (%s)", option->usual);
    if (!is_taken)
        reader->config = own;
}

/** WarmupDecayLR alone has a rate of its own; null is the optimizer's. */
static void take_usual_rate(reader_t *reader, const json_t *root, listed_t *taken) {
    static const double usual_rate = 1e-3;
    const json_t *scheduler = json_object_get(root, "scheduler");
    const json_t *params = json_object_get(scheduler, "params");
    size_t used = strlen(taken->text);
    if (json_object_get(scheduler, "type") == NULL ||
        reader->config.schedule.kind != ZR_SCHEDULE_WARMUP_DECAY ||
        json_object_get(params, "warmup_max_lr") != NULL ||
        reader->config.schedule.warmup_max_lr == usual_rate)
        return;
    reader->config.schedule.warmup_max_lr = usual_rate;
    snprintf(taken->text + used, sizeof(taken->text) - used, "%swarmup_max_lr %g",
             used > 0 ? ", " : "", usual_rate);
}

/** Take DeepSpeed's defaults of what decides the result, and say so; and what is not as there,
 * which changes memory and time alone. */
static void read_absent(reader_t *reader, const json_t *root) {
    listed_t taken = {""}, kept = {""};
    size_t n = 0;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++) {
        bool is_there = reader->given->is[i] || reader->given->is_auto[i];
        bool has_usual = options[i].usual != NULL && strcmp(options[i].usual, "null") != 0;
        if (options[i].key != NULL && has_usual && !is_there && is_meant(reader, &options[i], root))
            add_difference(reader, &options[i], &taken, &kept);
    }
    take_usual_rate(reader, root, &taken);
    if (taken.text[0] != '\0')
        zr_log_write(reader->log, ZR_LOG_INFO,
                     "%s: keys that it does not have are DeepSpeed's defaults: %s", reader->path,
                     taken.text);
    if (kept.text[0] != '\0')
        zr_log_write(reader->log, ZR_LOG_WARNING,
                     "%s: other keys that it does not have are libzero's defaults (DeepSpeed's in "
                     "brackets), which changes memory and time, not the result: %s",
                     reader->path, kept.text);
}

/* ---- text ------------------------------------------------------------------- */

static zr_status_t fail_no_memory(const reader_t *reader, size_t n_bytes) {
    return zr_fail(reader->log, ZR_ERR_MEMORY, "%s: no memory to parse %s", reader->path,
                   zr_count_text(n_bytes, "byte").text);
}

static zr_status_t fail_parse(const reader_t *reader, size_t n_bytes, const json_error_t *error) {
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
                   error->column, message,
                   code == json_error_premature_end_of_input ? "; is the file truncated?" : "");
}

static zr_status_t check_text(const reader_t *reader, const char *text, size_t n_bytes) {
    size_t n_blank = 0;
    while (n_blank < n_bytes && isspace((unsigned char)text[n_blank]))
        n_blank++;
    if (n_blank == n_bytes)
        return zr_fail(reader->log, ZR_ERR_FORMAT,
                       "%s: is empty; a configuration without keys is {}", reader->path);
    const char *zero = memchr(text, '\0', n_bytes); /* jansson passes over some */
    if (zero != NULL)
        return zr_fail(reader->log, ZR_ERR_FORMAT,
                       "%s: its byte %zu is 0, which is not allowed in text", reader->path,
                       (size_t)(zero - text));
    return ZR_OK;
}

static zr_status_t parse_strict(const reader_t *reader, const char *text, size_t n_bytes,
                                json_t **root_p) {
    json_error_t error;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (root == NULL)
        return fail_parse(reader, n_bytes, &error);
    if (!zr_config_is_whole(text, root)) {
        json_decref(root);
        return fail_no_memory(reader, n_bytes);
    }
    *root_p = root;
    return ZR_OK;
}

/** Parse the file; the caller drops *root_p. */
static zr_status_t parse(const reader_t *reader, json_t **root_p) {
    char *text = NULL;
    size_t n_bytes = 0, n_strict = 0;
    ZR_TRY(zr_text_file_read(reader->path, FILE_MAX_BYTES, reader->log, &text, &n_bytes));
    zr_status_t status = check_text(reader, text, n_bytes);
    if (status == ZR_OK) {
        char *strict = zr_json_make_strict(text, n_bytes, &n_strict);
        status = strict != NULL ? parse_strict(reader, strict, n_strict, root_p)
                                : fail_no_memory(reader, n_bytes);
        free(strict);
    }
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

zr_status_t zr_config_read_json_given(const char *path, const zr_log_t *log, zr_config_t *config,
                                      zr_options_given_t *given) {
    if (!path || !config)
        return zr_fail(log, ZR_ERR_ARGUMENT, "configuration: no %s",
                       path ? "place to read it to" : "file to read");
    zr_options_given_t own = {.is = {false}};
    reader_t reader = {.path = path, .log = log, .config = *config, .given = &own, .status = ZR_OK};
    json_t *root = NULL;
    ZR_TRY(parse(&reader, &root));
    if (json_is_object(root)) {
        read_section(&reader, "", root);
        check_scheduler_params(&reader, root);
        check_nvme_paths(&reader, config, root);
        if (reader.status == ZR_OK)
            read_absent(&reader, root);
    } else {
        shown_t shown;
        show_value(&shown, root);
        report(&reader, ZR_ERR_FORMAT, "is %s, must be an object: {\"key\": value, ...}",
               shown.text);
    }
    json_decref(root);
    if (reader.status != ZR_OK)
        return reader.status;
    *config = reader.config;
    if (given != NULL)
        *given = own;
    return ZR_OK;
}

zr_status_t zr_config_read_json(const char *path, const zr_log_t *log, zr_config_t *config) {
    return zr_config_read_json_given(path, log, config, NULL);
}
