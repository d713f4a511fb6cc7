/*
 * The Chrome trace (kernels/base/trace_json_internal.h).
 *
 * Counters are the allocator's statistics: they go down at the free, while the span of a life
 * lasts until its memory may be used again; what lies between is counted as "pending".
 */
#include "allocator/snapshot_internal.h"

#include <stdlib.h>

#include "kernels/base/trace_json_internal.h"

#define N_TIERS 2

typedef struct counters {
    size_t live, reserved, pending;
    size_t by_tag[ZR_N_TAGS];
} counters_t;

typedef struct trace {
    const zr_recording_t *recording;
    zr_trace_json_t json;
    counters_t counters[N_TIERS];
} trace_t;

/* Processes are numbered from 1: 0 has a meaning of its own. */
static int process_of(int tier) {
    return tier + 1;
}

static zr_status_t put(trace_t *trace, json_t *event) {
    return zr_trace_json_put(&trace->json, event);
}

/* ---- counters ----------------------------------------------------------------------- */

static zr_status_t put_counter(trace_t *trace, int tier, int64_t time, const char *name,
                               size_t bytes) {
    return put(trace, json_pack("{s:s, s:s, s:i, s:I, s:{s:I}}", "name", name, "ph", "C", "pid",
                                process_of(tier), "ts", (json_int_t)time, "args", "bytes",
                                (json_int_t)bytes));
}

static zr_status_t put_all_counters(trace_t *trace, int tier, int64_t time) {
    const counters_t *counters = &trace->counters[tier];
    ZR_TRY(put_counter(trace, tier, time, "live", counters->live));
    ZR_TRY(put_counter(trace, tier, time, "reserved", counters->reserved));
    ZR_TRY(put_counter(trace, tier, time, "pending", counters->pending));
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        ZR_TRY(put_counter(trace, tier, time, zr_tag_name((zr_tag_t)tag), counters->by_tag[tag]));
    return ZR_OK;
}

/* Those that an event has changed. */
static zr_status_t put_live(trace_t *trace, int64_t time, const zr_record_life_t *life) {
    const counters_t *counters = &trace->counters[life->tier];
    ZR_TRY(put_counter(trace, life->tier, time, "live", counters->live));
    return put_counter(trace, life->tier, time, zr_tag_name((zr_tag_t)life->tag),
                       counters->by_tag[life->tag]);
}

/* A life that ended at its free was never pending. */
static zr_status_t put_pending(trace_t *trace, int64_t time, const zr_record_life_t *life) {
    if (life->upper == life->freed)
        return ZR_OK;
    return put_counter(trace, life->tier, time, "pending", trace->counters[life->tier].pending);
}

static void count(trace_t *trace, const zr_record_event_t *event) {
    const zr_recording_t *recording = trace->recording;
    if (event->kind == ZR_RECORD_MARK)
        return;
    if (event->kind == ZR_RECORD_CHANGE) {
        const zr_record_stretch_t *change = &recording->changes[event->index];
        size_t *reserved = &trace->counters[change->tier].reserved;
        *reserved += change->is_mapped ? change->size_bytes : -change->size_bytes;
        return;
    }
    const zr_record_life_t *life = &recording->lives[event->index];
    counters_t *counters = &trace->counters[life->tier];
    if (event->kind == ZR_RECORD_ALLOCATED) {
        counters->live += life->size_bytes;
        counters->by_tag[life->tag] += life->size_bytes;
    } else if (event->kind == ZR_RECORD_FREED) {
        counters->live -= life->size_bytes;
        counters->by_tag[life->tag] -= life->size_bytes;
        counters->pending += life->size_bytes;
    } else {
        counters->pending -= life->size_bytes;
    }
}

/* ---- spans and marks ------------------------------------------------------------------ */

static zr_status_t put_span_begin(trace_t *trace, size_t id) {
    char name[ZR_SNAPSHOT_NAME_BYTES];
    zr_life_t life;
    zr_recording_life(trace->recording, id, &life);
    zr_snapshot_name(life.name[0] == '\0' ? "(no name)" : life.name, name);
    return put(trace,
               json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:I, s:{s:s, s:I, s:I, s:I, s:I, s:I}}",
                         "name", name, "cat", zr_lifetime_name(life.lifetime), "ph", "b", "id",
                         (json_int_t)id, "pid", process_of(life.tier), "tid", 0, "ts",
                         (json_int_t)life.lower, "args", "tag", zr_tag_name(life.tag), "bytes",
                         (json_int_t)life.size_bytes, "offset", (json_int_t)life.offset_bytes,
                         "step", (json_int_t)life.first_step, "micro_batch",
                         (json_int_t)life.first_micro_batch, "stream", (json_int_t)life.stream));
}

