/*
 * The command line of a program whose options are rows (zero/options.h): the library's, of the
 * configuration that the program has, those of another program, and its own. Parsing, --help, the
 * tables in docs/, what ranks have to have in common and what is wrong with what was given are made
 * from the rows.
 */
#ifndef EXAMPLES_COMMON_OPTIONS_H
#define EXAMPLES_COMMON_OPTIONS_H

#include <stdio.h>

#include "examples/common/args.h"
#include "zero/zero.h"

/** An option that is somebody else's. */
typedef struct options_use {
    const char *name;
    int group;        /* that --help shows it in */
    const char *help; /* what --help says; NULL: what its row says */
} options_use_t;

typedef struct options_table options_table_t;
struct options_table {
    const char *program; /* "zero-train" */
    const char *args;    /* what stands behind the options in its usage; NULL: nothing does */
    const char *doc;     /* what --help begins with and, behind \v, ends with */
    const char *const *headers; /* [n_groups + 1], of groups 1 to n_groups */
    int n_groups;
    const zr_option_t *own; /* fields are of the program's struct; group 0 is the first */
    size_t n_own;

    const options_table_t *base; /* the program whose options it has, too; NULL: the library's */
    size_t base_offset;          /* of its struct, or of the zr_config_t, in the program's */
    const options_use_t *uses;   /* of the base; NULL: all that have a name, but for own ones */
    size_t n_uses;
    const int *rest;  /* [ZR_OPTION_GROUP_STEP + 1]: the group of those of the library's that no use
                         names,  by their own group; 0: they are not there; NULL: none is */
    const char *word; /* the option that a word without one is a value of; NULL: it is refused */
    const args_known_t *known; /* options of other programs (args.h); NULL: the base's */
};

/** A row, and where its struct is in the program's. */
typedef struct options_row {
    zr_option_t option;
    size_t offset;
    bool is_of_library;
} options_row_t;

typedef struct options_rows {
    options_row_t all[ZR_OPTIONS_MOST];
    size_t n;
} options_rows_t;

/** All rows of a table, the base's before its own. */
void options_rows(const options_table_t *table, options_rows_t *rows_p);
/** The row of a name; NULL if the table has no such row. */
const options_row_t *options_find(const options_rows_t *rows, const char *name);
/** The struct of a row. */
const void *options_object(const options_row_t *row, const void *object);

/** Options that were given, as written and in order; each once, but for those of which there may
 * be several. */
typedef struct options_given {
    struct {
        const char *name;  /* without dashes; static */
        const char *value; /* argv's; "" of a flag */
    } all[ZR_OPTIONS_MOST];
    size_t n;
} options_given_t;

/** The value that an option was given; NULL: it was not. */
const char *options_value(const options_given_t *given, const char *name);
/** Whether it was given as auto. */
bool options_is_auto(const options_given_t *given, const char *name);
/** Note one; an earlier one of its name no longer counts, unless there may be several. */
ZR_NODISCARD zr_status_t options_note(options_given_t *given, const char *name, const char *value,
                                      bool may_be_several, const zr_log_t *log);

/**
 * Parse a command line. Once --help or --version is there, nothing more is looked at.
 *
 * @param argv    borrowed for as long as `given` is used
 * @param object  the program's struct, in which values are tried; what it holds then is of no use
 * @return ZR_OK; ZR_ERR_ARGUMENT or ZR_ERR_MEMORY, logged
 */
ZR_NODISCARD zr_status_t options_parse(const options_table_t *table, int argc, char **argv,
                                       const zr_log_t *log, void *object, options_given_t *given);

/** Set what was given, in the order of the table: over defaults, and what a file has said. Of what
 * was given as auto the default is set. */
ZR_NODISCARD zr_status_t options_apply(const options_table_t *table, const options_given_t *given,
                                       const zr_log_t *log, void *object);

/** Refuse what was given without another option that it needs: ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t options_check_needs(const options_table_t *table,
                                             const options_given_t *given, const zr_log_t *log);

/** Print what --help says; object: the program's struct with its defaults. */
void options_help(const options_table_t *table, const void *object, FILE *file);
/** A form of a table: options_help, options_man, options_bash. */
typedef void options_print_t(const options_table_t *table, const void *object, FILE *file);
/** Print a page for man(1), of section 1. */
void options_man(const options_table_t *table, const void *object, FILE *file);
/** Print a script that completes options and their words in bash. */
void options_bash(const options_table_t *table, const void *object, FILE *file);

/* Parts of both, for programs that have several tables. */

/** Begin a page. */
void options_man_begin(const char *program, const char *args, const char *doc, FILE *file);
/** The options of a page; command: NULL, or whose they are. */
void options_man_rows(const options_table_t *table, const void *object, const char *command,
                      FILE *file);
/** Begin and end a script. */
void options_bash_begin(const char *program, FILE *file);
void options_bash_end(const char *program, FILE *file);
/** Complete the words of a table, within a script. */
void options_bash_rows(const options_table_t *table, FILE *file);

/** Print the rows as a table of markdown. */
void options_markdown(const options_table_t *table, const void *object, FILE *file);

#endif
