/*
 * The conformance suite of communicators: run it on every backend.
 */
#ifndef ZR_TESTS_ZERO_COMM_COMM_SUITE_H
#define ZR_TESTS_ZERO_COMM_COMM_SUITE_H

#include "tests/zero/comm/ranks.h"

/** Run all cases at 1, 2, 3, 5 and 8 ranks, as far as the suite has as many; for main to return. */
int run_comm_suite(const comm_suite_t *suite);

#endif
