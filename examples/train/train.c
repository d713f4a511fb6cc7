/*
 * One rank is one thread, from opening its device to closing it. The first rank that fails
 * says so to the communicator, which ends what the others wait for; so all threads come to
 * their end and can be joined, whatever happens. The status of the run is that of the rank
 * that failed first: the others report only that they were stopped.
 */
#include "examples/train/train.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/train/agree.h"
#include "examples/train/files.h"
#include "examples/train/launch.h"
#include "examples/train/report.h"
#include "examples/train/run.h"
#include "examples/train/trace.h"
#include "examples/weights/carry.h"

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- a rank: making and unmaking -------------------------------------------------------- */

/* Whether this rank's collectives run beside compute: a GPU's do, where they may. */
static zr_status_t choose_overlap(rank_t *rank, bool *is_concurrent_p) {
    const train_options_t *o = rank->run->options;
    bool is_host = strcmp(rank->run->device.name, "host") == 0;
    int n_machines = 1;
    if (is_host && o->config.overlap_comm && o->overlap == TRAIN_OVERLAP_AUTO)
        ZR_TRY(zr_comm_count_machines(rank->comm, &n_machines));
    *is_concurrent_p = is_host && train_options_overlap(o, n_machines);
    rank->result.overlaps = is_host ? *is_concurrent_p : o->config.overlap_comm;
    return ZR_OK;
}

static zr_status_t create_device(rank_t *rank) {
    zr_device_options_t options = zr_device_options_default();
    ZR_TRY(choose_overlap(rank, &options.concurrent));
    options.log = rank->log;
    options.n_threads = rank->run->n_device_threads;
    options.index = rank->run->device.index;
    options.shares_memory = rank->run->options->is_launched;
    options.trace = rank->trace;
    if (rank->run->options->use_nccl && !rank->run->options->is_launched)
        options.index += rank->number; /* a GPU each */
    ZR_TRY(zr_device_open(rank->run->device.name, &options, &rank->device));
    snprintf(rank->result.device, sizeof(rank->result.device), "%s",
             zr_device_info(rank->device)->description);
    rank->result.device_in_use_bytes[0] = zr_device_info(rank->device)->in_use_bytes;
    rank->result.attention = rank->run->attention;
    if (rank->run->options->matmul_choices != NULL)
        ZR_TRY(zr_nn_matmul_choose(rank->device,
                                   matmul_choices_of(rank->run->options->matmul_choices)));
    return ZR_OK;
}

static zr_status_t create_model(rank_t *rank) {
    const train_options_t *o = rank->run->options;
    bool trains = !o->evaluation.only;
    zr_transformer_options_t options = train_options_model(o);
    options.has_documents = zero_train_has_documents(rank->run);
    zr_activation_options_t activations = {.recompute = o->recompute,
                                           .device = o->offload_activations,
                                           .n_on_device = o->activations_on_device,
                                           .n_in_host = o->activations_in_host,
                                           .most_rows = o->config.micro_batch * o->seq,
                                           .least_rows = o->config.micro_batch * o->seq_min};
    zr_config_t config = o->config;
    config.host_threads = rank->run->n_device_threads;
    config.process_ranks = train_launch_n_here(o);
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &rank->log, &rank->runtime));
    zr_allocator_use_plans(zr_runtime_allocator(rank->runtime), o->plans);
    zr_allocator_share_tables(zr_runtime_allocator(rank->runtime), o->plans,
                              (size_t)config.process_ranks);
    ZR_TRY(train_snapshot_start(rank));
    ZR_TRY(zr_model_shape_create(rank->runtime, &o->shape, &options, &activations, &rank->model));
    if (o->checkpoint.dir != NULL && trains)
        ZR_TRY(zr_runtime_expect_saves(rank->runtime, o->checkpoint.is_async));
    if (zero_train_links_frozen(rank->run))
        ZR_TRY(zr_runtime_link_frozen(rank->runtime));
    if (rank->run->start.checkpoint != NULL)
        ZR_TRY(zr_runtime_restore(rank->runtime, rank->run->start.checkpoint));
    else if (rank->number == 0 && train_inputs_carry_folder(rank->run))
        ZR_TRY(carry_into_run(o->model, rank->runtime, &rank->log));
    ZR_TRY(zr_model_commit(rank->model));
    zr_runtime_model_size(rank->runtime, &rank->result.size);
    if (rank->result.size.trainable_elems == 0 && trains)
        zr_log_write(&rank->log, ZR_LOG_WARNING,
                     "--freeze %s freezes every parameter: nothing is trained", o->freeze);
    return ZR_OK;
}

