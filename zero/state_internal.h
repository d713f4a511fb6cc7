/*
 * The optimizer state of a rank: the arrays of its optimizer (optim/optimizer.h) of what it
 * updates, in pieces that live on the device, in host memory or in a store
 * (offload/placement_internal.h). Internal to zero/.
 *
 * A piece's arrays lie one behind the other, so that it is one transfer. A piece on the device is
 * updated there; any other on the host, by the host's kernels, from gradients that are brought
 * down and into parameters that are brought up, where the CPU cannot touch the device's memory; or
 * on the device, in buffers that it passes through (state_device.c).
 */
#pragma once

#include "offload/placement_internal.h"
#include "offload/swap_internal.h"
#include "zero/grads_internal.h"
#include "zero/optim/optimizer.h"
#include "zero/params_internal.h"

/* Largest sub-group of what is offloaded, if config's sub_group_elems is not less. */
#define ZR_STATE_GROUP_ELEMS ((size_t)1 << 20)
#define ZR_STATE_N_SLOTS 2
#define ZR_STATE_N_STAGES 2

/* Gradients and parameters of a piece on the host, where the CPU cannot touch the device's. */
typedef struct zr_state_slot {
    void *grads;
    void *params;
    zr_event_t *grads_there;  /* passes when the gradients have come down */
    zr_event_t *params_taken; /* passes when the parameters have gone up */
} zr_state_slot_t;

/* A piece's state on the device, while it is updated there (state_device.c). */
typedef struct zr_state_stage {
    void *state;         /* a piece's arrays */
    void *grads;         /* [n_elems], where gradients wait in host memory */
    zr_event_t *there;   /* passes when they have come up */
    zr_event_t *updated; /* when they are no longer needed, but for the state's way back */
    zr_event_t *gone;    /* when the state is back */
} zr_state_stage_t;

/* Where what is not on the device is updated, and why. */
typedef struct zr_update_choice {
    bool is_on_device;
    bool was_measured; /* what follows says something */
    double host_elems_per_s;
    double device_elems_per_s;
} zr_update_choice_t;

typedef struct zr_state {
    const zr_base_t *base;
    const zr_units_t *model;
    zr_copies_t *copies;
    zr_grads_t *grads;
    zr_params_t *params;
    zr_update_rule_t own_rule;
    const zr_update_rule_t *rule; /* of the optimizer, with what outer steps keep */
    zr_update_rule_t update_rule; /* without */
    zr_update_rule_t saved_rule;  /* as checkpoints have it: with the master in fp32 */
    size_t align_elems;           /* whole blocks of all of its arrays */
    zr_placement_t placement;     /* its tensors are the units, by index */
    size_t *lowered;              /* [n_lowered] pieces that are not on the device, in order */
    size_t *first_lowered;        /* [units + 1] of each unit */
    size_t n_lowered;

    zr_store_t *store;    /* the runtime's; NULL: nothing is on NVMe */
    zr_extents_t extents; /* of the units, by index */
    zr_swap_t *swap;
    zr_swap_item_t *items; /* [n_items] the pieces on NVMe, in order */
    size_t n_items;

    zr_device_t *own_host; /* NULL: the runtime's device works on host memory, or nobody has to */
    zr_stream_t *own_host_stream;
    zr_stream_t *host; /* own_host_stream, or the compute stream */

    zr_update_choice_t choice;
    /* Where updates may be taken back there are two sides of all state, equally large: an update
     * reads the one that is in force, and writes the other. On device and host they lie one behind
     * the other, in the store there are extents of each. */
    size_t n_sides, side;
    zr_state_slot_t slots[ZR_STATE_N_SLOTS];    /* updates on the host */
    zr_state_stage_t stages[ZR_STATE_N_STAGES]; /* updates on the device */
    /* Each of one stream alone, so that its records pass in order. */
    zr_event_t *params_up;            /* of the stream up */
    uint64_t n_early;                 /* pieces that were updated in backward */
    size_t n_updated;                 /* of the lowered pieces, in this update */
    size_t next_lowered, end_lowered; /* whose gradients come down for it from the device */
    size_t n_brought;                 /* of them, so far */

    zr_store_count_t update_count[ZR_N_STORE_DIRECTIONS];
    double update_wait_seconds[ZR_N_STORE_DIRECTIONS];
    double update_seconds;        /* of updates, with everything that they wait for */
    zr_store_statistics_t before; /* at the beginning of this update */
    bool writes_behind;           /* the last writes of an update in backward end later */
    double begin_seconds;
} zr_state_t;

