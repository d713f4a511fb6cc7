/*
 * The warp's matrix instructions, copies to shared memory that nobody waits for at once, and what
 * goes with them: one function per instruction of the PTX manual. Under the emulation each computes
 * the same by letting the lanes see each other's registers (tests/emu/include/emu_matrix.h).
 *
 * A lane is group * 4 + in_group. Fragments of mma.m16n8k16, two bf16 to a register:
 *
 *   a [16, 16]  register r, half h: row group + r % 2 * 8, column in_group * 2 + h + r / 2 * 8
 *   b [16, 8]   register r, half h: row in_group * 2 + h + r * 8, column group
 *   c [16, 8]   element i (fp32):   row group + i / 2 * 8, column in_group * 2 + i % 2
 *
 * So two neighbouring fragments of c, rounded, are one fragment of a: a product's result goes into
 * the next product without leaving its lanes.
 */
#ifndef ZR_KERNELS_NN_CUDA_MMA_CUDA_CUH
#define ZR_KERNELS_NN_CUDA_MMA_CUDA_CUH

#include <stdint.h>

#include "kernels/cuda/cuda_pack.cuh"

#ifndef __CUDACC__
#include <emu_matrix.h>
#endif

/** c += a b, b being the registers b0 and b1. Products are exact, sums fp32 in the hardware's own
 * order. */
static __device__ inline void zr_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emu_mma(c, a, b0, b1, EMU_HERE);
#endif
}

/**
 * Four matrices of 8 rows of 8 bf16 from shared memory: lane i gives the address of row i % 8 of
 * matrix i / 8, aligned to 16 bytes. Register m gets of matrix m: row group, columns in_group * 2
 * and + 1; with TRANSPOSE rows in_group * 2 and + 1, column group.
 */
template <bool TRANSPOSE>
static __device__ inline void zr_ldmatrix(uint32_t (&r)[4], const unsigned char *row) {
#ifdef __CUDACC__
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if (TRANSPOSE)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
#else
    emu_ldmatrix(r, row, TRANSPOSE, EMU_HERE);
#endif
}

/** 2 to the power of x, to 2^-22 of it; 0 below 2^-126. One instruction, where exp2f is several. */
static __device__ inline float zr_exp2(float x) {
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return x < -126.0f ? 0.0f : exp2f(x);
#endif
}

/**
 * Begin a copy of 16 bytes from global to shared memory, both aligned to 16; where `is_there` is
 * false nothing is read and zeros are written. The thread's own after zr_copy_wait, others' after
 * a barrier behind that.
 */
static __device__ inline void zr_copy16(unsigned char *shared, const void *global, bool is_there) {
#ifdef __CUDACC__
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(address), "l"(global), "r"(is_there ? 16 : 0)
                 : "memory");
#else
    emu_copy_begin(shared, global, 16, is_there ? 16 : 0);
#endif
}

/** The same for 4 bytes, aligned to 4. */
static __device__ inline void zr_copy4(unsigned char *shared, const void *global, bool is_there) {
#ifdef __CUDACC__
    unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(address), "l"(global), "r"(is_there ? 4 : 0)
                 : "memory");
#else
    emu_copy_begin(shared, global, 4, is_there ? 4 : 0);
#endif
}

/** Copies begun so far, and not yet in a group, are one. */
static __device__ inline void zr_copy_commit(void) {
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" : : : "memory");
#else
    emu_copy_commit();
#endif
}

/** Wait for the thread's groups of copies, all but the last N. */
template <int N> static __device__ inline void zr_copy_wait(void) {
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
#else
    emu_copy_wait(N);
#endif
}

#endif
