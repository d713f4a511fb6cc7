/*
 * Ranks that are processes have a command line each. What of it they must have in common is
 * compared before anything is made of it, so that the difference is named, and not its effect.
 */
#pragma once

#include "examples/data/data.h"
#include "examples/train/checkpoint.h"

/**
 * Compare with all ranks: the version of the program, model, data, what changes bits or the order
 * of collectives, what is saved, where the run begins, and the engine of attention with its
 * version. Memory budgets, threads, folders for NVMe and what is printed may be each rank's own.
 * Collective; nothing is done for ranks that are threads.
 *
 * @return ZR_OK; ZR_ERR_COMM: logged, with a rank that differs, and in what
 */
ZR_NODISCARD zr_status_t train_agree(const train_options_t *options, const data_t *data,
                                     const data_t *val, const train_start_t *start,
                                     const char *attention, zr_comm_t *comm);
