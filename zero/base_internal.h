/*
 * What all parts of a rank's runtime work with: its configuration, its device, its place among the
 * ranks, its streams, and how far it has come; and what follows from the configuration alone.
 * Internal to zero/. Set when the runtime is created; only progress changes, by the runtime's own
 * calls.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "allocator/heap_internal.h"
#include "kernels/base/owner_internal.h"
#include "kernels/device_trace.h"
#include "kernels/kernels.h"
#include "offload/placement_internal.h"
#include "zero/config.h"
#include "zero/runtime.h"
#include "zero/sharding_internal.h"

#define ZR_STAGING_ELEMS ((size_t)16384)

typedef struct zr_progress {
    size_t micro_batch; /* begun in this step */
    size_t
        n_begins; /* of them, or of several at once: at the first, sums of gradients start anew */
    size_t n_together;       /* begun with the last of these */
    size_t at;               /* the one that is worked on, from 1 */
    const zr_unit_t *marked; /* what was last said to compute; NULL: no unit yet */
    zr_pass_t marked_pass;
    bool in_micro_batch;
    bool in_evaluation; /* between steps, until the next micro-batch */
    size_t n_steps;     /* done, with skipped ones */
    size_t n_updates;   /* done */
    size_t n_apart;     /* steps since groups have met, where they do not in each (outer.c) */
} zr_progress_t;

typedef struct zr_base {
    zr_heap_t *heap; /* of the tables of all parts, and of the runtime; they go with it. Borrowed */
    zr_config_t config;
    zr_log_t log;
    pid_t owner; /* process that has created it (kernels/base/owner_internal.h) */
    zr_device_t *device;
    zr_allocator_t *allocator; /* owned */
    zr_sharding_t sharding;    /* owned, but for its `all`: control, agreement */
    int rank;
    int n_ranks;
    zr_stream_t *compute;
    zr_stream_t *transfer; /* collectives; == compute without overlap_comm */
    zr_stream_t *update;   /* kernels of updates on the device; == compute, unless state comes up to
                              it within backward: compute would wait for that */
    zr_event_t *order;     /* scratch: orders one stream behind another */
    /* Each of one stream alone, so that its records pass in order; NULL where update == compute. */
    zr_event_t *computed, *updated;
    zr_progress_t progress;
    bool sums_micro_batches; /* zr_runtime_sum_micro_batches */
    bool has_no_values;      /* zr_runtime_leave_out_values */
    bool does_alike_once;    /* zr_runtime_do_alike_once */
    bool is_of_longer;       /* zr_runtime_stand_for_longer */
    bool links_frozen;       /* zr_runtime_link_frozen */
} zr_base_t;

/* ---- what follows from the configuration ---- */

/** The encoding of parameters, gradients, and the messages with either. */
static inline const zr_encoding_t *zr_base_encoding(const zr_base_t *base) {
    return zr_encoding_of(base->config.dtype);
}

/** How trained parameters are made from their masters, of the same bytes. */
static inline const zr_encoding_t *zr_base_param_encoding(const zr_base_t *base) {
    return base->config.dtype == ZR_DTYPE_BF16 ? &zr_encoding_upper : zr_base_encoding(base);
}

/** Bytes of n elements of it. */
static inline size_t zr_base_bytes(const zr_base_t *base, size_t n_elems) {
    return zr_encoding_bytes(zr_base_encoding(base), n_elems);
}

static inline void *zr_base_at(const zr_base_t *base, void *first, size_t elem) {
    return (char *)first + zr_base_bytes(base, elem);
}

static inline bool zr_base_offloads_params(const zr_base_t *base) {
    return base->config.offload_param.device != ZR_OFFLOAD_NONE;
}

static inline bool zr_base_keeps_full_params(const zr_base_t *base) {
    return base->config.stage < 3 ||
           (base->sharding.n_shards == 1 && !zr_base_offloads_params(base));
}

/** Whether memory holds what is put there, so that the CPU may touch what it can address. */
static inline bool zr_base_has_data(const zr_base_t *base) {
    return !zr_device_info(base->device)->stores_nothing;
}

static inline bool zr_base_keeps_full_grads(const zr_base_t *base) {
    return base->config.stage < 2;
}

/** Whether gradients meet the other ranks' in every micro-batch, not in the last one alone; a shard
 * of their sum is then kept apart from the full ones. */
static inline bool zr_base_reduces_every_micro_batch(const zr_base_t *base) {
    bool has_several = base->config.grad_accum > 1 || base->sums_micro_batches;
    return base->config.stage >= 2 ||
           (base->config.reduce == ZR_REDUCE_EVERY_MICRO_BATCH && has_several);
}

/** Whether a step's gradients meet those of other groups. */
static inline bool zr_base_adds_groups(const zr_base_t *base) {
    return base->sharding.replicas != NULL && base->config.outer_every == 0;
}

/** The divisor of the sum of a step's gradients. */
static inline double zr_base_n_addends(const zr_base_t *base) {
    int n_ranks = base->config.outer_every == 0 ? base->n_ranks : base->sharding.n_shards;
    return (double)n_ranks * (base->sums_micro_batches ? 1 : (double)base->config.grad_accum);
}

/** Whether a unit is updated behind its last reduction of a step. */
static inline bool zr_base_updates_in_backward(const zr_base_t *base) {
    return base->config.update_at == ZR_UPDATE_AT_BACKWARD;
}

/** A rank that has nobody to wait for updates a unit in backward right after its reduction, while
 * what was gathered of it is there. Others do so behind the next unit's. */
static inline bool zr_base_updates_at_once(const zr_base_t *base) {
    return zr_base_updates_in_backward(base) && base->n_ranks == 1 &&
           zr_device_info(base->device)->computes_on_host;
}

