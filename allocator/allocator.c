/*
 * Allocating and freeing: the counts, the table of live blocks, and what is done under
 * pressure, over one arena per lifetime class and tier.
 */
#include <assert.h>
#include <unistd.h>

#include "allocator/heap_internal.h"
#include "allocator/internal.h"

/*
 * Addresses of a class: several times what it may hold, so that holes in one place never
 * keep a large piece from another. Addresses cost nothing, but a process has only 2^47 of
 * them, and all ranks of a process share those: beyond USUAL a class gets no more than it
 * may hold. ThreadSanitizer leaves a process 2^40, and ends it when it takes others.
 */
#define RANGE_FACTOR 4
#if defined(__SANITIZE_THREAD__)
#define USUAL_RANGE_BYTES ((size_t)4 << 30)
#define MAX_RANGE_BYTES ((size_t)4 << 30)
#else
#define USUAL_RANGE_BYTES ((size_t)256 << 30)
#define MAX_RANGE_BYTES ((size_t)1 << 44)
#endif
/* What is still worth having when addresses are scarce. */
#define MIN_RANGE_BYTES ((size_t)1 << 30)
#define PLACES_FACTOR UINT64_C(0x9e3779b97f4a7c15) /* odd, its bits mixed */
#define SLACK_GRANULES 64
#define EMPTY_RANGE_BYTES ((size_t)64 << 20)

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* ---- creation ------------------------------------------------------------------------- */

zr_allocator_options_t zr_allocator_options_default(void) {
    zr_allocator_options_t options = {.log = zr_log_default()};
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        options.budget_bytes[tier] = ZR_NO_BUDGET;
    options.process_bytes = ZR_NO_BUDGET;
    return options;
}

/* What a tier may come to hold: what the machine has, or the budget where that is less. */
static size_t tier_capacity(const zr_device_info_t *info, zr_tier_t tier, size_t budget_bytes) {
    size_t machine_bytes = info->memory_bytes;
    long n_pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (tier == ZR_TIER_HOST && info->host_memory_bytes != 0)
        machine_bytes = info->host_memory_bytes;
    else if (tier == ZR_TIER_HOST && n_pages > 0 && page_bytes > 0)
        machine_bytes = max_size(machine_bytes, (size_t)n_pages * (size_t)page_bytes);
    return min_size(min_size(budget_bytes, machine_bytes), MAX_RANGE_BYTES);
}

static size_t whole_granules(size_t size_bytes, size_t granule_bytes) {
    return (size_bytes + granule_bytes - 1) & ~(granule_bytes - 1);
}

static zr_status_t init_arenas(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    const zr_device_info_t *info = zr_device_info(allocator->device);
    size_t granule = info->granule_bytes, slack = SLACK_GRANULES * granule;
    size_t capacity = tier_capacity(info, memory->tier, memory->statistics.budget_bytes);
    size_t usual = max_size(capacity, min_size(RANGE_FACTOR * capacity, USUAL_RANGE_BYTES));
    size_t size = whole_granules(usual + slack, granule);
    size_t least = whole_granules(min_size(capacity, MIN_RANGE_BYTES) + slack, granule);
    for (int i = 0; i < ZR_N_CLASSES; i++) {
        ZR_TRY(zr_arena_init(&memory->arenas[i], allocator->device, &allocator->pool, memory->tier,
                             zr_class_name(i), true, size, least));
        memory->arenas[i].class_index = i;
    }
    size = whole_granules(EMPTY_RANGE_BYTES, granule);
    return zr_arena_init(&memory->arenas[ZR_ARENA_EMPTY], allocator->device, &allocator->pool,
                         memory->tier, "empty", false, size, granule);
}

/* A device tells of a range that it does not have in passing, because it is asked for less then. */
static zr_status_t fail_creation(const zr_allocator_t *allocator, const zr_tier_memory_t *memory,
                                 zr_status_t status) {
    if (status != ZR_ERR_BUDGET)
        return status;
    return zr_fail(&allocator->log, ZR_ERR_BUDGET,
                   "%s memory: the process has no address space left for an allocator; give its "
                   "tiers smaller budgets, or run fewer ranks per process",
                   zr_tier_name(memory->tier));
}

