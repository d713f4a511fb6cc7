/* See command.h. */
#include "examples/common/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "examples/common/device.h"

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

int program_check_output(int code, bool printed, const zr_log_t *log) {
    if (printed && fflush(stdout) == 0 && !ferror(stdout))
        return code;
    zr_log_write(log, ZR_LOG_ERROR, "cannot write to standard output");
    return COMMAND_FAILED;
}

static messages_t *open_messages(const char *program) {
    messages_hold_standard_files();
    messages_t *messages = messages_create(program);
    if (messages == NULL)
        fprintf(stderr, "%s: error: no memory\n", program);
    return messages;
}

int program_main(const char *name, int (*run)(int argc, char **argv, messages_t *messages),
                 int argc, char **argv) {
    messages_t *messages = open_messages(name);
    int code = messages != NULL ? run(argc, argv, messages) : COMMAND_FAILED;
    messages_destroy(&messages);
    return code;
}

int command_main(const program_t *program, int argc, char **argv) {
    messages_t *messages = open_messages(program->name);
    if (messages == NULL)
        return COMMAND_FAILED;
    zr_log_t log = messages_log(messages, ZR_LOG_INFO);
    int code = run(program, argc, argv, &log);
    if (code == COMMAND_DONE)
        code = program_check_output(code, true, &log);
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

/* The words of "none|cpu|nvme": which of them the value is. */
static zr_status_t take_choice(const char *key, const char *words, const char *value,
                               const zr_log_t *log, int *choice_p) {
    enum { MOST = 8 };
    char text[128], *rest = text, *names[MOST];
    size_t n = 0, choice = 0;
    snprintf(text, sizeof(text), "%s", words);
    while (n < MOST && (names[n] = strsep(&rest, "|")) != NULL)
        n++;
    ZR_TRY(args_choice(key, value, (const char *const *)names, n, log, &choice));
    *choice_p = (int)choice;
    return ZR_OK;
}

static zr_status_t take_own(const parsing_t *parsing, const command_option_t *option,
                            const char *value) {
    const zr_log_t *log = parsing->log;
    void *field = (char *)parsing->common + option->field;
    char key[64];
    int choice = 0;
    snprintf(key, sizeof(key), "--%s", option->name);
    if (option->given != 0)
        *(bool *)((char *)parsing->common + option->given) = true;
    switch (option->kind) {
    case COMMAND_COUNT:
        return args_count(key, value, (size_t)option->least, (size_t)option->most, log, field);
    case COMMAND_SIZE:
        return args_size(key, value, log, field);
    case COMMAND_NUMBER:
        return args_number(key, value, option->least, option->most, log, field);
    case COMMAND_DTYPE:
        return args_dtype(key, value, log, field);
    case COMMAND_CHOICE:
        return take_choice(key, option->value, value, log, field);
    case COMMAND_SWITCH:
        ZR_TRY(take_choice(key, "off|on", value, log, &choice));
        *(bool *)field = choice == 1;
        return ZR_OK;
    case COMMAND_FLAG:
        *(bool *)field = true;
        return ZR_OK;
    case COMMAND_OTHER:
        return option->take(value, parsing->common);
    case COMMAND_DEVICE:
    case COMMAND_TEXT:
        break;
    }
    *(const char **)field = value;
    return option->kind == COMMAND_DEVICE ? device_check(value, log) : ZR_OK;
}

enum { KEY_JSON = 0x1000, KEY_HELP, KEY_VERSION, KEY_FIRST_OWN };

static int key_of(const command_option_t *options, size_t i) {
    return options[i].letter != 0 ? options[i].letter : KEY_FIRST_OWN + (int)i;
}

/* As argp has them: a command's own, and those that all have. */
static void list_options(const command_parser_t *parser,
                         struct argp_option table[COMMAND_MOST_OPTIONS + 4]) {
    static const struct argp_option common[] = {
        {"json", KEY_JSON, NULL, 0, "print one JSON object on standard output", 0},
        {"help", KEY_HELP, NULL, 0, "print this", -1},
        {"version", KEY_VERSION, NULL, 0, "print the version and how it was built", -1},
        {0}};
    const command_option_t *own = parser->options;
    size_t n = 0;
    for (; own != NULL && own[n].name != NULL && n < COMMAND_MOST_OPTIONS; n++)
        table[n] =
            (struct argp_option){own[n].name, key_of(own, n), own[n].value, 0, own[n].help, 0};
    memcpy(&table[n], common, sizeof(common));
}

static zr_status_t take(const parsing_t *parsing, int key, char *value) {
    const command_option_t *own = parsing->parser->options;
    switch (key) {
    case KEY_JSON:
        parsing->common->json = true;
        return ZR_OK;
    case KEY_HELP:
        parsing->common->help = true;
        return ZR_OK;
    case KEY_VERSION:
        parsing->common->version = true;
        return ZR_OK;
    case ARGP_KEY_ARG:
        return take_word(parsing, value);
    }
    for (size_t i = 0; own != NULL && own[i].name != NULL; i++)
        if (key_of(own, i) == key)
            return take_own(parsing, &own[i], value);
    return ZR_ERR_UNSUPPORTED;
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
    struct argp_option options[COMMAND_MOST_OPTIONS + 4];
    list_options(parser, options);
    const struct argp argp = {
        .options = options, .parser = parse_option, .args_doc = parser->words, .doc = parser->doc};
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
