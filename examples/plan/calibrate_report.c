/* What a calibration has found: see calibrate.h. */
#include "examples/plan/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/json.h"

/* ---- errors ---------------------------------------------------------------------------------- */

typedef struct errors {
    size_t n;
    double mean, median, worst; /* of what is planned to what was measured, without sign */
} errors_t;

static double error_of(const calibrate_run_t *run, bool as_described) {
    return (as_described ? run->described : run->predicted) / run->measured - 1;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static errors_t errors_of(const calibration_t *calibration, bool as_described, bool held_out) {
    errors_t errors = {.n = 0};
    double *all = calloc(calibration->n_runs, sizeof(*all));
    for (size_t i = 0; i < calibration->n_runs && all != NULL; i++)
        if (calibration->runs[i].is_held_out == held_out)
            all[errors.n++] = fabs(error_of(&calibration->runs[i], as_described));
    if (errors.n > 0) {
        qsort(all, errors.n, sizeof(*all), by_value);
        for (size_t i = 0; i < errors.n; i++)
            errors.mean += all[i] / (double)errors.n;
        errors.median = (all[errors.n / 2] + all[(errors.n - 1) / 2]) / 2;
        errors.worst = all[errors.n - 1];
    }
    free(all);
    return errors;
}

/* ---- figures --------------------------------------------------------------------------------- */

static bool differs(const calibration_t *calibration, const plan_options_t *options,
                    const zr_figure_t *figure) {
    return zr_hardware_figure(&calibration->fitted, figure) !=
           zr_hardware_figure(&options->hardware, figure);
}

zr_status_t calibration_save(const calibration_t *calibration, const plan_options_t *options,
                             const zr_log_t *log) {
    enum { MOST = 128 };
    char fitted[512], others[160];
    const char *sources[MOST] = {NULL};
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    errors_t rest = errors_of(calibration, false, true);
    zr_hardware_t hardware = calibration->fitted;
    snprintf(hardware.name, sizeof(hardware.name), "%.40s, fitted to %zu runs",
             options->hardware.name, calibration->n_runs);
    snprintf(
        fitted, sizeof(fitted),
        "fitted to %zu measured steps of %.200s (zero-plan --calibrate); fitted to %zu of them, "
        "its error on the other %zu is %.1f%% on average and %.1f%% at most",
        calibration->n_runs, options->calibrate_path, calibration->n_runs - calibration->n_held_out,
        rest.n, 100 * rest.mean, 100 * rest.worst);
    snprintf(others, sizeof(others), "as described: %s", options->hardware.name);
    for (size_t i = 0; i < n && i < MOST; i++)
        sources[i] = differs(calibration, options, &figures[i]) ? fitted : others;
    return zr_hardware_write_json(&hardware, sources, options->save_hardware_path, log);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *errors_object(errors_t errors) {
    return JSON_OBJECT({"runs", json_count(errors.n)}, {"mean", json_number(errors.mean)},
                       {"median", json_number(errors.median)},
                       {"worst", json_number(errors.worst)});
}

static json_t *run_object(const calibrate_run_t *run) {
    return JSON_OBJECT({"line", json_count(run->line)},
                       {"held_out", json_boolean(run->is_held_out)},
                       {"measured_ms", json_number(1e3 * run->measured)},
                       {"described_ms", json_number(1e3 * run->described)},
                       {"predicted_ms", json_number(1e3 * run->predicted)});
}

static bool report_json(const calibration_t *calibration, const plan_options_t *options,
                        FILE *file) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    json_t *rates = json_object(), *runs = json_array();
    for (size_t i = 0; i < n; i++)
        if (differs(calibration, options, &figures[i]))
            json_put(&rates, figures[i].name,
                     JSON_OBJECT({"described",
                                  json_number(zr_hardware_figure(&options->hardware, &figures[i]))},
                                 {"fitted", json_number(zr_hardware_figure(&calibration->fitted,
                                                                           &figures[i]))}));
    for (size_t i = 0; i < calibration->n_runs; i++)
        json_append(&runs, run_object(&calibration->runs[i]));
    json_t *errors = JSON_OBJECT({"described", errors_object(errors_of(calibration, true, true))},
                                 {"fitted", errors_object(errors_of(calibration, false, false))},
                                 {"held_out", errors_object(errors_of(calibration, false, true))});
    json_t *left_out = JSON_OBJECT({"parallel", json_count(calibration->n_parallel)},
                                   {"impossible", json_count(calibration->n_impossible)});
    return json_print_new(JSON_OBJECT({"result", json_string("calibrated")},
                                      {"hardware", json_text(options->hardware.name)},
                                      {"left_out", left_out}, {"rates", rates}, {"errors", errors},
                                      {"runs", runs}),
                          file);
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_errors(const char *what, errors_t errors, FILE *file) {
    fprintf(file, "  %-34s %5zu %7.1f%% %7.1f%% %7.1f%%\n", what, errors.n, 100 * errors.mean,
            100 * errors.median, 100 * errors.worst);
}

static void print_rates(const calibration_t *calibration, const plan_options_t *options,
                        FILE *file) {
    size_t n = 0;
    const zr_figure_t *figures = zr_hardware_figures(&n);
    fprintf(file, "\n  %-34s %12s %12s\n", "fitted to all runs", "described", "fitted");
    for (size_t i = 0; i < n; i++)
        if (differs(calibration, options, &figures[i]))
            fprintf(file, "  %-34s %12.3g %12.3g\n", figures[i].name,
                    zr_hardware_figure(&options->hardware, &figures[i]),
                    zr_hardware_figure(&calibration->fitted, &figures[i]));
}

static void print_runs(const calibration_t *calibration, FILE *file) {
    fprintf(file, "\n  held out: line %12s %12s %9s\n", "measured ms", "predicted ms", "error");
    for (size_t i = 0; i < calibration->n_runs; i++) {
        const calibrate_run_t *run = &calibration->runs[i];
        if (run->is_held_out)
            fprintf(file, "  %14zu %12.1f %12.1f %+8.1f%%\n", run->line, 1e3 * run->measured,
                    1e3 * run->predicted, 100 * error_of(run, false));
    }
}

static void print_left_out(const calibration_t *calibration, FILE *file) {
    if (calibration->n_parallel > 0)
        fprintf(file,
                "          %s left out: tensor or pipeline parallelism, which is not planned\n",
                zr_count_text(calibration->n_parallel, "run").text);
    if (calibration->n_impossible > 0)
        fprintf(file, "          %s left out: cannot be planned\n",
                zr_count_text(calibration->n_impossible, "run").text);
    if (calibration->ignored[0] != '\0')
        fprintf(file, "          columns ignored: %s\n", calibration->ignored);
}

bool calibration_report(const calibration_t *calibration, const plan_options_t *options,
                        FILE *file) {
    if (options->run.json)
        return report_json(calibration, options, file);
    fprintf(file, "runs      %zu of %s, on %s\n", calibration->n_runs, options->calibrate_path,
            options->hardware.name);
    print_left_out(calibration, file);
    fprintf(file, "\n  %-34s %5s %8s %8s %8s\n", "error of planned times", "runs", "mean", "median",
            "worst");
    print_errors("held out, as described", errors_of(calibration, true, true), file);
    print_errors("held out, fitted to the others", errors_of(calibration, false, true), file);
    print_errors("the others", errors_of(calibration, false, false), file);
    print_runs(calibration, file);
    print_rates(calibration, options, file);
    if (options->save_hardware_path != NULL)
        fprintf(file, "\nsaved as %s: zero-plan --hardware %s plans with it\n",
                options->save_hardware_path, options->save_hardware_path);
    return !ferror(file);
}