/* What is the same for all pieces of an update. */
typedef struct zr_state_update {
    zr_update_t args;
    double lr;
} zr_state_update_t;

/** Take the optimizer's rule, and say how the layout has to be aligned for it. */
ZR_NODISCARD zr_status_t zr_state_prepare(zr_state_t *state);
/** Place the state of all units, and declare what of it the store will have. After the layout. */
ZR_NODISCARD zr_status_t zr_state_place(zr_state_t *state, zr_nvme_t *nvme);
/** Make what holds and moves it, but for the memory of units.
 * @param store  open; borrowed until destroy */
ZR_NODISCARD zr_status_t zr_state_create(zr_state_t *state, zr_store_t *store);
/** Allocate what a unit has of it on device and host; all of it is 0. */
ZR_NODISCARD zr_status_t zr_state_allocate_unit(const zr_state_t *state, zr_unit_t *unit);
/** Free everything but the memory of units. Nothing of it is in use. */
void zr_state_destroy(zr_state_t *state);

/** Before and after the initial values of all units, in order, are set. */
ZR_NODISCARD zr_status_t zr_state_begin_fill(zr_state_t *state);
ZR_NODISCARD zr_status_t zr_state_end_fill(zr_state_t *state);
/** How many of n_elems from element `first` of the flat buffer lie in one piece, or in none. */
size_t zr_state_cut(const zr_state_t *state, const zr_unit_t *unit, size_t first, size_t n_elems);
/** Initial values of elements that zr_state_cut leaves together. */
typedef struct zr_state_values {
    size_t first; /* of the flat buffer's elements */
    size_t n_elems;
    size_t array; /* of the rule's; 0: the master */
    bool is_last; /* of the arrays that are set for these elements; the others become 0 */
    const float *host, *device; /* the values, on both; of a split master what the state has of it
                                   is set, and the parameters are the caller's to set */
} zr_state_values_t;

/** Where an element of an array is in the state of a piece, whose first element it counts from. It
 * begins a block. */
static inline void *zr_state_at(const zr_state_t *state, const zr_piece_t *piece, void *arrays,
                                size_t array, size_t elem) {
    return (char *)arrays + zr_state_array_offset(state->rule, array, piece->n_elems) +
           zr_encoding_bytes(state->rule->arrays[array].encoding, elem);
}

/** Where a piece on device or host has its state, of one side. */
static inline void *zr_state_resident(const zr_state_t *state, const zr_unit_t *unit,
                                      const zr_piece_t *piece, size_t side) {
    size_t of_side = state->placement.tensor_bytes[unit->index][piece->tier];
    return (char *)unit->state[piece->tier] + side * of_side + piece->offset_bytes;
}

/** The extents of units, by index, of the side that is in force. */
static inline size_t zr_state_first_extent(const zr_state_t *state) {
    return state->extents.first + state->side * state->model->n_units;
}

static inline const zr_encoding_t *zr_state_encoding(const zr_state_t *state, size_t array) {
    return state->rule->arrays[array].encoding;
}

/** Whether the master, array 0, is split: what the state has of it may be nothing. */
static inline bool zr_state_splits(const zr_state_t *state) {
    return state->own_rule.splits_master;
}

/** Bytes of a piece in checkpoints. */
static inline size_t zr_state_saved_bytes(const zr_state_t *state, const zr_piece_t *piece) {
    return zr_state_bytes(&state->saved_rule, piece->n_elems);
}

/** With outer steps: the first of their arrays. */
static inline size_t zr_state_anchor(const zr_state_t *state) {
    return state->update_rule.n_arrays;
}

/** Elements of the largest piece that is not on the device. */
static inline size_t zr_state_largest_moved(const zr_state_t *state) {
    size_t on_host = state->placement.largest_elems[ZR_TIER_HOST];
    size_t on_nvme = state->placement.largest_elems[ZR_TIER_NVME];
    return on_host > on_nvme ? on_host : on_nvme;
}

/** Set initial values. Elements that are not this rank's are passed over. Work is queued on the
 * compute stream. */
