/*
 * Rounds of the same work on a machine, most of which need not be asked.
 *
 * What later rounds depend on is a machine's state: some times and numbers (look_t). Each grows by
 * the same from round to round, in time, and not all by as much: a thread that is not waited for
 * runs away from the device. A round adds to times, and takes the later, or the first that fits:
 * comparisons of what grows evenly, so that one that comes out alike now and in the last round
 * comes out alike in all between. So the machine is put before its last round, as it would be if
 * all went on evenly. If it is after that round as if it had, then it had.
 *
 * Of a part's stretches of time those count that a round has looked at, and that are not over. What
 * is behind them is not looked at again; it is left there for each round.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/sim/sim_clock.h"
#include "kernels/sim/sim_machine.h"

#define N_LOOKS 3          /* rounds in a row that have to be alike */
#define LEAST_ROUNDS 8     /* that are left, or a leap is not worth it */
#define MOST_REMEMBERED 16 /* rounds back that one asks for events of */
#define NEAR 2e-13 /* of a time: rounding in the sums of a round, which are of earlier ones */
#define FAR 1e-11  /* likewise, and in those of what was added for all rounds */

/* ---- what rounds ask for --------------------------------------------------------------------- */

/* What an op of a round tells of. */
typedef struct name {
    size_t place, name;
} name_t;

/* Events that others recorded are asked for from round to round, or are those of rounds shortly
 * before. */
typedef struct needs {
    size_t n_new;        /* records of a round */
    size_t n_remembered; /* before a round, that it may ask for; at least n_new */
    name_t *others;      /* [n_others] of events that others recorded */
    size_t n_others;
} needs_t;

static bool asks_for_event(const zr_sim_op_t *op, size_t i) {
    bool is_own = op->kind == ZR_SIM_OP_FOLLOW || op->kind == ZR_SIM_OP_AWAIT_EVENT ||
                  op->kind == ZR_SIM_OP_ASK_EVENT;
    return i == ZR_SIM_OWN ? is_own : i == ZR_SIM_EVENT;
}

/* false: of something that does not go on from round to round. */
static bool note_name(needs_t *needs, const zr_sim_round_t *round, size_t place, size_t i,
                      size_t n_before) {
    const zr_sim_op_t *op = &round->ops[place];
    size_t further = round->further[place][i];
    size_t n_back = op->records[i] <= n_before ? n_before - op->records[i] + 1 : 0;
    if (further == 0)
        return true;
    if (further == needs->n_new && n_back <= MOST_REMEMBERED * needs->n_new) {
        needs->n_remembered = n_back > needs->n_remembered ? n_back : needs->n_remembered;
        return true;
    }
    needs->others[needs->n_others++] = (name_t){place, i};
    return asks_for_event(op, i);
}

/* Before a round. false: these rounds are asked one by one. */
static bool find_needs(needs_t *needs, const zr_sim_round_t *round, size_t n_before) {
    for (size_t place = 0; place < round->n; place++) {
        zr_sim_op_kind_t kind = round->ops[place].kind;
        if (kind == ZR_SIM_OP_MARK)
            return false;
        needs->n_new += kind == ZR_SIM_OP_RECORD || kind == ZR_SIM_OP_START;
    }
    needs->n_remembered = needs->n_new;
    for (size_t place = 0; place < round->n; place++)
        for (size_t i = 0; i < zr_sim_n_names(&round->ops[place]); i++)
            if (!note_name(needs, round, place, i, n_before))
                return false;
    return true;
}

/* ---- a state --------------------------------------------------------------------------------- */

/* What a machine was like after a round. */
typedef struct look {
    double *values; /* [n] that grow: of the round's spans, and then of the state */
    size_t n, capacity;
    uint64_t *kinds; /* [n_kinds] likewise, what is the same in each round */
    size_t n_kinds, kinds_capacity;
    size_t n_spans;
    bool has_failed; /* no memory */
} look_t;

static void add_value(zr_heap_t *heap, look_t *look, double value) {
    look->has_failed |=
        !zr_heap_make_room(heap, &look->values, look->n, &look->capacity, sizeof(*look->values));
    if (!look->has_failed)
        look->values[look->n++] = value;
}

