/*
 * Neighbours' memory, mapped: where their devices' memory can be (kernels/host/host_share.h), ranks
 * of one machine move data as threads do (zero/comm/pass_internal.h), without a call to the system.
 *
 * Threads: the rank's own.
 */
#pragma once

#include "zero/comm/mpi/machines.h"

typedef struct zr_view {
    char *base; /* NULL: none */
    uint64_t size_bytes;
} zr_view_t;

/** The offset of a tensor in its device's file, for others; ZR_NOWHERE. */
uint64_t zr_views_place(zr_device_t *device, const void *tensor, size_t size_bytes);

/**
 * Map the file of a neighbour, or again where it has grown.
 *
 * @param size_bytes  of the file now
 * @return 0, or an errno; ESTALE: it is not the file that the card says, or smaller
 */
int zr_views_open(zr_view_t *view, const zr_card_t *card, uint64_t size_bytes);

/** A tensor of the neighbour's, at a place that was checked; NULL where it is in no view. */
void *zr_views_tensor(const zr_view_t *view, uint64_t place);

/** @param views  [n_ranks] */
void zr_views_close(zr_view_t *views, int n_ranks);
