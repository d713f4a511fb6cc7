/*
 * What the parts of a run share: the run, and a rank of it. train.c makes and trains them; what is
 * around that has files of its own. Internal to train/.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "examples/common/device.h"
#include "examples/data/data.h"
#include "examples/train/checkpoint.h"
#include "examples/train/evaluate.h"
#include "examples/train/log.h"
#include "examples/train/train.h"
#include "models/parts.h"

typedef struct zero_train run_t;

struct zero_train {
    const train_options_t *options;
    zr_log_t log;
    messages_t *messages;
    data_t *data; /* NULL with --eval-only */
    data_t *val;  /* of --val-data; NULL: nothing is evaluated */
    train_log_t log_files;
    train_start_t start;
    device_choice_t device;
    zr_nn_engine_info_t attention; /* of --attention */
    struct rank *ranks; /* [train_launch_n_here]: there, and not yet run, or being run; owned */
    int n_device_threads;
    atomic_size_t n_wanted; /* steps until all ranks end, once options->stop was seen */

    pthread_mutex_t lock; /* guards what follows */
    zr_status_t status;   /* of the rank that failed first */
    bool drive_failed;    /* a drive or the machine, once it trained, or a damaged checkpoint: no
                             fault of the input */
};

typedef struct rank {
    run_t *run;
    int number;
    pthread_t thread;
    zr_log_t log;

    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime;
    zr_model_t *model;
    data_reader_t *reader;
    zr_host_batch_t *batches; /* [n_together(options)], owned */

    zr_trace_t *trace;             /* of --trace; owned, until it is written; NULL: none */
    bool is_recording;             /* the allocator is */
    zr_recording_t *recording;     /* of --memory-snapshot, when it is done; owned */
    size_t recorded_step;          /* its step, from 1; 0: of a run that failed */
    zr_replay_statistics_t replay; /* at the end of the last step that was recorded */
    double *step_seconds;          /* [n_steps] */
    double *own_seconds;           /* [n_steps], the rank's own time of each */
    double *step_tokens_per_s;     /* [n_steps]; rank 0 only */
    size_t capacity;               /* of these */
    double seconds;                /* of all steps */
    double step_begin;             /* of the step under way */
    double first_end;              /* of the first step of this run */
    train_time_t before;           /* rank_time then */
    size_t saved_step;             /* of the newest checkpoint */
    bool has_unsaved_gain;         /* an evaluation is in none */
    double own_begin, own_stall;   /* when the rank last took its own time, and stall until then */
    double own_last;               /* what it was */
    train_delays_t *delays;        /* [n_ranks]; rank 0 only */
    train_result_t result;
    train_result_t *of_all; /* [n_ranks], of ranks that are processes; NULL: not told */
} rank_t;

/* ---- inputs.c: what is read, and the file of --log ---------------------------------------- */

/** Whether the tokenizer and what else is in the folder of --model goes into checkpoints, so that
 * what is exported of them is a whole folder. */
bool train_inputs_carry_folder(const run_t *run);
/** Open data and the checkpoint that the run goes on from; what is wrong is logged. */
ZR_NODISCARD zr_status_t train_inputs_open(run_t *run);
/** The file of --log, where this process writes one. */
ZR_NODISCARD zr_status_t train_inputs_open_log(run_t *run);
/** Close it; the status of the run, or, where that is ZR_OK, of closing. */
ZR_NODISCARD zr_status_t train_inputs_close_log(run_t *run, zr_status_t status);

/* ---- snapshot.c: --memory-snapshot ---------------------------------------------------------- */

/** Begin to record, or begin again: then what has ended is forgotten. */
ZR_NODISCARD zr_status_t train_snapshot_start(rank_t *rank);
/** Keep what was recorded, until it is saved. */
ZR_NODISCARD zr_status_t train_snapshot_stop(rank_t *rank);
/** After each step of this run, so many of which are done: whether it is the one to keep. */
ZR_NODISCARD zr_status_t train_snapshot_step(rank_t *rank, size_t n_done);
/** Write those of all ranks of this process, and free them; the first error counts. */
ZR_NODISCARD zr_status_t train_snapshots_save(const run_t *run, rank_t *ranks);

/* ---- results.c ------------------------------------------------------------------------------ */

/** Peaks and offload of a rank, while it has its runtime. */
void train_results_note(rank_t *rank);
/** Medians of its times. */
void train_results_times(rank_t *rank);
/** What a rank has sent, and its weights' hash. */
ZR_NODISCARD zr_status_t train_results_finish(rank_t *rank);
/** Ranks that are processes learn each other's results; the model is gone. */
ZR_NODISCARD zr_status_t train_results_share(rank_t *rank);
/** The result of the run, from those of its ranks. */
void train_results_add_up(rank_t *ranks, const train_options_t *options, train_result_t *result);

/* ---- trace.c -------------------------------------------------------------------------------- */

/** Write the traces of this process's ranks, also of a run that failed, and free them. */
ZR_NODISCARD zr_status_t train_traces_save(const run_t *run, rank_t *ranks,
                                           train_trace_result_t *result);
