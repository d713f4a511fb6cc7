/*
 * The virtual clock: see simulation.h.
 *
 * A part keeps the stretches of time in which it is busy from now on, in order and apart from each
 * other; what lies before now is forgotten, and stretches that touch become one. Of a stream of
 * work without gaps one stretch is left, so there are few, and looking for room is quick.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim_clock.h"

zr_status_t zr_sim_clock_create(const zr_log_t *log, zr_sim_clock_t **clock_p) {
    zr_sim_clock_t *clock = calloc(1, sizeof(*clock));
    if (clock == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a virtual clock (%zu bytes)",
                       sizeof(*clock));
    clock->log = log != NULL ? *log : zr_log_default();
    *clock_p = clock;
    return ZR_OK;
}

void zr_sim_clock_destroy(zr_sim_clock_t **clock) {
    if (clock == NULL || *clock == NULL)
        return;
    for (int i = 0; i < ZR_N_SIM_PARTS; i++)
        free((*clock)->parts[i].stretches);
    free(*clock);
    *clock = NULL;
}

double zr_sim_clock_now(const zr_sim_clock_t *clock) {
    return clock->now;
}

double zr_sim_clock_busy(const zr_sim_clock_t *clock, zr_sim_part_t part) {
    return clock->parts[part].busy;
}

void zr_sim_clock_observe(zr_sim_clock_t *clock, zr_sim_span_fn observer, void *context) {
    clock->observer = observer;
    clock->observer_context = context;
    clock->again = NULL;
}

void zr_sim_clock_observe_again(zr_sim_clock_t *clock, zr_sim_again_fn again) {
    clock->again = again;
}

/* When all that a part was given is done; 0: it was given nothing. */
static double end_of_part(const zr_sim_part_time_t *part) {
    return part->n > 0 ? part->stretches[part->n - 1].end : 0;
}

void zr_sim_clock_rest(zr_sim_clock_t *clock) {
    for (int i = 0; i < ZR_N_SIM_PARTS; i++)
        zr_sim_clock_wait(clock, end_of_part(&clock->parts[i]));
}

void zr_sim_clock_keep(zr_sim_clock_t *clock, zr_sim_tape_t *tape) {
    clock->tape = tape;
    if (tape == NULL)
        return;
    *tape = (zr_sim_tape_t){
        .ops = tape->ops, .capacity = tape->capacity, .first_record = clock->n_records};
    for (int i = 0; i < ZR_N_SIM_PARTS; i++)
        tape->was_busy |= end_of_part(&clock->parts[i]) > clock->now;
}

zr_sim_tape_t *zr_sim_clock_tape(const zr_sim_clock_t *clock) {
    return clock->tape;
}

uint32_t zr_sim_number_queue(zr_sim_clock_t *clock) {
    return clock->n_queues++;
}

uint32_t zr_sim_number_drive(zr_sim_clock_t *clock) {
    return clock->n_drives++;
}

size_t zr_sim_number_record(zr_sim_clock_t *clock) {
    return ++clock->n_records;
}

void zr_sim_clock_wait(zr_sim_clock_t *clock, double until) {
    if (until > clock->now)
        clock->now = until;
}

void zr_sim_clock_spend(zr_sim_clock_t *clock, double seconds) {
    clock->now += seconds;
}

/* ---- a part's time --------------------------------------------------------------------------- */

size_t zr_sim_part_first_after(const zr_sim_part_time_t *part, double time) {
    size_t low = 0, high = part->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (part->stretches[middle].end <= time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#define LEAST_PAST 16

/* Nothing begins before now any more. What has passed is in nobody's way, and is dropped when it is
 * half of all, so that each stretch is moved about once. */
static void forget_past(zr_sim_part_time_t *part, double now) {
    size_t least = part->n / 2 > LEAST_PAST ? part->n / 2 : LEAST_PAST;
    if (part->n < least || part->stretches[least - 1].end > now)
        return;
    size_t n_past = zr_sim_part_first_after(part, now);
    part->n -= n_past;
    part->n_forgotten += n_past;
    memmove(part->stretches, part->stretches + n_past, part->n * sizeof(*part->stretches));
}

/* The first stretch behind the earliest room for so many seconds, and when that begins. */
static size_t find_room(zr_sim_part_time_t *part, double earliest, double seconds,
                        double *begin_p) {
    size_t next = end_of_part(part) <= earliest ? part->n : zr_sim_part_first_after(part, earliest);
    size_t seen = part->n_forgotten + (next > 0 ? next - 1 : 0);
    double begin = earliest;
    if (seen < part->first_seen)
        part->first_seen = seen;
    while (next < part->n && part->stretches[next].begin < begin + seconds) {
        if (part->stretches[next].end > begin)
            begin = part->stretches[next].end;
        next++;
    }
    *begin_p = begin;
    return next;
}

bool zr_sim_part_reserve(zr_sim_part_time_t *part, size_t n) {
    size_t capacity = part->capacity != 0 ? part->capacity : 16;
    if (n <= part->capacity)
        return true;
    while (capacity < n)
        capacity *= 2;
    zr_sim_stretch_t *grown = realloc(part->stretches, capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    part->stretches = grown;
    part->capacity = capacity;
    return true;
}

/* Make [begin, end) busy, before stretch `next`. Without memory to note it, the gap before it is
 * counted as busy, too, which is later than true. */
static void take_room(zr_sim_part_time_t *part, size_t next, double begin, double end) {
    zr_sim_stretch_t *stretches = part->stretches;
    bool joins_last = next > 0 && stretches[next - 1].end >= begin;
    bool joins_next = next < part->n && stretches[next].begin <= end;
    if (joins_last && joins_next) {
        stretches[next - 1].end = stretches[next].end;
        part->n--;
        memmove(stretches + next, stretches + next + 1, (part->n - next) * sizeof(*stretches));
    } else if (joins_last) {
        stretches[next - 1].end = end;
    } else if (joins_next) {
        stretches[next].begin = begin;
    } else if (zr_sim_part_reserve(part, part->n + 1)) {
        stretches = part->stretches;
        memmove(stretches + next + 1, stretches + next, (part->n - next) * sizeof(*stretches));
        stretches[next] = (zr_sim_stretch_t){begin, end};
        part->n++;
    } else if (next > 0) {
        stretches[next - 1].end = end;
    }
}

void zr_sim_clock_tell_update(zr_sim_clock_t *clock, bool is_update) {
    clock->is_update = is_update;
}

double zr_sim_clock_work(zr_sim_clock_t *clock, zr_sim_part_t part_number, const char *name,
                         double earliest, double seconds) {
    zr_sim_part_time_t *part = &clock->parts[part_number];
    double begin = 0.0;
    if (earliest < clock->now)
        earliest = clock->now;
    forget_past(part, clock->now);
    size_t next = find_room(part, earliest, seconds, &begin);
    if (seconds > 0.0)
        take_room(part, next, begin, begin + seconds);
    part->busy += seconds;
    if (clock->observer != NULL) {
        const zr_sim_span_t span = {.part = part_number,
                                    .name = name,
                                    .begin = begin,
                                    .end = begin + seconds,
                                    .is_update = clock->is_update};
        clock->observer(clock->observer_context, &span);
    }
    return begin + seconds;
}
