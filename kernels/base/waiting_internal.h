/*
 * What begins once something else is over. In a line things begin in the order in which they came,
 * however soon later ones could; what is in no line begins when it can.
 *
 * Threads: the owner's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

/** Lines are numbered from 1 on. */
#define ZR_NO_LINE 0u
#define ZR_MAX_LINE 63u

/** How the owner's things, which it numbers, wait. */
typedef struct zr_waiting_rules {
    bool (*is_ready)(void *context, size_t thing);
    void (*make_ready)(void *context, size_t thing); /* block; others, and it too, may begin */
    void (*begin)(void *context, size_t thing);      /* none is added meanwhile */
} zr_waiting_rules_t;

typedef struct zr_waiting_thing {
    size_t number;
    uint32_t line;
} zr_waiting_thing_t;

typedef struct zr_waiting {
    const zr_waiting_rules_t *rules; /* static */
    void *context;
    zr_waiting_thing_t *things; /* [n], in the order in which they came; the owner's, with room for
                                   all that may wait at once */
    size_t n;
} zr_waiting_t;

/** Let a thing wait, and those of its line begin that can. */
void zr_waiting_add(zr_waiting_t *waiting, size_t number, uint32_t line);
/** Whether things of a line wait. */
bool zr_waiting_has_line(const zr_waiting_t *waiting, uint32_t line);
/** Let all begin that can. */
void zr_waiting_progress(zr_waiting_t *waiting);
/** Block until a thing has begun, and with it those before it in its line. */
void zr_waiting_finish(zr_waiting_t *waiting, size_t number);
/** It does not wait any more, and does not begin. */
void zr_waiting_remove(zr_waiting_t *waiting, size_t number);

ZR_END_C
