/*
 * Logs of tests: one that keeps what it is told, from any thread, and looks at every message
 * (one_thing.h), and one that does not.
 */
#pragma once

#include "tests/common/one_thing.h"
#include "zero/zero.h"

typedef struct kept_log {
    char text[16384]; /* all messages, each on a line */
    int n_messages;
} kept_log_t;

/** A log that keeps what has this level or one that is worse; nothing is kept yet. */
zr_log_t kept_log(kept_log_t *kept, zr_log_level_t level);
/** Its sink; the context is the kept_log_t. */
void keep_message(void *context, zr_log_level_t level, int rank, const char *message);
/** A sink that keeps nothing. */
void drop_message(void *context, zr_log_level_t level, int rank, const char *message);
