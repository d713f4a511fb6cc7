/* zero-checkpoint export: the weights of a checkpoint for other tools. */
#include "examples/checkpoint/exchange.h"
#include "examples/weights/weights_checkpoint.h"

typedef struct options {
    command_common_t common;
    size_t format; /* of the names below */
    weights_export_t write;
    bool has_model;
    gpt_shape_t model;
    const zr_log_t *log;
} options_t;

enum { FORMAT_SAFETENSORS, FORMAT_LLMC };
static const char *const formats[] = {"safetensors", "llm.c"};
static const char *const dtypes[] = {"fp32", "bf16", "fp16"}; /* as element_kind_t */

static zr_status_t take_shard_size(const char *value, void *options) {
    options_t *o = options;
    size_t size_bytes;
    ZR_TRY(args_size("--shard-size", value, o->log, &size_bytes));
    if (size_bytes == 0)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--shard-size %s: a size above 0 is needed; leave it out for one file",
                       value);
    o->write.shard_bytes = size_bytes;
    return ZR_OK;
}

static zr_status_t take_format(const char *value, void *options) {
    options_t *o = options;
    return args_choice("--format", value, formats, 2, o->log, &o->format);
}

static zr_status_t take_dtype(const char *value, void *options) {
    options_t *o = options;
    return element_kind_parse("--dtype", value, o->log, &o->write.kind);
}

static zr_status_t take_model(const char *value, void *options) {
    options_t *o = options;
    o->has_model = true;
    return exchange_model(value, o->log, &o->model);
}

static const command_option_t option_table[] = {
    {"output", "PATH",
     "where to: for safetensors a folder as Hugging Face reads it, or one file when it ends with "
     ".safetensors; for llm.c a file. Nothing may be there yet",
     COMMAND_TEXT, .field = offsetof(options_t, write.path), .letter = 'o'},
    {"format", "FORMAT",
     "safetensors: names and shapes of Hugging Face's GPT-2; llm.c: its model file (default "
     "safetensors)",
     COMMAND_OTHER, .take = take_format},
    {"dtype", "TYPE",
     "fp32, bf16 or fp16 (llm.c: fp32 or bf16): rounded to nearest; a value that it does not have "
     "is an error (default fp32)",
     COMMAND_OTHER, .take = take_dtype},
    {"shard-size", "SIZE",
     "safetensors: the most that tensors of a file have; several files and their index are made "
     "(default: one file)",
     COMMAND_OTHER, .take = take_shard_size},
    {"model", "NAME|SIZES",
     "the model's shape, as zero-train has it, where the checkpoint does not say", COMMAND_OTHER,
     .take = take_model},
    {0},
};

static const command_parser_t parser = {
    .name = "export",
    .options = option_table,
    .doc = "Write the weights of a checkpoint, or of the newest one in a folder of them, for other "
           "tools. Optimizer state is left out. What is written appears whole or not at all."
           "\vExit status: 0 exported, 1 failed, or the checkpoint is not whole, 2 bad usage or "
           "input.",
    .words = "CHECKPOINT",
    .least_words = 1,
    .most_words = 1};

static zr_status_t check(const options_t *o) {
    if (o->write.path == NULL)
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "-o PATH is missing: where to export to");
    if (o->format == FORMAT_LLMC && o->write.shard_bytes > 0)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--shard-size: a model of llm.c is one file; leave it out, or take --format "
                       "safetensors");
    if (o->format == FORMAT_LLMC && o->write.kind == ELEMENT_FP16)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--dtype fp16: files of llm.c have fp32 or bf16; the nearest is bf16");
    return exchange_check_place("-o", o->write.path, false, o->log);
}

static json_t *describe(const options_t *o, const zr_checkpoint_info_t *info,
                        const gpt_shape_t *shape, const weights_report_t *written) {
    json_t *object = json_object();
    json_put(&object, "checkpoint", json_text(info->path));
    json_put(&object, "step", json_count(info->step));
    json_put(&object, "format", json_string(formats[o->format]));
    json_put(&object, "dtype", json_string(dtypes[o->write.kind]));
    exchange_describe(shape, &object);
    json_put(&object, "output", json_text(o->write.path));
    json_put(&object, "files", json_count(written->n_files));
    json_put(&object, "bytes", json_count(written->n_bytes));
    return object;
}

static int report(const options_t *o, const zr_checkpoint_info_t *info, const gpt_shape_t *shape,
                  const weights_report_t *written) {
    if (o->common.json)
        return command_print(describe(o, info, shape, written), COMMAND_DONE, o->log);
    printf("%s: step %zu of %s, %s in %s, %s in %s\n", o->write.path, info->step, info->path,
           zr_count_text(gpt_n_params(shape), "parameter").text, dtypes[o->write.kind],
           zr_size_text(written->n_bytes).text, zr_count_text(written->n_files, "file").text);
    return COMMAND_DONE;
}

static zr_status_t write_weights(const options_t *o, weights_t *weights,
                                 weights_report_t *written_p) {
    exchange_progress_t progress = {.messages = messages_of(o->log),
                                    .verb = "exported",
                                    .n_elems = gpt_n_params(&weights->shape)};
    weights_export_t write = o->write;
    write.progress = exchange_show;
    write.context = &progress;
    zr_status_t status = o->format == FORMAT_LLMC
                             ? weights_write_llmc(weights, &write, o->log, written_p)
                             : weights_write_safetensors(weights, &write, o->log, written_p);
    if (progress.messages != NULL)
        messages_end_progress(progress.messages);
    return status;
}

/* Read damage is found on the way: the checkpoint was there, and of such a model. */
static int code_of_writing(zr_status_t status) {
    return status == ZR_ERR_FORMAT ? COMMAND_FAILED : exchange_code(status);
}

static int export(const options_t *o, const char *path) {
    zr_checkpoint_t *checkpoint = NULL;
    weights_t *weights = NULL;
    zr_checkpoint_info_t info;
    weights_report_t written;
    if (zr_checkpoint_open(path, o->log, &checkpoint) != ZR_OK)
        return COMMAND_FAILED;
    int code = exchange_code(
        weights_of_checkpoint(checkpoint, o->has_model ? &o->model : NULL, o->log, &weights));
    if (code == COMMAND_DONE)
        code = code_of_writing(write_weights(o, weights, &written));
    if (code == COMMAND_DONE) {
        zr_checkpoint_info(checkpoint, &info);
        code = report(o, &info, &weights->shape, &written);
    }
    weights_close(&weights);
    zr_checkpoint_close(&checkpoint);
    return code;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.log = log};
    char followed[PATH_MAX];
    int code = COMMAND_DONE;
    if (!command_parse(CHECKPOINT_PROGRAM, &parser, argc, argv, log, &options.common, &code))
        return code;
    code = exchange_code(check(&options));
    const char *path = checkpoint_follow(options.common.words[0], followed);
    if (code == COMMAND_DONE)
        code = checkpoint_expect(path, log);
    return code == COMMAND_DONE ? export(&options, path) : code;
}

const command_t checkpoint_export = {
    .name = "export", .summary = "weights for other tools: safetensors, llm.c", .run = run};
