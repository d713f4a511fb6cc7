/*
 * What a program says to people, on standard error: messages of the library and of the
 * program itself, and a progress line that is rewritten in place on a terminal. Ranks often
 * meet the same error together; it is printed once and the others are counted.
 */
#pragma once

#include <stdio.h>

#include "zero/zero.h"

typedef struct messages messages_t;

/**
 * Call first in main: takes the places of standard input, output and error that were closed when
 * the program was started, so that no file it opens gets one of them, and with it what is printed.
 * Writing to a place that was closed still fails.
 */
void messages_hold_standard_files(void);

/**
 * @param program  stands before each message; borrowed until destroy
 * @return NULL when there is no memory
 *
 * Threads: thread-safe.
 */
messages_t *messages_create(const char *program);
/** Ends the progress line, and says how many messages were repetitions. NULL is fine. */
void messages_destroy(messages_t **messages);

/**
 * Print words in lines, and end the last.
 *
 * @param column   where the first line goes on
 * @param indent   where the others begin
 * @param columns  of a line, at most; a longer word has a line of its own
 */
void messages_wrap(const char *text, size_t length, size_t column, size_t indent, size_t columns,
                   FILE *file);

/** A log that writes here; to a terminal in lines that fit it. */
zr_log_t messages_log(messages_t *messages, zr_log_level_t level);

/** Where such a log writes; NULL for any other log. */
messages_t *messages_of(const zr_log_t *log);

/**
 * Replace the progress line, where standard error is a terminal; it is cut off where it does not
 * fit, unless it stays.
 *
 * @param stays  the line is ended; elsewhere than on a terminal only such lines are written
 */
void messages_progress(messages_t *messages, bool stays, const char *format, ...) ZR_PRINTF(3, 4);
/** A part of a progress line. */
typedef struct messages_part {
    int priority; /* parts with the largest number are left out first where the terminal is narrow
                   */
    char text[224];
} messages_part_t;

/** The same of parts, with two spaces between them: on a terminal, those that fit. A line that
 * stays is a line there as well. */
void messages_progress_parts(messages_t *messages, bool stays, const messages_part_t *parts,
                             size_t n_parts);
/** End the progress line: what is printed next stands below it. */
void messages_end_progress(messages_t *messages);

/** The first error that was written, "" before; valid until destroy. For a thread that has written
 * one, or when all others have ended. */
const char *messages_first_error(const messages_t *messages);