static zr_status_t create_reader(rank_t *rank) {
    const train_options_t *o = rank->run->options;
    const train_start_t *start = &rank->run->start;
    size_t n_steps = start->step < o->steps ? o->steps - start->step : 0;
    data_part_t part = {.rank = rank->number,
                        .n_ranks = o->n_ranks,
                        .micro_batch = o->config.micro_batch,
                        .grad_accum = o->config.grad_accum,
                        .first_index = start->n_sequences,
                        .first_step = start->step,
                        .n_micro_batches = n_steps * o->config.grad_accum,
                        .n_together = zr_config_n_together(&o->config)};
    if (o->evaluation.only)
        return ZR_OK;
    rank->batches = calloc(part.n_together, sizeof(*rank->batches));
    if (rank->batches == NULL)
        return zr_fail(&rank->log, ZR_ERR_MEMORY, "no memory for a list of %s",
                       zr_count_text(part.n_together, "micro-batch").text);
    return data_reader_create(rank->run->data, &part, &rank->reader);
}

static zr_status_t make_rank(rank_t *rank) {
    const run_t *run = rank->run;
    ZR_TRY(train_agree(run->options, run->data, run->val, &run->start, run->attention.name,
                       rank->comm));
    ZR_TRY(
        train_trace_create(run->options, rank->number, run->start.step, &rank->log, &rank->trace));
    ZR_TRY(create_device(rank));
    ZR_TRY(create_model(rank));
    ZR_TRY(train_trace_align(run->options, rank->runtime, rank->trace));
    return create_reader(rank);
}

/* A run that fails is the one whose memory is looked at: what was recorded is kept, too. */
static void destroy_model(rank_t *rank) {
    if (rank->runtime != NULL) {
        train_results_note(rank);
    }
    if (train_snapshot_stop(rank) != ZR_OK)
        rank->recording = NULL;
    data_reader_destroy(&rank->reader);
    zr_model_destroy(&rank->model);
    zr_runtime_destroy(&rank->runtime);
}

static void destroy_rank(rank_t *rank) {
    destroy_model(rank);
    zr_comm_destroy(&rank->comm); /* it has events of the device */
    zr_device_close(&rank->device);
}

/* ---- a rank: steps ---------------------------------------------------------------------- */

static train_time_t rank_time(const rank_t *rank) {
    zr_runtime_time_t time;
    zr_stash_statistics_t stash = {0};
    zr_runtime_time(rank->runtime, &time);
    (void)zr_model_activations_statistics(rank->model, &stash);
    const double *waits = stash.store_statistics.wait_seconds;
    return (train_time_t){
        .of = {[TRAIN_COMM] = time.comm_seconds,
               [TRAIN_OPTIMIZER] = time.optimizer_seconds,
               [TRAIN_STALL] = time.stall_seconds,
               [TRAIN_IO] = time.io_seconds + waits[ZR_STORE_PUT] + waits[ZR_STORE_GET],
               [TRAIN_DATA] = rank->reader != NULL ? data_reader_wait_seconds(rank->reader) : 0,
               [TRAIN_CONCURRENT] = time.concurrent_seconds}};
}

/* What lies between two readings, `seconds` apart; compute is what is left. */
static train_time_t time_between(const train_time_t *before, const train_time_t *after,
                                 double seconds) {
    train_time_t time;
    double rest = seconds;
    for (int part = 0; part < TRAIN_N_PARTS; part++) {
        time.of[part] = after->of[part] - before->of[part];
        rest -= part != TRAIN_CONCURRENT ? time.of[part] : 0;
    }
    time.of[TRAIN_COMPUTE] = rest > 0 ? rest : 0;
    return time;
}

/* What the rank did since it last took its own time, but for waiting for others. */
static double take_own_seconds(rank_t *rank) {
    zr_runtime_time_t time;
    zr_runtime_time(rank->runtime, &time);
    double now = now_seconds();
    double own = now - rank->own_begin - (time.stall_seconds - rank->own_stall);
    rank->own_begin = now;
    rank->own_stall = time.stall_seconds;
    return own;
}

/* The average of the loss, and which rank the others waited for since they did this last. Both go
 * with one call: what ranks tell each other in each step. */
static zr_status_t share_loss_and_time(rank_t *rank, double loss, train_step_line_t *line_p) {
    int n_ranks = rank->run->options->n_ranks;
    rank->own_last = take_own_seconds(rank);
    const double own[2] = {loss, rank->own_last};
    double all[2 * ZR_MAX_SUM_SOURCES], own_seconds[ZR_MAX_SUM_SOURCES], sum = 0;
    ZR_TRY(zr_runtime_share(rank->runtime, own, 2, all));
    for (int i = 0; i < n_ranks; i++) {
        sum += all[2 * i];
        own_seconds[i] = all[2 * i + 1];
    }
    line_p->loss = sum / n_ranks;
    if (rank->number == 0 && n_ranks > 1)
        line_p->slowest = train_slowest_of(own_seconds, n_ranks);
    return ZR_OK;
}

