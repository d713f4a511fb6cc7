/*
 * Layer normalisation on CUDA, of which that of the root mean square has no mean. Forward, a warp
 * has a row. Backward, a block has a part of the rows and goes through them a few at a time, each
 * thread keeping a pack of columns: so x and dy are read once for dx and for the sums over rows,
 * which stay in registers until the part is done. What does not fit into registers, of rows that
 * are long, is read again.
 */
#include "kernels/nn/cuda/rows_cuda.cuh"
#include "kernels/nn/nn_math.h"

/* Whether all rows are whole packs that may be read 16 bytes at a time is known to the compiler
 * (WIDE): each pack then has eight elements or none. */
template <typename T, bool WIDE>
static __device__ inline zr_raw_pack_t<T> load_raw(const T *row, size_t first, int n) {
    zr_raw_pack_t<T> raw = {};
    if (n > 0)
        raw = zr_load_raw(row, first, WIDE ? ZR_PACK_ELEMS : n, WIDE);
    return raw;
}

template <typename T, bool WIDE>
static __device__ inline zr_pack_t load_pack(const T *row, size_t first, int n) {
    zr_pack_t pack = {};
    if (n > 0)
        pack = zr_load_pack(row, first, WIDE ? ZR_PACK_ELEMS : n, WIDE);
    return pack;
}

/* ---- forward -------------------------------------------------------------------------------- */

template <typename T>
static __device__ inline void add_pack(const zr_raw_pack_t<T> &pack, float *sum) {
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++) /* zeros beyond the end */
        *sum += zr_raw_value(pack, i);
}

template <typename T, bool WIDE>
static __device__ inline void add_squares(const zr_raw_pack_t<T> &pack, int n, float mean,
                                          float *sum) {
    if (WIDE && n == 0)
        return;
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++) {
        float d = WIDE || i < n ? zr_raw_value(pack, i) - mean : 0.0f;
        *sum += d * d;
    }
}

/* A row and its warp. The first HELD packs of each lane are in registers. */
template <typename T, int HELD, bool WIDE> struct normalised_row_t {
    const zr_nn_layernorm_t &args;
    const T *x;
    T *y;
    zr_raw_pack_t<T> held[HELD];

    __device__ normalised_row_t(const zr_nn_layernorm_t &args, size_t row)
        : args(args), x(static_cast<const T *>(args.x) + row * args.channels),
          y(static_cast<T *>(args.y) + row * args.channels) {
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            size_t first = k * ZR_TILE_ELEMS + zr_lane() * ZR_PACK_ELEMS;
            held[k] = load_raw<T, WIDE>(x, first, zr_row_pack_length(first, args.channels));
        }
    }

    /* Give `visit` the lane's packs, with where they begin and how many elements there are. */
    template <typename F> __device__ void visit_packs(F visit) const {
        size_t first = (size_t)zr_lane() * ZR_PACK_ELEMS;
#pragma unroll
        for (int k = 0; k < HELD; k++, first += ZR_TILE_ELEMS)
            visit(first, zr_row_pack_length(first, args.channels), held[k]);
        for (; first < args.channels; first += ZR_TILE_ELEMS) {
            int n = zr_row_pack_length(first, args.channels);
            visit(first, n, load_raw<T, WIDE>(x, first, n));
        }
    }

    __device__ void store(size_t first, int n, const zr_raw_pack_t<T> &pack, float mean,
                          float rstd) const {
        if (n == 0)
            return;
        zr_pack_t weight = load_pack<T, WIDE>(static_cast<const T *>(args.weight), first, n);
        zr_pack_t out =
            load_pack<T, WIDE>(static_cast<const T *>(args.bias), first, args.is_rms ? 0 : n);
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            out.value[i] += zr_nn_normalised(zr_raw_value(pack, i), mean, rstd) * weight.value[i];
        zr_store_pack(y, first, WIDE ? ZR_PACK_ELEMS : n, WIDE, out);
    }
};

