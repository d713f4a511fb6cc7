/*
 * Small linear problems: the least of a sum under a few limits (the simplex method).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define ZR_LINEAR_MOST_VARIABLES 16
#define ZR_LINEAR_MOST_ROWS 32

/** sum of factors[i] * x[i] <= limit; is_equal: it is the limit. */
typedef struct zr_linear_row {
    double factors[ZR_LINEAR_MOST_VARIABLES];
    double limit;
    bool is_equal;
} zr_linear_row_t;

/** Least sum of costs[i] * x[i] with all x >= 0. Figures should be of the order of 1. */
typedef struct zr_linear {
    size_t n_variables, n_rows;
    double costs[ZR_LINEAR_MOST_VARIABLES];
    zr_linear_row_t rows[ZR_LINEAR_MOST_ROWS];
} zr_linear_t;

/** A further row, of zeros, to be filled in. There has to be room for it. */
zr_linear_row_t *zr_linear_add(zr_linear_t *problem, double limit, bool is_equal);

/**
 * Solve it; the same problem has the same answer each time.
 *
 * @param x_p  [n_variables]; set when there is an answer
 * @return false: no x keeps all limits, or the sum has no least value
 */
bool zr_linear_solve(const zr_linear_t *problem, double *x_p);
