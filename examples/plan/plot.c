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
#include "examples/plan/describe.h"
#include "examples/train/report.h"

#define MOST_PLACES 48 /* stages and placements, with groups and without */
#define MOST_COLUMNS 8 /* that are drawn */
/* In pixels: what a page with text is wide, so that nothing is made smaller there. */
#define WIDTH 900
#define PANEL_HEIGHT 190
#define PANEL_SPACE 30 /* with the sizes of bars that are cut off */
#define LANE_HEIGHT 36
#define HEAD_HEIGHT 118
#define TABLE_HEIGHT 118
#define LINE_HEAD_HEIGHT 62
#define LINE_FOOT_HEIGHT 82
#define LEFT 116
#define RIGHT 84

/* What memory is for, as far as a picture tells it apart. */
typedef struct kind {
    const char *name, *colour;
    unsigned tags; /* bits of zr_tag_t */
} kind_t;

static const kind_t kinds[] = {
    {"parameters", "#4477aa", 1 << ZR_TAG_PARAMETERS},
    {"gathered", "#8fb4d9", 1 << ZR_TAG_GATHERED_PARAMETERS},
    {"gradients", "#228833", 1 << ZR_TAG_GRADIENTS | 1 << ZR_TAG_GRADIENT_BUCKETS},
    {"optimizer state", "#aa3377", 1 << ZR_TAG_OPTIMIZER_STATE},
    {"activations", "#ccbb44", 1 << ZR_TAG_ACTIVATIONS},
    {"workspace", "#ee6677", 1 << ZR_TAG_WORKSPACE},
    {"other", "#999999", 1 << ZR_TAG_STAGING | 1 << ZR_TAG_DATA | 1 << ZR_TAG_OTHER},
    {"reserved alone", "#c4c4c4", 0}}; /* what is left of the peak that budgets limit */
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

typedef struct plot {
    const plan_options_t *options;
    const zr_run_rows_t *rows;
    const zr_run_row_t *columns[MOST_PLACES];
    size_t n_columns, n_places; /* that are drawn, and that there are */
    bool has_tier[ZR_N_TIERS];
    bool has_kind[N_KINDS];
    plan_line_t *line; /* NULL: none */
    int height;        /* in pixels */
    int top;           /* of what is drawn next, from above */
    FILE *script;
} plot_t;

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
static void find_places(plot_t *plot) {
    const zr_run_rows_t *rows = plot->rows;
    for (size_t i = 0; i < rows->n; i++) {
        const zr_run_row_t *row = &rows->all[i];
        size_t k = 0;
        while (k < plot->n_places && !has_same_column(plot->columns[k], row))
            k++;
        if (k == MOST_PLACES)
            return;
        if (k == plot->n_places || is_better(rows, row, plot->columns[k]))
            plot->columns[k] = row;
        plot->n_places += k == plot->n_places;
    }
}

/* The recommended first, then those that fit, the fastest first; behind them the others, the one
 * first that lacks least. */
static bool is_before(const zr_run_rows_t *rows, const zr_run_row_t *a, const zr_run_row_t *b) {
    if (a->one.fits || b->one.fits)
        return is_better(rows, a, b);
    return (double)a->one.lack.needed_bytes / (double)(a->one.lack.there_bytes + 1) <
           (double)b->one.lack.needed_bytes / (double)(b->one.lack.there_bytes + 1);
}

/* As many as there is room for, in the order of plans. */
static void choose_columns(plot_t *plot) {
    find_places(plot);
    for (plot->n_columns = plot->n_places; plot->n_columns > MOST_COLUMNS; plot->n_columns--) {
        size_t last = 0;
        for (size_t i = 1; i < plot->n_columns; i++)
            if (!is_before(plot->rows, plot->columns[i], plot->columns[last]))
                last = i;
        memmove(&plot->columns[last], &plot->columns[last + 1],
                (plot->n_columns - last - 1) * sizeof(plot->columns[0]));
    }
}

static size_t bytes_of(const zr_run_row_t *row, int tier) {
    const zr_run_plan_t *plan = &row->one.plan;
    return tier == ZR_TIER_NVME ? plan->nvme_bytes : plan->tiers[tier].reserved.peak;
}

/* Kinds are of one moment, and with what is reserved alone add up to what budgets limit. */
static size_t bytes_of_kind(const zr_run_row_t *row, int tier, size_t kind) {
    const zr_run_plan_t *plan = &row->one.plan;
    const size_t *tags = tier == ZR_TIER_NVME ? plan->nvme_by_tag : plan->tiers[tier].at_peak;
    size_t bytes = 0, all = 0, reserved = bytes_of(row, tier);
    for (int tag = 0; tag < ZR_N_TAGS; tag++) {
        bytes += (kinds[kind].tags >> tag & 1) != 0 ? tags[tag] : 0;
        all += tags[tag];
    }
    if (kinds[kind].tags == 0)
        bytes = reserved > all ? reserved - all : 0;
    return bytes;
}

