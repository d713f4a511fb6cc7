/*
 * The file of --trace: the last step of the recommended plan, as zero-train --trace writes those of
 * a run, by the same recorder. Its process has a number of its own, so that both go into one file.
 */
#ifndef EXAMPLES_PLAN_TRACE_H
#define EXAMPLES_PLAN_TRACE_H

#include "examples/plan_search.h"

/** The planned rank's process in the file: that of a run's rank N is N + 1. */
#define PLAN_TRACE_PROCESS 1001

/**
 * Plan it again, with a recorder, and write what that has. Where nothing fits nothing is written.
 *
 * @return ZR_OK; ZR_ERR_IO, ZR_ERR_MEMORY: logged
 */
ZR_NODISCARD zr_status_t plan_trace_save(const plan_options_t *options, const plan_rows_t *rows,
                                         const char *path, const zr_log_t *log);

#endif
