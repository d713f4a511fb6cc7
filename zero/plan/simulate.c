/* Planning a run by making it, on simulated hardware. */
#include "zero/plan/run_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "zero/plan/fit_internal.h"
#include "zero/plan/steps_internal.h"
#include "zero/plan/watch_internal.h"
#include "zero/runtime_internal.h"
#include "zero/schedule/schedule_internal.h"

/* The simulated rank. */
typedef struct planned_rank {
    const zr_run_request_t *request;
    zr_device_t *device;
    zr_comm_t *comm;
    zr_runtime_t *runtime;
    zr_model_t *model;
    zr_run_watch_t *watch;
    bool has_times;
    bool has_evaluated;
    void *zeros;              /* as many bytes as a micro-batch has, for each of its inputs */
    zr_host_batch_t *batches; /* [those that are trained together] */
    zr_run_steps_t steps;
} planned_rank_t;

static zr_status_t fail_memory(const zr_run_request_t *request) {
    return zr_fail(&request->log, ZR_ERR_MEMORY, "the system has no memory for a plan");
}

static zr_status_t open_rank(planned_rank_t *rank) {
    const zr_run_request_t *request = rank->request;
    zr_device_options_t device_options = zr_device_options_default();
    zr_comm_options_t comm_options = zr_comm_options_default();
    zr_config_t config = request->config;
    device_options.log = comm_options.log = request->log;
    comm_options.sums = request->sums;
    comm_options.takes_workspace = request->uses_nccl;
    device_options.hardware = &request->hardware;
    device_options.concurrent = request->concurrent;
    device_options.trace = request->trace;
    zr_config_simulate(&config);
    ZR_TRY(zr_device_open("sim", &device_options, &rank->device));
    rank->watch = zr_run_watch_create(zr_sim_clock_of(rank->device), request->spans);
    if (rank->watch == NULL)
        return fail_memory(request);
    ZR_TRY(zr_comm_create_sim(0, request->n_ranks, &comm_options, &rank->comm));
    ZR_TRY(zr_runtime_create(&config, rank->comm, rank->device, &request->log, &rank->runtime));
    zr_runtime_leave_out_values(rank->runtime);
    if (request->tape != NULL)
        zr_runtime_stand_for_longer(rank->runtime);
    zr_allocator_use_plans(zr_runtime_allocator(rank->runtime), request->plans);
    zr_allocator_share_tables(zr_runtime_allocator(rank->runtime), NULL,
                              (size_t)config.process_ranks);
    return ZR_OK;
}

static zr_status_t build(planned_rank_t *rank) {
    const zr_run_request_t *request = rank->request;
    size_t micro_batch = request->config.micro_batch, rows = micro_batch * request->seq;
    zr_activation_options_t activations = {.recompute = request->recompute,
                                           .device = request->activations,
                                           .n_on_device = request->activations_on_device,
                                           .n_in_host = request->activations_in_host,
                                           .most_rows = rows,
                                           .least_rows = micro_batch * request->seq_min};
    ZR_TRY(request->model.make(request->model.context, rank->runtime, &activations, &rank->model));
    rank->zeros = calloc(1, zr_model_input_bytes(rank->model, rows) + 1);
    rank->batches = calloc(zr_config_n_together(&request->config), sizeof(*rank->batches));
    if (rank->zeros == NULL || rank->batches == NULL)
        return fail_memory(request);
    if (request->saves)
        ZR_TRY(zr_runtime_expect_saves(rank->runtime, request->save_goes_on));
    if (request->save_links)
        ZR_TRY(zr_runtime_link_frozen(rank->runtime));
    return zr_model_commit(rank->model);
}

/* As many as a trainer does in a step: its loss and its time. */
static zr_status_t share_values(planned_rank_t *rank, double loss) {
    const double own[2] = {loss, 0};
    double all[2 * ZR_MAX_SUM_SOURCES];
    return zr_runtime_share(rank->runtime, own, 2, all);
}

