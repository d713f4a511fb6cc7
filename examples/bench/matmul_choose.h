/*
 * zero-bench matmul --save-choices: times the algorithms that are proposed for each product.
 */
#pragma once

#include "examples/bench/products.h"

typedef struct matmul_choose {
    const char *path;   /* NULL: nothing is saved */
    size_t limit_bytes; /* of workspace that proposals may need; 0: 128 MiB */
} matmul_choose_t;

/** Before memory is taken: the file can be written, the device has algorithms, and its workspaces
 * suffice for all proposals. */
ZR_NODISCARD zr_status_t matmul_choose_begin(matmul_choose_t *choose, zr_device_t *device);

/**
 * Time all proposals of all products in turns for about `seconds`, save the fastest, and describe
 * them.
 *
 * A proposal is chosen where it takes at most 0.98 of the first one's time; one that fails is left
 * out, with a warning.
 *
 * @param list_p  an array for the report; NULL where there was no memory for it
 */
ZR_NODISCARD zr_status_t matmul_choose_save(const matmul_choose_t *choose, products_t *products,
                                            double seconds, json_t **list_p);
