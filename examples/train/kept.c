/*
 * Values are kept as they were before they were resolved: what follows from the number of steps or
 * ranks follows from those of the run that goes on.
 */
#include "examples/train/kept.h"

#include <string.h>

/* ---- rows ------------------------------------------------------------------------------------ */

/* Name of a row in a checkpoint, and in messages; an option of files has its key. */
static const char *name_of(const zr_option_t *row) {
    return row->name != NULL ? row->name : row->key;
}

static bool is_kept(const zr_option_t *row, unsigned flags) {
    return (row->flags & flags) != 0 && name_of(row) != NULL;
}

/* A value as it is kept; "": not set. */
static zr_option_text_t text_of(const zr_option_t *row, const void *object) {
    zr_option_text_t text = zr_option_text(row, object);
    bool is_unset = (row->flags & ZR_OPTION_UNSET0) != 0 && strcmp(text.text, "0") == 0;
    if (strcmp(name_of(row), "schedule") == 0 && text.text[0] == '"') /* of files: WarmupLR */
        snprintf(text.text, sizeof(text.text), "constant");
    if (strcmp(name_of(row), "seq-min") == 0) {
        const train_options_t *options = object;
        is_unset = options->seq_min == options->seq;
    }
    if (is_unset)
        text.text[0] = '\0';
    return text;
}

typedef void visit_t(void *context, const zr_option_t *row, const void *object);

static void visit_rows(const train_options_t *options, unsigned flags, visit_t *visit,
                       void *context) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    for (size_t i = 0; i < train_table.n_own; i++)
        if (is_kept(&train_table.own[i], flags))
            visit(context, &train_table.own[i], options);
    for (size_t i = 0; i < n; i++)
        if (is_kept(&rows[i], flags)) /* of an order that auto chose, the chosen one */
            visit(context, &rows[i],
                  strcmp(name_of(&rows[i]), "order") == 0 ? &options->config : &options->said);
}

/* ---- saving ---------------------------------------------------------------------------------- */

static void keep(void *context, const zr_option_t *row, const void *object) {
    json_t **kept = context;
    zr_option_text_t text = text_of(row, object);
    if (text.text[0] != '\0')
        json_put(kept, name_of(row), json_text(text.text));
}

json_t *train_kept_json(const train_options_t *options) {
    json_t *kept = json_object();
    visit_rows(options, ZR_OPTION_KEPT | ZR_OPTION_KEPT_TO_TELL, keep, &kept);
    return kept;
}

/* ---- going on -------------------------------------------------------------------------------- */

static const char *kept_text(const train_options_t *options, const char *name) {
    return json_string_value(json_object_get(options->kept, name));
}

/* Some options are of no use beside what is given. */
static bool is_overruled(const options_given_t *given, const char *name) {
    static const char *const pairs[][2] = {{"seq-min", "seq"},
                                           {"freeze", "lora"},
                                           {"train_batch_size", "micro-batch"},
                                           {"train_batch_size", "grad-accum"}};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if (strcmp(pairs[i][0], name) == 0 && options_value(given, pairs[i][1]) != NULL)
            return true;
    return false;
}

bool train_kept_has(const train_options_t *options, const char *name) {
    return kept_text(options, name) != NULL && !is_overruled(&options->given, name);
}

static zr_status_t take_rows(train_options_t *options, const zr_option_t *rows, size_t n,
                             const zr_log_t *log, void *object) {
    for (size_t i = 0; i < n; i++)
        if (is_kept(&rows[i], ZR_OPTION_KEPT) && train_kept_has(options, name_of(&rows[i])))
            ZR_TRY(zr_option_set(&rows[i], rows[i].name == NULL ? rows[i].key : NULL,
                                 kept_text(options, name_of(&rows[i])), log, object));
    return ZR_OK;
}

zr_status_t train_kept_take(train_options_t *options, const zr_log_t *log) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    ZR_TRY(take_rows(options, train_table.own, train_table.n_own, log, options));
    return take_rows(options, rows, n, log, &options->config);
}

/* ---- what is said ---------------------------------------------------------------------------- */

typedef struct telling {
    const train_options_t *options;
    json_t *usual; /* what a run without options has */
    char taken[768], changed[768];
    bool is_asked; /* all of `changed` was given on the command line */
} telling_t;

static void append(char *text, size_t size, const char *name, const char *value, const char *was) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s%s %s%s%s%s", used > 0 ? ", " : "",
             strchr(name, '.') != NULL || strchr(name, '_') != NULL ? "" : "--", name,
             value[0] != '\0' ? value : "not set", was != NULL ? " (" : "", was != NULL ? was : "",
             was != NULL ? ")" : "");
}

static void compare(void *context, const zr_option_t *row, const void *object) {
    telling_t *telling = context;
    const char *name = name_of(row), *was = kept_text(telling->options, name);
    const char *usual = json_string_value(json_object_get(telling->usual, name));
    const options_given_t *given = &telling->options->given;
    zr_option_text_t is = text_of(row, object);
    bool is_given = row->name != NULL && options_value(given, row->name) != NULL;
    if (was == NULL)
        was = "";
    bool is_changed = strcmp(was, is.text) != 0;
    telling->is_asked = telling->is_asked && (!is_changed || is_given);
    if (is_changed)
        append(telling->changed, sizeof(telling->changed), name, is.text,
               was[0] != '\0' ? was : "not set");
    else if (was[0] != '\0' && !is_given && (usual == NULL || strcmp(usual, was) != 0))
        append(telling->taken, sizeof(telling->taken), name, was, NULL);
}

void train_kept_say(const train_options_t *options, const zr_log_t *log) {
    train_options_t usual = train_options_default();
    telling_t telling = {.options = options, .is_asked = true};
    if (options->kept == NULL)
        return;
    usual.said = usual.config;
    telling.usual = train_kept_json(&usual);
    visit_rows(options, ZR_OPTION_KEPT | ZR_OPTION_KEPT_TO_TELL, compare, &telling);
    json_decref(telling.usual);
    if (telling.taken[0] != '\0')
        zr_log_write(log, ZR_LOG_INFO, "--resume: as in the checkpoint: %s", telling.taken);
    if (telling.changed[0] != '\0')
        zr_log_write(log, telling.is_asked ? ZR_LOG_INFO : ZR_LOG_WARNING,
                     "--resume: other than in the checkpoint (its value in brackets): %s",
                     telling.changed);
}
