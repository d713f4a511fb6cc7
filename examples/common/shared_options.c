/* Tables of options that are partly zero-train's: see shared_options.h. */
#include "examples/common/shared_options.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "examples/common/args.h"

/* Options as argp takes them, behind each other by group. */
typedef struct table {
    struct argp_option options[SHARED_OPTIONS_MOST + 1];
    size_t n;
} table_t;

static void add(table_t *table, struct argp_option option) {
    assert(table->n < SHARED_OPTIONS_MOST);
    table->options[table->n++] = option;
}

static void add_group(table_t *table, const shared_options_t *options, int group) {
    add(table, (struct argp_option){.doc = options->headers[group], .group = group});
    for (size_t i = 0; i < options->n_own; i++)
        if (options->own[i].group == group)
            add(table, options->own[i]);
    for (size_t i = 0; i < options->n_shared; i++) {
        const shared_option_t *shared = &options->shared[i];
        if (shared->group != group)
            continue;
        struct argp_option option = *train_options_find(shared->name);
        option.group = group;
        option.doc = shared->doc != NULL ? shared->doc : option.doc;
        add(table, option);
    }
}

static table_t make_table(const shared_options_t *options) {
    table_t table = {.n = 0};
    for (int group = 1; group <= options->n_groups; group++)
        add_group(&table, options, group);
    return table;
}

/* NULL: the key is of none of them. */
static const char *name_of(const shared_options_t *options, int key) {
    for (size_t i = 0; i < options->n_own; i++)
        if (options->own[i].key == key)
            return options->own[i].name;
    for (size_t i = 0; i < options->n_shared; i++)
        if (train_options_find(options->shared[i].name)->key == key)
            return options->shared[i].name;
    return NULL;
}

/* ---- parsing --------------------------------------------------------------------------------- */

typedef struct parsing {
    const shared_options_t *options;
    const train_options_t *run;
    void *context;
    const zr_log_t *log;
} parsing_t;

static error_t refuse_word(const parsing_t *p, const char *word) {
    (void)!zr_fail(p->log, ZR_ERR_ARGUMENT, "\"%s\": %s takes options only (--help lists them)",
                   word, p->options->program);
    return EINVAL;
}

static error_t set_option(int key, char *value, struct argp_state *state) {
    parsing_t *p = state->input;
    if (key == ARGP_KEY_ARG)
        return refuse_word(p, value);
    const char *name = name_of(p->options, key);
    if (name == NULL)
        return ARGP_ERR_UNKNOWN;
    if (p->run->help || p->run->version)
        return 0;
    return p->options->take(p->context, key, name, value) == ZR_OK ? 0 : EINVAL;
}

static struct argp make_parser(const shared_options_t *options, const table_t *table) {
    return (struct argp){.options = table->options, .parser = set_option, .doc = options->doc};
}

zr_status_t shared_options_parse(const shared_options_t *options, int argc, char **argv,
                                 const train_options_t *run, void *context, const zr_log_t *log) {
    table_t table = make_table(options);
    struct argp parser = make_parser(options, &table);
    parsing_t parsing = {.options = options, .run = run, .context = context, .log = log};
    return args_parse(&parser, argc, argv, log, &parsing);
}

void shared_options_help(const shared_options_t *options, FILE *file) {
    table_t table = make_table(options);
    struct argp parser = make_parser(options, &table);
    args_help(&parser, options->program, file);
}

zr_status_t shared_givens_note(shared_givens_t *givens, const char *name, const char *value,
                               bool may_be_several, const zr_log_t *log) {
    size_t i = 0;
    while (i < givens->n && (may_be_several || strcmp(givens->all[i].name, name) != 0))
        i++;
    if (i == SHARED_OPTIONS_MOST_GIVEN)
        return zr_fail(log, ZR_ERR_ARGUMENT, "--%s %s: allowed are %d options at most", name, value,
                       SHARED_OPTIONS_MOST_GIVEN);
    givens->all[i] = (shared_given_t){name, value};
    givens->n += i == givens->n;
    return ZR_OK;
}
