#include "examples/bench/step_run.h"

#include <stdlib.h>
#include <string.h>

/* Products that are timed before each step, and after the last. */
#define RATE_TURNS 3

typedef struct rank {
    const step_options_t *options;
    zr_rank_t *of; /* the library's */
    zr_model_t *model;
    int32_t *tokens;     /* [micro_batch, seq], then the targets */
    step_times_t *times; /* [n_steps] */
    double first_loss, last_loss;
    size_t peak_device_bytes;
    zr_store_statistics_t moved;
    char device_text[128];
    zr_nn_engine_info_t attention;
} rank_t;

step_times_t step_times_of(double step, const zr_runtime_time_t *time) {
    double rest = step - time->comm_seconds - time->stall_seconds - time->optimizer_seconds -
                  time->io_seconds;
    return (step_times_t){.step = step,
                          .parts = {[STEP_COMPUTE] = rest > 0.0 ? rest : 0.0,
                                    [STEP_COMM] = time->comm_seconds,
                                    [STEP_STALL] = time->stall_seconds,
                                    [STEP_OPTIMIZER] = time->optimizer_seconds,
                                    [STEP_IO] = time->io_seconds}};
}

void step_put_times(json_t **object_p, const step_times_t *times) {
    static const char *const names[] = {"compute_ms", "comm_ms", "stall_ms", "optimizer_ms",
                                        "io_ms"};
    for (int part = 0; part < STEP_N_PARTS; part++)
        json_put(object_p, names[part], json_number(1e3 * times->parts[part]));
}

/* ---- a rank ------------------------------------------------------------------------------ */

static zr_status_t make_model(rank_t *rank) {
    const step_options_t *o = rank->options;
    zr_transformer_options_t options = {.seed = 1, .weight_decay = 0.1, .attention = o->attention};
    zr_activation_options_t activations = {.recompute = o->recompute};
    ZR_TRY(zr_nn_attention_open(rank->of->device, o->attention, &rank->attention));
    ZR_TRY(
        zr_model_shape_create(rank->of->runtime, &o->shape, &options, &activations, &rank->model));
    ZR_TRY(zr_model_commit(rank->model));
    size_t n = o->config.micro_batch * o->seq;
    rank->tokens = malloc(2 * n * sizeof(int32_t));
    return rank->tokens != NULL ? ZR_OK
                                : zr_fail(&rank->of->log, ZR_ERR_MEMORY, "no memory for %s",
                                          zr_count_text(n, "token").text);
}

static void draw_tokens(rank_t *rank, size_t step) {
    const step_options_t *o = rank->options;
    size_t n = o->config.micro_batch * o->seq, vocab = zr_model_shape_sizes(&o->shape).vocab;
    uint64_t state = 1000003u * step + (uint64_t)rank->of->rank;
    for (size_t i = 0; i < 2 * n; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        rank->tokens[i] = (int32_t)((state >> 33) % vocab);
    }
}

static zr_status_t take_step(rank_t *rank, size_t step) {
    const step_options_t *o = rank->options;
    const int32_t *targets = rank->tokens + o->config.micro_batch * o->seq;
    zr_host_batch_t batch = {
        .n_sequences = o->config.micro_batch,
        .seq = o->seq,
        .inputs = {[ZR_PART_TOKENS] = rank->tokens, [ZR_PART_TARGETS] = targets}};
    double loss = 0.0;
    for (size_t i = 0; i < o->config.grad_accum; i++) {
        draw_tokens(rank, step * o->config.grad_accum + i);
        ZR_TRY(zr_model_train(rank->model, &batch, 1));
    }
    ZR_TRY(zr_model_take_loss(rank->model, &loss));
    ZR_TRY(zr_runtime_average(rank->of->runtime, loss, &rank->last_loss));
    return zr_runtime_step(rank->of->runtime, NULL);
}

/* Between steps, while all ranks stand still: whatever else the machine does meets both. */
static zr_status_t time_rate(rank_t *rank) {
    if (rank->options->rate == NULL)
        return zr_comm_barrier(rank->of->comm, "between steps");
    ZR_TRY(zr_comm_barrier(rank->of->comm, "before the machine's product"));
    for (int i = 0; i < RATE_TURNS && rank->of->rank == 0; i++)
        ZR_TRY(matrix_rate_run(rank->options->rate));
    if (rank->of->rank == 0)
        matrix_rate_rest();
    return zr_comm_barrier(rank->of->comm, "after the machine's product");
}

/* Nothing where nothing is kept in a store. Waits for the last writes of the last step. */
static zr_store_statistics_t moved_so_far(const rank_t *rank) {
    zr_store_statistics_t statistics = {.checksum_seconds = 0};
    zr_offload_report_t report;
    zr_runtime_offload(rank->of->runtime, &report);
    if (zr_runtime_store(rank->of->runtime) != NULL)
        zr_store_statistics(zr_runtime_store(rank->of->runtime), &statistics);
    return statistics;
}

