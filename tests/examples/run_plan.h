/*
 * zero-plan as its users meet it, beside zero-train (run_train.h): in the same folder, with its
 * output in the same places.
 */
#pragma once

#include "tests/examples/run_train.h"

static inline int plan(const char *arguments) {
    return run_program("", ZERO_PLAN, arguments);
}

FORMATTED(2) static inline json_t *plan_json(int expected, const char *format, ...) {
    char text[2048];
    FORMAT_INTO(text, format);
    return program_json(ZERO_PLAN, expected, text);
}

/* The plan that is recommended; borrowed. */
static inline json_t *recommended_plan(json_t *object) {
    return json_array_get(field(object, "plans"), (size_t)number(object, "recommended.plan"));
}