static zr_status_t next_batch(rank_t *rank, zr_host_batch_t *batch_p) {
    double begin = zr_device_now(rank->device), waited = data_reader_wait_seconds(rank->reader);
    ZR_TRY(train_next_batch(rank->reader, rank->run->options->config.micro_batch, batch_p));
    if (rank->trace != NULL && data_reader_wait_seconds(rank->reader) > waited)
        zr_trace_slice(rank->trace, &(zr_trace_slice_t){.kind = ZR_SLICE_WAIT,
                                                        .lane = ZR_TRACE_STALLS,
                                                        .name = "wait for data",
                                                        .begin = begin,
                                                        .end = zr_device_now(rank->device)});
    return ZR_OK;
}

/* Ranks ask each other for it within a step only that often: it is a message. */
#define ASKS_EVERY 16

/* Whether all ranks go on with micro-batch `i` of a step, which may be one of very many. */
static zr_status_t goes_on(rank_t *rank, size_t i, bool *goes_on_p) {
    const train_options_t *o = rank->run->options;
    double share = o->stop != NULL && atomic_load(o->stop);
    *goes_on_p = true;
    if (i == 0 || (o->n_ranks > 1 && i % ASKS_EVERY != 0))
        return ZR_OK;
    if (o->n_ranks > 1)
        ZR_TRY(zr_runtime_average(rank->runtime, share, &share));
    *goes_on_p = share == 0;
    return ZR_OK;
}

/* So many of a step's micro-batches at once. */
static zr_status_t train_micro_batches(rank_t *rank, size_t n, train_step_line_t *line_p) {
    for (size_t i = 0; i < n; i++) {
        zr_host_batch_t *batch = &rank->batches[i];
        ZR_TRY(next_batch(rank, batch));
        line_p->n_tokens += (size_t)rank->run->options->n_ranks * batch->n_sequences * batch->seq;
    }
    return zr_model_train(rank->model, rank->batches, n);
}

/* The step is given up when options->stop is set meanwhile. */
static zr_status_t train_step(rank_t *rank, train_step_line_t *line_p) {
    const train_options_t *o = rank->run->options;
    const size_t n_together = zr_config_n_together(&o->config);
    double loss = 0;
    for (size_t i = 0; i < o->config.grad_accum; i += n_together) {
        bool begins = false;
        ZR_TRY(goes_on(rank, i, &begins));
        rank->result.is_stopped = !begins;
        if (!begins)
            return zr_model_drop_step(rank->model);
        ZR_TRY(train_micro_batches(rank, n_together, line_p));
    }
    ZR_TRY(zr_model_take_loss(rank->model, &loss));
    ZR_TRY(share_loss_and_time(rank, loss, line_p));
    return zr_runtime_step(rank->runtime, &line_p->report);
}

static zr_status_t grow(rank_t *rank, double **values, size_t capacity) {
    double *grown = realloc(*values, capacity * sizeof(*grown));
    if (grown == NULL)
        return zr_fail(&rank->log, ZR_ERR_MEMORY, "no memory for the times of %s",
                       zr_count_text(capacity, "step").text);
    *values = grown;
    return ZR_OK;
}

/* The first step maps memory and says nothing of those that follow. */
static zr_status_t note_delay(rank_t *rank, const train_step_line_t *line) {
    size_t n_ranks = (size_t)rank->run->options->n_ranks;
    if (n_ranks == 1 || rank->result.n_steps == rank->result.first_step)
        return ZR_OK;
    if (rank->delays == NULL)
        rank->delays = calloc(n_ranks, sizeof(*rank->delays));
    if (rank->delays == NULL)
        return zr_fail(&rank->log, ZR_ERR_MEMORY, "no memory for the delays of %s",
                       zr_count_text(n_ranks, "rank").text);
    rank->delays[line->slowest.rank].n_steps += 1;
    rank->delays[line->slowest.rank].excess_seconds += line->slowest.excess_seconds;
    rank->result.n_delayed_steps += 1;
    return ZR_OK;
}