template <typename T, int HELD, bool WIDE>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS, HELD > 4 ? 2 : 3)
    layernorm_kernel(zr_nn_layernorm_t args) {
    typedef const zr_raw_pack_t<T> &pack_t;
    for (size_t index = zr_warp_index(); index < args.n_rows; index += zr_warp_count()) {
        normalised_row_t<T, HELD, WIDE> row(args, index);
        float n_channels = static_cast<float>(args.channels), sum = 0.0f, squares = 0.0f;
        if (!args.is_rms)
            row.visit_packs([&](size_t, int, pack_t pack) { add_pack(pack, &sum); });
        float mean = args.is_rms ? 0.0f : zr_warp_sum(sum) / n_channels;
        row.visit_packs(
            [&](size_t, int n, pack_t pack) { add_squares<T, WIDE>(pack, n, mean, &squares); });
        float rstd = 1.0f / sqrtf(zr_warp_sum(squares) / n_channels + args.epsilon);
        row.visit_packs(
            [&](size_t first, int n, pack_t pack) { row.store(first, n, pack, mean, rstd); });
        if (zr_lane() == 0) {
            if (!args.is_rms)
                args.mean[index] = mean;
            args.rstd[index] = rstd;
        }
    }
}

template <typename T>
static void launch_layernorm(cudaStream_t queue, const zr_nn_layernorm_t *args) {
    unsigned blocks = zr_blocks_for_warps(args->n_rows);
    bool wide = zr_has_wide_rows(args->x, args->channels) && zr_is_wide(args->y) &&
                zr_is_wide(args->weight) && zr_is_wide(args->bias);
    if (!wide)
        ZR_CUDA_LAUNCH((layernorm_kernel<T, 1, false>), blocks, ZR_CUDA_THREADS, 0, queue, *args);
    else if (args->channels <= 4 * ZR_TILE_ELEMS)
        ZR_CUDA_LAUNCH((layernorm_kernel<T, 4, true>), blocks, ZR_CUDA_THREADS, 0, queue, *args);
    else
        ZR_CUDA_LAUNCH((layernorm_kernel<T, 8, true>), blocks, ZR_CUDA_THREADS, 0, queue, *args);
}

zr_status_t zr_cuda_nn_layernorm(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_layernorm_t *args = static_cast<const zr_nn_layernorm_t *>(arguments);
    (void)workspace;
    ZR_TRY(zr_cuda_nn_check_dtypes(stream, "layernorm", args->activation_dtype, args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        launch_layernorm<decltype(element)>(zr_cuda_queue(stream), args);
    });
    return zr_cuda_launched(stream, "layernorm");
}

/* ---- backward ------------------------------------------------------------------------------- */

/* What a row's gradient needs beside its elements. */
struct row_t {
    float mean, rstd, average, average_normalised;
};

/* A few rows' sums over the block, the same in every thread. `buffer` alternates from call to call,
 * so that no thread is still reading what another writes. */
static __device__ inline void sum_over_block(float (&sums)[2 * ZR_CUDA_LAYERNORM_BACKWARD_ROWS],
                                             int buffer) {
    __shared__ float of_warp[2][ZR_CUDA_LAYERNORM_BACKWARD_THREADS / ZR_WARP]
                            [2 * ZR_CUDA_LAYERNORM_BACKWARD_ROWS];
    unsigned n_warps = blockDim.x / ZR_WARP;
#pragma unroll
    for (int v = 0; v < 2 * ZR_CUDA_LAYERNORM_BACKWARD_ROWS; v++) {
        sums[v] = zr_warp_sum(sums[v]);
        if (zr_lane() == 0)
            of_warp[buffer][threadIdx.x / ZR_WARP][v] = sums[v];
    }
    __syncthreads();
#pragma unroll
    for (int v = 0; v < 2 * ZR_CUDA_LAYERNORM_BACKWARD_ROWS; v++)
        sums[v] = of_warp[buffer][0][v];
    for (unsigned warp = 1; warp < n_warps; warp++) {
#pragma unroll
        for (int v = 0; v < 2 * ZR_CUDA_LAYERNORM_BACKWARD_ROWS; v++)
            sums[v] += of_warp[buffer][warp][v];
    }
}

