/*
 * Options of the programs: argp does the parsing and the help; this adds what it lacks.
 * An unknown option is answered with the nearest known one, and a value that is not allowed
 * with its key, what is allowed and the nearest allowed value. Nothing here ends the process:
 * the message goes to the log, and the caller exits with 2.
 */
#ifndef EXAMPLES_COMMON_ARGS_H
#define EXAMPLES_COMMON_ARGS_H

#include <argp.h>
#include <stdio.h>

#include "zero/zero.h"

/** Options that other programs have, and what a message says instead: the option here. */
typedef struct args_known {
    const char
        *names; /* without dashes, with spaces between; "dtype=fp16": a value; NULL: the end */
    const char *here; /* begins with the option here, with dashes: "--lr RATE" */
} args_known_t;

/**
 * Parse a command line. An empty value is none.
 *
 * @param argp   its options have long names; its parser returns 0, or EINVAL after it has
 *               logged what is wrong
 * @param known  of other programs; rows whose option argp does not have here are ignored; may be
 *               NULL
 * @param input  handed to the parser
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY. What is wrong has been logged.
 */
ZR_NODISCARD zr_status_t args_parse(const struct argp *argp, const args_known_t *known, int argc,
                                    char **argv, const zr_log_t *log, void *input);

/**
 * Print what --help says: usage, the parser's doc up to '\v', its options in the order of their
 * table under their headers, and the doc behind. argp's own help sorts them by name.
 *
 * @param program  "zero-bench step"
 */
void args_help(const struct argp *argp, const char *program, FILE *file);

typedef struct args_hint {
    char text[128];
} args_hint_t;

/** What a message says of zr_name_nearest: "; the nearest is NAME"; "" for NULL. */
args_hint_t args_hint(const char *nearest);

/*
 * Values. `key` is the option as the user wrote it ("--stage"). All return ZR_OK, or
 * ZR_ERR_ARGUMENT after logging key, value, what is allowed and the nearest allowed value.
 */

/** One of some words; their place in `names`. */
ZR_NODISCARD zr_status_t args_choice(const char *key, const char *value, const char *const *names,
                                     size_t n_names, const zr_log_t *log, size_t *choice_p);
/** A whole number from `least` to `most`. */
ZR_NODISCARD zr_status_t args_count(const char *key, const char *value, size_t least, size_t most,
                                    const zr_log_t *log, size_t *count_p);
/** Bytes: 1024, 512MiB, 16GB; KiB, MiB, GiB, TiB are powers of 1024, kB, MB, GB, TB of 1000. */
ZR_NODISCARD zr_status_t args_size(const char *key, const char *value, const zr_log_t *log,
                                   size_t *size_bytes_p);

#endif
