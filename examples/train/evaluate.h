/*
 * Evaluation: the mean loss of the model on data that it is not trained on, and what follows from
 * it: which weights were the best so far, and when a run has nothing more to gain.
 *
 * Micro-batch j of the data is the same for any number of ranks, and losses are added in the order
 * of their micro-batches: the sum has the same bits at every stage, with every placement and, with
 * as many threads each, for any number of ranks. Nothing of the training is touched.
 */
#pragma once

#include "examples/data/data.h"
#include "examples/train/train.h"

typedef struct json_t json_t;

/** The micro-batches of one evaluation, over all ranks. */
typedef struct train_evaluation_size {
    uint64_t n_full;  /* of micro_batch sequences each */
    size_t n_rest;    /* sequences of a smaller one behind them; 0: there is none */
    uint64_t n_total; /* micro-batches */
    uint64_t n_tokens;
} train_evaluation_size_t;

train_evaluation_size_t train_evaluation_size(const train_options_t *options, const data_t *data);

/** Refuse an evaluation none of whose tokens has a loss: there is no mean of nothing. */
ZR_NODISCARD zr_status_t train_evaluation_check(const train_options_t *options, const data_t *data,
                                                const zr_log_t *log);

/** Whether one comes before the first step. @param step  that the run begins behind */
bool train_evaluation_is_due_first(const train_options_t *options, const train_gain_t *gain,
                                   size_t step);
/** Whether one comes after this step. */
bool train_evaluation_is_due(const train_options_t *options, size_t step);
/** What a plan has to know of all of them. @param data  NULL: there are none */
zr_run_evaluations_t train_evaluation_plan(const train_options_t *options, const data_t *data,
                                           const train_gain_t *gain, size_t step);

/** The next micro-batch of a reader as a model takes it: its first n_sequences. */
ZR_NODISCARD zr_status_t train_next_batch(data_reader_t *reader, size_t n_sequences,
                                          zr_host_batch_t *batch_p);

/** A rank, and what it evaluates. */
typedef struct train_evaluator {
    const train_options_t *options;
    const data_t *data;
    int rank;
    zr_model_t *model;
    messages_t *messages; /* for the progress line; NULL: none */
} train_evaluator_t;

/** What one came to. */
typedef struct train_evaluated {
    bool is_whole; /* false: options->stop has ended it, on all ranks, and it says nothing */
    double loss;   /* mean of all tokens */
    double seconds;
} train_evaluated_t;

/**
 * Evaluate. Collective, between steps; ends soon after options->stop is set.
 *
 * @return ZR_OK; what data_reader_next, zr_model_evaluate and zr_runtime_share return
 */
ZR_NODISCARD zr_status_t train_evaluate(const train_evaluator_t *evaluator,
                                        train_evaluated_t *evaluated_p);

/** Go on with what was gained before. */
void train_evaluations_begin(train_evaluations_t *evaluations, const train_options_t *options,
                             const train_gain_t *gain);
/** Note one that came after a step, and whether --patience ends the run. @return whether its loss
 * is the lowest so far */
bool train_evaluations_note(train_evaluations_t *evaluations, const train_options_t *options,
                            size_t step, const train_evaluated_t *evaluated);

/** Where messages about the validation data go. @param own  borrowed for as long as it is used */
zr_log_t train_evaluation_log(const zr_log_t *own);
/** Facts of the data. */
train_val_data_t train_evaluation_data(const train_options_t *options, const data_t *data);

/** What a checkpoint keeps of it; NULL: nothing was evaluated, or no memory. */
json_t *train_gain_json(const train_options_t *options, const data_t *data,
                        const train_gain_t *gain);
/**
 * Read what a checkpoint has kept.
 *
 * @param object  NULL: nothing, as by a run that did not evaluate
 * @return false: it was of other validation data, or is none; `gain_p` is as if nothing was kept
 */
bool train_gain_read(const train_options_t *options, const data_t *data, const json_t *object,
                     train_gain_t *gain_p);
