/*
 * The conformance suite of communicators: run it on every backend.
 */
#pragma once

#include "tests/zero/comm/ranks.h"

/** Run all cases at 1, 2, 3, 5 and 8 ranks, as far as the suite has as many; for main to return. */
int run_comm_suite(const comm_suite_t *suite);
