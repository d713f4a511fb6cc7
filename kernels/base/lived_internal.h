/*
 * Waiting with a limit, on a clock of the time that a thread lives: while its process is stopped
 * (SIGSTOP, a paused machine), or does not come to run, next to none passes. So who goes on after
 * a stop does not take its own silence for that of others, who were stopped with it.
 *
 * Every wait with a limit is a loop that looks at least every ZR_LIVED_SLICE_MS, and asks its clock
 * at each look. No two looks count for more than ZR_LIVED_STEP_MS: a stop, however long, costs a
 * wait that much of its limit; and a wait always ends, since every look counts for something.
 *
 * In a header alone, since the module for MPI (zero/comm/mpi/module/) has nothing of the library
 * beside it.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum {
    ZR_LIVED_SLICE_MS = 50, /* between two looks */
    ZR_LIVED_STEP_MS = 100, /* the most that counts between them */
    ZR_LIVED_GAP_MS = 1000  /* more than this between them is worth telling */
};

/** A clock: {0} begins at its first look. It is a thread's own, or has a lock beside it. */
typedef struct zr_lived {
    int64_t looked_ms;  /* of the machine's clock; 0: never */
    int64_t lived_ms;   /* of this one */
    int64_t gap_ms;     /* between two looks, when it was last worth telling; 0: never */
    int64_t gap_end_ms; /* of the machine's clock */
} zr_lived_t;

/** Milliseconds of the machine's clock, which only goes forward. */
static inline int64_t zr_lived_machine_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/** Look at a clock behind a call that may take long by itself: that much counts of it at most.
 * Milliseconds lived since the first look. */
static inline int64_t zr_lived_ms_behind(zr_lived_t *clock, int64_t most_ms) {
    int64_t now = zr_lived_machine_ms();
    int64_t step_ms = clock->looked_ms != 0 ? now - clock->looked_ms : 0;
    if (step_ms > ZR_LIVED_GAP_MS) {
        clock->gap_ms = step_ms;
        clock->gap_end_ms = now;
    }
    clock->looked_ms = now;
    clock->lived_ms += step_ms < most_ms ? step_ms : most_ms;
    return clock->lived_ms;
}

/** Look at a clock: milliseconds lived since the first look. */
static inline int64_t zr_lived_ms(zr_lived_t *clock) {
    return zr_lived_ms_behind(clock, ZR_LIVED_STEP_MS);
}

/** So many milliseconds as a slice of waiting, no longer than until a clock comes to its limit. */
static inline int zr_lived_slice_ms(const zr_lived_t *clock, int64_t limit_ms) {
    int64_t left_ms = limit_ms - clock->lived_ms;
    if (left_ms < 0)
        return 0;
    return left_ms < ZR_LIVED_SLICE_MS ? (int)left_ms : ZR_LIVED_SLICE_MS;
}

/** Wait for a condition of zr_lived_init, for a slice at most. Lock held. */
static inline void zr_lived_wait(pthread_cond_t *changed, pthread_mutex_t *lock, int slice_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)slice_ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(changed, lock, &until);
}

/** A condition for zr_lived_wait. False: no memory, and it is not made. */
static inline bool zr_lived_init_condition(pthread_cond_t *changed) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int error = pthread_cond_init(changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return error == 0;
}

/** A lock and such a condition. False: no memory, and neither is made. */
static inline bool zr_lived_init(pthread_mutex_t *lock, pthread_cond_t *changed) {
    if (pthread_mutex_init(lock, NULL) != 0)
        return false;
    if (zr_lived_init_condition(changed))
        return true;
    pthread_mutex_destroy(lock);
    return false;
}
