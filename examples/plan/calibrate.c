/*
 * A step's time is nearly a sum of amounts of work, each divided by its rate: so the logarithms of
 * planned times are taken as linear in those of the rates, and least squares of the errors' are
 * found step by step. Rates that no run depends on stay as described, and others near it as far as
 * the runs do not say otherwise.
 */
#include "examples/plan/calibrate.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/train/plan.h"

#define LEAST_RUNS 6
#define HELD_OUT_EACH 3 /* every third */
#define MOST_COLUMNS 64
#define LINE_BYTES 4096

static const calibrate_knob_t knobs[] = {
    {"device.matrix_bf16_ops_per_s device.matrix_fp32_ops_per_s", 0.2},
    {"device.matrix_bf16_bytes_per_s device.matrix_fp32_bytes_per_s", 2},
    {"device.attention_fraction", 1},
    {"device.memory_bytes_per_s device.update_bytes_per_s device.vector_ops_per_s", 0.3},
    {"device.kernel_latency_s launch_s", 1},
    {"within_node.bytes_per_s reduce_bytes_per_s", 0.5},
    {"between_nodes.bytes_per_s", 0.5},
    {"to_device.bytes_per_s to_host.bytes_per_s", 0.5},
    {"host.memory_bytes_per_s host.update_bytes_per_s host.vector_ops_per_s", 0.5},
    {"disk_read.bytes_per_s disk_write.bytes_per_s disk_both_bytes_per_s", 0.5}};
#define N_KNOBS (sizeof(knobs) / sizeof(knobs[0]))
_Static_assert(N_KNOBS <= CALIBRATE_MOST_KNOBS, "a calibration says of each whether it was seen");

const calibrate_knob_t *calibrate_knobs(size_t *n_p) {
    *n_p = N_KNOBS;
    return knobs;
}

/* ---- columns --------------------------------------------------------------------------------- */

typedef enum role {
    ROLE_IGNORED,
    ROLE_OPTION,
    ROLE_SIZE, /* of the model */
    ROLE_SEQ,  /* of the sequences, and the model's longest */
    ROLE_GLOBAL_BATCH,
    ROLE_ONE, /* a parallelism that is planned where it is 1 */
    ROLE_MS,
    ROLE_SECONDS
} role_t;

typedef struct column {
    role_t role;
    char name[64]; /* here */
} column_t;

/* Names in lower case, with '-' for '_', between bars. */
static const struct {
    role_t role;
    const char *name, *names;
} known[] = {{ROLE_OPTION, "ranks", "# gpus|gpus|num gpus|n gpus|world size|world-size"},
             {ROLE_OPTION, "micro-batch", "micro batch|micro batch size|micro-batch-size"},
             {ROLE_OPTION, "grad-accum", "gradient accumulation|gradient-accumulation-steps"},
             {ROLE_GLOBAL_BATCH, "global batch",
              "global batch|global-batch|global batch size|"
              "global-batch-size|train-batch-size"},
             {ROLE_SEQ, "seq", "seq|sequence length|sequence-length|seq-len|seq-length"},
             {ROLE_SIZE, "layers", "layers|# layers|num layers|n-layer|num-layers"},
             {ROLE_SIZE, "channels", "channels|hidden size|hidden-size|hidden|n-embd"},
             {ROLE_SIZE, "heads", "heads|attention heads|n-head|num-attention-heads"},
             {ROLE_SIZE, "kv-heads", "kv-heads|num-key-value-heads"},
             {ROLE_SIZE, "wide", "wide|intermediate-size"},
             {ROLE_SIZE, "vocab", "vocab|vocab size|vocab-size|vocabulary"},
             {ROLE_ONE, "tensor parallelism", "tensor parallelism|tensor-parallel|tp"},
             {ROLE_ONE, "pipeline parallelism", "pipeline parallelism|pipeline-parallel|pp"},
             {ROLE_MS, "step-ms", "step-ms|step ms|step time (ms)|iteration time (ms)"},
             {ROLE_SECONDS, "step-s", "step-s|step s|step time (s)|iteration time (s)"}};

static bool is_among(const char *word, const char *names) {
    size_t length = strlen(word);
    for (const char *at = names; *at != '\0'; at += *at == '|') {
        size_t n = strcspn(at, "|");
        if (n == length && strncmp(at, word, n) == 0)
            return true;
        at += n;
    }
    return false;
}

