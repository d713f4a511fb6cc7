/*
 * The pickle that PyTorch's viewer of memory opens: protocol 2, a handful of opcodes. The viewer
 * plays the events backwards from the segments and blocks that are there in the end, so both
 * have to agree: a block that it cannot find in a segment stops it.
 *
 * What it reads: `segments` with address, total_size, device, stream and blocks (size,
 * requested_size, state, frames), in the order of addresses and without gaps; `device_traces`, a
 * list of events per device, with action, addr, size, stream, frames and category. Every life
 * begins with `alloc`, also what was live at time 0, and ends with `free_requested` and
 * `free_completed`; `segment_map` and `segment_unmap` say how segments grow and shrink.
 */
#include "allocator/snapshot_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define N_TIERS 2
/* Of one class; no range is larger, and sums stay exact in the viewer's doubles. */
#define CLASS_ADDRESSES ((size_t)1 << 45)
/* Items that one opcode takes off the stack: readers have limits of their own. */
#define BATCH 1000

/* ---- opcodes -------------------------------------------------------------------------- */

enum opcode {
    OP_PROTO = 0x80,
    OP_STOP = '.',
    OP_NEWTRUE = 0x88,
    OP_MARK = '(',
    OP_EMPTY_DICT = '}',
    OP_SETITEMS = 'u',
    OP_EMPTY_LIST = ']',
    OP_APPENDS = 'e',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_BININT = 'J',
    OP_LONG1 = 0x8a,
    OP_BINUNICODE = 'X',
    OP_BINPUT = 'q',
    OP_BINGET = 'h'
};

/* Strings that come again and again, of this file: written once, then got from the memo by their
 * number. */
#define MAX_WORDS 48

typedef struct pickle {
    const zr_recording_t *recording;
    FILE *file;
    const char *words[MAX_WORDS]; /* of the memo */
    int n_words;
    bool is_broken; /* a write failed: looked at in the end, as errors of the file stay */
} pickle_t;

static void put_byte(pickle_t *pickle, int byte) {
    if (putc(byte, pickle->file) == EOF)
        pickle->is_broken = true;
}

static void put_little_endian(pickle_t *pickle, uint64_t value, int n_bytes) {
    for (int i = 0; i < n_bytes; i++)
        put_byte(pickle, (int)(value >> (8 * i) & 0xff));
}

static void put_text(pickle_t *pickle, const char *text) {
    size_t length = strlen(text);
    put_byte(pickle, OP_BINUNICODE);
    put_little_endian(pickle, length, 4);
    if (fwrite(text, 1, length, pickle->file) != length)
        pickle->is_broken = true;
}

static void put_word(pickle_t *pickle, const char *word) {
    int at = 0;
    while (at < pickle->n_words && strcmp(pickle->words[at], word) != 0)
        at++;
    if (at == pickle->n_words) {
        assert(at < MAX_WORDS);
        pickle->words[pickle->n_words++] = word;
        put_text(pickle, word);
        put_byte(pickle, OP_BINPUT);
    } else {
        put_byte(pickle, OP_BINGET);
    }
    put_byte(pickle, at);
}

static void put_number(pickle_t *pickle, uint64_t value) {
    if (value <= UINT8_MAX) {
        put_byte(pickle, OP_BININT1);
        put_little_endian(pickle, value, 1);
    } else if (value <= UINT16_MAX) {
        put_byte(pickle, OP_BININT2);
        put_little_endian(pickle, value, 2);
    } else if (value <= INT32_MAX) {
        put_byte(pickle, OP_BININT);
        put_little_endian(pickle, value, 4);
    } else { /* signed: sizes and addresses are below 2^63 */
        put_byte(pickle, OP_LONG1);
        put_byte(pickle, 8);
        put_little_endian(pickle, value, 8);
    }
}

static void put_number_of(pickle_t *pickle, const char *key, uint64_t value) {
    put_word(pickle, key);
    put_number(pickle, value);
}

static void put_word_of(pickle_t *pickle, const char *key, const char *value) {
    put_word(pickle, key);
    put_word(pickle, value);
}

static void begin_dict(pickle_t *pickle) {
    put_byte(pickle, OP_EMPTY_DICT);
    put_byte(pickle, OP_MARK);
}

static void end_dict(pickle_t *pickle) {
    put_byte(pickle, OP_SETITEMS);
}

/* A list is appended to in batches: call next_item before each item but the first. */
static void begin_list(pickle_t *pickle) {
    put_byte(pickle, OP_EMPTY_LIST);
    put_byte(pickle, OP_MARK);
}

static void next_item(pickle_t *pickle, size_t *n_items) {
    if (++*n_items % BATCH != 0)
        return;
    put_byte(pickle, OP_APPENDS);
    put_byte(pickle, OP_MARK);
}

static void end_list(pickle_t *pickle) {
    put_byte(pickle, OP_APPENDS);
}

/* ---- lives ------------------------------------------------------------------------------- */

static size_t address_of(int class_index, size_t offset_bytes) {
    return (size_t)(class_index + 1) * CLASS_ADDRESSES + offset_bytes;
}

