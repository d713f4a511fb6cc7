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

/** Nodes that the ranks are on. */
int plan_n_nodes(const plan_options_t *options);

/** The same for a launcher, which says how many ranks there are. */
plan_options_t plan_without_ranks(const plan_options_t *options);

/** The command that starts zero-train on several nodes: with torchrun on each (NODE and HOST stand
 * for its number and the address of node 0), or with mpirun once. "" where there is one node, or
 * torchrun does not start as many ranks on each. */
void plan_command_launch(const plan_options_t *options, const zr_run_row_t *row, bool is_on_each,
                         plan_words_t *words);

/** Those that are left beside the file: --config itself is not among them. */
void plan_command_beside_file(const plan_options_t *options, const zr_run_row_t *row,
                              plan_words_t *words);

/** The file. *text_p: JSON, to be freed with free(). ZR_ERR_MEMORY. */
ZR_NODISCARD zr_status_t plan_command_file(const plan_options_t *options, const zr_run_row_t *row,
                                           char **text_p);

#endif
