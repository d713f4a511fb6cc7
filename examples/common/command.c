/* See command.h. */
#include "examples/common/command.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#ifdef ZR_HAVE_MIMALLOC
#include <mimalloc.h>
#endif

#include "examples/common/args.h"

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
           "  --man        print this as a page for man\n"
           "  --completion bash   print a script that completes options in bash\n"
           "\n"
           "Every command takes --json: one JSON object on standard output and nothing else.\n"
           "Exit status: %s.\n",
           program->statuses);
}

void program_print_version(const char *program) {
    printf("%s %s (%s)\n", program, zr_version(), zr_build_description());
}

int program_tell(const char *program, bool help, void (*print_help)(FILE *file),
                 const zr_log_t *log) {
    if (help)
        print_help(stdout);
    else
        program_print_version(program);
    return program_check_output(COMMAND_DONE, true, log);
}

/* "--option" and "--option=value" ask for the command whose it is. */
static bool asks_for(const char *word, const command_t *command) {
    size_t length = command->option != NULL ? strlen(command->option) : 0;
    return length > 0 && strncmp(word, command->option, length) == 0 &&
           (word[length] == '\0' || word[length] == '=');
}

static bool has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (; *words != '\0'; words += strspn(words, " ")) {
        size_t n = strcspn(words, " ");
        if (n == length && strncmp(words, word, n) == 0)
            return true;
        words += n;
    }
    return false;
}

/* With the nearest of commands and options that may stand first. */
static int refuse(const program_t *program, const char *word, const zr_log_t *log) {
    enum { MOST = 64 };
    for (const args_known_t *e = program->elsewhere; e != NULL && e->names != NULL; e++)
        if (has_word(e->names, word)) {
            zr_log_write(log, ZR_LOG_ERROR, "%s is not a command of %s: %s", word, program->name,
                         e->here);
            return COMMAND_BAD_INPUT;
        }
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

/* ---- running one ---------------------------------------------------------------------- */

const zr_option_choice_t command_dtypes[] = {
    {"fp32", ZR_DTYPE_F32, NULL}, {"bf16", ZR_DTYPE_BF16, NULL}, {NULL, 0, NULL}};
const zr_option_choice_t command_places[] = {{"none", ZR_OFFLOAD_NONE, NULL},
                                             {"cpu", ZR_OFFLOAD_CPU, NULL},
                                             {"nvme", ZR_OFFLOAD_NVME, NULL},
                                             {NULL, 0, NULL}};

static zr_status_t take_word(void *object, const char *label, const char *text,
                             const zr_log_t *log) {
    command_common_t *common = object;
    (void)label;
    if (common->n_words == COMMAND_MOST_WORDS)
        return zr_fail(log, ZR_ERR_ARGUMENT, "\"%s\": allowed: %d words", text, COMMAND_MOST_WORDS);
    common->words[common->n_words++] = text;
    return ZR_OK;
}

#define AT(member) .offset = offsetof(command_common_t, member)

static const zr_option_t common_rows[] = {
    {"json", AT(json), .type = ZR_OPTION_FLAG, .group = 2,
     .help = "print one JSON object on standard output"},
    {"help", AT(help), .type = ZR_OPTION_FLAG, .group = 2, .help = "print this"},
    {"version", AT(version), .type = ZR_OPTION_FLAG, .group = 2,
     .help = "print the version and how it was built"},
    {"word", .type = ZR_OPTION_STRING, .flags = ZR_OPTION_HIDDEN | ZR_OPTION_SEVERAL, .group = 2,
     .arg = "WORD", .initial = "", .take = take_word, .help = ""}};

static const char *const headers[] = {NULL, "Options:", "Of every command:"};
static const options_use_t no_uses[1];

const options_table_t command_base = {
    .own = common_rows, .n_own = sizeof(common_rows) / sizeof(common_rows[0]), .uses = no_uses};

options_table_t command_table(const char *program, const command_t *command) {
    return (options_table_t){.program = program,
                             .args = command->words,
                             .doc = command->doc,
                             .headers = headers,
                             .n_groups = 2,
                             .own = command->own,
                             .n_own = command->n_own,
                             .base = command->base != NULL ? command->base : &command_base,
                             .word = "word"};
}

static zr_status_t check_words(const command_t *command, const command_common_t *common) {
    const zr_log_t *log = common->log;
    if (common->n_words < command->least_words)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s takes %s, which is missing", command->name,
                       command->words);
    if (common->n_words <= command->most_words)
        return ZR_OK;
    const char *word = common->words[command->most_words];
    if (command->most_words == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s takes only options, but got \"%s\"", command->name,
                       word);
    return zr_fail(log, ZR_ERR_ARGUMENT, "%s takes %s, but got \"%s\" too", command->name,
                   command->words, word);
}