ZR_NODISCARD zr_status_t zr_state_fill(zr_state_t *state, zr_unit_t *unit,
                                       const zr_state_values_t *values);

/** New values of an array, outside of updates. Elements that are not this rank's are passed over.
 * Nothing that uses them is queued; work on the device is queued on the compute stream. */
ZR_NODISCARD zr_status_t zr_state_write(zr_state_t *state, zr_unit_t *unit,
                                        const zr_state_values_t *values);

/**
 * Queue the values of an array of elements [first, first + n_elems) of the flat buffer, which are
 * this rank's, to device memory, on the compute stream.
 *
 * @param host  [n_elems] what is not in fp32 on the device may pass through
 */
ZR_NODISCARD zr_status_t zr_state_read(zr_state_t *state, const zr_unit_t *unit, size_t array,
                                       size_t first, size_t n_elems, float *device, float *host);

/**
 * The same of a split master. What passes through `host` is waited for.
 *
 * @param first  of this rank's elements; in the piece, as all of them
 * @param kept   what the state has of them, where the piece lives or in host memory
 */
ZR_NODISCARD zr_status_t zr_state_join(zr_state_t *state, const zr_piece_t *piece, size_t first,
                                       size_t n_elems, const void *kept, float *device,
                                       float *host);

/** Before it is known whether there will be an update: what the first pieces have in a store is
 * read, as far as there are buffers. zr_state_begin_update or zr_state_skip_update follows.
 * @param in_backward  gradients come from the reductions that the updates follow */
ZR_NODISCARD zr_status_t zr_state_read_ahead(zr_state_t *state, bool in_backward);
/** There is none: nothing has changed. */
ZR_NODISCARD zr_status_t zr_state_skip_update(zr_state_t *state);
/** The pieces on NVMe, in the order in which these units will be gone through; or in which units
 * are likely to be updated. */
void zr_state_list_items(zr_state_t *state, zr_unit_t *const *units, size_t n_units);
void zr_state_list_updates(zr_state_t *state);

/**
 * An update: begin, every unit in order, end, and where there are two sides turn. Queued on
 * compute, as far as it runs there.
 */
ZR_NODISCARD zr_status_t zr_state_begin_update(zr_state_t *state);
ZR_NODISCARD zr_status_t zr_state_update_unit(zr_state_t *state, zr_unit_t *unit,
                                              const zr_state_update_t *update);
ZR_NODISCARD zr_status_t zr_state_end_update(zr_state_t *state);
/** The last writes of an update in backward, which end behind it, have ended. */
ZR_NODISCARD zr_status_t zr_state_settle(zr_state_t *state);
/** The state that was updated is in force from now on. Without this it is as before the update,
 * which may be made again. */
void zr_state_turn(zr_state_t *state);
/** The order of updates: of units, or, where they follow reductions, of those. */
zr_unit_t *const *zr_state_order(const zr_state_t *state, size_t *n_units_p);
/** As zr_state_update_unit, of a unit that was just reduced, while backward of others goes on. */
ZR_NODISCARD zr_status_t zr_state_update_in_backward(zr_state_t *state, zr_unit_t *unit,
                                                     const zr_state_update_t *update);
/** state_device.c: decide where what is not on the device is updated. With streams to it. */
ZR_NODISCARD zr_status_t zr_state_choose(zr_state_t *state);
ZR_NODISCARD zr_status_t zr_state_create_stages(zr_state_t *state);
void zr_state_destroy_stages(zr_state_t *state);
/**
 * Queue a piece's way to the device; compute waits for it.
 *
 * @param host_grads  its gradients, where they are in host memory; NULL: they are on the device
 */
ZR_NODISCARD zr_status_t zr_state_bring_up(zr_state_t *state, const zr_piece_t *piece,
                                           const void *arrays, const void *host_grads,
                                           zr_state_stage_t **stage_p);
/** And its way back, behind what compute does with it. */
ZR_NODISCARD zr_status_t zr_state_send_back(zr_state_t *state, const zr_piece_t *piece,
                                            zr_state_stage_t *stage, void *arrays);

/** Work queued on `later` from now on finds the parameters of the units updated so far. */
ZR_NODISCARD zr_status_t zr_state_order_params(zr_state_t *state, zr_stream_t *later);
/** As zr_runtime_offload. */
void zr_state_report(const zr_state_t *state, zr_offload_report_t *report_p);
