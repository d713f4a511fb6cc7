/*
 * Updates of tensors that stay the caller's: an optimizer whose state alone is the library's, in
 * host memory or on drives. For a trainer of its own, in one process, that has parameters and
 * gradients in host memory already; a runtime (runtime.h) shards and gathers them as well.
 *
 *   zr_updater_create     for so many tensors of these sizes
 *   zr_updater_update     for some of them, with rates and numbers of each
 *   zr_updater_read       an array of a tensor's state, and zr_updater_write
 *
 * Threads: one, that which made it. After an error of any call but for arguments it can only be
 * destroyed.
 */
#pragma once

#include "allocator/allocator.h"
#include "kernels/update.h"
#include "zero/config.h"

ZR_BEGIN_C

typedef struct zr_updater zr_updater_t;

/**
 * Make one; all state is 0.
 *
 * @param config   optimizer, offload_optimizer (none means the host, too), nvme, sub_group_elems
 * and budgets are its; the rest is ignored. Copied
 * @param device   with kernels on host memory, such as "host"; borrowed until destroy
 * @param log      NULL: the default
 * @param dtype    of the parameters. F32: they are their own master, which the state then lacks.
 *                 BF16: the state has one, whose values have to be written once
 * @param n_elems  [n_tensors]
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_UNSUPPORTED; ZR_ERR_MEMORY; ZR_ERR_BUDGET; what
 *         zr_store_create returns
 */
ZR_NODISCARD zr_status_t zr_updater_create(const zr_config_t *config, zr_device_t *device,
                                           const zr_log_t *log, zr_dtype_t dtype,
                                           const size_t *n_elems, size_t n_tensors,
                                           zr_updater_t **updater_p);
/** NULL and *updater == NULL are fine. */
void zr_updater_destroy(zr_updater_t **updater);

/** Of a tensor: an update but for its n_elems and arrays, which are ignored. param, of the
 * updater's dtype, and grad are in host memory; param is read, too, where it is its own master. */
typedef struct zr_tensor_update {
    size_t tensor;
    zr_update_t update;
} zr_tensor_update_t;

/**
 * Update some tensors, in ascending order, each once.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_IO; ZR_ERR_FORMAT when state is not what was put
 */
ZR_NODISCARD zr_status_t zr_updater_update(zr_updater_t *updater, const zr_tensor_update_t *updates,
                                           size_t n_updates);

/** All values of an array of a tensor's state, as the optimizer's rule numbers them.
 * ZR_ERR_ARGUMENT also for the master, array 0, of fp32 parameters. */
ZR_NODISCARD zr_status_t zr_updater_read(zr_updater_t *updater, size_t tensor, size_t array,
                                         float *values);
ZR_NODISCARD zr_status_t zr_updater_write(zr_updater_t *updater, size_t tensor, size_t array,
                                          const float *values);

/** What it holds in host memory. */
const zr_allocator_t *zr_updater_allocator(const zr_updater_t *updater);

ZR_END_C