static void set_defaults(const command_t *command, const zr_log_t *log, command_common_t *common) {
    memset(common, 0, command->options_bytes);
    if (command->defaults != NULL)
        memcpy(common, command->defaults, command->options_bytes);
    common->log = log;
}

static int parse_and_run(const char *program, const command_t *command, int argc, char **argv,
                         const zr_log_t *log, command_common_t *common) {
    char name[64], option[64];
    snprintf(name, sizeof(name), "%s %s", program, command->name);
    snprintf(option, sizeof(option), "--%s", command->short_of != NULL ? command->short_of : "");
    options_table_t table = command_table(name, command);
    for (int i = 1; i < argc && command->short_of != NULL; i++)
        if (strcmp(argv[i], "-o") == 0)
            argv[i] = option;
    set_defaults(command, log, common);
    zr_status_t status = options_parse(&table, argc, argv, log, common, &common->given);
    if (status == ZR_OK && !common->help && !common->version)
        status = check_words(command, common);
    if (status != ZR_OK)
        return command_code(status);
    if (common->version) {
        program_print_version(program);
    } else if (common->help) {
        set_defaults(command, log, common);
        options_help(&table, common, stdout);
    } else {
        return command->run(common);
    }
    return COMMAND_DONE;
}

static int run_command(const char *program, const command_t *command, int argc, char **argv,
                       const zr_log_t *log) {
    command_common_t *common = malloc(command->options_bytes);
    if (common == NULL) {
        zr_log_write(log, ZR_LOG_ERROR, "no memory for options");
        return COMMAND_FAILED;
    }
    int code = parse_and_run(program, command, argc, argv, log, common);
    free(common);
    return code;
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
        program_print_version(program->name);
        return COMMAND_DONE;
    }
    for (size_t i = 0; i < program->n_commands; i++) {
        const command_t *command = program->commands[i];
        if (strcmp(argv[1], command->name) == 0)
            return run_command(program->name, command, argc - 1, argv + 1, log);
        if (asks_for(argv[1], command))
            return run_command(program->name, command, argc, argv, log);
    }
    return refuse(program, argv[1], log);
}

int program_check_output(int code, bool printed, const zr_log_t *log) {
    if (printed && fflush(stdout) == 0 && !ferror(stdout))
        return code;
    zr_log_write(log, ZR_LOG_ERROR, "cannot write to standard output");
    return COMMAND_FAILED;
}

/* Memory that was given back is soon asked for again, as by the next plan of a search: telling the
 * kernel of it took 8 % of a search's time. A run has a budget (--memory), and gives it back. */
static void keep_freed_memory(const char *program) {
#ifdef ZR_HAVE_MIMALLOC
    if (strcmp(program, "zero-train") != 0)
        mi_option_disable(mi_option_allow_decommit);
#else
    (void)program;
#endif
}

/* A file that is larger than the limit of the process is an error of its write, which is told. */
static messages_t *open_messages(const char *program) {
    keep_freed_memory(program);
    (void)signal(SIGXFSZ, SIG_IGN);
    messages_hold_standard_files();
    messages_t *messages = messages_create(program);
    if (messages == NULL)
        fprintf(stderr, "%s: error: no memory\n", program);
    return messages;
}

