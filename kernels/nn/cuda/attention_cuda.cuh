/*
 * Causal attention on CUDA: what its files share.
 *
 *   attention_cuda.cu         entries of the table, and what is common to both ways
 *   attention_mma_cuda.cu     bf16 with heads of 64 or 128: tiles on tensor cores
 *   attention_plain_cuda.cu   all other heads up to 256, and fp32
 *
 * The backward pass of both ways is one kernel, run twice: over blocks of queries, for dq, and over
 * blocks of keys, for dk and dv. Each computes the scores it needs again. So every element of dqkv
 * is one thread's sum over tiles in their order, and no two blocks ever add to the same one. A head
 * of keys that several of queries go with has their tiles one after another.
 */
#ifndef ZR_KERNELS_NN_CUDA_ATTENTION_CUDA_CUH
#define ZR_KERNELS_NN_CUDA_ATTENTION_CUDA_CUH

#include "kernels/cuda/cuda_launch.cuh"

#define ZR_ATTENTION_MAX_HEAD_SIZE 256

/* A kernel's argument. Shapes are those of nn.h; what a kernel does not use is NULL. */
struct zr_cuda_attention_t {
    size_t seq, heads, kv_heads, head_size, window;
    size_t n_heads, n_kv_heads; /* of all sequences */
    size_t n_cached_heads;      /* whose two matrices of rows fit a quarter of the L2; at least 1 */
    const int32_t *document_starts;
    const void *qkv;
    void *out; /* written by the forward pass */
    const void *dout;
    void *dqkv;
    float *log_sum; /* [n_heads, seq]; written by the forward pass */
    float *delta;   /* [n_heads, seq]: the sum of dout * out over a head's row */
    float scale;    /* of scores */
};

/* Where one head of one sequence begins, in elements; its rows are a stride apart. */
struct zr_cuda_head_t {
    size_t q, k, v, qkv_stride;
    size_t out, out_stride;
    size_t rows;     /* in log_sum and delta */
    size_t sequence; /* in document_starts */
};

static __device__ inline zr_cuda_head_t zr_cuda_find_head(const zr_cuda_attention_t &args,
                                                          size_t index) {
    size_t sequence = index / args.heads, h = index % args.heads;
    zr_cuda_head_t head;
    size_t of_keys = h / (args.heads / args.kv_heads);
    head.out_stride = args.heads * args.head_size;
    head.qkv_stride = (args.heads + 2 * args.kv_heads) * args.head_size;
    head.sequence = sequence * args.seq;
    head.out = head.sequence * head.out_stride + h * args.head_size;
    head.q = head.sequence * head.qkv_stride + h * args.head_size;
    head.k = head.sequence * head.qkv_stride + (args.heads + of_keys) * args.head_size;
    head.v = head.k + args.kv_heads * args.head_size;
    head.rows = index * args.seq;
    return head;
}

/* The first key that a query sees, 0 beyond the sequence; it does not go back from query to query.
 */
static __device__ inline size_t zr_cuda_first_key(const zr_cuda_attention_t &args,
                                                  const zr_cuda_head_t &head, size_t query) {
    size_t first = 0;
    if (query >= args.seq)
        return 0;
    if (args.document_starts != NULL)
        first = (size_t)args.document_starts[head.sequence + query];
    if (args.window != 0 && query + 1 > args.window && query + 1 - args.window > first)
        first = query + 1 - args.window;
    return first;
}

/* Where the queries end that see a key before `last`: they come in steps from `first` on. */
static __device__ inline size_t zr_cuda_find_end(const zr_cuda_attention_t &args,
                                                 const zr_cuda_head_t &head, size_t first,
                                                 size_t step, size_t last) {
    size_t end = first + step;
    if (args.document_starts == NULL && args.window == 0)
        return args.seq;
    while (end < args.seq && zr_cuda_first_key(args, head, end) < last)
        end += step;
    return end < args.seq ? end : args.seq;
}

/* One tile of own rows, as blocks take them. */
struct zr_cuda_item_t { size_t head, tile; };

/*
 * The order of items: all tiles of a group of heads, then the next group, so that blocks that run
 * at the same time read the same rows of the other side from the L2. Within a group tile 0 of all
 * its heads is first. By keys, heads are those of keys, which read their queries' rows.
 */
static __host__ __device__ inline zr_cuda_item_t
zr_cuda_find_item(const zr_cuda_attention_t &args, bool by_keys, size_t n_tiles, size_t item) {
    size_t n_shared = args.heads / args.kv_heads, n_heads = by_keys ? args.n_kv_heads : args.n_heads;
    size_t n_group = by_keys ? args.n_cached_heads / n_shared : args.n_cached_heads * n_shared;
    n_group = n_group == 0 ? 1 : n_group;
    size_t first = item / (n_group * n_tiles) * n_group, rest = item - first * n_tiles;
    n_group = n_heads - first < n_group ? n_heads - first : n_group; /* the last has fewer */
    return {first + rest % n_group, rest / n_group};
}

/*
 * Blocks that share the work of all heads, each taking `rows` rows at a time; the grid goes round
 * where there are more.
 */
static inline unsigned zr_cuda_attention_blocks(const zr_cuda_attention_t &args, size_t n_heads,
                                                size_t rows) {
    size_t n_items = (args.seq + rows - 1) / rows * n_heads;
    return n_items < ZR_CUDA_MAX_BLOCKS ? (unsigned)n_items : ZR_CUDA_MAX_BLOCKS;
}

extern "C" {
/* The launches; the backward ones need args.delta. */
zr_status_t zr_cuda_attention_mma(zr_stream_t *stream, const zr_cuda_attention_t &args);
zr_status_t zr_cuda_attention_mma_backward(zr_stream_t *stream, const zr_cuda_attention_t &args);
zr_status_t zr_cuda_attention_plain(zr_stream_t *stream, const zr_cuda_attention_t &args,
                                    zr_dtype_t dtype);
zr_status_t zr_cuda_attention_plain_backward(zr_stream_t *stream, const zr_cuda_attention_t &args,
                                             zr_dtype_t dtype);
}

#endif