/* The times of all steps, for their median. */
static zr_status_t note_times(rank_t *rank, const train_step_line_t *line) {
    size_t n = rank->result.n_steps - rank->result.first_step;
    if (n == rank->capacity) {
        size_t capacity = n == 0 ? 64 : 2 * n;
        ZR_TRY(grow(rank, &rank->step_seconds, capacity));
        ZR_TRY(grow(rank, &rank->own_seconds, capacity));
        if (rank->number == 0)
            ZR_TRY(grow(rank, &rank->step_tokens_per_s, capacity));
        rank->capacity = capacity;
    }
    rank->step_seconds[n] = line->seconds;
    rank->own_seconds[n] = rank->own_last;
    if (rank->number == 0)
        rank->step_tokens_per_s[n] = line->tokens_per_s;
    return ZR_OK;
}

/* Rank 0 speaks for the run. */
static zr_status_t report_step(rank_t *rank, const train_step_line_t *line) {
    run_t *run = rank->run;
    ZR_TRY(note_delay(rank, line));
    if (train_log_is_open(&run->log_files))
        ZR_TRY(train_report_log_step(&run->log_files, run->options, line, &rank->log));
    if (run->messages != NULL)
        train_report_progress(run->messages, run->options, line);
    return ZR_OK;
}

/* For the progress line. The first step maps memory, and says little of the others' time. */
static void look_ahead(rank_t *rank, train_step_line_t *line) {
    zr_tier_statistics_t statistics;
    size_t n = line->report.step - rank->result.first_step;
    double now = now_seconds();
    if (n == 1)
        rank->first_end = now;
    double each = n > 1 ? (now - rank->first_end) / (double)(n - 1) : line->seconds;
    line->left_seconds = each * (double)(rank->run->options->steps - line->report.step);
    zr_allocator_statistics(zr_runtime_allocator(rank->runtime), ZR_TIER_DEVICE, &statistics);
    line->device_bytes = statistics.reserved.peak;
}

/* Whether the run has step `i`, counted from 0, as far as all ranks know. */
static bool has_step(const rank_t *rank, size_t i) {
    const train_options_t *o = rank->run->options;
    return i < o->steps && !o->evaluation.only && !rank->result.evaluations.is_over;
}

/* Ranks that are processes tell each other whether any has seen the flag. */
static zr_status_t ask_processes(rank_t *rank, size_t i, bool has_seen, bool *begins_p) {
    double share = 0;
    *begins_p = has_step(rank, i);
    if (*begins_p)
        ZR_TRY(zr_runtime_average(rank->runtime, has_seen, &share));
    *begins_p = *begins_p && share == 0;
    return ZR_OK;
}

/* Whether to begin step `i`, counted from 0. All ranks have to end after the same step: in every
 * step they wait for each other, so whoever comes to the next one sees who saw the flag in this. */
static zr_status_t begins_step(rank_t *rank, size_t i, bool *begins_p) {
    run_t *run = rank->run;
    const train_options_t *o = run->options;
    size_t none = SIZE_MAX, last = o->n_ranks == 1 ? i : i + 1;
    bool has_seen = o->stop != NULL && atomic_load(o->stop);
    *begins_p = false;
    if (rank->result.is_stopped)
        return ZR_OK;
    if (o->is_launched)
        return ask_processes(rank, i, has_seen, begins_p);
    if (has_seen && i < o->steps)
        atomic_compare_exchange_strong(&run->n_wanted, &none, last);
    *begins_p = has_step(rank, i) && i < atomic_load(&run->n_wanted);
    return ZR_OK;
}

static zr_status_t save_checkpoint(rank_t *rank) {
    const train_options_t *o = rank->run->options;
    const train_start_t *start = &rank->run->start;
    uint64_t n_trained = (rank->result.n_steps - start->step) * train_checkpoint_step_sequences(o);
    zr_trace_phase(rank->trace, zr_device_now(rank->device), "checkpoint");
    train_place_t place = {.n_sequences = start->n_sequences + n_trained,
                           .val = rank->run->val,
                           .gain = rank->result.evaluations.gain};
    zr_status_t status =
        train_checkpoint_save(o, rank->run->data, rank->runtime, &place, &rank->result.saves);
    zr_trace_phase(rank->trace, zr_device_now(rank->device), NULL);
    rank->saved_step = rank->result.n_steps;
    rank->has_unsaved_gain = false;
    return status;
}

/* What lies between is of no step. */
static void restart_clock(rank_t *rank) {
    rank->step_begin = now_seconds();
    rank->before = rank_time(rank);
    (void)take_own_seconds(rank);
}

static void time_step(rank_t *rank, train_step_line_t *line) {
    double end = now_seconds();
    train_time_t after = rank_time(rank);
    line->seconds = end - rank->step_begin;
    line->tokens_per_s = (double)line->n_tokens / line->seconds;
    line->time = time_between(&rank->before, &after, line->seconds);
    rank->seconds += line->seconds;
    for (int part = 0; part < TRAIN_N_PARTS; part++)
        rank->result.time.of[part] += line->time.of[part];
    rank->step_begin = end;
    rank->before = after;
}

