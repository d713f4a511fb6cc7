#include "kernels/sim/sim_drive.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim_device.h"

static const zr_waiting_rules_t rules;

zr_sim_drive_t *zr_sim_drive_create(zr_sim_clock_t *clock, size_t most, double launch,
                                    zr_sim_ended_fn ended, void *context) {
    zr_sim_drive_t *drive = calloc(1, sizeof(*drive));
    if (drive == NULL)
        return NULL;
    *drive = (zr_sim_drive_t){.clock = clock,
                              .number = zr_sim_number_drive(clock),
                              .launch = launch,
                              .ended = ended,
                              .context = context,
                              .capacity = most,
                              .waiting = {.rules = &rules, .context = drive}};
    drive->in_flight = calloc(most, sizeof(*drive->in_flight));
    drive->passed = calloc(most, sizeof(*drive->passed));
    drive->held = calloc(most, sizeof(*drive->held));
    drive->waiting.things = calloc(most, sizeof(*drive->waiting.things));
    if (drive->in_flight == NULL || drive->passed == NULL || drive->held == NULL ||
        drive->waiting.things == NULL)
        zr_sim_drive_destroy(&drive);
    return drive;
}

void zr_sim_drive_destroy(zr_sim_drive_t **drive) {
    if (*drive != NULL) {
        free((*drive)->in_flight);
        free((*drive)->passed);
        free((*drive)->held);
        free((*drive)->waiting.things);
    }
    free(*drive);
    *drive = NULL;
}

/* ---- what is asked --------------------------------------------------------------------------- */

static double later(double a, double b) {
    return a > b ? a : b;
}

/* A transfer has its direction to itself, and its share of what both have together. One that goes
 * ahead of others ends when only those before it were there; what it delays ends as before, and
 * what is started later ends later. */
static double end_of(zr_sim_drive_t *drive, const zr_sim_op_t *op) {
    double now = zr_sim_clock_now(drive->clock), alone = later(op->of_both, op->seconds);
    double both = zr_sim_clock_work(drive->clock, ZR_SIM_DISK, op->name, now, op->of_both);
    double own = zr_sim_clock_work(drive->clock, op->part, op->name, now, op->seconds);
    double end = later(own, both);
    for (uint32_t i = op->turn; i < ZR_SIM_LAST_TURN; i++)
        drive->ends_alone[i] = later(now, drive->ends_alone[i]) + alone;
    if (op->turn < ZR_SIM_LAST_TURN && drive->ends_alone[op->turn] < end)
        return drive->ends_alone[op->turn];
    return end;
}

/* The rank's thread makes a checksum. */
static void make_checksum(zr_sim_drive_t *drive, double seconds) {
    zr_sim_clock_t *clock = drive->clock;
    double now = zr_sim_clock_now(clock);
    if (seconds > 0)
        zr_sim_clock_wait(clock, zr_sim_clock_work(clock, ZR_SIM_HOST, "checksum", now, seconds));
}

static void begin(zr_sim_drive_t *drive, const zr_sim_op_t *op, size_t id) {
    double now = zr_sim_clock_now(drive->clock);
    make_checksum(drive, op->checksum);
    zr_sim_clock_spend(drive->clock, op->core);
    double end = end_of(drive, op) + op->latency;
    drive->in_flight[drive->n++] = (zr_sim_transfer_t){
        .begin = now, .end = end, .after = op->after, .id = id, .record = op->records[ZR_SIM_OWN]};
}

/* All that have ended, in the order of their starts. */
static size_t take_passed(zr_sim_drive_t *drive) {
    double now = zr_sim_clock_now(drive->clock);
    size_t n_passed = 0, n_left = 0;
    for (size_t i = 0; i < drive->n; i++) {
        zr_sim_transfer_t transfer = drive->in_flight[i];
        if (transfer.end <= now + ZR_SIM_INSTANT)
            drive->passed[n_passed++] = transfer;
        else
            drive->in_flight[n_left++] = transfer;
    }
    drive->n = n_left;
    return n_passed;
}

