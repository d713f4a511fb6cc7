/* Tables of options that are partly zero-train's: see shared_options.h. */
#include "examples/shared_options.h"

#include <assert.h>
#include <errno.h>

static void add(shared_table_t *table, struct argp_option option) {
    assert(table->n < SHARED_OPTIONS_MOST);
    table->options[table->n++] = option;
}

static void add_group(shared_table_t *table, const shared_options_t *options, int group) {
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

shared_table_t shared_options_table(const shared_options_t *options) {
    shared_table_t table = {.n = 0};
    for (int group = 1; group <= options->n_groups; group++)
        add_group(&table, options, group);
    return table;
}

const char *shared_options_name(const shared_options_t *options, int key) {
    for (size_t i = 0; i < options->n_shared; i++)
        if (train_options_find(options->shared[i].name)->key == key)
            return options->shared[i].name;
    return NULL;
}

error_t shared_options_refuse_word(const char *program, const char *word, const zr_log_t *log) {
    (void)!zr_fail(log, ZR_ERR_ARGUMENT, "\"%s\": %s takes options only (--help lists them)", word,
                   program);
    return EINVAL;
}
