/*
 * Attention on tensor cores: bf16, heads of 64 or 128 channels. Scores exist a tile at a time, in
 * the registers of the warp that needs them (Dao et al. 2022, 2023).
 *
 * A block has four warps and a tile of rows in shared memory, 16 or 32 to a warp; it goes through
 * tiles of the other side's rows, which all warps share. A product's result in registers is laid
 * out as the next product wants its left operand, so that scores never go through memory, and warps
 * meet only where tiles come and go.
 *
 * Kernels that mind documents and windows (HIDES) are others, so that those that need not have no
 * part of it.
 *
 * Tiles in shared memory are rows of 16-byte chunks; chunk c of row r lies at place c ^ r % 8.
 * Eight rows of one chunk, which is what ldmatrix reads at once, then lie in different banks.
 */
#include "kernels/cuda/cuda_pack.cuh"
#include "kernels/nn/cuda/attention_cuda.cuh"
#include "kernels/nn/cuda/mma_cuda.cuh"

#define WARPS 4
#define THREADS (32 * WARPS)

/* Factors that make the natural exponential one of 2, and its logarithm natural. */
#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

typedef zr_words_t<zr_bf16_t> chunk_t;

/* Rows of tiles: a block's own, 16 * M to a warp, and the other side's. */
template <int D> struct forward_shape_t {
    static const int M = 2, OWN = 16 * M * WARPS, OTHER = D == 64 ? 64 : 32;
    static const size_t SHARED_BYTES = (OWN + 2 * OTHER) * D * 2;
};
template <int D> struct backward_shape_t {
    static const int M = 1, OWN = 16 * M * WARPS, OTHER = D == 64 ? 64 : 32;
    static const int STAGE_BYTES = 2 * OTHER * D * 2 + 2 * OTHER * 4;
    static const size_t SHARED_BYTES = 2 * OWN * D * 2 + 2 * STAGE_BYTES;
};

static __device__ inline unsigned find_lane(void) {
    return threadIdx.x % 32;
}
static __device__ inline unsigned find_warp(void) {
    return threadIdx.x / 32;
}

/* ---- tiles in shared memory ----------------------------------------------------------------- */

template <int D> static __device__ inline unsigned chunk_offset(unsigned row, unsigned chunk) {
    return (row * (D / 8) + (chunk ^ row % 8)) * 16;
}

/* Begin to copy N rows from row `first` on, which is there; those from n_rows on become zeros. */
template <int D, int N>
static __device__ inline void load_tile(unsigned char *tile, const zr_bf16_t *matrix, size_t stride,
                                        size_t first, size_t n_rows) {
    const unsigned chunks = D / 8, step = THREADS / chunks; /* rows that all threads copy at once */
    unsigned row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    unsigned n_there = n_rows - first < N ? (unsigned)(n_rows - first) : N;
    const zr_bf16_t *from = matrix + (first + row) * stride + chunk * 8;
    unsigned char *to = tile + chunk_offset<D>(row, chunk); /* step is a multiple of 8 */
#pragma unroll
    for (unsigned i = 0; i < N / step; i++) {
        bool is_there = row + i * step < n_there;
        zr_copy16(to + i * step * D * 2, is_there ? from : matrix, is_there);
        from += step * stride;
    }
}

/* Begin to copy N floats from `first` on; zeros from n_rows on. */
template <int N>
static __device__ inline void load_floats(unsigned char *shared, const float *values, size_t first,
                                          size_t n_rows) {
    bool is_there = first + threadIdx.x < n_rows;
    if (threadIdx.x < N)
        zr_copy4(shared + 4 * threadIdx.x, values + (is_there ? first + threadIdx.x : 0), is_there);
}

/*
 * Round a warp's values, times their rows' factors, and write them to its rows of a matrix, by way
 * of its rows of a tile, which no other warp reads and this one has multiplied for the last time.
 * `row` is its first one there, `first` in the matrix.
 */