static void release(zr_allocator_t *allocator) {
    zr_replay_destroy(allocator);
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++) {
        for (int k = 0; k < ZR_N_ARENAS; k++)
            zr_arena_release_range(&allocator->tiers[i].arenas[k]);
    }
    zr_recording_destroy(&allocator->recording);
    zr_event_pool_clear(&allocator->events);
    pthread_mutex_destroy(&allocator->lock);
    zr_heap_t *heap = allocator->heap;
    zr_heap_destroy(&heap);
}

zr_status_t zr_allocator_create(zr_device_t *device, const zr_allocator_options_t *options,
                                zr_allocator_t **allocator_p) {
    return zr_allocator_create_in(NULL, device, options, allocator_p);
}

zr_status_t zr_allocator_create_in(zr_heap_t *counted_in, zr_device_t *device,
                                   const zr_allocator_options_t *options,
                                   zr_allocator_t **allocator_p) {
    zr_allocator_options_t defaults = zr_allocator_options_default();
    if (options == NULL)
        options = &defaults;
    if (device == NULL || allocator_p == NULL)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "creating an allocator needs a device and an output pointer");

    zr_heap_t *heap = zr_heap_create(counted_in);
    zr_allocator_t *allocator = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*allocator)) : NULL;
    if (allocator == NULL || pthread_mutex_init(&allocator->lock, NULL) != 0) {
        zr_heap_destroy(&heap);
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for an allocator (%zu bytes)",
                       sizeof(*allocator));
    }
    allocator->heap = allocator->pool.heap = allocator->table.heap = allocator->events.heap = heap;
    allocator->device = device;
    const zr_device_info_t *info = zr_device_info(device);
    allocator->is_synchronous = info->synchronous;
    allocator->waits_at_marks = info->computes_on_host && !info->synchronous;
    allocator->log = options->log;
    allocator->advice = options->advice;
    allocator->process_bytes = options->process_bytes;
    allocator->n_sharing = 1;
    allocator->events.device = device;
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++) {
        zr_tier_memory_t *memory = &allocator->tiers[i];
        memory->tier = (zr_tier_t)i;
        memory->statistics.budget_bytes = options->budget_bytes[i];
        memory->is_of_process = i == ZR_TIER_HOST || info->host_addressable;
        zr_status_t status = init_arenas(allocator, memory);
        if (status != ZR_OK) {
            status = fail_creation(allocator, memory, status);
            release(allocator);
            return status;
        }
    }
    *allocator_p = allocator;
    return ZR_OK;
}

zr_heap_t *zr_allocator_heap(const zr_allocator_t *allocator) {
    return allocator->heap;
}

/* ---- counts ---------------------------------------------------------------------------- */

static void count_live(zr_tier_memory_t *memory, const zr_block_t *block) {
    zr_tier_statistics_t *statistics = &memory->statistics;
    if (statistics->live.live + block->requested_bytes > statistics->live.peak)
        memory->is_at_peak = true;
    zr_count_up(&statistics->live, block->requested_bytes);
    zr_count_up(&statistics->by_tag[block->tag], block->requested_bytes);
    zr_count_up(&statistics->by_lifetime[block->lifetime], block->requested_bytes);
    zr_count_up(&block->arena->live, block->requested_bytes);
    statistics->n_live++;
    statistics->n_allocations++;
}

/* Tell the device's recorder what is live now. */
static void trace_live(const zr_allocator_t *allocator, const zr_tier_memory_t *memory,
                       const zr_block_t *block) {
    static const char *const counters[] = {"device memory", "host memory"};
    zr_trace_t *trace = zr_device_trace(allocator->device);
    if (trace == NULL)
        return;
    const zr_tier_statistics_t *statistics = &memory->statistics;
    const char *counter = counters[memory - allocator->tiers];
    double now = zr_device_now(allocator->device);
    zr_trace_count(trace, now, counter, NULL, statistics->live.live);
    zr_trace_count(trace, now, counter, zr_tag_name(block->tag),
                   statistics->by_tag[block->tag].live);
}

/* What was live and what was free when live reached its peak: to be called before anything is freed
 * after it. */
