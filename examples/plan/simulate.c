/* Planning a run by making it, on simulated hardware: see gpt_plan.h. */
#include "examples/plan/simulate.h"

#include <stdlib.h>
#include <string.h>

#include "examples/plan/steps.h"

/* The simulated rank. */
typedef struct planned_rank {
    const gpt_plan_request_t *request;
    zr_device_t *device;
    zr_comm_t *comm;
    zr_runtime_t *runtime;
    zr_model_t *gpt;
    gpt_plan_watch_t *watch;
    int32_t *tokens; /* [micro_batch][seq] zeros, for inputs and targets */
    gpt_plan_steps_t steps;
} planned_rank_t;

static zr_status_t fail_memory(const gpt_plan_request_t *request) {
    return zr_fail(&request->log, ZR_ERR_MEMORY, "the system has no memory for a plan");
}

static zr_status_t open_rank(planned_rank_t *rank) {
    const gpt_plan_request_t *request = rank->request;
    zr_device_options_t device_options = zr_device_options_default();
    zr_comm_options_t comm_options = zr_comm_options_default();
    zr_config_t config = request->config;
    device_options.log = comm_options.log = request->log;
    comm_options.sums = request->sums;
    device_options.hardware = &request->hardware;
    device_options.beside = request->beside;
    device_options.trace = request->trace;
    config.nvme.store = "sim";
    rank->tokens = calloc(config.micro_batch * request->seq, sizeof(*rank->tokens));
    if (rank->tokens == NULL)
        return fail_memory(request);
    ZR_TRY(zr_device_open("sim", &device_options, &rank->device));
    rank->watch = gpt_plan_watch_create(zr_sim_clock_of(rank->device), request->spans);
    if (rank->watch == NULL)
        return fail_memory(request);
    ZR_TRY(zr_comm_create_sim(0, request->n_ranks, &comm_options, &rank->comm));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &request->log, &rank->runtime));
    zr_allocator_use_plans(zr_runtime_allocator(rank->runtime), request->plans);
    return ZR_OK;
}

static zr_status_t build(planned_rank_t *rank) {
    const gpt_plan_request_t *request = rank->request;
    gpt_options_t options = request->options;
    options.most_tokens = request->config.micro_batch * request->seq;
    options.least_tokens = request->config.micro_batch * request->seq_min;
    options.activations = request->activations;
    ZR_TRY(gpt_create(rank->runtime, &request->shape, &options, &rank->gpt));
    if (request->saves)
        ZR_TRY(zr_runtime_expect_saves(rank->runtime, request->save_goes_on));
    return zr_model_commit(rank->gpt);
}

/* As many as a trainer does in a step: its loss and its time. */
static zr_status_t share_values(planned_rank_t *rank, double loss) {
    const double own[2] = {loss, 0};
    double all[2 * ZR_MAX_SUM_SOURCES];
    return zr_runtime_share(rank->runtime, own, 2, all);
}

static zr_status_t train_step(planned_rank_t *rank) {
    const gpt_plan_request_t *request = rank->request;
    double loss = 0;
    for (size_t i = 0; i < request->config.grad_accum; i++) {
        size_t length = gpt_plan_steps_length(&rank->steps, i);
        zr_allocator_replay_scale(zr_runtime_allocator(rank->runtime), (uint32_t)length);
        ZR_TRY(gpt_train_micro_batch(rank->gpt, rank->tokens, rank->tokens,
                                     request->config.micro_batch, length));
    }
    zr_allocator_replay_scale(zr_runtime_allocator(rank->runtime), 0);
    ZR_TRY(zr_model_take_loss(rank->gpt, &loss));
    ZR_TRY(share_values(rank, loss));
    return zr_runtime_step(rank->runtime, NULL);
}

static zr_runtime_time_t between(const zr_runtime_time_t *before, const zr_runtime_time_t *after) {
    return (zr_runtime_time_t){.comm_seconds = after->comm_seconds - before->comm_seconds,
                               .stall_seconds = after->stall_seconds - before->stall_seconds,
                               .optimizer_seconds =
                                   after->optimizer_seconds - before->optimizer_seconds,
                               .io_seconds = after->io_seconds - before->io_seconds};
}