static void end(zr_sim_drive_t *drive, const zr_sim_transfer_t *transfer) {
    make_checksum(drive, transfer->after);
    if (drive->ended != NULL)
        drive->ended(drive->context, transfer->id, transfer->begin, transfer->end);
}

static double first_end(const zr_sim_drive_t *drive) {
    double first = drive->in_flight[0].end;
    for (size_t i = 1; i < drive->n; i++)
        first = drive->in_flight[i].end < first ? drive->in_flight[i].end : first;
    return first;
}

/* Returns how many they were. */
static size_t end_passed(zr_sim_drive_t *drive) {
    size_t n_passed = take_passed(drive);
    for (size_t i = 0; i < n_passed; i++)
        end(drive, &drive->passed[i]);
    return n_passed;
}

static void make_progress(zr_sim_drive_t *drive) {
    if (drive->n > 0 && end_passed(drive) == 0)
        zr_sim_clock_spend(drive->clock, drive->launch); /* looking takes time, so that whoever
                                                            does nothing else sees it pass */
}

static bool is_in_flight(const zr_sim_drive_t *drive, size_t record) {
    for (size_t i = 0; i < drive->n; i++)
        if (drive->in_flight[i].record == record)
            return true;
    return false;
}

/* ---- what waits ------------------------------------------------------------------------------ */

#define NOT_HELD ((size_t)-1)

static size_t find_held(const zr_sim_drive_t *drive, size_t record) {
    for (size_t i = 0; i < drive->waiting.n; i++) {
        size_t place = drive->waiting.things[i].number;
        if (drive->held[place].op.records[ZR_SIM_OWN] == record)
            return place;
    }
    return NOT_HELD;
}

static bool has_ended(const zr_sim_drive_t *drive, size_t record) {
    return !is_in_flight(drive, record) && find_held(drive, record) == NOT_HELD;
}

/* All that a transfer waits for. */
static bool have_ended(const zr_sim_drive_t *drive, const zr_sim_op_t *op) {
    for (size_t i = ZR_SIM_AFTER; i < ZR_N_SIM_NAMES; i++)
        if (!has_ended(drive, op->records[i]))
            return false;
    return true;
}

/* When the first event passes that others wait for and nothing else holds up. */
static double first_to_pass(const zr_sim_drive_t *drive, double latest) {
    double now = zr_sim_clock_now(drive->clock), first = latest;
    for (size_t i = 0; i < drive->waiting.n; i++) {
        const zr_sim_op_t *op = &drive->held[drive->waiting.things[i].number].op;
        if (op->passes > now + ZR_SIM_INSTANT && op->passes < first && have_ended(drive, op))
            first = op->passes;
    }
    return first;
}

/* The thread waits for a transfer, or for what lets others begin meanwhile. */
static void wait_and_see(zr_sim_drive_t *drive) {
    double first = first_to_pass(drive, first_end(drive));
    zr_sim_clock_wait(drive->clock, first);
    (void)end_passed(drive);
    zr_waiting_progress(&drive->waiting);
}

/* Until it has. */
static void finish(zr_sim_drive_t *drive, size_t record) {
    size_t place = find_held(drive, record);
    if (place != NOT_HELD)
        zr_waiting_finish(&drive->waiting, place);
    if (is_in_flight(drive, record))
        zr_waiting_progress(&drive->waiting); /* so that others begin before the thread waits */
    while (is_in_flight(drive, record))
        wait_and_see(drive);
}

static bool is_ready(void *context, size_t place) {
    zr_sim_drive_t *drive = context;
    const zr_sim_op_t *op = &drive->held[place].op;
    if (!have_ended(drive, op))
        return false;
    if (op->passes <= zr_sim_clock_now(drive->clock) + ZR_SIM_INSTANT)
        return true;
    zr_sim_clock_spend(drive->clock, drive->launch); /* as asking for an event does */
    return false;
}

