/*
 * Collectives of parameters and gradients whose messages are in another encoding than the tensors.
 * Internal to zero/.
 *
 * What is gathered is decoded by every rank, by the one that gives it, too, so that all have the
 * same bits. A sum is made where its slice belongs: every rank encodes its part of each slice, all
 * exchange them, and the owner decodes them and adds them in fp32, in rank order. All of it is
 * queued on the transfer stream; messages are memory of the allocator's for as long.
 *
 * Source: Wang et al. 2023, "ZeRO++", sections 3.1 and 3.3.
 */
#pragma once

#include "zero/base_internal.h"

typedef struct zr_encoded {
    const zr_base_t *base;
    zr_comm_t *comm;
    const char *tensor;            /* for messages */
    const zr_encoding_t *encoding; /* of messages; NULL: as tensors are */
    size_t chunk_elems;            /* that are added in fp32 at once: whole blocks; 0: a million */
} zr_encoded_t;

/** Of a unit's parameters, over the ranks of a group. */
static inline zr_encoded_t zr_encoded_params(const zr_base_t *base, const char *tensor) {
    const zr_config_t *config = &base->config;
    bool is_alone = base->sharding.n_shards == 1;
    return (zr_encoded_t){.base = base,
                          .comm = base->sharding.group,
                          .tensor = tensor,
                          .encoding =
                              is_alone ? NULL : zr_config_message(config, config->gather_encoding)};
}

/**
 * As zr_comm_all_gather, of tensors in the configuration's dtype.
 *
 * @param n_elems  of a rank: whole blocks
 * @param own      may be in its place in `full`, where it is then decoded, too
 */
ZR_NODISCARD zr_status_t zr_encoded_all_gather(const zr_encoded_t *encoded, const void *own,
                                               void *full, size_t n_elems);

/** Of a unit's gradients, over a group or over those that hold the same shard. */
static inline zr_encoded_t zr_encoded_grads(const zr_base_t *base, zr_comm_t *comm,
                                            const char *tensor) {
    const zr_config_t *config = &base->config;
    bool is_alone = zr_comm_n_ranks(comm) == 1;
    return (zr_encoded_t){.base = base,
                          .comm = comm,
                          .tensor = tensor,
                          .encoding =
                              is_alone ? NULL : zr_config_message(config, config->reduce_encoding)};
}

/**
 * As zr_comm_reduce_scatter.
 *
 * @param target   [n_elems], rounded once; may be anywhere in `full`
 * @param n_elems  of a rank: whole blocks
 */
ZR_NODISCARD zr_status_t zr_encoded_reduce_scatter(const zr_encoded_t *encoded, void *full,
                                                   void *target, size_t n_elems);

/** What encoding has left out of what a rank sent: it is added to what it sends next. */
typedef struct zr_feedback {
    float *part; /* [n_elems] of this rank's part of the sum; NULL: there is no feedback */
    float *sum;  /* [zr_encoded_slice] of the slice of it that this rank adds up */
} zr_feedback_t;

/** Elements of the slices that zr_encoded_all_reduce cuts a tensor into: whole blocks. */
size_t zr_encoded_slice(const zr_encoded_t *encoded, size_t n_elems);

/** As zr_comm_all_reduce: slices are exchanged, added up, and gathered in the same encoding.
 * @param n_elems  whole blocks */
ZR_NODISCARD zr_status_t zr_encoded_all_reduce(const zr_encoded_t *encoded, void *buffer,
                                               size_t n_elems, const zr_feedback_t *feedback);

/** What zr_encoded_all_gather would make of a tensor that all ranks have: they send nothing. */
ZR_NODISCARD zr_status_t zr_encoded_settle(const zr_encoded_t *encoded, void *full, size_t n_elems);
