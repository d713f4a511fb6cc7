/*
 * Training whose drive fails: at each of its requests, on one rank of two. The run ends with the
 * error, said where it was met, and the other rank does not wait; or it goes on and ends in the
 * same weights. Never in others.
 */
#include "offload/store_backend.h"
#include "tests/common/test.h"
#include "tests/zero/toy.h"

/* A run takes milliseconds; one that takes this long hangs. */
#define WATCHDOG_SECONDS 100

typedef enum fault { NO_FAULT, FAILS, FLIPS_A_BIT, FLIPS_BEFORE_USE } fault_t;

/* What the store of rank 1 does; its thread alone reads and writes this while it trains. */
static struct {
    zr_store_backend_t backend;
    fault_t fault;
    size_t n_started, fault_at; /* counted from 1 */
    size_t n_puts;
    size_t n_chunks; /* that have come unverified; fault_at is one of these in FLIPS_BEFORE_USE */
    size_t hit_chunk;
    zr_store_transfer_t *hit;
    zr_store_t *hit_store; /* whose transfer it is */
} bad;

/* What is on the drive. */
typedef struct placement {
    int stage;
    bool has_state;
    bool has_params;  /* some of them frozen; also read outside of steps, and in a new order */
    bool has_grads;   /* of two micro-batches */
    bool in_backward; /* updates are, and their last writes end in the next forward */
} placement_t;

static const placement_t placements[] = {
    {0, true, false, false},        {2, true, false, false},
    {3, false, true, false},        {3, true, true, false},
    {2, false, false, true},        {3, true, true, true},
    {2, true, .in_backward = true}, {3, true, true, true, .in_backward = true},
};
#define N_PLACEMENTS (N_OF(placements))

/* Whether the chunk that is to change is one of these, which are verified when they are used. */
static bool has_chunk(const zr_store_t *store, const zr_store_transfer_t *transfer) {
    size_t before = bad.n_chunks, chunk = store->info.chunk_bytes;
    if (transfer->direction != ZR_STORE_GET || !transfer->is_unhashed)
        return false;
    bad.n_chunks += (transfer->size_bytes + chunk - 1) / chunk;
    if (bad.fault_at <= before || bad.fault_at > bad.n_chunks)
        return false;
    bad.hit_chunk = bad.fault_at - before - 1;
    return true;
}

static void bad_start(zr_store_t *store, zr_store_transfer_t *transfer) {
    bool has_it = has_chunk(store, transfer);
    bool hits = ++bad.n_started == bad.fault_at && bad.fault != NO_FAULT;
    if (bad.fault == FLIPS_BEFORE_USE && bad.hit == NULL)
        hits = has_it;
    bad.n_puts += transfer->direction == ZR_STORE_PUT;
    if (hits) {
        bad.hit = transfer;
        bad.hit_store = store;
    }
    if (!hits || bad.fault != FAILS)
        zr_store_memory_backend.start(store, transfer);
}

static void fail_transfer(zr_store_t *store, zr_store_transfer_t *transfer) {
    zr_store_piece_t piece = {.transfer = transfer,
                              .offset_bytes = transfer->offset_bytes,
                              .size_bytes = transfer->size_bytes,
                              .file = "bad"};
    zr_store_piece_begins(store, &piece);
    zr_store_outcome_t outcome = {.status = zr_fail(&store->options.log, ZR_ERR_IO,
                                                    "request %zu: the drive is bad", bad.fault_at)};
    zr_store_piece_ended(store, &piece, &outcome);
}

/* As if a bit of what was put had changed since: its checksum is not the one that is kept. */
static void flip_bit(zr_store_t *store, const zr_store_transfer_t *transfer) {
    size_t chunk =
        store->chunks[transfer->extent].first + transfer->offset_bytes / store->info.chunk_bytes;
    store->sums[chunk] ^= 1;
}

/* As if memory had lost a bit after the transfer. */
static void flip_before_use(zr_store_t *store, const zr_store_transfer_t *transfer) {
    size_t at = bad.hit_chunk * store->info.chunk_bytes, left = transfer->size_bytes - at;
    left = left < store->info.chunk_bytes ? left : store->info.chunk_bytes;
    transfer->buffer[at + bad.fault_at * 7919 % left] ^= (unsigned char)(1 << bad.fault_at % 8);
}

/* Transfers end late: only when somebody waits. */
static void bad_progress(zr_store_t *store, bool wait) {
    zr_store_transfer_t *hit = bad.hit;
    if (!wait)
        return;
    zr_store_memory_backend.progress(store, true);
    if (hit == NULL || bad.hit_store != store ||
        (bad.fault != FAILS && hit->state == ZR_TRANSFER_IN_FLIGHT))
        return;
    bad.hit = NULL;
    if (bad.fault == FAILS)
        fail_transfer(store, hit);
    else if (bad.fault == FLIPS_BEFORE_USE)
        flip_before_use(store, hit);
    else if (hit->direction == ZR_STORE_PUT)
        flip_bit(store, hit);
}

WRAP(zr_status_t, zr_store_create, const char *backend, const zr_store_options_t *options,
     const zr_store_extent_t *extents, size_t n_extents, zr_store_t **store_p) {
    ZR_TRY(__real_zr_store_create(backend, options, extents, n_extents, store_p));
    if (options->log.rank == 1)
        (*store_p)->backend = &bad.backend;
    return ZR_OK;
}