static zr_status_t note_step(rank_t *rank, train_step_line_t *line) {
    train_result_t *result = &rank->result;
    ZR_TRY(note_times(rank, line));
    if (rank->number == 0) {
        look_ahead(rank, line);
        ZR_TRY(report_step(rank, line));
    }
    if (result->n_steps == result->first_step)
        result->first_loss = line->loss;
    result->last_loss = line->loss;
    result->n_steps = line->report.step;
    result->n_skipped = line->report.n_skipped;
    result->n_trained_tokens += line->n_tokens;
    return ZR_OK;
}

/* Evaluate behind the steps that are done. When options->stop has ended it, the run ends as well,
 * on all ranks. */
static zr_status_t evaluate(rank_t *rank) {
    run_t *run = rank->run;
    train_evaluator_t evaluator = {.options = run->options,
                                   .data = run->val,
                                   .rank = rank->number,
                                   .model = rank->model,
                                   .messages = rank->number == 0 ? run->messages : NULL};
    train_evaluation_line_t line = {.step = rank->result.n_steps};
    zr_trace_phase(rank->trace, zr_device_now(rank->device), "evaluation");
    ZR_TRY(train_evaluate(&evaluator, &line.evaluated));
    zr_trace_phase(rank->trace, zr_device_now(rank->device), NULL);
    if (rank->is_recording)
        ZR_TRY(train_snapshot_start(rank)); /* what it allocated is of no step */
    rank->result.is_stopped = !line.evaluated.is_whole;
    if (!line.evaluated.is_whole)
        return ZR_OK;
    line.is_best =
        train_evaluations_note(&rank->result.evaluations, run->options, line.step, &line.evaluated);
    rank->has_unsaved_gain = true;
    return rank->number == 0 ? train_report_evaluation(&run->log_files, run->messages, run->options,
                                                       &line, &rank->log)
                             : ZR_OK;
}

static bool has_unsaved_best(const rank_t *rank) {
    const train_gain_t *gain = &rank->result.evaluations.gain;
    return rank->run->options->evaluation.keep_best && gain->has_best &&
           gain->best_step == rank->result.n_steps && rank->has_unsaved_gain;
}

static bool is_save_due(const rank_t *rank) {
    return has_unsaved_best(rank) ||
           train_checkpoint_is_due(rank->run->options, rank->result.n_steps);
}

/* What comes between steps. */
static zr_status_t end_step(rank_t *rank) {
    train_result_t *result = &rank->result;
    ZR_TRY(train_checkpoint_end(rank->runtime, false, &result->saves));
    bool evaluates = train_evaluation_is_due(rank->run->options, result->n_steps);
    if (evaluates)
        ZR_TRY(evaluate(rank));
    bool saves = is_save_due(rank);
    if (saves)
        ZR_TRY(save_checkpoint(rank));
    if (evaluates || saves)
        restart_clock(rank);
    return ZR_OK;
}

/* Of the last step, unless it has been saved; and of a loss that was made up for. */
static zr_status_t save_at_end(rank_t *rank) {
    const train_options_t *o = rank->run->options;
    bool has_new =
        rank->result.n_steps > rank->saved_step || (rank->has_unsaved_gain && rank->saved_step > 0);
    return o->checkpoint.dir != NULL && has_new && !o->evaluation.only ? save_checkpoint(rank)
                                                                       : ZR_OK;
}

static zr_status_t train_steps(rank_t *rank) {
    const train_start_t *start = &rank->run->start;
    train_result_t *result = &rank->result;
    train_evaluations_begin(&result->evaluations, rank->run->options, &start->gain);
    rank->saved_step = start->step;
    if (train_evaluation_is_due_first(rank->run->options, &start->gain, start->step))
        ZR_TRY(evaluate(rank));
    if (start->checkpoint == NULL && has_unsaved_best(rank)) /* initial weights may stay the best */
        ZR_TRY(save_checkpoint(rank));
    restart_clock(rank);
    for (size_t i = start->step;; i++) {
        train_step_line_t line = {0};
        bool begins = false;
        ZR_TRY(begins_step(rank, i, &begins));
        if (!begins)
            break;
        ZR_TRY(train_step(rank, &line));
        if (result->is_stopped)
            break;
        ZR_TRY(train_snapshot_step(rank, i + 1 - result->first_step));
        time_step(rank, &line);
        ZR_TRY(note_step(rank, &line));
        ZR_TRY(end_step(rank));
    }
    ZR_TRY(save_at_end(rank));
    return train_checkpoint_end(rank->runtime, true, &result->saves);
}

