/*
 * zero-train with everything on NVMe, as its users' machines treat it: the folder vanishes, the
 * limits of the process are low, and it is killed. It goes on in the right weights or says what is
 * to be done, and leaves nothing in the folder.
 */
#include <dirent.h>

#include "tests/common/test.h"
#include "tests/examples/run_train.h"

#define MODEL TINY "--stage 3 --recompute unit "
#define DRIVE                                                                                      \
    "--offload-optimizer nvme --offload-params nvme --offload-activations nvme --nvme-path drive " \
    "--nvme-buffers 1 --sub-group 1024 --param-buffer 1024 "
#define LONG "--steps 1000000 --schedule constant "

static bool has_drive;

static int prepare(void **state) {
    if (make_folder(state) != 0)
        return -1;
    has_drive = has_nvme();
    return 0;
}

static void assert_empty(const char *name) {
    DIR *listing = opendir(name);
    assert_non_null(listing);
    for (const struct dirent *entry; (entry = readdir(listing)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            fail_msg("%s is left in %s", entry->d_name, name);
    closedir(listing);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Weights after as many steps as a run has made, with nothing on a drive. */
static void assert_right(json_t *run) {
    json_t *again = run_json(0, MODEL "--ranks 2 --quiet --schedule constant --steps %.0f",
                             number(run, "steps"));
    assert_string_equal(text(run, "weights_xxh3"), text(again, "weights_xxh3"));
}

/* Files have no names, so nobody needs the folder while they are in use. */
TEST(the_folder_vanishes) {
    for (int i = 0; i < 2 && has_drive; i++) {
        pid_t child = start(MODEL DRIVE LONG "--ranks 2 --json");
        wait_for(child, "step 10/");
        assert_int_equal(i == 0 ? rename("drive", "moved") : rmdir("drive"), 0);
        wait_for(child, "step 30/");
        assert_int_equal(kill(child, SIGINT), 0);
        int status = end(child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        json_t *object = kept_json(out);
        if (object == NULL || !json_is_true(json_object_get(object, "interrupted")))
            fail_msg("%s%s", out, err);
        if (i == 0)
            assert_empty("moved");
        assert_int_equal(i == 0 ? rename("moved", "drive") : mkdir("drive", 0777), 0);
        assert_right(object);
    }
}

/* ---- what is there --------------------------------------------------------------------------- */

/* Nothing that an update writes: adapters are in host memory. */
TEST(frozen_parameters_alone) {
    static const char model[] = TINY "--stage 3 --steps 2 --lora rank=4 --lora-base bf16 "
                                     "--dtype bf16 --quiet ";
    if (!has_drive)
        return;
    json_t *on_drive =
        run_json(0,
                 "%s--nvme-path drive --offload-optimizer nvme --offload-params nvme "
                 "--offload-param-ratio 0.5 --update-at backward",
                 model);
    assert_string_equal(text(on_drive, "weights_xxh3"),
                        text(run_json(0, "%s", model), "weights_xxh3"));
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Of a size that the first transfer fits, and one that it does not. */
TEST(files_may_not_be_large) {
    static const char *const limits[] = {"ulimit -f 100;", "ulimit -f 300;"};
    for (size_t i = 0; i < 2 && has_drive; i++) {
        assert_int_equal(run_after(limits[i], MODEL DRIVE "--steps 2 --plan-check off"), 1);
        assert_said(limits[i], "rank 0's file in drive are more than the |that a file may have "
                               "here (RLIMIT_FSIZE); raise it: ulimit -f");
        assert_empty("drive");
    }
}

/* From fewer than anything needs to enough: each run ends, and says what it could not open. */
TEST(files_may_not_be_many) {
    char limit[64];
    int code = 1;
    size_t n_of_the_store = 0;
    for (int n = 4; code != 0 && has_drive; n++) {
        snprintf(limit, sizeof(limit), "ulimit -n %d;", n);
        code = run_after(limit, MODEL DRIVE "--steps 2 --quiet --ranks 2");
        if (code == 0)
            break;
        if (strstr(err, "shared libraries") == NULL)
            assert_said(limit, "Too many open files");
        if (strstr(err, "store: ") == NULL)
            continue;
        n_of_the_store++;
        assert_said(limit, "(errno 24)|raise RLIMIT_NOFILE (ulimit -n)");
        assert_empty("drive");
    }
    assert_true(n_of_the_store > 0 || !has_drive);
}

/* ---- the end -------------------------------------------------------------------------------- */

TEST(killed_runs_leave_nothing) {
    static const char *const moments[] = {"step 10/", "step 20/"};
    for (size_t i = 0; i < 4 && has_drive; i++) {
        pid_t child = start(MODEL DRIVE LONG "--ranks 2");
        if (i < 2)
            wait_for(child, moments[i]);
        else
            usleep(20000 * (unsigned)(i - 1)); /* wherever that is */
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_true(WIFSIGNALED(end(child)));
        assert_empty("drive");
    }
    if (has_drive)
        assert_ran(0, MODEL DRIVE "--steps 2 --quiet --ranks 2");
}

const test_group_t test_group = {prepare, leave_test_folder};

/* A file that may not grow is an error that is told, and ends no process by a signal. */
TEST(files_have_a_limit) {
    assert_int_equal(run_after("ulimit -f 1;", TINY "--steps 40 --quiet --log limited"), 1);
    if (strstr(err, "to --log limited: File too large") == NULL)
        fail_msg("%s", err);
}
