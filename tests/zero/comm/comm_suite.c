/* See comm_suite.h. */
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/zero/comm/comm_cases.h"
#include "tests/zero/comm/comm_suite.h"

enum { LONG_MS = 60000, SHORT_MS = 200 };

/* Of slow ones, the first three. */
static const int rank_counts[] = {1, 3, 8, 2, 5};
enum { N_SLOW = 3 };

/* Of how many tensors one is met. */
static size_t step_of(const comm_suite_t *suite) {
    return TEST_IS_SLOW || suite->is_slow ? 5 : 1;
}

/* What a cmocka test gets: which backend, how many ranks. */
typedef struct setting {
    const comm_suite_t *suite;
    int n_ranks;
    const struct suite_case *of;
} setting_t;

static void run(void **state, int timeout_ms, rank_fn body, const void *context) {
    const setting_t *setting = *state;
    if (setting->suite->most_ranks > 0 && setting->n_ranks > setting->suite->most_ranks)
        skip();
    run_ranks(setting->suite, setting->n_ranks, timeout_ms, body, context);
}

/* How a call comes out: where the stream's thread makes it, when that has. */
static zr_status_t outcome_of(rank_t *self, zr_status_t status) {
    if (status != ZR_OK || !zr_stream_takes_calls(self->stream))
        return status;
    ZR_TRY(zr_stream_synchronize(self->stream));
    return zr_comm_check(self->comm);
}

/* ---- values ---- */

static void every_collective(rank_t *self) {
    static const size_t sizes[] = {0, 1, 7, 64, 1021, 16411};
    for (int collective = ZR_ALL_GATHER; collective <= ZR_ALL_TO_ALL; collective++) {
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_U8; dtype++) {
            if (is_summed((zr_collective_t)collective) && dtype > ZR_DTYPE_BF16)
                continue;
            size_t step = step_of(self->suite), first = (size_t)(collective + dtype) % step;
            for (size_t i = first; i < 2 * N_OF(sizes); i += step) {
                comm_case_t wanted = {.collective = (zr_collective_t)collective,
                                      .dtype = (zr_dtype_t)dtype,
                                      .n_elems = sizes[i / 2],
                                      .root = (int)i % self->n_ranks,
                                      .in_place = i % 2 == 1,
                                      .seed = i};
                run_case(self, self->comm, &wanted);
                if (self->failure[0] != '\0')
                    return;
            }
        }
    }
}

static comm_case_t random_case(uint64_t seed, int n_ranks) {
    uint64_t bits = mix_bits(seed);
    comm_case_t wanted = {
        .collective = (zr_collective_t)(bits % 6),
        .dtype = (zr_dtype_t)(bits / 6 % 5),
        .n_elems = (size_t)(bits >> 16) % 3000,
        .root = (int)((bits >> 32) % (uint64_t)n_ranks),
        .in_place = bits >> 63,
        .seed = seed,
    };
    if (is_summed(wanted.collective))
        wanted.dtype = (zr_dtype_t)(wanted.dtype % 2);
    return wanted;
}

static void random_sequence(rank_t *self) {
    const uint64_t *seed = self->context;
    for (uint64_t i = 0; i < 100 / step_of(self->suite); i++) {
        comm_case_t wanted = random_case(*seed * 1000 + i, self->n_ranks);
        run_case(self, self->comm, &wanted);
        if (self->failure[0] != '\0')
            return;
    }
}

static void test_random_sequences(void **state) {
    for (uint64_t seed = 1; seed <= 3; seed++)
        run(state, LONG_MS, random_sequence, &seed);
}

/* ---- traffic ---- */

static void expect_count(rank_t *self, zr_collective_t collective, zr_traffic_t traffic,
                         uint64_t n_calls, uint64_t elems_sent, uint64_t bytes_sent) {
    zr_comm_statistics_t statistics;
    zr_comm_statistics(self->comm, &statistics);
    const zr_comm_count_t *count = &statistics.count[traffic][collective];
    CHECK(self, count->n_calls == n_calls);
    CHECK(self, count->elems_sent == elems_sent);
    CHECK(self, count->bytes_sent == bytes_sent);
}

