/*
 * --trace and --trace-steps: a recorder for each rank, and the file that they are written to.
 *
 * Ranks that are threads share a clock and a file. Of ranks that are processes each writes a file
 * of its own: nothing is sent, so a rank that is left over when others have died still writes its
 * own, and a trace takes neither the device's memory nor the network's time. Their clocks are
 * compared when the run begins, so that the files show one time.
 */
#pragma once

#include "examples/train/train.h"

/** Steps that are recorded unless --trace-steps says which. */
#define TRAIN_TRACE_N_STEPS 10

/** Take FIRST:LAST. ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t train_trace_take_steps(train_options_t *options, const char *value,
                                                const zr_log_t *log);

/** Whether --trace-steps goes with the rest: ZR_ERR_ARGUMENT, logged. */
ZR_NODISCARD zr_status_t train_trace_check(const train_options_t *options, const zr_log_t *log);

/**
 * The recorder of a rank.
 *
 * @param n_done   steps that were done before this run
 * @param trace_p  NULL without --trace, and where this run has none of the steps, of which rank 0
 *                 warns
 * @return ZR_OK; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t train_trace_create(const train_options_t *options, int rank, size_t n_done,
                                            const zr_log_t *log, zr_trace_t **trace_p);

/** Ranks that are processes compare their clocks. All of them call it, once they are made; without
 * --trace, or when they are threads, it does nothing. */
ZR_NODISCARD zr_status_t train_trace_align(const train_options_t *options, zr_runtime_t *runtime,
                                           zr_trace_t *trace);

/**
 * The file of a rank. Ownership: free the path.
 */
ZR_NODISCARD zr_status_t train_trace_path(const train_options_t *options, int rank,
                                          const zr_log_t *log, char **path_p);

/** Write what the ranks of this process have recorded, [n_traces], and say what it is. */
ZR_NODISCARD zr_status_t train_trace_save(const train_options_t *options, zr_trace_t *const *traces,
                                          size_t n_traces, const zr_log_t *log,
                                          train_trace_result_t *result_p);
