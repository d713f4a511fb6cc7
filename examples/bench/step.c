/*
 * zero-bench step: what a training step takes, split into its parts, and how much of the
 * machine's own rate of matrix products it reaches. The products are counted as 6 operations per
 * parameter and token plus attention; the machine's rate is measured in turns with the steps.
 */
#include <string.h>

#include "examples/bench/step_apart.h"
#include "examples/common/files.h"

#define MAX_RANKS 1024
#define MAX_COUNT ((size_t)1 << 31)

typedef struct options {
    on_device_options_t on; /* of all ranks */
    const char *model;
    step_options_t step;
    int stage;
    zr_dtype_t dtype;
    size_t micro_batch, grad_accum, n_ranks, seq;
    size_t side;       /* of the machine's own product; 0: the default */
    const char *paths; /* of drives that everything is on; NULL: nothing is */
    size_t n_buffers, n_param_buffers, host_memory_bytes;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

static const zr_option_choice_t stages[] = {
    {"0", 0, NULL}, {"1", 1, NULL}, {"2", 2, NULL}, {"3", 3, NULL}, {NULL, 0, NULL}};
static const zr_option_choice_t recomputes[] = {{"none", ZR_RECOMPUTE_CHEAP, NULL},
                                                {"unit", ZR_RECOMPUTE_UNIT, NULL},
                                                {"never", ZR_RECOMPUTE_NEVER, NULL},
                                                {NULL, 0, NULL}};

static const zr_option_choice_t engines[] = {
    {"own", ZR_NN_ENGINE_OWN, NULL}, {"cudnn", ZR_NN_ENGINE_CUDNN, NULL}, {NULL, 0, NULL}};

#define AT(member) .offset = offsetof(options_t, member)
#define COUNT(member) AT(member), .type = ZR_OPTION_COUNT, .least = 1

static const zr_option_t rows[] = {
    {"model", AT(model), .type = ZR_OPTION_STRING, .arg = "NAME|PATH|SIZES",
     .help = "gpt2, llama-3.2-1b, ..., a config.json, or layers=..,channels=..,heads=..,seq=..,"
             "vocab=.."},
    {"micro-batch", COUNT(micro_batch), .most = MAX_COUNT, .arg = "B",
     .help = "sequences of each rank's micro-batch"},
    {"grad-accum", COUNT(grad_accum), .most = MAX_COUNT, .arg = "K",
     .help = "micro-batches of a step"},
    {"seq", COUNT(seq), .most = MAX_COUNT, .arg = "TOKENS",
     .initial = "64, or the model's, if fewer", .help = "tokens of a sequence"},
    {"ranks", COUNT(n_ranks), .most = MAX_RANKS, .arg = "N", .help = "in-process ranks"},
    {"stage", AT(stage), .type = ZR_OPTION_CHOICE, .choices = stages, .help = "of ZeRO"},
    {"dtype", AT(dtype), .type = ZR_OPTION_CHOICE, .choices = command_dtypes,
     .help = "of parameters and gradients"},
    {"recompute", AT(step.recompute), .type = ZR_OPTION_CHOICE, .choices = recomputes,
     .help = "compute layers again in backward"},
    {"attention", AT(step.attention), .type = ZR_OPTION_CHOICE, .choices = engines,
     .help = "attention kernels. own: libzero's; cudnn: cuDNN's, which requires a GPU"},
    {"path", AT(paths), .type = ZR_OPTION_STRING, .arg = "DIR[,DIR...]", .initial = "none",
     .help = "keep parameters, gradients and state on drives here (stage 3, one rank, updates in "
             "backward), and measure the step's compute alone, with parameters in memory, and its "
             "transfers alone"},
    {"nvme-buffers", AT(n_buffers), .type = ZR_OPTION_COUNT, .flags = ZR_OPTION_OR_AUTO, .least = 1,
     .most = ZR_SWAP_MAX_BUFFERS, .arg = "N", .help = "sub-groups of state in host memory"},
    {"param-buffers", AT(n_param_buffers), .type = ZR_OPTION_COUNT, .flags = ZR_OPTION_OR_AUTO,
     .least = 1, .most = ZR_SWAP_MAX_BUFFERS, .arg = "N",
     .help = "parts of parameters in host memory"},
    {"host-memory", AT(host_memory_bytes), .type = ZR_OPTION_BYTES, .least = 1, .arg = "SIZE",
     .help = "budget of host memory"},
    {"side", AT(side), .type = ZR_OPTION_COUNT, .least = 16, .most = 65536, .arg = "N",
     .initial = "2048; on a GPU 8192",
     .help = "of the square matrices of the machine's own product"},
    {"steps", COUNT(step.n_steps), .most = 1000000, .arg = "S",
     .help = "steps to time, after one that is not"}};

/* Everything on drives. A norm that is not finite ends the run, so that no old state is kept. */
static zr_status_t offload(const options_t *o, zr_config_t *config) {
    bench_folders_t folders;
    if (o->stage != 3 || o->n_ranks != 1)
        return zr_fail(o->on.common.log, ZR_ERR_ARGUMENT,
                       "--path %s: everything is on drives at --stage 3, of --ranks 1; give both",
                       o->paths);
    ZR_TRY(bench_folders("--path", o->paths, o->on.common.log, &folders));
    config->offload_optimizer.device = config->offload_optimizer.gradients = ZR_OFFLOAD_NVME;
    config->offload_param.device = ZR_OFFLOAD_NVME;
    config->update_at = ZR_UPDATE_AT_BACKWARD;
    config->check_overflow = false;
    config->offload_optimizer.n_buffers = o->n_buffers;
    config->offload_param.n_buffers = o->n_param_buffers;
    config->host_memory_bytes = o->host_memory_bytes;
    snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", o->paths);
    return ZR_OK;
}

/* What follows from several options together. */
static zr_status_t complete(options_t *o) {
    const zr_log_t *log = o->on.common.log;
    zr_config_t *config = &o->step.config;
    *config = zr_config_default();
    config->stage = o->stage;
    config->dtype = o->dtype;
    config->micro_batch = o->micro_batch;
    config->grad_accum = o->grad_accum;
    if (o->paths == NULL && (o->n_buffers != 0 || o->n_param_buffers != 0 ||
                             o->host_memory_bytes != ZR_CONFIG_NO_BUDGET))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--nvme-buffers, --param-buffers and --host-memory: nothing is on drives; "
                       "add --path DIR");
    if (o->paths != NULL)
        ZR_TRY(offload(o, config));
    files_log_t named = {*log, "--model"};
    zr_log_t model_log = files_log(&named);
    ZR_TRY(zr_model_shape_read(o->model, &model_log, &o->step.shape));
    size_t longest = zr_model_shape_sizes(&o->step.shape).seq;
    if (o->seq > longest)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--seq %zu: the model has %s; allowed: 1 to %zu; the nearest is %zu", o->seq,
                       zr_count_text(longest, "position").text, longest, longest);
    o->step.seq = o->seq != 0 ? o->seq : longest < 64 ? longest : 64;
    if (o->micro_batch > INT32_MAX / o->step.seq)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "--micro-batch %zu: with %s each, allowed: 1 to %zu; the nearest is %zu",
                       o->micro_batch, zr_count_text(o->step.seq, "token").text,
                       INT32_MAX / o->step.seq, INT32_MAX / o->step.seq);
    o->step.n_ranks = (int)o->n_ranks;
    o->step.n_threads = device_threads(o->on.n_threads, o->step.n_ranks);
    o->step.log = *log;
    ZR_TRY(zr_config_resolve(config, o->step.n_ranks, log));
    return device_choose(o->on.device, log, &o->step.device);
}

