/*
 * Embeddings on CUDA. Forward, and the gradient of the positions, are sums of rows. The gradient of
 * the tokens needs each token's rows in the order of their positions: one block sorts the rows by
 * token, stably, and warps then add up those of a token, a tile of columns each. The sort takes
 * time in proportion to the rows and to the bytes of a token's number, on one multiprocessor; the
 * sums read each row once. Nothing is atomic.
 */
#include "kernels/nn/cuda/rows_cuda.cuh"

/* A warp's work: a tile of columns of a row; this lane's pack of it. */
struct tile_t {
    size_t row, first;
    int n;
};

static __device__ inline tile_t tile_of(size_t item, size_t n_tiles, size_t channels) {
    tile_t tile;
    tile.row = item / n_tiles;
    tile.first = item % n_tiles * ZR_TILE_ELEMS + zr_lane() * ZR_PACK_ELEMS;
    tile.n = zr_row_pack_length(tile.first, channels);
    return tile;
}

static inline ZR_HOST_DEVICE size_t count_tiles(size_t channels) {
    return (channels + ZR_TILE_ELEMS - 1) / ZR_TILE_ELEMS;
}

/* ---- forward -------------------------------------------------------------------------------- */

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    embedding_kernel(zr_nn_embedding_t args, bool wide) {
    const T *tokens = static_cast<const T *>(args.token_table);
    const T *positions = static_cast<const T *>(args.position_table);
    T *out = static_cast<T *>(args.out);
    size_t channels = args.channels, n_tiles = count_tiles(channels);
    size_t n_items = args.batch * args.seq * n_tiles;
    for (size_t item = zr_warp_index(); item < n_items; item += zr_warp_count()) {
        tile_t tile = tile_of(item, n_tiles, channels);
        if (tile.n == 0)
            continue;
        size_t token = static_cast<size_t>(args.tokens[tile.row]);
        zr_pack_t sum = zr_load_pack(tokens + token * channels, tile.first, tile.n, wide);
        zr_pack_t addend = {};
        if (args.n_positions != 0) {
            size_t position = tile.row % args.seq;
            if (args.document_starts != NULL)
                position -= static_cast<size_t>(args.document_starts[tile.row]);
            addend = zr_load_pack(positions + position * channels, tile.first, tile.n, wide);
        }
#pragma unroll
        for (int i = 0; i < ZR_PACK_ELEMS; i++)
            sum.value[i] += addend.value[i];
        zr_store_pack(out + tile.row * channels, tile.first, tile.n, wide, sum);
    }
}

zr_status_t zr_cuda_nn_embedding(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_embedding_t *args = static_cast<const zr_nn_embedding_t *>(arguments);
    (void)workspace;
    ZR_TRY(zr_cuda_nn_check_dtypes(stream, "embedding", args->activation_dtype, args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    bool wide = zr_has_wide_rows(args->out, args->channels) && zr_is_wide(args->token_table) &&
                zr_is_wide(args->position_table);
    size_t n_items = args->batch * args->seq * count_tiles(args->channels);
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((embedding_kernel<T>), zr_blocks_for_warps(n_items), ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), *args, wide);
    });
    return zr_cuda_launched(stream, "embedding");
}

/* ---- rows by token -------------------------------------------------------------------------- */

#define ZR_SORT_THREADS 1024
#define ZR_SORT_WARPS (ZR_SORT_THREADS / ZR_WARP)
#define ZR_DIGITS 256 /* values of a byte of a token's number: a pass for each byte */

/* One pass of the sort: its source (NULL: rows as they come) and the byte that it looks at. */
struct sort_pass_t {
    const int32_t *tokens;
    const int32_t *from;
    int32_t *to;
    size_t n_rows;
    int shift;

    __device__ int32_t row_at(size_t index) const {
        return from == NULL ? static_cast<int32_t>(index) : from[index];
    }
};

/* Groups of 32 rows that a warp reads together: what a row's digit is takes two accesses, the
 * second at a place that the first one gives, and a warp alone with them would wait most of its
 * time. */
#define ZR_GROUPS_AT_ONCE 8

/* Each warp has a stretch of the source. Give `visit` the warp's rows, 32 at a time: whether the
 * lane has one, which, its digit, and the lanes that have the same digit. */
