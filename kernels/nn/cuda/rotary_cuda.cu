/*
 * Rotary positions on CUDA, with the normalisation of queries and keys that goes before them. A
 * warp has a token: the angles of a lane's pairs are computed once for all heads. A lane has four
 * pairs of one head, channels i and i + head_size / 2; heads that are shorter than a warp are gone
 * through several at a time, beside each other.
 *
 * Backward, a warp has a part of the tokens, and its lanes keep the sums for the weights'
 * gradients.
 */
#include "kernels/nn/cuda/rows_cuda.cuh"
#include "kernels/nn/nn_math.h"

#define QUAD 4
#define MAX_PAIRS (ZR_NN_ROTARY_MAX_HEAD_SIZE / 2)
static_assert(QUAD * ZR_WARP >= MAX_PAIRS, "a warp has all pairs of a head");

/* A kernel's argument. Shapes are those of nn.h; what a kernel does not use is NULL. */
struct rotary_t {
    size_t n_tokens, seq, heads, kv_heads, head_size;
    const void *qkv, *weights[2]; /* of queries, of keys */
    void *out;                    /* backward: the gradient */
    const int32_t *document_starts;
    float *rstd;
    float epsilon;
    bool is_turned, wide;
    unsigned lanes;  /* of a head: a power of 2 */
    size_t part;     /* tokens of a warp at a time */
    float *partials; /* backward, of each part: [2, head_size]; NULL: nobody wants them */
    float frequencies[MAX_PAIRS];
};

/* Four pairs of a head's channels. */
struct pairs_t {
    float first[QUAD], second[QUAD];
};

/* What a lane has of every head: pairs [pair, pair + n), n <= 4. */
struct lane_t {
    size_t pair, second; /* second: how far apart the channels of a pair are */
    int n;
    unsigned head, n_heads; /* the first of its heads, and how many the warp has at a time */
};

static __device__ inline lane_t find_lane(const rotary_t &args) {
    lane_t lane;
    lane.second = args.head_size / 2;
    lane.pair = zr_lane() % args.lanes * QUAD;
    lane.n = lane.pair >= lane.second ? 0 : (int)(lane.second - lane.pair);
    lane.n = lane.n < QUAD ? lane.n : QUAD;
    lane.head = zr_lane() / args.lanes;
    lane.n_heads = ZR_WARP / args.lanes;
    return lane;
}

template <typename T>
static __device__ inline void load_quad(const T *x, int n, bool wide, float (&value)[QUAD]) {
    if (wide && n == QUAD) {
        zr_load_words<QUAD>(x, value);
        return;
    }
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        value[i] = i < n ? zr_widen(x[i]) : 0.0f;
}

template <typename T>
static __device__ inline void store_quad(T *x, int n, bool wide, const float (&value)[QUAD]) {
    if (wide && n == QUAD) {
        zr_store_words<QUAD>(x, value);
        return;
    }
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        if (i < n)
            zr_narrow(value[i], &x[i]);
}

/* The lane's pairs of a head; zeros where `is_there` is false, and where it has none. */
template <typename T>
static __device__ inline pairs_t load_pairs(const void *matrix, size_t at, const lane_t &lane,
                                            bool is_there, bool wide) {
    const T *x = static_cast<const T *>(matrix) + at + lane.pair;
    pairs_t pairs;
    load_quad(x, is_there ? lane.n : 0, wide, pairs.first);
    load_quad(x + lane.second, is_there ? lane.n : 0, wide, pairs.second);
    return pairs;
}

template <typename T>
static __device__ inline void store_pairs(void *matrix, size_t at, const lane_t &lane, bool wide,
                                          const pairs_t &pairs) {
    T *x = static_cast<T *>(matrix) + at + lane.pair;
    store_quad(x, lane.n, wide, pairs.first);
    store_quad(x + lane.second, lane.n, wide, pairs.second);
}

