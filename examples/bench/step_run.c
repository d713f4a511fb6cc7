#include "examples/bench/step_run.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Products that are timed before each step, and after the last. */
#define RATE_TURNS 3

/* Where the time of a step went, on one rank. */
typedef struct parts {
    double step, comm, stall, optimizer;
} parts_t;

typedef struct rank {
    const step_options_t *options;
    pthread_t thread;
    zr_status_t status;
    zr_comm_t *comm;
    zr_device_t *device;
    zr_runtime_t *runtime;
    gpt_t *gpt;
    int32_t *tokens; /* [micro_batch, seq], then the targets */
    parts_t *parts;  /* [n_steps] */
    double first_loss, last_loss;
    size_t peak_device_bytes;
    char device_text[128];
} rank_t;

/* ---- a rank ------------------------------------------------------------------------------ */

static zr_status_t create_rank(rank_t *rank) {
    const step_options_t *o = rank->options;
    zr_log_t log = zr_log_with_rank(&o->log, zr_comm_rank(rank->comm));
    zr_device_options_t device_options = zr_device_options_default();
    device_options.log = log;
    device_options.n_threads = o->n_threads;
    device_options.index = o->device.index;
    ZR_TRY(zr_device_open(o->device.name, &device_options, &rank->device));
    snprintf(rank->device_text, sizeof(rank->device_text), "%s",
             zr_device_info(rank->device)->description);

    zr_config_t config = zr_config_default();
    config.stage = o->stage;
    config.dtype = o->dtype;
    config.micro_batch = o->micro_batch;
    config.grad_accum = o->grad_accum;
    ZR_TRY(zr_config_resolve(&config, o->n_ranks, &log));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &log, &rank->runtime));
    gpt_options_t gpt_options = {.recompute = o->recompute, .seed = 1, .weight_decay = 0.1};
    ZR_TRY(gpt_create(rank->runtime, &o->shape, &gpt_options, &rank->gpt));
    ZR_TRY(zr_runtime_commit(rank->runtime));

    size_t n = o->micro_batch * o->seq;
    rank->tokens = malloc(2 * n * sizeof(int32_t));
    if (rank->tokens == NULL)
        return zr_fail(&log, ZR_ERR_MEMORY, "no memory for %zu tokens", n);
    return ZR_OK;
}

static void destroy_rank(rank_t *rank) {
    free(rank->tokens);
    gpt_destroy(&rank->gpt);
    zr_runtime_destroy(&rank->runtime);
    zr_comm_destroy(&rank->comm); /* it has events of the device */
    zr_device_close(&rank->device);
}

static void draw_tokens(rank_t *rank, size_t step) {
    const step_options_t *o = rank->options;
    size_t n = o->micro_batch * o->seq;
    uint64_t state = 1000003u * step + (uint64_t)zr_comm_rank(rank->comm);
    for (size_t i = 0; i < 2 * n; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        rank->tokens[i] = (int32_t)((state >> 33) % o->shape.vocab);
    }
}

static zr_status_t take_step(rank_t *rank, size_t step) {
    const step_options_t *o = rank->options;
    const int32_t *targets = rank->tokens + o->micro_batch * o->seq;
    double loss = 0.0;
    for (size_t i = 0; i < o->grad_accum; i++) {
        draw_tokens(rank, step * o->grad_accum + i);
        ZR_TRY(gpt_train_micro_batch(rank->gpt, rank->tokens, targets, o->micro_batch, o->seq));
    }
    ZR_TRY(gpt_take_loss(rank->gpt, &loss));
    ZR_TRY(zr_runtime_average(rank->runtime, loss, &rank->last_loss));
    return zr_runtime_step(rank->runtime, NULL);
}

/* Between steps, while all ranks stand still: whatever else the machine does meets both. */
static zr_status_t time_rate(rank_t *rank) {
    ZR_TRY(zr_comm_barrier(rank->comm, "before the machine's product"));
    for (int i = 0; i < RATE_TURNS && zr_comm_rank(rank->comm) == 0; i++)
        ZR_TRY(matrix_rate_run(rank->options->rate));
    return zr_comm_barrier(rank->comm, "after the machine's product");
}

