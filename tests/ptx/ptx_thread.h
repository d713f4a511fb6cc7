/*
 * What one thread of translated PTX calls, instruction by instruction (ptx.h). Registers are
 * unsigned integers of their width, predicates are bool; each function does what the PTX manual
 * says of its instruction, with the type it names: arithmetic is rounded as the instruction says
 * and never contracted (-ffp-contract=off), NaNs of fp32 that come out are the canonical one.
 *
 * Where the manual promises a bound instead of a value (.approx), the result is moved away from the
 * truth within that bound, by a hash of the operands: the same operands give the same result, and
 * who depends on more than is promised is seen.
 *
 * What the manual leaves open: x / 0 of integers is all ones, x % 0 is x; a result that is
 * saturated is never -0; with .ftz results are flushed after they were rounded.
 */
#pragma once

#include <cuda_runtime.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "tests/emu/emu_thread.h"
#include "tests/emu/include/emu_matrix.h"
#include "tests/ptx/ptx.h"

namespace ptx {

/* ---- the end --------------------------------------------------------------------------- */

[[noreturn]] inline void die(const char *here, const char *why) {
    fprintf(stderr, "ptx: %s: %s\n", here, why);
    abort();
}

/* ---- bits ------------------------------------------------------------------------------- */

const uint32_t nan_f32 = 0x7fffffffu, infinity_f32 = 0x7f800000u, sign_f32 = 0x80000000u;
const uint64_t nan_f64 = 0x7fffffffffffffffull;

template <typename T> inline T get(const void *from) {
    T value;
    memcpy(&value, from, sizeof(value));
    return value;
}
template <typename T> inline void put(void *to, T value) {
    memcpy(to, &value, sizeof(value));
}
inline float float_of(uint32_t bits) {
    return get<float>(&bits);
}
inline double double_of(uint64_t bits) {
    return get<double>(&bits);
}
inline uint32_t bits_of(float value) {
    return get<uint32_t>(&value);
}
inline uint64_t bits_of(double value) {
    return get<uint64_t>(&value);
}

/* ---- who I am ---------------------------------------------------------------------------- */

inline unsigned thread_in_block() {
    const emu_thread_t *t = emu_thread;
    return t->thread.x + t->n_threads.x * (t->thread.y + t->n_threads.y * t->thread.z);
}

/* ---- integers ------------------------------------------------------------------------------
 * T is the instruction's type; what overflows is cut off. */

template <typename T> using unsigned_t = std::make_unsigned_t<T>;
template <typename T> const unsigned width = sizeof(T) * 8;

/* As wide as products are computed: not in int, where those of 16 bits would overflow. */
template <typename T>
using wide_unsigned_t = std::conditional_t<(sizeof(T) < 4), uint32_t, unsigned_t<T>>;

template <typename T> inline T add(T a, T b) {
    return (T)((wide_unsigned_t<T>)a + (wide_unsigned_t<T>)b);
}
template <typename T> inline T sub(T a, T b) {
    return (T)((wide_unsigned_t<T>)a - (wide_unsigned_t<T>)b);
}
template <typename T> inline T mul_lo(T a, T b) {
    return (T)((wide_unsigned_t<T>)a * (wide_unsigned_t<T>)b);
}
template <typename T> inline T mul_hi(T a, T b) {
    using wide_t = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
    return (T)((wide_t)a * (wide_t)b >> width<T>);
}
/* W: twice as wide as T, of the same kind. */
template <typename W, typename T> inline W mul_wide(T a, T b) {
    return (W)a * (W)b;
}
template <typename T> inline T div(T a, T b) {
    if (b == 0)
        return (T)-1;
    return std::is_signed_v<T> && b == (T)-1 ? sub<T>(0, a) : (T)(a / b);
}
template <typename T> inline T rem(T a, T b) {
    if (b == 0)
        return a;
    return std::is_signed_v<T> && b == (T)-1 ? 0 : (T)(a % b);
}
template <typename T> inline T min(T a, T b) {
    return b < a ? b : a;
}
template <typename T> inline T max(T a, T b) {
    return a < b ? b : a;
}
template <typename T> inline T abs(T a) {
    return a < 0 ? sub<T>(0, a) : a;
}

template <typename T> inline T shl(T a, uint32_t by) {
    return by >= width<T> ? 0 : (T)((wide_unsigned_t<T>)a << by);
}
/* Of a signed type, its sign comes in. */
template <typename T> inline T shr(T a, uint32_t by) {
    if (by >= width<T>)
        return a < 0 ? (T)-1 : 0;
    return (T)(a >> by);
}

template <typename T> inline T low_bits(uint32_t n) {
    return n >= width<T> ? (T)-1 : (T)(((T)1 << n) - 1);
}
/* bfe: the field of `length` bits from `position` on; what is beyond the end is 0, or the sign. */
template <typename T> inline T bfe(T a, uint32_t position, uint32_t length) {
    using U = unsigned_t<T>;
    position &= 0xff;
    length &= 0xff;
    U field = shr<U>((U)a, position) & low_bits<U>(length);
    if (!std::is_signed_v<T> || length == 0)
        return (T)field;
    uint32_t sign_at = min<uint32_t>(position + length - 1, width<T> - 1);
    uint32_t n_there = position >= width<T> ? 0 : min<uint32_t>(length, width<T> - position);
    bool is_negative = ((U)a >> sign_at & 1) != 0;
    return (T)(is_negative ? field | ~low_bits<U>(n_there) : field);
}
template <typename T> inline T bfi(T a, T b, uint32_t position, uint32_t length) {
    position &= 0xff;
    T mask = low_bits<T>(length & 0xff);
    return (b & ~shl<T>(mask, position)) | shl<T>(a & mask, position);
}
template <typename T> inline T brev(T a) {
    T reversed = 0;
    for (unsigned i = 0; i < width<T>; i++)
        reversed |= (a >> i & 1) << (width<T> - 1 - i);
    return reversed;
}
template <typename T> inline uint32_t popc(T a) {
    return (uint32_t)__builtin_popcountll(a);
}
template <typename T> inline uint32_t clz(T a) {
    return a == 0 ? width<T> : (uint32_t)__builtin_clzll(a) - (64 - width<T>);
}
/* Four bytes of eight, by four bits each; the fourth of which asks for the byte's sign. */
inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t which) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t chosen = 0;
    for (unsigned i = 0; i < 4; i++) {
        uint32_t byte = (uint32_t)(bytes >> (which >> 4 * i & 7) * 8) & 0xff;
        if ((which >> 4 * i & 8) != 0)
            byte = (byte & 0x80) != 0 ? 0xff : 0;
        chosen |= byte << 8 * i;
    }
    return chosen;
}
inline uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t result = 0;
    for (unsigned i = 0; i < 8; i++)
        if ((table >> i & 1) != 0)
            result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}
