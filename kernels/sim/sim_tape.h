/*
 * What is asked of a simulated machine that takes time of its clock: done as it is asked, and kept
 * on a tape where one is wanted. A tape is asked again, by the same code, as of a longer run
 * (sim_period.c).
 */
#pragma once

#include "kernels/simulation.h"

typedef enum zr_sim_op_kind {
    ZR_SIM_OP_WORK,           /* in a queue: `seconds` of a part */
    ZR_SIM_OP_RECORD,         /* an event in a queue */
    ZR_SIM_OP_FOLLOW,         /* a queue waits for an event */
    ZR_SIM_OP_AWAIT_EVENT,    /* the thread does */
    ZR_SIM_OP_AWAIT_QUEUE,    /* the thread waits for all of a queue */
    ZR_SIM_OP_ASK_EVENT,      /* whether it has passed: `found` */
    ZR_SIM_OP_SPEND,          /* `seconds` of the thread */
    ZR_SIM_OP_BUSY,           /* `seconds` of a part, which the thread waits for */
    ZR_SIM_OP_START,          /* a transfer of a drive, when it can */
    ZR_SIM_OP_PROGRESS,       /* of a drive: see which have ended */
    ZR_SIM_OP_AWAIT_TRANSFER, /* the thread does */
    ZR_SIM_OP_ASK_TRANSFER,   /* whether it has ended: `found` */
    ZR_SIM_OP_MARK            /* zr_sim_mark */
} zr_sim_op_kind_t;

/* What an op tells of by the numbers of records on the tape; 0: nothing. */
typedef enum zr_sim_name {
    ZR_SIM_OWN,   /* an event, or a transfer, by its start */
    ZR_SIM_EVENT, /* of a start: what it waits for */
    ZR_SIM_AFTER  /* likewise: transfers, ZR_SIM_MAX_AFTER of them */
} zr_sim_name_t;
#define ZR_N_SIM_NAMES (ZR_SIM_AFTER + ZR_SIM_MAX_AFTER)

typedef struct zr_sim_op {
    zr_sim_op_kind_t kind;
    zr_sim_part_t part;
    bool holds; /* the thread waits until it is done */
    bool is_update;
    uint32_t number; /* of the queue, drive or mark */
    uint32_t found;
    uint32_t turn; /* of a transfer */
    uint32_t line; /* likewise */
    const char *name;
    double seconds;
    double launch;  /* seconds of the thread before work, or after what was asked for in vain */
    double of_both; /* of a transfer: seconds of both directions' limit */
    double latency; /* likewise, after it; of work: what of its seconds is not for its size */
    double checksum, core; /* of a transfer: seconds of the thread before it begins */
    double after;          /* likewise, when it has ended */
    double passes;         /* likewise: when the event does that it waits for */
    size_t records[ZR_N_SIM_NAMES];
} zr_sim_op_t;

/* Times that are sums of the same in another order are equal: what ends as little later than now
 * has ended, so that a run finds the same whenever it begins. */
#define ZR_SIM_INSTANT 1e-9

/* Work in order. */
typedef struct zr_sim_queue {
    uint32_t number;
    double ready; /* when all that was queued is done */
    double begin; /* of the last of it */
} zr_sim_queue_t;

/* A record of an event. */
typedef struct zr_sim_record {
    double passes;
    size_t number; /* 0: none */
} zr_sim_record_t;

/* Numbers of queues, drives and records, in the order in which they are made: the first two from 0
 * on, records from 1. */
uint32_t zr_sim_number_queue(zr_sim_clock_t *clock);
uint32_t zr_sim_number_drive(zr_sim_clock_t *clock);
size_t zr_sim_number_record(zr_sim_clock_t *clock);

/* Do what is asked. Of an event: returns whether it has passed. */
bool zr_sim_do(zr_sim_clock_t *clock, const zr_sim_op_t *op, zr_sim_queue_t *queue,
               zr_sim_record_t *record);
/* The same, and keep it; *op as found. */
bool zr_sim_ask(zr_sim_clock_t *clock, zr_sim_op_t *op, zr_sim_queue_t *queue,
                zr_sim_record_t *record);
bool zr_sim_is_of_drive(const zr_sim_op_t *op);
/* Keep only. */
void zr_sim_keep(zr_sim_clock_t *clock, const zr_sim_op_t *op);

/* What was kept. */
struct zr_sim_tape {
    zr_sim_op_t *ops; /* [n] */
    size_t n, capacity;
    size_t first_record; /* the number of the last before it, which is 0 on it */
    size_t n_records;
    uint32_t n_queues, n_drives;
    bool was_busy;   /* the machine was, when it began */
    bool has_failed; /* for want of memory: it is not whole */
};