/* ---- the report -------------------------------------------------------------------------- */

/* apart: NULL: nothing is on drives. */
static void put_apart(json_t **object, const step_result_t *result, const step_apart_t *apart) {
    if (apart == NULL)
        return;
    double longest = apart->compute > apart->transfers ? apart->compute : apart->transfers;
    JSON_PUT(object, {"read_bytes", json_count(apart->bytes[ZR_STORE_GET])},
             {"written_bytes", json_count(apart->bytes[ZR_STORE_PUT])},
             {"checksum_ms", json_number(1e3 * apart->checksums)},
             {"compute_alone_ms", json_number(1e3 * apart->compute)},
             {"transfers_alone_ms", json_number(1e3 * apart->transfers)},
             {"step_to_longer", json_number(result->times.step / longest)});
}

static json_t *describe(const options_t *options, const step_result_t *result,
                        const step_apart_t *apart) {
    const step_options_t *o = &options->step;
    double tokens =
        (double)o->config.micro_batch * (double)o->config.grad_accum * (double)o->seq * o->n_ranks;
    double tokens_per_s = tokens / result->times.step;
    double per_s =
        tokens_per_s * zr_model_shape_flops_per_token(&o->shape, o->seq); /* of matrix products */
    double machine_per_s = matrix_rate_per_s(o->rate);
    json_t *object = json_object(), *time = json_object();
    step_put_times(&time, &result->times);
    JSON_PUT(&object, {"command", json_string("step")}, {"device", json_string(result->device)},
             {"model", json_string(options->model)},
             {"params", json_count(zr_model_shape_n_params(&o->shape))},
             {"dtype", json_string(zr_dtype_name(o->config.dtype))},
             {"attention", json_string(result->attention.name)},
             {"stage", json_count((uint64_t)o->config.stage)},
             {"ranks", json_count((uint64_t)o->n_ranks)},
             {"threads_per_rank", json_count((uint64_t)o->n_threads)},
             {"micro_batch", json_count(o->config.micro_batch)},
             {"grad_accum", json_count(o->config.grad_accum)}, {"seq", json_count(o->seq)},
             {"steps", json_count(o->n_steps)}, {"first_loss", json_number(result->first_loss)},
             {"last_loss", json_number(result->last_loss)},
             {"peak_device_bytes", json_count(result->peak_device_bytes)},
             {"step_ms", json_number(1e3 * result->times.step)}, {"time", time},
             {"tokens_per_s", json_number(tokens_per_s)},
             {"gflop_per_s", json_number(1e-9 * per_s)},
             {"machine", json_string(matrix_rate_name(o->rate))},
             {"machine_side", json_count(matrix_rate_side(o->rate))},
             {"machine_gflop_per_s", json_number(1e-9 * machine_per_s)},
             {"ratio", json_number(per_s / machine_per_s)});
    put_apart(&object, result, apart);
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static int run(void *argument) {
    options_t *options = argument;
    on_device_options_t on = options->on;
    step_result_t result;
    step_apart_t apart;
    if (complete(options) != ZR_OK)
        return COMMAND_BAD_INPUT;
    /* The machine's own products are on as many threads as all ranks have, up to the cores. */
    int n_threads = options->step.n_ranks * options->step.n_threads, n_cores = device_cores();
    on.n_threads = strcmp(options->step.device.name, "host") != 0 ? 0
                   : n_threads < n_cores                          ? (size_t)n_threads
                                                                  : (size_t)n_cores;
    zr_status_t status =
        matrix_rate_create(&on, options->step.config.dtype, options->side, &options->step.rate);
    ZR_THEN(status, step_run(&options->step, &result));
    if (options->paths != NULL)
        ZR_THEN(status, step_apart(&options->step, &result, &apart));
    json_t *report =
        status == ZR_OK ? describe(options, &result, options->paths != NULL ? &apart : NULL) : NULL;
    int code =
        status == ZR_OK ? bench_report(&options->on.common, report, COMMAND_DONE) : COMMAND_FAILED;
    matrix_rate_destroy(&options->step.rate);
    return code;
}

static const options_t defaults = {.on = ON_DEVICE_DEFAULTS,
                                   .model = "gpt2",
                                   .dtype = ZR_DTYPE_F32,
                                   .micro_batch = 4,
                                   .grad_accum = 1,
                                   .n_ranks = 1,
                                   .host_memory_bytes = ZR_CONFIG_NO_BUDGET,
                                   .step = {.n_first_steps = 1, .n_steps = 5}};

const command_t bench_step = {
    .name = "step",
    .summary = "a GPT training step, its parts, and its matrix products against the machine's own",
    .doc = "Time of a training step on random tokens, split into its parts, and its matrix "
           "products against the machine's own rate in the same run.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .base = &on_ranks_table,
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
