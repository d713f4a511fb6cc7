/*
 * What is done when no mapped hole fits, in this order: map more within the budget, wait for
 * pending frees, move idle granules to where they are needed, and only then refuse.
 *
 * Each step ends with another look. There is an end to it: a step that maps or moves makes the best
 * place cheaper by as much, a wait has fewer frees to wait for, memory that a move has lost is not
 * idle any more, and what can be done without such progress is done once per attempt.
 */
#include "allocator/internal.h"
#include "allocator/replay_search_internal.h"

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t process_live(const zr_allocator_t *allocator) {
    const zr_replay_t *replay = allocator->replay;
    size_t live_bytes = zr_heap_count(allocator->heap).bytes +
                        zr_replay_search_bytes(replay != NULL ? replay->search : NULL);
    for (int i = 0; i < ZR_N_MEMORY_TIERS; i++)
        if (allocator->tiers[i].is_of_process)
            live_bytes += allocator->tiers[i].statistics.reserved.live;
    return live_bytes;
}

/* Tables may have come to more than what is left. */
size_t zr_process_headroom(const zr_allocator_t *allocator) {
    size_t live_bytes =
        allocator->process_bytes != ZR_NO_BUDGET ? process_live(allocator) : 0;
    return allocator->process_bytes - min_size(live_bytes, allocator->process_bytes);
}

static size_t budget_headroom(const zr_tier_memory_t *memory) {
    return memory->statistics.budget_bytes - memory->statistics.reserved.live;
}

bool zr_process_is_tighter(const zr_allocator_t *allocator, const zr_tier_memory_t *memory) {
    return memory->is_of_process && zr_process_headroom(allocator) < budget_headroom(memory);
}

size_t zr_tier_headroom(const zr_allocator_t *allocator, const zr_tier_memory_t *memory) {
    return zr_process_is_tighter(allocator, memory) ? zr_process_headroom(allocator)
                                                    : budget_headroom(memory);
}

/* A block becomes part of a hole. */
void zr_tier_give(zr_block_t *block) {
    if (block->arena->recording != NULL)
        zr_recording_ended(block->arena->recording, block);
    zr_arena_give(block->arena, block);
}

static void end_pending(zr_tier_memory_t *memory, zr_block_t *block) {
    memory->statistics.pending.live -= block->requested_bytes;
    zr_tier_give(block);
}

/* Make blocks free whose events have passed, without waiting. */
zr_status_t zr_tier_poll(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    for (int i = 0; memory->pending.n_blocks > 0 && i < ZR_N_PENDING_QUEUES; i++) {
        for (;;) {
            zr_block_t *block = NULL;
            ZR_TRY(zr_pending_take_passed(&memory->pending, &allocator->events, i,
                                          allocator->replay != NULL, &block));
            if (block == NULL)
                break;
            end_pending(memory, block);
        }
    }
    return ZR_OK;
}

zr_status_t zr_tier_wait(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    zr_block_t *block = NULL;
    ZR_TRY(zr_pending_take_oldest(&memory->pending, &allocator->events, &block));
    if (block != NULL)
        end_pending(memory, block);
    return ZR_OK;
}

zr_status_t zr_tier_settle(zr_allocator_t *allocator, zr_tier_memory_t *memory) {
    while (memory->pending.n_blocks > 0 &&
           zr_pending_oldest(&memory->pending) <= allocator->n_frees_known)
        ZR_TRY(zr_tier_wait(allocator, memory));
    return ZR_OK;
}

zr_status_t zr_tier_trim(zr_tier_memory_t *memory, zr_arena_t *arena) {
    size_t freed_bytes = 0;
    zr_status_t status = zr_arena_trim(arena, &freed_bytes);
    memory->statistics.reserved.live -= freed_bytes;
    return status;
}

/* ---- moving what is idle ------------------------------------------------------------ */

/* Idle bytes of all classes, but for those in a place of one of them. */
static size_t idle_outside(const zr_tier_memory_t *memory, const zr_arena_t *arena,
                           const zr_growth_t *place) {
    size_t idle_bytes = 0;
    for (int i = 0; i < ZR_N_CLASSES; i++) {
        const zr_arena_t *from = &memory->arenas[i];
        idle_bytes += zr_arena_idle_bytes(from, from == arena ? place : NULL);
    }
    return idle_bytes;
}

bool zr_tier_could_fit(const zr_tier_memory_t *memory, const zr_arena_t *arena, size_t size_bytes,
                       size_t allowed_bytes) {
    zr_growth_t place;
    if (zr_arena_find(arena, size_bytes) != NULL)
        return true;
    return zr_arena_plan_afresh(arena, size_bytes, &place) &&
           (place.cost_bytes <= allowed_bytes ||
            place.cost_bytes - allowed_bytes <= idle_outside(memory, arena, &place));
}

/*
 * Move idle granules into a place: those of other classes, the longest lives first because they
 * will be missed last; then those of its own class.
 */
