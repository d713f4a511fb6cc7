/*
 * What a planned step's time went to: the work that its virtual clock tells of, by part, and how
 * much of each part nothing else hid.
 */
#ifndef EXAMPLES_PLAN_TIMES_H
#define EXAMPLES_PLAN_TIMES_H

#include "zero/zero.h"

/** In the order in which an instant is attributed where several work at once. */
typedef enum gpt_plan_part {
    GPT_PLAN_COMPUTE = 0,       /* the model's kernels */
    GPT_PLAN_UPDATE = 1,        /* of the parameters, on the device or in host memory */
    GPT_PLAN_COMMUNICATION = 2, /* collectives */
    GPT_PLAN_HOST_LINK = 3,     /* copies to and from host memory, either direction */
    GPT_PLAN_DISK = 4           /* transfers to and from drives, and their checksums */
} gpt_plan_part_t;
#define GPT_PLAN_N_PARTS 5

/** Whose work it is. */
gpt_plan_part_t gpt_plan_part_of(const zr_sim_span_t *span);
/** "compute", "update", "communication", "host_link", "disk". */
const char *gpt_plan_part_name(gpt_plan_part_t part);

/** Seconds of one step. */
typedef struct gpt_plan_times {
    double busy[GPT_PLAN_N_PARTS];    /* it worked; parts work at once */
    double exposed[GPT_PLAN_N_PARTS]; /* it worked, and none of the parts before it */
    double idle;                      /* nothing did: latencies and queueing. With what is exposed,
                                         this is the step */
} gpt_plan_times_t;

/** All pieces of work of a step. */
typedef struct gpt_plan_spans {
    zr_sim_span_t *all; /* in the order in which they were queued; owned */
    size_t n, capacity;
    double begin, end; /* of the step: no piece reaches beyond it */
} gpt_plan_spans_t;
void gpt_plan_spans_free(gpt_plan_spans_t *spans);

typedef struct gpt_plan_watch gpt_plan_watch_t;

/**
 * Watch a clock from now on.
 *
 * @param clock  of a simulated device; borrowed until destroy
 * @param spans  of the last step are kept here; NULL: they are not
 * @return NULL when there is no memory
 */
gpt_plan_watch_t *gpt_plan_watch_create(zr_sim_clock_t *clock, gpt_plan_spans_t *spans);
void gpt_plan_watch_destroy(gpt_plan_watch_t **watch);

/** A step begins: work that ended before is forgotten. */
void gpt_plan_watch_begin(gpt_plan_watch_t *watch);
/** It has ended. False: there was no memory for all of its work. */
bool gpt_plan_watch_end(gpt_plan_watch_t *watch, gpt_plan_times_t *times_p);

#endif
