/* zero-checkpoint export: the weights of a checkpoint for other tools. */
#include "examples/checkpoint/exchange.h"
#include "examples/weights/adapter.h"
#include "examples/weights/weights_checkpoint.h"

typedef struct options {
    command_common_t common;
    int format; /* of the names below */
    int dtype;  /* likewise */
    weights_export_t write;
    bool adapter, merge;
    const char *secret_path;
    bool has_model;
    zr_model_shape_t model;
} options_t;

enum { FORMAT_SAFETENSORS, FORMAT_LLMC };
static const zr_option_choice_t formats[] = {
    {"safetensors", FORMAT_SAFETENSORS, NULL}, {"llm.c", FORMAT_LLMC, NULL}, {NULL, 0, NULL}};
enum { DTYPE_ORIGIN, DTYPE_KINDS }; /* of a kind: DTYPE_KINDS + it */
static const zr_option_choice_t dtypes[] = {{"origin", DTYPE_ORIGIN, NULL},
                                            {"fp32", DTYPE_KINDS + ELEMENT_FP32, NULL},
                                            {"bf16", DTYPE_KINDS + ELEMENT_BF16, NULL},
                                            {"fp16", DTYPE_KINDS + ELEMENT_FP16, NULL},
                                            {NULL, 0, NULL}};

static zr_status_t take_model(void *object, const char *label, const char *text,
                              const zr_log_t *log) {
    options_t *o = object;
    (void)label;
    o->has_model = true;
    return exchange_model(text, log, &o->model);
}

#define AT(member) .offset = offsetof(options_t, member)

static const zr_option_t rows[] = {
    {"output", AT(write.path), .type = ZR_OPTION_STRING, .arg = "PATH",
     .help = "(also -o PATH) output: for safetensors a folder in Hugging Face's layout, or one "
             "file if the name ends with .safetensors; for llm.c a file. It must not exist yet"},
    {"format", AT(format), .type = ZR_OPTION_CHOICE, .choices = formats,
     .help = "safetensors: names and shapes of Hugging Face's models; llm.c: its model file, of a "
             "GPT-2"},
    {"dtype", AT(dtype), .type = ZR_OPTION_CHOICE, .choices = dtypes,
     .help = "dtype of the weights. origin: as imported, or fp32 if not imported. Other dtypes "
             "round to nearest; values out of range are an error; llm.c supports fp32 and bf16"},
    {"shard-size", AT(write.shard_bytes), .type = ZR_OPTION_BYTES, .arg = "SIZE",
     .initial = "one file",
     .help = "safetensors: maximum size of a file; writes several files and their index"},
    {"adapter", AT(adapter), .type = ZR_OPTION_FLAG,
     .help = "of a run with --lora: the adapters only, in PEFT's format: a folder with "
             "adapter_config.json and adapter_model.safetensors"},
    {"merge", AT(merge), .type = ZR_OPTION_FLAG,
     .help = "of a run with --lora: a complete model, with the adapters merged into its weights"},
    {"model", .type = ZR_OPTION_STRING, .arg = "NAME|SIZES|PATH", .initial = "", .take = take_model,
     .help = "the model, as for zero-train, if the checkpoint does not say"},
    CHECKPOINT_SECRET_ROW(options_t, secret_path, CHECKPOINT_SECRET_CHECKED)};

