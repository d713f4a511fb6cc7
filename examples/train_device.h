/*
 * Which device a run takes.
 */
#ifndef EXAMPLES_TRAIN_DEVICE_H
#define EXAMPLES_TRAIN_DEVICE_H

#include "examples/train_options.h"
#include "zero/zero.h"

typedef struct train_device {
    const char *name; /* as zr_device_open takes it; static */
    int index;
} train_device_t;

/**
 * Find the device for --device, and see whether it can be had. "auto" is the first GPU where
 * there is one, otherwise the host, and says which it is.
 *
 * @param wanted  "auto", "host", "cuda" or "cuda:N"
 * @return ZR_OK; what opening it returns, when it is not here: logged, with what to do
 */
ZR_NODISCARD zr_status_t train_device_choose(const char *wanted, const zr_log_t *log,
                                             train_device_t *device_p);

/** Threads of each rank: as asked for, or the cores that this process may use, shared out. */
int train_device_threads(const train_options_t *options);
#endif
