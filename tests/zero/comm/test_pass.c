/*
 * Who makes which piece of a collective whose tensors all ranks can address: a rank that is done
 * takes what others have not taken, and leaves what they have. Ranks take turns here, one after
 * another, so that what each finds is certain.
 */
#include "kernels/kernels.h"
#include "tests/common/test.h"
#include "zero/comm/pass_internal.h"

enum { N_RANKS = 3, ROOT = 2 };

/* Of a part: two pieces and something, of no round number. */
#define PIECE_ELEMS ((ZR_SPREAD_STREAM_BYTES / N_RANKS / 64 + 1) * 64 / sizeof(float))
#define LARGE_ELEMS (2 * PIECE_ELEMS + 777)
#define SMALL_ELEMS (2 * PIECE_ELEMS - 1)

typedef struct fixture {
    zr_device_t *device;
    zr_stream_t *stream;
    atomic_size_t n_taken[N_RANKS];
    zr_pass_t passes[N_RANKS];
    void *arrays[N_RANKS];
    float *whole[N_RANKS], *other[N_RANKS], *part[N_RANKS]; /* other: of ZR_ALL_TO_ALL */
} fixture_t;

static int open_ranks(void **state) {
    fixture_t *self = calloc(1, sizeof(*self));
    const zr_device_options_t options = {.n_threads = 1};
    assert_ok(zr_device_open("host", &options, &self->device));
    assert_ok(zr_stream_create(self->device, "comm", &self->stream));
    for (int rank = 0; rank < N_RANKS; rank++) {
        self->arrays[rank] = malloc(zr_pass_bytes(N_RANKS));
        self->whole[rank] = malloc(N_RANKS * LARGE_ELEMS * sizeof(float));
        self->other[rank] = malloc(N_RANKS * LARGE_ELEMS * sizeof(float));
        self->part[rank] = malloc(LARGE_ELEMS * sizeof(float));
        zr_pass_init(&self->passes[rank], self->arrays[rank], rank, N_RANKS);
    }
    *state = self;
    return 0;
}

static int close_ranks(void **state) {
    fixture_t *self = *state;
    for (int rank = 0; rank < N_RANKS; rank++) {
        free(self->arrays[rank]);
        free(self->whole[rank]);
        free(self->other[rank]);
        free(self->part[rank]);
    }
    zr_stream_destroy(&self->stream);
    zr_device_close(&self->device);
    free(self);
    return 0;
}

/* ---- a call ---------------------------------------------------------------------------------- */

typedef struct collective {
    zr_collective_t collective;
    size_t n_elems; /* of a part; of those of whole tensors, N_RANKS times as many are called */
} collective_t;

static bool is_of_blocks(zr_collective_t collective) {
    return collective == ZR_ALL_GATHER || collective == ZR_REDUCE_SCATTER ||
           collective == ZR_ALL_TO_ALL;
}

/* Whether a rank sends its part; else the whole. */
static bool sends_part(zr_collective_t collective) {
    return collective == ZR_ALL_GATHER;
}

static bool receives_part(zr_collective_t collective) {
    return collective == ZR_REDUCE_SCATTER;
}

/* Small integers, which every order of sums adds exactly. */
static float value_of(int rank, size_t i) {
    return (float)(i % 1000 + (size_t)rank);
}

static void fill(fixture_t *self, const collective_t *of) {
    for (int rank = 0; rank < N_RANKS; rank++) {
        for (size_t i = 0; i < N_RANKS * of->n_elems; i++)
            self->whole[rank][i] = sends_part(of->collective) ? -1.0f : value_of(rank, i);
        for (size_t i = 0; i < N_RANKS * of->n_elems; i++)
            self->other[rank][i] = -1.0f;
        for (size_t i = 0; i < of->n_elems; i++)
            self->part[rank][i] = sends_part(of->collective) ? value_of(rank, i) : -1.0f;
    }
}

/* What element i of the whole tensor comes to. */
static float result_of(const collective_t *of, size_t i) {
    switch (of->collective) {
    case ZR_ALL_GATHER:
        return value_of((int)(i / of->n_elems), i % of->n_elems);
    case ZR_BROADCAST:
        return value_of(ROOT, i);
    default:
        return value_of(0, i) + value_of(1, i) + value_of(2, i);
    }
}

/* Of all ranks' blocks for the owner, whether element k is there. */
static bool is_exchanged(const fixture_t *self, const collective_t *of, int owner, size_t k) {
    for (int from = 0; from < N_RANKS; from++)
        if (self->other[owner][(size_t)from * of->n_elems + k] !=
            value_of(from, (size_t)owner * of->n_elems + k))
            return false;
    return true;
}