template <int D, int M>
static __device__ inline void store_rows(float (&value)[M][D / 8][4], const float (&factor)[M][2],
                                         unsigned char *tile, unsigned row, zr_bf16_t *matrix,
                                         size_t stride, size_t first, size_t n_rows) {
    const unsigned chunks = D / 8;
    unsigned lane = find_lane();
    __syncwarp(); /* no lane reads the tile any more */
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t pair = zr_pair_of_bf16(value[m][n][2 * h] * factor[m][h],
                                                value[m][n][2 * h + 1] * factor[m][h]);
                unsigned to = chunk_offset<D>(row + m * 16 + h * 8 + lane / 4, n) + lane % 4 * 4;
                *reinterpret_cast<uint32_t *>(tile + to) = pair;
            }
    __syncwarp();
#pragma unroll
    for (unsigned i = 0; i < M * 16 * chunks / 32; i++) {
        unsigned r = i * (32 / chunks) + lane / chunks, chunk = lane % chunks;
        if (first + r < n_rows)
            *zr_access<chunk_t>(matrix + (first + r) * stride + chunk * 8) =
                *zr_access<chunk_t>(tile + chunk_offset<D>(row + r, chunk));
    }
}

/* ---- products of tiles ---------------------------------------------------------------------- */

/* sum += rows of `a` from `row` on, times rows of `b`, over their D channels. */
template <int D, int M, int N>
static __device__ inline void multiply_rows(float (&sum)[M][N / 8][4], const unsigned char *a,
                                            unsigned row, const unsigned char *b) {
    unsigned lane = find_lane();
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t of_a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            zr_ldmatrix<false>(of_a[m],
                               a + chunk_offset<D>(row + m * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t of_b[4];
            zr_ldmatrix<false>(
                of_b, b + chunk_offset<D>(n * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                zr_mma(sum[m][2 * n], of_a[m], of_b[0], of_b[1]);
                zr_mma(sum[m][2 * n + 1], of_a[m], of_b[2], of_b[3]);
            }
        }
    }
}

/* sum += a, rounded to bf16, times the K rows of `b`. */
template <int D, int M, int K>
static __device__ inline void
multiply_columns(float (&sum)[M][D / 8][4], const float (&a)[M][K / 8][4], const unsigned char *b) {
    unsigned lane = find_lane();
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t of_a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                of_a[m][r] = zr_pair_of_bf16(a[m][2 * k + r / 2][r % 2 * 2],
                                             a[m][2 * k + r / 2][r % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t of_b[4];
            zr_ldmatrix<true>(of_b, b + chunk_offset<D>(k * 16 + lane % 16, 2 * n + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++) {
                zr_mma(sum[m][2 * n], of_a[m], of_b[0], of_b[1]);
                zr_mma(sum[m][2 * n + 1], of_a[m], of_b[2], of_b[3]);
            }
        }
    }
}

template <int M, int N> static __device__ inline void clear(float (&value)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                value[m][n][i] = 0;
}

/* Column and row of element i of fragment [m][n], within the warp's part of a tile of scores. */
static __device__ inline int find_column(int n, int i) {
    return n * 8 + (int)(find_lane() % 4) * 2 + i % 2;
}
static __device__ inline int find_row(int m, int i) {
    return m * 16 + (int)(find_lane() / 4) + i / 2 * 8;
}

/* ---- documents and windows ------------------------------------------------------------------ */

/* The first keys that a lane's rows see, if those are queries: behind the warp's first row. */
template <int M> struct first_keys_t { int first[M][2]; };

template <int M>
static __device__ inline first_keys_t<M> find_first_keys(const zr_cuda_attention_t &args,
                                                         const zr_cuda_head_t &head, size_t row) {
    first_keys_t<M> keys;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        size_t query = row + i * 8 + find_lane() / 4;
        keys.first[i / 2][i % 2] =
            (int)((ptrdiff_t)zr_cuda_first_key(args, head, query) - (ptrdiff_t)row);
    }
    return keys;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* Of each row that a lane has a part of: its largest score, and the sum of the lane's exponentials
 * relative to it. */
template <int M> struct softmax_t { float top[M][2], sum[M][2]; };

/* Keys behind their query, where keys begin `ahead` after the warp's rows, are not seen. */
template <int M, int N> static __device__ inline void hide(float (&score)[M][N][4], int ahead) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (find_column(n, i) + ahead > find_row(m, i))
                    score[m][n][i] = -INFINITY;
}

/* Nor are those before the first that the row sees. */
template <int M, int N>
static __device__ inline void hide_first(float (&score)[M][N][4], const first_keys_t<M> &keys,
                                         int ahead) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (find_column(n, i) + ahead < keys.first[m][i / 2])
                    score[m][n][i] = -INFINITY;
}

