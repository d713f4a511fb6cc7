/*
 * Files of zr_trace_save as tests look at them: whole, with slices that lie within each other or
 * apart, by process and lane.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/** Load a file; it is a trace whose slices nest, in threads that have names. Release with
 * json_decref. */
json_t *trace_file_load(const char *path);

/** The slices of a lane, as they begin: those of all threads that it is spread over.
 *
 * @param lane  NULL: of all lanes
 * @param category  "work", "collective", "transfer", "stall", "place"; NULL: of any
 * @return [*n_p] borrowed from the file; free the array */
json_t **trace_file_slices(json_t *file, int process, const char *lane, const char *category,
                           size_t *n_p);

/** How many slices have a name that begins so. */
size_t trace_file_count(json_t *file, int process, const char *lane, const char *begin_of_name);

/** The largest value of a counter; -1: there is none. */
double trace_file_peak(json_t *file, int process, const char *counter);

/** Its last value, in the order of the file; -1: there is none. */
double trace_file_last(json_t *file, int process, const char *counter);

/** Nanoseconds. */
long long trace_file_begin(json_t *slice);
long long trace_file_end(json_t *slice);