static zr_status_t check(const options_t *o) {
    const zr_log_t *log = o->common.log;
    const char *shard_size = options_value(&o->common.given, "shard-size");
    if (o->write.path == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "-o PATH is missing: the output path");
    if (shard_size != NULL && o->write.shard_bytes == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--shard-size %s: a size above 0 is needed; leave it out for one file",
                       shard_size);
    if (o->adapter && (o->format == FORMAT_LLMC || o->write.shard_bytes > 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--adapter: adapters are one file of safetensors; leave %s out",
                       o->format == FORMAT_LLMC ? "--format llm.c" : "--shard-size");
    if (o->format == FORMAT_LLMC && o->write.shard_bytes > 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--shard-size: a model of llm.c is one file; leave it out, or take --format "
                       "safetensors");
    if (o->format == FORMAT_LLMC && o->dtype == DTYPE_KINDS + ELEMENT_FP16)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--dtype fp16: files of llm.c have fp32 or bf16; the nearest is bf16");
    return exchange_check_place("-o", o->write.path, false, log);
}

static json_t *describe(const options_t *o, const zr_checkpoint_info_t *info,
                        const weights_t *weights, const weights_report_t *written) {
    json_t *object = JSON_OBJECT(
        {"checkpoint", json_text(info->path)}, {"step", json_count(info->step)},
        {"format", json_string(formats[o->format].name)}, {"dtype", json_string(written->dtype)});
    exchange_describe(weights, &object);
    JSON_PUT(&object, {"output", json_text(o->write.path)}, {"files", json_count(written->n_files)},
             {"bytes", json_count(written->n_bytes)});
    return object;
}

static int report(const options_t *o, const zr_checkpoint_info_t *info, const weights_t *weights,
                  const weights_report_t *written) {
    if (o->common.json)
        return command_print(describe(o, info, weights, written), COMMAND_DONE, o->common.log);
    printf("%s: step %zu of %s, %s in %s, %s in %s\n", o->write.path, info->step, info->path,
           zr_count_text(weights_n_elems(weights), "parameter").text, written->dtype,
           zr_size_text(written->n_bytes).text, zr_count_text(written->n_files, "file").text);
    return COMMAND_DONE;
}

/* A checkpoint with adapters is written as the part that was asked for. */
static zr_status_t take_part(const options_t *o, const char *path, weights_t **weights) {
    if (!(*weights)->has_lora && !o->adapter && !o->merge)
        return ZR_OK;
    if (!(*weights)->has_lora)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT, "--%s: %s has no adapters; leave it out",
                       o->merge ? "merge" : "adapter", path);
    if (o->adapter == o->merge)
        return zr_fail(o->common.log, ZR_ERR_ARGUMENT,
                       "%s has adapters (--lora %s): add --adapter to export only the adapters, or "
                       "--merge to merge them into the weights",
                       path, zr_lora_text(&(*weights)->lora).text);
    return adapter_take(o->merge ? ADAPTER_MERGED : ADAPTER_ALONE, o->common.log, weights);
}

static zr_status_t write_weights(const options_t *o, weights_t *weights,
                                 weights_report_t *written_p) {
    exchange_progress_t progress = {.messages = messages_of(o->common.log),
                                    .verb = "exported",
                                    .n_elems = weights_n_elems(weights)};
    weights_export_t write = o->write;
    write.as_origin = o->dtype == DTYPE_ORIGIN;
    write.kind = write.as_origin ? ELEMENT_FP32 : (element_kind_t)(o->dtype - DTYPE_KINDS);
    write.progress = exchange_show;
    write.context = &progress;
    zr_status_t status = o->format == FORMAT_LLMC
                             ? weights_write_llmc(weights, &write, o->common.log, written_p)
                             : weights_write_safetensors(weights, &write, o->common.log, written_p);
    if (progress.messages != NULL)
        messages_end_progress(progress.messages);
    return status;
}

/* Read damage is found on the way: the checkpoint was there, and of such a model. */
static int code_of_writing(zr_status_t status) {
    return status == ZR_ERR_FORMAT ? COMMAND_FAILED : exchange_code(status);
}

static int export(const options_t *o, const zr_secret_t *secret, const char *path) {
    zr_checkpoint_t *checkpoint = NULL;
    weights_t *weights = NULL;
    zr_checkpoint_info_t info;
    weights_report_t written;
    if (zr_checkpoint_open_signed(path, secret, o->common.log, &checkpoint) != ZR_OK)
        return COMMAND_FAILED;
    int code = exchange_code(weights_of_checkpoint(checkpoint, o->has_model ? &o->model : NULL,
                                                   o->common.log, &weights));
    if (code == COMMAND_DONE)
        code = exchange_code(take_part(o, path, &weights));
    if (code == COMMAND_DONE)
        code = code_of_writing(write_weights(o, weights, &written));
    if (code == COMMAND_DONE) {
        zr_checkpoint_info(checkpoint, &info);
        code = report(o, &info, weights, &written);
    }
    weights_close(&weights);
    zr_checkpoint_close(&checkpoint);
    return code;
}

static int run(void *argument) {
    const options_t *options = argument;
    char followed[PATH_MAX];
    zr_secret_t secret;
    int code = exchange_code(check(options));
    if (checkpoint_secret(options->secret_path, options->common.log, &secret) != ZR_OK)
        return COMMAND_BAD_INPUT;
    const char *path = checkpoint_follow(options->common.words[0], followed);
    if (code == COMMAND_DONE)
        code = checkpoint_expect(path, options->common.log);
    return code == COMMAND_DONE ? export(options, &secret, path) : code;
}

const command_t checkpoint_export = {
    .name = "export",
    .summary = "weights for other tools: safetensors, llm.c",
    .doc = "Write the weights of a checkpoint, or of the newest one in a folder of them, for other "
           "tools. Optimizer state is not exported. Output is written atomically."
           "\vExit status: 0 exported, 1 failed, or the checkpoint is damaged, 2 bad usage or "
           "input.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .words = "CHECKPOINT",
    .least_words = 1,
    .most_words = 1,
    .short_of = "output",
    .options_bytes = sizeof(options_t),
    .run = run};
