/*
 * Evaluation in zero-train, as its users meet it: training is the same to the bit with and without,
 * its loss is the same at every stage, with every placement and for any number of ranks, what it
 * needs was planned, the best checkpoint stays, patience ends a run, and a run in two parts
 * evaluates as one.
 */
#include "tests/common/test.h"
#include "tests/examples/run_ranks.h"

#define SIZES "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --threads 1 "
#define EVALUATES "--val-data val --eval-every 2 "

static void remove_all(const char *names) {
    char command[256];
    snprintf(command, sizeof(command), "rm -rf %s", names);
    assert_int_equal(system(command), 0);
}

/* Lines of --log, all of the steps or all of evaluations; the number of them. */
static size_t read_lines(const char *name, bool are_evaluations, json_t **lines, size_t most) {
    static char of_file[1 << 16];
    char *rest = of_file;
    size_t n = 0;
    read_file(name, of_file, sizeof(of_file));
    for (char *line = strsep(&rest, "\n"); rest != NULL; line = strsep(&rest, "\n")) {
        json_t *object = kept_json(line);
        if ((json_object_get(object, "val_loss") != NULL) == are_evaluations) {
            assert_true(n < most);
            lines[n++] = object;
        }
    }
    return n;
}

/* ---- training is not touched --------------------------------------------------------------- */

/* Losses, rates and norms of the steps, but not their times. */
static void expect_same_steps(const char *a, const char *b, size_t n_steps) {
    static const char *const keys[] = {"step", "loss", "lr", "norm", "clip", "tokens"};
    json_t *of_a[64], *of_b[64];
    assert_int_equal(read_lines(a, false, of_a, 64), n_steps);
    assert_int_equal(read_lines(b, false, of_b, 64), n_steps);
    for (size_t i = 0; i < n_steps; i++)
        for (size_t k = 0; k < N_OF(keys); k++)
            assert_true(json_equal(field(of_a[i], "%s", keys[k]), field(of_b[i], "%s", keys[k])));
}

static const char *const ways[] = {
    "--stage 0", "--stage 0 --offload-optimizer cpu", "--stage 1", "--stage 1 --overlap-comm on",
    "--stage 2 --offload-optimizer cpu --offload-gradients none", "--stage 2", "--stage 3",
    "--stage 3 --offload-params cpu --offload-optimizer cpu", "--stage 3 --overlap-comm on",
    "--stage 3 --recompute unit --offload-activations cpu", "--stage 3 --memory-plan off",
    /* with drives */
    "--stage 2 --offload-optimizer nvme --nvme-path drive",
    "--stage 3 --offload-params nvme --offload-optimizer nvme --nvme-path drive",
    "--stage 3 --offload-params nvme --offload-param-ratio 0.5 --param-buffer 2048 --nvme-path "
    "drive "
    "--recompute unit --offload-activations nvme"};
enum { N_WITH_DRIVES = 3 };

static bool is_drive;

/* With micro-batches that do not fill the last round of ranks, and a rest that is no whole one. */
TEST(evaluations_touch_nothing) {
    size_t n_ways = is_drive ? N_OF(ways) : N_OF(ways) - N_WITH_DRIVES;
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        char last[32] = "", first[32] = "";
        for (size_t i = 0; i < n_ways; i++) {
            char run[512];
            if (i > 0 && !ONE_OF(3, 3))
                continue;
            snprintf(run, sizeof(run),
                     SIZES "--data text --reduce every-micro-batch --steps 5 --lr 0.01 "
                           "--micro-batch 3 --grad-accum 2 --seq-min 5 --ranks %d %s",
                     ranks, ways[i]);
            json_t *without = run_json(0, "%s --quiet --log without", run);
            json_t *with = run_json(0, "%s --quiet --log with " EVALUATES, run);
            expect_fields(with, "weights_xxh3=%s loss.last=%.15g evaluation.evaluations=4",
                          text(without, "weights_xxh3"), number(without, "loss.last"));
            expect_same_steps("with", "without", 5);
            expect_same_peaks(field(with, "planned_peak_bytes"), with, true);
            if (i == 0) {
                snprintf(first, sizeof(first), "%.15g", number(with, "evaluation.loss.first"));
                snprintf(last, sizeof(last), "%.15g", number(with, "evaluation.loss.last"));
            }
            expect_fields(with, "evaluation.loss.first=%s evaluation.loss.last=%s", first, last);
        }
    }
}