static zr_status_t move_into(zr_attempt_t *attempt, zr_growth_t *place, size_t size_bytes) {
    zr_tier_memory_t *memory = attempt->memory;
    size_t done_bytes = 0;
    for (int i = 0; i <= ZR_N_CLASSES && done_bytes < size_bytes; i++) {
        zr_arena_t *from = i < ZR_N_CLASSES ? &memory->arenas[i] : attempt->arena;
        if (i < ZR_N_CLASSES && from == attempt->arena)
            continue;
        size_t moved_bytes, lost_bytes;
        zr_status_t status = zr_arena_move(attempt->arena, place, from, size_bytes - done_bytes,
                                           &moved_bytes, &lost_bytes);
        done_bytes += moved_bytes;
        memory->statistics.reserved.live -= lost_bytes;
        if (status == ZR_ERR_BUDGET) {
            attempt->is_machine_full = true;
            attempt->has_planned_afresh = false;
            return ZR_OK;
        }
        ZR_TRY(status);
    }
    return ZR_OK;
}

/*
 * Fill a place with idle granules, so far as mapping is not allowed. When there are too few
 * outside of it, some lie in other places of its class, where the plan has put them to use:
 * then all of them count, once, and the place is the one that needs the least of them.
 */
static zr_status_t use_idle(zr_allocator_t *allocator, zr_attempt_t *attempt, zr_growth_t *place,
                            size_t allowed_bytes, bool is_refused) {
    const zr_tier_memory_t *memory = attempt->memory;
    size_t missing_bytes = place->cost_bytes - allowed_bytes;
    size_t idle_bytes = idle_outside(memory, attempt->arena, place);
    if (idle_bytes >= missing_bytes || (idle_bytes > 0 && (is_refused || attempt->is_frugal)))
        return move_into(attempt, place, min_size(missing_bytes, idle_bytes));
    if (attempt->is_frugal) {
        attempt->is_frugal = zr_replay_yield(allocator, attempt->request);
        return ZR_OK;
    }
    zr_growth_t other;
    if (!zr_arena_plan_afresh(attempt->arena, attempt->size_bytes, &other))
        return ZR_ERR_BUDGET;
    missing_bytes = other.cost_bytes - min_size(other.cost_bytes, allowed_bytes);
    idle_bytes = idle_outside(memory, attempt->arena, &other);
    bool is_enough = idle_bytes >= missing_bytes;
    attempt->missing_bytes = is_enough ? missing_bytes : missing_bytes - idle_bytes;
    if (attempt->has_planned_afresh || idle_bytes == 0 || !(is_enough || is_refused))
        return ZR_ERR_BUDGET;
    attempt->has_planned_afresh = true;
    return move_into(attempt, &other, min_size(missing_bytes, idle_bytes));
}

/* ---- one step ---------------------------------------------------------------------- */

/* Bytes that may be mapped now: up to the budget, and in frugal mode, before all that is idle is
 * in use, up to what is live at the peak. */
static size_t allowed_bytes_of(const zr_allocator_t *allocator, const zr_attempt_t *attempt) {
    const zr_tier_statistics_t *statistics = &attempt->memory->statistics;
    size_t headroom = zr_tier_headroom(allocator, attempt->memory);
    if (!attempt->is_frugal)
        return headroom;
    size_t limit =
        max_size(statistics->live.peak, statistics->live.live + attempt->request->size_bytes);
    size_t reserved = statistics->reserved.live;
    return min_size(headroom, limit - min_size(limit, reserved));
}

zr_status_t zr_tier_make_room(zr_allocator_t *allocator, zr_attempt_t *attempt) {
    zr_tier_memory_t *memory = attempt->memory;
    zr_growth_t place;
    attempt->missing_bytes = attempt->size_bytes;
    attempt->has_no_addresses = !zr_arena_plan_growth(attempt->arena, attempt->size_bytes, &place);
    size_t allowed_bytes = allowed_bytes_of(allocator, attempt);
    bool is_refused = false;
    if (!attempt->has_no_addresses && place.cost_bytes <= allowed_bytes) {
        zr_status_t status = zr_arena_map(attempt->arena, &place);
        if (status == ZR_OK)
            zr_count_up(&memory->statistics.reserved, place.size_bytes);
        if (status != ZR_ERR_BUDGET)
            return status;
        attempt->is_machine_full = is_refused = true;
        allowed_bytes = 0;
    }
    if (memory->pending.n_blocks > 0)
        return zr_tier_wait(allocator, memory);
    if (attempt->has_no_addresses)
        return ZR_ERR_BUDGET;
    if (place.cost_bytes > zr_tier_headroom(allocator, memory) &&
        zr_process_is_tighter(allocator, memory) && zr_replay_end_search(allocator->replay))
        return ZR_OK;
    return use_idle(allocator, attempt, &place, allowed_bytes, is_refused);
}
