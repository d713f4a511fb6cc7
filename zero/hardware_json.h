/*
 * Descriptions of hardware as files: JSON, with the fields of zr_hardware_t
 * (kernels/base/hardware.h).
 *
 *   {
 *     "name": "8 x A100-80G",
 *     "kind": "cuda",
 *     "ranks_per_node": 8,
 *     "device": {"matrix_bf16_ops_per_s": 2.2e14, ...},
 *     "to_device": {"bytes_per_s": 2.4e10, "latency_s": 1e-5},
 *     ...
 *     "sources": {"device.matrix_bf16_ops_per_s": "measured with zero-bench matmul", ...}
 *   }
 *
 * All figures are required, except those of the device and its links if kind is "host". "sources"
 * tells people where each figure comes from.
 */
#pragma once

#include "kernels/base/hardware.h"

ZR_BEGIN_C

/**
 * Read a description.
 *
 * @param path        file to read
 * @param log         NULL: default; everything that is wrong is logged, not only the first
 * @param hardware_p  set on success
 * @return ZR_OK; the first error of: ZR_ERR_IO; ZR_ERR_FORMAT with line and column if it is not
 *         valid JSON or has a key twice; ZR_ERR_ARGUMENT for a key that is unknown (the message has
 *         the nearest known one) or missing, and for an invalid value
 *
 * Threads: thread-safe: there is no shared state.
 */
ZR_NODISCARD zr_status_t zr_hardware_read_json(const char *path, const zr_log_t *log,
                                               zr_hardware_t *hardware_p);

/**
 * Write a description that zr_hardware_read_json reads back as it is.
 *
 * @param sources  [n_figures of zr_hardware_figures] where each figure comes from, NULL for an
 *                 unknown source; NULL: all are unknown
 * @return ZR_OK; ZR_ERR_ARGUMENT if the description is invalid; ZR_ERR_IO; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_hardware_write_json(const zr_hardware_t *hardware,
                                                const char *const *sources, const char *path,
                                                const zr_log_t *log);

ZR_END_C
