/*
 * The order of the sum of squares, once for all backends.
 *
 * The elements are cut into blocks of ZR_SUM_OF_SQUARES_BLOCK. In a block, lane l
 * of ZR_SUM_OF_SQUARES_LANES adds, in double and in order, the squares of elements
 * l, l + LANES, l + 2 LANES, ...; then the upper half of the lanes is added to the
 * lower half until one is left. The sums of the blocks, a sequence of doubles, are
 * added the same way, as if they were one block of any length. A lane without
 * elements is 0.
 *
 * The square of a float is exact in double, so whether it is fused with the
 * addition makes no difference. Nothing depends on the instruction set or on the
 * number of threads. 256 lanes are what a warp has when each thread loads 8
 * elements at once; a CPU keeps as many of them in registers as it likes, because
 * lanes are independent.
 */
#pragma once

#include <stddef.h>

#define ZR_SUM_OF_SQUARES_LANES 256
#define ZR_SUM_OF_SQUARES_BLOCK 16384

static inline size_t zr_sum_of_squares_n_blocks(size_t n_elems) {
    return n_elems / ZR_SUM_OF_SQUARES_BLOCK + (n_elems % ZR_SUM_OF_SQUARES_BLOCK != 0);
}

/** Add the lanes: the upper half to the lower half, until one is left. */
static inline double zr_sum_of_squares_add_lanes(double *lanes) {
    for (size_t width = ZR_SUM_OF_SQUARES_LANES / 2; width > 0; width /= 2) {
        for (size_t lane = 0; lane < width; lane++)
            lanes[lane] += lanes[lane + width];
    }
    return lanes[0];
}

