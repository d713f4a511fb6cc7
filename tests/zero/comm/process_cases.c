/* See process_cases.h. */
#include "tests/zero/comm/process_cases.h"

#include "tests/zero/comm/comm_cases.h"

void large_tensors(rank_t *self) {
    size_t n_ranks = (size_t)self->n_ranks;
    comm_case_t cases[] = {
        {.collective = ZR_REDUCE_SCATTER, .dtype = ZR_DTYPE_F32, .in_place = true},
        {.collective = ZR_REDUCE_SCATTER, .dtype = ZR_DTYPE_BF16},
        {.collective = ZR_ALL_REDUCE, .dtype = ZR_DTYPE_F32},
        {.collective = ZR_ALL_GATHER, .dtype = ZR_DTYPE_F32},
        {.collective = ZR_ALL_GATHER, .dtype = ZR_DTYPE_U8, .in_place = true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) && self->failure[0] == '\0'; i++) {
        comm_case_t wanted = cases[i];
        wanted.seed = i;
        wanted.n_elems = 800001 / n_ranks;
        if (wanted.collective == ZR_ALL_REDUCE)
            wanted.n_elems = 800003; /* slices of different lengths */
        if (wanted.dtype == ZR_DTYPE_U8)
            wanted.n_elems = ((size_t)40 << 20) / n_ranks + 1;
        run_case(self, self->comm, &wanted);
    }
}
