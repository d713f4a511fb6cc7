/* See plan_trace.h. */
#include "examples/plan_trace.h"

zr_status_t plan_trace_save(const plan_options_t *options, const plan_rows_t *rows,
                            const char *path, const zr_log_t *log) {
    zr_trace_options_t trace_options = zr_trace_options_default();
    zr_trace_t *trace = NULL;
    gpt_plan_t plan;
    if (rows->n_fit == 0)
        return ZR_OK;
    gpt_plan_request_t request = plan_row_request(options, &rows->all[rows->recommended]);
    trace_options.log = request.log = *log;
    trace_options.process = PLAN_TRACE_PROCESS;
    trace_options.process_name = "rank 0, planned";
    trace_options.first_step = trace_options.last_step = request.n_steps;
    trace_options.from_start = false;
    ZR_TRY(zr_trace_create(&trace_options, &trace));
    request.trace = trace;
    zr_status_t status = gpt_plan(&request, &plan);
    if (status == ZR_OK)
        status = zr_trace_save(&trace, 1, path, log);
    zr_trace_destroy(&trace);
    return status;
}