template <typename F> static __device__ inline void visit_rows(const sort_pass_t &pass, F visit) {
    size_t stretch = (pass.n_rows + ZR_SORT_THREADS - 1) / ZR_SORT_THREADS * ZR_WARP;
    size_t begin = threadIdx.x / ZR_WARP * stretch, end = begin + stretch;
    end = end < pass.n_rows ? end : pass.n_rows;
    for (size_t base = begin; base < end; base += ZR_GROUPS_AT_ONCE * ZR_WARP) {
        int32_t row[ZR_GROUPS_AT_ONCE], token[ZR_GROUPS_AT_ONCE];
#pragma unroll
        for (int k = 0; k < ZR_GROUPS_AT_ONCE; k++) {
            size_t index = base + k * ZR_WARP + zr_lane();
            row[k] = index < end ? pass.row_at(index) : -1;
        }
#pragma unroll
        for (int k = 0; k < ZR_GROUPS_AT_ONCE; k++)
            token[k] = row[k] >= 0 ? pass.tokens[row[k]] : 0;
#pragma unroll
        for (int k = 0; k < ZR_GROUPS_AT_ONCE; k++) {
            bool is_row = row[k] >= 0;
            int digit = is_row ? token[k] >> pass.shift & (ZR_DIGITS - 1) : ZR_DIGITS;
            unsigned same = __match_any_sync(ZR_ALL_LANES, digit);
            __syncwarp(); /* what lanes wrote before is seen: a vote alone does not promise it */
            visit(is_row, row[k], digit, same);
        }
    }
}

/* Whether the lane is the first of those in the mask. */
static __device__ inline bool is_first_of(unsigned lanes) {
    return (lanes & ((1u << zr_lane()) - 1)) == 0;
}

/* From how often each digit occurs in each warp's stretch to where its first occurrence goes. */
static __device__ inline void counts_to_places(unsigned (*counts)[ZR_DIGITS]) {
    __shared__ unsigned of_warp[ZR_DIGITS / ZR_WARP];
    unsigned digit = threadIdx.x, total = 0, up_to = 0;
    if (digit < ZR_DIGITS) { /* whole warps */
        for (int warp = 0; warp < ZR_SORT_WARPS; warp++)
            total += counts[warp][digit];
        up_to = total;
        for (unsigned by = 1; by < ZR_WARP; by *= 2) {
            unsigned before = __shfl_up_sync(ZR_ALL_LANES, up_to, by);
            up_to += zr_lane() >= by ? before : 0;
        }
        if (zr_lane() == ZR_WARP - 1)
            of_warp[digit / ZR_WARP] = up_to;
    }
    __syncthreads();
    if (digit < ZR_DIGITS) {
        unsigned place = up_to - total;
        for (unsigned warp = 0; warp < digit / ZR_WARP; warp++)
            place += of_warp[warp];
        for (int warp = 0; warp < ZR_SORT_WARPS; warp++) {
            unsigned count = counts[warp][digit];
            counts[warp][digit] = place;
            place += count;
        }
    }
    __syncthreads();
}

static __device__ inline void sort_by_digit(const sort_pass_t &pass,
                                            unsigned (*counts)[ZR_DIGITS]) {
    unsigned *mine = counts[threadIdx.x / ZR_WARP];
    for (unsigned digit = zr_lane(); digit < ZR_DIGITS; digit += ZR_WARP)
        mine[digit] = 0;
    visit_rows(pass, [&](bool is_row, int32_t, int digit, unsigned same) {
        if (is_row && is_first_of(same))
            mine[digit] += __popc(same);
    });
    __syncthreads();
    counts_to_places(counts);
    visit_rows(pass, [&](bool is_row, int32_t row, int digit, unsigned same) {
        unsigned place = is_row ? mine[digit] : 0;
        __syncwarp(); /* all have read it */
        if (is_row) {
            pass.to[place + __popc(same & ((1u << zr_lane()) - 1))] = row;
            if (is_first_of(same))
                mine[digit] = place + __popc(same);
        }
    });
    __syncthreads(); /* the next pass reads what other warps wrote, and counts anew */
}