static void exact_traffic(rank_t *self) {
    uint64_t n = (uint64_t)self->n_ranks;
    uint64_t r = (uint64_t)self->rank;
    zr_message_t model = {"model", ZR_DTYPE_BF16, ZR_TRAFFIC_MODEL};
    zr_message_t control = {"control", ZR_DTYPE_F32, ZR_TRAFFIC_CONTROL};
    zr_stream_t *stream = self->stream;
    char *whole = device_take(self, n * 2 * 1000);
    char *part = device_take(self, 4 * 1000), *other = device_take(self, n * 4 * 5);
    CHECK_OK(self, zr_comm_all_gather(self->comm, &model, part, whole, 1000, stream));
    CHECK_OK(self, zr_comm_all_gather(self->comm, &model, part, whole, 11, stream));
    CHECK_OK(self, zr_comm_reduce_scatter(self->comm, &model, whole, part, 999, stream));
    CHECK_OK(self, zr_comm_all_reduce(self->comm, &control, part, 1000, stream));
    CHECK_OK(self, zr_comm_all_reduce(self->comm, &control, part, 3, stream));
    CHECK_OK(self, zr_comm_broadcast(self->comm, &model, part, 17, self->n_ranks - 1, stream));
    CHECK_OK(self, zr_comm_all_to_all(self->comm, &control, whole, other, 5, stream));
    CHECK_OK(self, zr_comm_barrier(self->comm, "barrier"));

    expect_count(self, ZR_ALL_GATHER, ZR_TRAFFIC_MODEL, 2, 1011 * (n - 1), 2 * 1011 * (n - 1));
    expect_count(self, ZR_REDUCE_SCATTER, ZR_TRAFFIC_MODEL, 1, 999 * (n - 1), 2 * 999 * (n - 1));
    uint64_t reduced = 0;
    static const uint64_t sizes[] = {1000, 3};
    for (int i = 0; i < 2; i++) {
        uint64_t owned = sizes[i] * (r + 1) / n - sizes[i] * r / n;
        reduced += sizes[i] - owned + (n - 1) * owned;
    }
    expect_count(self, ZR_ALL_REDUCE, ZR_TRAFFIC_CONTROL, 2, reduced, 4 * reduced);
    uint64_t given = r == n - 1 ? 17 * (n - 1) : 0;
    expect_count(self, ZR_BROADCAST, ZR_TRAFFIC_MODEL, 1, given, 2 * given);
    expect_count(self, ZR_ALL_TO_ALL, ZR_TRAFFIC_CONTROL, 1, 5 * (n - 1), 4 * 5 * (n - 1));
    expect_count(self, ZR_BARRIER, ZR_TRAFFIC_CONTROL, 1, 0, 0);
    expect_count(self, ZR_ALL_GATHER, ZR_TRAFFIC_CONTROL, 0, 0, 0);
    expect_count(self, ZR_ALL_REDUCE, ZR_TRAFFIC_MODEL, 0, 0, 0);
    expect_count(self, ZR_SPLIT, ZR_TRAFFIC_CONTROL, 0, 0, 0);
}

/* Blocks of an encoding that no backend knows, and none has to: whole ones are gathered, and
 * broadcast.
 */
static void blocks_of_an_encoding(rank_t *self) {
    enum { BLOCK = 256, BYTES = 260, N = 2 * BLOCK };
    static const zr_encoding_t packed = {
        .name = "packed", .block_elems = BLOCK, .block_bytes = BYTES, .align_bytes = 4};
    zr_message_t message = {"blocks", .traffic = ZR_TRAFFIC_MODEL, .encoding = &packed};
    zr_message_t floats = {"floats", .traffic = ZR_TRAFFIC_MODEL, .encoding = &zr_encoding_fp32};
    zr_stream_t *stream = self->stream;
    size_t n = (size_t)self->n_ranks;
    char *values = host_take(self, n * 2 * BYTES), *own = host_take(self, 2 * BYTES);
    bool is_seen = has_data(self) && !self->suite->is_alone;
    char *whole = device_take(self, n * 2 * BYTES), *part = device_take(self, 2 * BYTES);
    memset(values, 'a' + self->rank, 2 * BYTES);
    upload(self, part, values, 2 * BYTES);
    CHECK(self,
          zr_comm_all_gather(self->comm, &message, part, whole, N + 1, stream) == ZR_ERR_ARGUMENT);
    CHECK(self,
          zr_comm_reduce_scatter(self->comm, &message, whole, part, N, stream) == ZR_ERR_ARGUMENT);
    CHECK(self, zr_comm_all_gather(self->comm, &message, part, whole, N, stream) == ZR_OK);
    CHECK(self, zr_comm_broadcast(self->comm, &message, part, BLOCK, 0, stream) == ZR_OK);
    download(self, values, whole, n * 2 * BYTES);
    download(self, own, part, 2 * BYTES);
    CHECK(self, zr_stream_synchronize(stream) == ZR_OK);
    for (size_t i = 0; i < n * 2 * BYTES && is_seen; i++)
        CHECK(self, values[i] == (char)('a' + i / (2 * BYTES)));
    for (size_t i = 0; i < 2 * BYTES && is_seen; i++)
        CHECK(self, own[i] == (i < BYTES ? 'a' : (char)('a' + self->rank)));
    uint64_t given = self->rank == 0 ? n - 1 : 0;
    expect_count(self, ZR_ALL_GATHER, ZR_TRAFFIC_MODEL, 1, N * (n - 1), 2 * BYTES * (n - 1));
    expect_count(self, ZR_BROADCAST, ZR_TRAFFIC_MODEL, 1, BLOCK * given, BYTES * given);
    CHECK(self, zr_comm_reduce_scatter(self->comm, &floats, whole, part, 1, stream) == ZR_OK);
    expect_count(self, ZR_REDUCE_SCATTER, ZR_TRAFFIC_MODEL, 1, n - 1, 4 * (n - 1));
}

/* ---- machines ---- */

/* One, where a suite says no other number. */
static void count_machines(rank_t *self) {
    int n_machines = 0, wanted = 1;
    if (self->suite->machine_ranks > 0)
        wanted = (self->n_ranks - 1) / self->suite->machine_ranks + 1;
    CHECK_REFUSED(self, zr_comm_count_machines(self->comm, NULL));
    for (int i = 0; i < 10 && self->failure[0] == '\0'; i++) { /* who is ahead goes on at once */
        CHECK_OK(self, zr_comm_count_machines(self->comm, &n_machines));
        CHECK(self, n_machines == wanted);
        CHECK_OK(self, zr_comm_barrier(self->comm, "behind it"));
    }
}

/* ---- groups ---- */

