/*
 * A tape: what a step allocated and freed, in order, cut into segments by its marks. It is what
 * replay plans from, and much less than a recording (record.h): it is always on.
 *
 * Time is a counter that each allocation and each free moves by one. Some times may have no event.
 *
 * Threads: externally locked, by the allocator.
 */
#pragma once

#include <stdint.h>

#include "allocator/allocator.h"
#include "kernels/base/heap_internal.h"

#define ZR_TAPE_OPEN UINT32_MAX

/* What has to agree for two allocations to be the same one of two steps, sizes aside. Streams have
 * numbers, so that tapes of two allocators can be compared; 0: none. */
typedef struct zr_tape_kind {
    uint8_t stream; /* whose work uses it first */
    uint8_t tier, tag, lifetime;
} zr_tape_kind_t;

typedef struct zr_tape_entry {
    size_t block_bytes;
    uint32_t lower, upper; /* times of allocation and free; ZR_TAPE_OPEN: not freed */
    uint32_t least_scale;  /* of the scales that it is known to be large enough for */
    uint32_t most_scale;   /* 0: it depends on none (zr_allocator_replay_scale) */
    zr_tape_kind_t kind;
    uint8_t free_stream; /* whose work used it last */
    bool varies;         /* in steps that were alike it had another size */
} zr_tape_entry_t;

typedef struct zr_tape_segment {
    size_t micro_batch, unit;
    int pass;
    uint32_t first_entry;
    uint32_t time; /* of the last event before it, + 1 */
} zr_tape_segment_t;

typedef struct zr_tape {
    zr_heap_t *heap; /* borrowed */
    zr_tape_entry_t *entries;
    size_t n_entries, entries_capacity, max_entries;
    zr_tape_segment_t *segments;
    size_t n_segments, segments_capacity;
    uint32_t now;
    uint32_t epoch;   /* of the blocks that are on it */
    bool is_torn;     /* something could not be written down */
    bool is_too_long; /* that was for max_entries */
} zr_tape_t;

/** Begin again: blocks of before are not on it any more. */
void zr_tape_restart(zr_tape_t *tape);

/** Into a heap. ZR_ERR_MEMORY is not logged. */
ZR_NODISCARD zr_status_t zr_tape_copy(const zr_tape_t *tape, zr_heap_t *heap, zr_tape_t *copy_p);

/** Begin again with what another tape says up to a time, and its first segments. */
void zr_tape_take_prefix(zr_tape_t *tape, const zr_tape_t *from, size_t time, size_t n_segments);

void zr_tape_mark(zr_tape_t *tape, const zr_mark_t *mark);
/** Write an allocation down. The number that its free has to give; 0: it is not on the tape. */
uint32_t zr_tape_allocated(zr_tape_t *tape, const zr_tape_kind_t *kind, size_t block_bytes,
                           uint32_t scale);
void zr_tape_freed(zr_tape_t *tape, uint32_t number, uint8_t stream);

/** The last segment that began before a time. */
size_t zr_tape_segment_at(const zr_tape_t *tape, uint32_t time);

static inline bool zr_tape_kind_equals(const zr_tape_kind_t *a, const zr_tape_kind_t *b) {
    return a->stream == b->stream && a->tier == b->tier && a->tag == b->tag &&
           a->lifetime == b->lifetime;
}

static inline bool zr_tape_segment_is(const zr_tape_segment_t *segment, const zr_mark_t *mark) {
    return segment->micro_batch == mark->micro_batch && segment->unit == mark->unit &&
           segment->pass == mark->pass;
}

/** Close the gaps in time: from 0 to `now` there is one event each. ZR_ERR_MEMORY, not logged. */
ZR_NODISCARD zr_status_t zr_tape_close_gaps(zr_tape_t *tape);

/** Give back the room that it has for more. ZR_ERR_MEMORY, not logged. */
ZR_NODISCARD zr_status_t zr_tape_fit(zr_tape_t *tape);

/** Whether two tapes say the same, but for what other steps did: scales, and what varies. */
bool zr_tape_is_same(const zr_tape_t *a, const zr_tape_t *b);

/** Whether two steps did the same in the same segments, sizes and frees aside. */
bool zr_tape_is_alike(const zr_tape_t *a, const zr_tape_t *b);

/**
 * Where sizes differ from those of a tape that is alike, they vary: enlarge every entry to the
 * larger of both, and to the largest of its place in all micro-batches.
 */
void zr_tape_enlarge(zr_tape_t *tape, const zr_tape_t *other);
