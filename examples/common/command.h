/*
 * Programs that are several: zero-bench, zero-checkpoint. A command is a file that defines a
 * command_t, and a line in the table of the program; what all of them share is here: finding the
 * command, its options and words, --help, --version, and the exit status.
 */
#pragma once

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

/** All of main of a program that is no several; what it exits with is what `run` returns. */
int program_main(const char *name, int (*run)(int argc, char **argv, messages_t *messages),
                 int argc, char **argv);
/** `code` where all has been printed; otherwise COMMAND_FAILED, and the log says it. */
int program_check_output(int code, bool printed, const zr_log_t *log);

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

/** What an option's value is, and with it the type of the field that it goes to. */
typedef enum command_kind {
    COMMAND_TEXT,   /* const char *: as it was written */
    COMMAND_COUNT,  /* size_t, from least to most */
    COMMAND_SIZE,   /* size_t, of bytes */
    COMMAND_NUMBER, /* double, from least to most */
    COMMAND_DTYPE,  /* zr_dtype_t */
    COMMAND_DEVICE, /* const char *, a device as device_choose takes it */
    COMMAND_CHOICE, /* int or enum: the place among the words of `value`, "none|cpu|nvme" */
    COMMAND_SWITCH, /* bool, off or on */
    COMMAND_FLAG,   /* bool, true where it is given: it has no value */
    COMMAND_OTHER   /* what `take` makes of it */
} command_kind_t;

/** An option of a command: where its value goes, and what it may be. */
typedef struct command_option {
    const char *name, *value; /* "ranks", "N" */
    const char *help;
    command_kind_t kind;
    size_t field; /* offset among the command's options */
    double least, most;
    size_t given; /* offset of a bool that is true where the option is given; 0: none */
    zr_status_t (*take)(const char *value, void *options); /* what is wrong has been logged */
    char letter;                                           /* a short name, or 0 */
} command_option_t;

#define COMMAND_MOST_OPTIONS 32

typedef struct command_parser {
    const char *name;                /* of the command */
    const command_option_t *options; /* its own, and zeros; NULL: none */
    const char *doc;                 /* what --help says of it */
    const char *words; /* that it takes beside options, as --help shows them; NULL: none */
    size_t least_words, most_words;
} command_parser_t;

/**
 * Parse a command line, and answer --help and --version.
 *
 * @param program  "zero-bench"
 * @param common   the first member of the options that the parser's fields are in
 * @param code_p   set when the answer is false: what the program exits with
 * @return whether to go on
 */
bool command_parse(const char *program, const command_parser_t *parser, int argc, char **argv,
                   const zr_log_t *log, command_common_t *common, int *code_p);