/* The only frame of a life: name, and in place of a file its lifetime and where it began. */
static void put_frames(pickle_t *pickle, const zr_record_life_t *life) {
    char name[ZR_SNAPSHOT_NAME_BYTES], filename[96];
    const char *raw = pickle->recording->names + life->name;
    if (life->first.step == 0)
        snprintf(filename, sizeof(filename), "%s, before step 1",
                 zr_lifetime_name((zr_lifetime_t)life->lifetime));
    else
        snprintf(filename, sizeof(filename), "%s, step %u, micro-batch",
                 zr_lifetime_name((zr_lifetime_t)life->lifetime), life->first.step);
    put_word(pickle, "frames");
    begin_list(pickle);
    begin_dict(pickle);
    put_word(pickle, "filename");
    put_text(pickle, filename);
    put_number_of(pickle, "line", life->first.micro_batch);
    put_word(pickle, "name");
    put_text(pickle, zr_snapshot_name(raw[0] == '\0' ? "(no name)" : raw, name));
    end_dict(pickle);
    end_list(pickle);
}

static void put_no_frames(pickle_t *pickle) {
    put_word(pickle, "frames");
    put_byte(pickle, OP_EMPTY_LIST);
}

/* ---- events ------------------------------------------------------------------------------ */

static void put_place(pickle_t *pickle, const char *action, size_t address, size_t size_bytes,
                      int stream, int64_t time) {
    put_word_of(pickle, "action", action);
    put_number_of(pickle, "addr", address);
    put_number_of(pickle, "size", size_bytes);
    put_number_of(pickle, "stream", (uint64_t)stream);
    put_number_of(pickle, "time_us", (uint64_t)time);
}

static void put_life_event(pickle_t *pickle, const zr_record_event_t *event) {
    static const char *const actions[] = {[ZR_RECORD_ALLOCATED] = "alloc",
                                          [ZR_RECORD_FREED] = "free_requested",
                                          [ZR_RECORD_ENDED] = "free_completed"};
    const zr_record_life_t *life = &pickle->recording->lives[event->index];
    begin_dict(pickle);
    put_place(pickle, actions[event->kind], address_of(life->class_index, life->offset_bytes),
              life->size_bytes, life->stream, event->time);
    put_word(pickle, "category");
    put_text(pickle, zr_tag_name((zr_tag_t)life->tag));
    put_frames(pickle, life);
    end_dict(pickle);
}

static void put_change(pickle_t *pickle, const zr_record_stretch_t *change) {
    begin_dict(pickle);
    put_place(pickle, change->is_mapped ? "segment_map" : "segment_unmap",
              address_of(change->class_index, change->offset_bytes), change->size_bytes, 0,
              change->time);
    put_no_frames(pickle);
    end_dict(pickle);
}

/* Categories must have "unknown" among them, or viewers of some versions stop. */
static void put_snapshot_event(pickle_t *pickle) {
    begin_dict(pickle);
    put_place(pickle, "snapshot", 0, 0, 0, pickle->recording->now);
    put_word_of(pickle, "category", "unknown");
    put_no_frames(pickle);
    end_dict(pickle);
}

static bool is_of_tier(const zr_recording_t *recording, const zr_record_event_t *event, int tier) {
    if (event->kind == ZR_RECORD_MARK)
        return false;
    if (event->kind == ZR_RECORD_CHANGE)
        return recording->changes[event->index].tier == tier;
    const zr_record_life_t *life = &recording->lives[event->index];
    return life->tier == tier && life->size_bytes > 0;
}

static void put_trace(pickle_t *pickle, int tier, const zr_record_event_t *events,
                      size_t n_events) {
    size_t n_items = 0;
    begin_list(pickle);
    for (size_t i = 0; i < n_events; i++) {
        if (!is_of_tier(pickle->recording, &events[i], tier))
            continue;
        if (events[i].kind == ZR_RECORD_CHANGE)
            put_change(pickle, &pickle->recording->changes[events[i].index]);
        else
            put_life_event(pickle, &events[i]);
        next_item(pickle, &n_items);
    }
    put_snapshot_event(pickle);
    end_list(pickle);
}

/* ---- segments ---------------------------------------------------------------------------- */

/* Lives that have memory in the end, in the order of tiers, classes and addresses. */
typedef struct open_lives {
    const zr_record_life_t **lives;
    size_t n_lives;
} open_lives_t;

static int compare_lives(const void *a, const void *b) {
    const zr_record_life_t *x = *(const zr_record_life_t *const *)a;
    const zr_record_life_t *y = *(const zr_record_life_t *const *)b;
    if (x->tier != y->tier)
        return x->tier < y->tier ? -1 : 1;
    if (x->class_index != y->class_index)
        return x->class_index < y->class_index ? -1 : 1;
    return x->offset_bytes < y->offset_bytes ? -1 : x->offset_bytes > y->offset_bytes;
}

