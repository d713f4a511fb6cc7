/*
 * Recordings: arrays that grow by doubling, and a table of names, because there are few names
 * and many lives.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "allocator/arena_internal.h"
#include "allocator/record_internal.h"

#define MIN_CAPACITY 64

/* ---- memory ----------------------------------------------------------------------- */

static void fail(zr_recording_t *recording) {
    if (recording->status == ZR_OK)
        recording->now++; /* the end */
    recording->status = ZR_ERR_MEMORY;
}

/* An array that has room for n elements and more of them; NULL: the recording has failed. */
static void *make_room(zr_recording_t *recording, void *array, size_t element_bytes, size_t n,
                       size_t *capacity) {
    if (n <= *capacity)
        return array;
    size_t wanted = *capacity == 0 ? MIN_CAPACITY : *capacity;
    while (wanted < n)
        wanted *= 2;
    size_t used_bytes = recording->used_bytes + (wanted - *capacity) * element_bytes;
    void *grown = used_bytes <= recording->max_bytes
                      ? zr_heap_resize(recording->heap, array, wanted, element_bytes)
                      : NULL;
    if (grown == NULL) {
        fail(recording);
        return NULL;
    }
    recording->used_bytes = used_bytes;
    *capacity = wanted;
    return grown;
}

zr_recording_t *zr_recording_create(size_t max_bytes) {
    zr_heap_t *heap = zr_heap_create(NULL);
    zr_recording_t *recording = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*recording)) : NULL;
    if (recording != NULL) {
        recording->heap = heap;
        recording->max_bytes = max_bytes == 0 ? ZR_RECORDING_MAX_BYTES : max_bytes;
        recording->names = make_room(recording, NULL, 1, 1, &recording->names_capacity);
        recording->n_names_bytes = 1; /* the empty name */
    }
    if (recording == NULL || recording->names == NULL) {
        zr_heap_destroy(&heap);
        return NULL;
    }
    return recording;
}

void zr_recording_destroy(zr_recording_t **recording) {
    if (recording == NULL || *recording == NULL)
        return;
    zr_heap_t *heap = (*recording)->heap;
    zr_heap_destroy(&heap);
    *recording = NULL;
}

/* ---- names ------------------------------------------------------------------------ */

static uint32_t *slot_of(const zr_recording_t *recording, const char *name, size_t length) {
    size_t mask = recording->slots_capacity - 1;
    size_t i = (size_t)XXH3_64bits(name, length) & mask;
    while (recording->name_slots[i] != 0 &&
           strcmp(recording->names + recording->name_slots[i], name) != 0)
        i = (i + 1) & mask;
    return &recording->name_slots[i];
}

static bool grow_slots(zr_recording_t *recording) {
    if (2 * (recording->n_names + 1) <= recording->slots_capacity)
        return true;
    size_t capacity = recording->slots_capacity == 0 ? MIN_CAPACITY : 2 * recording->slots_capacity;
    size_t used_bytes =
        recording->used_bytes + (capacity - recording->slots_capacity) * sizeof(uint32_t);
    uint32_t *old = recording->name_slots;
    uint32_t *slots = used_bytes <= recording->max_bytes
                          ? zr_heap_alloc(recording->heap, capacity, sizeof(uint32_t))
                          : NULL;
    if (slots == NULL) {
        fail(recording);
        return false;
    }
    size_t old_capacity = recording->slots_capacity;
    recording->used_bytes = used_bytes;
    recording->name_slots = slots;
    recording->slots_capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i] != 0) {
            const char *name = recording->names + old[i];
            *slot_of(recording, name, strlen(name)) = old[i];
        }
    }
    zr_heap_free(recording->heap, old);
    return true;
}

static bool add_name(zr_recording_t *recording, uint32_t *slot, const char *name, size_t length) {
    size_t end = recording->n_names_bytes + length + 1;
    if (end > UINT32_MAX) {
        fail(recording);
        return false;
    }
    char *names = make_room(recording, recording->names, 1, end, &recording->names_capacity);
    if (names == NULL)
        return false;
    recording->names = names;
    memcpy(names + recording->n_names_bytes, name, length + 1);
    *slot = (uint32_t)recording->n_names_bytes;
    recording->n_names_bytes = end;
    recording->n_names++;
    return true;
}

static bool find_or_add_name(zr_recording_t *recording, const char *name, uint32_t *offset_p) {
    *offset_p = 0;
    if (name == NULL || name[0] == '\0')
        return true;
    if (!grow_slots(recording))
        return false;
    size_t length = strlen(name);
    uint32_t *slot = slot_of(recording, name, length);
    if (*slot == 0 && !add_name(recording, slot, name, length))
        return false;
    *offset_p = *slot;
    return true;
}

/* ---- what happens ------------------------------------------------------------------ */

