/*
 * The objects of a manifest, as data: which keys they have, and where in memory the values are. The
 * reader and the writer both walk these tables, so they cannot disagree. Internal to
 * zero/checkpoint/.
 */
#pragma once

#include "zero/checkpoint/manifest_internal.h"

typedef enum zr_manifest_type {
    ZR_MANIFEST_COUNT, /* a whole number, size_t or uint64_t; not negative */
    ZR_MANIFEST_INT,   /* likewise, int */
    ZR_MANIFEST_BOOL,
    ZR_MANIFEST_DTYPE,    /* its name; zr_dtype_t */
    ZR_MANIFEST_SUM,      /* 16 hexadecimal digits, uint64_t */
    ZR_MANIFEST_TEXT,     /* char *, owned */
    ZR_MANIFEST_FILE,     /* char[64] */
    ZR_MANIFEST_ENCODING, /* its name; const zr_encoding_t * */
    ZR_MANIFEST_SHAPE     /* a list of whole numbers; zr_checkpoint_tensor_t */
} zr_manifest_type_t;

typedef struct zr_manifest_field {
    const char *name;
    zr_manifest_type_t type;
    size_t offset; /* in the object's struct */
} zr_manifest_field_t;

/** A list of objects. */
typedef struct zr_manifest_list {
    const char *name;
    const zr_manifest_field_t *fields;
    size_t n_fields;
    size_t item_bytes;
    size_t items_offset; /* of the array's pointer, in zr_manifest_t */
    size_t n_offset;     /* of its length */
} zr_manifest_list_t;

#define ZR_N_MANIFEST_LISTS 4
extern const zr_manifest_list_t zr_manifest_lists[ZR_N_MANIFEST_LISTS];
/** Numbers of the manifest itself. */
#define ZR_N_MANIFEST_NUMBERS 5
extern const zr_manifest_field_t zr_manifest_numbers[ZR_N_MANIFEST_NUMBERS];

/** Of the optimizer's arrays, with its name; neither, or both. */
#define ZR_MANIFEST_OPTIMIZER "optimizer"
extern const zr_manifest_list_t zr_manifest_arrays;
#define ZR_MANIFEST_MESSAGES "messages"
/** Left out where it is empty. */
extern const zr_manifest_list_t zr_manifest_carried;

#define ZR_MANIFEST_FORMAT "libzero checkpoint"
#define ZR_MANIFEST_SIGNATURE "signature"
#define ZR_MANIFEST_SIGNATURE_DIGITS 64
/** What follows the digits of a manifest's checksum, and stands before them. */
#define ZR_MANIFEST_BEFORE_SUM "\"xxh3\": \""
#define ZR_MANIFEST_BEHIND_SUM "\"\n}\n"
