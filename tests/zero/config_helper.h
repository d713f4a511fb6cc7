/*
 * What the tests of the configuration share: a log that keeps its messages, and reading from a
 * text as if it were a file.
 */
#pragma once

#include <sys/mman.h>

#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "zero/config/keys.h"
#include "zero/nearest_internal.h"

typedef kept_log_t messages_t;

static inline zr_log_t keep_messages(messages_t *messages) {
    return kept_log(messages, ZR_LOG_DEBUG);
}

/** Read a text as a file; the messages are new. */
static inline zr_status_t read_bytes(const char *bytes, size_t n_bytes, zr_config_t *config,
                                     messages_t *messages) {
    zr_log_t log = keep_messages(messages);
    char path[64];
    int fd = memfd_create("config", 0);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), (ssize_t)n_bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    zr_status_t status = zr_config_read_json(path, &log, config);
    close(fd);
    return status;
}

static inline zr_status_t read_text(const char *text, zr_config_t *config, messages_t *messages) {
    return read_bytes(text, strlen(text), config, messages);
}

/** Every field of both is the same. */
static inline bool configs_equal(const zr_config_t *a, const zr_config_t *b) {
    size_t n = 0;
    const zr_option_t *options = zr_options(&n);
    for (size_t i = 0; i < n; i++)
        if (options[i].field != NULL && !zr_option_equal(&options[i], a, b))
            return false;
    return true;
}
