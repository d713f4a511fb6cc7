/*
 * How runs of zero-train end that are neither a success nor an error: interrupted, or with weights
 * that are of no use. Both are said, to people and in --json.
 */
#include <signal.h>

#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define LONG "--steps 1000000 --schedule constant "

/* ---- signals ---------------------------------------------------------------------------- */

static json_t *interrupt(const char *arguments, int number) {
    pid_t child = start(arguments);
    wait_for(child, "step 10/");
    assert_int_equal(kill(child, number), 0);
    int status = end(child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1)
        fail_msg("%s: ended with %#x\n%s", arguments, (unsigned)status, err);
    json_t *object = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
    if (object == NULL)
        fail_msg("%s: no JSON: %s%s", arguments, out, err);
    return object;
}

/* All ranks end after the same step, and what they did until then is reported. */
TEST(interrupted_runs_report) {
    static const char *const runs[] = {
        TINY LONG "--json", TINY LONG "--json --ranks 3 --stage 3",
        TINY LONG "--json --ranks 2 --stage 2 --grad-accum 2 --memory-snapshot lives.csv"};
    for (size_t i = 0; i < 3; i++) {
        json_t *object = interrupt(runs[i], i == 1 ? SIGTERM : SIGINT);
        assert_string_equal(text(object, "result"), "failed");
        assert_true(json_is_true(json_object_get(object, "interrupted")));
        assert_non_null(strstr(text(object, "message"), "interrupted after step"));
        double n_steps = number(object, "steps", NULL);
        assert_true(n_steps >= 10 && n_steps < 1000000);
        assert_true(number(object, "loss", "last") < number(object, "loss", "first"));
        assert_int_equal(strlen(text(object, "weights_xxh3")), 16);
        assert_said(runs[i], "interrupted after step");
        json_decref(object);
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
    pid_t child = start("--model gpt3-175b --seq 16 --data text --quiet --steps 1");
    wait_for(child, "the system may end the run without a word");
    assert_int_equal(kill(child, SIGKILL), 0); /* if the system has not ended it before */
    assert_int_not_equal(end(child), 0);
    assert_string_equal(out, "");
}

/* The same steps, told to be no more: nothing of the run was left half done. */
TEST(an_interrupted_run_has_whole_steps) {
    char arguments[512];
    json_t *object = interrupt(TINY LONG "--json --ranks 2 --stage 3", SIGINT);
    snprintf(arguments, sizeof(arguments),
             TINY "--json --ranks 2 --stage 3 --schedule constant --steps %.0f",
             number(object, "steps", NULL));
    json_t *again = run_json(arguments, 0);
    assert_string_equal(text(object, "weights_xxh3"), text(again, "weights_xxh3"));
    assert_null(json_object_get(again, "interrupted"));
    json_decref(again);
    json_decref(object);
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

/* Whoever cannot wait for the end of a step, which would never come here. Several ranks begin the
 * step also when the first signal comes before it: they learn of it in the step. */
TEST(a_second_signal_ends_at_once) {
    pid_t child = start(TINY "--ranks 2 --steps 2 --grad-accum 1000000000 --json");
    wait_for(child, "device: ");
    assert_true(handles(child, SIGINT));
    assert_int_equal(kill(child, SIGINT), 0);
    while (handles(child, SIGINT))
        usleep(1000);
    assert_int_equal(kill(child, SIGINT), 0);
    int status = end(child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    assert_string_equal(out, "");
}

/* ---- weights ---------------------------------------------------------------------------- */

#define ASTRAY TINY "--steps 6 --lr 1000 --schedule constant --beta2 0 --epsilon 1e-37 "

TEST(a_run_that_went_astray_says_so) {
    json_t *object = run_json(ASTRAY "--quiet --json --ranks 2", 0);
    assert_string_equal(text(object, "result"), "trained");
    assert_true(json_is_false(json_object_get(object, "finite")));
    assert_true(json_is_null(json_object_get(json_object_get(object, "loss"), "last")));
    assert_true(number(object, "non_finite_weights", NULL) > 0);
    assert_true(number(object, "n_skipped", NULL) > 0);
    assert_said("astray", "warning: the training went astray: the last loss is nan");
    assert_said("astray", "of 6 steps ");
    assert_said("astray", "a lower --lr (now 1000)");
    json_decref(object);
    object = run_json(TINY "--steps 2 --json", 0);
    assert_true(json_is_true(json_object_get(object, "finite")));
    assert_not_said("good", "astray");
    json_decref(object);
}

TEST(a_run_that_trains_nothing_says_so) {
    json_t *object = run_json(TINY "--steps 2 --json --quiet --freeze wte,wpe,h.0,h.1,ln_f", 0);
    assert_int_equal(number(object, "model", "trainable"), 0);
    assert_said("frozen", "warning: rank 0: --freeze wte,wpe,h.0,h.1,ln_f freezes every parameter");
    json_decref(object);
    assert_ran(TINY "--steps 2 --quiet --freeze wte,wpe,h.0,h.1", 0);
    assert_string_equal(err, "");
}

const test_group_t test_group = {make_folder, leave_test_folder};
