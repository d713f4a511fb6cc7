/*
 * A toy model for tests of the runtime: units of parameters of awkward sizes, whose gradients
 * are a function of the parameters, the rank and the micro-batch. It reads and writes device
 * memory through copies alone, so it runs on every device.
 */
#pragma once

#include "allocator/replay.h"
#include "tests/common/ranks.h"
#include "zero/zero.h"

#define TOY_N_SAMPLES 3
#define TOY_SAMPLE_ELEMS 64

/* The streams of a runtime. */
enum { TOY_COMPUTE, TOY_TRANSFER, TOY_DOWN, TOY_UP, TOY_N_STREAMS };

typedef struct toy_options {
    zr_config_t config;
    int n_ranks;
    const char *device_name; /* NULL: "host" */
    bool late;               /* on late devices instead */
    bool concurrent;         /* host: collectives on streams that have a thread */
    size_t n_steps;
    bool frozen;      /* some parameters are frozen */
    bool tied;        /* a parameter is used by two units */
    bool skip_some;   /* nobody asks for the gradient of one parameter */
    int flip_rank;    /* in one step, this rank's gradients of u4.p0 are one ulp off; -1: none */
    int nan_step;     /* the gradients of this step are not finite; -1: none */
    int reorder_step; /* all ranks visit the units in another order from this step; -1: none */
    bool alternate;   /* all ranks visit them in another order in every second micro-batch */
    int stray_rank;   /* this rank visits the units in another order; -1: none */
    int tight_rank;   /* this rank alone has tight_bytes of device memory; -1: none */
    size_t tight_bytes;
    int other_rank; /* this rank has another learning rate; -1: none */
    bool peek;      /* a unit's parameters are copied on the device after its reduction: they are
                       those of before the update */
    bool evaluate;  /* all units are acquired once more after each step */
    int drop_step;  /* this step is given up behind its last micro-batch, and made anew; -1: none */
    int write_step; /* after so many steps all parameters are given new values; -1: never */
    int n_passes;   /* the same, so many times, each said to be an evaluation's */
    bool spoil;     /* compute overwrites what memory it can have after each reduction: what was
                       freed while another stream uses it shows in the weights */
    int again_step; /* in this step all ranks visit one unit twice, and drop what was gathered
                       ahead: nothing may come to that memory later; -1: none */
    int fail_stream; /* once it trains, the fail_nth kernel or copy on this stream of the late
                        devices fails: TOY_COMPUTE, ...; -1: none */
    int fail_nth;
    bool grads_alone; /* before its backward each unit is acquired and released for its gradients
                         alone: by then its parameters are gathered ahead */
    bool blind; /* the first unit's gradients need no parameters: it is acquired for them alone */
    bool glance; /* the first micro-batch ends with two units more, the others with the first of
                    them alone: the second is gathered ahead, and dropped on its way */
    const char *save_to; /* after the last step, and once before, a checkpoint is saved here */
    size_t save_step;    /* once before: after so many steps; 0: not */
    bool save_at_once;   /* before the first step, too */
    bool save_goes_on;   /* the one before is written while the run goes on */
    bool expect_saves;   /* what they need is reserved at commit */
    bool abandon_save;   /* it is not ended */
    size_t keep;
    bool other_model;         /* a parameter has another shape */
    const char *restore_from; /* initial values come from here, and step numbers go on */
    bool quiet;               /* expected errors are not printed */
} toy_options_t;

/* What every rank reports; rank 0's unless stated. */
typedef struct toy_result {
    zr_status_t status[TEST_MAX_RANKS];
    char last_error[TEST_MAX_RANKS][512];
    uint64_t hash;
    zr_step_report_t step;             /* the last one */
    zr_status_t saved[TEST_MAX_RANKS]; /* how the last save ended; it does not end the run */
    zr_save_report_t save;             /* of rank 0 */
    zr_model_size_t size;
    zr_tier_statistics_t device_memory;
    zr_tier_statistics_t host_memory;
    zr_offload_report_t offload[TEST_MAX_RANKS]; /* of every rank, after the steps */
    zr_replay_statistics_t replay;
    zr_comm_statistics_t traffic[ZR_N_LEVELS];     /* of the steps alone, without commit and hash */
    float sample[TOY_N_SAMPLES][TOY_SAMPLE_ELEMS]; /* first elements of toy_samples */
} toy_result_t;

/* Parameters whose final values are reported: unit, index, parameter group. */
typedef struct toy_sample {
    int unit;
    int index;
    int group;
} toy_sample_t;
extern const toy_sample_t toy_samples[TOY_N_SAMPLES];

/* The toy's initial values and gradients, for oracles. */
float toy_initial_value(int unit, int index, size_t elem);
float toy_gradient(int unit, int index, size_t step, size_t micro_batch, int rank, size_t elem,
                   float value);

toy_options_t toy_options_default(int stage, int n_ranks);
/** Change its configuration: options by their names, or by those of their fields, as
 * "offload-optimizer=nvme sub-group=1024 reuse_elems=0". */
void toy_set(toy_options_t *options, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** A run of a mixture, by the bits of a number: clipped; tied; frozen; skip_some; two
 * micro-batches. */
toy_options_t toy_mixture(int stage, int n_ranks, zr_dtype_t dtype, unsigned flags);
/** How steps end, by any number: 0 modulo 4: nothing is clipped or checked; else overflow is
 * checked for, steps are clipped from 2 on, by 3 too late for any; and the second may be skipped.
 */
void toy_set_clipping(toy_options_t *options, unsigned number);
/** One of the library's optimizers, by any number: all of them in turn. */
void toy_set_optimizer(toy_options_t *options, unsigned number);

/* Train; every rank is a thread. A rank that ends in other weights than rank 0 has ZR_ERR_STATE. */
void toy_train(const toy_options_t *options, toy_result_t *result);

/** The same of a run that ends well, its last save, too: otherwise the test fails. */
void toy_train_well(const toy_options_t *options, toy_result_t *result);
/** The weights that it ends in. */
uint64_t toy_hash(const toy_options_t *options);
/** It ends well, in these: otherwise the test fails, with all that the run was asked for. */
void toy_expect_hash(const toy_options_t *options, uint64_t hash);

/** Train, quietly: a rank ends with this status, and a message that has this in it. */
void toy_expect_error(toy_options_t *options, zr_status_t status, const char *text);
