/*
 * What was registered before commit: groups, units and parameters, by their names; and where a
 * unit's parameters, gradients and state are. All of it lives in the heap of the base. Internal to
 * zero/.
 */
#pragma once

#include "allocator/shared_internal.h"
#include "zero/encoded_internal.h"
#include "zero/layout_internal.h"
#include "zero/names_internal.h"

enum { FLAT_TRAINABLE = 0, FLAT_FROZEN = 1, N_FLATS = 2 };

/* What a parameter is: on all ranks the same. */
typedef struct zr_param_about {
    struct zr_param_about *next; /* in order of registration, over all units */
    char *name;
    int n_dims;
    size_t dims[4];
    zr_layout_param_t layout;
} zr_param_about_t;

/* All of them, and their names. Ranks of a process that have the same share it from commit on. */
typedef struct zr_params_about {
    zr_shared_t shared;
    zr_param_about_t *first, *last;
    zr_names_t names;
} zr_params_about_t;

struct zr_param {
    zr_unit_t *unit;
    zr_param_about_t *about; /* of the model's */
    zr_param_fill_fn fill;
    void *fill_context;
    size_t tensor;           /* of the checkpoint that its initial values come from */
    bool may_be_new, is_new; /* that may lack it; lacks it */
    bool grad_written; /* this step's (or micro-batch's) gradient was asked for: add from now on */
    bool is_left_out;  /* of the next update */
    size_t n_left_out; /* updates that it was left out of */
};

/* Parameters of one flat buffer on this rank. */
typedef struct zr_unit_params {
    void *own;         /* full where zr_unit_keeps_full, otherwise this rank's shard: on the device,
                          or where it is offloaded in host memory; NULL in a store */
    void *full;        /* == own where that is full and not encoded; otherwise the gathered buffer,
                          decoded, or NULL */
    zr_tier_t tier;    /* of own */
    size_t first_part; /* in a store: of zr_params_t.parts */
    size_t n_parts;
} zr_unit_params_t;

struct zr_unit {
    const zr_base_t *base;
    zr_runtime_t *runtime; /* for the calls of runtime.h that take a unit */
    char *name;
    char *params_tensor; /* "<name> parameters", as in collectives */
    char *grads_tensor;  /* "<name> gradients" */
    char *state_tensor;  /* "<name> optimizer state" */
    size_t index;
    zr_param_t **params; /* in order of registration */
    size_t n_params, params_capacity;

    const zr_encoding_t *frozen_encoding; /* of what is kept and gathered of frozen parameters;
                                             NULL: they have that of all others */
    zr_flat_t flat[N_FLATS];
    zr_unit_params_t data[N_FLATS];
    /* Trainable only. grad_full: persistent at stages 0-1, a bucket that lives from the first
     * acquire with gradients to reduce at stages 2-3. grad_shard: this rank's accumulated sum,
     * where the stage keeps one apart from grad_full, else NULL; or, where it is split, what of it
     * is on the device, with the rest in grad_host, piece by piece (grads_internal.h). */
    void *grad_full;
    void *grad_shard;
    void *grad_host;
    bool grads_in_bucket; /* the whole sum of the step is, in this rank's slice of grad_full, until
                             the unit is updated */
    void *grad_held; /* where it is split: the sum between reductions of micro-batches that began
                        together */
    bool grads_are_split;
    zr_feedback_t grad_errors; /* on the device */
    /* What it has of the optimizer state on device and host: pieces, each with its arrays one
     * behind the other. For NVMe: the buffer of the piece that is being filled, or NULL. */
    void *state[ZR_N_TIERS];

    int n_acquired;   /* acquires without release */
    bool has_params;  /* one of them asked for parameters */
    bool has_grads;   /* one of them asked for gradients */
    bool is_updated;  /* in this step's backward, or about to be */
    size_t n_reduced; /* micro-batches, of those that began together, in order */
    size_t n_apart;   /* parameters that are left out of the next update, or were of earlier ones:
                         they   are updated by calls of their own */
    zr_event_t *gathered;   /* passes when the gathered parameters are there */
    zr_event_t *grads_kept; /* of updates in backward, else NULL: passes when its gradients are
                               summed, and where they are kept */
};

/** A parameter group and its values of the optimizer's hyperparameters, in the order of the rule.
 */
typedef struct zr_unit_group {
    zr_group_t shared;
    double hyper[ZR_MAX_HYPERS];
} zr_unit_group_t;

typedef struct zr_units {
    zr_unit_group_t *groups;
    int n_groups;
    size_t groups_capacity;
    zr_unit_t **units;
    size_t n_units, units_capacity;
    zr_names_t unit_names;
    zr_param_t **params; /* in order of registration, over all units */
    size_t n_params, params_capacity;
    zr_params_about_t *about; /* NULL: there are no parameters */
    size_t about_bytes;       /* of it, that are counted once it may be shared */
} zr_units_t;

/** As the calls of runtime.h, which have checked when they are made. ZR_ERR_MEMORY leaves what
 * cannot be used any more. */
ZR_NODISCARD zr_status_t zr_units_add_group(zr_units_t *model, const zr_base_t *base,
                                            const zr_group_t *group, int *group_p);
zr_status_t zr_units_change_group(zr_units_t *model, const zr_base_t *base, int number,
                                  double weight_decay, double lr_scale);
