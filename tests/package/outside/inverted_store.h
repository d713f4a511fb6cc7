/*
 * A store of a program's own: it keeps each extent in memory of its own, inverted, and ends the
 * latest transfer first, in two pieces where there are two chunks.
 */
#pragma once

#include <zero/zero.h>

#include <offload/store_backend.h>

extern const zr_store_backend_t inverted_store;
