/* See evaluate.h. */
#include "examples/train/evaluate.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "examples/common/json.h"
#include "models/parts.h"

/* ---- when, and how much ---------------------------------------------------------------------- */

train_evaluation_size_t train_evaluation_size(const train_options_t *options, const data_t *data) {
    uint64_t each = options->config.micro_batch, n_sequences = data_n_windows(data);
    uint64_t most = options->evaluation.n_batches;
    if (most != 0 && most <= n_sequences / each)
        n_sequences = most * each;
    uint64_t n_full = n_sequences / each, n_rest = n_sequences % each;
    return (train_evaluation_size_t){.n_full = n_full,
                                     .n_rest = (size_t)n_rest,
                                     .n_total = n_full + (n_rest > 0),
                                     .n_tokens = n_sequences * options->seq};
}

zr_status_t train_evaluation_check(const train_options_t *options, const data_t *data,
                                   const zr_log_t *log) {
    train_evaluation_size_t size = train_evaluation_size(options, data);
    uint64_t n_sequences = size.n_full * options->config.micro_batch + size.n_rest;
    if (!data_has_documents(data) || data_n_targets_of(data, 0, n_sequences) > 0)
        return ZR_OK;
    return zr_fail(
        log, ZR_ERR_ARGUMENT,
        "--eval-batches %zu: no token of what is evaluated (%s of --val-data) has a loss: "
        "all are first tokens of documents or marked as ignored; give more, or leave "
        "it out",
        options->evaluation.n_batches, zr_count_text(n_sequences, "sequence").text);
}

static bool is_due_every(const train_options_t *options, size_t step) {
    size_t every = options->evaluation.every;
    return every != 0 && step % every == 0;
}

bool train_evaluation_is_due(const train_options_t *options, size_t step) {
    return options->evaluation.n_paths > 0 &&
           (step == options->steps || is_due_every(options, step));
}

/* One that was due when the run was interrupted is made up for. */
bool train_evaluation_is_due_first(const train_options_t *options, const train_gain_t *gain,
                                   size_t step) {
    if (options->evaluation.n_paths == 0)
        return false;
    return options->evaluation.only || !gain->has_any ||
           (gain->last_step != step && train_evaluation_is_due(options, step));
}

zr_run_evaluations_t train_evaluation_plan(const train_options_t *options, const data_t *data,
                                           const train_gain_t *gain, size_t step) {
    if (data == NULL)
        return (zr_run_evaluations_t){0};
    train_evaluation_size_t size = train_evaluation_size(options, data);
    uint64_t n_ranks = (uint64_t)options->n_ranks;
    return (zr_run_evaluations_t){.n_batches = (size_t)((size.n_full + n_ranks - 1) / n_ranks),
                                  .n_rest = size.n_rest,
                                  .at_start = train_evaluation_is_due_first(options, gain, step),
                                  .every = options->evaluation.every};
}

/* ---- the data -------------------------------------------------------------------------------- */

static void say_of_val_data(void *context, zr_log_level_t level, int rank, const char *message) {
    zr_log_t log = zr_log_with_rank(context, rank);
    size_t length = strlen("--data");
    if (strncmp(message, "--data", length) == 0)
        zr_log_write(&log, level, "--val-data%s", message + length);
    else
        zr_log_write(&log, level, "--val-data: %s", message);
}

zr_log_t train_evaluation_log(const zr_log_t *own) {
    zr_log_t log = *own;
    log.sink = say_of_val_data;
    log.context = (void *)(uintptr_t)own;
    return log;
}

train_val_data_t train_evaluation_data(const train_options_t *options, const data_t *data) {
    train_evaluation_size_t size = train_evaluation_size(options, data);
    return (train_val_data_t){.kind = data_kind(data),
                              .n_files = data_n_files(data),
                              .n_tokens = data_n_tokens(data),
                              .n_windows = data_n_windows(data),
                              .n_batches = (size_t)size.n_total,
                              .n_evaluated_tokens = (size_t)size.n_tokens};
}

/* ---- one ------------------------------------------------------------------------------------- */

