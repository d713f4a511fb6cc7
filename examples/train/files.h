/*
 * The files that zero-train writes, and the folders it is given: what cannot work, or would destroy
 * something, is found before anything is made.
 */
#pragma once

#include "examples/data/data.h"
#include "examples/train/options.h"

/**
 * Check --log, --memory-snapshot and --trace: none is read by this run, no two are one file, and
 * all can be written; and the folders for NVMe: files can be made in them. What is there stays as
 * it is.
 *
 * @return ZR_OK; ZR_ERR_ARGUMENT; ZR_ERR_IO; ZR_ERR_MEMORY. What is wrong has been logged.
 */
ZR_NODISCARD zr_status_t train_files_check(const train_options_t *options, const data_t *data,
                                           const data_t *val, const zr_log_t *log);

/** Whether this process writes --log: rank 0's does. */
bool train_files_has_log(const train_options_t *options);

/** The last of these alone: files can be made in the folders for NVMe, as far as any are named. */
ZR_NODISCARD zr_status_t train_files_check_nvme_paths(const train_options_t *options,
                                                      const zr_log_t *log);

/**
 * A rank's own file, of a name that is given for all: for all but the first, .rankN stands before
 * the ending.
 *
 * Ownership: free the path.
 */
ZR_NODISCARD zr_status_t train_files_rank_path(const char *path, int rank, const zr_log_t *log,
                                               char **path_p);