/** Buffers where `asked` are configured: until zr_buffers_choose, of an open number (0) the most.
 */
static inline size_t zr_base_n_buffers(const zr_base_t *base, size_t asked, size_t usual,
                                       size_t most) {
    return asked != 0 ? asked : zr_base_updates_in_backward(base) ? most : usual;
}

static inline size_t zr_base_n_state_buffers(const zr_base_t *base) {
    return zr_base_n_buffers(base, base->config.offload_optimizer.n_buffers,
                             ZR_CONFIG_USUAL_BUFFERS, ZR_CONFIG_MOST_AUTO_BUFFERS);
}

/** Whether a step's sums of gradients are kept to its end: an update that is clipped needs them. */
static inline bool zr_base_keeps_sums(const zr_base_t *base) {
    return !zr_base_updates_in_backward(base) || base->config.clip > 0;
}

/** Whether a shard of gradients is kept from one reduction of a unit to the next, or to the end. */
static inline bool zr_base_keeps_grads(const zr_base_t *base) {
    return zr_base_keeps_sums(base) ||
           base->config.grad_accum > zr_config_n_together(&base->config);
}

/** Whether gradients wait elsewhere where their state is not on the device, all or some. */
static inline bool zr_base_offloads_grads(const zr_base_t *base) {
    const zr_offload_options_t *offload = &base->config.offload_optimizer;
    return base->config.stage >= 2 && offload->device != ZR_OFFLOAD_NONE &&
           offload->gradients != ZR_OFFLOAD_NONE && zr_base_keeps_grads(base);
}

/** Where acquires have an order that repeats: in a micro-batch and in an evaluation. */
static inline bool zr_base_has_order(const zr_base_t *base) {
    return base->progress.in_micro_batch || base->progress.in_evaluation;
}

/** How many micro-batches' gradients, of those that began together, are added before ranks meet. */
static inline size_t zr_base_micro_batches_per_reduction(const zr_base_t *base) {
    return base->config.reduce == ZR_REDUCE_EVERY_MICRO_BATCH ? 1 : base->progress.n_together;
}

static inline bool zr_base_is_last_micro_batch(const zr_base_t *base) {
    return base->progress.micro_batch == base->config.grad_accum;
}

/** The tiers that what leaves the device goes to: `device`, and where that is nvme, as many
 * elements as in_cpu_elems to host memory. */
void zr_base_place_below(zr_offload_device_t device, size_t in_cpu_elems,
                         zr_placement_options_t *options);

/** What to try when memory runs out, of a configuration that has been checked; static strings. */
zr_allocator_advice_t zr_base_advice(const zr_config_t *config, int n_shards);

/* ---- life ---- */

/** @param heap  outlives it
 * @param base  set; also after an error, for zr_base_destroy. Its progress begins at 0. */
ZR_NODISCARD zr_status_t zr_base_create(zr_heap_t *heap, const zr_config_t *config, zr_comm_t *comm,
                                        zr_device_t *device, const zr_log_t *log, zr_base_t *base);
/** Nobody uses its streams, or has memory of its allocator. */
void zr_base_destroy(zr_base_t *base);
/** Wait for all work of a stream, or of none (NULL), before what it works on is given back. */
void zr_base_drain(zr_stream_t *stream);

/* ---- what is done with it ---- */

/** Logs that the system has no memory for something. */
ZR_NODISCARD zr_status_t zr_base_no_memory(const zr_base_t *base, const char *what);

/** Work queued on `later` from now on runs after what is queued on `earlier` now. */
ZR_NODISCARD zr_status_t zr_base_order(const zr_base_t *base, zr_stream_t *earlier,
                                       zr_stream_t *later);

/** The same of the update stream behind the compute stream, and of any behind the update stream. */
ZR_NODISCARD zr_status_t zr_base_begin_updates(const zr_base_t *base);
ZR_NODISCARD zr_status_t zr_base_end_updates(const zr_base_t *base, zr_stream_t *later);

/** Allocate memory on the device; `stream` uses it first. */
ZR_NODISCARD zr_status_t zr_base_allocate(const zr_base_t *base, size_t size_bytes, zr_tag_t tag,
                                          zr_lifetime_t lifetime, const char *name,
                                          zr_stream_t *stream, void **pointer_p);
/** The same in host memory, as long as the runtime is there. */
ZR_NODISCARD zr_status_t zr_base_allocate_host(const zr_base_t *base, size_t size_bytes,
                                               zr_tag_t tag, const char *name, void **pointer_p);

/**
 * Every rank's own part of `all`, to all ranks of a communicator, ordered behind and before the
 * compute stream's work. Collectives are queued on the transfer stream alone, so that they run in
 * one order on every rank.
 *
 * @param comm    one of the sharding's
 * @param all     [its ranks * n_elems] on the device; this rank's part is there
 * @param tensor  for messages
 */
ZR_NODISCARD zr_status_t zr_base_gather_control(const zr_base_t *base, zr_comm_t *comm,
                                                const char *tensor, zr_dtype_t dtype, void *all,
                                                size_t n_elems);

/** Seconds of the device's clock. */
static inline double zr_base_now(const zr_base_t *base) {
    return zr_device_now(base->device);
}

/** Tell the recorder, if there is one, what is done from now on at the end of the step: a phase of
 * it, of a unit (its name) or NULL, and of a part of that, from 1; 0: all of it. */
static inline void zr_base_trace(const zr_base_t *base, const char *phase, const char *unit,
                                 size_t part) {
    zr_trace_t *trace = zr_device_trace(base->device);
    if (trace != NULL)
        zr_trace_at(
            trace, zr_base_now(base),
            &(zr_trace_place_t){
                .step = base->progress.n_steps + 1, .phase = phase, .unit = unit, .part = part});
}
