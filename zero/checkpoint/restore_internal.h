/*
 * Initial values from a checkpoint, while a runtime is committed; and what a runtime does of
 * checkpoints when it ends. Internal to zero/.
 */
#pragma once

#include "zero/checkpoint/carried_internal.h"
#include "zero/checkpoint/checkpoint.h"
#include "zero/exchange_internal.h"
#include "zero/state_internal.h"

/* Where initial values come from, until commit returns. */
typedef struct zr_restore {
    const zr_checkpoint_t *checkpoint; /* NULL: from fill functions */
    zr_checkpoint_reader_t *reader;
} zr_restore_t;

/** Find the tensor of each parameter, and take the counters. Where nothing is restored it, and
 * zr_restore_end, do nothing. */
ZR_NODISCARD zr_status_t zr_restore_begin(zr_restore_t *restore, const zr_units_t *model,
                                          zr_base_t *base);
/** Whether there is a checkpoint, and it has this array of a parameter. */
bool zr_restore_has_array(const zr_restore_t *restore, size_t tensor, size_t array);
void zr_restore_end(zr_restore_t *restore);

/* Checkpoints to come: what they need is held (save_memory.c). And the one that was begun. */
typedef struct zr_saves {
    const zr_base_t *base;
    zr_exchange_t *exchange;
    bool are_expected;
    bool go_on; /* with a copy, so that the run goes on while it is written */
    bool said_no_room;
    size_t memory_bytes;
    void *memory; /* NULL: there is none */
    char *linked; /* the newest checkpoint with the frozen parameters that are linked; owned.
                     NULL: none are */
    struct zr_saving *saving; /* or NULL */
    zr_carried_t carried;     /* into each; of rank 0 */
} zr_saves_t;

/** save_base.c: what saves will link, and whether what is frozen can be saved: ZR_ERR_ARGUMENT,
 * ZR_ERR_UNSUPPORTED, logged. While the checkpoint that values come from is there. */
ZR_NODISCARD zr_status_t zr_saves_prepare(zr_saves_t *saves, const zr_restore_t *restore,
                                          const zr_units_t *model);
/** save_base.c: ZR_ERR_UNSUPPORTED, logged, where frozen parameters would have to be saved that are
 * kept in an encoding. */
ZR_NODISCARD zr_status_t zr_saves_check_encoded(const zr_units_t *model, const zr_base_t *base);
/** save_memory.c: take what saving will need, where saves are expected. At the end of commit. */
ZR_NODISCARD zr_status_t zr_saves_reserve(zr_saves_t *saves, zr_state_t *state);
/** save.c: give a checkpoint up that was begun, if there is one; waits for its thread. And what
 * saving would have needed. */
void zr_saves_destroy(zr_saves_t *saves);
