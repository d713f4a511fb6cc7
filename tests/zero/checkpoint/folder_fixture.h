/*
 * The folder that a test of checkpoints has to itself, and in it one for checkpoints. For one test
 * program each: everything is static. Include it after cmocka.h.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64]; /* of everything */
static char saved[80];  /* checkpoints */

static inline void empty(const char *path) {
    char command[256];
    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}

/** Make it below a folder: 0, or -1. */
static inline int make_folder_in(const char *base) {
    snprintf(folder, sizeof(folder), "%.40s/zr-test-ckpt-XXXXXX", base);
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(saved, sizeof(saved), "%s/a", folder);
    return 0;
}

/** On a drive, mostly: below $TMPDIR or /tmp. */
static inline int make_folder(void **state) {
    const char *base = getenv("TMPDIR");
    return make_folder_in(base != NULL ? base : "/tmp");
}

/** In memory where that can be: for those that are about calls, not drives. */
static inline int make_folder_in_memory(void **state) {
    return make_folder_in("/dev/shm") == 0 ? 0 : make_folder(state);
}

static inline int remove_folder(void **state) {
    empty(folder);
    return 0;
}