static void add_kind(zr_heap_t *heap, look_t *look, uint64_t kind) {
    look->has_failed |= !zr_heap_make_room(heap, &look->kinds, look->n_kinds, &look->kinds_capacity,
                                           sizeof(*look->kinds));
    if (!look->has_failed)
        look->kinds[look->n_kinds++] = kind;
}

/* Goes through a state, to look at it or to set it. */
typedef struct visitor {
    zr_heap_t *heap;
    look_t *look;
    const double *values; /* to set, from here on; NULL: it looks */
} visitor_t;

static void visit(visitor_t *visitor, double *value) {
    if (visitor->values != NULL)
        *value = *visitor->values++;
    else
        add_value(visitor->heap, visitor->look, *value);
}

static void visit_number(visitor_t *visitor, size_t *number) {
    double value = (double)*number;
    visit(visitor, &value);
    *number = (size_t)(value + 0.5);
}

static void visit_kind(visitor_t *visitor, uint64_t kind) {
    if (visitor->values == NULL)
        add_kind(visitor->heap, visitor->look, kind);
}

/* The last stretches of a part that later rounds may look at. */
static size_t n_last(const zr_sim_clock_t *clock, const zr_sim_part_time_t *part) {
    size_t first = part->first_seen < part->n_forgotten ? 0 : part->first_seen - part->n_forgotten;
    size_t present = zr_sim_part_first_after(part, clock->now);
    first = first > present ? first : present;
    if (first >= part->n)
        return part->n > 0 ? 1 : 0;
    return part->n - first;
}

static size_t end_of(const zr_sim_part_time_t *part) {
    return part->n_forgotten + part->n;
}

static void visit_part(visitor_t *visitor, const zr_sim_clock_t *clock, zr_sim_part_time_t *part) {
    size_t n = n_last(clock, part);
    visit_kind(visitor, n);
    for (size_t i = part->n - n; i < part->n; i++) {
        visit(visitor, &part->stretches[i].begin);
        visit(visitor, &part->stretches[i].end);
    }
    visit(visitor, &part->busy);
}

static void visit_drive(visitor_t *visitor, zr_sim_drive_t *drive) {
    for (int turn = 0; turn < ZR_SIM_LAST_TURN; turn++)
        visit(visitor, &drive->ends_alone[turn]);
    visit_kind(visitor, drive->n);
    for (size_t i = 0; i < drive->n; i++) {
        visit(visitor, &drive->in_flight[i].end);
        visit(visitor, &drive->in_flight[i].after);
        visit_number(visitor, &drive->in_flight[i].record);
    }
    visit_kind(visitor, drive->waiting.n);
    for (size_t i = 0; i < drive->waiting.n; i++) {
        zr_sim_op_t *op = &drive->held[drive->waiting.things[i].number].op;
        visit_kind(visitor, op->line);
        visit_kind(visitor, op->turn);
        visit_kind(visitor, op->part);
        visit(visitor, &op->seconds);
        visit(visitor, &op->of_both);
        visit(visitor, &op->passes);
        for (size_t name = 0; name < ZR_N_SIM_NAMES; name++)
            visit_number(visitor, &op->records[name]);
    }
}

static void visit_state(visitor_t *visitor, zr_sim_machine_t *machine, size_t n_remembered) {
    zr_sim_clock_t *clock = machine->clock;
    for (int i = 0; i < ZR_N_SIM_PARTS; i++) /* by what is now, before that is set */
        visit_part(visitor, clock, &clock->parts[i]);
    visit(visitor, &clock->now);
    for (uint32_t i = 0; i < machine->n_queues; i++) {
        visit(visitor, &machine->queues[i].ready);
        visit(visitor, &machine->queues[i].begin);
    }
    for (uint32_t i = 0; i < machine->n_drives; i++)
        visit_drive(visitor, machine->drives[i]);
    for (size_t i = 0; i < n_remembered; i++)
        visit(visitor, &machine->passes[machine->n_records - i]);
}

/* ---- looking --------------------------------------------------------------------------------- */