zr_status_t train_next_batch(data_reader_t *reader, size_t n_sequences, zr_host_batch_t *batch_p) {
    const int32_t *tokens = NULL, *targets = NULL, *starts = NULL;
    zr_host_batch_t batch = {.n_sequences = n_sequences};
    ZR_TRY(data_reader_next(reader, &batch.seq, &tokens, &targets));
    data_reader_documents(reader, &starts, &batch.n_targets);
    batch.inputs[ZR_PART_TOKENS] = tokens;
    batch.inputs[ZR_PART_TARGETS] = targets;
    batch.inputs[ZR_PART_STARTS] = starts;
    *batch_p = batch;
    return ZR_OK;
}

/* What ranks tell each other of a micro-batch. */
enum { LOSS, TOKENS, STOP, N_SHARED };

/* Mean losses, each for its tokens, in the order of their micro-batches. */
typedef struct sum {
    double loss, n_tokens;
    bool is_stopped;
} sum_t;

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static zr_status_t add_shared(const train_evaluator_t *e, const double own[N_SHARED], sum_t *sum) {
    double all[N_SHARED * ZR_MAX_SUM_SOURCES];
    ZR_TRY(zr_runtime_share(zr_model_runtime(e->model), own, N_SHARED, all));
    for (int i = 0; i < e->options->n_ranks; i++) {
        const double *of = &all[N_SHARED * i];
        if (of[TOKENS] > 0)
            sum->loss += of[LOSS] * of[TOKENS];
        sum->n_tokens += of[TOKENS];
        sum->is_stopped |= of[STOP] != 0;
    }
    return ZR_OK;
}

/* Micro-batches that are equally large; the first is `begun` of all. */
typedef struct part {
    uint64_t begun, n;
    size_t n_sequences; /* of each */
} part_t;

/* Those that are not ignored. */
static double count_targets(const zr_host_batch_t *batch) {
    const int32_t *targets = batch->inputs[ZR_PART_TARGETS];
    size_t n_counted = 0;
    for (size_t i = 0; i < batch->n_sequences * batch->seq; i++)
        n_counted += targets[i] >= 0;
    return (double)n_counted;
}

/* A rank that has none left computes one all the same: the others may need its shards, and its
 * memory is as planned. It does not count. */
static zr_status_t evaluate_batch(const train_evaluator_t *e, data_reader_t *reader,
                                  const part_t *part, uint64_t index, sum_t *sum) {
    const atomic_bool *stop = e->options->stop;
    zr_host_batch_t batch;
    double own[N_SHARED] = {0};
    ZR_TRY(train_next_batch(reader, part->n_sequences, &batch));
    batch.n_targets = 0; /* the mean of its own */
    ZR_TRY(zr_model_evaluate(e->model, &batch, &own[LOSS]));
    if (index < part->n)
        own[TOKENS] = count_targets(&batch);
    own[STOP] = stop != NULL && atomic_load(stop);
    return add_shared(e, own, sum);
}

static void show_progress(const train_evaluator_t *e, uint64_t n_done) {
    if (e->messages == NULL)
        return;
    train_evaluation_size_t size = train_evaluation_size(e->options, e->data);
    messages_progress(e->messages, false, "evaluation: %llu of %s", (unsigned long long)n_done,
                      zr_count_text(size.n_total, "micro-batch").text);
}

static zr_status_t evaluate_batches(const train_evaluator_t *e, data_reader_t *reader,
                                    const part_t *part, sum_t *sum) {
    uint64_t n_ranks = (uint64_t)e->options->n_ranks;
    for (uint64_t first = 0; first < part->n && !sum->is_stopped; first += n_ranks) {
        show_progress(e, part->begun + first);
        ZR_TRY(evaluate_batch(e, reader, part, first + (uint64_t)e->rank, sum));
    }
    return ZR_OK;
}

static zr_status_t evaluate_part(const train_evaluator_t *e, part_t part, sum_t *sum) {
    uint64_t n_ranks = (uint64_t)e->options->n_ranks;
    data_part_t read = {.rank = e->rank,
                        .n_ranks = e->options->n_ranks,
                        .micro_batch = part.n_sequences,
                        .grad_accum = 1,
                        .first_index = part.begun * e->options->config.micro_batch,
                        .n_micro_batches = (part.n + n_ranks - 1) / n_ranks};
    data_reader_t *reader = NULL;
    if (part.n == 0 || part.n_sequences == 0 || sum->is_stopped)
        return ZR_OK;
    ZR_TRY(data_reader_create(e->data, &read, &reader));
    zr_status_t status = evaluate_batches(e, reader, &part, sum);
    data_reader_destroy(&reader);
    return status;
}

