/*
 * A log that keeps what it is told, so that tests can look at messages.
 */
#ifndef TESTS_EXAMPLES_CAPTURED_LOG_H
#define TESTS_EXAMPLES_CAPTURED_LOG_H

#include <stdio.h>
#include <string.h>

#include "tests/common/one_thing.h"
#include "zero/zero.h"

typedef struct captured_log {
    char text[8192]; /* all messages, each on a line */
} captured_log_t;

static inline void captured_log_sink(void *context, zr_log_level_t level, int rank,
                                     const char *message) {
    expect_one_thing(message);
    captured_log_t *captured = context;
    size_t used = strlen(captured->text);
    snprintf(captured->text + used, sizeof(captured->text) - used, "%s\n", message);
}

static inline zr_log_t captured_log(captured_log_t *captured) {
    captured->text[0] = '\0';
    return (zr_log_t){
        .sink = captured_log_sink, .context = captured, .level = ZR_LOG_INFO, .rank = -1};
}

#endif