typedef struct leap {
    zr_heap_t *heap; /* of all that is needed meanwhile */
    zr_sim_machine_t *machine;
    zr_sim_round_t *round;
    needs_t needs;
    look_t looks[N_LOOKS]; /* the last ones, of rounds in a row */
    look_t far;            /* of the last round */
    double *later;         /* values, while a machine is set to them */
    zr_sim_machine_t twin; /* is ahead */
} leap_t;

/* Where each part ended before a round. */
typedef struct ends {
    size_t of[ZR_N_SIM_PARTS];
} ends_t;

/* Who sees the spans of a round that is looked at. */
typedef struct recorder {
    zr_heap_t *heap;
    look_t *look;
    zr_sim_span_fn observer;
    void *context;
} recorder_t;

static void record_span(void *context, const zr_sim_span_t *span) {
    recorder_t *recorder = context;
    add_value(recorder->heap, recorder->look, span->begin);
    add_value(recorder->heap, recorder->look, span->end);
    add_kind(recorder->heap, recorder->look, (uint64_t)(uintptr_t)span->name);
    add_kind(recorder->heap, recorder->look, 2 * (uint64_t)span->part + span->is_update);
    recorder->look->n_spans++;
    if (recorder->observer != NULL)
        recorder->observer(recorder->context, span);
}

static ends_t begin_looking(zr_sim_clock_t *clock) {
    ends_t ends;
    for (int i = 0; i < ZR_N_SIM_PARTS; i++) {
        clock->parts[i].first_seen = SIZE_MAX;
        ends.of[i] = end_of(&clock->parts[i]);
    }
    return ends;
}

/* One round, and what the machine is like after it. false: as zr_sim_machine_go_round. */
static bool go_and_look(leap_t *leap, zr_sim_machine_t *machine, look_t *look) {
    zr_sim_clock_t *clock = machine->clock;
    recorder_t recorder = {leap->heap, look, clock->observer, clock->observer_context};
    visitor_t visitor = {.heap = leap->heap, .look = look};
    look->n = look->n_kinds = look->n_spans = 0;
    zr_sim_again_fn again = clock->again;
    zr_sim_clock_observe(clock, record_span, &recorder);
    const ends_t before = begin_looking(clock);
    bool goes_on = zr_sim_machine_go_round(machine, leap->round);
    zr_sim_clock_observe(clock, recorder.observer, recorder.context);
    zr_sim_clock_observe_again(clock, again);
    for (int i = 0; i < ZR_N_SIM_PARTS; i++)
        add_kind(leap->heap, look, end_of(&clock->parts[i]) - before.of[i]);
    visit_state(&visitor, machine, leap->needs.n_remembered);
    return goes_on && !look->has_failed;
}

/* ---- whether rounds are alike ---------------------------------------------------------------- */

static bool are_alike(const look_t *a, const look_t *b) {
    return a->n == b->n && a->n_spans == b->n_spans && a->n_kinds == b->n_kinds &&
           memcmp(a->kinds, b->kinds, a->n_kinds * sizeof(*a->kinds)) == 0;
}

static double value_later(const leap_t *leap, size_t i, double n_rounds) {
    double last = leap->looks[N_LOOKS - 1].values[i];
    return last + n_rounds * (last - leap->looks[N_LOOKS - 2].values[i]);
}

static bool go_evenly(const leap_t *leap) {
    const look_t *looks = leap->looks;
    if (!are_alike(&looks[0], &looks[1]) || !are_alike(&looks[1], &looks[2]))
        return false;
    for (size_t i = 0; i < looks[2].n; i++)
        if (fabs(looks[2].values[i] - 2 * looks[1].values[i] + looks[0].values[i]) >
            NEAR * looks[2].values[i])
            return false;
    return true;
}

/* An event of others, from the round before the next on. */
static bool goes_evenly(const leap_t *leap, size_t record, size_t further, size_t n_rounds) {
    const double *passes = leap->machine->passes;
    if (record - 1 >= leap->machine->n_records || record - further > leap->machine->n_records)
        return false;
    double last = passes[record - further], more = passes[record] - last;
    for (size_t i = 1; i <= n_rounds; i++, record += further)
        if (record - 1 >= leap->machine->n_records ||
            fabs(passes[record] - last - (double)i * more) > (double)i * NEAR * last)
            return false;
    return true;
}

