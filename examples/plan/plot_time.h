/*
 * The time line of one step: a lane for each part of the machine, in which height is how much of
 * each moment the part works.
 */
#ifndef EXAMPLES_PLAN_PLOT_TIME_H
#define EXAMPLES_PLAN_PLOT_TIME_H

#include <stdio.h>

#include "zero/zero.h"

#define PLAN_LINE_COLUMNS 900 /* moments that a step is divided into */
#define PLAN_LINE_MOST_LANES 8
#define PLAN_LINE_KINDS 3 /* of work in a lane */

typedef struct plan_line {
    double seconds;                    /* of the step */
    double busy[PLAN_LINE_MOST_LANES]; /* seconds of work in it */
    bool has_kind[PLAN_LINE_MOST_LANES][PLAN_LINE_KINDS];
    float share[PLAN_LINE_MOST_LANES][PLAN_LINE_KINDS][PLAN_LINE_COLUMNS]; /* of each moment */
} plan_line_t;

/** Put the work of a step in lanes. */
void plan_line_make(const zr_run_spans_t *spans, plan_line_t *line_p);

/** Lanes in which anything is. */
size_t plan_line_n_lanes(const plan_line_t *line);

/** Write the commands of gnuplot that draw it where the margins are set. */
void plan_line_draw(const plan_line_t *line, FILE *script);

#endif
