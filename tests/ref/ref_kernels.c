#include "ref/ref_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define UNIT 0x1p-24      /* half an ulp of fp32, relative */
#define SMALLEST 0x1p-149 /* of fp32: what a result may lose when it underflows */

/* ---- AdamW ---------------------------------------------------------------------- */

ref_adamw_result_t ref_adamw_element(const ref_adamw_t *args, double master, double m, double v,
                                     double grad) {
    double g = grad * args->grad_scale;
    double g_bound = fabs(g) * UNIT + SMALLEST;

    ref_adamw_result_t result;
    result.m = args->beta1 * m + (1.0 - args->beta1) * g;
    /* Roundings: 1 - beta1, its product with g, and the sum; and what g has lost. */
    result.m_bound = 2.0 * UNIT * (1.0 - args->beta1) * fabs(g) + (1.0 - args->beta1) * g_bound +
                     UNIT * fabs(result.m) + 2.0 * SMALLEST;
    result.v = args->beta2 * v + (1.0 - args->beta2) * g * g;
    result.v_bound = (1.0 - args->beta2) * (3.0 * UNIT * g * g + 2.0 * fabs(g) * g_bound) +
                     UNIT * result.v + 3.0 * SMALLEST;

    double bias1 = 1.0 - pow(args->beta1, args->step);
    double bias2 = 1.0 - pow(args->beta2, args->step);
    double root = sqrt(result.v / bias2);
    double denominator = root + args->epsilon;
    double update = args->lr * (result.m / bias1) / denominator;
    result.master = master - args->lr * args->weight_decay * master - update;

    /* sqrt halves a relative error; of a v that is nearly nothing, it is the root of the error. */
    double root_bound = result.v > 2.0 * result.v_bound ? 0.6 * root * result.v_bound / result.v
                                                        : 2.0 * sqrt(result.v_bound / bias2);
    double denominator_bound = root_bound + 3.0 * UNIT * denominator;
    double update_bound = args->lr * result.m_bound / (bias1 * denominator) +
                          fabs(update) * (denominator_bound / denominator + 3.0 * UNIT);
    result.master_bound = 1.01 * update_bound + 2.0 * UNIT * fabs(master) +
                          UNIT * fabs(result.master) + 2.0 * SMALLEST;
    return result;
}

/* ---- Lion and SGD ---------------------------------------------------------------- */

/* beta x + (1 - beta) g, where g has lost g_bound: as of AdamW's m. */
static double mean_bound(double beta, double mean, double g, double g_bound) {
    return 2.0 * UNIT * (1.0 - beta) * fabs(g) + (1.0 - beta) * g_bound + UNIT * fabs(mean) +
           2.0 * SMALLEST;
}

ref_two_result_t ref_lion_element(const ref_lion_t *args, double master, double m, double grad) {
    double g = grad * args->grad_scale;
    double g_bound = fabs(g) * UNIT + SMALLEST;
    double c = args->beta1 * m + (1.0 - args->beta1) * g;
    double sign = c > 0 ? 1 : c < 0 ? -1 : 0;
    ref_two_result_t result;
    result.other = args->beta2 * m + (1.0 - args->beta2) * g;
    result.other_bound = mean_bound(args->beta2, result.other, g, g_bound);
    result.master = master - args->lr * args->weight_decay * master - args->lr * sign;
    result.master_bound = 3.0 * UNIT * fabs(master) + UNIT * fabs(result.master) + 2.0 * SMALLEST;
    if (fabs(c) <= mean_bound(args->beta1, c, g, g_bound))
        result.master_bound += 2.0 * args->lr;
    return result;
}

ref_two_result_t ref_sgd_element(const ref_sgd_t *args, double master, double buffer, double grad) {
    double scaled = grad * args->grad_scale;
    double g = scaled + args->weight_decay * master;
    double g_bound = UNIT * (fabs(scaled) + fabs(g)) + 2.0 * SMALLEST;
    ref_two_result_t result;
    result.other = args->momentum * buffer + g;
    result.other_bound = g_bound + UNIT * fabs(result.other) + SMALLEST;
    double step = result.other, step_bound = result.other_bound;
    if (args->nesterov) {
        step = g + args->momentum * result.other;
        step_bound = g_bound + args->momentum * result.other_bound + UNIT * fabs(step) + SMALLEST;
    }
    result.master = master - args->lr * step;
    result.master_bound = args->lr * step_bound + UNIT * fabs(result.master) + SMALLEST;
    return result;
}

/* ---- sums ----------------------------------------------------------------------- */

long double ref_sum_of_squares(const float *x, size_t n_elems) {
    long double sum = 0.0L, lost = 0.0L;
    for (size_t i = 0; i < n_elems; i++) {
        long double addend = (long double)x[i] * (long double)x[i] - lost;
        long double next = sum + addend;
        lost = (next - sum) - addend;
        sum = next;
    }
    return sum;
}

