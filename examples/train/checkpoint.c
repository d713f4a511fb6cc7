/*
 * What the trainer keeps in a checkpoint is an object of JSON: its model, so that it is known what
 * the weights are of, and its place in the data, with what the order of the data depends on.
 */
#include "examples/train/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "examples/common/files.h"
#include "examples/common/json.h"
#include "examples/common/model_json.h"
#include "examples/train/evaluate.h"
#include "examples/train/kept.h"

/* ---- what is kept ---------------------------------------------------------------------------- */

uint64_t train_checkpoint_step_sequences(const train_options_t *options) {
    return (uint64_t)options->n_ranks * options->config.micro_batch * options->config.grad_accum;
}

/* What the order of the data depends on. */
static json_t *data_object(const train_options_t *options, const data_t *data) {
    char hash[24];
    const char *weights = options->data_weights_text;
    snprintf(hash, sizeof(hash), "%016" PRIx64, data_hash(data));
    return JSON_OBJECT({"kind", json_string(data_kind(data))},
                       {"weights", json_string(weights != NULL ? weights : "")},
                       {"tokens", json_count(data_n_tokens(data))}, {"hash", json_string(hash)},
                       {"seq", json_count(options->seq)}, {"seq_min", json_count(options->seq_min)},
                       {"seed", json_count(options->seed)});
}

static char *trainer_text(const train_options_t *options, const data_t *data,
                          const train_place_t *place) {
    json_t *object =
        JSON_OBJECT({"model", model_json(&options->shape)}, {"data", data_object(options, data)},
                    {"sequences", json_count(place->n_sequences)},
                    {"step_sequences", json_count(train_checkpoint_step_sequences(options))},
                    {"options", train_kept_json(options)});
    if (options->lora_text != NULL)
        JSON_PUT(&object, {ZR_LORA_KEY, json_string(zr_lora_text(&options->lora).text)},
                 {"lora_base", json_string(train_options_lora_base(options))});
    if (place->gain.has_any)
        json_put(&object, "evaluation", train_gain_json(options, place->val, &place->gain));
    char *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return text;
}

/* ---- saving ---------------------------------------------------------------------------------- */

bool train_checkpoint_is_due(const train_options_t *options, size_t step) {
    size_t every = options->checkpoint.every;
    return options->checkpoint.dir != NULL && every != 0 && step % every == 0;
}

zr_status_t train_checkpoint_save(const train_options_t *options, const data_t *data,
                                  zr_runtime_t *runtime, const train_place_t *place,
                                  train_saves_t *saves) {
    ZR_TRY(train_checkpoint_end(runtime, true, saves)); /* the one before */
    char *trainer = trainer_text(options, data, place);
    if (trainer == NULL)
        return zr_fail(zr_runtime_log(runtime), ZR_ERR_MEMORY, "no memory for a checkpoint");
    zr_save_options_t save = {
        .folder = options->checkpoint.dir,
        .trainer_json = trainer,
        .goes_on = options->checkpoint.is_async,
        .keep = options->checkpoint.keep,
        .keep_also =
            options->evaluation.keep_best && place->gain.has_best ? &place->gain.best_step : NULL,
        .secret = options->checkpoint.sign != TRAIN_SIGN_OFF ? &options->launch.secret : NULL};
    zr_status_t status = zr_runtime_save_begin(runtime, &save);
    free(trainer);
    ZR_TRY(status);
    saves->is_open = true;
    return train_checkpoint_end(runtime, !options->checkpoint.is_async, saves);
}

zr_status_t train_checkpoint_end(zr_runtime_t *runtime, bool wait, train_saves_t *saves) {
    zr_save_report_t report;
    bool ended = false;
    if (!saves->is_open)
        return ZR_OK;
    zr_status_t status = zr_runtime_save_end(runtime, wait, &ended, &report);
    saves->is_open = status == ZR_OK && !ended;
    if (status != ZR_OK || !ended)
        return status;
    saves->n_saves++;
    saves->n_bytes += report.n_bytes;
    saves->seconds += report.seconds;
    saves->write_seconds += report.write_seconds;
    snprintf(saves->last, sizeof(saves->last), "%s", report.name);
    return ZR_OK;
}

/* ---- what a run goes on from ----------------------------------------------------------------- */