static bool others_go_evenly(const leap_t *leap, size_t n_rounds) {
    for (size_t i = 0; i < leap->needs.n_others; i++) {
        name_t name = leap->needs.others[i];
        if (!goes_evenly(leap, leap->round->ops[name.place].records[name.name],
                         leap->round->further[name.place][name.name], n_rounds))
            return false;
    }
    return true;
}

/* ---- going on evenly ------------------------------------------------------------------------- */

/* When the events of so many more rounds pass. */
static void pass_events(const leap_t *leap, size_t n_rounds) {
    const zr_sim_machine_t *machine = leap->machine;
    size_t n = leap->needs.n_new;
    for (size_t i = 0; i < n; i++) {
        size_t record = machine->n_records - i;
        double last = machine->passes[record], more = last - machine->passes[record - n];
        for (size_t k = 1; k <= n_rounds; k++)
            machine->passes[record + k * n] = last + (double)k * more;
    }
}

static void advance_names(const leap_t *leap, size_t n_rounds) {
    for (size_t place = 0; place < leap->round->n; place++)
        for (size_t i = 0; i < zr_sim_n_names(&leap->round->ops[place]); i++)
            leap->round->ops[place].records[i] += n_rounds * leap->round->further[place][i];
}

/* Let a machine that is as it was seen last be as it would be so many rounds later. */
static void set_later(const leap_t *leap, zr_sim_machine_t *machine, size_t n_rounds) {
    const look_t *last = &leap->looks[N_LOOKS - 1];
    for (size_t i = 0; i < last->n; i++)
        leap->later[i] = value_later(leap, i, (double)n_rounds);
    visitor_t visitor = {.values = leap->later + 2 * last->n_spans};
    machine->n_records = leap->machine->n_records + n_rounds * leap->needs.n_new;
    visit_state(&visitor, machine, leap->needs.n_remembered);
}

static void copy_drive(const zr_sim_drive_t *from, zr_sim_drive_t *to) {
    for (size_t i = 0; i < to->waiting.n; i++)
        to->held[to->waiting.things[i].number].is_there = false;
    for (size_t i = 0; i < from->waiting.n; i++) {
        zr_waiting_thing_t thing = from->waiting.things[i];
        to->waiting.things[i] = thing;
        to->held[thing.number] = from->held[thing.number];
    }
    to->waiting.n = from->waiting.n;
    memcpy(to->in_flight, from->in_flight, from->n * sizeof(*to->in_flight));
    to->n = from->n;
}

static bool copy_part(const zr_sim_part_time_t *from, zr_sim_part_time_t *to) {
    if (!zr_sim_part_reserve(to, from->n))
        return false;
    if (from->n > 0)
        memcpy(to->stretches, from->stretches, from->n * sizeof(*to->stretches));
    to->n = from->n;
    to->n_forgotten = from->n_forgotten;
    to->first_seen = from->first_seen;
    return true;
}

static bool copy_machine(const zr_sim_machine_t *from, zr_sim_machine_t *to) {
    to->passes = from->passes;
    to->n_passes = from->n_passes;
    to->clock->now = from->clock->now;
    to->clock->is_update = from->clock->is_update;
    for (int i = 0; i < ZR_N_SIM_PARTS; i++)
        if (!copy_part(&from->clock->parts[i], &to->clock->parts[i]))
            return false;
    for (uint32_t i = 0; i < from->n_drives; i++)
        copy_drive(from->drives[i], to->drives[i]);
    return true;
}