inline uint32_t shf_l(uint32_t a, uint32_t b, uint32_t by, bool wraps) {
    uint64_t both = (uint64_t)b << 32 | a;
    return (uint32_t)(both << (wraps ? by & 31 : min<uint32_t>(by, 32)) >> 32);
}
inline uint32_t shf_r(uint32_t a, uint32_t b, uint32_t by, bool wraps) {
    uint64_t both = (uint64_t)b << 32 | a;
    return (uint32_t)(both >> (wraps ? by & 31 : min<uint32_t>(by, 32)));
}

enum compare_t { EQ, NE, LT, LE, GT, GE, EQU, NEU, LTU, LEU, GTU, GEU, NUM, NAN_ };

template <compare_t C, typename T> inline bool compare(T a, T b) {
    static_assert(C <= GE, "integers are ordered");
    return C == EQ   ? a == b
           : C == NE ? a != b
           : C == LT ? a < b
           : C == LE ? a <= b
           : C == GT ? a > b
                     : a >= b;
}

/* ---- fp32: in and out ----------------------------------------------------------------------- */

enum round_t { RN, RZ, RM, RP };

template <bool FTZ> inline uint32_t flush(uint32_t bits) {
    return FTZ && (bits & infinity_f32) == 0 ? bits & sign_f32 : bits;
}
template <bool FTZ> inline float in(uint32_t bits) {
    return float_of(flush<FTZ>(bits));
}
template <bool FTZ, bool SAT = false> inline uint32_t out(float value) {
    if (value != value)
        return SAT ? 0 : nan_f32;
    if (SAT)
        value = value > 0.0f ? (value < 1.0f ? value : 1.0f) : 0.0f;
    return flush<FTZ>(bits_of(value));
}

