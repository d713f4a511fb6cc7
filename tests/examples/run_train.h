/*
 * zero-train as its users meet it (run_program.h), which is at ZERO_TRAIN.
 */
#pragma once

#include "tests/examples/run_program.h"

#define TINY "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --data text --comm-timeout 60 "

static inline int run_after(const char *before, const char *arguments) {
    return run_program(before, ZERO_TRAIN, arguments);
}

static inline int run(const char *arguments) {
    return run_after("", arguments);
}

FORMATTED(2) static inline void assert_ran(int expected, const char *format, ...) {
    char text[2048];
    FORMAT_INTO(text, format);
    expect_run("", ZERO_TRAIN, text, expected);
}

/* The object of zero-train with --json. */
FORMATTED(2) static inline json_t *run_json(int expected, const char *format, ...) {
    char text[2048];
    FORMAT_INTO(text, format);
    return program_json(ZERO_TRAIN, expected, text);
}

/* Enter a new folder, with a text of 5000 tokens and a folder that stands for a drive. */
static inline int make_folder(void **state) {
    char text[5000];
    if (enter_test_folder(state) != 0 || mkdir("drive", 0777) != 0)
        return -1;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = "the quick brown fox jumps over the lazy dog. "[i * i % 7 + i % 38];
    write_file("text", text, sizeof(text));
    return 0;
}

/* False, said: this machine has no io_uring. */
static inline bool has_nvme(void) {
    int code = run(TINY "--offload-optimizer nvme --nvme-path drive --steps 1");
    if (code == 2 && strstr(err, "io_uring") != NULL) {
        print_message("skipped: nothing over NVMe: %s", err);
        return false;
    }
    assert_int_equal(code, 0);
    return true;
}

/* ---- a run that goes on meanwhile ---- */

#define MOST_WORDS 64

/* Start zero-train with its output in the files out and err. */
static inline pid_t start(const char *arguments) {
    char copy[1024], *words[MOST_WORDS] = {ZERO_TRAIN};
    size_t n = 1;
    snprintf(copy, sizeof(copy), "%s", arguments);
    for (char *word = strtok(copy, " "); word != NULL && n < MOST_WORDS - 1;
         word = strtok(NULL, " "))
        words[n++] = word;
    int out_fd = open("out", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err_fd = open("err", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(out_fd >= 0 && err_fd >= 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        dup2(out_fd, STDOUT_FILENO);
        dup2(err_fd, STDERR_FILENO);
        execv(words[0], words);
        _exit(127);
    }
    close(out_fd);
    close(err_fd);
    return child;
}

/* Until the run has said something: no time is too long but that of the test's own limit. It may
 * have ended meanwhile; end() says how. */
static inline void wait_for(pid_t child, const char *part) {
    for (bool has_ended = false;;) {
        read_file("err", err, sizeof(err));
        if (strstr(err, part) != NULL)
            return;
        if (has_ended)
            fail_msg("it ended before it said \"%s\": %s", part, err);
        siginfo_t about = {0};
        assert_int_equal(waitid(P_PID, (id_t)child, &about, WEXITED | WNOHANG | WNOWAIT), 0);
        has_ended = about.si_pid != 0;
        usleep(1000);
    }
}

static inline int end(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    read_file("out", out, sizeof(out));
    read_file("err", err, sizeof(err));
    return status;
}
