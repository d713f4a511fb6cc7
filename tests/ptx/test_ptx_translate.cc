/*
 * Translated PTX against the PTX manual: kernels written by hand (probe_*.ptx), and what comes out
 * of them, worked out by hand. Where the manual gives a bound, it is held, and not every result is
 * the nearest.
 */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>

#include "kernels/device_backend.h"
#include "tests/kernels/device_fixture.h"
}

#include "tests/emu/emu_thread.h"
#include "tests/ptx/ptx.h"
#include "tests/ptx/ptx_memory.h"

namespace {

/* ---- kernels by name ---------------------------------------------------------------------- */

const ptx_kernel_t *find_kernel(const char *name) {
    for (const ptx_module_t *module : ptx_modules())
        for (size_t i = 0; i < module->n_kernels; i++)
            if (strcmp(module->kernels[i].name, name) == 0)
                return &module->kernels[i];
    fail_msg("no kernel %s", name);
    return NULL;
}

using params_t = std::vector<unsigned char>;

template <typename... P> params_t pack(const ptx_kernel_t *kernel, P... values) {
    params_t bytes(kernel->params_bytes);
    size_t i = 0;
    auto one = [&](auto value) {
        assert_int_equal(kernel->params[i].size_bytes, sizeof(value));
        memcpy(bytes.data() + kernel->params[i++].offset_bytes, &value, sizeof(value));
    };
    (one(values), ...);
    assert_int_equal(i, kernel->n_params);
    return bytes;
}

template <typename... P>
void run(fixture_t *f, const char *name, unsigned n_blocks, unsigned n_threads, size_t shared_bytes,
         P... values) {
    const ptx_kernel_t *kernel = find_kernel(name);
    auto params = std::make_shared<params_t>(pack(kernel, values...));
    emu_launch_t launch = {kernel->name,         (const void *)kernel,
                           dim3(n_blocks),       dim3(n_threads),
                           shared_bytes,         (cudaStream_t)zr_stream_native(f->stream),
                           kernel->shared_bytes, &ptx_watch};
    emu_queue_kernel(launch, [=] { kernel->run(params->data()); }, {});
    assert_int_equal(zr_stream_synchronize(f->stream), ZR_OK);
}

template <typename T> T *place(fixture_t *f, const std::vector<T> &values) {
    return (T *)fixture_place(f, values.data(), values.size() * sizeof(T), 0);
}
template <typename T> T *take(fixture_t *f, size_t n) {
    return place(f, std::vector<T>(n));
}
template <typename T> std::vector<T> fetch(fixture_t *f, const T *from, size_t n) {
    std::vector<T> values(n);
    fixture_download(f, values.data(), from, n * sizeof(T));
    return values;
}

uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* ---- values --------------------------------------------------------------------------------- */

/* Of instruction `which` of the kernel: three operands, the result. */
template <typename T> struct value_case_t {
    size_t which;
    const char *what;
    T operands[3], result;
};

const size_t n_values_32 = 116, n_values_64 = 42;

const value_case_t<uint32_t> cases_32[] = {
    {0, "add.rn.f32", {0x3f800000u, 0x33800000u, 0u}, 0x3f800000u},
    {0, "add.rn.f32", {0x3f800000u, 0x33c00000u, 0u}, 0x3f800001u},
    {0, "add.rn.f32", {0x7f800000u, 0xff800000u, 0u}, 0x7fffffffu},
    {0, "add.rn.f32", {0x7fc00001u, 0x3f800000u, 0u}, 0x7fffffffu},
    {0, "add.rn.f32", {1u, 1u, 0u}, 2u},
    {1, "add.rn.ftz.f32", {1u, 1u, 0u}, 0u},
    {1, "add.rn.ftz.f32", {0x80000001u, 0x80000001u, 0u}, 0x80000000u},
    {1, "add.rn.ftz.f32", {0x800001u, 0x80800000u, 0u}, 0u},
    {2, "add.rz.f32", {0x3f800000u, 0x33c00000u, 0u}, 0x3f800000u},
    {2, "add.rz.f32", {0xbf800000u, 0xb3c00000u, 0u}, 0xbf800000u},
    {2, "add.rz.f32", {0x7f7fffffu, 0x7f7fffffu, 0u}, 0x7f7fffffu},
    {3, "add.rm.f32", {0x3f800000u, 0xb0800000u, 0u}, 0x3f7fffffu},
    {3, "add.rm.f32", {0x3f800000u, 0xbf800000u, 0u}, 0x80000000u},
    {3, "add.rm.f32", {0xff7fffffu, 0xff7fffffu, 0u}, 0xff800000u},
    {3, "add.rm.f32", {0x7f7fffffu, 0x7f7fffffu, 0u}, 0x7f7fffffu},
    {3, "add.rm.f32", {0u, 0x80000000u, 0u}, 0x80000000u},
    {3, "add.rm.f32", {0u, 0u, 0u}, 0u},
    {4, "add.rp.f32", {0x3f800000u, 0x30800000u, 0u}, 0x3f800001u},
    {4, "add.rp.f32", {0x3f800000u, 0xbf800000u, 0u}, 0u},
    {4, "add.rp.f32", {0x80000000u, 0x80000000u, 0u}, 0x80000000u},
    {5, "add.rn.sat.f32", {0x3f800000u, 0x3f800000u, 0u}, 0x3f800000u},
    {5, "add.rn.sat.f32", {0xbf800000u, 0u, 0u}, 0u},
    {5, "add.rn.sat.f32", {0x7fc00001u, 0u, 0u}, 0u},
    {5, "add.rn.sat.f32", {0x3f000000u, 0u, 0u}, 0x3f000000u},
    {6, "sub.rn.f32", {0x3f800000u, 0x3f800000u, 0u}, 0u},
    {6, "sub.rn.f32", {0x7f800000u, 0x7f800000u, 0u}, 0x7fffffffu},
    {6, "sub.rn.f32", {0x3f800000u, 0x40400000u, 0u}, 0xc0000000u},
    {7, "mul.rn.f32", {0x3f800001u, 0x3f800001u, 0u}, 0x3f800002u},
    {7, "mul.rn.f32", {0u, 0x7f800000u, 0u}, 0x7fffffffu},
    {7, "mul.rn.f32", {0x800000u, 0x3f000000u, 0u}, 0x400000u},
    {7, "mul.rn.f32", {0x7f7fffffu, 0x40000000u, 0u}, 0x7f800000u},
    {8, "mul.rn.ftz.f32", {0x800000u, 0x3f000000u, 0u}, 0u},
    {8, "mul.rn.ftz.f32", {0x80800000u, 0x3f000000u, 0u}, 0x80000000u},
    {9, "mul.rp.f32", {0x3f800001u, 0x3f800001u, 0u}, 0x3f800003u},
    {9, "mul.rp.f32", {0x7f7fffffu, 0x40000000u, 0u}, 0x7f800000u},
    {10, "fma.rn.f32", {0x3f800001u, 0x3f800001u, 0xbf800002u}, 0x28800000u},
    {10, "fma.rn.f32", {0x7f800000u, 0u, 0x3f800000u}, 0x7fffffffu},
    {10, "fma.rn.f32", {0x40000000u, 0x40400000u, 0x3f800000u}, 0x40e00000u},
    {11, "fma.rm.f32", {0x3f800000u, 0x3f800000u, 0xb0800000u}, 0x3f7fffffu},
    {11, "fma.rm.f32", {0x3f800000u, 0x3f800000u, 0xbf800000u}, 0x80000000u},
    {11, "fma.rm.f32", {1u, 0x3f000000u, 0u}, 0u},
    {11, "fma.rm.f32", {0x80000001u, 0x3f000000u, 0u}, 0x80000001u},
    {11, "fma.rm.f32", {0x7f7fffffu, 0x40000000u, 0u}, 0x7f7fffffu},
    {11, "fma.rm.f32", {0xff7fffffu, 0x40000000u, 0u}, 0xff800000u},
    {11, "fma.rm.f32", {0x3f800000u, 0x3f800000u, 0xda24260u}, 0x3f800000u},
    {11, "fma.rm.f32", {0x3f800000u, 0x3f800000u, 0x8da24260u}, 0x3f7fffffu},
    {11, "fma.rm.f32", {0x7fc00001u, 0x3f800000u, 0x3f800000u}, 0x7fffffffu},
    {11, "fma.rm.f32", {0x7f800000u, 0x3f800000u, 0x3f800000u}, 0x7f800000u},
    {11, "fma.rm.f32", {0x3f800001u, 0x3f800001u, 0u}, 0x3f800002u},
    {12, "fma.rp.f32", {0x3f800000u, 0x3f800000u, 0xda24260u}, 0x3f800001u},
    {12, "fma.rp.f32", {1u, 0x3f000000u, 0u}, 1u},
    {12, "fma.rp.f32", {0xff7fffffu, 0x40000000u, 0u}, 0xff7fffffu},
    {13, "fma.rz.f32", {0xbf800000u, 0x3f800000u, 0xda24260u}, 0xbf7fffffu},
    {13, "fma.rz.f32", {0x3f800000u, 0x3f800000u, 0x8da24260u}, 0x3f7fffffu},
    {13, "fma.rz.f32", {0x7f7fffffu, 0x40000000u, 0u}, 0x7f7fffffu},
    {13, "fma.rz.f32", {0x80000001u, 0x3f000000u, 0u}, 0x80000000u},
    {14, "div.rn.f32", {0x3f800000u, 0x40400000u, 0u}, 0x3eaaaaabu},
    {14, "div.rn.f32", {0x3f800000u, 0u, 0u}, 0x7f800000u},
    {14, "div.rn.f32", {0u, 0u, 0u}, 0x7fffffffu},
    {14, "div.rn.f32", {0x3f800000u, 0xff800000u, 0u}, 0x80000000u},
    {15, "div.rn.ftz.f32", {1u, 0x3f800000u, 0u}, 0u},
    {15, "div.rn.ftz.f32", {0x3f800000u, 1u, 0u}, 0x7f800000u},
    {16, "rcp.rn.f32", {0x40400000u, 0u, 0u}, 0x3eaaaaabu},
    {16, "rcp.rn.f32", {0x80000000u, 0u, 0u}, 0xff800000u},
    {17, "sqrt.rn.f32", {0x40000000u, 0u, 0u}, 0x3fb504f3u},
    {17, "sqrt.rn.f32", {0xbf800000u, 0u, 0u}, 0x7fffffffu},
    {17, "sqrt.rn.f32", {0x80000000u, 0u, 0u}, 0x80000000u},
    {18, "neg.f32", {0u, 0u, 0u}, 0x80000000u},
    {18, "neg.f32", {0x3f800000u, 0u, 0u}, 0xbf800000u},
    {19, "abs.f32", {0xbf800000u, 0u, 0u}, 0x3f800000u},
    {19, "abs.f32", {0x80000000u, 0u, 0u}, 0u},
    {20, "min.f32", {0x7fc00001u, 0x3f800000u, 0u}, 0x3f800000u},
    {20, "min.f32", {0x3f800000u, 0x7fc00001u, 0u}, 0x3f800000u},
    {20, "min.f32", {0x7fc00001u, 0x7fc00001u, 0u}, 0x7fffffffu},
    {20, "min.f32", {0u, 0x80000000u, 0u}, 0x80000000u},
    {20, "min.f32", {0x80000000u, 0u, 0u}, 0x80000000u},
    {20, "min.f32", {0x3f800000u, 0xbf800000u, 0u}, 0xbf800000u},
    {21, "max.f32", {0x80000000u, 0u, 0u}, 0u},
    {21, "max.f32", {0u, 0x80000000u, 0u}, 0u},
    {21, "max.f32", {0x7fc00001u, 0xff800000u, 0u}, 0xff800000u},
    {21, "max.f32", {0x7fc00001u, 0x7fc00001u, 0u}, 0x7fffffffu},
    {21, "max.f32", {0x3f800000u, 0xbf800000u, 0u}, 0x3f800000u},
    {22, "min.NaN.f32", {0x7fc00001u, 0x3f800000u, 0u}, 0x7fffffffu},
    {22, "min.NaN.f32", {0x3f800000u, 0x40000000u, 0u}, 0x3f800000u},
    {23, "max.ftz.f32", {1u, 0xbf800000u, 0u}, 0u},
    {24, "setp.eq.f32", {0x7fc00001u, 0x7fc00001u, 0u}, 0u},
    {24, "setp.eq.f32", {0u, 0x80000000u, 0u}, 1u},
    {24, "setp.eq.f32", {0x3f800000u, 0x3f800000u, 0u}, 1u},
    {25, "setp.ne.f32", {0x7fc00001u, 0x3f800000u, 0u}, 0u},
    {25, "setp.ne.f32", {0x3f800000u, 0x40000000u, 0u}, 1u},
    {25, "setp.ne.f32", {0x3f800000u, 0x3f800000u, 0u}, 0u},
    {26, "setp.lt.f32", {0x7fc00001u, 0x3f800000u, 0u}, 0u},
    {26, "setp.lt.f32", {0u, 1u, 0u}, 1u},
    {26, "setp.lt.f32", {0x3f800000u, 0x3f800000u, 0u}, 0u},
    {27, "setp.le.f32", {0x3f800000u, 0x7fc00001u, 0u}, 0u},
    {27, "setp.le.f32", {0x3f800000u, 0x3f800000u, 0u}, 1u},
    {27, "setp.le.f32", {0x40000000u, 0x3f800000u, 0u}, 0u},
    {28, "setp.gt.f32", {0x3f800000u, 0x7fc00001u, 0u}, 0u},
    {28, "setp.gt.f32", {0x7f800000u, 0x7f7fffffu, 0u}, 1u},
    {28, "setp.gt.f32", {0x3f800000u, 0x3f800000u, 0u}, 0u},
    {29, "setp.ge.f32", {0x7fc00001u, 0x7fc00001u, 0u}, 0u},
    {29, "setp.ge.f32", {0x3f800000u, 0x3f800000u, 0u}, 1u},
    {29, "setp.ge.f32", {0x3f800000u, 0x40000000u, 0u}, 0u},
    {30, "setp.lt.ftz.f32", {0u, 1u, 0u}, 0u},
    {31, "setp.equ.f32", {0x7fc00001u, 0x3f800000u, 0u}, 1u},
    {31, "setp.equ.f32", {0x3f800000u, 0x40000000u, 0u}, 0u},
    {32, "setp.neu.f32", {0x7fc00001u, 0x7fc00001u, 0u}, 1u},
    {32, "setp.neu.f32", {0x3f800000u, 0x3f800000u, 0u}, 0u},
    {33, "setp.ltu.f32", {0x7fc00001u, 0x3f800000u, 0u}, 1u},
    {33, "setp.ltu.f32", {0x40000000u, 0x3f800000u, 0u}, 0u},
    {34, "setp.leu.f32", {0x7fc00001u, 0x3f800000u, 0u}, 1u},
    {34, "setp.leu.f32", {0x40000000u, 0x3f800000u, 0u}, 0u},
    {35, "setp.gtu.f32", {0x7fc00001u, 0x3f800000u, 0u}, 1u},
    {35, "setp.gtu.f32", {0x3f800000u, 0x40000000u, 0u}, 0u},
    {36, "setp.geu.f32", {0x7fc00001u, 0x3f800000u, 0u}, 1u},
    {36, "setp.geu.f32", {0x3f800000u, 0x40000000u, 0u}, 0u},
    {37, "setp.num.f32", {0x7fc00001u, 0x3f800000u, 0u}, 0u},
    {37, "setp.num.f32", {0x7f800000u, 0x3f800000u, 0u}, 1u},
    {38, "setp.nan.f32", {0x7fc00001u, 0x3f800000u, 0u}, 1u},
    {38, "setp.nan.f32", {0x7f800000u, 0x3f800000u, 0u}, 0u},
    {39, "setp.lt.and.f32", {0x3f800000u, 0x40000000u, 1u}, 1u},
    {39, "setp.lt.and.f32", {0x40000000u, 0x3f800000u, 1u}, 2u},
    {39, "setp.lt.and.f32", {0x3f800000u, 0x40000000u, 0u}, 0u},
    {39, "setp.lt.and.f32", {0x7fc00001u, 0x3f800000u, 1u}, 2u},
    {40, "setp.eq.or.s32", {1u, 2u, 1u}, 0u},
    {40, "setp.eq.or.s32", {1u, 2u, 0u}, 1u},
    {40, "setp.eq.or.s32", {2u, 2u, 1u}, 1u},
    {41, "setp.lt.s32", {0xffffffffu, 0u, 0u}, 1u},
    {42, "setp.lt.u32", {0xffffffffu, 0u, 0u}, 0u},
    {43, "setp.hi.u32", {0xffffffffu, 0u, 0u}, 1u},
    {44, "setp.eq.b32", {5u, 5u, 0u}, 1u},
    {45, "setp.lt.s16", {0x1ffffu, 0u, 0u}, 1u},
    {45, "setp.lt.s16", {0x18000u, 0x17fffu, 0u}, 1u},
    {46, "predicates", {1u, 1u, 0u}, 0x1bu},
    {46, "predicates", {1u, 0u, 0u}, 0xeu},
    {46, "predicates", {0u, 0u, 0u}, 0u},
    {46, "predicates", {0u, 7u, 0u}, 0x16u},
    {47, "add.s32", {0x7fffffffu, 1u, 0u}, 0x80000000u},
    {48, "sub.s32", {0u, 1u, 0u}, 0xffffffffu},
    {49, "mul.lo.s32", {0x10001u, 0x10001u, 0u}, 0x20001u},
    {50, "mul.hi.s32", {0xffffffffu, 0xffffffffu, 0u}, 0u},
    {50, "mul.hi.s32", {0x80000000u, 2u, 0u}, 0xffffffffu},
    {51, "mul.hi.u32", {0xffffffffu, 0xffffffffu, 0u}, 0xfffffffeu},
    {52, "mad.lo.s32", {3u, 0xffffffffu, 0xau}, 7u},
    {53, "mad.hi.u32", {0x80000000u, 4u, 5u}, 7u},
    {54, "mul.wide.u16", {0xffffu, 0xffffu, 0u}, 0xfffe0001u},
    {55, "mad.wide.s16", {0xffffu, 2u, 1u}, 0xffffffffu},
    {56, "div.s32", {0x80000000u, 0xffffffffu, 0u}, 0x80000000u},
    {56, "div.s32", {0xfffffff9u, 2u, 0u}, 0xfffffffdu},
    {57, "div.u32", {7u, 0u, 0u}, 0xffffffffu},
    {57, "div.u32", {0xfffffff9u, 2u, 0u}, 0x7ffffffcu},
    {58, "rem.s32", {0x80000000u, 0xffffffffu, 0u}, 0u},
    {58, "rem.s32", {0xfffffff9u, 2u, 0u}, 0xffffffffu},
    {59, "rem.u32", {7u, 0u, 0u}, 7u},
    {59, "rem.u32", {0xfffffff9u, 2u, 0u}, 1u},
    {60, "min.s32", {0xffffffffu, 0u, 0u}, 0xffffffffu},
    {61, "min.u32", {0xffffffffu, 0u, 0u}, 0u},
    {62, "max.s32", {0xffffffffu, 0u, 0u}, 0u},
    {63, "max.u32", {0xffffffffu, 0u, 0u}, 0xffffffffu},
    {64, "abs.s32", {0xfffffff9u, 0u, 0u}, 7u},
    {64, "abs.s32", {0x80000000u, 0u, 0u}, 0x80000000u},
    {65, "neg.s32", {7u, 0u, 0u}, 0xfffffff9u},
    {66, "and.b32", {0xff00ff00u, 0xff00ff0u, 0u}, 0xf000f00u},
    {67, "or.b32", {0xf0u, 0xfu, 0u}, 0xffu},
    {68, "xor.b32", {0xffu, 0xfu, 0u}, 0xf0u},
    {69, "not.b32", {0xffu, 0u, 0u}, 0xffffff00u},
    {70, "cnot.b32", {0u, 0u, 0u}, 1u},
    {70, "cnot.b32", {5u, 0u, 0u}, 0u},
    {71, "shl.b32", {3u, 0x1fu, 0u}, 0x80000000u},
    {71, "shl.b32", {3u, 0x20u, 0u}, 0u},
    {71, "shl.b32", {3u, 0xffffffffu, 0u}, 0u},
    {72, "shr.u32", {0x80000000u, 0x1fu, 0u}, 1u},
    {72, "shr.u32", {0x80000000u, 0x20u, 0u}, 0u},
    {72, "shr.u32", {0x80000000u, 0xffu, 0u}, 0u},
    {73, "shr.s32", {0x80000000u, 4u, 0u}, 0xf8000000u},
    {73, "shr.s32", {0x80000000u, 0x20u, 0u}, 0xffffffffu},
    {73, "shr.s32", {0x7fffffffu, 0x28u, 0u}, 0u},
    {74, "shl.b16", {0xffffu, 8u, 0u}, 0xff00u},
    {74, "shl.b16", {0xffffu, 0x10u, 0u}, 0u},
    {75, "shr.s16", {0x8000u, 0xfu, 0u}, 0xffffu},
    {75, "shr.s16", {0x8000u, 0x10u, 0u}, 0xffffu},
    {75, "shr.s16", {0x4000u, 0x10u, 0u}, 0u},
    {76, "add.s16", {0xffffu, 3u, 0u}, 2u},
    {77, "mul.lo.s16", {0xffffu, 3u, 0u}, 0xfffffffdu},
    {78, "bfe.u32", {0xabcd1234u, 8u, 8u}, 0x12u},
    {78, "bfe.u32", {0xabcd1234u, 0x1cu, 8u}, 0xau},
    {78, "bfe.u32", {0xabcd1234u, 0u, 0u}, 0u},
    {78, "bfe.u32", {0xabcd1234u, 0x28u, 8u}, 0u},
    {78, "bfe.u32", {0xabcd1234u, 0u, 0x20u}, 0xabcd1234u},
    {79, "bfe.s32", {0xabcd1234u, 0x10u, 8u}, 0xffffffcdu},
    {79, "bfe.s32", {0xabcd1234u, 0x1cu, 8u}, 0xfffffffau},
    {79, "bfe.s32", {0xabcd1234u, 0x28u, 8u}, 0xffffffffu},
    {79, "bfe.s32", {0xabcd1234u, 3u, 0u}, 0u},
    {80, "bfi.b32", {0xffu, 0u, 0xcu}, 0xff000u},
    {80, "bfi.b32", {0u, 0xffffffffu, 0xcu}, 0xfff00fffu},
    {80, "bfi.b32", {0xffu, 0x11u, 0x1cu}, 0xf0000011u},
    {80, "bfi.b32", {0xffu, 0x11u, 0x20u}, 0x11u},
    {81, "brev.b32", {1u, 0u, 0u}, 0x80000000u},
    {81, "brev.b32", {0xc0000001u, 0u, 0u}, 0x80000003u},
    {82, "popc.b32", {0xf0f0f0f1u, 0u, 0u}, 0x11u},
    {83, "clz.b32", {0u, 0u, 0u}, 0x20u},
    {83, "clz.b32", {1u, 0u, 0u}, 0x1fu},
    {83, "clz.b32", {0xffffffffu, 0u, 0u}, 0u},
    {84, "prmt.b32", {0x33221100u, 0x77665544u, 0x1054u}, 0x11005544u},
    {84, "prmt.b32", {0x33221100u, 0x77665544u, 0x7610u}, 0x77661100u},
    {84, "prmt.b32", {0x8000007fu, 0u, 0x8b30u}, 0xff807fu},
    {85, "lop3.b32", {0xffff0000u, 0x12345678u, 0x9abcdef0u}, 0x1234def0u},
    {86, "shf.l.wrap.b32", {0x80000000u, 1u, 1u}, 3u},
    {86, "shf.l.wrap.b32", {0x80000000u, 1u, 0x21u}, 3u},
    {87, "shf.l.clamp.b32", {0x80000001u, 5u, 4u}, 0x58u},
    {87, "shf.l.clamp.b32", {3u, 5u, 0x20u}, 3u},
    {87, "shf.l.clamp.b32", {3u, 5u, 0x63u}, 3u},
    {88, "shf.r.clamp.b32", {0u, 1u, 1u}, 0x80000000u},
    {88, "shf.r.clamp.b32", {5u, 1u, 0x20u}, 1u},
    {88, "shf.r.clamp.b32", {5u, 1u, 0x63u}, 1u},
    {89, "selp.f32", {1u, 2u, 1u}, 1u},
    {89, "selp.f32", {1u, 2u, 0u}, 2u},
    {90, "slct.u32.s32", {1u, 2u, 0u}, 1u},
    {90, "slct.u32.s32", {1u, 2u, 0xffffffffu}, 2u},
    {91, "slct.f32.f32", {1u, 2u, 0x80000000u}, 1u},
    {91, "slct.f32.f32", {1u, 2u, 0xbf800000u}, 2u},
    {91, "slct.f32.f32", {1u, 2u, 0x7fc00001u}, 2u},
    {92, "cvt.rni.s32.f32", {0x40200000u, 0u, 0u}, 2u},
    {92, "cvt.rni.s32.f32", {0x40600000u, 0u, 0u}, 4u},
    {92, "cvt.rni.s32.f32", {0x501502f9u, 0u, 0u}, 0x7fffffffu},
    {92, "cvt.rni.s32.f32", {0xd01502f9u, 0u, 0u}, 0x80000000u},
    {92, "cvt.rni.s32.f32", {0x7fc00001u, 0u, 0u}, 0u},
    {92, "cvt.rni.s32.f32", {0xc0200000u, 0u, 0u}, 0xfffffffeu},
    {93, "cvt.rzi.s32.f32", {0xbff33333u, 0u, 0u}, 0xffffffffu},
    {93, "cvt.rzi.s32.f32", {0x3ff33333u, 0u, 0u}, 1u},
    {94, "cvt.rmi.s32.f32", {0xbfc00000u, 0u, 0u}, 0xfffffffeu},
    {95, "cvt.rpi.s32.f32", {0x3f8ccccdu, 0u, 0u}, 2u},
    {96, "cvt.rzi.u32.f32", {0xbf800000u, 0u, 0u}, 0u},
    {96, "cvt.rzi.u32.f32", {0x4f7fffffu, 0u, 0u}, 0xffffff00u},
    {96, "cvt.rzi.u32.f32", {0x4f800000u, 0u, 0u}, 0xffffffffu},
    {96, "cvt.rzi.u32.f32", {0x7f800000u, 0u, 0u}, 0xffffffffu},
    {97, "cvt.rzi.u8.f32", {0x43960000u, 0u, 0u}, 0xffu},
    {97, "cvt.rzi.u8.f32", {0x42c80000u, 0u, 0u}, 0x64u},
    {98, "cvt.rpi.ftz.s32.f32", {1u, 0u, 0u}, 0u},
    {99, "cvt.s32.s8", {0x1280u, 0u, 0u}, 0xffffff80u},
    {99, "cvt.s32.s8", {0x127fu, 0u, 0u}, 0x7fu},
    {100, "cvt.u32.u8", {0x1280u, 0u, 0u}, 0x80u},
    {101, "cvt.s8.s32", {0x1280u, 0u, 0u}, 0xffffff80u},
    {102, "cvt.sat.u8.s32", {0xfffffffbu, 0u, 0u}, 0u},
    {102, "cvt.sat.u8.s32", {0x12cu, 0u, 0u}, 0xffu},
    {102, "cvt.sat.u8.s32", {0x4du, 0u, 0u}, 0x4du},
    {103, "cvt.sat.s8.s32", {0xc8u, 0u, 0u}, 0x7fu},
    {103, "cvt.sat.s8.s32", {0xffffff00u, 0u, 0u}, 0xffffff80u},
    {104, "cvt.rn.f32.s32", {0x1000001u, 0u, 0u}, 0x4b800000u},
    {104, "cvt.rn.f32.s32", {0xffffffffu, 0u, 0u}, 0xbf800000u},
    {105, "cvt.rp.f32.s32", {0x1000001u, 0u, 0u}, 0x4b800001u},
    {105, "cvt.rp.f32.s32", {0xfeffffffu, 0u, 0u}, 0xcb800000u},
    {106, "cvt.rz.f32.s32", {0x1000003u, 0u, 0u}, 0x4b800001u},
    {106, "cvt.rz.f32.s32", {0xfeffffffu, 0u, 0u}, 0xcb800000u},
    {107, "cvt.rn.f32.u32", {0xffffffffu, 0u, 0u}, 0x4f800000u},
    {108, "cvt.sat.f32.f32", {0x40000000u, 0u, 0u}, 0x3f800000u},
    {108, "cvt.sat.f32.f32", {0x7fc00001u, 0u, 0u}, 0u},
    {108, "cvt.sat.f32.f32", {0xbf800000u, 0u, 0u}, 0u},
    {108, "cvt.sat.f32.f32", {0x3f000000u, 0u, 0u}, 0x3f000000u},
    {109, "cvt.rni.f32.f32", {0x40200000u, 0u, 0u}, 0x40000000u},
    {109, "cvt.rni.f32.f32", {0xbf000000u, 0u, 0u}, 0x80000000u},
    {109, "cvt.rni.f32.f32", {0x7fc00001u, 0u, 0u}, 0x7fffffffu},
    {110, "cvt.rn.bf16.f32", {0x3f808000u, 0u, 0u}, 0x3f80u},
    {110, "cvt.rn.bf16.f32", {0x3f818000u, 0u, 0u}, 0x3f82u},
    {110, "cvt.rn.bf16.f32", {0x3f808001u, 0u, 0u}, 0x3f81u},
    {110, "cvt.rn.bf16.f32", {0x7fc00001u, 0u, 0u}, 0x7fffu},
    {110, "cvt.rn.bf16.f32", {0x7f7fffffu, 0u, 0u}, 0x7f80u},
    {110, "cvt.rn.bf16.f32", {0xff800000u, 0u, 0u}, 0xff80u},
    {110, "cvt.rn.bf16.f32", {0xff800001u, 0u, 0u}, 0x7fffu},
    {111, "cvt.rz.bf16.f32", {0x3f81ffffu, 0u, 0u}, 0x3f81u},
    {111, "cvt.rz.bf16.f32", {0x7f7fffffu, 0u, 0u}, 0x7f7fu},
    {112, "cvt.rn.bf16x2.f32", {0x3f800000u, 0x40000000u, 0u}, 0x3f804000u},
    {112, "cvt.rn.bf16x2.f32", {0x7fc00001u, 0xbf800000u, 0u}, 0x7fffbf80u},
    {113, "cvt.f32.bf16", {0x3f81u, 0u, 0u}, 0x3f810000u},
    {113, "cvt.f32.bf16", {0x7f80u, 0u, 0u}, 0x7f800000u},
    {114, "mov, packs", {0x12345678u, 0u, 0u}, 0x56781234u},
    {115, "immediates", {0x12u, 0x3f800000u, 0u}, 0x40000000u},
};

const value_case_t<uint64_t> cases_64[] = {
    {0, "add.rn.f64", {0x3ff0000000000000ull, 0x3ca0000000000000ull, 0ull}, 0x3ff0000000000000ull},
    {0, "add.rn.f64", {0x3ff0000000000000ull, 0x3ca8000000000000ull, 0ull}, 0x3ff0000000000001ull},
    {1, "sub.rn.f64", {0x3ff0000000000000ull, 0x4000000000000000ull, 0ull}, 0xbff0000000000000ull},
    {2, "mul.rn.f64", {0x4000000000000000ull, 0x4000000000000000ull, 0ull}, 0x4010000000000000ull},
    {3,
     "fma.rn.f64",
     {0x3ff0000000000001ull, 0x3ff0000000000001ull, 0xbff0000000000002ull},
     0x3970000000000000ull},
    {4, "div.rn.f64", {0x3ff0000000000000ull, 0x4008000000000000ull, 0ull}, 0x3fd5555555555555ull},
    {5, "sqrt.rn.f64", {0x4000000000000000ull, 0ull, 0ull}, 0x3ff6a09e667f3bcdull},
    {6, "min.f64", {0x7ff8000000000001ull, 0x3ff0000000000000ull, 0ull}, 0x3ff0000000000000ull},
    {6, "min.f64", {0ull, 0x8000000000000000ull, 0ull}, 0x8000000000000000ull},
    {7, "max.f64", {0x3ff0000000000000ull, 0x7ff8000000000001ull, 0ull}, 0x3ff0000000000000ull},
    {7, "max.f64", {0xbff0000000000000ull, 0x3ff0000000000000ull, 0ull}, 0x3ff0000000000000ull},
    {8, "neg.f64", {0x3ff0000000000000ull, 0ull, 0ull}, 0xbff0000000000000ull},
    {9, "setp.gt.f64", {0x3ff0000000000000ull, 0x4000000000000000ull, 0ull}, 0x4000000000000000ull},
    {9, "setp.gt.f64", {0x7ff8000000000001ull, 0x3ff0000000000000ull, 0ull}, 0x3ff0000000000000ull},
    {10, "add.s64", {0xffffffffffffffffull, 1ull, 0ull}, 0ull},
    {11, "mul.lo.s64", {0x100000001ull, 0x100000001ull, 0ull}, 0x200000001ull},
    {12, "mul.hi.u64", {0x8000000000000000ull, 6ull, 0ull}, 3ull},
    {13, "mad.lo.s64", {0xffffffffffffffffull, 5ull, 7ull}, 2ull},
    {14, "mul.wide.u32", {0xffffffffull, 0xffffffffull, 0ull}, 0xfffffffe00000001ull},
    {15, "mul.wide.s32", {0xffffffffull, 2ull, 0ull}, 0xfffffffffffffffeull},
    {16, "mad.wide.u32", {0xffffffffull, 2ull, 0x10000000000ull}, 0x101fffffffeull},
    {17, "div.u64", {0xffffffffffffffffull, 3ull, 0ull}, 0x5555555555555555ull},
    {18, "rem.u64", {0xffffffffffffffffull, 0xaull, 0ull}, 5ull},
    {19, "min.u64", {0xffffffffffffffffull, 3ull, 0ull}, 3ull},
    {20, "max.s64", {0xffffffffffffffffull, 3ull, 0ull}, 3ull},
    {21, "shl.b64", {1ull, 0x3full, 0ull}, 0x8000000000000000ull},
    {21, "shl.b64", {1ull, 0x40ull, 0ull}, 0ull},
    {22, "shr.s64", {0x8000000000000000ull, 0x3full, 0ull}, 0xffffffffffffffffull},
    {22, "shr.s64", {0x8000000000000000ull, 0x40ull, 0ull}, 0xffffffffffffffffull},
    {23, "shr.u64", {0x8000000000000000ull, 0x3full, 0ull}, 1ull},
    {23, "shr.u64", {0x8000000000000000ull, 0x40ull, 0ull}, 0ull},
    {24, "not.b64", {0ull, 0ull, 0ull}, 0xffffffffffffffffull},
    {25, "or.b64", {0x10000000000ull, 1ull, 0ull}, 0x10000000001ull},
    {26, "bfe.s64", {0x8000000000000000ull, 0ull, 0ull}, 0xfffffffffffffff8ull},
    {27, "popc.b64", {0x8000000000000001ull, 0ull, 0ull}, 2ull},
    {28, "clz.b64", {1ull, 0ull, 0ull}, 0x3full},
    {28, "clz.b64", {0ull, 0ull, 0ull}, 0x40ull},
    {29, "setp.lt.s64", {0xffffffffffffffffull, 0ull, 0ull}, 0xffffffffffffffffull},
    {30, "setp.lt.u64", {0xffffffffffffffffull, 0ull, 0ull}, 0ull},
    {31, "cvt.s64.s32", {0x80000000ull, 0ull, 0ull}, 0xffffffff80000000ull},
    {32, "cvt.u64.u32", {0x1280000000ull, 0ull, 0ull}, 0x80000000ull},
    {33, "mov, packs", {0x1122334455667788ull, 0ull, 0ull}, 0x5566778811223344ull},
    {34, "cvt.f64.f32", {0x3f800000ull, 0ull, 0ull}, 0x3ff0000000000000ull},
    {34, "cvt.f64.f32", {1ull, 0ull, 0ull}, 0x36a0000000000000ull},
    {35, "cvt.rn.f32.f64", {0x3ff0000010000000ull, 0ull, 0ull}, 0x3f800000ull},
    {35, "cvt.rn.f32.f64", {0x3ff0000010000001ull, 0ull, 0ull}, 0x3f800001ull},
    {35, "cvt.rn.f32.f64", {0x7ff8000000000001ull, 0ull, 0ull}, 0x7fffffffull},
    {35, "cvt.rn.f32.f64", {0x47f0000000000000ull, 0ull, 0ull}, 0x7f800000ull},
    {36, "cvt.rz.f32.f64", {0xbff000001fffffffull, 0ull, 0ull}, 0xbf800000ull},
    {36, "cvt.rz.f32.f64", {0x47f0000000000000ull, 0ull, 0ull}, 0x7f7fffffull},
    {37, "cvt.rn.f32.u64", {0xffffffffffffffffull, 0ull, 0ull}, 0x5f800000ull},
    {37, "cvt.rn.f32.u64", {0x8000008000000000ull, 0ull, 0ull}, 0x5f000000ull},
    {37, "cvt.rn.f32.u64", {0x8000008000000001ull, 0ull, 0ull}, 0x5f000001ull},
    {38, "cvt.rm.f32.u64", {0xffffffffffffffffull, 0ull, 0ull}, 0x5f7fffffull},
    {39, "cvt.rzi.s64.f32", {0x7fc00000ull, 0ull, 0ull}, 0x8000000000000000ull},
    {39, "cvt.rzi.s64.f32", {0x5f000000ull, 0ull, 0ull}, 0x7fffffffffffffffull},
    {39, "cvt.rzi.s64.f32", {0xdf000000ull, 0ull, 0ull}, 0x8000000000000000ull},
    {39, "cvt.rzi.s64.f32", {0xbfc00000ull, 0ull, 0ull}, 0xffffffffffffffffull},
    {40, "cvt.rni.u32.f64", {0x4004000000000000ull, 0ull, 0ull}, 2ull},
    {40, "cvt.rni.u32.f64", {0x7ff8000000000001ull, 0ull, 0ull}, 0x80000000ull},
    {41, "cvt.rn.f64.s64", {0xffffffffffffffffull, 0ull, 0ull}, 0xbff0000000000000ull},
};

template <typename T, size_t N>
void check_values(fixture_t *f, const char *kernel, size_t n_instructions,
                  const value_case_t<T> (&cases)[N]) {
    const size_t n_blocks = (N + 31) / 32;
    std::vector<T> operands(n_blocks * 32 * 3);
    for (size_t i = 0; i < N; i++)
        memcpy(&operands[i * 3], cases[i].operands, sizeof(cases[i].operands));
    fixture_reset(f);
    T *out = take<T>(f, n_blocks * 32 * n_instructions);
    run(f, kernel, (unsigned)n_blocks, 32, 0, place(f, operands), out);
    std::vector<T> results = fetch(f, out, n_blocks * 32 * n_instructions);
    int n_wrong = 0;
    for (size_t i = 0; i < N; i++) {
        T result = results[i * n_instructions + cases[i].which];
        const T *x = cases[i].operands;
        if (result == cases[i].result)
            continue;
        n_wrong++;
        print_message("%s of 0x%llx, 0x%llx, 0x%llx: 0x%llx, not 0x%llx\n", cases[i].what,
                      (unsigned long long)x[0], (unsigned long long)x[1], (unsigned long long)x[2],
                      (unsigned long long)result, (unsigned long long)cases[i].result);
    }
    assert_int_equal(n_wrong, 0);
    assert_int_equal(cases[N - 1].which, n_instructions - 1);
}

void test_values(void **state) {
    check_values((fixture_t *)*state, "values_32", n_values_32, cases_32);
    check_values((fixture_t *)*state, "values_64", n_values_64, cases_64);
}

/* ---- approximations ------------------------------------------------------------------------- */

enum {
    EX2,
    EX2_FTZ,
    RCP,
    RCP_FTZ,
    SQRT,
    RSQRT,
    LG2,
    SIN,
    COS,
    TANH,
    DIV,
    DIV_FTZ,
    DIV_FULL,
    N_KINDS
};

double truth(int kind, double x, double y) {
    switch (kind) {
    case EX2:
    case EX2_FTZ:
        return exp2(x);
    case RCP:
    case RCP_FTZ:
        return 1 / x;
    case SQRT:
        return sqrt(x);
    case RSQRT:
        return 1 / sqrt(x);
    case LG2:
        return log2(x);
    case SIN:
        return sin(x);
    case COS:
        return cos(x);
    case TANH:
        return tanh(x);
    default:
        return x / y;
    }
}

/* The manual's bound, for results that are normal. */
double bound(int kind, double x, double true_value) {
    double size = fabs(true_value), unit = ldexp(1.0, ilogb(size) - 23);
    switch (kind) {
    case EX2:
    case EX2_FTZ:
        return 0x1p-22 * size;
    case RCP:
    case RCP_FTZ:
        return unit;
    case SQRT:
        return 0x1p-23 * size;
    case RSQRT:
        return exp2(-22.9) * size;
    case LG2:
        return x > 0.5 && x < 2 ? 0x1p-22 : 0x1p-22 * size;
    case SIN:
    case COS:
        return exp2(-20.5);
    case TANH:
        return 0x1p-11 * size;
    default:
        return 2 * unit;
    }
}

std::vector<float> approximations(fixture_t *f, const std::vector<float> &pairs) {
    size_t n = pairs.size() / 2;
    fixture_reset(f);
    float *out = take<float>(f, n * 16);
    run(f, "approximations", (unsigned)n / 32, 32, 0, out, place(f, pairs));
    return fetch(f, out, n * 16);
}

void test_bounds(void **state) {
    fixture_t *f = (fixture_t *)*state;
    const size_t n = 1024;
    std::vector<float> pairs;
    uint64_t seed = 5;
    for (size_t i = 0; i < 2 * n; i++)
        pairs.push_back(3.0f * fixture_random_float(&seed) * (i % 3 == 0 ? 0.01f : 1.0f));
    std::vector<float> results = approximations(f, pairs), again = approximations(f, pairs);
    size_t n_above[N_KINDS] = {0}, n_below[N_KINDS] = {0};
    for (size_t i = 0; i < n * N_KINDS; i++) {
        int kind = (int)(i % N_KINDS);
        size_t pair = i / N_KINDS;
        double x = pairs[pair * 2], true_value = truth(kind, x, pairs[pair * 2 + 1]);
        float result = results[pair * 16 + kind];
        assert_true(bits_of(result) == bits_of(again[pair * 16 + kind]));
        if (true_value != true_value) {
            assert_true(bits_of(result) == 0x7fffffff);
            continue;
        }
        if (!(fabs(result - true_value) <= bound(kind, x, true_value)))
            fail_msg("kind %d of %.9g, %.9g: %.9g, not %.12g", kind, x, pairs[pair * 2 + 1], result,
                     true_value);
        n_above[kind] += result > (float)true_value;
        n_below[kind] += result < (float)true_value;
    }
    for (int kind = 0; kind < N_KINDS; kind++)
        assert_true(n_above[kind] > n / 20 && n_below[kind] > n / 20);
}

void test_corners(void **state) {
    const float denormal = 1e-40f, nan = NAN;
    struct {
        float x, y;
        int kind;
        uint32_t result;
    } cases[] = {
        {0, 0, EX2, 0x3f800000},
        {-denormal, 0, EX2, 0x3f800000},
        {INFINITY, 0, EX2_FTZ, 0x7f800000},
        {-INFINITY, 0, EX2, 0},
        {nan, 0, EX2_FTZ, 0x7fffffff},
        {-127.5f, 0, EX2_FTZ, 0},
        {200, 0, EX2, 0x7f800000},
        {-0.0f, 0, RCP, 0xff800000},
        {denormal, 0, RCP_FTZ, 0x7f800000},
        {INFINITY, 0, RCP, 0},
        {0x1p127f, 0, RCP_FTZ, 0},
        {4, 0, RCP, 0x3e800000},
        {-0.0f, 0, SQRT, 0x80000000},
        {-1, 0, SQRT, 0x7fffffff},
        {0, 0, RSQRT, 0x7f800000},
        {0, 0, LG2, 0xff800000},
        {-1, 0, LG2, 0x7fffffff},
        {INFINITY, 0, TANH, 0x3f800000},
        {1, 0x1p127f, DIV, 0},
        {-1, 0x1p127f, DIV_FTZ, 0x80000000},
        {INFINITY, 0x1p127f, DIV, 0x7fffffff},
        {nan, 0x1p127f, DIV, 0x7fffffff},
        {1, 0, DIV, 0x7f800000},
        {0, 0, DIV, 0x7fffffff},
        {0, -2, DIV_FULL, 0x80000000},
        {1, -INFINITY, DIV, 0x80000000},
    };
    std::vector<float> pairs(64);
    size_t n = sizeof(cases) / sizeof(cases[0]);
    assert_true(n <= 32);
    for (size_t i = 0; i < n; i++)
        pairs[i * 2] = cases[i].x, pairs[i * 2 + 1] = cases[i].y;
    std::vector<float> results = approximations((fixture_t *)*state, pairs);
    for (size_t i = 0; i < n; i++)
        if (bits_of(results[i * 16 + cases[i].kind]) != cases[i].result)
            fail_msg("corner %zu: 0x%x, not 0x%x", i, bits_of(results[i * 16 + cases[i].kind]),
                     cases[i].result);
}

/* ---- threads -------------------------------------------------------------------------------- */

/* From which lane a shuffle of the kernel takes; its own where there is none. */
int shuffle_source(size_t which, int lane) {
    int first = lane / 8 * 8;
    switch (which) {
    case 0: /* up by 3 */
        return lane >= 3 ? lane - 3 : lane;
    case 1: /* in groups of 8 */
        return lane % 8 >= 3 ? lane - 3 : lane;
    case 2: /* down by 5 */
        return lane + 5 < 32 ? lane + 5 : lane;
    case 3:
        return lane % 8 + 5 < 8 ? lane + 5 : lane;
    case 4: /* xor 16 */
        return lane ^ 16;
    case 5: /* xor 9 in groups of 8: from those below */
        return lane & 8 ? lane ^ 9 : lane;
    case 6: /* lane 13 */
        return 13;
    case 7:
        return first + 5;
    default: /* lane 6 of a group that ends with lane 4 */
        return lane;
    }
}

void test_warps(void **state) {
    fixture_t *f = (fixture_t *)*state;
    const size_t n_shuffles = 9, n_words = 2 * n_shuffles + 12;
    fixture_reset(f);
    uint32_t *out = take<uint32_t>(f, 32 * n_words);
    run(f, "warps", 1, 32, 0, out);
    std::vector<uint32_t> words = fetch(f, out, 32 * n_words);
    for (int lane = 0; lane < 32; lane++) {
        const uint32_t *of_lane = &words[(size_t)lane * n_words], *rest = of_lane + 2 * n_shuffles;
        for (size_t i = 0; i < n_shuffles; i++) {
            int from = shuffle_source(i, lane);
            bool is_there = from != lane || (i == 6 && lane == 13) || (i == 7 && lane % 8 == 5);
            assert_int_equal(of_lane[2 * i], 100 + from);
            assert_int_equal(of_lane[2 * i + 1], is_there);
        }
        const uint32_t expected[11] = {0x7f,
                                       1 | 8 | 16 | 32,
                                       0x11111111u << lane % 4,
                                       1,
                                       0,
                                       0,
                                       0xffffffffu,
                                       1,
                                       (uint32_t)lane,
                                       (1u << lane) - 1,
                                       lane < 16 ? 100 + (uint32_t)(lane ^ 1) : 0};
        for (size_t i = 0; i < 11; i++)
            assert_int_equal(rest[i], expected[i]);
    }
}

void test_memories(void **state) {
    struct alignas(8) struct_t {
        uint32_t words[4];
    } by_value = {{1, 2, 0x89abcd11u, 3}};
    fixture_t *f = (fixture_t *)*state;
    fixture_reset(f);
    uint32_t *out = take<uint32_t>(f, 32 * 32);
    run(f, "memories", 1, 32, 128, out, (uint8_t)0x90, by_value, 1.5f);
    const size_t offsets[4] = {0, 8, 16, 32};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(find_kernel("memories")->params[i].offset_bytes, offsets[i]);
    assert_int_equal(find_kernel("memories")->shared_bytes, 8 + 132);
    assert_int_equal(find_kernel("memories")->max_threads, 32);
    std::vector<uint32_t> words = fetch(f, out, 32 * 32);
    for (uint32_t i = 0; i < 32; i++) {
        const uint32_t expected[29] = {
            0xffffff90u, 0x90,        0xffffff90u, 2,    0x11,        0x89,
            0x3fc00000,  0,                                                   /* parameters */
            0,           8,           144,         i,                         /* addresses */
            31 - i,      0x3f800000,  i,           i,    1,           1,      /* shared, local */
            0x89abcdefu, 0,           0xffffffefu, 0xef, 0xffffcdefu, 0xcdef, /* extensions */
            0x89abcdefu, 0xffffffffu, 0xffab89abu, 0x89, 0x3fc00000};
        for (size_t k = 0; k < 29; k++)
            if (words[i * 32 + k] != expected[k])
                fail_msg("thread %u, word %zu: 0x%x, not 0x%x", i, k, words[i * 32 + k],
                         expected[k]);
    }
}

void test_control(void **state) {
    fixture_t *f = (fixture_t *)*state;
    fixture_reset(f);
    uint32_t *out = take<uint32_t>(f, 32 * 16);
    run(f, "control", 1, 32, 0, out);
    std::vector<uint32_t> words = fetch(f, out, 32 * 16);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t sum = i == 0 ? 0 : i * (i - 1) / 2;
        const uint32_t expected[10] = {sum,         i < 4 ? 2u : 11u, sum, 18, 32, 0, 1, 0,
                                       0xffffffffu, i < 4 ? 0u : 3u};
        for (size_t k = 0; k < 10; k++)
            assert_int_equal(words[i * 16 + k], expected[k]);
    }
}

