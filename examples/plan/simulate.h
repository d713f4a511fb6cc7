/*
 * What training a GPT will need and take: the model's own training, run on simulated hardware,
 * where nothing is stored or moved. Peaks of memory are those of the real run, to the byte.
 */
#ifndef EXAMPLES_PLAN_SIMULATE_H
#define EXAMPLES_PLAN_SIMULATE_H

#include "examples/models/gpt2/gpt.h"
#include "examples/plan/times.h"
#include "zero/zero.h"

/** Sequences of a run whose length varies. What lengths make no difference to is not simulated. */
typedef struct gpt_plan_lengths {
    /* What sequences of a micro-batch are cut to: at least 1, at most the request's seq. Steps
     * and micro-batches count from 0. */
    size_t (*of)(const void *context, size_t step, size_t micro_batch);
    const void *context;
    size_t first_step; /* of the run: earlier ones were another's, which it goes on from */
    size_t grad_accum; /* of its steps. Where the request's is less, its last is the last, and
                          the one before has the longest of those between */
} gpt_plan_lengths_t;

typedef struct gpt_plan_request {
    gpt_shape_t shape;
    gpt_options_t options;
    zr_config_t config; /* resolved */
    zr_offload_device_t activations;
    size_t seq;                        /* of every sequence: the longest there will be */
    size_t seq_min;                    /* the shortest there will be; 0: seq */
    const gpt_plan_lengths_t *lengths; /* NULL: no sequence is cut */
    size_t n_steps;    /* 3 see a run's peaks: the first learns, the second is the first to follow;
                          with lengths, all that the run has */
    bool saves;        /* a checkpoint, after the last of them at least */
    size_t save_every; /* steps; 0: only then */
    bool save_goes_on; /* the run goes on while one is written */
    int n_ranks;       /* one of them is simulated, and stands for all */
    zr_sum_order_t sums; /* in which order ranks' numbers are added */
    bool beside;         /* the host's collectives run beside compute; a GPU's do anyway */
    zr_hardware_t hardware;
    gpt_plan_spans_t *spans; /* set to the work of the last step, to be freed by the caller; NULL:
                                it is not kept */
    zr_trace_t *trace;       /* where it is recorded; NULL: nowhere */
    zr_log_t log;            /* where that rank reports */
    zr_plan_cache_t *plans;  /* of memory, that runs before have made; NULL: none; borrowed */
} gpt_plan_request_t;

typedef struct gpt_plan {
    zr_tier_statistics_t tiers[2]; /* device and host, as far as it came */
    size_t nvme_bytes;             /* reserved on the drives */
    size_t nvme_live_bytes;        /* of what lies there */
    size_t nvme_by_tag[ZR_N_TAGS]; /* likewise */
    double step_seconds;           /* of the last step, on the hardware's clock */
    gpt_plan_times_t times;        /* likewise */
    zr_runtime_time_t runtime;     /* likewise, as the run itself would report it */
    zr_model_size_t size;
    zr_offload_report_t offload;
} gpt_plan_t;

/**
 * Plan a run.
 *
 * @param plan_p  set also when the run fails, as far as it came
 * @return ZR_OK; ZR_ERR_BUDGET when it does not fit, which has been logged as the run itself would;
 *         any other error of it
 */
ZR_NODISCARD zr_status_t gpt_plan(const gpt_plan_request_t *request, gpt_plan_t *plan_p);

#endif