typedef struct opening {
    const train_options_t *options;
    const data_t *data, *val;
    const zr_log_t *log;
    train_start_t *start;
    zr_checkpoint_info_t info;
} opening_t;

static zr_status_t refuse_trainer(const opening_t *opening, const char *what) {
    return zr_fail(opening->log, ZR_ERR_FORMAT,
                   "checkpoint %s: the trainer's part of its manifest has no %s; it was not saved "
                   "by zero-train, nor imported",
                   opening->info.path, what);
}

static zr_status_t check_model(const opening_t *opening, const json_t *trainer) {
    const json_t *model = json_object_get(trainer, "model");
    zr_model_shape_t saved;
    zr_model_difference_t d;
    if (!json_is_object(model))
        return refuse_trainer(opening, "model");
    ZR_TRY(model_from_json(model, opening->info.path, opening->log, &saved));
    if (!zr_model_shapes_differ(&saved, &opening->options->shape, &d))
        return ZR_OK;
    return zr_fail(opening->log, ZR_ERR_ARGUMENT,
                   "checkpoint %s is of a model with %s=%s, --model %s has %s; give the model that "
                   "was saved, or another --checkpoint-dir",
                   opening->info.path, d.a.name, d.a.text, opening->options->model, d.b.text);
}

static void note_lora_base(const opening_t *opening, const json_t *trainer) {
    const char *was = json_string_value(json_object_get(trainer, "lora_base"));
    const char *is = train_options_lora_base(opening->options);
    if (was != NULL && strcmp(was, is) != 0)
        zr_log_write(opening->log, ZR_LOG_INFO,
                     "checkpoint %s: adapters were trained with --lora-base %s; this run has %s",
                     opening->info.path, was, is);
}

/* Adapters may be new, but those that are there stay as they are. */
static zr_status_t check_lora(const opening_t *opening, const json_t *trainer) {
    const char *saved = json_string_value(json_object_get(trainer, ZR_LORA_KEY));
    zr_lora_text_t now = zr_lora_text(&opening->options->lora);
    if (saved == NULL || (opening->options->lora_text != NULL && strcmp(saved, now.text) == 0)) {
        note_lora_base(opening, trainer);
        return ZR_OK;
    }
    return zr_fail(opening->log, ZR_ERR_ARGUMENT,
                   "checkpoint %s has adapters of --lora %s, not of %s; leave --lora out, or merge "
                   "them with zero-checkpoint export --merge and import what it writes",
                   opening->info.path, saved,
                   opening->options->lora_text != NULL ? now.text : "none");
}

