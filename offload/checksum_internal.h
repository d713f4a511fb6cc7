/*
 * The checksum of a chunk: XXH3, 64 bits, compiled for several instruction sets, of which the best
 * one that the processor has is taken. A library of the system has it for the oldest processors
 * only.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/status.h"

ZR_BEGIN_C

typedef uint64_t (*zr_checksum_t)(const void *bytes, size_t size_bytes);

/**
 * All give the same values.
 *
 * @param name  "avx2", "baseline"; NULL means the fastest that runs here
 * @return NULL when this build or this processor has none of this name
 */
zr_checksum_t zr_checksum_find(const char *name);

ZR_END_C