/* The largest of a row's scores, which four lanes share. */
template <int N> static __device__ inline float find_top(const float (&score)[N][4], int h) {
    float top = -INFINITY;
#pragma unroll
    for (int n = 0; n < N; n++)
        top = fmaxf(top, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
}

/* Scores become exponentials relative to the rows' new largest score; what was summed up relative
 * to the old one is brought to it. `scale` is that of scores, for exponentials of 2. A row sees one
 * key at least, unless HIDES: those of one that has seen none yet become 0. */
template <int D, bool HIDES, int M, int N>
static __device__ inline void update_softmax(softmax_t<M> &softmax, float (&out)[M][D / 8][4],
                                             float (&score)[M][N][4], float scale) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = fmaxf(softmax.top[m][h], find_top<N>(score[m], h));
            float base = HIDES && top == -INFINITY ? 0.0f : top;
            float correction = zr_exp2((softmax.top[m][h] - base) * scale);
            float offset = base * scale, sum = softmax.sum[m][h] * correction;
            softmax.top[m][h] = top;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++) {
                    score[m][n][i] = zr_exp2(fmaf(score[m][n][i], scale, -offset));
                    sum += score[m][n][i];
                }
            softmax.sum[m][h] = sum;
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                out[m][n][2 * h] *= correction;
                out[m][n][2 * h + 1] *= correction;
            }
        }
}

/* log_sum of the warp's rows, and what their sums have to be multiplied with. */
template <int M>
static __device__ inline void finish_softmax(const softmax_t<M> &softmax, float scale,
                                             float *log_sum, size_t first, size_t n_rows,
                                             float (&factor)[M][2]) {
    unsigned lane = find_lane();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float sum = softmax.sum[m][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            factor[m][h] = 1.0f / sum;
            size_t row = first + m * 16 + h * 8 + lane / 4;
            if (lane % 4 == 0 && row < n_rows)
                log_sum[row] = fmaf(softmax.top[m][h], scale, logf(sum));
        }
}