/* Whether a status is about what the run was given, and not about what it met. */
static bool is_about_input(zr_status_t status) {
    return status == ZR_ERR_ARGUMENT || status == ZR_ERR_FORMAT || status == ZR_ERR_UNSUPPORTED;
}

static void note_failure(run_t *run, zr_status_t status) {
    pthread_mutex_lock(&run->lock);
    if (run->status == ZR_OK)
        run->status = status;
    pthread_mutex_unlock(&run->lock);
}

static void note_drive_failure(run_t *run) {
    pthread_mutex_lock(&run->lock);
    run->drive_failed = true;
    pthread_mutex_unlock(&run->lock);
}

/* What has a format here is the checkpoint that is gone on from. */
static zr_status_t create_rank(rank_t *rank) {
    zr_status_t status = make_rank(rank);
    if (status == ZR_ERR_FORMAT)
        note_drive_failure(rank->run);
    return status;
}

/* Once it trains, nothing has a format but what drives give back, and what cannot be had any more
 * (a ring, for which the machine has no memory) could be had before. */
static zr_status_t train_and_finish(rank_t *rank) {
    zr_status_t status = train_steps(rank);
    ZR_THEN(status, train_results_finish(rank));
    if (status == ZR_ERR_FORMAT || status == ZR_ERR_UNSUPPORTED)
        note_drive_failure(rank->run);
    return status;
}

/* What this process has said of it, where others cannot see that. */
static const char *why_it_fails(const run_t *run, const char *otherwise) {
    const messages_t *messages = messages_of(&run->log);
    const char *error =
        messages != NULL && run->options->is_launched ? messages_first_error(messages) : "";
    return *error != '\0' ? error : otherwise;
}

static void *run_rank(void *argument) {
    rank_t *rank = argument;
    zr_status_t status = create_rank(rank);
    ZR_THEN(status, train_and_finish(rank));
    train_results_times(rank);
    if (status == ZR_OK && rank->run->options->is_launched) {
        destroy_model(rank);
        status = train_results_share(rank);
    }
    if (status != ZR_OK) {
        note_failure(rank->run, status);
        zr_comm_abort(rank->comm, why_it_fails(rank->run, zr_status_name(status)));
    }
    destroy_rank(rank);
    return NULL;
}

/* ---- the run ---------------------------------------------------------------------------- */

/* The ranks that are here, with their communicators: those of other processes have come then. */
static zr_status_t create_ranks(run_t *run) {
    int n_here = train_launch_n_here(run->options);
    zr_comm_t **comms = calloc((size_t)n_here, sizeof(zr_comm_t *));
    run->ranks = calloc((size_t)n_here, sizeof(*run->ranks));
    zr_status_t status = comms != NULL && run->ranks != NULL
                             ? train_launch_comms(run->options, &run->log, comms)
                             : zr_fail(&run->log, ZR_ERR_MEMORY, "no memory for %s",
                                       zr_count_text((uint64_t)n_here, "rank").text);
    for (int i = 0; i < n_here && run->ranks != NULL; i++) {
        rank_t *rank = &run->ranks[i];
        rank->run = run;
        rank->number = train_launch_first(run->options) + i;
        rank->log = zr_log_with_rank(&run->log, rank->number);
        rank->comm = status == ZR_OK ? comms[i] : NULL;
    }
    free(comms);
    return status;
}

/* What is left of them. Those that have not run tell others why. */
static void free_ranks(run_t *run) {
    if (run->ranks == NULL)
        return;
    for (int i = 0; i < train_launch_n_here(run->options); i++) {
        if (run->ranks[i].comm != NULL)
            zr_comm_abort(run->ranks[i].comm, why_it_fails(run, "it does not train"));
        zr_comm_destroy(&run->ranks[i].comm);
        free(run->ranks[i].step_tokens_per_s);
        free(run->ranks[i].own_seconds);
        free(run->ranks[i].step_seconds);
        free(run->ranks[i].delays);
        free(run->ranks[i].of_all);
        free(run->ranks[i].batches);
    }
    free(run->ranks);
}

/* Start all ranks and wait for their end. Those that could not be started fail here. */
static void run_threads(run_t *run, rank_t *ranks) {
    int n_started = 0, n_ranks = train_launch_n_here(run->options);
    for (; n_started < n_ranks; n_started++) {
        int error = pthread_create(&ranks[n_started].thread, NULL, run_rank, &ranks[n_started]);
        if (error == 0)
            continue;
        note_failure(run, zr_fail(&run->log, ZR_ERR_MEMORY,
                                  "cannot start the thread of rank %d of %d: %s", n_started,
                                  n_ranks, strerror(error)));
        zr_comm_abort(ranks[n_started].comm, "its thread could not be started");
        break;
    }
    for (int i = n_started; i < n_ranks; i++)
        zr_comm_destroy(&ranks[i].comm);
    for (int i = 0; i < n_started; i++)
        pthread_join(ranks[i].thread, NULL);
}

