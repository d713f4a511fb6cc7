/*
 * An encoding of a user's own, for tests: 8 bits per element, in blocks of 256 with a scale. Its
 * functions on streams are for devices whose memory the host can touch.
 */
#pragma once

#include "zero/zero.h"

typedef struct eight_bits_block {
    float scale; /* of a step: the largest magnitude / 127 */
    int8_t steps[256];
} eight_bits_block_t;

extern const zr_encoding_t eight_bits;
