/*
 * Names that are looked up: of a model's units and parameters, which must differ. A table, since a
 * model of some thousand parameters that is planned hundreds of times would spend most of that time
 * on comparing each name with all before it.
 *
 * Threads: externally locked.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/base/heap_internal.h"

#define ZR_NO_NAME ((size_t)-1)

/** What has the names, by index. */
typedef struct zr_named {
    const char *(*name_of)(const void *context, size_t index);
    const void *context;
} zr_named_t;

/** Zeros are an empty table. */
typedef struct zr_names {
    uint32_t *slots; /* index + 1; 0: empty */
    size_t n_slots;  /* a power of two, or 0; at least half of them are empty */
    size_t n_names;
} zr_names_t;

/** The index of a name; ZR_NO_NAME: it is not there. */
size_t zr_names_find(const zr_names_t *names, const zr_named_t *named, const char *text);

/**
 * Add the name that an index has, which is not there.
 *
 * @param heap  the table lives in it
 * @return ZR_OK; ZR_ERR_MEMORY, not logged
 */
ZR_NODISCARD zr_status_t zr_names_add(zr_heap_t *heap, zr_names_t *names, const zr_named_t *named,
                                      size_t index);