static zr_status_t run_ranks(run_t *run, train_result_t *result) {
    run_threads(run, run->ranks);
    zr_status_t saved = train_snapshots_save(run, run->ranks);
    zr_status_t traced = train_traces_save(run, run->ranks, &result->trace);
    saved = saved == ZR_OK ? traced : saved;
    zr_status_t status = run->status != ZR_OK ? run->status : saved;
    train_results_add_up(run->ranks, run->options, result);
    result->bad_input = is_about_input(status) && !run->drive_failed;
    return status;
}

static bool is_interrupted(const train_options_t *options, const train_result_t *result) {
    bool is_complete = options->evaluation.only || result->evaluations.is_over ||
                       result->n_steps >= options->steps;
    return result->is_stopped || !is_complete;
}

static void say_over(const train_options_t *options, const train_result_t *result,
                     const zr_log_t *log) {
    const train_gain_t *gain = &result->evaluations.gain;
    zr_log_write(log, ZR_LOG_INFO,
                 "ended after step %zu of %zu: %s in a row had no lower validation loss than %.4f, "
                 "of step %zu (--patience %zu)",
                 result->n_steps, options->steps, zr_count_text(gain->n_without, "evaluation").text,
                 gain->best_loss, gain->best_step, options->evaluation.patience);
}

/* A run that was saved can be gone on with: nothing has failed. */
static void say_interrupted(const train_options_t *options, const train_result_t *result,
                            const zr_log_t *log) {
    if (options->evaluation.only)
        zr_log_write(log, ZR_LOG_ERROR, "interrupted before the end of the evaluation");
    else if (options->checkpoint.dir == NULL)
        zr_log_write(log, ZR_LOG_ERROR, "interrupted after step %zu of %zu", result->n_steps,
                     options->steps);
    else
        zr_log_write(log, ZR_LOG_INFO,
                     "ended after step %zu of %zu, as requested; it is saved in %s: run the same "
                     "command with --resume to continue",
                     result->n_steps, options->steps, options->checkpoint.dir);
}

/* ---- a run ------------------------------------------------------------------------------ */

static zr_status_t make_run(const train_options_t *options, const zr_log_t *log, run_t **run_p) {
    run_t *run = calloc(1, sizeof(*run));
    if (run == NULL || pthread_mutex_init(&run->lock, NULL) != 0) {
        free(run);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a run");
    }
    run->options = options;
    run->log = *log;
    *run_p = run;
    return ZR_OK;
}

/* Before anything is made. */
static bool is_bad_input(zr_status_t status) {
    return is_about_input(status) || status == ZR_ERR_IO;
}

/* What is known of a run whose ranks have done nothing yet. */
static train_result_t known_of(const run_t *run) {
    train_result_t result = {0};
    if (run != NULL && run->val != NULL)
        result.val_data = train_evaluation_data(run->options, run->val);
    if (run == NULL || (run->data == NULL && run->val == NULL))
        return result;
    result.first_step = result.n_steps = run->start.step;
    result.n_skipped = run->start.step - run->start.n_updates;
    result.passed = run->start.passed;
    result.n_passed = run->start.n_passed;
    if (run->data == NULL)
        return result;
    result.data_kind = data_kind(run->data);
    result.n_data_files = data_n_files(run->data);
    result.n_data_tokens = data_n_tokens(run->data);
    result.n_data_windows = data_n_windows(run->data);
    result.n_data_duplicates = data_n_duplicates(run->data);
    result.has_documents = data_has_documents(run->data);
    result.n_data_targets = data_n_targets(run->data);
    return result;
}

train_result_t zero_train_failed(const zero_train_t *train, zr_status_t status) {
    train_result_t result = known_of(train);
    result.status = status;
    result.bad_input = is_bad_input(status);
    return result;
}

zr_status_t zero_train_open(const train_options_t *options, const zr_log_t *log,
                            zero_train_t **train_p, train_result_t *result_p) {
    run_t *run = NULL;
    zr_status_t status = make_run(options, log, &run);
    ZR_THEN(status, device_choose(options->device, &run->log, &run->device));
    ZR_THEN(status, device_attention(&run->device, options->attention, &run->log, &run->attention));
    ZR_THEN(status, create_ranks(run));
    ZR_THEN(status, train_inputs_open(run));
    if (status == ZR_OK) {
        *train_p = run;
        return ZR_OK;
    }
    *result_p = zero_train_failed(run, status);
    result_p->bad_input &= run == NULL || !run->start.is_damaged;
    result_p->passed = NULL; /* the run's */
    result_p->n_passed = 0;
    zero_train_close(&run);
    return status;
}

