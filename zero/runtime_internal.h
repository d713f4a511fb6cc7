/*
 * The runtime's own structures, shared by the files that implement runtime.h:
 * runtime.c (life of the object), unit.c (acquire, release), grads.c (reduce), step.c (norm,
 * update, publish), state.c and state_update.c (optimizer state in its tiers), params.c
 * (parameters' shards in theirs), initial.c (initial values), inspect.c (hash, read).
 */
#ifndef ZR_ZERO_RUNTIME_INTERNAL_H
#define ZR_ZERO_RUNTIME_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "allocator/record.h"
#include "allocator/replay.h"
#include "kernels/kernels.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/grads.h"
#include "zero/layout.h"
#include "zero/names.h"
#include "zero/nvme.h"
#include "zero/params.h"
#include "zero/runtime.h"
#include "zero/sharding.h"
#include "zero/state.h"

enum { FLAT_TRAINABLE = 0, FLAT_FROZEN = 1, N_FLATS = 2 };

struct zr_param {
    zr_unit_t *unit;
    char *name;
    int n_dims;
    size_t dims[4];
    zr_layout_param_t layout;
    zr_param_fill_fn fill;
    void *fill_context;
    size_t tensor;     /* of the checkpoint that its initial values come from */
    bool grad_written; /* this step's (or micro-batch's) gradient was asked for: add from now on */
};

/* Parameters of one flat buffer on this rank. */
typedef struct unit_params {
    void *own;         /* full where zr_rt_keeps_full, otherwise this rank's shard: on the device,
                          or where it is offloaded in host memory; NULL in a store */
    void *full;        /* == own where that is full; otherwise the gathered buffer or NULL */
    zr_tier_t tier;    /* of own */
    size_t first_part; /* in a store: of zr_params_t.parts */
    size_t n_parts;
} unit_params_t;

struct zr_unit {
    zr_runtime_t *runtime;
    char *name;
    char *params_tensor; /* "<name> parameters", as in collectives */
    char *grads_tensor;  /* "<name> gradients" */
    char *state_tensor;  /* "<name> optimizer state" */
    size_t index;
    zr_param_t **params; /* in order of registration; owned */
    size_t n_params;

    zr_flat_t flat[N_FLATS];
    unit_params_t data[N_FLATS];
    /* Trainable only. grad_full: persistent at stages 0-1, a bucket that lives from the first
     * acquire with gradients to reduce at stages 2-3. grad_shard: this rank's accumulated sum,
     * where the stage keeps one apart from grad_full, else NULL; or, where it is split, what of it
     * is on the device, with the rest in grad_host, piece by piece (grads.h). */
    void *grad_full;
    void *grad_shard;
    void *grad_host;
    bool grads_are_split;
    /* What it has of the optimizer state on device and host: pieces, each with its arrays one
     * behind the other. For NVMe: the buffer of the piece that is being filled, or NULL. */
    void *state[ZR_N_TIERS];

    int n_acquired;       /* acquires without release */
    bool has_params;      /* one of them asked for parameters */
    bool has_grads;       /* one of them asked for gradients */
    bool reduced;         /* in this micro-batch */
    zr_event_t *gathered; /* passes when the gathered parameters are there */
    /* Where the host may update beside backward (zr_rt_may_update_early); else NULL. */
    zr_event_t *grads_kept; /* passes when its gradients are where they wait for the update */
    zr_event_t *released;   /* when compute has used it for the last time so far */
};

/* Checkpoints to come: what they need is held (checkpoint/save_memory.c). */
typedef struct zr_saves {
    bool are_expected;
    bool go_on; /* with a copy, so that the run goes on while it is written */
    bool said_no_room;
    size_t memory_bytes;
    void *memory; /* NULL: there is none */
} zr_saves_t;

struct zr_runtime {
    zr_config_t config;
    zr_comm_t *comm; /* of every rank: control, agreement */
    zr_sharding_t sharding;
    zr_device_t *device;
    zr_log_t log;
    zr_allocator_t *allocator;
    int rank;
    int n_ranks;
    bool committed;
    zr_status_t failed; /* the first error: nothing but destroy is allowed after it */