/* Whether the last of so many rounds is as if all went on evenly: it is asked of the twin. */
static bool is_last_even(leap_t *leap, size_t n_rounds) {
    const zr_sim_machine_t *machine = leap->machine;
    look_t *far = &leap->far;
    if (!copy_machine(machine, &leap->twin))
        return false;
    pass_events(leap, n_rounds - 1);
    advance_names(leap, n_rounds - 1);
    set_later(leap, &leap->twin, n_rounds - 1);
    if (!go_and_look(leap, &leap->twin, far) || !are_alike(&leap->looks[N_LOOKS - 1], far))
        return false;
    for (size_t i = 0; i < far->n; i++)
        if (fabs(far->values[i] - value_later(leap, i, (double)n_rounds)) > FAR * far->values[i])
            return false;
    return true;
}

/* ---- leaping --------------------------------------------------------------------------------- */

/* Of the last round that was looked at. */
static zr_sim_span_t span_of(const leap_t *leap, size_t i, double n_rounds_later) {
    const look_t *last = &leap->looks[N_LOOKS - 1];
    return (zr_sim_span_t){.name = (const char *)(uintptr_t)last->kinds[2 * i],
                           .part = (zr_sim_part_t)(last->kinds[2 * i + 1] / 2),
                           .is_update = last->kinds[2 * i + 1] % 2 != 0,
                           .begin = value_later(leap, 2 * i, n_rounds_later),
                           .end = value_later(leap, 2 * i + 1, n_rounds_later)};
}

/* Whether each of a round's spans is as much later in the next. */
static bool is_one_pace(const leap_t *leap, double *seconds_p) {
    const look_t *last = &leap->looks[N_LOOKS - 1], *before = last - 1;
    for (size_t i = 0; i < 2 * last->n_spans; i++) {
        double seconds = last->values[i] - before->values[i];
        if (i == 0)
            *seconds_p = seconds;
        if (fabs(seconds - *seconds_p) > NEAR * last->values[i])
            return false;
    }
    return last->n_spans > 0;
}

static bool tell_at_once(const leap_t *leap, size_t n_rounds) {
    const zr_sim_clock_t *clock = leap->machine->clock;
    size_t n = leap->looks[N_LOOKS - 1].n_spans;
    double seconds = 0;
    if (clock->again == NULL || !is_one_pace(leap, &seconds))
        return false;
    zr_sim_span_t *spans = zr_heap_alloc(leap->heap, n, sizeof(*spans));
    if (spans == NULL)
        return false;
    for (size_t i = 0; i < n; i++)
        spans[i] = span_of(leap, i, 0);
    clock->again(clock->observer_context, spans, n, n_rounds, seconds);
    return true;
}

/* Whoever observes sees the spans of all rounds. */
static void tell_spans(const leap_t *leap, size_t n_rounds) {
    const zr_sim_clock_t *clock = leap->machine->clock;
    if (clock->observer == NULL || tell_at_once(leap, n_rounds))
        return;
    for (size_t k = 1; k <= n_rounds; k++)
        for (size_t i = 0; i < leap->looks[N_LOOKS - 1].n_spans; i++) {
            const zr_sim_span_t span = span_of(leap, i, (double)k);
            clock->observer(clock->observer_context, &span);
        }
}

/* Each round leaves what it has added behind, of the stretches that were seen: as many as the first
 * of these, which the next do not look at. Where more were added they are over.
 * at: the part's values of the last look. false: no memory. */
static bool leave_stretches(const leap_t *leap, zr_sim_part_time_t *part, size_t n_added, size_t at,
                            size_t n_rounds) {
    size_t n_seen = n_last(leap->machine->clock, part), first = part->n - n_seen;
    size_t n_left = n_added <= n_seen ? n_rounds * n_added : 0;
    if (!zr_sim_part_reserve(part, part->n + n_left))
        return false;
    if (n_left == 0) {
        part->n_forgotten += n_rounds * n_added;
    } else {
        memmove(part->stretches + first + n_left, part->stretches + first,
                n_seen * sizeof(*part->stretches));
        for (size_t i = 0; i < n_left; i++) {
            size_t value = at + 2 * (i % n_added);
            double n_later = (double)(i / n_added);
            part->stretches[first + i] = (zr_sim_stretch_t){value_later(leap, value, n_later),
                                                            value_later(leap, value + 1, n_later)};
        }
    }
    part->n += n_left;
    part->first_seen = part->n_forgotten + part->n - n_seen;
    return true;
}

