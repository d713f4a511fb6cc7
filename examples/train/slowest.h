/*
 * Which rank the others wait for. A rank's own time is what it did not wait for other ranks in:
 * where ranks are equal and one is slow, its own time is longer, while all steps are as long as
 * its.
 */
#pragma once

#include <stddef.h>

/** The slowest rank of a step. */
typedef struct train_slowest {
    int rank;              /* the first of equals */
    double excess_seconds; /* its own time less the median of the other ranks' */
} train_slowest_t;

/** @param own_seconds  [n_ranks], sorted afterwards; n_ranks is 2 or more */
train_slowest_t train_slowest_of(double *own_seconds, int n_ranks);

/** A rank's part in the steps that it was the slowest in. */
typedef struct train_delays {
    size_t n_steps;
    double excess_seconds; /* of all of them */
} train_delays_t;

/** The rank whose excesses add up to most; the first of equals. */
int train_slowest_of_all(const train_delays_t *delays, int n_ranks);