/* Add a pack's part of d and of d times the normalised x, d = dy weight: zero beyond the end. */
template <typename T>
static __device__ inline void add_averages(const zr_raw_pack_t<T> &dy, const zr_raw_pack_t<T> &x,
                                           const zr_pack_t &weight, const row_t &row, float *sum,
                                           float *sum_normalised) {
#pragma unroll
    for (int i = 0; i < ZR_PACK_ELEMS; i++) {
        float d = zr_raw_value(dy, i) * weight.value[i];
        *sum += d;
        *sum_normalised += d * zr_nn_normalised(zr_raw_value(x, i), row.mean, row.rstd);
    }
}

/* A block's work on a part of the rows. */
template <typename T, bool WIDE> struct backward_part_t {
    const zr_nn_layernorm_backward_t &args;
    size_t begin, end; /* rows */
    float *partials;   /* [2, channels] of the part, or NULL: nobody wants them */

    __device__ zr_raw_pack_t<T> load(const void *matrix, size_t row, size_t first, int n) const {
        const T *rows = static_cast<const T *>(matrix) + row * args.channels;
        return load_raw<T, WIDE>(rows, first, row < end ? n : 0);
    }

    __device__ zr_pack_t load_weight(size_t first, int n) const {
        return load_pack<T, WIDE>(static_cast<const T *>(args.weight), first, n);
    }

    /* The gradient of one row's pack, and its part of the sums over rows. */
    __device__ void finish(const zr_raw_pack_t<T> &dy, const zr_raw_pack_t<T> &x,
                           const zr_pack_t &weight, const row_t &stats, size_t row, size_t first,
                           int n, zr_pack_t *dweight, zr_pack_t *dbias) const {
        T *dx = static_cast<T *>(args.dx) + row * args.channels;
        zr_pack_t slope;
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++) {
            float d = zr_raw_value(dy, i);
            float normalised = zr_nn_normalised(zr_raw_value(x, i), stats.mean, stats.rstd);
            slope.value[i] = zr_nn_normalise_slope(d * weight.value[i], normalised, stats.rstd,
                                                   stats.average, stats.average_normalised);
            dweight->value[i] += d * normalised;
            dbias->value[i] += d;
        }
        zr_store_gradient(dx, args.accumulate_dx, first, WIDE ? ZR_PACK_ELEMS : n, WIDE, slope);
    }

    __device__ void store_partials(size_t first, int n, const zr_pack_t &dweight,
                                   const zr_pack_t &dbias) const {
        if (partials == NULL || n == 0)
            return;
        zr_store_pack(partials, first, n, false, dweight);
        zr_store_pack(partials + args.channels, first, n, false, dbias);
    }
};

/* What a thread needs first of a few rows: its first pack of each. */
template <typename T> struct held_rows_t {
    zr_raw_pack_t<T> x[ZR_CUDA_LAYERNORM_BACKWARD_ROWS], dy[ZR_CUDA_LAYERNORM_BACKWARD_ROWS];
    row_t stats[ZR_CUDA_LAYERNORM_BACKWARD_ROWS];
};

/* Of the rows [row, row + ZR_CUDA_LAYERNORM_BACKWARD_ROWS), or as many as there are. */
template <typename T, bool WIDE>
static __device__ inline void hold_rows(const backward_part_t<T, WIDE> &part, size_t row,
                                        size_t first, int n, held_rows_t<T> *held) {
#pragma unroll
    for (int r = 0; r < ZR_CUDA_LAYERNORM_BACKWARD_ROWS; r++) {
        held->x[r] = part.load(part.args.x, row + r, first, n);
        held->dy[r] = part.load(part.args.dy, row + r, first, n);
        held->stats[r].mean =
            row + r < part.end && !part.args.is_rms ? part.args.mean[row + r] : 0.0f;
        held->stats[r].rstd = row + r < part.end ? part.args.rstd[row + r] : 0.0f;
    }
}

