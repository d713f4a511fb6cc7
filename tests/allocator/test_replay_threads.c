/*
 * The rank's thread marks its steps, which are planned and replayed, while other threads allocate
 * and free what is irregular in the same allocator: persistent tensors, tensors that come and go
 * with their own timing, and frees of what the rank's thread has handed over. ThreadSanitizer
 * watches; contents and counts are right in the end.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "allocator/replay.h"
#include "tests/allocator/fake_device.h"
#include "tests/common/test.h"

#define N_THREADS 3
#define N_SLOTS 12
#define N_TENSORS 24
#define STEPS_OF_SHAPE 40
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_STEPS 150
#else
#define N_STEPS 1500
#endif

typedef struct shared {
    zr_allocator_t *allocator;
    atomic_bool is_over;
    _Atomic(void *) handed_over; /* by the rank's thread, to be freed by another */
    atomic_size_t n_wrong;
} shared_t;

typedef struct worker {
    shared_t *shared;
    pthread_t thread;
    unsigned seed;
} worker_t;

static void *take(shared_t *shared, size_t size_bytes, zr_lifetime_t lifetime, zr_tag_t tag) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = tag,
                                       .lifetime = lifetime,
                                       .name = "shared"};
    void *pointer = NULL;
    zr_status_t status = zr_allocate(shared->allocator, &request, &pointer);
    if (status == ZR_OK)
        memset(pointer, (int)(size_bytes % 251), size_bytes);
    else if (status != ZR_ERR_BUDGET)
        shared->n_wrong++;
    return pointer;
}

static void give(shared_t *shared, void **pointer, size_t size_bytes) {
    const unsigned char *bytes = *pointer;
    if (bytes == NULL)
        return;
    for (size_t i = 0; i < size_bytes; i += 7)
        shared->n_wrong += bytes[i] != size_bytes % 251;
    zr_free(shared->allocator, pointer, NULL);
}

static void *work(void *context) {
    worker_t *worker = context;
    shared_t *shared = worker->shared;
    void *pointers[N_SLOTS] = {NULL};
    size_t sizes[N_SLOTS] = {0};
    for (size_t n = 0; !shared->is_over; n++) {
        int slot = rand_r(&worker->seed) % N_SLOTS;
        if (pointers[slot] != NULL) {
            give(shared, &pointers[slot], sizes[slot]);
        } else {
            sizes[slot] = 1 + (size_t)rand_r(&worker->seed) % 9000;
            /* What is persistent lets the plan be; the others, rarely, come between. */
            bool is_persistent = rand_r(&worker->seed) % 512 != 0;
            pointers[slot] =
                take(shared, sizes[slot], is_persistent ? ZR_LIFETIME_PERSISTENT : ZR_LIFETIME_UNIT,
                     ZR_TAG_OTHER);
        }
        void *other = atomic_exchange(&shared->handed_over, NULL);
        zr_free(shared->allocator, &other, NULL);
        if (n % 64 == 0) {
            zr_replay_statistics_t statistics;
            zr_allocator_replay_statistics(shared->allocator, &statistics);
            shared->n_wrong += statistics.n_clean_steps > statistics.n_steps;
        }
    }
    for (int slot = 0; slot < N_SLOTS; slot++)
        give(shared, &pointers[slot], sizes[slot]);
    return NULL;
}

/* A step of the rank's thread; its shape changes now and then, so that it is planned again. */
static void run_step(shared_t *shared, size_t step) {
    void *pointers[N_TENSORS] = {NULL};
    size_t shape = step / STEPS_OF_SHAPE % 3;
    for (size_t segment = 0; segment < 4; segment++) {
        zr_allocator_mark(shared->allocator,
                          &(zr_mark_t){.step = step, .micro_batch = 1, .unit = segment});
        for (size_t i = segment; i < N_TENSORS; i += 4)
            pointers[i] = take(shared, 100 + 333 * i + 1000 * shape, ZR_LIFETIME_MICRO_BATCH,
                               (zr_tag_t)(i % ZR_N_TAGS));
        for (size_t i = segment; i < N_TENSORS; i += 8)
            give(shared, &pointers[i], 100 + 333 * i + 1000 * shape);
    }
    void *last = pointers[N_TENSORS - 1];
    pointers[N_TENSORS - 1] = NULL;
    if (step % 3 == 0)
        last = atomic_exchange(&shared->handed_over, last);
    zr_free(shared->allocator, &last, NULL);
    for (size_t i = 0; i < N_TENSORS; i++)
        give(shared, &pointers[i], 100 + 333 * i + 1000 * shape);
}

static void start(shared_t *shared, worker_t *workers) {
    for (int i = 0; i < N_THREADS; i++) {
        workers[i] = (worker_t){.shared = shared, .seed = (unsigned)i + 1};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
}

/* The others come when the first two shapes have been planned: how much of the steps is by plan
 * from then on is theirs to say. */
static void run(shared_t *shared, worker_t *workers) {
    zr_replay_statistics_t statistics;
    for (size_t step = 1; step <= N_STEPS; step++) {
        if (step == STEPS_OF_SHAPE + 2)
            start(shared, workers);
        run_step(shared, step);
        if (step % 50 == 0)
            assert_true(zr_allocator_is_valid(shared->allocator));
        if (step % 64 == 0)
            assert_ok(zr_allocator_trim(shared->allocator, ZR_TIER_DEVICE));
    }
    zr_allocator_replay_statistics(shared->allocator, &statistics);
    assert_int_equal(statistics.n_steps, N_STEPS - 1);
    assert_true(statistics.n_planned > 0 && statistics.n_plans > 1);
}

static void check(size_t budget_bytes) {
    fake_t *fake = fake_open(4096, false);
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = fake_log(fake);
    options.budget_bytes[ZR_TIER_DEVICE] = options.budget_bytes[ZR_TIER_HOST] = budget_bytes;
    shared_t shared = {0};
    assert_ok(zr_allocator_create(fake->device, &options, &shared.allocator));
    zr_replay_options_t how = zr_replay_options_default();
    how.search_seconds = 1;
    assert_ok(zr_allocator_replay_start(shared.allocator, &how));
    worker_t workers[N_THREADS] = {{0}};
    run(&shared, workers);
    shared.is_over = true;
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    void *left = shared.handed_over;
    zr_free(shared.allocator, &left, NULL);
    assert_int_equal(shared.n_wrong, 0);
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(shared.allocator, ZR_TIER_DEVICE, &statistics);
    assert_int_equal(statistics.n_live, 0);
    assert_int_equal(statistics.live.live, 0);
    assert_true(statistics.reserved.peak <= statistics.budget_bytes);
    assert_true(zr_allocator_is_valid(shared.allocator));
    fake_log_clear(fake);
    zr_allocator_destroy(&shared.allocator);
    assert_string_equal(fake->text, "");
    fake_close(fake);
}

TEST(test_others_allocate_beside_replay) {
    check((size_t)4 << 20);
}

/* The plan is dropped again and again, for others or for itself. */
TEST(test_others_need_the_memory) {
    check(350000);
}