/* Errors are said elsewhere. */
static void drop(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

bool train_checkpoint_said(const char *dir, char **model_p, char **lora_p, json_t **kept_p) {
    const zr_log_t silent = {.sink = drop, .level = ZR_LOG_ERROR, .rank = -1};
    zr_checkpoint_t *checkpoint = NULL;
    zr_model_shape_t shape;
    if (dir == NULL || zr_checkpoint_open(dir, &silent, &checkpoint) != ZR_OK)
        return true;
    json_t *trainer = json_loads(zr_checkpoint_trainer_json(checkpoint), 0, NULL);
    const json_t *model = json_object_get(trainer, "model");
    if (json_is_object(model) && model_from_json(model, dir, &silent, &shape) == ZR_OK) {
        const char *name = zr_model_shape_name(&shape);
        *model_p = strdup(name != NULL ? name : zr_model_shape_text(&shape).text);
    }
    if (json_is_string(json_object_get(trainer, ZR_LORA_KEY)))
        *lora_p = strdup(json_string_value(json_object_get(trainer, ZR_LORA_KEY)));
    if (json_is_object(json_object_get(trainer, "options")))
        *kept_p = json_incref(json_object_get(trainer, "options"));
    bool is_described = model != NULL;
    json_decref(trainer);
    zr_checkpoint_close(&checkpoint);
    return is_described;
}

/* Numbers and texts as they are written in JSON. */
static bool is_same_value(const json_t *a, const json_t *b) {
    return json_equal((json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b) == 1;
}

static zr_status_t refuse_data(const opening_t *opening, const char *key, const json_t *saved,
                               const json_t *now) {
    char *saved_text = json_dumps(saved, JSON_ENCODE_ANY),
         *now_text = json_dumps(now, JSON_ENCODE_ANY);
    zr_status_t status = zr_fail(
        opening->log, ZR_ERR_ARGUMENT,
        "checkpoint %s was trained on data of other %s: %s, now %s, so their order cannot "
        "continue; use the same data, or start from the beginning with --resume-data restart",
        opening->info.path, key, saved_text != NULL ? saved_text : "?",
        now_text != NULL ? now_text : "?");
    free(saved_text);
    free(now_text);
    return status;
}

static zr_status_t check_data(const opening_t *opening, const json_t *saved) {
    json_t *now = data_object(opening->options, opening->data);
    const char *key = NULL;
    json_t *value = NULL;
    zr_status_t status =
        now == NULL ? zr_fail(opening->log, ZR_ERR_MEMORY, "no memory for a checkpoint") : ZR_OK;
    json_object_foreach(now, key, value) {
        const json_t *before = json_object_get(saved, key);
        bool is_new = strcmp(key, "hash") == 0 || strcmp(key, "weights") == 0;
        if (status == ZR_OK && before == NULL && !is_new) /* they came later than checkpoints */
            status = refuse_trainer(opening, key);
        else if (status == ZR_OK && before != NULL && !is_same_value(before, value))
            status = refuse_data(opening, key, before, value);
    }
    json_decref(now);
    return status;
}

/* Weights of a tokenizer's words, and data whose words are bytes: it would run, and train nothing
 * of use. */
static void warn_of_bytes(const opening_t *opening) {
    size_t vocab = zr_model_shape_sizes(&opening->options->shape).vocab;
    if (vocab > 256 && strcmp(data_kind(opening->data), "text") == 0)
        zr_log_write(opening->log, ZR_LOG_WARNING,
                     "%s has weights of another tool with a vocabulary of %zu, and --data is text, "
                     "where every byte is a token, which does not match the tokenizer of the "
                     "weights; give token files (docs/guide/fine-tune.md, \"Data\")",
                     opening->info.path, vocab);
}

/* Weights from elsewhere have no place in any data. */
static zr_status_t find_position(opening_t *opening, const json_t *trainer) {
    const json_t *data = json_object_get(trainer, "data");
    const json_t *sequences = json_object_get(trainer, "sequences");
    if (data == NULL)
        warn_of_bytes(opening);
    if (data == NULL || opening->options->checkpoint.restarts_data)
        return ZR_OK;
    if (!json_is_object(data) || !json_is_integer(sequences) || json_integer_value(sequences) < 0)
        return refuse_trainer(opening, "place in the data");
    ZR_TRY(check_data(opening, data));
    opening->start->n_sequences = (uint64_t)json_integer_value(sequences);
    return ZR_OK;
}

/* What decides the result, and is no option: sequences of a step follow from the ranks, too. */
static void tell_of_options(const opening_t *opening, const json_t *trainer) {
    const json_t *saved = json_object_get(trainer, "step_sequences");
    uint64_t now = train_checkpoint_step_sequences(opening->options);
    if (json_object_get(trainer, "options") == NULL && json_object_get(trainer, "data") != NULL)
        zr_log_write(opening->log, ZR_LOG_WARNING,
                     "checkpoint %s does not say with which options it was trained; those of this "
                     "command and the defaults are used: check --lr, --schedule and --micro-batch",
                     opening->info.path);
    if (json_is_integer(saved) && (uint64_t)json_integer_value(saved) != now)
        zr_log_write(opening->log, ZR_LOG_WARNING,
                     "checkpoint %s was trained with %s per step, this run has %" PRIu64
                     ": ranks x --micro-batch x --grad-accum",
                     opening->info.path,
                     zr_count_text((uint64_t)json_integer_value(saved), "sequence").text, now);
}

/* Losses of other data say nothing of those to come. */
static void find_gain(opening_t *opening, const json_t *trainer) {
    const json_t *evaluation = json_object_get(trainer, "evaluation");
    if (!train_gain_read(opening->options, opening->val, evaluation, &opening->start->gain))
        zr_log_write(opening->log, ZR_LOG_INFO,
                     "checkpoint %s has evaluated other validation data, --seq or --eval-batches: "
                     "its best loss and its count for --patience are reset",
                     opening->info.path);
}

static zr_status_t check_trainer(opening_t *opening) {
    json_t *trainer = json_loads(zr_checkpoint_trainer_json(opening->start->checkpoint), 0, NULL);
    if (trainer == NULL)
        return zr_fail(opening->log, ZR_ERR_MEMORY, "no memory for a checkpoint");
    zr_status_t status = check_model(opening, trainer);
    ZR_THEN(status, check_lora(opening, trainer));
    if (status == ZR_OK && opening->data != NULL)
        status = find_position(opening, trainer);
    if (status == ZR_OK && opening->data != NULL)
        tell_of_options(opening, trainer);
    if (opening->val != NULL)
        find_gain(opening, trainer);
    json_decref(trainer);
    return status;
}

static void say_start(const opening_t *opening) {
    const zr_checkpoint_info_t *info = &opening->info;
    size_t n_steps = opening->options->steps;
    if (opening->options->evaluation.only)
        zr_log_write(opening->log, ZR_LOG_INFO, "evaluates %s, of %s", info->path,
                     zr_count_text(info->step, "step").text);
    else if (info->step >= n_steps)
        zr_log_write(opening->log, info->step > n_steps ? ZR_LOG_WARNING : ZR_LOG_INFO,
                     "%s has %s already: --steps %zu are done; give more to continue", info->path,
                     zr_count_text(info->step, "step").text, n_steps);
    else
        zr_log_write(opening->log, ZR_LOG_INFO,
                     "resumes from %s: step %zu of %zu, saved by %s at stage %d, sequence %" PRIu64
                     " of the data",
                     info->path, info->step, n_steps,
                     zr_count_text((uint64_t)info->n_ranks, "rank").text, info->stage,
                     opening->start->n_sequences);
}

static zr_status_t open_newest(const train_options_t *options, const data_t *data,
                               const data_t *val, zr_comm_t *comm, const zr_log_t *log,
                               train_start_t *start) {
    const char *dir = options->checkpoint.dir;
    const zr_secret_t *secret =
        options->checkpoint.sign == TRAIN_SIGN_REQUIRE ? &options->launch.secret : NULL;
    opening_t opening = {.options = options, .data = data, .val = val, .log = log, .start = start};
    start->is_damaged = true;
    if (options->checkpoint.passes_damaged)
        ZR_TRY(zr_checkpoint_open_whole(dir, comm, secret, log, &start->checkpoint, &start->passed,
                                        &start->n_passed));
    else
        ZR_TRY(zr_checkpoint_open_signed(dir, secret, log, &start->checkpoint));
    start->is_damaged = false;
    zr_checkpoint_info(start->checkpoint, &opening.info);
    start->step = opening.info.step;
    start->n_updates = opening.info.n_updates;
    ZR_TRY(check_trainer(&opening));
    say_start(&opening);
    return ZR_OK;
}

/* ---- the folder ------------------------------------------------------------------------------ */

static zr_status_t make_folder(const char *dir, const zr_log_t *log) {
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return zr_fail(log, ZR_ERR_IO, "--checkpoint-dir %s: cannot be made: %s%s", dir,
                       strerror(errno), errno == ENOENT ? ": create its parent folder first" : "");
    const char *problem = files_refuse_folder(dir);
    if (problem != NULL)
        return zr_fail(log, ZR_ERR_IO, "--checkpoint-dir %s: %s; give a writable folder", dir,
                       problem);
    return ZR_OK;
}

static bool is_checkpoint(const char *dir) {
    char manifest[PATH_MAX];
    snprintf(manifest, sizeof(manifest), "%s/manifest.json", dir);
    return access(manifest, F_OK) == 0;
}

/* A slip of the hand: it would begin anew, and save within what it was to go on from. */
static zr_status_t refuse_checkpoint(const char *dir, const zr_log_t *log) {
    if (!is_checkpoint(dir))
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--checkpoint-dir %s: is a checkpoint itself; give the folder that it is in",
                   dir);
}

/* Whether a folder of data has another folder whose files are read with its own: those of names
 * with a dot in front are not. */
static bool reads_folder(const char *data_path, const char *dir) {
    char outer[PATH_MAX], inner[PATH_MAX];
    if (realpath(data_path, outer) == NULL || realpath(dir, inner) == NULL)
        return false;
    size_t length = strcmp(outer, "/") == 0 ? 0 : strlen(outer);
    if (strncmp(outer, inner, length) != 0 || (inner[length] != '/' && inner[length] != '\0'))
        return false;
    return strstr(inner + length, "/.") == NULL;
}

/* Data would be others with each checkpoint. */
static zr_status_t refuse_within(const char *option, const char *const *paths, size_t n_paths,
                                 const char *dir, const zr_log_t *log) {
    for (size_t i = 0; i < n_paths; i++)
        if (reads_folder(paths[i], dir))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "--checkpoint-dir %s is in %s %s, whose files are all read as data; "
                           "give a folder elsewhere, or one whose name begins with a dot",
                           dir, option, paths[i]);
    return ZR_OK;
}

