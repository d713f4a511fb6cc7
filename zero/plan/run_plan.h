/*
 * Memory and time that training a model will take: the training itself runs on simulated hardware,
 * without storing or moving data. Memory peaks equal those of the real run to the byte.
 */
#pragma once

#include "allocator/replay.h"
#include "kernels/base/hardware.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/plan/run_times.h"
#include "zero/schedule/model.h"

ZR_BEGIN_C

/** Blocks of micro-batches that are simulated; all remaining ones count as one step. */
#define ZR_RUN_MOST_BLOCKS 65536

/** Lengths of sequences, for a run in which they vary. Steps that differ only in lengths without
 * effect are not simulated. */
typedef struct zr_run_lengths {
    /* The length that sequences of a micro-batch are cut to: at least 1, at most the request's seq.
     * Steps and micro-batches count from 0. */
    size_t (*of)(const void *context, size_t step, size_t micro_batch);
    const void *context;
    size_t
        first_step; /* first step of the run; earlier ones were done by the run that it resumes */
    size_t grad_accum; /* micro-batches per step. If the request has fewer, its last one stands for
                          the last, and the one before for the longest of the others */
} zr_run_lengths_t;

/** Evaluations of a run, between its steps: each is zr_model_evaluate for each micro-batch. */
typedef struct zr_run_evaluations {
    size_t n_batches; /* full micro-batches per evaluation, with sequences of seq; 0 with n_rest 0:
                         no evaluation */
    size_t n_rest;    /* sequences of a smaller last micro-batch; 0: none */
    bool at_start;    /* before the first step */
    bool saves_first; /* a checkpoint follows the first, which is the best so far */
    size_t every;     /* also after every this many steps; 0: only after the last */
} zr_run_evaluations_t;

typedef struct zr_run_request {
    zr_model_maker_t model;
    zr_config_t config; /* resolved */
    zr_recompute_t recompute;
    zr_offload_device_t activations; /* where inputs of blocks wait, with ZR_RECOMPUTE_UNIT */
    size_t activations_on_device, activations_in_host; /* those of the last blocks:
                                                          zr_activation_options_t */
    size_t seq;                                        /* length of the longest sequence */
    size_t seq_min;                                    /* length of the shortest sequence; 0: seq */
    const zr_run_lengths_t *lengths;                   /* NULL: no sequence is cut */
    size_t n_steps; /* 3 show a run's peaks: the first records a memory plan, the second is the
                       first to follow it; zr_run_steps_of_plan show its times. With lengths: all
                       steps of the run. 0: only the evaluation at the start */
    size_t n_before, n_run_steps; /* steps done before this run; steps of it, of which n_steps are
                                     simulated. Saves and evaluations count the former */
    zr_run_evaluations_t evaluations;
    bool saves;          /* checkpoints are saved, at least after the last step */
    size_t save_every;   /* steps; 0: only after the last */
    bool save_goes_on;   /* checkpoints are written concurrently with training */
    bool save_links;     /* frozen parameters are linked: zr_runtime_link_frozen */
    int n_ranks;         /* one rank is simulated and stands for all */
    zr_sum_order_t sums; /* order of summation over ranks */
    bool uses_nccl;      /* ranks have a GPU each: sums in rank order take workspace there */
    bool concurrent; /* collectives on the host run concurrently with compute; on a GPU they always
                        do */
    zr_hardware_t hardware;
    bool memory_only; /* the plan's times, and what it moves, are not those of the run; memory is,
                         to the byte but for what a GPU maps. It takes a fraction of the time:
                         pieces of optimizer state, gradients and parameters that are alike are
                         worked through once */
    zr_run_spans_t
        *spans; /* set to the work of the last step, freed by the caller; NULL: not recorded */
    zr_sim_tape_t *tape; /* set to what is asked of the simulated machine in the steps whose times
                            are, of a run that stands for a longer one; borrowed; NULL: it is not
                            kept */
    zr_trace_t *trace;   /* recorder of the simulated rank; NULL: none */
    zr_log_t log;        /* log of the simulated rank */
    zr_plan_cache_t *plans; /* cache of memory plans of earlier runs; NULL: none; borrowed */
} zr_run_request_t;

