/* See plan_step.h. */
#include "examples/plan/step.h"

static zr_status_t make_trace(const zr_run_request_t *request, zr_trace_t **trace_p) {
    zr_trace_options_t trace_options = zr_trace_options_default();
    trace_options.log = request->log;
    trace_options.process = PLAN_STEP_PROCESS;
    trace_options.process_name = "rank 0, planned";
    trace_options.first_step = trace_options.last_step = request->n_steps;
    trace_options.from_start = false;
    return zr_trace_create(&trace_options, trace_p);
}

zr_status_t plan_step_make(const plan_options_t *options, const zr_run_rows_t *rows,
                           const zr_log_t *log, plan_step_t *step_p) {
    zr_run_plan_t plan;
    *step_p = (plan_step_t){.is_made = false};
    if (rows->n_fit == 0 || (options->plot_path == NULL && options->trace_path == NULL))
        return ZR_OK;
    zr_run_request_t request = plan_row_request(options, &rows->all[rows->recommended]);
    request.log = *log;
    if (options->trace_path != NULL)
        ZR_TRY(make_trace(&request, &step_p->trace));
    request.trace = step_p->trace;
    request.spans = options->plot_path != NULL ? &step_p->spans : NULL;
    ZR_TRY(zr_run_plan(&request, &plan));
    step_p->is_made = true;
    return ZR_OK;
}

void plan_step_free(plan_step_t *step) {
    zr_trace_destroy(&step->trace);
    zr_run_spans_free(&step->spans);
}

zr_status_t plan_step_save(const plan_step_t *step, const char *path, const zr_log_t *log) {
    return step->is_made ? zr_trace_save(&step->trace, 1, path, log) : ZR_OK;
}
