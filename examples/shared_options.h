/*
 * The command line of a program that has some of zero-train's options: their names, values and
 * messages come from zero-train's table, in groups of the program's own, beside its own options.
 */
#ifndef EXAMPLES_SHARED_OPTIONS_H
#define EXAMPLES_SHARED_OPTIONS_H

#include "examples/train_options.h"

/** An option of zero-train. */
typedef struct shared_option {
    const char *name;
    int group;
    const char *doc; /* what --help says; NULL: what zero-train says */
} shared_option_t;

/** Keys of a program's own options: beyond zero-train's. */
#define SHARED_OPTIONS_FIRST_KEY 0x1000

typedef struct shared_options {
    const shared_option_t *shared;
    size_t n_shared;
    const struct argp_option *own; /* with groups; they stand before the shared ones of theirs */
    size_t n_own;
    const char *const *headers; /* [n_groups + 1], of groups 1 to n_groups */
    int n_groups;
} shared_options_t;

#define SHARED_OPTIONS_MOST 128

/** Options as argp takes them, behind each other by group. */
typedef struct shared_table {
    struct argp_option options[SHARED_OPTIONS_MOST + 1];
    size_t n;
} shared_table_t;

/** All of it is at most SHARED_OPTIONS_MOST lines, headers included. */
shared_table_t shared_options_table(const shared_options_t *options);

/** Refuse a word that is no option, of a program that takes none; what argp's parser returns. */
error_t shared_options_refuse_word(const char *program, const char *word, const zr_log_t *log);

/** The name of one of zero-train's; NULL: the key is not of any that is shared. */
const char *shared_options_name(const shared_options_t *options, int key);

#endif
