/* The flag is the process's, as signals are: see signals.h. */
#include "examples/common/signals.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

static atomic_bool stop;

static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1};
#define N_NUMBERS (sizeof(numbers) / sizeof(numbers[0]))
static bool is_watched[N_NUMBERS];

/* Another one, of any number, ends the process. */
static void note_signal(int number) {
    (void)number;
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (is_watched[i])
            (void)signal(numbers[i], SIG_DFL);
    atomic_store(&stop, true);
}

const atomic_bool *signals_watch(void) {
    for (size_t i = 0; i < N_NUMBERS; i++) {
        struct sigaction action;
        if (sigaction(numbers[i], NULL, &action) != 0 || action.sa_handler == SIG_IGN)
            continue;
        is_watched[i] = true;
        action = (struct sigaction){.sa_handler = note_signal, .sa_flags = SA_RESTART};
        sigemptyset(&action.sa_mask);
        (void)sigaction(numbers[i], &action, NULL);
    }
    return &stop;
}
