/*
 * Encodings: how numbers are represented in memory, files and messages.
 *
 * An encoding divides elements into blocks of a fixed number of bytes: a float is a block of one
 * element. Code that stores or moves elements asks the encoding for their size and for the
 * functions that convert them to floats and back, so a new encoding is one more description.
 *
 * An array of n elements has ceil(n / block_elems) blocks, stored contiguously; the last one may
 * have fewer elements.
 */
#pragma once

#include "kernels/kernels.h"

ZR_BEGIN_C

/** The library's block codes; a block is a scale followed by the codes. */
typedef enum zr_code {
    ZR_CODE_NONE = 0, /* none of these */
    ZR_CODE_FLOAT8,
    ZR_CODE_UFLOAT8,
    ZR_CODE_INT8,
    ZR_CODE_INT4,  /* 4-bit codes: even elements of a block are in the low half of each byte */
    ZR_CODE_NF4,   /* likewise */
    ZR_CODE_UPPER, /* halves of masters: master_math.h */
    ZR_CODE_LOWER
} zr_code_t;

typedef struct zr_encoding {
    const char *name;   /* "fp32": in manifests, reports and messages */
    zr_code_t code;     /* NONE: a custom encoding */
    size_t block_elems; /* elements that are encoded together; a power of two */
    size_t block_bytes; /* bytes per block */
    size_t align_bytes; /* alignment of arrays */

    /* On the host, elements in order, from the start of a block. `self` is this description, as in
     * the functions below, so that functions can be shared. */
    void (*encode)(const struct zr_encoding *self, const float *values, size_t n_elems,
                   void *blocks);
    void (*decode)(const struct zr_encoding *self, const void *blocks, size_t n_elems,
                   float *values);

    /* The same, queued on a stream, for memory that its device can access. Values are F32 or BF16,
     * rounded once. Values and blocks must not overlap. */
    zr_status_t (*queue_encode)(const struct zr_encoding *self, zr_stream_t *stream,
                                const void *values, zr_dtype_t dtype, size_t n_elems, void *blocks);
    zr_status_t (*queue_decode)(const struct zr_encoding *self, zr_stream_t *stream,
                                const void *blocks, size_t n_elems, void *values, zr_dtype_t dtype);

    /* Operations per element, in addition to the bytes read and written. */
    double encode_operations, decode_operations;
} zr_encoding_t;

/** IEEE single precision: the values themselves. */
extern const zr_encoding_t zr_encoding_fp32;
/** bfloat16: the upper half of an fp32 value, rounded to nearest, ties to even. */
extern const zr_encoding_t zr_encoding_bf16;

/*
 * Blocks with a scale. If a block contains an infinity or a NaN, all its elements are decoded as
 * NaN. Otherwise each element is rounded to the nearest level of the code; zeros stay zeros.
 *
 *             elements   bytes   scale   levels, relative to the block's largest magnitude
 * float8_256     256      260     fp32   +-127: 8 between powers of two, near 0 2^-19 apart
 * ufloat8_256    256      260     fp32   255: 16 between powers of two, near 0 2^-20 apart; of
 *                                        elements >= 0, others are 0; what is more than 0 stays so
 * int8_256       256      260     fp32   -127/127, ..., 127/127
 * int4_64         64       34     bf16   -7/7, ..., 7/7
 * nf4_64          64       34     bf16   16 quantiles of a normal distribution
 *
 * Scales are at least 2^-100, so that elements of smaller blocks are represented as if that were
 * the largest. An incomplete last block is padded with codes of 0. Encoding decoded values again
 * gives the same values, except with int8_256 and int4_64.
 */
extern const zr_encoding_t zr_encoding_float8;  /* "float8_256": running means */
extern const zr_encoding_t zr_encoding_ufloat8; /* "ufloat8_256": running squares */
extern const zr_encoding_t zr_encoding_int8;    /* "int8_256": parameters and sums in messages */
extern const zr_encoding_t zr_encoding_int4;    /* "int4_64": sums in messages */
extern const zr_encoding_t zr_encoding_nf4;     /* "nf4_64": frozen weights */

/*
 * Halves of masters in fp32, for trained parameters in bf16 and what the optimizer's state has of
 * their masters: kernels/master_math.h. Values are F32. Decoding the lower half completes values
 * that are those of the upper one.
 */
extern const zr_encoding_t zr_encoding_upper; /* "bf16", ties away from zero */
extern const zr_encoding_t zr_encoding_lower; /* "lower16" */
/** No bytes: the parameter in fp32 is the master. */
extern const zr_encoding_t zr_encoding_nothing;

/** The library's encoding at this index; NULL: index is out of range. */
const zr_encoding_t *zr_encoding_at(size_t index);
/** The encoding with this name; NULL: not found. */
const zr_encoding_t *zr_encoding_find(const char *name);
/** The encoding for F32 or BF16; NULL for other dtypes. */
const zr_encoding_t *zr_encoding_of(zr_dtype_t dtype);

/** Bytes of n elements, in whole blocks. */
static inline size_t zr_encoding_bytes(const zr_encoding_t *encoding, size_t n_elems) {
    size_t n_blocks = n_elems / encoding->block_elems + (n_elems % encoding->block_elems != 0);
    return n_blocks * encoding->block_bytes;
}

/** Elements of the whole blocks that fit in n_bytes. */
static inline size_t zr_encoding_elems(const zr_encoding_t *encoding, size_t n_bytes) {
    return n_bytes / encoding->block_bytes * encoding->block_elems;
}

/** The cost of encoding or decoding n elements. */
zr_cost_t zr_encode_cost(const zr_encoding_t *encoding, size_t n_elems);
zr_cost_t zr_decode_cost(const zr_encoding_t *encoding, size_t n_elems);

ZR_END_C
