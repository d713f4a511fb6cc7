/*
 * A transformer's kernels, for models built on the library.
 */
#ifndef ZR_KERNELS_NN_NN_H
#define ZR_KERNELS_NN_NN_H

#include "kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/** For those who implement a device: one entry per kernel of this header. */
typedef struct zr_nn_backend {
    const char *name;
} zr_nn_backend_t;

#ifdef __cplusplus
}
#endif
#endif
