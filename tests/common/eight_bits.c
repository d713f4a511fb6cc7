/* See eight_bits.h. */
#include "tests/common/eight_bits.h"

#include <math.h>
#include <string.h>

enum { BLOCK = sizeof(((eight_bits_block_t *)NULL)->steps) };

static void encode_block(const float *values, size_t n_elems, eight_bits_block_t *block) {
    float most = 0;
    for (size_t i = 0; i < n_elems; i++)
        most = fmaxf(most, fabsf(values[i]));
    memset(block, 0, sizeof(*block));
    block->scale = most / 127;
    for (size_t i = 0; i < n_elems && most > 0; i++)
        block->steps[i] = (int8_t)rintf(values[i] / block->scale);
}

static void encode(const zr_encoding_t *self, const float *values, size_t n_elems, void *blocks) {
    eight_bits_block_t *block = blocks;
    for (size_t i = 0; i < n_elems; i += BLOCK)
        encode_block(values + i, n_elems - i < BLOCK ? n_elems - i : BLOCK, block++);
    (void)self;
}

static void decode(const zr_encoding_t *self, const void *blocks, size_t n_elems, float *values) {
    const eight_bits_block_t *block = blocks;
    for (size_t i = 0; i < n_elems; i++)
        values[i] = block[i / BLOCK].scale * (float)block[i / BLOCK].steps[i % BLOCK];
    (void)self;
}

static zr_status_t queue_encode(const zr_encoding_t *self, zr_stream_t *stream, const void *values,
                                zr_dtype_t dtype, size_t n_elems, void *blocks) {
    if (dtype != ZR_DTYPE_F32)
        return ZR_ERR_UNSUPPORTED;
    ZR_TRY(zr_stream_synchronize(stream));
    encode(self, values, n_elems, blocks);
    return ZR_OK;
}

static zr_status_t queue_decode(const zr_encoding_t *self, zr_stream_t *stream, const void *blocks,
                                size_t n_elems, void *values, zr_dtype_t dtype) {
    if (dtype != ZR_DTYPE_F32)
        return ZR_ERR_UNSUPPORTED;
    ZR_TRY(zr_stream_synchronize(stream));
    decode(self, blocks, n_elems, values);
    return ZR_OK;
}

const zr_encoding_t eight_bits = {.name = "q8_256",
                                  .block_elems = BLOCK,
                                  .block_bytes = sizeof(eight_bits_block_t),
                                  .align_bytes = sizeof(float),
                                  .encode = encode,
                                  .decode = decode,
                                  .queue_encode = queue_encode,
                                  .queue_decode = queue_decode};
