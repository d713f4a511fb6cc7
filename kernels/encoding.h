/*
 * Encodings: how numbers lie in memory, in files and in messages.
 *
 * An encoding cuts elements into blocks, each of so many bytes: a float is a block of one element.
 * Whoever keeps or moves elements asks the encoding how many bytes they take, and which functions
 * turn them into floats and back, so that another encoding is one description more.
 *
 * An array of n elements has ceil(n / block_elems) blocks, one behind the other; the last one may
 * have fewer elements.
 */
#pragma once

#include "kernels/kernels.h"

ZR_BEGIN_C

/** The library's codes of blocks with a scale; a block is the scale, then the codes. */
typedef enum zr_code {
    ZR_CODE_NONE = 0, /* not one of them */
    ZR_CODE_FLOAT8,
    ZR_CODE_UFLOAT8,
    ZR_CODE_INT8,
    ZR_CODE_INT4, /* of codes of 4 bits, elements 0, 2, ... of a block are in the lower halves of */
    ZR_CODE_NF4   /* its bytes */
} zr_code_t;

typedef struct zr_encoding {
    const char *name;   /* "fp32": in manifests, reports and messages */
    zr_code_t code;     /* NONE: of a program's own */
    size_t block_elems; /* elements that are encoded together; a power of two */
    size_t block_bytes; /* that they take */
    size_t align_bytes; /* an array begins at a multiple of it */

    /* On the host, element by element in order: `blocks` begins with a block. `self` is this
       description, here as below: functions may serve several. */
    void (*encode)(const struct zr_encoding *self, const float *values, size_t n_elems,
                   void *blocks);
    void (*decode)(const struct zr_encoding *self, const void *blocks, size_t n_elems,
                   float *values);

    /* The same, queued on a stream, of memory that its device works on. Values are F32 or BF16,
       rounded once; those that there are and the blocks do not overlap. */
    zr_status_t (*queue_encode)(const struct zr_encoding *self, zr_stream_t *stream,
                                const void *values, zr_dtype_t dtype, size_t n_elems, void *blocks);
    zr_status_t (*queue_decode)(const struct zr_encoding *self, zr_stream_t *stream,
                                const void *blocks, size_t n_elems, void *values, zr_dtype_t dtype);

    /* What they cost per element beside the bytes that are read and written. */
    double encode_operations, decode_operations;
} zr_encoding_t;

/** IEEE single precision: the values themselves. */
extern const zr_encoding_t zr_encoding_fp32;
/** The upper half of one, rounded to nearest, ties to even. */
extern const zr_encoding_t zr_encoding_bf16;

/*
 * Blocks with a scale. All elements of a block with an infinity or a NaN are decoded as NaN. Other
 * elements are represented to the nearest level of their code; a block of zeros is one of zeros.
 *
 *             elements   bytes   scale   levels, of the block's largest magnitude
 * float8_256     256      260     fp32   +-127: 8 between powers of two, near 0 2^-19 apart
 * ufloat8_256    256      260     fp32   255: 16 between powers of two, near 0 2^-20 apart; of
 *                                        elements >= 0, others are 0; what is more than 0 stays so
 * int8_256       256      260     fp32   -127/127, ..., 127/127
 * int4_64         64       34     bf16   -7/7, ..., 7/7
 * nf4_64          64       34     bf16   16 quantiles of a normal distribution
 *
 * Scales are at least 2^-100, so that elements of smaller blocks are represented as if that were
 * the largest. A trailing block of fewer elements has codes of 0 for those that are not there. But
 * for the two of integers, what was decoded is encoded and decoded as it was.
 */
extern const zr_encoding_t zr_encoding_float8;  /* "float8_256": running means */
extern const zr_encoding_t zr_encoding_ufloat8; /* "ufloat8_256": running squares */
extern const zr_encoding_t zr_encoding_int8;    /* "int8_256": parameters and sums in messages */
extern const zr_encoding_t zr_encoding_int4;    /* "int4_64": sums in messages */
extern const zr_encoding_t zr_encoding_nf4;     /* "nf4_64": frozen weights */

/** The library's encoding at this index, for lists of them; NULL: there are fewer. */
const zr_encoding_t *zr_encoding_at(size_t index);
/** The encoding of this name; NULL: there is none. */
const zr_encoding_t *zr_encoding_find(const char *name);
/** The encoding of F32 or BF16; NULL of any other. */
const zr_encoding_t *zr_encoding_of(zr_dtype_t dtype);

/** Bytes that n elements take, of whole blocks. */
static inline size_t zr_encoding_bytes(const zr_encoding_t *encoding, size_t n_elems) {
    size_t n_blocks = n_elems / encoding->block_elems + (n_elems % encoding->block_elems != 0);
    return n_blocks * encoding->block_bytes;
}

/** Elements of whole blocks that so many bytes have room for. */
static inline size_t zr_encoding_elems(const zr_encoding_t *encoding, size_t n_bytes) {
    return n_bytes / encoding->block_bytes * encoding->block_elems;
}

/** What encoding n elements costs, or decoding them. */
zr_cost_t zr_encode_cost(const zr_encoding_t *encoding, size_t n_elems);
zr_cost_t zr_decode_cost(const zr_encoding_t *encoding, size_t n_elems);

ZR_END_C
