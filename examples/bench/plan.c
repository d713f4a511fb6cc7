/*
 * zero-bench plan: how right the times of plans are. Each configuration is planned on this machine
 * as it was measured in the same run, and trained for a few steps; the table has both, and the
 * parts of each.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/bench/on_device.h"
#include "examples/bench/plan_case.h"

#define MOST_RANKS 16
#define MOST_CASES 64
#define SIDE 1024
#define AIM 0.15

typedef struct options {
    bench_common_t common;
    plan_settings_t settings;
    bool quick;
    bool is_wanted[MOST_CASES]; /* by number, from 1 at 0 */
    bool all_are_wanted;
    double seconds;
    const zr_log_t *log;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

/* "3,7": numbers of configurations. */
static zr_status_t take_only(const char *value, void *options) {
    options_t *o = options;
    char *text = strdup(value), *rest = NULL;
    zr_status_t status = ZR_OK;
    if (text == NULL)
        return zr_fail(o->log, ZR_ERR_MEMORY, "no memory for a list of numbers");
    o->all_are_wanted = false;
    for (char *word = strtok_r(text, ",", &rest); word != NULL && status == ZR_OK;
         word = strtok_r(NULL, ",", &rest)) {
        size_t number = 0, n_cases = 0;
        (void)plan_cases(false, &n_cases);
        status = args_count("--only", word, 1, n_cases, o->log, &number);
        if (status == ZR_OK)
            o->is_wanted[number - 1] = true;
    }
    free(text);
    return status;
}

static const command_option_t option_table[] = {
    {"path", "DIR[,DIR...]",
     "folders of drives (default: none, and configurations that need them are left out)",
     COMMAND_TEXT, .field = offsetof(options_t, settings.paths)},
    {"steps", "S", "steps of each that are timed, after 2 that are not (default 3)", COMMAND_COUNT,
     .field = offsetof(options_t, settings.n_steps), 1, 1000000},
    {"only", "N[,N...]", "these of the configurations, by their numbers", COMMAND_OTHER,
     .take = take_only},
    {"seconds", "S", "of each group of measurements of the machine, as of hardware (default 1)",
     COMMAND_NUMBER, .field = offsetof(options_t, seconds), 0, 3600},
    {"quick", NULL, "a few configurations of milliseconds: the form is the same, times say nothing",
     COMMAND_FLAG, .field = offsetof(options_t, quick)},
    {0},
};

static const bench_parser_t parser = {
    .name = "plan",
    .options = option_table,
    .doc = "Predicted times of training steps against measured ones, on this machine as it is "
           "measured in the same run."};

/* ---- all cases ------------------------------------------------------------------------------- */

typedef struct row {
    size_t number; /* from 1 */
    const plan_case_t *one;
    plan_result_t result;
    double machine; /* its rate during the steps to that when it was measured */
} row_t;

typedef struct bench {
    const options_t *options;
    machine_t machines[MOST_RANKS + 1];    /* by ranks */
    double machines_per_s[MOST_RANKS + 1]; /* its own rate of products then; 0: not measured yet */
    row_t rows[MOST_CASES];
    size_t n_rows, n_left_out;
} bench_t;

static double error_of(const plan_result_t *result) {
    return result->planned.step / result->measured.step - 1.0;
}

/* A core's own rate of products. */
static zr_status_t look_at_rate(const options_t *o, double *rate_p) {
    on_device_options_t on = on_device_options_default(o->log);
    matrix_rate_t *rate = NULL;
    on.n_threads = 1;
    zr_status_t status = matrix_rate_create(&on, ZR_DTYPE_F32, o->settings.side, &rate);
    for (int i = 0; i < 2 * ON_DEVICE_MIN_ROUNDS && status == ZR_OK; i++)
        status = matrix_rate_run(rate);
    if (status == ZR_OK)
        *rate_p = matrix_rate_per_s(rate);
    matrix_rate_destroy(&rate);
    return status;
}

/* Measured with as many ranks, once. */
static zr_status_t find_machine(bench_t *bench, int n_ranks, const machine_t **machine_p) {
    const options_t *o = bench->options;
    const machine_options_t options = {.device = "host",
                                       .n_ranks = n_ranks,
                                       .n_threads = device_threads(0, n_ranks),
                                       .paths = o->settings.paths,
                                       .seconds = o->seconds,
                                       .is_quick = o->quick,
                                       .log = *o->log};
    if (bench->machines_per_s[n_ranks] == 0.0) {
        ZR_TRY(machine_measure(&options, &bench->machines[n_ranks]));
        ZR_TRY(look_at_rate(o, &bench->machines_per_s[n_ranks]));
    }
    *machine_p = &bench->machines[n_ranks];
    return ZR_OK;
}

