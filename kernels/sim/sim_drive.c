#include "kernels/sim/sim_drive.h"

#include <stdlib.h>

zr_sim_drive_t *zr_sim_drive_create(zr_sim_clock_t *clock, size_t max_in_flight, double launch,
                                    zr_sim_ended_fn ended, void *context) {
    zr_sim_drive_t *drive = calloc(1, sizeof(*drive));
    if (drive == NULL)
        return NULL;
    *drive = (zr_sim_drive_t){.clock = clock,
                              .number = zr_sim_number_drive(clock),
                              .launch = launch,
                              .ended = ended,
                              .context = context,
                              .capacity = max_in_flight};
    drive->in_flight = calloc(max_in_flight, sizeof(*drive->in_flight));
    drive->passed = calloc(max_in_flight, sizeof(*drive->passed));
    if (drive->in_flight == NULL || drive->passed == NULL)
        zr_sim_drive_destroy(&drive);
    return drive;
}

void zr_sim_drive_destroy(zr_sim_drive_t **drive) {
    if (*drive != NULL) {
        free((*drive)->in_flight);
        free((*drive)->passed);
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

static void start(zr_sim_drive_t *drive, const zr_sim_op_t *op, size_t id) {
    double end = end_of(drive, op) + op->latency;
    drive->in_flight[drive->n++] =
        (zr_sim_transfer_t){.end = end, .after = op->after, .id = id, .record = op->record};
}

/* All that have ended, in the order of their starts. */
static size_t take_passed(zr_sim_drive_t *drive) {
    double now = zr_sim_clock_now(drive->clock);
    size_t n_passed = 0, n_left = 0;
    for (size_t i = 0; i < drive->n; i++) {
        zr_sim_transfer_t transfer = drive->in_flight[i];
        if (transfer.end <= now)
            drive->passed[n_passed++] = transfer;
        else
            drive->in_flight[n_left++] = transfer;
    }
    drive->n = n_left;
    return n_passed;
}

static void end(zr_sim_drive_t *drive, const zr_sim_transfer_t *transfer) {
    zr_sim_clock_t *clock = drive->clock;
    if (transfer->after > 0)
        zr_sim_clock_wait(clock, zr_sim_clock_work(clock, ZR_SIM_HOST, "checksum",
                                                   zr_sim_clock_now(clock), transfer->after));
    if (drive->ended != NULL)
        drive->ended(drive->context, transfer->id);
}

static void wait_for_first(zr_sim_drive_t *drive) {
    double first = drive->in_flight[0].end;
    for (size_t i = 1; i < drive->n; i++)
        first = drive->in_flight[i].end < first ? drive->in_flight[i].end : first;
    zr_sim_clock_wait(drive->clock, first);
}

static void make_progress(zr_sim_drive_t *drive, bool wait, double launch) {
    if (drive->n == 0)
        return;
    if (wait)
        wait_for_first(drive);
    size_t n_passed = take_passed(drive);
    for (size_t i = 0; i < n_passed; i++)
        end(drive, &drive->passed[i]);
    if (n_passed == 0) /* looking takes time, so that whoever does nothing else sees it pass */
        zr_sim_clock_spend(drive->clock, launch);
}

static bool is_in_flight(const zr_sim_drive_t *drive, size_t record) {
    for (size_t i = 0; i < drive->n; i++)
        if (drive->in_flight[i].record == record)
            return true;
    return false;
}

bool zr_sim_drive_do(zr_sim_drive_t *drive, const zr_sim_op_t *op, size_t id) {
    switch (op->kind) {
    case ZR_SIM_OP_START:
        start(drive, op, id);
        return true;
    case ZR_SIM_OP_AWAIT_TRANSFER:
        while (is_in_flight(drive, op->record))
            make_progress(drive, true, op->launch);
        return true;
    case ZR_SIM_OP_ASK_TRANSFER:
        if (is_in_flight(drive, op->record))
            make_progress(drive, false, op->launch);
        return !is_in_flight(drive, op->record);
    default:
        make_progress(drive, false, op->launch);
        return true;
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */

static bool ask(zr_sim_drive_t *drive, zr_sim_op_t op, size_t id) {
    op.number = drive->number;
    op.launch = drive->launch;
    op.found = zr_sim_drive_do(drive, &op, id);
    zr_sim_keep(drive->clock, &op);
    return op.found;
}

double zr_sim_drive_start(zr_sim_drive_t *drive, const zr_sim_start_t *how, size_t id,
                          size_t *record_p) {
    *record_p = zr_sim_number_record(drive->clock);
    (void)ask(drive,
              (zr_sim_op_t){.kind = ZR_SIM_OP_START,
                            .part = how->is_write ? ZR_SIM_DISK_WRITE : ZR_SIM_DISK_READ,
                            .turn = how->turn,
                            .name = how->name,
                            .seconds = how->seconds,
                            .of_both = how->of_both,
                            .latency = how->latency,
                            .after = how->after,
                            .record = *record_p},
              id);
    return drive->in_flight[drive->n - 1].end;
}

bool zr_sim_drive_ask(zr_sim_drive_t *drive, size_t record, bool wait) {
    zr_sim_op_kind_t kind = wait ? ZR_SIM_OP_AWAIT_TRANSFER : ZR_SIM_OP_ASK_TRANSFER;
    return ask(drive, (zr_sim_op_t){.kind = kind, .record = record}, 0);
}

void zr_sim_drive_progress(zr_sim_drive_t *drive, bool wait) {
    if (wait)
        make_progress(drive, true, drive->launch);
    else
        (void)ask(drive, (zr_sim_op_t){.kind = ZR_SIM_OP_PROGRESS}, 0);
}