void zr_recording_restart(zr_recording_t *recording) {
    size_t n = 0;
    for (size_t i = 0; i < recording->n_lives; i++) {
        zr_record_life_t life = recording->lives[i];
        if (life.block == NULL)
            continue;
        life.lower = 0;
        life.freed = life.block->state == ZR_BLOCK_PENDING ? 0 : ZR_RECORD_NOT_YET;
        recording->lives[n++] = life;
        life.block->life = n;
    }
    recording->n_lives = n;
    recording->n_marks = recording->n_changes = recording->n_mapped = 0;
    recording->now = 0;
    recording->status = ZR_OK;
    recording->is_reported = false;
    zr_record_mark_t *marks =
        make_room(recording, recording->marks, sizeof(*marks), 1, &recording->marks_capacity);
    if (marks == NULL)
        return;
    recording->marks = marks;
    marks[recording->n_marks++] = (zr_record_mark_t){.time = 0, .place = recording->place};
}

void zr_recording_finish(zr_recording_t *recording) {
    for (size_t i = 0; i < recording->n_lives; i++) {
        zr_record_life_t *life = &recording->lives[i];
        if (life->block != NULL)
            life->block->life = 0;
        life->block = NULL;
    }
    if (recording->status == ZR_OK)
        recording->now++;
}

void zr_recording_allocated(zr_recording_t *recording, zr_block_t *block, const char *name) {
    uint32_t name_offset = 0;
    if (recording->status != ZR_OK || !find_or_add_name(recording, name, &name_offset))
        return;
    zr_record_life_t *lives = make_room(recording, recording->lives, sizeof(*lives),
                                        recording->n_lives + 1, &recording->lives_capacity);
    if (lives == NULL)
        return;
    recording->lives = lives;
    lives[recording->n_lives++] =
        (zr_record_life_t){.block = block,
                           .size_bytes = block->requested_bytes,
                           .block_bytes = block->size_bytes,
                           .offset_bytes = block->offset_bytes,
                           .lower = ++recording->now,
                           .freed = ZR_RECORD_NOT_YET,
                           .upper = ZR_RECORD_NOT_YET,
                           .first = recording->place,
                           .name = name_offset,
                           .tier = (uint8_t)block->arena->tier,
                           .tag = (uint8_t)block->tag,
                           .lifetime = (uint8_t)block->lifetime,
                           .class_index = (uint8_t)block->arena->class_index};
    block->life = recording->n_lives;
}

void zr_recording_found_block(zr_recording_t *recording, zr_block_t *block) {
    if (block->life != 0)
        return;
    zr_recording_allocated(recording, block, NULL);
    if (block->life == 0)
        return;
    zr_record_life_t *life = &recording->lives[block->life - 1];
    recording->now = life->lower = 0;
    life->first = (zr_record_place_t){0};
    if (block->state == ZR_BLOCK_PENDING)
        life->freed = 0;
}

/* Streams beyond those that have a number share the last one. */
static uint8_t number_of(zr_recording_t *recording, const zr_stream_t *stream) {
    if (stream == NULL)
        return 0;
    int i = 0;
    while (i < recording->n_streams && recording->streams[i] != stream)
        i++;
    if (i == ZR_RECORD_MAX_STREAMS)
        return ZR_RECORD_MAX_STREAMS;
    if (i == recording->n_streams)
        recording->streams[recording->n_streams++] = stream;
    return (uint8_t)(i + 1);
}

void zr_recording_freed(zr_recording_t *recording, const zr_block_t *block,
                        const zr_stream_t *stream) {
    if (block->life == 0 || recording->status != ZR_OK)
        return;
    zr_record_life_t *life = &recording->lives[block->life - 1];
    life->freed = ++recording->now;
    life->last = recording->place;
    life->stream = number_of(recording, stream);
}

void zr_recording_ended(zr_recording_t *recording, zr_block_t *block) {
    if (block->life == 0)
        return;
    zr_record_life_t *life = &recording->lives[block->life - 1];
    assert(life->block == block);
    /* What nothing waited for ends at its free. */
    if (recording->status == ZR_OK)
        life->upper = block->state == ZR_BLOCK_PENDING ? ++recording->now : life->freed;
    life->block = NULL;
    block->life = 0;
}

