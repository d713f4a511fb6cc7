/* What a run reads, opened before it begins, and the file of --log. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "examples/common/files.h"
#include "examples/train/files.h"
#include "examples/train/launch.h"
#include "examples/train/log.h"
#include "examples/train/run.h"
#include "examples/weights/carry.h"
#include "examples/weights/weights_hf.h"

bool train_inputs_carry_folder(const run_t *run) {
    const train_options_t *o = run->options;
    return run->start.checkpoint == NULL && o->checkpoint.dir != NULL && !o->evaluation.only &&
           files_is_folder(o->model);
}

/* Above this part of padding, a packed order is worth making. */
#define MOST_PADDING 0.1

/* What is computed of padding is lost, and the loss does not show it. */
static void warn_of_padding(const train_options_t *options, const char *option, const data_t *data,
                            const zr_log_t *log) {
    double n_places = (double)data_n_windows(data) * (double)options->seq;
    double padding = 1 - (double)data_n_tokens(data) / n_places;
    bool is_told_here = !options->is_launched || options->launch.rank == 0;
    if (!data_has_documents(data) || padding <= MOST_PADDING || !is_told_here)
        return;
    zr_log_write(
        log, ZR_LOG_WARNING,
        "%s: %.0f%% of the tokens computed are padding: the documents have %s in total, but "
        "take %s of %zu; unless the file is packed already, write it with "
        "examples/data/make_documents.py --pack %zu to reduce padding",
        option, 100 * padding, zr_count_text(data_n_tokens(data), "token").text,
        zr_count_text(data_n_windows(data), "sequence").text, options->seq, options->seq);
}

static zr_status_t open_data(run_t *run) {
    const train_options_t *o = run->options;
    data_options_t options = {.paths = o->data_paths,
                              .n_paths = o->n_data_paths,
                              .weights = o->data_weights,
                              .seq = o->seq,
                              .seq_min = o->seq_min,
                              .vocab = zr_model_shape_sizes(&o->shape).vocab,
                              .seed = o->seed,
                              .is_text = o->data_is_text,
                              .log = run->log};
    if (!o->evaluation.only)
        ZR_TRY(data_open(&options, &run->data));
    if (run->data != NULL)
        warn_of_padding(o, "--data", run->data, &run->log);
    if (o->evaluation.n_paths == 0)
        return ZR_OK;
    options.paths = o->evaluation.paths;
    options.n_paths = o->evaluation.n_paths;
    options.seq_min = o->seq;
    options.in_order = true;
    options.weights = NULL;
    options.log = train_evaluation_log(&run->log);
    ZR_TRY(data_open(&options, &run->val));
    ZR_TRY(train_evaluation_check(o, run->val, &run->log));
    warn_of_padding(o, "--val-data", run->val, &run->log);
    if (run->data == NULL || data_has_documents(run->data) == data_has_documents(run->val))
        return ZR_OK;
    return zr_fail(&run->log, ZR_ERR_ARGUMENT,
                   "--val-data is %s and --data is %s: use documents for both or for none",
                   data_kind(run->val), data_kind(run->data));
}

/* Whoever names a folder with weights means them. */
static void warn_of_weights(const run_t *run) {
    static const char *const names[] = {HF_WEIGHTS_NAME, HF_INDEX_NAME};
    const train_options_t *o = run->options;
    bool is_told_here = !o->is_launched || o->launch.rank == 0;
    if (run->start.checkpoint != NULL || !files_is_folder(o->model) || !is_told_here)
        return;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[PATH_MAX];
        int n = snprintf(path, sizeof(path), "%s/%s", o->model, names[i]);
        if (n > 0 && (size_t)n < sizeof(path) && access(path, F_OK) == 0)
            zr_log_write(&run->log, ZR_LOG_WARNING,
                         "--model %s: its weights (%s) are not read, and training starts with "
                         "random ones; to use them: zero-checkpoint import %s "
                         "--checkpoint-dir DIR, and zero-train --checkpoint-dir DIR --resume",
                         o->model, names[i], o->model);
    }
}

zr_status_t train_inputs_open(run_t *run) {
    const train_options_t *o = run->options;
    ZR_TRY(open_data(run));
    ZR_TRY(train_files_check(o, run->data, run->val, &run->log));
    bool are_here = train_launch_n_here(o) == o->n_ranks;
    ZR_TRY(train_checkpoint_open(o, run->data, run->val, are_here ? NULL : run->ranks[0].comm,
                                 &run->log, &run->start));
    warn_of_weights(run);
    return train_inputs_carry_folder(run)
               ? carry_check(o->model, zr_model_shape_sizes(&o->shape).vocab, &run->log)
               : ZR_OK;
}

zr_status_t train_inputs_open_log(run_t *run) {
    if (train_launch_first(run->options) != 0)
        return ZR_OK;
    zr_status_t status = train_log_open(run->options, &run->start, &run->log, &run->log_files);
    return status == ZR_OK ? ZR_OK : train_inputs_close_log(run, status);
}

zr_status_t train_inputs_close_log(run_t *run, zr_status_t status) {
    zr_status_t closed = train_log_close(run->options, &run->log, &run->log_files);
    return status != ZR_OK ? status : closed;
}