/* One tile of queries. Keys and values have a tile each: while one is used, the other comes. */
template <int D, bool HIDES>
static __device__ inline void attend(const zr_cuda_attention_t &args, const zr_cuda_head_t &head,
                                     size_t first, unsigned char *shared) {
    typedef forward_shape_t<D> shape;
    const int M = shape::M, OWN = shape::OWN, OTHER = shape::OTHER;
    unsigned char *q_tile = shared, *k_tile = q_tile + OWN * D * 2,
                  *v_tile = k_tile + OTHER * D * 2;
    const zr_bf16_t *qkv = static_cast<const zr_bf16_t *>(args.qkv);
    const zr_bf16_t *q = qkv + head.q, *k = qkv + head.k, *v = qkv + head.v;
    size_t stride = head.qkv_stride, seq = args.seq;
    unsigned own_row = find_warp() * 16 * M;
    size_t row = first + own_row, n_keys = first + OWN < seq ? first + OWN : seq;
    size_t begin = 0, warp_first = 0; /* the first key that the block, the warp sees */
    first_keys_t<M> first_keys = {};
    if (HIDES) {
        begin = zr_cuda_first_key(args, head, first) / OTHER * OTHER;
        warp_first = zr_cuda_first_key(args, head, row);
        first_keys = find_first_keys<M>(args, head, row);
    }
    softmax_t<M> softmax;
    float out[M][D / 8][4];
    clear(out);
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        softmax.top[i / 2][i % 2] = -INFINITY;
        softmax.sum[i / 2][i % 2] = 0;
    }
    load_tile<D, OWN>(q_tile, q, stride, first, seq);
    load_tile<D, OTHER>(k_tile, k, stride, begin, seq);
    zr_copy_commit();
    for (size_t key = begin; key < n_keys; key += OTHER) {
        /* Then every row of the warp sees the tile's first key, too, but for what HIDES. */
        bool sees = key <= row && (!HIDES || warp_first < key + OTHER);
        float score[M][OTHER / 8][4];
        zr_copy_wait<0>();
        __syncthreads(); /* the keys are there for all, and nobody reads the last values */
        load_tile<D, OTHER>(v_tile, v, stride, key, seq);
        zr_copy_commit();
        if (sees) {
            clear(score);
            multiply_rows<D, M, OTHER>(score, q_tile, own_row, k_tile);
            if (key + OTHER > row + 1)
                hide(score, (int)((ptrdiff_t)key - (ptrdiff_t)row));
            if (HIDES)
                hide_first(score, first_keys, (int)((ptrdiff_t)key - (ptrdiff_t)row));
            update_softmax<D, HIDES>(softmax, out, score, args.scale * LOG2_E);
        }
        zr_copy_wait<0>();
        __syncthreads(); /* the values are there for all, and nobody reads the keys */
        if (key + OTHER < n_keys)
            load_tile<D, OTHER>(k_tile, k, stride, key + OTHER, seq);
        zr_copy_commit();
        if (sees)
            multiply_columns<D, M, OTHER>(out, score, v_tile);
    }
    float factor[M][2];
    finish_softmax(softmax, args.scale, args.log_sum + head.rows, row, seq, factor);
    store_rows<D, M>(out, factor, q_tile, own_row, static_cast<zr_bf16_t *>(args.out) + head.out,
                     head.out_stride, row, seq);
}

