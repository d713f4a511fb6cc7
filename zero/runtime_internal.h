/*
 * The runtime: what its parts are, and who is responsible for what. Each part has a header, and
 * functions that take the part. Only what brings parts together sees all of them: runtime.c (life
 * of the object), unit.c (acquire, release), step.c (norm, update, publish), initial.c (initial
 * values), inspect.c (hash, read), write.c, and checkpoint/save.c and restore.c.
 */
#pragma once

#include "zero/checkpoint/restore_internal.h"
#include "zero/encoded_internal.h"
#include "zero/exchange_internal.h"
#include "zero/nvme_internal.h"
#include "zero/state_internal.h"

/* Acquires with parameters, in order: recorded, then prefetched along (unit.c). */
typedef struct zr_gather_order {
    zr_unit_t **units; /* [n] */
    size_t n, capacity;
    size_t position;
} zr_gather_order_t;

typedef struct zr_gathers {
    zr_gather_order_t orders[2]; /* of a micro-batch, and of an evaluation's */
    size_t n_elems;              /* gathered, of all units, now */
} zr_gathers_t;

struct zr_runtime {
    bool committed;
    zr_status_t failed; /* the first error: nothing but destroy is allowed after it */
    zr_base_t base;
    zr_units_t model;
    zr_exchange_t exchange;
    zr_gathers_t gathers;
    zr_copies_t copies;
    zr_grads_t grads;
    zr_params_t params; /* that are offloaded */
    zr_state_t state;   /* the optimizer's */
    zr_unit_t *behind;  /* reduced, and updated behind the next reduction (step.c); or NULL */
    bool reads_ahead;   /* of this step: the state of the first units to be updated in backward */
    bool is_updating;   /* in backward: some units of this step are */
    zr_nvme_t nvme;     /* the store of all that is kept in one */
    zr_restore_t restore;
    zr_saves_t saves;
    double optimizer_seconds;
};

/** Keep the first error; hand the status on. */
zr_status_t zr_rt_note(zr_runtime_t *runtime, zr_status_t status) ZR_NODISCARD;

/** ZR_OK when the runtime is committed and has not failed; otherwise logs `call`. */
ZR_NODISCARD zr_status_t zr_rt_check_ready(const zr_runtime_t *runtime, const char *call);
/** The same, also outside of micro-batches. */
ZR_NODISCARD zr_status_t zr_rt_check_outside(const zr_runtime_t *runtime, const char *call);
/** inspect.c: the same, and the parameter has these elements. */
ZR_NODISCARD zr_status_t zr_rt_check_param(const zr_param_t *param, const char *call, size_t first,
                                           size_t n_elems);
/** inspect.c: how many of n_left elements from `first` are of one shard, and fit staging. */
size_t zr_unit_piece_length(const zr_unit_t *unit, int kind, size_t first, size_t n_left);

/** unit.c: let transfers to and from drives go on; of zr_background, while a block computes. */
void zr_rt_keep_moving(void *runtime);

/** write.c: wait until nothing that uses parameters or state is queued any more. */
ZR_NODISCARD zr_status_t zr_rt_await_all(const zr_runtime_t *runtime);

/** Before commit, of a simulated rank: initial values are not brought to where they live, which
 * takes time and changes no memory. */
void zr_runtime_leave_out_values(zr_runtime_t *runtime);

/** Before commit, or between steps, of a simulated rank: whether times are not asked for until the
 * next call. Then pieces of a unit that are alike are worked through once, and stores move nothing;
 * memory is as ever. */
ZR_NODISCARD zr_status_t zr_runtime_do_alike_once(zr_runtime_t *runtime, bool does);

/** Before commit, of a simulated rank: its run stands for one of thousands of units, and its
 * streams wait for memory as those of that one do. */
void zr_runtime_stand_for_longer(zr_runtime_t *runtime);

/** buffers.c: numbers of staging buffers that are left to the run. After everything is placed. */
void zr_buffers_choose(zr_runtime_t *runtime);

/** initial.c: bring initial values of a flat buffer to where they live. */
ZR_NODISCARD zr_status_t zr_initial_place(zr_runtime_t *runtime, zr_unit_t *unit, int kind);

/** unit.c: warn if most units are too large to be prefetched. */
void zr_unit_warn_of_prefetch(const zr_runtime_t *runtime);
/** unit.c: give back gathered parameters of a unit that is not acquired, if it has any. Their
 * gather and their uses have been waited for. */
void zr_unit_drop_gathered(zr_runtime_t *runtime, zr_unit_t *unit);
/** write.c: make this rank's trainable parameters of a unit from their masters. Nothing that uses
 * them is under way. */
ZR_NODISCARD zr_status_t zr_unit_take_masters(zr_unit_t *unit);
/** step.c: at stages 1 and 2 all ranks of a group get what each has written of a unit: by an
 * update, or on the compute stream. */
ZR_NODISCARD zr_status_t zr_step_publish(zr_state_t *state, const zr_unit_t *unit, bool is_update);
/** step.c: read the state of the first units that are to be updated in backward, if it is not yet.
 */
ZR_NODISCARD zr_status_t zr_step_read_ahead(zr_runtime_t *runtime);
/** step.c: a unit was reduced for the last time in this step, and is to be updated in backward. */
ZR_NODISCARD zr_status_t zr_step_follow(zr_runtime_t *runtime, zr_unit_t *unit);
/** step_extra.c: after an update, or without one: parameters that were left out are not any more.
 */
void zr_unit_take_in(zr_unit_t *unit, bool is_updated);
/** unit.c: begin micro-batches that zr_runtime_begin_micro_batches would not refuse. */
ZR_NODISCARD zr_status_t zr_rt_begin(zr_runtime_t *runtime, size_t n);
/** unit.c: logs that a unit with gradients was not reduced in this micro-batch. */
ZR_NODISCARD zr_status_t zr_unit_check_reduced(const zr_unit_t *unit);
