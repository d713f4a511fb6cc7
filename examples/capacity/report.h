/*
 * Capacities for people, as CSV and as JSON.
 */
#pragma once

#include "examples/capacity/run.h"

/** A table for each combination of what is swept, and what the budgets of its best were used for.
 */
void capacity_report_table(const capacity_options_t *options, const capacity_results_t *results,
                           FILE *file);

/** Print the object of --json; false when that failed. */
bool capacity_report_json(const capacity_options_t *options, const capacity_results_t *results,
                          FILE *file);

/** Write --csv: a line of names, and one for each capacity. ZR_ERR_IO: logged. */
ZR_NODISCARD zr_status_t capacity_report_csv(const capacity_results_t *results, const char *path,
                                             const zr_log_t *log);
