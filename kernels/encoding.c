/* The encodings that there are: see encoding.h. Adding one is a description here. */
#include "kernels/encoding.h"

#include <string.h>

/* ---- fp32 and bf16: what devices cast ------------------------------------------------------- */

static zr_dtype_t dtype_of(const zr_encoding_t *encoding) {
    return encoding == &zr_encoding_fp32 ? ZR_DTYPE_F32 : ZR_DTYPE_BF16;
}

static void encode_cast(const zr_encoding_t *self, const float *values, size_t n_elems,
                        void *blocks) {
    zr_bf16_t *words = blocks;
    if (dtype_of(self) == ZR_DTYPE_F32)
        memcpy(blocks, values, n_elems * sizeof(float));
    else
        for (size_t i = 0; i < n_elems; i++)
            words[i] = zr_bf16_from_f32(values[i]);
}

static void decode_cast(const zr_encoding_t *self, const void *blocks, size_t n_elems,
                        float *values) {
    const zr_bf16_t *words = blocks;
    if (dtype_of(self) == ZR_DTYPE_F32)
        memcpy(values, blocks, n_elems * sizeof(float));
    else
        for (size_t i = 0; i < n_elems; i++)
            values[i] = zr_bf16_to_f32(words[i]);
}

static zr_status_t queue_encode_cast(const zr_encoding_t *self, zr_stream_t *stream,
                                     const float *values, size_t n_elems, void *blocks) {
    return zr_kernel_cast(stream, blocks, dtype_of(self), values, ZR_DTYPE_F32, n_elems);
}

static zr_status_t queue_decode_cast(const zr_encoding_t *self, zr_stream_t *stream,
                                     const void *blocks, size_t n_elems, float *values) {
    return zr_kernel_cast(stream, values, ZR_DTYPE_F32, blocks, dtype_of(self), n_elems);
}

const zr_encoding_t zr_encoding_fp32 = {.name = "fp32",
                                        .block_elems = 1,
                                        .block_bytes = sizeof(float),
                                        .align_bytes = sizeof(float),
                                        .encode = encode_cast,
                                        .decode = decode_cast,
                                        .queue_encode = queue_encode_cast,
                                        .queue_decode = queue_decode_cast};
const zr_encoding_t zr_encoding_bf16 = {.name = "bf16",
                                        .block_elems = 1,
                                        .block_bytes = sizeof(zr_bf16_t),
                                        .align_bytes = sizeof(zr_bf16_t),
                                        .encode = encode_cast,
                                        .decode = decode_cast,
                                        .queue_encode = queue_encode_cast,
                                        .queue_decode = queue_decode_cast};

/* ---- all ------------------------------------------------------------------------------------- */

static const zr_encoding_t *const encodings[] = {&zr_encoding_fp32, &zr_encoding_bf16};

const zr_encoding_t *zr_encoding_find(const char *name) {
    for (size_t i = 0; i < sizeof(encodings) / sizeof(encodings[0]); i++)
        if (strcmp(name, encodings[i]->name) == 0)
            return encodings[i];
    return NULL;
}

const zr_encoding_t *zr_encoding_of(zr_dtype_t dtype) {
    switch (dtype) {
    case ZR_DTYPE_F32:
        return &zr_encoding_fp32;
    case ZR_DTYPE_BF16:
        return &zr_encoding_bf16;
    case ZR_DTYPE_F64:
    case ZR_DTYPE_I32:
    case ZR_DTYPE_U8:
        break;
    }
    return NULL;
}

static zr_cost_t cost_of(const zr_encoding_t *encoding, double operations, size_t n_elems) {
    size_t bytes = n_elems * sizeof(float) + zr_encoding_bytes(encoding, n_elems);
    return (zr_cost_t){.operations = operations * (double)n_elems, .bytes = (double)bytes};
}

zr_cost_t zr_encode_cost(const zr_encoding_t *encoding, size_t n_elems) {
    return cost_of(encoding, encoding->encode_operations, n_elems);
}

zr_cost_t zr_decode_cost(const zr_encoding_t *encoding, size_t n_elems) {
    return cost_of(encoding, encoding->decode_operations, n_elems);
}