static column_t column_of(const char *cell, const options_rows_t *rows) {
    column_t column = {.role = ROLE_IGNORED};
    char word[64];
    snprintf(word, sizeof(word), "%s", cell);
    for (char *at = word; *at != '\0'; at++)
        *at = (char)(*at == '_' ? '-' : tolower((unsigned char)*at));
    snprintf(column.name, sizeof(column.name), "%s", word);
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (is_among(word, known[i].names)) {
            column.role = known[i].role;
            snprintf(column.name, sizeof(column.name), "%s", known[i].name);
            return column;
        }
    const options_row_t *row = options_find(rows, word);
    if (row != NULL && row->option.arg != NULL && row->option.group != PLAN_OUTPUT)
        column.role = ROLE_OPTION;
    else if (row != NULL && (row->option.choices != NULL || row->option.type == ZR_OPTION_SWITCH))
        column.role = ROLE_OPTION;
    return column;
}

/* ---- a row ----------------------------------------------------------------------------------- */

typedef struct table {
    const plan_options_t *options;
    const char *path;
    const zr_log_t *log;
    options_rows_t rows;
    column_t columns[MOST_COLUMNS];
    size_t n_columns;
} table_t;

/* Cells of a line, without the spaces and quotes around them; as many as there are. */
static size_t split(char *line, char *cells[MOST_COLUMNS]) {
    size_t n = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *rest = line, *cell; n < MOST_COLUMNS && (cell = strsep(&rest, ",")) != NULL; n++) {
        cell += strspn(cell, " \t\"");
        for (size_t end = strlen(cell); end > 0 && strchr(" \t\"", cell[end - 1]) != NULL;)
            cell[--end] = '\0';
        cells[n] = cell;
    }
    return n;
}

static const char *cell_of(const table_t *table, role_t role, const char *name,
                           char *const *cells) {
    for (size_t i = 0; i < table->n_columns; i++)
        if (table->columns[i].role == role &&
            (name == NULL || strcmp(table->columns[i].name, name) == 0) && cells[i][0] != '\0')
            return cells[i];
    return NULL;
}

/* Sizes of the command line's model, with those of the row in their place. */
static void write_model(const table_t *table, char *const *cells, const zr_model_shape_t *shape,
                        char *model, size_t size) {
    zr_model_text_t usual = zr_model_shape_text(shape);
    size_t used = 0;
    for (char *rest = usual.text, *part; (part = strsep(&rest, ",")) != NULL && used < size;) {
        size_t n = strcspn(part, "=");
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)n, part);
        const char *cell = strcmp(name, "seq") == 0 ? cell_of(table, ROLE_SEQ, NULL, cells)
                                                    : cell_of(table, ROLE_SIZE, name, cells);
        if (part[n] == '\0')
            used += (size_t)snprintf(model + used, size - used, "%s,", part);
        else
            used += (size_t)snprintf(model + used, size - used, "%s=%s,", name,
                                     cell != NULL ? cell : part + n + 1);
    }
    if (used > 0 && used < size)
        model[used - 1] = '\0';
}

static zr_status_t take_global_batch(const table_t *table, char *const *cells, plan_options_t *own,
                                     const zr_log_t *log) {
    const char *cell = cell_of(table, ROLE_GLOBAL_BATCH, NULL, cells);
    zr_config_t *config = &own->run.config;
    size_t batch = 0, each = config->micro_batch * (size_t)own->run.n_ranks;
    config->train_batch = 0; /* of the command line's ranks */
    if (cell == NULL)
        return ZR_OK;
    ZR_TRY(args_count("global batch", cell, 1, SIZE_MAX / 2, log, &batch));
    if (config->micro_batch == 0) {
        config->train_batch = batch;
        return ZR_OK;
    }
    if (batch % each != 0)
        return zr_fail(log, ZR_ERR_ARGUMENT, "global batch %zu: must be a multiple of %zu (%s)",
                       batch, each, "micro-batch x ranks");
    config->grad_accum = batch / each;
    return ZR_OK;
}

