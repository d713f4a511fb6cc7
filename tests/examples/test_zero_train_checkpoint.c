/*
 * Checkpoints of zero-train as its users meet them: a run that is killed, at any moment, as often
 * as may be, and started again with --resume ends with the weights of one that was not; signals
 * save; what cannot be gone on from is refused, and nothing is lost.
 *
 * ZR_TEST_KILLS=200 in the environment kills as often, instead of 10 times.
 */
#include <dirent.h>
#include <time.h>

#include "tests/common/test.h"
#include "tests/examples/run_ranks.h"

#define LONG "--steps 1000000 --schedule constant "

static void empty(const char *name) {
    char command[256];
    snprintf(command, sizeof(command), "chmod -R u+w '%s' 2>/dev/null; rm -rf '%s'", name, name);
    assert_int_equal(system(command) & ~0xff00, 0);
}

/* Two runs end in the same weights. */
static void expect_same_weights(json_t *a, json_t *b) {
    expect_fields(a, "weights_xxh3=%s", text(b, "weights_xxh3"));
}

/* ---- going on -------------------------------------------------------------------------------- */

/* Lines of --log: each step once, in order. */
static void assert_logged(size_t n_steps) {
    static char lines[65536];
    char *rest = lines;
    read_file("log", lines, sizeof(lines));
    for (size_t i = 1; i <= n_steps; i++)
        expect_fields(kept_json(strsep(&rest, "\n")), "step=%zu", i);
    assert_string_equal(rest, "");
}

/* In two runs what is else done in one. */
TEST(a_run_in_two_parts_is_the_run) {
    static const char *const ways[] = {
        "--stage 0 --ranks 2", "--stage 1 --ranks 3 --grad-accum 2 --clip 1",
        "--stage 3 --ranks 2 --dtype bf16 --recompute unit --seq-min 4", "--freeze wte,h.0"};
    for (size_t i = 0; i < N_OF(ways); i++) {
        json_t *whole = run_json(0, TINY "--steps 6 --lr 0.01 %s", ways[i]);
        for (int is_rest = 0; is_rest < 2; is_rest++) {
            json_t *object = run_json(0,
                                      TINY "--steps 6 --lr 0.01 %s --checkpoint-dir ckpt "
                                           "--checkpoint-every 2 %s",
                                      ways[i], is_rest ? "--resume" : "");
            expect_same_weights(object, whole);
            expect_fields(object,
                          is_rest ? "checkpoint.resumed_at=4 steps=6" : "checkpoint.saves=3");
            if (is_rest)
                assert_said(ways[i], "step 4 of 6");
            assert_int_equal(system("rm -r ckpt/step-00000006"), 0);
        }
        empty("ckpt");
    }
}

/* Lines of steps that are done stay as they are; those of steps that are done again, and what a
 * kill has left of one, are cut; a run that does not go on begins its log. */
TEST(the_log_goes_on) {
    static const char going_on[] =
        TINY "--steps 6 --checkpoint-dir ckpt --checkpoint-every 2 --log log --resume";
    static char first[8192], then[8192];
    write_file("log", "of another run\n", 15);
    assert_ran(0, "%s", going_on);
    assert_not_said("nothing to go on from", "cut");
    assert_logged(6);
    read_file("log", first, sizeof(first));
    char *fifth = strstr(first, "{\"step\": 5");
    assert_non_null(fifth);
    *fifth = '\0';
    assert_int_equal(system("rm -r ckpt/step-00000006; printf '{\"step\": 7, \"lo' >>log"), 0);
    assert_ran(0, "%s", going_on);
    assert_said("lines of later steps",
                "--log log: goes on behind step 4; cut from it: 2 lines and an unfinished one");
    assert_logged(6);
    read_file("log", then, sizeof(then));
    assert_memory_equal(then, first, strlen(first));
    read_file("log", first, sizeof(first));
    assert_ran(0, TINY "--steps 3 --checkpoint-dir ckpt --log log --resume");
    read_file("log", then, sizeof(then));
    assert_string_equal(then, first);
    assert_ran(0, TINY "--steps 7 --checkpoint-dir ckpt --log log --resume");
    assert_not_said("all lines stay", "cut");
    assert_logged(7);
    assert_ran(0, TINY "--steps 1 --log log");
    assert_logged(1);
    empty("ckpt");
}

