/*
 * From the tape of a step to a plan: which allocations have a place, and where it is.
 */
#include "allocator/planner_internal.h"
#include "allocator/replay_internal.h"

/* ---- entries and the line of events --------------------------------------------------- */

/* What outlives its step has no place. On a late device the CPU would have to wait for one. */
static bool can_be_planned(const zr_tape_entry_t *entry, bool is_synchronous) {
    if (entry->upper == ZR_TAPE_OPEN)
        return false;
    return is_synchronous ||
           (entry->kind.stream != 0 && entry->kind.stream != ZR_REPLAY_OTHER_STREAM &&
            entry->free_stream != ZR_REPLAY_OTHER_STREAM);
}

static void fill_entries(zr_replay_made_t *made, bool is_synchronous) {
    const zr_tape_t *tape = &made->tape;
    for (size_t i = 0; i < tape->n_entries; i++) {
        const zr_tape_entry_t *from = &tape->entries[i];
        made->entries[i] = (zr_replay_entry_t){.is_planned = can_be_planned(from, is_synchronous)};
        if (made->entries[i].is_planned && !is_synchronous)
            made->streams |= 1u << from->kind.stream | 1u << from->free_stream;
        made->events[from->lower] = (uint32_t)i << 1;
        if (from->upper != ZR_TAPE_OPEN)
            made->events[from->upper] = (uint32_t)i << 1 | 1;
    }
}

static zr_status_t make_line(zr_replay_made_t *made, bool is_synchronous) {
    const zr_tape_t *tape = &made->tape;
    made->entries = zr_heap_alloc(made->shared.heap, tape->n_entries, sizeof(*made->entries));
    made->events = zr_heap_alloc(made->shared.heap, tape->now, sizeof(*made->events));
    if (made->entries == NULL || made->events == NULL)
        return ZR_ERR_MEMORY;
    made->n_entries = tape->n_entries;
    made->n_events = tape->now;
    fill_entries(made, is_synchronous);
    return ZR_OK;
}

/* ---- offsets --------------------------------------------------------------------------- */

uint32_t zr_replay_end_of_life(const zr_tape_t *tape, const zr_tape_entry_t *entry,
                               const zr_replay_planning_t *planning) {
    if (planning->is_synchronous || planning->compute == 0 || entry->free_stream == 0 ||
        entry->free_stream == planning->compute)
        return entry->upper;
    size_t segment = zr_tape_segment_at(tape, entry->upper) + 2;
    return segment < tape->n_segments ? tape->segments[segment].time : tape->now;
}

static void fill_buffers(const zr_replay_made_t *made, const zr_replay_planning_t *planning,
                         zr_tier_t tier, zr_plan_buffer_t *buffers, size_t *n_buffers_p) {
    size_t n = 0;
    for (size_t i = 0; i < made->n_entries; i++) {
        const zr_tape_entry_t *life = &made->tape.entries[i];
        if (!made->entries[i].is_planned || life->kind.tier != tier)
            continue;
        buffers[n++] =
            (zr_plan_buffer_t){.lower = life->lower,
                               .upper = zr_replay_end_of_life(&made->tape, life, planning),
                               .size_bytes = life->block_bytes,
                               .alignment = ZR_BLOCK_ALIGNMENT};
    }
    *n_buffers_p = n;
}

static void take_offsets(zr_replay_made_t *made, zr_tier_t tier, const size_t *offsets) {
    size_t n = 0;
    for (size_t i = 0; i < made->n_entries; i++) {
        zr_replay_entry_t *entry = &made->entries[i];
        if (entry->is_planned && made->tape.entries[i].kind.tier == tier)
            entry->offset_bytes = offsets[n++];
    }
}

static zr_status_t plan_tier(zr_replay_made_t *made, const zr_replay_planning_t *planning,
                             zr_tier_t tier) {
    zr_plan_buffer_t *buffers = zr_heap_alloc(made->shared.heap, made->n_entries, sizeof(*buffers));
    size_t *offsets = zr_heap_alloc(made->shared.heap, made->n_entries, sizeof(*offsets)),
           n_buffers = 0;
    zr_plan_result_t result;
    if (buffers == NULL || offsets == NULL)
        return ZR_ERR_MEMORY;
    fill_buffers(made, planning, tier, buffers, &n_buffers);
    ZR_TRY(zr_plan_offsets_in(made->shared.heap, buffers, n_buffers, &planning->search, offsets,
                              &result));
    take_offsets(made, tier, offsets);
    made->summary[tier] = (zr_replay_plan_t){.n_allocations = n_buffers,
                                             .max_live_bytes = result.max_live_bytes,
                                             .bound_bytes = result.bound_bytes,
                                             .height_bytes = result.height_bytes};
    zr_heap_free(made->shared.heap, buffers);
    zr_heap_free(made->shared.heap, offsets);
    return ZR_OK;
}

/* ---- the plan -------------------------------------------------------------------------- */

static zr_status_t fill(zr_replay_made_t *made, const zr_replay_planning_t *planning) {
    ZR_TRY(make_line(made, planning->is_synchronous));
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++)
        ZR_TRY(plan_tier(made, planning, (zr_tier_t)tier));
    return planning->is_synchronous ? ZR_OK : zr_replay_find_waits(made);
}

static bool is_same_plan(const zr_shared_t *a, const zr_shared_t *b) {
    const zr_replay_made_t *x = (const zr_replay_made_t *)a, *y = (const zr_replay_made_t *)b;
    return x->planning.compute == y->planning.compute &&
           x->planning.is_synchronous == y->planning.is_synchronous &&
           x->planning.is_as_long == y->planning.is_as_long &&
           x->planning.search.max_steps == y->planning.search.max_steps &&
           zr_tape_is_same(&x->tape, &y->tape);
}

zr_status_t zr_replay_plan_make(zr_plan_cache_t *cache, const zr_tape_t *tape,
                                const zr_replay_planning_t *planning, zr_replay_made_t **made_p) {
    zr_heap_t *heap = tape->heap;
    zr_replay_made_t *own = zr_heap_alloc(heap, 1, sizeof(*own));
    if (own == NULL) {
        zr_heap_destroy(&heap);
        return ZR_ERR_MEMORY;
    }
    *own = (zr_replay_made_t){
        .shared = {.heap = heap, .is_same = is_same_plan}, .tape = *tape, .planning = *planning};
    zr_shared_t *shared = zr_shared_take(cache, &own->shared);
    zr_status_t status = shared == &own->shared ? fill(own, planning) : ZR_OK;
    if (shared == &own->shared)
        zr_shared_settle(shared, status == ZR_OK);
    if (status == ZR_OK)
        *made_p = (zr_replay_made_t *)shared;
    if (status != ZR_OK || shared != &own->shared)
        zr_shared_leave(&own->shared);
    return status;
}

void zr_replay_plan_free(zr_replay_made_t **made) {
    zr_shared_leave(*made != NULL ? &(*made)->shared : NULL);
    *made = NULL;
}
