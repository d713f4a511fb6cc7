/*
 * Attention without tensor cores: fp32, and bf16 with heads that those do not take. Not fast, but
 * right for any head of up to 256 channels, in fp32 throughout.
 *
 * A warp has one row; a block's warps go together through tiles of 32 rows of the other side, which
 * lie in shared memory as fp32. Where scores are wanted, a lane is a row of the tile; where sums
 * over rows are, a lane is some of the columns. In between, the rows' weights go through shared
 * memory.
 */
#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/attention_cuda.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define OTHER 32
#define MAX_COLUMNS (ZR_ATTENTION_MAX_HEAD_SIZE / 32) /* of a lane */

/* A block's shared memory. Rows of tiles are an odd number of words apart: what 32 lanes read of 32
 * rows then lies in different banks. */
struct plain_t {
    float *own[2];     /* [WARPS][head_size] */
    float *other[2];   /* [OTHER][stride] */
    float *weights[2]; /* of the warp: [OTHER] */
    unsigned head_size, stride;
};

static size_t shared_bytes(size_t head_size) {
    return (2 * WARPS * head_size + 2 * OTHER * (head_size | 1) + 2 * WARPS * OTHER) *
           sizeof(float);
}

static __device__ inline unsigned find_lane(void) {
    return threadIdx.x % 32;
}
static __device__ inline unsigned find_warp(void) {
    return threadIdx.x / 32;
}

static __device__ inline plain_t find_shared(unsigned char *shared, size_t head_size) {
    plain_t tiles;
    float *next = reinterpret_cast<float *>(shared);
    tiles.head_size = (unsigned)head_size;
    tiles.stride = tiles.head_size | 1;
    for (int i = 0; i < 2; i++) {
        tiles.own[i] = next;
        tiles.other[i] = next + WARPS * tiles.head_size;
        tiles.weights[i] = tiles.other[i] + OTHER * tiles.stride + find_warp() * OTHER;
        next = tiles.other[i] + OTHER * tiles.stride + WARPS * OTHER;
    }
    return tiles;
}

/* Rows of one side: two matrices of a head. */
template <typename T> struct rows_t {
    const T *data[2];
    size_t stride[2];
};

/* Copy n rows from row `first` on to tiles with `tile_stride`; zeros from n_rows on. */
template <typename T>
static __device__ inline void load_rows(float *const (&tile)[2], unsigned tile_stride, unsigned n,
                                        const rows_t<T> &rows, size_t first, size_t n_rows,
                                        unsigned head_size) {
    for (unsigned i = threadIdx.x; i < n * head_size; i += THREADS) {
        unsigned row = i / head_size, column = i % head_size;
        bool is_there = first + row < n_rows;
#pragma unroll
        for (int k = 0; k < 2; k++)
            tile[k][row * tile_stride + column] =
                is_there ? zr_widen(rows.data[k][(first + row) * rows.stride[k] + column]) : 0.0f;
    }
}

/* The warp's own row times the lane's row of the tile. */
static __device__ inline float multiply(const plain_t &tiles, int which) {
    const float *own = tiles.own[which] + find_warp() * tiles.head_size;
    const float *other = tiles.other[which] + find_lane() * tiles.stride;
    float sum = 0;
    for (unsigned c = 0; c < tiles.head_size; c++)
        sum = fmaf(own[c], other[c], sum);
    return sum;
}

/* The lane's columns of sum += weights times the rows of a tile. */
static __device__ inline void add_rows(float (&sum)[MAX_COLUMNS], const plain_t &tiles,
                                       const float *weights, const float *other) {
#pragma unroll
    for (int i = 0; i < MAX_COLUMNS; i++) {
        unsigned column = i * 32 + find_lane();
        if (column >= tiles.head_size)
            continue;
#pragma unroll 4 /* whole, it would take three times as long to compile */
        for (unsigned r = 0; r < OTHER; r++)
            sum[i] = fmaf(weights[r], other[r * tiles.stride + column], sum[i]);
    }
}

template <typename T>
static __device__ inline void store_row(T *row, const float (&sum)[MAX_COLUMNS], float factor,
                                        unsigned head_size) {
#pragma unroll
    for (int i = 0; i < MAX_COLUMNS; i++) {
        unsigned column = i * 32 + find_lane();
        if (column < head_size)
            zr_narrow(sum[i] * factor, &row[column]);
    }
}

