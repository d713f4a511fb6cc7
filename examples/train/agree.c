/*
 * See agree.h. One agreement for each option, so that the message has the option. Rows are compared
 * as they were given. Not so --model, --data, --val-data and --matmul-choices, whose paths may be
 * others on each machine while what lies there has to be the same, and --trace, whose file is each
 * rank's own.
 */
#include "examples/train/agree.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct agreement {
    zr_comm_t *comm;
    zr_status_t status; /* of the first that failed */
} agreement_t;

static void agree(agreement_t *agreement, const char *format, ...) ZR_PRINTF(2, 3);

static void agree(agreement_t *agreement, const char *format, ...) {
    char text[ZR_MODEL_TEXT_BYTES + 64]; /* nothing is longer */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (agreement->status == ZR_OK)
        agreement->status = zr_comm_agree(agreement->comm, text);
}

static void agree_on_data(agreement_t *a, const char *option, const data_t *data) {
    if (data == NULL) {
        agree(a, "no %s", option);
        return;
    }
    agree(a, "%s of %s of kind %s in %s, %s has hash %016" PRIx64, option,
          zr_count_text(data_n_tokens(data), "token").text, data_kind(data),
          zr_count_text(data_n_windows(data), "window").text,
          data_is_hashed_whole(data) ? "which" : "a sample of which", data_hash(data));
}

/* A value each: a message has the one that differs, and not the begin of all. */
static void agree_on_model(agreement_t *a, const train_options_t *o) {
    agree(a, "--model of the architecture %s", zr_model_kind_name(o->shape.kind));
    for (size_t i = 0; i < zr_model_n_values(o->shape.kind); i++) {
        zr_model_value_t value = zr_model_shape_value(&o->shape, i);
        agree(a, "--model with %s=%s", value.name, value.text);
    }
}

static void agree_on_row(agreement_t *a, const zr_option_t *option, const void *object) {
    zr_option_text_t text = zr_option_text(option, object);
    const char *dashes = option->name != NULL ? "--" : "";
    const char *name = option->name != NULL ? option->name : option->key;
    if ((option->flags & ZR_OPTION_AGREE) == 0)
        return;
    if (text.text[0] == '\0')
        agree(a, "no %s%s", dashes, name);
    else if (option->type == ZR_OPTION_FLAG)
        agree(a, "a %s%s", dashes, name);
    else
        agree(a, "%s%s %s", dashes, name, text.text);
}

/* The run's own first: of what follows from them there is more than one option. */
static void agree_on_rows(agreement_t *a, const train_options_t *o) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    zr_config_t config = o->config;
    config.shard_group_size = zr_config_n_shards(&config, o->n_ranks);
    for (size_t i = 0; i < train_table.n_own; i++)
        agree_on_row(a, &train_table.own[i], o);
    for (size_t i = 0; i < n; i++)
        agree_on_row(a, &rows[i], &config);
}

zr_status_t train_agree(const train_options_t *options, const data_t *data, const data_t *val,
                        const train_start_t *start, const char *attention, zr_comm_t *comm) {
    agreement_t agreement = {.comm = comm, .status = ZR_OK};
    if (!options->is_launched)
        return ZR_OK;
    agree(&agreement, "libzero %s", zr_version());
    agree_on_model(&agreement, options);
    agree_on_data(&agreement, "--data", data);
    agree_on_data(&agreement, "--val-data", val);
    agree_on_rows(&agreement, options);
    if (options->checkpoint.dir != NULL && start->checkpoint == NULL)
        agree(&agreement, "no checkpoint to resume from (--resume)");
    else if (options->checkpoint.dir != NULL)
        agree(&agreement,
              "a checkpoint of step %zu to resume from (--resume), at sequence %" PRIu64,
              start->step, start->n_sequences);
    agree(&agreement, "kernels of attention: %s", attention);
    if (options->matmul_choices == NULL)
        agree(&agreement, "no --matmul-choices");
    else
        agree(&agreement, "--matmul-choices of a file with hash %016" PRIx64,
              matmul_choices_hash(options->matmul_choices));
    agree(&agreement, "%s --trace", options->trace_path != NULL ? "a" : "no");
    return agreement.status;
}
