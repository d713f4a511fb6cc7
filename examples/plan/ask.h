/*
 * What zero-plan and zero-train ask the library's search of plans.
 */
#ifndef EXAMPLES_PLAN_ASK_H
#define EXAMPLES_PLAN_ASK_H

#include "examples/common/messages.h"
#include "examples/plan/options.h"

/** The question that options are. Borrows what they do. */
zr_run_ask_t plan_ask(const plan_options_t *options);

/** zr_run_row_request and its like, of that question. */
zr_run_request_t plan_row_request(const plan_options_t *options, const zr_run_row_t *row);
int plan_row_group_size(const plan_options_t *options, const zr_run_row_t *row);
bool plan_row_uses_nvme(const plan_options_t *options, const zr_run_row_t *row);

/** Ask it; `messages` has the progress line, NULL: nobody looks. Otherwise as zr_run_search. */
ZR_NODISCARD zr_status_t plan_search(const plan_options_t *options, const zr_log_t *log,
                                     messages_t *messages, zr_run_rows_t *rows_p);

#endif
