/*
 * Plans in words: where things are, what is missing, why one was chosen, and as options.
 */
#ifndef EXAMPLES_PLAN_WORDS_H
#define EXAMPLES_PLAN_WORDS_H

#include "examples/plan/ask.h"

/** A text that grows until its memory ends, and is cut off there. */
typedef struct plan_words {
    char *bytes; /* [size], ends with 0; borrowed */
    size_t size, n;
} plan_words_t;

void plan_words_add(plan_words_t *words, const char *format, ...) ZR_PRINTF(2, 3);

/** "stage 2 with optimizer state in host memory" */
void plan_words_placement(const zr_run_row_t *row, plan_words_t *words);
/** "needs 3 GiB of device memory and has 2 GiB; 1 GiB of it are activations"; of one that does not
 * fit */
void plan_words_lack(const zr_run_row_t *row, plan_words_t *words);
/** A sentence: why the recommended one. One fits. */
void plan_words_why(const zr_run_rows_t *rows, plan_words_t *words);

/* ---- as options of zero-train, each behind a space ---- */

/** Where the optimizer's state lives, and how much of it. */
void plan_words_optimizer(const zr_run_row_t *row, plan_words_t *words);
/** The same of parameters. */
void plan_words_params(const zr_run_row_t *row, plan_words_t *words);
/** Where inputs of layers wait. */
void plan_words_activations(const zr_run_row_t *row, plan_words_t *words);
/** The order of a step, where it updates, and its masters: what is not the usual one. */
void plan_words_step(const zr_run_row_t *row, plan_words_t *words);
/** What was settled of updates and gradients, where what was asked left it open. */
void plan_words_moves(const train_options_t *asked, const zr_run_row_t *row, plan_words_t *words);

#endif
