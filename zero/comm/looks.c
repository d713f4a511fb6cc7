/* See looks.h. */
#include "zero/comm/looks.h"

#include <sched.h>
#include <stdbool.h>

enum { MANY_LOOKS = 2000, FEW_LOOKS = 20 };

int zr_looks_count(int n_ranks) {
    cpu_set_t cores;
    bool has_core =
        sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) >= n_ranks;
    return has_core ? MANY_LOOKS : FEW_LOOKS;
}