static bool leap_ahead(leap_t *leap, size_t n_rounds) {
    zr_sim_clock_t *clock = leap->machine->clock;
    const look_t *last = &leap->looks[N_LOOKS - 1];
    const uint64_t *n_added = &last->kinds[2 * last->n_spans];
    size_t at = 2 * last->n_spans;
    tell_spans(leap, n_rounds);
    for (int i = 0; i < ZR_N_SIM_PARTS; i++) {
        size_t n_values = 2 * n_last(clock, &clock->parts[i]) + 1;
        if (!leave_stretches(leap, &clock->parts[i], n_added[i], at, n_rounds))
            return false;
        at += n_values;
    }
    set_later(leap, leap->machine, n_rounds);
    return true;
}

static void close_twin(leap_t *leap) {
    zr_sim_machine_close(&leap->twin);
    zr_sim_clock_destroy(&leap->twin.clock);
}

static bool open_twin(leap_t *leap) {
    const zr_sim_machine_t *machine = leap->machine;
    zr_sim_clock_t *clock = NULL;
    if (leap->twin.clock != NULL)
        return true;
    if (zr_sim_clock_create(NULL, &clock) == ZR_OK &&
        zr_sim_machine_open(&leap->twin, leap->heap, clock, machine->n_queues, machine->n_drives))
        return true;
    close_twin(leap);
    return false;
}

/* Whether all rounds that are left go on evenly; names are as after them then. */
static bool can_leap(leap_t *leap, size_t n_rounds) {
    size_t n = leap->round->n, n_values = leap->looks[N_LOOKS - 1].n;
    zr_sim_op_t *ops = leap->round->ops, *kept;
    if (!go_evenly(leap) || !others_go_evenly(leap, n_rounds) || !open_twin(leap))
        return false;
    leap->later = zr_heap_alloc(leap->heap, n_values, sizeof(*leap->later));
    kept = zr_heap_alloc(leap->heap, n, sizeof(*kept));
    if (kept == NULL || leap->later == NULL)
        return false;
    memcpy(kept, ops, n * sizeof(*kept));
    bool is_even = is_last_even(leap, n_rounds);
    if (!is_even)
        memcpy(ops, kept, n * sizeof(*kept));
    return is_even;
}

static bool look_on(leap_t *leap) {
    look_t oldest = leap->looks[0];
    memmove(leap->looks, leap->looks + 1, (N_LOOKS - 1) * sizeof(*leap->looks));
    leap->looks[N_LOOKS - 1] = oldest;
    return go_and_look(leap, leap->machine, &leap->looks[N_LOOKS - 1]);
}

/* Rounds that begin otherwise are looked at again after twice as many. */
static bool go_rounds(leap_t *leap, bool leaps, size_t n_rounds) {
    size_t n_looks = 0, next = 0;
    for (size_t i = 1; i <= n_rounds; i++) {
        bool looks = leaps && i > next && n_rounds - i >= LEAST_ROUNDS;
        if (!(looks ? look_on(leap) : zr_sim_machine_go_round(leap->machine, leap->round)))
            return false;
        if (!looks || ++n_looks < N_LOOKS)
            continue;
        if (can_leap(leap, n_rounds - i))
            return leap_ahead(leap, n_rounds - i);
        n_looks = 0;
        next = 2 * i;
    }
    return true;
}

bool zr_sim_machine_go_rounds(zr_sim_machine_t *machine, zr_sim_round_t *round, size_t n_rounds) {
    leap_t leap = {.heap = zr_heap_create(NULL), .machine = machine, .round = round};
    if (leap.heap == NULL)
        return false;
    leap.needs.others =
        zr_heap_alloc(leap.heap, ZR_N_SIM_NAMES * round->n, sizeof(*leap.needs.others));
    bool leaps = leap.needs.others != NULL && find_needs(&leap.needs, round, machine->n_records);
    bool goes_on = go_rounds(&leap, leaps, n_rounds);
    close_twin(&leap);
    zr_heap_destroy(&leap.heap);
    return goes_on;
}
