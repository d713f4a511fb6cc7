/* Kernels that show what the emulation does with matrix instructions, dynamic shared memory and
 * copies to it. */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/cuda_device.h"

ZR_BEGIN_C

/** How the second matrix of a product lies in memory. */
typedef enum probe_layout { PROBE_ROWS_OF_N, PROBE_ROWS_OF_K } probe_layout_t;

/**
 * c[16, 16] = a[16, 16] b, b being [n, k] or [k, n] as `layout` says, by one warp: copied to
 * shared memory, loaded by ldmatrix and multiplied by two mma. The rows lie `row_bytes` apart in
 * shared memory: where that lets them share banks, the program ends.
 */
zr_status_t probe_product(zr_stream_t *stream, float *c, const zr_bf16_t *a, const zr_bf16_t *b,
                          probe_layout_t layout, unsigned row_bytes);

/**
 * out[i] = in[255 - i] for 256 words through dynamic shared memory, to which they are copied;
 * with or without waiting for the copies. Words from n_words on are not there.
 */
zr_status_t probe_copies(zr_stream_t *stream, float *out, const float *in, size_t n_words,
                         bool with_wait);

/** out[i] = what shared memory holds at the start, 256 words; then write there, and, where
 * `too_far`, the first byte behind it. Two blocks. */
zr_status_t probe_shared(zr_stream_t *stream, float *out, bool too_far);

/** The same with so much shared memory, asked for or not. */
zr_status_t probe_much_shared(zr_stream_t *stream, float *out, size_t size_bytes, bool asked_for);

/** Which tile of which head attention takes as number `item`; n_cached heads fit the L2's part. */
typedef struct probe_heads {
    size_t batch, heads, kv_heads, n_cached;
} probe_heads_t;
void probe_attention_item(const probe_heads_t *heads, bool by_keys, size_t n_tiles, size_t item,
                          size_t *head_p, size_t *tile_p);

ZR_END_C
