/*
 * Initial values of parameters: every element is computed from the seed, its parameter's name and
 * its index alone, so that any rank can make any part of any parameter, in any order.
 *
 * Normal numbers are sums of eight uniform ones: whole numbers until the last multiplication,
 * they are the same bits everywhere, which no logarithm or cosine would be.
 */
#include <math.h>

#include "zero/schedule/schedule_internal.h"

/* Steele, Lea and Flood 2014 ("splitmix64"): a bijection that scatters well. */
static uint64_t scatter(uint64_t z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

uint64_t zr_init_key(uint64_t seed, const char *name) {
    uint64_t key = scatter(seed);
    for (const char *c = name; *c != '\0'; c++)
        key = scatter(key ^ (uint64_t)(unsigned char)*c);
    return key;
}

static uint64_t sum_of_four(uint64_t bits) {
    return (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
}

/* Sum of eight uniform numbers in 0..65535, less its mean: deviation sqrt(8 (65536^2 - 1) / 12). */
static double centered_sum(uint64_t key, uint64_t index) {
    uint64_t sum =
        sum_of_four(scatter(key + 2 * index)) + sum_of_four(scatter(key + 2 * index + 1));
    return (double)sum - 4.0 * 65535.0;
}

/* Uniform in +-sqrt(3), in steps of 2^-52 of it: deviation 1. */
static double centered(uint64_t key, uint64_t index) {
    double half = (double)(scatter(key + index) >> 11) - 0x1p52;
    return half * (1.7320508075688772 * 0x1p-52);
}

void zr_init_fill(void *context, size_t first, size_t n_elems, float *values) {
    const zr_param_init_t *init = context;
    const double deviation = 53509.91992145008; /* of centered_sum */
    double factor = init->deviation / deviation;
    for (size_t i = 0; i < n_elems; i++) {
        if (init->kind == ZR_INIT_NORMAL)
            values[i] = (float)(centered_sum(init->key, first + i) * factor);
        else if (init->kind == ZR_INIT_UNIFORM)
            values[i] = (float)(centered(init->key, first + i) * init->deviation);
        else
            values[i] = init->kind == ZR_INIT_ONE ? 1.0f : 0.0f;
    }
}