/* The fp32 beside what is exactly high + low, |low| being at most half a unit of high's. */
template <round_t R, typename W> inline float rounded(W high, W low) {
    float nearest = (float)high;
    bool is_above = nearest > high || (nearest == high && low < 0);
    bool is_below = nearest < high || (nearest == high && low > 0);
    bool is_down = R == RM || (R == RZ && (high > 0 || (high == 0 && low > 0)));
    if (is_down && is_above)
        return nextafterf(nearest, -INFINITY);
    if (R != RN && !is_down && is_below)
        return nextafterf(nearest, INFINITY);
    return nearest;
}

/* a + b, each of them an fp32 or a product of two, which double holds exactly. */
template <round_t R> inline float rounded_sum(double a, double b) {
    double sum = a + b;
    if (!std::isfinite(sum))
        return (float)sum;
    if (sum == 0) { /* exactly: of unlike signs it is -0 where it is rounded down */
        bool is_negative = a == 0 && std::signbit(a) == std::signbit(b) ? std::signbit(a) : R == RM;
        return is_negative ? -0.0f : 0.0f;
    }
    double of_b = sum - a;
    double rest_of_a = sum - of_b;
    rest_of_a = a - rest_of_a;
    double rest_of_b = b - of_b;
    double rest = rest_of_a + rest_of_b;
    return rounded<R>(sum, rest);
}

/* ---- fp32: arithmetic ----------------------------------------------------------------------- */

template <round_t R, bool FTZ, bool SAT> inline uint32_t add_f32(uint32_t a, uint32_t b) {
    float x = in<FTZ>(a), y = in<FTZ>(b);
    return out<FTZ, SAT>(R == RN ? x + y : rounded_sum<R>(x, y));
}
template <round_t R, bool FTZ, bool SAT> inline uint32_t sub_f32(uint32_t a, uint32_t b) {
    float x = in<FTZ>(a), y = in<FTZ>(b);
    return out<FTZ, SAT>(R == RN ? x - y : rounded_sum<R>(x, -y));
}
template <round_t R, bool FTZ, bool SAT> inline uint32_t mul_f32(uint32_t a, uint32_t b) {
    float x = in<FTZ>(a), y = in<FTZ>(b);
    if (R == RN)
        return out<FTZ, SAT>(x * y);
    double product = (double)x * (double)y;
    return out<FTZ, SAT>(std::isfinite(product) ? rounded<R>(product, 0.0) : (float)product);
}
template <round_t R, bool FTZ, bool SAT>
inline uint32_t fma_f32(uint32_t a, uint32_t b, uint32_t c) {
    float x = in<FTZ>(a), y = in<FTZ>(b), z = in<FTZ>(c);
    if (R == RN)
        return out<FTZ, SAT>(fmaf(x, y, z));
    return out<FTZ, SAT>(rounded_sum<R>((double)x * (double)y, z));
}
template <bool FTZ> inline uint32_t div_f32(uint32_t a, uint32_t b) {
    return out<FTZ>(in<FTZ>(a) / in<FTZ>(b));
}
template <bool FTZ> inline uint32_t rcp_f32(uint32_t a) {
    return out<FTZ>(1.0f / in<FTZ>(a));
}
template <bool FTZ> inline uint32_t sqrt_f32(uint32_t a) {
    return out<FTZ>(sqrtf(in<FTZ>(a)));
}
template <bool FTZ> inline uint32_t neg_f32(uint32_t a) {
    return flush<FTZ>(a) ^ sign_f32;
}
template <bool FTZ> inline uint32_t abs_f32(uint32_t a) {
    return flush<FTZ>(a) & ~sign_f32;
}