/* A run of which no step is left leaves the snapshot of those that were done. */
TEST(the_snapshot_stays) {
    static const char command[] =
        TINY "--steps 3 --ranks 2 --checkpoint-dir ckpt --memory-snapshot s.csv --resume";
    for (int i = 0; i < 2; i++) {
        assert_ran(0, "%s", command);
        if (i == 0)
            assert_int_equal(system("cp s.csv first.csv; cp s.rank1.csv first.rank1.csv"), 0);
        else
            assert_said("again", "warning: rank 0: --memory-snapshot s.csv: nothing is written, as "
                                 "no step was done");
        assert_int_equal(system("cmp s.csv first.csv && cmp s.rank1.csv first.rank1.csv"), 0);
    }
    empty("ckpt");
}

TEST(a_run_that_is_done_does_nothing) {
    json_t *done = run_json(0, TINY "--steps 3 --checkpoint-dir ckpt --resume");
    assert_said("first", "starting at the first step");
    json_t *again = run_json(0, TINY "--steps 3 --checkpoint-dir ckpt --resume");
    expect_fields(again, "checkpoint.saves=0 loss.last=null");
    expect_same_weights(again, done);
    assert_ran(0, TINY "--steps 3 --checkpoint-dir ckpt --resume");
    expect_out("none: the checkpoint has all 3");
    assert_ran(0, TINY "--steps 2 --checkpoint-dir ckpt --resume");
    assert_said("fewer steps", "warning: ckpt/step-00000003 has 3 steps already");
    empty("ckpt");
}

/* What a command does not say is the checkpoint's; what it says counts, and is told. */
TEST(options_of_the_checkpoint_stay) {
    static const struct {
        const char *options, *told;
    } runs[] = {
        {"--lr 0.01 --schedule linear --warmup 2 --micro-batch 2 --grad-accum 3 --clip 0.5 "
         "--beta2 0.9 --epsilon 1e-6 --weight-decay 0.1 --seed 3 --seq 8",
         "as in the checkpoint: --seq 8, --steps 6, --seed 3, --micro-batch 2, --grad-accum 3, "
         "--schedule "
         "linear, --warmup 2, --clip 0.5, --lr 0.01, --beta2 0.9, --epsilon 1e-06, --weight-decay "
         "0.1"},
        {"--optimizer sgd --momentum 0.5 --nesterov on --schedule constant --warmup 3 --lr 0.1 "
         "--dtype bf16 --seq-min 4 --freeze wte",
         "--seq-min 4|--freeze wte|--dtype bf16|--warmup 3|--optimizer sgd, --lr 0.1, "
         "--momentum 0.5, --nesterov on"},
        {"--optimizer lion --config of.json --state 8bit",
         "--state 8bit|--clip 1|--optimizer lion"}};
    static const char file[] = "{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"AdamW\"}, "
                               "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": "
                               "{\"warmup_num_steps\": 3, \"warmup_max_lr\": 0.01}}}";
    write_file("of.json", file, sizeof(file) - 1);
    for (size_t i = 0; i < N_OF(runs); i++) {
        json_t *whole = run_json(0, TINY "--steps 6 %s --checkpoint-dir ckpt --checkpoint-every 3",
                                 runs[i].options);
        assert_int_equal(system("rm -r ckpt/step-00000006"), 0);
        expect_same_weights(run_json(0, "--data text --checkpoint-dir ckpt --resume"), whole);
        assert_said(runs[i].options, runs[i].told);
        assert_not_said(runs[i].options, "other than in the checkpoint");
        empty("ckpt");
    }
    assert_ran(0, TINY "--steps 2 --lr 0.01 --micro-batch 2 --gather-encoding bf16 --stage 1 "
                       "--checkpoint-dir ckpt");
    assert_ran(0, "--data text --checkpoint-dir ckpt --resume --steps 4 --lr 0.1 --ranks 2 "
                  "--gather-encoding bf16 --stage 1");
    assert_said("given", "zero-train: --resume: other than in the checkpoint (its value in "
                         "brackets): --steps 4 (2), --lr 0.1 (0.01)|"
                         "trained with 2 sequences per step, this run has 4");
    assert_ran(0, "--data text --checkpoint-dir ckpt --resume --steps 6");
    assert_said("dropped", "warning: --resume: other than in the checkpoint (its value in "
                           "brackets): --steps 6 (4), --gather-encoding none (bf16)");
    empty("ckpt");
}