/* The longest tiles of a group of heads first. */
template <int D, bool HIDES>
static __global__ void __launch_bounds__(THREADS, 2)
    attention_mma_kernel(const zr_cuda_attention_t args) {
    ZR_CUDA_SHARED(shared);
    const size_t rows = forward_shape_t<D>::OWN;
    size_t n_tiles = (args.seq + rows - 1) / rows;
    for (size_t item = blockIdx.x; item < n_tiles * args.n_heads; item += gridDim.x) {
        zr_cuda_item_t at = zr_cuda_find_item(args, false, n_tiles, item);
        zr_cuda_head_t head = zr_cuda_find_head(args, at.head);
        attend<D, HIDES>(args, head, (n_tiles - 1 - at.tile) * rows, shared);
        __syncthreads(); /* the tiles are written again */
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/*
 * One block's view of a head. By queries, its own rows are those of q and dout, and it goes through
 * k and v; by keys, its own are k and v, and it goes through q and dout. Scores are own[0] times
 * other[0], the gradients of probabilities own[1] times other[1].
 */
struct sides_t {
    const zr_bf16_t *own[2], *other[2];
    size_t own_stride[2], other_stride[2];
    const float *log_sum, *delta;
};

template <bool BY_KEYS>
static __device__ inline sides_t find_sides(const zr_cuda_attention_t &args,
                                            const zr_cuda_head_t &head) {
    const zr_bf16_t *qkv = static_cast<const zr_bf16_t *>(args.qkv);
    const zr_bf16_t *q = qkv + head.q, *k = qkv + head.k, *v = qkv + head.v;
    const zr_bf16_t *dout = static_cast<const zr_bf16_t *>(args.dout) + head.out;
    size_t stride = head.qkv_stride, dout_stride = head.out_stride;
    const float *log_sum = args.log_sum + head.rows, *delta = args.delta + head.rows;
    if (BY_KEYS)
        return {{k, v}, {q, dout}, {stride, stride}, {stride, dout_stride}, log_sum, delta};
    return {{q, dout}, {k, v}, {stride, dout_stride}, {stride, stride}, log_sum, delta};
}

/* What a softmax's row needs to be differentiated: by keys, of the queries of a stage, which are
 * columns there; by queries, of the lane's own rows. */
template <int M> struct row_stats_t { float log_sum[M][2], delta[M][2]; };

template <int M>
static __device__ inline row_stats_t<M> load_row_stats(const sides_t &sides, size_t row,
                                                       size_t n_rows) {
    row_stats_t<M> stats;
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        size_t at = row + i * 8 + find_lane() / 4;
        stats.log_sum[i / 2][i % 2] = at < n_rows ? sides.log_sum[at] : 0;
        stats.delta[i / 2][i % 2] = at < n_rows ? sides.delta[at] : 0;
    }
    return stats;
}

/*
 * Scores become probabilities, dscore (gradients of those) the scores' gradients but for their
 * scale. Tiles begin `ahead` after the warp's rows. `columns`: a stage's log_sum and delta.
 * Rows beyond the sequence are zeros in every tile, so that what they get is finite and adds
 * nothing.
 */
template <bool BY_KEYS, int M, int N>
static __device__ inline void differentiate(float (&score)[M][N][4], float (&dscore)[M][N][4],
                                            const row_stats_t<M> &rows, const float *columns,
                                            float scale, bool is_cut, int ahead) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = find_column(n, i);
#pragma unroll
            for (int m = 0; m < M; m++) {
                float log_sum = BY_KEYS ? columns[column] : rows.log_sum[m][i / 2];
                float delta = BY_KEYS ? columns[N * 8 + column] : rows.delta[m][i / 2];
                int distance = column + ahead - find_row(m, i); /* of own and other position */
                bool is_hidden = is_cut && (BY_KEYS ? distance < 0 : distance > 0);
                float p = zr_exp2(fmaf(score[m][n][i], scale, -log_sum * LOG2_E));
                p = is_hidden ? 0.0f : p;
                score[m][n][i] = p;
                dscore[m][n][i] = p * (dscore[m][n][i] - delta);
            }
        }
}

/* The pairs of a stage whose key is before the first that the query sees add nothing, either: both
 * of their numbers become 0. By queries, `rows` are the warp's; by keys, queries are columns. */
template <bool BY_KEYS, int M, int N>
static __device__ inline void
hide_pairs(float (&score)[M][N][4], float (&dscore)[M][N][4], const zr_cuda_attention_t &args,
           const zr_cuda_head_t &head, const first_keys_t<M> &rows, size_t row, ptrdiff_t ahead) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = find_column(n, i), first = 0;
            if (BY_KEYS) {
                size_t query = (size_t)((ptrdiff_t)row + ahead + column);
                first = (int)((ptrdiff_t)zr_cuda_first_key(args, head, query) - (ptrdiff_t)row);
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                bool is_hidden =
                    BY_KEYS ? find_row(m, i) < first : column + (int)ahead < rows.first[m][i / 2];
                score[m][n][i] = is_hidden ? 0.0f : score[m][n][i];
                dscore[m][n][i] = is_hidden ? 0.0f : dscore[m][n][i];
            }
        }
}

