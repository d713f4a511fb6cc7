/*
 * What the runtime's kernels have to compute, written again in double precision from
 * the textbook formulas, with bounds on how far fp32 may be away from them. Shares no
 * code with kernels/.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** One AdamW step of one element, and how far fp32 arithmetic may be away from it. */
typedef struct ref_adamw {
    double grad_scale, lr, beta1, beta2, epsilon, weight_decay;
    int step;
} ref_adamw_t;

typedef struct ref_adamw_result {
    double master, m, v;
    double master_bound, m_bound, v_bound; /* absolute */
} ref_adamw_result_t;

ref_adamw_result_t ref_adamw_element(const ref_adamw_t *args, double master, double m, double v,
                                     double grad);

/** The same of Lion, whose `m` is its only other array. Where rounding may turn the sign around,
 * the bound of the master is two steps wider. */
typedef struct ref_lion {
    double grad_scale, lr, beta1, beta2, weight_decay;
} ref_lion_t;
/** And of SGD with momentum. */
typedef struct ref_sgd {
    double grad_scale, lr, momentum, weight_decay;
    int nesterov;
} ref_sgd_t;

typedef struct ref_two_result {
    double master, other; /* m, or the momentum's buffer */
    double master_bound, other_bound;
} ref_two_result_t;

ref_two_result_t ref_lion_element(const ref_lion_t *args, double master, double m, double grad);
ref_two_result_t ref_sgd_element(const ref_sgd_t *args, double master, double buffer, double grad);

/** Sum of squares in extended precision, compensated: as good as exact. */
long double ref_sum_of_squares(const float *x, size_t n_elems);

/** The sum in the documented order, by index arithmetic on whole arrays: bit for bit. */
double ref_sum_of_squares_in_order(const float *x, size_t n_elems);

/** Nearest bf16 by measuring the distances to both neighbours; NaN: quiet, same sign. */
uint16_t ref_bf16_nearest(float value);
/** The same with ties away from zero: a parameter of its master. */
uint16_t ref_bf16_of_master(float value);
/** The value of a bf16, from its sign, exponent and fraction. */
double ref_bf16_value(uint16_t bits);

/** Sum and product of two floats, rounded once (double holds both well enough). */
float ref_add(float a, float b);
float ref_multiply(float a, float b);

/** The levels of an encoding of blocks, of its largest one, ascending from 0 but for those that
 * have negative ones: [the number returned], at most 256; and the largest in units of the scale. */
size_t ref_code_levels(const char *encoding, double *levels);
double ref_code_most(const char *encoding);