typedef struct zr_run_plan {
    zr_tier_statistics_t tiers[2]; /* device and host, until the end or the failure */
    zr_byte_count_t metadata;      /* metadata of the simulated rank, about that of a real rank */
    size_t nvme_bytes;             /* reserved on the drives */
    size_t nvme_live_bytes;        /* used of it */
    size_t nvme_by_tag[ZR_N_TAGS]; /* likewise */
    double step_seconds;           /* duration of the last step, on the simulated clock */
    zr_run_times_t times;          /* of the last step */
    zr_runtime_time_t runtime;     /* of the last step, as the run itself would report it */
    zr_model_size_t size;
    size_t n_inputs, inputs_bytes; /* of blocks that can be recomputed, or with ZR_ORDER_BLOCK of
                                      all: how many have an input that may wait elsewhere, and
                                      bytes of all that are held at once */
    zr_offload_report_t offload;
    /* What was left open, if the run fits with this and not with what it would choose: zr_run_hold.
     * Numbers of buffers, 0: as the configuration says; and whether it does not prefetch */
    size_t n_buffers, n_param_buffers;
    bool lacks_prefetch;
} zr_run_plan_t;

/**
 * Plan a run. If it does not fit with what it would choose, less is tried where its configuration
 * leaves that open: fewer buffers (4 and 5, then 1), or at stage 3 no prefetch.
 *
 * @param plan_p  also set if the run fails, with the values up to the failure
 * @return ZR_OK; ZR_ERR_BUDGET if it does not fit, logged as by the run itself; any other error of
 *         the run
 */
ZR_NODISCARD zr_status_t zr_run_plan(const zr_run_request_t *request, zr_run_plan_t *plan_p);

/** Put what a plan needs of what was left open into the configuration of its run: without it the
 * run may not fit. No effect if the plan needs nothing. */
void zr_run_hold(const zr_run_plan_t *plan, zr_config_t *config);

/* ---- whether it fits ------------------------------------------------------------------------- */

/** Steps of a plan after which peaks repeat: see zr_run_request_t.n_steps. */
#define ZR_RUN_PLAN_STEPS 3
/** Likewise times: the last step and the one before, whose end it may wait for, follow the memory
 * plan; at stage 3 a first one learns the order of units. */
size_t zr_run_steps_of_plan(int stage);

/** Size of a search's cache of memory plans; many placements share one. */
#define ZR_RUN_KEPT_BYTES ((size_t)64 << 20)

/** A memory size that is enough for any plan. */
#define ZR_RUN_ENOUGH_BYTES ((size_t)1 << 50)

/** The largest shortage of a plan that does not fit. */
typedef struct plan_lack {
    zr_tier_t tier;
    bool is_of_both; /* device and host are the same memory: bytes are for both tiers together, and
                        `tier` is the larger one */
    bool is_of_process;  /* the budget of the process is exceeded: bytes are one rank's share, for
                            tiers in host memory and tables */
    bool is_pinned;      /* the limit of pinned memory is exceeded */
    size_t needed_bytes; /* per rank, at the peak */
    size_t there_bytes;  /* available, <= needed_bytes unless only fragmentation is the cause */
    zr_tag_t tag;        /* the largest user */
    size_t tag_bytes;
} zr_run_lack_t;

typedef struct zr_run_fit {
    bool fits;
    zr_run_plan_t plan; /* if it does not fit: the plan with unlimited memory */
    zr_run_lack_t lack; /* valid if it does not fit */
    char message[1024]; /* if it does not fit: the run's error message */
} zr_run_fit_t;

/** The exceeded memory: "device memory", "host memory", "nvme memory", "memory (device and host are
 * one here)". */
const char *zr_run_lack_name(const zr_run_lack_t *lack);

/**
 * Plan a run; if it does not fit, plan it again with unlimited memory to see what it needs.
 *
 * @param request  its log is not used
 * @param log      for errors of a plan other than lack of memory
 * @return ZR_OK, also if it does not fit
 */
ZR_NODISCARD zr_status_t zr_run_fit(const zr_run_request_t *request, const zr_log_t *log,
                                    zr_run_fit_t *one_p);

/** Whether a run fits in memory, without details; much faster than zr_run_fit if it does not. Other
 * errors are only reported by zr_run_fit. */
bool zr_run_fits(const zr_run_request_t *request);

/** Memory of a tier available to a rank: its budget or its share of the machine, whichever is
 * smaller. If device and host are the same memory, the host tier gets what the device tier leaves.
 */
size_t zr_run_there(const zr_run_request_t *request, zr_tier_t tier, const zr_run_plan_t *plan);

ZR_END_C
