/*
 * The file of --log, a line per step. A run that goes on goes on in it, so that a command that is
 * given again leaves each step's line there once, in order.
 */
#pragma once

#include <jansson.h>

#include <stdio.h>

#include "examples/train/checkpoint.h"

/**
 * Open it behind the lines that stay: of a run that goes on, those before the first of a step that
 * comes now; of others, none. What is cut is said. Pipes and devices are written as they are.
 *
 * A kill at any moment costs no line that stays: they are not touched.
 *
 * @param file_p  set on success; fclose it
 * @return ZR_OK; ZR_ERR_IO, logged
 */
ZR_NODISCARD zr_status_t train_log_open(const train_options_t *options, const train_start_t *start,
                                        const zr_log_t *log, FILE **file_p);

/**
 * Write an object as a line: of JSON, or, where the file's name ends in ".csv", of the columns that
 * its first line names.
 *
 * @param object  NULL is no memory; freed
 * @param what    "step", for messages
 * @return ZR_OK; ZR_ERR_MEMORY or ZR_ERR_IO, logged
 */
ZR_NODISCARD zr_status_t train_log_write(FILE *file, const train_options_t *options, json_t *object,
                                         const char *what, size_t step, const zr_log_t *log);
