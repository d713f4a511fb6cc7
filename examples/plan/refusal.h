/*
 * What is said where no plan fits: the one that is short of least, and the ways out that were not
 * tried.
 */
#ifndef EXAMPLES_PLAN_REFUSAL_H
#define EXAMPLES_PLAN_REFUSAL_H

#include "examples/plan/describe.h"

/** Where it is, what it lacks and what the run would say, but for advice that plans were made of.
 */
void plan_refusal(const plan_options_t *asked, const zr_run_rows_t *rows, plan_words_t *words);

#endif
