/* Placement: pieces cover every tensor once, and the fraction is kept in whole pieces. */
#include "offload/placement_internal.h"
#include "tests/common/test.h"

static const size_t tensor_elems[] = {100, 0, 1, 32, 1000, 7};
#define N_TENSORS 6
#define ALL_ELEMS 1140

static zr_heap_t *heap; /* of all placements of a test */

static int create_heap(void **state) {
    heap = zr_heap_create(NULL);
    return heap == NULL;
}

static int destroy_heap(void **state) {
    zr_heap_destroy(&heap);
    return 0;
}

static zr_placement_options_t options_of(size_t group_elems, double ratio) {
    return (zr_placement_options_t){
        .log = {.level = ZR_LOG_ERROR, .rank = -1},
        .heap = heap,
        .encodings = {&zr_encoding_fp32, &zr_encoding_fp32, &zr_encoding_fp32},
        .n_arrays = 3,
        .group_elems = group_elems,
        .ratio = ratio,
        .upper = ZR_TIER_DEVICE,
        .lower = ZR_TIER_NVME};
}

static zr_placement_t make(size_t group_elems, double ratio) {
    zr_placement_t placement;
    zr_placement_options_t options = options_of(group_elems, ratio);
    assert_ok(zr_placement_make(&options, tensor_elems, N_TENSORS, &placement));
    return placement;
}

/* Every tensor is covered in order, and what it has in a tier lies there without holes. */
static void expect_whole(const zr_placement_t *p, size_t group_elems) {
    size_t bytes[ZR_N_TIERS] = {0}, n_pieces[ZR_N_TIERS] = {0}, largest[ZR_N_TIERS] = {0};
    for (size_t t = 0; t < N_TENSORS; t++) {
        size_t covered = 0, in_tensor[ZR_N_TIERS] = {0};
        for (size_t i = p->first_piece[t]; i < p->first_piece[t + 1]; i++) {
            const zr_piece_t *piece = &p->pieces[i];
            assert_int_equal(piece->tensor, t);
            assert_int_equal(piece->first, covered);
            assert_true(piece->n_elems > 0 && piece->n_elems <= group_elems);
            assert_int_equal(piece->offset_bytes, in_tensor[piece->tier]);
            size_t size_bytes = zr_piece_bytes(p, piece);
            in_tensor[piece->tier] += size_bytes;
            bytes[piece->tier] += size_bytes;
            n_pieces[piece->tier]++;
            if (size_bytes > largest[piece->tier])
                largest[piece->tier] = size_bytes;
            for (size_t e = 0; e < piece->n_elems; e++)
                assert_ptr_equal(zr_placement_find(p, t, covered + e), piece);
            covered += piece->n_elems;
        }
        assert_int_equal(covered, tensor_elems[t]);
        assert_memory_equal(in_tensor, p->tensor_bytes[t], sizeof(in_tensor));
    }
    assert_int_equal(p->first_piece[N_TENSORS], p->n_pieces);
    assert_memory_equal(bytes, p->bytes, sizeof(bytes));
    assert_memory_equal(n_pieces, p->n_pieces_in, sizeof(n_pieces));
    assert_memory_equal(largest, p->largest_bytes, sizeof(largest));
}

TEST_WITH(pieces_cover_all, create_heap, destroy_heap) {
    static const size_t groups[] = {1, 7, 32, 64, 1000, SIZE_MAX};
    for (size_t g = 0; g < N_OF(groups); g++)
        for (int tenths = 0; tenths <= 10; tenths++) {
            zr_placement_t p = make(groups[g], tenths / 10.0);
            expect_whole(&p, groups[g]);
        }
}

/* At least the fraction goes down, and less than a piece more. */
TEST_WITH(the_fraction_is_kept, create_heap, destroy_heap) {
    static const size_t groups[] = {1, 7, 32, 1000};
    for (size_t g = 0; g < N_OF(groups); g++)
        for (int percent = 0; percent <= 100; percent += 3) {
            zr_placement_t p = make(groups[g], percent / 100.0);
            double down = (double)p.bytes[ZR_TIER_NVME] / 12, wanted = percent / 100.0 * ALL_ELEMS;
            assert_true(down >= wanted - 1e-6);
            assert_true(down < wanted + (double)(groups[g] < 1000 ? groups[g] : 1000));
            assert_int_equal(p.bytes[ZR_TIER_NVME] + p.bytes[ZR_TIER_DEVICE], 12 * ALL_ELEMS);
        }
    zr_placement_t none = make(7, 0), all = make(7, 1);
    assert_int_equal(none.bytes[ZR_TIER_NVME], 0);
    assert_int_equal(all.bytes[ZR_TIER_DEVICE], 0);
}

/* Between two lower tiers: no more than is allowed goes to the upper one of them, and no less than
 * that but for a piece, and one for each tensor's end. */
