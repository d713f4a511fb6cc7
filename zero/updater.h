/*
 * An optimizer for tensors that the caller owns: the library keeps only the optimizer state, in
 * host memory or on drives. It is for single-process trainers with parameters and gradients in host
 * memory; a runtime (runtime.h) also shards and gathers them.
 *
 *   zr_updater_create     for tensors of given sizes
 *   zr_updater_update     for some of them, with individual rates and hyperparameters
 *   zr_updater_read       an array of a tensor's state, and zr_updater_write
 *
 * Threads: the one that created it. After any error other than ZR_ERR_ARGUMENT it can only be
 * destroyed.
 */
#pragma once

#include "allocator/allocator.h"
#include "kernels/update.h"
#include "zero/config.h"

ZR_BEGIN_C

typedef struct zr_updater zr_updater_t;

/**
 * Create an updater; all state is 0.
 *
 * @param config   copied; only optimizer, offload_optimizer (NONE means host memory too), nvme,
 *                 sub_group_elems and budgets are used
 * @param device   with kernels on host memory, such as "host"; borrowed until destroy
 * @param log      NULL: the default
 * @param dtype    dtype of the parameters. F32: the parameters are the master, and the state has
 *                 none. BF16: the state has a master, which the caller must write once
 * @param n_elems  [n_tensors]
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED; ZR_ERR_MEMORY; ZR_ERR_BUDGET; errors of
 * zr_store_create */
ZR_NODISCARD zr_status_t zr_updater_create(const zr_config_t *config, zr_device_t *device,
                                           const zr_log_t *log, zr_dtype_t dtype,
                                           const size_t *n_elems, size_t n_tensors,
                                           zr_updater_t **updater_p);
/** NULL and *updater == NULL are fine. */
void zr_updater_destroy(zr_updater_t **updater);

/** The update of one tensor; its n_elems and arrays are ignored. param, in the updater's dtype, and
 * grad are in host memory. F32 parameters are read as well as written. */
typedef struct zr_tensor_update {
    size_t tensor;
    zr_update_t update;
} zr_tensor_update_t;

/**
 * Update some tensors, in ascending order, each once.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_IO; ZR_ERR_FORMAT if state that is read back is damaged
 */
ZR_NODISCARD zr_status_t zr_updater_update(zr_updater_t *updater, const zr_tensor_update_t *updates,
                                           size_t n_updates);

/** Read or write all values of one array of a tensor's state, numbered as in the optimizer's rule.
 * ZR_ERR_ARGUMENT also for the master, array 0, of fp32 parameters. */
ZR_NODISCARD zr_status_t zr_updater_read(zr_updater_t *updater, size_t tensor, size_t array,
                                         float *values);
ZR_NODISCARD zr_status_t zr_updater_write(zr_updater_t *updater, size_t tensor, size_t array,
                                          const float *values);

/** The allocator of the updater's host memory. */
const zr_allocator_t *zr_updater_allocator(const zr_updater_t *updater);

ZR_END_C