static zr_status_t take_cells(const table_t *table, char *const *cells, plan_options_t *own,
                              const zr_log_t *log) {
    char model[ZR_MODEL_TEXT_BYTES];
    const char *seq = cell_of(table, ROLE_SEQ, NULL, cells);
    for (size_t i = 0; i < table->n_columns; i++) {
        if (table->columns[i].role != ROLE_OPTION || cells[i][0] == '\0')
            continue;
        const options_row_t *row = options_find(&table->rows, table->columns[i].name);
        ZR_TRY(zr_option_set(&row->option, table->columns[i].name, cells[i], log,
                             (char *)own + row->offset));
    }
    write_model(table, cells, &own->run.shape, model, sizeof(model));
    own->run.model = model;
    if (seq != NULL)
        own->run.seq_text = seq;
    own->run.seq_min = 0;
    ZR_TRY(take_global_batch(table, cells, own, log));
    zr_status_t status = train_options_resolve_without_offload(&own->run, log);
    own->run.model = table->options->run.model;
    own->run.seq_text = own->run.seq_min_text = NULL;
    return status;
}

static zr_status_t take_time(const table_t *table, char *const *cells, calibrate_run_t *run,
                             const zr_log_t *log) {
    const char *ms = cell_of(table, ROLE_MS, NULL, cells);
    const char *cell = ms != NULL ? ms : cell_of(table, ROLE_SECONDS, NULL, cells);
    char *end = NULL;
    double value = cell != NULL ? strtod(cell, &end) : 0;
    if (cell == NULL || end == cell || *end != '\0' || !(value > 0) || !isfinite(value))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "the time of a step is \"%s\": must be a number greater than 0",
                       cell != NULL ? cell : "");
    run->measured = ms != NULL ? 1e-3 * value : value;
    return ZR_OK;
}

/* Messages about a row say which. */
typedef struct row_log {
    const table_t *table;
    size_t line;
} row_log_t;

static void log_row(void *context, zr_log_level_t level, int rank, const char *message) {
    const row_log_t *row = context;
    (void)rank;
    zr_log_write(row->table->log, level == ZR_LOG_ERROR ? ZR_LOG_WARNING : level,
                 "--calibrate %s: line %zu is left out: %s", row->table->path, row->line, message);
}

/* False: it is left out. */
static bool read_run(const table_t *table, char *const *cells, calibrate_run_t *run) {
    row_log_t context = {table, run->line};
    zr_log_t log = {.sink = log_row, .context = &context, .level = ZR_LOG_WARNING, .rank = -1};
    run->own = malloc(sizeof(*run->own));
    if (run->own == NULL)
        return false;
    *run->own = *table->options;
    zr_status_t status = take_time(table, cells, run, &log);
    ZR_THEN(status, take_cells(table, cells, run->own, &log));
    if (status == ZR_OK)
        return true;
    free(run->own);
    run->own = NULL;
    return false;
}

static bool is_parallel(const table_t *table, char *const *cells) {
    for (size_t i = 0; i < table->n_columns; i++)
        if (table->columns[i].role == ROLE_ONE && strtod(cells[i], NULL) > 1)
            return true;
    return false;
}

/* ---- the file -------------------------------------------------------------------------------- */

static zr_status_t read_header(table_t *table, FILE *file, calibration_t *calibration) {
    char line[LINE_BYTES] = "", *cells[MOST_COLUMNS];
    bool has_time = false;
    size_t used = 0;
    options_rows(&plan_table, &table->rows);
    if (fgets(line, sizeof(line), file) != NULL)
        table->n_columns = split(line, cells);
    for (size_t i = 0; i < table->n_columns; i++) {
        column_t *column = &table->columns[i];
        *column = column_of(cells[i], &table->rows);
        has_time |= column->role == ROLE_MS || column->role == ROLE_SECONDS;
        if (column->role == ROLE_IGNORED && used < sizeof(calibration->ignored))
            used +=
                (size_t)snprintf(calibration->ignored + used, sizeof(calibration->ignored) - used,
                                 "%s%s", used > 0 ? ", " : "", cells[i]);
    }
    if (has_time)
        return ZR_OK;
    return zr_fail(
        table->log, ZR_ERR_FORMAT,
        "--calibrate %s: line 1 names no column step_ms; columns are options of "
        "zero-plan (ranks, stage, micro-batch), sizes of --model (layers, channels), and "
        "step_ms",
        table->path);
}

static zr_status_t add_run(calibration_t *calibration, calibrate_run_t run, const zr_log_t *log) {
    size_t n = calibration->n_runs + 1;
    calibrate_run_t *grown = realloc(calibration->runs, n * sizeof(*grown));
    if (grown == NULL) {
        free(run.own);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s", zr_count_text(n, "run").text);
    }
    calibration->runs = grown;
    calibration->runs[calibration->n_runs++] = run;
    return ZR_OK;
}

