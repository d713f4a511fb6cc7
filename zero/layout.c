/* Layout of flat buffers: see layout_internal.h. */
#include "zero/layout_internal.h"

#include <stdint.h>

static bool round_up(size_t value, size_t multiple, size_t *result_p) {
    size_t remainder = value % multiple;
    size_t add = remainder ? multiple - remainder : 0;
    if (value > ZR_LAYOUT_MAX_ELEMS - add)
        return false;
    *result_p = value + add;
    return true;
}

static zr_status_t append_param(zr_flat_t *flat, zr_layout_param_t *param, size_t align_elems,
                                size_t *end) {
    size_t start;
    if (!round_up(*end, align_elems, &start) || param->n_elems > ZR_LAYOUT_MAX_ELEMS - start)
        return ZR_ERR_ARGUMENT;
    param->offset_elems = start;
    zr_segment_t *last = flat->n_segments ? &flat->segments[flat->n_segments - 1] : NULL;
    if (param->n_elems != 0 && (last == NULL || last->group != param->group)) {
        if (last != NULL)
            last->n_elems = start - last->first;
        flat->segments[flat->n_segments++] = (zr_segment_t){.first = start, .group = param->group};
    }
    *end = start + param->n_elems;
    flat->used_elems += param->n_elems;
    return ZR_OK;
}

static int largest_group(zr_layout_param_t *const *params, size_t n_params) {
    int largest = 0;
    for (size_t i = 0; i < n_params; i++)
        if (params[i]->group > largest)
            largest = params[i]->group;
    return largest;
}

zr_status_t zr_flat_build(zr_heap_t *heap, zr_layout_param_t *const *params, size_t n_params,
                          bool frozen, int n_ranks, size_t align_elems, zr_flat_t *flat_p) {
    zr_flat_t flat = {0};
    flat.segments = zr_heap_alloc(heap, n_params, sizeof(*flat.segments));
    if (flat.segments == NULL)
        return ZR_ERR_MEMORY;
    size_t end = 0;
    int n_groups = largest_group(params, n_params) + 1;
    for (int group = 0; group < n_groups; group++)
        for (size_t i = 0; i < n_params; i++)
            if (params[i]->frozen == frozen && params[i]->group == group)
                ZR_TRY(append_param(&flat, params[i], align_elems, &end));
    if (!round_up(end, align_elems * (size_t)n_ranks, &flat.padded_elems))
        return ZR_ERR_ARGUMENT;
    if (flat.n_segments != 0) {
        zr_segment_t *last = &flat.segments[flat.n_segments - 1];
        last->n_elems = flat.padded_elems - last->first;
    }
    zr_segment_t *segments =
        zr_heap_resize(heap, flat.segments, flat.n_segments, sizeof(*segments));
    if (segments == NULL)
        return ZR_ERR_MEMORY;
    flat.segments = segments;
    flat.shard_elems = flat.padded_elems / (size_t)n_ranks;
    *flat_p = flat;
    return ZR_OK;
}
