/*
 * Gathers and sums in messages of every encoding, of values of any kind, on all numbers of ranks:
 * bit for bit what the encodings' own functions on the host and fp32 additions in rank order make
 * of each rank's values. With feedback, what encoding leaves out comes with the next sums.
 */
#include "tests/common/ranks.h"
#include "tests/common/test.h"
#include "zero/encoded_internal.h"

enum { MOST_ELEMS = 4 * 1280, MOST_ROUNDS = 64 };

typedef struct sums {
    const zr_encoding_t *encoding;
    zr_dtype_t dtype;
    size_t n_elems; /* of a rank's part, or of the whole of an all-reduce */
    bool has_feedback;
    int n_rounds;
} sums_t;

static zr_dtype_t dtype_of(const test_rank_t *rank) {
    return ((const sums_t *)rank->context)->dtype;
}

/* Of many magnitudes; blocks of zeros, with one huge value, too small for their scale, and at the
 * end with what is no number. */
static float value_of(int rank, size_t i, size_t n_elems) {
    size_t block = i / 256;
    float sign = (i * 7 + (size_t)rank) % 3 == 0 ? -1.0f : 1.0f;
    if (block == 1)
        return 0.0f;
    if (block == 2)
        return sign * 1e-41f;
    if (block == 3 && i % 256 == 17)
        return 3e38f / 8;
    if (n_elems >= 1280 && i == n_elems - 5 && rank == 0)
        return NAN;
    if (n_elems >= 1280 && i == n_elems - 300 && rank == 1)
        return INFINITY;
    return sign * ldexpf((float)(1 + (i * 31 + (size_t)rank * 17) % 97), -(int)(i % 23));
}

static float rounded(float value, zr_dtype_t dtype) {
    return dtype == ZR_DTYPE_F32 ? value : zr_bf16_to_f32(zr_bf16_from_f32(value));
}

static void put(void *tensor, size_t i, float value, zr_dtype_t dtype) {
    if (dtype == ZR_DTYPE_F32)
        ((float *)tensor)[i] = value;
    else
        ((zr_bf16_t *)tensor)[i] = zr_bf16_from_f32(value);
}

static float get(const void *tensor, size_t i, zr_dtype_t dtype) {
    return dtype == ZR_DTYPE_F32 ? ((const float *)tensor)[i]
                                 : zr_bf16_to_f32(((const zr_bf16_t *)tensor)[i]);
}

/* What others make of a rank's values. */
static void decode_what_is_sent(const sums_t *c, const float *values, size_t n_elems, float *sent) {
    static _Thread_local unsigned char blocks[MOST_ELEMS * 5];
    c->encoding->encode(c->encoding, values, n_elems, blocks);
    c->encoding->decode(c->encoding, blocks, n_elems, sent);
}

static zr_status_t expect(const test_rank_t *rank, const char *what, size_t i, float is,
                          float expected) {
    if (is == expected || (isnan(is) && isnan(expected)))
        return ZR_OK;
    return zr_fail(&rank->log, ZR_ERR_STATE, "%s: element %zu is %.9g, not %.9g", what, i,
                   (double)is, (double)expected);
}

static zr_status_t check_gather(test_rank_t *rank, const zr_encoded_t *encoded, void *full) {
    const sums_t *c = rank->context;
    float values[MOST_ELEMS], sent[MOST_ELEMS];
    size_t n = c->n_elems, n_ranks = (size_t)zr_comm_n_ranks(rank->comm);
    for (size_t i = 0; i < n; i++)
        put(full, (size_t)rank->rank * n + i, value_of(rank->rank, i, n), c->dtype);
    ZR_TRY(zr_encoded_all_gather(encoded, zr_base_at(encoded->base, full, (size_t)rank->rank * n),
                                 full, n));
    ZR_TRY(zr_stream_synchronize(encoded->base->transfer));
    for (size_t r = 0; r < n_ranks; r++) {
        for (size_t i = 0; i < n; i++)
            values[i] = rounded(value_of((int)r, i, n), c->dtype);
        decode_what_is_sent(c, values, n, sent);
        for (size_t i = 0; i < n; i++)
            ZR_TRY(expect(rank, "gather", r * n + i, get(full, r * n + i, c->dtype),
                          rounded(sent[i], c->dtype)));
    }
    return ZR_OK;
}

