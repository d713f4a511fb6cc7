/*
 * Steps of a function that has something to undo at its end, and so cannot return at the first
 * error as ZR_TRY does.
 */
#pragma once

#include "kernels/base/status.h"

/** Make a call, as long as all before it went well. */
#define ZR_THEN(status, call)                                                                      \
    do {                                                                                           \
        if ((status) == ZR_OK)                                                                     \
            (status) = (call);                                                                     \
    } while (0)
