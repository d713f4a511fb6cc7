/*
 * Ranks that find each other by TCP, without data, for tests: each a thread here, as a process
 * would be; and connections to them by hand.
 */
#pragma once

#include <pthread.h>

#include "tests/common/test.h"
#include "zero/comm/control_internal.h"
#include "zero/comm/wire_internal.h"

enum { LONG_MS = 60000, SHORT_MS = 300, MOST = 5 };

/* One rank: a thread here, as a process would be. */
typedef struct member {
    pthread_t thread;
    zr_launch_t launch;
    int timeout_ms;
    zr_control_t *control;
    zr_status_t status;
    char log[4096]; /* errors and warnings */
} member_t;

/** Of those that are started. */
extern zr_secret_t members_secret;

/** Whether its log has these words. */
bool member_has_logged(member_t *member, const char *text);
/** A log that it keeps. */
zr_log_t member_log(member_t *member);
/** What its thread does. */
void *member_join(void *argument);
/** Start one, which waits start_ms for the others. */
void member_start_within(member_t *member, int rank, int n_ranks, int port, int timeout_ms,
                         int start_ms);
/** However short the limit of its calls is, there is time to begin. */
void member_start(member_t *member, int rank, int n_ranks, int port, int timeout_ms);
void members_start(member_t *members, int n_ranks, int port, int timeout_ms);
/** Wait until it has come, or not. */
void member_finish(member_t *member, zr_status_t status);
/** They leave at one time, as processes do. */
void members_leave(member_t *members, int n_ranks);
zr_post_t make_post(uint64_t sequence, const char *name, int payload);
typedef struct talk {
    member_t *member;
    bool is_right;
} talk_t;

/** A thread: 200 calls with a later meeting each. */
void *talk_main(void *argument);
/** Call until the end, and see why it has come. */
const char *member_await_end(member_t *member);
void member_expect_end(member_t *member, const char *words);
/**
 * Receive exactly so many bytes, on a blocking socket, within so many milliseconds.
 *
 * @return 0; ECONNRESET when the other side has closed; ETIMEDOUT; another errno
 */
int receive_all(int socket, void *data, size_t length, int64_t limit_ms);

/** Connections by hand. */
int connect_to(int port);
/** As who has no secret. */
int send_frame(int fd, uint32_t kind, const void *data, size_t length);
zr_challenge_t await_challenge(int fd);
void await_word(int fd);
/** Whether the other side closes. */
bool is_cut_off(int fd);
