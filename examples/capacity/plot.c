/*
 * On the left bars, one for each stage and placement; where something was swept, lines over it. On
 * the right, of a few placements, the rate of every size that was planned, and those that were
 * trained.
 */
#include "examples/capacity/plot.h"

#include <string.h>

#include "examples/capacity/point.h"
#include "examples/common/gnuplot.h"
#include "examples/train/report.h"

static const char *const colours[] = {"#4477aa", "#66ccee", "#ccbb44", "#228833"}; /* of stages */

static size_t count_of(const capacity_results_t *results) {
    return json_array_size(results->points);
}

static const json_t *point_at(const capacity_results_t *results, size_t i) {
    return json_array_get(results->points, i);
}

/* Points of one combination of what is swept stand together, each time in the same order. */
static size_t places_per_case(const capacity_results_t *results) {
    static const char *const names[] = {"ranks", "device_memory", "host_memory", "nvme_capacity"};
    size_t n = 1;
    for (; n < count_of(results); n++)
        for (size_t k = 0; k < 4; k++)
            if (!json_equal(json_object_get(point_at(results, n), names[k]),
                            json_object_get(point_at(results, 0), names[k])))
                return n;
    return n;
}

static int stage_of(const json_t *point) {
    int stage = (int)capacity_point_number(point, "stage");
    return stage >= 0 && stage <= 3 ? stage : 0;
}

static double params_of(const json_t *point) {
    return capacity_point_number(point, "largest.model.parameters");
}

/* Whether a model was found at that stage: of others there is nothing to draw. */
static bool has_stage(const capacity_results_t *results, int stage) {
    for (size_t i = 0; i < count_of(results); i++)
        if (stage_of(point_at(results, i)) == stage && params_of(point_at(results, i)) > 0)
            return true;
    return false;
}

/* "3 nvme/cpu"; at stages that keep parameters on the device "2 nvme". */
static void place_name(const json_t *point, char *text, size_t size) {
    int stage = stage_of(point);
    snprintf(text, size, "%d %s%s%s", stage, capacity_point_text(point, "offload_optimizer"),
             stage == 3 ? "/" : "", stage == 3 ? capacity_point_text(point, "offload_params") : "");
}

/* ---- capacities ------------------------------------------------------------------------------ */

/* Three digits, and never with an exponent. */
static void write_number(double value, char *text, size_t size) {
    snprintf(text, size, value < 1000 ? "%.3g" : "%.0f", value);
}

static void write_bars(const capacity_results_t *results, FILE *script) {
    fputs("$bars << END\n", script);
    for (size_t i = 0; i < count_of(results); i++) {
        const json_t *point = point_at(results, i);
        char number[32];
        write_number(1e-6 * params_of(point), number, sizeof(number));
        fprintf(script, "%zu %.6g %d \"%s\"\n", i, 1e-6 * params_of(point), stage_of(point),
                number);
    }
    fputs("END\n", script);
}

/* What differs from the first combination: "ranks 4". */
static void case_name(const capacity_results_t *results, const json_t *point, char *text,
                      size_t size) {
    static const char *const names[] = {"ranks", "device_memory", "host_memory", "nvme_capacity"};
    static const char *const said[] = {"ranks", "device", "host", "nvme"};
    size_t n = 0;
    text[0] = '\0';
    for (size_t k = 0; k < 4 && n < size; k++) {
        bool is_swept = false;
        char value[32];
        for (size_t i = 0; i < count_of(results); i++)
            is_swept |= !json_equal(json_object_get(point_at(results, i), names[k]),
                                    json_object_get(point, names[k]));
        if (!is_swept)
            continue;
        if (k == 0)
            snprintf(value, sizeof(value), "%.0f", capacity_point_number(point, names[k]));
        else
            snprintf(value, sizeof(value), "%s",
                     train_bytes(capacity_point_number(point, names[k])).text);
        n += (size_t)snprintf(text + n, size - n, "%s%s %s", n > 0 ? ", " : "", said[k], value);
    }
}