TEST_WITH(two_tiers_share_what_goes_down, create_heap, destroy_heap) {
    static const size_t groups[] = {1, 7, 32};
    for (size_t g = 0; g < N_OF(groups); g++)
        for (int percent = 0; percent <= 100; percent += 20)
            for (size_t most = 0; most <= ALL_ELEMS + 200; most += 60) {
                zr_placement_t p;
                zr_placement_options_t options = options_of(groups[g], percent / 100.0);
                options.lower = ZR_TIER_HOST;
                options.has_lowest = true;
                options.lowest = ZR_TIER_NVME;
                options.most_lower_elems = most;
                assert_ok(zr_placement_make(&options, tensor_elems, N_TENSORS, &p));
                expect_whole(&p, groups[g]);
                size_t host = p.bytes[ZR_TIER_HOST] / 12, nvme = p.bytes[ZR_TIER_NVME] / 12;
                size_t wanted = most < host + nvme ? most : host + nvme;
                assert_true(host <= most && host + groups[g] * 2 >= wanted);
                assert_true((double)(host + nvme) >= percent / 100.0 * ALL_ELEMS - 1e-6);
            }
}

/* Those that go down are spread: in every stretch of the order there is about the fraction. */
TEST_WITH(what_goes_down_is_spread, create_heap, destroy_heap) {
    zr_placement_t p = make(10, 0.25);
    size_t first = p.first_piece[4], n = p.first_piece[5] - first, longest = 0, stretch = 0;
    for (size_t i = 0; i < n; i++) {
        stretch = p.pieces[first + i].tier == ZR_TIER_DEVICE ? stretch + 1 : 0;
        longest = stretch > longest ? stretch : longest;
    }
    assert_int_equal(longest, 3);
}

/* Blocks of 256 elements: pieces begin with blocks, and the last one may end within one. */
TEST_WITH(blocks_stay_whole, create_heap, destroy_heap) {
    static const zr_encoding_t packed = {.name = "packed", .block_elems = 256, .block_bytes = 260};
    static const size_t elems[] = {1000, 2048};
    zr_placement_t p;
    zr_placement_options_t options = options_of(512, 0.5);
    options.encodings[1] = &packed;
    options.n_arrays = 2;
    assert_ok(zr_placement_make(&options, elems, 2, &p));
    assert_int_equal(p.n_pieces, 6);
    assert_int_equal(p.bytes[ZR_TIER_DEVICE] + p.bytes[ZR_TIER_NVME], 3048 * 4 + (4 + 8) * 260);
    for (size_t i = 0; i < p.n_pieces; i++) {
        assert_int_equal(p.pieces[i].first % 256, 0);
        assert_int_equal(zr_piece_bytes(&p, &p.pieces[i]), p.pieces[i].n_elems * 4 + 2 * 260);
    }
    assert_int_equal(p.largest_elems[ZR_TIER_DEVICE], 512);
    options.group_elems = 500;
    assert_int_equal(zr_placement_make(&options, elems, 2, &p), ZR_ERR_ARGUMENT);
}

TEST_WITH(wrong_arguments_are_refused, create_heap, destroy_heap) {
    static const size_t large[] = {SIZE_MAX / 12, 1};
    zr_placement_t p;
    zr_placement_options_t options = options_of(10, 0.5);
    assert_int_equal(zr_placement_make(&options, large, 2, &p), ZR_ERR_ARGUMENT);
    options.ratio = 1.5;
    assert_int_equal(zr_placement_make(&options, tensor_elems, N_TENSORS, &p), ZR_ERR_ARGUMENT);
    options = options_of(0, 0.5);
    assert_int_equal(zr_placement_make(&options, tensor_elems, N_TENSORS, &p), ZR_ERR_ARGUMENT);
    options = options_of(10, 0.5);
    options.n_arrays = 0;
    assert_int_equal(zr_placement_make(&options, tensor_elems, N_TENSORS, &p), ZR_ERR_ARGUMENT);
}
/* What one placement keeps up, one made of it does, and shares the rest as if it were all. */
TEST_WITH(a_placement_of_another, create_heap, destroy_heap) {
    for (size_t group = 8; group <= 64; group *= 2)
        for (int percent = 0; percent <= 100; percent += 20) {
            zr_placement_t of = make(group, 0.6), p;
            zr_placement_options_t options = options_of(group, percent / 100.0);
            options.of = &of;
            options.lower = ZR_TIER_HOST;
            options.has_lowest = true;
            options.lowest = ZR_TIER_NVME;
            options.most_lower_elems = 200;
            assert_ok(zr_placement_make(&options, tensor_elems, N_TENSORS, &p));
            expect_whole(&p, group);
            assert_int_equal(p.n_pieces, of.n_pieces);
            size_t n_free = 0, n_down = 0, n_host = 0;
            for (size_t i = 0; i < p.n_pieces; i++) {
                size_t n_elems = p.pieces[i].n_elems;
                bool is_free = of.pieces[i].tier != ZR_TIER_DEVICE;
                n_free += is_free ? n_elems : 0;
                n_down += p.pieces[i].tier != ZR_TIER_DEVICE ? n_elems : 0;
                n_host += p.pieces[i].tier == ZR_TIER_HOST ? n_elems : 0;
                assert_true(is_free || p.pieces[i].tier == ZR_TIER_DEVICE);
            }
            double wanted = percent / 100.0 * (double)n_free;
            assert_true((double)n_down >= wanted && (double)n_down < wanted + (double)group);
            assert_true(n_host <= 200);
            assert_true(n_host + 2 * group >= (n_down < 200 ? n_down : 200));
        }
}
