/*
 * From the tape of a step to a plan: which allocations have a place, where it is, and for what
 * the streams have to wait before they use it.
 */
#include <string.h>

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
            made->streams |= 1u << from->kind.stream | 1u << zr_replay_last_stream(from);
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

/*
 * When a place may be given to another. What another stream than compute frees is kept to the end
 * of the segment after that of the free: the next unit then computes while, say, the gradients of
 * this one are still being reduced.
 */
static int64_t end_of_life(const zr_tape_t *tape, const zr_tape_entry_t *entry,
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
        int64_t upper = end_of_life(&made->tape, life, planning);
        buffers[n++] = (zr_plan_buffer_t){.lower = life->lower,
                                          .upper = upper > life->upper ? upper : life->upper,
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

/* ---- predecessors ------------------------------------------------------------------------ */

/* Addresses, and who had them last. */
typedef struct stretch {
    size_t begin, end;
    uint32_t entry;
} stretch_t;

#define BOX_STRETCHES 64

/* Neighbours: adding one moves no more than a box has. */
typedef struct box {
    size_t n; /* > 0 */
    stretch_t stretches[BOX_STRETCHES];
} box_t;

/* A stretch; behind all: box n_boxes, index 0. */
typedef struct position {
    size_t box, index;
} position_t;

typedef struct occupants {
    zr_heap_t *heap;
    box_t **boxes; /* by address; stretches do not overlap */
    size_t n_boxes, box_capacity;
    uint32_t *successors; /* of each entry, the last that has it for a predecessor, + 1 */
    size_t capacity;      /* of the plan's predecessors */
} occupants_t;

static bool add_predecessor(zr_replay_made_t *made, occupants_t *occupants, uint32_t entry,
                            uint32_t of) {
    zr_replay_entry_t *successor = &made->entries[of], *before = &made->entries[entry];
    if (occupants->successors[entry] == of + 1)
        return true; /* another piece of the same */
    occupants->successors[entry] = of + 1;
    if (!zr_heap_make_room(made->shared.heap, &made->predecessors, made->n_predecessors,
                           &occupants->capacity, sizeof(*made->predecessors)))
        return false;
    made->predecessors[made->n_predecessors++] = entry;
    successor->n_predecessors++;
    if (zr_replay_last_stream(&made->tape.entries[entry]) != made->tape.entries[of].kind.stream &&
        before->awaited == 0)
        before->awaited = (uint32_t)++made->n_awaited;
    return true;
}

static stretch_t *stretch_at(const occupants_t *occupants, position_t at) {
    return at.box < occupants->n_boxes ? &occupants->boxes[at.box]->stretches[at.index] : NULL;
}

static position_t behind(const occupants_t *occupants, position_t at) {
    bool is_last = at.index + 1 == occupants->boxes[at.box]->n;
    return is_last ? (position_t){at.box + 1, 0} : (position_t){at.box, at.index + 1};
}

/* The first stretch that ends above an address. */
static position_t first_above(const occupants_t *occupants, size_t address) {
    position_t at = {0};
    for (size_t high = occupants->n_boxes; at.box < high;) {
        size_t middle = at.box + (high - at.box) / 2;
        const box_t *box = occupants->boxes[middle];
        if (box->stretches[box->n - 1].end > address)
            high = middle;
        else
            at.box = middle + 1;
    }
    while (at.box < occupants->n_boxes && stretch_at(occupants, at)->end <= address)
        at.index++;
    return at;
}

/* A box with nothing in it; NULL: no memory. */
static box_t *add_box(occupants_t *occupants, size_t at) {
    if (!zr_heap_make_room(occupants->heap, &occupants->boxes, occupants->n_boxes,
                           &occupants->box_capacity, sizeof(*occupants->boxes)))
        return NULL;
    box_t *box = zr_heap_alloc(occupants->heap, 1, sizeof(*box));
    if (box == NULL)
        return NULL;
    memmove(occupants->boxes + at + 1, occupants->boxes + at,
            (occupants->n_boxes - at) * sizeof(*occupants->boxes));
    occupants->boxes[at] = box;
    occupants->n_boxes++;
    return box;
}

/* The second half of a full box gets one of its own. */
static bool halve(occupants_t *occupants, position_t *at) {
    box_t *second = add_box(occupants, at->box + 1), *box = occupants->boxes[at->box];
    if (second == NULL)
        return false;
    box->n = BOX_STRETCHES / 2;
    second->n = BOX_STRETCHES - box->n;
    memcpy(second->stretches, box->stretches + box->n, second->n * sizeof(*second->stretches));
    if (at->index > box->n)
        *at = (position_t){at->box + 1, at->index - box->n};
    return true;
}

/* Before a position, which becomes the new stretch's. */
static bool add_stretch(occupants_t *occupants, position_t *at, stretch_t stretch) {
    if (at->index == 0 && at->box > 0) /* at the end of the box before */
        *at = (position_t){at->box - 1, occupants->boxes[at->box - 1]->n};
    if (occupants->n_boxes == 0 && add_box(occupants, 0) == NULL)
        return false;
    if (occupants->boxes[at->box]->n == BOX_STRETCHES && !halve(occupants, at))
        return false;
    box_t *box = occupants->boxes[at->box];
    stretch_t *own = &box->stretches[at->index];
    memmove(own + 1, own, (box->n++ - at->index) * sizeof(*own));
    *own = stretch;
    return true;
}

/* The position is that of the next afterwards. */
static void drop_stretch(occupants_t *occupants, position_t *at) {
    box_t *box = occupants->boxes[at->box];
    stretch_t *own = &box->stretches[at->index];
    memmove(own, own + 1, (--box->n - at->index) * sizeof(*own));
    if (box->n == 0) {
        zr_heap_free(occupants->heap, box);
        occupants->n_boxes--;
        memmove(occupants->boxes + at->box, occupants->boxes + at->box + 1,
                (occupants->n_boxes - at->box) * sizeof(*occupants->boxes));
    } else if (at->index == box->n) {
        *at = (position_t){at->box + 1, 0};
    }
}

/* Cut what a place covers off a stretch that it meets; the position is that of the next. */
static bool cut(occupants_t *occupants, const stretch_t *place, position_t *at) {
    stretch_t *stretch = stretch_at(occupants, *at);
    const stretch_t above = {place->end, stretch->end, stretch->entry};
    if (stretch->begin >= place->begin && stretch->end <= place->end) {
        drop_stretch(occupants, at);
        return true;
    }
    if (stretch->begin >= place->begin) {
        stretch->begin = place->end;
        return true;
    }
    stretch->end = place->begin;
    *at = behind(occupants, *at);
    return above.end <= above.begin || add_stretch(occupants, at, above);
}

/* Whoever had an entry's place comes before it, and has it no more. */
static bool place_entry(zr_replay_made_t *made, occupants_t *occupants, uint32_t index) {
    zr_replay_entry_t *entry = &made->entries[index];
    size_t block_bytes = made->tape.entries[index].block_bytes, covered = 0;
    const stretch_t place = {entry->offset_bytes, entry->offset_bytes + block_bytes, index};
    position_t at = first_above(occupants, place.begin);
    entry->first_predecessor = (uint32_t)made->n_predecessors;
    for (const stretch_t *stretch = stretch_at(occupants, at);
         stretch != NULL && stretch->begin < place.end; stretch = stretch_at(occupants, at)) {
        size_t begin = stretch->begin > place.begin ? stretch->begin : place.begin;
        size_t end = stretch->end < place.end ? stretch->end : place.end;
        covered += end - begin;
        if (!add_predecessor(made, occupants, stretch->entry, index) ||
            !cut(occupants, &place, &at))
            return false;
    }
    entry->is_first = covered < block_bytes;
    return add_stretch(occupants, &at, place);
}

/* Entries stand in the order of allocation. */
static zr_status_t find_predecessors(zr_replay_made_t *made, zr_tier_t tier) {
    zr_heap_t *heap = made->shared.heap;
    occupants_t occupants = {.heap = heap, .capacity = made->n_predecessors};
    occupants.successors = zr_heap_alloc(heap, made->n_entries, sizeof(*occupants.successors));
    bool found = occupants.successors != NULL;
    for (size_t i = 0; found && i < made->n_entries; i++) {
        if (made->entries[i].is_planned && made->tape.entries[i].kind.tier == tier)
            found = place_entry(made, &occupants, (uint32_t)i);
    }
    for (size_t i = 0; i < occupants.n_boxes; i++)
        zr_heap_free(heap, occupants.boxes[i]);
    zr_heap_free(heap, occupants.boxes);
    zr_heap_free(heap, occupants.successors);
    return found ? ZR_OK : ZR_ERR_MEMORY;
}

/* ---- the plan -------------------------------------------------------------------------- */

static zr_status_t fill(zr_replay_made_t *made, const zr_replay_planning_t *planning) {
    ZR_TRY(make_line(made, planning->is_synchronous));
    for (int tier = 0; tier < ZR_REPLAY_N_TIERS; tier++) {
        ZR_TRY(plan_tier(made, planning, (zr_tier_t)tier));
        if (!planning->is_synchronous)
            ZR_TRY(find_predecessors(made, (zr_tier_t)tier));
    }
    return ZR_OK;
}

static bool is_same_plan(const zr_shared_t *a, const zr_shared_t *b) {
    const zr_replay_made_t *x = (const zr_replay_made_t *)a, *y = (const zr_replay_made_t *)b;
    return x->planning.compute == y->planning.compute &&
           x->planning.is_synchronous == y->planning.is_synchronous &&
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