/* The sum in rank order of what is sent of values from `first` on, before it is rounded. */
static void add_sent(const sums_t *c, size_t n_ranks, size_t first, float *sum) {
    float values[MOST_ELEMS], sent[MOST_ELEMS];
    size_t n = c->n_elems;
    for (size_t r = 0; r < n_ranks; r++) {
        for (size_t i = 0; i < n; i++)
            values[i] = rounded(value_of((int)r, i + first, n), c->dtype);
        decode_what_is_sent(c, values, n, sent);
        for (size_t i = 0; i < n; i++)
            sum[i] = r == 0 ? sent[i] : sum[i] + sent[i];
    }
}

static zr_status_t check_scatter(test_rank_t *rank, const zr_encoded_t *encoded, void *full) {
    const sums_t *c = rank->context;
    float sum[MOST_ELEMS] = {0};
    size_t n = c->n_elems, n_ranks = (size_t)zr_comm_n_ranks(rank->comm);
    size_t own = (size_t)rank->rank * n;
    for (size_t i = 0; i < n * n_ranks; i++)
        put(full, i, value_of(rank->rank, i % n + i / n, n), c->dtype);
    ZR_TRY(zr_encoded_reduce_scatter(encoded, full, zr_base_at(encoded->base, full, own), n));
    ZR_TRY(zr_stream_synchronize(encoded->base->transfer));
    add_sent(c, n_ranks, (size_t)rank->rank, sum);
    for (size_t i = 0; i < n; i++)
        ZR_TRY(expect(rank, "scatter", i, get(full, own + i, c->dtype), rounded(sum[i], c->dtype)));
    return ZR_OK;
}

/* Sums are encoded once more, where they are gathered. */
static zr_status_t check_all_reduce(test_rank_t *rank, const zr_encoded_t *encoded, void *full) {
    const sums_t *c = rank->context;
    float sum[MOST_ELEMS] = {0}, sent[MOST_ELEMS];
    size_t n = c->n_elems;
    const zr_feedback_t none = {0};
    for (size_t i = 0; i < n; i++)
        put(full, i, value_of(rank->rank, i, n), c->dtype);
    ZR_TRY(zr_encoded_all_reduce(encoded, full, n, &none));
    ZR_TRY(zr_stream_synchronize(encoded->base->transfer));
    add_sent(c, (size_t)zr_comm_n_ranks(rank->comm), 0, sum);
    for (size_t i = 0; i < n; i++)
        sum[i] = rounded(sum[i], c->dtype);
    decode_what_is_sent(c, sum, n, sent);
    for (size_t i = 0; i < n; i++)
        ZR_TRY(expect(rank, "all-reduce", i, get(full, i, c->dtype), rounded(sent[i], c->dtype)));
    return ZR_OK;
}

/* Every rank knows every slice: the sums of all of its rounds together are near the true ones, with
 * feedback as near as those of one. */
static zr_status_t check_reduce(test_rank_t *rank, const zr_encoded_t *encoded, float *buffer) {
    const sums_t *c = rank->context;
    static _Thread_local float errors[2][MOST_ELEMS];
    double sums[MOST_ELEMS] = {0};
    size_t n = c->n_elems;
    zr_feedback_t feedback = {0};
    if (c->has_feedback)
        feedback = (zr_feedback_t){errors[0], errors[1]};
    memset(errors, 0, sizeof(errors));
    for (int round = 0; round < c->n_rounds; round++) {
        for (size_t i = 0; i < n; i++)
            buffer[i] = sinf((float)(i + 3 * (size_t)rank->rank));
        ZR_TRY(zr_encoded_all_reduce(encoded, buffer, n, &feedback));
        ZR_TRY(zr_stream_synchronize(encoded->base->transfer));
        for (size_t i = 0; i < n; i++)
            sums[i] += buffer[i];
    }
    for (size_t i = 0; i < n; i++) {
        double expected = 0, off = 0;
        for (int r = 0; r < zr_comm_n_ranks(rank->comm); r++)
            expected += sinf((float)(i + 3 * (size_t)r));
        off = fabs(sums[i] - c->n_rounds * expected);
        /* A step of the scale, from each rank, and of the sum. */
        double steps = c->encoding == &zr_encoding_int4 ? 7 : 127;
        double most = 1.1 * 2 * zr_comm_n_ranks(rank->comm) / steps;
        if (off > (c->has_feedback ? most : c->n_rounds * most))
            return zr_fail(&rank->log, ZR_ERR_STATE, "reduce: element %zu is off by %g of %g", i,
                           off, most);
    }
    return ZR_OK;
}

