/*
 * The files of --tensorboard: what --log has of each step and evaluation, as scalars that
 * TensorBoard reads.
 */
#pragma once

#include <jansson.h>

#include <stdio.h>

#include "examples/train/checkpoint.h"

/**
 * Make a file in options->tensorboard_dir, which is made, too. Of a run that goes on it says so:
 * TensorBoard then leaves out what earlier files have of steps that come again.
 *
 * @param file_p  set on success; fclose it
 * @return ZR_OK; ZR_ERR_IO, logged
 */
ZR_NODISCARD zr_status_t train_events_open(const train_options_t *options,
                                           const train_start_t *start, const zr_log_t *log,
                                           FILE **file_p);

/**
 * Write the numbers of a line of --log, under "train/" or "val/" and their names there.
 *
 * @param line  borrowed
 * @return false: errno says why
 */
bool train_events_write(FILE *file, const json_t *line);