/* The rest is a round of its own, in which all ranks do the same: each needs what one does. */
zr_status_t train_evaluate(const train_evaluator_t *e, train_evaluated_t *evaluated_p) {
    train_evaluation_size_t size = train_evaluation_size(e->options, e->data);
    sum_t sum = {0};
    double begin = now_seconds();
    ZR_TRY(evaluate_part(e, (part_t){0, size.n_full, e->options->config.micro_batch}, &sum));
    ZR_TRY(evaluate_part(e, (part_t){size.n_full, 1, size.n_rest}, &sum));
    *evaluated_p = (train_evaluated_t){.is_whole = !sum.is_stopped,
                                       .loss = sum.loss / sum.n_tokens,
                                       .seconds = now_seconds() - begin};
    return ZR_OK;
}

/* ---- what is gained -------------------------------------------------------------------------- */

static bool note_gain(train_gain_t *gain, size_t step, double loss) {
    bool is_best = isfinite(loss) && (!gain->has_best || loss < gain->best_loss);
    gain->has_any = true;
    gain->last_step = step;
    gain->n_without = is_best ? 0 : gain->n_without + 1;
    if (!is_best)
        return false;
    gain->has_best = true;
    gain->best_loss = loss;
    gain->best_step = step;
    return true;
}

static bool is_over(const train_options_t *options, const train_gain_t *gain) {
    size_t patience = options->evaluation.patience;
    return patience != 0 && gain->n_without >= patience;
}

void train_evaluations_begin(train_evaluations_t *evaluations, const train_options_t *options,
                             const train_gain_t *gain) {
    *evaluations = (train_evaluations_t){.gain = *gain, .is_over = is_over(options, gain)};
}

bool train_evaluations_note(train_evaluations_t *evaluations, const train_options_t *options,
                            size_t step, const train_evaluated_t *evaluated) {
    bool is_best = note_gain(&evaluations->gain, step, evaluated->loss);
    if (evaluations->n++ == 0)
        evaluations->first_loss = evaluated->loss;
    evaluations->last_loss = evaluated->loss;
    evaluations->seconds += evaluated->seconds;
    evaluations->is_over = is_over(options, &evaluations->gain);
    return is_best;
}

/* What losses are comparable with. */
static json_t *data_object(const train_options_t *options, const data_t *data) {
    return JSON_OBJECT({"kind", json_string(data_kind(data))},
                       {"tokens", json_count(data_n_tokens(data))},
                       {"hash", json_hex(data_hash(data))}, {"seq", json_count(options->seq)},
                       {"evaluated", json_count(train_evaluation_size(options, data).n_tokens)});
}

json_t *train_gain_json(const train_options_t *options, const data_t *data,
                        const train_gain_t *gain) {
    if (data == NULL || !gain->has_any)
        return NULL;
    json_t *object =
        JSON_OBJECT({"data", data_object(options, data)}, {"step", json_count(gain->last_step)},
                    {"without_gain", json_count(gain->n_without)});
    if (gain->has_best)
        JSON_PUT(&object, {"best_loss", json_real(gain->best_loss)},
                 {"best_step", json_count(gain->best_step)});
    return object;
}

static bool is_same_data(const train_options_t *options, const data_t *data, const json_t *object) {
    json_t *now = data_object(options, data);
    const json_t *then = json_object_get(object, "data");
    bool is_same = now != NULL && then != NULL && json_equal(now, (json_t *)(uintptr_t)then) == 1;
    json_decref(now);
    return is_same;
}

/* A count that is there; false: it is not, or not one. */
static bool read_count(const json_t *object, const char *key, size_t *count_p) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *count_p = (size_t)json_integer_value(value);
    return true;
}

bool train_gain_read(const train_options_t *options, const data_t *data, const json_t *object,
                     train_gain_t *gain_p) {
    train_gain_t gain = {.has_any = true};
    *gain_p = (train_gain_t){0};
    if (object == NULL)
        return true;
    if (!is_same_data(options, data, object) || !read_count(object, "step", &gain.last_step) ||
        !read_count(object, "without_gain", &gain.n_without))
        return false;
    gain.best_loss = json_number_value(json_object_get(object, "best_loss"));
    gain.has_best = json_is_number(json_object_get(object, "best_loss")) &&
                    isfinite(gain.best_loss) && read_count(object, "best_step", &gain.best_step);
    *gain_p = gain;
    return true;
}
