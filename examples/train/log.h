/*
 * What is written of each step and evaluation: the file of --log, a line each, and that of
 * --tensorboard (events.h). A run that goes on goes on in it, so that a command that is
 * given again leaves each step's line there once, in order.
 */
#pragma once

#include <jansson.h>

#include <stdio.h>

#include "examples/train/checkpoint.h"

/** Files; NULL: not asked for, or of another rank. */
typedef struct train_log {
    FILE *lines, *events;
} train_log_t;

/**
 * Open what is asked for: the file of --log behind the lines that stay: of a run that goes on,
 * those before the first of a step that comes now; of others, none. What is cut is said. Pipes and
 * devices are written as they are.
 *
 * A kill at any moment costs no line that stays: they are not touched.
 *
 * @param to_p  set on success, and where one was opened before the other failed; train_log_close it
 * @return ZR_OK; ZR_ERR_IO, logged
 */
ZR_NODISCARD zr_status_t train_log_open(const train_options_t *options, const train_start_t *start,
                                        const zr_log_t *log, train_log_t *to_p);

/** ZR_ERR_IO, logged: what was written last has not reached a file. */
ZR_NODISCARD zr_status_t train_log_close(const train_options_t *options, const zr_log_t *log,
                                         train_log_t *to);

/** Whether anything is written. */
static inline bool train_log_is_open(const train_log_t *to) {
    return to->lines != NULL || to->events != NULL;
}

/**
 * Write an object as scalars of an event, and as a line: of JSON, or, where the file's name ends in
 * ".csv", of the columns that its first line names.
 *
 * @param object  NULL is no memory; freed
 * @param what    "step", for messages
 * @return ZR_OK; ZR_ERR_MEMORY or ZR_ERR_IO, logged
 */
ZR_NODISCARD zr_status_t train_log_write(const train_log_t *to, const train_options_t *options,
                                         json_t *object, const char *what, size_t step,
                                         const zr_log_t *log);