/* The names below the bars, or below the points of lines. */
static void set_tics(const capacity_results_t *results, size_t step, int angle, FILE *script) {
    char name[128];
    fprintf(script, "set xtics rotate by %d right (", angle);
    for (size_t i = 0; i < count_of(results); i += step) {
        if (step == 1)
            place_name(point_at(results, i), name, sizeof(name));
        else
            case_name(results, point_at(results, i), name, sizeof(name));
        fprintf(script, "%s\"%s\" %zu", i > 0 ? ", " : "", name, i / step);
    }
    fputs(")\n", script);
}

static void draw_bars(const capacity_results_t *results, FILE *script) {
    const json_t *first = point_at(results, 0);
    write_bars(results, script);
    set_tics(results, 1, 60, script);
    fprintf(script, "set title 'largest model, million parameters (%s)'\n",
            zr_count_text((uint64_t)capacity_point_number(first, "ranks"), "rank").text);
    fputs("set style fill solid 0.8 border -1\nset boxwidth 0.7\nset logscale y\n"
          "set key top left\nset yrange [*:*]\nset autoscale yfixmax\n"
          "set offsets 0, 0, graph 0.35, 0\nset xlabel 'stage, optimizer/parameters'\n"
          "set grid ytics\n",
          script);
    fprintf(script, "set xrange [-0.8:%zu.8]\nplot ", count_of(results) - 1);
    for (int stage = 0; stage <= 3; stage++)
        if (has_stage(results, stage))
            fprintf(script,
                    "$bars using ($3 == %d && $2 > 0 ? $1 : 1/0):2 with boxes linecolor rgb "
                    "'%s' title 'stage %d', ",
                    stage, colours[stage], stage);
    fputs("$bars using ($2 > 0 ? $1 : 1/0):2:4 with labels rotate by 90 left offset 0,0.4 font "
          "',8' notitle\n",
          script);
}

static void draw_sweep(const capacity_results_t *results, size_t n_places, FILE *script) {
    char name[128];
    for (size_t k = 0; k < n_places; k++) {
        fprintf(script, "$place%zu << END\n", k);
        for (size_t i = k; i < count_of(results); i += n_places) {
            fprintf(script, "%zu %.6g\n", i / n_places, 1e-6 * params_of(point_at(results, i)));
        }
        fputs("END\n", script);
    }
    set_tics(results, n_places, 30, script);
    fputs("set title 'largest model, million parameters'\nset logscale y\n"
          "set key outside right\nset offsets 0.3, 0.3, 0, 0\n"
          "set grid ytics\nplot ",
          script);
    for (size_t k = 0; k < n_places; k++) {
        const json_t *point = point_at(results, k);
        place_name(point, name, sizeof(name));
        fprintf(script,
                "%s$place%zu using 1:($2 > 0 ? $2 : 1/0) with linespoints linewidth 2 "
                "pointtype %zu linecolor rgb '%s' title '%s'",
                k > 0 ? ", " : "", k, k + 1, colours[stage_of(point)], name);
    }
    fputs("\n", script);
}

/* ---- rates ----------------------------------------------------------------------------------- */

#define MOST_LABELLED 5 /* placements whose rates are drawn: one for each stage, and auto */

static bool is_auto(const json_t *point) {
    return strcmp(capacity_point_text(point, "offload_optimizer"), "auto") == 0 ||
           strcmp(capacity_point_text(point, "offload_params"), "auto") == 0;
}

/* Of a stage the placement that trains the largest model; of stage 4, of those that auto chose. */
static const json_t *find_labelled(const capacity_results_t *results, int stage) {
    const json_t *best = NULL;
    for (size_t i = 0; i < count_of(results); i++) {
        const json_t *point = point_at(results, i);
        bool is_asked = is_auto(point) ? stage == MOST_LABELLED - 1 : stage == stage_of(point);
        if (is_asked && params_of(point) > (best != NULL ? params_of(best) : 0))
            best = point;
    }
    return best;
}