/* A plan of memory is followed by every step behind those that are evaluated after, and what is
 * evaluated takes nothing beside it. */
TEST(evaluations_have_the_memory_of_steps) {
    for (int stage = 0; stage <= 3; stage++) {
        json_t *without = run_json(0, TINY "--quiet --steps 9 --ranks 2 --stage %d", stage);
        json_t *with = run_json(0,
                                TINY "--quiet --steps 9 --ranks 2 --stage %d --val-data val "
                                     "--eval-every 1",
                                stage);
        assert_true(number(without, "memory.replay.steps_followed") >= 6);
        expect_fields(with, "memory.replay.plans=%.0f memory.replay.unplanned=%.0f",
                      number(without, "memory.replay.plans"),
                      number(without, "memory.replay.unplanned"));
        assert_true(number(with, "peak_bytes.device.reserved") <=
                    number(without, "peak_bytes.device.reserved"));
    }
}

/* ---- the loss ------------------------------------------------------------------------------- */

/* Of the first step's data the first step has the same loss: the same words, the same weights. */
TEST(the_loss_is_that_of_training) {
    write_file("one", "seventeen letters", 17);
    json_t *object = run_json(0, SIZES "--data one --val-data one --steps 1");
    expect_fields(object, "evaluation.tokens=16 evaluation.batches=1 evaluation.loss.first=%.15g",
                  number(object, "loss.first"));
    double loss = number(object, "evaluation.loss.last");
    assert_true(fabs(number(object, "evaluation.perplexity") / exp(loss) - 1) < 1e-6);
}

/* 9 windows of 16, and a rest that makes none: they are the same whoever computes them, in the same
 * order, which no seed changes. Micro-batches of other sizes are other sums of the same words. */
TEST(any_number_of_ranks_has_the_same_loss) {
    static const char *const parts[] = {"", "--eval-batches 1", "--eval-batches 3",
                                        "--eval-batches 99"};
    static const double tokens[] = {144, 32, 96, 144};
    double whole = number(run_json(0, SIZES "--eval-only --val-data val"), "evaluation.loss.first");
    assert_ran(0, SIZES "--data text --steps 3 --lr 0.01 --checkpoint-dir saved --seq-min 3");
    for (size_t i = 0; i < N_OF(parts); i++) {
        char expected[32] = "";
        for (int ranks = 1; ranks <= 6; ranks += 1 + ranks / 3)
            for (int stage = 0; stage <= 3; stage += 3) {
                if (expected[0] != '\0' && !ONE_OF(3, 3))
                    continue;
                json_t *object = run_json(0,
                                          SIZES "--eval-only --val-data val --micro-batch 2 %s "
                                                "--checkpoint-dir saved --resume --ranks %d "
                                                "--stage %d --seed %d",
                                          parts[i], ranks, stage, ranks);
                if (ranks == 1 && stage == 0)
                    snprintf(expected, sizeof(expected), "%.15g",
                             number(object, "evaluation.loss.first"));
                expect_fields(object,
                              "result=evaluated steps=3 evaluation.tokens=%.0f "
                              "evaluation.loss.first=%s",
                              tokens[i], expected);
            }
    }
    double in_twos = number(run_json(0, SIZES "--eval-only --val-data val --micro-batch 2"),
                            "evaluation.loss.first");
    assert_true(fabs(in_twos - whole) < 1e-6 * whole);
    remove_all("saved");
}

/* ---- evaluation alone ------------------------------------------------------------------------ */

TEST(evaluation_alone_has_no_state) {
    assert_ran(0, SIZES "--data text --steps 3 --lr 0.01 --checkpoint-dir saved --dtype bf16");
    assert_int_equal(system("cp -r saved before"), 0);
    for (int ranks = 1; ranks <= 2; ranks++)
        for (size_t i = 0; i < 2; i++) {
            const char *dir = i == 0 ? "saved" : "saved/step-00000003";
            json_t *object = run_json(0,
                                      SIZES "--eval-only --val-data val --checkpoint-dir %s "
                                            "--resume --ranks %d --stage 3 --dtype bf16 --quiet",
                                      dir, ranks);
            assert_string_equal(err, "");
            expect_fields(object, "result=evaluated steps=3 interrupted=absent data=absent "
                                  "model.trainable=0 loss.last=null evaluation.evaluations=1 "
                                  "peak_bytes.device.tags.optimizer_state=0 "
                                  "peak_bytes.device.tags.gradients=0");
            expect_same_peaks(field(object, "planned_peak_bytes"), object, true);
        }
    assert_int_equal(system("diff -r saved before"), 0);
    assert_ran(0, SIZES
               "--eval-only --val-data val --checkpoint-dir saved --resume --log log --verbose");
    assert_said("alone", "evaluates saved/step-00000003, of 3 steps|step 3  validation loss");
    expect_out("loss         validation 5.|evaluation   1 time of 144 tokens (text)");
    json_t *lines[1];
    assert_int_equal(read_lines("log", true, lines, 1), 1);
    expect_fields(lines[0], "step=3");
    remove_all("saved before log");
}

