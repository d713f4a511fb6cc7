/* See plot.h. */
#include "examples/train/plot.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "examples/common/files.h"
#include "examples/common/gnuplot.h"
#include "examples/common/json.h"

/* What is drawn of a line. */
static const char *const names[] = {"step", "loss", "val_loss", "lr"};
enum { STEP, LOSS, VAL_LOSS, LR, N_NAMES };

typedef struct reading {
    FILE *file;
    const char *path;
    const zr_log_t *log;
    bool is_csv;
    int columns[N_NAMES]; /* of CSV; -1: it has none */
    size_t n[N_NAMES];    /* numbers that were read */
    double min[N_NAMES], max[N_NAMES];
} reading_t;

static void find_columns(char *header, int columns[N_NAMES]) {
    char *rest = NULL;
    int at = 0;
    for (char *name = strtok_r(header, ",\r\n", &rest); name;
         name = strtok_r(NULL, ",\r\n", &rest)) {
        for (int i = 0; i < N_NAMES; i++)
            if (strcmp(name, names[i]) == 0)
                columns[i] = at;
        at++;
    }
}

/* Numbers of a row; NAN: it has none. */
static void read_row(const reading_t *reading, const char *line, double values[N_NAMES]) {
    int at = 0;
    for (const char *cell = line; cell != NULL; at++) {
        for (int i = 0; i < N_NAMES; i++) {
            char *end = NULL;
            double value = reading->columns[i] == at ? strtod(cell, &end) : NAN;
            if (end != NULL && end != cell)
                values[i] = value;
        }
        cell = strchr(cell, ',');
        cell = cell != NULL ? cell + 1 : NULL;
    }
}

static void read_object(const char *line, double values[N_NAMES]) {
    json_t *object = json_loads(line, 0, NULL);
    for (int i = 0; i < N_NAMES; i++) {
        const json_t *value = json_object_get(object, names[i]);
        if (json_is_number(value))
            values[i] = json_number_value(value);
    }
    json_decref(object);
}

static void note(reading_t *reading, int name, double value) {
    if (!isfinite(value))
        return;
    bool is_first = reading->n[name]++ == 0;
    reading->min[name] = is_first ? value : fmin(reading->min[name], value);
    reading->max[name] = is_first ? value : fmax(reading->max[name], value);
}

/* The next line's numbers. False: there is none. A part of a line, as a kill leaves it, has none.
 */
static bool read_line(reading_t *reading, char **line, size_t *room, double values[N_NAMES]) {
    for (int i = 0; i < N_NAMES; i++)
        values[i] = NAN;
    if (getline(line, room, reading->file) < 0)
        return false;
    if (reading->is_csv)
        read_row(reading, *line, values);
    else
        read_object(*line, values);
    for (int i = 0; i < N_NAMES; i++)
        note(reading, i, values[i]);
    return true;
}

/* Data of the script: a column each; NaN is a gap. */
static void write_data(reading_t *reading, FILE *script) {
    char *line = NULL;
    size_t room = 0;
    double values[N_NAMES];
    if (reading->is_csv && getline(&line, &room, reading->file) >= 0)
        find_columns(line, reading->columns);
    fputs("$log << EOD\n", script);
    while (read_line(reading, &line, &room, values))
        if (isfinite(values[STEP]))
            fprintf(script, "%.0f %.9g %.9g %.9g\n", values[STEP], values[LOSS], values[VAL_LOSS],
                    values[LR]);
    fputs("EOD\n", script);
    free(line);
}

/* An axis of one value alone has no length, which gnuplot says on each run. */
static void set_range(const reading_t *reading, int a, int b, const char *axis, FILE *script) {
    if (reading->n[a] == 0)
        a = b;
    if (reading->n[b] == 0)
        b = a;
    double min = fmin(reading->min[a], reading->min[b]);
    double max = fmax(reading->max[a], reading->max[b]);
    if (min == max)
        fprintf(script, "set %s [%.9g:%.9g]\n", axis, min - 1, max + 1);
}

static void write_curves(const reading_t *reading, FILE *script) {
    const char *before = "plot";
    fputs("set datafile missing 'nan'\nset xlabel 'step'\nset ylabel 'loss'\nset grid\n"
          "set key top right\n",
          script);
    set_range(reading, STEP, STEP, "xrange", script);
    set_range(reading, LOSS, VAL_LOSS, "yrange", script);
    if (reading->n[LR] > 0)
        fputs("set y2label 'learning rate'\nset y2tics\nset ytics nomirror\n", script);
    if (reading->n[LR] > 0)
        fprintf(script, "set y2range [0:%s]\n", reading->max[LR] > 0 ? "*" : "1");
    if (reading->n[LR] > 0) {
        fprintf(script, "%s $log using 1:4 axes x1y2 with lines lc rgb '#bbbbbb' title 'lr'",
                before);
        before = ",";
    }
    if (reading->n[LOSS] > 0) {
        fprintf(script, "%s $log using 1:2 with lines lc rgb '#1f77b4' title 'loss'", before);
        before = ",";
    }
    if (reading->n[VAL_LOSS] > 0)
        fprintf(script,
                "%s $log using 1:3 with linespoints pt 7 ps 0.6 lc rgb '#d62728' title "
                "'validation loss'",
                before);
    fputc('\n', script);
}

static zr_status_t draw(reading_t *reading, const char *path) {
    gnuplot_t plot;
    ZR_TRY(gnuplot_begin(path, 800, 480, reading->log, &plot));
    write_data(reading, plot.script);
    if (reading->n[LOSS] == 0 && reading->n[VAL_LOSS] == 0) {
        fclose(plot.script);
        return zr_fail(reading->log, ZR_ERR_FORMAT,
                       "--plot %s: --log %s has no line with a step and a loss; give a log that "
                       "zero-train has written",
                       path, reading->path);
    }
    write_curves(reading, plot.script);
    return gnuplot_end(&plot);
}

zr_status_t train_plot_draw(const train_options_t *options, const zr_log_t *log) {
    reading_t reading = {.path = options->log_path,
                         .log = log,
                         .is_csv = files_name_ends(options->log_path, ".csv"),
                         .columns = {-1, -1, -1, -1},
                         .file = fopen(options->log_path, "re")};
    if (reading.file == NULL)
        return zr_fail(log, ZR_ERR_IO, "--plot %s: cannot read --log %s: %s", options->plot_path,
                       options->log_path, strerror(errno));
    zr_status_t status = draw(&reading, options->plot_path);
    fclose(reading.file);
    return status;
}
