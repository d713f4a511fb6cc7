/*
 * Work is kept as intervals, joined where they meet. A part's exposed time is what its intervals
 * add to those of the parts before it, so that all of them and the rest are the step. No work
 * begins before the clock's time: what lies before that is counted now and then, and forgotten.
 */
#include "zero/plan/watch_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct interval {
    double begin, end;
} interval_t;

typedef struct intervals {
    interval_t *all;
    size_t n, capacity;
} intervals_t;

struct zr_run_watch {
    zr_sim_clock_t *clock;
    zr_run_spans_t *spans; /* NULL: not wanted */
    intervals_t parts[ZR_RUN_N_PARTS];
    size_t n_many;   /* intervals of a part, when it is time to count */
    bool is_counted; /* the step's times are wanted */
    double counted;  /* until when they are below */
    zr_run_times_t times;
    bool has_failed;
};

#define LEAST_MANY 4096

const char *zr_run_part_name(zr_run_part_t part) {
    static const char *const names[] = {"compute", "update", "communication", "host_link", "disk"};
    return names[part];
}

/* ---- intervals ------------------------------------------------------------------------------- */

/* Room for one more of n. */
static bool grow(void *all_p, size_t n, size_t *capacity_p, size_t elem_bytes) {
    void **all = all_p;
    size_t capacity = *capacity_p == 0 ? 256 : 2 * *capacity_p;
    if (n < *capacity_p)
        return true;
    void *grown = realloc(*all, capacity * elem_bytes);
    if (grown == NULL)
        return false;
    *all = grown;
    *capacity_p = capacity;
    return true;
}

static bool append(intervals_t *list, interval_t interval) {
    if (list->n > 0 && list->all[list->n - 1].end == interval.begin) {
        list->all[list->n - 1].end = interval.end;
        return true;
    }
    if (!grow(&list->all, list->n, &list->capacity, sizeof(interval)))
        return false;
    list->all[list->n++] = interval;
    return true;
}

static int by_begin(const void *a, const void *b) {
    double x = ((const interval_t *)a)->begin, y = ((const interval_t *)b)->begin;
    return x < y ? -1 : x > y;
}

static bool is_sorted(const intervals_t *list) {
    for (size_t i = 1; i < list->n; i++)
        if (list->all[i].begin < list->all[i - 1].begin)
            return false;
    return true;
}

/* Add sorted intervals to sorted ones. */
static bool merge(intervals_t *list, const intervals_t *added) {
    intervals_t both = {0};
    bool made = true;
    for (size_t i = 0, j = 0; i < list->n || j < added->n;) {
        bool is_old = j == added->n || (i < list->n && list->all[i].begin <= added->all[j].begin);
        made &= append(&both, is_old ? list->all[i++] : added->all[j++]);
    }
    free(list->all);
    *list = both;
    return made;
}

/* Sort, and join what overlaps; the seconds that are covered. */
static double join(intervals_t *list) {
    double covered = 0;
    size_t n = 0;
    if (!is_sorted(list))
        qsort(list->all, list->n, sizeof(*list->all), by_begin);
    for (size_t i = 0; i < list->n; i++) {
        interval_t next = list->all[i];
        if (n > 0 && next.begin <= list->all[n - 1].end) {
            if (next.end > list->all[n - 1].end)
                list->all[n - 1].end = next.end;
        } else {
            list->all[n++] = next;
        }
    }
    list->n = n;
    for (size_t i = 0; i < n; i++)
        covered += list->all[i].end - list->all[i].begin;
    return covered;
}

/* Keep what lies within a time. */
static void cut(intervals_t *list, double begin, double end) {
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        interval_t own = list->all[i];
        own.begin = own.begin < begin ? begin : own.begin;
        own.end = own.end > end ? end : own.end;
        if (own.begin < own.end)
            list->all[n++] = own;
    }
    list->n = n;
}

/* ---- watching -------------------------------------------------------------------------------- */

zr_run_part_t zr_run_part_of(const zr_sim_span_t *span) {
    switch (span->part) {
    case ZR_SIM_NETWORK:
        return ZR_RUN_COMMUNICATION;
    case ZR_SIM_TO_DEVICE:
    case ZR_SIM_TO_HOST:
        return ZR_RUN_HOST_LINK;
    case ZR_SIM_DISK_READ:
    case ZR_SIM_DISK_WRITE:
    case ZR_SIM_DISK:
        return ZR_RUN_DISK;
    case ZR_SIM_HOST:
        return strcmp(span->name, "checksum") == 0 ? ZR_RUN_DISK : ZR_RUN_UPDATE;
    default:
        return span->is_update ? ZR_RUN_UPDATE : ZR_RUN_COMPUTE;
    }
}