static zr_status_t train_step(planned_rank_t *rank) {
    const zr_run_request_t *request = rank->request;
    const size_t n_together = zr_config_n_together(&request->config);
    double loss = 0;
    for (size_t i = 0; i < request->config.grad_accum; i++) {
        zr_host_batch_t *batch = &rank->batches[i % n_together];
        *batch = (zr_host_batch_t){.n_sequences = request->config.micro_batch,
                                   .seq = zr_run_steps_length(&rank->steps, i)};
        for (size_t k = 0; k < ZR_MAX_INPUTS; k++)
            batch->inputs[k] = rank->zeros;
        if ((i + 1) % n_together == 0)
            ZR_TRY(zr_model_train(rank->model, rank->batches, n_together));
    }
    ZR_TRY(zr_model_take_loss(rank->model, &loss));
    ZR_TRY(share_values(rank, loss));
    return zr_runtime_step(rank->runtime, NULL);
}

/* The first batch is not gathered ahead, the second is. What is free then is where the batch before
 * has left it: batches need the same from one on that has the places of the one before. */
#define LEAST_EVALUATED 3
#define MOST_EVALUATED 16
/* Values that ranks tell each other of each: as many as a trainer does. */
#define N_SHARED 3

static zr_status_t evaluate_batch(planned_rank_t *rank, size_t n_sequences) {
    zr_host_batch_t batch = {.n_sequences = n_sequences, .seq = rank->request->seq};
    const double own[N_SHARED] = {0};
    double all[N_SHARED * ZR_MAX_SUM_SOURCES], loss = 0;
    for (size_t k = 0; k < ZR_MAX_INPUTS; k++)
        batch.inputs[k] = rank->zeros;
    ZR_TRY(zr_model_evaluate(rank->model, &batch, &loss));
    return zr_runtime_share(rank->runtime, own, N_SHARED, all);
}

static zr_status_t evaluate(planned_rank_t *rank) {
    const zr_run_evaluations_t *evaluations = &rank->request->evaluations;
    zr_allocator_t *allocator = zr_runtime_allocator(rank->runtime);
    uint64_t places = 0, before = 1;
    rank->has_evaluated = true;
    (void)zr_allocator_take_places(allocator);
    for (size_t i = 0; i < evaluations->n_batches && i < MOST_EVALUATED; i++) {
        if (i >= LEAST_EVALUATED && places == before)
            break;
        ZR_TRY(evaluate_batch(rank, rank->request->config.micro_batch));
        before = places;
        places = zr_allocator_take_places(allocator);
    }
    return evaluations->n_rest > 0 ? evaluate_batch(rank, evaluations->n_rest) : ZR_OK;
}

static zr_runtime_time_t between(const zr_runtime_time_t *before, const zr_runtime_time_t *after) {
    return (zr_runtime_time_t){.comm_seconds = after->comm_seconds - before->comm_seconds,
                               .stall_seconds = after->stall_seconds - before->stall_seconds,
                               .optimizer_seconds =
                                   after->optimizer_seconds - before->optimizer_seconds,
                               .io_seconds = after->io_seconds - before->io_seconds};
}

/* Step: from 1, of this run. */
static bool is_save_due(const zr_run_request_t *request, size_t step) {
    return request->save_every != 0 && (request->n_before + step) % request->save_every == 0;
}

/* Whether the run has a save without an evaluation before it, after a step behind those of the
 * plan: what an evaluation gives back is still there then. */
static bool saves_apart(const zr_run_request_t *request) {
    const zr_run_evaluations_t *evaluations = &request->evaluations;
    if (!request->saves || evaluations->n_batches + evaluations->n_rest == 0)
        return false;
    for (size_t step = request->n_steps; step < request->n_run_steps; step++)
        if (is_save_due(request, step) && !zr_run_steps_evaluate_after(request, step))
            return true;
    return false;
}

/* Before an evaluation: whether a checkpoint follows it. */
static bool saves_best(const planned_rank_t *rank) {
    return rank->request->evaluations.saves_first && !rank->has_evaluated;
}

/* A copy that is written while the run goes on is there until it has to be gone. */
static zr_status_t save(planned_rank_t *rank, bool is_last) {
    const zr_run_request_t *request = rank->request;
    zr_save_options_t options = {.folder = "checkpoints", .goes_on = request->save_goes_on};
    bool ended = false;
    ZR_TRY(zr_runtime_save_end(rank->runtime, true, &ended, NULL));
    ZR_TRY(zr_runtime_save_begin(rank->runtime, &options));
    if (!is_last && request->save_goes_on)
        return ZR_OK;
    return zr_runtime_save_end(rank->runtime, true, &ended, NULL);
}

