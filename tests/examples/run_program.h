/*
 * Programs as their users meet them: processes with a command line, an exit status, standard output
 * and standard error, in a folder of the test's own; and what they print with --json. For one test
 * program each: everything is static.
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

static char out[1 << 20], err[65536];

#define FORMATTED(n) __attribute__((format(printf, n, n + 1)))

/* What a format and the arguments behind it make, in an array. */
#define FORMAT_INTO(text, format)                                                                  \
    do {                                                                                           \
        va_list arguments;                                                                         \
        va_start(arguments, format);                                                               \
        assert_true(vsnprintf(text, sizeof(text), format, arguments) < (int)sizeof(text));         \
        va_end(arguments);                                                                         \
    } while (0)

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

/* Objects are there until the program ends. */
static inline json_t *kept(json_t *object) {
    static json_t *all[4096]; /* so that none is lost */
    static size_t n;
    assert_true(json_is_object(object) && n < sizeof(all) / sizeof(all[0]));
    return all[n++] = object;
}

static inline json_t *kept_json(const char *of) {
    json_error_t error;
    json_t *object = json_loads(of, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object))
        fail_msg("no object: line %d: %s\n%s%s", error.line, error.text, of, err);
    return kept(object);
}

/* Run a program after a command of the shell: it ends with this exit status. */
static inline void expect_run(const char *before, const char *program, const char *arguments,
                              int expected) {
    int code = run_program(before, program, arguments);
    if (code != expected)
        fail_msg("%s: exit %d instead of %d\n%s%s", arguments, code, expected, out, err);
}

/* The object that it prints with --json. */
static inline json_t *program_json(const char *program, int expected, const char *arguments) {
    char with_json[2056];
    snprintf(with_json, sizeof(with_json), "%s --json", arguments);
    expect_run("", program, with_json, expected);
    return kept_json(out);
}

/* ---- what is expected ---- */

/* All of these parts, which stand between bars, are in a text. */
static inline void expect_parts(const char *what, const char *of, const char *parts) {
    char copy[1024], *rest = copy;
    assert_true(strlen(parts) < sizeof(copy));
    strcpy(copy, parts);
    for (char *part = strsep(&rest, "|"); part != NULL; part = strsep(&rest, "|"))
        if (strstr(of, part) == NULL)
            fail_msg("%s: \"%s\" is not in: %s", what, part, of);
}

static inline void assert_said(const char *arguments, const char *parts) {
    expect_parts(arguments, err, parts);
}

static inline void expect_out(const char *parts) {
    expect_parts("standard output", out, parts);
}

static inline void assert_not_said(const char *arguments, const char *part) {
    if (strstr(err, part) != NULL)
        fail_msg("%s: \"%s\" is in: %s", arguments, part, err);
}

/* It ends with this status and says all of these parts; bad usage has no other output. */
static inline void expect_said(const char *program, int code, const char *arguments,
                               const char *parts) {
    expect_run("", program, arguments, code);
    if (code == 2)
        assert_string_equal(out, "");
    assert_said(arguments, parts);
}

/* Arguments of a program, and what it says of them. */
typedef struct said {
    const char *arguments, *parts;
} said_t;

static inline void expect_all_said(const char *program, int code, const said_t *cases, size_t n) {
    for (size_t i = 0; i < n; i++)
        expect_said(program, code, cases[i].arguments, cases[i].parts);
}

/* ---- objects ---- */

/* What stands there, by names with dots between; NULL: nothing. */
static inline json_t *field_at(json_t *object, const char *path) {
    char name[128];
    for (size_t n; *path != '\0' && object != NULL; path += n + (path[n] == '.')) {
        n = strcspn(path, ".");
        snprintf(name, sizeof(name), "%.*s", (int)n, path);
        object = json_object_get(object, name);
    }
    return object;
}

FORMATTED(2) static inline json_t *field(json_t *object, const char *format, ...) {
    char path[256];
    FORMAT_INTO(path, format);
    return field_at(object, path);
}