/* ---- matrices ------------------------------------------------------------------------------- */

/* Rows for ldmatrix, then each lane's fragments: a, b, nothing, c. */
struct matrices_t {
    uint16_t rows[32][8];
    uint32_t nothing[128];
    struct {
        uint16_t a[4][2], b[2][2];
        uint32_t nothing[2];
        float c[4];
    } lanes[32];

    uint16_t *a(int row, int k) {
        return &lanes[row % 8 * 4 + k % 8 / 2].a[row / 8 + k / 8 * 2][k % 2];
    }
    uint16_t *b(int k, int column) {
        return &lanes[column * 4 + k % 8 / 2].b[k / 8][k % 2];
    }
    float *c(int row, int column) {
        return &lanes[row % 8 * 4 + column / 2].c[row / 8 * 2 + column % 2];
    }
};

struct matrix_results_t {
    struct {
        uint16_t plain[4][2], transposed[4][2], two[2][2];
        uint32_t small[2];
        float d[4];
        uint32_t nothing[8];
    } lanes[32];

    float d(int row, int column) const {
        return lanes[row % 8 * 4 + column / 2].d[row / 8 * 2 + column % 2];
    }
};

std::vector<matrix_results_t> multiply(fixture_t *f, const matrices_t &in) {
    fixture_reset(f);
    matrix_results_t *out = take<matrix_results_t>(f, 1);
    run(f, "matrices", 1, 32, 1024, out, place(f, std::vector<matrices_t>{in}));
    return fetch(f, out, 1);
}