/* -0 is less than +0; of a number and a NaN the number is taken, unless NANS says NaN. */
template <bool FTZ, bool NANS> inline uint32_t min_f32(uint32_t a, uint32_t b) {
    float x = in<FTZ>(a), y = in<FTZ>(b);
    if (x != x || y != y)
        return NANS || (x != x && y != y) ? nan_f32 : bits_of(x != x ? y : x);
    return bits_of(x < y || (x == y && std::signbit(x)) ? x : y);
}
template <bool FTZ, bool NANS> inline uint32_t max_f32(uint32_t a, uint32_t b) {
    float x = in<FTZ>(a), y = in<FTZ>(b);
    if (x != x || y != y)
        return NANS || (x != x && y != y) ? nan_f32 : bits_of(x != x ? y : x);
    return bits_of(x > y || (x == y && !std::signbit(x)) ? x : y);
}

template <compare_t C, typename T> inline bool compare_floats(T x, T y) {
    if (x != x || y != y)
        return C >= EQU && C != NUM;
    return C == NUM              ? true
           : C == NAN_           ? false
           : C == EQ || C == EQU ? x == y
           : C == NE || C == NEU ? x != y
           : C == LT || C == LTU ? x < y
           : C == LE || C == LEU ? x <= y
           : C == GT || C == GTU ? x > y
                                 : x >= y;
}
template <compare_t C, bool FTZ> inline bool compare_f32(uint32_t a, uint32_t b) {
    return compare_floats<C>(in<FTZ>(a), in<FTZ>(b));
}
template <compare_t C> inline bool compare_f64(uint64_t a, uint64_t b) {
    return compare_floats<C>(double_of(a), double_of(b));
}

/* ---- fp32: approximations ------------------------------------------------------------------- */

/* Greater than -1, less than 1. */
inline double drawn_error(uint64_t operands, uint64_t instruction) {
    uint64_t hash = operands + instruction * 0x9e3779b97f4a7c15ull;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
    hash ^= hash >> 31;
    return (double)(int64_t)(hash | 1) / 9223372036854775808.0;
}
/* What rounding to fp32 adds to a relative error. */
const double half_unit = 0x1p-24;

/* Within two units: the one beside the nearest, or the nearest. */
template <bool FTZ> inline uint32_t near(double value, double error) {
    float nearest = (float)value;
    if (!std::isfinite(nearest) || nearest == 0)
        return out<FTZ>(nearest);
    if (error > 1.0 / 3)
        nearest = nextafterf(nearest, INFINITY);
    else if (error < -1.0 / 3)
        nearest = nextafterf(nearest, -INFINITY);
    return out<FTZ>(nearest);
}

/* 2 units where |b| is from 2^-126 to 2^126; 0 for larger ones, but NaN for infinity by them. */
template <bool FTZ, bool FULL> inline uint32_t div_approx(uint32_t a, uint32_t b) {
    float x = in<FTZ>(a), y = in<FTZ>(b);
    if (!FULL && std::isfinite(y) && fabsf(y) > 0x1p126f)
        return x != x || std::isinf(x) ? nan_f32 : (a ^ b) & sign_f32;
    return near<FTZ>((double)x / (double)y, drawn_error((uint64_t)a << 32 | b, 1));
}
/* 1 unit: one of the two that it lies between. */
template <bool FTZ> inline uint32_t rcp_approx(uint32_t a) {
    float x = in<FTZ>(a);
    double value = 1.0 / (double)x;
    if (!std::isfinite(value) || fabs(value) > std::numeric_limits<float>::max())
        return out<FTZ>((float)value);
    return out<FTZ>(drawn_error(a, 2) > 0 ? rounded<RP>(value, 0.0) : rounded<RM>(value, 0.0));
}
/* A relative error of at most `bound`. */
template <bool FTZ> inline uint32_t moved(double value, double error, double bound) {
    return out<FTZ>((float)(value * (1.0 + error * (bound - half_unit))));
}
template <bool FTZ> inline uint32_t sqrt_approx(uint32_t a) {
    return moved<FTZ>(sqrt((double)in<FTZ>(a)), drawn_error(a, 3), 0x1p-23);
}
template <bool FTZ> inline uint32_t rsqrt_approx(uint32_t a) {
    return moved<FTZ>(1.0 / sqrt((double)in<FTZ>(a)), drawn_error(a, 4), 0x1.12p-23);
}
/* 2^-22; 1 for what is nothing or a subnormal. */
template <bool FTZ> inline uint32_t ex2_approx(uint32_t a) {
    if ((a & infinity_f32) == 0)
        return 0x3f800000u;
    return moved<FTZ>(exp2((double)float_of(a)), drawn_error(a, 5), 0x1p-22);
}
/* 2^-22 of it, or absolute between 0.5 and 2. */
template <bool FTZ> inline uint32_t lg2_approx(uint32_t a) {
    float x = in<FTZ>(a);
    double value = log2((double)x), error = drawn_error(a, 6);
    if (x > 0.5f && x < 2.0f)
        return out<FTZ>((float)(value + error * (0x1p-22 - half_unit)));
    return moved<FTZ>(value, error, 0x1p-22);
}
/* 2^-20.5 absolute, from -pi to pi. */
template <bool FTZ> inline uint32_t sin_approx(uint32_t a) {
    return out<FTZ>((float)(sin((double)in<FTZ>(a)) + drawn_error(a, 7) * 0x1.4p-21));
}
template <bool FTZ> inline uint32_t cos_approx(uint32_t a) {
    return out<FTZ>((float)(cos((double)in<FTZ>(a)) + drawn_error(a, 8) * 0x1.4p-21));
}
/* 2^-11, and never beyond 1. */
inline uint32_t tanh_approx(uint32_t a) {
    double value = tanh((double)float_of(a));
    value *= 1.0 + drawn_error(a, 9) * (0x1p-11 - half_unit);
    return out<false>((float)(value > 1 ? 1 : value < -1 ? -1 : value));
}

