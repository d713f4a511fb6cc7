/*
 * A step with everything on drives, against what it consists of: its compute alone, and its
 * transfers alone, both measured in the same run.
 */
#pragma once

#include "examples/bench/step_run.h"

typedef struct step_apart {
    uint64_t bytes[ZR_N_STORE_DIRECTIONS]; /* moved by a step */
    double compute; /* seconds of a step whose store moves nothing, and of the real one's checksums
                     */
    double checksums; /* seconds, of these */
    double transfers; /* seconds of as many bytes, as fast as the store moves them in both
                         directions, with nothing else to do */
} step_apart_t;

/**
 * Measure both parts of the step that `result` is of.
 *
 * @return ZR_OK; what failed has been logged otherwise
 */
ZR_NODISCARD zr_status_t step_apart(const step_options_t *options, const step_result_t *result,
                                    step_apart_t *apart_p);