static __device__ inline float warp_max(float value) {
    for (int by = 16; by > 0; by /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, by));
    return value;
}
static __device__ inline float warp_sum(float value) {
    for (int by = 16; by > 0; by /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, by);
    return value;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* A query's sums so far, relative to its largest score; `sum` is the lane's part. */
struct query_t {
    float top, sum, out[MAX_COLUMNS];
};

/* Add a tile of keys to the warp's query, which sees at least one of them. */
static __device__ inline void add_keys(query_t &query, const plain_t &tiles, bool is_seen,
                                       float scale) {
    float score = multiply(tiles, 0) * scale;
    float top = fmaxf(query.top, warp_max(is_seen ? score : -INFINITY));
    float correction = expf(query.top - top);
    float weight = is_seen ? expf(score - top) : 0.0f;
    query.top = top;
    query.sum = fmaf(query.sum, correction, weight);
    tiles.weights[0][find_lane()] = weight;
    __syncwarp(); /* all lanes' weights are there */
#pragma unroll
    for (int i = 0; i < MAX_COLUMNS; i++)
        query.out[i] *= correction;
    add_rows(query.out, tiles, tiles.weights[0], tiles.other[1]);
}

template <typename T>
static __device__ inline void attend(const zr_cuda_attention_t &args, const zr_cuda_head_t &head,
                                     size_t first, const plain_t &tiles) {
    const T *qkv = static_cast<const T *>(args.qkv);
    const T *q = qkv + head.q, *k = qkv + head.k, *v = qkv + head.v;
    const rows_t<T> own = {{q, q}, {head.qkv_stride, head.qkv_stride}};
    const rows_t<T> other = {{k, v}, {head.qkv_stride, head.qkv_stride}};
    size_t row = first + find_warp(), end = first + WARPS < args.seq ? first + WARPS : args.seq;
    size_t begin = zr_cuda_first_key(args, head, first) / OTHER * OTHER;
    size_t first_key = zr_cuda_first_key(args, head, row);
    query_t query = {-INFINITY, 0, {}};
    load_rows(tiles.own, tiles.head_size, WARPS, own, first, args.seq, tiles.head_size);
    for (size_t key = begin; key < end; key += OTHER) {
        __syncthreads(); /* nobody reads the last tile */
        load_rows(tiles.other, tiles.stride, OTHER, other, key, args.seq, tiles.head_size);
        __syncthreads(); /* this one is there */
        size_t at = key + find_lane();
        if (key <= row && first_key < key + OTHER)
            add_keys(query, tiles, first_key <= at && at <= row, args.scale);
    }
    float sum = warp_sum(query.sum);
    if (row >= args.seq)
        return;
    store_row(static_cast<T *>(args.out) + head.out + row * head.out_stride, query.out, 1.0f / sum,
              tiles.head_size);
    if (find_lane() == 0)
        args.log_sum[head.rows + row] = query.top + logf(sum);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS, 2)
    attention_plain_kernel(const zr_cuda_attention_t args) {
    ZR_CUDA_SHARED(shared);
    plain_t tiles = find_shared(shared, args.head_size);
    size_t n_tiles = (args.seq + WARPS - 1) / WARPS;
    for (size_t item = blockIdx.x; item < n_tiles * args.n_heads; item += gridDim.x) {
        zr_cuda_item_t at = zr_cuda_find_item(args, false, n_tiles, item);
        zr_cuda_head_t head = zr_cuda_find_head(args, at.head);
        attend<T>(args, head, (n_tiles - 1 - at.tile) * WARPS, tiles);
        __syncthreads(); /* the tiles are written again */
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* By queries, a block's own rows are those of q and dout, and it goes through k and v; by keys, its
 * own are k and v, and it goes through q and dout. */
template <typename T, bool BY_KEYS>
static __device__ inline void find_sides(const zr_cuda_attention_t &args,
                                         const zr_cuda_head_t &head, rows_t<T> &own,
                                         rows_t<T> &other) {
    const T *qkv = static_cast<const T *>(args.qkv);
    const T *q = qkv + head.q, *k = qkv + head.k, *v = qkv + head.v;
    const T *dout = static_cast<const T *>(args.dout) + head.out;
    const rows_t<T> queries = {{q, dout}, {head.qkv_stride, head.out_stride}};
    const rows_t<T> keys = {{k, v}, {head.qkv_stride, head.qkv_stride}};
    own = BY_KEYS ? keys : queries;
    other = BY_KEYS ? queries : keys;
}

/* Weights of the tile's rows for the gradients of the warp's row: by queries and keys those of
 * other[0], by keys also those of other[1]. The lane's pair is this query and this key. */
template <bool BY_KEYS>
static __device__ inline void find_weights(const zr_cuda_attention_t &args,
                                           const zr_cuda_head_t &head, const plain_t &tiles,
                                           size_t query, size_t key) {
    float score = multiply(tiles, 0) * args.scale, dp = multiply(tiles, 1), p = 0, ds = 0;
    if (key <= query && query < args.seq && zr_cuda_first_key(args, head, query) <= key) {
        p = expf(score - args.log_sum[head.rows + query]);
        ds = p * (dp - args.delta[head.rows + query]);
    }
    tiles.weights[0][find_lane()] = ds;
    if (BY_KEYS)
        tiles.weights[1][find_lane()] = p;
    __syncwarp(); /* all lanes' weights are there */
}

/* What one head of queries adds to the gradients of the warp's row. */
template <typename T, bool BY_KEYS>
static __device__ inline void add_head(const zr_cuda_attention_t &args, const zr_cuda_head_t &head,
                                       const rows_t<T> &other, size_t first, const plain_t &tiles,
                                       float (&sum)[2][MAX_COLUMNS]) {
    size_t seq = args.seq, row = first + find_warp(), begin = first, end;
    if (BY_KEYS) {
        end = zr_cuda_find_end(args, head, first, OTHER, first + WARPS);
    } else {
        begin = zr_cuda_first_key(args, head, first) / OTHER * OTHER;
        end = first + WARPS > seq ? seq : first + WARPS;
    }
    for (size_t tile = begin; tile < end; tile += OTHER) {
        __syncthreads(); /* nobody reads the last tile */
        load_rows(tiles.other, tiles.stride, OTHER, other, tile, seq, tiles.head_size);
        __syncthreads(); /* this one is there */
        size_t at = tile + find_lane();
        find_weights<BY_KEYS>(args, head, tiles, BY_KEYS ? at : row, BY_KEYS ? row : at);
        add_rows(sum[0], tiles, tiles.weights[0], tiles.other[0]);
        if (BY_KEYS)
            add_rows(sum[1], tiles, tiles.weights[1], tiles.other[1]);
    }
}

/* `index`: of the head, by keys among those of keys. */
template <typename T, bool BY_KEYS>
static __device__ inline void differentiate_rows(const zr_cuda_attention_t &args, size_t index,
                                                 size_t first, const plain_t &tiles) {
    const size_t n_group = BY_KEYS ? args.heads / args.kv_heads : 1;
    zr_cuda_head_t head = zr_cuda_find_head(args, index * n_group);
    rows_t<T> own, other;
    find_sides<T, BY_KEYS>(args, head, own, other);
    size_t seq = args.seq, row = first + find_warp();
    float sum[2][MAX_COLUMNS] = {};
    load_rows(tiles.own, tiles.head_size, WARPS, own, first, seq, tiles.head_size);
    for (size_t h = 0; h < n_group; h++) {
        head = zr_cuda_find_head(args, index * n_group + h);
        find_sides<T, BY_KEYS>(args, head, own, other);
        add_head<T, BY_KEYS>(args, head, other, first, tiles, sum);
    }
    if (row >= seq)
        return;
    T *dqkv = static_cast<T *>(args.dqkv) + row * head.qkv_stride;
    store_row(dqkv + (BY_KEYS ? head.k : head.q), sum[0], args.scale, tiles.head_size);
    if (BY_KEYS)
        store_row(dqkv + head.v, sum[1], 1.0f, tiles.head_size);
}

template <typename T, bool BY_KEYS>
static __global__ void __launch_bounds__(THREADS, 2)
    attention_plain_backward_kernel(const zr_cuda_attention_t args) {
    ZR_CUDA_SHARED(shared);
    plain_t tiles = find_shared(shared, args.head_size);
    size_t n_tiles = (args.seq + WARPS - 1) / WARPS;
    size_t n_heads = BY_KEYS ? args.n_kv_heads : args.n_heads;
    for (size_t item = blockIdx.x; item < n_tiles * n_heads; item += gridDim.x) {
        zr_cuda_item_t at = zr_cuda_find_item(args, BY_KEYS, n_tiles, item);
        differentiate_rows<T, BY_KEYS>(args, at.head,
                                       (BY_KEYS ? at.tile : n_tiles - 1 - at.tile) * WARPS, tiles);
        __syncthreads(); /* the tiles are written again */
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

/* What is allowed is the kernel's, on this device: of two ranks with heads of different sizes one
 * may launch behind what the other has allowed. So it is what any launch needs. */
static zr_status_t launch(zr_stream_t *stream, void (*kernel)(const zr_cuda_attention_t),
                          const zr_cuda_attention_t &args, size_t n_heads, const char *name) {
    ZR_TRY(zr_cuda_allow_shared(stream, kernel, shared_bytes(ZR_ATTENTION_MAX_HEAD_SIZE), name));
    ZR_CUDA_LAUNCH(kernel, zr_cuda_attention_blocks(args, n_heads, WARPS), THREADS,
                   shared_bytes(args.head_size), zr_cuda_queue(stream), args);
    return zr_cuda_launched(stream, name);
}

template <typename T>
static zr_status_t launch_backward(zr_stream_t *stream, const zr_cuda_attention_t &args) {
    ZR_TRY(launch(stream, attention_plain_backward_kernel<T, true>, args, args.n_kv_heads,
                  "attention_backward (keys, plain)"));
    return launch(stream, attention_plain_backward_kernel<T, false>, args, args.n_heads,
                  "attention_backward (queries, plain)");
}

zr_status_t zr_cuda_attention_plain(zr_stream_t *stream, const zr_cuda_attention_t &args,
                                    zr_dtype_t dtype) {
    if (dtype == ZR_DTYPE_F32)
        return launch(stream, attention_plain_kernel<float>, args, args.n_heads,
                      "attention (plain)");
    return launch(stream, attention_plain_kernel<zr_bf16_t>, args, args.n_heads,
                  "attention (plain)");
}

zr_status_t zr_cuda_attention_plain_backward(zr_stream_t *stream, const zr_cuda_attention_t &args,
                                             zr_dtype_t dtype) {
    return dtype == ZR_DTYPE_F32 ? launch_backward<float>(stream, args)
                                 : launch_backward<zr_bf16_t>(stream, args);
}
