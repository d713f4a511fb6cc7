/*
 * The time line of a step: what is drawn of it is the work that the virtual clock told of, in the
 * lanes of the parts that did it, where and as long as they did.
 */
#include "models/shape.h"
#include "examples/plan/plot_time.h"
#include "tests/common/test.h"

static void expect_near(double value, double expected) {
    if (fabs(value - expected) > 1e-3 * (fabs(expected) + 1e-9))
        fail_msg("%.9g instead of %.9g", value, expected);
}

static double sum(const float *share) {
    double all = 0;
    for (size_t i = 0; i < PLAN_LINE_COLUMNS; i++)
        all += (double)share[i];
    return all / PLAN_LINE_COLUMNS;
}

/* Pieces by hand, in a step from 2 to 4 seconds. */
TEST(pieces_are_where_they_were) {
    static zr_sim_span_t all[] = {{ZR_SIM_COMPUTE, "matmul", 2.0, 3.0, false},
                                  {ZR_SIM_COMPUTE, "attention_forward", 3.0, 3.5, false},
                                  {ZR_SIM_COMPUTE, "adamw", 3.5, 4.0, true},
                                  {ZR_SIM_NETWORK, "all_gather", 2.0, 2.001, false},
                                  {ZR_SIM_NETWORK, "reduce_scatter", 3.999, 4.0, false},
                                  {ZR_SIM_TO_HOST, "copy", 2.0, 2.4, false},
                                  {ZR_SIM_DISK_WRITE, "put", 3.0, 3.2, false},
                                  {ZR_SIM_DISK, "put", 3.0, 3.1, false},
                                  {ZR_SIM_HOST, "checksum", 2.5, 2.75, false}};
    zr_run_spans_t spans = {.all = all, .n = N_OF(all), .begin = 2, .end = 4};
    plan_line_t *line = malloc(sizeof(*line));
    assert_non_null(line);
    plan_line_make(&spans, line);
    assert_int_equal(plan_line_n_lanes(line), 6); /* all but to the device, and reads */
    expect_near(line->busy[0], 1.5);
    expect_near(sum(line->share[0][0]), 0.5);
    expect_near(sum(line->share[0][1]), 0.25);
    expect_near(sum(line->share[1][0]), 0.25);
    expect_near(sum(line->share[2][0]), 0.0005);
    expect_near(sum(line->share[2][1]), 0.0005);
    expect_near(line->busy[4], 0.4);
    expect_near(line->busy[6], 0.2);
    expect_near(line->busy[7], 0.25);
    expect_near((double)line->share[0][0][PLAN_LINE_COLUMNS / 2 - 1], 1);
    expect_near((double)line->share[0][0][PLAN_LINE_COLUMNS / 2], 0);
    expect_near((double)line->share[2][1][PLAN_LINE_COLUMNS - 1], 0.001 / 2 * PLAN_LINE_COLUMNS);
    free(line);
}

/* A plan's: each part is as busy as its times say, and no more than all the time. */
TEST(a_plan_is_all_there) {
    zr_run_spans_t spans = {0};
    zr_run_plan_t plan;
    zr_model_shape_t shape = {
        .of.gpt = {.n_layers = 3, .channels = 64, .heads = 2, .seq = 32, .vocab = 256}};
    zr_run_request_t request = {
        .model = zr_model_shape_maker(&shape, &(zr_transformer_options_t){.seed = 1}),
        .recompute = true,
        .config = zr_config_default(),
        .seq = 32,
        .n_steps = 3,
        .n_ranks = 4,
        .hardware = zr_hardware_default(),
        .spans = &spans,
        .log = zr_log_default()};
    plan_line_t *line = malloc(sizeof(*line));
    assert_non_null(line);
    request.hardware.kind = ZR_HARDWARE_CUDA;
    request.config.stage = 3;
    request.config.offload_optimizer.device = ZR_OFFLOAD_CPU;
    request.config.sub_group_elems = 4096;
    assert_ok(zr_config_resolve(&request.config, 4, NULL));
    assert_ok(zr_run_plan(&request, &plan));
    plan_line_make(&spans, line);
    expect_near(line->seconds, plan.step_seconds);
    expect_near(line->busy[0], plan.times.busy[ZR_RUN_COMPUTE]);
    assert_true(line->busy[1] > 0 && line->busy[2] > 0 && line->busy[3] > 0 && line->busy[4] > 0);
    expect_near(line->busy[2], plan.times.busy[ZR_RUN_COMMUNICATION]);
    for (int lane = 0; lane < PLAN_LINE_MOST_LANES; lane++)
        for (size_t i = 0; i < PLAN_LINE_COLUMNS; i++)
            assert_true(line->share[lane][0][i] + line->share[lane][1][i] +
                            line->share[lane][2][i] <
                        1.001F);
    double drawn = 0;
    for (int kind = 0; kind < PLAN_LINE_KINDS; kind++)
        drawn += sum(line->share[0][kind]);
    expect_near(drawn * line->seconds, line->busy[0]);
    zr_run_spans_free(&spans);
    free(line);
}
