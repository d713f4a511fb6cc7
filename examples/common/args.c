/*
 * The command line is looked through once before argp sees it, because argp writes its own
 * message for an unknown option and knows no nearest one. The look-through follows getopt's
 * rules: unique prefixes are options, and an option that takes a value may have it behind '='
 * or as the next word, whatever that begins with.
 */
#include "examples/common/args.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/messages.h"

#define LONGEST_WORD 63
#define MOST_OPTIONS 256

args_hint_t args_hint(const char *nearest) {
    args_hint_t hint = {""};
    if (nearest != NULL)
        snprintf(hint.text, sizeof(hint.text), "; the nearest is %s", nearest);
    return hint;
}

/* ---- the look-through ------------------------------------------------------------------- */

/* What words may be. */
typedef struct words {
    const struct argp_option *options;
    const args_known_t *known;
} words_t;

static bool is_last(const struct argp_option *option) {
    return option->name == NULL && option->key == 0 && option->doc == NULL && option->group == 0;
}

/* "; the nearest is --name" */
static args_hint_t hint_option(const struct argp_option *options, const char *word) {
    const char *names[MOST_OPTIONS], *nearest;
    char option[LONGEST_WORD + 3];
    size_t n = 0;
    for (const struct argp_option *o = options; !is_last(o) && n < MOST_OPTIONS; o++)
        if (o->name != NULL)
            names[n++] = o->name;
    nearest = zr_name_nearest(word, names, n);
    snprintf(option, sizeof(option), "--%s", nearest != NULL ? nearest : "");
    return args_hint(nearest != NULL ? option : NULL);
}

/* What `here` names is an option of the program. */
static bool is_here(const struct argp_option *options, const char *here) {
    size_t length = strcspn(here + 2, " :");
    for (const struct argp_option *o = options; !is_last(o); o++)
        if (o->name != NULL && strlen(o->name) == length && strncmp(o->name, here + 2, length) == 0)
            return true;
    return false;
}

/* What there is for an option of another program, or a value ("dtype=fp16"); NULL: nothing.
 * Others write '_' for '-'. */
static const char *find_known(const struct argp_option *options, const args_known_t *known,
                              const char *name) {
    char word[LONGEST_WORD + 1];
    snprintf(word, sizeof(word), "%s", name);
    for (char *at = word; *at != '\0'; at++)
        *at = *at == '_' ? '-' : *at;
    size_t length = strlen(word);
    for (; known != NULL && known->names != NULL; known++)
        for (const char *at = known->names; *at != '\0'; at += strspn(at, " ")) {
            size_t n = strcspn(at, " ");
            if (n == length && strncmp(at, word, n) == 0 && is_here(options, known->here))
                return known->here;
            at += n;
        }
    return NULL;
}

static zr_status_t refuse_unknown(const words_t *words, const char *word, size_t length,
                                  const zr_log_t *log) {
    char name[LONGEST_WORD + 1];
    size_t n = length < LONGEST_WORD ? length : LONGEST_WORD;
    memcpy(name, word, n);
    name[n] = '\0';
    const char *here = find_known(words->options, words->known, name);
    if (here != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "unknown option --%.*s; here it is %s (--help lists all)", (int)length, word,
                       here);
    return zr_fail(log, ZR_ERR_ARGUMENT, "unknown option --%.*s%s (--help lists all)", (int)length,
                   word, hint_option(words->options, name).text);
}

/* The option that `word` (of `length` characters) names, whole or by a unique beginning. */
static zr_status_t find_option(const words_t *words, const char *word, size_t length,
                               const zr_log_t *log, const struct argp_option **option_p) {
    const struct argp_option *found = NULL, *other = NULL;
    for (const struct argp_option *o = words->options; !is_last(o); o++) {
        if (o->name == NULL || strncmp(o->name, word, length) != 0)
            continue;
        if (o->name[length] == '\0') {
            *option_p = o;
            return ZR_OK;
        }
        other = found;
        found = o;
    }
    if (other != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "option --%.*s is ambiguous: --%s or --%s?",
                       (int)length, word, other->name, found->name);
    if (found == NULL)
        return refuse_unknown(words, word, length, log);
    *option_p = found;
    return ZR_OK;
}

/* A value that other programs have. */
static zr_status_t check_value(const words_t *words, const char *name, const char *value,
                               const zr_log_t *log) {
    char both[LONGEST_WORD + 1];
    snprintf(both, sizeof(both), "%s=%s", name, value);
    const char *here = find_known(words->options, words->known, both);
    return here == NULL ? ZR_OK
                        : zr_fail(log, ZR_ERR_ARGUMENT, "--%s %s is not supported; here it is %s",
                                  name, value, here);
}

/* A word that begins with a dash or two, and the one behind it, NULL at the end; *takes_next_p:
 * that is its value. */
