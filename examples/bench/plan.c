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
#include "examples/common/args.h"

#define MOST_RANKS 16
#define MOST_CASES 64
#define SIDE 1024
#define AIM 0.15

typedef struct options {
    command_common_t common;
    plan_settings_t settings;
    bool quick;
    bool is_wanted[MOST_CASES]; /* by number, from 1 at 0 */
    bool all_are_wanted;
    double seconds;
} options_t;

/* ---- options -------------------------------------------------------------------------- */

/* "3,7": numbers of configurations. */
static zr_status_t take_only(void *options, const char *label, const char *text,
                             const zr_log_t *log) {
    options_t *o = options;
    for (const char *at = text;; at++) {
        char word[32];
        size_t number = 0, n_cases = 0, length = strcspn(at, ",");
        (void)plan_cases(false, &n_cases);
        snprintf(word, sizeof(word), "%.*s", (int)length, at);
        ZR_TRY(args_count(label, word, 1, n_cases, log, &number));
        o->is_wanted[number - 1] = true;
        at += length;
        if (*at == '\0')
            break;
    }
    o->all_are_wanted = false;
    return ZR_OK;
}

#define AT(member) .offset = offsetof(options_t, member)

static const zr_option_t rows[] = {
    {"path", AT(settings.paths), .type = ZR_OPTION_STRING, .arg = "DIR[,DIR...]",
     .initial = "none, and configurations that need them are left out",
     .help = "folders of drives"},
    {"steps", AT(settings.n_steps), .type = ZR_OPTION_COUNT, .least = 1, .most = 1000000,
     .arg = "S", .help = "steps of each that are timed, after 2 that are not"},
    {"only", .type = ZR_OPTION_STRING, .arg = "N[,N...]", .initial = "", .take = take_only,
     .help = "these of the configurations, by their numbers"},
    {"seconds", AT(seconds), .type = ZR_OPTION_NUMBER, .most = 3600, .arg = "S",
     .help = "of each group of measurements of the machine, as of hardware"},
    {"quick", AT(quick), .type = ZR_OPTION_FLAG,
     .help = "a few configurations of milliseconds: only the format is meaningful, not the times"}};

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
    on_device_options_t on = on_device_options_default(o->common.log);
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
                                       .log = *o->common.log};
    if (bench->machines_per_s[n_ranks] == 0.0) {
        ZR_TRY(machine_measure(&options, &bench->machines[n_ranks]));
        ZR_TRY(look_at_rate(o, &bench->machines_per_s[n_ranks]));
    }
    *machine_p = &bench->machines[n_ranks];
    return ZR_OK;
}

/* While others are still to come; sizes are long: the number says which it is. */
static void print_row(const row_t *row) {
    fprintf(stderr, "%3zu %-11.11s measured %6.0f ms  predicted %6.0f ms  error %+6.1f%%\n",
            row->number, row->one->model, 1e3 * row->result.measured.step,
            1e3 * row->result.planned.step, 100.0 * error_of(&row->result));
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
    for (size_t i = 0; i < n && i < MOST_CASES; i++)
        if (o->all_are_wanted || o->is_wanted[i])
            ZR_TRY(run_case(bench, i + 1, &cases[i]));
    return ZR_OK;
}

/* ---- the report -------------------------------------------------------------------------- */

static json_t *describe_times(const step_times_t *times) {
    json_t *object = json_object();
    json_put(&object, "step_ms", json_number(1e3 * times->step));
    step_put_times(&object, times);
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
    return JSON_OBJECT(
        {"number", json_count(row->number)}, {"model", json_string(one->model)},
        {"ranks", json_count((uint64_t)one->n_ranks)}, {"stage", json_count((uint64_t)one->stage)},
        {"dtype", json_string(zr_dtype_name(one->dtype))},
        {"micro_batch", json_count(one->micro_batch)}, {"grad_accum", json_count(one->grad_accum)},
        {"seq", json_count(one->seq)},
        {"recompute", json_string(zr_recompute_name(one->recompute))},
        {"offload_optimizer", json_string(command_places[one->optimizer].name)},
        {"offload_params", json_string(command_places[one->params].name)},
        {"measured", describe_times(&row->result.measured)},
        {"predicted", describe_times(&row->result.planned)},
        {"exposed", describe_exposed(&row->result.exposed)},
        {"error", json_number(error_of(&row->result))}, {"machine", json_number(row->machine)});
}

static json_t *describe(const bench_t *bench) {
    json_t *object = json_object(), *rows = json_array();
    size_t n_within = 0;
    double worst = 0.0; /* its error, without a sign */
    for (size_t i = 0; i < bench->n_rows; i++) {
        double error = fabs(error_of(&bench->rows[i].result));
        n_within += error <= AIM;
        worst = fmax(worst, error);
        json_append(&rows, describe_row(&bench->rows[i]));
    }
    JSON_PUT(&object, {"configurations", rows}, {"command", json_string("plan")},
             {"steps", json_count(bench->options->settings.n_steps)},
             {"left_out", json_count(bench->n_left_out)}, {"within", json_count(n_within)},
             {"worst_error", json_number(worst)});
    return object;
}

/* ---- the command --------------------------------------------------------------------------- */

static zr_status_t complete(options_t *o) {
    bench_folders_t folders;
    o->settings.log = *o->common.log;
    if (o->quick) {
        o->settings.n_first_steps = 1;
        o->settings.n_steps = 1;
        o->settings.side = 64;
        o->seconds = 0.0;
    }
    return o->settings.paths == NULL
               ? ZR_OK
               : bench_folders("--path", o->settings.paths, o->common.log, &folders);
}

static int run(void *options) {
    options_t *o = options;
    if (complete(o) != ZR_OK)
        return COMMAND_BAD_INPUT;
    bench_t *bench = calloc(1, sizeof(*bench));
    if (bench == NULL) {
        zr_log_write(o->common.log, ZR_LOG_ERROR, "no memory for results (%zu bytes)",
                     sizeof(*bench));
        return COMMAND_FAILED;
    }
    bench->options = o;
    int code = run_cases(bench) == ZR_OK ? bench_report(&o->common, describe(bench), COMMAND_DONE)
                                         : COMMAND_FAILED;
    free(bench);
    return code;
}

static const options_t defaults = {.settings = {.n_first_steps = 2, .n_steps = 3, .side = SIDE},
                                   .all_are_wanted = true,
                                   .seconds = 1.0};

const command_t bench_plan = {
    .name = "plan",
    .summary = "predicted times of training steps against measured ones",
    .doc = "Predicted times of training steps against measured ones, on this machine as it is "
           "measured in the same run.",
    .own = rows,
    .n_own = sizeof(rows) / sizeof(rows[0]),
    .defaults = &defaults,
    .options_bytes = sizeof(defaults),
    .run = run};
