/*
 * zero-plan --calibrate: rates that were changed are found again from the times of plans with them,
 * steps of another system are predicted that it was not fitted to, and files that cannot be used
 * are refused.
 */
#include <math.h>

#include "tests/common/test.h"
#include "tests/examples/run_plan.h"

#define ON "--hardware " HARDWARE "/8x-a100-80g.json --dtype bf16 --offload-optimizer none "
#define MODEL "--model layers=2,channels=512,heads=8,seq=512,vocab=1024 "

/* The description with a rate that is so many times what it was. */
static void write_changed(const char *section, const char *name, double times) {
    json_t *root = json_load_file(HARDWARE "/8x-a100-80g.json", 0, NULL);
    json_t *of = json_object_get(root, section);
    double rate = json_number_value(json_object_get(of, name));
    assert_true(rate > 0);
    json_object_set_new(of, name, json_real(times * rate));
    assert_int_equal(json_dump_file(root, "changed.json", 0), 0);
    json_decref(root);
}

/* Steps that are planned with a description, as if they had been measured. */
static void write_runs(const char *path, const char *hardware) {
    static const int ranks[] = {1, 2, 8}, layers[] = {2, 4, 6};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "\"layers\", channels,ranks,micro-batch,global_batch,step_ms,machine,tp\n");
    for (size_t i = 0; i < 12; i++) {
        int channels = i % 2 == 0 ? 512 : 1024, micro = i < 6 ? 4 : 8, n = ranks[i % 3];
        json_t *object =
            plan_json(0,
                      "--model layers=%d,channels=%d,heads=8,seq=512,vocab=1024 --hardware %s "
                      "--dtype bf16 --offload-optimizer none --stage 1 --recompute none "
                      "--micro-batch %d --ranks %d --grad-accum %d --memory-plan off",
                      layers[i % 3], channels, hardware, micro, n, i == 4 ? 6 : 1);
        fprintf(file, "%d,%d,%d,%d,%d,%.6f,x,1\n", layers[i % 3], channels, n, micro,
                n * micro * (i == 4 ? 6 : 1), number(recommended_plan(object), "step_ms"));
    }
    fprintf(file, "2,512,2,4,8,10,x,2\n\n"); /* tensor parallelism */
    fprintf(file, "2,512,2,4,8,-1,x,1\n");   /* no time */
    fprintf(file, "2,513,2,4,8,10,x,1\n");   /* no such model */
    fprintf(file, "2,512,2,4,9,10,x,1\n");   /* no such batch */
    assert_int_equal(fclose(file), 0);
}

TEST(a_changed_rate_is_found) {
    write_changed("device", "matrix_bf16_ops_per_s", 0.5);
    write_runs("runs.csv", "changed.json");
    json_t *object = plan_json(0, MODEL ON "--stage 1 --recompute none --calibrate runs.csv "
                                           "--save-hardware fitted.json");
    assert_said("rows", "line 16 is left out: the time of a step is \"-1\"|line 17 is left "
                        "out|line 18 is left out: global batch 9: must be a multiple of 8");
    expect_fields(object, "result=calibrated left_out.parallel=1 left_out.impossible=3 "
                          "errors.held_out.runs=4 errors.fitted.runs=8");
    assert_true(number(object, "errors.described.mean") > 0.2);
    assert_true(number(object, "errors.held_out.worst") < 0.05);
    json_t *rates = field(object, "rates");
    json_t *rate = json_object_get(rates, "device.matrix_bf16_ops_per_s");
    assert_float_equal(number(rate, "fitted") / number(rate, "described"), 0.5, 0.12);
    assert_null(json_object_get(rates, "between_nodes.bytes_per_s")); /* no run has seen it */
    expect_run("", ZERO_PLAN, MODEL "--hardware fitted.json --dtype bf16", 0);
    expect_out("error band: fitted to 12 measured steps of runs.csv (zero-plan --calibrate)");
    expect_run("", ZERO_PLAN, MODEL ON "--stage 1 --recompute none --calibrate runs.csv", 0);
    expect_out("12 of runs.csv, on 8 x A100-80G|1 run left out: tensor or pipeline|3 runs left out|"
               "columns ignored: machine|held out, fitted to the others");
}

/* Steps of Megatron-LM, which the description had not been made with; it overlaps nothing. */
TEST(another_system_is_predicted) {
    if (access(ZR_VTRAIN "/single_node_sample.csv", R_OK) != 0) {
        print_message("skipped: " ZR_VTRAIN " is not there\n");
        skip();
    }
    json_t *object = plan_json(
        0, "--calibrate " ZR_VTRAIN "/single_node_sample.csv --hardware " HARDWARE
           "/8x-a100-80g.json --model layers=1,channels=1024,heads=16,seq=1024,vocab=51200 "
           "--dtype bf16 --stage 0 --recompute unit --overlap-comm off --save-hardware far.json");
    expect_fields(object, "left_out.parallel=116 left_out.impossible=0 errors.held_out.runs=9");
    assert_true(number(object, "errors.described.mean") > 0.4);
    assert_true(number(object, "errors.held_out.mean") < 0.08);
    /* On 64 GPUs of 8 nodes, which no run of the fit had: 3566.5 ms were measured. */
    object = plan_json(0, "--hardware far.json --ranks 64 --micro-batch 8 --dtype bf16 --stage 0 "
                          "--model layers=30,channels=3072,heads=32,seq=2048,vocab=51200 "
                          "--recompute unit --overlap-comm off --offload-optimizer none "
                          "--device-memory 200GiB --memory-plan off");
    assert_true(fabs(number(recommended_plan(object), "step_ms") / 3566.5 - 1) < 0.05);
}

TEST(files_that_are_refused) {
    static const said_t cases[] = {
        {MODEL ON "--calibrate absent.csv", "--calibrate absent.csv: cannot read it: No such"},
        {MODEL ON "--calibrate no_time.csv", "no_time.csv: line 1 names no column step_ms"},
        {MODEL ON "--calibrate cells.csv", "cells.csv: line 3 has 1 cell, line 1 2"},
        {MODEL ON "--calibrate few.csv", "few.csv: has 1 run that can be planned|at least 6"},
        {MODEL ON "--save-hardware x.json", "--save-hardware x.json: requires --calibrate"}};
    write_file("no_time.csv", "ranks\n1\n", 8);
    write_file("cells.csv", "ranks,step_ms\n1,10\n1\n", 21);
    write_file("few.csv", "ranks,step_ms\n1,10\n", 19);
    expect_all_said(ZERO_PLAN, 2, cases, N_OF(cases));
}

const test_group_t test_group = {make_folder, leave_test_folder};