FORMATTED(2) static inline double number(json_t *object, const char *format, ...) {
    char path[256];
    FORMAT_INTO(path, format);
    json_t *value = field_at(object, path);
    if (!json_is_number(value))
        fail_msg("%s is no number in %s", path, out);
    return json_number_value(value);
}

static inline const char *text(json_t *object, const char *path) {
    const char *value = json_string_value(field_at(object, path));
    if (value == NULL)
        fail_msg("%s is no string in %s", path, out);
    return value != NULL ? value : "";
}

/* Fields and their values, as "stage=3 dtype=fp32 finite=true nvme_bytes=absent". */
FORMATTED(2) static inline void expect_fields(json_t *object, const char *format, ...) {
    char wanted[1024], *rest = wanted;
    FORMAT_INTO(wanted, format);
    for (char *pair = strsep(&rest, " "); pair != NULL; pair = strsep(&rest, " ")) {
        char is[128], *expected = strchr(pair, '=');
        *expected++ = '\0';
        json_t *value = field_at(object, pair);
        if (json_is_number(value))
            snprintf(is, sizeof(is), "%.15g", json_number_value(value));
        else
            snprintf(is, sizeof(is), "%s",
                     value == NULL           ? "absent"
                     : json_is_string(value) ? json_string_value(value)
                     : json_is_true(value)   ? "true"
                     : json_is_false(value)  ? "false"
                     : json_is_null(value)   ? "null"
                                             : "present");
        if (strcmp(is, expected) != 0)
            fail_msg("%s is %s, not %s, in %s", pair, is, expected, out);
    }
}

/* The same numbers of bytes, planned and needed: of what is live, of each tag and, where it is
 * asked for, of what is reserved, in every tier that either knows. */
static inline void expect_same_peaks(json_t *planned, json_t *trained, bool of_reserved) {
    const char *tier, *tag;
    json_t *peak, *value, *needed = field(trained, "peak_bytes");
    assert_int_equal(json_object_size(planned), json_object_size(needed));
    json_object_foreach(needed, tier, peak) {
        json_t *own = field(planned, "%s", tier);
        expect_fields(own, "live=%.0f", number(peak, "live"));
        if (of_reserved)
            expect_fields(own, "reserved=%.0f", number(peak, "reserved"));
        json_object_foreach(field(peak, "tags"), tag,
                            value) if (json_integer_value(field(own, "tags.%s", tag)) !=
                                       json_integer_value(value))
            fail_msg("%s %s: %lld planned, %lld needed; %s", tier, tag,
                     (long long)json_integer_value(field(own, "tags.%s", tag)),
                     (long long)json_integer_value(value), out);
    }
}

/* ---- documents ---- */

/* A name behind a backtick, with what has to stand behind it. */
static inline void expect_documented(const char *path, const char *name, const char *after) {
    static char document[1 << 17];
    char wanted[160], dotted[160];
    read_file(path, document, sizeof(document));
    snprintf(wanted, sizeof(wanted), "`%s%s", name, after);
    snprintf(dotted, sizeof(dotted), "`... %s%s", name, after);
    if (strstr(document, wanted) == NULL && strstr(document, dotted) == NULL)
        fail_msg("%s says nothing of %s", path, name);
}

/* All fields of an object, but for these words, each between spaces; in these lists, only their
 * names. */
static inline void expect_fields_documented(const char *path, json_t *value, const char *but,
                                            const char *lists) {
    const char *name;
    json_t *inner;
    if (json_is_array(value))
        value = json_array_get(value, 0);
    json_object_foreach(value, name, inner) {
        char word[128];
        snprintf(word, sizeof(word), " %s ", name);
        if (strstr(but, word) != NULL)
            continue;
        expect_documented(path, name, "`");
        if (strstr(lists, word) == NULL)
            expect_fields_documented(path, inner, but, lists);
    }
}
