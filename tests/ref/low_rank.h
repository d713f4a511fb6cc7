/*
 * An adapter for tests: y += x A B, with A [n_in, LOW_RANK] and B [LOW_RANK, n_out], both normal
 * and of their layer's unit. As a weight, it is W + A B.
 */
#pragma once

#include "models/parts.h"

enum { LOW_RANK = 3 };
enum { LOW_RANK_A = 0, LOW_RANK_B = 1 }; /* of zr_part_linear_t.added */

extern const zr_part_adapter_t low_rank_adapter;
