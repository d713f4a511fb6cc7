/* One configuration, run and planned: see plan_case.h. */
#include "examples/bench/plan_case.h"

#include <string.h>

#define GPT2 "gpt2"
#define WIDE "layers=6,channels=1024,heads=16,seq=1024,vocab=16384"
#define DEEP "layers=24,channels=512,heads=8,seq=512,vocab=8192"
#define LARGE_VOCAB "layers=8,channels=512,heads=8,seq=1024,vocab=50257"
#define TINY "layers=2,channels=64,heads=2,seq=64,vocab=256"

#define F32 ZR_DTYPE_F32
#define BF16 ZR_DTYPE_BF16
#define CPU ZR_OFFLOAD_CPU
#define NVME ZR_OFFLOAD_NVME

/* Models, ranks, stages, dtypes, sizes of batches, recomputation and placements, each more than
 * once; of a second or more per step on two cores. */
static const plan_case_t cases[] = {
    {GPT2, 1, 0, F32, 4, 1, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 1, 0, BF16, 4, 1, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 1, 0, F32, 1, 1, 512, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 1, 0, F32, 4, 1, 64, .recompute = ZR_RECOMPUTE_UNIT},
    {GPT2, 1, 1, F32, 2, 2, 64, .optimizer = CPU},
    {GPT2, 1, 2, BF16, 2, 1, 128, .optimizer = NVME},
    {GPT2, 2, 0, F32, 2, 1, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 2, 1, F32, 2, 2, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 2, 2, F32, 4, 1, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 2, 3, F32, 2, 1, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 2, 3, BF16, 1, 1, 256, .recompute = ZR_RECOMPUTE_UNIT},
    {GPT2, 2, 2, F32, 2, 1, 64, .optimizer = CPU},
    {GPT2, 2, 3, BF16, 2, 1, 64, .optimizer = CPU, .params = CPU},
    {GPT2, 2, 2, F32, 2, 1, 64, .optimizer = NVME},
    {GPT2, 2, 3, F32, 2, 1, 64, .optimizer = NVME, .params = NVME},
    {LARGE_VOCAB, 2, 1, F32, 1, 1, 1024, .recompute = ZR_RECOMPUTE_CHEAP},
    {WIDE, 2, 3, BF16, 2, 1, 128, .recompute = ZR_RECOMPUTE_CHEAP},
    {DEEP, 3, 2, F32, 2, 1, 128, .recompute = ZR_RECOMPUTE_CHEAP},
    {LARGE_VOCAB, 3, 3, BF16, 2, 2, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {WIDE, 4, 0, F32, 2, 1, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {GPT2, 4, 1, BF16, 1, 1, 64, .recompute = ZR_RECOMPUTE_CHEAP},
    {DEEP, 4, 2, F32, 2, 2, 64, .recompute = ZR_RECOMPUTE_UNIT},
    {WIDE, 4, 3, F32, 2, 1, 64, .optimizer = CPU},
    {"gpt2-medium", 2, 3, BF16, 1, 1, 128, .recompute = ZR_RECOMPUTE_CHEAP},
};

/* Of the form of the others: what they take says nothing. */
static const plan_case_t quick_cases[] = {
    {TINY, 1, 0, F32, 2, 1, 16, .recompute = ZR_RECOMPUTE_CHEAP},
    {TINY, 2, 2, BF16, 1, 2, 16, .recompute = ZR_RECOMPUTE_UNIT},
    {TINY, 2, 3, F32, 1, 1, 16, .optimizer = CPU, .params = CPU},
    {TINY, 2, 2, F32, 1, 1, 16, .optimizer = NVME},
};

const plan_case_t *plan_cases(bool quick, size_t *n_cases_p) {
    *n_cases_p =
        quick ? sizeof(quick_cases) / sizeof(quick_cases[0]) : sizeof(cases) / sizeof(cases[0]);
    return quick ? quick_cases : cases;
}

bool plan_case_uses_nvme(const plan_case_t *one) {
    return one->optimizer == ZR_OFFLOAD_NVME || one->params == ZR_OFFLOAD_NVME;
}

static zr_status_t make_options(const plan_case_t *one, const plan_settings_t *settings,
                                step_options_t *options_p) {
    step_options_t options = {.config = zr_config_default(),
                              .seq = one->seq,
                              .n_ranks = one->n_ranks,
                              .n_threads = device_threads(0, one->n_ranks),
                              .device = {.name = "host"},
                              .recompute = one->recompute,
                              .n_first_steps = settings->n_first_steps,
                              .n_steps = settings->n_steps,
                              .log = settings->log};
    zr_config_t *config = &options.config;
    ZR_TRY(zr_model_shape_read(one->model, &settings->log, &options.shape));
    config->stage = one->stage;
    config->dtype = one->dtype;
    config->micro_batch = one->micro_batch;
    config->grad_accum = one->grad_accum;
    config->offload_optimizer.device = one->optimizer;
    config->offload_param.device = one->params;
    if (plan_case_uses_nvme(one))
        snprintf(config->nvme.paths, sizeof(config->nvme.paths), "%s", settings->paths);
    ZR_TRY(zr_config_resolve(config, one->n_ranks, &settings->log));
    *options_p = options;
    return ZR_OK;
}

static zr_status_t run_steps(step_options_t *options, size_t side, plan_result_t *result) {
    on_device_options_t on = on_device_options_default(&options->log);
    step_result_t step;
    on.n_threads = 1;
    ZR_TRY(matrix_rate_create(&on, ZR_DTYPE_F32, side, &options->rate));
    zr_status_t status = step_run(options, &step);
    if (status == ZR_OK) {
        result->measured = step.times;
        result->machine_per_s = matrix_rate_per_s(options->rate);
    }
    matrix_rate_destroy(&options->rate);
    return status;
}

static zr_status_t plan_steps(const step_options_t *options, const zr_hardware_t *hardware,
                              plan_result_t *result) {
    const zr_run_request_t request = {
        .model = zr_model_shape_maker(&options->shape,
                                      &(zr_transformer_options_t){.seed = 1, .weight_decay = 0.1}),
        .config = options->config,
        .recompute = options->recompute,
        .activations = ZR_OFFLOAD_NONE,
        .seq = options->seq,
        .n_steps = 4,
        .n_ranks = options->n_ranks,
        .hardware = *hardware,
        .log = options->log};
    zr_run_plan_t plan;
    ZR_TRY(zr_run_plan(&request, &plan));
    result->planned = step_times_of(plan.step_seconds, &plan.runtime);
    result->exposed = plan.times;
    return ZR_OK;
}

zr_status_t plan_case_run(const plan_case_t *one, const plan_settings_t *settings,
                          const zr_hardware_t *hardware, plan_result_t *result_p) {
    step_options_t options;
    plan_result_t result = {0};
    ZR_TRY(make_options(one, settings, &options));
    ZR_TRY(plan_steps(&options, hardware, &result));
    ZR_TRY(run_steps(&options, settings->side, &result));
    *result_p = result;
    return ZR_OK;
}
