/*
 * The threads of a host device, which share the work of one kernel.
 */
#pragma once

#include <stddef.h>

#include "kernels/device.h"

/** Threads of a host device at most. */
#define ZR_HOST_MAX_THREADS 1024

/**
 * Run task(context, 0) to task(context, n_tasks - 1) on the device's threads, the caller's
 * among them, in any order; return when all are done.
 *
 * @param device  a host device, also that of the stream which a queued function is handed: on the
 *                caller's thread alone then, while the device's threads are at something else
 *
 * Threads: the device's own, or that of its stream; not from within a task. Allocates nothing. What
 * the caller wrote before is visible to the tasks, and what they wrote to the caller afterwards.
 */
void zr_host_parallel_for(zr_device_t *device, size_t n_tasks,
                          void (*task)(void *context, size_t index), void *context);

/**
 * The same for any device, also from within a task and from any thread: without the device's
 * threads while they are at something else, and where a device that is not the host has none.
 */
void zr_host_share_tasks(zr_device_t *device, size_t n_tasks,
                         void (*task)(void *context, size_t index), void *context);

/* ---- for the host device itself ------------------------------------------------ */

typedef struct zr_host_pool zr_host_pool_t;

/**
 * Start n_threads - 1 threads; the caller of zr_host_pool_run is the last one.
 *
 * @return ZR_OK; ZR_ERR_MEMORY when the system refuses memory or a thread
 */
ZR_NODISCARD zr_status_t zr_host_pool_create(const zr_log_t *log, int n_threads,
                                             zr_host_pool_t **pool_p);
void zr_host_pool_destroy(zr_host_pool_t **pool);
/**
 * As zr_host_parallel_for. Callers in several threads take turns.
 *
 * @param is_beside  do not wait for one's turn: work without the pool's threads instead
 */
void zr_host_pool_run(zr_host_pool_t *pool, bool is_concurrent, size_t n_tasks,
                      void (*task)(void *context, size_t index), void *context);
