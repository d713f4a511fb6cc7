/*
 * What zero-plan says: a table and a recommendation, or an object of JSON.
 */
#ifndef EXAMPLES_PLAN_REPORT_H
#define EXAMPLES_PLAN_REPORT_H

#include "examples/plan/ask.h"

/** Print the object of --json; false when that failed. */
bool plan_report_json(const plan_options_t *options, const zr_run_rows_t *rows, FILE *file);

/** The same for people. */
void plan_report_table(const plan_options_t *options, const zr_run_rows_t *rows, FILE *file);

#endif
