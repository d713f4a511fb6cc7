/*
 * Tables of a rank are counted together: those of its allocator, and of what stands on it.
 */
#pragma once

#include "allocator/allocator.h"
#include "kernels/base/heap_internal.h"

/** zr_allocator_create, with tables that are counted in those of a heap, which outlives it. */
ZR_NODISCARD zr_status_t zr_allocator_create_in(zr_heap_t *counted_in, zr_device_t *device,
                                                const zr_allocator_options_t *options,
                                                zr_allocator_t **allocator_p);

/** For heaps that are counted with the allocator's, which has to outlive them. */
zr_heap_t *zr_allocator_heap(const zr_allocator_t *allocator);
