/*
 * Above bars, one for each stage and placement; where something was swept, lines over it. Below, of
 * a few placements, the rate of every size that was planned, and those that were trained.
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

/* Of an axis: gnuplot warns where it has to find one for a single value. */
typedef struct extent {
    double least, most;
} extent_t;

static void widen(extent_t *extent, double value) {
    if (value <= 0)
        return;
    extent->least = extent->least == 0 || value < extent->least ? value : extent->least;
    extent->most = value > extent->most ? value : extent->most;
}

static extent_t extent_of_sizes(const capacity_results_t *results) {
    extent_t extent = {0, 0};
    for (size_t i = 0; i < count_of(results); i++)
        widen(&extent, 1e-6 * params_of(point_at(results, i)));
    return extent;
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
          "set key outside right top reverse Left samplen 2\nset xlabel 'stage, "
          "optimizer/parameters'\n"
          "set grid ytics\n",
          script);
    extent_t sizes = extent_of_sizes(results);
    fprintf(script, "set yrange [%.6g:%.6g]\n", sizes.least / 3, sizes.most * 4);
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

#define MOST_LINES 8
static const char *const line_colours[MOST_LINES] = {"#4477aa", "#ee6677", "#228833", "#ccbb44",
                                                     "#66ccee", "#aa3377", "#bb7733", "#666666"};

/* The most that a placement trains, of all that was swept. */
static double most_of(const capacity_results_t *results, size_t n_places, size_t k) {
    double most = 0;
    for (size_t i = k; i < count_of(results); i += n_places)
        most = params_of(point_at(results, i)) > most ? params_of(point_at(results, i)) : most;
    return most;
}

/* Of many placements those that train the largest models; of equal ones the first. */
static bool is_drawn(const capacity_results_t *results, size_t n_places, size_t k) {
    double own = most_of(results, n_places, k);
    size_t n_before = 0;
    for (size_t i = 0; i < n_places; i++) {
        double other = most_of(results, n_places, i);
        n_before += other > own || (other == own && i < k);
    }
    return n_before < MOST_LINES;
}

static void draw_sweep(const capacity_results_t *results, size_t n_places, FILE *script) {
    const char *between = "";
    size_t n_drawn = 0;
    char name[128];
    for (size_t k = 0; k < n_places; k++) {
        fprintf(script, "$place%zu << END\n", k);
        for (size_t i = k; i < count_of(results); i += n_places) {
            fprintf(script, "%zu %.6g\n", i / n_places, 1e-6 * params_of(point_at(results, i)));
        }
        fputs("END\n", script);
    }
    set_tics(results, n_places, 30, script);
    extent_t sizes = extent_of_sizes(results);
    fputs("set title 'largest model, million parameters'\nset logscale y\n"
          "set key outside right top reverse Left samplen 2\nset grid ytics\n",
          script);
    fprintf(script, "set xrange [-0.3:%.1f]\nset yrange [%.6g:%.6g]\nplot ",
            (double)(count_of(results) / n_places) - 0.7, sizes.least / 2, sizes.most * 2);
    for (size_t k = 0; k < n_places; k++) {
        const json_t *point = point_at(results, k);
        if (!is_drawn(results, n_places, k))
            continue;
        place_name(point, name, sizeof(name));
        fprintf(script,
                "%s$place%zu using 1:($2 > 0 ? $2 : 1/0) with linespoints linewidth 2 "
                "pointtype %zu linecolor rgb '%s' title '%s'",
                between, k, k + 1, line_colours[n_drawn++], name);
        between = ", ";
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

static void write_rates(const json_t *point, int number, extent_t axes[2], FILE *script) {
    size_t k;
    json_t *size;
    fprintf(script, "$rates%d << END\n", number);
    json_array_foreach((json_t *)capacity_point_at(point, "sizes"), k, size) {
        double params = 1e-6 * capacity_point_number(size, "parameters");
        double rate = 1e3 * tokens_per_step(point) / capacity_point_number(size, "step_ms");
        fprintf(script, "%.6g %.6g\n", params, rate);
        widen(&axes[0], params);
        widen(&axes[1], rate);
    }
    fputs("END\n", script);
}

static bool write_measured(const capacity_results_t *results, extent_t axes[2], FILE *script) {
    bool has_any = false;
    fputs("$measured << END\n", script);
    for (size_t i = 0; i < count_of(results); i++) {
        const json_t *point = point_at(results, i);
        double step_ms = capacity_point_number(point, "proof.step_ms");
        double rate = step_ms > 0 ? 1e3 * tokens_per_step(point) / step_ms : 0;
        if (rate > 0)
            fprintf(script, "%.6g %.6g\n", 1e-6 * params_of(point), rate);
        widen(&axes[1], rate);
        has_any |= rate > 0;
    }
    fputs("END\n", script);
    return has_any;
}

/* Tokens per second against parameters: lines of a few placements, with their names. */
static void draw_rates(const capacity_results_t *results, FILE *script) {
    const json_t *points[MOST_LABELLED];
    const char *between = "";
    extent_t axes[2] = {{0, 0}, {0, 0}};
    for (int i = 0; i < MOST_LABELLED; i++) {
        points[i] = find_labelled(results, i);
        if (points[i] != NULL)
            write_rates(points[i], i, axes, script);
    }
    bool has_measured = write_measured(results, axes, script);
    if (axes[0].most == 0 || axes[1].most == 0)
        return;
    fputs(
        "set title 'tokens per second, planned'\nset logscale xy\nset xlabel 'million parameters'\n"
        "set xtics norotate autofreq\nset key outside right top reverse Left samplen 2\nset grid\n",
        script);
    fprintf(script, "set xrange [%.6g:%.6g]\nset yrange [%.6g:%.6g]\nplot ", axes[0].least / 1.5,
            axes[0].most * 1.5, axes[1].least / 1.5, axes[1].most * 1.5);
    for (int i = 0; i < MOST_LABELLED; i++) {
        char name[128];
        if (points[i] == NULL)
            continue;
        place_name(points[i], name, sizeof(name));
        fprintf(script,
                "%s$rates%d using 1:2 with linespoints linewidth 2 pointtype 7 pointsize 0.4 "
                "linecolor rgb '%s' %s title '%s'",
                between, i, colours[stage_of(points[i])],
                i == MOST_LABELLED - 1 ? "dashtype 2" : "", name);
        between = ", ";
    }
    if (has_measured)
        fputs(", $measured using 1:2 with points pointtype 2 linewidth 2 "
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
        zr_log_write(log, ZR_LOG_WARNING, "--plot %s: nothing to draw, as nothing fits", path);
        return ZR_OK;
    }
    ZR_TRY(gnuplot_begin(path, 900, 860, log, &plot));
    fputs("set multiplot layout 2,1\nset lmargin 9\nset rmargin 19\n", plot.script);
    if (n_places == count_of(results))
        draw_bars(results, plot.script);
    else
        draw_sweep(results, n_places, plot.script);
    draw_rates(results, plot.script);
    fputs("unset multiplot\n", plot.script);
    return gnuplot_end(&plot);
}
