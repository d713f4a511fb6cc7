#include "kernels/sim/sim_machine.h"

#define MOST_IN_FLIGHT 4096

bool zr_sim_machine_open(zr_sim_machine_t *machine, zr_heap_t *heap, zr_sim_clock_t *clock,
                         uint32_t n_queues, uint32_t n_drives) {
    *machine = (zr_sim_machine_t){.clock = clock, .n_queues = n_queues};
    machine->queues = zr_heap_alloc(heap, n_queues, sizeof(*machine->queues));
    machine->drives = zr_heap_alloc(heap, n_drives, sizeof(zr_sim_drive_t *));
    if (machine->queues == NULL || machine->drives == NULL)
        return false;
    for (; machine->n_drives < n_drives; machine->n_drives++) {
        zr_sim_drive_t *drive = zr_sim_drive_create(clock, MOST_IN_FLIGHT, 0, NULL, NULL);
        if (drive == NULL)
            return false;
        machine->drives[machine->n_drives] = drive;
    }
    return true;
}

void zr_sim_machine_close(zr_sim_machine_t *machine) {
    for (uint32_t i = 0; i < machine->n_drives; i++)
        zr_sim_drive_destroy(&machine->drives[i]);
    machine->n_drives = 0;
}

size_t zr_sim_n_names(const zr_sim_op_t *op) {
    return op->kind == ZR_SIM_OP_START ? ZR_N_SIM_NAMES : 1;
}

/* What is numbered comes in the order of its numbers, and is asked for afterwards. */
static bool is_in_order(zr_sim_machine_t *machine, const zr_sim_op_t *op) {
    bool is_new = op->kind == ZR_SIM_OP_RECORD || op->kind == ZR_SIM_OP_START;
    if (is_new && (op->records[ZR_SIM_OWN] != ++machine->n_records ||
                   op->records[ZR_SIM_OWN] >= machine->n_passes))
        return false;
    for (size_t i = 0; i < zr_sim_n_names(op); i++)
        if (op->records[i] > machine->n_records)
            return false;
    return true;
}

static bool ask_drive(zr_sim_machine_t *machine, zr_sim_op_t *op) {
    zr_sim_drive_t *drive = machine->drives[op->number];
    if (op->kind == ZR_SIM_OP_START && zr_sim_drive_is_full(drive))
        return false;
    op->passes = machine->passes[op->records[ZR_SIM_EVENT]];
    return zr_sim_drive_do(drive, op, 0) == op->found;
}

bool zr_sim_machine_ask(zr_sim_machine_t *machine, zr_sim_op_t *op) {
    if (!is_in_order(machine, op))
        return false;
    if (op->kind == ZR_SIM_OP_MARK) {
        machine->mark(machine->context, op->number);
        return true;
    }
    if (zr_sim_is_of_drive(op))
        return ask_drive(machine, op);
    double *passes = &machine->passes[op->records[ZR_SIM_OWN]];
    zr_sim_record_t record = {.passes = *passes};
    bool found = zr_sim_do(machine->clock, op, &machine->queues[op->number], &record);
    *passes = record.passes;
    return found == op->found;
}

bool zr_sim_machine_go_round(zr_sim_machine_t *machine, zr_sim_round_t *round) {
    for (size_t place = 0; place < round->n; place++) {
        zr_sim_op_t *op = &round->ops[place];
        if (!zr_sim_machine_ask(machine, op))
            return false;
        for (size_t i = 0; i < zr_sim_n_names(op); i++)
            op->records[i] += round->further[place][i];
    }
    return true;
}
