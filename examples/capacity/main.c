/*
 * zero-capacity: the largest model that this device, host memory and disk can train. This is the
 * shell around capacity_run: command line in, exit status and report out.
 */
#include <stdio.h>

#include "examples/capacity/plot.h"
#include "examples/capacity/point.h"
#include "examples/capacity/report.h"
#include "examples/common/command.h"
#include "examples/common/signals.h"

enum { EXIT_FOUND = 0, EXIT_FAILED = 1, EXIT_BAD_INPUT = 2 };

static int exit_code(zr_status_t status) {
    if (status == ZR_OK)
        return EXIT_FOUND;
    return status == ZR_ERR_ARGUMENT || status == ZR_ERR_UNSUPPORTED || status == ZR_ERR_FORMAT ||
                   status == ZR_ERR_IO
               ? EXIT_BAD_INPUT
               : EXIT_FAILED;
}

/* Whether something was found, and everything that was to be proved is. */
static int judge(const capacity_options_t *options, const capacity_results_t *results,
                 const zr_log_t *log) {
    size_t i, n_found = 0, n_bad = 0;
    json_t *point;
    json_array_foreach(results->points, i, point) {
        n_found += capacity_point_at(point, "largest") != NULL;
        n_bad += !capacity_point_is_good(point);
    }
    if (!results->is_whole) {
        zr_log_write(log, ZR_LOG_ERROR, "stopped after %zu of %s%s",
                     json_array_size(results->points),
                     zr_count_text(results->n_wanted, "capacity").text,
                     options->state_path != NULL ? "; --resume resumes from --state"
                                                 : "; with --state they would have been kept");
        return EXIT_FAILED;
    }
    if (n_bad > 0)
        zr_log_write(log, ZR_LOG_ERROR,
                     "not proved: %zu of %s: training differed from the plan; \"proof\" in --json "
                     "says why",
                     n_bad, zr_count_text(results->n_wanted, "capacity").text);
    else if (n_found == 0)
        zr_log_write(log, ZR_LOG_ERROR, "not even the smallest model of the family fits: %s",
                     capacity_point_text(json_array_get(results->points, 0), "next.message"));
    return n_bad > 0 || n_found == 0 ? EXIT_FAILED : EXIT_FOUND;
}

/* Files are of what was asked for: of a run that was stopped there is only the state. */
static zr_status_t write_files(const capacity_options_t *options, const capacity_results_t *results,
                               const zr_log_t *log) {
    if (!results->is_whole)
        return ZR_OK;
    if (options->csv_path != NULL)
        ZR_TRY(capacity_report_csv(results, options->csv_path, log));
    return options->plot_path != NULL ? capacity_plot(results, options->plot_path, log) : ZR_OK;
}

static int find(const capacity_options_t *options, messages_t *messages, const zr_log_t *log) {
    capacity_results_t results;
    bool printed = true;
    zr_status_t status =
        capacity_run(options, log, options->run.quiet ? NULL : messages, signals_watch(), &results);
    int code = exit_code(status);
    if (status == ZR_OK) {
        if (options->run.json)
            printed = capacity_report_json(options, &results, stdout);
        else if (!options->run.quiet)
            capacity_report_table(options, &results, stdout);
        code = judge(options, &results, log);
        if (write_files(options, &results, log) != ZR_OK)
            code = EXIT_FAILED;
        code = program_check_output(code, printed, log);
    }
    capacity_results_free(&results);
    return code;
}

static int run(int argc, char **argv, messages_t *messages) {
    zr_log_t log = messages_log(messages, ZR_LOG_WARNING);
    capacity_options_t options;
    zr_status_t status = capacity_options_parse(argc, argv, &log, &options);
    if (status != ZR_OK)
        return status == ZR_ERR_MEMORY ? EXIT_FAILED : EXIT_BAD_INPUT;
    if (!options.run.help && !options.run.version)
        return find(&options, messages, &log);
    return program_tell("zero-capacity", options.run.help, capacity_options_help, &log);
}

int main(int argc, char **argv) {
    return program_main("zero-capacity", run, capacity_options_describe, argc, argv);
}
