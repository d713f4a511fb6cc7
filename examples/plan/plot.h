/*
 * The picture of --plot: memory of every placement by tag and tier, with what there is of it, and
 * the time line of a step of the recommended plan.
 */
#ifndef EXAMPLES_PLAN_PLOT_H
#define EXAMPLES_PLAN_PLOT_H

#include "examples/plan/step.h"

/**
 * Draw it into options->plot_path, which is NAME.svg or NAME.png (gnuplot_check_form).
 *
 * @param step  of the time line; one that was not made has none
 * @return ZR_OK; ZR_ERR_UNSUPPORTED without gnuplot, ZR_ERR_IO, ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t plan_plot_draw(const plan_options_t *options, const zr_run_rows_t *rows,
                                        const plan_step_t *step, const zr_log_t *log);

#endif
