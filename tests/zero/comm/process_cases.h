/*
 * What is tried with ranks that are processes, beside the conformance suite.
 */
#pragma once

#include "tests/zero/comm/comm_suite.h"

/** Memory of a device that others may map: granules that were moved between calls, ranges that came
 * after the first call, and tensors that are in no range at all. */
void moved_memory(rank_t *self);
