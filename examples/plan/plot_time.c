/*
 * A step has up to some 100,000 pieces of work, and a picture some 1,000 columns: what is drawn is
 * how much of each column's time a lane works, and at what. Where work is dense this is a block,
 * as long pieces of it are; where many short pieces have gaps between them, it is their share.
 */
#include "examples/plan/plot_time.h"

#include <math.h>
#include <string.h>

typedef struct lane {
    const char *name;
    const char *kinds[PLAN_LINE_KINDS];
    unsigned colours[PLAN_LINE_KINDS];
} lane_t;

#define LEAST_SHARE 0.0005 /* of the step */

static const lane_t lanes[PLAN_LINE_MOST_LANES] = {
    {"compute", {"products", "attention", "other kernels"}, {0x4477aa, 0x8fb4d9, 0xbbccdd}},
    {"update", {"updates", NULL, NULL}, {0xaa3377, 0, 0}},
    {"network", {"gather", "reduce", NULL}, {0x228833, 0x99cc77, 0}},
    {"to the device", {"copies up", NULL, NULL}, {0xccbb44, 0, 0}},
    {"to host memory", {"copies down", NULL, NULL}, {0xddaa33, 0, 0}},
    {"drive, read", {"reads", NULL, NULL}, {0xee6677, 0, 0}},
    {"drive, written", {"writes", NULL, NULL}, {0xcc3311, 0, 0}},
    {"checksums", {"checksums", NULL, NULL}, {0x999999, 0, 0}}};

enum {
    LANE_COMPUTE,
    LANE_UPDATE,
    LANE_NETWORK,
    LANE_TO_DEVICE,
    LANE_TO_HOST,
    LANE_READ,
    LANE_WRITE,
    LANE_CHECKSUM,
    LANE_NONE
};

/* ---- lanes ----------------------------------------------------------------------------------- */

/* What both directions of a drive share is no lane: such work is in that of its direction. */
static int lane_of(const zr_sim_span_t *span) {
    static const int of_parts[] = {
        [ZR_SIM_COMPUTE] = LANE_COMPUTE,     [ZR_SIM_HOST] = LANE_UPDATE,
        [ZR_SIM_TO_DEVICE] = LANE_TO_DEVICE, [ZR_SIM_TO_HOST] = LANE_TO_HOST,
        [ZR_SIM_NETWORK] = LANE_NETWORK,     [ZR_SIM_DISK_READ] = LANE_READ,
        [ZR_SIM_DISK_WRITE] = LANE_WRITE,    [ZR_SIM_DISK] = LANE_NONE,
        [ZR_SIM_UPDATE] = LANE_UPDATE};
    _Static_assert(sizeof(of_parts) / sizeof(of_parts[0]) == ZR_N_SIM_PARTS,
                   "every part of the machine is in a lane, or said to be in none");
    if (strcmp(span->name, "checksum") == 0)
        return LANE_CHECKSUM;
    if (zr_run_part_of(span) == ZR_RUN_UPDATE)
        return LANE_UPDATE;
    return of_parts[span->part];
}

static int kind_of(const zr_sim_span_t *span, int lane) {
    if (lane == LANE_COMPUTE) {
        if (strstr(span->name, "matmul") != NULL)
            return 0;
        return strstr(span->name, "attention") != NULL ? 1 : 2;
    }
    if (lane == LANE_NETWORK)
        return strstr(span->name, "reduce") != NULL;
    return 0;
}

/* Add a piece of work, from and to in columns, to those that it is in. */
static void add_piece(double from, double to, float share[PLAN_LINE_COLUMNS]) {
    size_t last = PLAN_LINE_COLUMNS - 1;
    for (size_t i = (size_t)fmin(from, (double)last); i <= last && (double)i < to; i++) {
        double begin = fmax(from, (double)i), end = fmin(to, (double)(i + 1));
        share[i] += (float)fmax(end - begin, 0);
    }
}

void plan_line_make(const zr_run_spans_t *spans, plan_line_t *line_p) {
    *line_p = (plan_line_t){.seconds = spans->end - spans->begin};
    for (size_t i = 0; i < spans->n; i++) {
        const zr_sim_span_t *span = &spans->all[i];
        int lane = lane_of(span);
        if (lane == LANE_NONE)
            continue;
        int kind = kind_of(span, lane);
        double per_second = PLAN_LINE_COLUMNS / line_p->seconds;
        line_p->busy[lane] += span->end - span->begin;
        line_p->has_kind[lane][kind] = true;
        add_piece((span->begin - spans->begin) * per_second,
                  (span->end - spans->begin) * per_second, line_p->share[lane][kind]);
    }
}

