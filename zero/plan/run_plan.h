/*
 * What training a model will need and take: its own training, run on simulated hardware, where
 * nothing is stored or moved. Peaks of memory are those of the real run, to the byte.
 */
#pragma once

#include "allocator/replay.h"
#include "kernels/base/hardware.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/plan/run_times.h"
#include "zero/schedule/model.h"

ZR_BEGIN_C

/** Blocks of micro-batches that are simulated before all that is left becomes one step. */
#define ZR_RUN_MOST_BLOCKS 65536

/** Sequences of a run whose length varies. What lengths make no difference to is not simulated. */
typedef struct zr_run_lengths {
    /* What sequences of a micro-batch are cut to: at least 1, at most the request's seq. Steps
     * and micro-batches count from 0. */
    size_t (*of)(const void *context, size_t step, size_t micro_batch);
    const void *context;
    size_t first_step; /* of the run: earlier ones were another's, which it goes on from */
    size_t grad_accum; /* of its steps. Where the request's is less, its last is the last, and
                          the one before has the longest of those between */
} zr_run_lengths_t;

/** Evaluations of a run, between its steps: each is zr_model_evaluate for each micro-batch. */
typedef struct zr_run_evaluations {
    size_t n_batches;  /* of one, as large as those of a step, with sequences of seq; 0 with n_rest
                          0: there are none */
    size_t n_rest;     /* sequences of a smaller one behind them; 0: there is none */
    bool at_start;     /* before the first step */
    size_t every;      /* after each so many steps as well; 0: after the last alone */
    size_t first_step; /* steps that the run has behind it, which count */
} zr_run_evaluations_t;

typedef struct zr_run_request {
    zr_model_maker_t model;
    zr_config_t config; /* resolved */
    bool recompute;
    zr_offload_device_t activations; /* where they wait, if they are recomputed */
    size_t seq;                      /* of every sequence: the longest there will be */
    size_t seq_min;                  /* the shortest there will be; 0: seq */
    const zr_run_lengths_t *lengths; /* NULL: no sequence is cut */
    size_t n_steps; /* 3 see a run's peaks: the first learns, the second is the first to follow;
                       with lengths, all that the run has; 0: it evaluates at its start alone */
    zr_run_evaluations_t evaluations;
    bool saves;          /* a checkpoint, after the last of them at least */
    size_t save_every;   /* steps; 0: only then */
    bool save_goes_on;   /* the run goes on while one is written */
    bool save_links;     /* to frozen parameters: zr_runtime_link_frozen */
    int n_ranks;         /* one of them is simulated, and stands for all */
    zr_sum_order_t sums; /* in which order ranks' numbers are added */
    bool beside;         /* the host's collectives run beside compute; a GPU's do anyway */
    zr_hardware_t hardware;
    zr_run_spans_t *spans;  /* set to the work of the last step, to be freed by the caller; NULL:
                                 it is not kept */
    zr_trace_t *trace;      /* where it is recorded; NULL: nowhere */
    zr_log_t log;           /* where that rank reports */
    zr_plan_cache_t *plans; /* of memory, that runs before have made; NULL: none; borrowed */
} zr_run_request_t;

typedef struct zr_run_plan {
    zr_tier_statistics_t tiers[2]; /* device and host, as far as it came */
    zr_byte_count_t metadata;      /* of the rank that was simulated: about what a rank has */
    size_t nvme_bytes;             /* reserved on the drives */
    size_t nvme_live_bytes;        /* of what lies there */
    size_t nvme_by_tag[ZR_N_TAGS]; /* likewise */
    double step_seconds;           /* of the last step, on the hardware's clock */
    zr_run_times_t times;          /* likewise */
    zr_runtime_time_t runtime;     /* likewise, as the run itself would report it */
    zr_model_size_t size;
    zr_offload_report_t offload;
} zr_run_plan_t;

/**
 * Plan a run.
 *
 * @param plan_p  set also when the run fails, as far as it came
 * @return ZR_OK; ZR_ERR_BUDGET when it does not fit, which has been logged as the run itself would;
 *         any other error of it
 */
ZR_NODISCARD zr_status_t zr_run_plan(const zr_run_request_t *request, zr_run_plan_t *plan_p);

/* ---- whether it fits ------------------------------------------------------------------------- */

/** Steps of a plan after which nothing new happens: see zr_run_request_t.n_steps. */
#define ZR_RUN_PLAN_STEPS 3

/** What a search of plans keeps of those of memory: many placements have the same. */
#define ZR_RUN_KEPT_BYTES ((size_t)64 << 20)

/** Bytes of memory for any plan. */
#define ZR_RUN_ENOUGH_BYTES ((size_t)1 << 50)

/** What a plan that does not fit lacks: the tier that is short of most. */
typedef struct plan_lack {
    zr_tier_t tier;
    bool is_of_both; /* device and host are one memory, which is short: the bytes are of both, and
                        the tier is the larger of them */
    bool is_of_process; /* the budget of the process is short: the bytes are a rank's part of it, of
                           the tiers that are host memory and of tables */
    size_t needed_bytes; /* per rank, at the peak */
    size_t there_bytes;  /* <= needed, but where only holes are the cause */
    zr_tag_t tag;        /* what most of it is for */
    size_t tag_bytes;
} zr_run_lack_t;

typedef struct zr_run_fit {
    bool fits;
    zr_run_plan_t plan; /* of one that does not fit: what it would need, were there memory enough */
    zr_run_lack_t lack; /* does not fit */
    char message[1024]; /* does not fit: what the run would say */
} zr_run_fit_t;

/** What is short: "device memory", "host memory", "nvme memory", "memory (device and host are one
 * here)". */
const char *zr_run_lack_name(const zr_run_lack_t *lack);

/**
 * Plan a run; where it does not fit, plan it again with memory enough, to see what it needs.
 *
 * @param request  its log is not used
 * @param log      for what a plan fails for, other than memory
 * @return ZR_OK, also when it does not fit
 */
ZR_NODISCARD zr_status_t zr_run_fit(const zr_run_request_t *request, const zr_log_t *log,
                                    zr_run_fit_t *one_p);

/** Whether there is memory for a run, and no more: of one that does not fit, found in a fraction of
 * the time. What fails for anything else is said by zr_run_fit. */
bool zr_run_fits(const zr_run_request_t *request);

/** What there is of a tier for a rank: its budget, or its part of the machine where that is less.
 * Where there is one memory, host memory is what the device leaves. */
size_t zr_run_there(const zr_run_request_t *request, zr_tier_t tier, const zr_run_plan_t *plan);

ZR_END_C