/* Ranks 0, 2, ... and 1, 3, ..., each in reverse order of rank. */
static void split_in_two(rank_t *self, zr_comm_t **group_p) {
    int color = self->rank % 2;
    CHECK_OK(self, zr_comm_split(self->comm, color, -self->rank, group_p));
    CHECK(self, strcmp(zr_comm_backend_name(*group_p), zr_comm_backend_name(self->comm)) == 0);
    if (self->suite->is_alone) {
        CHECK(self, zr_comm_n_ranks(*group_p) == self->n_ranks);
        CHECK(self, zr_comm_rank(*group_p) == self->rank);
        return;
    }
    int n_members = (self->n_ranks + 1 - color) / 2;
    CHECK(self, zr_comm_n_ranks(*group_p) == n_members);
    CHECK(self, zr_comm_rank(*group_p) == n_members - 1 - self->rank / 2);
}

static void groups_and_parent(rank_t *self) {
    zr_comm_t *group = NULL, *alone = NULL;
    split_in_two(self, &group);
    if (self->failure[0] == '\0' && zr_comm_split(group, zr_comm_rank(group), 0, &alone) != ZR_OK)
        note_failure(self, __FILE__, __LINE__, "a group of one rank");
    for (uint64_t i = 0; i < 40 && self->failure[0] == '\0'; i++) {
        comm_case_t wanted = random_case(7000 + i, self->n_ranks);
        run_case(self, self->comm, &wanted);
        wanted = random_case(8000 + i, zr_comm_n_ranks(group));
        if (self->failure[0] == '\0')
            run_case(self, group, &wanted);
        wanted = random_case(9000 + i, zr_comm_n_ranks(alone));
        if (self->failure[0] == '\0')
            run_case(self, alone, &wanted);
    }
    zr_comm_destroy(&alone);
    zr_comm_destroy(&group);
    CHECK(self, self->failure[0] == '\0');
    CHECK_OK(self, zr_comm_barrier(self->comm, "after its groups"));
}

/* Rank 0 joins no group; equal keys keep the old order. */
static void split_without_rank_0(rank_t *self) {
    zr_comm_t *group = NULL;
    CHECK_OK(self, zr_comm_split(self->comm, self->rank == 0 ? -1 : 5, 3, &group));
    if (self->rank == 0) {
        CHECK(self, group == NULL);
    } else {
        bool is_alone = self->suite->is_alone;
        CHECK(self, zr_comm_n_ranks(group) == self->n_ranks - !is_alone);
        CHECK(self, zr_comm_rank(group) == self->rank - !is_alone);
        CHECK_OK(self, zr_comm_barrier(group, "without rank 0"));
    }
    CHECK_OK(self, zr_comm_barrier(self->comm, "with rank 0"));
    zr_comm_destroy(&group);
}

/* The ranks of the first communicator that a group has, as they tell each other. */
static void expect_members(rank_t *self, zr_comm_t *group, int first, int stride) {
    zr_message_t message = {"members", ZR_DTYPE_I32, ZR_TRAFFIC_MODEL};
    size_t n = (size_t)zr_comm_n_ranks(group);
    int32_t *members = host_take(self, n * sizeof(*members));
    char *all = device_take(self, n * sizeof(*members)), *own = device_take(self, sizeof(int32_t));
    members[0] = self->rank;
    upload(self, own, members, sizeof(*members));
    CHECK_OK(self, zr_comm_all_gather(group, &message, own, all, 1, self->stream));
    download(self, members, all, n * sizeof(*members));
    CHECK_OK(self, zr_stream_synchronize(self->stream));
    for (size_t i = 0; i < n && has_data(self) && !self->suite->is_alone; i++)
        CHECK(self, members[i] == first + (int)i * stride);
    release_memory(self);
}

static void expect_even_groups(rank_t *self, int size) {
    zr_comm_t *near = NULL, *across = NULL;
    CHECK_OK(self, zr_comm_split_evenly(self->comm, ZR_GROUPS_NEAR, size, &near));
    CHECK_OK(self, zr_comm_split_evenly(self->comm, ZR_GROUPS_ACROSS, size, &across));
    CHECK(self, zr_comm_n_ranks(near) == size);
    CHECK(self, zr_comm_n_ranks(across) == self->n_ranks / size);
    CHECK(self, zr_comm_rank(near) == self->rank % size);
    CHECK(self, zr_comm_rank(across) == self->rank / size);
    expect_members(self, near, self->rank - self->rank % size, 1);
    expect_members(self, across, self->rank % size, size);
    for (uint64_t i = 0; i < 10 && self->failure[0] == '\0'; i++) {
        comm_case_t wanted = random_case(5000 + i, size);
        run_case(self, near, &wanted);
        wanted = random_case(6000 + i, self->n_ranks / size);
        if (self->failure[0] == '\0')
            run_case(self, across, &wanted);
    }
    zr_comm_destroy(&near);
    zr_comm_destroy(&across);
}

static void even_groups(rank_t *self) {
    zr_comm_t *group = NULL;
    for (int size = 1; size <= self->n_ranks && self->failure[0] == '\0'; size++) {
        if (self->n_ranks % size == 0)
            expect_even_groups(self, size);
        else
            CHECK(self, zr_comm_split_evenly(self->comm, ZR_GROUPS_NEAR, size, &group) ==
                            ZR_ERR_ARGUMENT);
    }
    CHECK_REFUSED(self, zr_comm_split_evenly(self->comm, ZR_GROUPS_NEAR, 0, &group));
    CHECK_REFUSED(self, zr_comm_split_evenly(self->comm, (zr_groups_t)2, 1, &group));
    CHECK_REFUSED(self, zr_comm_split_evenly(self->comm, ZR_GROUPS_ACROSS, 1, NULL));
    CHECK_OK(self, zr_comm_barrier(self->comm, "after its groups"));
}

