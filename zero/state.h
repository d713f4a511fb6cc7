/*
 * The optimizer state of a rank: the arrays of its optimizer (optim/optimizer.h) of what it
 * updates, in pieces that live on the device, in host memory or in a store (offload/placement.h).
 * Internal to zero/.
 *
 * A piece's arrays lie one behind the other, so that it is one transfer. A piece on the device is
 * updated there; any other on the host, by the host's kernels, from gradients that are brought
 * down and into parameters that are brought up, where the CPU cannot touch the device's memory; or
 * on the device, in buffers that it passes through (state_device.c).
 */
#ifndef ZR_ZERO_STATE_H
#define ZR_ZERO_STATE_H

#include "offload/placement.h"
#include "offload/swap.h"
#include "zero/optim/optimizer.h"
#include "zero/runtime.h"

/* Largest sub-group of what is offloaded, if config's sub_group_elems is not less. */
#define ZR_STATE_GROUP_ELEMS ((size_t)1 << 20)
#define ZR_STATE_N_COPIES 2
#define ZR_STATE_N_STAGES 2

/* Gradients and parameters of a piece on the host, where the CPU cannot touch the device's. */
typedef struct zr_state_copy {
    void *grads;
    void *params;
    zr_event_t *grads_there;  /* passes when the gradients have come down */
    zr_event_t *params_taken; /* passes when the parameters have gone up */
} zr_state_copy_t;

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
    const zr_update_rule_t *rule; /* of the optimizer */
    zr_placement_t placement;     /* its tensors are the units, by index */
    size_t *lowered;              /* [n_lowered] pieces that are not on the device, in order */
    size_t n_lowered;

    zr_store_t *store;    /* the runtime's; NULL: nothing is on NVMe */
    zr_extents_t extents; /* of the units, by index */
    zr_swap_t *swap;
    zr_swap_item_t *items; /* [n_items] the pieces on NVMe, in order */
    size_t n_items;

    zr_device_t *own_host; /* NULL: the runtime's device works on host memory, or nobody has to */
    zr_stream_t *own_host_stream;
    zr_stream_t *host; /* own_host_stream, or the compute stream */

    bool has_copies;
    zr_update_choice_t choice;
    zr_state_copy_t copies[ZR_STATE_N_COPIES];  /* updates on the host */
    zr_state_stage_t stages[ZR_STATE_N_STAGES]; /* updates on the device */
    zr_stream_t *down;                          /* gradients to the host; state back to it */
    zr_stream_t *up;                            /* parameters to the device; state */
    /* Each of one stream alone, so that its records pass in order. */
    zr_event_t *grads_reduced; /* of the transfer stream */
    zr_event_t *all_down;      /* of `down` */
    zr_event_t *params_up;     /* of `up` */
    zr_event_t *backward_done; /* of compute */
    uint64_t n_early;          /* pieces that were updated before that */
    size_t n_updated;          /* of the lowered pieces, in this update */

    uint64_t copied_down_bytes;
    uint64_t copied_up_bytes;
    zr_store_count_t update_count[ZR_N_STORE_DIRECTIONS];
    double update_wait_seconds[ZR_N_STORE_DIRECTIONS];
    double update_seconds;        /* of updates, with everything that they wait for */
    zr_store_statistics_t before; /* at the beginning of this update */
    double begin_seconds;
} zr_state_t;

/* What is the same for all pieces of an update. */
typedef struct zr_state_update {
    zr_update_t args;
    double lr;
} zr_state_update_t;

/** Place the state of all units, and declare what of it the store will have. After the layout. */
ZR_NODISCARD zr_status_t zr_state_place(zr_runtime_t *runtime);
/** Make what holds and moves it, but for the memory of units. The store is open. */
ZR_NODISCARD zr_status_t zr_state_create(zr_runtime_t *runtime);
/** Allocate what a unit has of it on device and host; all of it is 0. */
ZR_NODISCARD zr_status_t zr_state_allocate_unit(zr_unit_t *unit);
/** Free everything but the memory of units. Nothing of it is in use. */
void zr_state_destroy(zr_runtime_t *runtime);

