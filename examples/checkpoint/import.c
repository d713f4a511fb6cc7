/* zero-checkpoint import: a checkpoint of other tools' weights, for zero-train to go on from. */
#include "examples/checkpoint/exchange.h"
#include "examples/weights/adapter.h"
#include "examples/weights/weights_checkpoint.h"

typedef struct options {
    command_common_t common;
    const char *folder;
    const char *adapter;
    const char *secret_path;
    zr_secret_t secret;
    bool has_model;
    zr_model_shape_t model;
} options_t;

static zr_status_t take_model(void *object, const char *label, const char *text,
                              const zr_log_t *log) {
    options_t *o = object;
    (void)label;
    o->has_model = true;
    return exchange_model(text, log, &o->model);
}

static const zr_option_t rows[] = {
    {"checkpoint-dir", .offset = offsetof(options_t, folder), .type = ZR_OPTION_STRING,
     .arg = "DIR",
     .help = "the folder for checkpoints, as zero-train --resume takes it; it is made, or has "
             "none yet"},
    {"model", .type = ZR_OPTION_STRING, .arg = "NAME|SIZES|PATH", .initial = "", .take = take_model,
     .help = "the model, as zero-train has it, where the files do not say"},
    {"adapter", .offset = offsetof(options_t, adapter), .type = ZR_OPTION_STRING, .arg = "DIR",
     .initial = "",
     .help = "low-rank adapters of PEFT for the weights: a folder with adapter_config.json and "
             "adapter_model.safetensors; zero-train --resume goes on with them"},
    CHECKPOINT_SECRET_ROW(options_t, secret_path,
                          "sign the checkpoint with this secret, as zero-train --checkpoint-sign "
                          "does")};

static json_t *list_sources(const options_t *o) {
    json_t *list = json_array();
    for (size_t i = 0; i < o->common.n_words; i++)
        json_append(&list, json_text(o->common.words[i]));
    return list;
}

static json_t *describe(const options_t *o, const weights_t *weights,
                        const zr_checkpoint_info_t *info) {
    json_t *object =
        JSON_OBJECT({"sources", list_sources(o)}, {"format", json_string(weights->format)},
                    {"dtype", json_string(weights->dtype)});
    exchange_describe(weights, &object);
    JSON_PUT(&object, {"ignored_tensors", json_count(weights->n_ignored)},
             {"checkpoint", json_text(info->path)}, {"step", json_count(info->step)},
             {"bytes", json_count(info->data_bytes)});
    return object;
}

static int report(const options_t *o, const weights_t *weights, const zr_checkpoint_info_t *info) {
    if (o->common.json)
        return command_print(describe(o, weights, info), COMMAND_DONE, o->common.log);
    printf("%s: %s of %s, %s; to resume from them:\nzero-train --checkpoint-dir %s --resume --data "
           "...\n",
           info->path, zr_count_text(weights_n_elems(weights), "parameter").text, weights->format,
           weights->dtype, o->folder);
    return COMMAND_DONE;
}

/* What has been written is opened again: that it can be read is a part of having imported it. */
static int report_checkpoint(const options_t *o, const weights_t *weights) {
    zr_checkpoint_t *checkpoint = NULL;
    zr_checkpoint_info_t info;
    zr_status_t status =
        zr_checkpoint_open_signed(o->folder, &o->secret, o->common.log, &checkpoint);
    if (status != ZR_OK)
        return COMMAND_FAILED;
    zr_checkpoint_info(checkpoint, &info);
    int code = report(o, weights, &info);
    zr_checkpoint_close(&checkpoint);
    return code;
}

static zr_status_t write_weights(const options_t *o, weights_t *weights) {
    exchange_progress_t progress = {.messages = messages_of(o->common.log),
                                    .verb = "imported",
                                    .n_elems = weights_n_elems(weights)};
    weights_import_t import = {
        .folder = o->folder, .secret = &o->secret, .progress = exchange_show, .context = &progress};
    zr_status_t status = weights_write_checkpoint(weights, &import, o->common.log);
    if (progress.messages != NULL)
        messages_end_progress(progress.messages);
    return status;
}

static int run(void *options) {
    options_t *o = options;
    const zr_log_t *log = o->common.log;
    weights_t *weights = NULL;
    if (o->folder == NULL) {
        zr_log_write(log, ZR_LOG_ERROR, "--checkpoint-dir DIR is missing: the folder to import to");
        return COMMAND_BAD_INPUT;
    }
    if (checkpoint_secret(o->secret_path, log, &o->secret) != ZR_OK)
        return COMMAND_BAD_INPUT;
    if (exchange_check_place("--checkpoint-dir", o->folder, true, log) != ZR_OK)
        return COMMAND_BAD_INPUT;
    zr_status_t status = weights_open(o->common.words, o->common.n_words,
                                      o->has_model ? &o->model : NULL, log, &weights);
    if (status == ZR_OK && o->adapter != NULL)
        status = adapter_add(o->adapter, log, &weights);
    ZR_THEN(status, write_weights(o, weights));
    int code = status == ZR_OK ? report_checkpoint(o, weights) : exchange_code(status);
    weights_close(&weights);
    return code;
}

const command_t checkpoint_import = {
    .name = "import",
    .summary = "a checkpoint of other tools' weights",
    .doc = "Make a checkpoint of weights from other tools, at step 0 and with optimizer state of "
           "0: a folder with a model of Hugging Face (GPT-2, or the Llama family), its safetensors "
           "files or their index, of fp32, bf16 or fp16, or a GPT-2 of llm.c. The configuration, "
           "tokenizer and chat template with them are carried along."
           "\vExit status: 0 imported, 1 failed, 2 bad usage or input.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .words = "PATH...",
    .least_words = 1,
    .most_words = COMMAND_MOST_WORDS,
    .options_bytes = sizeof(options_t),
    .run = run};
