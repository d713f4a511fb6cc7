/*
 * The file of a trace: see trace.h.
 *
 * Each recorder is a process of the viewer, each lane a thread of it. Slices of a thread have to
 * lie within each other or apart, so those of a lane that overlap, as transfers of a store do, are
 * spread over as many threads as it takes. Times are whole nanoseconds before they are compared:
 * what lies within something else does so in the file, too.
 *
 * Around a lane's kernels are slices of the places where they were queued: step, micro-batch or
 * phase, unit, part. The first thread, "schedule", has the places themselves.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/trace_internal.h"
#include "kernels/base/trace_json_internal.h"

#define NAME_BYTES 256
#define N_LEVELS 4
#define SCHEDULE "schedule"
#define NO_TIME INT64_MIN

/* From the top; any other lane is below these. */
static const char *const known_lanes[] = {
    "compute",        "host update",   "comm", "stash down", "stash up",
    "gradients down", "parameters up", "read", "write",      ZR_TRACE_STALLS};
#define N_KNOWN (sizeof(known_lanes) / sizeof(known_lanes[0]))

/* What will be one event: of a place (level 0 to 3), or of work. */
typedef struct bar {
    int64_t begin, end;
    int level; /* N_LEVELS: work */
    const zr_trace_event_t *place;
    const zr_trace_event_t *work; /* NULL: of a place */
} bar_t;

typedef struct bars {
    bar_t *all;
    size_t n, capacity;
} bars_t;

/* Places that are open in a thread. */
typedef struct open_places {
    const zr_trace_event_t *place; /* NULL: none */
    int64_t begin[N_LEVELS];
    int64_t end; /* of what lies within so far */
} open_places_t;

/* One process on its way into the file. */
typedef struct saving {
    const zr_trace_t *trace;
    zr_trace_json_t *json;
    double origin;
    const zr_trace_event_t **events; /* [n_events]: slices */
    size_t n_events;
    const zr_trace_event_t **places; /* [n_places] */
    size_t n_places;
    int n_threads; /* so far */
} saving_t;