/** Before and after the initial values of all units, in order, are set. */
ZR_NODISCARD zr_status_t zr_state_begin_fill(zr_runtime_t *runtime);
ZR_NODISCARD zr_status_t zr_state_end_fill(zr_runtime_t *runtime);
/** How many of n_elems from element `first` of the flat buffer lie in one piece, or in none. */
size_t zr_state_cut(const zr_unit_t *unit, size_t first, size_t n_elems);
/** Initial values of elements that zr_state_cut leaves together. */
typedef struct zr_state_values {
    size_t first; /* of the flat buffer's elements */
    size_t n_elems;
    size_t array; /* of the rule's; 0: the master */
    bool is_last; /* of the arrays that are set for these elements; the others become 0 */
    const float *host, *device; /* the values, on both */
} zr_state_values_t;

/** Where an element of an array is in the state of a piece, whose first element it counts from. It
 * begins a block. */
static inline void *zr_state_at(const zr_state_t *state, const zr_piece_t *piece, void *arrays,
                                size_t array, size_t elem) {
    return (char *)arrays + zr_state_array_offset(state->rule, array, piece->n_elems) +
           zr_encoding_bytes(state->rule->arrays[array].encoding, elem);
}

static inline const zr_encoding_t *zr_state_encoding(const zr_state_t *state, size_t array) {
    return state->rule->arrays[array].encoding;
}

/** Elements of the largest piece of a tier. */
static inline size_t zr_state_largest_elems(const zr_state_t *state, zr_tier_t tier) {
    size_t bytes = state->placement.largest_bytes[tier]; /* 0, also before the rule is known */
    return bytes != 0 ? bytes / zr_state_bytes(state->rule, 1) : 0;
}

/** Set initial values. Elements that are not this rank's are passed over. Work is queued on the
 * compute stream. */
ZR_NODISCARD zr_status_t zr_state_fill(zr_unit_t *unit, const zr_state_values_t *values);

/** Queue copies of the master of elements [first, first + n_elems) of the flat buffer, which are
 * this rank's, to device memory, on the compute stream. */
ZR_NODISCARD zr_status_t zr_state_read(zr_unit_t *unit, size_t first, size_t n_elems,
                                       float *device);

/** Before it is known whether there will be an update: what the first pieces have in a store is
 * read, as far as there are buffers. zr_state_begin_update or zr_state_skip_update follows. */
ZR_NODISCARD zr_status_t zr_state_read_ahead(zr_runtime_t *runtime);
/** There is none: nothing has changed. */
ZR_NODISCARD zr_status_t zr_state_skip_update(zr_runtime_t *runtime);
/** The pieces on NVMe, in the order in which these units will be gone through. */
void zr_state_list_items(zr_runtime_t *runtime, zr_unit_t *const *units, size_t n_units);

/**
 * An update: begin, every unit in order, end. Queued on compute, as far as it runs there. Early,
 * where zr_rt_may_update_early: before backward has ended, in the order of the reductions.
 */
ZR_NODISCARD zr_status_t zr_state_begin_update(zr_runtime_t *runtime);
ZR_NODISCARD zr_status_t zr_state_update_unit(zr_unit_t *unit, const zr_state_update_t *update);
ZR_NODISCARD zr_status_t zr_state_end_update(zr_runtime_t *runtime);
/** state_device.c: decide where what is not on the device is updated. With streams to it. */
ZR_NODISCARD zr_status_t zr_state_choose(zr_runtime_t *runtime);
ZR_NODISCARD zr_status_t zr_state_create_stages(zr_runtime_t *runtime);
void zr_state_destroy_stages(zr_runtime_t *runtime);
/**
 * Queue a piece's way to the device; compute waits for it.
 *
 * @param host_grads  its gradients, where they are in host memory; NULL: they are on the device
 */
ZR_NODISCARD zr_status_t zr_state_bring_up(zr_runtime_t *runtime, const zr_piece_t *piece,
                                           const void *state, const void *host_grads,
                                           zr_state_stage_t **stage_p);
/** And its way back, behind what compute does with it. */
ZR_NODISCARD zr_status_t zr_state_send_back(zr_runtime_t *runtime, const zr_piece_t *piece,
                                            zr_state_stage_t *stage, void *state);

/** Compute goes on behind what has been queued to go down. */
ZR_NODISCARD zr_status_t zr_state_order_down(zr_runtime_t *runtime);
/** Work queued on `later` from now on finds the parameters of the units updated so far. */
ZR_NODISCARD zr_status_t zr_state_order_params(zr_runtime_t *runtime, zr_stream_t *later);

#endif