/* Elements of a rank's part, [first, last), that are as they should be; nothing is between. */
static size_t count_made(const fixture_t *self, const collective_t *of, int owner, size_t first,
                         size_t last) {
    size_t n_made = 0;
    for (size_t k = first; k < last; k++) {
        size_t i = (size_t)owner * of->n_elems + k;
        float expected = result_of(of, i);
        bool is_made = true;
        if (of->collective == ZR_ALL_TO_ALL)
            is_made = is_exchanged(self, of, owner, k);
        else if (receives_part(of->collective))
            is_made = self->part[owner][k] == expected;
        else
            for (int rank = 0; rank < N_RANKS; rank++)
                is_made = is_made && self->whole[rank][i] == expected;
        n_made += is_made;
    }
    return n_made;
}

static size_t count_made_part(const fixture_t *self, const collective_t *of, int owner) {
    return count_made(self, of, owner, 0, of->n_elems);
}

/* A rank arrives; nobody else does anything meanwhile. */
static void make_part(fixture_t *self, const collective_t *of, int rank) {
    zr_pass_t *pass = &self->passes[rank];
    zr_comm_call_t call = {.collective = of->collective,
                           .message = {"measured", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL},
                           .n_elems =
                               is_of_blocks(of->collective) ? of->n_elems : N_RANKS * of->n_elems,
                           .root = of->collective == ZR_BROADCAST ? ROOT : 0,
                           .stream = self->stream};
    for (int other = 0; other < N_RANKS; other++) {
        pass->sends[other] = sends_part(of->collective) ? self->part[other] : self->whole[other];
        pass->recvs[other] = receives_part(of->collective) ? self->part[other] : self->whole[other];
        if (of->collective == ZR_ALL_TO_ALL)
            pass->recvs[other] = self->other[other];
    }
    call.send = pass->sends[rank];
    call.recv = pass->recvs[rank];
    assert_ok(zr_pass_make_part(pass, &call));
}

static void begin(fixture_t *self, const collective_t *of, bool is_shared) {
    fill(self, of);
    for (int rank = 0; rank < N_RANKS; rank++) {
        atomic_store(&self->n_taken[rank], 0);
        for (int other = 0; other < N_RANKS; other++)
            self->passes[rank].n_taken[other] =
                is_shared || other != N_RANKS - 1 ? &self->n_taken[other] : NULL;
    }
}

static const zr_collective_t all[] = {ZR_ALL_GATHER, ZR_REDUCE_SCATTER, ZR_ALL_REDUCE, ZR_BROADCAST,
                                      ZR_ALL_TO_ALL};
enum { N_COLLECTIVES = N_OF(all) };

/* ---- tests ----------------------------------------------------------------------------------- */

/* Who comes first makes everything, and the others find nothing: sums in place, made twice, would
 * be wrong. */
TEST(test_first_makes_all) {
    fixture_t *self = *state;
    for (int c = 0; c < N_COLLECTIVES; c++) {
        const collective_t of = {all[c], LARGE_ELEMS};
        begin(self, &of, true);
        make_part(self, &of, 1);
        for (int owner = 0; owner < N_RANKS; owner++)
            assert_int_equal(count_made_part(self, &of, owner), of.n_elems);
        for (int rank = 0; rank < N_RANKS; rank++)
            make_part(self, &of, rank);
        for (int owner = 0; owner < N_RANKS; owner++)
            assert_int_equal(count_made_part(self, &of, owner), of.n_elems);
    }
}

/* What has been taken is somebody else's to make, to the element. */
TEST(test_taken_pieces_are_left) {
    fixture_t *self = *state;
    for (int c = 0; c < N_COLLECTIVES; c++) {
        const collective_t of = {all[c], LARGE_ELEMS};
        begin(self, &of, true);
        atomic_store(&self->n_taken[0], 1);
        atomic_store(&self->n_taken[2], 2);
        make_part(self, &of, 1);
        assert_int_equal(count_made(self, &of, 0, 0, PIECE_ELEMS), 0);
        assert_int_equal(count_made(self, &of, 0, PIECE_ELEMS, of.n_elems),
                         of.n_elems - PIECE_ELEMS);
        assert_int_equal(count_made_part(self, &of, 1), of.n_elems);
        assert_int_equal(count_made_part(self, &of, 2), 0);
    }
}

/* Small parts, and those of ranks that show no count, are each rank's own. */
static void check_own_alone(fixture_t *self, size_t n_elems, bool is_shared) {
    for (int c = 0; c < N_COLLECTIVES; c++) {
        const collective_t of = {all[c], n_elems};
        begin(self, &of, is_shared);
        make_part(self, &of, 1);
        assert_int_equal(count_made_part(self, &of, 0), 0);
        assert_int_equal(count_made_part(self, &of, 1), n_elems);
        assert_int_equal(count_made_part(self, &of, 2), 0);
        make_part(self, &of, 0);
        make_part(self, &of, 2);
        assert_int_equal(count_made_part(self, &of, 0), n_elems);
        assert_int_equal(count_made_part(self, &of, 2), n_elems);
    }
}

TEST(test_small_parts_are_own) {
    check_own_alone(*state, SMALL_ELEMS, true);
}

TEST(test_without_counts_parts_are_own) {
    check_own_alone(*state, LARGE_ELEMS, false);
}

const test_group_t test_group = {open_ranks, close_ranks};
