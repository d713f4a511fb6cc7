/* Kernels that show what the emulation does with barriers and shuffles. */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/cuda_device.h"

ZR_BEGIN_C

/** out[i] = in[255 - i] for 256 elements, through shared memory, with or without its barrier. */
zr_status_t probe_reverse(zr_stream_t *stream, float *out, const float *in, bool with_barrier);
/** out[w] = the sum of 32 elements of warp w, by shuffles, for 8 warps. */
zr_status_t probe_warp_sums(zr_stream_t *stream, float *out, const float *in);
/** out[0] = 1 if the second of two warps is not late; NaN otherwise: a barrier is missing. */
zr_status_t probe_ahead(zr_stream_t *stream, float *out);
/** out [4, 32]: votes and shuffles of one warp. */
zr_status_t probe_votes(zr_stream_t *stream, unsigned *out);
/** Half of a block waits at one barrier, the other half at another. Ends the program. */
zr_status_t probe_split_barrier(zr_stream_t *stream, float *out);
/** out[0] = in[0], by a kernel that is launched on whatever device is current. */
zr_status_t probe_copy_one(zr_stream_t *stream, float *out, const float *in);
/** Two elements as one access, which faults where one of the addresses is no multiple of 8. */
zr_status_t probe_copy_words(zr_stream_t *stream, float *out, const float *in);

ZR_END_C
