/* Every kernel of the CUDA device once or a few times, on sizes that are small, and still take each
 * through all its barriers more than once. */
#pragma once

#include "kernels/base/status.h"

ZR_BEGIN_C

#include "tests/kernels/device_fixture.h"

/** Part `part` of TOUR_N_PARTS; resets the fixture. What the kernels compute is not looked at. */
enum { TOUR_N_PARTS = 7 };
void tour(fixture_t *fixture, int part);

ZR_END_C
