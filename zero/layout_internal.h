/*
 * Where the parameters of a unit lie in its flat buffers, and which slice of them a rank owns.
 *
 * A unit has two flat buffers, one of trainable and one of frozen parameters. Within a buffer,
 * parameters are ordered by group, then by registration, so that a shard meets few changes of
 * hyperparameters; each starts at a multiple of the alignment. The buffer is padded so that every
 * rank's shard has the same length, a multiple of the alignment as well: so every slice of an array
 * begins and ends with blocks of its encoding. The layout is a function of the parameters, the
 * number of ranks and the optimizer's blocks alone: it is the same at every stage and for every
 * dtype, which is what makes the stages agree bit for bit.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/heap_internal.h"

/* The alignment, where no encoding has larger blocks, and the largest that one may have. */
#define ZR_LAYOUT_ALIGN_ELEMS ((size_t)32)
#define ZR_LAYOUT_MOST_ALIGN_ELEMS ((size_t)256)

/* Of a flat buffer, with padding. Lengths are multiplied by at most 12 bytes of state and 2^16
 * ranks; this leaves room for both. */
#define ZR_LAYOUT_MAX_ELEMS (SIZE_MAX >> 24)

/** What the layout needs to know of a parameter, and what it decides. */
typedef struct zr_layout_param {
    size_t n_elems;
    int group;
    bool frozen;
    size_t offset_elems; /* out: in its flat buffer */
} zr_layout_param_t;

/** Elements [first, first + n_elems) of a flat buffer that share a group; gaps belong to them. */
typedef struct zr_segment {
    size_t first;
    size_t n_elems;
    int group;
} zr_segment_t;

typedef struct zr_flat {
    size_t used_elems;      /* sum of the parameters, without gaps and padding */
    size_t padded_elems;    /* shard_elems * n_ranks */
    size_t shard_elems;     /* rank r owns [r * shard_elems, (r + 1) * shard_elems) */
    zr_segment_t *segments; /* [n_segments], ascending, cover [0, padded_elems) */
    size_t n_segments;
} zr_flat_t;

/**
 * Lay out one flat buffer: the parameters whose `frozen` equals the argument.
 *
 * @param heap         the layout lives in it
 * @param params       [n_params]; their offsets are set
 * @param align_elems  ZR_LAYOUT_ALIGN_ELEMS, or more
 * @return ZR_OK; ZR_ERR_ARGUMENT when the sizes overflow; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_flat_build(zr_heap_t *heap, zr_layout_param_t *const *params,
                                       size_t n_params, bool frozen, int n_ranks,
                                       size_t align_elems, zr_flat_t *flat_p);