static uint32_t saturate(size_t value) {
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

void zr_recording_mark(zr_recording_t *recording, size_t step, size_t micro_batch) {
    zr_record_place_t place = {.step = saturate(step), .micro_batch = saturate(micro_batch)};
    bool is_new =
        place.step != recording->place.step || place.micro_batch != recording->place.micro_batch;
    recording->place = place;
    if (!is_new || recording->status != ZR_OK)
        return;
    zr_record_mark_t *marks = make_room(recording, recording->marks, sizeof(*marks),
                                        recording->n_marks + 1, &recording->marks_capacity);
    if (marks == NULL)
        return;
    recording->marks = marks;
    marks[recording->n_marks++] =
        (zr_record_mark_t){.time = ++recording->now, .place = recording->place};
}

static void add_change(zr_recording_t *recording, const zr_record_stretch_t *stretch,
                       int64_t time) {
    zr_record_stretch_t *changes =
        make_room(recording, recording->changes, sizeof(*changes), recording->n_changes + 1,
                  &recording->changes_capacity);
    if (changes == NULL)
        return;
    recording->changes = changes;
    changes[recording->n_changes] = *stretch;
    changes[recording->n_changes++].time = time;
}

void zr_recording_changed(zr_recording_t *recording, const zr_record_stretch_t *stretch) {
    if (recording->status == ZR_OK)
        add_change(recording, stretch, ++recording->now);
}

void zr_recording_found(zr_recording_t *recording, const zr_record_stretch_t *stretch,
                        bool at_end) {
    if (recording->status != ZR_OK)
        return;
    if (!at_end) {
        add_change(recording, stretch, 0);
        return;
    }
    zr_record_stretch_t *mapped = make_room(recording, recording->mapped, sizeof(*mapped),
                                            recording->n_mapped + 1, &recording->mapped_capacity);
    if (mapped == NULL)
        return;
    recording->mapped = mapped;
    mapped[recording->n_mapped++] = *stretch;
}

bool zr_recording_take_failure(zr_recording_t *recording) {
    bool is_new = recording->status != ZR_OK && !recording->is_reported;
    recording->is_reported = recording->is_reported || is_new;
    return is_new;
}

/* ---- reading ------------------------------------------------------------------------ */

void zr_recording_info(const zr_recording_t *recording, zr_recording_info_t *info_p) {
    *info_p = (zr_recording_info_t){.n_lives = recording->n_lives,
                                    .end = recording->now,
                                    .is_complete = recording->status == ZR_OK};
}

void zr_recording_life(const zr_recording_t *recording, size_t id, zr_life_t *life_p) {
    assert(id < recording->n_lives);
    const zr_record_life_t *life = &recording->lives[id];
    bool is_freed = life->freed != ZR_RECORD_NOT_YET, is_over = life->upper != ZR_RECORD_NOT_YET;
    zr_record_place_t last = is_freed ? life->last : recording->place;
    *life_p = (zr_life_t){.id = id,
                          .name = recording->names + life->name,
                          .tier = (zr_tier_t)life->tier,
                          .tag = (zr_tag_t)life->tag,
                          .lifetime = (zr_lifetime_t)life->lifetime,
                          .class_index = life->class_index,
                          .size_bytes = life->size_bytes,
                          .block_bytes = life->block_bytes,
                          .offset_bytes = life->offset_bytes,
                          .lower = life->lower,
                          .freed = is_freed ? life->freed : recording->now,
                          .upper = is_over ? life->upper : recording->now,
                          .is_open = !is_over,
                          .stream = life->stream,
                          .first_step = life->first.step,
                          .first_micro_batch = life->first.micro_batch,
                          .last_step = last.step,
                          .last_micro_batch = last.micro_batch};
}

static int compare_events(const void *a, const void *b) {
    const zr_record_event_t *x = a, *y = b;
    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static size_t list_life(const zr_record_life_t *life, size_t index, zr_record_event_t *events) {
    size_t n = 0;
    events[n++] = (zr_record_event_t){life->lower, ZR_RECORD_ALLOCATED, index};
    if (life->freed != ZR_RECORD_NOT_YET)
        events[n++] = (zr_record_event_t){life->freed, ZR_RECORD_FREED, index};
    if (life->upper != ZR_RECORD_NOT_YET)
        events[n++] = (zr_record_event_t){life->upper, ZR_RECORD_ENDED, index};
    return n;
}

zr_status_t zr_recording_events(const zr_recording_t *recording, zr_record_event_t **events_p,
                                size_t *n_events_p) {
    size_t most = recording->n_marks + recording->n_changes + 3 * recording->n_lives, n = 0;
    zr_record_event_t *events = malloc((most + 1) * sizeof(*events));
    if (events == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < recording->n_marks; i++)
        events[n++] = (zr_record_event_t){recording->marks[i].time, ZR_RECORD_MARK, i};
    for (size_t i = 0; i < recording->n_changes; i++)
        events[n++] = (zr_record_event_t){recording->changes[i].time, ZR_RECORD_CHANGE, i};
    for (size_t i = 0; i < recording->n_lives; i++)
        n += list_life(&recording->lives[i], i, events + n);
    qsort(events, n, sizeof(*events), compare_events);
    *events_p = events;
    *n_events_p = n;
    return ZR_OK;
}
