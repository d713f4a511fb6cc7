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
#include "tests/examples/run_train.h"

#define LONG "--steps 1000000 --schedule constant "

static void empty(const char *name) {
    char command[256];
    snprintf(command, sizeof(command), "chmod -R u+w '%s' 2>/dev/null; rm -rf '%s'", name, name);
    assert_int_equal(system(command) & ~0xff00, 0);
}

static void copy_hash(char hash[20], json_t *object) {
    snprintf(hash, 20, "%s", text(object, "weights_xxh3"));
    json_decref(object);
}

/* ---- going on -------------------------------------------------------------------------------- */

/* Lines of --log: each step once, in order. */
static void assert_logged(size_t n_steps) {
    static char lines[65536];
    char *rest = lines;
    read_file("log", lines, sizeof(lines));
    for (size_t i = 1; i <= n_steps; i++) {
        json_t *line = json_loads(strsep(&rest, "\n"), 0, NULL);
        if (line == NULL || rest == NULL)
            fail_msg("line %zu of %zu is not whole", i, n_steps);
        assert_int_equal(number(line, "step", NULL), i);
        json_decref(line);
    }
    assert_string_equal(rest, "");
}

/* In two runs what is else done in one. */
TEST(a_run_in_two_parts_is_the_run) {
    static const char *const ways[] = {
        "--stage 0 --ranks 2", "--stage 1 --ranks 3 --grad-accum 2 --clip 1",
        "--stage 3 --ranks 2 --dtype bf16 --recompute unit --seq-min 4", "--freeze wte,h.0"};
    for (size_t i = 0; i < 4; i++) {
        char arguments[512], whole[20], parts[20];
        snprintf(arguments, sizeof(arguments), TINY "--json --steps 6 --lr 0.01 %s", ways[i]);
        copy_hash(whole, run_json(arguments, 0));
        snprintf(arguments, sizeof(arguments),
                 TINY "--json --steps 6 --lr 0.01 %s --checkpoint-dir ckpt --checkpoint-every 2",
                 ways[i]);
        json_t *object = run_json(arguments, 0);
        assert_int_equal(number(object, "checkpoint", "saves"), 3);
        copy_hash(parts, object);
        assert_string_equal(parts, whole);
        assert_int_equal(system("rm -r ckpt/step-00000006"), 0);
        strcat(arguments, " --resume");
        object = run_json(arguments, 0);
        assert_said(arguments, "step 4 of 6");
        assert_int_equal(number(object, "checkpoint", "resumed_at"), 4);
        assert_int_equal(number(object, "steps", NULL), 6);
        copy_hash(parts, object);
        assert_string_equal(parts, whole);
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
    assert_ran(going_on, 0);
    assert_not_said("nothing to go on from", "cut");
    assert_logged(6);
    read_file("log", first, sizeof(first));
    char *fifth = strstr(first, "{\"step\": 5");
    assert_non_null(fifth);
    *fifth = '\0';
    assert_int_equal(system("rm -r ckpt/step-00000006; printf '{\"step\": 7, \"lo' >>log"), 0);
    assert_ran(going_on, 0);
    assert_said("lines of later steps",
                "--log log: goes on behind step 4; cut from it: 2 lines and an unfinished one");
    assert_logged(6);
    read_file("log", then, sizeof(then));
    assert_memory_equal(then, first, strlen(first));
    read_file("log", first, sizeof(first));
    assert_ran(TINY "--steps 3 --checkpoint-dir ckpt --log log --resume", 0);
    read_file("log", then, sizeof(then));
    assert_string_equal(then, first);
    assert_ran(TINY "--steps 7 --checkpoint-dir ckpt --log log --resume", 0);
    assert_not_said("all lines stay", "cut");
    assert_logged(7);
    assert_ran(TINY "--steps 1 --log log", 0);
    assert_logged(1);
    empty("ckpt");
}

/* A run of which no step is left leaves the snapshot of those that were done. */
TEST(the_snapshot_stays) {
    static const char command[] =
        TINY "--steps 3 --ranks 2 --checkpoint-dir ckpt --memory-snapshot s.csv --resume";
    for (int i = 0; i < 2; i++) {
        assert_ran(command, 0);
        if (i == 0)
            assert_int_equal(system("cp s.csv first.csv; cp s.rank1.csv first.rank1.csv"), 0);
        else
            assert_said("again", "warning: rank 0: --memory-snapshot s.csv: nothing is written: "
                                 "the run has done no step");
        assert_int_equal(system("cmp s.csv first.csv && cmp s.rank1.csv first.rank1.csv"), 0);
    }
    empty("ckpt");
}

TEST(a_run_that_is_done_does_nothing) {
    char done[20], again[20];
    copy_hash(done, run_json(TINY "--json --steps 3 --checkpoint-dir ckpt --resume", 0));
    assert_said("first", "begins at the first step");
    json_t *object = run_json(TINY "--json --steps 3 --checkpoint-dir ckpt --resume", 0);
    assert_int_equal(number(object, "checkpoint", "saves"), 0);
    assert_true(json_is_null(json_object_get(json_object_get(object, "loss"), "last")));
    copy_hash(again, object);
    assert_string_equal(again, done);
    assert_ran(TINY "--steps 3 --checkpoint-dir ckpt --resume", 0);
    assert_non_null(strstr(out, "none: the checkpoint has all 3"));
    assert_ran(TINY "--steps 2 --checkpoint-dir ckpt --resume", 0);
    assert_said("fewer steps", "warning: ckpt/step-00000003 has 3 steps already");
    empty("ckpt");
}

/* Other ranks, another micro-batch: the data go on where they were left. */
TEST(other_ranks_go_on) {
    json_t *object = run_json(TINY "--json --steps 8 --ranks 4 --stage 3 --schedule constant", 0);
    double expected = number(object, "loss", "last");
    json_decref(object);
    assert_ran(TINY "--steps 4 --ranks 4 --stage 3 --schedule constant --checkpoint-dir ckpt", 0);
    for (int ranks = 1; ranks <= 2; ranks++) {
        char arguments[512];
        snprintf(arguments, sizeof(arguments),
                 TINY "--json --steps 8 --ranks %d --micro-batch %d --stage %d --schedule constant "
                      "--checkpoint-dir ckpt --resume",
                 ranks, 4 / ranks, ranks);
        object = run_json(arguments, 0);
        double loss = number(object, "loss", "last");
        assert_true(loss > expected - 1e-4 && loss < expected + 1e-4);
        json_decref(object);
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
        char arguments[512];
        snprintf(arguments, sizeof(arguments), TINY "--json --steps 5 --checkpoint-dir ckpt %s",
                 ways[i]);
        json_t *object = run_json(arguments, 0);
        if (!json_equal(json_object_get(object, "planned_peak_bytes"),
                        json_object_get(object, "peak_bytes")))
            fail_msg("%s: peaks are not those planned\n%s", arguments, out);
        json_decref(object);
        empty("ckpt");
    }
}

static size_t count_checkpoints(void) {
    size_t n = 0;
    DIR *dir = opendir("ckpt");
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        n += strncmp(entry->d_name, "step-", 5) == 0;
    closedir(dir);
    return n;
}

TEST(the_newest_are_kept) {
    assert_ran(TINY "--steps 7 --checkpoint-dir ckpt --checkpoint-every 1 --checkpoint-keep 2", 0);
    assert_int_equal(count_checkpoints(), 2);
    assert_int_equal(access("ckpt/step-00000006", F_OK), 0);
    assert_int_equal(access("ckpt/step-00000007", F_OK), 0);
    empty("ckpt");
}

static size_t count_names(const char *name) {
    size_t n = 0;
    DIR *dir = opendir(name);
    if (dir == NULL)
        return 0;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}

/* The files of one that goes are written over by the next; those that nobody writes over go. */
TEST(files_of_old_ones_are_written_over) {
    struct stat first, second;
    assert_ran(TINY "--steps 3 --ranks 4 --stage 1 --checkpoint-dir ckpt --checkpoint-every 1 "
                    "--checkpoint-keep 1",
               0);
    assert_int_equal(count_names("ckpt/.spare"), 4);
    assert_int_equal(stat("ckpt/.spare/rank-00001.data", &first), 0);
    assert_ran(TINY "--steps 4 --ranks 2 --stage 1 --micro-batch 2 --checkpoint-dir ckpt "
                    "--checkpoint-keep 1 --resume",
               0);
    assert_int_equal(stat("ckpt/step-00000004/rank-00001.data", &second), 0);
    assert_int_equal(first.st_ino, second.st_ino);
    assert_int_equal(count_names("ckpt/step-00000004"), 5); /* two of each rank, the manifest */
    assert_ran(TINY "--steps 6 --ranks 2 --stage 1 --micro-batch 2 --checkpoint-dir ckpt "
                    "--checkpoint-every 1 --resume",
               0);
    assert_int_equal(count_names("ckpt/.spare"), 0);
    empty("ckpt");
}

/* ---- signals --------------------------------------------------------------------------------- */

TEST(a_signal_saves) {
    static const int numbers[] = {SIGTERM, SIGUSR1, SIGINT};
    for (size_t i = 0; i < 3; i++) {
        char arguments[512], whole[20], parts[20];
        pid_t child = start(TINY LONG "--json --ranks 2 --stage 2 --checkpoint-dir ckpt");
        wait_for(child, "step 10/");
        assert_int_equal(kill(child, numbers[i]), 0);
        int status = end(child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            fail_msg("signal %d: ended with %#x\n%s", numbers[i], (unsigned)status, err);
        assert_said("signal", "the same command with --resume goes on");
        json_t *object = json_loads(out, JSON_REJECT_DUPLICATES, NULL);
        assert_string_equal(text(object, "result"), "saved");
        size_t n_steps = (size_t)number(object, "steps", NULL) + 5;
        json_decref(object);
        snprintf(arguments, sizeof(arguments),
                 TINY "--json --ranks 2 --stage 2 --steps %zu --schedule constant", n_steps);
        copy_hash(whole, run_json(arguments, 0));
        strcat(arguments, " --checkpoint-dir ckpt --resume");
        copy_hash(parts, run_json(arguments, 0));
        assert_string_equal(parts, whole);
        empty("ckpt");
    }
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
    assert_ran(arguments, 0);
    clock_gettime(CLOCK_MONOTONIC, &end_time);
    return (double)(end_time.tv_sec - begin.tv_sec) +
           1e-9 * (double)(end_time.tv_nsec - begin.tv_nsec);
}

static void expect_survived(const char *way, size_t n_kills, uint64_t *random) {
    char arguments[512], whole[20], parts[20];
    snprintf(arguments, sizeof(arguments), TINY "--json --steps 60 %s", way);
    copy_hash(whole, run_json(arguments, 0));
    strcat(arguments, " --checkpoint-dir ckpt --checkpoint-every 3 --checkpoint-keep 2 --resume "
                      "--log log");
    uint64_t most = (uint64_t)(1e6 * seconds_of(arguments)) + 1000;
    empty("ckpt");
    for (size_t n = 0; n < n_kills; n++)
        if (!kill_once(arguments, next_random(random) % most))
            empty("ckpt"); /* it has come to its end: from the beginning */
    copy_hash(parts, run_json(arguments, 0));
    if (strcmp(parts, whole) != 0)
        fail_msg("%s: killed %zu times, it ends in %s, not in %s", way, n_kills, parts, whole);
    assert_logged(60);
    empty("ckpt");
}

TEST(killed_runs_end_as_others) {
    static const char *const ways[] = {
        "--stage 0 --ranks 2", "--stage 1 --ranks 2", "--stage 2 --ranks 2 --dtype bf16",
        "--stage 3 --ranks 2",
        "--stage 3 --ranks 2 --offload-optimizer nvme --offload-params nvme --nvme-path drive"};
    const char *asked = getenv("ZR_TEST_KILLS");
    size_t n_kills = asked != NULL ? strtoul(asked, NULL, 10) : 10;
    size_t n_ways = has_nvme() ? 5 : 4;
    uint64_t random = 12345;
    for (size_t i = 0; i < n_ways; i++)
        expect_survived(ways[i], (n_kills + i) / n_ways, &random);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void assert_refused(const char *arguments, int code, const char *part) {
    assert_ran(arguments, code);
    assert_said(arguments, part);
}

#define SAVED TINY "--steps 4 --ranks 2 --checkpoint-dir ckpt "

TEST(what_does_not_fit_is_refused) {
    assert_refused(TINY "--resume", 2,
                   "--resume: requires --checkpoint-dir; add --checkpoint-dir DIR");
    assert_refused(TINY "--checkpoint-every 3", 2, "add --checkpoint-dir DIR");
    assert_refused(TINY "--checkpoint-dir ckpt --resume-data restart", 2, "add --resume");
    assert_refused(TINY "--checkpoint-dir nowhere/ckpt", 2,
                   "No such file or directory: make the folder above it first");
    assert_refused(TINY "--checkpoint-dir text", 2, "--checkpoint-dir text");
    /* In a folder of data it would be read as data. */
    assert_int_equal(system("mkdir texts; cp text texts; ln -s texts link"), 0);
    assert_refused(TINY "--data texts --checkpoint-dir link/ckpt", 2,
                   "--checkpoint-dir link/ckpt is in --data texts");
    assert_refused(TINY "--data link --checkpoint-dir texts", 2,
                   "--checkpoint-dir texts is in --data link");
    assert_ran(TINY "--data texts --steps 1 --checkpoint-dir texts/.ckpt", 0);
    assert_ran(TINY "--data texts --steps 1 --checkpoint-dir texts2", 0);
    empty("texts");
    empty("texts2");
    assert_ran(SAVED, 0);
    assert_refused(SAVED, 2, "there are checkpoints in it already; add --resume");
    assert_refused(TINY "--resume --checkpoint-dir ckpt/step-00000004", 2,
                   "--checkpoint-dir ckpt/step-00000004: is a checkpoint itself");
    assert_refused("--model layers=2,channels=16,heads=4,seq=16,vocab=256 --data text --steps 5 "
                   "--checkpoint-dir ckpt --resume",
                   2, "heads=2");
    assert_refused(SAVED "--resume --seed 2", 2, "data of other seed: 1, now 2");
    assert_refused(SAVED "--resume --seq 8", 2, "data of other seq: 16, now 8");
    assert_ran(SAVED "--resume --seed 2 --resume-data restart", 0);
    assert_ran(SAVED "--resume", 0);
    empty("ckpt");
}

/* What is damaged is passed over, with the reason; when nothing is left, that is an error. */
TEST(damage_is_found) {
    assert_ran(SAVED "--checkpoint-every 2", 0);
    assert_int_equal(truncate("ckpt/step-00000004/rank-00001.data", 4096), 0);
    assert_ran(SAVED "--resume", 0);
    assert_said("damaged", "step-00000004");
    assert_said("damaged", "step 2 of 4");
    empty("ckpt");

    assert_ran(SAVED, 0);
    FILE *file = fopen("ckpt/step-00000004/rank-00000.data", "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, 1000, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, 1000, SEEK_SET), 0);
    assert_true(fputc(byte ^ 8, file) >= 0);
    assert_int_equal(fclose(file), 0);
    /* A failure: nothing that was given is wrong. */
    assert_refused(TINY "--steps 6 --checkpoint-dir ckpt --resume", 1, "rank-00000.data");
    assert_int_equal(unlink("ckpt/step-00000004/rank-00000.data"), 0);
    assert_refused(TINY "--steps 6 --checkpoint-dir ckpt --resume", 1, "step-00000004");
    empty("ckpt");
}

/* No room: the run ends with the reason, and what was saved before is there. */
TEST(a_full_drive_ends_the_run) {
    assert_ran(SAVED, 0);
    int code =
        run_after("ulimit -f 40;", TINY "--steps 6 --ranks 2 --checkpoint-dir ckpt --resume");
    assert_int_equal(code, 1);
    assert_said("full", "ulimit -f");
    assert_int_equal(count_checkpoints(), 1);
    assert_ran(TINY "--steps 6 --ranks 2 --checkpoint-dir ckpt --resume", 0);
    assert_said("after", "step 4 of 6");
    empty("ckpt");
}

const test_group_t test_group = {make_folder, leave_test_folder};