/* Less than can be seen is left out. */
static bool has_lane(const plan_line_t *line, int lane) {
    return line->busy[lane] > LEAST_SHARE * line->seconds;
}

size_t plan_line_n_lanes(const plan_line_t *line) {
    size_t n = 0;
    for (int lane = 0; lane < PLAN_LINE_MOST_LANES; lane++)
        n += has_lane(line, lane);
    return n;
}

/* ---- drawing --------------------------------------------------------------------------------- */

/* Of the axis, in seconds. */
static double line_unit(const plan_line_t *line) {
    return line->seconds < 10 ? 1e-3 : 1;
}

/* Columns of the same height are one box: middle, from, to, bottom, top, colour. */
static void write_lane(const plan_line_t *line, int lane, double bottom, FILE *script) {
    double width = line->seconds / line_unit(line) / PLAN_LINE_COLUMNS;
    float below[PLAN_LINE_COLUMNS] = {0};
    for (int kind = 0; kind < PLAN_LINE_KINDS; kind++) {
        const float *share = line->share[lane][kind];
        for (size_t i = 0, next = 0; i < PLAN_LINE_COLUMNS; i = next) {
            for (next = i + 1; next < PLAN_LINE_COLUMNS && fabsf(share[next] - share[i]) < 0.01F &&
                               fabsf(below[next] - below[i]) < 0.01F;)
                next++;
            if (share[i] < 0.002F)
                continue;
            double from = width * (double)i, to = width * (double)next;
            double low = bottom + 0.84 * (double)below[i];
            fprintf(script, "%.6g %.4g %.6g %.6g %.5g %.5g %u\n", (from + to) / 2, low, from, to,
                    low, low + 0.84 * (double)share[i], lanes[lane].colours[kind]);
        }
        for (size_t i = 0; i < PLAN_LINE_COLUMNS; i++)
            below[i] += share[i];
    }
}

/* The lane's name on its left, and how much of the step it works on its right. */
static void write_names(const plan_line_t *line, FILE *script) {
    double middle = (double)plan_line_n_lanes(line) + 0.42;
    const char *between = "";
    fputs("set ytics scale 0 (", script);
    for (int lane = 0; lane < PLAN_LINE_MOST_LANES; lane++) {
        if (!has_lane(line, lane))
            continue;
        middle -= 1;
        fprintf(script, "%s'%s' %.2f", between, lanes[lane].name, middle);
        between = ", ";
    }
    fputs(")\n", script);
    middle = (double)plan_line_n_lanes(line) + 0.42;
    for (int lane = 0; lane < PLAN_LINE_MOST_LANES; lane++) {
        if (!has_lane(line, lane))
            continue;
        middle -= 1;
        fprintf(script, "set label '%.0f%%' at graph 1.008, first %.2f left\n",
                100 * line->busy[lane] / line->seconds, middle);
    }
}

/* A lane of one kind has its name on the left. */
static void write_plot(const plan_line_t *line, FILE *script) {
    fputs("plot $line using 1:2:3:4:5:6:7 with boxxyerror fillcolor rgb variable notitle", script);
    for (int lane = 0; lane < PLAN_LINE_MOST_LANES; lane++)
        for (int kind = 0; kind < PLAN_LINE_KINDS; kind++)
            if (has_lane(line, lane) && line->has_kind[lane][kind] &&
                lanes[lane].kinds[1] != NULL && lanes[lane].kinds[kind] != NULL)
                fprintf(script, ", 1/0 with boxes fillcolor rgb '#%06x' title '%s'",
                        lanes[lane].colours[kind], lanes[lane].kinds[kind]);
    fputs("\n", script);
}

void plan_line_draw(const plan_line_t *line, FILE *script) {
    size_t n = plan_line_n_lanes(line), k = n;
    fputs("$line << END\n", script);
    for (int lane = 0; lane < PLAN_LINE_MOST_LANES; lane++)
        if (has_lane(line, lane))
            write_lane(line, lane, (double)--k, script);
    fputs("END\n", script);
    write_names(line, script);
    fprintf(script, "set xrange [0:%.6g]\nset yrange [-0.12:%.2f]\n",
            line->seconds / line_unit(line), (double)n - 0.02);
    fputs("set xtics auto nomirror\nset grid xtics noytics front linecolor rgb '#dddddd'\n"
          "set style fill solid 1 noborder\n"
          "set key outside below center horizontal reverse Left samplen 1 font ',10'\n",
          script);
    fprintf(script, "set xlabel '%s'\n", line_unit(line) < 1 ? "ms" : "s");
    write_plot(line, script);
}
