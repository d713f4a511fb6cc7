/*
 * The picture of --plot: losses and learning rate of the lines of --log.
 */
#pragma once

#include "examples/train/options.h"

/**
 * Draw what options->log_path has into options->plot_path.
 *
 * @return ZR_OK; ZR_ERR_FORMAT: the log has no loss; ZR_ERR_IO; ZR_ERR_UNSUPPORTED without gnuplot;
 *         ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t train_plot_draw(const train_options_t *options, const zr_log_t *log);
