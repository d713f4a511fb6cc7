/* Cutting tensors into pieces, and saying where each piece lives: see placement_internal.h. */
#include "offload/placement_internal.h"

#include <stdint.h>
#include <string.h>

/* Bytes of an element, rounded up in each array; 0: pieces could not be cut. */
static size_t most_elem_bytes(const zr_placement_options_t *o) {
    size_t n_bytes = 0;
    if (o->n_arrays > ZR_PLACEMENT_MAX_ARRAYS)
        return 0;
    for (size_t i = 0; i < o->n_arrays; i++) {
        const zr_encoding_t *encoding = o->encodings[i];
        if (o->group_elems != SIZE_MAX && o->group_elems % encoding->block_elems != 0)
            return 0;
        n_bytes += (encoding->block_bytes + encoding->block_elems - 1) / encoding->block_elems;
    }
    return n_bytes;
}

static zr_status_t check(const zr_placement_options_t *o, const size_t *tensor_elems,
                         size_t n_tensors) {
    size_t elem_bytes = most_elem_bytes(o);
    if (elem_bytes == 0 || o->group_elems == 0)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "placement: pieces of %zu elements in %s: 1 to %d arrays are allowed, and "
                       "pieces of whole blocks",
                       o->group_elems, zr_count_text(o->n_arrays, "array").text,
                       ZR_PLACEMENT_MAX_ARRAYS);
    if (!(o->ratio >= 0 && o->ratio <= 1))
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "placement: ratio is %g; it must be 0 to 1",
                       o->ratio);
    size_t left = SIZE_MAX / elem_bytes;
    for (size_t i = 0; i < n_tensors; i++) {
        if (tensor_elems[i] > left)
            return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                           "placement: with tensor %zu of %s, %s each, the bytes "
                           "overflow",
                           i, zr_count_text(tensor_elems[i], "element").text,
                           zr_count_text(elem_bytes, "byte").text);
        left -= tensor_elems[i];
    }
    return ZR_OK;
}

static size_t count_pieces(const zr_placement_options_t *o, const size_t *tensor_elems,
                           size_t n_tensors) {
    size_t n_pieces = 0;
    for (size_t i = 0; i < n_tensors; i++)
        n_pieces += tensor_elems[i] / o->group_elems + (tensor_elems[i] % o->group_elems != 0);
    return n_pieces;
}

/* How far the cutting has come. */
typedef struct progress {
    size_t seen_elems;  /* of the pieces so far */
    size_t down_elems;  /* of those that went down */
    size_t lower_elems; /* of these, to lower */
    double lower_share; /* of what goes down, that may go to lower */
} progress_t;

/* Whether another placement keeps the piece where it is. */
static bool is_kept_up(const zr_placement_options_t *o, size_t index) {
    return o->of != NULL && o->of->pieces[index].tier == o->upper;
}

/* A piece goes down when the fraction is not reached without it: then it is never missed, and
 * never by more than a piece exceeded. */
static zr_tier_t choose_tier(const zr_placement_options_t *o, progress_t *progress, size_t index,
                             size_t n_elems) {
    if (is_kept_up(o, index))
        return o->upper;
    progress->seen_elems += n_elems;
    if ((double)progress->down_elems >= o->ratio * (double)progress->seen_elems)
        return o->upper;
    progress->down_elems += n_elems;
    size_t lower_elems = progress->lower_elems + n_elems;
    if (o->has_lowest &&
        (lower_elems > o->most_lower_elems ||
         (double)lower_elems > progress->lower_share * (double)progress->down_elems))
        return o->lowest;
    progress->lower_elems = lower_elems;
    return o->lower;
}

/* The share of lower is what may go there of what will go down. */
static progress_t begin(const zr_placement_options_t *o, const size_t *tensor_elems,
                        size_t n_tensors) {
    double down_elems = 0;
    for (size_t i = 0; i < n_tensors; i++)
        down_elems += o->ratio * (double)tensor_elems[i];
    for (size_t i = 0; o->of != NULL && i < o->of->n_pieces; i++)
        down_elems -= is_kept_up(o, i) ? o->ratio * (double)o->of->pieces[i].n_elems : 0;
    return (progress_t){.lower_share =
                            down_elems > 0 ? (double)o->most_lower_elems / down_elems : 1};
}

static void add_piece(const zr_placement_options_t *o, zr_placement_t *placement,
                      progress_t *progress, zr_piece_t *piece) {
    zr_tier_t tier = choose_tier(o, progress, placement->n_pieces, piece->n_elems);
    size_t size_bytes = zr_piece_bytes(placement, piece);
    size_t *in_tensor = &placement->tensor_bytes[piece->tensor][tier];
    piece->tier = tier;
    piece->offset_bytes = *in_tensor;
    *in_tensor += size_bytes;
    placement->bytes[tier] += size_bytes;
    placement->n_pieces_in[tier]++;
    if (size_bytes > placement->largest_bytes[tier])
        placement->largest_bytes[tier] = size_bytes;
    if (piece->n_elems > placement->largest_elems[tier])
        placement->largest_elems[tier] = piece->n_elems;
    placement->pieces[placement->n_pieces++] = *piece;
}

zr_status_t zr_placement_make(const zr_placement_options_t *o, const size_t *tensor_elems,
                              size_t n_tensors, zr_placement_t *placement_p) {
    ZR_TRY(check(o, tensor_elems, n_tensors));
    size_t n_pieces = count_pieces(o, tensor_elems, n_tensors);
    zr_placement_t placement = {
        .group_elems = o->group_elems, .n_arrays = o->n_arrays, .n_tensors = n_tensors};
    memcpy(placement.encodings, o->encodings, sizeof(placement.encodings));
    placement.pieces = zr_heap_alloc(o->heap, n_pieces, sizeof(*placement.pieces));
    placement.first_piece = zr_heap_alloc(o->heap, n_tensors + 1, sizeof(*placement.first_piece));
    placement.tensor_bytes = zr_heap_alloc(o->heap, n_tensors, sizeof(*placement.tensor_bytes));
    if (placement.pieces == NULL || placement.first_piece == NULL || placement.tensor_bytes == NULL)
        return zr_fail(&o->log, ZR_ERR_MEMORY, "the system has no memory to place %s",
                       zr_count_text(n_pieces, "piece").text);
    progress_t progress = begin(o, tensor_elems, n_tensors);
    for (size_t i = 0; i < n_tensors; i++) {
        for (size_t first = 0; first < tensor_elems[i];) {
            size_t left = tensor_elems[i] - first;
            zr_piece_t piece = {.tensor = i,
                                .first = first,
                                .n_elems = left < o->group_elems ? left : o->group_elems};
            add_piece(o, &placement, &progress, &piece);
            first += piece.n_elems;
        }
        placement.first_piece[i + 1] = placement.n_pieces;
    }
    *placement_p = placement;
    return ZR_OK;
}

const zr_piece_t *zr_placement_find(const zr_placement_t *placement, size_t tensor, size_t elem) {
    size_t low = placement->first_piece[tensor], high = placement->first_piece[tensor + 1];
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (placement->pieces[middle].first <= elem)
            low = middle;
        else
            high = middle;
    }
    return &placement->pieces[low];
}