static void note_peak(zr_tier_memory_t *memory) {
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        memory->statistics.at_peak[tag] = memory->statistics.by_tag[tag].live;
    for (int i = 0; i < ZR_N_CLASSES; i++)
        memory->statistics.by_class[i].largest_hole_bytes =
            zr_arena_largest_hole(&memory->arenas[i]);
    memory->is_at_peak = false;
}

static void count_freed(zr_tier_memory_t *memory, const zr_block_t *block) {
    zr_tier_statistics_t *statistics = &memory->statistics;
    if (memory->is_at_peak)
        note_peak(memory);
    statistics->live.live -= block->requested_bytes;
    statistics->by_tag[block->tag].live -= block->requested_bytes;
    statistics->by_lifetime[block->lifetime].live -= block->requested_bytes;
    block->arena->live.live -= block->requested_bytes;
    statistics->n_live--;
}

/* ---- allocating -------------------------------------------------------------------------- */

static zr_status_t find_or_make_room(zr_allocator_t *allocator, zr_attempt_t *attempt,
                                     zr_block_t **block_p) {
    bool settles = allocator->waits_at_marks && allocator->is_marked;
    if (attempt->memory->pending.n_blocks > 0 && !settles)
        ZR_TRY(zr_tier_poll(allocator, attempt->memory));
    for (;;) {
        ZR_TRY(zr_block_pool_reserve(&allocator->pool, ZR_BLOCKS_PER_STEP));
        *block_p = zr_arena_find(attempt->arena, attempt->size_bytes);
        if (*block_p != NULL)
            return ZR_OK;
        zr_status_t status = zr_tier_make_room(allocator, attempt);
        if (status == ZR_ERR_BUDGET && zr_replay_drop(allocator)) {
            attempt->is_frugal = allocator->is_frugal; /* anew, with what the plan had */
            attempt->is_machine_full = attempt->has_planned_afresh = false;
            continue;
        }
        ZR_TRY(status);
    }
}

/* A live block for the request: its place in the plan, or else the best fit in its class. */
static zr_status_t place(zr_allocator_t *allocator, zr_attempt_t *attempt, zr_block_t **block_p) {
    const zr_allocation_request_t *request = attempt->request;
    zr_block_t *block = NULL;
    ZR_TRY(zr_block_table_reserve(&allocator->table));
    if (allocator->replay != NULL && zr_replay_covers(request))
        ZR_TRY(zr_replay_take(allocator, request, attempt->size_bytes, &block));
    if (block == NULL) {
        ZR_TRY(find_or_make_room(allocator, attempt, &block));
        zr_arena_take(attempt->arena, block, attempt->size_bytes, request->size_bytes);
    }
    *block_p = block;
    return ZR_OK;
}

static void *hand_out(zr_allocator_t *allocator, const zr_attempt_t *attempt, zr_block_t *block) {
    const zr_allocation_request_t *request = attempt->request;
    block->tag = request->tag;
    block->lifetime = request->lifetime;
    void *pointer = block->arena->base + block->offset_bytes;
    zr_block_table_add(&allocator->table, pointer, block);
    allocator->places = (allocator->places ^ block->offset_bytes) * PLACES_FACTOR + block->lifetime;
    count_live(attempt->memory, block);
    trace_live(allocator, attempt->memory, block);
    if (allocator->replay != NULL && zr_replay_covers(request))
        zr_replay_allocated(allocator->replay, request, block);
    return pointer;
}

static zr_status_t check_request(const zr_allocator_t *allocator,
                                 const zr_allocation_request_t *request, void **pointer_p) {
    if (request == NULL || pointer_p == NULL)
        return zr_fail(&allocator->log, ZR_ERR_ARGUMENT,
                       "allocating needs a request and an output pointer");
    if ((unsigned)request->tier >= ZR_N_MEMORY_TIERS)
        return zr_fail(&allocator->log, ZR_ERR_ARGUMENT,
                       "allocating \"%s\": tier %d has no addresses; only device and host have",
                       zr_request_name(request), (int)request->tier);
    if ((unsigned)request->tag >= ZR_N_TAGS || (unsigned)request->lifetime >= ZR_N_LIFETIMES)
        return zr_fail(&allocator->log, ZR_ERR_ARGUMENT,
                       "allocating \"%s\": tag %d (0 to %d) or lifetime %d (0 to %d) is unknown",
                       zr_request_name(request), (int)request->tag, ZR_N_TAGS - 1,
                       (int)request->lifetime, ZR_N_LIFETIMES - 1);
    return ZR_OK;
}

