/* The layout of flat buffers, against its stated rules, for random parameters. */
#include "tests/common/test.h"
#include "zero/layout_internal.h"

#define MAX_PARAMS 12

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void make_params(uint64_t *seed, zr_layout_param_t *params, size_t n_params) {
    static const size_t sizes[] = {0, 1, 7, 31, 32, 33, 127, 1009, 64};
    for (size_t i = 0; i < n_params; i++)
        params[i] = (zr_layout_param_t){.n_elems = sizes[next_random(seed) % 9],
                                        .group = (int)(next_random(seed) % 3),
                                        .frozen = next_random(seed) % 4 == 0};
}

static int group_at(const zr_flat_t *flat, size_t elem) {
    for (size_t i = 0; i < flat->n_segments; i++)
        if (elem >= flat->segments[i].first &&
            elem < flat->segments[i].first + flat->segments[i].n_elems)
            return flat->segments[i].group;
    return -1;
}

static void check_flat(zr_layout_param_t *const *params, size_t n_params, bool frozen, int n_ranks,
                       size_t align_elems, const zr_flat_t *flat) {
    unsigned char *owner = calloc(flat->padded_elems + 1, 1);
    size_t used = 0;
    assert_int_equal(flat->shard_elems * (size_t)n_ranks, flat->padded_elems);
    assert_int_equal(flat->shard_elems % align_elems, 0);
    for (size_t i = 0; i < n_params; i++) {
        if (params[i]->frozen != frozen)
            continue;
        used += params[i]->n_elems;
        assert_int_equal(params[i]->offset_elems % align_elems, 0);
        for (size_t e = 0; e < params[i]->n_elems; e++) {
            size_t at = params[i]->offset_elems + e;
            assert_true(at < flat->padded_elems && owner[at] == 0);
            owner[at] = 1;
            assert_int_equal(group_at(flat, at), params[i]->group);
        }
    }
    assert_int_equal(flat->used_elems, used);
    size_t covered = 0;
    for (size_t i = 0; i < flat->n_segments; i++) {
        assert_int_equal(flat->segments[i].first, covered);
        covered += flat->segments[i].n_elems;
    }
    assert_int_equal(covered, flat->padded_elems);
    free(owner);
}

TEST(random_layouts_keep_the_rules) {
    uint64_t seed = 7;
    zr_heap_t *heap = zr_heap_create(NULL);
    for (int round = 0; round < 500; round++) {
        zr_layout_param_t storage[MAX_PARAMS], *params[MAX_PARAMS];
        size_t n_params = next_random(&seed) % (MAX_PARAMS + 1);
        int n_ranks = 1 + (int)(next_random(&seed) % 9);
        make_params(&seed, storage, n_params);
        for (size_t i = 0; i < n_params; i++)
            params[i] = &storage[i];
        size_t align_elems = ZR_LAYOUT_ALIGN_ELEMS << round % 4;
        for (int frozen = 0; frozen < 2; frozen++) {
            zr_flat_t flat;
            assert_ok(zr_flat_build(heap, params, n_params, frozen, n_ranks, align_elems, &flat));
            check_flat(params, n_params, frozen, n_ranks, align_elems, &flat);
        }
    }
    zr_heap_destroy(&heap);
}

TEST(sizes_that_overflow_are_refused) {
    zr_layout_param_t first = {.n_elems = SIZE_MAX / 2}, second = {.n_elems = 64};
    zr_layout_param_t *params[] = {&second, &first};
    zr_heap_t *heap = zr_heap_create(NULL);
    zr_flat_t flat;
    assert_int_equal(zr_flat_build(heap, params, 2, false, 3, 32, &flat), ZR_ERR_ARGUMENT);
    assert_ok(zr_flat_build(heap, params, 1, false, 3, 32, &flat));
    zr_heap_destroy(&heap);
}