/* A stage: tiles of both of the other side's matrices and, by keys, the queries' numbers. */
template <int D, bool BY_KEYS>
static __device__ inline void load_stage(unsigned char *stage, const sides_t &sides, size_t first,
                                         size_t n_rows) {
    const int OTHER = backward_shape_t<D>::OTHER;
    load_tile<D, OTHER>(stage, sides.other[0], sides.other_stride[0], first, n_rows);
    load_tile<D, OTHER>(stage + OTHER * D * 2, sides.other[1], sides.other_stride[1], first,
                        n_rows);
    if (BY_KEYS) {
        unsigned char *numbers = stage + 2 * OTHER * D * 2;
        load_floats<OTHER>(numbers, sides.log_sum, first, n_rows);
        load_floats<OTHER>(numbers + OTHER * 4, sides.delta, first, n_rows);
    }
    zr_copy_commit();
}

/* The gradients of a warp's own rows: of own[0] and, by keys, of own[1]. */
template <int D, bool BY_KEYS> struct gradients_t {
    static const int M = backward_shape_t<D>::M;
    float first[M][D / 8][4];
    float second[BY_KEYS ? M : 1][D / 8][4];
};

/* A warp's own rows, those of the heads that go through them. */
template <int D> struct own_rows_t {
    static const int M = backward_shape_t<D>::M;
    unsigned in_tile; /* the first of them */
    size_t row;       /* the same in the sequence */
    row_stats_t<M> stats;
    first_keys_t<M> first_keys;
};

/* What one stage adds to the gradients of a warp's rows. */
template <int D, bool BY_KEYS, bool HIDES>
static __device__ inline void add_stage(gradients_t<D, BY_KEYS> &gradients,
                                        const zr_cuda_attention_t &args, const zr_cuda_head_t &head,
                                        const unsigned char *own, const own_rows_t<D> &rows,
                                        const unsigned char *stage, ptrdiff_t ahead) {
    typedef backward_shape_t<D> shape;
    const int M = shape::M, OTHER = shape::OTHER;
    const unsigned char *other = stage + OTHER * D * 2;
    float score[M][OTHER / 8][4], dscore[M][OTHER / 8][4];
    clear(score);
    multiply_rows<D, M, OTHER>(score, own, rows.in_tile, stage);
    clear(dscore);
    multiply_rows<D, M, OTHER>(dscore, own + shape::OWN * D * 2, rows.in_tile, other);
    bool is_cut = BY_KEYS ? ahead < 16 * M - 1 : ahead + OTHER > 1;
    differentiate<BY_KEYS>(score, dscore, rows.stats,
                           reinterpret_cast<const float *>(stage + 2 * OTHER * D * 2),
                           args.scale * LOG2_E, is_cut, (int)ahead);
    if (HIDES)
        hide_pairs<BY_KEYS>(score, dscore, args, head, rows.first_keys, rows.row, ahead);
    if constexpr (BY_KEYS)
        multiply_columns<D, M, OTHER>(gradients.second, score, other);
    multiply_columns<D, M, OTHER>(gradients.first, dscore, stage);
}

/* Whether a warp's rows meet any of a stage that is `ahead` of them. */
template <int D, bool BY_KEYS, bool HIDES>
static __device__ inline bool meets_stage(const zr_cuda_attention_t &args,
                                          const zr_cuda_head_t &head, size_t row, ptrdiff_t ahead) {
    const int N_OWN = 16 * backward_shape_t<D>::M, OTHER = backward_shape_t<D>::OTHER;
    if (BY_KEYS ? ahead + OTHER <= 0 : ahead >= N_OWN)
        return false;
    if (!HIDES)
        return true;
    size_t other = (size_t)((ptrdiff_t)row + ahead);
    return BY_KEYS ? zr_cuda_first_key(args, head, other) < row + N_OWN
                   : zr_cuda_first_key(args, head, row) < other + OTHER;
}

/* What a head of queries adds to the gradients of a tile of own rows, which begins at `first`.
 * Stages come in turn into two buffers. */
