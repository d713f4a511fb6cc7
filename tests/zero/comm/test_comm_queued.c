/*
 * Collectives that a stream's thread makes, beyond the conformance suite: they run beside compute,
 * keep what they were called with, tell of failures, and are told apart in the statistics. Ranks
 * are threads of this test; what a rank waits for comes from the other.
 */
#include <pthread.h>
#include <semaphore.h>

#include "kernels/kernels.h"
#include "tests/common/ranks.h"
#include "tests/common/test.h"

enum { N_ELEMS = 1000, N_RANKS = 2 };

/* A rank's tensors and streams. */
typedef struct place {
    float part[N_ELEMS], whole[N_RANKS * N_ELEMS];
    zr_stream_t *compute, *comm;
    zr_event_t *event;
} place_t;

typedef zr_status_t (*body_fn)(test_rank_t *rank, place_t *place);

/* What the ranks of a test share. */
typedef struct shared {
    body_fn body;
    sem_t has_computed;
    bool was_under_way;
} shared_t;

static zr_status_t open_place(test_rank_t *rank, place_t *place) {
    for (int i = 0; i < N_ELEMS; i++)
        place->part[i] = (float)(i + rank->rank);
    ZR_TRY(zr_event_create(rank->device, &place->event));
    ZR_TRY(zr_stream_create(rank->device, "compute", &place->compute));
    return zr_stream_create_concurrent(rank->device, "comm", &place->comm);
}

static zr_status_t run_body(test_rank_t *rank) {
    place_t place = {.comm = NULL};
    zr_status_t status = open_place(rank, &place);
    ZR_THEN(status, ((const shared_t *)rank->context)->body(rank, &place));
    zr_stream_destroy(&place.comm);
    zr_stream_destroy(&place.compute);
    zr_event_destroy(&place.event);
    return status;
}

