#include "examples/bench/step_run.h"

#include <stdlib.h>
#include <string.h>

#include "examples/bench/ranks.h"

/* Products that are timed before each step, and after the last. */
#define RATE_TURNS 3

/* Where the time of a step went, on one rank. */
typedef struct parts {
    double step, comm, stall, optimizer, io;
} parts_t;

typedef struct rank {
    bench_rank_t base;
    const step_options_t *options;
    zr_device_t *device;
    zr_runtime_t *runtime;
    zr_model_t *gpt;
    int32_t *tokens; /* [micro_batch, seq], then the targets */
    parts_t *parts;  /* [n_steps] */
    double first_loss, last_loss;
    size_t peak_device_bytes;
    char device_text[128];
} rank_t;

/* ---- a rank ------------------------------------------------------------------------------ */

static zr_status_t create_rank(rank_t *rank) {
    const step_options_t *o = rank->options;
    zr_log_t log = zr_log_with_rank(&o->log, zr_comm_rank(rank->base.comm));
    zr_device_options_t device_options = zr_device_options_default();
    device_options.log = log;
    device_options.n_threads = o->n_threads;
    device_options.index = o->device.index;
    ZR_TRY(zr_device_open(o->device.name, &device_options, &rank->device));
    snprintf(rank->device_text, sizeof(rank->device_text), "%s",
             zr_device_info(rank->device)->description);

    zr_config_t config = o->config;
    config.host_threads = o->n_threads;
    ZR_TRY(zr_runtime_create(&config, rank->base.comm, rank->device, &log, &rank->runtime));
    gpt_options_t gpt_options = {.seed = 1, .weight_decay = 0.1};
    zr_activation_options_t activations = {.recompute = o->recompute};
    ZR_TRY(gpt_create(rank->runtime, &o->shape, &gpt_options, &activations, &rank->gpt));
    ZR_TRY(zr_model_commit(rank->gpt));

    size_t n = o->config.micro_batch * o->seq;
    rank->tokens = malloc(2 * n * sizeof(int32_t));
    if (rank->tokens == NULL)
        return zr_fail(&log, ZR_ERR_MEMORY, "no memory for %s", zr_count_text(n, "token").text);
    return ZR_OK;
}

static void destroy_rank(void *argument) {
    rank_t *rank = argument;
    free(rank->tokens);
    zr_model_destroy(&rank->gpt);
    zr_runtime_destroy(&rank->runtime);
    zr_comm_destroy(&rank->base.comm); /* it has events of the device */
    zr_device_close(&rank->device);
}

static void draw_tokens(rank_t *rank, size_t step) {
    const step_options_t *o = rank->options;
    size_t n = o->config.micro_batch * o->seq;
    uint64_t state = 1000003u * step + (uint64_t)zr_comm_rank(rank->base.comm);
    for (size_t i = 0; i < 2 * n; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        rank->tokens[i] = (int32_t)((state >> 33) % o->shape.vocab);
    }
}

static zr_status_t take_step(rank_t *rank, size_t step) {
    const step_options_t *o = rank->options;
    const int32_t *targets = rank->tokens + o->config.micro_batch * o->seq;
    double loss = 0.0;
    for (size_t i = 0; i < o->config.grad_accum; i++) {
        draw_tokens(rank, step * o->config.grad_accum + i);
        ZR_TRY(
            gpt_train_micro_batch(rank->gpt, rank->tokens, targets, o->config.micro_batch, o->seq));
    }
    ZR_TRY(zr_model_take_loss(rank->gpt, &loss));
    ZR_TRY(zr_runtime_average(rank->runtime, loss, &rank->last_loss));
    return zr_runtime_step(rank->runtime, NULL);
}

/* Between steps, while all ranks stand still: whatever else the machine does meets both. */
static zr_status_t time_rate(rank_t *rank) {
    if (rank->options->rate == NULL)
        return zr_comm_barrier(rank->base.comm, "between steps");
    ZR_TRY(zr_comm_barrier(rank->base.comm, "before the machine's product"));
    for (int i = 0; i < RATE_TURNS && zr_comm_rank(rank->base.comm) == 0; i++)
        ZR_TRY(matrix_rate_run(rank->options->rate));
    return zr_comm_barrier(rank->base.comm, "after the machine's product");
}