/* Other ranks, another micro-batch: the data go on where they were left. */
TEST(other_ranks_go_on) {
    json_t *whole = run_json(0, TINY "--steps 8 --ranks 4 --stage 3 --schedule constant");
    assert_ran(0, TINY "--steps 4 --ranks 4 --stage 3 --schedule constant --checkpoint-dir ckpt");
    for (int ranks = 1; ranks <= 2; ranks++) {
        json_t *object = run_json(0,
                                  TINY "--steps 8 --ranks %d --micro-batch %d --stage %d "
                                       "--schedule constant --checkpoint-dir ckpt --resume",
                                  ranks, 4 / ranks, ranks);
        assert_float_equal(number(object, "loss.last"), number(whole, "loss.last"), 1e-4);
        assert_int_equal(system("rm -r ckpt/step-00000008"), 0);
    }
    empty("ckpt");
}

/* What saving needs is in the plan, and held from the start. */
TEST(peaks_are_those_planned) {
    static const char *const ways[] = {
        "--ranks 2 --stage 2 --checkpoint-every 2",
        "--ranks 3 --stage 0 --checkpoint-every 1 --checkpoint-async",
        "--ranks 2 --stage 3 --offload-optimizer cpu --offload-params cpu --checkpoint-every 3 "
        "--checkpoint-async",
        "--ranks 2 --stage 3 --offload-optimizer nvme --offload-params nvme --nvme-path drive"};
    size_t n_ways = has_nvme() ? 4 : 3;
    for (size_t i = 0; i < n_ways; i++) {
        json_t *object = run_json(0, TINY "--steps 5 --checkpoint-dir ckpt %s", ways[i]);
        if (!json_equal(field(object, "planned_peak_bytes"), field(object, "peak_bytes")))
            fail_msg("%s: peaks are not those planned\n%s", ways[i], out);
        empty("ckpt");
    }
}

/* Names in a folder that begin so; there may be no such folder. */
static size_t count_names(const char *name, const char *begin) {
    size_t n = 0;
    DIR *dir = opendir(name);
    if (dir == NULL)
        return 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
             strncmp(entry->d_name, begin, strlen(begin)) == 0;
    closedir(dir);
    return n;
}

TEST(the_newest_are_kept) {
    assert_ran(0, TINY "--steps 7 --checkpoint-dir ckpt --checkpoint-every 1 --checkpoint-keep 2");
    assert_int_equal(count_names("ckpt", "step-"), 2);
    assert_int_equal(access("ckpt/step-00000006", F_OK), 0);
    assert_int_equal(access("ckpt/step-00000007", F_OK), 0);
    empty("ckpt");
}

/* The files of one that goes are written over by the next; those that nobody writes over go. */
TEST(files_of_old_ones_are_written_over) {
    struct stat first, second;
    assert_ran(0, TINY "--steps 3 --ranks 4 --stage 1 --checkpoint-dir ckpt --checkpoint-every 1 "
                       "--checkpoint-keep 1");
    assert_int_equal(count_names("ckpt/.spare", ""), 4);
    assert_int_equal(stat("ckpt/.spare/rank-00001.data", &first), 0);
    assert_ran(0, TINY "--steps 4 --ranks 2 --stage 1 --micro-batch 2 --checkpoint-dir ckpt "
                       "--checkpoint-keep 1 --resume");
    assert_int_equal(stat("ckpt/step-00000004/rank-00001.data", &second), 0);
    assert_int_equal(first.st_ino, second.st_ino);
    assert_int_equal(count_names("ckpt/step-00000004", ""), 5); /* two of each rank, the manifest */
    assert_ran(0, TINY "--steps 6 --ranks 2 --stage 1 --micro-batch 2 --checkpoint-dir ckpt "
                       "--checkpoint-every 1 --resume");
    assert_int_equal(count_names("ckpt/.spare", ""), 0);
    empty("ckpt");
}