/* What --man or "--completion bash" asks for, as the only words of a command line; NULL: neither is
 * asked for, or is wrong, which *is_wrong_p says. */
static options_print_t *asked_form(int argc, char **argv, const zr_log_t *log, bool *is_wrong_p) {
    static const char key[] = "--completion";
    const char *word = argc > 1 ? argv[1] : "", *shell = "";
    *is_wrong_p = false;
    if (strcmp(word, "--man") == 0 && argc == 2)
        return options_man;
    if (strncmp(word, key, strlen(key)) != 0)
        return NULL;
    if (word[strlen(key)] == '=')
        shell = word + strlen(key) + 1;
    else if (argc == 3)
        shell = argv[2];
    if (strcmp(shell, "bash") == 0)
        return options_bash;
    *is_wrong_p = true;
    zr_log_write(log, ZR_LOG_ERROR,
                 "%s %s: allowed: bash, and nothing else on the line; write "
                 "it to a file that your shell reads",
                 word[strlen(key)] == '=' || argc < 3 ? word : key,
                 word[strlen(key)] == '=' || argc < 3 ? "" : argv[2]);
    return NULL;
}

int program_main(const char *name, int (*run)(int argc, char **argv, messages_t *messages),
                 void (*describe)(options_print_t *print, FILE *file), int argc, char **argv) {
    messages_t *messages = open_messages(name);
    int code = COMMAND_FAILED;
    if (messages != NULL) {
        zr_log_t log = messages_log(messages, ZR_LOG_INFO);
        bool is_wrong = false;
        options_print_t *form = asked_form(argc, argv, &log, &is_wrong);
        if (form != NULL)
            describe(form, stdout);
        code = form != NULL ? program_check_output(COMMAND_DONE, true, &log)
               : is_wrong   ? COMMAND_BAD_INPUT
                            : run(argc, argv, messages);
    }
    messages_destroy(&messages);
    return code;
}

static void describe_man(const program_t *program) {
    options_man_begin(program->name, "COMMAND [OPTION...]", program->summary, stdout);
    for (size_t i = 0; i < program->n_commands; i++) {
        const command_t *command = program->commands[i];
        options_table_t table = command_table(program->name, command);
        printf(".SH COMMAND %s %s\n%s\n", command->name,
               command->words != NULL ? command->words : "", command->summary);
        options_man_rows(&table, command->defaults, command->name, stdout);
    }
}

static void describe_bash(const program_t *program) {
    options_bash_begin(program->name, stdout);
    printf("    case $COMP_CWORD in\n    1) mapfile -t COMPREPLY < <(compgen -W \"--help "
           "--version");
    for (size_t i = 0; i < program->n_commands; i++)
        printf(" %s", program->commands[i]->name);
    printf("\" -- \"$word\"); return ;;\n    esac\n    case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < program->n_commands; i++) {
        options_table_t table = command_table(program->name, program->commands[i]);
        printf("    %s)\n", program->commands[i]->name);
        options_bash_rows(&table, stdout);
        printf("    ;;\n");
    }
    printf("    esac\n");
    options_bash_end(program->name, stdout);
}

int command_main(const program_t *program, int argc, char **argv) {
    messages_t *messages = open_messages(program->name);
    if (messages == NULL)
        return COMMAND_FAILED;
    zr_log_t log = messages_log(messages, ZR_LOG_INFO);
    bool is_wrong = false;
    options_print_t *form = asked_form(argc, argv, &log, &is_wrong);
    int code = COMMAND_DONE;
    if (form != NULL)
        (form == options_man ? describe_man : describe_bash)(program);
    else
        code = is_wrong ? COMMAND_BAD_INPUT : run(program, argc, argv, &log);
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

int command_code(zr_status_t status) {
    switch (status) {
    case ZR_OK:
        return COMMAND_DONE;
    case ZR_ERR_ARGUMENT:
    case ZR_ERR_UNSUPPORTED:
        return COMMAND_BAD_INPUT;
    default:
        return COMMAND_FAILED;
    }
}