static zr_status_t time_steps(rank_t *rank) {
    zr_runtime_time_t before, after;
    size_t n_first = rank->options->n_first_steps;
    for (size_t i = 0; i < n_first; i++) {
        ZR_TRY(take_step(rank, i));
        ZR_TRY(zr_stream_synchronize(zr_runtime_stream(rank->of->runtime)));
        rank->first_loss = i == 0 ? rank->last_loss : rank->first_loss;
    }
    zr_store_statistics_t moved = moved_so_far(rank);
    for (size_t i = 0; i < rank->options->n_steps; i++) {
        ZR_TRY(time_rate(rank));
        zr_runtime_time(rank->of->runtime, &before);
        double begin = bench_seconds();
        ZR_TRY(take_step(rank, n_first + i));
        ZR_TRY(zr_stream_synchronize(zr_runtime_stream(rank->of->runtime))); /* the update */
        if (i + 1 == rank->options->n_steps) /* the first had nothing left to write */
            rank->moved = moved_so_far(rank);
        double seconds = bench_seconds() - begin;
        zr_runtime_time(rank->of->runtime, &after);
        const zr_runtime_time_t between = {
            .comm_seconds = after.comm_seconds - before.comm_seconds,
            .stall_seconds = after.stall_seconds - before.stall_seconds,
            .optimizer_seconds = after.optimizer_seconds - before.optimizer_seconds,
            .io_seconds = after.io_seconds - before.io_seconds};
        rank->times[i] = step_times_of(seconds, &between);
    }
    rank->moved.checksum_seconds -= moved.checksum_seconds;
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++)
        rank->moved.count[d].bytes -= moved.count[d].bytes;
    ZR_TRY(time_rate(rank));
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(zr_runtime_allocator(rank->of->runtime), ZR_TIER_DEVICE, &statistics);
    rank->peak_device_bytes = statistics.reserved.peak;
    return ZR_OK;
}

static zr_status_t run_rank(zr_rank_t *of) {
    rank_t *rank = (rank_t *)of->context + of->rank;
    rank->of = of;
    snprintf(rank->device_text, sizeof(rank->device_text), "%s",
             zr_device_info(of->device)->description);
    zr_status_t status = make_model(rank);
    ZR_THEN(status, time_steps(rank));
    zr_model_destroy(&rank->model);
    free(rank->tokens);
    return status;
}

/* ---- all ranks ----------------------------------------------------------------------------- */

/* The medians over the steps of the means over the ranks; compute is what is left of the step. */
static zr_status_t take_medians(const step_options_t *options, const rank_t *ranks,
                                step_times_t *medians) {
    enum { N = sizeof(step_times_t) / sizeof(double) };
    zr_status_t status = ZR_OK;
    double values[N];
    for (size_t k = 0; k < N && status == ZR_OK; k++) {
        bench_times_t times = {0};
        for (size_t step = 0; step < options->n_steps && status == ZR_OK; step++) {
            double sum = 0.0, own[N];
            for (int i = 0; i < options->n_ranks; i++) {
                memcpy(own, &ranks[i].times[step], sizeof(own));
                sum += own[k];
            }
            status = bench_times_add(&times, sum / options->n_ranks, &options->log);
        }
        values[k] = bench_times_median(&times);
        bench_times_free(&times);
    }
    memcpy(medians, values, sizeof(values));
    double *compute = &medians->parts[STEP_COMPUTE];
    *compute = medians->step;
    for (int part = STEP_COMM; part < STEP_N_PARTS; part++)
        *compute -= medians->parts[part];
    *compute = *compute > 0.0 ? *compute : 0.0;
    return status;
}

static zr_status_t run_ranks(const step_options_t *options, rank_t *ranks, step_result_t *result) {
    zr_run_options_t run = zr_run_options_default();
    zr_config_t config = options->config;
    run.log = options->log;
    run.device = options->device.name;
    run.device_options.index = options->device.index;
    run.device_options.n_threads = config.host_threads = options->n_threads;
    run.comm = "threads";
    ZR_TRY(zr_run_ranks(&config, options->n_ranks, run_rank, ranks, &run));
    *result = (step_result_t){.attention = ranks[0].attention,
                              .first_loss = ranks[0].first_loss,
                              .last_loss = ranks[0].last_loss,
                              .moved = ranks[0].moved};
    memcpy(result->device, ranks[0].device_text, sizeof(result->device));
    for (int i = 0; i < options->n_ranks; i++)
        if (ranks[i].peak_device_bytes > result->peak_device_bytes)
            result->peak_device_bytes = ranks[i].peak_device_bytes;
    return take_medians(options, ranks, &result->times);
}

zr_status_t step_run(const step_options_t *options, step_result_t *result_p) {
    size_t n_ranks = (size_t)options->n_ranks;
    rank_t *ranks = calloc(n_ranks, sizeof(*ranks));
    step_times_t *times = calloc(n_ranks * options->n_steps, sizeof(*times));
    zr_status_t status = ZR_OK;
    if (ranks == NULL || times == NULL)
        status = zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %s of %s",
                         zr_count_text(n_ranks, "rank").text,
                         zr_count_text(options->n_steps, "step").text);
    for (size_t i = 0; i < n_ranks && status == ZR_OK; i++) {
        ranks[i].options = options;
        ranks[i].times = times + i * options->n_steps;
    }
    ZR_THEN(status, run_ranks(options, ranks, result_p));
    free(times);
    free(ranks);
    return status;
}