template <int D, bool BY_KEYS, bool HIDES>
static __device__ inline void add_head(gradients_t<D, BY_KEYS> &gradients,
                                       const zr_cuda_attention_t &args, const zr_cuda_head_t &head,
                                       size_t first, const unsigned char *own,
                                       unsigned char *stages, unsigned &turn) {
    typedef backward_shape_t<D> shape;
    const int M = shape::M, OWN = shape::OWN, OTHER = shape::OTHER;
    sides_t sides = find_sides<BY_KEYS>(args, head);
    size_t seq = args.seq, end = BY_KEYS || first + OWN > seq ? seq : first + OWN;
    size_t other = BY_KEYS ? first : 0; /* OWN is a multiple of OTHER */
    own_rows_t<D> rows = {};
    rows.in_tile = find_warp() * 16 * M;
    rows.row = first + rows.in_tile;
    if (!BY_KEYS)
        rows.stats = load_row_stats<M>(sides, rows.row, seq);
    if (HIDES && BY_KEYS)
        end = zr_cuda_find_end(args, head, first, OTHER, first + OWN);
    if (HIDES && !BY_KEYS) {
        other = zr_cuda_first_key(args, head, first) / OTHER * OTHER;
        rows.first_keys = find_first_keys<M>(args, head, rows.row);
    }
    load_stage<D, BY_KEYS>(stages + turn * shape::STAGE_BYTES, sides, other, seq);
    for (; other < end; other += OTHER, turn ^= 1) {
        zr_copy_wait<0>();
        __syncthreads(); /* the stage is there for all, and nobody reads the last one */
        if (other + OTHER < end)
            load_stage<D, BY_KEYS>(stages + (turn ^ 1) * shape::STAGE_BYTES, sides, other + OTHER,
                                   seq);
        ptrdiff_t ahead = (ptrdiff_t)other - (ptrdiff_t)rows.row;
        if (meets_stage<D, BY_KEYS, HIDES>(args, head, rows.row, ahead))
            add_stage<D, BY_KEYS, HIDES>(gradients, args, head, own, rows,
                                         stages + turn * shape::STAGE_BYTES, ahead);
    }
}

/* One tile of own rows: `first` is its first. `index`: of the head, by keys among those of keys.
 * GROUPS: by keys, several heads of queries may go with one of keys. */
template <int D, bool BY_KEYS, bool GROUPS, bool HIDES>
static __device__ inline void differentiate_rows(const zr_cuda_attention_t &args, size_t index,
                                                 size_t first, unsigned char *shared) {
    typedef backward_shape_t<D> shape;
    const int M = shape::M, OWN = shape::OWN;
    const size_t n_group = GROUPS ? args.heads / args.kv_heads : 1;
    zr_cuda_head_t head = zr_cuda_find_head(args, index * n_group);
    unsigned char *stages = shared + 2 * OWN * D * 2;
    unsigned own_row = find_warp() * 16 * M, turn = 0;
    size_t row = first + own_row;
    gradients_t<D, BY_KEYS> gradients;
    clear(gradients.first);
    clear(gradients.second);
    sides_t sides = find_sides<BY_KEYS>(args, head);
    load_tile<D, OWN>(shared, sides.own[0], sides.own_stride[0], first, args.seq);
    load_tile<D, OWN>(shared + OWN * D * 2, sides.own[1], sides.own_stride[1], first, args.seq);
    for (size_t h = 0; h < n_group; h++) {
        if (GROUPS)
            head = zr_cuda_find_head(args, index * n_group + h);
        add_head<D, BY_KEYS, HIDES>(gradients, args, head, first, shared, stages, turn);
    }
    float factor[M][2], one[M][2];
#pragma unroll
    for (int i = 0; i < 2 * M; i++) {
        factor[i / 2][i % 2] = args.scale;
        one[i / 2][i % 2] = 1.0f;
    }
    zr_bf16_t *dqkv = static_cast<zr_bf16_t *>(args.dqkv);
    store_rows<D, M>(gradients.first, factor, shared, own_row, dqkv + (BY_KEYS ? head.k : head.q),
                     head.qkv_stride, row, args.seq);
    if constexpr (BY_KEYS)
        store_rows<D, M>(gradients.second, one, shared + OWN * D * 2, own_row, dqkv + head.v,
                         head.qkv_stride, row, args.seq);
}

