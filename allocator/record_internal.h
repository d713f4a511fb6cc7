/*
 * Recordings, for the files of this folder: what the allocator writes down, and the events
 * that the writers of snapshots go through.
 *
 * Only beginnings need memory: ends are written into what a beginning has made, so that a free
 * cannot fail here either.
 */
#pragma once

#include "allocator/block_internal.h"
#include "allocator/record.h"

typedef struct zr_record_place {
    uint32_t step, micro_batch;
} zr_record_place_t;

/* A life as it is kept: zr_life_t says what the fields mean. */
typedef struct zr_record_life {
    zr_block_t *block; /* whose `life` is this one's number + 1; NULL: over, or handed over */
    size_t size_bytes, block_bytes, offset_bytes;
    int64_t lower, freed, upper; /* NOT_YET: it did not come to that */
    zr_record_place_t first, last;
    uint32_t name; /* offset in the names */
    uint8_t tier, tag, lifetime, class_index, stream;
} zr_record_life_t;
#define ZR_RECORD_NOT_YET INT64_MAX

typedef struct zr_record_mark {
    int64_t time;
    zr_record_place_t place;
} zr_record_mark_t;

/* A stretch of a class's addresses that was mapped or unmapped, or that is mapped. */
typedef struct zr_record_stretch {
    int64_t time;
    size_t offset_bytes, size_bytes;
    uint8_t tier, class_index;
    bool is_mapped;
} zr_record_stretch_t;

#define ZR_RECORD_MAX_STREAMS 255

struct zr_recording {
    zr_heap_t *heap;    /* of all that it has, and itself; it may outlive the allocator's */
    int64_t now;        /* of the last event */
    zr_status_t status; /* ZR_ERR_MEMORY: nothing was written down from then on */
    bool is_reported;   /* that it failed */
    size_t max_bytes, used_bytes;
    zr_record_place_t place;

    zr_record_life_t *lives; /* in the order of allocation */
    size_t n_lives, lives_capacity;
    zr_record_mark_t *marks;
    size_t n_marks, marks_capacity;
    zr_record_stretch_t *changes; /* what was mapped at time 0, then each change */
    size_t n_changes, changes_capacity;
    zr_record_stretch_t *mapped; /* what was mapped in the end, whole, by tier, class, address */
    size_t n_mapped, mapped_capacity;

    char *names; /* each once, ended by a zero; the first is "" */
    size_t n_names_bytes, names_capacity;
    uint32_t *name_slots; /* open addressing: offset in names, 0: empty; at most half full */
    size_t n_names, slots_capacity;
    const zr_stream_t *streams[ZR_RECORD_MAX_STREAMS]; /* number - 1; only compared */
    int n_streams;
};

/** Memory for one; NULL: there is none. */
zr_recording_t *zr_recording_create(size_t max_bytes);

/** Begin at time 0 with what is not over; changes and marks are forgotten. */
void zr_recording_restart(zr_recording_t *recording);
/** Let go of blocks: what is live stays open. */
void zr_recording_finish(zr_recording_t *recording);

/** A block begins to live. */
void zr_recording_allocated(zr_recording_t *recording, zr_block_t *block, const char *name);
/** A block is live or pending when recording starts; one that is known is left as it is. */
void zr_recording_found_block(zr_recording_t *recording, zr_block_t *block);
/** Its owner gives it back; `stream` may still use it. */
void zr_recording_freed(zr_recording_t *recording, const zr_block_t *block,
                        const zr_stream_t *stream);
/** It may be used again. Call before it becomes part of a hole. */
void zr_recording_ended(zr_recording_t *recording, zr_block_t *block);
/** Training is somewhere else, unless it is where it was. */
void zr_recording_mark(zr_recording_t *recording, size_t step, size_t micro_batch);
void zr_recording_changed(zr_recording_t *recording, const zr_record_stretch_t *stretch);
/** Note a stretch that is mapped when recording starts, or, at_end, when it stops. */
void zr_recording_found(zr_recording_t *recording, const zr_record_stretch_t *stretch, bool at_end);

/** True once, when it has failed: the caller says so. */
bool zr_recording_take_failure(zr_recording_t *recording);

/* ---- for the writers ------------------------------------------------------------- */

/* What happens at one time, in this order. */
typedef enum zr_record_kind {
    ZR_RECORD_MARK,
    ZR_RECORD_CHANGE, /* of the mapping */
    ZR_RECORD_ALLOCATED,
    ZR_RECORD_FREED,
    ZR_RECORD_ENDED
} zr_record_kind_t;

typedef struct zr_record_event {
    int64_t time;
    zr_record_kind_t kind;
    size_t index; /* of the mark, the change or the life */
} zr_record_event_t;

/** All events in order; free() them. ZR_ERR_MEMORY is not logged. */
ZR_NODISCARD zr_status_t zr_recording_events(const zr_recording_t *recording,
                                             zr_record_event_t **events_p, size_t *n_events_p);