/* A copy that is written while the run goes on is there until it has to be gone. */
static zr_status_t save(planned_rank_t *rank, size_t n_done, bool is_last) {
    const gpt_plan_request_t *request = rank->request;
    zr_save_options_t options = {.folder = "checkpoints", .goes_on = request->save_goes_on};
    bool ended = false;
    bool is_due = is_last || (request->save_every != 0 && n_done % request->save_every == 0);
    if (!request->saves || !is_due)
        return ZR_OK;
    ZR_TRY(zr_runtime_save_end(rank->runtime, true, &ended, NULL));
    ZR_TRY(zr_runtime_save_begin(rank->runtime, &options));
    if (!is_last && request->save_goes_on)
        return ZR_OK;
    return zr_runtime_save_end(rank->runtime, true, &ended, NULL);
}

/* One more step, and what is saved after it. */
static zr_status_t go_on(planned_rank_t *rank, gpt_plan_t *plan, bool *is_last_p) {
    zr_runtime_time_t before, after;
    size_t n_done = rank->steps.n_done;
    zr_runtime_time(rank->runtime, &before);
    double start = zr_device_now(rank->device);
    gpt_plan_watch_begin(rank->watch);
    ZR_TRY(train_step(rank));
    plan->step_seconds = zr_device_now(rank->device) - start;
    zr_runtime_time(rank->runtime, &after);
    plan->runtime = between(&before, &after);
    *is_last_p = !gpt_plan_steps_next(&rank->steps, zr_runtime_allocator(rank->runtime));
    if (*is_last_p && !gpt_plan_watch_end(rank->watch, &plan->times))
        return fail_memory(rank->request);
    return save(rank, n_done, *is_last_p);
}

static zr_status_t run(planned_rank_t *rank, gpt_plan_t *plan) {
    ZR_TRY(open_rank(rank));
    ZR_TRY(build(rank));
    if (!gpt_plan_steps_create(rank->request, &rank->steps))
        return fail_memory(rank->request);
    bool is_last = !gpt_plan_steps_next(&rank->steps, zr_runtime_allocator(rank->runtime));
    while (!is_last)
        ZR_TRY(go_on(rank, plan, &is_last));
    return ZR_OK;
}

static void note_drives(const planned_rank_t *rank, gpt_plan_t *plan) {
    zr_stash_statistics_t stash;
    if (zr_runtime_store(rank->runtime) == NULL)
        return;
    plan->nvme_bytes = zr_store_info(zr_runtime_store(rank->runtime))->reserved_bytes;
    plan->nvme_by_tag[ZR_TAG_PARAMETERS] = plan->offload.params.bytes[ZR_TIER_NVME];
    plan->nvme_by_tag[ZR_TAG_OPTIMIZER_STATE] = plan->offload.state_bytes[ZR_TIER_NVME];
    if (rank->gpt != NULL && zr_model_activations_statistics(rank->gpt, &stash) && stash.has_store)
        plan->nvme_by_tag[ZR_TAG_ACTIVATIONS] = stash.peak_bytes;
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        plan->nvme_live_bytes += plan->nvme_by_tag[tag];
}

static void note(const planned_rank_t *rank, gpt_plan_t *plan) {
    if (rank->runtime == NULL)
        return;
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++)
        zr_allocator_statistics(zr_runtime_allocator(rank->runtime), (zr_tier_t)tier,
                                &plan->tiers[tier]);
    zr_runtime_model_size(rank->runtime, &plan->size);
    zr_runtime_offload(rank->runtime, &plan->offload);
    note_drives(rank, plan);
}

zr_status_t gpt_plan(const gpt_plan_request_t *request, gpt_plan_t *plan_p) {
    planned_rank_t rank = {.request = request};
    *plan_p = (gpt_plan_t){0};
    zr_status_t status = run(&rank, plan_p);
    note(&rank, plan_p);
    zr_model_destroy(&rank.gpt);
    zr_runtime_destroy(&rank.runtime);
    zr_comm_destroy(&rank.comm);
    gpt_plan_watch_destroy(&rank.watch);
    zr_device_close(&rank.device);
    gpt_plan_steps_clear(&rank.steps);
    free(rank.tokens);
    return status;
}
