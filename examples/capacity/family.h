/*
 * A family of models: sizes in a row, from the smallest on, each with more parameters than the one
 * before.
 *
 * The rule: heads have a fixed size, so that width comes in steps of a head (of the Llama family,
 * of all heads that share one of keys). A width has at least so many layers that each stands for
 * `aspect` channels or less; layers are added until the next width, at its own least depth, is the
 * smaller step. One of both may be held instead, and the other grows alone.
 */
#pragma once

#include "models/shape.h"

typedef struct capacity_family {
    zr_model_shape_t like; /* a GPT, whatever its sizes; or a model of the Llama family, of which
                              are kept its heads for each of keys, the width of its heads and of its
                              MLP for each channel, and its switches */
    size_t head_size;      /* elements of a head; even in the Llama family, which rotates halves */
    size_t aspect;         /* channels per layer, at most */
    size_t seq;
    size_t vocab;
    size_t layers;   /* held; 0: grown */
    size_t channels; /* held, a multiple of the step; 0: grown. Not both are held */
} capacity_family_t;

/**
 * A size of the family, counted from 0.
 *
 * @return false: there are not so many whose layers, channels and bytes can be counted
 */
bool capacity_family_shape(const capacity_family_t *family, size_t index,
                           zr_model_shape_t *shape_p);

/** What channels are a multiple of: those of a head, or of all that share a head of keys. */
size_t capacity_family_step(const capacity_family_t *family);