/* Rows by token, those of a token in their order: the last pass leaves them in `order`. */
static __global__ void __launch_bounds__(ZR_SORT_THREADS)
    sort_rows_kernel(const int32_t *tokens, int32_t *order, int32_t *other, size_t n_rows,
                     int n_passes) {
    __shared__ unsigned counts[ZR_SORT_WARPS][ZR_DIGITS];
    sort_pass_t pass = {tokens, NULL, NULL, n_rows, 0};
    for (int left = n_passes - 1; left >= 0; left--) {
        pass.to = left % 2 == 0 ? order : other;
        sort_by_digit(pass, counts);
        pass.from = pass.to;
        pass.shift += 8;
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* Rows whose loads are under way together. */
#define ZR_ROWS_AT_ONCE 8

/* Add the rows that lanes [0, n_rows) name to a sum, in the order of the lanes. */
template <typename T>
static __device__ inline void add_rows(const T *dout, int32_t row, int n_rows, size_t channels,
                                       const tile_t &tile, bool wide, zr_pack_t *sum) {
    for (int k = 0; k < n_rows; k += ZR_ROWS_AT_ONCE) {
        zr_raw_pack_t<T> raw[ZR_ROWS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < ZR_ROWS_AT_ONCE; u++) {
            size_t from = static_cast<size_t>(__shfl_sync(ZR_ALL_LANES, row, k + u));
            raw[u] =
                zr_load_raw(dout + from * channels, tile.first, k + u < n_rows ? tile.n : 0, wide);
        }
#pragma unroll
        for (int u = 0; u < ZR_ROWS_AT_ONCE; u++) {
#pragma unroll
            for (int i = 0; i < ZR_PACK_ELEMS; i++)
                sum->value[i] += zr_raw_value(raw[u], i);
        }
    }
}

/* For each row in order that is the first of its token, and each tile: the sum of its rows. */
template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    token_gradient_kernel(zr_nn_embedding_backward_t args, const int32_t *order, bool wide) {
    const T *dout = static_cast<const T *>(args.dout);
    size_t channels = args.channels, n_tiles = count_tiles(channels);
    size_t n_rows = args.batch * args.seq;
    for (size_t item = zr_warp_index(); item < n_rows * n_tiles; item += zr_warp_count()) {
        tile_t tile = tile_of(item, n_tiles, channels);
        int32_t token = args.tokens[order[tile.row]];
        if (tile.row > 0 && args.tokens[order[tile.row - 1]] == token)
            continue; /* the whole warp */
        zr_pack_t sum = {};
        int n_here = ZR_WARP;
        for (size_t base = tile.row; n_here == ZR_WARP; base += ZR_WARP) {
            size_t index = base + zr_lane();
            int32_t row = index < n_rows ? order[index] : 0;
            bool is_same = index < n_rows && args.tokens[row] == token;
            n_here = __popc(__ballot_sync(ZR_ALL_LANES, is_same));
            add_rows(dout, row, n_here, channels, tile, wide, &sum);
        }
        if (tile.n > 0)
            zr_store_gradient(static_cast<T *>(args.dtoken_table.data) +
                                  static_cast<size_t>(token) * channels,
                              args.dtoken_table.accumulate, tile.first, tile.n, wide, sum);
    }
}

/* Each position's sum over the batch; 0 beyond the sequence. */
template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    position_gradient_kernel(zr_nn_embedding_backward_t args, size_t n_positions, bool wide) {
    const T *dout = static_cast<const T *>(args.dout);
    T *gradient = static_cast<T *>(args.dposition_table.data);
    size_t channels = args.channels, n_tiles = count_tiles(channels);
    for (size_t item = zr_warp_index(); item < n_positions * n_tiles; item += zr_warp_count()) {
        tile_t tile = tile_of(item, n_tiles, channels);
        if (tile.n == 0)
            continue;
        zr_pack_t sum = {};
        size_t n_rows = tile.row < args.seq ? args.batch : 0;
#pragma unroll 8
        for (size_t b = 0; b < n_rows; b++) {
            zr_raw_pack_t<T> raw =
                zr_load_raw(dout + (b * args.seq + tile.row) * channels, tile.first, tile.n, wide);
#pragma unroll
            for (int i = 0; i < ZR_PACK_ELEMS; i++)
                sum.value[i] += zr_raw_value(raw, i);
        }
        zr_store_gradient(gradient + tile.row * channels, args.dposition_table.accumulate,
                          tile.first, tile.n, wide, sum);
    }
}

/* The same of documents: rows of a sequence have a position each of their own document. */
template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    document_position_gradient_kernel(zr_nn_embedding_backward_t args, size_t n_positions,
                                      bool wide) {
    const T *dout = static_cast<const T *>(args.dout);
    T *gradient = static_cast<T *>(args.dposition_table.data);
    size_t channels = args.channels, n_tiles = count_tiles(channels);
    for (size_t item = zr_warp_index(); item < n_positions * n_tiles; item += zr_warp_count()) {
        tile_t tile = tile_of(item, n_tiles, channels);
        zr_pack_t sum = {};
        for (size_t b = 0; b < args.batch && tile.row < args.seq; b++) {
            for (size_t base = tile.row; base < args.seq; base += ZR_WARP) {
                size_t t = base + zr_lane(), row = b * args.seq + t;
                bool is_here =
                    t < args.seq && static_cast<size_t>(args.document_starts[row]) + tile.row == t;
                for (unsigned left = __ballot_sync(ZR_ALL_LANES, is_here); left != 0;
                     left &= left - 1) {
                    size_t from = b * args.seq + base + __popc(~left & (left - 1));
                    zr_raw_pack_t<T> raw =
                        zr_load_raw(dout + from * channels, tile.first, tile.n, wide);
#pragma unroll
                    for (int i = 0; i < ZR_PACK_ELEMS; i++)
                        sum.value[i] += zr_raw_value(raw, i);
                }
            }
        }
        if (tile.n > 0)
            zr_store_gradient(gradient + tile.row * channels, args.dposition_table.accumulate,
                              tile.first, tile.n, wide, sum);
    }
}

static bool has_wide_tables(const zr_nn_embedding_backward_t *args, const void *table) {
    return zr_has_wide_rows(args->dout, args->channels) && zr_is_wide(table);
}

/* Every row is written that is to be, or cleared before. */
static zr_status_t token_gradient(zr_stream_t *stream, const zr_nn_embedding_backward_t *args,
                                  int32_t *workspace) {
    size_t n_rows = args->batch * args->seq;
    if (!args->dtoken_table.accumulate)
        ZR_TRY(zr_cuda_fill(stream, args->dtoken_table.data, args->param_dtype,
                            args->vocab * args->channels, 0.0f));
    if (n_rows == 0)
        return ZR_OK;
    int n_passes = 1;
    while (n_passes < 4 && (args->vocab - 1) >> (8 * n_passes) != 0)
        n_passes++;
    ZR_CUDA_LAUNCH(sort_rows_kernel, 1, ZR_SORT_THREADS, 0, zr_cuda_queue(stream), args->tokens,
                   workspace, workspace + n_rows, n_rows, n_passes);
    ZR_TRY(zr_cuda_launched(stream, "embedding_backward (sort)"));
    unsigned blocks = zr_blocks_for_warps(n_rows * count_tiles(args->channels));
    bool wide = has_wide_tables(args, args->dtoken_table.data);
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        using T = decltype(element);
        ZR_CUDA_LAUNCH((token_gradient_kernel<T>), blocks, ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), *args, workspace, wide);
    });
    return zr_cuda_launched(stream, "embedding_backward (tokens)");
}