static zr_status_t check_option(const words_t *words, const char *word, const char *next,
                                const zr_log_t *log, bool *takes_next_p) {
    const struct argp_option *option = NULL;
    const char *end = strchr(word, '=');
    size_t length = end == NULL ? strlen(word + 2) : (size_t)(end - word - 2);
    if (word[1] != '-')
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "unknown option %s: options begin with two dashes%s (--help lists all)",
                       word, hint_option(words->options, word + 1).text);
    ZR_TRY(find_option(words, word + 2, length, log, &option));
    if (option->arg == NULL && end != NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "option --%s takes no value, but got \"%s\"",
                       option->name, end + 1);
    *takes_next_p = option->arg != NULL && end == NULL;
    if (*takes_next_p && next == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "option --%s needs a value: --%s %s", option->name,
                       option->name, option->arg);
    const char *value = *takes_next_p ? next : end != NULL ? end + 1 : "no";
    if (*value == '\0')
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "option --%s needs a value, and \"\" is empty: --%s %s", option->name,
                       option->name, option->arg);
    return check_value(words, option->name, value, log);
}

static zr_status_t check_words(const words_t *words, int argc, char **argv, const zr_log_t *log) {
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        bool takes_next = false;
        if (strcmp(word, "--") == 0)
            break;
        if (word[0] != '-' || word[1] == '\0')
            continue;
        ZR_TRY(check_option(words, word, i + 1 < argc ? argv[i + 1] : NULL, log, &takes_next));
        i += takes_next;
    }
    return ZR_OK;
}

zr_status_t args_parse(const struct argp *argp, const args_known_t *known, int argc, char **argv,
                       const zr_log_t *log, void *input) {
    const words_t words = {argp->options, known};
    ZR_TRY(check_words(&words, argc, argv, log));
    unsigned flags = ARGP_NO_EXIT | ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_IN_ORDER;
    switch (argp_parse(argp, argc, argv, flags, NULL, input)) {
    case 0:
        return ZR_OK;
    case ENOMEM:
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to parse %s",
                       zr_count_text((uint64_t)argc, "argument").text);
    default:
        return ZR_ERR_ARGUMENT;
    }
}

/* ---- help ------------------------------------------------------------------------------- */

#define HELP_COLUMNS 79
#define HELP_DOC_COLUMN 29

static void print_option(const struct argp_option *option, FILE *file) {
    int n = fprintf(file, "      --%s%s%s", option->name, option->arg == NULL ? "" : "=",
                    option->arg == NULL ? "" : option->arg);
    size_t column = n < 0 ? 0 : (size_t)n;
    if (column >= HELP_DOC_COLUMN) {
        fputc('\n', file);
        column = 0;
    }
    fprintf(file, "%*s", (int)(HELP_DOC_COLUMN - column), "");
    messages_wrap(option->doc, strlen(option->doc), HELP_DOC_COLUMN, HELP_DOC_COLUMN, HELP_COLUMNS,
                  file);
}

void args_help(const struct argp *argp, const char *program, FILE *file) {
    const char *doc = argp->doc == NULL ? "" : argp->doc, *args = argp->args_doc;
    size_t length = strcspn(doc, "\v");
    fprintf(file, "Usage: %s [OPTION...]%s%s\n", program, args == NULL ? "" : " ",
            args == NULL ? "" : args);
    messages_wrap(doc, length, 0, 0, HELP_COLUMNS, file);
    fputc('\n', file);
    for (const struct argp_option *o = argp->options; !is_last(o); o++) {
        if (o->name == NULL)
            fprintf(file, "%s %s\n", o == argp->options ? "" : "\n", o->doc);
        else if ((o->flags & OPTION_HIDDEN) == 0)
            print_option(o, file);
    }
    if (doc[length] != '\0') {
        fputc('\n', file);
        messages_wrap(doc + length + 1, strlen(doc + length + 1), 0, 0, HELP_COLUMNS, file);
    }
}

/* ---- values ----------------------------------------------------------------------------- */

zr_status_t args_choice(const char *key, const char *value, const char *const *names,
                        size_t n_names, const zr_log_t *log, size_t *choice_p) {
    zr_option_choice_t choices[33] = {{NULL, 0, NULL}};
    int choice = 0;
    for (size_t i = 0; i < n_names && i < 32; i++)
        choices[i] = (zr_option_choice_t){names[i], (int)i, NULL};
    const zr_option_t option = {.type = ZR_OPTION_CHOICE, .choices = choices};
    ZR_TRY(zr_option_set(&option, key, value, log, &choice));
    *choice_p = (size_t)choice;
    return ZR_OK;
}

zr_status_t args_count(const char *key, const char *value, size_t least, size_t most,
                       const zr_log_t *log, size_t *count_p) {
    const zr_option_t option = {
        .type = ZR_OPTION_COUNT, .least = (double)least, .most = (double)most};
    return zr_option_set(&option, key, value, log, count_p);
}

zr_status_t args_size(const char *key, const char *value, const zr_log_t *log,
                      size_t *size_bytes_p) {
    const zr_option_t option = {.type = ZR_OPTION_BYTES};
    return zr_option_set(&option, key, value, log, size_bytes_p);
}