/* Log a refusal, without the lock: the sink is the caller's. The device keeps the words for ranks
 * that wait for a collective which needs the memory. text: [ZR_REPORT_BYTES], of the budget. */
static zr_status_t refuse(const zr_allocator_t *allocator, const zr_allocation_request_t *request,
                          zr_status_t status, char *text) {
    if (status != ZR_ERR_BUDGET && status != ZR_ERR_MEMORY)
        return status; /* the device has logged it */
    if (status == ZR_ERR_MEMORY)
        snprintf(text, ZR_REPORT_BYTES,
                 "%s memory: %s for \"%s\": the system has no memory for metadata",
                 zr_tier_name(request->tier), zr_count_text(request->size_bytes, "byte").text,
                 zr_request_name(request));
    zr_device_note_error(allocator->device, text);
    return zr_fail(&allocator->log, status, "%s", text);
}

/* True when the recording has just failed: to be said without the lock. */
static bool record_allocation(zr_allocator_t *allocator, zr_block_t *block,
                              const zr_allocation_request_t *request) {
    zr_recording_allocated(allocator->recording, block, request->name);
    return zr_recording_take_failure(allocator->recording);
}

static void warn_of_recording(const zr_allocator_t *allocator) {
    zr_log_write(&allocator->log, ZR_LOG_WARNING,
                 "recording of allocations ended early: out of memory, or its limit is reached "
                 "(%zu MiB by default); allocations still work",
                 ZR_RECORDING_MAX_BYTES >> 20);
}

zr_status_t zr_allocate(zr_allocator_t *allocator, const zr_allocation_request_t *request,
                        void **pointer_p) {
    ZR_TRY(check_request(allocator, request, pointer_p));
    zr_tier_memory_t *memory = &allocator->tiers[request->tier];
    int arena = request->size_bytes == 0 ? ZR_ARENA_EMPTY : (int)request->lifetime;
    zr_attempt_t attempt = {.request = request,
                            .memory = memory,
                            .arena = &memory->arenas[arena],
                            .size_bytes = zr_block_bytes(request->size_bytes)};

    pthread_mutex_lock(&allocator->lock);
    attempt.is_frugal = allocator->is_frugal;
    zr_block_t *block = NULL;
    zr_status_t status = place(allocator, &attempt, &block);
    if (status == ZR_OK) {
        *pointer_p = hand_out(allocator, &attempt, block);
        bool has_failed =
            allocator->recording != NULL && record_allocation(allocator, block, request);
        pthread_mutex_unlock(&allocator->lock);
        if (has_failed)
            warn_of_recording(allocator);
        return ZR_OK;
    }
    char text[ZR_REPORT_BYTES];
    memory->statistics.n_refused += status == ZR_ERR_BUDGET;
    if (status == ZR_ERR_BUDGET)
        zr_report_out_of_memory(allocator, &attempt, text, sizeof(text));
    pthread_mutex_unlock(&allocator->lock);
    return refuse(allocator, request, status, text);
}

uint64_t zr_allocator_take_places(zr_allocator_t *allocator) {
    pthread_mutex_lock(&allocator->lock);
    uint64_t places = allocator->places;
    allocator->places = 0;
    pthread_mutex_unlock(&allocator->lock);
    return places;
}

/* ---- freeing ------------------------------------------------------------------------------ */

static zr_tier_memory_t *memory_of(zr_allocator_t *allocator, const zr_block_t *block) {
    return &allocator->tiers[block->arena->tier];
}

/* Let the block wait for the stream; without an event, wait here. Never loses the block. */
static zr_status_t free_after(zr_allocator_t *allocator, zr_tier_memory_t *memory,
                              zr_block_t *block, zr_stream_t *stream) {
    size_t requested_bytes = block->requested_bytes;
    zr_status_t status =
        zr_pending_push(&memory->pending, &allocator->events, block, stream, ++allocator->n_frees);
    if (status == ZR_OK) {
        zr_count_up(&memory->statistics.pending, requested_bytes);
        return ZR_OK;
    }
    /* Work that failed never runs again, so that the memory is free either way. */
    zr_status_t waited = zr_stream_synchronize(stream);
    zr_tier_give(block);
    return waited == ZR_OK ? status : waited;
}