    zr_stream_t *compute;
    zr_stream_t *transfer; /* collectives; == compute without overlap_comm */
    zr_event_t *order;     /* scratch: orders one stream behind another */

    zr_group_t *groups; /* owned, with their names */
    int n_groups;
    zr_unit_t **units; /* owned */
    size_t n_units;
    zr_names_t unit_names;
    zr_param_t **params; /* in order of registration, over all units; borrowed from the units */
    size_t n_params;
    zr_names_t param_names;

    size_t micro_batch; /* begun in this step */
    size_t
        n_begins; /* of them, or of several at once: at the first, sums of gradients start anew */
    bool in_micro_batch;
    size_t n_steps;   /* done, with skipped ones */
    size_t n_updates; /* done */

    /* Acquires with parameters of a micro-batch, in order: recorded, then prefetched along. */
    zr_unit_t **order_units;
    size_t n_order;
    size_t order_capacity;
    size_t order_position;
    size_t gathered_elems; /* of all units, now */

    zr_unit_t **reduced; /* [n_reduced] in the last micro-batch, in order; of [n_units] */
    size_t n_reduced;

    double *norms_device; /* [n_shards][n_units]: partial sums of squares */
    double *norms_host;
    void *norm_workspace;
    double *scalars_device; /* [n_ranks * ZR_MAX_SHARED_VALUES]: zr_runtime_share */
    double *scalars_host;
    float *staging_device; /* [ZR_STAGING_ELEMS], and more where a word of every rank needs it */
    float *staging_host;

    zr_state_t state;               /* the optimizer's */
    zr_grads_place_t *grads_places; /* [pieces of state]; NULL: all on the device */
    size_t n_grads_below;           /* pieces whose gradients wait in host memory */
    zr_params_t shards;             /* of parameters that are offloaded */
    zr_nvme_t nvme;                 /* the store of all that is kept in one */

    const zr_checkpoint_t *restore; /* initial values come from it; NULL: from fill functions */
    zr_checkpoint_reader_t *restore_reader;
    struct zr_saving *saving; /* a checkpoint that was begun, or NULL */
    zr_saves_t saves;

    double optimizer_seconds;
};

#define ZR_STAGING_ELEMS ((size_t)16384)

/* ---- small helpers ---- */

/** What to try when memory runs out, of a configuration that has been checked; static strings. */
zr_allocator_advice_t zr_rt_advice(const zr_config_t *config, int n_shards);

/** The encoding of parameters, gradients, and the messages with either. */
static inline const zr_encoding_t *zr_rt_encoding(const zr_runtime_t *runtime) {
    return zr_encoding_of(runtime->config.dtype);
}

/** Bytes of n elements of it. */
static inline size_t zr_rt_bytes(const zr_runtime_t *runtime, size_t n_elems) {
    return zr_encoding_bytes(zr_rt_encoding(runtime), n_elems);
}

static inline bool zr_rt_offloads_params(const zr_runtime_t *runtime) {
    return runtime->config.offload_param.device != ZR_OFFLOAD_NONE;
}

static inline bool zr_rt_keeps_full_params(const zr_runtime_t *runtime) {
    return runtime->config.stage < 3 ||
           (runtime->sharding.n_shards == 1 && !zr_rt_offloads_params(runtime));
}

/** Whether this rank's shard of a flat buffer lives elsewhere than on the device. */
static inline bool zr_rt_is_offloaded(const zr_unit_t *unit, int kind) {
    return unit->data[kind].tier != ZR_TIER_DEVICE;
}

/** Whether a flat buffer is on the device as a whole, and is never gathered. */
static inline bool zr_rt_keeps_full(const zr_unit_t *unit, int kind) {
    const zr_runtime_t *runtime = unit->runtime;
    return zr_rt_keeps_full_params(runtime) ||
           (runtime->sharding.n_shards == 1 && !zr_rt_is_offloaded(unit, kind));
}

