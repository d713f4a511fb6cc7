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

typedef struct zr_encoding {
    const char *name;   /* "fp32": in manifests, reports and messages */
    size_t block_elems; /* elements that are encoded together; a power of two */
    size_t block_bytes; /* that they take */
    size_t align_bytes; /* an array begins at a multiple of it */

    /* On the host, element by element in order: `blocks` begins with a block. `self` is this
       description, here as below: functions may serve several. */
    void (*encode)(const struct zr_encoding *self, const float *values, size_t n_elems,
                   void *blocks);
    void (*decode)(const struct zr_encoding *self, const void *blocks, size_t n_elems,
                   float *values);

    /* The same, queued on a stream, of memory that its device works on. */
    zr_status_t (*queue_encode)(const struct zr_encoding *self, zr_stream_t *stream,
                                const float *values, size_t n_elems, void *blocks);
    zr_status_t (*queue_decode)(const struct zr_encoding *self, zr_stream_t *stream,
                                const void *blocks, size_t n_elems, float *values);

    /* What they cost per element beside the bytes that are read and written. */
    double encode_operations, decode_operations;
} zr_encoding_t;

/** IEEE single precision: the values themselves. */
extern const zr_encoding_t zr_encoding_fp32;
/** The upper half of one, rounded to nearest, ties to even. */
extern const zr_encoding_t zr_encoding_bf16;

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
