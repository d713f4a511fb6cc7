/*
 * Checkpoints of a training run: where it goes on from, when it saves, and what of the trainer is
 * saved: its model and its place in the data.
 */
#pragma once

#include <jansson.h>

#include "examples/data/data.h"
#include "examples/train/lock.h"
#include "examples/train/train.h"

/** Where a run begins. */
typedef struct train_start {
    zr_checkpoint_t *checkpoint; /* NULL: at its first step */
    size_t step;                 /* steps that are done */
    uint64_t n_sequences;        /* of the data that came before */
    size_t n_updates;
    train_gain_t gain; /* of evaluations before */
    bool is_damaged;   /* it is there, and not whole: that is a failure, and no bad input */
    train_lock_t lock; /* of the folder, by the first rank */
    zr_checkpoint_passed_t *passed; /* [n_passed] by --resume-damaged previous */
    size_t n_passed;
} train_start_t;

/**
 * Find what --resume goes on from, and check that it is of this run: the same model, and, unless
 * --resume-data restart, the same data in the same order. Folders of --checkpoint-dir are made.
 *
 * @param data, val  training and validation data; NULL: none; borrowed for the call
 * @param comm     of ranks that are processes, to agree on the checkpoint; NULL: all are here
 * @param start_p  also set when the run begins at its first step; train_checkpoint_close it
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_IO; ZR_ERR_FORMAT: what is wrong has been logged
 */
ZR_NODISCARD zr_status_t train_checkpoint_open(const train_options_t *options, const data_t *data,
                                               const data_t *val, zr_comm_t *comm,
                                               const zr_log_t *log, train_start_t *start_p);
void train_checkpoint_close(train_start_t *start);

/** The model and the adapters of the newest checkpoint of a folder, as --model and --lora take
 * them, and its options (kept.h). They are not set where it has none, or cannot be read. Free them.
 * Before the options are resolved.
 *
 * @return false when there is a checkpoint that says nothing of its model
 */
bool train_checkpoint_said(const char *dir, char **model_p, char **lora_p, json_t **kept_p);

/** Whether --checkpoint-every asks for a checkpoint after this step. */
bool train_checkpoint_is_due(const train_options_t *options, size_t step);

/** Sequences of all ranks in one step. */
uint64_t train_checkpoint_step_sequences(const train_options_t *options);

/** How far a run has come, besides its weights. */
typedef struct train_place {
    uint64_t n_sequences; /* of the data that have been trained on, of the whole run */
    const data_t *val;    /* NULL: nothing is evaluated */
    train_gain_t gain;
} train_place_t;

/**
 * Save; collective. With --checkpoint-async it is begun, and train_checkpoint_end ends it.
 *
 * @param saves  what was saved is added
 */
ZR_NODISCARD zr_status_t train_checkpoint_save(const train_options_t *options, const data_t *data,
                                               zr_runtime_t *runtime, const train_place_t *place,
                                               train_saves_t *saves);

/** End a checkpoint that was begun, if there is one: when it is written, or wait for that.
 * Collective.
 */
ZR_NODISCARD zr_status_t train_checkpoint_end(zr_runtime_t *runtime, bool wait,
                                              train_saves_t *saves);
