/*
 * Fuzzing of what reads files of others. A target is a file fuzz_NAME.c with the two functions that
 * libFuzzer calls; replay.c calls them as well, where there is no libFuzzer: with the files of
 * corpus/NAME, and with changes of them that follow from a seed. See docs/guide/checkpoints.md.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/base/log.h"

/** Try an input. What must not be ends the process. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);
/** Change an input in place, to at most so many bytes; its size then. */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n_bytes, size_t most_bytes, unsigned seed);
/** Change bytes without knowing what they mean: libFuzzer's, or replay.c's. */
size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n_bytes, size_t most_bytes);

/** Numbers that follow from a seed. */
uint64_t fuzz_random(uint64_t *seed);

/**
 * Change a text of JSON to another one: a value becomes another, goes, comes twice, changes its
 * place or its key.
 *
 * @return its size; 0 when it was no JSON, or has become too large: nothing has changed
 */
size_t fuzz_mutate_json(char *text, size_t n_bytes, size_t most_bytes, unsigned seed);

/** A log that counts errors and shows nothing. */
zr_log_t fuzz_log(int *n_errors);

/** End the process when something is not so. */
#define FUZZ_REQUIRE(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