/* Cosines (first) and sines (second) of the token's angles, for the lane's pairs. */
static __device__ inline pairs_t find_angles(const rotary_t &args, const lane_t &lane,
                                             size_t token) {
    int32_t position = (int32_t)(token % args.seq);
    if (args.document_starts != NULL)
        position -= args.document_starts[token];
    pairs_t angles;
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        float frequency = i < lane.n ? args.frequencies[lane.pair + i] : 0.0f;
        zr_nn_cosine_and_sine(zr_nn_rotary_angle(position, frequency), &angles.first[i],
                              &angles.second[i]);
    }
    return angles;
}

static __device__ inline void turn(pairs_t &pairs, const pairs_t &angles, bool is_opposite) {
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        zr_nn_rotate(&pairs.first[i], &pairs.second[i], angles.first[i],
                     is_opposite ? -angles.second[i] : angles.second[i]);
}

/* The sum over the lanes of a head. */
static __device__ inline float sum_over_head(const rotary_t &args, float value) {
    for (unsigned by = args.lanes / 2; by > 0; by /= 2)
        value += __shfl_xor_sync(ZR_ALL_LANES, value, by);
    return value;
}

static __device__ inline float sum_products(const pairs_t &a, const pairs_t &b) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        sum += a.first[i] * b.first[i] + a.second[i] * b.second[i];
    return sum;
}

/* ---- forward -------------------------------------------------------------------------------- */