static void make_ready(void *context, size_t place) {
    zr_sim_drive_t *drive = context;
    const zr_sim_op_t op = drive->held[place].op;
    for (size_t i = ZR_SIM_AFTER; i < ZR_N_SIM_NAMES; i++)
        finish(drive, op.records[i]);
    zr_sim_clock_wait(drive->clock, op.passes);
}

static void begin_held(void *context, size_t place) {
    zr_sim_drive_t *drive = context;
    drive->held[place].is_there = false;
    begin(drive, &drive->held[place].op, drive->held[place].id);
}

static const zr_waiting_rules_t rules = {is_ready, make_ready, begin_held};

bool zr_sim_drive_is_full(const zr_sim_drive_t *drive) {
    return drive->n + drive->waiting.n == drive->capacity;
}

static void start(zr_sim_drive_t *drive, const zr_sim_op_t *op, size_t id) {
    size_t place = 0;
    while (drive->held[place].is_there)
        place++;
    drive->held[place] = (zr_sim_held_t){.op = *op, .id = id, .is_there = true};
    zr_waiting_add(&drive->waiting, place, op->line);
}

/* ---- asking ---------------------------------------------------------------------------------- */

bool zr_sim_drive_do(zr_sim_drive_t *drive, const zr_sim_op_t *op, size_t id) {
    size_t record = op->records[ZR_SIM_OWN];
    drive->launch = op->launch;
    switch (op->kind) {
    case ZR_SIM_OP_START:
        start(drive, op, id);
        return true;
    case ZR_SIM_OP_AWAIT_TRANSFER:
        finish(drive, record);
        return true;
    case ZR_SIM_OP_ASK_TRANSFER:
        if (!has_ended(drive, record)) {
            make_progress(drive);
            zr_waiting_progress(&drive->waiting);
        }
        return has_ended(drive, record);
    default:
        make_progress(drive);
        zr_waiting_progress(&drive->waiting);
        return true;
    }
}

static bool ask(zr_sim_drive_t *drive, zr_sim_op_t op, size_t id) {
    op.number = drive->number;
    op.launch = drive->launch;
    op.found = zr_sim_drive_do(drive, &op, id);
    zr_sim_keep(drive->clock, &op);
    return op.found;
}

size_t zr_sim_drive_start(zr_sim_drive_t *drive, const zr_sim_start_t *how, size_t id) {
    zr_sim_op_t op = {.kind = ZR_SIM_OP_START,
                      .part = how->is_write ? ZR_SIM_DISK_WRITE : ZR_SIM_DISK_READ,
                      .turn = how->turn,
                      .line = how->line,
                      .name = how->name,
                      .seconds = how->seconds,
                      .of_both = how->of_both,
                      .latency = how->latency,
                      .checksum = how->checksum,
                      .core = how->core,
                      .after = how->after,
                      .records = {zr_sim_number_record(drive->clock)}};
    if (how->event != NULL) {
        const zr_sim_record_t *record = &((const zr_sim_event_t *)how->event)->record;
        op.passes = record->passes;
        op.records[ZR_SIM_EVENT] = record->number;
    }
    memcpy(&op.records[ZR_SIM_AFTER], how->records, sizeof(how->records));
    (void)ask(drive, op, id);
    return op.records[ZR_SIM_OWN];
}

bool zr_sim_drive_ask(zr_sim_drive_t *drive, size_t record, bool wait) {
    zr_sim_op_kind_t kind = wait ? ZR_SIM_OP_AWAIT_TRANSFER : ZR_SIM_OP_ASK_TRANSFER;
    return ask(drive, (zr_sim_op_t){.kind = kind, .records = {record}}, 0);
}

void zr_sim_drive_progress(zr_sim_drive_t *drive, bool wait) {
    if (!wait)
        (void)ask(drive, (zr_sim_op_t){.kind = ZR_SIM_OP_PROGRESS}, 0);
    else if (drive->n > 0)
        wait_and_see(drive);
    else if (drive->waiting.n > 0)
        zr_waiting_finish(&drive->waiting, drive->waiting.things[0].number);
}