static zr_status_t find_open_lives(const zr_recording_t *recording, open_lives_t *open) {
    *open = (open_lives_t){.lives = malloc((recording->n_lives + 1) * sizeof(*open->lives))};
    if (open->lives == NULL)
        return ZR_ERR_MEMORY;
    for (size_t i = 0; i < recording->n_lives; i++) {
        const zr_record_life_t *life = &recording->lives[i];
        if (life->upper == ZR_RECORD_NOT_YET && life->size_bytes > 0)
            open->lives[open->n_lives++] = life;
    }
    qsort(open->lives, open->n_lives, sizeof(*open->lives), compare_lives);
    return ZR_OK;
}

static bool is_in(const zr_record_life_t *life, const zr_record_stretch_t *segment) {
    return life->tier == segment->tier && life->class_index == segment->class_index &&
           life->offset_bytes >= segment->offset_bytes &&
           life->offset_bytes < segment->offset_bytes + segment->size_bytes;
}

static void put_block(pickle_t *pickle, size_t address, size_t size_bytes,
                      const zr_record_life_t *life) {
    const char *state = "inactive";
    if (life != NULL)
        state = life->freed == ZR_RECORD_NOT_YET ? "active_allocated" : "active_pending_free";
    begin_dict(pickle);
    put_number_of(pickle, "address", address);
    put_number_of(pickle, "size", size_bytes);
    put_number_of(pickle, "requested_size", life != NULL ? life->size_bytes : 0);
    put_word_of(pickle, "state", state);
    if (life != NULL)
        put_frames(pickle, life);
    else
        put_no_frames(pickle);
    end_dict(pickle);
}

/* Blocks and the holes between them; `next` is the first life of the segment. */
static void put_blocks(pickle_t *pickle, const zr_record_stretch_t *segment,
                       const open_lives_t *open, size_t next) {
    size_t at = segment->offset_bytes, end = at + segment->size_bytes, n_items = 0;
    put_word(pickle, "blocks");
    begin_list(pickle);
    for (; next < open->n_lives && is_in(open->lives[next], segment); next++) {
        const zr_record_life_t *life = open->lives[next];
        if (life->offset_bytes > at) {
            put_block(pickle, address_of(life->class_index, at), life->offset_bytes - at, NULL);
            next_item(pickle, &n_items);
        }
        put_block(pickle, address_of(life->class_index, life->offset_bytes), life->block_bytes,
                  life);
        next_item(pickle, &n_items);
        at = life->offset_bytes + life->block_bytes;
    }
    if (at < end)
        put_block(pickle, address_of(segment->class_index, at), end - at, NULL);
    end_list(pickle);
}

static void put_segment(pickle_t *pickle, const zr_record_stretch_t *segment,
                        const open_lives_t *open, size_t *next) {
    size_t first = *next, allocated = 0, active = 0, requested = 0;
    for (; *next < open->n_lives && is_in(open->lives[*next], segment); ++*next) {
        const zr_record_life_t *life = open->lives[*next];
        active += life->block_bytes;
        requested += life->size_bytes;
        allocated += life->freed == ZR_RECORD_NOT_YET ? life->block_bytes : 0;
    }
    begin_dict(pickle);
    put_number_of(pickle, "device", segment->tier);
    put_number_of(pickle, "address", address_of(segment->class_index, segment->offset_bytes));
    put_number_of(pickle, "total_size", segment->size_bytes);
    put_number_of(pickle, "allocated_size", allocated);
    put_number_of(pickle, "active_size", active);
    put_number_of(pickle, "requested_size", requested);
    put_number_of(pickle, "stream", 0);
    put_word_of(pickle, "segment_type", "large");
    put_word(pickle, "is_expandable");
    put_byte(pickle, OP_NEWTRUE);
    put_no_frames(pickle);
    put_blocks(pickle, segment, open, first);
    end_dict(pickle);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void put_snapshot(pickle_t *pickle, const open_lives_t *open,
                         const zr_record_event_t *events, size_t n_events) {
    const zr_recording_t *recording = pickle->recording;
    size_t next = 0, n_items = 0;
    put_byte(pickle, OP_PROTO);
    put_byte(pickle, 2);
    begin_dict(pickle);
    put_word(pickle, "segments");
    begin_list(pickle);
    for (size_t i = 0; i < recording->n_mapped; i++) {
        put_segment(pickle, &recording->mapped[i], open, &next);
        next_item(pickle, &n_items);
    }
    end_list(pickle);
    put_word(pickle, "device_traces");
    begin_list(pickle);
    for (int tier = 0; tier < N_TIERS; tier++)
        put_trace(pickle, tier, events, n_events);
    end_list(pickle);
    end_dict(pickle);
    put_byte(pickle, OP_STOP);
}

zr_status_t zr_snapshot_write_pickle(const zr_recording_t *recording, FILE *file) {
    pickle_t pickle = {.recording = recording, .file = file};
    open_lives_t open;
    zr_record_event_t *events = NULL;
    size_t n_events = 0;
    ZR_TRY(find_open_lives(recording, &open));
    zr_status_t status = zr_recording_events(recording, &events, &n_events);
    if (status == ZR_OK) {
        put_snapshot(&pickle, &open, events, n_events);
        status = pickle.is_broken ? ZR_ERR_IO : ZR_OK;
    }
    free(events);
    free(open.lives);
    return status;
}