/* ---- what is gained -------------------------------------------------------------------------- */

/* At a rate of 0 nothing is ever gained: the first evaluation is the best, and N more are enough.
 * Given again, the run does nothing; with more patience it goes on. */
TEST(patience_ends_a_run) {
    static const char run[] = SIZES "--data text --lr 0 --steps 20 " EVALUATES
                                    "--checkpoint-dir saved --resume --log log --patience ";
    json_t *object = run_json(0, "%s 3", run);
    expect_fields(object, "result=trained steps=6 interrupted=absent evaluation.evaluations=4 "
                          "evaluation.ended_run=true evaluation.without_gain=3 "
                          "evaluation.best.step=0");
    assert_said("patience", "step 6 of 20: 3 evaluations in a row");
    object = run_json(0, "%s 3", run);
    expect_fields(object, "result=trained steps=6 evaluation.evaluations=0 "
                          "evaluation.ended_run=true evaluation.best.step=0 loss.last=null");
    object = run_json(0, "%s 5", run);
    expect_fields(object, "steps=10 evaluation.evaluations=2 evaluation.without_gain=5");
    json_t *lines[10];
    assert_int_equal(read_lines("log", true, lines, N_OF(lines)), 6);
    assert_int_equal(read_lines("log", false, lines, N_OF(lines)), 10);
    remove_all("saved log");
}

/* The names in a folder of checkpoints, with a space behind each. */
static void expect_names(const char *expected) {
    assert_int_equal(system("cd saved && ls -d step-* | tr '\\n' ' ' >../names"), 0);
    read_file("names", out, sizeof(out));
    assert_string_equal(out, expected);
}

/* Words that get worse: what is learnt from one text is wrong in another. */
TEST(the_best_stays) {
    json_t *lines[16];
    size_t best = 0;
    write_file("noise", "qzxjkvwQZXJKVW@#$%^&*qzxjkvwQZXJKVW@#$%^&*qzxjkvw", 49);
    json_t *object =
        run_json(0, SIZES "--data text --val-data noise --eval-every 1 --steps 8 --lr 0.05 "
                          "--schedule constant --checkpoint-dir saved --checkpoint-keep 1 "
                          "--keep-best --log log --ranks 2");
    size_t n = read_lines("log", true, lines, 16);
    assert_int_equal(n, 9);
    for (size_t i = 0; i < n; i++) {
        bool is_best = number(lines[i], "val_loss") < number(lines[best], "val_loss") || i == 0;
        best = is_best ? i : best;
        expect_fields(lines[i], "best=%s", is_best ? "true" : "false");
    }
    assert_true(best > 0 && best < 7);
    expect_fields(object,
                  "evaluation.best.step=%zu evaluation.best.loss=%.15g "
                  "evaluation.without_gain=%zu",
                  best, number(lines[best], "val_loss"), 8 - best);
    char names[64];
    snprintf(names, sizeof(names), "step-%08zu step-00000008 ", best);
    expect_names(names);
    /* It stays for those who go on, too, and is what it was. */
    assert_ran(0, SIZES "--data text --val-data noise --eval-every 1 --steps 9 --lr 0.05 "
                        "--schedule constant --checkpoint-dir saved --checkpoint-keep 1 "
                        "--keep-best --ranks 2 --resume");
    snprintf(names, sizeof(names), "step-%08zu step-00000009 ", best);
    expect_names(names);
    object = run_json(0,
                      SIZES "--eval-only --val-data noise --resume --checkpoint-dir "
                            "saved/step-%08zu",
                      best);
    assert_true(fabs(number(object, "evaluation.loss.first") - number(lines[best], "val_loss")) <
                1e-6);
    remove_all("saved log");
}

