/*
 * Placement: which part of which tensor lives in which tier.
 *
 * Tensors are cut into pieces of at most group_elems elements, and each piece lies in one tier as
 * a whole: it is what a staging buffer holds and what is moved at a time. Whatever a caller keeps
 * per element (an optimizer keeps three numbers) lies together in its piece, so that one transfer
 * moves all of it.
 *
 * What stays in the upper tier is a fraction, in whole pieces; what goes down may be shared by two
 * tiers. All are spread evenly over the order of the pieces, so that whoever works through them has
 * transfers and work to do at the same time.
 */
#pragma once

#include "kernels/base/heap_internal.h"
#include "kernels/encoding.h"

ZR_BEGIN_C

#define ZR_PLACEMENT_MAX_ARRAYS 8

typedef struct zr_placement_options {
    zr_log_t log;
    zr_heap_t *heap; /* the placement lives in it */
    /* Of the arrays that a piece has of its elements, one behind the other. */
    const zr_encoding_t *encodings[ZR_PLACEMENT_MAX_ARRAYS];
    size_t n_arrays;
    size_t group_elems; /* largest piece: whole blocks of all encodings, or SIZE_MAX */
    double ratio;       /* at least this fraction of the elements goes down; 0 to 1 */
    zr_tier_t upper;    /* where the rest stays */
    zr_tier_t lower;
    bool has_lowest; /* what goes down is shared between lower and lowest */
    zr_tier_t lowest;
    size_t most_lower_elems; /* at most so many elements go to lower then */
    /* Of the same tensors, in the same pieces: what it has in upper stays there here, too, and
     * counts for nothing of the above. NULL: none. Borrowed. */
    const struct zr_placement *of;
} zr_placement_options_t;

/** Elements [first, first + n_elems) of a tensor. */
typedef struct zr_piece {
    size_t tensor;
    size_t first;
    size_t n_elems;
    zr_tier_t tier;
    size_t offset_bytes; /* in what its tensor has in this tier */
} zr_piece_t;

typedef struct zr_placement {
    size_t group_elems; /* largest piece, or SIZE_MAX */
    const zr_encoding_t *encodings[ZR_PLACEMENT_MAX_ARRAYS];
    size_t n_arrays;
    zr_piece_t *pieces; /* [n_pieces] by tensor, then by first; they cover every tensor */
    size_t n_pieces;
    size_t n_tensors;
    size_t *first_piece;                /* [n_tensors + 1] */
    size_t (*tensor_bytes)[ZR_N_TIERS]; /* [n_tensors] what each has in each tier */
    size_t bytes[ZR_N_TIERS];
    size_t n_pieces_in[ZR_N_TIERS];
    size_t largest_bytes[ZR_N_TIERS]; /* of a piece */
    size_t largest_elems[ZR_N_TIERS];
} zr_placement_t;

/**
 * Cut and place tensors.
 *
 * @param tensor_elems  [n_tensors]; 0 is fine: such a tensor has no pieces
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_MEMORY
 *
 * The same arguments give the same placement everywhere.
 */
ZR_NODISCARD zr_status_t zr_placement_make(const zr_placement_options_t *options,
                                           const size_t *tensor_elems, size_t n_tensors,
                                           zr_placement_t *placement_p);

/** The piece with element `elem` of a tensor, which has it. */
const zr_piece_t *zr_placement_find(const zr_placement_t *placement, size_t tensor, size_t elem);

/** Bytes of a piece: of all its arrays. */
static inline size_t zr_piece_bytes(const zr_placement_t *placement, const zr_piece_t *piece) {
    size_t n_bytes = 0;
    for (size_t i = 0; i < placement->n_arrays; i++)
        n_bytes += zr_encoding_bytes(placement->encodings[i], piece->n_elems);
    return n_bytes;
}

ZR_END_C
