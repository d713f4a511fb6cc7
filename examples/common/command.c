/* See command.h. */
#include "examples/common/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- finding one ---------------------------------------------------------------------- */

static void print_help(const program_t *program) {
    printf("Usage: %s COMMAND [OPTION...]\n%s\n\n", program->name, program->summary);
    for (size_t i = 0; i < program->n_commands; i++)
        printf("  %-12s %s\n", program->commands[i]->name, program->commands[i]->summary);
    printf("\n");
    for (size_t i = 0; i < program->n_commands; i++)
        if (program->commands[i]->option != NULL)
            printf("  %s ...   the same as: %s %s ...\n", program->commands[i]->option,
                   program->commands[i]->name, program->commands[i]->option);
    printf("  --help       print this; after a command, its options\n"
           "  --version    print the version and how it was built\n"
           "\n"
           "Every command takes --json: one JSON object on standard output and nothing else "
           "there.\n"
           "Exit status: %s.\n",
           program->statuses);
}

static void print_version(const char *program) {
    printf("%s %s (%s)\n", program, zr_version(), zr_build_description());
}

/* "--option" and "--option=value" ask for the command whose it is. */
static bool asks_for(const char *word, const command_t *command) {
    size_t length = command->option != NULL ? strlen(command->option) : 0;
    return length > 0 && strncmp(word, command->option, length) == 0 &&
           (word[length] == '\0' || word[length] == '=');
}

/* With the nearest of commands and options that may stand first. */
static int refuse(const program_t *program, const char *word, const zr_log_t *log) {
    enum { MOST = 64 };
    bool is_option = word[0] == '-';
    const char *names[MOST], *options[MOST + 2] = {"--help", "--version"};
    size_t n = 0, n_options = 2;
    for (; n < program->n_commands && n < MOST; n++) {
        names[n] = program->commands[n]->name;
        if (program->commands[n]->option != NULL)
            options[n_options++] = program->commands[n]->option;
    }
    const char *nearest =
        is_option ? zr_name_nearest(word, options, n_options) : zr_name_nearest(word, names, n);
    zr_log_write(log, ZR_LOG_ERROR, "unknown %s %s%s (%s --help lists all)",
                 is_option ? "option" : "command", word[0] != '\0' ? word : "\"\"",
                 args_hint(nearest).text, program->name);
    return COMMAND_BAD_INPUT;
}

static int run(const program_t *program, int argc, char **argv, const zr_log_t *log) {
    if (argc < 2) {
        zr_log_write(log, ZR_LOG_ERROR, "a command is missing (%s --help lists all)",
                     program->name);
        return COMMAND_BAD_INPUT;
    }
    if (strcmp(argv[1], "--help") == 0) {
        print_help(program);
        return COMMAND_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        print_version(program->name);
        return COMMAND_DONE;
    }
    for (size_t i = 0; i < program->n_commands; i++)
        if (strcmp(argv[1], program->commands[i]->name) == 0)
            return program->commands[i]->run(argc - 1, argv + 1, log);
    for (size_t i = 0; i < program->n_commands; i++)
        if (asks_for(argv[1], program->commands[i]))
            return program->commands[i]->run(argc, argv, log);
    return refuse(program, argv[1], log);
}

int command_main(const program_t *program, int argc, char **argv) {
    messages_hold_standard_files();
    messages_t *messages = messages_create(program->name);
    if (messages == NULL) {
        fprintf(stderr, "%s: error: no memory\n", program->name);
        return COMMAND_FAILED;
    }
    zr_log_t log = messages_log(messages, ZR_LOG_INFO);
    int code = run(program, argc, argv, &log);
    if (code == COMMAND_DONE && (fflush(stdout) != 0 || ferror(stdout))) {
        zr_log_write(&log, ZR_LOG_ERROR, "cannot write to standard output");
        code = COMMAND_FAILED;
    }
    messages_destroy(&messages);
    return code;
}

int command_print(json_t *object, int code, const zr_log_t *log) {
    if (json_print_new(object, stdout))
        return code;
    zr_log_write(log, ZR_LOG_ERROR, "cannot print the result on standard output");
    return COMMAND_FAILED;
}

/* ---- its command line ----------------------------------------------------------------- */

typedef struct parsing {
    const command_parser_t *parser;
    command_common_t *common;
    const zr_log_t *log;
} parsing_t;

static zr_status_t take_word(const parsing_t *parsing, const char *word) {
    const command_parser_t *parser = parsing->parser;
    command_common_t *common = parsing->common;
    if (parser->most_words == 0)
        return zr_fail(parsing->log, ZR_ERR_ARGUMENT, "%s takes options only, but got \"%s\"",
                       parser->name, word);
    if (common->n_words == parser->most_words || common->n_words == COMMAND_MOST_WORDS)
        return zr_fail(parsing->log, ZR_ERR_ARGUMENT, "%s takes %s, and \"%s\" is one too many",
                       parser->name, parser->words, word);
    common->words[common->n_words++] = word;
    return ZR_OK;
}

static zr_status_t take(const parsing_t *parsing, int key, char *value) {
    switch (key) {
    case COMMAND_KEY_JSON:
        parsing->common->json = true;
        return ZR_OK;
    case COMMAND_KEY_HELP:
        parsing->common->help = true;
        return ZR_OK;
    case COMMAND_KEY_VERSION:
        parsing->common->version = true;
        return ZR_OK;
    case ARGP_KEY_ARG:
        return take_word(parsing, value);
    }
    return parsing->parser->take != NULL ? parsing->parser->take(key, value, parsing->common)
                                         : ZR_ERR_UNSUPPORTED;
}

static error_t parse_option(int key, char *value, struct argp_state *state) {
    switch (take(state->input, key, value)) {
    case ZR_OK:
        return 0;
    case ZR_ERR_UNSUPPORTED:
        return ARGP_ERR_UNKNOWN;
    default:
        return EINVAL;
    }
}

bool command_parse(const char *program, const command_parser_t *parser, int argc, char **argv,
                   const zr_log_t *log, command_common_t *common, int *code_p) {
    parsing_t parsing = {.parser = parser, .common = common, .log = log};
    const struct argp argp = {.options = parser->options,
                              .parser = parse_option,
                              .args_doc = parser->words,
                              .doc = parser->doc};
    zr_status_t status = args_parse(&argp, argc, argv, log, &parsing);
    bool is_asked = common->help || common->version;
    if (status == ZR_OK && !is_asked && common->n_words < parser->least_words)
        status = zr_fail(log, ZR_ERR_ARGUMENT, "%s takes %s, which is missing", parser->name,
                         parser->words);
    *code_p = status == ZR_OK             ? COMMAND_DONE
              : status == ZR_ERR_ARGUMENT ? COMMAND_BAD_INPUT
                                          : COMMAND_FAILED;
    if (status != ZR_OK || !is_asked)
        return status == ZR_OK;
    char name[64];
    snprintf(name, sizeof(name), "%s %s", program, parser->name);
    if (common->help)
        args_help(&argp, name, stdout);
    else
        print_version(program);
    return false;
}