/* Nothing is learnt at this rate but what is wrong: the initial weights are the best, and stay. */
TEST(the_best_may_be_the_first) {
    write_file("noise", "qzxjkvwQZXJKVW@#$%^&*qzxjkvwQZXJKVW@#$%^&*qzxjkvw", 49);
    json_t *object =
        run_json(0, SIZES "--data text --val-data noise --eval-every 1 --steps 3 --lr 0.5 "
                          "--schedule constant --checkpoint-dir saved --checkpoint-keep 1 "
                          "--keep-best --ranks 2 --stage 2");
    expect_fields(object, "evaluation.best.step=0 checkpoint.saves=2");
    expect_same_peaks(field(object, "planned_peak_bytes"), object, false);
    expect_names("step-00000000 step-00000003 ");
    object = run_json(0, SIZES "--eval-only --val-data noise --resume --checkpoint-dir "
                               "saved/step-00000000");
    assert_true(number(object, "evaluation.loss.first") < 5.7);
    remove_all("saved");
}

/* ---- going on -------------------------------------------------------------------------------- */

/* What is in the log of a run in one part and in two. */
static void expect_same_evaluations(const char *a, const char *b) {
    json_t *of_a[32], *of_b[32];
    size_t n = read_lines(a, true, of_a, 32);
    assert_int_equal(read_lines(b, true, of_b, 32), n);
    for (size_t i = 0; i < n; i++)
        expect_fields(of_b[i], "step=%.0f val_loss=%.15g best=%s", number(of_a[i], "step"),
                      number(of_a[i], "val_loss"),
                      json_is_true(field(of_a[i], "best")) ? "true" : "false");
}

TEST(a_run_in_two_parts_evaluates_as_one) {
    static const char run[] =
        SIZES "--data text --lr 0.01 --ranks 2 --stage 3 --steps 9 " EVALUATES;
    json_t *whole = run_json(0, "%s --log whole --patience 9", run);
    /* A run that is interrupted: its newest checkpoints go, as if they had not been written. */
    for (int at = 2; at <= 8; at += 3) {
        assert_ran(0, "%s --checkpoint-dir saved --checkpoint-every 1 --log log", run);
        for (int step = at + 1; step <= 9; step++) {
            char name[64];
            snprintf(name, sizeof(name), "saved/step-%08d", step);
            remove_all(name);
        }
        json_t *object =
            run_json(0, "%s --checkpoint-dir saved --log log --resume --patience 9", run);
        expect_fields(object,
                      "weights_xxh3=%s evaluation.best.step=%.0f "
                      "evaluation.best.loss=%.15g evaluation.without_gain=%.0f",
                      text(whole, "weights_xxh3"), number(whole, "evaluation.best.step"),
                      number(whole, "evaluation.best.loss"),
                      number(whole, "evaluation.without_gain"));
        expect_same_evaluations("whole", "log");
        remove_all("saved log");
    }
    remove_all("whole");
}