static zr_status_t time_steps(rank_t *rank) {
    zr_runtime_time_t before, after;
    size_t n_first = rank->options->n_first_steps;
    for (size_t i = 0; i < n_first; i++) {
        ZR_TRY(take_step(rank, i));
        ZR_TRY(zr_stream_synchronize(zr_runtime_stream(rank->runtime)));
        rank->first_loss = i == 0 ? rank->last_loss : rank->first_loss;
    }
    for (size_t i = 0; i < rank->options->n_steps; i++) {
        ZR_TRY(time_rate(rank));
        zr_runtime_time(rank->runtime, &before);
        double begin = bench_seconds();
        ZR_TRY(take_step(rank, n_first + i));
        ZR_TRY(zr_stream_synchronize(zr_runtime_stream(rank->runtime))); /* the update */
        double end = bench_seconds();
        zr_runtime_time(rank->runtime, &after);
        rank->parts[i] = (parts_t){.step = end - begin,
                                   .comm = after.comm_seconds - before.comm_seconds,
                                   .stall = after.stall_seconds - before.stall_seconds,
                                   .optimizer = after.optimizer_seconds - before.optimizer_seconds,
                                   .io = after.io_seconds - before.io_seconds};
    }
    ZR_TRY(time_rate(rank));
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(zr_runtime_allocator(rank->runtime), ZR_TIER_DEVICE, &statistics);
    rank->peak_device_bytes = statistics.reserved.peak;
    return ZR_OK;
}

static zr_status_t run_rank(void *argument) {
    rank_t *rank = argument;
    ZR_TRY(create_rank(rank));
    return time_steps(rank);
}

/* ---- all ranks ----------------------------------------------------------------------------- */

/* The median over the steps of a part's mean over the ranks. */
static bool median_part(const step_options_t *options, const rank_t *ranks, size_t part_offset,
                        double *median_p) {
    bench_times_t times = {0};
    bool added = true;
    for (size_t step = 0; step < options->n_steps && added; step++) {
        double sum = 0.0;
        for (int i = 0; i < options->n_ranks; i++)
            sum += *(const double *)((const char *)&ranks[i].parts[step] + part_offset);
        added = bench_times_add(&times, sum / options->n_ranks);
    }
    *median_p = bench_times_median(&times);
    bench_times_free(&times);
    return added;
}

static zr_status_t add_up(const step_options_t *options, const rank_t *ranks,
                          step_result_t *result) {
    if (!median_part(options, ranks, offsetof(parts_t, step), &result->step_seconds) ||
        !median_part(options, ranks, offsetof(parts_t, comm), &result->comm_seconds) ||
        !median_part(options, ranks, offsetof(parts_t, stall), &result->stall_seconds) ||
        !median_part(options, ranks, offsetof(parts_t, optimizer), &result->optimizer_seconds) ||
        !median_part(options, ranks, offsetof(parts_t, io), &result->io_seconds))
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(options->n_steps, "time").text);
    double rest = result->step_seconds - result->comm_seconds - result->stall_seconds -
                  result->optimizer_seconds - result->io_seconds;
    result->compute_seconds = rest > 0.0 ? rest : 0.0;
    result->first_loss = ranks[0].first_loss;
    result->last_loss = ranks[0].last_loss;
    memcpy(result->device, ranks[0].device_text, sizeof(result->device));
    for (int i = 0; i < options->n_ranks; i++) {
        if (ranks[i].peak_device_bytes > result->peak_device_bytes)
            result->peak_device_bytes = ranks[i].peak_device_bytes;
    }
    return ZR_OK;
}

zr_status_t step_run(const step_options_t *options, step_result_t *result_p) {
    size_t n_ranks = (size_t)options->n_ranks;
    rank_t *ranks = calloc(n_ranks, sizeof(*ranks));
    parts_t *parts = calloc(n_ranks * options->n_steps, sizeof(*parts));
    zr_status_t status;
    if (ranks == NULL || parts == NULL) {
        status = zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %s of %s",
                         zr_count_text(n_ranks, "rank").text,
                         zr_count_text(options->n_steps, "step").text);
    } else {
        for (size_t i = 0; i < n_ranks; i++) {
            ranks[i].options = options;
            ranks[i].parts = parts + i * options->n_steps;
        }
        const bench_ranks_t all = {.n_ranks = options->n_ranks,
                                   .all = ranks,
                                   .rank_bytes = sizeof(*ranks),
                                   .work = run_rank,
                                   .end = destroy_rank,
                                   .log = options->log};
        status = bench_ranks_run(&all);
        step_result_t result = {0};
        if (status == ZR_OK)
            status = add_up(options, ranks, &result);
        if (status == ZR_OK)
            *result_p = result;
    }
    free(parts);
    free(ranks);
    return status;
}