/* ---- signals --------------------------------------------------------------------------------- */

TEST(a_signal_saves) {
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGINT};
    static const char *const ways[] = {"--stage 3 --grad-accum 2 --order block", "--stage 2",
                                       "--stage 2 --update-at backward"};
    for (size_t i = 0; i < 3; i++) {
        char arguments[256];
        snprintf(arguments, sizeof(arguments),
                 TINY LONG "--json --ranks 2 %s --checkpoint-dir ckpt", ways[i]);
        pid_t child = start(arguments);
        wait_for(child, "step 10/");
        assert_int_equal(kill(child, numbers[i]), 0);
        int status = end(child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("signal %d: ended with %#x\n%s", numbers[i], (unsigned)status, err);
        assert_said("signal", "run the same command with --resume to continue");
        json_t *object = kept_json(out);
        expect_fields(object, "result=saved");
        snprintf(arguments, sizeof(arguments), TINY "--ranks 2 %s --steps %.0f --schedule constant",
                 ways[i], number(object, "steps") + 5);
        expect_same_weights(run_json(0, "%s --checkpoint-dir ckpt --resume", arguments),
                            run_json(0, "%s", arguments));
        empty("ckpt");
    }
}

/* ---- two runs -------------------------------------------------------------------------------- */

/* The second is refused, the first never ends of it; whatever ends a run gives its folder free. */
TEST(one_run_has_the_folder) {
    static const char *const ways[] = {"--ranks 2 --stage 2", "--checkpoint-async"};
    for (size_t i = 0; i < N_OF(ways); i++) {
        char arguments[256];
        snprintf(arguments, sizeof(arguments),
                 TINY LONG "--quiet %s --checkpoint-dir ckpt --checkpoint-every 1 "
                           "--checkpoint-keep 2 --resume",
                 ways[i]);
        pid_t child = start(arguments);
        while (count_names("ckpt", "step-") == 0 && waitpid(child, NULL, WNOHANG) == 0)
            usleep(1000);
        for (int k = 0; k < 3; k++) {
            expect_said(ZERO_TRAIN, 2, TINY "--steps 9 --checkpoint-dir ckpt/../ckpt --resume",
                        "another run is using this folder (process ");
            expect_said(ZERO_TRAIN, 2, TINY "--steps 9 --checkpoint-dir ckpt",
                        "give this run its own folder, or wait until the other has ended");
            expect_run("", ZERO_CHECKPOINT, "list ckpt", 0); /* a reader is no run */
            assert_ran(0, TINY "--eval-only --val-data text --checkpoint-dir ckpt --resume");
        }
        assert_int_equal(kill(child, i == 0 ? SIGKILL : SIGTERM), 0);
        int status = end(child);
        assert_true(i == 0 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(count_names("ckpt", ".run.lock"), i == 0);
        assert_ran(0, TINY "--steps 1 %s --checkpoint-dir ckpt --resume", ways[i]);
        assert_int_equal(count_names("ckpt", ".run.lock"), 0);
        empty("ckpt");
    }
    pid_t child = start(TINY LONG "--quiet --checkpoint-dir ckpt"); /* with nothing saved yet */
    while (count_names("ckpt", ".run.lock") == 0 && waitpid(child, NULL, WNOHANG) == 0)
        usleep(1000);
    expect_said(ZERO_TRAIN, 2, TINY "--steps 9 --checkpoint-dir ckpt", "another run is using");
    assert_int_equal(run_by_hand(2, TINY "--steps 9 --checkpoint-dir ckpt"), 2);
    kill(child, SIGKILL);
    end(child);
    assert_int_equal(run_by_hand(2, TINY "--steps 9 --checkpoint-dir ckpt"), 0);
    empty("ckpt");
}

/* ---- kills ----------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Start the run, and kill it after a while, be it in a step, a save or a rename; false: it was
 * faster. How long it takes decides nothing but where it is met. */
static bool kill_once(const char *arguments, uint64_t microseconds) {
    pid_t child = start(arguments);
    int status = 0;
    usleep((useconds_t)microseconds);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        return true;
    read_file("err", err, sizeof(err));
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: ended with %#x\n%s", arguments, (unsigned)status, err);
    return false;
}

static double seconds_of(const char *arguments) {
    struct timespec begin, end_time;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    assert_ran(0, "%s", arguments);
    clock_gettime(CLOCK_MONOTONIC, &end_time);
    return (double)(end_time.tv_sec - begin.tv_sec) +
           1e-9 * (double)(end_time.tv_nsec - begin.tv_nsec);
}

static void expect_survived(const char *way, size_t n_kills, uint64_t *random) {
    char arguments[512];
    snprintf(arguments, sizeof(arguments),
             TINY "--json --steps 60 %s --checkpoint-dir ckpt --checkpoint-every 3 "
                  "--checkpoint-keep 2 --resume --log log",
             way);
    json_t *whole = run_json(0, TINY "--steps 60 %s --master apart", way);
    uint64_t most = (uint64_t)(1e6 * seconds_of(arguments)) + 1000;
    empty("ckpt");
    for (size_t n = 0; n < n_kills; n++)
        if (!kill_once(arguments, next_random(random) % most))
            empty("ckpt"); /* it has come to its end: from the beginning */
    expect_same_weights(run_json(0, "%s", arguments), whole);
    assert_logged(60);
    empty("ckpt");
}

TEST(killed_runs_end_as_others) {
    static const char *const ways[] = {
        "--stage 0 --ranks 2",
        "--stage 1 --ranks 2",
        "--stage 2 --ranks 2 --dtype bf16 --state 8bit --master split",
        "--stage 3 --ranks 2",
        "--stage 3 --ranks 2 --update-at backward --clip 0.1",
        "--stage 3 --ranks 2 --offload-optimizer nvme --offload-params nvme --nvme-path drive",
        "--stage 2 --ranks 2 --grad-accum 2 --order block --offload-optimizer nvme "
        "--offload-gradients nvme --update-at backward --clip 1 --nvme-path drive"};
    const char *asked = getenv("ZR_TEST_KILLS");
    size_t n_kills = asked != NULL ? strtoul(asked, NULL, 10) : 10;
    size_t n_ways = has_nvme() ? N_OF(ways) : 5;
    uint64_t random = 12345;
    for (size_t i = 0; i < n_ways; i++)
        expect_survived(ways[i], (n_kills + i) / n_ways, &random);
}

/* ---- refusals -------------------------------------------------------------------------------- */

#define SAVED TINY "--steps 4 --ranks 2 --checkpoint-dir ckpt "

TEST(what_does_not_fit_is_refused) {
    expect_said(ZERO_TRAIN, 2, TINY "--resume",
                "--resume: requires --checkpoint-dir; add --checkpoint-dir DIR");
    expect_said(ZERO_TRAIN, 2, TINY "--checkpoint-every 3", "add --checkpoint-dir DIR");
    expect_said(ZERO_TRAIN, 2, TINY "--checkpoint-dir ckpt --resume-data restart", "add --resume");
    expect_said(ZERO_TRAIN, 2, TINY "--checkpoint-dir nowhere/ckpt",
                "No such file or directory: create its parent folder first");
    expect_said(ZERO_TRAIN, 2, TINY "--checkpoint-dir text", "--checkpoint-dir text");
    /* In a folder of data it would be read as data. */
    assert_int_equal(system("mkdir texts; cp text texts; ln -s texts link"), 0);
    expect_said(ZERO_TRAIN, 2, TINY "--data texts --checkpoint-dir link/ckpt",
                "--checkpoint-dir link/ckpt is in --data texts");
    expect_said(ZERO_TRAIN, 2, TINY "--data link --checkpoint-dir texts",
                "--checkpoint-dir texts is in --data link");
    assert_ran(0, TINY "--data texts --steps 1 --checkpoint-dir texts/.ckpt");
    assert_ran(0, TINY "--data texts --steps 1 --checkpoint-dir texts2");
    empty("texts");
    empty("texts2");
    assert_ran(0, SAVED);
    expect_said(ZERO_TRAIN, 2, SAVED, "contains checkpoints already; add --resume");
    expect_said(ZERO_TRAIN, 2, TINY "--resume --checkpoint-dir ckpt/step-00000004",
                "--checkpoint-dir ckpt/step-00000004: is a checkpoint itself");
    expect_said(ZERO_TRAIN, 2,
                "--model layers=2,channels=16,heads=4,seq=16,vocab=256 --data text --steps 5 "
                "--checkpoint-dir ckpt --resume",
                "heads=2");
    expect_said(ZERO_TRAIN, 2, SAVED "--resume --seed 2", "data of other seed: 1, now 2");
    expect_said(ZERO_TRAIN, 2, SAVED "--resume --seq 8", "data of other seq: 16, now 8");
    assert_ran(0, SAVED "--resume --seed 2 --resume-data restart");
    assert_ran(0, SAVED "--resume");
    empty("ckpt");
}

/* What is damaged is passed over, with the reason; when nothing is left, that is an error. */
TEST(damage_is_found) {
    assert_ran(0, SAVED "--checkpoint-every 2");
    assert_int_equal(truncate("ckpt/step-00000004/rank-00001.data", 4096), 0);
    assert_ran(0, SAVED "--resume");
    assert_said("damaged", "step-00000004|step 2 of 4");
    empty("ckpt");

    assert_ran(0, SAVED);
    assert_int_equal(
        system("printf '\\001\\002\\003\\004' | dd of=ckpt/step-00000004/rank-00000.data "
               "bs=1 seek=1000 conv=notrunc status=none"),
        0);
    /* A failure: nothing that was given is wrong. */
    expect_said(ZERO_TRAIN, 1, TINY "--steps 6 --checkpoint-dir ckpt --resume", "rank-00000.data");
    assert_int_equal(unlink("ckpt/step-00000004/rank-00000.data"), 0);
    expect_said(ZERO_TRAIN, 1, TINY "--steps 6 --checkpoint-dir ckpt --resume", "step-00000004");
    empty("ckpt");
}

/* Kinds of damage to the data of a checkpoint whose files are all there, as long as they should be:
 * what was saved is not what is read. */
static const char *const damages[] = {
    "printf '\\001\\002\\003\\004' | dd of=rank-00000.data bs=1 seek=1000 conv=notrunc status=none",
    "printf '\\377' | dd of=rank-00001.data bs=1 seek=0 conv=notrunc status=none",
    "dd if=/dev/zero of=rank-00001.data bs=4096 count=1 conv=notrunc status=none",
    "printf '\\001\\002\\003' | dd of=rank-00000.sums bs=1 seek=5 conv=notrunc status=none",
    "cp rank-00000.sums sums && cat rank-00001.sums >rank-00000.sums && cat sums >rank-00001.sums",
    "cat ../step-00000002/rank-00000.data >rank-00000.data",
    "cat ../step-00000002/rank-00001.data >rank-00001.data && "
    "cat ../step-00000002/rank-00001.sums >rank-00001.sums",
};

static void damage(const char *how, int step) {
    char command[512];
    snprintf(command, sizeof(command), "cd ckpt/step-%08d && %s", step, how);
    assert_int_equal(system(command), 0);
}

/* Nobody is needed: all ranks take the one before, whatever the number of either is, and it ends as
 * from that. Nothing that was damaged is counted, written over or taken again. */
TEST(a_damaged_one_is_passed_over) {
    static const char on[] = TINY "--steps 8 --checkpoint-dir ckpt --checkpoint-every 2 "
                                  "--checkpoint-keep 2 --resume ";
    char arguments[512];
    for (size_t i = 0; i < N_OF(damages); i++) {
        bool are_processes = i % 3 == 0;
        int n_ranks = 1 + (int)i % 4;
        assert_ran(0, TINY "--steps 4 --ranks 2 --stage 2 --checkpoint-dir ckpt "
                           "--checkpoint-every 2");
        assert_int_equal(system("cp -r ckpt before && rm -r before/step-00000004"), 0);
        json_t *wanted = run_json(0, TINY "--steps 8 --checkpoint-dir before --resume --ranks %d",
                                  n_ranks < 2 && are_processes ? 2 : n_ranks);
        char weights[64];
        snprintf(weights, sizeof(weights), "%s", text(wanted, "weights_xxh3"));
        damage(damages[i], 4);
        expect_said(ZERO_TRAIN, 1, TINY "--steps 8 --checkpoint-dir ckpt --resume",
                    "--resume-damaged previous");
        snprintf(arguments, sizeof(arguments), "%s--resume-damaged previous --json", on);
        if (are_processes) {
            assert_int_equal(run_by_hand(n_ranks < 2 ? 2 : n_ranks, arguments), 0);
        } else {
            snprintf(arguments + strlen(arguments), sizeof(arguments) - strlen(arguments),
                     " --ranks %d", n_ranks);
            assert_ran(0, "%s", arguments);
        }
        assert_said("passed over", "warning: skipped ckpt/step-00000004, which is damaged: |"
                                   "was renamed to step-00000004.damaged");
        read_file("out", out, sizeof(out));
        expect_out("\"name\": \"step-00000004\"|\"kept_as\": \"step-00000004.damaged\"");
        expect_fields(kept_json(out), "checkpoint.resumed_at=2 weights_xxh3=%s", weights);
        assert_int_equal(count_names("ckpt", "step-"), 3); /* and two that are whole */
        assert_int_equal(system("test -d ckpt/step-00000004.damaged -a -d ckpt/step-00000006"), 0);
        empty("ckpt");
        empty("before");
    }
}

/* Each that is damaged has a name of its own; where none is left nothing has changed. */
TEST(all_may_be_damaged) {
    static const char on[] = TINY "--checkpoint-dir ckpt --checkpoint-every 2 --resume "
                                  "--resume-damaged previous --ranks 3 ";
    assert_ran(0, SAVED "--checkpoint-every 2");
    damage(damages[0], 4);
    assert_ran(0, "%s--steps 4", on);
    damage(damages[1], 4);
    assert_ran(0, "%s--steps 4", on);
    assert_said("again", "was renamed to step-00000004.damaged.2");
    expect_said(ZERO_CHECKPOINT, 1, "verify ckpt/step-00000004.damaged", "damaged: ");
    damage(damages[3], 4);
    damage(damages[2], 2);
    expect_said(ZERO_TRAIN, 1,
                "--model layers=2,channels=16,heads=2,seq=16,vocab=256 --data text "
                "--steps 6 --checkpoint-dir ckpt --resume --resume-damaged previous",
                "ckpt has no older checkpoint to resume from: all have damaged data");
    assert_int_equal(system("test -d ckpt/step-00000004 -a -d ckpt/step-00000002 -a ! -e "
                            "ckpt/step-00000002.damaged -a \"$(cat ckpt/latest)\" = step-00000004"),
                     0);
    empty("ckpt");
}

/* Ranks that are processes agree on one: not where each has a folder of its own, nor where one of
 * them cannot be read. */
TEST(processes_take_the_same_one) {
    static const char on[] = TINY "--steps 6 --resume --resume-damaged previous --checkpoint-dir "
                                  "$(test $RANK = 1 && echo other || echo ckpt)";
    char command[2048];
    assert_ran(0, SAVED "--checkpoint-every 2");
    assert_int_equal(system("cp -r ckpt other && rm -r other/step-00000004"), 0);
    snprintf(command, sizeof(command),
             "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; "
             "(export RANK=1 LOCAL_RANK=1; exec '%s' %s >out.1 2>err.1) & "
             "export RANK=0 LOCAL_RANK=0; '%s' %s >out 2>err; code=$?; wait; exit $code",
             free_port(), ZERO_TRAIN, on, ZERO_TRAIN, on);
    assert_int_equal(run_shell(command), 1);
    assert_said("other folders", "rank 1 finds a checkpoint of step 2 there, rank 0 one of step 4");
    assert_int_equal(system("rm -r other/step-00000002"), 0);
    assert_int_equal(system("mkdir other/step-00000002"), 0);
    assert_int_equal(run_shell(command), 1);
    assert_said("nothing there", "rank 1 cannot open a checkpoint there: see that rank's message");
    assert_int_equal(system("test -d ckpt/step-00000004 -a -d ckpt/step-00000002"), 0);
    empty("ckpt");
    empty("other");
}

/* Signed by threads and by processes, and gone on from with the secret alone; what is not signed
 * with it ends the run, also where an older one is. */
TEST(who_does_not_know_the_secret_saves_nothing) {
    static const char make[] = "umask 077; head -c 32 /dev/urandom | base64 >secret; "
                               "head -c 32 /dev/urandom | base64 >other";
    assert_int_equal(system(make), 0);
    expect_said(ZERO_TRAIN, 2, TINY "--steps 2 --checkpoint-dir ckpt --checkpoint-sign write",
                "--checkpoint-sign write: no secret was given; add --comm-secret");
    assert_ran(0, SAVED "--comm-secret secret --checkpoint-sign write");
    expect_said(ZERO_CHECKPOINT, 0, "verify ckpt", "is signed, but no secret was given");
    expect_said(ZERO_CHECKPOINT, 1, "verify ckpt --comm-secret other",
                "its signature does not match the secret|was not verified");
    assert_int_equal(run_by_hand(2, TINY "--steps 6 --stage 1 --checkpoint-dir ckpt --resume "
                                         "--comm-secret secret --checkpoint-sign require"),
                     0);
    expect_said(ZERO_TRAIN, 1,
                TINY "--steps 8 --checkpoint-dir ckpt --resume --comm-secret other "
                     "--checkpoint-sign require --resume-damaged previous",
                "its signature does not match the secret");
    assert_ran(0, TINY "--steps 8 --checkpoint-dir ckpt --resume");
    for (int i = 0; i < 2; i++)
        expect_said(ZERO_TRAIN, 1,
                    i == 0 ? TINY "--steps 10 --checkpoint-dir ckpt --resume --comm-secret secret "
                                  "--checkpoint-sign require"
                           : TINY "--steps 10 --checkpoint-dir ckpt --resume --comm-secret secret "
                                  "--checkpoint-sign require --resume-damaged previous",
                    "step-00000008/manifest.json: it is not signed");
    assert_ran(0, TINY "--steps 10 --checkpoint-dir ckpt --resume --comm-secret secret "
                       "--checkpoint-sign write");
    expect_run("", ZERO_CHECKPOINT, "verify ckpt --comm-secret secret", 0);
    expect_out("step 10, |, signed with this secret");
    empty("ckpt");
}

/* No room: the run ends with the reason, and what was saved before is there. */
TEST(a_full_drive_ends_the_run) {
    assert_ran(0, SAVED);
    int code =
        run_after("ulimit -f 40;", TINY "--steps 6 --ranks 2 --checkpoint-dir ckpt --resume");
    assert_int_equal(code, 1);
    assert_said("full", "ulimit -f");
    assert_int_equal(count_names("ckpt", "step-"), 1);
    assert_ran(0, TINY "--steps 6 --ranks 2 --checkpoint-dir ckpt --resume");
    assert_said("after", "step 4 of 6");
    empty("ckpt");
}

const test_group_t test_group = {make_folder, leave_test_folder};
