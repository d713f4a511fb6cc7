/*
 * One allocator used by several threads at once, as a rank's are: what each thread
 * writes stays its own, and the counts are right in the end. ThreadSanitizer watches.
 */
#include <pthread.h>

#include "allocator/record.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define N_THREADS 4
#define N_SLOTS 24
#define MOST_BYTES 40000
#define BUDGET_BYTES ((size_t)900000) /* of each tier */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPERATIONS 4000
#else
#define N_OPERATIONS 40000
#endif

typedef struct worker {
    zr_allocator_t *allocator;
    pthread_barrier_t *together;
    pthread_t thread;
    unsigned seed;
    size_t n_allocated, n_refused, n_wrong;
} worker_t;

static void allocate(worker_t *worker, void **pointer, size_t size_bytes) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = (zr_tier_t)(rand_r(&worker->seed) % 2),
                                       .tag = (zr_tag_t)(rand_r(&worker->seed) % ZR_N_TAGS),
                                       .lifetime =
                                           (zr_lifetime_t)(rand_r(&worker->seed) % ZR_N_LIFETIMES),
                                       .name = "shared"};
    zr_status_t status = zr_allocate(worker->allocator, &request, pointer);
    worker->n_wrong += status != ZR_OK && status != ZR_ERR_BUDGET;
    worker->n_refused += status != ZR_OK;
    worker->n_allocated += status == ZR_OK;
    if (status == ZR_OK)
        memset(*pointer, (int)(size_bytes % 251), size_bytes);
}

static void take(worker_t *worker, void **pointer, size_t *size) {
    *size = 1 + (size_t)rand_r(&worker->seed) % MOST_BYTES;
    allocate(worker, pointer, *size);
}

static void give(worker_t *worker, void **pointer, size_t size) {
    const unsigned char *bytes = *pointer;
    for (size_t i = 0; i < size; i++)
        worker->n_wrong += bytes[i] != size % 251;
    zr_free(worker->allocator, pointer, NULL);
}

static void give_all(worker_t *worker, void **pointers, const size_t *sizes) {
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (pointers[slot] != NULL)
            give(worker, &pointers[slot], sizes[slot]);
    }
}

/* All threads hold what they got until all have asked, and ask for more than there is: some are
 * refused, whoever runs when. */
static void ask_for_too_much(worker_t *worker, void **pointers, size_t *sizes) {
    for (int slot = 0; slot < N_SLOTS; slot++) {
        sizes[slot] = MOST_BYTES;
        allocate(worker, &pointers[slot], MOST_BYTES);
    }
    pthread_barrier_wait(worker->together);
    give_all(worker, pointers, sizes);
    pthread_barrier_wait(worker->together);
}

static void *work(void *context) {
    worker_t *worker = context;
    void *pointers[N_SLOTS] = {NULL};
    size_t sizes[N_SLOTS];
    ask_for_too_much(worker, pointers, sizes);
    for (int i = 0; i < N_OPERATIONS; i++) {
        int slot = rand_r(&worker->seed) % N_SLOTS;
        if (pointers[slot] == NULL)
            take(worker, &pointers[slot], &sizes[slot]);
        else
            give(worker, &pointers[slot], sizes[slot]);
        if (i % 512 == 0)
            zr_allocator_reset_peaks(worker->allocator);
        if (i % 64 == 0)
            zr_allocator_mark(worker->allocator, &(zr_mark_t){.step = 1, .micro_batch = (size_t)i});
    }
    give_all(worker, pointers, sizes);
    return NULL;
}

/* A recording begins, begins again, and ends, while the others allocate. */
static void record(zr_allocator_t *allocator, int i) {
    zr_recording_t *recording = NULL;
    zr_recording_info_t info;
    if (i % 4 < 2)
        assert_ok(zr_allocator_record_start(allocator, 0));
    if (i % 4 != 3)
        return;
    assert_ok(zr_allocator_record_stop(allocator, &recording));
    zr_recording_info(recording, &info);
    assert_true(info.is_complete);
    for (size_t k = 0; k < info.n_lives; k++) {
        zr_life_t life;
        zr_recording_life(recording, k, &life);
        assert_true(life.lower < life.upper && life.upper <= info.end);
        assert_true(life.lower == 0 || strcmp(life.name, "shared") == 0);
    }
    zr_recording_destroy(&recording);
}

TEST(test_threads_share_an_allocator) {
    fake_t *fake = fake_open(16384, false);
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fake);
    options.budget_bytes[ZR_TIER_DEVICE] = options.budget_bytes[ZR_TIER_HOST] = BUDGET_BYTES;
    zr_allocator_t *allocator = NULL;
    assert_ok(zr_allocator_create(fake->device, &options, &allocator));

    worker_t workers[N_THREADS] = {{0}};
    pthread_barrier_t together;
    assert_int_equal(pthread_barrier_init(&together, NULL, N_THREADS), 0);
    for (int i = 0; i < N_THREADS; i++) {
        workers[i] =
            (worker_t){.allocator = allocator, .together = &together, .seed = (unsigned)i + 1};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 50; i++) {
        assert_true(zr_allocator_is_valid(allocator));
        zr_tier_statistics_t statistics;
        zr_allocator_statistics(allocator, ZR_TIER_DEVICE, &statistics);
        assert_true(statistics.live.live <= statistics.reserved.live);
        assert_true(statistics.reserved.peak <= statistics.budget_bytes);
        assert_ok(zr_allocator_trim(allocator, ZR_TIER_HOST));
        record(allocator, i);
    }
    size_t n_allocated = 0, n_refused = 0;
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].n_wrong, 0);
        n_allocated += workers[i].n_allocated;
        n_refused += workers[i].n_refused;
    }
    pthread_barrier_destroy(&together);
    zr_tier_statistics_t device, host;
    zr_allocator_statistics(allocator, ZR_TIER_DEVICE, &device);
    zr_allocator_statistics(allocator, ZR_TIER_HOST, &host);
    assert_int_equal(device.n_allocations + host.n_allocations, n_allocated);
    assert_int_equal(device.n_live + host.n_live, 0);
    assert_int_equal(device.live.live + host.live.live, 0);
    assert_true(n_allocated > N_OPERATIONS);
    assert_true(n_refused >= N_THREADS * N_SLOTS - 2 * BUDGET_BYTES / MOST_BYTES);
    assert_true(zr_allocator_is_valid(allocator));
    zr_allocator_destroy(&allocator);
    fake_close(fake);
}
