/*
 * Names that are looked up: of a model's units and parameters, which must differ. A table, since a
 * model of some thousand parameters that is planned hundreds of times would spend most of that time
 * on comparing each name with all before it.
 *
 * Threads: externally locked.
 */
#pragma once

#include <stddef.h>

#include "kernels/base/heap_internal.h"

#define ZR_NO_NAME ((size_t)-1)

typedef struct zr_name {
    const char *text; /* NULL: the slot is empty */
    size_t index;
} zr_name_t;

/** Zeros are an empty table. */
typedef struct zr_names {
    zr_name_t *slots;
    size_t n_slots; /* a power of two, or 0; at least half of them are empty */
    size_t n_names;
} zr_names_t;

/** The index that was given with a name; ZR_NO_NAME: it is not there. */
size_t zr_names_find(const zr_names_t *names, const char *text);

/**
 * Add a name that is not there.
 *
 * @param heap  the table lives in it
 * @param text  borrowed for as long as the table is used
 * @return ZR_OK; ZR_ERR_MEMORY, not logged
 */
ZR_NODISCARD zr_status_t zr_names_add(zr_heap_t *heap, zr_names_t *names, const char *text,
                                      size_t index);
