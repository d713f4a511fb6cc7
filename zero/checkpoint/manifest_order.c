/*
 * Orders of tensors and extents: what stands beside each other in one is compared with its
 * neighbour alone, so that no check of a manifest takes quadratic time.
 */
#include <stdlib.h>
#include <string.h>

#include "zero/checkpoint/manifest_internal.h"

typedef int (*compare_t)(const void *a, const void *b, void *manifest);

static int order(uint64_t a, uint64_t b) {
    return (a > b) - (a < b);
}

static size_t *sort(const zr_manifest_t *manifest, size_t n, compare_t compare) {
    size_t *indices = malloc((n + 1) * sizeof(*indices));
    if (indices == NULL)
        return NULL;
    for (size_t i = 0; i < n; i++)
        indices[i] = i;
    qsort_r(indices, n, sizeof(*indices), compare, (void *)manifest);
    return indices;
}

static const zr_manifest_tensor_t *tensor_of(const void *index, const zr_manifest_t *manifest) {
    return &manifest->tensors[*(const size_t *)index];
}

static const zr_manifest_extent_t *extent_of(const void *index, const zr_manifest_t *manifest) {
    return &manifest->extents[*(const size_t *)index];
}

static int by_name(const void *a, const void *b, void *manifest) {
    return strcmp(tensor_of(a, manifest)->tensor.name, tensor_of(b, manifest)->tensor.name);
}

static int by_offset(const void *a, const void *b, void *manifest) {
    const zr_manifest_tensor_t *x = tensor_of(a, manifest), *y = tensor_of(b, manifest);
    if (x->unit != y->unit)
        return order(x->unit, y->unit);
    if (x->tensor.frozen != y->tensor.frozen)
        return x->tensor.frozen ? 1 : -1;
    return order(x->offset_elems, y->offset_elems);
}

static int by_first(const void *a, const void *b, void *manifest) {
    const zr_manifest_extent_t *x = extent_of(a, manifest), *y = extent_of(b, manifest);
    if (x->unit != y->unit)
        return order(x->unit, y->unit);
    if (x->frozen != y->frozen)
        return x->frozen ? 1 : -1;
    return order(x->first, y->first);
}

static int by_byte(const void *a, const void *b, void *manifest) {
    const zr_manifest_extent_t *x = extent_of(a, manifest), *y = extent_of(b, manifest);
    return x->file != y->file ? order(x->file, y->file) : order(x->offset_bytes, y->offset_bytes);
}

static int by_chunk(const void *a, const void *b, void *manifest) {
    const zr_manifest_extent_t *x = extent_of(a, manifest), *y = extent_of(b, manifest);
    return x->file != y->file ? order(x->file, y->file) : order(x->first_chunk, y->first_chunk);
}

size_t *zr_manifest_tensors_by_name(const zr_manifest_t *manifest) {
    return sort(manifest, manifest->n_tensors, by_name);
}

size_t *zr_manifest_tensors_by_row(const zr_manifest_t *manifest) {
    return sort(manifest, manifest->n_tensors, by_offset);
}

size_t *zr_manifest_extents_by_row(const zr_manifest_t *manifest) {
    return sort(manifest, manifest->n_extents, by_first);
}

size_t *zr_manifest_extents_by_file(const zr_manifest_t *manifest) {
    return sort(manifest, manifest->n_extents, by_byte);
}

size_t *zr_manifest_extents_by_chunk(const zr_manifest_t *manifest) {
    return sort(manifest, manifest->n_extents, by_chunk);
}
