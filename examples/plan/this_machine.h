/*
 * The machine that a program runs on, as a description that plans are made for.
 */
#pragma once

#include "examples/train/options.h"

/**
 * Describe it: what decides how much memory a run needs and whether it fits is looked up on the
 * device, and on the drives where --nvme-path names some. Rates are those of
 * options->hardware_path; without it they are those of zr_hardware_default, and times of a plan
 * compare placements and foretell nothing.
 *
 * The ranks that are on it (train_launch_n_sharing) share its memory, its drives, and its device
 * unless each has its own; the others are on machines that are taken to be alike.
 *
 * @param options  its device, threads, ranks and paths are read
 * @return ZR_OK; ZR_ERR_ARGUMENT for rates of another kind of device; what reading them, opening
 * the device or the drives returns, logged
 */
ZR_NODISCARD zr_status_t this_machine_describe(const train_options_t *options, const zr_log_t *log,
                                               zr_hardware_t *hardware_p);
