/*
 * The picture of --plot: memory of every placement by tag and tier, with what there is of it, and
 * the time line of a step of the recommended plan.
 */
#ifndef EXAMPLES_PLAN_PLOT_H
#define EXAMPLES_PLAN_PLOT_H

#include "examples/plan_search.h"

/**
 * Draw it. Where nothing fits there is no time line.
 *
 * @param path  NAME.svg or NAME.png (gnuplot_has_form)
 * @return ZR_OK; ZR_ERR_UNSUPPORTED without gnuplot, ZR_ERR_IO, ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t plan_plot_draw(const plan_options_t *options, const plan_rows_t *rows,
                                        const char *path, const zr_log_t *log);

#endif
