/*
 * Reads whole files that a user names.
 */
#pragma once

#include <stddef.h>

#include "kernels/base/log.h"
#include "kernels/base/status.h"

ZR_BEGIN_C

/**
 * Read a file. Waits for a pipe's writer, until a signal arrives; a pipe without a writer is empty.
 *
 * @param path       as the user wrote it; messages begin with it
 * @param max_bytes  a larger file is refused
 * @param log        NULL: nothing is logged
 * @param text_p     its bytes and a terminating zero; the caller frees them
 * @param n_bytes_p  without the zero
 * @return ZR_OK; ZR_ERR_IO when it cannot be opened or read;
 *         ZR_ERR_FORMAT when it is too large; ZR_ERR_MEMORY
 *
 * Threads: thread-safe.
 */
ZR_NODISCARD zr_status_t zr_text_file_read(const char *path, size_t max_bytes, const zr_log_t *log,
                                           char **text_p, size_t *n_bytes_p);

ZR_END_C
