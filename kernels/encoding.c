/* The encodings that there are: see encoding.h. Adding one is a description here. */
#include "kernels/encoding.h"

#include <string.h>

#include "kernels/host/host_isa.h"
#include "kernels/kernel_checks_internal.h"

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
                                     const void *values, zr_dtype_t dtype, size_t n_elems,
                                     void *blocks) {
    return zr_kernel_cast(stream, blocks, dtype_of(self), values, dtype, n_elems);
}

static zr_status_t queue_decode_cast(const zr_encoding_t *self, zr_stream_t *stream,
                                     const void *blocks, size_t n_elems, void *values,
                                     zr_dtype_t dtype) {
    return zr_kernel_cast(stream, values, dtype, blocks, dtype_of(self), n_elems);
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

/* ---- blocks with a scale: what devices have kernels for ---------------------------------------
 */

/* All instruction sets give the same bits. */
static const zr_host_isa_t *best_isa(void) {
    const zr_host_isa_t *isa = &zr_host_isa_baseline;
    const zr_log_t log = {0};
    return zr_host_isa_find(&log, NULL, &isa) == ZR_OK ? isa : &zr_host_isa_baseline;
}

static void encode_code(const zr_encoding_t *self, const float *values, size_t n_elems,
                        void *blocks) {
    best_isa()->encode(self->code, values, ZR_DTYPE_F32, n_elems, blocks, NULL);
}

static void decode_code(const zr_encoding_t *self, const void *blocks, size_t n_elems,
                        float *values) {
    best_isa()->decode(self->code, blocks, n_elems, values, ZR_DTYPE_F32);
}

static zr_status_t queue_encode_code(const zr_encoding_t *self, zr_stream_t *stream,
                                     const void *values, zr_dtype_t dtype, size_t n_elems,
                                     void *blocks) {
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_ENCODE,
                                   .dst = blocks,
                                   .src = values,
                                   .src_dtype = dtype,
                                   .n_elems = n_elems,
                                   .code = self->code};
    return zr_kernel_code(stream, &work, self);
}

static zr_status_t queue_decode_code(const zr_encoding_t *self, zr_stream_t *stream,
                                     const void *blocks, size_t n_elems, void *values,
                                     zr_dtype_t dtype) {
    const zr_kernel_work_t work = {.kernel = ZR_KERNEL_DECODE,
                                   .dst = values,
                                   .src = blocks,
                                   .dst_dtype = dtype,
                                   .n_elems = n_elems,
                                   .code = self->code};
    return zr_kernel_code(stream, &work, self);
}

#define BLOCKS(code_, name_, elems, bytes, align, operations)                                      \
    {                                                                                              \
        .name = name_, .code = code_, .block_elems = elems, .block_bytes = bytes,                  \
        .align_bytes = align, .encode = encode_code, .decode = decode_code,                        \
        .queue_encode = queue_encode_code, .queue_decode = queue_decode_code,                      \
        .encode_operations = operations, .decode_operations = 2                                    \
    }

const zr_encoding_t zr_encoding_float8 = BLOCKS(ZR_CODE_FLOAT8, "float8_256", 256, 260, 4, 6);
const zr_encoding_t zr_encoding_ufloat8 = BLOCKS(ZR_CODE_UFLOAT8, "ufloat8_256", 256, 260, 4, 6);
const zr_encoding_t zr_encoding_int8 = BLOCKS(ZR_CODE_INT8, "int8_256", 256, 260, 4, 6);
const zr_encoding_t zr_encoding_int4 = BLOCKS(ZR_CODE_INT4, "int4_64", 64, 34, 2, 6);
const zr_encoding_t zr_encoding_nf4 = BLOCKS(ZR_CODE_NF4, "nf4_64", 64, 34, 2, 18);

/* ---- halves of masters, and none ------------------------------------------------------------- */

#define HALF(code_, name_)                                                                         \
    {                                                                                              \
        .name = name_, .code = code_, .block_elems = 1, .block_bytes = 2, .align_bytes = 2,        \
        .encode = encode_code, .decode = decode_code, .queue_encode = queue_encode_code,           \
        .queue_decode = queue_decode_code, .encode_operations = 1, .decode_operations = 1          \
    }

const zr_encoding_t zr_encoding_upper = HALF(ZR_CODE_UPPER, "bf16");
const zr_encoding_t zr_encoding_lower = HALF(ZR_CODE_LOWER, "lower16");

static void encode_nothing(const zr_encoding_t *self, const float *values, size_t n_elems,
                           void *blocks) {
    (void)self, (void)values, (void)n_elems, (void)blocks;
}

static void decode_nothing(const zr_encoding_t *self, const void *blocks, size_t n_elems,
                           float *values) {
    (void)self, (void)blocks, (void)n_elems, (void)values;
}

static zr_status_t queue_nothing(const zr_encoding_t *self, zr_stream_t *stream, const void *values,
                                 zr_dtype_t dtype, size_t n_elems, void *blocks) {
    (void)self, (void)stream, (void)values, (void)dtype, (void)n_elems, (void)blocks;
    return ZR_OK;
}

static zr_status_t queue_from_nothing(const zr_encoding_t *self, zr_stream_t *stream,
                                      const void *blocks, size_t n_elems, void *values,
                                      zr_dtype_t dtype) {
    (void)self, (void)stream, (void)blocks, (void)n_elems, (void)values, (void)dtype;
    return ZR_OK;
}

const zr_encoding_t zr_encoding_nothing = {.name = "nothing",
                                           .block_elems = 1,
                                           .align_bytes = 1,
                                           .encode = encode_nothing,
                                           .decode = decode_nothing,
                                           .queue_encode = queue_nothing,
                                           .queue_decode = queue_from_nothing};

/* ---- all ------------------------------------------------------------------------------------- */

static const zr_encoding_t *const encodings[] = {
    &zr_encoding_fp32, &zr_encoding_bf16, &zr_encoding_float8, &zr_encoding_ufloat8,
    &zr_encoding_int8, &zr_encoding_int4, &zr_encoding_nf4};

const zr_encoding_t *zr_encoding_at(size_t index) {
    return index < sizeof(encodings) / sizeof(encodings[0]) ? encodings[index] : NULL;
}

const zr_encoding_t *zr_encoding_find(const char *name) {
    for (size_t i = 0; zr_encoding_at(i) != NULL; i++)
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
