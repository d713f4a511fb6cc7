/*
 * The hardware that --hardware names.
 */
#pragma once

#include "examples/train/options.h"

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

/** What --help says of --ranks, where plan_hardware_ranks is the default. */
#define PLAN_RANKS_DOC                                                                             \
    "ranks, over as many nodes as the hardware needs for them (default: one for each device of a " \
    "described machine; of this one, 1)"

/** Check that --device and --threads, which are of this machine, are given with no other. */
ZR_NODISCARD zr_status_t plan_hardware_check_given(const char *which, const options_given_t *given,
                                                   const zr_log_t *log);

/** As many ranks as one machine has, and --ranks allows. */
int plan_hardware_ranks(const zr_hardware_t *hardware);

/** Read a description; messages begin with --hardware. */
ZR_NODISCARD zr_status_t plan_hardware_read(const char *path, const zr_log_t *log,
                                            zr_hardware_t *hardware_p);

/**
 * Warn where so many ranks are more machines than a description's network was measured on, and
 * where a file does not count what context and libraries take of a GPU.
 *
 * @param which     as of plan_hardware_find
 * @param hardware  what it found
 */
void plan_hardware_warn(const char *which, const zr_hardware_t *hardware, int n_ranks,
                        const zr_log_t *log);

/** What a description says of where a figure is from; "" where it says nothing. */
void plan_hardware_source(const char *which, const char *figure, char *text, size_t size);
