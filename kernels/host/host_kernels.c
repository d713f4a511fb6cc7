/*
 * The runtime's kernels on the host: they cut the arrays into pieces of a fixed
 * size, which the device's threads share. The loops are those of host_isa.c.
 *
 * A piece is one block of the sum of squares: large enough that handing it out
 * costs nothing, small enough that threads end together.
 */
#include <stddef.h>
#include <string.h>

#include "kernels/host/host_concurrent.h"
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
    const zr_host_isa_t *isa;
    zr_update_loop_fn loop;
    _Alignas(max_align_t) char factors[ZR_UPDATE_FACTORS_BYTES];
} update_work_t;

/* Pieces are whole blocks of any encoding: both are powers of two. */
static zr_update_t part_of(const update_work_t *work, const zr_update_t *whole, size_t first,
                           size_t n_elems) {
    zr_update_t part = *whole;
    part.n_elems = n_elems;
    part.first += first;
    for (size_t i = 0; i < work->rule->n_arrays; i++)
        part.arrays[i] =
            (char *)part.arrays[i] + zr_encoding_bytes(work->rule->arrays[i].encoding, first);
    part.grad = at_const(part.grad, part.grad_dtype, first);
    part.param = at(part.param, part.param_dtype, first);
    return part;
}

/* Elements whose state is fp32 for as long as they are updated, in the first cache. */
#define FORMED_ELEMS ((size_t)512)

static void update_formed(const update_work_t *work, const zr_update_t *part) {
    const zr_host_isa_t *isa = work->isa;
    float values[ZR_MAX_STATE_ARRAYS][FORMED_ELEMS] __attribute__((aligned(64)));
    uint32_t bits[FORMED_ELEMS] __attribute__((aligned(64)));
    zr_update_t formed = *part;
    size_t n = part->n_elems;
    for (size_t i = 0; i < work->rule->n_arrays; i++) {
        if ((work->rule->formed >> i & 1) == 0)
            continue;
        formed.arrays[i] = values[i];
        if (work->rule->form == ZR_STATE_BF16)
            isa->cast(values[i], ZR_DTYPE_F32, part->arrays[i], ZR_DTYPE_BF16, n);
        else
            isa->decode(work->rule->arrays[i].encoding->code, part->arrays[i], n, values[i],
                        ZR_DTYPE_F32);
    }
    work->loop(&formed, work->factors);
    if (part->is_left_out) /* and is not rounded anew either */
        return;
    for (size_t i = 1; i < work->rule->n_arrays; i++) {
        const zr_rounding_t rounding = zr_update_rounding(part, i);
        const zr_host_random_t random = {bits, rounding.shift};
        if (i % 2 != 0)
            isa->random(&rounding, n, bits);
        if ((work->rule->formed >> i & 1) == 0)
            continue;
        if (work->rule->form == ZR_STATE_BF16)
            isa->round(values[i], n, part->arrays[i], &random);
        else
            isa->encode(work->rule->arrays[i].encoding->code, values[i], ZR_DTYPE_F32, n,
                        part->arrays[i], &random);
    }
}

