/* The flag is the process's, as signals are: see signals.h. */
#include "examples/common/signals.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

static atomic_bool stop;

static void note_signal(int number) {
    (void)number;
    atomic_store(&stop, true);
}

const atomic_bool *signals_watch(void) {
    static const int numbers[] = {SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) != 0 || action.sa_handler == SIG_IGN)
            continue;
        action = (struct sigaction){.sa_handler = note_signal,
                                    .sa_flags = (int)(SA_RESTART | SA_RESETHAND)};
        sigemptyset(&action.sa_mask);
        (void)sigaction(numbers[i], &action, NULL);
    }
    return &stop;
}