uint16_t bf16(float value) {
    return (uint16_t)(bits_of(value) >> 16);
}

void test_loads_of_matrices(void **state) {
    matrices_t in = {};
    for (int i = 0; i < 256; i++)
        in.rows[i / 8][i % 8] = (uint16_t)(1000 + i);
    auto results = multiply((fixture_t *)*state, in);
    for (int i = 2; i < 8; i++)
        in.rows[31][i] = 0; /* not copied */
    for (int lane = 0; lane < 32; lane++) {
        const auto &of_lane = results[0].lanes[lane];
        int group = lane / 4, in_group = lane % 4;
        for (int i = 0; i < 8; i++) {
            int first = i / 2 * 8, one = in_group * 2 + i % 2;
            assert_int_equal(of_lane.plain[i / 2][i % 2], in.rows[first + group][one]);
            assert_int_equal(of_lane.transposed[i / 2][i % 2], in.rows[first + one][group]);
            if (i < 4)
                assert_int_equal(of_lane.two[i / 2][i % 2], in.rows[first + group][one]);
        }
        for (uint32_t word : of_lane.small)
            assert_memory_equal(&word, in.rows[lane], 4);
    }
}

void test_products(void **state) {
    matrices_t in = {};
    uint64_t seed = 7;
    int a[16][16], b[16][8];
    for (int i = 0; i < 256; i++)
        *in.a(i / 16, i % 16) =
            bf16((float)(a[i / 16][i % 16] = (int)(random_bits(&seed) % 17) - 8));
    for (int i = 0; i < 128; i++) {
        *in.b(i / 8, i % 8) = bf16((float)(b[i / 8][i % 8] = (int)(random_bits(&seed) % 17) - 8));
        *in.c(i / 8, i % 8) = (float)(i - 50);
    }
    auto results = multiply((fixture_t *)*state, in);
    for (int i = 0; i < 128; i++) {
        int sum = i - 50;
        for (int k = 0; k < 16; k++)
            sum += a[i / 8][k] * b[k][i % 8];
        assert_true(results[0].d(i / 8, i % 8) == (float)sum);
    }
}

