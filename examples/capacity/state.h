/*
 * What zero-capacity has found so far, in a file: so that a run that was stopped, or has died, goes
 * on where it was.
 */
#pragma once

#include <jansson.h>

#include "examples/capacity/options.h"

/** Everything that the answers depend on, as an object of texts; NULL: no memory. */
json_t *capacity_question(const capacity_options_t *options, const zr_hardware_t *hardware);

/**
 * Read --state for --resume.
 *
 * @param question  it has to be that of the file
 * @param points_p  an array, owned by the caller; NULL where there is no file yet, which is warned
 * of
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_FORMAT; ZR_ERR_ARGUMENT when the question is another one:
 * logged, with what differs
 */
ZR_NODISCARD zr_status_t capacity_state_read(const char *path, const json_t *question,
                                             const zr_log_t *log, json_t **points_p);

/** Write it: what was there is replaced in one go, or stays. ZR_ERR_IO, ZR_ERR_MEMORY: logged. */
ZR_NODISCARD zr_status_t capacity_state_write(const char *path, const json_t *question,
                                              const json_t *points, const zr_log_t *log);