/* A lane's sum: every 256th value from `lane` on; then lanes are paired with those 128 up, ... */
static double pair_up(const double *values, size_t n_values, size_t lane, size_t n_lanes) {
    if (n_lanes == 256) {
        double sum = 0.0;
        for (size_t i = lane; i < n_values; i += 256)
            sum += values[i];
        return sum;
    }
    return pair_up(values, n_values, lane, 2 * n_lanes) +
           pair_up(values, n_values, lane + n_lanes, 2 * n_lanes);
}

double ref_sum_of_squares_in_order(const float *x, size_t n_elems) {
    size_t n_blocks = (n_elems + 16383) / 16384;
    double *sums = calloc(n_blocks + 1, sizeof(double));
    double *squares = malloc(16384 * sizeof(double));
    for (size_t block = 0; block < n_blocks; block++) {
        size_t first = block * 16384;
        size_t n = n_elems - first < 16384 ? n_elems - first : 16384;
        for (size_t i = 0; i < n; i++)
            squares[i] = (double)x[first + i] * (double)x[first + i];
        sums[block] = pair_up(squares, n, 0, 1);
    }
    double result = pair_up(sums, n_blocks, 0, 1);
    free(squares);
    free(sums);
    return result;
}

float ref_add(float a, float b) {
    return (float)((double)a + (double)b);
}

float ref_multiply(float a, float b) {
    return (float)((double)a * (double)b);
}

/* ---- bf16 ------------------------------------------------------------------------ */

double ref_bf16_value(uint16_t bits) {
    int sign = bits >> 15, exponent = (bits >> 7) & 0xff, fraction = bits & 0x7f;
    double value;
    if (exponent == 0xff)
        value = fraction != 0 ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, -126 - 7);
    else
        value = ldexp(128 + fraction, exponent - 127 - 7);
    return sign ? -value : value;
}

static uint16_t next_to(float value, int ties_up) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    if (isnan(value))
        return (uint16_t)((bits >> 16) | 0x40);
    if (isinf(value))
        return (uint16_t)(sign | 0x7f80);
    /* The neighbours of the magnitude; past the largest, the next one would be 2^128. */
    double magnitude = fabs((double)value);
    uint16_t below = (uint16_t)((bits >> 16) & 0x7fff);
    double low = ref_bf16_value(below);
    double high = below == 0x7f7f ? 0x1p128 : ref_bf16_value((uint16_t)(below + 1));
    double to_low = magnitude - low, to_high = high - magnitude;
    int up = to_high < to_low || (to_high == to_low && (ties_up || below % 2 == 1));
    return (uint16_t)(sign | (below + up));
}

uint16_t ref_bf16_nearest(float value) {
    return next_to(value, 0);
}

uint16_t ref_bf16_of_master(float value) {
    return next_to(value, 1);
}

/* The float of code 0, with so many fractions of an octave from it to 1. */
static double first_float(int last, int per_octave) {
    int octave = (last + per_octave - 1) / per_octave;
    return ldexp(1 + (double)(octave * per_octave - last) / per_octave, -octave);
}

/* How far floats are from that of code 0, of the farthest. */
static size_t float_levels(int last, int per_octave, int with_sign, double *levels) {
    double first = first_float(last, per_octave);
    size_t count = 0;
    for (int code = 0; code <= last; code++) {
        double level = (first_float(last - code, per_octave) - first) / (1 - first);
        levels[count++] = level;
        if (with_sign && code > 0)
            levels[count++] = -level;
    }
    return count;
}

size_t ref_code_levels(const char *encoding, double *levels) {
    /* Of the source's table, all digits. */
    static const double nf4[] = {-1.0,
                                 -0.6961928009986877,
                                 -0.5250730514526367,
                                 -0.39491748809814453,
                                 -0.28444138169288635,
                                 -0.18477343022823334,
                                 -0.09105003625154495,
                                 0.0,
                                 0.07958029955625534,
                                 0.16093020141124725,
                                 0.24611230194568634,
                                 0.33791524171829224,
                                 0.44070982933044434,
                                 0.5626170039176941,
                                 0.7229568362236023,
                                 1.0};
    if (strcmp(encoding, "float8_256") == 0)
        return float_levels(127, 8, 1, levels);
    if (strcmp(encoding, "ufloat8_256") == 0)
        return float_levels(255, 16, 0, levels);
    if (strcmp(encoding, "nf4_64") == 0) {
        memcpy(levels, nf4, sizeof(nf4));
        return 16;
    }
    int most = (int)ref_code_most(encoding);
    for (int i = -most; i <= most; i++)
        levels[i + most] = (double)i / most;
    return 2 * (size_t)most + 1;
}

double ref_code_most(const char *encoding) {
    if (strcmp(encoding, "float8_256") == 0)
        return 1 - first_float(127, 8);
    if (strcmp(encoding, "ufloat8_256") == 0)
        return 1 - first_float(255, 16);
    return strcmp(encoding, "int8_256") == 0 ? 127 : strcmp(encoding, "int4_64") == 0 ? 7 : 1;
}
