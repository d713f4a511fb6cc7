/*
 * zero-plan: which stage and placement fit, and what they will cost, before anything is allocated.
 * This is the shell around plan_search: command line in, exit status and report out.
 */
#include <stdio.h>

#include "examples/common/command.h"
#include "examples/plan/calibrate.h"
#include "examples/plan/plot.h"
#include "examples/plan/refusal.h"
#include "examples/plan/report.h"

enum { EXIT_PLANNED = 0, EXIT_FAILED = 1, EXIT_BAD_INPUT = 2 };

static void say_nearest(const plan_options_t *options, const zr_run_rows_t *rows,
                        const zr_log_t *log) {
    char text[2048] = "";
    plan_words_t words = {text, sizeof(text), 0};
    plan_refusal(options, rows, &words);
    zr_log_write(log, ZR_LOG_ERROR, rows->n == 1 ? "the %s does not fit%s" : "none of %s fits%s",
                 rows->n == 1 ? "plan" : zr_count_text(rows->n, "plan").text, text);
}

/* The picture and the file, of one step that both show. */
static zr_status_t write_files(const plan_options_t *options, const zr_run_rows_t *rows,
                               const zr_log_t *log) {
    plan_step_t step;
    zr_status_t status = plan_step_make(options, rows, log, &step);
    if (options->plot_path != NULL && status == ZR_OK)
        status = plan_plot_draw(options, rows, &step, log);
    if (options->trace_path != NULL && status == ZR_OK)
        status = plan_step_save(&step, options->trace_path, log);
    plan_step_free(&step);
    return status;
}

static int plan(const plan_options_t *options, messages_t *messages, const zr_log_t *log) {
    zr_run_rows_t rows = {0};
    bool printed = true;
    zr_status_t status = plan_search(options, log, options->run.quiet ? NULL : messages, &rows);
    if (status != ZR_OK)
        return status == ZR_ERR_ARGUMENT || status == ZR_ERR_UNSUPPORTED ? EXIT_BAD_INPUT
                                                                         : EXIT_FAILED;
    if (options->run.json)
        printed = plan_report_json(options, &rows, stdout);
    else
        plan_report_table(options, &rows, stdout);
    if (rows.n_fit == 0)
        say_nearest(options, &rows, log);
    status = write_files(options, &rows, log);
    int code = program_check_output(rows.n_fit > 0 ? EXIT_PLANNED : EXIT_FAILED, printed, log);
    zr_run_rows_free(&rows);
    return status == ZR_OK ? code : EXIT_FAILED;
}

static int fit(const plan_options_t *options, const zr_log_t *log) {
    calibration_t calibration;
    zr_status_t status = calibrate(options, log, &calibration);
    if (status != ZR_OK)
        return status == ZR_ERR_MEMORY ? EXIT_FAILED : EXIT_BAD_INPUT;
    if (options->save_hardware_path != NULL)
        status = calibration_save(&calibration, options, log);
    bool printed = calibration_report(&calibration, options, stdout);
    calibration_free(&calibration);
    return program_check_output(status == ZR_OK ? EXIT_PLANNED : EXIT_FAILED, printed, log);
}

static int run(int argc, char **argv, messages_t *messages) {
    zr_log_t log = messages_log(messages, ZR_LOG_WARNING), notes = log;
    plan_options_t options;
    notes.level = ZR_LOG_INFO; /* on what --config has */
    zr_status_t status = plan_options_parse(argc, argv, &notes, &options);
    if (status != ZR_OK)
        return status == ZR_ERR_MEMORY ? EXIT_FAILED : EXIT_BAD_INPUT;
    if (!options.run.help && !options.run.version)
        return options.calibrate_path != NULL ? fit(&options, &log)
                                              : plan(&options, messages, &log);
    return program_tell("zero-plan", options.run.help, plan_options_help, &log);
}

int main(int argc, char **argv) {
    return program_main("zero-plan", run, plan_options_describe, argc, argv);
}
