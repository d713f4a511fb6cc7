/*
 * For the descriptions of this folder: the kernels that a build has of a family. Loops are compiled
 * per instruction set (kernels/host/isa/), launchers where CUDA is built; elsewhere a program may
 * bring them along, as the tests' emulation does.
 */
#pragma once

#include "zero/optim/optimizer.h"

#ifdef ZR_HAVE_CUDA
#define ZR_WHERE_CUDA
#else
#define ZR_WHERE_CUDA __attribute__((weak))
#endif

#ifdef ZR_HOST_HAVE_AVX2
#define ZR_WHERE_AVX2(loop) loop
#else
#define ZR_WHERE_AVX2(loop) NULL
#endif

#ifdef ZR_HOST_HAVE_AVX512
#define ZR_WHERE_AVX512(loop) loop
#else
#define ZR_WHERE_AVX512(loop) NULL
#endif

/** Declare what ZR_HOST_UPDATE and ZR_CUDA_UPDATE define. */
#define ZR_DECLARE_UPDATE(kernel)                                                                  \
    void zr_host_##kernel##_baseline(const zr_update_t *update, const void *factors);              \
    void zr_host_##kernel##_avx2(const zr_update_t *update, const void *factors);                  \
    void zr_host_##kernel##_avx512(const zr_update_t *update, const void *factors);                \
    zr_status_t zr_cuda_##kernel(zr_stream_t *stream, const zr_update_t *update) ZR_WHERE_CUDA

/** Members of a rule: its kernels. */
#define ZR_UPDATE_KERNELS(kernel)                                                                  \
    .loops = {zr_host_##kernel##_baseline, ZR_WHERE_AVX2(zr_host_##kernel##_avx2),                 \
              ZR_WHERE_AVX512(zr_host_##kernel##_avx512)},                                         \
    .cuda = zr_cuda_##kernel, .cuda_knows_forms = true
