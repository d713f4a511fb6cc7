/*
 * A clock that is later at every look, for tests of times that were measured: what took place has
 * taken time, however coarsely the machine's own clock ticks. The linker sends clock_gettime here
 * (--wrap).
 */
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

enum { LEAST_STEP_NS = 1000 }; /* seconds as a double tell so much apart */

int __real_clock_gettime(clockid_t clock, struct timespec *now_p);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now_p);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now_p) {
    static _Atomic int64_t latest;
    int status = __real_clock_gettime(clock, now_p);
    if (status != 0 || clock != CLOCK_MONOTONIC)
        return status;
    int64_t real = (int64_t)now_p->tv_sec * 1000000000 + now_p->tv_nsec, now;
    int64_t before = atomic_load(&latest);
    do
        now = real >= before + LEAST_STEP_NS ? real : before + LEAST_STEP_NS;
    while (!atomic_compare_exchange_weak(&latest, &before, now));
    *now_p = (struct timespec){.tv_sec = (time_t)(now / 1000000000), .tv_nsec = now % 1000000000};
    return 0;
}