/* ---- fp64: rounded to nearest; NaNs as the host makes them --------------------------------- */

inline uint64_t add_f64(uint64_t a, uint64_t b) {
    return bits_of(double_of(a) + double_of(b));
}
inline uint64_t sub_f64(uint64_t a, uint64_t b) {
    return bits_of(double_of(a) - double_of(b));
}
inline uint64_t mul_f64(uint64_t a, uint64_t b) {
    return bits_of(double_of(a) * double_of(b));
}
inline uint64_t div_f64(uint64_t a, uint64_t b) {
    return bits_of(double_of(a) / double_of(b));
}
inline uint64_t fma_f64(uint64_t a, uint64_t b, uint64_t c) {
    return bits_of(fma(double_of(a), double_of(b), double_of(c)));
}
inline uint64_t rcp_f64(uint64_t a) {
    return bits_of(1.0 / double_of(a));
}
inline uint64_t sqrt_f64(uint64_t a) {
    return bits_of(sqrt(double_of(a)));
}
inline uint64_t neg_f64(uint64_t a) {
    return a ^ 1ull << 63;
}
inline uint64_t abs_f64(uint64_t a) {
    return a & ~(1ull << 63);
}
inline uint64_t min_f64(uint64_t a, uint64_t b) {
    double x = double_of(a), y = double_of(b);
    if (x != x || y != y)
        return x != x && y != y ? nan_f64 : x != x ? b : a;
    return x < y || (x == y && std::signbit(x)) ? a : b;
}
inline uint64_t max_f64(uint64_t a, uint64_t b) {
    double x = double_of(a), y = double_of(b);
    if (x != x || y != y)
        return x != x && y != y ? nan_f64 : x != x ? b : a;
    return x > y || (x == y && !std::signbit(x)) ? a : b;
}

/* ---- conversions ---------------------------------------------------------------------------- */

template <typename D, typename S> inline D saturated(S value) {
    __int128 wide = value, least = std::numeric_limits<D>::min(),
             most = std::numeric_limits<D>::max();
    return (D)(wide < least ? least : wide > most ? most : wide);
}

template <round_t R> inline double whole(double value) {
    return R == RN   ? nearbyint(value)
           : R == RZ ? trunc(value)
           : R == RM ? floor(value)
                     : ceil(value);
}

