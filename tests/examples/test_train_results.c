/*
 * Results of ranks that are processes, which tell each other at the end: where that fails, the run
 * has failed, and what is reported of it is the rank's own.
 */
#include <sys/wait.h>

#include "examples/train/train.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/zero/comm/free_port.h"

static int number, failing_rank; /* this process's rank; who cannot tell; -1: none */

WRAP(zr_status_t, zr_stream_create, zr_device_t *device, const char *name, zr_stream_t **stream_p) {
    if (number == failing_rank && strcmp(name, "results") == 0)
        return ZR_ERR_MEMORY;
    return __real_zr_stream_create(device, name, stream_p);
}

static train_result_t train_as(int rank, int port) {
    char *words[] = {"zero-train",    "--model=layers=1,channels=16,heads=2,seq=16,vocab=256",
                     "--data=data",   "--steps=2",
                     "--device=host", "--threads=1",
                     "--stage=3",     NULL};
    char text[16];
    train_result_t result = {0};
    train_options_t options;
    zr_log_t log = {.sink = drop_message, .level = ZR_LOG_ERROR};
    number = rank;
    snprintf(text, sizeof(text), "%d", port);
    setenv("MASTER_PORT", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("RANK", rank == 0 ? "0" : "1", 1);
    setenv("LOCAL_RANK", rank == 0 ? "0" : "1", 1);
    assert_ok(train_options_parse(7, words, &log, &options));
    result.status = zero_train_run(&options, &log, NULL, &result);
    train_options_free(&options);
    return result;
}

/* What rank 0 reports; the other one, a process of its own, ends as it does. */
static train_result_t train(int failing, zr_status_t of_other) {
    int port = free_port(), status = 0;
    failing_rank = failing;
    pid_t other = fork();
    assert_true(other >= 0);
    if (other == 0)
        _exit(train_as(1, port).status == of_other ? 0 : 1);
    train_result_t result = train_as(0, port);
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return result;
}

TEST(failed_runs_have_their_own) {
    train_result_t all = train(-1, ZR_OK);
    assert_int_equal(all.status, ZR_OK);
    assert_true(all.peak[ZR_TIER_DEVICE].live > 0);
    for (int failing = 0; failing < 2; failing++) {
        train_result_t own = train(failing, failing == 1 ? ZR_ERR_MEMORY : ZR_ERR_COMM);
        assert_int_equal(own.status, failing == 0 ? ZR_ERR_MEMORY : ZR_ERR_COMM);
        assert_int_equal(own.n_steps, 2);
        assert_int_equal(own.peak[ZR_TIER_DEVICE].live, all.peak[ZR_TIER_DEVICE].live);
    }
}

static int prepare(void **state) {
    return enter_test_folder(state) | system("seq 2000 >data");
}

const test_group_t test_group = {prepare, leave_test_folder};
