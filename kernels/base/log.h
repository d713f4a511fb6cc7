/*
 * Messages of the library.
 *
 * A log is a value: a sink, its context, the least severe level that passes,
 * and the rank that stands in the prefix. Objects copy the one they are given,
 * so there is no global log and eight ranks of one process keep eight.
 */
#pragma once

#include <stdint.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

typedef enum zr_log_level {
    ZR_LOG_ERROR = 0,
    ZR_LOG_WARNING = 1,
    ZR_LOG_INFO = 2,
    ZR_LOG_DEBUG = 3
} zr_log_level_t;

/**
 * Receives one message, without a newline at its end.
 *
 * @param context  zr_log_t.context
 * @param rank     the rank that speaks, -1 where there is none
 * @param message  borrowed for the call
 *
 * Threads: called from any thread that owns a copy of the log; a sink that is
 * shared by ranks must be thread-safe.
 */
typedef void (*zr_log_sink_fn)(void *context, zr_log_level_t level, int rank, const char *message);

typedef struct zr_log {
    zr_log_sink_fn sink; /* NULL: one line on standard error */
    void *context;       /* borrowed for as long as a copy of the log is in use */
    zr_log_level_t level;
    int rank; /* -1: no rank in the prefix */
} zr_log_t;

/** A log that writes errors and warnings to standard error, without a rank. */
zr_log_t zr_log_default(void);

/** The same log with another rank in its prefix. */
zr_log_t zr_log_with_rank(const zr_log_t *log, int rank);

/**
 * Write a message of any length (longer than 4 KiB is cut, and says so).
 *
 * @param log     NULL means zr_log_default()
 * @param format  printf's
 *
 * Threads: thread-safe when the sink is; the default sink is.
 */
void zr_log_write(const zr_log_t *log, zr_log_level_t level, const char *format, ...)
    ZR_PRINTF(3, 4);

/** Log an error and give back its status: `return zr_fail(log, ZR_ERR_..., "...")`. */
zr_status_t zr_fail(const zr_log_t *log, zr_status_t status, const char *format, ...)
    ZR_PRINTF(3, 4) ZR_NODISCARD;

/**
 * What the calling thread has last logged as an error, with whatever log: why the call failed whose
 * status it has just looked at. For programs that show it themselves, and other languages.
 *
 * @return "" when there was none; what a call that goes well leaves is that of an earlier one.
 *         Borrowed until the thread's next error
 */
const char *zr_last_error(void);

/** A number of bytes as people read it: "17 bytes", "1.5 KiB", "96.0 MiB". */
typedef struct zr_size_text {
    char text[32];
} zr_size_text_t;

/** For the call that prints it: `zr_fail(log, ..., "%s", zr_size_text(size_bytes).text)`. */
zr_size_text_t zr_size_text(uint64_t size_bytes);

/** A number of things as people write it: "1 file", "2 files", "0 batches". */
typedef struct zr_count_text {
    char text[64];
} zr_count_text_t;

/**
 * For the call that prints it, as zr_size_text.
 *
 * @param noun  of one, "file"; English and regular; what is longer than 40 bytes is cut
 */
zr_count_text_t zr_count_text(uint64_t n, const char *noun);

/** "error", "warning", "info" or "debug". */
const char *zr_log_level_name(zr_log_level_t level);

ZR_END_C