static double tokens_per_step(const json_t *point) {
    return 1e-3 * capacity_point_number(point, "largest.tokens_per_s") *
           capacity_point_number(point, "largest.step_ms");
}

static void write_rates(const json_t *point, int number, FILE *script) {
    size_t k;
    json_t *size;
    fprintf(script, "$rates%d << END\n", number);
    json_array_foreach((json_t *)capacity_point_at(point, "sizes"), k, size) {
        fprintf(script, "%.6g %.6g\n", 1e-6 * capacity_point_number(size, "parameters"),
                1e3 * tokens_per_step(point) / capacity_point_number(size, "step_ms"));
    }
    fputs("END\n", script);
}

static bool write_measured(const capacity_results_t *results, FILE *script) {
    bool has_any = false;
    fputs("$measured << END\n0 0\n", script);
    for (size_t i = 0; i < count_of(results); i++) {
        const json_t *point = point_at(results, i);
        double step_ms = capacity_point_number(point, "proof.step_ms");
        if (step_ms > 0)
            fprintf(script, "%.6g %.6g\n", 1e-6 * params_of(point),
                    1e3 * tokens_per_step(point) / step_ms);
        has_any |= step_ms > 0;
    }
    fputs("END\n", script);
    return has_any;
}

/* Tokens per second against parameters: lines of a few placements, with their names. */
static void draw_rates(const capacity_results_t *results, FILE *script) {
    const json_t *points[MOST_LABELLED];
    const char *between = "";
    for (int i = 0; i < MOST_LABELLED; i++) {
        points[i] = find_labelled(results, i);
        if (points[i] != NULL)
            write_rates(points[i], i, script);
    }
    bool has_measured = write_measured(results, script);
    fputs("set title 'tokens per second'\nset logscale xy\nset xlabel 'million parameters'\n"
          "set xrange [*:*]\nset yrange [*:*]\nset autoscale xy\n"
          "set xtics norotate autofreq\nset key inside bottom left\nset offsets 0, 0, 0, 0\nset "
          "grid\nplot ",
          script);
    for (int i = 0; i < MOST_LABELLED; i++) {
        char name[128];
        if (points[i] == NULL)
            continue;
        place_name(points[i], name, sizeof(name));
        fprintf(script,
                "%s$rates%d using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 0.4 "
                "linecolor rgb '%s' %s title 'planned, %s'",
                between, i, colours[stage_of(points[i])],
                i == MOST_LABELLED - 1 ? "dashtype 2" : "", name);
        between = ", ";
    }
    if (has_measured)
        fputs(", $measured using ($1 > 0 ? $1 : 1/0):2 with points pointtype 2 linewidth 2 "
              "linecolor 'black' title 'measured'",
              script);
    fputs("\n", script);
}

static bool has_found(const capacity_results_t *results) {
    bool has_any = false;
    for (int stage = 0; stage <= 3; stage++)
        has_any |= has_stage(results, stage);
    return has_any;
}

zr_status_t capacity_plot(const capacity_results_t *results, const char *path,
                          const zr_log_t *log) {
    gnuplot_t plot;
    size_t n_places = places_per_case(results);
    if (!has_found(results)) {
        zr_log_write(log, ZR_LOG_WARNING, "--plot %s: there is nothing to draw, since nothing fits",
                     path);
        return ZR_OK;
    }
    ZR_TRY(gnuplot_begin(path, 1300, 520, log, &plot));
    fputs("set multiplot layout 1,2\nset bmargin 7\n", plot.script);
    if (n_places == count_of(results))
        draw_bars(results, plot.script);
    else
        draw_sweep(results, n_places, plot.script);
    draw_rates(results, plot.script);
    fputs("unset multiplot\n", plot.script);
    return gnuplot_end(&plot);
}