static toy_options_t options_of(const placement_t *placement) {
    toy_options_t options = toy_options_default(placement->stage, 2);
    options.n_steps = 2;
    options.frozen = options.evaluate = placement->has_params;
    options.reorder_step = placement->has_params ? 1 : -1;
    options.config.grad_accum = placement->has_grads ? 2 : 1;
    options.alternate = placement->has_grads;
    if (placement->in_backward)
        toy_set(&options, "update-at=backward check-overflow=off");
    return options;
}

/* Pieces of 4096 elements: several per unit and buffer. */
static void train(const placement_t *placement, fault_t fault, size_t fault_at,
                  toy_result_t *result) {
    toy_options_t options = options_of(placement);
    options.quiet = true;
    if (placement->has_state)
        options.config.offload_optimizer.device = ZR_OFFLOAD_NVME;
    else if (placement->has_grads)
        options.config.offload_optimizer.device = ZR_OFFLOAD_CPU;
    if (placement->has_grads)
        options.config.offload_optimizer.gradients = ZR_OFFLOAD_NVME;
    options.config.offload_optimizer.n_buffers = 3;
    options.config.offload_param.device = placement->has_params ? ZR_OFFLOAD_NVME : ZR_OFFLOAD_NONE;
    options.config.offload_param.n_buffers = 3;
    options.config.offload_param.buffer_elems = 4096;
    options.config.nvme.store = "memory";
    options.config.sub_group_elems = 4096;
    bad.backend = zr_store_memory_backend;
    bad.backend.start = bad_start;
    bad.backend.progress = bad_progress;
    bad.fault = fault;
    bad.n_started = bad.n_puts = bad.n_chunks = 0;
    bad.fault_at = fault_at;
    bad.hit = NULL;
    alarm(WATCHDOG_SECONDS);
    toy_train(&options, result);
    alarm(0);
}

TEST(late_ends_change_nothing) {
    for (size_t i = 0; i < N_PLACEMENTS; i++) {
        toy_result_t result;
        toy_options_t options = options_of(&placements[i]);
        toy_train(&options, &result);
        uint64_t reference = result.hash;
        train(&placements[i], NO_FAULT, 0, &result);
        assert_int_equal(result.status[1], ZR_OK);
        assert_true(result.hash == reference);
    }
}

/* The rank of the bad drive ends with what it met. The other ends because of that, or does not need
 * it any more. */
static void expect_end(const toy_result_t *result, zr_status_t status, const char *text,
                       uint64_t reference) {
    assert_int_equal(result->status[1], status);
    assert_has(result->last_error[1], text);
    if (result->status[0] == ZR_OK)
        assert_true(result->hash == reference);
    else
        assert_int_equal(result->status[0], ZR_ERR_COMM);
}

TEST(each_request_may_fail) {
    for (size_t i = 0; i < N_PLACEMENTS; i++) {
        toy_result_t result;
        size_t n_requests;
        train(&placements[i], NO_FAULT, 0, &result);
        n_requests = bad.n_started;
        uint64_t reference = result.hash;
        assert_true(n_requests > 30);
        for (size_t n = 1; n <= n_requests; n++) {
            if (!ONE_OF(1, 3))
                continue;
            char text[64];
            snprintf(text, sizeof(text), "request %zu: the drive is bad", n);
            train(&placements[i], FAILS, n, &result);
            expect_end(&result, ZR_ERR_IO, text, reference);
        }
    }
}

/* A flipped bit is found when the piece is read again; in what is not read again it is nothing. */
TEST(each_bit_may_flip) {
    for (size_t i = 0; i < N_PLACEMENTS; i++) {
        toy_result_t result;
        size_t n_found = 0, n_requests, n_puts;
        train(&placements[i], NO_FAULT, 0, &result);
        n_requests = bad.n_started;
        n_puts = bad.n_puts;
        uint64_t reference = result.hash;
        for (size_t n = 1; n <= n_requests; n++) {
            train(&placements[i], FLIPS_A_BIT, n, &result);
            n_found += result.status[1] != ZR_OK;
            if (result.status[1] == ZR_OK)
                assert_true(result.hash == reference);
            else
                expect_end(&result, ZR_ERR_FORMAT, "are not those that were put", reference);
        }
        /* Those of the beginning and the first update, at least; parameters are all read again. */
        assert_true(placements[i].has_state ? 3 * n_found >= 2 * n_puts : n_found == n_puts);
    }
}

/* A bit of any chunk that changes after it was read, and before it is updated, is found: no weight
 * is made of it. */
TEST(each_chunk_may_change_before_use) {
    for (size_t i = 0; i < N_PLACEMENTS; i++) {
        toy_result_t result;
        train(&placements[i], NO_FAULT, 0, &result);
        size_t n_chunks = bad.n_chunks;
        uint64_t reference = result.hash;
        assert_true((n_chunks >= 12) == placements[i].has_state);
        for (size_t n = 1; n <= n_chunks; n++) {
            if (!ONE_OF(1, 3))
                continue;
            train(&placements[i], FLIPS_BEFORE_USE, n, &result);
            if (placements[i].in_backward && result.status[1] == ZR_OK && result.hash == reference)
                continue; /* read ahead in another order, and read again */
            expect_end(&result, ZR_ERR_FORMAT, "are not those that were put", reference);
        }
    }
}
