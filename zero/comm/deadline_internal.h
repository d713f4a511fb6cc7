/*
 * Waiting with a limit: a lock, a condition, and moments of a clock that nobody sets.
 *
 * In a header alone, since the module for MPI (mpi/module/) has nothing of the library beside it.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/** So many milliseconds from now, for pthread_cond_timedwait with a condition of zr_deadline_init.
 */
static inline struct timespec zr_deadline_after(int64_t ms) {
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += ms / 1000;
    deadline.tv_nsec += (long)(ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec += 1;
        deadline.tv_nsec -= 1000000000;
    }
    return deadline;
}

/** A condition on the clock of deadlines. False: no memory, and it is not made. */
static inline bool zr_deadline_init_condition(pthread_cond_t *changed) {
    pthread_condattr_t attributes;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    int error = pthread_cond_init(changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return error == 0;
}

/** A lock and such a condition. False: no memory, and neither is made. */
static inline bool zr_deadline_init(pthread_mutex_t *lock, pthread_cond_t *changed) {
    if (pthread_mutex_init(lock, NULL) != 0)
        return false;
    if (zr_deadline_init_condition(changed))
        return true;
    pthread_mutex_destroy(lock);
    return false;
}
