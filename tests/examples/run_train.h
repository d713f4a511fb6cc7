/*
 * zero-train as its users meet it: a process with a command line, an exit status, standard output
 * and standard error, in a folder of its own. For one test program each: everything is static.
 */
#pragma once

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TINY "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --data text --comm-timeout 60 "

static char out[1 << 20], err[65536];

static inline void write_file(const char *name, const void *bytes, size_t n) {
    FILE *file = fopen(name, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static inline void read_file(const char *name, char *text, size_t size) {
    FILE *file = fopen(name, "rb");
    assert_non_null(file);
    text[fread(text, 1, size - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
}

/* Run a command of the shell that leaves its output in the files out and err; its exit status. */
static inline int run_shell(const char *command) {
    int status = system(command);
    read_file("out", out, sizeof(out));
    read_file("err", err, sizeof(err));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Run a program in the folder, after a command of the shell. */
static inline int run_program(const char *before, const char *program, const char *arguments) {
    char command[4096];
    snprintf(command, sizeof(command), "exec >out 2>err; %s exec '%s' %s", before, program,
             arguments);
    return run_shell(command);
}

/* The object that it prints with --json. */
static inline json_t *program_json(const char *program, const char *arguments, int expected) {
    char with_json[2048];
    snprintf(with_json, sizeof(with_json), "%s --json", arguments);
    int code = run_program("", program, with_json);
    if (code != expected)
        fail_msg("%s %s: exit %d instead of %d\n%s", program, with_json, code, expected, err);
    json_t *object = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    return object;
}

static inline int run_after(const char *before, const char *arguments) {
    return run_program(before, ZERO_TRAIN, arguments);
}

static inline int run(const char *arguments) {
    return run_after("", arguments);
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

/* ---- what is expected ---- */

static inline void assert_ran(const char *arguments, int expected) {
    int code = run(arguments);
    if (code != expected)
        fail_msg("%s: exit %d instead of %d\n%s%s", arguments, code, expected, out, err);
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

static inline json_t *run_json(const char *arguments, int expected) {
    assert_ran(arguments, expected);
    json_error_t error;
    json_t *object = json_loads(out, JSON_REJECT_DUPLICATES, &error);
    if (object == NULL)
        fail_msg("%s: line %d: %s\n%s", arguments, error.line, error.text, out);
    assert_true(json_is_object(object));
    return object;
}

static inline void assert_said(const char *arguments, const char *part) {
    if (strstr(err, part) == NULL)
        fail_msg("%s: \"%s\" is not in: %s", arguments, part, err);
}

static inline void assert_not_said(const char *arguments, const char *part) {
    if (strstr(err, part) != NULL)
        fail_msg("%s: \"%s\" is in: %s", arguments, part, err);
}

static inline double number(json_t *object, const char *name, const char *inner) {
    json_t *value = json_object_get(object, name);
    if (inner != NULL)
        value = json_object_get(value, inner);
    if (!json_is_number(value))
        fail_msg("%s %s is no number in %s", name, inner ? inner : "", out);
    return json_number_value(value);
}

static inline const char *text(json_t *object, const char *name) {
    const char *value = json_string_value(json_object_get(object, name));
    if (value == NULL)
        fail_msg("%s is no string in %s", name, out);
    return value;
}