/* What is shifted beyond the 24 bits of the largest term is lost; eight products are added at once.
 */
void test_sums_of_products(void **state) {
    const uint16_t one = 0x3f80, infinity = 0x7f80;
    const struct {
        float c;
        uint16_t a[16];
        uint32_t d;
    } rows[16] = {
        {0x1p24f, {one, one, one, one, one, one, one, one, one, one}, 0x4b800000},
        {-0x1p24f, {one, one, one}, 0xcb800000},
        {1, {bf16(0x1p-24f), bf16(0x1p-25f)}, 0x3f800000},
        {0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0018}, 1}, /* 1.5 * 2^-149, cut */
        {0, {infinity}, 0x7f800000},
        {-INFINITY, {infinity}, 0x7fffffff},
        {NAN, {one}, 0x7fffffff},
        {0x1.fffffep127f, {0x7f7f}, 0x7f800000},
        {0, {0x0001}, 0x00010000},                                      /* a subnormal operand */
        {0x1p-149f, {0x0080}, 0x00800001},                              /* a subnormal in the sum */
        {0, {one, one, one, 0, 0, 0, 0, 0, bf16(0x1p24f)}, 0x4b800001}, /* 3, then 2^24 + 2 */
        {0x1.fffffep0f, {one}, 0x403fffff},                        /* a bit more than fp32 has */
        {0, {bf16(0x1p24f), bf16(3), bf16(-0x1p24f)}, 0x40000000}, /* 3 cut to 2 */
        {1, {bf16(-1)}, 0},
        {0, {0}, 0},
        {1, {bf16(-0x1p-24f)}, 0x3f800000},
    };
    matrices_t in = {};
    for (int i = 0; i < 256; i++)
        *in.a(i / 16, i % 16) = rows[i / 16].a[i % 16];
    for (int i = 0; i < 128; i++) {
        *in.b(i / 8, i % 8) = i / 8 == 15 ? bf16(0x1p-20f) : one;
        *in.c(i / 8, i % 8) = rows[i / 8].c;
    }
    auto results = multiply((fixture_t *)*state, in);
    for (int i = 0; i < 128; i++)
        if (bits_of(results[0].d(i / 8, i % 8)) != rows[i / 8].d)
            fail_msg("row %d, column %d: 0x%x, not 0x%x", i / 8, i % 8,
                     bits_of(results[0].d(i / 8, i % 8)), rows[i / 8].d);
}