zr_status_t zr_units_change_hyper(zr_units_t *model, const zr_base_t *base, int number,
                                  const char *name, double value);
/** Its `runtime` is the caller's to set. */
ZR_NODISCARD zr_status_t zr_units_add(zr_units_t *model, const zr_base_t *base, const char *name,
                                      zr_unit_t **unit_p);
ZR_NODISCARD zr_status_t zr_units_add_param(zr_units_t *model, zr_unit_t *unit,
                                            const zr_param_desc_t *desc, zr_param_t **param_p);
/** Have what parameters are in common with other ranks of the process. After the layout. */
void zr_units_share(zr_units_t *model, const zr_base_t *base);
void zr_units_unshare(zr_units_t *model, const zr_base_t *base);
/** NULL: no parameter has the name. */
zr_param_t *zr_units_find_param(const zr_units_t *model, const char *name);
/** Lay out the flat buffers of all units. */
ZR_NODISCARD zr_status_t zr_units_lay_out(zr_units_t *model, size_t align_elems);
/** Of all that ranks have to have the same of the model: groups, units, parameters, and an
 * optimizer of the program's own. */
ZR_NODISCARD zr_status_t zr_units_hash(const zr_units_t *model, const zr_base_t *base,
                                       uint64_t *hash_p);
/** Give back the memory of tensors and the events that units have. */
void zr_units_clear(zr_units_t *model);

/** Whether this rank's shard of a flat buffer lives elsewhere than on the device. */
static inline bool zr_unit_is_offloaded(const zr_unit_t *unit, int kind) {
    return unit->data[kind].tier != ZR_TIER_DEVICE;
}

/** How a flat buffer is kept and gathered. */
static inline const zr_encoding_t *zr_unit_encoding(const zr_unit_t *unit, int kind) {
    const zr_encoding_t *own = unit->frozen_encoding;
    if (kind == FLAT_TRAINABLE)
        return zr_base_param_encoding(unit->base);
    return own != NULL ? own : zr_base_encoding(unit->base);
}

/** Whether that is not how kernels take it, so that it is decoded for them. */
static inline bool zr_unit_is_encoded(const zr_unit_t *unit, int kind) {
    return kind == FLAT_FROZEN && unit->flat[kind].padded_elems != 0 &&
           zr_unit_encoding(unit, kind) != zr_base_encoding(unit->base);
}

/** Bytes of n elements of a flat buffer as it is kept; where element `elem` of it begins, which a
 * block does. */
static inline size_t zr_unit_bytes(const zr_unit_t *unit, int kind, size_t n_elems) {
    return zr_encoding_bytes(zr_unit_encoding(unit, kind), n_elems);
}
static inline void *zr_unit_at(const zr_unit_t *unit, int kind, void *first, size_t elem) {
    return (char *)first + zr_unit_bytes(unit, kind, elem);
}

/** Whether its gradients of all micro-batches that began together have been reduced. */
static inline bool zr_unit_is_reduced(const zr_unit_t *unit) {
    return unit->n_reduced == unit->base->progress.n_together;
}

/** Before a reduction: whether it is the step's first of this unit, and whether it is the last. */
static inline bool zr_unit_begins_sum(const zr_unit_t *unit) {
    return unit->base->progress.n_begins == 1 && unit->n_reduced == 0;
}
/** Whether it is the last of those that began together. */
static inline bool zr_unit_ends_begin(const zr_unit_t *unit) {
    const zr_base_t *base = unit->base;
    return unit->n_reduced + zr_base_micro_batches_per_reduction(base) == base->progress.n_together;
}
static inline bool zr_unit_ends_sum(const zr_unit_t *unit) {
    return zr_base_is_last_micro_batch(unit->base) && zr_unit_ends_begin(unit);
}

/** Whether a flat buffer is on the device as a whole, and ranks never gather it. */
static inline bool zr_unit_keeps_full(const zr_unit_t *unit, int kind) {
    return zr_base_keeps_full_params(unit->base) ||
           (unit->base->sharding.n_shards == 1 && !zr_unit_is_offloaded(unit, kind));
}

/** Where this rank's shard of a flat buffer begins. */
static inline size_t zr_unit_own_first(const zr_unit_t *unit, int kind) {
    return (size_t)unit->base->sharding.rank * unit->flat[kind].shard_elems;
}

/** Where element `first` of the trainable flat buffer is, which this rank has on the device. */
static inline void *zr_unit_own_at(const zr_unit_t *unit, size_t first) {
    size_t own_first =
        zr_base_keeps_full_params(unit->base) ? 0 : zr_unit_own_first(unit, FLAT_TRAINABLE);
    return zr_base_at(unit->base, unit->data[FLAT_TRAINABLE].own, first - own_first);
}

/** The slice of a unit's trainable flat buffer whose state and update are this rank's. */
typedef struct zr_state_range {
    size_t first;
    size_t n_elems;
} zr_state_range_t;

static inline zr_state_range_t zr_unit_state_range(const zr_unit_t *unit) {
    const zr_flat_t *flat = &unit->flat[FLAT_TRAINABLE];
    if (unit->base->config.stage == 0)
        return (zr_state_range_t){0, flat->padded_elems};
    return (zr_state_range_t){zr_unit_own_first(unit, FLAT_TRAINABLE), flat->shard_elems};
}
