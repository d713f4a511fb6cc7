/*
 * The recorder: see trace.h.
 *
 * Events lie in chunks of one size, so that nothing is moved when there are more; names are kept
 * once each. A place that nothing can be recorded at any more is not recorded either: what is in
 * the file then ends at one time.
 */
#include "kernels/base/trace_internal.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

zr_trace_options_t zr_trace_options_default(void) {
    return (zr_trace_options_t){.log = zr_log_default(),
                                .process = 1,
                                .process_name = "rank 0",
                                .first_step = 1,
                                .last_step = SIZE_MAX,
                                .from_start = true,
                                .most_bytes = (size_t)64 << 20};
}

/* ---- life ------------------------------------------------------------------------------------ */

static zr_status_t check_options(const zr_trace_options_t *o) {
    if (o->process < 1 || o->process_name == NULL)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "trace: process %d, named %s; must be at least 1 and have a name",
                       o->process, o->process_name != NULL ? o->process_name : "(NULL)");
    if (o->first_step < 1 || o->last_step < o->first_step)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT,
                       "trace: steps %zu to %zu; the first is at least 1, the last not before it",
                       o->first_step, o->last_step);
    if (o->most_bytes < ZR_TRACE_LEAST_BYTES)
        return zr_fail(&o->log, ZR_ERR_ARGUMENT, "trace: %s of memory; at least %zu",
                       zr_count_text(o->most_bytes, "byte").text, ZR_TRACE_LEAST_BYTES);
    return ZR_OK;
}

zr_status_t zr_trace_create(const zr_trace_options_t *options, zr_trace_t **trace_p) {
    zr_trace_options_t o = options != NULL ? *options : zr_trace_options_default();
    ZR_TRY(check_options(&o));
    if (trace_p == NULL)
        return zr_fail(&o.log, ZR_ERR_ARGUMENT, "creating a trace needs an output pointer");
    zr_trace_t *trace = calloc(1, sizeof(*trace));
    char *name = strdup(o.process_name);
    if (trace == NULL || name == NULL || pthread_mutex_init(&trace->lock, NULL) != 0) {
        free(trace);
        free(name);
        return zr_fail(&o.log, ZR_ERR_MEMORY, "no memory for a trace");
    }
    trace->options = o;
    trace->options.process_name = name;
    atomic_init(&trace->is_on, o.from_start);
    *trace_p = trace;
    return ZR_OK;
}

void zr_trace_destroy(zr_trace_t **trace_pp) {
    if (trace_pp == NULL || *trace_pp == NULL)
        return;
    zr_trace_t *trace = *trace_pp;
    while (trace->first != NULL) {
        zr_trace_chunk_t *next = trace->first->next;
        free(trace->first);
        trace->first = next;
    }
    for (size_t i = 0; i < trace->n_names; i++)
        free(trace->names[i]);
    free(trace->names);
    free(trace->slots);
    free((void *)(uintptr_t)trace->options.process_name);
    pthread_mutex_destroy(&trace->lock);
    free(trace);
    *trace_pp = NULL;
}

