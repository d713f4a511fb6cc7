/*
 * Initial values from a checkpoint, while a runtime is committed; and what a runtime does of
 * checkpoints when it ends. Internal to zero/.
 */
#ifndef ZR_ZERO_CHECKPOINT_RESTORE_H
#define ZR_ZERO_CHECKPOINT_RESTORE_H

#include "zero/checkpoint/checkpoint.h"

/** Find the tensor of each parameter, and take the counters. Where nothing is restored it, and
 * zr_restore_end, do nothing. */
ZR_NODISCARD zr_status_t zr_restore_begin(zr_runtime_t *runtime);
/** Elements of one of a parameter's arrays; of the first: its value. */
ZR_NODISCARD zr_status_t zr_restore_values(const zr_param_t *param, size_t array, size_t first,
                                           size_t n_elems, float *values);
void zr_restore_end(zr_runtime_t *runtime);

/** save_memory.c: take what saving will need, where saves are expected. At the end of commit. */
ZR_NODISCARD zr_status_t zr_saves_reserve(zr_runtime_t *runtime);
/** save.c: give a checkpoint up that was begun, if there is one; waits for its thread. And what
 * saving would have needed. */
void zr_saving_destroy(zr_runtime_t *runtime);

#endif
