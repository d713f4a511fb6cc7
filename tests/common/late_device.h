/*
 * A device for tests whose streams run late, in any order that events allow.
 */
#pragma once

#include "allocator/allocator.h"
#include "kernels/device_backend.h"

/**
 * Open a device: the host's memory and kernels, with streams that run only when somebody waits.
 * All late devices of a process draw their order together, so ranks can wait for each other.
 */
ZR_NODISCARD zr_status_t late_device_open(zr_device_t **device_p);
extern const zr_device_backend_t late_device_backend;

/** The next copy within the device on this stream fails when it is queued, in these words. */
#define LATE_DEVICE_FAILURE "late: the copy that was to fail"
void late_device_fail_copy(zr_stream_t *stream);

/** The n-th kernel or copy from now on this stream fails when it is queued. */
void late_device_fail_work(zr_stream_t *stream, int nth);

/**
 * Every free of a program with late devices comes here first (--wrap). It ends the program where
 * queued work uses the memory and does not come before what it is freed behind: `stream`, or what
 * has passed (NULL).
 */
void late_device_check_free(zr_allocator_t *allocator, const void *pointer,
                            const zr_stream_t *stream);

/** From now on the waits of all late devices are ignored: what a schedule without events does. */
void late_device_ignore_waits(bool ignore);
/** Draw other orders than so far: for a process that was forked from one that draws the same. */
void late_device_draw_anew(unsigned seed);

