/*
 * Of one thing a message says "1 file", never "1 files". Logs of tests look at every message, so
 * that no test has to know which can get to a number of 1.
 */
#pragma once

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the word is a noun in the plural: "1 ms" and "has 1 as" are no mistakes. */
static inline bool one_thing_is_plural(const char *word, size_t length) {
    static const char *const others[] = {"ms", "as", "is", "was", "has", "does", "this"};
    if (length < 2 || word[length - 1] != 's' || word[length - 2] == 's')
        return false;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strlen(others[i]) == length && strncmp(word, others[i], length) == 0)
            return false;
    return true;
}

/* "step 1 allocates" */
static inline bool one_thing_is_name(const char *message, const char *at) {
    static const char *const names[] = {"rank ", "step ", "buffer "};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t length = strlen(names[i]);
        if ((size_t)(at - message) >= length && strncmp(at - length, names[i], length) == 0)
            return true;
    }
    return false;
}

/** End the program, from whichever thread, where a message says "1 files". */
static inline void expect_one_thing(const char *message) {
    for (const char *at = message; (at = strstr(at, "1 ")) != NULL; at++) {
        const char *word = at + 2;
        size_t length = strspn(word, "abcdefghijklmnopqrstuvwxyz-");
        if (at > message && (isalnum((unsigned char)at[-1]) || strchr(".,-:/=", at[-1]) != NULL))
            continue;
        if (one_thing_is_name(message, at) || !one_thing_is_plural(word, length))
            continue;
        fprintf(stderr, "\"1 %.*s\" in: %s\n", (int)length, word, message);
        abort();
    }
}