static zr_status_t read_runs(table_t *table, FILE *file, calibration_t *calibration) {
    char line[LINE_BYTES], *cells[MOST_COLUMNS];
    ZR_TRY(read_header(table, file, calibration));
    for (size_t number = 2; fgets(line, sizeof(line), file) != NULL; number++) {
        calibrate_run_t run = {.line = number};
        size_t n = line[strspn(line, " \t\r\n")] != '\0' ? split(line, cells) : 0;
        if (n == 0)
            continue;
        if (n != table->n_columns)
            return zr_fail(table->log, ZR_ERR_FORMAT, "--calibrate %s: line %zu has %s, line 1 %zu",
                           table->path, number, zr_count_text(n, "cell").text, table->n_columns);
        if (is_parallel(table, cells))
            calibration->n_parallel++;
        else if (read_run(table, cells, &run))
            ZR_TRY(add_run(calibration, run, table->log));
        else
            calibration->n_impossible++;
    }
    if (calibration->n_runs >= LEAST_RUNS)
        return ZR_OK;
    return zr_fail(
        table->log, ZR_ERR_ARGUMENT,
        "--calibrate %s: has %s that can be planned (%zu left out for tensor or pipeline "
        "parallelism, %zu for other reasons); at least %d are required",
        table->path, zr_count_text(calibration->n_runs, "run").text, calibration->n_parallel,
        calibration->n_impossible, LEAST_RUNS);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Micro-batches that are planned; each further one takes as long as the last of these. */
#define MOST_MICRO_BATCHES 4

static zr_status_t plan_step(const calibrate_run_t *run, const zr_hardware_t *hardware,
                             size_t grad_accum, const zr_log_t *log, double *seconds_p) {
    zr_run_plan_t plan;
    zr_run_request_t request = train_plan_request(&run->own->run, hardware);
    zr_hardware_t *own = &request.hardware;
    zr_config_t *config = &request.config;
    own->device_memory_bytes = own->host_memory_bytes = own->disk_bytes = ZR_RUN_ENOUGH_BYTES;
    config->device_memory_bytes = config->host_memory_bytes = ZR_CONFIG_NO_BUDGET;
    config->nvme.capacity_bytes = ZR_CONFIG_NO_BUDGET;
    config->plan_memory = false; /* which takes longer than the rest of a plan */
    config->grad_accum = grad_accum;
    config->train_batch = config->micro_batch * grad_accum * (size_t)request.n_ranks;
    request.n_steps = 2; /* the first learns the order of units */
    request.log = *log;
    ZR_TRY(zr_run_plan(&request, &plan));
    *seconds_p = plan.step_seconds;
    return ZR_OK;
}

static zr_status_t predict(const calibrate_run_t *run, const zr_hardware_t *hardware,
                           const zr_log_t *log, double *seconds_p) {
    const zr_config_t *config = &run->own->run.config;
    size_t n = config->grad_accum;
    double fewer = 0, more = 0;
    if (n <= MOST_MICRO_BATCHES || config->order == ZR_ORDER_BLOCK)
        return plan_step(run, hardware, n, log, seconds_p);
    ZR_TRY(plan_step(run, hardware, MOST_MICRO_BATCHES - 1, log, &fewer));
    ZR_TRY(plan_step(run, hardware, MOST_MICRO_BATCHES, log, &more));
    *seconds_p = more + (double)(n - MOST_MICRO_BATCHES) * (more - fewer);
    return ZR_OK;
}

/* ---- the fit --------------------------------------------------------------------------------- */

#define MOST_ROUNDS 8
#define STEP 0.05   /* of a logarithm, for slopes */
#define FARTHEST 1. /* a round's move of one */
#define NOISE 0.05  /* of measured times */
/* Products whose bytes are described as free: where the fit begins, in units of memory's rate. */
#define FREE_BYTES_PER_S 1e17
#define USUAL_BYTES_RATIO 10

typedef struct fit {
    const calibration_t *of;
    zr_hardware_t described;
    bool (*takes)(const calibrate_run_t *run);
    const zr_log_t *log;
    double *errors; /* [n_runs] logarithms of planned to measured; 0: not taken */
    double *slopes; /* [N_KNOBS][n_runs] */
    double moved[CALIBRATE_MOST_KNOBS]; /* logarithms of seconds for a unit of work */
} fit_t;

static bool takes_all(const calibrate_run_t *run) {
    (void)run;
    return true;
}

static bool takes_fitted(const calibrate_run_t *run) {
    return !run->is_held_out;
}

/* The figures of a knob as so many times the described seconds. */
static void turn(zr_hardware_t *hardware, const char *figures, double times) {
    size_t n = 0;
    const zr_figure_t *all = zr_hardware_figures(&n);
    for (size_t i = 0; i < n; i++) {
        const char *at = strstr(figures, all[i].name);
        size_t length = strlen(all[i].name);
        if (at == NULL || (at[length] != '\0' && at[length] != ' ') ||
            (at != figures && at[-1] != ' '))
            continue;
        double value = zr_hardware_figure(hardware, &all[i]);
        bool is_rate = all[i].type == ZR_FIGURE_FRACTION || strstr(all[i].name, "per_s") != NULL;
        value = is_rate ? value / times : value * times;
        if (all[i].type == ZR_FIGURE_FRACTION && value > 1)
            value = 1;
        zr_hardware_set_figure(hardware, &all[i], value);
    }
}

static zr_hardware_t moved_hardware(const fit_t *fit, size_t more, double by) {
    zr_hardware_t hardware = fit->described;
    for (size_t k = 0; k < N_KNOBS; k++)
        turn(&hardware, knobs[k].figures, exp(fit->moved[k] + (k == more ? by : 0)));
    return hardware;
}

static zr_status_t find_errors(const fit_t *fit, const zr_hardware_t *hardware, double *errors) {
    for (size_t i = 0; i < fit->of->n_runs; i++) {
        const calibrate_run_t *run = &fit->of->runs[i];
        double seconds = 0;
        errors[i] = 0;
        if (!fit->takes(run))
            continue;
        ZR_TRY(predict(run, hardware, fit->log, &seconds));
        errors[i] = log(seconds / run->measured);
    }
    return ZR_OK;
}

static zr_status_t find_slopes(fit_t *fit) {
    size_t n = fit->of->n_runs;
    zr_hardware_t hardware = moved_hardware(fit, N_KNOBS, 0);
    ZR_TRY(find_errors(fit, &hardware, fit->errors));
    for (size_t k = 0; k < N_KNOBS; k++) {
        double *slopes = &fit->slopes[k * n];
        hardware = moved_hardware(fit, k, STEP);
        ZR_TRY(find_errors(fit, &hardware, slopes));
        for (size_t i = 0; i < n; i++)
            slopes[i] = (slopes[i] - fit->errors[i]) / STEP;
    }
    return ZR_OK;
}

/* Least squares of the linear model, one knob after the other until none moves. */
static double solve(fit_t *fit, double moves[N_KNOBS]) {
    size_t n = fit->of->n_runs;
    double farthest = 0;
    memset(moves, 0, N_KNOBS * sizeof(*moves));
    for (int round = 0; round < 2000; round++) {
        double most = 0;
        for (size_t k = 0; k < N_KNOBS; k++) {
            const double *slopes = &fit->slopes[k * n];
            double hold = NOISE * NOISE / (knobs[k].spread * knobs[k].spread);
            double down = hold * (fit->moved[k] + moves[k]), curve = hold;
            for (size_t i = 0; i < n; i++) {
                down += slopes[i] * fit->errors[i];
                curve += slopes[i] * slopes[i];
            }
            double least = fmax(-FARTHEST, -knobs[k].spread - fit->moved[k]);
            double next = fmax(least, fmin(FARTHEST, moves[k] - down / curve));
            for (size_t i = 0; i < n; i++)
                fit->errors[i] += slopes[i] * (next - moves[k]);
            most = fmax(most, fabs(next - moves[k]));
            moves[k] = next;
        }
        if (most < 1e-7)
            break;
    }
    for (size_t k = 0; k < N_KNOBS; k++)
        farthest = fmax(farthest, fabs(moves[k]));
    return farthest;
}

static zr_status_t run_fit(fit_t *fit, zr_hardware_t *fitted_p) {
    double moves[N_KNOBS];
    for (int round = 0; round < MOST_ROUNDS; round++) {
        ZR_TRY(find_slopes(fit));
        double farthest = solve(fit, moves);
        for (size_t k = 0; k < N_KNOBS; k++)
            fit->moved[k] += moves[k];
        if (farthest < 0.03)
            break;
    }
    *fitted_p = moved_hardware(fit, N_KNOBS, 0);
    return ZR_OK;
}

static void begin_fit(fit_t *fit) {
    zr_processor_t *device = &fit->described.device;
    double usual = USUAL_BYTES_RATIO * device->memory_bytes_per_s;
    memset(fit->moved, 0, sizeof(fit->moved));
    if (device->matrix_bf16_bytes_per_s > FREE_BYTES_PER_S)
        device->matrix_bf16_bytes_per_s = usual;
    if (device->matrix_fp32_bytes_per_s > FREE_BYTES_PER_S)
        device->matrix_fp32_bytes_per_s = usual;
}

static void note_seen(const fit_t *fit, calibration_t *calibration) {
    for (size_t k = 0; k < N_KNOBS; k++)
        for (size_t i = 0; i < calibration->n_runs; i++)
            calibration->is_seen[k] |= fabs(fit->slopes[k * calibration->n_runs + i]) > 1e-3;
}

/* What the runs do not depend on is as it was. */
static void keep_unseen(const calibration_t *calibration, const zr_hardware_t *described,
                        zr_hardware_t *fitted) {
    zr_hardware_t kept = *described;
    size_t n = 0;
    const zr_figure_t *all = zr_hardware_figures(&n);
    for (size_t k = 0; k < N_KNOBS; k++)
        for (size_t i = 0; i < n && calibration->is_seen[k]; i++) {
            zr_hardware_t other = *fitted;
            turn(&other, knobs[k].figures, 2);
            if (zr_hardware_figure(&other, &all[i]) != zr_hardware_figure(fitted, &all[i]))
                zr_hardware_set_figure(&kept, &all[i], zr_hardware_figure(fitted, &all[i]));
        }
    *fitted = kept;
}

static zr_status_t predict_all(calibration_t *calibration, const zr_hardware_t *hardware,
                               bool is_fitted, const zr_log_t *log) {
    for (size_t i = 0; i < calibration->n_runs; i++) {
        calibrate_run_t *run = &calibration->runs[i];
        ZR_TRY(predict(run, hardware, log, is_fitted ? &run->predicted : &run->described));
    }
    return ZR_OK;
}

static zr_status_t fit_all(calibration_t *calibration, const zr_hardware_t *described,
                           const zr_log_t *log) {
    size_t n = calibration->n_runs;
    fit_t fit = {.of = calibration, .described = *described, .takes = takes_fitted, .log = log};
    zr_hardware_t without;
    fit.errors = calloc(n * (N_KNOBS + 1), sizeof(double));
    if (fit.errors == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a fit to %s",
                       zr_count_text(n, "run").text);
    fit.slopes = fit.errors + n;
    zr_status_t status = predict_all(calibration, described, false, log);
    begin_fit(&fit);
    ZR_THEN(status, run_fit(&fit, &without));
    ZR_THEN(status, predict_all(calibration, &without, true, log));
    fit.takes = takes_all;
    ZR_THEN(status, run_fit(&fit, &calibration->fitted));
    if (status == ZR_OK) {
        note_seen(&fit, calibration);
        keep_unseen(calibration, described, &calibration->fitted);
    }
    free(fit.errors);
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

zr_status_t calibrate(const plan_options_t *options, const zr_log_t *log,
                      calibration_t *calibration_p) {
    table_t table = {.options = options, .path = options->calibrate_path, .log = log};
    calibration_t calibration = {.n_runs = 0};
    FILE *file = fopen(table.path, "re");
    if (file == NULL)
        return zr_fail(log, ZR_ERR_IO, "--calibrate %s: cannot read it: %s", table.path,
                       strerror(errno));
    zr_status_t status = read_runs(&table, file, &calibration);
    fclose(file);
    for (size_t i = 0; i < calibration.n_runs; i++) {
        calibration.runs[i].is_held_out = i % HELD_OUT_EACH == HELD_OUT_EACH - 1;
        calibration.n_held_out += calibration.runs[i].is_held_out;
    }
    ZR_THEN(status, fit_all(&calibration, &options->hardware, log));
    if (status != ZR_OK)
        calibration_free(&calibration);
    else
        *calibration_p = calibration;
    return status;
}

void calibration_free(calibration_t *calibration) {
    for (size_t i = 0; i < calibration->n_runs; i++)
        free(calibration->runs[i].own);
    free(calibration->runs);
    *calibration = (calibration_t){.n_runs = 0};
}