/* x becomes x rstd weight. All lanes come here; those without the head have zeros. */
template <typename T>
static __device__ inline void normalise(const rotary_t &args, const lane_t &lane, size_t token,
                                        size_t h, bool is_there, pairs_t &x) {
    float square = sum_over_head(args, sum_products(x, x));
    float rstd = 1.0f / sqrtf(square / static_cast<float>(args.head_size) + args.epsilon);
    pairs_t weight = load_pairs<T>(args.weights[h >= args.heads], 0, lane, is_there, false);
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        x.first[i] = zr_nn_normalised(x.first[i], 0.0f, rstd) * weight.first[i];
        x.second[i] = zr_nn_normalised(x.second[i], 0.0f, rstd) * weight.second[i];
    }
    if (is_there && lane.pair == 0)
        args.rstd[token * (args.heads + args.kv_heads) + h] = rstd;
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS) rotary_kernel(const rotary_t args) {
    const lane_t lane = find_lane(args);
    const size_t n_turned = args.heads + args.kv_heads, row_heads = n_turned + args.kv_heads;
    const size_t n_heads = args.qkv == args.out ? n_turned : row_heads; /* values are copied */
    for (size_t token = zr_warp_index(); token < args.n_tokens; token += zr_warp_count()) {
        pairs_t angles = {};
        if (args.is_turned)
            angles = find_angles(args, lane, token);
        for (size_t first = 0; first < n_heads; first += lane.n_heads) {
            size_t h = first + lane.head, at = (token * row_heads + h) * args.head_size;
            bool is_there = h < n_heads, is_value = h >= n_turned;
            pairs_t x = load_pairs<T>(args.qkv, at, lane, is_there, args.wide);
            if (args.weights[0] != NULL && first < n_turned) {
                pairs_t normal = x;
                normalise<T>(args, lane, token, h, is_there && !is_value, normal);
                x = is_value ? x : normal;
            }
            if (args.is_turned && !is_value)
                turn(x, angles, false);
            if (is_there)
                store_pairs<T>(args.out, at, lane, args.wide, x);
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------- */

/* The gradient of what was normalised, from that of what it became; what it adds to the weights' is
 * in `sum`. All lanes come here; those without the head have zeros. */
template <typename T>
static __device__ inline void normalise_backward(const rotary_t &args, const lane_t &lane,
                                                 size_t token, size_t h, bool is_there,
                                                 pairs_t (&sums)[2], pairs_t &dy) {
    const size_t n_turned = args.heads + args.kv_heads, row_heads = n_turned + args.kv_heads;
    bool is_key = h >= args.heads;
    float rstd = is_there ? args.rstd[token * n_turned + h] : 0.0f;
    pairs_t x = load_pairs<T>(args.qkv, (token * row_heads + h) * args.head_size, lane, is_there,
                              args.wide);
    pairs_t d = load_pairs<T>(args.weights[is_key], 0, lane, is_there, false);
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        x.first[i] = zr_nn_normalised(x.first[i], 0.0f, rstd);
        x.second[i] = zr_nn_normalised(x.second[i], 0.0f, rstd);
        float of_first = dy.first[i] * x.first[i], of_second = dy.second[i] * x.second[i];
        sums[0].first[i] += is_key ? 0.0f : of_first;
        sums[0].second[i] += is_key ? 0.0f : of_second;
        sums[1].first[i] += is_key ? of_first : 0.0f;
        sums[1].second[i] += is_key ? of_second : 0.0f;
        d.first[i] *= dy.first[i];
        d.second[i] *= dy.second[i];
    }
    float average = sum_over_head(args, sum_products(d, x)) / static_cast<float>(args.head_size);
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        dy.first[i] = zr_nn_normalise_slope(d.first[i], x.first[i], rstd, 0.0f, average);
        dy.second[i] = zr_nn_normalise_slope(d.second[i], x.second[i], rstd, 0.0f, average);
    }
}

/* Of a part of the tokens, from all lanes that have the same pairs of some heads. */
static __device__ inline void store_sums(const rotary_t &args, const lane_t &lane, size_t part,
                                         pairs_t (&sums)[2]) {
#pragma unroll
    for (int which = 0; which < 2; which++) {
        for (unsigned by = args.lanes; by < ZR_WARP; by *= 2) {
#pragma unroll
            for (int i = 0; i < QUAD; i++) {
                sums[which].first[i] += __shfl_xor_sync(ZR_ALL_LANES, sums[which].first[i], by);
                sums[which].second[i] += __shfl_xor_sync(ZR_ALL_LANES, sums[which].second[i], by);
            }
        }
        if (lane.head == 0)
            store_pairs<float>(args.partials, (part * 2 + which) * args.head_size, lane, false,
                               sums[which]);
    }
}

template <typename T>
static __global__ void __launch_bounds__(ZR_CUDA_THREADS)
    rotary_backward_kernel(const rotary_t args) {
    const lane_t lane = find_lane(args);
    const size_t n_turned = args.heads + args.kv_heads, row_heads = n_turned + args.kv_heads;
    const size_t n_parts = (args.n_tokens + args.part - 1) / args.part;
    for (size_t part = zr_warp_index(); part < n_parts; part += zr_warp_count()) {
        size_t begin = part * args.part, left = args.n_tokens - begin;
        size_t end = begin + (left < args.part ? left : args.part);
        pairs_t sums[2] = {};
        for (size_t token = begin; token < end; token++) {
            pairs_t angles = {};
            if (args.is_turned)
                angles = find_angles(args, lane, token);
            for (size_t first = 0; first < n_turned; first += lane.n_heads) {
                size_t h = first + lane.head, at = (token * row_heads + h) * args.head_size;
                bool is_there = h < n_turned;
                pairs_t dy = load_pairs<T>(args.out, at, lane, is_there, args.wide);
                if (args.is_turned)
                    turn(dy, angles, true);
                if (args.weights[0] != NULL)
                    normalise_backward<T>(args, lane, token, h, is_there, sums, dy);
                if (is_there)
                    store_pairs<T>(args.out, at, lane, args.wide, dy);
            }
        }
        if (args.partials != NULL)
            store_sums(args, lane, part, sums);
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

static bool are_quads(const void *data, size_t head_size) {
    return zr_is_wide(data) && head_size % (2 * QUAD) == 0;
}

static rotary_t own_args(const zr_nn_qkv_shape_t *shape, const float *frequencies) {
    rotary_t own = {};
    own.n_tokens = shape->batch * shape->seq;
    own.seq = shape->seq;
    own.heads = shape->heads;
    own.kv_heads = shape->kv_heads;
    own.head_size = shape->head_size;
    own.document_starts = shape->document_starts;
    own.is_turned = frequencies != NULL;
    for (size_t i = 0; own.is_turned && i < own.head_size / 2; i++)
        own.frequencies[i] = frequencies[i];
    for (own.lanes = 1; own.lanes * 2 * QUAD < own.head_size;)
        own.lanes *= 2;
    return own;
}

zr_status_t zr_cuda_nn_rotary(zr_stream_t *stream, const void *arguments, void *workspace) {
    const zr_nn_rotary_t *args = static_cast<const zr_nn_rotary_t *>(arguments);
    (void)workspace;
    const char *name = "rotary";
    if (args->q_weight != NULL)
        ZR_TRY(zr_cuda_nn_check_dtypes(stream, name, args->activation_dtype, args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    rotary_t own = own_args(&args->shape, args->frequencies);
    own.qkv = args->qkv;
    own.weights[0] = args->q_weight;
    own.weights[1] = args->k_weight;
    own.out = args->out;
    own.rstd = args->rstd;
    own.epsilon = args->epsilon;
    own.wide = are_quads(args->qkv, args->shape.head_size) && zr_is_wide(args->out);
    unsigned blocks = zr_blocks_for_warps(own.n_tokens);
    zr_by_dtype(args->activation_dtype, [&](auto element) {
        ZR_CUDA_LAUNCH((rotary_kernel<decltype(element)>), blocks, ZR_CUDA_THREADS, 0,
                       zr_cuda_queue(stream), own);
    });
    return zr_cuda_launched(stream, name);
}

static zr_status_t sum_parts(zr_stream_t *stream, const zr_nn_rotary_backward_t *args,
                             const float *partials, size_t n_parts) {
    const zr_nn_gradient_t *gradients[2] = {&args->dq_weight, &args->dk_weight};
    for (int i = 0; i < 2; i++) {
        zr_column_sums_t sums = {partials == NULL ? NULL : partials + i * args->shape.head_size,
                                 n_parts, 2 * args->shape.head_size, args->shape.head_size};
        if (gradients[i]->data != NULL)
            ZR_TRY(zr_cuda_nn_sum_partials(stream, &sums, gradients[i], args->param_dtype,
                                           "rotary_backward (weights)"));
    }
    return ZR_OK;
}

zr_status_t zr_cuda_nn_rotary_backward(zr_stream_t *stream, const void *arguments,
                                       void *workspace) {
    const zr_nn_rotary_backward_t *args = static_cast<const zr_nn_rotary_backward_t *>(arguments);
    const char *name = "rotary_backward";
    if (args->q_weight != NULL)
        ZR_TRY(zr_cuda_nn_check_dtypes(stream, name, args->activation_dtype, args->param_dtype));
    ZR_TRY(zr_cuda_enter(stream->device));
    bool is_wanted = args->dq_weight.data != NULL || args->dk_weight.data != NULL;
    rotary_t own = own_args(&args->shape, args->frequencies);
    own.qkv = args->qkv;
    own.weights[0] = args->q_weight;
    own.weights[1] = args->k_weight;
    own.out = args->dqkv;
    own.rstd = const_cast<float *>(args->rstd); /* read only */
    own.wide = are_quads(args->dqkv, args->shape.head_size) && zr_is_wide(args->qkv);
    own.part = zr_cuda_rotary_part(own.n_tokens);
    own.partials = is_wanted ? static_cast<float *>(workspace) : NULL;
    size_t n_parts = own.n_tokens == 0 ? 0 : (own.n_tokens + own.part - 1) / own.part;
    unsigned blocks = zr_blocks_for_warps(n_parts);
    if (n_parts > 0) {
        zr_by_dtype(args->activation_dtype, [&](auto element) {
            ZR_CUDA_LAUNCH((rotary_backward_kernel<decltype(element)>), blocks, ZR_CUDA_THREADS, 0,
                           zr_cuda_queue(stream), own);
        });
        ZR_TRY(zr_cuda_launched(stream, name));
    }
    return sum_parts(stream, args, own.partials, n_parts);
}
