/*
 * Programs that are several: zero-bench, zero-checkpoint. A command is a file that defines a
 * command_t, and a line in the table of the program; what all of them share is here: finding the
 * command, its options and words, --help, --version, and the exit status.
 */
#pragma once

#include "examples/common/json.h"
#include "examples/common/messages.h"
#include "examples/common/options.h"

/** What programs exit with. */
enum { COMMAND_DONE = 0, COMMAND_FAILED = 1, COMMAND_BAD_INPUT = 2 };

#define COMMAND_MOST_WORDS 512

/** What is the same in every command: the first member of its options. */
typedef struct command_common {
    bool json, help, version;
    const char *words[COMMAND_MOST_WORDS]; /* those that are no options */
    size_t n_words;
    options_given_t given;
    const zr_log_t *log; /* one of messages_log */
} command_common_t;

/** Choices of rows that several commands have. */
extern const zr_option_choice_t command_dtypes[], command_places[];

typedef struct command {
    const char *name;       /* "adam" */
    const char *summary;    /* one line for the list of commands */
    const char *doc;        /* what its --help says of it */
    const zr_option_t *own; /* rows of its options, all in one group */
    size_t n_own;
    const options_table_t *base; /* of options that it shares with others; NULL: with none */
    const char *words;           /* that it takes, as --help shows them; NULL: none */
    size_t least_words, most_words;
    const char *short_of; /* the option that "-o" stands for; NULL: none */
    const char *option;   /* "--save-hardware", that asks for it where it stands in place of the
                             name; NULL: none does */
    const void *defaults; /* of its options, [options_bytes]; NULL: zeros */
    size_t options_bytes;
    /* Returns what the program exits with. */
    int (*run)(void *options);
} command_t;

typedef struct program {
    const char *name;     /* "zero-bench" */
    const char *summary;  /* what its --help says first */
    const char *statuses; /* what its exit statuses mean */
    const command_t *const *commands;
    size_t n_commands;
    const args_known_t *elsewhere; /* commands that other tools have, and what to do; NULL: none */
} program_t;

/** All of main: find the command and run it. */
int command_main(const program_t *program, int argc, char **argv);

/** json, help, version and words: the base of the options that several commands share. */
extern const options_table_t command_base;
/** The table of a command's options; program: "zero-bench adam". */
options_table_t command_table(const char *program, const command_t *command);

/** All of main of a program that is no several; what it exits with is what `run` returns, or
 * `describe` has printed its options, where the first word is --man or --completion. */
int program_main(const char *name, int (*run)(int argc, char **argv, messages_t *messages),
                 void (*describe)(options_print_t *print, FILE *file), int argc, char **argv);
/** `code` where all has been printed; otherwise COMMAND_FAILED, and the log says it. */
int program_check_output(int code, bool printed, const zr_log_t *log);
/** Print what --version says. */
void program_print_version(const char *program);
/** Print what --help says, or --version: what the program exits with. */
int program_tell(const char *program, bool help, void (*print_help)(FILE *file),
                 const zr_log_t *log);

/** Print what --json asked for and free it: `code`, or that this failed. NULL is a failure, too. */
int command_print(json_t *object, int code, const zr_log_t *log);
/** What a command exits with that ends so: bad input is what an option is to blame for, or what is
 * not here. */
int command_code(zr_status_t status);