/* These rows, by the whole block. The thread's first pack is held in registers; the packs behind
 * it, which ALL_HELD says there are none of, are read twice. */
template <bool ALL_HELD, typename T, bool WIDE>
static __device__ inline void go_through_rows(const backward_part_t<T, WIDE> &part, size_t row,
                                              size_t first, held_rows_t<T> &held,
                                              const zr_pack_t &weight, zr_pack_t *dweight,
                                              zr_pack_t *dbias, int buffer) {
    const size_t step = (size_t)blockDim.x * ZR_PACK_ELEMS, channels = part.args.channels;
    const size_t rest = ALL_HELD ? channels : first + step; /* where the first of those begins */
    const int n = zr_row_pack_length(first, channels);
    row_t(&stats)[ZR_CUDA_LAYERNORM_BACKWARD_ROWS] = held.stats;
    float sums[2 * ZR_CUDA_LAYERNORM_BACKWARD_ROWS] = {0};
#pragma unroll
    for (int r = 0; r < ZR_CUDA_LAYERNORM_BACKWARD_ROWS; r++) {
        add_averages(held.dy[r], held.x[r], weight, stats[r], &sums[2 * r], &sums[2 * r + 1]);
        for (size_t at = rest; at < channels; at += step) {
            int m = zr_row_pack_length(at, channels);
            add_averages(part.load(part.args.dy, row + r, at, m),
                         part.load(part.args.x, row + r, at, m), part.load_weight(at, m), stats[r],
                         &sums[2 * r], &sums[2 * r + 1]);
        }
    }
    sum_over_block(sums, buffer);
#pragma unroll
    for (int r = 0; r < ZR_CUDA_LAYERNORM_BACKWARD_ROWS; r++) {
        stats[r].average = part.args.is_rms ? 0.0f : sums[2 * r] / static_cast<float>(channels);
        stats[r].average_normalised = sums[2 * r + 1] / static_cast<float>(channels);
        if (row + r < part.end && n > 0)
            part.finish(held.dy[r], held.x[r], weight, stats[r], row + r, first, n, dweight, dbias);
    }
    for (size_t at = rest; at < channels; at += step) {
        int m = zr_row_pack_length(at, channels);
        zr_pack_t w = part.load_weight(at, m), more_dweight = {}, more_dbias = {};
        if (part.partials != NULL && row > part.begin) {
            more_dweight = zr_load_pack(part.partials, at, m, false);
            more_dbias = zr_load_pack(part.partials + channels, at, m, false);
        }
#pragma unroll
        for (int r = 0; r < ZR_CUDA_LAYERNORM_BACKWARD_ROWS; r++) {
            if (row + r < part.end)
                part.finish(part.load(part.args.dy, row + r, at, m),
                            part.load(part.args.x, row + r, at, m), w, stats[r], row + r, at, m,
                            &more_dweight, &more_dbias);
        }
        part.store_partials(at, m, more_dweight, more_dbias);
    }
}

/* Blocks of at most so many threads have registers for the next rows of bf16, which are then on
 * their way while these are added up and written: memory is not left waiting at the block's
 * barrier. */
#define ZR_THREADS_THAT_READ_AHEAD 256

