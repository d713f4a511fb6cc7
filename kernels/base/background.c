#include "kernels/base/background_internal.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define PAUSE_NS 200000

static _Thread_local struct {
    void (*move)(void *context); /* NULL: nothing was begun, or it is being called */
    void *context;
    int64_t next_ns;
    bool is_held;
} background;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void zr_background_begin(void (*move)(void *context), void *context) {
    background.move = move;
    background.context = context;
}

void zr_background_end(void) {
    background.move = NULL;
}

void zr_background_hold(bool holds) {
    background.is_held = holds;
}

void zr_background(void) {
    void (*move)(void *context) = background.move;
    if (move == NULL || background.is_held || now_ns() < background.next_ns)
        return;
    background.move = NULL;
    move(background.context);
    background.move = move;
    background.next_ns = now_ns() + PAUSE_NS;
}