/* ---- what does not go on -------------------------------------------------------------------- */

/* The signal that a run of one thread in each of `n_blocks` ends with; 0: none. */
int signal_of(fixture_t *f, const char *kernel, unsigned n_blocks) {
    fixture_reset(f);
    uint32_t *out = take<uint32_t>(f, 32);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (freopen("/dev/null", "w", stderr) == NULL)
            _exit(1);
        f->device->owner = getpid(); /* devices refuse forks */
        run(f, kernel, n_blocks, 1, 0, out);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void test_ends(void **state) {
    assert_int_equal(signal_of((fixture_t *)*state, "unknown", 2), SIGABRT);
    assert_int_equal(signal_of((fixture_t *)*state, "unknown_qualifier", 1), SIGABRT);
    assert_int_equal(signal_of((fixture_t *)*state, "traps", 1), 0);
}

int translate(const char *options, const char *name) {
    std::string command = std::string(PTX_TRANSLATE) + " " + options +
                          " -o /dev/null " PTX_PROBES "/" + name + ".ptx " + name + " 2>/dev/null";
    int status = system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void test_strict(void **) {
    assert_int_equal(translate("--strict", "probe_values"), 0);
    assert_int_equal(translate("--strict", "probe_unknown"), 1);
    assert_int_equal(translate("", "probe_unknown"), 0);
    assert_int_equal(translate("", "probe_missing"), 1);
}

/* Places are those of the source, with who inlined them. */
void test_places(void **) {
    for (const ptx_module_t *module : ptx_modules())
        if (strcmp(module->name, "probe_unknown") == 0) {
            assert_int_equal(module->n_barriers, 2);
            assert_string_equal(module->barriers[0], "callee.cuh:34 bar.warp.sync -1 "
                                                     "(probe_unknown.ptx:24, in caller.cu:12)");
            assert_string_equal(module->barriers[1],
                                "caller.cu:13 bar.sync 0 (probe_unknown.ptx:26)");
            return;
        }
    fail();
}

int setup(void **state) {
    static fixture_t fixture;
    fixture_open(&fixture, "cuda", 1, NULL);
    *state = &fixture;
    return 0;
}

int teardown(void **state) {
    fixture_close((fixture_t *)*state);
    return 0;
}

} // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),   cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_corners),  cmocka_unit_test(test_warps),
        cmocka_unit_test(test_memories), cmocka_unit_test(test_control),
        cmocka_unit_test(test_products), cmocka_unit_test(test_loads_of_matrices),
        cmocka_unit_test(test_ends),     cmocka_unit_test(test_sums_of_products),
        cmocka_unit_test(test_strict),   cmocka_unit_test(test_places),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
