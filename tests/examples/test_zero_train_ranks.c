/*
 * What four ranks have saved, at stage 3 with all of their state and parameters on NVMe, is loaded
 * by other numbers of ranks, at every stage: the weights that they save again are the same, as
 * zero-checkpoint export says, and the losses of ten further steps are those of the run that was
 * not stopped. m and v are compared by tests/zero/test_checkpoint.c.
 */
#include "tests/common/test.h"
#include "tests/examples/run_train.h"

enum { SAVED_STEP = 3, N_MORE = 10, N_STEPS = SAVED_STEP + N_MORE };

/* 24 sequences in a step, whatever the ranks. */
#define RUN TINY "--schedule constant --lr 0.01 --threads 1 --checkpoint-dir ckpt "

static void shell(const char *command) {
    if (system(command) != 0)
        fail_msg("%s", command);
}

/* Each step has its line once, in order, also where a run went on. */
static void read_losses(double losses[N_STEPS]) {
    char line[4096];
    FILE *log = fopen("log", "r");
    assert_non_null(log);
    for (size_t i = 0; i < N_STEPS; i++) {
        assert_non_null(fgets(line, sizeof(line), log));
        json_t *step = kept_json(line);
        assert_int_equal(number(step, "step"), i + 1);
        losses[i] = number(step, "loss");
    }
    assert_null(fgets(line, sizeof(line), log));
    assert_int_equal(fclose(log), 0);
}

static void export_to(const char *name) {
    char command[512];
    snprintf(command, sizeof(command),
             "rm -f %s; '%s' export ckpt -o %s >out 2>err || { cat err; exit 1; }", name,
             ZERO_CHECKPOINT, name);
    shell(command);
}

/* A step at a learning rate of 0 changes no weight, and is saved by those who have loaded it. */
static void expect_same_weights(const char *way) {
    shell("rm -rf ckpt; cp -r saved ckpt");
    assert_ran(0, RUN "%s --steps %d --lr 0 --resume", way, SAVED_STEP + 1);
    export_to("again.safetensors");
    if (system("cmp again.safetensors saved.safetensors") != 0)
        fail_msg("%s: other weights", way);
}

static void expect_same_losses(const char *way, const double *expected) {
    double losses[N_STEPS];
    shell("rm -rf ckpt; cp -r saved ckpt");
    assert_ran(0, RUN "%s --steps %d --resume --log log", way, N_STEPS);
    read_losses(losses);
    for (size_t i = SAVED_STEP; i < N_STEPS; i++)
        if (!(fabs(losses[i] - expected[i]) <= 1e-4))
            fail_msg("%s: step %zu has a loss of %.6f, not %.6f", way, i + 1, losses[i],
                     expected[i]);
}

TEST(any_ranks_go_on) {
    static const int ranks[] = {1, 2, 3, 8};
    double expected[N_STEPS];
    char way[256];
    const char *drive = has_nvme() ? "--offload-optimizer nvme --offload-params nvme "
                                     "--nvme-path drive"
                                   : "--offload-optimizer cpu --offload-params cpu";
    snprintf(way, sizeof(way), "--ranks 4 --micro-batch 6 --stage 3 %s", drive);
    assert_ran(0, RUN "%s --steps %d --log log", way, N_STEPS);
    read_losses(expected);
    shell("rm -rf ckpt");
    assert_ran(0, RUN "%s --steps %d", way, SAVED_STEP);
    export_to("saved.safetensors");
    shell("mv ckpt saved");
    for (int stage = 0; stage <= 3; stage++)
        for (int i = 0; i < 4; i++) {
            snprintf(way, sizeof(way), "--ranks %d --micro-batch %d --stage %d", ranks[i],
                     24 / ranks[i], stage);
            expect_same_weights(way);
            expect_same_losses(way, expected);
        }
}

const test_group_t test_group = {make_folder, leave_test_folder};
