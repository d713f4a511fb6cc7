/*
 * Learning rates against numbers that DeepSpeed 0.19.8's own lr_schedules.py gave for these
 * parameters and values of last_batch_iteration.
 */
#include "tests/zero/config_helper.h"

typedef struct rate {
    size_t step;
    double lr;
} rate_t;

static void check_rates(const zr_schedule_t *schedule, double lr, const rate_t *rates,
                        size_t n_rates) {
    zr_config_t config = zr_config_default();
    config.adamw.lr = lr;
    config.schedule = *schedule;
    for (size_t i = 0; i < n_rates; i++) {
        double got = zr_config_lr(&config, rates[i].step);
        if (!(fabs(got - rates[i].lr) <= 1e-13 * lr))
            fail_msg("step %zu: %.17g, has to be %.17g", rates[i].step, got, rates[i].lr);
    }
}

#define CHECK(schedule, lr, rates) check_rates(&(schedule), lr, rates, N_OF(rates))

TEST(test_constant) {
    static const rate_t rates[] = {{0, 2e-4}, {1, 2e-4}, {1000000, 2e-4}};
    zr_schedule_t schedule = {.kind = ZR_SCHEDULE_CONSTANT, .warmup_steps = 10, .total_steps = 20};
    CHECK(schedule, 2e-4, rates);
}

TEST(test_warmup) {
    static const rate_t log_rates[] = {
        {0, 1e-06},
        {1, 0.0004523944784981397},
        {5, 0.0011678377999502733},
        {99, 0.003},
        {100, 0.003},
        {101, 0.003},
        {5000, 0.003},
    };
    static const rate_t linear_rates[] = {
        {0, 1e-06}, {1, 3.099e-05}, {5, 0.00015095}, {99, 0.00297001}, {100, 0.003}, {5000, 0.003},
    };
    zr_schedule_t schedule = {.kind = ZR_SCHEDULE_WARMUP,
                              .warmup_min_lr = 1e-6,
                              .warmup_max_lr = 3e-3,
                              .warmup_log = true,
                              .warmup_steps = 100};
    CHECK(schedule, 2e-4, log_rates);
    schedule.warmup_log = false;
    CHECK(schedule, 2e-4, linear_rates);
}

/** warmup_num_steps 1 counts as 2; no warmup_max_lr means the optimizer's lr. */
TEST(test_warmup_defaults) {
    static const rate_t rates[] = {{0, 0.0}, {1, 0.0002}, {2, 0.0002}};
    zr_schedule_t schedule = {.kind = ZR_SCHEDULE_WARMUP, .warmup_log = true, .warmup_steps = 1};
    CHECK(schedule, 2e-4, rates);
}

TEST(test_warmup_decay) {
    static const rate_t log_rates[] = {
        {0, 1e-05},
        {1, 0.0003080196957073414},
        {7, 0.0009040590871220239},
        {9, 0.001},
        {10, 0.001},
        {11, 0.00097525},
        {25, 0.00062875},
        {49, 3.475e-05},
        {50, 1e-05},
        {51, 1e-05},
        {1000, 1e-05},
    };
    static const rate_t linear_rates[] = {
        {0, 1e-05},       {1, 0.000109},    {7, 0.000703},   {9, 0.000901}, {10, 0.001},
        {11, 0.00097525}, {25, 0.00062875}, {49, 3.475e-05}, {50, 1e-05},   {51, 1e-05},
    };
    static const rate_t no_decay_rates[] = {{0, 1e-05}, {9, 0.000901}, {10, 1e-05}, {11, 1e-05}};
    zr_schedule_t schedule = {.kind = ZR_SCHEDULE_WARMUP_DECAY,
                              .warmup_min_lr = 1e-5,
                              .warmup_max_lr = 1e-3,
                              .warmup_log = true,
                              .warmup_steps = 10,
                              .total_steps = 50};
    CHECK(schedule, 2e-4, log_rates);
    schedule.warmup_log = false;
    CHECK(schedule, 2e-4, linear_rates);
    schedule.total_steps = 10;
    CHECK(schedule, 2e-4, no_decay_rates);
}

TEST(test_warmup_cosine) {
    static const rate_t linear_rates[] = {
        {0, 3e-05},
        {1, 5.85e-05},
        {7, 0.0002295},
        {19, 0.0005715},
        {20, 0.0005997918397849951},
        {21, 0.0005991676801079445},
        {60, 0.00031939984974505155},
        {98, 6.0208160215004814e-05},
        {99, 6e-05},
        {100, 6e-05},
        {1000, 6e-05},
    };
    static const rate_t default_rates[] = {
        {0, 0.0},
        {1, 0.0001388269278958555},
        {7, 0.00041648078368756644},
        {19, 0.0006},
        {20, 0.0005997687340011296},
        {21, 0.0005990752925999264},
        {60, 0.00028825323306675224},
        {98, 2.9126599887035137e-07},
        {99, 6e-08},
        {100, 6e-08},
    };
    zr_schedule_t schedule = {.kind = ZR_SCHEDULE_WARMUP_COSINE,
                              .warmup_steps = 20,
                              .total_steps = 100,
                              .warmup_min_ratio = 0.05,
                              .cos_min_ratio = 0.1};
    CHECK(schedule, 6e-4, linear_rates);

    schedule = zr_config_default().schedule; /* DeepSpeed's defaults: log, 0, 0.0001 */
    schedule.kind = ZR_SCHEDULE_WARMUP_COSINE;
    schedule.warmup_steps = 20;
    schedule.total_steps = 100;
    CHECK(schedule, 6e-4, default_rates);
}

/** What DeepSpeed does not have: no warm-up at all. */
TEST(test_no_warmup) {
    static const rate_t decay_rates[] = {{0, 1e-3}, {1, 0.75e-3}, {3, 0.25e-3}, {4, 0}, {9, 0}};
    zr_schedule_t schedule = {
        .kind = ZR_SCHEDULE_WARMUP_DECAY, .warmup_log = true, .total_steps = 4};
    CHECK(schedule, 1e-3, decay_rates);
    static const rate_t warmup_rates[] = {{0, 1e-3}, {5, 1e-3}};
    schedule.kind = ZR_SCHEDULE_WARMUP;
    CHECK(schedule, 1e-3, warmup_rates);
}
