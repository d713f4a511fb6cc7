/*
 * What a plan lacks, in JSON.
 */
#ifndef EXAMPLES_PLAN_LACK_H
#define EXAMPLES_PLAN_LACK_H

#include <jansson.h>

#include "zero/zero.h"

/** As --json has it; NULL: no memory. */
json_t *plan_lack_object(const zr_run_lack_t *lack);

#endif
