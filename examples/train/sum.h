/*
 * The results of a run's ranks, made one.
 */
#pragma once

#include "examples/train/train.h"

/**
 * Add a rank's result to that of all: bytes and counts are added up, peaks and traffic are the
 * largest of any rank, times are means over the ranks.
 *
 * @param is_first  nothing was added before; result is zeroed then
 * @param n_ranks   of which results are added, this one included
 */
void train_sum_add(const train_result_t *own, bool is_first, int n_ranks, train_result_t *result);
