/*
 * The file of --io-settings: how a drive is best read and written, as zero-bench io found it.
 */
#pragma once

#include "zero/zero.h"

/**
 * Read settings over what `nvme` holds.
 *
 * @param keep_paths  leave the paths as they are
 * @param nvme        in and out; unchanged on error
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_FORMAT for what is no JSON, or not of zero-bench io
 *         --save-settings; ZR_ERR_ARGUMENT. What is wrong has been logged, with option, file, key
 *         and what is allowed.
 */
ZR_NODISCARD zr_status_t train_io_settings_read(const char *path, bool keep_paths,
                                                const zr_log_t *log, zr_nvme_options_t *nvme);
