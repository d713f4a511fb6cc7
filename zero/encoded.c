/* See encoded_internal.h. */
#include "zero/encoded_internal.h"

/* Elements that are added in fp32 at once: kernels of fewer would be too many, for each rank of
 * thousands two. */
#define CHUNK_ELEMS ((size_t)1 << 20)

static zr_message_t message_of(const zr_encoded_t *encoded) {
    const zr_encoding_t *own = zr_base_encoding(encoded->base);
    return (zr_message_t){.tensor = encoded->tensor,
                          .encoding = encoded->encoding != NULL ? encoded->encoding : own,
                          .traffic = ZR_TRAFFIC_MODEL};
}

static zr_status_t take(const zr_encoded_t *encoded, size_t size_bytes, void **pointer_p) {
    return zr_base_allocate(encoded->base, size_bytes, ZR_TAG_WORKSPACE, ZR_LIFETIME_COLLECTIVE,
                            encoded->tensor, encoded->base->transfer, pointer_p);
}

static void give_back(const zr_encoded_t *encoded, void **pointer) {
    zr_free(encoded->base->allocator, pointer, encoded->base->transfer);
}

static size_t chunk_of(const zr_encoded_t *encoded, size_t n_elems) {
    size_t most = encoded->chunk_elems > 0 ? encoded->chunk_elems : CHUNK_ELEMS;
    return n_elems < most ? n_elems : most;
}

static void *block_at(const zr_encoded_t *encoded, void *blocks, size_t elem) {
    return (char *)blocks + zr_encoding_bytes(encoded->encoding, elem);
}

static zr_status_t encode(const zr_encoded_t *encoded, const void *values, zr_dtype_t dtype,
                          size_t n_elems, void *blocks) {
    const zr_encoding_t *to = encoded->encoding;
    return to->queue_encode(to, encoded->base->transfer, values, dtype, n_elems, blocks);
}

static zr_status_t decode(const zr_encoded_t *encoded, const void *blocks, size_t n_elems,
                          void *values, zr_dtype_t dtype) {
    const zr_encoding_t *from = encoded->encoding;
    return from->queue_decode(from, encoded->base->transfer, blocks, n_elems, values, dtype);
}

zr_status_t zr_encoded_all_gather(const zr_encoded_t *encoded, const void *own, void *full,
                                  size_t n_elems) {
    const zr_base_t *base = encoded->base;
    zr_message_t message = message_of(encoded);
    size_t n_ranks = (size_t)zr_comm_n_ranks(encoded->comm);
    void *blocks = NULL;
    if (encoded->encoding == NULL)
        return zr_comm_all_gather(encoded->comm, &message, own, full, n_elems, base->transfer);
    ZR_TRY(take(encoded, zr_encoding_bytes(encoded->encoding, n_elems * n_ranks), &blocks));
    void *mine = block_at(encoded, blocks, (size_t)zr_comm_rank(encoded->comm) * n_elems);
    zr_status_t status = encode(encoded, own, base->config.dtype, n_elems, mine);
    ZR_THEN(status,
            zr_comm_all_gather(encoded->comm, &message, mine, blocks, n_elems, base->transfer));
    ZR_THEN(status, decode(encoded, blocks, n_elems * n_ranks, full, base->config.dtype));
    give_back(encoded, &blocks);
    return status;
}

