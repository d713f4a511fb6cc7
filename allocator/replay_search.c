/*
 * The thread that searches for a lower plan.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "allocator/replay_search_internal.h"

/* A search has tables as large as what the rest could save, and each rank has its own. */
#define WORTH_SEARCHING 1000 /* parts of a plan, of which one at least may be saved */

struct zr_replay_search {
    zr_heap_t *counts; /* of the search itself; all that it has counts in it */
    pthread_t thread;
    atomic_bool is_cancelled, is_done;
    zr_tape_t tape;
    zr_replay_planning_t planning;
    zr_replay_made_t *made; /* NULL: nothing was found */
};

bool zr_replay_plan_can_improve(const zr_replay_made_t *plan) {
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++) {
        size_t height = plan->summary[tier].height_bytes;
        if (height - plan->summary[tier].bound_bytes > height / WORTH_SEARCHING)
            return true;
    }
    return false;
}

/* One that needs more memory than it may have finds nothing, which is no error. */
static void say_nothing(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

static bool is_cancelled(void *context) {
    zr_replay_search_t *search = context;
    return atomic_load(&search->is_cancelled);
}

static void *run(void *context) {
    zr_replay_search_t *search = context;
    if (zr_replay_plan_make(NULL, &search->tape, &search->planning, &search->made) != ZR_OK)
        search->made = NULL;
    atomic_store(&search->is_done, true);
    return NULL;
}

size_t zr_replay_search_bytes(const zr_replay_search_t *search) {
    return search != NULL ? zr_heap_count(search->counts).bytes : 0;
}

zr_replay_search_t *zr_replay_search_start(const zr_tape_t *tape,
                                           const zr_replay_planning_t *planning, double seconds,
                                           size_t most_bytes) {
    zr_heap_t *counts = zr_heap_create(NULL);
    zr_replay_search_t *search = counts != NULL ? zr_heap_alloc(counts, 1, sizeof(*search)) : NULL;
    zr_heap_t *own = search != NULL ? zr_heap_create(counts) : NULL;
    if (own == NULL)
        goto err_free;
    zr_heap_limit(counts, most_bytes);
    search->counts = counts;
    search->planning = *planning;
    search->planning.search = (zr_plan_options_t){.log = {.sink = say_nothing},
                                                  .max_seconds = seconds,
                                                  .is_cancelled = is_cancelled,
                                                  .context = search};
    if (zr_tape_copy(tape, own, &search->tape) == ZR_OK &&
        pthread_create(&search->thread, NULL, run, search) == 0)
        return search;
err_free:
    zr_heap_destroy(&own);
    zr_heap_destroy(&counts);
    return NULL;
}

bool zr_replay_search_is_done(zr_replay_search_t *search) {
    return atomic_load(&search->is_done);
}

zr_replay_made_t *zr_replay_search_stop(zr_replay_search_t **search, size_t *peak_bytes) {
    if (*search == NULL)
        return NULL;
    atomic_store(&(*search)->is_cancelled, true);
    pthread_join((*search)->thread, NULL);
    zr_replay_made_t *made = (*search)->made;
    if (made != NULL)
        zr_heap_count_alone(made->shared.heap);
    zr_heap_t *counts = (*search)->counts; /* it is in it */
    size_t peak = zr_heap_count(counts).peak;
    *peak_bytes = peak > *peak_bytes ? peak : *peak_bytes;
    zr_heap_destroy(&counts);
    *search = NULL;
    return made;
}