/* Before the last two. */
static bool is_early(const planned_rank_t *rank) {
    const zr_run_request_t *request = rank->request;
    return request->lengths == NULL && request->trace == NULL &&
           rank->steps.n_done + 2 <= request->n_steps;
}

/* Whether nobody asks how long this step is. */
static bool leaves_times(const planned_rank_t *rank) {
    return rank->request->memory_only ||
           (is_early(rank) && rank->request->config.update_at != ZR_UPDATE_AT_BACKWARD);
}

/* State that is updated in backward may be written until the next step, and longer than that. */
static bool writes_behind(const zr_config_t *config) {
    return config->update_at == ZR_UPDATE_AT_BACKWARD &&
           config->offload_optimizer.device == ZR_OFFLOAD_NVME;
}

/* Before the first step that is looked at the machine rests: what others left there is not what the
 * run would have. Early steps have no part in the last, unless writes of one step end in the next.
 */
static void begin_times(planned_rank_t *rank) {
    if (rank->has_times || leaves_times(rank) ||
        (is_early(rank) && !writes_behind(&rank->request->config)))
        return;
    rank->has_times = true;
    zr_sim_clock_rest(zr_sim_clock_of(rank->device));
    if (zr_runtime_store(rank->runtime) != NULL)
        zr_store_progress(zr_runtime_store(rank->runtime));
    zr_sim_clock_keep(zr_sim_clock_of(rank->device), rank->request->tape);
}

static zr_status_t go_on(planned_rank_t *rank, zr_run_plan_t *plan, bool *is_last_p) {
    zr_runtime_time_t before, after;
    size_t n_done = rank->steps.n_done;
    ZR_TRY(zr_runtime_do_alike_once(rank->runtime, leaves_times(rank)));
    begin_times(rank);
    bool may_end = zr_run_steps_may_end(&rank->steps);
    zr_runtime_time(rank->runtime, &before);
    double start = zr_device_now(rank->device);
    zr_sim_mark(zr_sim_clock_of(rank->device), may_end ? ZR_RUN_MARK_LAST_STEP : ZR_RUN_MARK_STEP);
    zr_run_watch_begin(rank->watch, may_end);
    ZR_TRY(train_step(rank));
    zr_sim_mark(zr_sim_clock_of(rank->device), ZR_RUN_MARK_END);
    plan->step_seconds = zr_device_now(rank->device) - start;
    zr_runtime_time(rank->runtime, &after);
    plan->runtime = between(&before, &after);
    *is_last_p = !zr_run_steps_next(&rank->steps, zr_runtime_allocator(rank->runtime));
    if (*is_last_p && !zr_run_watch_end(rank->watch, &plan->times))
        return fail_memory(rank->request);
    size_t first = rank->request->lengths != NULL ? rank->request->lengths->first_step : 0;
    bool is_due = *is_last_p || is_save_due(rank->request, n_done - first);
    if (*is_last_p && saves_apart(rank->request))
        ZR_TRY(save(rank, false));
    if (*is_last_p || zr_run_steps_evaluate_after(rank->request, n_done - first)) {
        is_due = is_due || saves_best(rank);
        ZR_TRY(evaluate(rank));
    }
    return is_due && rank->request->saves ? save(rank, *is_last_p) : ZR_OK;
}

static zr_status_t run(planned_rank_t *rank, zr_run_plan_t *plan) {
    ZR_TRY(open_rank(rank));
    ZR_TRY(build(rank));
    if (!zr_run_steps_create(rank->request, zr_model_n_blocks(rank->model), &rank->steps))
        return fail_memory(rank->request);
    bool is_last = !zr_run_steps_next(&rank->steps, zr_runtime_allocator(rank->runtime));
    if (rank->request->evaluations.at_start) {
        bool is_due = saves_best(rank);
        ZR_TRY(evaluate(rank));
        if (is_due)
            ZR_TRY(save(rank, false));
    }
    while (!is_last)
        ZR_TRY(go_on(rank, plan, &is_last));
    return zr_runtime_join_groups(rank->runtime);
}

