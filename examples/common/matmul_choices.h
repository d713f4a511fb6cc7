/*
 * The file of --matmul-choices: algorithms of matrix products on a GPU, as zero-bench matmul
 * --save-choices has measured them.
 */
#pragma once

#include "zero/zero.h"

#define MATMUL_CHOICES_MOST_WORKSPACE ((size_t)1 << 30)

typedef struct matmul_choices matmul_choices_t;

/**
 * Read a file.
 *
 * @return ZR_OK; ZR_ERR_IO; ZR_ERR_FORMAT for what is no such file; ZR_ERR_MEMORY; logged
 */
ZR_NODISCARD zr_status_t matmul_choices_read(const char *path, const zr_log_t *log,
                                             matmul_choices_t **choices_p);
void matmul_choices_free(matmul_choices_t **choices);

/** What zr_nn_matmul_choose takes; until matmul_choices_free. NULL of NULL. */
const zr_nn_matmul_choices_t *matmul_choices_of(const matmul_choices_t *choices);
/** XXH3 of the file. */
uint64_t matmul_choices_hash(const matmul_choices_t *choices);