/* Of the names in the folder that are no unfinished ones: a dot stands before those. */
static bool has_checkpoints(const zr_checkpoint_entry_t *entries, size_t n_entries) {
    for (size_t i = 0; i < n_entries; i++)
        if (entries[i].name[0] != '.')
            return true;
    return false;
}

static zr_status_t look_into_folder(const train_options_t *options, const zr_log_t *log,
                                    bool *has_any_p) {
    zr_checkpoint_entry_t *entries = NULL;
    size_t n_entries = 0;
    ZR_TRY(zr_checkpoint_list(options->checkpoint.dir, log, &entries, &n_entries));
    *has_any_p = has_checkpoints(entries, n_entries);
    free(entries);
    return ZR_OK;
}

/* With --eval-only a checkpoint itself will do, too; nothing is made. */
static zr_status_t open_to_evaluate(const train_options_t *options, const data_t *val,
                                    zr_comm_t *comm, const zr_log_t *log, train_start_t *start) {
    const char *dir = options->checkpoint.dir;
    bool has_any = files_is_folder(dir) && is_checkpoint(dir);
    if (files_is_folder(dir) && !has_any)
        ZR_TRY(look_into_folder(options, log, &has_any));
    if (!has_any)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--checkpoint-dir %s: contains no checkpoint; give a folder with a "
                       "checkpoint, or leave it out to evaluate initial weights",
                       dir);
    return open_newest(options, NULL, val, comm, log, start);
}