static void note_drives(const planned_rank_t *rank, zr_run_plan_t *plan) {
    zr_stash_statistics_t stash;
    if (zr_runtime_store(rank->runtime) == NULL)
        return;
    plan->nvme_bytes = zr_store_info(zr_runtime_store(rank->runtime))->reserved_bytes;
    plan->nvme_by_tag[ZR_TAG_PARAMETERS] = plan->offload.params.bytes[ZR_TIER_NVME];
    plan->nvme_by_tag[ZR_TAG_OPTIMIZER_STATE] = plan->offload.state_bytes[ZR_TIER_NVME];
    plan->nvme_by_tag[ZR_TAG_GRADIENTS] = plan->offload.grads.bytes[ZR_TIER_NVME];
    if (rank->model != NULL && zr_model_activations_statistics(rank->model, &stash) &&
        stash.has_store)
        plan->nvme_by_tag[ZR_TAG_ACTIVATIONS] = stash.store_peak_bytes;
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        plan->nvme_live_bytes += plan->nvme_by_tag[tag];
}

static void note(const planned_rank_t *rank, zr_run_plan_t *plan) {
    if (rank->runtime == NULL)
        return;
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++)
        zr_allocator_statistics(zr_runtime_allocator(rank->runtime), (zr_tier_t)tier,
                                &plan->tiers[tier]);
    zr_runtime_metadata(rank->runtime, &plan->metadata);
    zr_runtime_model_size(rank->runtime, &plan->size);
    zr_runtime_offload(rank->runtime, &plan->offload);
    if (rank->model != NULL && rank->request->recompute == ZR_RECOMPUTE_UNIT)
        plan->n_inputs = zr_model_count_inputs(rank->model, &plan->inputs_bytes);
    note_drives(rank, plan);
}

/* Tables may grow after the last allocation, and are as large in the run. */
static zr_status_t check_process(const zr_run_request_t *request, const zr_run_plan_t *plan) {
    size_t needed = zr_run_memory_needed(request, plan);
    size_t there = zr_config_rank_memory(&request->config);
    if (needed <= there)
        return ZR_OK;
    return zr_fail(
        &request->log, ZR_ERR_BUDGET,
        "memory of the process: a rank needs %s, %s of it for the library's tables, and "
        "may have %s (--memory, less %s for the program, over %s); try a larger --memory",
        zr_size_text(needed).text, zr_size_text(plan->metadata.peak).text, zr_size_text(there).text,
        zr_size_text(ZR_CONFIG_PROGRAM_BYTES).text,
        zr_count_text((uint64_t)request->config.process_ranks, "rank").text);
}

/* Peaks repeat before times do. */
static zr_run_request_t without_needless_steps(const zr_run_request_t *asked) {
    zr_run_request_t request = *asked;
    bool is_plan = request.n_steps == zr_run_steps_of_plan(request.config.stage);
    if (request.memory_only && request.lengths == NULL && is_plan)
        request.n_steps = ZR_RUN_PLAN_STEPS;
    return request;
}

size_t zr_run_steps_of_plan(int stage) {
    return stage == 3 ? ZR_RUN_PLAN_STEPS + 1 : ZR_RUN_PLAN_STEPS;
}

zr_status_t zr_run_plan_as_asked(const zr_run_request_t *asked, zr_run_plan_t *plan_p) {
    const zr_run_request_t own = without_needless_steps(asked), *request = &own;
    planned_rank_t rank = {.request = request};
    *plan_p = (zr_run_plan_t){0};
    zr_status_t status = run(&rank, plan_p);
    note(&rank, plan_p);
    ZR_THEN(status, check_process(request, plan_p));
    zr_model_destroy(&rank.model);
    zr_runtime_destroy(&rank.runtime);
    zr_comm_destroy(&rank.comm);
    zr_run_watch_destroy(&rank.watch);
    zr_device_close(&rank.device);
    zr_run_steps_clear(&rank.steps);
    free(rank.zeros);
    free(rank.batches);
    return status;
}