static void print_header(void) {
    fprintf(stderr, "%3s %-11s %5s %5s %5s %5s %5s %5s %9s %9s %9s %9s %7s %8s |", "", "model",
            "ranks", "stage", "dtype", "batch", "seq", "recmp", "optimizer", "params", "measured",
            "predicted", "error", "machine");
    for (int part = 0; part < PLAN_N_PARTS; part++)
        fprintf(stderr, " %17s", plan_part_name(part));
    fprintf(stderr, "\n");
}

static const char *place_name(zr_offload_device_t device) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    return names[device];
}

/* Sizes are long: only how a model begins is printed, the number says which it is. */
static void print_row(const row_t *row) {
    const plan_case_t *one = row->one;
    const plan_result_t *r = &row->result;
    char batch[32];
    snprintf(batch, sizeof(batch), "%zux%zu", one->micro_batch, one->grad_accum);
    fprintf(stderr,
            "%3zu %-11.11s %5d %5d %5s %5s %5zu %5s %9s %9s %6.0f ms %6.0f ms %+6.1f%% %7.0f%% |",
            row->number, one->model, one->n_ranks, one->stage, zr_dtype_name(one->dtype), batch,
            one->seq, one->recompute ? "unit" : "none", place_name(one->optimizer),
            place_name(one->params), 1e3 * r->measured.step, 1e3 * r->planned.step,
            100.0 * error_of(r), 100.0 * row->machine);
    for (int part = 0; part < PLAN_N_PARTS; part++)
        fprintf(stderr, " %6.0f %6.0f %+3.0f%%", 1e3 * r->measured.parts[part],
                1e3 * r->planned.parts[part],
                100.0 * (r->planned.parts[part] - r->measured.parts[part]) / r->measured.step);
    fprintf(stderr, "\n");
}

static zr_status_t run_case(bench_t *bench, size_t number, const plan_case_t *one) {
    const machine_t *machine = NULL;
    row_t *row = &bench->rows[bench->n_rows];
    if (plan_case_uses_nvme(one) && bench->options->settings.paths == NULL) {
        bench->n_left_out++;
        return ZR_OK;
    }
    *row = (row_t){.number = number, .one = one};
    ZR_TRY(find_machine(bench, one->n_ranks, &machine));
    ZR_TRY(plan_case_run(one, &bench->options->settings, &machine->hardware, &row->result));
    row->machine = row->result.machine_per_s / bench->machines_per_s[one->n_ranks];
    print_row(row);
    bench->n_rows++;
    return ZR_OK;
}

static zr_status_t run_cases(bench_t *bench) {
    const options_t *o = bench->options;
    size_t n = 0;
    const plan_case_t *cases = plan_cases(o->quick, &n);
    print_header();
    for (size_t i = 0; i < n && i < MOST_CASES; i++)
        if (o->all_are_wanted || o->is_wanted[i])
            ZR_TRY(run_case(bench, i + 1, &cases[i]));
    return ZR_OK;
}

/* ---- the report -------------------------------------------------------------------------- */

typedef struct summary {
    size_t n_within;
    double worst; /* its error, without a sign */
} summary_t;

static summary_t summarize(const bench_t *bench) {
    summary_t summary = {0};
    for (size_t i = 0; i < bench->n_rows; i++) {
        double error = fabs(error_of(&bench->rows[i].result));
        summary.n_within += error <= AIM;
        summary.worst = error > summary.worst ? error : summary.worst;
    }
    return summary;
}

static void print_summary(const bench_t *bench, const summary_t *summary) {
    fprintf(stderr,
            "%zu of %zu within %.0f%%; the worst error is %.1f%%. Of each part: measured and "
            "predicted ms, and the difference in %% of the measured step.\n",
            summary->n_within, bench->n_rows, 100.0 * AIM, 100.0 * summary->worst);
    if (bench->n_left_out > 0)
        fprintf(stderr, "%zu left out: they need drives, which --path names\n", bench->n_left_out);
}