static zr_status_t with_base(test_rank_t *rank,
                             zr_status_t (*check)(test_rank_t *, const zr_encoded_t *)) {
    zr_config_t config = zr_config_default();
    zr_heap_t *heap = zr_heap_create(NULL);
    zr_base_t base;
    config.dtype = dtype_of(rank);
    config.overlap_comm = false;
    assert_non_null(heap);
    zr_status_t status = zr_base_create(heap, &config, rank->comm, rank->device, &rank->log, &base);
    const zr_encoded_t encoded = {.base = &base,
                                  .comm = rank->comm,
                                  .tensor = "values",
                                  .encoding = ((const sums_t *)rank->context)->encoding,
                                  .chunk_elems = 512};
    ZR_THEN(status, check(rank, &encoded));
    zr_base_destroy(&base);
    zr_heap_destroy(&heap);
    return status;
}

static zr_status_t check_exact(test_rank_t *rank, const zr_encoded_t *encoded) {
    size_t n_all = MOST_ELEMS * (size_t)zr_comm_n_ranks(rank->comm);
    void *full = NULL;
    ZR_TRY(zr_base_allocate(encoded->base, zr_base_bytes(encoded->base, n_all), ZR_TAG_WORKSPACE,
                            ZR_LIFETIME_PERSISTENT, "full", NULL, &full));
    zr_status_t status = check_gather(rank, encoded, full);
    ZR_THEN(status, check_scatter(rank, encoded, full));
    ZR_THEN(status, check_all_reduce(rank, encoded, full));
    zr_free(encoded->base->allocator, &full, NULL);
    return status;
}

static zr_status_t check_feedback(test_rank_t *rank, const zr_encoded_t *encoded) {
    void *buffer = NULL;
    ZR_TRY(zr_base_allocate(encoded->base, MOST_ELEMS * sizeof(float), ZR_TAG_WORKSPACE,
                            ZR_LIFETIME_PERSISTENT, "sums", NULL, &buffer));
    zr_status_t status = check_reduce(rank, encoded, buffer);
    zr_free(encoded->base->allocator, &buffer, NULL);
    return status;
}

static zr_status_t run_exact(test_rank_t *rank) {
    return with_base(rank, check_exact);
}

static zr_status_t run_feedback(test_rank_t *rank) {
    return with_base(rank, check_feedback);
}

static void run(const sums_t *c, int n_ranks, bool concurrent, test_rank_fn body) {
    test_ranks_t ranks = {
        .n_ranks = n_ranks, .concurrent = concurrent, .run = body, .context = (void *)c};
    test_run_ranks(&ranks);
    for (int rank = 0; rank < n_ranks; rank++)
        if (ranks.status[rank] != ZR_OK)
            fail_msg("%s, %s, %zu elements, %d ranks: %s", c->encoding->name,
                     zr_dtype_name(c->dtype), c->n_elems, n_ranks, ranks.last_error[rank]);
}

TEST(sums_are_those_of_what_is_decoded) {
    static const size_t sizes[] = {0, 256, 1280};
    for (size_t i = 0; zr_encoding_at(i) != NULL; i++)
        for (int dtype = ZR_DTYPE_F32; dtype <= ZR_DTYPE_BF16; dtype++)
            for (size_t size = 0; size < N_OF(sizes); size++)
                for (int n_ranks = 2; n_ranks <= 5; n_ranks += 1 + n_ranks / 3) {
                    const sums_t c = {zr_encoding_at(i), (zr_dtype_t)dtype, sizes[size], false, 0};
                    run(&c, n_ranks, n_ranks == 3, run_exact);
                }
}

/* Slices of a tensor, of which the last may have fewer blocks, or none. */
TEST(feedback_is_all_that_was_left_out) {
    static const zr_encoding_t *const encodings[] = {&zr_encoding_int8, &zr_encoding_int4};
    static const size_t sizes[] = {256, 1280, MOST_ELEMS};
    for (size_t i = 0; i < N_OF(encodings); i++)
        for (size_t size = 0; size < N_OF(sizes); size++)
            for (int n_ranks = 2; n_ranks <= 7; n_ranks += 5) {
                sums_t c = {encodings[i], ZR_DTYPE_F32, sizes[size], true, MOST_ROUNDS};
                run(&c, n_ranks, false, run_feedback);
                c.has_feedback = false;
                c.n_rounds = 1;
                run(&c, n_ranks, false, run_feedback);
            }
}
