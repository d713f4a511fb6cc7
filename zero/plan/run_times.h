/*
 * How a planned step spends its time: busy time on the virtual clock by part, and how much of it
 * was not overlapped by other parts.
 */
#pragma once

#include "kernels/simulation.h"

ZR_BEGIN_C

/** If several parts work at the same time, that time is attributed to the first one in this order.
 */
typedef enum zr_run_part {
    ZR_RUN_COMPUTE = 0,       /* the model's kernels */
    ZR_RUN_UPDATE = 1,        /* optimizer updates, on the device or in host memory */
    ZR_RUN_COMMUNICATION = 2, /* collectives */
    ZR_RUN_HOST_LINK = 3,     /* copies to and from host memory, either direction */
    ZR_RUN_DISK = 4           /* transfers to and from drives, and their checksums */
} zr_run_part_t;
#define ZR_RUN_N_PARTS 5

/** The part that a piece of work belongs to. */
zr_run_part_t zr_run_part_of(const zr_sim_span_t *span);
/** "compute", "update", "communication", "host_link", "disk". */
const char *zr_run_part_name(zr_run_part_t part);

/** Seconds of one step. */
typedef struct zr_run_times {
    double busy[ZR_RUN_N_PARTS];    /* time in which it worked; parts overlap */
    double exposed[ZR_RUN_N_PARTS]; /* time in which it worked and no part before it did */
    double idle; /* time in which no part worked: latencies and queueing. idle plus all exposed is
                    the step */
} zr_run_times_t;

/** All pieces of work of a step. */
typedef struct zr_run_spans {
    zr_sim_span_t *all; /* in queueing order; owned */
    size_t n, capacity;
    double begin, end; /* of the step; all pieces are within it */
} zr_run_spans_t;
void zr_run_spans_free(zr_run_spans_t *spans);

ZR_END_C
