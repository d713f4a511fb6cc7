/*
 * Programs that are several: zero-bench, zero-checkpoint. A command is a file that defines a
 * command_t, and a line in the table of the program; what all of them share is here: finding the
 * command, its options and words, --help, --version, and the exit status.
 */
#ifndef EXAMPLES_COMMON_COMMAND_H
#define EXAMPLES_COMMON_COMMAND_H

#include <argp.h>

#include "examples/common/args.h"
#include "examples/common/json.h"
#include "examples/common/messages.h"

/** What programs exit with. */
enum { COMMAND_DONE = 0, COMMAND_FAILED = 1, COMMAND_BAD_INPUT = 2 };

typedef struct command {
    const char *name;    /* "adam" */
    const char *summary; /* one line for the list of commands */
    /* argv[0] is the command's name. Returns what the program exits with. */
    int (*run)(int argc, char **argv, const zr_log_t *log);
    const char *option; /* of its own, "--save-hardware", that asks for it where it stands in place
                           of the name; NULL: none does */
} command_t;

typedef struct program {
    const char *name;     /* "zero-bench" */
    const char *summary;  /* what its --help says first */
    const char *statuses; /* what its exit statuses mean */
    const command_t *const *commands;
    size_t n_commands;
} program_t;

/** All of main: find the command and run it. The log that it gets is one of messages_log. */
int command_main(const program_t *program, int argc, char **argv);

/** Print what --json asked for and free it: `code`, or that this failed. NULL is a failure, too. */
int command_print(json_t *object, int code, const zr_log_t *log);

/* ---- the command line of a command ---------------------------------------------------- */

#define COMMAND_MOST_WORDS 512

/** What is the same in every command. */
typedef struct command_common {
    bool json, help, version;
    const char *words[COMMAND_MOST_WORDS]; /* those that are no options */
    size_t n_words;
} command_common_t;

enum { COMMAND_KEY_JSON = 0x1000, COMMAND_KEY_HELP, COMMAND_KEY_VERSION, COMMAND_KEY_FIRST_OWN };

/** The last entries of a command's options. */
#define COMMAND_COMMON_OPTIONS                                                                     \
    {"json", COMMAND_KEY_JSON, NULL, 0, "print one JSON object on standard output", 0},            \
        {"help", COMMAND_KEY_HELP, NULL, 0, "print this", -1}, {                                   \
        "version", COMMAND_KEY_VERSION, NULL, 0, "print the version and how it was built", -1      \
    }

typedef struct command_parser {
    const char *name;                  /* of the command */
    const struct argp_option *options; /* its own, COMMAND_COMMON_OPTIONS, and zeros */
    const char *doc;                   /* what --help says of it */
    /* Take one of its own; what is wrong has been logged. ZR_ERR_UNSUPPORTED: it has none such.
     * NULL: it has none. */
    zr_status_t (*take)(int key, const char *value, void *options);
    const char *words; /* that it takes beside options, as --help shows them; NULL: none */
    size_t least_words, most_words;
} command_parser_t;

/**
 * Parse a command line, and answer --help and --version.
 *
 * @param program  "zero-bench"
 * @param common   the first member of the options that the parser's `take` gets
 * @param code_p   set when the answer is false: what the program exits with
 * @return whether to go on
 */
bool command_parse(const char *program, const command_parser_t *parser, int argc, char **argv,
                   const zr_log_t *log, command_common_t *common, int *code_p);

#endif
