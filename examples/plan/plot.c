/*
 * Placements stand side by side, with a panel for each tier that any of them uses and below them,
 * as in a table, what each is. Bars are cut off where they go far beyond what there is, with their
 * height written above: what fits has to stay readable.
 */
#include "examples/plan/plot.h"

#include <stdlib.h>
#include <string.h>

#include "examples/common/gnuplot.h"
#include "examples/plan/plot_time.h"
#include "examples/plan/words.h"
#include "examples/train/report.h"

#define MOST_COLUMNS 48
/* In pixels. */
#define LEAST_WIDTH 1500
#define COLUMN_WIDTH 64 /* at least: its numbers have room */
#define PANEL_HEIGHT 230
#define LANE_HEIGHT 42
#define HEAD_HEIGHT 92
#define TABLE_HEIGHT 112
#define LINE_HEAD_HEIGHT 52
#define LINE_FOOT_HEIGHT 82
#define LEFT 130
#define RIGHT 78

typedef struct plot {
    const plan_options_t *options;
    const zr_run_rows_t *rows;
    const zr_run_row_t *columns[MOST_COLUMNS];
    size_t n_columns;
    bool has_tier[ZR_N_TIERS];
    bool has_tag[ZR_N_TAGS];
    plan_line_t *line; /* NULL: none */
    int width, height; /* in pixels */
    int top;           /* of what is drawn next, from above */
    FILE *script;
} plot_t;

static const char *const tag_colours[ZR_N_TAGS] = {[ZR_TAG_PARAMETERS] = "#4477aa",
                                                   [ZR_TAG_GATHERED_PARAMETERS] = "#8fb4d9",
                                                   [ZR_TAG_GRADIENTS] = "#228833",
                                                   [ZR_TAG_GRADIENT_BUCKETS] = "#99cc77",
                                                   [ZR_TAG_OPTIMIZER_STATE] = "#aa3377",
                                                   [ZR_TAG_ACTIVATIONS] = "#ccbb44",
                                                   [ZR_TAG_WORKSPACE] = "#ee6677",
                                                   [ZR_TAG_STAGING] = "#ee9944",
                                                   [ZR_TAG_DATA] = "#66ccee",
                                                   [ZR_TAG_OTHER] = "#999999"};

/* ---- what is drawn --------------------------------------------------------------------------- */

static bool is_better(const zr_run_rows_t *rows, const zr_run_row_t *row,
                      const zr_run_row_t *than) {
    const zr_run_row_t *recommended = &rows->all[rows->recommended];
    if (rows->n_fit > 0 && (row == recommended || than == recommended))
        return row == recommended;
    return row->one.fits && row->tokens_per_s > than->tokens_per_s;
}

/* Sizes of groups are one column. */
static bool has_same_column(const zr_run_row_t *a, const zr_run_row_t *b) {
    return (a->group_size > 0) == (b->group_size > 0) && a->stage == b->stage &&
           a->optimizer == b->optimizer && a->params == b->params;
}

/* A column for each stage and placement, and with groups another one: the best of it. */
static void choose_columns(plot_t *plot) {
    const zr_run_rows_t *rows = plot->rows;
    for (size_t i = 0; i < rows->n; i++) {
        const zr_run_row_t *row = &rows->all[i];
        size_t k = 0;
        while (k < plot->n_columns && !has_same_column(plot->columns[k], row))
            k++;
        if (k == MOST_COLUMNS)
            return;
        if (k == plot->n_columns || is_better(rows, row, plot->columns[k]))
            plot->columns[k] = row;
        plot->n_columns += k == plot->n_columns;
    }
}

static size_t bytes_of(const zr_run_row_t *row, int tier) {
    const zr_run_plan_t *plan = &row->one.plan;
    return tier == ZR_TIER_NVME ? plan->nvme_bytes : plan->tiers[tier].reserved.peak;
}

static size_t bytes_of_tag(const zr_run_row_t *row, int tier, int tag) {
    const zr_run_plan_t *plan = &row->one.plan;
    return tier == ZR_TIER_NVME ? plan->nvme_by_tag[tag] : plan->tiers[tier].by_tag[tag].peak;
}

static bool tier_has_tag(const plot_t *plot, int tier, int tag) {
    for (size_t i = 0; i < plot->n_columns; i++)
        if (bytes_of_tag(plot->columns[i], tier, tag) > 0)
            return true;
    return false;
}