static zr_status_t position_gradient(zr_stream_t *stream, const zr_nn_embedding_backward_t *args) {
    /* Where nothing is added, positions beyond the sequence need not be touched. */
    size_t n_positions = args->dposition_table.accumulate ? args->seq : args->n_positions;
    unsigned blocks = zr_blocks_for_warps(n_positions * count_tiles(args->channels));
    bool wide = has_wide_tables(args, args->dposition_table.data);
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        using T = decltype(element);
        if (args->document_starts == NULL)
            ZR_CUDA_LAUNCH((position_gradient_kernel<T>), blocks, ZR_CUDA_THREADS, 0,
                           zr_cuda_queue(stream), *args, n_positions, wide);
        else
            ZR_CUDA_LAUNCH((document_position_gradient_kernel<T>), blocks, ZR_CUDA_THREADS, 0,
                           zr_cuda_queue(stream), *args, n_positions, wide);
    });
    return zr_cuda_launched(stream, "embedding_backward (positions)");
}

zr_status_t zr_cuda_nn_embedding_backward(zr_stream_t *stream, const void *arguments,
                                          void *workspace) {
    const zr_nn_embedding_backward_t *args =
        static_cast<const zr_nn_embedding_backward_t *>(arguments);
    ZR_TRY(zr_cuda_nn_check_dtypes(stream, "embedding_backward", args->activation_dtype,
                                   args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    if (args->dtoken_table.data != NULL)
        ZR_TRY(token_gradient(stream, args, static_cast<int32_t *>(workspace)));
    if (args->dposition_table.data == NULL)
        return ZR_OK;
    return position_gradient(stream, args);
}
