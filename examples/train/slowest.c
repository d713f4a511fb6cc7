#include "examples/train/slowest.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

train_slowest_t train_slowest_of(double *own_seconds, int n_ranks) {
    train_slowest_t slowest = {0};
    size_t n_others = (size_t)n_ranks - 1;
    for (int rank = 1; rank < n_ranks; rank++)
        if (own_seconds[rank] > own_seconds[slowest.rank])
            slowest.rank = rank;
    qsort(own_seconds, (size_t)n_ranks, sizeof(*own_seconds), by_value);
    double median = 0.5 * (own_seconds[(n_others - 1) / 2] + own_seconds[n_others / 2]);
    slowest.excess_seconds = own_seconds[n_others] - median;
    return slowest;
}

int train_slowest_of_all(const train_delays_t *delays, int n_ranks) {
    int slowest = 0;
    for (int rank = 1; rank < n_ranks; rank++)
        if (delays[rank].excess_seconds > delays[slowest].excess_seconds)
            slowest = rank;
    return slowest;
}