static void find_uses(plot_t *plot) {
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        for (size_t i = 0; i < plot->n_columns; i++)
            plot->has_tier[tier] |= bytes_of(plot->columns[i], tier) > 0;
        for (int tag = 0; tag < ZR_N_TAGS; tag++)
            plot->has_tag[tag] |= tier_has_tag(plot, tier, tag);
    }
}

static zr_status_t make_line(plot_t *plot, const plan_step_t *step, const zr_log_t *log) {
    if (!step->is_made)
        return ZR_OK;
    plot->line = malloc(sizeof(*plot->line));
    if (plot->line == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a time line");
    plan_line_make(&step->spans, plot->line);
    return ZR_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* The next part of the picture: a space above it, its own height, and a space below. */
static void place(plot_t *plot, int above, int height, int below) {
    int top = plot->top + above;
    fprintf(plot->script,
            "set lmargin at screen %.5f\nset rmargin at screen %.5f\n"
            "set tmargin at screen %.5f\nset bmargin at screen %.5f\n",
            (double)LEFT / plot->width, 1 - (double)RIGHT / plot->width,
            1 - (double)top / plot->height, 1 - (double)(top + height) / plot->height);
    plot->top = top + height + below;
}

static int picture_height(const plot_t *plot) {
    int height = HEAD_HEIGHT + TABLE_HEIGHT;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        height += plot->has_tier[tier] ? PANEL_HEIGHT + 22 : 0;
    if (plot->line != NULL)
        height +=
            LINE_HEAD_HEIGHT + LANE_HEIGHT * (int)plan_line_n_lanes(plot->line) + LINE_FOOT_HEIGHT;
    return height;
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct scale {
    double unit; /* bytes */
    const char *name;
    double top;    /* bytes: what is higher is cut off */
    double budget; /* bytes; the most that any column has there */
} scale_t;

static scale_t scale_of(const plot_t *plot, int tier) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    scale_t scale = {.unit = 1, .name = names[0]};
    double largest = 0, largest_fit = 0;
    for (size_t i = 0; i < plot->n_columns; i++) {
        const zr_run_row_t *row = plot->columns[i];
        zr_run_request_t request = plan_row_request(plot->options, row);
        double own = (double)bytes_of(row, tier);
        double there = (double)zr_run_there(&request, (zr_tier_t)tier, &row->one.plan);
        largest = own > largest ? own : largest;
        largest_fit = row->one.fits && own > largest_fit ? own : largest_fit;
        scale.budget = there > scale.budget ? there : scale.budget;
    }
    scale.top = 1.12 * largest;
    if (scale.top > 1.6 * scale.budget)
        scale.top = 1.6 * scale.budget;
    if (scale.top < 1.15 * scale.budget && scale.budget < 3 * largest)
        scale.top = 1.15 * scale.budget;
    for (int i = 0; scale.unit * 1024 <= scale.top && i < 4; i++) {
        scale.unit *= 1024;
        scale.name = names[i + 1];
    }
    return scale;
}

/* Boxes of each tag, from the bottom, and of each column a line where its peak is. */
static void write_bars(const plot_t *plot, int tier, const scale_t *scale) {
    double below[MOST_COLUMNS] = {0};
    for (int tag = 0; tag < ZR_N_TAGS; tag++) {
        fprintf(plot->script, "$tag%d << END\n", tag);
        for (size_t i = 0; i < plot->n_columns; i++) {
            double own = (double)bytes_of_tag(plot->columns[i], tier, tag) / scale->unit;
            if (own > 0)
                fprintf(plot->script, "%zu %.6g %.3f %.3f %.6g %.6g\n", i, below[i],
                        (double)i - 0.32, (double)i + 0.32, below[i], below[i] + own);
            below[i] += own;
        }
        fputs("END\n", plot->script);
    }
    fputs("$peaks << END\n", plot->script);
    for (size_t i = 0; i < plot->n_columns; i++)
        if (bytes_of(plot->columns[i], tier) > 0)
            fprintf(plot->script, "%.3f %.6g 0.8 0\n", (double)i - 0.4,
                    (double)bytes_of(plot->columns[i], tier) / scale->unit);
    fputs("END\n", plot->script);
}

static void write_sizes(const plot_t *plot, int tier, const scale_t *scale) {
    for (size_t i = 0; i < plot->n_columns; i++) {
        double own = (double)bytes_of(plot->columns[i], tier);
        double top = own > scale->top ? scale->top : own;
        if (own > 0)
            fprintf(
                plot->script,
                "set label '%s%s' at first %zu, first %.6g center offset 0,%s font ',8' front boxed"
                " textcolor rgb '%s'\n",
                own > scale->top ? "^ " : "", train_bytes(own).text, i, top / scale->unit,
                own > scale->top ? "-0.6" : "0.55",
                plot->columns[i]->one.fits ? "#000000" : "#bb2222");
    }
}

static void write_budget(const plot_t *plot, int tier, const scale_t *scale) {
    train_bytes_t size = train_bytes(scale->budget);
    fprintf(plot->script, "set ylabel '%s, %s'\n", zr_tier_name((zr_tier_t)tier), scale->name);
    if (scale->budget > scale->top) {
        fprintf(plot->script,
                "set label \"of\\n%s\" at graph 1.004, graph 0.97 left font ',9' textcolor rgb "
                "'#555555'\n",
                size.text);
        return;
    }
    fprintf(plot->script,
            "set arrow from graph 0, first %.6g to graph 1, first %.6g nohead front linewidth 2 "
            "dashtype 2 linecolor rgb '#222222'\n"
            "set label '%s' at graph 1.004, first %.6g left font ',9' front\n",
            scale->budget / scale->unit, scale->budget / scale->unit, size.text,
            scale->budget / scale->unit);
}

/* The recommended column has a light ground, and those that do not fit a dark one. */
static void write_grounds(const plot_t *plot) {
    const zr_run_row_t *recommended = &plot->rows->all[plot->rows->recommended];
    for (size_t i = 0; i < plot->n_columns; i++) {
        bool is_chosen = plot->rows->n_fit > 0 && plot->columns[i] == recommended;
        if (is_chosen || !plot->columns[i]->one.fits)
            fprintf(plot->script,
                    "set object rectangle from first %.2f, graph 0 to first %.2f, graph 1 behind "
                    "fillcolor rgb '%s' fillstyle solid 1 noborder\n",
                    (double)i - 0.5, (double)i + 0.5, is_chosen ? "#fff2b3" : "#ececec");
    }
}

/* What the columns are, line by line. */
static void write_table(const plot_t *plot) {
    const char *const lines[] = {plot->rows->has_groups ? "stage, group" : "stage",
                                 "optimizer",
                                 "parameters",
                                 "recompute",
                                 "micro-batch",
                                 "tokens/s"};
    fputs("set xtics scale 0 nomirror (", plot->script);
    for (size_t i = 0; i < plot->n_columns; i++) {
        const zr_run_row_t *row = plot->columns[i];
        char speed[32] = "no room", group[32] = "";
        if (row->one.fits)
            snprintf(speed, sizeof(speed), "%.0f", row->tokens_per_s);
        if (plot->rows->has_groups)
            snprintf(group, sizeof(group), ", %d", plan_row_group_size(plot->options, row));
        fprintf(plot->script, "%s\"%d%s\\n%s\\n%s\\n%s\\n%zu\\n%s\" %zu", i == 0 ? "" : ", ",
                row->stage, group, train_offload_name(row->optimizer),
                train_offload_name(row->params), row->recompute ? "unit" : "none", row->micro_batch,
                speed, i);
    }
    fputs(")\n", plot->script);
    fputs("set label \"", plot->script);
    for (size_t k = 0; k < sizeof(lines) / sizeof(lines[0]); k++)
        fprintf(plot->script, "%s%s", k == 0 ? "" : "\\n", lines[k]);
    fprintf(plot->script,
            "\" at graph -0.006, graph 0 right offset 0,-1.1 textcolor rgb '#555555'\n");
}

static void write_panel(const plot_t *plot, int tier, bool has_key) {
    fputs("plot ", plot->script);
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        if (tier_has_tag(plot, tier, tag))
            fprintf(plot->script,
                    "$tag%d using 1:2:3:4:5:6 with boxxyerror fillcolor rgb '%s' notitle, ", tag,
                    tag_colours[tag]);
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        if (plot->has_tag[tag] && has_key)
            fprintf(plot->script, "1/0 with boxes fillcolor rgb '%s' title '%s', ",
                    tag_colours[tag], zr_tag_name((zr_tag_t)tag));
    fprintf(plot->script,
            "$peaks using 1:2:3:4 with vectors nohead linewidth 2 linecolor rgb '#000000' %s\n",
            has_key ? "title 'peak, as reserved'" : "notitle");
}

static int last_tier(const plot_t *plot) {
    int last = 0;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        last = plot->has_tier[tier] ? tier : last;
    return last;
}

static void draw_memory(plot_t *plot) {
    bool is_first = true;
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        if (!plot->has_tier[tier])
            continue;
        scale_t scale = scale_of(plot, tier);
        bool is_last = tier == last_tier(plot);
        place(plot, is_first ? HEAD_HEIGHT : 22, PANEL_HEIGHT, is_last ? TABLE_HEIGHT : 0);
        fputs("unset label\nunset arrow\nunset object\nunset xtics\n", plot->script);
        fprintf(plot->script, "set xrange [-0.6:%.1f]\nset yrange [0:%.6g]\n",
                (double)plot->n_columns - 0.4, scale.top / scale.unit);
        if (is_first)
            fprintf(plot->script,
                    "set key at screen 0.5, screen %.4f center top horizontal reverse Left "
                    "samplen 1 maxrows 1\n",
                    1 - 42.0 / plot->height);
        else
            fputs("unset key\n", plot->script);
        write_bars(plot, tier, &scale);
        write_grounds(plot);
        write_sizes(plot, tier, &scale);
        write_budget(plot, tier, &scale);
        if (is_last)
            write_table(plot);
        write_panel(plot, tier, is_first);
        is_first = false;
    }
}

/* ---- the picture ----------------------------------------------------------------------------- */

static void draw_line(plot_t *plot) {
    const zr_run_row_t *row = &plot->rows->all[plot->rows->recommended];
    char text[512] = "";
    plan_words_t words = {text, sizeof(text), 0};
    int height = LANE_HEIGHT * (int)plan_line_n_lanes(plot->line);
    plan_words_add(&words, "one step of the recommended plan, ");
    plan_words_placement(row, &words);
    plan_words_add(&words, row->recompute ? " " : ", ");
    if (plot->line->seconds < 10)
        plan_words_add(&words, "%.1f ms", 1e3 * plot->line->seconds);
    else
        plan_words_add(&words, "%.1f s", plot->line->seconds);
    place(plot, LINE_HEAD_HEIGHT, height, LINE_FOOT_HEIGHT);
    fputs("unset label\nunset arrow\nunset object\nunset ylabel\nset title ", plot->script);
    gnuplot_text(plot->script, text);
    fputs(" offset 0,-0.3\n", plot->script);
    plan_line_draw(plot->line, plot->script);
}

static void write_head(const plot_t *plot) {
    const train_options_t *run = &plot->options->run;
    char text[512];
    snprintf(text, sizeof(text),
             "memory of a rank: %s, %s, sequences of %zu, accumulation %zu, %s on %s", run->model,
             zr_dtype_name(run->config.dtype), run->seq, run->config.grad_accum,
             zr_count_text((uint64_t)run->n_ranks, "rank").text,
             plot->options->is_this ? "this machine, whose rates are not measured"
                                    : plot->options->hardware.name);
    fputs("set termoption noenhanced\nset multiplot\nset label 99 ", plot->script);
    gnuplot_text(plot->script, text);
    fputs(" at screen 0.5, screen 1 center offset 0,-1.3 font ',13'\n"
          "unset border\nunset tics\nplot [0:1] [0:1] 1/0 notitle\n"
          "set border 3 linecolor rgb '#555555'\nset ytics nomirror\n"
          "set grid ytics linecolor rgb '#dddddd'\n"
          "set style fill solid 1 border linecolor rgb '#ffffff'\n"
          "set style textbox opaque noborder margins 0.2, 0.2\n",
          plot->script);
}

static zr_status_t draw(plot_t *plot, const char *path, const zr_log_t *log) {
    gnuplot_t gnuplot;
    plot->width = LEFT + (int)plot->n_columns * COLUMN_WIDTH + RIGHT;
    plot->width = plot->width > LEAST_WIDTH ? plot->width : LEAST_WIDTH;
    plot->height = picture_height(plot);
    ZR_TRY(gnuplot_begin(path, plot->width, plot->height, log, &gnuplot));
    plot->script = gnuplot.script;
    write_head(plot);
    draw_memory(plot);
    if (plot->line != NULL)
        draw_line(plot);
    fputs("unset multiplot\n", plot->script);
    return gnuplot_end(&gnuplot);
}

zr_status_t plan_plot_draw(const plan_options_t *options, const zr_run_rows_t *rows,
                           const plan_step_t *step, const zr_log_t *log) {
    plot_t plot = {.options = options, .rows = rows};
    choose_columns(&plot);
    find_uses(&plot);
    zr_status_t status = make_line(&plot, step, log);
    ZR_THEN(status, draw(&plot, options->plot_path, log));
    free(plot.line);
    return status;
}