bool zr_trace_is_on(const zr_trace_t *trace) {
    return trace != NULL && atomic_load_explicit(&trace->is_on, memory_order_relaxed);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Whether so many bytes more are within bounds; then they count. */
static bool take(zr_trace_t *trace, size_t size_bytes) {
    if (size_bytes > trace->options.most_bytes - trace->memory_bytes)
        return false;
    trace->memory_bytes += size_bytes;
    return true;
}

/* A new event of a kind; NULL: there is no memory, and there will not be any. */
static zr_trace_event_t *append(zr_trace_t *trace, zr_trace_event_kind_t kind, double begin) {
    if (trace->is_full)
        return NULL;
    if (trace->last == NULL || trace->last->n == ZR_TRACE_CHUNK_EVENTS) {
        zr_trace_chunk_t *chunk = take(trace, sizeof(*chunk)) ? malloc(sizeof(*chunk)) : NULL;
        if (chunk == NULL)
            return NULL;
        chunk->next = NULL;
        chunk->n = 0;
        *(trace->last == NULL ? &trace->first : &trace->last->next) = chunk;
        trace->last = chunk;
    }
    zr_trace_event_t *event = &trace->last->events[trace->last->n++];
    if (trace->n_events == 0 || begin < trace->first_time)
        trace->first_time = begin;
    *event = (zr_trace_event_t){.begin = begin,
                                .kind = (uint8_t)kind,
                                .place = trace->n_places,
                                .number = trace->n_events++};
    return event;
}

/* From now on nothing is recorded, so that what there is has no holes. */
static void end_recording(zr_trace_t *trace) {
    if (!trace->is_full)
        zr_log_write(&trace->options.log, ZR_LOG_WARNING,
                     "trace of %s: in step %zu the memory for %s (%s) is used up: later events are "
                     "dropped; record fewer steps",
                     trace->options.process_name, trace->newest_step,
                     zr_count_text(trace->n_events, "event").text,
                     zr_size_text(trace->memory_bytes).text);
    trace->is_full = true;
    trace->n_left_out++;
}

/* ---- names ----------------------------------------------------------------------------------- */

static uint32_t *find_slot(const zr_trace_t *trace, const char *text) {
    size_t mask = trace->n_slots - 1;
    size_t i = XXH3_64bits(text, strlen(text)) & mask;
    while (trace->slots[i] != 0 && strcmp(trace->names[trace->slots[i] - 1], text) != 0)
        i = (i + 1) & mask;
    return &trace->slots[i];
}

/* Room for one name more: half of the slots stay empty. */
static bool grow_names(zr_trace_t *trace) {
    if (2 * (trace->n_names + 1) <= trace->n_slots)
        return true;
    size_t n_slots = trace->n_slots == 0 ? 256 : 2 * trace->n_slots;
    if (!take(trace, n_slots * (sizeof(*trace->slots) + sizeof(*trace->names) / 2)))
        return false;
    char **names = realloc(trace->names, n_slots / 2 * sizeof(*names));
    if (names == NULL)
        return false;
    trace->names = names;
    uint32_t *slots = calloc(n_slots, sizeof(*slots));
    if (slots == NULL)
        return false;
    free(trace->slots);
    trace->slots = slots;
    trace->n_slots = n_slots;
    for (size_t i = 0; i < trace->n_names; i++)
        *find_slot(trace, trace->names[i]) = (uint32_t)i + 1;
    return true;
}

/* The number of a name; false: there is no memory for it. */
static bool intern(zr_trace_t *trace, const char *text, zr_trace_name_t *name_p) {
    *name_p = 0;
    if (text == NULL)
        return true;
    if (!grow_names(trace))
        return false;
    uint32_t *slot = find_slot(trace, text);
    if (*slot == 0) {
        char *copy = take(trace, strlen(text) + 1) ? strdup(text) : NULL;
        if (copy == NULL)
            return false;
        trace->names[trace->n_names] = copy;
        *slot = (uint32_t)++trace->n_names;
    }
    *name_p = *slot;
    return true;
}

/* ---- counters -------------------------------------------------------------------------------- */

static void record_count(zr_trace_t *trace, double now, const zr_trace_value_t *value) {
    zr_trace_event_t *event = append(trace, ZR_EVENT_COUNT, now);
    if (event == NULL) {
        end_recording(trace);
        return;
    }
    event->as.count.counter = value->counter;
    event->as.count.series = value->series;
    event->as.count.value = value->value;
}

static zr_trace_value_t *find_value(zr_trace_t *trace, zr_trace_name_t counter,
                                    zr_trace_name_t series) {
    for (size_t i = 0; i < trace->n_values; i++)
        if (trace->values[i].counter == counter && trace->values[i].series == series)
            return &trace->values[i];
    if (trace->n_values == ZR_TRACE_MOST_COUNTERS)
        return NULL;
    trace->values[trace->n_values] = (zr_trace_value_t){.counter = counter, .series = series};
    return &trace->values[trace->n_values++];
}

void zr_trace_count(zr_trace_t *trace, double now, const char *counter, const char *series,
                    size_t value) {
    zr_trace_name_t names[2];
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->lock);
    zr_trace_value_t *own = intern(trace, counter, &names[0]) && intern(trace, series, &names[1])
                                ? find_value(trace, names[0], names[1])
                                : NULL;
    if (own != NULL)
        own->value = value;
    if (own == NULL)
        end_recording(trace);
    else if (zr_trace_is_on(trace))
        record_count(trace, now, own);
    pthread_mutex_unlock(&trace->lock);
}

/* ---- places ---------------------------------------------------------------------------------- */

static void switch_on(zr_trace_t *trace, double now) {
    atomic_store_explicit(&trace->is_on, true, memory_order_relaxed);
    for (size_t i = 0; i < trace->n_values; i++)
        record_count(trace, now, &trace->values[i]);
}