static zr_status_t gather(test_rank_t *rank, place_t *place, const char *name) {
    zr_message_t message = {name, ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    return zr_comm_all_gather(rank->comm, &message, place->part, place->whole, N_ELEMS,
                              place->comm);
}

static bool is_gathered(const place_t *place) {
    for (int i = 0; i < N_RANKS * N_ELEMS; i++)
        if (place->whole[i] != (float)(i % N_ELEMS + i / N_ELEMS))
            return false;
    return true;
}

static void run(body_fn body, bool quiet, test_ranks_t *ranks_p) {
    shared_t shared = {.body = body};
    test_ranks_t ranks = {.n_ranks = N_RANKS,
                          .concurrent = true,
                          .quiet = quiet,
                          .run = run_body,
                          .context = &shared};
    sem_init(&shared.has_computed, 0, 0);
    test_run_ranks(&ranks);
    sem_destroy(&shared.has_computed);
    if (ranks_p != NULL)
        *ranks_p = ranks;
    for (int r = 0; r < N_RANKS && !quiet; r++)
        assert_int_equal(ranks.status[r], ZR_OK);
}

/* ---- beside compute -------------------------------------------------------------------------- */

static zr_status_t overlap(test_rank_t *rank, place_t *place) {
    shared_t *shared = rank->context;
    float x[100];
    bool passed = true;
    if (rank->rank == 1) /* comes when the other has computed behind its call */
        sem_wait(&shared->has_computed);
    zr_status_t status = gather(rank, place, "held");
    if (status == ZR_OK && rank->rank == 0)
        status = zr_kernel_fill(place->compute, x, ZR_DTYPE_F32, 100, 1.0f);
    ZR_THEN(status, zr_event_record(place->event, place->comm));
    if (status == ZR_OK && rank->rank == 0)
        status = zr_event_query(place->event, &passed);
    if (rank->rank == 0) {
        shared->was_under_way = !passed && x[99] == 1.0f;
        sem_post(&shared->has_computed);
    }
    ZR_TRY(status);
    ZR_TRY(zr_stream_wait(place->compute, place->event));
    ZR_TRY(zr_comm_check(rank->comm));
    return is_gathered(place) && shared->was_under_way ? ZR_OK : ZR_ERR_STATE;
}

TEST(test_overlap) {
    run(overlap, false, NULL);
}

/* ---- what a call keeps ----------------------------------------------------------------------- */

/* A name that is overwritten behind the call; it is compared when the call is made. */
static zr_status_t keep_name(test_rank_t *rank, place_t *place) {
    shared_t *shared = rank->context;
    char name[32] = "h.3 parameters";
    if (rank->rank == 1)
        sem_wait(&shared->has_computed);
    zr_status_t status = gather(rank, place, name);
    memset(name, '0' + rank->rank, sizeof(name) - 1);
    if (rank->rank == 0)
        sem_post(&shared->has_computed);
    ZR_TRY(status);
    ZR_TRY(zr_comm_barrier(rank->comm, "waits for what is queued"));
    if (!is_gathered(place)) /* so a barrier is enough */
        return ZR_ERR_STATE;
    memset(place->whole, 0, sizeof(place->whole));
    ZR_TRY(gather(rank, place, "queued"));
    zr_stream_t *comm = place->comm;
    place->comm = place->compute;
    status = gather(rank, place, "in the calling thread"); /* behind the one that is queued */
    place->comm = comm;
    return status == ZR_OK && !is_gathered(place) ? ZR_ERR_STATE : status;
}

TEST(test_calls_are_copied_and_in_order) {
    run(keep_name, false, NULL);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static zr_status_t count(test_rank_t *rank, place_t *place) {
    zr_comm_statistics_t before, after;
    ZR_TRY(zr_comm_barrier(rank->comm, "start"));
    zr_comm_statistics(rank->comm, &before);
    for (int i = 0; i < 20; i++) {
        ZR_TRY(gather(rank, place, "counted"));
        zr_comm_statistics(rank->comm, &after); /* while it is made */
        if (after.count[ZR_TRAFFIC_MODEL][ZR_ALL_GATHER].n_calls != (uint64_t)i + 1)
            return ZR_ERR_STATE;
    }
    ZR_TRY(zr_stream_synchronize(place->comm));
    zr_comm_statistics(rank->comm, &after);
    bool is_apart = after.wait_seconds == before.wait_seconds &&
                    after.move_seconds == before.move_seconds && before.queued_wait_seconds == 0 &&
                    before.queued_move_seconds == 0 && after.queued_wait_seconds > 0 &&
                    after.queued_move_seconds > 0;
    return is_apart ? ZR_OK : ZR_ERR_STATE;
}

TEST(test_seconds_are_told_apart) {
    run(count, false, NULL);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Rank 1 gives up while calls of rank 0 are queued: the first ends, the others are not made, and
 * whoever asks, or calls again, is told. */
static zr_status_t fail_queued(test_rank_t *rank, place_t *place) {
    shared_t *shared = rank->context;
    if (rank->rank == 1) {
        sem_wait(&shared->has_computed);
        zr_comm_abort(rank->comm, "no bytes left");
        return ZR_ERR_BUDGET;
    }
    zr_status_t status = ZR_OK;
    for (int i = 0; i < 3 && status == ZR_OK; i++)
        status = gather(rank, place, "queued");
    sem_post(&shared->has_computed);
    ZR_TRY(status);
    ZR_TRY(zr_stream_synchronize(place->comm)); /* the stream passes */
    bool is_told =
        zr_comm_check(rank->comm) == ZR_ERR_COMM && zr_comm_check(rank->comm) == ZR_ERR_COMM;
    is_told &= gather(rank, place, "later") == ZR_ERR_COMM;
    is_told &= zr_comm_barrier(rank->comm, "later") == ZR_ERR_COMM;
    return is_told ? ZR_OK : ZR_ERR_STATE;
}

TEST(test_failures_are_told) {
    test_ranks_t ranks;
    run(fail_queued, true, &ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
    assert_int_equal(ranks.n_errors[0], 1); /* of the first queued one; the others say no more */
    assert_has(ranks.last_error[0], "rank 1 gave up: no bytes left");
}

/* A group ends, and the ranks go on without it; then all end. Each end is said once by each rank,
 * whichever of the communicators it is found in, and however often. */
static zr_status_t end_both(test_rank_t *rank, zr_comm_t *group) {
    bool gives_up = rank->rank == 1, is_told = true;
    if (gives_up)
        zr_comm_abort(group, "no more of it");
    for (int i = 0; i < 2 && !gives_up; i++)
        is_told &= zr_comm_barrier(group, "in the group") == ZR_ERR_COMM;
    is_told &= zr_comm_barrier(rank->comm, "goes on") == ZR_OK;
    if (gives_up)
        zr_comm_abort(rank->comm, "no bytes left");
    for (int i = 0; i < 2 && !gives_up; i++) {
        is_told &= zr_comm_barrier(rank->comm, "ends") == ZR_ERR_COMM;
        is_told &= zr_comm_barrier(group, "ended before") == ZR_ERR_COMM;
    }
    return is_told ? ZR_OK : ZR_ERR_STATE;
}

static zr_status_t end_twice(test_rank_t *rank, place_t *place) {
    zr_comm_t *group = NULL;
    ZR_TRY(zr_comm_split(rank->comm, 0, rank->rank, &group));
    zr_status_t status = end_both(rank, group);
    zr_comm_destroy(&group);
    return status;
}

TEST(test_ends_are_said_once) {
    test_ranks_t ranks;
    run(end_twice, true, &ranks);
    assert_int_equal(ranks.status[0], ZR_OK);
    assert_int_equal(ranks.n_errors[0], 2);
    assert_has(ranks.last_error[0], "\"ends\" (call 3): rank 1 gave up: no bytes");
}
