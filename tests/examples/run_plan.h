/*
 * zero-plan as its users meet it, beside zero-train (run_train.h): in the same folder, with its
 * output in the same places.
 */
#ifndef TESTS_EXAMPLES_RUN_PLAN_H
#define TESTS_EXAMPLES_RUN_PLAN_H

#include "tests/examples/run_train.h"

/* Run zero-plan as run() does zero-train. */
static inline int plan(const char *arguments) {
    char command[4096];
    snprintf(command, sizeof(command), "'%s' %s >out 2>err", ZERO_PLAN, arguments);
    int status = system(command);
    read_file("out", out, sizeof(out));
    read_file("err", err, sizeof(err));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static inline json_t *plan_json(const char *arguments, int expected) {
    char with_json[2048];
    snprintf(with_json, sizeof(with_json), "%s --json", arguments);
    int code = plan(with_json);
    if (code != expected)
        fail_msg("zero-plan %s: exit %d instead of %d\n%s", with_json, code, expected, err);
    json_t *object = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    return object;
}

/* The plan that is recommended; borrowed. */
static inline json_t *recommended_plan(json_t *object) {
    json_t *recommended = json_object_get(object, "recommended");
    return json_array_get(json_object_get(object, "plans"),
                          (size_t)number(recommended, "plan", NULL));
}

#endif