static void update_piece(void *context, size_t index) {
    const update_work_t *work = context;
    size_t begin = index * ZR_PIECE, n_elems = piece_elems(index, work->update->n_elems);
    if (work->rule->formed == 0) {
        zr_update_t piece = part_of(work, work->update, begin, n_elems);
        work->loop(&piece, work->factors);
        return;
    }
    for (size_t first = 0; first < n_elems; first += FORMED_ELEMS) {
        size_t left = n_elems - first;
        zr_update_t part =
            part_of(work, work->update, begin + first, left < FORMED_ELEMS ? left : FORMED_ELEMS);
        update_formed(work, &part);
    }
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

static void run_update(zr_stream_t *stream, const zr_update_rule_t *rule,
                       const zr_update_t *update) {
    update_work_t work = {.rule = rule,
                          .update = update,
                          .isa = isa_of(stream),
                          .loop = find_loop(rule, isa_of(stream)->level)};
    if (rule->prepare != NULL)
        rule->prepare(update, work.factors);
    zr_host_parallel_for(stream->device, n_pieces(update->n_elems), update_piece, &work);
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

static void run_sum_of_squares(zr_stream_t *stream, const zr_kernel_work_t *args) {
    double only_sum = 0.0;
    size_t n = n_pieces(args->n_elems);
    sum_of_squares_work_t work = {.isa = isa_of(stream),
                                  .x = args->src,
                                  .dtype = args->src_dtype,
                                  .n_elems = args->n_elems,
                                  .sums = n > 1 ? args->workspace : &only_sum};
    zr_host_parallel_for(stream->device, n, sum_of_squares_piece, &work);
    *args->result = work.isa->sum_of_blocks(work.sums, n);
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

static void run_spread(zr_stream_t *stream, const zr_spread_t *args) {
    spread_work_t work = {.isa = isa_of(stream), .args = args};
    for (int i = 0; i < args->n_dsts; i++)
        work.is_streamed[i] = is_streamed(args, args->dsts[i]);
    zr_host_parallel_for(stream->device, n_pieces(args->n_elems), spread_piece, &work);
}

/* ---- element by element ---------------------------------------------------------- */

typedef struct elements_work {
    const zr_host_isa_t *isa;
    const zr_kernel_work_t *args;
} elements_work_t;

static void elements_piece(void *context, size_t index) {
    const elements_work_t *work = context;
    const zr_host_isa_t *isa = work->isa;
    const zr_kernel_work_t *args = work->args;
    size_t first = index * ZR_PIECE, n = piece_elems(index, args->n_elems);
    void *dst = at(args->dst, args->dst_dtype, first);
    const void *src = args->src == NULL ? NULL : at_const(args->src, args->src_dtype, first);
    if (args->kernel == ZR_KERNEL_ADD)
        isa->add(dst, args->dst_dtype, src, args->src_dtype, n);
    else if (args->kernel == ZR_KERNEL_CAST)
        isa->cast(dst, args->dst_dtype, src, args->src_dtype, n);
    else if (args->kernel == ZR_KERNEL_SCALE)
        isa->scale(dst, args->dst_dtype, n, args->value);
    else
        isa->fill(dst, args->dst_dtype, n, args->value);
}

/* ---- blocks with a scale --------------------------------------------------------- */

static void code_piece(void *context, size_t index) {
    const elements_work_t *work = context;
    const zr_kernel_work_t *args = work->args;
    size_t first = index * ZR_PIECE, n = piece_elems(index, args->n_elems);
    size_t offset = args->code == ZR_CODE_UPPER || args->code == ZR_CODE_LOWER
                        ? first * sizeof(zr_bf16_t)
                        : first / (size_t)zr_code_block_elems(args->code) *
                              (size_t)zr_code_block_bytes(args->code);
    if (args->kernel == ZR_KERNEL_ENCODE)
        work->isa->encode(args->code, at_const(args->src, args->src_dtype, first), args->src_dtype,
                          n, (char *)args->dst + offset, NULL);
    else
        work->isa->decode(args->code, (const char *)args->src + offset, n,
                          at(args->dst, args->dst_dtype, first), args->dst_dtype);
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

static void run_copy(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes) {
    copy_work_t work = {.dst = dst, .src = src, .size_bytes = size_bytes};
    size_t n_tasks = (size_bytes - 1) / ZR_COPY_PIECE_BYTES + 1;
    zr_host_parallel_for(stream->device, n_tasks, copy_piece, &work);
}

/* ---- here and now, or queued ------------------------------------------------------- */

static zr_status_t run_now(zr_stream_t *stream, const zr_kernel_work_t *args) {
    elements_work_t work = {.isa = isa_of(stream), .args = args};
    if (args->kernel == ZR_KERNEL_UPDATE)
        run_update(stream, args->rule, args->update);
    else if (args->kernel == ZR_KERNEL_SUM_OF_SQUARES)
        run_sum_of_squares(stream, args);
    else if (args->kernel == ZR_KERNEL_SUM || args->kernel == ZR_KERNEL_SPREAD)
        run_spread(stream, &args->spread);
    else if (args->kernel == ZR_KERNEL_CAST && args->dst_dtype == args->src_dtype)
        run_copy(stream, args->dst, args->src, args->n_elems * zr_dtype_size(args->dst_dtype));
    else if (args->code != ZR_CODE_NONE)
        zr_host_parallel_for(stream->device, n_pieces(args->n_elems), code_piece, &work);
    else
        zr_host_parallel_for(stream->device, n_pieces(args->n_elems), elements_piece, &work);
    return ZR_OK;
}

static zr_status_t run_queued(zr_stream_t *stream, const zr_host_work_t *work) {
    zr_kernel_work_t args = work->kernel;
    args.update = &work->update;
    return run_now(stream, &args);
}

/* Sums of several sources, which only collectives make, within what a stream's thread does anyway,
 * wait for their turn instead, in the calling thread. */
zr_status_t zr_host_run(zr_stream_t *stream, const zr_kernel_work_t *args) {
    zr_host_work_t work = {.run = run_queued, .kernel = *args};
    if (!zr_host_stream_takes_calls(stream))
        return run_now(stream, args);
    if (args->kernel == ZR_KERNEL_SUM || args->kernel == ZR_KERNEL_SPREAD) {
        ZR_TRY(zr_host_stream_synchronize(stream));
        return run_now(stream, args);
    }
    if (args->kernel == ZR_KERNEL_UPDATE)
        work.update = *args->update;
    return zr_host_queue(stream, &work);
}

static zr_status_t run_queued_copy(zr_stream_t *stream, const zr_host_work_t *work) {
    run_copy(stream, work->kernel.dst, work->kernel.src, work->kernel.n_elems);
    return ZR_OK;
}

zr_status_t zr_host_copy_async(zr_stream_t *stream, void *dst, const void *src, size_t size_bytes,
                               zr_copy_t kind) {
    zr_host_work_t work = {.run = run_queued_copy,
                           .kernel = {.dst = dst, .src = src, .n_elems = size_bytes}};
    (void)kind; /* all memory is the process's own */
    return zr_host_stream_takes_calls(stream) ? zr_host_queue(stream, &work)
                                              : work.run(stream, &work);
}
