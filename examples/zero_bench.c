/*
 * zero-bench: how far each part of the library is from this machine's own limit.
 * This file finds the command; each command is a file in bench/.
 */
#include <stdio.h>
#include <string.h>

#include "examples/bench/bench.h"
#include "examples/common/messages.h"

static const bench_command_t *const commands[] = {&bench_adam, &bench_kernels, &bench_matmul,
                                                  &bench_step, &bench_alloc,   &bench_io};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_help(void) {
    puts("Usage: zero-bench COMMAND [OPTION...]\n"
         "Measure a part of the library against this machine's own limit, in the same run.\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-12s %s\n", commands[i]->name, commands[i]->summary);
    puts("\n"
         "  --help       print this; after a command, its options\n"
         "  --version    print the version and how it was built\n"
         "\n"
         "Every command takes --json: one JSON object on standard output and nothing else there.\n"
         "Exit status: 0 measured, 1 failed, 2 bad usage.");
}

/* The nearest of commands and options that may stand first. */
static int refuse(const char *word, const zr_log_t *log) {
    const char *names[N_COMMANDS + 2] = {"--help", "--version"};
    for (size_t i = 0; i < N_COMMANDS; i++)
        names[i + 2] = commands[i]->name;
    bool is_option = word[0] == '-';
    zr_log_write(
        log, ZR_LOG_ERROR, "unknown %s %s; the nearest is %s (zero-bench --help lists all)",
        is_option ? "option" : "command", word,
        is_option ? args_nearest(word, names, 2) : args_nearest(word, names + 2, N_COMMANDS));
    return BENCH_BAD_INPUT;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    if (argc < 2) {
        zr_log_write(log, ZR_LOG_ERROR, "a command is missing (zero-bench --help lists all)");
        return BENCH_BAD_INPUT;
    }
    if (strcmp(argv[1], "--help") == 0) {
        print_help();
        return BENCH_MEASURED;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("zero-bench %s (%s)\n", zr_version(), zr_build_description());
        return BENCH_MEASURED;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i]->name) == 0)
            return commands[i]->run(argc - 1, argv + 1, log);
    }
    return refuse(argv[1], log);
}

int main(int argc, char **argv) {
    messages_hold_standard_files();
    messages_t *messages = messages_create("zero-bench");
    if (messages == NULL) {
        fputs("zero-bench: error: no memory\n", stderr);
        return BENCH_FAILED;
    }
    zr_log_t log = messages_log(messages, ZR_LOG_INFO);
    int code = run(argc, argv, &log);
    if (code == BENCH_MEASURED && (fflush(stdout) != 0 || ferror(stdout))) {
        zr_log_write(&log, ZR_LOG_ERROR, "cannot write to standard output");
        code = BENCH_FAILED;
    }
    messages_destroy(&messages);
    return code;
}
