/*
 * Files of the Trace Event Format, event by event: made with jansson, so that every name is quoted
 * right, and written at once, so that a long trace needs no memory.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include <jansson.h>

#include "kernels/base/status.h"

typedef struct zr_trace_json {
    FILE *file;
    bool is_begun; /* an event was written: the next one follows a comma */
} zr_trace_json_t;

/**
 * Begin a file.
 *
 * @param about  what a viewer shows of the whole trace ("otherData"): an object, taken over; NULL:
 *               there was no memory for it
 * @return ZR_OK; ZR_ERR_MEMORY; ZR_ERR_IO: nothing is logged, errno says why
 */
ZR_NODISCARD zr_status_t zr_trace_json_begin(FILE *file, json_t *about, zr_trace_json_t *json_p);
/** Write an event, which is taken over. Errors as above. */
ZR_NODISCARD zr_status_t zr_trace_json_put(zr_trace_json_t *json, json_t *event);
/** All events have been written. Errors as above. */
ZR_NODISCARD zr_status_t zr_trace_json_end(zr_trace_json_t *json);

/**
 * A name as it may be shown: valid UTF-8 without control characters, in so many bytes with its end.
 * What is none is a question mark.
 *
 * @return buffer
 */
const char *zr_trace_json_name(const char *name, char *buffer, size_t buffer_bytes);