static zr_status_t give_back(zr_allocator_t *allocator, zr_tier_memory_t *memory, zr_block_t *block,
                             zr_stream_t *stream) {
    if (block->planned != 0)
        return zr_replay_give(allocator, block, stream);
    if (stream != NULL && !allocator->is_synchronous && !zr_stream_is_synchronous(stream))
        return free_after(allocator, memory, block, stream);
    zr_tier_give(block);
    return ZR_OK;
}

void zr_free(zr_allocator_t *allocator, void **pointer, zr_stream_t *stream) {
    if (pointer == NULL || *pointer == NULL)
        return;
    pthread_mutex_lock(&allocator->lock);
    zr_block_t *block = zr_block_table_remove(&allocator->table, *pointer);
    if (block == NULL) {
        pthread_mutex_unlock(&allocator->lock);
        zr_log_write(&allocator->log, ZR_LOG_ERROR,
                     "freeing %p, which is not live: freed before, or never allocated here",
                     *pointer);
        return;
    }
    zr_tier_memory_t *memory = memory_of(allocator, block);
    count_freed(memory, block);
    trace_live(allocator, memory, block);
    if (allocator->recording != NULL)
        zr_recording_freed(allocator->recording, block, stream);
    if (allocator->replay != NULL)
        zr_replay_freed(allocator->replay, block, stream);
    zr_status_t status = give_back(allocator, memory, block, stream);
    pthread_mutex_unlock(&allocator->lock);
    if (status != ZR_OK)
        zr_log_write(&allocator->log, ZR_LOG_WARNING,
                     "%s memory: cannot create an event for the free of %p (%s); waited for its "
                     "stream instead",
                     zr_tier_name(memory->tier), *pointer, zr_status_name(status));
    *pointer = NULL;
}

zr_status_t zr_allocator_trim(zr_allocator_t *allocator, zr_tier_t tier) {
    if ((unsigned)tier >= ZR_N_MEMORY_TIERS)
        return zr_fail(&allocator->log, ZR_ERR_ARGUMENT,
                       "trimming tier %d, which has no addresses; only device and host have",
                       (int)tier);
    zr_tier_memory_t *memory = &allocator->tiers[tier];
    pthread_mutex_lock(&allocator->lock);
    zr_status_t status = zr_tier_poll(allocator, memory);
    for (int i = 0; status == ZR_OK && i < ZR_N_CLASSES; i++)
        status = zr_tier_trim(memory, &memory->arenas[i]);
    pthread_mutex_unlock(&allocator->lock);
    if (status == ZR_ERR_MEMORY)
        return zr_fail(&allocator->log, status, "%s memory: no metadata to unmap idle memory with",
                       zr_tier_name(tier));
    return status;
}

/* ---- statistics ----------------------------------------------------------------------------- */

size_t zr_allocator_count_pinned(zr_allocator_t *allocator, size_t before, size_t now) {
    zr_byte_count_t *pinned = &allocator->tiers[ZR_TIER_HOST].statistics.pinned;
    pthread_mutex_lock(&allocator->lock);
    pinned->live += now - before;
    if (pinned->live > pinned->peak)
        pinned->peak = pinned->live;
    size_t live = pinned->live;
    pthread_mutex_unlock(&allocator->lock);
    return live;
}