zr_status_t zr_encoded_settle(const zr_encoded_t *encoded, void *full, size_t n_elems) {
    zr_dtype_t dtype = encoded->base->config.dtype;
    void *blocks = NULL;
    if (encoded->encoding == NULL || n_elems == 0)
        return ZR_OK;
    ZR_TRY(take(encoded, zr_encoding_bytes(encoded->encoding, n_elems), &blocks));
    zr_status_t status = encode(encoded, full, dtype, n_elems, blocks);
    ZR_THEN(status, decode(encoded, blocks, n_elems, full, dtype));
    give_back(encoded, &blocks);
    return status;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Encode what there is with what was left out before, and keep what is left out now. */
static zr_status_t encode_chunk_with(const zr_encoded_t *encoded, void *values, size_t n_elems,
                                     float *error, void *blocks, void *chunk) {
    zr_stream_t *stream = encoded->base->transfer;
    ZR_TRY(
        zr_kernel_cast(stream, chunk, ZR_DTYPE_F32, values, encoded->base->config.dtype, n_elems));
    ZR_TRY(zr_kernel_add(stream, chunk, ZR_DTYPE_F32, error, ZR_DTYPE_F32, n_elems));
    ZR_TRY(encode(encoded, chunk, ZR_DTYPE_F32, n_elems, blocks));
    ZR_TRY(decode(encoded, blocks, n_elems, error, ZR_DTYPE_F32));
    ZR_TRY(zr_kernel_scale(stream, error, ZR_DTYPE_F32, n_elems, -1.0f));
    return zr_kernel_add(stream, error, ZR_DTYPE_F32, chunk, ZR_DTYPE_F32, n_elems);
}

static zr_status_t encode_with(const zr_encoded_t *encoded, void *values, size_t n_elems,
                               float *error, void *blocks) {
    void *chunk = NULL;
    if (error == NULL || n_elems == 0)
        return encode(encoded, values, encoded->base->config.dtype, n_elems, blocks);
    ZR_TRY(take(encoded, chunk_of(encoded, n_elems) * sizeof(float), &chunk));
    zr_status_t status = ZR_OK;
    for (size_t i = 0, n = 0; i < n_elems && status == ZR_OK; i += n) {
        n = chunk_of(encoded, n_elems - i);
        status = encode_chunk_with(encoded, zr_base_at(encoded->base, values, i), n, error + i,
                                   block_at(encoded, blocks, i), chunk);
    }
    give_back(encoded, &chunk);
    return status;
}

/* Elements of every rank's blocks, from `first` of its slice on: their sum in rank order. */
static zr_status_t add_chunk(const zr_encoded_t *encoded, void *blocks, size_t slice_elems,
                             size_t first, size_t n_elems, float *chunks[2], void *target) {
    const zr_base_t *base = encoded->base;
    bool is_float = base->config.dtype == ZR_DTYPE_F32;
    float *sum = is_float ? target : chunks[1];
    for (size_t rank = 0; rank < (size_t)zr_comm_n_ranks(encoded->comm); rank++) {
        void *part = block_at(encoded, blocks, rank * slice_elems + first);
        ZR_TRY(decode(encoded, part, n_elems, rank == 0 ? sum : chunks[0], ZR_DTYPE_F32));
        if (rank > 0)
            ZR_TRY(
                zr_kernel_add(base->transfer, sum, ZR_DTYPE_F32, chunks[0], ZR_DTYPE_F32, n_elems));
    }
    return is_float ? ZR_OK
                    : zr_kernel_cast(base->transfer, target, base->config.dtype, sum, ZR_DTYPE_F32,
                                     n_elems);
}

static zr_status_t add_up(const zr_encoded_t *encoded, void *blocks, size_t slice_elems,
                          size_t n_elems, void *target) {
    void *chunks[2] = {NULL, NULL};
    size_t chunk_bytes = chunk_of(encoded, n_elems) * sizeof(float);
    bool is_float = encoded->base->config.dtype == ZR_DTYPE_F32;
    zr_status_t status = take(encoded, chunk_bytes, &chunks[0]);
    ZR_THEN(status, is_float ? ZR_OK : take(encoded, chunk_bytes, &chunks[1]));
    for (size_t i = 0, n = 0; i < n_elems && status == ZR_OK; i += n) {
        n = chunk_of(encoded, n_elems - i);
        status = add_chunk(encoded, blocks, slice_elems, i, n, (float *[2]){chunks[0], chunks[1]},
                           zr_base_at(encoded->base, target, i));
    }
    give_back(encoded, &chunks[0]);
    give_back(encoded, &chunks[1]);
    return status;
}

/* Exchange the slices of what is encoded at `*sent`, which is given back, and add this rank's up.
 * @param n_elems  of this rank's slice, which at the end of a tensor is shorter */
static zr_status_t exchange(const zr_encoded_t *encoded, void **sent, size_t slice_elems,
                            size_t n_elems, void *target) {
    zr_message_t message = message_of(encoded);
    size_t n_all = slice_elems * (size_t)zr_comm_n_ranks(encoded->comm);
    void *blocks = NULL;
    zr_status_t status = take(encoded, zr_encoding_bytes(encoded->encoding, n_all), &blocks);
    ZR_THEN(status, zr_comm_all_to_all(encoded->comm, &message, *sent, blocks, slice_elems,
                                       encoded->base->transfer));
    give_back(encoded, sent);
    ZR_THEN(status, n_elems == 0 ? ZR_OK : add_up(encoded, blocks, slice_elems, n_elems, target));
    give_back(encoded, &blocks);
    return status;
}

zr_status_t zr_encoded_reduce_scatter(const zr_encoded_t *encoded, void *full, void *target,
                                      size_t n_elems) {
    const zr_base_t *base = encoded->base;
    zr_message_t message = message_of(encoded);
    size_t n_all = n_elems * (size_t)zr_comm_n_ranks(encoded->comm);
    void *sent = NULL;
    if (encoded->encoding == NULL)
        return zr_comm_reduce_scatter(encoded->comm, &message, full, target, n_elems,
                                      base->transfer);
    ZR_TRY(take(encoded, zr_encoding_bytes(encoded->encoding, n_all), &sent));
    zr_status_t status = encode(encoded, full, base->config.dtype, n_all, sent);
    ZR_THEN(status, exchange(encoded, &sent, n_elems, n_elems, target));
    give_back(encoded, &sent);
    return status;
}

size_t zr_encoded_slice(const zr_encoded_t *encoded, size_t n_elems) {
    size_t block = encoded->encoding->block_elems, n_blocks = n_elems / block;
    size_t n_ranks = (size_t)zr_comm_n_ranks(encoded->comm);
    return (n_blocks / n_ranks + (n_blocks % n_ranks != 0)) * block;
}

/* Blocks behind the end of a tensor are sent, and not decoded. */
static zr_status_t zero_tail(const zr_encoded_t *encoded, void *blocks, size_t n_elems,
                             size_t n_all) {
    size_t n_bytes = zr_encoding_bytes(encoded->encoding, n_all - n_elems);
    return zr_kernel_fill(encoded->base->transfer, block_at(encoded, blocks, n_elems),
                          ZR_DTYPE_BF16, n_bytes / sizeof(zr_bf16_t), 0.0f);
}

/* All ranks' slices, each encoded by the rank that has added it up. */
static zr_status_t gather_slices(const zr_encoded_t *encoded, void *buffer, size_t n_elems,
                                 size_t first, size_t n_own, float *error) {
    zr_message_t message = message_of(encoded);
    size_t slice = zr_encoded_slice(encoded, n_elems);
    size_t n_all = slice * (size_t)zr_comm_n_ranks(encoded->comm);
    void *blocks = NULL;
    ZR_TRY(take(encoded, zr_encoding_bytes(encoded->encoding, n_all), &blocks));
    void *mine = block_at(encoded, blocks, slice * (size_t)zr_comm_rank(encoded->comm));
    zr_status_t status = zero_tail(encoded, mine, n_own, slice);
    ZR_THEN(status,
            encode_with(encoded, zr_base_at(encoded->base, buffer, first), n_own, error, mine));
    ZR_THEN(status, zr_comm_all_gather(encoded->comm, &message, mine, blocks, slice,
                                       encoded->base->transfer));
    ZR_THEN(status, decode(encoded, blocks, n_elems, buffer, encoded->base->config.dtype));
    give_back(encoded, &blocks);
    return status;
}

zr_status_t zr_encoded_all_reduce(const zr_encoded_t *encoded, void *buffer, size_t n_elems,
                                  const zr_feedback_t *feedback) {
    const zr_base_t *base = encoded->base;
    zr_message_t message = message_of(encoded);
    void *sent = NULL;
    if (encoded->encoding == NULL)
        return zr_comm_all_reduce(encoded->comm, &message, buffer, n_elems, base->transfer);
    size_t slice = zr_encoded_slice(encoded, n_elems);
    size_t n_all = slice * (size_t)zr_comm_n_ranks(encoded->comm);
    size_t first = slice * (size_t)zr_comm_rank(encoded->comm);
    first = first < n_elems ? first : n_elems;
    size_t n_own = n_elems - first < slice ? n_elems - first : slice;
    ZR_TRY(take(encoded, zr_encoding_bytes(encoded->encoding, n_all), &sent));
    zr_status_t status = zero_tail(encoded, sent, n_elems, n_all);
    ZR_THEN(status, encode_with(encoded, buffer, n_elems, feedback->part, sent));
    ZR_THEN(status, exchange(encoded, &sent, slice, n_own, zr_base_at(base, buffer, first)));
    give_back(encoded, &sent);
    ZR_THEN(status, gather_slices(encoded, buffer, n_elems, first, n_own, feedback->sum));
    return status;
}
