/*
 * zero-plan as its users meet it, beside zero-train (run_train.h): in the same folder, with its
 * output in the same places.
 */
#pragma once

#include "tests/examples/run_train.h"

static inline int plan(const char *arguments) {
    return run_program("", ZERO_PLAN, arguments);
}

static inline json_t *plan_json(const char *arguments, int expected) {
    return program_json(ZERO_PLAN, arguments, expected);
}

/* The plan that is recommended; borrowed. */
static inline json_t *recommended_plan(json_t *object) {
    json_t *recommended = json_object_get(object, "recommended");
    return json_array_get(json_object_get(object, "plans"),
                          (size_t)number(recommended, "plan", NULL));
}
