/*
 * The matrix instructions of kernels/nn/cuda/mma_cuda.cuh for the host's compiler: the lanes of a
 * warp show each other their registers and each computes what the PTX manual says it gets
 * ("Matrix fragments for mma.m16n8k16 with floating point type", "ldmatrix").
 */
#ifndef ZR_TESTS_EMU_EMU_MATRIX_H
#define ZR_TESTS_EMU_EMU_MATRIX_H

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/emu/emu_thread.h"

static inline float emu_half_of(uint32_t pair, unsigned which) {
    uint32_t bits = which == 0 ? pair << 16 : pair & 0xffff0000u;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* d[16, 8] += a[16, 16] b[16, 8]. */
static inline void emu_mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1,
                           const char *here) {
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    const emu_shown_t *shown = emu_show(mine, sizeof(mine), here);
    unsigned group = emu_lane() / 4, in_group = emu_lane() % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = group + i / 2 * 8, column = in_group * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const uint32_t *of_a = shown[row % 8 * 4 + k % 8 / 2].words;
            const uint32_t *of_b = shown[column * 4 + k % 8 / 2].words + 4;
            d[i] += emu_half_of(of_a[row / 8 + k / 8 * 2], k % 2) * emu_half_of(of_b[k / 8], k % 2);
        }
    }
}

/* Ends the program where a row is not aligned, or where the eight rows of a matrix do not lie in
 * different banks: a GPU would read them one after another. */
static inline void emu_check_rows(const emu_shown_t *shown, unsigned n_matrices, const char *here) {
    for (unsigned matrix = 0; matrix < n_matrices; matrix++) {
        unsigned banks = 0;
        for (unsigned row = 0; row < 8; row++) {
            uintptr_t address;
            memcpy(&address, shown[matrix * 8 + row].words, sizeof(address));
            banks |= address % 16 == 0 ? 1u << address % 128 / 16 : 0;
        }
        if (banks != 0xff) {
            fprintf(stderr, "emulation: %s: rows of matrix %u are not aligned or share banks\n",
                    here, matrix);
            abort();
        }
    }
}

/* Four matrices of 8 rows of 16 bytes; lane i gives row i % 8 of matrix i / 8. */
static inline void emu_ldmatrix(uint32_t *r, const void *row, bool transpose, const char *here) {
    const emu_shown_t *shown = emu_show(&row, sizeof(row), here);
    unsigned group = emu_lane() / 4, in_group = emu_lane() % 4;
    if (emu_lane() == 0)
        emu_check_rows(shown, 4, here);
    for (unsigned matrix = 0; matrix < 4; matrix++) {
        uint16_t pair[2];
        for (unsigned i = 0; i < 2; i++) {
            unsigned from_row = transpose ? in_group * 2 + i : group;
            unsigned from_column = transpose ? group : in_group * 2 + i;
            const uint16_t *elems;
            memcpy(&elems, shown[matrix * 8 + from_row].words, sizeof(elems));
            pair[i] = elems[from_column];
        }
        memcpy(&r[matrix], pair, sizeof(pair));
    }
}

#endif