/* To an integer: limited to its range. A NaN is 0, or, where 64 bits take part, the sign alone. */
template <typename D, round_t R> inline D to_integer(double value, bool from_double) {
    if (value != value)
        return from_double || sizeof(D) == 8 ? (D)((unsigned_t<D>)1 << (width<D> - 1)) : 0;
    value = whole<R>(value);
    double beyond = ldexp(1.0, (int)width<D> - (std::is_signed_v<D> ? 1 : 0));
    if (value >= beyond)
        return std::numeric_limits<D>::max();
    if (value < (double)std::numeric_limits<D>::min())
        return std::numeric_limits<D>::min();
    return (D)value;
}
template <typename D, round_t R, bool FTZ> inline D f32_to_integer(uint32_t a) {
    return to_integer<D, R>(in<FTZ>(a), false);
}
template <typename D, round_t R> inline D f64_to_integer(uint64_t a) {
    return to_integer<D, R>(double_of(a), true);
}
template <round_t R, bool SAT, typename S> inline uint32_t integer_to_f32(S a) {
    return out<false, SAT>(R == RN ? (float)a : rounded<R>((long double)a, (long double)0));
}
/* To nearest; exact but for 64 bits. */
template <typename S> inline uint64_t integer_to_f64(S a) {
    return bits_of((double)a);
}

template <bool FTZ, bool SAT> inline uint32_t f32_to_f32(uint32_t a) {
    return out<FTZ, SAT>(in<FTZ>(a));
}
template <round_t R, bool FTZ, bool SAT> inline uint32_t f32_to_whole(uint32_t a) {
    return out<FTZ, SAT>((float)whole<R>(in<FTZ>(a)));
}
template <round_t R> inline uint64_t f64_to_whole(uint64_t a) {
    return bits_of(whole<R>(double_of(a)));
}
template <bool FTZ> inline uint64_t f32_to_f64(uint32_t a) {
    return bits_of((double)in<FTZ>(a));
}
template <round_t R, bool FTZ, bool SAT> inline uint32_t f64_to_f32(uint64_t a) {
    double x = double_of(a);
    return out<FTZ, SAT>(R == RN || !std::isfinite(x) ? (float)x : rounded<R>(x, 0.0));
}
template <round_t R> inline uint16_t f32_to_bf16(uint32_t a) {
    if ((a & ~sign_f32) > infinity_f32)
        return 0x7fff;
    return (uint16_t)((R == RN ? a + 0x7fff + (a >> 16 & 1) : a) >> 16);
}
template <round_t R> inline uint32_t f32_to_bf16x2(uint32_t high, uint32_t low) {
    return (uint32_t)f32_to_bf16<R>(high) << 16 | f32_to_bf16<R>(low);
}
inline uint32_t bf16_to_f32(uint16_t a) {
    return (a & 0x7fff) > 0x7f80 ? nan_f32 : (uint32_t)a << 16;
}

/* ---- memory ---------------------------------------------------------------------------------
 * Generic addresses are global ones, but for windows onto shared and local memory where no memory
 * is. */

const uint64_t shared_window = 0xfe00000000000000ull, local_window = 0xfd00000000000000ull;

struct local_t {
    unsigned char *bytes;
    size_t size_bytes;
};

inline void *local_at(local_t local, uint64_t address, size_t size_bytes, const char *here) {
    if (address > local.size_bytes || size_bytes > local.size_bytes - address ||
        address % size_bytes != 0)
        die(here, "an address of local memory that is not there, or not aligned");
    return local.bytes + address;
}
inline const void *read_generic(local_t local, uint64_t address, size_t size_bytes,
                                const char *here) {
    if (address >= shared_window)
        return ptx_read_shared((uint32_t)(address - shared_window), size_bytes, here);
    if (address >= local_window)
        return local_at(local, address - local_window, size_bytes, here);
    return ptx_read_global(address, size_bytes, here);
}
inline void *write_generic(local_t local, uint64_t address, size_t size_bytes, const char *here) {
    if (address >= shared_window)
        return ptx_write_shared((uint32_t)(address - shared_window), size_bytes, here);
    if (address >= local_window)
        return local_at(local, address - local_window, size_bytes, here);
    return ptx_write_global(address, size_bytes, here);
}
inline const void *read_param(const unsigned char *params, size_t params_bytes, uint64_t address,
                              size_t size_bytes, const char *here) {
    if (address > params_bytes || size_bytes > params_bytes - address)
        die(here, "an address beyond the parameters");
    return params + address;
}

/* ---- warps ---------------------------------------------------------------------------------- */