/** Whether memory holds what is put there, so that the CPU may touch what it can address. */
static inline bool zr_rt_has_data(const zr_runtime_t *runtime) {
    return !zr_device_info(runtime->device)->stores_nothing;
}

static inline bool zr_rt_keeps_full_grads(const zr_runtime_t *runtime) {
    return runtime->config.stage < 2;
}

/** Whether gradients meet the other ranks' in every micro-batch, not in the last one alone. */
static inline bool zr_rt_reduces_every_micro_batch(const zr_runtime_t *runtime) {
    return runtime->config.stage >= 2 || (runtime->config.reduce == ZR_REDUCE_EVERY_MICRO_BATCH &&
                                          runtime->config.grad_accum > 1);
}

/** Whether gradients wait in host memory where their state is not on the device, all or some. */
static inline bool zr_rt_offloads_grads(const zr_runtime_t *runtime) {
    const zr_offload_options_t *offload = &runtime->config.offload_optimizer;
    return runtime->config.stage >= 2 && offload->device != ZR_OFFLOAD_NONE &&
           offload->gradients != ZR_OFFLOAD_NONE;
}

/** Whether the host may update a unit before all gradients are known: it depends on no norm, and
 * all that it reads and writes is the unit's own. Where the CPU computes, too, it makes no
 * difference. */
static inline bool zr_rt_may_update_early(const zr_runtime_t *runtime) {
    return !runtime->config.check_overflow && runtime->config.clip == 0 &&
           zr_rt_offloads_grads(runtime) && !zr_rt_offloads_params(runtime) &&
           runtime->n_grads_below == runtime->state.n_lowered && runtime->state.has_copies &&
           !runtime->state.choice.is_on_device;
}

/** Whether a shard of summed gradients is kept apart from the full ones. */
static inline bool zr_rt_keeps_grad_shard(const zr_runtime_t *runtime) {
    return zr_rt_reduces_every_micro_batch(runtime);
}

static inline bool zr_rt_is_last_micro_batch(const zr_runtime_t *runtime) {
    return runtime->micro_batch == runtime->config.grad_accum;
}

/** Where this rank's shard of a flat buffer begins. */
static inline size_t zr_rt_own_first(const zr_runtime_t *runtime, const zr_flat_t *flat) {
    return (size_t)runtime->sharding.rank * flat->shard_elems;
}

/** The slice of a unit's trainable flat buffer whose state and update are this rank's. */
typedef struct zr_state_range {
    size_t first;
    size_t n_elems;
} zr_state_range_t;

static inline zr_state_range_t zr_rt_state_range(const zr_unit_t *unit) {
    const zr_runtime_t *runtime = unit->runtime;
    const zr_flat_t *flat = &unit->flat[FLAT_TRAINABLE];
    if (runtime->config.stage == 0)
        return (zr_state_range_t){0, flat->padded_elems};
    return (zr_state_range_t){zr_rt_own_first(runtime, flat), flat->shard_elems};
}

static inline void *zr_rt_at(const zr_runtime_t *runtime, void *base, size_t elem) {
    return (char *)base + zr_rt_bytes(runtime, elem);
}

/** Work queued on `later` from now on runs after what is queued on `earlier` now. */
ZR_NODISCARD zr_status_t zr_rt_order(zr_runtime_t *runtime, zr_stream_t *earlier,
                                     zr_stream_t *later);

/** Keep the first error; hand the status on. */
zr_status_t zr_rt_note(zr_runtime_t *runtime, zr_status_t status) ZR_NODISCARD;

/** ZR_OK when the runtime is committed and has not failed; otherwise logs `call`. */
ZR_NODISCARD zr_status_t zr_rt_check_ready(zr_runtime_t *runtime, const char *call);

