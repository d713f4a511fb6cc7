/*
 * The command that runs a plan: options of zero-train, or DeepSpeed's JSON and the options that it
 * has no keys for.
 */
#ifndef EXAMPLES_PLAN_COMMAND_H
#define EXAMPLES_PLAN_COMMAND_H

#include "examples/plan/describe.h"

/** All options, but for --data; DIR stands for a folder that was not named. */
void plan_command_options(const plan_options_t *options, const zr_run_row_t *row,
                          plan_words_t *words);

/** Those that are left beside the file: --config itself is not among them. */
void plan_command_beside_file(const plan_options_t *options, const zr_run_row_t *row,
                              plan_words_t *words);

/** The file. *text_p: JSON, to be freed with free(). ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t plan_command_file(const plan_options_t *options, const zr_run_row_t *row,
                                           char **text_p);

#endif
