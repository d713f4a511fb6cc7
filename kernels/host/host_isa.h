/*
 * The loops of the host's kernels, as a table that exists once per instruction set.
 *
 * host_isa.c is compiled several times with other flags, and the device takes the
 * best table that the processor can run. A loop works on one piece of a kernel's
 * arrays; host_kernels.c cuts the arrays into pieces and shares them among threads.
 */
#pragma once

#include "kernels/block_code_math.h"
#include "kernels/device_backend.h"
#include "kernels/kernels.h"

/* Random bits of elements, as zr_random_bits makes them, and what they are shifted left by. */
typedef struct zr_host_random {
    const uint32_t *bits;
    int shift;
} zr_host_random_t;

typedef struct zr_host_isa {
    const char *name; /* as in zr_device_options_t.isa */

    int level; /* its place in a rule's loops (update.h) */

    /* The sum of one block, and the sum of the blocks' sums: sum_of_squares_math.h. */
    double (*block_sum_of_squares)(const void *x, zr_dtype_t dtype, size_t n_elems);
    double (*sum_of_blocks)(const double *sums, size_t n_blocks);
    void (*add)(void *dst, zr_dtype_t dst_dtype, const void *src, zr_dtype_t src_dtype,
                size_t n_elems);
    void (*scale)(void *x, zr_dtype_t dtype, size_t n_elems, float factor);
    /* The two dtypes differ. */
    void (*cast)(void *dst, zr_dtype_t dst_dtype, const void *src, zr_dtype_t src_dtype,
                 size_t n_elems);
    void (*fill)(void *x, zr_dtype_t dtype, size_t n_elems, float value);
    /* Of the elements from `first` on. is_streamed: [n_dsts] which places are written past the
     * caches; only places that are aligned to 64 bytes, as is `first`. */
    void (*spread)(const zr_spread_t *args, const bool *is_streamed, size_t first, size_t n_elems);
    /* Elements, fp32 or bf16, to blocks of a code and back: block_code_math.h. A random of NULL is
     * to the nearest level. */
    void (*encode)(zr_code_t code, const void *values, zr_dtype_t dtype, size_t n_elems,
                   void *blocks, const zr_host_random_t *random);
    void (*decode)(zr_code_t code, const void *blocks, size_t n_elems, void *values,
                   zr_dtype_t dtype);
    void (*round)(const float *values, size_t n_elems, zr_bf16_t *words,
                  const zr_host_random_t *random);
    void (*random)(const zr_rounding_t *rounding, size_t n_elems, uint32_t *bits);
} zr_host_isa_t;

/* Not all are built everywhere: see host_isa_find.c. */
extern const zr_host_isa_t zr_host_isa_baseline;
extern const zr_host_isa_t zr_host_isa_avx2;
extern const zr_host_isa_t zr_host_isa_avx512;

/**
 * Choose a table.
 *
 * @param name  "baseline", "avx2", "avx512"; NULL means the best one that runs here
 * @return ZR_OK; ZR_ERR_ARGUMENT for other names; ZR_ERR_UNSUPPORTED when this build or
 *         this processor lacks it
 */
ZR_NODISCARD zr_status_t zr_host_isa_find(const zr_log_t *log, const char *name,
                                          const zr_host_isa_t **isa_p);
