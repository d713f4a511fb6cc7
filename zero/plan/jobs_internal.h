/*
 * Independent jobs on all cores, with the result of doing them one after the other.
 */
#pragma once

#include <stddef.h>

#include "kernels/base/log.h"

typedef struct zr_run_jobs {
    size_t n;
    /* Job `index`; several run at once. One that fails may be run a second time. */
    zr_status_t (*run)(void *context, size_t index, const zr_log_t *log);
    void *context;
    size_t n_threads; /* with the caller's; 0: one per core */
} zr_run_jobs_t;

/**
 * Do them all, and wait for it.
 *
 * @param log  what a job logs reaches it only if it fails, and no job before it does
 * @return ZR_OK; what the first job that fails returns: those behind it may not have run
 */
ZR_NODISCARD zr_status_t zr_run_jobs(const zr_run_jobs_t *jobs, const zr_log_t *log);