void zr_allocator_statistics(zr_allocator_t *allocator, zr_tier_t tier,
                             zr_tier_statistics_t *statistics_p) {
    *statistics_p = (zr_tier_statistics_t){0};
    if ((unsigned)tier >= ZR_N_MEMORY_TIERS)
        return;
    zr_tier_memory_t *memory = &allocator->tiers[tier];
    pthread_mutex_lock(&allocator->lock);
    if (memory->is_at_peak) {
        note_peak(memory);
        memory->is_at_peak = true;
    }
    *statistics_p = memory->statistics;
    if (tier == ZR_TIER_HOST && !zr_device_info(allocator->device)->host_addressable)
        statistics_p->pinned = memory->statistics.reserved;
    for (int i = 0; i < ZR_N_CLASSES; i++) {
        const zr_arena_t *arena = &memory->arenas[i];
        statistics_p->by_class[i].live = arena->live;
        statistics_p->by_class[i].reserved =
            (zr_byte_count_t){arena->mapped_bytes, arena->mapped_peak_bytes};
    }
    for (int i = 0; i < ZR_N_ARENAS; i++) {
        statistics_p->n_map_calls += memory->arenas[i].n_map_calls;
        statistics_p->n_unmap_calls += memory->arenas[i].n_unmap_calls;
        statistics_p->n_move_calls += memory->arenas[i].n_move_calls;
    }
    pthread_mutex_unlock(&allocator->lock);
}

void zr_allocator_reset_peaks(zr_allocator_t *allocator) {
    pthread_mutex_lock(&allocator->lock);
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++) {
        zr_tier_statistics_t *statistics = &allocator->tiers[i].statistics;
        statistics->live.peak = statistics->live.live;
        allocator->tiers[i].is_at_peak = true;
        statistics->reserved.peak = statistics->reserved.live;
        statistics->pending.peak = statistics->pending.live;
        statistics->pinned.peak = statistics->pinned.live;
        for (int k = 0; k < ZR_N_TAGS; k++)
            statistics->by_tag[k].peak = statistics->by_tag[k].live;
        for (int k = 0; k < ZR_N_LIFETIMES; k++)
            statistics->by_lifetime[k].peak = statistics->by_lifetime[k].live;
        for (int k = 0; k < ZR_N_CLASSES; k++) {
            zr_arena_t *arena = &allocator->tiers[i].arenas[k];
            arena->mapped_peak_bytes = arena->mapped_bytes;
            arena->live.peak = arena->live.live;
        }
    }
    pthread_mutex_unlock(&allocator->lock);
}

bool zr_allocator_is_valid(zr_allocator_t *allocator) {
    pthread_mutex_lock(&allocator->lock);
    bool is_valid = zr_allocator_check(allocator);
    pthread_mutex_unlock(&allocator->lock);
    return is_valid;
}

/* ---- marks ---- */

/* A wait that fails leaves blocks pending: whoever waits for their stream next is told. */
static void settle(zr_allocator_t *allocator) {
    bool goes_on = allocator->waits_at_marks;
    for (int i = 0; goes_on && i < ZR_N_MEMORY_TIERS; i++)
        goes_on = zr_tier_settle(allocator, &allocator->tiers[i]) == ZR_OK;
    allocator->is_marked = true;
    allocator->n_frees_known = allocator->n_frees;
}

void zr_allocator_mark(zr_allocator_t *allocator, const zr_mark_t *mark) {
    pthread_mutex_lock(&allocator->lock);
    settle(allocator);
    if (allocator->recording != NULL)
        zr_recording_mark(allocator->recording, mark->step, mark->micro_batch);
    if (allocator->replay != NULL)
        zr_replay_mark(allocator, mark);
    pthread_mutex_unlock(&allocator->lock);
}

/* ---- destruction ---------------------------------------------------------------------------- */

/* Wait for what is pending. Work that failed never runs again, so its memory may go as well. */
static void drain(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    while (memory->pending.n_blocks > 0) {
        zr_status_t status = zr_tier_wait(allocator, memory);
        if (status == ZR_OK)
            continue;
        zr_log_write(&allocator->log, ZR_LOG_ERROR,
                     "%s memory: destroyed with %s pending on a stream that failed (%s)",
                     zr_tier_name(memory->tier),
                     zr_count_text(memory->pending.n_blocks, "free").text, zr_status_name(status));
        zr_pending_drop(&memory->pending, &allocator->events);
    }
}

void zr_allocator_destroy(zr_allocator_t **allocator) {
    if (allocator == NULL || *allocator == NULL)
        return;
#if defined(ZR_ALLOCATOR_POISON)
    assert(zr_allocator_check(*allocator));
#endif
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++)
        drain(*allocator, &(*allocator)->tiers[i]);
    zr_report_leaks(*allocator);
    zr_allocator_replay_stop(*allocator);
    release(*allocator);
    *allocator = NULL;
}
