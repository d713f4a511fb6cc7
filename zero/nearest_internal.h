/*
 * How alike two names are. Internal to zero/: zero/options.h has zr_name_nearest.
 */
#pragma once

#include <stddef.h>

/**
 * Optimal string alignment: the cost of letters that have to be put in, left out, changed or
 * swapped with their neighbour. Without case. SIZE_MAX for a name that is longer than any known.
 */
size_t zr_name_distance(const char *a, const char *b);

/** The largest distance that still is a slip: edits of a third of the letters, at most 4. */
size_t zr_name_slip_limit(const char *name);