zr_status_t train_checkpoint_open(const train_options_t *options, const data_t *data,
                                  const data_t *val, zr_comm_t *comm, const zr_log_t *log,
                                  train_start_t *start_p) {
    const train_checkpoint_options_t *asked = &options->checkpoint;
    bool has_any = false;
    *start_p = (train_start_t){0};
    if (asked->dir == NULL)
        return ZR_OK;
    if (options->evaluation.only)
        return open_to_evaluate(options, val, comm, log, start_p);
    ZR_TRY(options->dry_run ? files_check_folder("--checkpoint-dir", asked->dir, log)
                            : make_folder(asked->dir, log));
    ZR_TRY(refuse_checkpoint(asked->dir, log));
    if (options->launch.rank == 0 && !options->dry_run)
        ZR_TRY(train_lock_take(asked->dir, log, &start_p->lock));
    ZR_TRY(refuse_within("--data", options->data_paths, options->n_data_paths, asked->dir, log));
    ZR_TRY(refuse_within("--val-data", options->evaluation.paths, options->evaluation.n_paths,
                         asked->dir, log));
    if (!options->dry_run || files_is_folder(asked->dir))
        ZR_TRY(look_into_folder(options, log, &has_any));
    if (has_any && asked->resume)
        return open_newest(options, data, val, comm, log, start_p);
    if (has_any)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--checkpoint-dir %s: contains checkpoints already; add --resume to resume "
                       "from the newest, or give another folder",
                       asked->dir);
    if (asked->resume)
        zr_log_write(log, ZR_LOG_INFO,
                     "--resume: %s has no checkpoint yet: starting at the first step", asked->dir);
    return ZR_OK;
}

void train_checkpoint_close(train_start_t *start) {
    zr_checkpoint_close(&start->checkpoint);
    train_lock_drop(&start->lock);
    free(start->passed);
    start->passed = NULL;
    start->n_passed = 0;
}