inline void check_member(uint32_t mask, const char *here) {
    if ((mask >> emu_lane() & 1) == 0)
        die(here, "a lane is not in its own mask");
}

enum shuffle_t { UP, DOWN, BFLY, IDX };

/* `is_there_p` may be NULL. */
template <shuffle_t S>
inline uint32_t shfl(bool *is_there_p, uint32_t value, uint32_t b, uint32_t c, uint32_t mask,
                     const char *here) {
    check_member(mask, here);
    int lane = (int)emu_lane(), by = (int)(b & 31);
    int segment = (int)(c >> 8 & 31), last = (lane & segment) | ((int)(c & 31) & ~segment);
    int from = S == UP     ? lane - by
               : S == DOWN ? lane + by
               : S == BFLY ? lane ^ by
                           : (lane & segment) | (by & ~segment);
    bool is_there = S == UP ? from >= last : from <= last;
    if (is_there_p != NULL)
        *is_there_p = is_there;
    return (uint32_t)emu_exchange(mask, value, is_there ? from : lane, here);
}

inline uint32_t ballot(bool predicate, uint32_t mask, const char *here) {
    check_member(mask, here);
    return emu_ballot(mask, predicate, here);
}
inline bool vote_all(bool predicate, uint32_t mask, const char *here) {
    return ballot(!predicate, mask, here) == 0;
}
inline bool vote_any(bool predicate, uint32_t mask, const char *here) {
    return ballot(predicate, mask, here) != 0;
}
inline bool vote_uni(bool predicate, uint32_t mask, const char *here) {
    uint32_t lanes = ballot(predicate, mask, here), others = ballot(!predicate, mask, here);
    return lanes == 0 || others == 0;
}
inline uint32_t match_any(uint64_t value, uint32_t mask, const char *here) {
    check_member(mask, here);
    return emu_match(mask, value, here);
}
/* The mask where all show the same, otherwise 0. */
inline uint32_t match_all(bool *are_equal_p, uint64_t value, uint32_t mask, const char *here) {
    bool are_equal = match_any(value, mask, here) ==
                     (mask & emu_ballot(mask, true, here)); /* of those that have not ended */
    are_equal = vote_all(are_equal, mask, here);
    if (are_equal_p != NULL)
        *are_equal_p = are_equal;
    return are_equal ? mask : 0;
}

/* ---- matrices ------------------------------------------------------------------------------- */

/*
 * N matrices of 8 rows of 16 bytes, lane i giving the address of row i % 8 of matrix i / 8. Every
 * lane reads what it gets itself, and as its own access: nobody else has waited for it.
 */
template <unsigned N, bool TRANS>
inline void ldmatrix(uint32_t *r, uint32_t address, const char *here) {
    uintptr_t row = address;
    if (emu_lane() < 8 * N) /* which lane reads is not said: who names a row, or who gets it */
        ptx_read_shared(address, 16, here);
    const emu_shown_t *shown = emu_show(&row, sizeof(row), here);
    unsigned group = emu_lane() / 4, in_group = emu_lane() % 4;
    if (emu_lane() == 0)
        emu_check_rows(shown, N, here);
    for (unsigned matrix = 0; matrix < N; matrix++) {
        if (!TRANS) {
            uint32_t from = shown[matrix * 8 + group].words[0] + in_group * 4;
            r[matrix] = get<uint32_t>(ptx_read_shared(from, 4, here));
            continue;
        }
        uint32_t low = shown[matrix * 8 + in_group * 2].words[0] + group * 2;
        uint32_t high = shown[matrix * 8 + in_group * 2 + 1].words[0] + group * 2;
        r[matrix] = get<uint16_t>(ptx_read_shared(low, 2, here));
        r[matrix] |= (uint32_t)get<uint16_t>(ptx_read_shared(high, 2, here)) << 16;
    }
}

/* A number as its sign and significand, times 2 to the power of exponent - 127 - fraction bits. */
struct parts_t {
    int significand, exponent;
};
template <unsigned FRACTION_BITS> inline parts_t parts_of(uint32_t bits) {
    uint32_t fraction = bits >> (23 - FRACTION_BITS) & ((1u << FRACTION_BITS) - 1);
    int exponent = (int)(bits >> 23 & 0xff);
    int significand = (int)(exponent == 0 ? fraction : fraction | 1u << FRACTION_BITS);
    return {(bits & sign_f32) != 0 ? -significand : significand, exponent == 0 ? 1 : exponent};
}

