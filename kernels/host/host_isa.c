/*
 * The loops of the host's kernels. This file is compiled once per instruction set,
 * with ZR_HOST_ISA its name (see kernels/CMakeLists.txt), and shows one symbol: the
 * table. All instruction sets give the same bits, because the loops are element
 * formulas and sums of one fixed order, and the compiler may not contract anything.
 *
 * A loop is written once, for any mix of dtypes; it is inlined with constant dtypes,
 * so that each mix becomes a loop that vectorises.
 */
#include "kernels/host/host_isa.h"

#include <string.h>

#include "kernels/sum_of_squares_math.h"

#define ZR_INLINE static inline __attribute__((always_inline))

#define ZR_CONCAT_(a, b) a##b
#define ZR_CONCAT(a, b) ZR_CONCAT_(a, b)
#define ZR_STRING_(a) #a
#define ZR_STRING(a) ZR_STRING_(a)

ZR_INLINE float load(const void *x, zr_dtype_t dtype, size_t i) {
    return dtype == ZR_DTYPE_F32 ? ((const float *)x)[i]
                                 : zr_bf16_to_f32(((const zr_bf16_t *)x)[i]);
}

ZR_INLINE void store(void *x, zr_dtype_t dtype, size_t i, float value) {
    if (dtype == ZR_DTYPE_F32)
        ((float *)x)[i] = value;
    else
        ((zr_bf16_t *)x)[i] = zr_bf16_from_f32(value);
}

/* Element `first` of an array. */
ZR_INLINE const void *at(const void *x, zr_dtype_t dtype, size_t first) {
    return (const char *)x + first * zr_dtype_size(dtype);
}

/* ---- AdamW -------------------------------------------------------------------- */

ZR_INLINE void adamw_loop(const zr_adamw_factors_t *factors, const zr_adamw_t *args,
                          zr_dtype_t grad_dtype, zr_dtype_t param_dtype) {
    zr_adamw_factors_t f = *factors;
    float *restrict master = args->master;
    float *restrict m = args->m;
    float *restrict v = args->v;
    const void *restrict grad = args->grad;
    void *restrict param = args->param;
    size_t n_elems = args->n_elems;
    for (size_t i = 0; i < n_elems; i++) {
        zr_adamw_element(&f, &master[i], &m[i], &v[i], load(grad, grad_dtype, i));
        store(param, param_dtype, i, master[i]);
    }
}

static void adamw(const zr_adamw_factors_t *factors, const zr_adamw_t *args) {
    if (args->grad_dtype == ZR_DTYPE_F32 && args->param_dtype == ZR_DTYPE_F32)
        adamw_loop(factors, args, ZR_DTYPE_F32, ZR_DTYPE_F32);
    else if (args->grad_dtype == ZR_DTYPE_F32)
        adamw_loop(factors, args, ZR_DTYPE_F32, ZR_DTYPE_BF16);
    else if (args->param_dtype == ZR_DTYPE_F32)
        adamw_loop(factors, args, ZR_DTYPE_BF16, ZR_DTYPE_F32);
    else
        adamw_loop(factors, args, ZR_DTYPE_BF16, ZR_DTYPE_BF16);
}

/* ---- sums --------------------------------------------------------------------- */

/* The square is exact in double, so fusing it gives the same bits and costs less. */
ZR_INLINE double add_square(double sum, double value) {
#ifdef __FMA__
    return fma(value, value, sum);
#else
    return sum + value * value;
#endif
}

ZR_INLINE double sum_of_squares_loop(const void *x, zr_dtype_t dtype, size_t n_elems) {
    double lanes[ZR_SUM_OF_SQUARES_LANES] = {0};
    size_t first = 0;
    for (; n_elems - first >= ZR_SUM_OF_SQUARES_LANES; first += ZR_SUM_OF_SQUARES_LANES) {
        for (size_t lane = 0; lane < ZR_SUM_OF_SQUARES_LANES; lane++)
            lanes[lane] = add_square(lanes[lane], load(x, dtype, first + lane));
    }
    for (size_t lane = 0; lane < n_elems - first; lane++)
        lanes[lane] = add_square(lanes[lane], load(x, dtype, first + lane));
    return zr_sum_of_squares_add_lanes(lanes);
}

static double block_sum_of_squares(const void *x, zr_dtype_t dtype, size_t n_elems) {
    return dtype == ZR_DTYPE_F32 ? sum_of_squares_loop(x, ZR_DTYPE_F32, n_elems)
                                 : sum_of_squares_loop(x, ZR_DTYPE_BF16, n_elems);
}

static double sum_of_blocks(const double *sums, size_t n_blocks) {
    double lanes[ZR_SUM_OF_SQUARES_LANES] = {0};
    for (size_t block = 0; block < n_blocks; block++)
        lanes[block % ZR_SUM_OF_SQUARES_LANES] += sums[block];
    return zr_sum_of_squares_add_lanes(lanes);
}

/*
 * Sources are added four at a time, each element's sum staying in a register, to running
 * sums that stay in the L1 cache: one pass over memory, and no more streams at once than
 * a processor prefetches.
 */
#define ZR_SUM_PIECE 256

