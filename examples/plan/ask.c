/* From options to the library's search. */
#include "examples/plan/ask.h"

#include "examples/train/plan.h"

/* What `auto` may choose of a run. */
zr_run_open_t train_plan_open(const train_options_t *options) {
    return (zr_run_open_t){.optimizer = options->auto_optimizer,
                           .update_on = true,
                           .params = options->auto_params,
                           .gradients = !options->has_gradients,
                           .activations = options->auto_activations,
                           .order = options->auto_order,
                           .update_at = options->auto_update};
}

/* Of this machine, drives are only what --nvme-path names. */
zr_run_ask_t plan_ask(const plan_options_t *options) {
    zr_run_ask_t ask = {.run = train_plan_request(&options->run, &options->hardware),
                        .places = train_plan_open(&options->run),
                        .stage_open = options->stage_open,
                        .optimizer_open = options->optimizer_open,
                        .params_open = options->params_open,
                        .recompute_open = options->recompute_open,
                        .tries_never = options->run.auto_recompute,
                        .micro_batch_open = options->micro_batch_open,
                        .group_open = options->group_open,
                        .least_stage = options->least_stage,
                        .folds = !options->walks,
                        .has_drives = !options->is_this};
    ask.run.n_steps = ZR_RUN_PLAN_STEPS; /* of a row, as many as its stage needs */
    return ask;
}

zr_run_request_t plan_row_request(const plan_options_t *options, const zr_run_row_t *row) {
    zr_run_ask_t ask = plan_ask(options);
    return zr_run_row_request(&ask, row);
}

int plan_row_group_size(const plan_options_t *options, const zr_run_row_t *row) {
    zr_run_ask_t ask = plan_ask(options);
    return zr_run_row_group_size(&ask, row);
}

bool plan_row_uses_nvme(const plan_options_t *options, const zr_run_row_t *row) {
    zr_run_ask_t ask = plan_ask(options);
    return zr_run_row_uses_nvme(&ask, row);
}

static void show_progress(void *context, size_t n_plans) {
    messages_progress(context, false, "%s", zr_count_text(n_plans, "plan").text);
}

zr_status_t plan_search(const plan_options_t *options, const zr_log_t *log, messages_t *messages,
                        zr_run_rows_t *rows_p) {
    zr_run_ask_t ask = plan_ask(options);
    ask.progress = messages != NULL ? show_progress : NULL;
    ask.progress_context = messages;
    zr_status_t status = zr_run_search(&ask, log, rows_p);
    if (messages != NULL)
        messages_end_progress(messages);
    return status;
}
