/*
 * Running zero-bench as a user does, for the tests of its commands.
 */
#pragma once

#include <jansson.h>
#include <sys/wait.h>

#include "tests/common/test.h"

/* Run zero-bench with these arguments (of a shell); its output, and what it exited with. */
static inline int run(const char *arguments, char *output, size_t output_bytes) {
    char command[1024];
    snprintf(command, sizeof(command), "'%s' %s", ZERO_BENCH, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(output, 1, output_bytes - 1, pipe);
    output[length] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static inline double number_at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("%s is no number", key);
    return json_number_value(value);
}

/* It ends with 2, says so on standard error alone, and names what is wrong. */
static inline void assert_bad_usage(const char *arguments, const char *expected) {
    char with_errors[512], output[4096];
    snprintf(with_errors, sizeof(with_errors), "%s 2>/dev/null", arguments);
    assert_int_equal(run(with_errors, output, sizeof(output)), 2);
    assert_string_equal(output, "");
    snprintf(with_errors, sizeof(with_errors), "%s 2>&1", arguments);
    assert_int_equal(run(with_errors, output, sizeof(output)), 2);
    if (strstr(output, expected) == NULL)
        fail_msg("%s: \"%s\" does not contain \"%s\"", arguments, output, expected);
}
