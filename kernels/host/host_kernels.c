/*
 * The runtime's kernels on the host: they cut the arrays into pieces of a fixed
 * size, which the device's threads share. The loops are those of host_isa.c.
 *
 * A piece is one block of the sum of squares: large enough that handing it out
 * costs nothing, small enough that threads end together.
 */
#include <stddef.h>
#include <string.h>

#include "kernels/host/host_device.h"
#include "kernels/sum_of_squares_math.h"

#define ZR_PIECE ((size_t)ZR_SUM_OF_SQUARES_BLOCK)
#define ZR_COPY_PIECE_BYTES ((size_t)256 * 1024)

static const zr_host_isa_t *isa_of(const zr_stream_t *stream) {
    return ((const zr_host_device_t *)stream->device)->isa;
}

static size_t n_pieces(size_t n_elems) {
    return zr_sum_of_squares_n_blocks(n_elems);
}

static size_t piece_elems(size_t index, size_t n_elems) {
    size_t left = n_elems - index * ZR_PIECE;
    return left < ZR_PIECE ? left : ZR_PIECE;
}

/* Element `first` of an array. */
static void *at(void *array, zr_dtype_t dtype, size_t first) {
    return (char *)array + first * zr_dtype_size(dtype);
}

static const void *at_const(const void *array, zr_dtype_t dtype, size_t first) {
    return (const char *)array + first * zr_dtype_size(dtype);
}

/* ---- updates ------------------------------------------------------------------- */

typedef struct update_work {
    const zr_update_rule_t *rule;
    const zr_update_t *update;
    zr_update_loop_fn loop;
    _Alignas(max_align_t) char factors[ZR_UPDATE_FACTORS_BYTES];
} update_work_t;

/* Pieces are whole blocks of any encoding: both are powers of two. */
static void update_piece(void *context, size_t index) {
    const update_work_t *work = context;
    size_t first = index * ZR_PIECE;
    zr_update_t piece = *work->update;
    piece.n_elems = piece_elems(index, piece.n_elems);
    for (size_t i = 0; i < work->rule->n_arrays; i++)
        piece.arrays[i] =
            (char *)piece.arrays[i] + zr_encoding_bytes(work->rule->arrays[i].encoding, first);
    piece.grad = at_const(piece.grad, piece.grad_dtype, first);
    piece.param = at(piece.param, piece.param_dtype, first);
    work->loop(&piece, work->factors);
}

/* For this instruction set, or the best of those before it. NULL: none. */
static zr_update_loop_fn find_loop(const zr_update_rule_t *rule, int level) {
    while (level > ZR_ISA_BASELINE && rule->loops[level] == NULL)
        level--;
    return rule->loops[level];
}

bool zr_host_has_update(const zr_update_rule_t *rule) {
    return find_loop(rule, ZR_ISA_BASELINE) != NULL;
}

zr_status_t zr_host_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                           const zr_update_t *update) {
    update_work_t work = {
        .rule = rule, .update = update, .loop = find_loop(rule, isa_of(stream)->level)};
    if (rule->prepare != NULL)
        rule->prepare(update, work.factors);
    zr_host_parallel_for(stream->device, n_pieces(update->n_elems), update_piece, &work);
    return ZR_OK;
}

/* ---- sums ---------------------------------------------------------------------- */

typedef struct sum_of_squares_work {
    const zr_host_isa_t *isa;
    const void *x;
    zr_dtype_t dtype;
    size_t n_elems;
    double *sums; /* [n_pieces] */
} sum_of_squares_work_t;

static void sum_of_squares_piece(void *context, size_t index) {
    const sum_of_squares_work_t *work = context;
    const void *x = at_const(work->x, work->dtype, index * ZR_PIECE);
    work->sums[index] =
        work->isa->block_sum_of_squares(x, work->dtype, piece_elems(index, work->n_elems));
}

zr_status_t zr_host_sum_of_squares(zr_stream_t *stream, const void *x, zr_dtype_t dtype,
                                   size_t n_elems, double *result, void *workspace) {
    double only_sum = 0.0;
    sum_of_squares_work_t work = {.isa = isa_of(stream),
                                  .x = x,
                                  .dtype = dtype,
                                  .n_elems = n_elems,
                                  .sums = n_pieces(n_elems) > 1 ? workspace : &only_sum};
    zr_host_parallel_for(stream->device, n_pieces(n_elems), sum_of_squares_piece, &work);
    *result = work.isa->sum_of_blocks(work.sums, n_pieces(n_elems));
    return ZR_OK;
}

typedef struct spread_work {
    const zr_host_isa_t *isa;
    const zr_spread_t *args;
    bool is_streamed[ZR_MAX_SUM_SOURCES];
} spread_work_t;

static void spread_piece(void *context, size_t index) {
    const spread_work_t *work = context;
    work->isa->spread(work->args, work->is_streamed, index * ZR_PIECE,
                      piece_elems(index, work->args->n_elems));
}

/* What a large call writes would push out of the caches what is of more use there, and be read from
 * memory first. A place that is a source is in the caches when it is written. */
static bool is_streamed(const zr_spread_t *args, const void *dst) {
    size_t array_bytes = args->n_elems * zr_dtype_size(args->dtype);
    if (array_bytes < ZR_SPREAD_STREAM_BYTES / (size_t)(args->n_sources + args->n_dsts) ||
        (uintptr_t)dst % ZR_SPREAD_STREAM_ALIGNMENT != 0)
        return false;
    for (int i = 0; i < args->n_sources; i++)
        if (args->sources[i] == dst)
            return false;
    return true;
}

