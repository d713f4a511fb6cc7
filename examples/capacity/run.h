/*
 * All capacities that are asked for, one after the other.
 */
#pragma once

#include <jansson.h>

#include "examples/capacity/options.h"
#include "examples/common/messages.h"

typedef struct capacity_results {
    json_t *points;    /* an array of capacity_point_object, in the order of the question */
    char hardware[64]; /* its name */
    bool is_whole;     /* all that was asked for is there */
    size_t n_wanted;
} capacity_results_t;

/**
 * Find them, and keep --state up to date.
 *
 * @param messages   for the progress bar; NULL: none
 * @param stop       end as soon as the plan, or the step, under way is done; what was found by then
 *                   is there
 * @param results_p  free with capacity_results_free; set also when it was stopped, or failed later
 *                   than at the first question
 * @return ZR_OK, also when it was stopped; ZR_ERR_ARGUMENT, ZR_ERR_FORMAT and ZR_ERR_IO for a state
 *         that cannot be gone on from; what finding a capacity returns: logged
 */
ZR_NODISCARD zr_status_t capacity_run(const capacity_options_t *options, const zr_log_t *log,
                                      messages_t *messages, const atomic_bool *stop,
                                      capacity_results_t *results_p);
void capacity_results_free(capacity_results_t *results);