/* Checkpoints of runs that did not evaluate, and of those that evaluated something else. */
TEST(other_validation_data_are_begun_anew) {
#define GOES_ON SIZES "--data text --checkpoint-dir saved --lr 0.01 --schedule constant --resume "
    assert_ran(0, GOES_ON "--steps 2");
    json_t *object = run_json(0, GOES_ON "--steps 4 --val-data val");
    expect_fields(object, "evaluation.evaluations=2 evaluation.best.step=4"); /* of steps 2 and 4 */
    object = run_json(0, GOES_ON "--steps 5 --val-data val");
    assert_not_said("the same", "validation data");
    expect_fields(object, "evaluation.evaluations=1");
    object = run_json(0, GOES_ON "--steps 5 --val-data val --eval-batches 2");
    assert_said("others", "has evaluated other validation data, --seq or --eval-batches");
    expect_fields(object, "evaluation.evaluations=1 evaluation.best.step=5");
    object = run_json(0, GOES_ON "--steps 6"); /* and without */
    expect_fields(object, "evaluation=absent");
    remove_all("saved");
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* Words enough for hours. */
static void write_long(void) {
    assert_int_equal(
        system("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do cat text text text "
               "text text text text text; done >long; cat long long long long long "
               "long long long >longer; cat longer longer longer longer longer longer "
               "longer longer >long"),
        0);
}

/* All ranks leave the evaluation; what was not done is made up for. */
TEST(a_signal_ends_an_evaluation) {
    static const char *const ways[] = {"--ranks 1", "--ranks 3 --stage 3"};
    write_long();
    for (size_t i = 0; i < N_OF(ways); i++) {
        char run[512];
        assert_ran(0, SIZES "--data text --steps 2 --checkpoint-dir saved %s", ways[i]);
        snprintf(run, sizeof(run),
                 SIZES "--data text --steps 9 --schedule constant --checkpoint-dir saved --resume "
                       "--json %s --val-data long",
                 ways[i]);
        pid_t child = start(run);
        wait_for(child, "resumes from");
        assert_int_equal(kill(child, SIGTERM), 0);
        int status = end(child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        expect_fields(kept_json(out), "result=saved interrupted=true steps=2 "
                                      "evaluation.evaluations=0 checkpoint.saves=0");
        json_t *object = run_json(0,
                                  SIZES "--data text --steps 3 --schedule constant "
                                        "--checkpoint-dir saved --resume %s --val-data val",
                                  ways[i]);
        expect_fields(object, "evaluation.evaluations=2");
        child = start(SIZES "--eval-only --val-data long --json");
        wait_for(child, "device: ");
        assert_int_equal(kill(child, SIGINT), 0);
        status = end(child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        expect_fields(kept_json(out), "result=failed interrupted=true");
        assert_said("alone", "interrupted before the end of the evaluation");
        remove_all("saved");
    }
}

/* Rank 1 of 2 dies while all evaluate, before any step. */
TEST(a_dead_rank_ends_an_evaluation) {
    for (int stage = 0; stage <= 3; stage += 3) {
        char command[4096];
        snprintf(command, sizeof(command),
                 "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; "
                 "A='" SIZES "--data text --steps 2 --val-data long --stage %d "
                 "--comm-timeout 10'; rm -f log; "
                 "RANK=1 LOCAL_RANK=1 '%s' $A >out.1 2>err.1 & victim=$!; "
                 "RANK=0 LOCAL_RANK=0 '%s' $A --log log >out 2>err & first=$!; "
                 "until [ -e log ]; do kill -0 $first || exit 9; done; sleep 1; "
                 "kill -KILL $victim; wait $first",
                 free_port(), stage, ZERO_TRAIN, ZERO_TRAIN);
        assert_int_equal(run_shell(command), 1);
        assert_said("a dead rank", "error: rank 0: |rank 1");
        assert_not_said("a dead rank", "step 1/");
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

TEST(what_cannot_be_evaluated_is_refused) {
    write_file("empty", "", 0);
    write_file("short", "ten letters", 10);
    assert_int_equal(mkdir("folder", 0777), 0);
    write_file("folder/part", "a part of the validation data", 29);
    static const said_t cases[] = {
        {TINY "--val-data nothing", "--val-data nothing: cannot read it"},
        {TINY "--val-data empty", "--val-data empty: is empty"},
        {TINY "--val-data short", "--val-data: the data has 10 tokens"},
        {TINY "--eval-every 2", "--eval-every 2|--val-data"},
        {TINY "--val-data val --patience 2", "--patience 2|--eval-every"},
        {TINY "--eval-every 0 --val-data val", "--eval-every 0: allowed: 1 to"},
        {TINY "--val-data val --keep-best", "--keep-best requires --checkpoint-dir"},
        {SIZES "--eval-only", "--eval-only|--val-data"},
        {SIZES "--eval-only --val-data val --checkpoint-dir saved", "add --resume to evaluate"},
        {TINY "--val-data folder --checkpoint-dir folder/saved",
         "--checkpoint-dir folder/saved is in --val-data folder"},
        {TINY "--val-data val --log val", "--val-data val and --log val: are the same file"}};
    expect_all_said(ZERO_TRAIN, 2, cases, N_OF(cases));
    expect_said(ZERO_TRAIN, 2, SIZES "--eval-only --val-data val --checkpoint-dir none --resume",
                "--checkpoint-dir none: contains no checkpoint");
    assert_int_equal(access("none", F_OK), -1);
}

static int prepare(void **state) {
    if (make_folder(state) != 0)
        return -1;
    is_drive = has_nvme();
    write_file("val",
               "other words, which nobody learns, and of them a few hundred bytes at most; "
               "what is said here is not said again, so that windows differ from each other",
               150);
    return 0;
}

const test_group_t test_group = {prepare, leave_test_folder};