static zr_status_t put_span_end(trace_t *trace, size_t id) {
    char name[ZR_SNAPSHOT_NAME_BYTES];
    zr_life_t life;
    zr_recording_life(trace->recording, id, &life);
    zr_snapshot_name(life.name[0] == '\0' ? "(no name)" : life.name, name);
    return put(trace,
               json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:I}", "name", name, "cat",
                         zr_lifetime_name(life.lifetime), "ph", "e", "id", (json_int_t)id, "pid",
                         process_of(life.tier), "tid", 0, "ts", (json_int_t)life.upper));
}

static zr_status_t put_mark(trace_t *trace, const zr_record_mark_t *mark) {
    char name[64];
    if (mark->place.micro_batch > 0)
        snprintf(name, sizeof(name), "step %u, micro-batch %u", mark->place.step,
                 mark->place.micro_batch);
    else
        snprintf(name, sizeof(name), "step %u, outside micro-batches", mark->place.step);
    return put(trace, json_pack("{s:s, s:s, s:s, s:i, s:i, s:I}", "name", name, "ph", "i", "s", "g",
                                "pid", process_of(0), "tid", 0, "ts", (json_int_t)mark->time));
}

static zr_status_t put_event(trace_t *trace, const zr_record_event_t *event) {
    const zr_recording_t *recording = trace->recording;
    bool is_begin = event->time == 0; /* its counters are written together, after all of it */
    count(trace, event);
    switch (event->kind) {
    case ZR_RECORD_MARK:
        return put_mark(trace, &recording->marks[event->index]);
    case ZR_RECORD_CHANGE: {
        int tier = recording->changes[event->index].tier;
        if (is_begin)
            return ZR_OK;
        return put_counter(trace, tier, event->time, "reserved", trace->counters[tier].reserved);
    }
    case ZR_RECORD_ALLOCATED:
        ZR_TRY(put_span_begin(trace, event->index));
        return is_begin ? ZR_OK : put_live(trace, event->time, &recording->lives[event->index]);
    case ZR_RECORD_FREED:
        if (is_begin)
            return ZR_OK;
        ZR_TRY(put_pending(trace, event->time, &recording->lives[event->index]));
        return put_live(trace, event->time, &recording->lives[event->index]);
    default:
        ZR_TRY(put_pending(trace, event->time, &recording->lives[event->index]));
        return put_span_end(trace, event->index);
    }
}

static zr_status_t put_events(trace_t *trace, const zr_record_event_t *events, size_t n_events) {
    size_t i = 0;
    for (; i < n_events && events[i].time == 0; i++)
        ZR_TRY(put_event(trace, &events[i]));
    for (int tier = 0; tier < N_TIERS; tier++)
        ZR_TRY(put_all_counters(trace, tier, 0));
    for (; i < n_events; i++)
        ZR_TRY(put_event(trace, &events[i]));
    return ZR_OK;
}

/* What has not ended ends with the recording. */
static zr_status_t put_open_ends(trace_t *trace) {
    const zr_recording_t *recording = trace->recording;
    for (size_t i = 0; i < recording->n_lives; i++) {
        if (recording->lives[i].upper == ZR_RECORD_NOT_YET)
            ZR_TRY(put_span_end(trace, i));
    }
    for (int tier = 0; tier < N_TIERS; tier++)
        ZR_TRY(put_all_counters(trace, tier, recording->now));
    return ZR_OK;
}

static zr_status_t put_processes(trace_t *trace) {
    for (int tier = 0; tier < N_TIERS; tier++) {
        char name[32];
        snprintf(name, sizeof(name), "%s memory", zr_tier_name((zr_tier_t)tier));
        ZR_TRY(put(trace, json_pack("{s:s, s:s, s:i, s:{s:s}}", "name", "process_name", "ph", "M",
                                    "pid", process_of(tier), "args", "name", name)));
    }
    return ZR_OK;
}

zr_status_t zr_snapshot_write_chrome(const zr_recording_t *recording, FILE *file) {
    trace_t trace = {.recording = recording};
    zr_record_event_t *events = NULL;
    size_t n_events = 0;
    ZR_TRY(zr_recording_events(recording, &events, &n_events));
    zr_status_t status = zr_trace_json_begin(
        file,
        json_pack("{s:s}", "time",
                  "virtual: one microsecond is one allocation, free or other event"),
        &trace.json);
    ZR_THEN(status, put_processes(&trace));
    ZR_THEN(status, put_events(&trace, events, n_events));
    ZR_THEN(status, put_open_ends(&trace));
    ZR_THEN(status, zr_trace_json_end(&trace.json));
    free(events);
    return status;
}
