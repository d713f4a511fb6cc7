/*
 * See comm_cases.h. Nothing waits for the stream between the uploads, the call, and what
 * overwrites the input behind it, so that a communicator that returns or reads too early
 * is found on a device whose streams run late.
 */
#include "tests/zero/comm/comm_cases.h"

#include <stdio.h>
#include <string.h>

uint64_t mix_bits(uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

bool is_summed(zr_collective_t collective) {
    return collective == ZR_REDUCE_SCATTER || collective == ZR_ALL_REDUCE;
}

/* Of many magnitudes, so that the order of a sum shows in its bits; some zeros of both signs. */
static float make_float(uint64_t bits) {
    if (bits % 61 == 0)
        return bits & 64 ? -0.0f : 0.0f;
    uint32_t exponent = 127 - 9 + (uint32_t)((bits >> 32) % 19);
    uint32_t pattern = (uint32_t)(bits >> 63) << 31 | exponent << 23 | ((uint32_t)bits & 0x7fffff);
    float value;
    memcpy(&value, &pattern, sizeof(value));
    return value;
}

/* What a rank holds before the call. */
static void make_elems(void *elems, zr_dtype_t dtype, size_t n_elems, uint64_t seed, int rank) {
    uint64_t stream = mix_bits(seed ^ mix_bits((uint64_t)rank));
    for (size_t i = 0; i < n_elems; i++) {
        uint64_t bits = mix_bits(stream + i);
        if (dtype == ZR_DTYPE_F32)
            ((float *)elems)[i] = make_float(bits);
        else if (dtype == ZR_DTYPE_BF16)
            ((zr_bf16_t *)elems)[i] = zr_bf16_from_f32(make_float(bits));
        else
            memcpy((char *)elems + i * zr_dtype_size(dtype), &bits, zr_dtype_size(dtype));
    }
}

/* sums = the sum of the ranks' elements [begin, begin + n_elems) of n_all, in rank order; `alone`:
 * the rank that all hold what it holds, or -1. */
static void sum_naively(rank_t *self, void *sums, const comm_case_t *wanted, int n_ranks, int alone,
                        size_t n_all, size_t begin, size_t n_elems) {
    float *totals = host_take(self, n_elems * sizeof(float));
    void *elems = host_take(self, n_all * zr_dtype_size(wanted->dtype));
    for (int rank = 0; rank < n_ranks; rank++) {
        make_elems(elems, wanted->dtype, n_all, wanted->seed, alone >= 0 ? alone : rank);
        for (size_t i = 0; i < n_elems; i++) {
            float value = wanted->dtype == ZR_DTYPE_F32
                              ? ((float *)elems)[begin + i]
                              : zr_bf16_to_f32(((zr_bf16_t *)elems)[begin + i]);
            totals[i] = rank == 0 ? value : totals[i] + value;
        }
    }
    for (size_t i = 0; i < n_elems; i++) {
        if (wanted->dtype == ZR_DTYPE_F32)
            ((float *)sums)[i] = totals[i];
        else
            ((zr_bf16_t *)sums)[i] = zr_bf16_from_f32(totals[i]);
    }
}

/* The tensors of one call. `whole` holds a block of every rank; `part` one block. */
typedef struct tensors {
    zr_message_t message;
    int rank, n_ranks;
    int alone; /* the rank, where it stands for all; or -1 */
    size_t n_elems;
    size_t part_bytes, whole_bytes;
    char *input;    /* host, of this rank */
    char *expected; /* host */
    char *result;   /* host */
    char *send;     /* device */
    char *recv;     /* device */
} tensors_t;

static void begin_tensors(rank_t *self, zr_comm_t *comm, const comm_case_t *wanted,
                          tensors_t *tensors_p) {
    char *name = host_take(self, 64);
    snprintf(name, 64, "%s %s %zu %d", zr_collective_name(wanted->collective),
             zr_dtype_name(wanted->dtype), wanted->n_elems, wanted->in_place);
    tensors_t t = {.rank = zr_comm_rank(comm), .n_ranks = zr_comm_n_ranks(comm)};
    t.alone = self->suite->is_alone ? t.rank : -1;
    t.message = (zr_message_t){.tensor = name, .dtype = wanted->dtype};
    t.n_elems = wanted->n_elems;
    t.part_bytes = t.n_elems * zr_dtype_size(wanted->dtype);
    t.whole_bytes = t.part_bytes * (size_t)t.n_ranks;
    t.input = host_take(self, t.whole_bytes);
    t.expected = host_take(self, t.whole_bytes);
    t.result = host_take(self, t.whole_bytes);
    *tensors_p = t;
}

/* Overwrite on the stream what the call has read: nothing may read it any more. */
static void scribble(rank_t *self, void *device, size_t size_bytes) {
    void *pattern = host_take(self, size_bytes);
    memset(pattern, 0x5a, size_bytes);
    upload(self, device, pattern, size_bytes);
}

/* Where nothing is stored, zeros come back. */
static void expect_bytes(rank_t *self, const char *result, const char *expected,
                         size_t size_bytes) {
    if (has_data(self))
        CHECK(self, memcmp(result, expected, size_bytes) == 0);
    for (size_t i = 0; !has_data(self) && i < size_bytes; i += 1 + i / 8)
        CHECK(self, result[i] == 0);
}

static void run_all_gather(rank_t *self, zr_comm_t *comm, const comm_case_t *wanted, tensors_t *t) {
    for (int rank = 0; rank < t->n_ranks; rank++)
        make_elems(t->expected + (size_t)rank * t->part_bytes, wanted->dtype, t->n_elems,
                   wanted->seed, t->alone >= 0 ? t->alone : rank);
    memcpy(t->input, t->expected + (size_t)t->rank * t->part_bytes, t->part_bytes);
    t->recv = device_take(self, t->whole_bytes);
    t->send = wanted->in_place ? t->recv + (size_t)t->rank * t->part_bytes
                               : device_take(self, t->part_bytes);
    upload(self, t->send, t->input, t->part_bytes);
    CHECK(self, zr_comm_all_gather(comm, &t->message, t->send, t->recv, t->n_elems, self->stream) ==
                    ZR_OK);
    download(self, t->result, t->recv, t->whole_bytes);
    scribble(self, t->send, t->part_bytes);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    expect_bytes(self, t->result, t->expected, t->whole_bytes);
}

static void run_reduce_scatter(rank_t *self, zr_comm_t *comm, const comm_case_t *wanted,
                               tensors_t *t) {
    size_t n_all = t->n_elems * (size_t)t->n_ranks;
    size_t own_bytes = (size_t)t->rank * t->part_bytes;
    char *left = host_take(self, t->whole_bytes);
    make_elems(t->input, wanted->dtype, n_all, wanted->seed, t->rank);
    sum_naively(self, t->expected, wanted, t->n_ranks, t->alone, n_all,
                (size_t)t->rank * t->n_elems, t->n_elems);
    t->send = device_take(self, t->whole_bytes);
    t->recv = wanted->in_place ? t->send + own_bytes : device_take(self, t->part_bytes);
    upload(self, t->send, t->input, t->whole_bytes);
    CHECK(self, zr_comm_reduce_scatter(comm, &t->message, t->send, t->recv, t->n_elems,
                                       self->stream) == ZR_OK);
    download(self, left, t->send, t->whole_bytes);
    download(self, t->result, t->recv, t->part_bytes);
    scribble(self, t->send, t->whole_bytes);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    expect_bytes(self, t->result, t->expected, t->part_bytes);
    if (wanted->in_place)
        memcpy(t->input + own_bytes, t->expected, t->part_bytes);
    expect_bytes(self, left, t->input, t->whole_bytes);
}

static void run_all_to_all(rank_t *self, zr_comm_t *comm, const comm_case_t *wanted, tensors_t *t) {
    size_t n_all = t->n_elems * (size_t)t->n_ranks, own_bytes = (size_t)t->rank * t->part_bytes;
    for (int rank = 0; rank < t->n_ranks; rank++) {
        make_elems(t->input, wanted->dtype, n_all, wanted->seed, t->alone >= 0 ? t->alone : rank);
        memcpy(t->expected + (size_t)rank * t->part_bytes, t->input + own_bytes, t->part_bytes);
    }
    make_elems(t->input, wanted->dtype, n_all, wanted->seed, t->rank);
    t->send = device_take(self, t->whole_bytes);
    t->recv = device_take(self, t->whole_bytes);
    upload(self, t->send, t->input, t->whole_bytes);
    CHECK(self, zr_comm_all_to_all(comm, &t->message, t->send, t->recv, t->n_elems, self->stream) ==
                    ZR_OK);
    download(self, t->result, t->recv, t->whole_bytes);
    scribble(self, t->send, t->whole_bytes);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    expect_bytes(self, t->result, t->expected, t->whole_bytes);
}

static void run_buffer(rank_t *self, zr_comm_t *comm, const comm_case_t *wanted, tensors_t *t) {
    bool sums = wanted->collective == ZR_ALL_REDUCE;
    make_elems(t->input, wanted->dtype, t->n_elems, wanted->seed, t->rank);
    if (sums)
        sum_naively(self, t->expected, wanted, t->n_ranks, t->alone, t->n_elems, 0, t->n_elems);
    else
        make_elems(t->expected, wanted->dtype, t->n_elems, wanted->seed,
                   t->alone >= 0 ? t->alone : wanted->root);
    t->recv = device_take(self, t->part_bytes);
    upload(self, t->recv, t->input, t->part_bytes);
    zr_status_t status =
        sums
            ? zr_comm_all_reduce(comm, &t->message, t->recv, t->n_elems, self->stream)
            : zr_comm_broadcast(comm, &t->message, t->recv, t->n_elems, wanted->root, self->stream);
    CHECK(self, status == ZR_OK);
    download(self, t->result, t->recv, t->part_bytes);
    scribble(self, t->recv, t->part_bytes);
    CHECK(self, zr_stream_synchronize(self->stream) == ZR_OK);
    expect_bytes(self, t->result, t->expected, t->part_bytes);
}

void run_case(rank_t *self, zr_comm_t *comm, const comm_case_t *wanted) {
    tensors_t tensors;
    begin_tensors(self, comm, wanted, &tensors);
    switch (wanted->collective) {
    case ZR_ALL_GATHER:
        run_all_gather(self, comm, wanted, &tensors);
        break;
    case ZR_REDUCE_SCATTER:
        run_reduce_scatter(self, comm, wanted, &tensors);
        break;
    case ZR_ALL_REDUCE:
    case ZR_BROADCAST:
        run_buffer(self, comm, wanted, &tensors);
        break;
    case ZR_ALL_TO_ALL:
        run_all_to_all(self, comm, wanted, &tensors);
        break;
    case ZR_BARRIER:
    case ZR_SPLIT:
        if (zr_comm_barrier(comm, tensors.message.tensor) != ZR_OK)
            note_failure(self, __FILE__, __LINE__, "barrier");
        break;
    }
    if (self->failure[0] == '\0')
        release_memory(self);
}

/* Whether n_elems are those of a rank's block. */
static bool is_part(zr_collective_t collective) {
    return collective == ZR_ALL_GATHER || collective == ZR_REDUCE_SCATTER ||
           collective == ZR_ALL_TO_ALL;
}

void large_tensors(rank_t *self) {
    size_t n_ranks = (size_t)self->n_ranks;
    comm_case_t cases[] = {
        {.collective = ZR_REDUCE_SCATTER, .dtype = ZR_DTYPE_F32, .in_place = true},
        {.collective = ZR_REDUCE_SCATTER, .dtype = ZR_DTYPE_BF16},
        {.collective = ZR_ALL_REDUCE, .dtype = ZR_DTYPE_F32},
        {.collective = ZR_ALL_GATHER, .dtype = ZR_DTYPE_F32},
        {.collective = ZR_ALL_GATHER, .dtype = ZR_DTYPE_U8, .in_place = true},
        {.collective = ZR_ALL_TO_ALL, .dtype = ZR_DTYPE_BF16},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && self->failure[0] == '\0'; i++) {
        comm_case_t wanted = cases[i];
        wanted.seed = i;
        if (wanted.dtype == ZR_DTYPE_U8)
            wanted.n_elems = ((size_t)40 << 20) / n_ranks + 1;
        else
            wanted.n_elems = is_part(wanted.collective) ? 800001 / n_ranks : 800003;
        run_case(self, self->comm, &wanted);
    }
}