/* Add what one part did until then to `all`, and its times. */
static bool count_part(zr_run_watch_t *watch, int part, double until, intervals_t *all,
                       double *covered) {
    const intervals_t *own = &watch->parts[part];
    intervals_t within = {0};
    bool made = true;
    for (size_t i = 0; i < own->n; i++)
        made &= append(&within, own->all[i]);
    cut(&within, watch->counted, until);
    watch->times.busy[part] += join(&within);
    made &= merge(all, &within);
    double with_own = join(all);
    watch->times.exposed[part] += with_own - *covered;
    *covered = with_own;
    free(within.all);
    return made;
}

static void count(zr_run_watch_t *watch) {
    double now = zr_sim_clock_now(watch->clock), covered = 0;
    intervals_t all = {0};
    size_t most = 0;
    for (int part = 0; part < ZR_RUN_N_PARTS; part++) {
        if (watch->is_counted)
            watch->has_failed |= !count_part(watch, part, now, &all, &covered);
        cut(&watch->parts[part], now, INFINITY);
        most = watch->parts[part].n > most ? watch->parts[part].n : most;
    }
    free(all.all);
    watch->times.idle += now - watch->counted - covered;
    watch->counted = now;
    watch->n_many = most < LEAST_MANY / 2 ? LEAST_MANY : 2 * most;
}

void zr_run_spans_free(zr_run_spans_t *spans) {
    free(spans->all);
    *spans = (zr_run_spans_t){0};
}

static bool keep_span(zr_run_spans_t *spans, const zr_sim_span_t *span) {
    if (!grow(&spans->all, spans->n, &spans->capacity, sizeof(*span)))
        return false;
    spans->all[spans->n++] = *span;
    return true;
}

/* Keep what lies within a time. */
static void cut_spans(zr_run_spans_t *spans, double begin, double end) {
    size_t n = 0;
    for (size_t i = 0; i < spans->n; i++) {
        zr_sim_span_t own = spans->all[i];
        own.begin = own.begin < begin ? begin : own.begin;
        own.end = own.end > end ? end : own.end;
        if (own.begin < own.end)
            spans->all[n++] = own;
    }
    spans->n = n;
    spans->begin = begin;
    spans->end = end;
}

static void observe(void *context, const zr_sim_span_t *span) {
    zr_run_watch_t *watch = context;
    if (watch->spans != NULL && !keep_span(watch->spans, span))
        watch->has_failed = true;
    intervals_t *list = &watch->parts[zr_run_part_of(span)];
    if (!append(list, (interval_t){span->begin, span->end}))
        watch->has_failed = true;
    if (list->n >= watch->n_many)
        count(watch);
}

/* As one by one, but what meets in a round is joined once. */
static void observe_again(void *context, const zr_sim_span_t *spans, size_t n, size_t n_times,
                          double seconds) {
    zr_run_watch_t *watch = context;
    intervals_t round[ZR_RUN_N_PARTS] = {{0}};
    for (size_t i = 0; i < n; i++)
        if (!append(&round[zr_run_part_of(&spans[i])], (interval_t){spans[i].begin, spans[i].end}))
            watch->has_failed = true;
    for (int part = 0; part < ZR_RUN_N_PARTS; part++) {
        (void)join(&round[part]);
        for (size_t time = 1; time <= n_times; time++)
            for (size_t i = 0; i < round[part].n; i++) {
                interval_t own = round[part].all[i];
                double later = (double)time * seconds;
                if (!append(&watch->parts[part], (interval_t){own.begin + later, own.end + later}))
                    watch->has_failed = true;
            }
        free(round[part].all);
    }
}

zr_run_watch_t *zr_run_watch_create(zr_sim_clock_t *clock, zr_run_spans_t *spans) {
    zr_run_watch_t *watch = calloc(1, sizeof(*watch));
    if (watch == NULL)
        return NULL;
    watch->clock = clock;
    watch->spans = spans;
    watch->counted = zr_sim_clock_now(clock);
    watch->n_many = LEAST_MANY;
    zr_sim_clock_observe(clock, observe, watch);
    if (spans == NULL)
        zr_sim_clock_observe_again(clock, observe_again);
    return watch;
}

void zr_run_watch_destroy(zr_run_watch_t **watch) {
    if (*watch == NULL)
        return;
    zr_sim_clock_observe((*watch)->clock, NULL, NULL);
    for (int part = 0; part < ZR_RUN_N_PARTS; part++)
        free((*watch)->parts[part].all);
    free(*watch);
    *watch = NULL;
}

void zr_run_watch_begin(zr_run_watch_t *watch, bool is_counted) {
    watch->is_counted = false;
    count(watch);
    watch->is_counted = is_counted;
    watch->times = (zr_run_times_t){0};
    if (watch->spans != NULL)
        cut_spans(watch->spans, zr_sim_clock_now(watch->clock), INFINITY);
}

bool zr_run_watch_end(zr_run_watch_t *watch, zr_run_times_t *times_p) {
    count(watch);
    if (watch->spans != NULL)
        cut_spans(watch->spans, watch->spans->begin, zr_sim_clock_now(watch->clock));
    *times_p = watch->times;
    return !watch->has_failed;
}