zr_status_t zr_host_spread(zr_stream_t *stream, const zr_spread_t *args) {
    spread_work_t work = {.isa = isa_of(stream), .args = args};
    for (int i = 0; i < args->n_dsts; i++)
        work.is_streamed[i] = is_streamed(args, args->dsts[i]);
    zr_host_parallel_for(stream->device, n_pieces(args->n_elems), spread_piece, &work);
    return ZR_OK;
}

zr_status_t zr_host_sum(zr_stream_t *stream, void *dst, const void *const *sources, int n_sources,
                        zr_dtype_t dtype, size_t n_elems) {
    const zr_spread_t args = {.dsts = &dst,
                              .n_dsts = 1,
                              .sources = sources,
                              .n_sources = n_sources,
                              .dtype = dtype,
                              .n_elems = n_elems};
    return zr_host_spread(stream, &args);
}

/* ---- element by element ---------------------------------------------------------- */

typedef struct elements_work {
    const zr_host_isa_t *isa;
    void *dst;
    zr_dtype_t dst_dtype;
    const void *src;
    zr_dtype_t src_dtype;
    size_t n_elems;
    float value;
} elements_work_t;

static void add_piece(void *context, size_t index) {
    const elements_work_t *work = context;
    size_t first = index * ZR_PIECE;
    work->isa->add(at(work->dst, work->dst_dtype, first), work->dst_dtype,
                   at_const(work->src, work->src_dtype, first), work->src_dtype,
                   piece_elems(index, work->n_elems));
}

zr_status_t zr_host_add(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                        zr_dtype_t src_dtype, size_t n_elems) {
    elements_work_t work = {.isa = isa_of(stream),
                            .dst = dst,
                            .dst_dtype = dst_dtype,
                            .src = src,
                            .src_dtype = src_dtype,
                            .n_elems = n_elems};
    zr_host_parallel_for(stream->device, n_pieces(n_elems), add_piece, &work);
    return ZR_OK;
}

static void scale_piece(void *context, size_t index) {
    const elements_work_t *work = context;
    work->isa->scale(at(work->dst, work->dst_dtype, index * ZR_PIECE), work->dst_dtype,
                     piece_elems(index, work->n_elems), work->value);
}

zr_status_t zr_host_scale(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                          float factor) {
    elements_work_t work = {
        .isa = isa_of(stream), .dst = x, .dst_dtype = dtype, .n_elems = n_elems, .value = factor};
    zr_host_parallel_for(stream->device, n_pieces(n_elems), scale_piece, &work);
    return ZR_OK;
}

static void cast_piece(void *context, size_t index) {
    const elements_work_t *work = context;
    size_t first = index * ZR_PIECE;
    work->isa->cast(at(work->dst, work->dst_dtype, first), work->dst_dtype,
                    at_const(work->src, work->src_dtype, first), work->src_dtype,
                    piece_elems(index, work->n_elems));
}

zr_status_t zr_host_cast(zr_stream_t *stream, void *dst, zr_dtype_t dst_dtype, const void *src,
                         zr_dtype_t src_dtype, size_t n_elems) {
    if (dst_dtype == src_dtype)
        return zr_host_copy_async(stream, dst, src, n_elems * zr_dtype_size(dst_dtype),
                                  ZR_COPY_DEVICE_TO_DEVICE);
    elements_work_t work = {.isa = isa_of(stream),
                            .dst = dst,
                            .dst_dtype = dst_dtype,
                            .src = src,
                            .src_dtype = src_dtype,
                            .n_elems = n_elems};
    zr_host_parallel_for(stream->device, n_pieces(n_elems), cast_piece, &work);
    return ZR_OK;
}

static void fill_piece(void *context, size_t index) {
    const elements_work_t *work = context;
    work->isa->fill(at(work->dst, work->dst_dtype, index * ZR_PIECE), work->dst_dtype,
                    piece_elems(index, work->n_elems), work->value);
}

zr_status_t zr_host_fill(zr_stream_t *stream, void *x, zr_dtype_t dtype, size_t n_elems,
                         float value) {
    elements_work_t work = {
        .isa = isa_of(stream), .dst = x, .dst_dtype = dtype, .n_elems = n_elems, .value = value};
    zr_host_parallel_for(stream->device, n_pieces(n_elems), fill_piece, &work);
    return ZR_OK;
}

/* ---- copies ------------------------------------------------------------------------ */

typedef struct copy_work {
    char *dst;
    const char *src;
    size_t size_bytes;
} copy_work_t;

static void copy_piece(void *context, size_t index) {
    const copy_work_t *work = context;
    size_t offset = index * ZR_COPY_PIECE_BYTES;
    size_t left = work->size_bytes - offset;
    memcpy(work->dst + offset, work->src + offset,
           left < ZR_COPY_PIECE_BYTES ? left : ZR_COPY_PIECE_BYTES);
}

zr_status_t zr_host_copy_async(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                               zr_copy_t kind) {
    (void)kind; /* all memory is the process's own */
    copy_work_t work = {.dst = dst, .src = src, .size_bytes = size_bytes};
    size_t n_tasks = (size_bytes - 1) / ZR_COPY_PIECE_BYTES + 1;
    zr_host_parallel_for(stream->device, n_tasks, copy_piece, &work);
    return ZR_OK;
}
