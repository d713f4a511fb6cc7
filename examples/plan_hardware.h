/*
 * The hardware that --hardware names.
 */
#ifndef EXAMPLES_PLAN_HARDWARE_H
#define EXAMPLES_PLAN_HARDWARE_H

#include "examples/train_options.h"

/**
 * Find a description.
 *
 * @param which    "this"; a file, which has a '/' or ends in ".json"; or the name of one that lies
 *                 in share/libzero/hardware beside the program's folder
 * @param options  of "this": see this_machine_describe
 * @return ZR_OK; ZR_ERR_ARGUMENT for a name that is none, with those that are; what reading the
 *         description, or opening this machine's device returns: logged
 */
ZR_NODISCARD zr_status_t plan_hardware_find(const char *which, const train_options_t *options,
                                            const zr_log_t *log, zr_hardware_t *hardware_p);

#endif