static zr_status_t time_steps(rank_t *rank) {
    zr_runtime_time_t before, after;
    ZR_TRY(take_step(rank, 0)); /* maps memory and records the order */
    ZR_TRY(zr_stream_synchronize(zr_runtime_stream(rank->runtime)));
    rank->first_loss = rank->last_loss;
    for (size_t i = 0; i < rank->options->n_steps; i++) {
        ZR_TRY(time_rate(rank));
        zr_runtime_time(rank->runtime, &before);
        double begin = bench_seconds();
        ZR_TRY(take_step(rank, i + 1));
        ZR_TRY(zr_stream_synchronize(zr_runtime_stream(rank->runtime))); /* the update */
        double end = bench_seconds();
        zr_runtime_time(rank->runtime, &after);
        rank->parts[i] = (parts_t){.step = end - begin,
                                   .comm = after.comm_seconds - before.comm_seconds,
                                   .stall = after.stall_seconds - before.stall_seconds,
                                   .optimizer = after.optimizer_seconds - before.optimizer_seconds};
    }
    ZR_TRY(time_rate(rank));
    zr_tier_statistics_t statistics;
    zr_allocator_statistics(zr_runtime_allocator(rank->runtime), ZR_TIER_DEVICE, &statistics);
    rank->peak_device_bytes = statistics.reserved.peak;
    return ZR_OK;
}

static void *run_rank(void *argument) {
    rank_t *rank = argument;
    rank->status = create_rank(rank);
    if (rank->status == ZR_OK)
        rank->status = time_steps(rank);
    if (rank->status != ZR_OK)
        zr_comm_abort(rank->comm, zr_status_name(rank->status));
    destroy_rank(rank);
    return NULL;
}

/* ---- all ranks ----------------------------------------------------------------------------- */

static zr_status_t start_ranks(const step_options_t *options, rank_t *ranks, int *n_started_p) {
    zr_comm_options_t comm_options = zr_comm_options_default();
    comm_options.log = options->log;
    int n_ranks = options->n_ranks;
    zr_comm_t **comms = calloc((size_t)n_ranks, sizeof(*comms));
    if (comms == NULL)
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %d ranks", n_ranks);
    zr_status_t status = zr_comm_create_threads(n_ranks, &comm_options, comms);
    for (int i = 0; i < n_ranks && status == ZR_OK; i++) {
        ranks[i].comm = comms[i];
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) == 0) {
            *n_started_p = i + 1;
            continue;
        }
        status = zr_fail(&options->log, ZR_ERR_MEMORY, "cannot start a thread for rank %d", i);
        zr_comm_abort(comms[i], "its thread could not be started");
        for (int rest = i; rest < n_ranks; rest++)
            zr_comm_destroy(&comms[rest]);
    }
    free(comms);
    return status;
}

static zr_status_t run_ranks(const step_options_t *options, rank_t *ranks) {
    int n_started = 0;
    zr_status_t status = start_ranks(options, ranks, &n_started);
    for (int i = 0; i < n_started; i++)
        pthread_join(ranks[i].thread, NULL);
    /* That of the cause, if one is not about the communicator: the others were stopped by it. */
    for (int i = 0; i < n_started; i++) {
        if (ranks[i].status != ZR_OK && (status == ZR_OK || status == ZR_ERR_COMM))
            status = ranks[i].status;
    }
    return status;
}

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
        !median_part(options, ranks, offsetof(parts_t, optimizer), &result->optimizer_seconds))
        return zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %zu times", options->n_steps);
    double rest = result->step_seconds - result->comm_seconds - result->stall_seconds -
                  result->optimizer_seconds;
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
        status = zr_fail(&options->log, ZR_ERR_MEMORY, "no memory for %zu ranks of %zu steps",
                         n_ranks, options->n_steps);
    } else {
        for (size_t i = 0; i < n_ranks; i++) {
            ranks[i].options = options;
            ranks[i].parts = parts + i * options->n_steps;
        }
        status = run_ranks(options, ranks);
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
