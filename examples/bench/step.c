/*
 * zero-bench step: what a training step takes, split into its parts, and how much of the
 * machine's own rate of matrix products it reaches. The products are counted as 6 operations per
 * parameter and token plus attention; the machine's rate is measured in turns with the steps.
 */
#include <string.h>

#include "examples/bench/step_run.h"

#define MAX_RANKS 1024
#define MAX_COUNT ((size_t)1 << 31)

typedef struct options {
    bench_common_t common;
    const char *model;
    step_options_t step;
    const char *device; /* as written */
    size_t n_ranks, n_threads, seq;
    size_t side; /* of the machine's own product; 0: the default */
    const zr_log_t *log;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

static zr_status_t take_recompute(const char *value, void *options) {
    options_t *o = options;
    static const char *const recomputes[] = {"none", "unit"};
    size_t choice = 0;
    ZR_TRY(args_choice("--recompute", value, recomputes, 2, o->log, &choice));
    o->step.recompute = choice == 1;
    return ZR_OK;
}

static const command_option_t option_table[] = {
    {"model", "NAME|SIZES",
     "gpt2 (default), gpt2-medium, ..., or layers=..,channels=..,heads=..,seq=..,vocab=..",
     COMMAND_TEXT, .field = offsetof(options_t, model)},
    {"micro-batch", "B", "sequences of each rank's micro-batch (default 4)", COMMAND_COUNT,
     .field = offsetof(options_t, step.config.micro_batch), 1, MAX_COUNT},
    {"grad-accum", "K", "micro-batches of a step (default 1)", COMMAND_COUNT,
     .field = offsetof(options_t, step.config.grad_accum), 1, MAX_COUNT},
    {"seq", "TOKENS", "tokens of a sequence (default 64, or the model's, if fewer)", COMMAND_COUNT,
     .field = offsetof(options_t, seq), 1, MAX_COUNT},
    {"ranks", "N", "in-process ranks (default 1)", COMMAND_COUNT,
     .field = offsetof(options_t, n_ranks), 1, MAX_RANKS},
    {"threads", "N", "threads of each rank (default: all cores, shared out)", COMMAND_COUNT,
     .field = offsetof(options_t, n_threads), 1, ON_DEVICE_MAX_THREADS},
    {"stage", "0|1|2|3", "of ZeRO (default 0)", COMMAND_CHOICE,
     .field = offsetof(options_t, step.config.stage)},
    {"dtype", "NAME", "of parameters and gradients: fp32 (default) or bf16", COMMAND_DTYPE,
     .field = offsetof(options_t, step.config.dtype)},
    {"recompute", "none|unit", "compute layers again in backward (default none)", COMMAND_OTHER,
     .take = take_recompute},
    {"device", "host|cuda[:N]|auto", "of all ranks (default host)", COMMAND_DEVICE,
     .field = offsetof(options_t, device)},
    {"side", "N",
     "of the square matrices of the machine's own product (default 2048; on a GPU 8192)",
     COMMAND_COUNT, .field = offsetof(options_t, side), 16, 65536},
    {"steps", "S", "steps to time, after one that is not (default 5)", COMMAND_COUNT,
     .field = offsetof(options_t, step.n_steps), 1, 1000000},
    {0},
};

static const bench_parser_t parser = {
    .name = "step",
    .options = option_table,
    .doc = "Time of a training step on random tokens, split into its parts, and its matrix "
           "products against the machine's own rate in the same run."};

/* What follows from several options together. */
static zr_status_t complete(options_t *o) {
    char error[256];
    if (!gpt_shape_parse(o->model, &o->step.shape, error, sizeof(error)))
        return zr_fail(o->log, ZR_ERR_ARGUMENT, "--model %s: %s", o->model, error);
    size_t longest = o->step.shape.seq;
    if (o->seq > longest)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--seq %zu: the model has %s; allowed are 1 to %zu; the nearest "
                       "is %zu",
                       o->seq, zr_count_text(longest, "position").text, longest, longest);
    o->step.seq = o->seq != 0 ? o->seq : longest < 64 ? longest : 64;
    if (o->step.config.micro_batch > INT32_MAX / o->step.seq)
        return zr_fail(o->log, ZR_ERR_ARGUMENT,
                       "--micro-batch %zu: with %s each allowed are 1 to %zu; the nearest "
                       "is %zu",
                       o->step.config.micro_batch, zr_count_text(o->step.seq, "token").text,
                       INT32_MAX / o->step.seq, INT32_MAX / o->step.seq);
    o->step.n_ranks = (int)o->n_ranks;
    o->step.n_threads = device_threads(o->n_threads, o->step.n_ranks);
    o->step.log = *o->log;
    ZR_TRY(zr_config_resolve(&o->step.config, o->step.n_ranks, o->log));
    return device_choose(o->device, o->log, &o->step.device);
}

/* ---- the report -------------------------------------------------------------------------- */

typedef struct figures {
    double tokens_per_s;
    double operations_per_s; /* of matrix products, over the whole step */
    double machine_per_s;    /* the machine's own */
    double ratio;
    size_t side;
    const char *machine; /* what makes the machine's own products; static */
} figures_t;

static figures_t figures_of(const step_options_t *o, const step_result_t *result) {
    double tokens =
        (double)o->config.micro_batch * (double)o->config.grad_accum * (double)o->seq * o->n_ranks;
    figures_t figures = {.machine_per_s = matrix_rate_per_s(o->rate),
                         .side = matrix_rate_side(o->rate),
                         .machine = matrix_rate_name(o->rate)};
    figures.tokens_per_s = tokens / result->step_seconds;
    figures.operations_per_s = figures.tokens_per_s * gpt_flops_per_token(&o->shape, o->seq);
    figures.ratio = figures.operations_per_s / figures.machine_per_s;
    return figures;
}