static void record_place(zr_trace_t *trace, double now, const zr_trace_place_t *place) {
    zr_trace_name_t phase, unit;
    bool has_names = intern(trace, place->phase, &phase) && intern(trace, place->unit, &unit);
    zr_trace_event_t *event = has_names ? append(trace, ZR_EVENT_PLACE, now) : NULL;
    if (event == NULL) {
        end_recording(trace);
        return;
    }
    trace->n_places++;
    if (place->step != 0) {
        trace->first_step = trace->first_step != 0 ? trace->first_step : place->step;
        trace->last_step = place->step;
    }
    event->as.place.step = place->step;
    event->as.place.micro_batch = place->micro_batch;
    event->as.place.part = (uint32_t)place->part;
    event->as.place.phase = phase;
    event->as.place.unit = unit;
}

/* What lies between two steps is the earlier one's. */
static void go_to(zr_trace_t *trace, double now, const zr_trace_place_t *place) {
    bool was_on = zr_trace_is_on(trace);
    trace->step = place->step;
    if (place->step != 0) {
        bool is_on =
            place->step >= trace->options.first_step && place->step <= trace->options.last_step;
        trace->newest_step = place->step;
        if (is_on && !was_on)
            switch_on(trace, now);
        else
            atomic_store_explicit(&trace->is_on, is_on, memory_order_relaxed);
    }
    if (zr_trace_is_on(trace))
        record_place(trace, now, place);
    else if (was_on) /* which ends the last one that was recorded */
        record_place(trace, now, &(zr_trace_place_t){0});
}

void zr_trace_at(zr_trace_t *trace, double now, const zr_trace_place_t *place) {
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->lock);
    go_to(trace, now, place);
    pthread_mutex_unlock(&trace->lock);
}

void zr_trace_phase(zr_trace_t *trace, double now, const char *phase) {
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->lock);
    go_to(trace, now, &(zr_trace_place_t){.step = trace->step, .phase = phase});
    pthread_mutex_unlock(&trace->lock);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static void record_slice(zr_trace_t *trace, const zr_trace_slice_t *slice) {
    zr_trace_name_t lane, name, subject;
    bool has_names = intern(trace, slice->lane, &lane) && intern(trace, slice->name, &name) &&
                     intern(trace, slice->subject, &subject);
    zr_trace_event_t *event = has_names ? append(trace, ZR_EVENT_SLICE, slice->begin) : NULL;
    if (event == NULL) {
        end_recording(trace);
        return;
    }
    event->slice_kind = (uint8_t)slice->kind;
    if (slice->place != 0)
        event->place = (uint32_t)slice->place - 1;
    event->as.slice.end = slice->end > slice->begin ? slice->end : slice->begin;
    event->as.slice.bytes = slice->bytes;
    event->as.slice.operations = slice->operations;
    event->as.slice.lane = lane;
    event->as.slice.name = name;
    event->as.slice.subject = subject;
}

void zr_trace_slice(zr_trace_t *trace, const zr_trace_slice_t *slice) {
    if (!zr_trace_is_on(trace) && (trace == NULL || slice->place == 0))
        return;
    pthread_mutex_lock(&trace->lock);
    record_slice(trace, slice);
    pthread_mutex_unlock(&trace->lock);
}

size_t zr_trace_here(zr_trace_t *trace) {
    if (!zr_trace_is_on(trace))
        return 0;
    pthread_mutex_lock(&trace->lock);
    size_t place = (size_t)trace->n_places + 1;
    pthread_mutex_unlock(&trace->lock);
    return place;
}

void zr_trace_leave_out(zr_trace_t *trace) {
    pthread_mutex_lock(&trace->lock);
    trace->n_left_out++;
    pthread_mutex_unlock(&trace->lock);
}

/* ---- facts ----------------------------------------------------------------------------------- */

void zr_trace_say_times(zr_trace_t *trace, zr_trace_times_t times) {
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->lock);
    trace->has_times[times] = true;
    pthread_mutex_unlock(&trace->lock);
}

void zr_trace_set_origin(zr_trace_t *trace, double seconds) {
    if (trace == NULL)
        return;
    pthread_mutex_lock(&trace->lock);
    trace->has_origin = true;
    trace->origin = seconds;
    pthread_mutex_unlock(&trace->lock);
}

void zr_trace_info(const zr_trace_t *trace, zr_trace_info_t *info_p) {
    *info_p = (zr_trace_info_t){.n_events = trace->n_events,
                                .n_left_out = trace->n_left_out,
                                .first_step = trace->first_step,
                                .last_step = trace->last_step,
                                .first_time = trace->first_time,
                                .memory_bytes = trace->memory_bytes};
}