/* The longest tiles of a group of heads first: the last queries, the first keys. */
template <int D, bool BY_KEYS, bool GROUPS, bool HIDES>
static __global__ void __launch_bounds__(THREADS, 2)
    attention_mma_backward_kernel(const zr_cuda_attention_t args) {
    ZR_CUDA_SHARED(shared);
    const size_t rows = backward_shape_t<D>::OWN;
    size_t n_tiles = (args.seq + rows - 1) / rows;
    size_t n_heads = BY_KEYS ? args.n_kv_heads : args.n_heads;
    for (size_t item = blockIdx.x; item < n_tiles * n_heads; item += gridDim.x) {
        zr_cuda_item_t at = zr_cuda_find_item(args, BY_KEYS, n_tiles, item);
        differentiate_rows<D, BY_KEYS, GROUPS, HIDES>(
            args, at.head, (BY_KEYS ? at.tile : n_tiles - 1 - at.tile) * rows, shared);
        __syncthreads(); /* the tiles are written again */
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

static zr_status_t launch(zr_stream_t *stream, void (*kernel)(const zr_cuda_attention_t),
                          const zr_cuda_attention_t &args, size_t n_heads, size_t rows,
                          size_t shared_bytes, const char *name) {
    ZR_TRY(zr_cuda_allow_shared(stream, kernel, shared_bytes, name));
    ZR_CUDA_LAUNCH(kernel, zr_cuda_attention_blocks(args, n_heads, rows), THREADS, shared_bytes,
                   zr_cuda_queue(stream), args);
    return zr_cuda_launched(stream, name);
}

static bool hides(const zr_cuda_attention_t &args) {
    return args.document_starts != NULL || args.window != 0;
}

template <int D>
static zr_status_t launch_forward(zr_stream_t *stream, const zr_cuda_attention_t &args) {
    typedef forward_shape_t<D> shape;
    return launch(stream,
                  hides(args) ? attention_mma_kernel<D, true> : attention_mma_kernel<D, false>,
                  args, args.n_heads, shape::OWN, shape::SHARED_BYTES, "attention");
}

/* Which kernels of the backward pass, by whether they have GROUPS and HIDES. */
template <int D, bool GROUPS, bool HIDES>
static zr_status_t launch_backward(zr_stream_t *stream, const zr_cuda_attention_t &args) {
    typedef backward_shape_t<D> shape;
    ZR_TRY(launch(stream, attention_mma_backward_kernel<D, true, GROUPS, HIDES>, args,
                  args.n_kv_heads, shape::OWN, shape::SHARED_BYTES, "attention_backward (keys)"));
    return launch(stream, attention_mma_backward_kernel<D, false, false, HIDES>, args, args.n_heads,
                  shape::OWN, shape::SHARED_BYTES, "attention_backward (queries)");
}

template <int D>
static zr_status_t choose_backward(zr_stream_t *stream, const zr_cuda_attention_t &args) {
    if (hides(args))
        return launch_backward<D, true, true>(stream, args);
    return args.heads > args.kv_heads ? launch_backward<D, true, false>(stream, args)
                                      : launch_backward<D, false, false>(stream, args);
}

zr_status_t zr_cuda_attention_mma(zr_stream_t *stream, const zr_cuda_attention_t &args) {
    return args.head_size == 64 ? launch_forward<64>(stream, args)
                                : launch_forward<128>(stream, args);
}

zr_status_t zr_cuda_attention_mma_backward(zr_stream_t *stream, const zr_cuda_attention_t &args) {
    return args.head_size == 64 ? choose_backward<64>(stream, args)
                                : choose_backward<128>(stream, args);
}
