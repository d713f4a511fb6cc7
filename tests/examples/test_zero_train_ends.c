/*
 * How runs of zero-train end that are neither a success nor an error: interrupted, or with weights
 * that are of no use. Both are said, to people and in --json.
 */
#include <signal.h>

#include "tests/common/test.h"
#include "tests/examples/run_train.h"
#include "tests/zero/comm/free_port.h"

#define LONG "--steps 1000000 --schedule constant "

/* ---- signals ---------------------------------------------------------------------------- */

static json_t *interrupt(const char *arguments, int number) {
    pid_t child = start(arguments);
    wait_for(child, "step 10/");
    assert_int_equal(kill(child, number), 0);
    int status = end(child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
        fail_msg("%s: ended with %#x\n%s", arguments, (unsigned)status, err);
    return kept_json(out);
}

/* All ranks end after the same step, and what they did until then is reported. */
TEST(interrupted_runs_report) {
    static const char *const runs[] = {
        TINY LONG "--json", TINY LONG "--json --ranks 3 --stage 3",
        TINY LONG "--json --ranks 2 --stage 2 --grad-accum 2 --memory-snapshot lives.csv"};
    for (size_t i = 0; i < 3; i++) {
        json_t *object = interrupt(runs[i], i == 1 ? SIGTERM : SIGINT);
        expect_fields(object, "result=failed interrupted=true");
        assert_has(text(object, "message"), "interrupted after step");
        double n_steps = number(object, "steps");
        assert_true(n_steps >= 10 && n_steps < 1000000);
        assert_true(number(object, "loss.last") < number(object, "loss.first"));
        assert_int_equal(strlen(text(object, "weights_xxh3")), 16);
        assert_said(runs[i], "interrupted after step");
    }
    assert_int_equal(access("lives.rank1.csv", R_OK), 0);
}

#if defined(__SANITIZE_THREAD__)
static const bool has_few_addresses = true;
#else
static const bool has_few_addresses = false;
#endif

/* Warnings are no chatter: whatever is asked to be left out, they are there, before it begins. */
TEST(quiet_runs_are_warned) {
    if (has_few_addresses)
        skip(); /* no plan of a run so large, and so nothing to warn of */
    pid_t child =
        start("--model gpt3-175b --seq 16 --data text --quiet --steps 1 --plan-check off");
    wait_for(child, "the system may kill the run");
    assert_int_equal(kill(child, SIGKILL), 0); /* if the system has not ended it before */
    assert_int_not_equal(end(child), 0);
    assert_string_equal(out, "");
}

/* The same steps, told to be no more: nothing of the run was left half done. */
TEST(an_interrupted_run_has_whole_steps) {
    json_t *object = interrupt(TINY LONG "--json --ranks 2 --stage 3", SIGINT);
    json_t *again = run_json(0, TINY "--ranks 2 --stage 3 --schedule constant --steps %.0f",
                             number(object, "steps"));
    assert_string_equal(text(object, "weights_xxh3"), text(again, "weights_xxh3"));
    expect_fields(again, "interrupted=absent");
}

/* Whether the process has a handler of its own for a signal, as the system says. */
static bool handles(pid_t child, int number) {
    char path[64], status[8192];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)child);
    read_file(path, status, sizeof(status));
    const char *caught = strstr(status, "SigCgt:");
    assert_non_null(caught);
    return (strtoull(caught + 7, NULL, 16) >> (number - 1) & 1) != 0;
}

/* A rank that waits for another one to come does not look at the first. */
TEST(a_second_signal_ends_at_once) {
    char port[16];
    snprintf(port, sizeof(port), "%d", free_port());
    setenv("MASTER_PORT", port, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", "0", 1);
    setenv("LOCAL_RANK", "0", 1);
    pid_t child = start(TINY "--steps 2 --json");
    static const char *const names[] = {"MASTER_PORT", "MASTER_ADDR", "WORLD_SIZE", "RANK",
                                        "LOCAL_RANK"};
    for (size_t i = 0; i < N_OF(names); i++)
        unsetenv(names[i]);
    while (!handles(child, SIGINT))
        usleep(1000);
    assert_int_equal(kill(child, SIGINT), 0);
    while (handles(child, SIGINT))
        usleep(1000);
    assert_int_equal(kill(child, SIGINT), 0);
    int status = end(child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    assert_string_equal(out, "");
}

/* Of a step whose end would never come, nothing is left: it is as after the step before. */
TEST(a_signal_ends_within_a_step) {
    static const char *const ways[] = {"--ranks 1", "--ranks 2", "--ranks 3 --stage 3",
                                       "--stage 2 --offload-optimizer cpu",
                                       "--ranks 2 --stage 1 --reduce every-micro-batch"};
    for (size_t i = 0; i < N_OF(ways); i++) {
        char run[512];
        json_t *whole = run_json(0, TINY "--schedule constant --steps 4 %s", ways[i]);
        json_t *before =
            run_json(0, TINY "--schedule constant --steps 2 %s --checkpoint-dir saved", ways[i]);
        snprintf(run, sizeof(run),
                 TINY "--schedule constant --steps 4 %s --checkpoint-dir saved --resume --json "
                      "--grad-accum 2147483648",
                 ways[i]);
        pid_t child = start(run);
        wait_for(child, "resumes from");
        usleep(200000); /* into the step, most often */
        assert_int_equal(kill(child, SIGTERM), 0);
        int status = end(child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        expect_fields(kept_json(out), "result=saved interrupted=true steps=2 weights_xxh3=%s",
                      text(before, "weights_xxh3"));
        json_t *rest = run_json(0,
                                TINY "--schedule constant --steps 4 %s --checkpoint-dir saved "
                                     "--resume",
                                ways[i]);
        expect_fields(rest, "weights_xxh3=%s", text(whole, "weights_xxh3"));
        assert_int_equal(system("rm -r saved"), 0);
    }
}

/* ---- weights ---------------------------------------------------------------------------- */

#define ASTRAY TINY "--steps 6 --lr 1000 --schedule constant --beta2 0 --epsilon 1e-37 "

TEST(a_run_that_went_astray_says_so) {
    json_t *object = run_json(0, ASTRAY "--quiet --ranks 2");
    expect_fields(object, "result=trained finite=false");
    assert_true(json_is_null(field(object, "loss.last")));
    assert_true(number(object, "non_finite_weights") > 0);
    assert_true(number(object, "n_skipped") > 0);
    assert_said("astray", "warning: training diverged: the last loss is nan|of 6 steps |a "
                          "lower --lr (now 1000)");
    object = run_json(0, TINY "--steps 2");
    expect_fields(object, "finite=true");
    assert_not_said("good", "astray");
}

TEST(a_run_that_trains_nothing_says_so) {
    json_t *object = run_json(0, TINY "--steps 2 --quiet --freeze wte,wpe,h.0,h.1,ln_f");
    expect_fields(object, "model.trainable=0");
    assert_said("frozen", "warning: rank 0: --freeze wte,wpe,h.0,h.1,ln_f freezes every parameter");
    assert_ran(0, TINY "--steps 2 --quiet --freeze wte,wpe,h.0,h.1");
    assert_string_equal(err, "");
}

const test_group_t test_group = {make_folder, leave_test_folder};
