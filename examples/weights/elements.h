/*
 * Elements as files have them, and how they become fp32 and come from it. Files are little endian,
 * as the machines are that this is built for.
 */
#pragma once

#include "zero/zero.h"

typedef enum element_kind {
    ELEMENT_FP32,
    ELEMENT_BF16,
    ELEMENT_FP16,
    ELEMENT_OTHER /* known by its size alone: buffers that are passed over may be of it */
} element_kind_t;

typedef struct element_type {
    const char *name; /* as safetensors has it: "F32" */
    size_t size_bytes;
    element_kind_t kind;
} element_type_t;

/** The type that safetensors calls so; NULL: there is none of whole bytes. Static. */
const element_type_t *element_type_find(const char *name);
/** The type of a kind that is not ELEMENT_OTHER; static. */
const element_type_t *element_type_of(element_kind_t kind);

/** What people call a kind: "fp32". Static. */
const char *element_kind_name(element_kind_t kind);
/** The kind of all of [n] of them, or "mixed". Static. */
const char *element_kinds_name(const element_kind_t *kinds, size_t n);

/** The values of elements of a kind that is not ELEMENT_OTHER, exactly. */
void elements_to_fp32(element_kind_t kind, const void *from, size_t n_elems, float *values);

/**
 * The nearest elements of a kind, ties to even; a NaN stays one.
 *
 * @return n_elems; less: that value is finite and the kind has none so large
 */
size_t elements_from_fp32(element_kind_t kind, const float *values, size_t n_elems, void *to);
