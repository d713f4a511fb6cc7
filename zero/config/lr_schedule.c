/*
 * The learning rate of a step, by DeepSpeed's three schedules. All of them rise over the first
 * w steps by a factor g that goes from 0 to 1, with the logarithm of the step or linearly;
 * then one stays, one falls on a line, and one falls on a cosine. DeepSpeed counts a warm-up
 * of 1 step as 2, so that the logarithm of w is not 0.
 */
#include "zero/config.h"

#include <math.h>

static double warmup_steps(const zr_schedule_t *schedule) {
    return schedule->warmup_steps == 1 ? 2.0 : (double)schedule->warmup_steps;
}

/** Part of the rise that is done at a step of the warm-up: 0 at step 0, 1 at its end. */
static double rise(const zr_schedule_t *schedule, double step) {
    double n_steps = warmup_steps(schedule);
    return schedule->warmup_log ? log(step + 1) / log(n_steps) : step / n_steps;
}

/** WarmupDecayLR: part of the rate that is left after the warm-up; 0 from total_steps on. */
static double line_left(const zr_schedule_t *schedule, double step) {
    double n_steps = fmax(1.0, (double)schedule->total_steps - warmup_steps(schedule));
    return fmax(0.0, ((double)schedule->total_steps - step) / n_steps);
}

/** WarmupCosineLR: the same, down to cos_min_ratio; reached at the last step. */
static double cosine_left(const zr_schedule_t *schedule, double step) {
    double n_steps = fmax(1.0, (double)schedule->total_steps - warmup_steps(schedule));
    double done = fmin(1.0, (step - warmup_steps(schedule) + 1) / n_steps);
    double wave = (1 + cos(acos(-1.0) * done)) / 2;
    return schedule->cos_min_ratio + (1 - schedule->cos_min_ratio) * wave;
}

double zr_config_lr(const zr_config_t *config, size_t step) {
    const zr_schedule_t *schedule = &config->schedule;
    double lr = config->adamw.lr;
    double min_lr = schedule->warmup_min_lr;
    double max_lr = schedule->warmup_max_lr > 0 ? schedule->warmup_max_lr : lr;
    double at = (double)step;
    bool rising = at < warmup_steps(schedule);

    switch (schedule->kind) {
    case ZR_SCHEDULE_CONSTANT:
        return lr;
    case ZR_SCHEDULE_WARMUP:
        return rising ? min_lr + (max_lr - min_lr) * rise(schedule, at) : max_lr;
    case ZR_SCHEDULE_WARMUP_DECAY:
        return min_lr + (max_lr - min_lr) * (rising ? rise(schedule, at) : line_left(schedule, at));
    case ZR_SCHEDULE_WARMUP_COSINE:
        return lr * (rising ? schedule->warmup_min_ratio +
                                  (1 - schedule->warmup_min_ratio) * rise(schedule, at)
                            : cosine_left(schedule, at));
    }
    return lr;
}
