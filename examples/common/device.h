/*
 * Which device a program takes, and how many threads.
 */
#pragma once

#include "zero/zero.h"

typedef struct device_choice {
    const char *name; /* as zr_device_open takes it; static */
    int index;
} device_choice_t;

/** Whether a value of --device is one, had or not. ZR_ERR_ARGUMENT: logged. */
ZR_NODISCARD zr_status_t device_check(const char *wanted, const zr_log_t *log);

/**
 * Find the device for --device, and see whether it can be had. "auto" is the first GPU where
 * there is one, otherwise the host, and says which it is.
 *
 * @param wanted  "auto", "host", "cuda" or "cuda:N"
 * @return ZR_OK; what opening it returns, when it is not here: logged, with what to do
 */
ZR_NODISCARD zr_status_t device_choose(const char *wanted, const zr_log_t *log,
                                       device_choice_t *device_p);

/** What zr_nn_attention_open does on a device that is opened for it. */
ZR_NODISCARD zr_status_t device_attention(const device_choice_t *choice, zr_nn_engine_t engine,
                                          const zr_log_t *log, zr_nn_engine_info_t *info_p);

/** Cores that this process may use. */
int device_cores(void);
/** Threads of each rank: as asked for, or with 0 those cores, shared out. */
int device_threads(size_t n_wanted, int n_ranks);
