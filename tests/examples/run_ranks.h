/*
 * Ranks of zero-train that are processes, as somebody starts them by hand.
 */
#pragma once

#include "tests/examples/run_train.h"
#include "tests/zero/comm/free_port.h"

#ifndef ZERO_TRAIN_PROCESS
#define ZERO_TRAIN_PROCESS ZERO_TRAIN /* what is started several times */
#endif

/* The exit status of rank 0. Its output is in out and err, that of others in out.1 and err.1, ...
 */
static inline int run_by_hand(int n_ranks, const char *arguments) {
    char command[4096];
    snprintf(
        command, sizeof(command),
        "export WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; rank=1; "
        "while [ $rank -lt %d ]; do "
        "RANK=$rank LOCAL_RANK=$rank '%s' %s >out.$rank 2>err.$rank & rank=$((rank + 1)); done; "
        "RANK=0 LOCAL_RANK=0 '%s' %s >out 2>err; code=$?; wait; exit $code",
        n_ranks, free_port(), n_ranks, ZERO_TRAIN_PROCESS, arguments, ZERO_TRAIN_PROCESS,
        arguments);
    return run_shell(command);
}

/* Rank 1 of 3 is killed once steps are made; the others say so, and fail. */
static inline void kill_rank(const char *arguments) {
    char command[4096];
    snprintf(command, sizeof(command),
             "export WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d; rm -f log; A='%s'; "
             "RANK=1 LOCAL_RANK=1 '%s' $A >out.1 2>err.1 & victim=$!; "
             "RANK=2 LOCAL_RANK=2 '%s' $A >out.2 2>err.2 & other=$!; "
             "RANK=0 LOCAL_RANK=0 '%s' $A --log log >out 2>err & first=$!; "
             "until [ -s log ]; do kill -0 $first || exit 9; done; kill -KILL $victim; "
             "wait $other; [ $? -eq 1 ] || exit 8; wait $first",
             free_port(), arguments, ZERO_TRAIN, ZERO_TRAIN, ZERO_TRAIN);
    assert_int_equal(run_shell(command), 1);
    assert_said("a killed rank", "rank 1|error: rank 0: ");
    assert_not_said("a killed rank", "has failed before"); /* at any moment */
    read_file("err.2", err, sizeof(err));
    assert_said("a killed rank", "error: rank 2: |rank 1");
    assert_not_said("a killed rank", "has failed before");
}