/** Allocate device memory of this unit or runtime, for the stream that uses it first. */
ZR_NODISCARD zr_status_t zr_rt_allocate(zr_runtime_t *runtime, size_t size_bytes, zr_tag_t tag,
                                        zr_lifetime_t lifetime, const char *name,
                                        zr_stream_t *stream, void **pointer_p);

/** Seconds of the device's clock. */
static inline double zr_rt_now(const zr_runtime_t *runtime) {
    return zr_device_now(runtime->device);
}

/** Tell the recorder, if there is one, what is done from now on at the end of the step: a phase of
 * it, of a unit or NULL, and of a part of that, from 1; 0: all of it. */
static inline void zr_rt_trace(const zr_runtime_t *runtime, const char *phase,
                               const zr_unit_t *unit, size_t part) {
    zr_trace_t *trace = zr_device_trace(runtime->device);
    if (trace != NULL)
        zr_trace_at(trace, zr_rt_now(runtime),
                    &(zr_trace_place_t){.step = runtime->n_steps + 1,
                                        .phase = phase,
                                        .unit = unit != NULL ? unit->name : NULL,
                                        .part = part});
}

/** The same in a micro-batch; without a unit, before its first. */
static inline void zr_rt_trace_pass(const zr_runtime_t *runtime, const zr_unit_t *unit,
                                    zr_pass_t pass) {
    zr_trace_t *trace = zr_device_trace(runtime->device);
    const char *phase = pass == ZR_FORWARD ? "forward" : "backward";
    if (trace != NULL)
        zr_trace_at(trace, zr_rt_now(runtime),
                    &(zr_trace_place_t){.step = runtime->n_steps + 1,
                                        .micro_batch = runtime->micro_batch,
                                        .phase = unit != NULL ? phase : NULL,
                                        .unit = unit != NULL ? unit->name : NULL});
}

/** Tell the allocator what computes from now on in this micro-batch; NULL: no unit yet. */
static inline void zr_rt_mark(zr_runtime_t *runtime, const zr_unit_t *unit, zr_pass_t pass) {
    zr_rt_trace_pass(runtime, unit, pass);
    zr_allocator_mark(runtime->allocator,
                      &(zr_mark_t){.step = runtime->n_steps + 1,
                                   .micro_batch = runtime->micro_batch,
                                   .unit = unit != NULL ? unit->index : ZR_NO_UNIT,
                                   .pass = (int)pass});
}

/** initial.c: bring initial values of a flat buffer to where they live. */
ZR_NODISCARD zr_status_t zr_initial_place(zr_unit_t *unit, int kind);

/** unit.c: give back gathered parameters of a unit that is not acquired, if it has any. Their
 * gather and their uses have been waited for. */
void zr_unit_drop_gathered(zr_unit_t *unit);

/**
 * Every rank's own part of `all`, to all ranks of a communicator, ordered behind and before the
 * compute stream's work. Collectives are queued on the transfer stream alone, so that they run in
 * one order on every rank.
 *
 * @param comm    one of the runtime's
 * @param all     [its ranks * n_elems] on the device; this rank's part is there
 * @param tensor  for messages
 */
ZR_NODISCARD zr_status_t zr_rt_gather_control(zr_runtime_t *runtime, zr_comm_t *comm,
                                              const char *tensor, zr_dtype_t dtype, void *all,
                                              size_t n_elems);

/**
 * Words of every rank, to all ranks, and wait for them. It takes no memory, which a rank may not
 * have: they pass through the staging. Where nothing is stored, `all` stays as it was.
 *
 * @param all  [n_ranks][n_words] host memory
 */
ZR_NODISCARD zr_status_t zr_rt_gather_words(zr_runtime_t *runtime, const char *tensor,
                                            const uint64_t *words, size_t n_words, uint64_t *all);

/**
 * A value of every rank, to all ranks, and wait for them. It takes no memory.
 *
 * @param all_p  [n_ranks], until the next such call
 */
ZR_NODISCARD zr_status_t zr_rt_share_value(zr_runtime_t *runtime, double value,
                                           const double **all_p);

#endif