static json_t *describe_times(const plan_times_t *times) {
    json_t *object = json_object();
    char name[32];
    json_put(&object, "step_ms", json_number(1e3 * times->step));
    for (int part = 0; part < PLAN_N_PARTS; part++) {
        snprintf(name, sizeof(name), "%s_ms", plan_part_name(part));
        json_put(&object, name, json_number(1e3 * times->parts[part]));
    }
    return object;
}

static json_t *describe_exposed(const zr_run_times_t *times) {
    json_t *object = json_object();
    char name[32];
    json_put(&object, "idle_ms", json_number(1e3 * times->idle));
    for (int part = 0; part < ZR_RUN_N_PARTS; part++) {
        snprintf(name, sizeof(name), "%s_ms", zr_run_part_name((zr_run_part_t)part));
        json_put(&object, name, json_number(1e3 * times->exposed[part]));
    }
    return object;
}

static json_t *describe_row(const row_t *row) {
    const plan_case_t *one = row->one;
    json_t *object = json_object();
    json_put(&object, "number", json_count(row->number));
    json_put(&object, "model", json_string(one->model));
    json_put(&object, "ranks", json_count((uint64_t)one->n_ranks));
    json_put(&object, "stage", json_count((uint64_t)one->stage));
    json_put(&object, "dtype", json_string(zr_dtype_name(one->dtype)));
    json_put(&object, "micro_batch", json_count(one->micro_batch));
    json_put(&object, "grad_accum", json_count(one->grad_accum));
    json_put(&object, "seq", json_count(one->seq));
    json_put(&object, "recompute", json_string(one->recompute ? "unit" : "none"));
    json_put(&object, "offload_optimizer", json_string(place_name(one->optimizer)));
    json_put(&object, "offload_params", json_string(place_name(one->params)));
    json_put(&object, "measured", describe_times(&row->result.measured));
    json_put(&object, "predicted", describe_times(&row->result.planned));
    json_put(&object, "exposed", describe_exposed(&row->result.exposed));
    json_put(&object, "error", json_number(error_of(&row->result)));
    json_put(&object, "machine", json_number(row->machine));
    return object;
}

static json_t *describe(const bench_t *bench, const summary_t *summary) {
    json_t *object = json_object(), *rows = json_array();
    for (size_t i = 0; i < bench->n_rows; i++)
        json_append(&rows, describe_row(&bench->rows[i]));
    json_put(&object, "configurations", rows);
    json_put(&object, "command", json_string("plan"));
    json_put(&object, "steps", json_count(bench->options->settings.n_steps));
    json_put(&object, "left_out", json_count(bench->n_left_out));
    json_put(&object, "within", json_count(summary->n_within));
    json_put(&object, "worst_error", json_number(summary->worst));
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static zr_status_t complete(options_t *o) {
    o->settings.log = *o->log;
    if (o->quick) {
        o->settings.n_first_steps = 1;
        o->settings.n_steps = 1;
        o->settings.side = 64;
        o->seconds = 0.0;
    }
    return o->settings.paths == NULL ? ZR_OK
                                     : bench_check_folders("--path", o->settings.paths, o->log);
}

static int run(int argc, char **argv, const zr_log_t *log) {
    options_t options = {.settings = {.n_first_steps = 2, .n_steps = 3, .side = SIDE},
                         .all_are_wanted = true,
                         .seconds = 1.0,
                         .log = log};
    int code = BENCH_FAILED;
    if (!bench_parse(&parser, argc, argv, log, &options.common, &code))
        return code;
    if (complete(&options) != ZR_OK)
        return BENCH_BAD_INPUT;
    bench_t *bench = calloc(1, sizeof(*bench));
    if (bench == NULL) {
        zr_log_write(log, ZR_LOG_ERROR, "no memory for results (%zu bytes)", sizeof(*bench));
        return BENCH_FAILED;
    }
    bench->options = &options;
    if (run_cases(bench) == ZR_OK) {
        summary_t summary = summarize(bench);
        print_summary(bench, &summary);
        code = options.common.json ? command_print(describe(bench, &summary), BENCH_MEASURED, log)
                                   : BENCH_MEASURED;
    } else {
        code = BENCH_FAILED;
    }
    free(bench);
    return code;
}

const bench_command_t bench_plan = {.name = "plan",
                                    .summary =
                                        "predicted times of training steps against measured ones",
                                    .run = run};
