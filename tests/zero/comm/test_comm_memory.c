/*
 * Creating and splitting communicators when memory runs out: every allocation in turn fails,
 * every rank hears of it, nothing is left behind, and what there was goes on.
 */
#include <stdatomic.h>

#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/zero/comm/ranks.h"

/* Allocations until one fails; negative: none does. The linker sends all of them here. */
static atomic_int until_failure = -1;

static bool fails_now(void) {
    return atomic_load(&until_failure) >= 0 && atomic_fetch_sub(&until_failure, 1) == 0;
}

WRAP(void *, malloc, size_t size_bytes) {
    return fails_now() ? NULL : __real_malloc(size_bytes);
}

WRAP(void *, calloc, size_t n, size_t size_bytes) {
    return fails_now() ? NULL : __real_calloc(n, size_bytes);
}

TEST(test_create) {
    zr_comm_options_t options = zr_comm_options_default();
    options.log.sink = drop_message;
    enum { N_RANKS = 4, N_ALLOCATIONS = 1 + 2 * N_RANKS };
    for (int i = 0; i < N_ALLOCATIONS; i++) {
        zr_comm_t *comms[N_RANKS] = {NULL};
        atomic_store(&until_failure, i);
        zr_status_t status = zr_comm_create_threads(N_RANKS, &options, comms);
        atomic_store(&until_failure, -1);
        assert_int_equal(status, ZR_ERR_MEMORY);
        for (int rank = 0; rank < N_RANKS; rank++)
            assert_null(comms[rank]);
    }
    zr_comm_t *comms[N_RANKS];
    atomic_store(&until_failure, N_ALLOCATIONS);
    zr_status_t status = zr_comm_create_threads(N_RANKS, &options, comms);
    atomic_store(&until_failure, -1);
    assert_int_equal(status, ZR_OK);
    for (int rank = 0; rank < N_RANKS; rank++)
        zr_comm_destroy(&comms[rank]);
}

/* Three groups of two and one rank without: each group is an allocation, and two handles and their
 * places. */
static void split_in_need(rank_t *self) {
    enum { N_ALLOCATIONS = 15 };
    int color = self->rank == 6 ? -1 : self->rank % 3;
    for (int i = 0; i <= N_ALLOCATIONS; i++) {
        zr_comm_t *group = NULL;
        pthread_barrier_wait(self->together);
        if (self->rank == 0)
            atomic_store(&until_failure, i);
        pthread_barrier_wait(self->together);
        zr_status_t status = zr_comm_split(self->comm, color, 0, &group);
        pthread_barrier_wait(self->together);
        if (self->rank == 0)
            atomic_store(&until_failure, -1);
        pthread_barrier_wait(self->together);
        CHECK(self, status == (i < N_ALLOCATIONS ? ZR_ERR_MEMORY : ZR_OK));
        CHECK(self, (group != NULL) == (status == ZR_OK && color >= 0));
        CHECK(self, group == NULL || zr_comm_barrier(group, "group") == ZR_OK);
        CHECK(self, zr_comm_barrier(self->comm, "parent") == ZR_OK);
        zr_comm_destroy(&group);
    }
}

static zr_status_t open_device(zr_device_t **device_p) {
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    return zr_device_open("host", &options, device_p);
}

TEST(test_split) {
    static const comm_suite_t suite = {
        .name = "threads in need of memory",
        .create = zr_comm_create_threads,
        .open_device = open_device,
        .close_device = zr_device_close,
    };
    run_ranks(&suite, 7, 60000, split_in_need, NULL);
}
