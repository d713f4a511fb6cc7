/*
 * Names of the status codes, for messages.
 */
#include "kernels/base/status.h"

const char *zr_status_name(zr_status_t status) {
    switch (status) {
    case ZR_OK:
        return "ZR_OK";
    case ZR_ERR_ARGUMENT:
        return "ZR_ERR_ARGUMENT";
    case ZR_ERR_STATE:
        return "ZR_ERR_STATE";
    case ZR_ERR_MEMORY:
        return "ZR_ERR_MEMORY";
    case ZR_ERR_BUDGET:
        return "ZR_ERR_BUDGET";
    case ZR_ERR_DEVICE:
        return "ZR_ERR_DEVICE";
    case ZR_ERR_COMM:
        return "ZR_ERR_COMM";
    case ZR_ERR_IO:
        return "ZR_ERR_IO";
    case ZR_ERR_UNSUPPORTED:
        return "ZR_ERR_UNSUPPORTED";
    case ZR_ERR_FORMAT:
        return "ZR_ERR_FORMAT";
    }
    return "ZR_ERR_?";
}
