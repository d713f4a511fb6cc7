/*
 * What zero-bench comm has measured, for people and as JSON (docs/internals/bench.md).
 */
#pragma once

#include "examples/bench/comm_run.h"

typedef struct comm_report {
    const comm_options_t *options;
    comm_row_t *rows;
    size_t n_rows;
    comm_about_t about;
} comm_report_t;

/** NULL: no memory. */
json_t *comm_report_describe(const comm_report_t *report);