zr_comm_t *zero_train_comm(const zero_train_t *train) {
    return train->ranks[0].comm;
}

static bool is_of_base(const void *context, const char *name) {
    (void)context;
    return !zr_lora_is_factor(name);
}

bool zero_train_links_frozen(const zero_train_t *train) {
    const train_options_t *o = train->options;
    return o->lora_text != NULL && !o->evaluation.only && train->start.checkpoint != NULL &&
           zr_checkpoint_can_be_linked(train->start.checkpoint,
                                       (zr_frozen_names_t){.has = is_of_base});
}

bool zero_train_has_documents(const zero_train_t *train) {
    return data_has_documents(train->data != NULL ? train->data : train->val);
}

zr_run_evaluations_t zero_train_evaluations(const zero_train_t *train) {
    const train_options_t *o = train->options;
    const train_gain_t *gain = &train->start.gain;
    zr_run_evaluations_t evaluations =
        train_evaluation_plan(o, train->val, gain, train->start.step);
    bool is_saved = evaluations.at_start && train->start.checkpoint != NULL;
    evaluations.saves_first = o->evaluation.keep_best && !gain->has_best && !is_saved;
    return evaluations;
}

size_t zero_train_first_step(const zero_train_t *train) {
    return train->start.step;
}

void zero_train_close(zero_train_t **train) {
    run_t *run = *train;
    if (run == NULL)
        return;
    free_ranks(run);
    train_checkpoint_close(&run->start);
    data_close(&run->data);
    data_close(&run->val);
    pthread_mutex_destroy(&run->lock);
    free(run);
    *train = NULL;
}

zr_status_t zero_train_try(zero_train_t *run, train_result_t *result_p) {
    const train_options_t *options = run->options;
    train_result_t result = known_of(run);
    zr_status_t status = train_files_check(options, run->data, run->val, &run->log);
    result.bad_input = is_bad_input(status);
    ZR_THEN(status, train_agree(options, run->data, run->val, &run->start, run->attention.name,
                                run->ranks[0].comm));
    result.status = status;
    *result_p = result;
    return status;
}

zr_status_t zero_train_go(zero_train_t *run, messages_t *messages, train_result_t *result_p) {
    const train_options_t *options = run->options;
    train_result_t result = known_of(run);
    for (int i = 0; i < train_launch_n_here(options); i++)
        run->ranks[i].result = (train_result_t){.first_step = result.first_step,
                                                .n_steps = result.n_steps,
                                                .n_skipped = result.n_skipped};
    run->messages = options->quiet ? NULL : messages;
    run->n_device_threads = device_threads(options->n_threads, train_launch_n_sharing(options));
    run->n_wanted = SIZE_MAX;
    result.n_threads = (size_t)run->n_device_threads;
    zr_status_t status = train_files_check(options, run->data, run->val, &run->log);
    ZR_THEN(status, train_inputs_open_log(run));
    result.bad_input = is_bad_input(status);
    ZR_THEN(status, train_inputs_close_log(run, run_ranks(run, &result)));
    if (run->messages != NULL)
        messages_end_progress(run->messages);
    result.interrupted = status == ZR_OK && is_interrupted(options, &result);
    if (result.interrupted)
        say_interrupted(options, &result, &run->log);
    else if (status == ZR_OK && result.evaluations.is_over && !options->evaluation.only)
        say_over(options, &result, &run->log);
    result.status = status;
    *result_p = result;
    return status;
}

int zero_train_first_known(const zero_train_t *run, int *n_known_p) {
    bool are_all_told = run->ranks != NULL && run->ranks[0].of_all != NULL;
    *n_known_p = run->ranks == NULL ? 0
                 : are_all_told     ? run->options->n_ranks
                                    : train_launch_n_here(run->options);
    return are_all_told ? 0 : train_launch_first(run->options);
}

const train_result_t *zero_train_result_of(const zero_train_t *run, int rank) {
    if (run->ranks[0].of_all != NULL)
        return &run->ranks[0].of_all[rank];
    return &run->ranks[rank - train_launch_first(run->options)].result;
}

zr_status_t zero_train_run(const train_options_t *options, const zr_log_t *log,
                           messages_t *messages, train_result_t *result_p) {
    zero_train_t *run = NULL;
    zr_status_t status = zero_train_open(options, log, &run, result_p);
    ZR_THEN(status, zero_train_go(run, messages, result_p));
    zero_train_close(&run);
    return status;
}
