/*
 * A family of models: sizes in a row, from the smallest on, each with more parameters than the one
 * before.
 *
 * The rule: heads have a fixed size, so that width comes in steps of a head. A width has at least
 * so many layers that each stands for `aspect` channels or less; layers are added until the next
 * width, at its own least depth, is the smaller step. One of both may be held instead, and the
 * other grows alone.
 */
#pragma once

#include "models/gpt2/gpt.h"

typedef struct capacity_family {
    size_t head_size;
    size_t aspect; /* channels per layer, at most */
    size_t seq;
    size_t vocab;
    size_t layers;   /* held; 0: grown */
    size_t channels; /* held, a multiple of head_size; 0: grown. Not both are held */
} capacity_family_t;

/**
 * A size of the family, counted from 0.
 *
 * @return false: there are not so many whose layers, channels and bytes can be counted
 */
bool capacity_family_shape(const capacity_family_t *family, size_t index, zr_gpt_shape_t *shape_p);

#define CAPACITY_MODEL_BYTES 160
/** A shape as --model takes it. */
void capacity_model_text(const zr_gpt_shape_t *shape, char text[CAPACITY_MODEL_BYTES]);
