/*
 * Traces of buffers as CSV: a header with at least the columns id, lower, upper and size, in
 * any order, then a line per buffer, which lives at the times lower <= t < upper. A column
 * "alignment" is understood, others are passed over. Fields may be quoted as RFC 4180 says.
 */
#pragma once

#include "zero/zero.h"

typedef struct trace {
    char *text; /* the file; ids point into it */
    const char **ids;
    zr_plan_buffer_t *buffers;
    size_t n_buffers, capacity;
} trace_t;

/**
 * Read a trace.
 *
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_MEMORY; ZR_ERR_FORMAT after saying file, line and column
 */
ZR_NODISCARD zr_status_t trace_read(const char *path, const zr_log_t *log, trace_t *trace_p);
void trace_free(trace_t *trace);

/** Round every size up to a multiple of `alignment`, a power of two, and align every buffer to it.
 */
void trace_align(trace_t *trace, size_t alignment);

/** Write the trace again, with a column for the offsets. */
ZR_NODISCARD zr_status_t trace_write_plan(const trace_t *trace, const size_t *offsets,
                                          const char *path, const zr_log_t *log);

/** Whether no two buffers that live at once overlap; says which do. ZR_ERR_MEMORY, too. */
ZR_NODISCARD zr_status_t trace_check_plan(const trace_t *trace, const size_t *offsets,
                                          const zr_log_t *log, bool *is_valid_p, size_t *height_p);
