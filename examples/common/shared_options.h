/*
 * The command line of a program that has some of zero-train's options: their names, values and
 * messages come from zero-train's table, in groups of the program's own, beside its own options.
 */
#ifndef EXAMPLES_COMMON_SHARED_OPTIONS_H
#define EXAMPLES_COMMON_SHARED_OPTIONS_H

#include "examples/train/options.h"

/** An option of zero-train. */
typedef struct shared_option {
    const char *name;
    int group;
    const char *doc; /* what --help says; NULL: what zero-train says */
} shared_option_t;

/** Keys of a program's own options: beyond zero-train's. */
#define SHARED_OPTIONS_FIRST_KEY 0x1000

typedef struct shared_options {
    const char *program; /* "zero-plan" */
    const char *doc;     /* what --help begins with and, behind \v, ends with */
    const shared_option_t *shared;
    size_t n_shared;
    const struct argp_option *own; /* with groups; they stand before the shared ones of theirs */
    size_t n_own;
    const char *const *headers; /* [n_groups + 1], of groups 1 to n_groups */
    int n_groups;

    /* Take an option, one of its own where the key is SHARED_OPTIONS_FIRST_KEY or more. What it
     * refuses it logs. name: without dashes. */
    zr_status_t (*take)(void *context, int key, const char *name, const char *value);
} shared_options_t;

/** Lines of a table at most, headers included. */
#define SHARED_OPTIONS_MOST 128

/**
 * Parse a command line of such options and nothing else.
 *
 * @param run      once its `help` or `version` is set, nothing more is taken
 * @param context  of `take`
 * @return as args_parse
 */
ZR_NODISCARD zr_status_t shared_options_parse(const shared_options_t *options, int argc,
                                              char **argv, const train_options_t *run,
                                              void *context, const zr_log_t *log);

/** Print what --help says. */
void shared_options_help(const shared_options_t *options, FILE *file);

/** An option that was given, as written. */
typedef struct shared_given {
    const char *name;  /* without dashes; static */
    const char *value; /* argv's */
} shared_given_t;

/** Each option once, but for those of which there may be several. */
#define SHARED_OPTIONS_MOST_GIVEN SHARED_OPTIONS_MOST

/** Those that were given, in order. */
typedef struct shared_givens {
    shared_given_t all[SHARED_OPTIONS_MOST_GIVEN];
    size_t n;
} shared_givens_t;

/** Note one; an earlier one of its name no longer counts, unless there may be several. Of more than
 * can be noted none is left out: ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t shared_givens_note(shared_givens_t *givens, const char *name,
                                            const char *value, bool may_be_several,
                                            const zr_log_t *log);

#endif
