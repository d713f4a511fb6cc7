/* How fast each pair of a head's channels turns: see zr_nn_rotary_frequencies. */
#include <math.h>

#include "kernels/nn/nn.h"

static const double two_pi = 6.283185307179586;

static zr_status_t check_positions(const zr_nn_rotary_positions_t *p, size_t head_size,
                                   const zr_log_t *log) {
    if (head_size % 2 != 0 || head_size == 0 || head_size > ZR_NN_ROTARY_MAX_HEAD_SIZE)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "rotary positions: heads of %zu channels; even numbers from 2 to %d are allowed",
            head_size, ZR_NN_ROTARY_MAX_HEAD_SIZE);
    if (!(p->theta > 0) || !isfinite(p->theta))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "rotary positions: theta is %g; must be greater than 0", p->theta);
    if (p->scaling == ZR_NN_ROTARY_DEFAULT)
        return ZR_OK;
    if (p->scaling != ZR_NN_ROTARY_LINEAR && p->scaling != ZR_NN_ROTARY_LLAMA3)
        return zr_fail(log, ZR_ERR_ARGUMENT, "rotary positions: scaling %d is unknown",
                       (int)p->scaling);
    if (!(p->factor > 0) || !isfinite(p->factor))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "rotary positions: factor is %g; must be greater than 0", p->factor);
    if (p->scaling == ZR_NN_ROTARY_LINEAR)
        return ZR_OK;
    if (!(p->low_freq_factor > 0) || !(p->high_freq_factor > p->low_freq_factor) ||
        !isfinite(p->high_freq_factor) || !(p->original_max_position_embeddings > 0))
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "rotary positions: low_freq_factor %g, high_freq_factor %g, "
                       "original_max_position_embeddings %g; must be greater than 0, the first "
                       "below the second",
                       p->low_freq_factor, p->high_freq_factor,
                       p->original_max_position_embeddings);
    return ZR_OK;
}

/* A pair that turns fewer than low_freq_factor times within the original context is slowed down,
 * one of more than high_freq_factor times is not; between the two it is in proportion. */
static double scale_as_llama3(const zr_nn_rotary_positions_t *p, double frequency) {
    double n_turns = p->original_max_position_embeddings * frequency / two_pi;
    double kept = (n_turns - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
    kept = fmin(fmax(kept, 0.0), 1.0);
    return kept * frequency + (1.0 - kept) * frequency / p->factor;
}

zr_status_t zr_nn_rotary_frequencies(const zr_nn_rotary_positions_t *positions, size_t head_size,
                                     const zr_log_t *log, float *frequencies_p) {
    ZR_TRY(check_positions(positions, head_size, log));
    for (size_t i = 0; i < head_size / 2; i++) {
        double frequency = pow(positions->theta, -2.0 * (double)i / (double)head_size);
        if (positions->scaling == ZR_NN_ROTARY_LINEAR)
            frequency /= positions->factor;
        else if (positions->scaling == ZR_NN_ROTARY_LLAMA3)
            frequency = scale_as_llama3(positions, frequency);
        frequencies_p[i] = (float)frequency;
    }
    return ZR_OK;
}
