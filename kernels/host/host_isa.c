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

#include <math.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/host/isa/loops.h"
#include "kernels/sum_of_squares_math.h"

#define ZR_STRING_(a) #a
#define ZR_STRING(a) ZR_STRING_(a)

/* Element `first` of an array. */
ZR_INLINE const void *at(const void *x, zr_dtype_t dtype, size_t first) {
    return (const char *)x + first * zr_dtype_size(dtype);
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
 * Two cache lines at a time: the sources, which are read side by side, are added in registers, and
 * each place is written once. Longer pieces would leave each source for a while and come back,
 * which processors' prefetching does not foresee: with four sources that costs a sixth.
 */
#define ZR_LINE_BYTES 64
#define ZR_SPREAD_BYTES (2 * ZR_LINE_BYTES)
#define ZR_SPREAD_MAX_ELEMS (ZR_SPREAD_BYTES / 2)
#define ZR_SPREAD_GROUP 4
#define ZR_AHEAD_BYTES (2 * ZR_SPREAD_BYTES)

/* sums (has_sums) + the sources, one after another; n_sources is a constant, 1 to 4. */
ZR_INLINE void add_sources(float *restrict sums, bool has_sums, const void *const *sources,
                           int n_sources, zr_dtype_t dtype, size_t offset, size_t n_elems) {
    const void *a = at(sources[0], dtype, offset);
    const void *b = n_sources > 1 ? at(sources[1], dtype, offset) : a;
    const void *c = n_sources > 2 ? at(sources[2], dtype, offset) : a;
    const void *d = n_sources > 3 ? at(sources[3], dtype, offset) : a;
    for (size_t i = 0; i < n_elems; i++) {
        float value = has_sums ? sums[i] + load(a, dtype, i) : load(a, dtype, i);
        if (n_sources > 1)
            value += load(b, dtype, i);
        if (n_sources > 2)
            value += load(c, dtype, i);
        if (n_sources > 3)
            value += load(d, dtype, i);
        sums[i] = value;
    }
}

/* Sources from the fifth on. */
ZR_INLINE void add_rest(float *restrict sums, const zr_spread_t *args, zr_dtype_t dtype,
                        size_t offset, size_t n_elems) {
    int done = ZR_SPREAD_GROUP;
    for (; args->n_sources - done >= ZR_SPREAD_GROUP; done += ZR_SPREAD_GROUP)
        add_sources(sums, true, args->sources + done, ZR_SPREAD_GROUP, dtype, offset, n_elems);
    for (; done < args->n_sources; done++)
        add_sources(sums, true, args->sources + done, 1, dtype, offset, n_elems);
}

/* Write a cache line past the caches: nothing is read for it, and nothing pushed out. */
ZR_INLINE void stream_line(char *dst, const char *line) {
#if defined(__AVX512F__)
    _mm512_stream_si512((void *)dst, _mm512_loadu_si512(line));
#elif defined(__AVX__)
    for (int i = 0; i < ZR_LINE_BYTES; i += 32)
        _mm256_stream_si256((void *)(dst + i), _mm256_loadu_si256((const void *)(line + i)));
#elif defined(__SSE2__)
    for (int i = 0; i < ZR_LINE_BYTES; i += 16)
        _mm_stream_si128((void *)(dst + i), _mm_loadu_si128((const void *)(line + i)));
#else
    memcpy(dst, line, ZR_LINE_BYTES);
#endif
}

/* Make what was written so visible to whoever is told of it. */
ZR_INLINE void end_streams(void) {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

ZR_INLINE void stream_lines(char *dst, const char *source, size_t size_bytes) {
    for (size_t i = 0; i < size_bytes; i += ZR_LINE_BYTES)
        stream_line(dst + i, source + i);
}

/* Where a piece's results go, streamed ones first. Read from here, and not through the arguments, a
 * place costs nothing: loads between streaming stores, of what those might have changed, made a
 * copy a seventh slower. */
typedef struct places {
    int n_streamed, n_dsts;
    char *dsts[ZR_MAX_SUM_SOURCES];
} places_t;

static void take_places(const zr_spread_t *args, const bool *is_streamed, size_t offset_bytes,
                        places_t *places) {
    places->n_streamed = places->n_dsts = 0;
    for (int d = 0; d < args->n_dsts; d++)
        if (is_streamed[d])
            places->dsts[places->n_streamed++] = (char *)args->dsts[d] + offset_bytes;
    places->n_dsts = places->n_streamed;
    for (int d = 0; d < args->n_dsts; d++)
        if (!is_streamed[d])
            places->dsts[places->n_dsts++] = (char *)args->dsts[d] + offset_bytes;
}

/* Whole lines are streamed; other sizes are written as ever. */
ZR_INLINE void put_sums(const places_t *places, const float *sums, zr_dtype_t dtype, size_t offset,
                        size_t n_elems) {
    zr_bf16_t rounded[ZR_SPREAD_MAX_ELEMS] __attribute__((aligned(ZR_LINE_BYTES)));
    const void *line = sums;
    size_t elem_bytes = zr_dtype_size(dtype);
    if (dtype == ZR_DTYPE_BF16) {
        for (size_t i = 0; i < n_elems; i++)
            rounded[i] = zr_bf16_from_f32(sums[i]);
        line = rounded;
    }
    size_t size_bytes = n_elems * elem_bytes;
    int n_streamed = size_bytes % ZR_LINE_BYTES == 0 ? places->n_streamed : 0;
    for (int d = 0; d < n_streamed; d++)
        stream_lines(places->dsts[d] + offset * elem_bytes, line, size_bytes);
    for (int d = n_streamed; d < places->n_dsts; d++)
        memcpy(places->dsts[d] + offset * elem_bytes, line, size_bytes);
}

/* Ask for what is added two turns later. Processors foresee each source by itself only up to the
 * end of a page, and then start again. */
ZR_INLINE void ask_ahead(const void *const *sources, int n_sources, zr_dtype_t dtype,
                         size_t offset) {
    for (int i = 0; i < n_sources; i++) {
        const char *ahead = (const char *)at(sources[i], dtype, offset) + ZR_AHEAD_BYTES;
        for (size_t line = 0; line < ZR_SPREAD_BYTES; line += ZR_LINE_BYTES)
            __builtin_prefetch(ahead + line);
    }
}

/* n_sources is a constant: the sources, or the first four where there are more. */
ZR_INLINE void sum_sources(const zr_spread_t *args, const places_t *places, int n_sources,
                           zr_dtype_t dtype, size_t first, size_t n_elems) {
    float sums[ZR_SPREAD_MAX_ELEMS] __attribute__((aligned(ZR_LINE_BYTES)));
    const void *sources[ZR_SPREAD_GROUP];
    const size_t step = ZR_SPREAD_BYTES / zr_dtype_size(dtype);
    size_t done = 0;
    for (int i = 0; i < n_sources; i++)
        sources[i] = args->sources[i];
    bool has_more = args->n_sources > n_sources;
    for (; n_elems - done >= step; done += step) {
        ask_ahead(sources, n_sources, dtype, first + done);
        add_sources(sums, false, sources, n_sources, dtype, first + done, step);
        if (has_more)
            add_rest(sums, args, dtype, first + done, step);
        put_sums(places, sums, dtype, done, step);
    }
    if (done < n_elems) {
        add_sources(sums, false, sources, n_sources, dtype, first + done, n_elems - done);
        if (has_more)
            add_rest(sums, args, dtype, first + done, n_elems - done);
        put_sums(places, sums, dtype, done, n_elems - done);
    }
}

ZR_INLINE void sum_loop(const zr_spread_t *args, const places_t *places, zr_dtype_t dtype,
                        size_t first, size_t n_elems) {
    if (args->n_sources == 2)
        sum_sources(args, places, 2, dtype, first, n_elems);
    else if (args->n_sources == 3)
        sum_sources(args, places, 3, dtype, first, n_elems);
    else
        sum_sources(args, places, 4, dtype, first, n_elems);
}

/* So many bytes go to one place and then to the next, from the first cache: with a line to each in
 * turn, copies to three places took 1.7 times as long. */
#define ZR_COPY_RUN_BYTES ((size_t)8 * ZR_LINE_BYTES)

/* One source: bytes. Places that are not streamed get all of them at once. */
static void copy_loop(const char *source, const places_t *places, size_t size_bytes) {
    size_t n_lines_bytes = size_bytes - size_bytes % ZR_LINE_BYTES, done = 0;
    int n_streamed = places->n_streamed;
    for (; n_lines_bytes - done >= ZR_COPY_RUN_BYTES; done += ZR_COPY_RUN_BYTES)
        for (int d = 0; d < n_streamed; d++)
            stream_lines(places->dsts[d] + done, source + done, ZR_COPY_RUN_BYTES);
    for (int d = 0; d < places->n_dsts; d++) {
        size_t begin = d < n_streamed ? n_lines_bytes : 0;
        if (d < n_streamed)
            stream_lines(places->dsts[d] + done, source + done, n_lines_bytes - done);
        if (places->dsts[d] != source)
            memcpy(places->dsts[d] + begin, source + begin, size_bytes - begin);
    }
}

static void spread(const zr_spread_t *args, const bool *is_streamed, size_t first, size_t n_elems) {
    size_t elem_bytes = zr_dtype_size(args->dtype), offset_bytes = first * elem_bytes;
    places_t places;
    take_places(args, is_streamed, offset_bytes, &places);
    if (args->n_sources == 1)
        copy_loop((const char *)args->sources[0] + offset_bytes, &places, n_elems * elem_bytes);
    else if (args->dtype == ZR_DTYPE_F32)
        sum_loop(args, &places, ZR_DTYPE_F32, first, n_elems);
    else
        sum_loop(args, &places, ZR_DTYPE_BF16, first, n_elems);
    end_streams();
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

/* ---- blocks with a scale ------------------------------------------------------------ */

/* Of so many blocks the scales are computed before any is encoded: two divisions after each other
 * take as long as 50 elements, and those of several blocks overlap. */
#define ZR_SCALES 4

ZR_INLINE uint32_t largest_of(zr_code_t code, const void *values, zr_dtype_t dtype,
                              size_t n_elems) {
    int32_t most = 0;
    for (size_t i = 0; i < n_elems; i++) {
        int32_t magnitude = zr_code_magnitude(code, load(values, dtype, i));
        most = magnitude > most ? magnitude : most;
    }
    return (uint32_t)most;
}

ZR_INLINE void pack_codes(zr_code_t code, const uint8_t *words, uint8_t *codes) {
    const size_t all = (size_t)zr_code_block_elems(code);
    for (size_t i = 0; i < all / 2; i++)
        codes[i] = (uint8_t)((words[2 * i] & 15) | words[2 * i + 1] << 4);
}

ZR_INLINE void encode_elems(zr_code_t code, const void *restrict values, zr_dtype_t dtype,
                            size_t n_elems, const zr_code_scale_t *scale, uint8_t *restrict words,
                            const zr_host_random_t *random) {
    const zr_code_scale_t s = *scale;
    if (!(s.scale > 0)) {
        memset(words, (int)zr_code_of_zero(code), n_elems);
    } else if (random == NULL) {
        for (size_t i = 0; i < n_elems; i++)
            words[i] = (uint8_t)zr_code_of(code, &s, load(values, dtype, i), ZR_CODE_NEAREST);
    } else {
        const uint32_t *restrict bits = random->bits;
        const int shift = random->shift;
        for (size_t i = 0; i < n_elems; i++)
            words[i] = (uint8_t)zr_code_of(code, &s, load(values, dtype, i), bits[i] << shift);
    }
}

/* Elements that are not there have the code of 0. */
ZR_INLINE void encode_block(zr_code_t code, const void *values, zr_dtype_t dtype, size_t n_elems,
                            const zr_code_scale_t *scale, uint8_t *out,
                            const zr_host_random_t *random) {
    const zr_bf16_t narrow = zr_bf16_from_f32(scale->scale);
    uint8_t *codes = out + zr_code_scale_bytes(code), words[ZR_CODE_MOST_ELEMS];
    memcpy(out, zr_code_is_small(code) ? (const void *)&narrow : &scale->scale,
           (size_t)zr_code_scale_bytes(code));
    uint8_t *target = zr_code_is_small(code) ? words : codes;
    const size_t all = (size_t)zr_code_block_elems(code);
    if (n_elems < all)
        memset(target, (int)zr_code_of_zero(code), all);
    if (n_elems < all)
        encode_elems(code, values, dtype, n_elems, scale, target, random);
    else
        encode_elems(code, values, dtype, all, scale, target, random);
    if (zr_code_is_small(code))
        pack_codes(code, words, codes);
}

ZR_INLINE void encode_loop(zr_code_t code, const void *values, zr_dtype_t dtype, size_t n_elems,
                           uint8_t *out, const zr_host_random_t *random) {
    const size_t all = (size_t)zr_code_block_elems(code);
    zr_code_scale_t scales[ZR_SCALES];
    zr_host_random_t own = random != NULL ? *random : (zr_host_random_t){.bits = NULL};
    for (size_t first = 0; first < n_elems; first += all) {
        size_t left = n_elems - first, index = first / all % ZR_SCALES;
        for (size_t i = 0; index == 0 && i < ZR_SCALES && i * all < left; i++) {
            const void *block = at(values, dtype, first + i * all);
            uint32_t most = left - i * all >= all ? largest_of(code, block, dtype, all)
                                                  : largest_of(code, block, dtype, left - i * all);
            scales[i] = zr_code_scale(code, most);
        }
        encode_block(code, at(values, dtype, first), dtype, left < all ? left : all, &scales[index],
                     out, random != NULL ? &own : NULL);
        out += zr_code_block_bytes(code);
        own.bits += random != NULL ? all : 0;
    }
}

ZR_INLINE float load_scale(zr_code_t code, const uint8_t *in) {
    zr_bf16_t narrow;
    float scale;
    memcpy(&narrow, in, sizeof(narrow));
    memcpy(&scale, in, zr_code_is_small(code) ? sizeof(narrow) : sizeof(scale));
    return zr_code_is_small(code) ? zr_bf16_to_f32(narrow) : scale;
}

ZR_INLINE void decode_loop(zr_code_t code, const uint8_t *in, size_t n_elems, void *values,
                           zr_dtype_t dtype) {
    const size_t all = (size_t)zr_code_block_elems(code);
    for (size_t first = 0; first < n_elems; first += all) {
        size_t n = n_elems - first < all ? n_elems - first : all;
        float scale = load_scale(code, in);
        const uint8_t *codes = in + zr_code_scale_bytes(code);
        void *out = (char *)values + first * zr_dtype_size(dtype);
        for (size_t i = 0; i < n; i++) {
            uint32_t word =
                zr_code_is_small(code) ? (uint32_t)codes[i / 2] >> (i % 2 * 4) & 15u : codes[i];
            store(out, dtype, i, zr_code_level(code, word) * scale);
        }
        in += zr_code_block_bytes(code);
    }
}

/* `call` with a constant code. */
#define ZR_BY_CODE(code, call)                                                                     \
    switch (code) {                                                                                \
    case ZR_CODE_FLOAT8:                                                                           \
        call(ZR_CODE_FLOAT8);                                                                      \
        break;                                                                                     \
    case ZR_CODE_UFLOAT8:                                                                          \
        call(ZR_CODE_UFLOAT8);                                                                     \
        break;                                                                                     \
    case ZR_CODE_INT8:                                                                             \
        call(ZR_CODE_INT8);                                                                        \
        break;                                                                                     \
    case ZR_CODE_INT4:                                                                             \
        call(ZR_CODE_INT4);                                                                        \
        break;                                                                                     \
    default:                                                                                       \
        call(ZR_CODE_NF4);                                                                         \
    }

/* ---- halves of masters -------------------------------------------------------------------- */

static void split_upper(const float *restrict masters, size_t n_elems, zr_bf16_t *restrict upper) {
    for (size_t i = 0; i < n_elems; i++)
        upper[i] = zr_master_upper(masters[i]);
}

static void split_lower(const float *restrict masters, size_t n_elems, uint16_t *restrict lower) {
    for (size_t i = 0; i < n_elems; i++)
        lower[i] = zr_master_lower(masters[i]);
}

static void join(float *restrict masters, size_t n_elems, const uint16_t *restrict lower) {
    for (size_t i = 0; i < n_elems; i++)
        masters[i] = zr_master_join(masters[i], lower[i]);
}

/* ---- all codes ----------------------------------------------------------------------------- */

static void encode(zr_code_t code, const void *values, zr_dtype_t dtype, size_t n_elems,
                   void *blocks, const zr_host_random_t *random) {
    if (code == ZR_CODE_UPPER)
        return split_upper(values, n_elems, blocks);
    if (code == ZR_CODE_LOWER)
        return split_lower(values, n_elems, blocks);
#define ENCODE(constant)                                                                           \
    if (dtype == ZR_DTYPE_F32)                                                                     \
        encode_loop(constant, values, ZR_DTYPE_F32, n_elems, blocks, random);                      \
    else                                                                                           \
        encode_loop(constant, values, ZR_DTYPE_BF16, n_elems, blocks, random)
    ZR_BY_CODE(code, ENCODE)
}

static void decode(zr_code_t code, const void *blocks, size_t n_elems, void *values,
                   zr_dtype_t dtype) {
    if (code == ZR_CODE_UPPER)
        return cast_loop(values, ZR_DTYPE_F32, blocks, ZR_DTYPE_BF16, n_elems);
    if (code == ZR_CODE_LOWER)
        return join(values, n_elems, blocks);
#define DECODE(constant)                                                                           \
    if (dtype == ZR_DTYPE_F32)                                                                     \
        decode_loop(constant, blocks, n_elems, values, ZR_DTYPE_F32);                              \
    else                                                                                           \
        decode_loop(constant, blocks, n_elems, values, ZR_DTYPE_BF16)
    ZR_BY_CODE(code, DECODE)
}

static void round_at_random(const float *restrict values, size_t n_elems, zr_bf16_t *restrict words,
                            const zr_host_random_t *random) {
    const uint32_t *restrict bits = random->bits;
    const int shift = random->shift;
    for (size_t i = 0; i < n_elems; i++)
        words[i] = zr_bf16_at_random(values[i], bits[i] << shift);
}

static void random_bits(const zr_rounding_t *rounding, size_t n_elems, uint32_t *bits) {
    const zr_rounding_t r = *rounding;
    for (size_t i = 0; i < n_elems; i++)
        bits[i] = zr_random_bits(r.keys, r.first + (uint32_t)i);
}

/* The places of these instruction sets in a rule's loops. */
#define ZR_ISA_LEVEL_baseline ZR_ISA_BASELINE
#define ZR_ISA_LEVEL_avx2 ZR_ISA_AVX2
#define ZR_ISA_LEVEL_avx512 ZR_ISA_AVX512

const zr_host_isa_t ZR_CONCAT(zr_host_isa_, ZR_HOST_ISA) = {
    .name = ZR_STRING(ZR_HOST_ISA),
    .level = ZR_CONCAT(ZR_ISA_LEVEL_, ZR_HOST_ISA),
    .block_sum_of_squares = block_sum_of_squares,
    .sum_of_blocks = sum_of_blocks,
    .add = add,
    .scale = scale,
    .cast = cast,
    .fill = fill,
    .spread = spread,
    .encode = encode,
    .decode = decode,
    .round = round_at_random,
    .random = random_bits,
};