template <typename T, bool WIDE, bool READS_AHEAD>
static __global__ void __launch_bounds__(READS_AHEAD ? ZR_THREADS_THAT_READ_AHEAD
                                                     : ZR_CUDA_LAYERNORM_BACKWARD_THREADS,
                                         READS_AHEAD ? 2 : 1)
    layernorm_backward_kernel(zr_nn_layernorm_backward_t args, zr_cuda_layernorm_plan_t plan,
                              float *partials) {
    const size_t first = (size_t)threadIdx.x * ZR_PACK_ELEMS;
    const int n = zr_row_pack_length(first, args.channels);
    int buffer = 0;
    for (size_t index = blockIdx.x; index < plan.n_parts; index += gridDim.x) {
        size_t begin = index * plan.rows_per_part, left = args.n_rows - begin;
        size_t end = begin + (left < plan.rows_per_part ? left : plan.rows_per_part);
        backward_part_t<T, WIDE> part = {
            args, begin, end, partials == NULL ? NULL : partials + index * 2 * args.channels};
        zr_pack_t weight = part.load_weight(first, n), dweight = {}, dbias = {};
        held_rows_t<T> next;
        hold_rows(part, begin, first, n, &next);
        for (size_t row = begin; row < end; row += ZR_CUDA_LAYERNORM_BACKWARD_ROWS, buffer ^= 1) {
            held_rows_t<T> held = next;
            if (READS_AHEAD)
                hold_rows(part, row + ZR_CUDA_LAYERNORM_BACKWARD_ROWS, first, n, &next);
            go_through_rows<READS_AHEAD>(part, row, first, held, weight, &dweight, &dbias, buffer);
            if (!READS_AHEAD)
                hold_rows(part, row + ZR_CUDA_LAYERNORM_BACKWARD_ROWS, first, n, &next);
        }
        part.store_partials(first, n, dweight, dbias);
    }
}

template <typename T>
static void launch_backward(cudaStream_t queue, const zr_nn_layernorm_backward_t *args,
                            const zr_cuda_layernorm_plan_t *plan, float *partials) {
    unsigned blocks =
        plan->n_parts < ZR_CUDA_MAX_BLOCKS ? (unsigned)plan->n_parts : ZR_CUDA_MAX_BLOCKS;
    bool wide = zr_has_wide_rows(args->x, args->channels) && zr_is_wide(args->dy) &&
                zr_is_wide(args->weight) && zr_is_wide(args->dx);
    const bool is_small = sizeof(T) < sizeof(float);
    if (wide && is_small && plan->n_threads <= ZR_THREADS_THAT_READ_AHEAD &&
        args->channels <= (size_t)plan->n_threads * ZR_PACK_ELEMS)
        ZR_CUDA_LAUNCH((layernorm_backward_kernel<T, true, is_small>), blocks, plan->n_threads, 0,
                       queue, *args, *plan, partials);
    else if (wide)
        ZR_CUDA_LAUNCH((layernorm_backward_kernel<T, true, false>), blocks, plan->n_threads, 0,
                       queue, *args, *plan, partials);
    else
        ZR_CUDA_LAUNCH((layernorm_backward_kernel<T, false, false>), blocks, plan->n_threads, 0,
                       queue, *args, *plan, partials);
}

zr_status_t zr_cuda_nn_layernorm_backward(zr_stream_t *stream, const void *arguments,
                                          void *workspace) {
    const zr_nn_layernorm_backward_t *args =
        static_cast<const zr_nn_layernorm_backward_t *>(arguments);
    const char *name = "layernorm_backward";
    ZR_TRY(zr_cuda_nn_check_dtypes(stream, name, args->activation_dtype, args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    zr_cuda_layernorm_plan_t plan = zr_cuda_layernorm_plan(args->n_rows, args->channels);
    bool is_wanted = args->dweight.data != NULL || args->dbias.data != NULL;
    float *partials = is_wanted ? static_cast<float *>(workspace) : NULL;
    if (args->n_rows > 0) {
        zr_by_dtype(args->activation_dtype, [&](auto element) {
            launch_backward<decltype(element)>(zr_cuda_queue(stream), args, &plan, partials);
        });
        ZR_TRY(zr_cuda_launched(stream, name));
    }
    zr_column_sums_t sums = {partials, plan.n_parts, 2 * args->channels, args->channels};
    if (args->dweight.data != NULL)
        ZR_TRY(zr_cuda_nn_sum_partials(stream, &sums, &args->dweight, args->param_dtype,
                                       "layernorm_backward (weight)"));
    sums.partials = partials == NULL ? NULL : partials + args->channels;
    if (args->dbias.data == NULL)
        return ZR_OK;
    return zr_cuda_nn_sum_partials(stream, &sums, &args->dbias, args->param_dtype,
                                   "layernorm_backward (bias)");
}