/* As hybrid sharding does: sums within rows, of those the sums across, and back to the row. */
static void sum_over_all(rank_t *self, zr_comm_t *near, zr_comm_t *across, char *buffer,
                         size_t n_elems) {
    zr_message_t message = {"h.3 gradients", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *own = buffer + (size_t)zr_comm_rank(near) * n_elems * sizeof(float);
    CHECK_OK(self, zr_comm_reduce_scatter(near, &message, buffer, own, n_elems, self->stream));
    CHECK_OK(self, zr_comm_all_reduce(across, &message, own, n_elems, self->stream));
    CHECK_OK(self, zr_comm_all_gather(near, &message, own, buffer, n_elems, self->stream));
}

/* Both kinds of groups, in one stream that nobody waits for in between. */
static void groups_in_turn(rank_t *self) {
    enum { N_TURNS = 4, N_ELEMS = 1001 };
    int size = self->n_ranks % 4 == 0 ? self->n_ranks / 2 : self->n_ranks % 2 == 0 ? 2 : 1;
    size_t n_elems = (size_t)size * N_ELEMS;
    zr_comm_t *near = NULL, *across = NULL;
    CHECK_OK(self, zr_comm_split_evenly(self->comm, ZR_GROUPS_NEAR, size, &near));
    CHECK_OK(self, zr_comm_split_evenly(self->comm, ZR_GROUPS_ACROSS, size, &across));
    float *values = host_take(self, n_elems * sizeof(*values));
    char *buffer = device_take(self, n_elems * sizeof(*values));
    for (size_t i = 0; i < n_elems; i++)
        values[i] = (float)(self->rank + (int)(i % 7));
    upload(self, buffer, values, n_elems * sizeof(*values));
    for (int turn = 0; turn < N_TURNS && self->failure[0] == '\0'; turn++)
        sum_over_all(self, near, across, buffer, N_ELEMS);
    download(self, values, buffer, n_elems * sizeof(*values));
    CHECK_OK(self, zr_stream_synchronize(self->stream));
    CHECK(self, zr_comm_check(near) == ZR_OK && zr_comm_check(across) == ZR_OK);
    int n = self->n_ranks, others = n * n * n;
    for (size_t i = 0; i < n_elems && has_data(self) && !self->suite->is_alone; i++)
        CHECK(self, values[i] == (float)(others * (n * (n - 1) / 2 + n * (int)(i % 7))));
    zr_comm_destroy(&near);
    zr_comm_destroy(&across);
}

/* A group that ends leaves its parent alive; the end of that is the group's, too. */
static void ends_of_groups(rank_t *self) {
    zr_comm_t *group = NULL, *other = NULL;
    CHECK_OK(self, zr_comm_split(self->comm, 0, 0, &group));
    CHECK_OK(self, zr_comm_split(self->comm, 0, 0, &other));
    if (self->rank == self->n_ranks - 1 || self->suite->is_alone)
        zr_comm_abort(group, "the group's end");
    if (self->rank == self->n_ranks - 1 || self->n_ranks == 1)
        CHECK_ENDED(self, zr_comm_barrier(group, "dead"));
    CHECK_OK(self, zr_comm_barrier(self->comm, "parent"));
    CHECK_ENDED(self, zr_comm_barrier(group, "dead"));
    CHECK_LOGGED(self, "of its group (rank ");
    CHECK_OK(self, zr_comm_barrier(other, "before the parent's end"));
    zr_comm_abort(self->comm, "the parent's end");
    CHECK_ENDED(self, zr_comm_barrier(self->comm, "dead"));
    CHECK_ENDED(self, zr_comm_barrier(other, "after the parent's end"));
    CHECK_LOGGED(self, " gave up: the parent's end");
    zr_comm_destroy(&group);
    zr_comm_destroy(&other);
}

/* A rank that gives up is named to those, too, who wait in groups that it is not in, and in groups
 * of those; what they were split from may be left by then. */
static void end_in_all_groups(rank_t *self) {
    zr_comm_t *group = NULL, *part = NULL;
    CHECK_OK(self, zr_comm_split(self->comm, self->rank % 2, 0, &group));
    CHECK_OK(self, zr_comm_split(group, 0, 0, &part));
    zr_comm_destroy(&group);
    CHECK_OK(self, zr_comm_barrier(self->comm, "all are in their groups"));
    if (self->rank == 0)
        zr_comm_abort(self->comm, "its own end");
    while (zr_comm_barrier(part, "over and over") == ZR_OK)
        ;
    CHECK_LOGGED(self, "rank 0 gave up: its own end");
    zr_comm_destroy(&part);
}

/* ---- ranks that differ ---- */

/* Two calls that differ in one thing, and how a message shows each. */
typedef struct mismatch {
    zr_collective_t collective[2];
    const char *tensor[2];
    zr_dtype_t dtype[2];
    zr_traffic_t traffic[2];
    size_t n_elems[2];
    int root[2];
    const char *shown[2];
    bool odd_is_first; /* rank 0 makes the second call, otherwise the last rank */
} mismatch_t;

#define SAME(value)                                                                                \
    { value, value }
static const char *const parameters = "h.3 parameters";

static zr_status_t make_call(rank_t *self, const mismatch_t *mismatch, int which) {
    zr_message_t message = {mismatch->tensor[which], mismatch->dtype[which],
                            mismatch->traffic[which]};
    size_t n_elems = mismatch->n_elems[which];
    char *part = device_take(self, 4096);
    char *whole = device_take(self, 4096 * (size_t)self->n_ranks);
    char *other = device_take(self, 4096 * (size_t)self->n_ranks);
    switch (mismatch->collective[which]) {
    case ZR_ALL_GATHER:
        return zr_comm_all_gather(self->comm, &message, part, whole, n_elems, self->stream);
    case ZR_REDUCE_SCATTER:
        return zr_comm_reduce_scatter(self->comm, &message, whole, part, n_elems, self->stream);
    case ZR_ALL_REDUCE:
        return zr_comm_all_reduce(self->comm, &message, part, n_elems, self->stream);
    case ZR_BROADCAST:
        return zr_comm_broadcast(self->comm, &message, part, n_elems, mismatch->root[which],
                                 self->stream);
    case ZR_ALL_TO_ALL:
        return zr_comm_all_to_all(self->comm, &message, whole, other, n_elems, self->stream);
    case ZR_BARRIER:
        return zr_comm_barrier(self->comm, message.tensor);
    case ZR_SPLIT: {
        zr_comm_t *group;
        if (n_elems == 0)
            return zr_comm_split(self->comm, 0, 0, &group);
        return zr_comm_split_evenly(self->comm, (zr_groups_t)which, 1, &group);
    }
    }
    return ZR_OK;
}

static void differ(rank_t *self) {
    const mismatch_t *mismatch = self->context;
    int odd = mismatch->odd_is_first ? 0 : self->n_ranks - 1;
    CHECK_OK(self, zr_comm_barrier(self->comm, "start"));
    zr_status_t status = outcome_of(self, make_call(self, mismatch, self->rank == odd));
    CHECK(self, status == ZR_ERR_COMM);
    char odd_text[32], usual_text[32];
    snprintf(odd_text, sizeof(odd_text), "rank %d", odd);
    snprintf(usual_text, sizeof(usual_text), "rank %d", odd == 0 ? 1 : 0);
    CHECK_LOGGED(self, odd_text);
    CHECK_LOGGED(self, usual_text);
    CHECK_LOGGED(self, mismatch->shown[0]);
    CHECK_LOGGED(self, mismatch->shown[1]);
    CHECK_ENDED(self, zr_comm_barrier(self->comm, "after"));
}

#define MISMATCH(first, second, name, n, ...)                                                      \
    { .collective = {first, second}, .tensor = SAME(name), .n_elems = SAME(n), __VA_ARGS__ }

static const mismatch_t mismatches[] = {
    MISMATCH(ZR_ALL_GATHER, ZR_REDUCE_SCATTER, "h.3 parameters", 64, .dtype = SAME(ZR_DTYPE_BF16),
             .shown = {"all_gather of \"h.3 parameters\" (bf16, 64 elements, model, call 2)",
                       "reduce_scatter of \"h.3 parameters\" (bf16, 64 elements, model, call 2)"}),
    MISMATCH(ZR_ALL_REDUCE, ZR_BARRIER, "norm", 1,
             .shown = {"all_reduce of \"norm\" (fp32, 1 element, model, call 2)",
                       "barrier \"norm\" (call 2)"}),
    MISMATCH(ZR_BARRIER, ZR_SPLIT, "norm", 0,
             .shown = {"barrier \"norm\" (call 2)", "split \"groups\" (call 2)"}),
    MISMATCH(ZR_SPLIT, ZR_SPLIT, "norm", 1,
             .shown = {"split \"groups near, rows of 1\" (call 2)",
                       "split \"groups across, rows of 1\" (call 2)"}),
    {.collective = SAME(ZR_REDUCE_SCATTER),
     .tensor = {"h.3 gradients", "h.4 gradients"},
     .n_elems = SAME(64),
     .shown = {"\"h.3 gradients\"", "\"h.4 gradients\""}},
    {.collective = SAME(ZR_BARRIER),
     .tensor = {"first", "second"},
     .shown = {"barrier \"first\"", "barrier \"second\""}},
    MISMATCH(ZR_ALL_REDUCE, ZR_ALL_REDUCE, "x", 64, .dtype = {ZR_DTYPE_F32, ZR_DTYPE_BF16},
             .shown = {"(fp32, ", "(bf16, "}),
    {.collective = SAME(ZR_ALL_GATHER),
     .tensor = SAME("x"),
     .n_elems = {64, 63},
     .shown = {"64 elements", "63 elements"}},
    {.collective = SAME(ZR_ALL_GATHER),
     .tensor = SAME("x"),
     .n_elems = {64, 0},
     .shown = {"64 elements", " 0 elements"}},
    {.collective = SAME(ZR_ALL_TO_ALL),
     .tensor = SAME("h.3 gradients (8bit)"),
     .dtype = SAME(ZR_DTYPE_U8),
     .n_elems = {520, 260},
     .shown = {"(uint8, 520 elements", "(uint8, 260 elements"}},
    MISMATCH(ZR_ALL_GATHER, ZR_ALL_GATHER, "x", 64,
             .traffic = {ZR_TRAFFIC_MODEL, ZR_TRAFFIC_CONTROL},
             .shown = {", model, ", ", control, "}),
    MISMATCH(ZR_BROADCAST, ZR_BROADCAST, "x", 64, .root = {0, 1}, .shown = {"root 0", "root 1"}),
};

static void test_differing_ranks(void **state) {
    const setting_t *setting = *state;
    for (size_t i = 0; setting->n_ranks > 1 && i < N_OF(mismatches); i++) {
        for (int first = 0; first < 2; first++) {
            mismatch_t mismatch = mismatches[i];
            mismatch.odd_is_first = first;
            run(state, LONG_MS, differ, &mismatch);
        }
    }
}

/* Names that are the same as far as a message shows them. */
static void test_differing_long_names(void **state) {
    const setting_t *setting = *state;
    char names[2][400];
    for (int i = 0; i < 2; i++) {
        memset(names[i], 'x', sizeof(names[i]) - 1);
        names[i][398] = (char)('1' + i);
        names[i][399] = '\0';
    }
    mismatch_t mismatch = {.collective = SAME(ZR_BARRIER),
                           .tensor = {names[0], names[1]},
                           .shown = {"barrier \"xxx", "barrier \"xxx"}};
    if (setting->n_ranks > 1)
        run(state, LONG_MS, differ, &mismatch);
}

static void disagree(rank_t *self) {
    char expected[128];
    int odd = self->n_ranks - 1;
    CHECK_REFUSED(self, zr_comm_agree(self->comm, NULL));
    CHECK_OK(self, zr_comm_agree(self->comm, "--stage 2"));
    const char *text = self->rank == odd ? "--seed 8" : "--seed 7";
    CHECK_ENDED(self, zr_comm_agree(self->comm, text));
    snprintf(expected, sizeof(expected),
             "rank %d has --seed 8, rank 0 has --seed 7; %d of %d ranks", odd,
             self->n_ranks > 2 ? odd : 1, self->n_ranks);
    CHECK_LOGGED(self, expected);
    CHECK_ENDED(self, zr_comm_agree(self->comm, "--stage 2"));
}

/* What all should have in common, and one has not. */
/* ---- ranks that are gone ---- */

/* The calls of one who waits for the last rank, which does something else. */
static void expect_end(rank_t *self, int call, const char *cause) {
    char shown[128];
    snprintf(shown, sizeof(shown),
             "all_gather of \"h.3 parameters\" (fp32, 100 elements, model, call %d)", call);
    zr_message_t message = {parameters, ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *part = device_take(self, 400);
    char *whole = device_take(self, 400 * (size_t)self->n_ranks);
    zr_status_t status = zr_comm_all_gather(self->comm, &message, part, whole, 100, self->stream);
    CHECK(self, outcome_of(self, status) == ZR_ERR_COMM);
    CHECK_LOGGED(self, shown);
    CHECK_LOGGED(self, cause);
    size_t n_said = strlen(self->log);
    zr_comm_t *group = (zr_comm_t *)self;
    CHECK_ENDED(self, zr_comm_all_reduce(self->comm, &message, part, 1, self->stream));
    CHECK_ENDED(self, zr_comm_barrier(self->comm, "dead"));
    CHECK_ENDED(self, zr_comm_split(self->comm, 0, 0, &group));
    CHECK(self, group == (zr_comm_t *)self);
    CHECK(self, strlen(self->log) == n_said); /* once */
}

/* Leave: before the others call, or (most likely) while they wait. */
static void one_leaves(rank_t *self) {
    const bool *at_once = self->context;
    CHECK_OK(self, zr_comm_barrier(self->comm, "start"));
    if (self->rank == self->n_ranks - 1) {
        for (int i = 0; !*at_once && i < 20; i++)
            sched_yield();
        zr_comm_destroy(&self->comm);
        CHECK(self, self->comm == NULL);
        return;
    }
    char cause[96];
    snprintf(cause, sizeof(cause),
             "rank %d has left the communicator (latest: barrier \"start\" (call 1))",
             self->n_ranks - 1);
    expect_end(self, 2, cause);
}

static void test_rank_that_leaves(void **state) {
    bool at_once = true;
    run(state, LONG_MS, one_leaves, &at_once);
    at_once = false;
    run(state, LONG_MS, one_leaves, &at_once);
}

static void one_gives_up(rank_t *self) {
    CHECK_OK(self, zr_comm_barrier(self->comm, "start"));
    int last = self->suite->is_alone ? self->rank : self->n_ranks - 1;
    if (self->rank == last) {
        zr_comm_abort(self->comm, "no bytes left on the device");
        zr_comm_abort(self->comm, "the first reason stays");
    }
    char cause[96];
    snprintf(cause, sizeof(cause), "rank %d gave up: no bytes left on the device", last);
    expect_end(self, 2, cause);
}

static void *abort_from_elsewhere(void *argument) {
    rank_t *self = argument;
    for (int i = 0; i < 20; i++)
        sched_yield();
    zr_comm_abort(self->comm, "told from elsewhere");
    return NULL;
}

/* Rank 0 waits for ranks that do not come, and another thread ends that. */
static void ended_from_elsewhere(rank_t *self) {
    CHECK_OK(self, zr_comm_barrier(self->comm, "start"));
    if (self->rank != 0)
        return;
    pthread_t thread;
    CHECK(self, pthread_create(&thread, NULL, abort_from_elsewhere, self) == 0);
    expect_end(self, 2, "rank 0 gave up: told from elsewhere");
    pthread_join(thread, NULL);
}

/* Whether somebody that was yet to come has been waited for, or more than a message names; or a
 * process has not run for so long that it is taken for one that is stopped. */
static bool was_busy(const rank_t *self, int first_absent) {
    char named[32];
    bool is_named = strstr(self->log, " more") != NULL || strstr(self->log, " heard") != NULL;
    for (int rank = 0; rank < first_absent; rank++) {
        snprintf(named, sizeof(named), "rank %d (latest: ", rank);
        is_named |= strstr(self->log, named) != NULL;
    }
    return is_named;
}

/* Their names, and what they did last. */
static void expect_absent(rank_t *self, int first_absent) {
    char cause[64];
    for (int absent = first_absent; absent < self->n_ranks; absent++) {
        const char *latest = self->suite->latest;
        snprintf(cause, sizeof(cause), "rank %d (latest: %s", absent,
                 latest != NULL && self->n_ranks > 1 ? latest : "no call so far)");
        CHECK_LOGGED(self, cause);
    }
}

/* The last rank, or the last two, never call. The others find it out however late they are; where
 * so many of them are late that a message does not come to those, it is tried with more time. */
static void some_never_come(rank_t *self) {
    const int *n_absent = self->context;
    int first_absent = self->n_ranks - *n_absent;
    char cause[64];
    pthread_barrier_wait(self->together);
    if (self->rank >= first_absent)
        return;
    snprintf(cause, sizeof(cause), "has waited %d ms for ", self->timeout_ms);
    expect_end(self, 1, cause);
    expect_absent(self, first_absent);
    self->is_too_slow |= self->failure[0] != '\0' && was_busy(self, first_absent);
}

static void test_rank_that_never_comes(void **state) {
    const setting_t *setting = *state;
    for (int n_absent = 1; n_absent <= 2 && n_absent < setting->n_ranks; n_absent++)
        run(state, SHORT_MS, some_never_come, &n_absent);
}

/*
 * A device fails under one rank in the middle of a call. Tensors may be freed after that, so
 * nothing that a call has queued, behind what was queued before it, may still be to run.
 */
static void one_device_fails(rank_t *self) {
    zr_message_t message = {parameters, ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *part = device_take(self, 400);
    char *whole = device_take(self, 400 * (size_t)self->n_ranks);
    CHECK_OK(self, zr_comm_barrier(self->comm, "start"));
    bool is_odd = self->rank == self->n_ranks - 1;
    bool has_run = false;
    zr_event_t *before = NULL;
    CHECK_OK(self, zr_event_create(self->device, &before));
    CHECK_OK(self, zr_event_record(before, self->stream));
    if (is_odd)
        self->suite->fail_copy(self->stream);
    zr_status_t status = zr_comm_all_gather(self->comm, &message, part, whole, 100, self->stream);
    CHECK(self, status == (is_odd ? ZR_ERR_DEVICE : ZR_ERR_COMM));
    CHECK_OK(self, zr_event_query(before, &has_run));
    CHECK(self, has_run || self->n_ranks == 1);
    zr_event_destroy(&before);
    CHECK_ENDED(self, zr_comm_barrier(self->comm, "dead"));
    char cause[64];
    snprintf(cause, sizeof(cause), "rank %d failed with ZR_ERR_DEVICE in all_gather of",
             self->n_ranks - 1);
    const char *reason = strstr(self->log, cause);
    CHECK(self, reason != NULL);
    CHECK(self, strstr(reason, self->suite->failure) != NULL);
}

static void test_device_that_fails(void **state) {
    const setting_t *setting = *state;
    if (setting->suite->fail_copy != NULL)
        run(state, LONG_MS, one_device_fails, NULL);
}

/* ---- arguments ---- */

static void refused_arguments(rank_t *self) {
    zr_comm_t *comm = self->comm;
    zr_stream_t *stream = self->stream;
    size_t n = (size_t)self->n_ranks;
    zr_message_t good = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_message_t nameless = {NULL, ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    zr_message_t no_dtype = {"x", (zr_dtype_t)77, ZR_TRAFFIC_MODEL};
    zr_message_t no_traffic = {"x", ZR_DTYPE_F32, (zr_traffic_t)7};
    zr_message_t numbers = {"x", ZR_DTYPE_I32, ZR_TRAFFIC_MODEL};
    char *a = device_take(self, 400 * n + 4);
    char *b = device_take(self, 400 * n);
    zr_comm_t *group = NULL;
    char *askew = a + 400 * (size_t)self->rank + 4;
    const zr_status_t refused[] = {
        zr_comm_all_gather(comm, NULL, a, b, 100, stream),
        zr_comm_all_gather(comm, &nameless, a, b, 100, stream),
        zr_comm_all_gather(comm, &no_dtype, a, b, 100, stream),
        zr_comm_all_gather(comm, &no_traffic, a, b, 100, stream),
        zr_comm_all_gather(comm, &good, a, b, 100, NULL),
        zr_comm_all_gather(comm, &good, NULL, b, 100, stream),
        zr_comm_all_gather(comm, &good, a, NULL, 100, stream),
        zr_comm_all_gather(comm, &good, a + 1, b, 100, stream),
        zr_comm_all_gather(comm, &good, a, b, SIZE_MAX / 4 / n + 1, stream),
        zr_comm_all_gather(comm, &good, askew, a, 100, stream),
        zr_comm_reduce_scatter(comm, &numbers, a, b, 100, stream),
        zr_comm_reduce_scatter(comm, &good, a, a + 400 * n - 4, 100, stream),
        zr_comm_all_reduce(comm, &numbers, a, 100, stream),
        zr_comm_all_reduce(comm, &good, NULL, 100, stream),
        zr_comm_broadcast(comm, &good, a, 100, -1, stream),
        zr_comm_broadcast(comm, &good, a, 100, self->n_ranks, stream),
        zr_comm_barrier(comm, NULL),
        zr_comm_split(comm, -2, 0, &group),
        zr_comm_split(comm, 0, 0, NULL),
        zr_comm_barrier(NULL, "x")};
    for (size_t i = 0; i < N_OF(refused); i++)
        CHECK(self, refused[i] == ZR_ERR_ARGUMENT);
    /* None of these has been seen by another rank. */
    CHECK_OK(self, zr_comm_all_gather(comm, &good, a, b, 100, stream));
    CHECK_OK(self, zr_comm_all_reduce(comm, &good, NULL, 0, stream));
}

/* A rank works on one device. */
static void second_device(rank_t *self) {
    zr_message_t message = {"x", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    char *buffer = device_take(self, 400);
    CHECK_OK(self, zr_comm_all_reduce(self->comm, &message, buffer, 100, self->stream));
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    CHECK_OK(self, zr_device_open("host", &options, &device));
    CHECK_OK(self, zr_stream_create(device, "other", &stream));
    CHECK_REFUSED(self, zr_comm_all_reduce(self->comm, &message, buffer, 100, stream));
    zr_stream_destroy(&stream);
    zr_device_close(&device);
    CHECK_OK(self, zr_comm_all_reduce(self->comm, &message, buffer, 100, self->stream));
}

static void test_refused_options(void **state) {
    const setting_t *setting = *state;
    zr_comm_options_t options = zr_comm_options_default();
    options.log.sink = drop_message;
    zr_comm_t *comms[MAX_TEST_RANKS] = {NULL};
    assert_int_equal(setting->suite->create(0, &options, comms), ZR_ERR_ARGUMENT);
    assert_int_equal(setting->suite->create(-1, &options, comms), ZR_ERR_ARGUMENT);
    assert_int_equal(setting->suite->create(1025, &options, comms), ZR_ERR_ARGUMENT);
    options.timeout_ms = 0;
    assert_int_equal(setting->suite->create(setting->n_ranks, &options, comms), ZR_ERR_ARGUMENT);
    assert_null(comms[0]);
    zr_comm_destroy(NULL);
    zr_comm_destroy(&comms[0]);
}

/* ---- all of them ---- */

/* A body that all ranks run, or a function that runs some. */
typedef struct suite_case {
    const char *name;
    rank_fn body;
    CMUnitTestFunction function;
    bool is_of_others; /* what other ranks do is seen */
    int least_ranks;
} suite_case_t;

static const suite_case_t cases[] = {
    {"every collective", .body = every_collective},
    {"random sequences", .function = test_random_sequences},
    {"exact traffic", .body = exact_traffic},
    {"blocks of an encoding", .body = blocks_of_an_encoding},
    {"machines", .body = count_machines},
    {"groups and parent", .body = groups_and_parent},
    {"split without rank 0", .body = split_without_rank_0},
    {"even groups", .body = even_groups},
    {"groups in turn", .body = groups_in_turn},
    {"ends of groups", .body = ends_of_groups},
    {"end in all groups", .body = end_in_all_groups, .is_of_others = true},
    {"differing ranks", .function = test_differing_ranks, .is_of_others = true},
    {"differing long names", .function = test_differing_long_names, .is_of_others = true},
    {"disagreement", .body = disagree, .is_of_others = true, .least_ranks = 2},
    {"rank that leaves", .function = test_rank_that_leaves, .is_of_others = true},
    {"rank that gives up", .body = one_gives_up},
    {"abort from another thread", .body = ended_from_elsewhere, .is_of_others = true,
     .least_ranks = 2},
    {"rank that never comes", .function = test_rank_that_never_comes, .is_of_others = true},
    {"device that fails", .function = test_device_that_fails, .is_of_others = true},
    {"refused arguments", .body = refused_arguments},
    {"second device", .body = second_device},
    {"refused options", .function = test_refused_options},
};

static void run_body(void **state) {
    const setting_t *setting = *state;
    run(state, LONG_MS, setting->of->body, NULL);
}

int run_comm_suite(const comm_suite_t *suite) {
    enum { N_TESTS = N_OF(cases) * N_OF(rank_counts) };
    static struct CMUnitTest tests[N_TESTS];
    static char names[N_TESTS][64];
    static setting_t settings[N_TESTS];
    size_t n = 0;
    for (size_t i = 0; i < N_TESTS; i++) {
        const suite_case_t *of = &cases[i / N_OF(rank_counts)];
        int n_ranks = rank_counts[i % N_OF(rank_counts)];
        if ((suite->is_alone && of->is_of_others) || n_ranks < of->least_ranks ||
            (suite->world != NULL && suite->world->n_ranks != n_ranks) ||
            (step_of(suite) > 1 && i % N_OF(rank_counts) >= N_SLOW))
            continue;
        settings[n] = (setting_t){suite, n_ranks, of};
        snprintf(names[n], sizeof(names[n]), "%s, %d ranks", of->name, n_ranks);
        tests[n] = (struct CMUnitTest){names[n], of->body != NULL ? run_body : of->function, NULL,
                                       NULL, &settings[n]};
        n++;
    }
    return _cmocka_run_group_tests(suite->name, tests, n, NULL, NULL);
}
