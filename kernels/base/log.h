/*
 * Messages of the library.
 *
 * A log is a value: a sink, its context, the least severe level that passes, and the rank for the
 * prefix. Objects copy the log they are given: there is no global log, and each rank of a process
 * has its own.
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
 * @param rank     the rank that logs, or -1
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
 * Write a message (messages longer than 4 KiB are truncated, with a mark). It is one line: control
 * characters of its parts, which may be text of files, are shown as \x1b, and so are bytes that are
 * not UTF-8.
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
 * The last error message that the calling thread logged, with any log: the reason why its last call
 * failed. For programs that display errors themselves, and for other languages.
 *
 * @return "" if there was none. A successful call does not clear it. Borrowed until the thread's
 *         next error
 */
const char *zr_last_error(void);

/** A number of bytes as text for people: "17 bytes", "1.5 KiB", "96.0 MiB". */
typedef struct zr_size_text {
    char text[32];
} zr_size_text_t;

/** To be used in the call that prints it: `zr_fail(log, ..., "%s", zr_size_text(size_bytes).text)`.
 */
zr_size_text_t zr_size_text(uint64_t size_bytes);

/** A count with its noun, as text for people: "1 file", "2 files", "0 batches". */
typedef struct zr_count_text {
    char text[64];
} zr_count_text_t;

/**
 * To be used in the call that prints it, like zr_size_text.
 *
 * @param noun  singular, "file"; its plural must be regular; truncated after 40 bytes
 */
zr_count_text_t zr_count_text(uint64_t n, const char *noun);

/** "error", "warning", "info" or "debug". */
const char *zr_log_level_name(zr_log_level_t level);

ZR_END_C