inline int64_t aligned(int64_t significand, int by) {
    return by > 62 ? 0 : significand < 0 ? -(-significand >> by) : significand >> by;
}

/* significand * 2^(exponent - 23), what fp32 does not hold being cut off. */
inline float truncated(int64_t significand, int exponent) {
    int64_t size = significand < 0 ? -significand : significand;
    while (size >= 1 << 24) {
        size >>= 1;
        exponent++;
    }
    while (exponent < -126 && size != 0) { /* of a subnormal */
        size >>= 1;
        exponent++;
    }
    float value = ldexpf((float)size, exponent - 23);
    return significand < 0 ? -value : value;
}

/*
 * c and eight products, added at once. As tensor cores do it by what was found out about them
 * (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer
 * Science 2021): products are exact, all terms are shifted to the exponent of the largest one,
 * where 24 bits are kept and the rest is cut off, as it is from the sum when it is stored. This is
 * what the first of them did; later ones keep a bit or more beyond, and those of capability 9.0 add
 * sixteen products at once: they are less wrong than this.
 */
inline float add_products(float c, const uint32_t *a, const uint32_t *b) {
    parts_t terms[8], of_c = parts_of<23>(bits_of(c));
    int most = of_c.significand == 0 ? INT_MIN : of_c.exponent - 127;
    for (unsigned k = 0; k < 8; k++) {
        parts_t x = parts_of<7>(a[k]), y = parts_of<7>(b[k]);
        terms[k] = {x.significand * y.significand, x.exponent + y.exponent - 254};
        if (terms[k].significand != 0 && terms[k].exponent > most)
            most = terms[k].exponent;
    }
    if (most == INT_MIN)
        return 0.0f;
    int64_t sum =
        of_c.significand == 0 ? 0 : aligned(of_c.significand, most - (of_c.exponent - 127));
    for (const parts_t &term : terms)
        if (term.significand != 0)
            sum += aligned((int64_t)term.significand * 512, most - term.exponent);
    return truncated(sum, most);
}

/* Where an operand is infinite or NaN: as fp32 has it, in any order. */
inline float add_infinite(float c, const uint32_t *a, const uint32_t *b) {
    for (unsigned k = 0; k < 8; k++) {
        float product = float_of(a[k]) * float_of(b[k]);
        c = std::isfinite(c) && std::isfinite(product) ? c : c + product;
    }
    return c;
}

inline bool is_finite(uint32_t bits) {
    return (bits & infinity_f32) != infinity_f32;
}

/* d = a b + c for a [16, 16], b [16, 8] of bf16; fragments as in kernels/nn/cuda/mma_cuda.cuh. */
inline void mma_bf16(uint32_t *d, const uint32_t *a, const uint32_t *b, const uint32_t *c,
                     const char *here) {
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const emu_shown_t *shown = emu_show(mine, sizeof(mine), here);
    unsigned group = emu_lane() / 4, in_group = emu_lane() % 4;
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = group + i / 2 * 8, column = in_group * 2 + i % 2;
        float sum = float_of(c[i]);
        for (unsigned half = 0; half < 2; half++) {
            uint32_t of_a[8], of_b[8];
            bool are_finite = is_finite(bits_of(sum));
            for (unsigned k = 0; k < 8; k++) {
                uint32_t pair_a = shown[row % 8 * 4 + k / 2].words[row / 8 + half * 2];
                uint32_t pair_b = shown[column * 4 + k / 2].words[4 + half];
                of_a[k] = k % 2 == 0 ? pair_a << 16 : pair_a & 0xffff0000u;
                of_b[k] = k % 2 == 0 ? pair_b << 16 : pair_b & 0xffff0000u;
                are_finite = are_finite && is_finite(of_a[k]) && is_finite(of_b[k]);
            }
            sum = are_finite ? add_products(sum, of_a, of_b) : add_infinite(sum, of_a, of_b);
        }
        d[i] = out<false>(sum);
    }
}

} // namespace ptx

