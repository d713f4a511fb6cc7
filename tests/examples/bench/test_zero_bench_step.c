/* zero-bench step as a user runs it: the object of --json adds up, and bad usage is refused. */
#include "tests/examples/bench/run_bench.h"

#define GPT "--model layers=2,channels=24,heads=3,seq=16,vocab=101"
#define GPT_PARAMS (2 * (12 * 576 + 13 * 24) + 48 + (101 + 16) * 24)
#define LLAMA                                                                                      \
    "--model llama,layers=2,channels=24,heads=3,kv-heads=1,wide=40,seq=16,vocab=101,tied=1"
#define LLAMA_PARAMS (2 * (24 * 40 + 576 + 3 * 24 * 40 + 48) + 24 + 101 * 24)
#define SHORT " --steps 2 --side 256 "
#define TINY GPT SHORT

static void check_run(const char *model, double n_params, const char *extra, double n_ranks,
                      double micro_batch, double seq) {
    char arguments[256], output[8192];
    snprintf(arguments, sizeof(arguments), "step --json %s" SHORT "%s 2>/dev/null", model, extra);
    assert_int_equal(run(arguments, output, sizeof(output)), 0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    assert_true(json_is_object(object));
    assert_string_equal(json_string_value(json_object_get(object, "command")), "step");
    assert_string_equal(json_string_value(json_object_get(object, "attention")), "own");
    assert_true(number_at(object, "ranks") == n_ranks);
    assert_true(number_at(object, "micro_batch") == micro_batch);
    assert_true(number_at(object, "seq") == seq);
    assert_true(number_at(object, "params") == n_params);

    double tokens = n_ranks * micro_batch * seq * number_at(object, "grad_accum");
    double per_second = tokens / (1e-3 * number_at(object, "step_ms"));
    assert_true(fabs(number_at(object, "tokens_per_s") / per_second - 1.0) < 1e-6);
    double operations = 6.0 * number_at(object, "params") + 12.0 * 2 * 24 * (seq + 1) / 2;
    assert_true(fabs(1e9 * number_at(object, "gflop_per_s") / (per_second * operations) - 1.0) <
                1e-6);
    double ratio = number_at(object, "gflop_per_s") / number_at(object, "machine_gflop_per_s");
    assert_true(fabs(number_at(object, "ratio") / ratio - 1.0) < 1e-6);

    const json_t *time = json_object_get(object, "time");
    double parts = number_at(time, "compute_ms") + number_at(time, "comm_ms") +
                   number_at(time, "stall_ms") + number_at(time, "optimizer_ms");
    assert_true(parts >= 0.999 * number_at(object, "step_ms"));
    assert_true(number_at(object, "peak_device_bytes") > 4.0 * number_at(object, "params"));
    /* It is a real model that learns nothing of random tokens: its loss stays near ln(101). */
    assert_true(fabs(number_at(object, "first_loss") - log(101.0)) < 0.5);
    assert_true(fabs(number_at(object, "last_loss") - log(101.0)) < 0.5);
    json_decref(object);
}

TEST(test_json) {
    check_run(GPT, GPT_PARAMS, "", 1, 4, 16);
    check_run(LLAMA, LLAMA_PARAMS, "", 1, 4, 16);
    check_run(LLAMA, LLAMA_PARAMS, "--ranks 2 --stage 3 --micro-batch 1 --seq 7", 2, 1, 7);
    check_run(GPT, GPT_PARAMS, "--ranks 2 --stage 3 --micro-batch 1 --seq 7 --dtype bf16", 2, 1, 7);
    check_run(GPT, GPT_PARAMS, "--grad-accum 2 --recompute unit --threads 2 --stage 1", 1, 4, 16);
}

/* With everything on drives a step reads and writes what the formula in architecture.md says: state
 * and parameters each way once, parameters once more. */
TEST(test_on_drives) {
    char output[8192];
    assert_int_equal(run("step --json " TINY " --stage 3 --recompute unit --path . 2>/dev/null",
                         output, sizeof(output)),
                     0);
    json_t *object = json_loads(output, JSON_REJECT_DUPLICATES, NULL);
    double longest =
        fmax(number_at(object, "compute_alone_ms"), number_at(object, "transfers_alone_ms"));
    assert_true(number_at(object, "written_bytes") >= 12.0 * GPT_PARAMS);
    assert_true(number_at(object, "read_bytes") > number_at(object, "written_bytes"));
    assert_true(number_at(object, "checksum_ms") > 0);
    assert_true(number_at(object, "compute_alone_ms") > number_at(object, "checksum_ms"));
    assert_true(number_at(object, "transfers_alone_ms") > 0);
    assert_true(fabs(number_at(object, "step_to_longer") * longest / number_at(object, "step_ms") -
                     1.0) < 1e-6);
    json_decref(object);
}

TEST(test_for_people) {
    char output[8192];
    assert_int_equal(run("step " TINY " 2>/dev/null", output, sizeof(output)), 0);
    assert_string_equal(output, "");
    assert_int_equal(run("step " TINY " 2>&1", output, sizeof(output)), 0);
    assert_non_null(strstr(output, "ratio"));
    assert_non_null(strstr(output, "optimizer"));
    assert_int_equal(run("step --help", output, sizeof(output)), 0);
    assert_non_null(strstr(output, "--micro-batch"));
}

TEST(test_attention) {
    char output[8192];
    assert_int_equal(run("step " TINY " --attention cudnn 2>&1", output, sizeof(output)), 1);
    assert_non_null(strstr(output, "device \"host\" has no cuDNN"));
}

TEST(test_bad_usage) {
    assert_bad_usage("stepp", "the nearest is step");
    assert_bad_usage("step --stage 4", "--stage 4");
    assert_bad_usage("step --ranks 0", "--ranks 0");
    assert_bad_usage("step --model gpt5", "--model gpt5");
    assert_bad_usage("step --model layers=1,channels=10,heads=3,seq=4,vocab=9", "heads=3");
    assert_bad_usage("step " TINY " --seq 17", "--seq 17");
    assert_bad_usage("step --micro-batch 2147483648 --seq 64", "--micro-batch");
    assert_bad_usage("step --dtype fp16", "the nearest is fp32");
    assert_bad_usage("step --recompute all", "--recompute all");
    assert_bad_usage("step --micro-bach 4", "the nearest is --micro-batch");
    assert_bad_usage("step --path .", "--stage 3");
    assert_bad_usage("step --stage 3 --nvme-buffers 3", "add --path DIR");
    assert_bad_usage("step --stage 3 --path ./none", "--path ./none");
    assert_bad_usage("step extra", "\"extra\"");
}
