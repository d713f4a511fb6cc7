/*
 * What is tried with ranks that are processes, beside the conformance suite.
 */
#ifndef ZR_TESTS_ZERO_COMM_PROCESS_CASES_H
#define ZR_TESTS_ZERO_COMM_PROCESS_CASES_H

#include "tests/zero/comm/comm_suite.h"

/** Sums that are made in several pieces, and blocks of several messages. */
void large_tensors(rank_t *self);

#endif