static int64_t nanoseconds(const saving_t *saving, double seconds) {
    return (int64_t)llround((seconds - saving->origin) * 1e9);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Whether there is something at a level. */
static bool has_level(const zr_trace_event_t *event, int level) {
    if (event == NULL)
        return false;
    bool has_top = event->as.place.micro_batch != 0 || event->as.place.phase != 0;
    switch (level) {
    case 0:
        return event->as.place.step != 0;
    case 1:
        return has_top;
    case 2:
        return has_top && event->as.place.unit != 0;
    default:
        return has_top && event->as.place.unit != 0 && event->as.place.part != 0;
    }
}

/* Whether two places are the same at a level, given that they are above it. */
static bool is_same_level(const zr_trace_event_t *a, const zr_trace_event_t *b, int level) {
    if (has_level(a, level) != has_level(b, level))
        return false;
    if (!has_level(a, level))
        return true;
    switch (level) {
    case 0:
        return a->as.place.step == b->as.place.step;
    case 1:
        return a->as.place.micro_batch == b->as.place.micro_batch &&
               (a->as.place.micro_batch != 0 || a->as.place.phase == b->as.place.phase);
    case 2:
        return a->as.place.unit == b->as.place.unit && a->as.place.phase == b->as.place.phase;
    default:
        return a->as.place.part == b->as.place.part;
    }
}

static void write_title(const zr_trace_t *trace, const zr_trace_event_t *place, int level,
                        char *title) {
    const char *phase = zr_trace_text(trace, place->as.place.phase);
    const char *unit = zr_trace_text(trace, place->as.place.unit);
    bool is_micro_batch = place->as.place.micro_batch != 0;
    if (level == 0)
        snprintf(title, NAME_BYTES, "step %llu", (unsigned long long)place->as.place.step);
    else if (level == 1 && is_micro_batch)
        snprintf(title, NAME_BYTES, "micro-batch %llu",
                 (unsigned long long)place->as.place.micro_batch);
    else if (level == 1)
        snprintf(title, NAME_BYTES, "%s", phase);
    else if (level == 2)
        snprintf(title, NAME_BYTES, "%s%s%s", phase != NULL ? phase : "", phase != NULL ? " " : "",
                 unit);
    else
        snprintf(title, NAME_BYTES, "sub-group %u", place->as.place.part);
}

/* ---- bars ------------------------------------------------------------------------------------ */

static bool add_bar(bars_t *bars, bar_t bar) {
    if (bars->n == bars->capacity) {
        size_t capacity = bars->capacity == 0 ? 1024 : 2 * bars->capacity;
        bar_t *grown = realloc(bars->all, capacity * sizeof(*grown));
        if (grown == NULL)
            return false;
        bars->all = grown;
        bars->capacity = capacity;
    }
    bars->all[bars->n++] = bar;
    return true;
}

/* End what is open where `next` is somewhere else, and begin what it is in. */
static bool change_place(bars_t *bars, open_places_t *open, const zr_trace_event_t *next,
                         int64_t begin) {
    int first = 0;
    while (first < N_LEVELS && is_same_level(open->place, next, first))
        first++;
    for (int level = first; level < N_LEVELS; level++) {
        if (has_level(open->place, level) && !add_bar(bars, (bar_t){.begin = open->begin[level],
                                                                    .end = open->end,
                                                                    .level = level,
                                                                    .place = open->place}))
            return false;
        open->begin[level] = begin;
    }
    open->place = next;
    return true;
}

/* Those that begin first; of them those that others lie within. */
static int by_begin(const void *a, const void *b) {
    const bar_t *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end > y->end ? -1 : 1;
    return x->level - y->level;
}

static int by_time(const void *a, const void *b) {
    const zr_trace_event_t *x = *(const zr_trace_event_t *const *)a;
    const zr_trace_event_t *y = *(const zr_trace_event_t *const *)b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* ---- events of the file ---------------------------------------------------------------------- */

static const char *const kind_names[] = {"work", "collective", "transfer", "stall"};

/* Add what is known of a number; an error leaves a smaller event. */
static void add_number(json_t *args, const char *key, double value) {
    if (value != 0)
        (void)json_object_set_new(args, key, json_integer((json_int_t)value));
}

static json_t *args_of(const bar_t *bar) {
    json_t *args = json_object();
    if (args == NULL)
        return NULL;
    if (bar->place != NULL && bar->work != NULL) {
        add_number(args, "step", (double)bar->place->as.place.step);
        add_number(args, "micro_batch", (double)bar->place->as.place.micro_batch);
    }
    if (bar->work != NULL) {
        bool is_sent = bar->work->slice_kind == ZR_SLICE_COLLECTIVE;
        add_number(args, is_sent ? "sent_bytes" : "bytes", bar->work->as.slice.bytes);
        add_number(args, "operations", bar->work->as.slice.operations);
    }
    return args;
}

static zr_status_t put_bar(const saving_t *saving, int thread, const bar_t *bar) {
    char title[NAME_BYTES], name[NAME_BYTES];
    const char *category = "place";
    if (bar->work == NULL) {
        write_title(saving->trace, bar->place, bar->level, title);
    } else {
        const char *subject = zr_trace_text(saving->trace, bar->work->as.slice.subject);
        category = kind_names[bar->work->slice_kind];
        snprintf(title, NAME_BYTES, "%s%s%s",
                 zr_trace_text(saving->trace, bar->work->as.slice.name), subject != NULL ? " " : "",
                 subject != NULL ? subject : "");
    }
    return zr_trace_json_put(
        saving->json,
        json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name",
                  zr_trace_json_name(title, name, sizeof(name)), "cat", category, "ph", "X", "pid",
                  saving->trace->options.process, "tid", thread, "ts", (double)bar->begin / 1e3,
                  "dur", (double)(bar->end - bar->begin) / 1e3, "args", args_of(bar)));
}

static zr_status_t put_metadata(const saving_t *saving, const char *what, int thread,
                                json_t *args) {
    return zr_trace_json_put(
        saving->json, json_pack("{s:s, s:s, s:i, s:i, s:o}", "name", what, "ph", "M", "pid",
                                saving->trace->options.process, "tid", thread, "args", args));
}

/* A thread's name and place, and its bars in order. */
static zr_status_t put_thread(saving_t *saving, const char *name, bars_t *bars) {
    char shown[NAME_BYTES];
    int thread = ++saving->n_threads;
    zr_trace_json_name(name, shown, sizeof(shown));
    ZR_TRY(put_metadata(saving, "thread_name", thread, json_pack("{s:s}", "name", shown)));
    ZR_TRY(put_metadata(saving, "thread_sort_index", thread,
                        json_pack("{s:i}", "sort_index", thread)));
    if (bars->n > 1)
        qsort(bars->all, bars->n, sizeof(*bars->all), by_begin);
    for (size_t i = 0; i < bars->n; i++)
        ZR_TRY(put_bar(saving, thread, &bars->all[i]));
    return ZR_OK;
}

/* ---- threads --------------------------------------------------------------------------------- */

static bool list_places(const saving_t *saving, int64_t end, bars_t *bars) {
    open_places_t open = {0};
    for (size_t i = 0; i < saving->n_places; i++) {
        open.end = nanoseconds(saving, saving->places[i]->begin);
        if (!change_place(bars, &open, saving->places[i], open.end))
            return false;
    }
    open.end = end > open.end ? end : open.end;
    return change_place(bars, &open, NULL, open.end);
}

static zr_status_t put_schedule(saving_t *saving, int64_t end) {
    bars_t bars = {0};
    zr_status_t status = ZR_ERR_MEMORY;
    if (list_places(saving, end, &bars))
        status = put_thread(saving, SCHEDULE, &bars);
    free(bars.all);
    return status;
}

/* The place where something was queued. */
static const zr_trace_event_t *place_of(const saving_t *saving, const zr_trace_event_t *event) {
    return event->place == 0 ? NULL : saving->places[event->place - 1];
}

/*
 * Move those of `events` that have room behind each other to the bars of a thread, with their
 * places around them; what overlaps them stays.
 */
static bool take_thread(const saving_t *saving, const zr_trace_event_t **events, size_t *n_events,
                        bars_t *bars) {
    open_places_t open = {.end = NO_TIME};
    size_t n_left = 0;
    for (size_t i = 0; i < *n_events; i++) {
        const zr_trace_event_t *event = events[i];
        int64_t begin = nanoseconds(saving, event->begin);
        if (begin < open.end) {
            events[n_left++] = event;
            continue;
        }
        const zr_trace_event_t *place = place_of(saving, event);
        if (!change_place(bars, &open, event->slice_kind == ZR_SLICE_WORK ? place : NULL, begin))
            return false;
        open.end = nanoseconds(saving, event->as.slice.end);
        if (!add_bar(bars, (bar_t){.begin = begin,
                                   .end = open.end,
                                   .level = N_LEVELS,
                                   .place = place,
                                   .work = event}))
            return false;
    }
    *n_events = n_left;
    return change_place(bars, &open, NULL, open.end);
}

static zr_status_t put_lane(saving_t *saving, zr_trace_name_t lane,
                            const zr_trace_event_t **events) {
    const char *lane_name = zr_trace_text(saving->trace, lane);
    char name[NAME_BYTES];
    size_t n = 0;
    for (size_t i = 0; i < saving->n_events; i++)
        if (saving->events[i]->as.slice.lane == lane)
            events[n++] = saving->events[i];
    for (int k = 1; n > 0; k++) {
        bars_t bars = {0};
        zr_status_t status = ZR_ERR_MEMORY;
        snprintf(name, sizeof(name), k == 1 ? "%s" : "%s (%d)", lane_name, k);
        if (take_thread(saving, events, &n, &bars))
            status = put_thread(saving, name, &bars);
        free(bars.all);
        ZR_TRY(status);
    }
    return ZR_OK;
}

/* Where a lane stands among all: those that are known, then the others as they were first named. */
static size_t rank_of(const zr_trace_t *trace, zr_trace_name_t lane) {
    for (size_t i = 0; i < N_KNOWN; i++)
        if (strcmp(zr_trace_text(trace, lane), known_lanes[i]) == 0)
            return i;
    return N_KNOWN + lane;
}

/* The lane behind `after`, of those that have slices; 0: there is none. */
static zr_trace_name_t next_lane(const saving_t *saving, const bool *is_lane, size_t *after) {
    zr_trace_name_t best = 0;
    size_t best_rank = SIZE_MAX;
    for (size_t name = 1; name <= saving->trace->n_names; name++) {
        size_t rank = is_lane[name] ? rank_of(saving->trace, (zr_trace_name_t)name) : 0;
        if (is_lane[name] && rank + 1 > *after && rank < best_rank) {
            best_rank = rank;
            best = (zr_trace_name_t)name;
        }
    }
    *after = best_rank == SIZE_MAX ? SIZE_MAX : best_rank + 1;
    return best;
}

static zr_status_t put_lanes(saving_t *saving) {
    bool *is_lane = calloc(saving->trace->n_names + 1, sizeof(*is_lane));
    const zr_trace_event_t **events = calloc(saving->n_events + 1, sizeof(zr_trace_event_t *));
    zr_status_t status = is_lane != NULL && events != NULL ? ZR_OK : ZR_ERR_MEMORY;
    size_t after = 0;
    for (size_t i = 0; i < saving->n_events && status == ZR_OK; i++)
        is_lane[saving->events[i]->as.slice.lane] = true;
    for (zr_trace_name_t lane = 0; status == ZR_OK;) {
        lane = next_lane(saving, is_lane, &after);
        if (lane == 0)
            break;
        status = put_lane(saving, lane, events);
    }
    free(events);
    free(is_lane);
    return status;
}

static zr_status_t put_counts(const saving_t *saving) {
    char title[NAME_BYTES], name[NAME_BYTES];
    for (const zr_trace_chunk_t *chunk = saving->trace->first; chunk != NULL; chunk = chunk->next) {
        for (size_t i = 0; i < chunk->n; i++) {
            const zr_trace_event_t *event = &chunk->events[i];
            if (event->kind != ZR_EVENT_COUNT)
                continue;
            const char *series = zr_trace_text(saving->trace, event->as.count.series);
            snprintf(title, sizeof(title), "%s%s%s",
                     zr_trace_text(saving->trace, event->as.count.counter),
                     series != NULL ? ": " : "", series != NULL ? series : "");
            ZR_TRY(zr_trace_json_put(
                saving->json, json_pack("{s:s, s:s, s:i, s:f, s:{s:I}}", "name",
                                        zr_trace_json_name(title, name, sizeof(name)), "ph", "C",
                                        "pid", saving->trace->options.process, "ts",
                                        (double)nanoseconds(saving, event->begin) / 1e3, "args",
                                        "bytes", (json_int_t)event->as.count.value)));
        }
    }
    return ZR_OK;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* Tell slices from places, in order of time; and the last time there is. */
static zr_status_t sort_events(saving_t *saving, int64_t *end_p) {
    const zr_trace_t *trace = saving->trace;
    saving->events = calloc(trace->n_events + 1, sizeof(zr_trace_event_t *));
    saving->places = calloc((size_t)trace->n_places + 1, sizeof(zr_trace_event_t *));
    if (saving->events == NULL || saving->places == NULL)
        return ZR_ERR_MEMORY;
    for (const zr_trace_chunk_t *chunk = trace->first; chunk != NULL; chunk = chunk->next) {
        for (size_t i = 0; i < chunk->n; i++) {
            const zr_trace_event_t *event = &chunk->events[i];
            int64_t end = nanoseconds(saving, event->kind == ZR_EVENT_SLICE ? event->as.slice.end
                                                                            : event->begin);
            *end_p = end > *end_p ? end : *end_p;
            if (event->kind == ZR_EVENT_SLICE)
                saving->events[saving->n_events++] = event;
            else if (event->kind == ZR_EVENT_PLACE)
                saving->places[saving->n_places++] = event;
        }
    }
    qsort(saving->events, saving->n_events, sizeof(saving->events[0]), by_time);
    return ZR_OK;
}

static zr_status_t put_process(const zr_trace_t *trace, double origin, zr_trace_json_t *json) {
    saving_t saving = {.trace = trace, .json = json, .origin = origin};
    char name[NAME_BYTES];
    int64_t end = 0;
    zr_trace_json_name(trace->options.process_name, name, sizeof(name));
    zr_status_t status = sort_events(&saving, &end);
    ZR_THEN(status, put_metadata(&saving, "process_name", 0, json_pack("{s:s}", "name", name)));
    if (status == ZR_OK)
        status = put_metadata(&saving, "process_sort_index", 0,
                              json_pack("{s:i}", "sort_index", trace->options.process));
    ZR_THEN(status, put_schedule(&saving, end));
    ZR_THEN(status, put_lanes(&saving));
    ZR_THEN(status, put_counts(&saving));
    free(saving.events);
    free(saving.places);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* What a viewer shows of the whole: what times are, and what is not there. */
static json_t *about(zr_trace_t *const *traces, size_t n_traces) {
    static const char *const times[] = {"measured: when work ran",
                                        "queued: when the rank's thread queued work; it ran later, "
                                        "as this device does not report times",
                                        "virtual: of a simulation's clock"};
    json_t *all = json_object();
    for (size_t i = 0; i < n_traces && all != NULL; i++) {
        const zr_trace_t *trace = traces[i];
        const zr_trace_options_t *o = &trace->options;
        char name[NAME_BYTES];
        json_t *own =
            json_pack("{s:I, s:I, s:I, s:I}", "first_step", (json_int_t)trace->first_step,
                      "last_step", (json_int_t)trace->last_step, "events",
                      (json_int_t)trace->n_events, "left_out", (json_int_t)trace->n_left_out);
        for (int k = 0; k < 3 && own != NULL; k++)
            if (trace->has_times[k])
                (void)json_object_set_new(own, "times", json_string(times[k]));
        zr_trace_json_name(o->process_name, name, sizeof(name));
        if (json_object_set_new(all, name, own) != 0) {
            json_decref(all);
            all = NULL;
        }
    }
    return all;
}

static zr_status_t write_all(zr_trace_t *const *traces, size_t n_traces, FILE *file) {
    zr_trace_json_t json;
    double origin = INFINITY;
    for (size_t i = 0; i < n_traces; i++)
        origin = traces[i]->n_events == 0 ? origin : fmin(origin, traces[i]->first_time);
    ZR_TRY(zr_trace_json_begin(file, about(traces, n_traces), &json));
    for (size_t i = 0; i < n_traces; i++) {
        double own = traces[i]->has_origin ? traces[i]->origin : origin;
        ZR_TRY(put_process(traces[i], isfinite(own) ? own : 0, &json));
    }
    return zr_trace_json_end(&json);
}

/* Beside the file that is there until the new one is whole. NULL: no memory. */
static char *partial_path(const char *path) {
    const char *slash = strrchr(path, '/');
    int n_folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    size_t size = strlen(path) + 48;
    char *partial = malloc(size);
    if (partial != NULL)
        snprintf(partial, size, "%.*s.%s.partial-%ld", n_folder, path, path + n_folder,
                 (long)getpid());
    return partial;
}

/* Write, and close; errno says what an error was. */
static zr_status_t fill(zr_trace_t *const *traces, size_t n_traces, FILE *file) {
    zr_status_t status = write_all(traces, n_traces, file);
    if (status == ZR_OK && fflush(file) != 0)
        status = ZR_ERR_IO;
    int error = errno;
    if (fclose(file) != 0 && status == ZR_OK)
        return ZR_ERR_IO;
    errno = error;
    return status;
}

static zr_status_t replace(zr_trace_t *const *traces, size_t n_traces, const char *path) {
    char *partial = partial_path(path);
    if (partial == NULL)
        return ZR_ERR_MEMORY;
    FILE *file = fopen(partial, "wbe");
    zr_status_t status = file == NULL ? ZR_ERR_IO : fill(traces, n_traces, file);
    if (status == ZR_OK && rename(partial, path) != 0)
        status = ZR_ERR_IO;
    int error = errno;
    if (status != ZR_OK)
        unlink(partial);
    errno = error;
    free(partial);
    return status;
}

/* What is there is a file, or nothing is; a link leads to what is meant. */
static zr_status_t save(zr_trace_t *const *traces, size_t n_traces, const char *path) {
    struct stat about_path;
    if (stat(path, &about_path) == 0 && !S_ISREG(about_path.st_mode)) {
        FILE *file = fopen(path, "wbe");
        return file == NULL ? ZR_ERR_IO : fill(traces, n_traces, file);
    }
    char *target = realpath(path, NULL);
    zr_status_t status = replace(traces, n_traces, target != NULL ? target : path);
    int error = errno;
    free(target);
    errno = error;
    return status;
}

zr_status_t zr_trace_save(zr_trace_t *const *traces, size_t n_traces, const char *path,
                          const zr_log_t *log) {
    if (path == NULL || (traces == NULL && n_traces > 0))
        return zr_fail(log, ZR_ERR_ARGUMENT, "saving traces needs a path, and the traces");
    errno = 0;
    zr_status_t status = save(traces, n_traces, path);
    if (status == ZR_ERR_MEMORY)
        return zr_fail(log, status, "trace %s: no memory to write it", path);
    if (status != ZR_OK)
        return zr_fail(log, status, "cannot write trace %s: %s", path, strerror(errno));
    return ZR_OK;
}