ZR_INLINE void sum_four(float *restrict sums, const void *const *sources, zr_dtype_t dtype,
                        size_t offset, size_t n_elems) {
    const void *a = at(sources[0], dtype, offset), *b = at(sources[1], dtype, offset);
    const void *c = at(sources[2], dtype, offset), *d = at(sources[3], dtype, offset);
    for (size_t i = 0; i < n_elems; i++)
        sums[i] = (((sums[i] + load(a, dtype, i)) + load(b, dtype, i)) + load(c, dtype, i)) +
                  load(d, dtype, i);
}

ZR_INLINE void sum_loop(void *dst, const void *const *sources, int n_sources, zr_dtype_t dtype,
                        size_t first, size_t n_elems) {
    float sums[ZR_SUM_PIECE];
    for (size_t done = 0; done < n_elems; done += ZR_SUM_PIECE) {
        size_t offset = first + done;
        size_t n = n_elems - done < ZR_SUM_PIECE ? n_elems - done : ZR_SUM_PIECE;
        for (size_t i = 0; i < n; i++)
            sums[i] = load(sources[0], dtype, offset + i);
        int source = 1;
        for (; n_sources - source >= 4; source += 4)
            sum_four(sums, sources + source, dtype, offset, n);
        for (; source < n_sources; source++) {
            const void *addend = at(sources[source], dtype, offset);
            for (size_t i = 0; i < n; i++)
                sums[i] += load(addend, dtype, i);
        }
        for (size_t i = 0; i < n; i++)
            store(dst, dtype, offset + i, sums[i]);
    }
}

static void sum(void *dst, const void *const *sources, int n_sources, zr_dtype_t dtype,
                size_t first, size_t n_elems) {
    if (dtype == ZR_DTYPE_F32)
        sum_loop(dst, sources, n_sources, ZR_DTYPE_F32, first, n_elems);
    else
        sum_loop(dst, sources, n_sources, ZR_DTYPE_BF16, first, n_elems);
}

/* ---- element by element --------------------------------------------------------- */

ZR_INLINE void add_loop(void *restrict dst, zr_dtype_t dst_dtype, const void *restrict src,
                        zr_dtype_t src_dtype, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++)
        store(dst, dst_dtype, i, load(dst, dst_dtype, i) + load(src, src_dtype, i));
}

static void add(void *dst, zr_dtype_t dst_dtype, const void *src, zr_dtype_t src_dtype,
                size_t n_elems) {
    if (dst_dtype == ZR_DTYPE_F32 && src_dtype == ZR_DTYPE_F32)
        add_loop(dst, ZR_DTYPE_F32, src, ZR_DTYPE_F32, n_elems);
    else if (dst_dtype == ZR_DTYPE_F32)
        add_loop(dst, ZR_DTYPE_F32, src, ZR_DTYPE_BF16, n_elems);
    else if (src_dtype == ZR_DTYPE_F32)
        add_loop(dst, ZR_DTYPE_BF16, src, ZR_DTYPE_F32, n_elems);
    else
        add_loop(dst, ZR_DTYPE_BF16, src, ZR_DTYPE_BF16, n_elems);
}

ZR_INLINE void scale_loop(void *x, zr_dtype_t dtype, size_t n_elems, float factor) {
    for (size_t i = 0; i < n_elems; i++)
        store(x, dtype, i, load(x, dtype, i) * factor);
}

static void scale(void *x, zr_dtype_t dtype, size_t n_elems, float factor) {
    if (dtype == ZR_DTYPE_F32)
        scale_loop(x, ZR_DTYPE_F32, n_elems, factor);
    else
        scale_loop(x, ZR_DTYPE_BF16, n_elems, factor);
}

ZR_INLINE void cast_loop(void *restrict dst, zr_dtype_t dst_dtype, const void *restrict src,
                         zr_dtype_t src_dtype, size_t n_elems) {
    for (size_t i = 0; i < n_elems; i++)
        store(dst, dst_dtype, i, load(src, src_dtype, i));
}

static void cast(void *dst, zr_dtype_t dst_dtype, const void *src, zr_dtype_t src_dtype,
                 size_t n_elems) {
    (void)src_dtype;
    if (dst_dtype == ZR_DTYPE_F32)
        cast_loop(dst, ZR_DTYPE_F32, src, ZR_DTYPE_BF16, n_elems);
    else
        cast_loop(dst, ZR_DTYPE_BF16, src, ZR_DTYPE_F32, n_elems);
}

ZR_INLINE void fill_loop(void *x, zr_dtype_t dtype, size_t n_elems, float value) {
    for (size_t i = 0; i < n_elems; i++)
        store(x, dtype, i, value);
}

static void fill(void *x, zr_dtype_t dtype, size_t n_elems, float value) {
    if (dtype == ZR_DTYPE_F32)
        fill_loop(x, ZR_DTYPE_F32, n_elems, value);
    else
        fill_loop(x, ZR_DTYPE_BF16, n_elems, value);
}

const zr_host_isa_t ZR_CONCAT(zr_host_isa_, ZR_HOST_ISA) = {
    .name = ZR_STRING(ZR_HOST_ISA),
    .adamw = adamw,
    .block_sum_of_squares = block_sum_of_squares,
    .sum_of_blocks = sum_of_blocks,
    .add = add,
    .scale = scale,
    .cast = cast,
    .fill = fill,
    .sum = sum,
};
