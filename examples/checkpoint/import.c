/* zero-checkpoint import: a checkpoint of other tools' weights, for zero-train to go on from. */
#include "examples/checkpoint/exchange.h"
#include "examples/weights/weights_checkpoint.h"

typedef struct options {
    command_common_t common;
    const char *folder;
    bool has_model;
    gpt_shape_t model;
    const zr_log_t *log;
} options_t;

static zr_status_t take_model(const char *value, void *options) {
    options_t *o = options;
    o->has_model = true;
    return exchange_model(value, o->log, &o->model);
}

static const command_option_t option_table[] = {
    {"checkpoint-dir", "DIR",
     "the folder for checkpoints, as zero-train --resume takes it; it is made, or has none yet",
     COMMAND_TEXT, .field = offsetof(options_t, folder)},
    {"model", "NAME|SIZES", "the model's shape, as zero-train has it, where the files do not say",
     COMMAND_OTHER, .take = take_model},
    {0},
};

static const command_parser_t parser = {
    .name = "import",
    .options = option_table,
    .doc =
        "Make a checkpoint of weights from other tools, at step 0 and with optimizer state of 0: "
        "a folder with a GPT-2 of Hugging Face, its safetensors files or their index, of fp32, "
        "bf16 or fp16, or a model file of llm.c."
        "\vExit status: 0 imported, 1 failed, 2 bad usage or input.",
    .words = "PATH...",
    .least_words = 1,
    .most_words = COMMAND_MOST_WORDS};

static json_t *list_sources(const options_t *o) {
    json_t *list = json_array();
    for (size_t i = 0; i < o->common.n_words; i++)
        json_append(&list, json_text(o->common.words[i]));
    return list;
}

static json_t *describe(const options_t *o, const weights_t *weights,
                        const zr_checkpoint_info_t *info) {
    json_t *object = json_object();
    json_put(&object, "sources", list_sources(o));
    json_put(&object, "format", json_string(weights->format));
    json_put(&object, "dtype", json_string(weights->dtype));
    exchange_describe(&weights->shape, &object);
    json_put(&object, "ignored_tensors", json_count(weights->n_ignored));
    json_put(&object, "checkpoint", json_text(info->path));
    json_put(&object, "step", json_count(info->step));
    json_put(&object, "bytes", json_count(info->data_bytes));
    return object;
}

static int report(const options_t *o, const weights_t *weights, const zr_checkpoint_info_t *info) {
    const gpt_shape_t *s = &weights->shape;
    if (o->common.json)
        return command_print(describe(o, weights, info), COMMAND_DONE, o->log);
    printf("%s: %s of %s, %s; to go on from them:\n"
           "zero-train --model layers=%zu,channels=%zu,heads=%zu,seq=%zu,vocab=%zu "
           "--checkpoint-dir %s --resume --data ...\n",
           info->path, zr_count_text(gpt_n_params(s), "parameter").text, weights->format,
           weights->dtype, s->n_layers, s->channels, s->heads, s->seq, s->vocab, o->folder);
    return COMMAND_DONE;
}

/* What has been written is opened again: that it can be read is a part of having imported it. */
static int report_checkpoint(const options_t *o, const weights_t *weights) {
    zr_checkpoint_t *checkpoint = NULL;
    zr_checkpoint_info_t info;
    zr_status_t status = zr_checkpoint_open(o->folder, o->log, &checkpoint);
    if (status != ZR_OK)
        return COMMAND_FAILED;
    zr_checkpoint_info(checkpoint, &info);
    int code = report(o, weights, &info);
    zr_checkpoint_close(&checkpoint);
    return code;
}

static zr_status_t write_weights(const options_t *o, weights_t *weights) {
    exchange_progress_t progress = {.messages = messages_of(o->log),
                                    .verb = "imported",
                                    .n_elems = gpt_n_params(&weights->shape)};
    weights_import_t import = {
        .folder = o->folder, .progress = exchange_show, .context = &progress};
    zr_status_t status = weights_write_checkpoint(weights, &import, o->log);
    if (progress.messages != NULL)
        messages_end_progress(progress.messages);
    return status;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t o = {.log = log};
    weights_t *weights = NULL;
    int code = COMMAND_DONE;
    if (!command_parse(CHECKPOINT_PROGRAM, &parser, argc, argv, log, &o.common, &code))
        return code;
    if (o.folder == NULL) {
        zr_log_write(log, ZR_LOG_ERROR, "--checkpoint-dir DIR is missing: where to import to");
        return COMMAND_BAD_INPUT;
    }
    if (exchange_check_place("--checkpoint-dir", o.folder, true, log) != ZR_OK)
        return COMMAND_BAD_INPUT;
    zr_status_t status = weights_open(o.common.words, o.common.n_words,
                                      o.has_model ? &o.model : NULL, log, &weights);
    if (status == ZR_OK)
        status = write_weights(&o, weights);
    code = status == ZR_OK ? report_checkpoint(&o, weights) : exchange_code(status);
    weights_close(&weights);
    return code;
}

const command_t checkpoint_import = {
    .name = "import", .summary = "a checkpoint of other tools' weights", .run = run};