static void print_for_people(const options_t *options, const step_result_t *result,
                             const figures_t *figures) {
    const step_options_t *o = &options->step;
    fprintf(stderr, "%s\n", result->device);
    fprintf(stderr, "%s, %s, %s, stage %d, %s of %s, micro-batch %zu x %zu\n", options->model,
            zr_count_text(gpt_n_params(&o->shape), "parameter").text,
            zr_dtype_name(o->config.dtype), o->config.stage,
            zr_count_text((uint64_t)o->n_ranks, "rank").text,
            zr_count_text((uint64_t)o->n_threads, "thread").text, o->config.micro_batch, o->seq);
    fprintf(stderr, "  step       %9.1f ms  (median of %zu)\n", 1e3 * result->step_seconds,
            o->n_steps);
    fprintf(stderr, "  compute    %9.1f ms\n", 1e3 * result->compute_seconds);
    fprintf(stderr, "  comm       %9.1f ms\n", 1e3 * result->comm_seconds);
    fprintf(stderr, "  stall      %9.1f ms\n", 1e3 * result->stall_seconds);
    fprintf(stderr, "  optimizer  %9.1f ms\n", 1e3 * result->optimizer_seconds);
    fprintf(stderr, "  tokens     %9.1f per second\n", figures->tokens_per_s);
    fprintf(stderr, "  products   %9.1f GFLOP/s\n", 1e-9 * figures->operations_per_s);
    fprintf(stderr, "  %-9s  %9.1f GFLOP/s, this machine's own (%zu x %zu)\n", figures->machine,
            1e-9 * figures->machine_per_s, figures->side, figures->side);
    fprintf(stderr, "  ratio      %9.3f\n", figures->ratio);
}

static json_t *describe_time(const step_result_t *result) {
    json_t *object = json_object();
    json_put(&object, "compute_ms", json_number(1e3 * result->compute_seconds));
    json_put(&object, "comm_ms", json_number(1e3 * result->comm_seconds));
    json_put(&object, "stall_ms", json_number(1e3 * result->stall_seconds));
    json_put(&object, "optimizer_ms", json_number(1e3 * result->optimizer_seconds));
    return object;
}

static json_t *describe(const options_t *options, const step_result_t *result,
                        const figures_t *figures) {
    const step_options_t *o = &options->step;
    json_t *object = json_object();
    json_put(&object, "command", json_string("step"));
    json_put(&object, "device", json_string(result->device));
    json_put(&object, "model", json_string(options->model));
    json_put(&object, "params", json_count(gpt_n_params(&o->shape)));
    json_put(&object, "dtype", json_string(zr_dtype_name(o->config.dtype)));
    json_put(&object, "stage", json_count((uint64_t)o->config.stage));
    json_put(&object, "ranks", json_count((uint64_t)o->n_ranks));
    json_put(&object, "threads_per_rank", json_count((uint64_t)o->n_threads));
    json_put(&object, "micro_batch", json_count(o->config.micro_batch));
    json_put(&object, "grad_accum", json_count(o->config.grad_accum));
    json_put(&object, "seq", json_count(o->seq));
    json_put(&object, "steps", json_count(o->n_steps));
    json_put(&object, "first_loss", json_number(result->first_loss));
    json_put(&object, "last_loss", json_number(result->last_loss));
    json_put(&object, "peak_device_bytes", json_count(result->peak_device_bytes));
    json_put(&object, "step_ms", json_number(1e3 * result->step_seconds));
    json_put(&object, "time", describe_time(result));
    json_put(&object, "tokens_per_s", json_number(figures->tokens_per_s));
    json_put(&object, "gflop_per_s", json_number(1e-9 * figures->operations_per_s));
    json_put(&object, "machine", json_string(figures->machine));
    json_put(&object, "machine_side", json_count(figures->side));
    json_put(&object, "machine_gflop_per_s", json_number(1e-9 * figures->machine_per_s));
    json_put(&object, "ratio", json_number(figures->ratio));
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

/* The machine's own products are on as many threads as all ranks have, up to the cores. */
static zr_status_t measure(options_t *options, step_result_t *result, figures_t *figures_p) {
    on_device_options_t on = on_device_options_default(options->log);
    int n_threads = options->step.n_ranks * options->step.n_threads, n_cores = device_cores();
    on.device = options->device;
    if (strcmp(options->step.device.name, "host") == 0)
        on.n_threads = (size_t)(n_threads < n_cores ? n_threads : n_cores);
    ZR_TRY(matrix_rate_create(&on, options->step.config.dtype, options->side, &options->step.rate));
    zr_status_t status = step_run(&options->step, result);
    if (status == ZR_OK)
        *figures_p = figures_of(&options->step, result);
    matrix_rate_destroy(&options->step.rate);
    return status;
}

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.model = "gpt2",
                         .device = "host",
                         .n_ranks = 1,
                         .step = {.config = zr_config_default(), .n_first_steps = 1, .n_steps = 5},
                         .log = log};
    int code = BENCH_FAILED;
    options.step.config.micro_batch = 4;
    options.step.config.grad_accum = 1;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    if (complete(&options) != ZR_OK)
        return BENCH_BAD_INPUT;

    step_result_t result;
    figures_t figures;
    if (measure(&options, &result, &figures) != ZR_OK)
        return BENCH_FAILED;
    print_for_people(&options, &result, &figures);
    return options.common.json
               ? command_print(describe(&options, &result, &figures), BENCH_MEASURED, log)
               : BENCH_MEASURED;
}

const bench_command_t bench_step = {
    .name = "step",
    .summary = "a GPT training step, its parts, and its matrix products against the machine's own",
    .run = run};
