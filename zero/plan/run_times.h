/*
 * What a planned step's time went to: the work that its virtual clock tells of, by part, and how
 * much of each part nothing else hid.
 */
#pragma once

#include "kernels/simulation.h"

ZR_BEGIN_C

/** In the order in which an instant is attributed where several work at once. */
typedef enum zr_run_part {
    ZR_RUN_COMPUTE = 0,       /* the model's kernels */
    ZR_RUN_UPDATE = 1,        /* of the parameters, on the device or in host memory */
    ZR_RUN_COMMUNICATION = 2, /* collectives */
    ZR_RUN_HOST_LINK = 3,     /* copies to and from host memory, either direction */
    ZR_RUN_DISK = 4           /* transfers to and from drives, and their checksums */
} zr_run_part_t;
#define ZR_RUN_N_PARTS 5

/** Whose work it is. */
zr_run_part_t zr_run_part_of(const zr_sim_span_t *span);
/** "compute", "update", "communication", "host_link", "disk". */
const char *zr_run_part_name(zr_run_part_t part);

/** Seconds of one step. */
typedef struct zr_run_times {
    double busy[ZR_RUN_N_PARTS];    /* it worked; parts work at once */
    double exposed[ZR_RUN_N_PARTS]; /* it worked, and none of the parts before it */
    double idle;                    /* nothing did: latencies and queueing. With what is exposed,
                                       this is the step */
} zr_run_times_t;

/** All pieces of work of a step. */
typedef struct zr_run_spans {
    zr_sim_span_t *all; /* in the order in which they were queued; owned */
    size_t n, capacity;
    double begin, end; /* of the step: no piece reaches beyond it */
} zr_run_spans_t;
void zr_run_spans_free(zr_run_spans_t *spans);

ZR_END_C