static bool tier_has_kind(const plot_t *plot, int tier, size_t kind) {
    for (size_t i = 0; i < plot->n_columns; i++)
        if (bytes_of_kind(plot->columns[i], tier, kind) > 0)
            return true;
    return false;
}

static void find_uses(plot_t *plot) {
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        for (size_t i = 0; i < plot->n_columns; i++)
            plot->has_tier[tier] |= bytes_of(plot->columns[i], tier) > 0;
        for (size_t kind = 0; kind < N_KINDS; kind++)
            plot->has_kind[kind] |= tier_has_kind(plot, tier, kind);
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
            (double)LEFT / WIDTH, 1 - (double)RIGHT / WIDTH, 1 - (double)top / plot->height,
            1 - (double)(top + height) / plot->height);
    plot->top = top + height + below;
}

static int picture_height(const plot_t *plot) {
    int height = HEAD_HEIGHT + TABLE_HEIGHT;
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        height += plot->has_tier[tier] ? PANEL_HEIGHT + PANEL_SPACE : 0;
    if (plot->line != NULL)
        height +=
            LINE_HEAD_HEIGHT + LANE_HEIGHT * (int)plan_line_n_lanes(plot->line) + LINE_FOOT_HEIGHT;
    return height;
}

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct scale {
    double unit; /* bytes */
    const char *name;
    double top;                   /* bytes: what is higher is cut off */
    double budgets[MOST_COLUMNS]; /* bytes that each column may take there */
    double budget;                /* the largest of them */
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
        scale.budgets[i] = there;
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

/* Boxes of each kind, from the bottom, and of each column a line where its peak is. */
static void write_bars(const plot_t *plot, int tier, const scale_t *scale) {
    double below[MOST_COLUMNS] = {0};
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        fprintf(plot->script, "$kind%zu << END\n", kind);
        for (size_t i = 0; i < plot->n_columns; i++) {
            double own = (double)bytes_of_kind(plot->columns[i], tier, kind) / scale->unit;
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

/* Above each bar; of one that is cut off, above the panel. */
static void write_sizes(const plot_t *plot, int tier, const scale_t *scale) {
    for (size_t i = 0; i < plot->n_columns; i++) {
        double own = (double)bytes_of(plot->columns[i], tier);
        const char *colour = plot->columns[i]->one.fits ? "#000000" : "#bb2222";
        if (own > scale->top)
            fprintf(plot->script,
                    "set label '%s' at first %zu, graph 1 center offset 0,0.6 font ',10' front "
                    "textcolor rgb '%s'\n",
                    train_bytes(own).text, i, colour);
        else if (own > 0)
            fprintf(plot->script,
                    "set label '%s' at first %zu, first %.6g center offset 0,0.6 font ',10' front "
                    "boxed textcolor rgb '%s'\n",
                    train_bytes(own).text, i, own / scale->unit, colour);
    }
}

static void write_budget(const plot_t *plot, int tier, const scale_t *scale) {
    train_bytes_t size = train_bytes(scale->budget);
    bool is_one = true;
    for (size_t i = 0; i < plot->n_columns; i++)
        is_one &= scale->budgets[i] == scale->budget;
    const char *label = is_one ? "budget" : "budget, up to";
    fprintf(plot->script, "set ylabel '%s, %s'\n", zr_tier_name((zr_tier_t)tier), scale->name);
    if (scale->budget > scale->top)
        fprintf(plot->script, "set label \"%s\\n%s\" at graph 1.01, graph 0.95 left font ',10'\n",
                label, size.text);
    else
        fprintf(plot->script,
                "set label \"%s\\n%s\" at graph 1.01, first %.6g left offset 0,0.5 font ',10' "
                "front\n",
                label, size.text, scale->budget / scale->unit);
    for (size_t i = 0; i < plot->n_columns; i++)
        if (scale->budgets[i] <= scale->top)
            fprintf(plot->script,
                    "set arrow from first %.1f, first %.6g to first %.1f, first %.6g nohead front "
                    "linewidth 2 dashtype 2 linecolor rgb '#222222'\n",
                    (double)i - 0.5, scale->budgets[i] / scale->unit, (double)i + 0.5,
                    scale->budgets[i] / scale->unit);
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
    fputs("set xtics scale 0 nomirror font ',10' (", plot->script);
    for (size_t i = 0; i < plot->n_columns; i++) {
        const zr_run_row_t *row = plot->columns[i];
        char speed[32] = "no room", group[32] = "";
        if (row->one.fits)
            snprintf(speed, sizeof(speed), "%.0f", row->tokens_per_s);
        if (plot->rows->has_groups)
            snprintf(group, sizeof(group), ", %d", plan_row_group_size(plot->options, row));
        fprintf(plot->script, "%s\"%d%s\\n%s\\n%s\\n%s\\n%zu\\n%s\" %zu", i == 0 ? "" : ", ",
                row->stage, group, train_offload_name(row->optimizer),
                train_offload_name(row->params), zr_recompute_name(row->recompute),
                row->micro_batch, speed, i);
    }
    fputs(")\n", plot->script);
    fputs("set label \"", plot->script);
    for (size_t k = 0; k < sizeof(lines) / sizeof(lines[0]); k++)
        fprintf(plot->script, "%s%s", k == 0 ? "" : "\\n", lines[k]);
    fprintf(plot->script,
            "\" at graph -0.012, graph 0 right offset 0,-1.0 font ',10' textcolor rgb '#555555'\n");
}

static void write_panel(const plot_t *plot, int tier, bool has_key) {
    fputs("plot ", plot->script);
    for (size_t kind = 0; kind < N_KINDS; kind++)
        if (tier_has_kind(plot, tier, kind))
            fprintf(plot->script,
                    "$kind%zu using 1:2:3:4:5:6 with boxxyerror fillcolor rgb '%s' notitle, ", kind,
                    kinds[kind].colour);
    for (size_t kind = 0; kind < N_KINDS; kind++)
        if (plot->has_kind[kind] && has_key)
            fprintf(plot->script, "1/0 with boxes fillcolor rgb '%s' title '%s', ",
                    kinds[kind].colour, kinds[kind].name);
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
        place(plot, is_first ? HEAD_HEIGHT : PANEL_SPACE, PANEL_HEIGHT, is_last ? TABLE_HEIGHT : 0);
        fputs("unset label\nunset arrow\nunset object\nunset xtics\n", plot->script);
        fprintf(plot->script, "set xrange [-0.6:%.1f]\nset yrange [0:%.6g]\n",
                (double)plot->n_columns - 0.4, scale.top / scale.unit);
        if (is_first)
            fprintf(plot->script,
                    "set key at screen 0.5, screen %.4f center top horizontal reverse Left "
                    "samplen 1 maxrows 2 font ',10'\n",
                    1 - 48.0 / plot->height);
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
    if (plot->line->seconds < 10)
        plan_words_add(&words, "one step of the recommended plan: %.1f ms\n",
                       1e3 * plot->line->seconds);
    else
        plan_words_add(&words, "one step of the recommended plan: %.1f s\n", plot->line->seconds);
    plan_words_placement(row, &words);
    if (words.n < words.size && words.n > 0 && text[words.n - 1] == ',')
        text[words.n - 1] = '\0';
    place(plot, LINE_HEAD_HEIGHT, height, LINE_FOOT_HEIGHT);
    fputs("unset label\nunset arrow\nunset object\nunset ylabel\nset title ", plot->script);
    gnuplot_text(plot->script, text);
    fputs(" offset 0,-0.3 font ',11'\n", plot->script);
    plan_line_draw(plot->line, plot->script);
}

static void write_head(const plot_t *plot) {
    const train_options_t *run = &plot->options->run;
    char text[512];
    size_t n =
        (size_t)snprintf(text, sizeof(text),
                         "memory of a rank: %s, %s, sequences of %zu, accumulation %zu\n%s on %s",
                         run->model, zr_dtype_name(run->config.dtype), run->seq,
                         run->config.grad_accum, zr_count_text((uint64_t)run->n_ranks, "rank").text,
                         plot->options->is_this ? "this machine, whose rates are not measured"
                                                : plot->options->hardware.name);
    if (plot->n_columns < plot->n_places && n < sizeof(text))
        snprintf(text + n, sizeof(text) - n, "; %zu of %zu placements", plot->n_columns,
                 plot->n_places);
    fputs("set termoption noenhanced\nset multiplot\nset label 99 ", plot->script);
    gnuplot_text(plot->script, text);
    fputs(" at screen 0.5, screen 1 center offset 0,-1.0 font ',12'\n"
          "unset border\nunset tics\nplot [0:1] [0:1] 1/0 notitle\n"
          "set border 3 linecolor rgb '#555555'\nset ytics nomirror\n"
          "set grid ytics linecolor rgb '#dddddd'\n"
          "set style fill solid 1 border linecolor rgb '#ffffff'\n"
          "set style textbox opaque noborder margins 0.2, 0.2\n",
          plot->script);
}

static zr_status_t draw(plot_t *plot, const char *path, const zr_log_t *log) {
    gnuplot_t gnuplot;
    plot->height = picture_height(plot);
    ZR_TRY(gnuplot_begin(path, WIDTH, plot->height, log, &gnuplot));
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
