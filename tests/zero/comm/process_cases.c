/* See process_cases.h. */
#include "tests/zero/comm/process_cases.h"

#include <stdlib.h>
#include <string.h>

#include "tests/zero/comm/comm_cases.h"

enum { N_SUMMED = 3 * 4096 }; /* some granules */

/* All ranks sum what each has filled with a number of its own. */
static void sum_numbers(rank_t *self, float *tensor, float seed) {
    zr_message_t message = {"moved", ZR_DTYPE_F32, ZR_TRAFFIC_MODEL};
    float sum = 0.0f;
    for (int rank = 0; rank < self->n_ranks; rank++)
        sum += seed + (float)rank;
    for (int i = 0; i < N_SUMMED; i++)
        tensor[i] = seed + (float)self->rank;
    CHECK(self, zr_comm_all_reduce(self->comm, &message, tensor, N_SUMMED, self->stream) == ZR_OK);
    for (int i = 0; i < N_SUMMED; i++)
        CHECK(self, tensor[i] == sum);
}

/* The second granule of a tensor goes to a new place and comes back by way of another one, so that
 * it lies elsewhere in the file; on one rank, whose tensor is then in no one piece. */
static bool move_a_granule(rank_t *self, char *base) {
    size_t granule = zr_device_info(self->device)->granule_bytes;
    zr_device_t *device = self->device;
    return zr_range_move(device, ZR_TIER_DEVICE, base, granule, base, 15 * granule, granule) ==
               ZR_OK &&
           zr_range_map(device, ZR_TIER_DEVICE, base, granule, granule) == ZR_OK &&
           zr_range_unmap(device, ZR_TIER_DEVICE, base, 15 * granule, granule) == ZR_OK;
}

void moved_memory(rank_t *self) {
    size_t granule = zr_device_info(self->device)->granule_bytes, range_bytes = 16 * granule;
    void *base = NULL;
    float *outside = malloc(N_SUMMED * sizeof(float));
    CHECK(self, outside != NULL && N_SUMMED * sizeof(float) < 14 * granule);
    sum_numbers(self, device_take(self, N_SUMMED * sizeof(float)), 1.0f);
    CHECK(self, zr_range_reserve(self->device, ZR_TIER_DEVICE, range_bytes, &base) == ZR_OK);
    CHECK(self, zr_range_map(self->device, ZR_TIER_DEVICE, base, 0, 14 * granule) == ZR_OK);
    sum_numbers(self, base, 2.0f);
    CHECK(self, self->rank != self->n_ranks - 1 || move_a_granule(self, base));
    sum_numbers(self, base, 3.0f);
    sum_numbers(self, self->rank == 0 ? outside : base, 4.0f);
    sum_numbers(self, outside, 5.0f);
    zr_range_release(self->device, ZR_TIER_DEVICE, &base, range_bytes);
    free(outside);
}
