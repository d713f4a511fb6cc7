/*
 * fp16 has 1 bit of sign, 5 of exponent (biased by 15) and 10 of fraction (IEEE 754-2019, table
 * 3.5); bf16 is the upper half of fp32.
 */
#include "examples/weights/elements.h"

#include <math.h>
#include <string.h>

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are little endian");

static const element_type_t types[] = {
    {"F32", 4, ELEMENT_FP32},      {"BF16", 2, ELEMENT_BF16},     {"F16", 2, ELEMENT_FP16},
    {"BOOL", 1, ELEMENT_OTHER},    {"U8", 1, ELEMENT_OTHER},      {"I8", 1, ELEMENT_OTHER},
    {"F8_E5M2", 1, ELEMENT_OTHER}, {"F8_E4M3", 1, ELEMENT_OTHER}, {"I16", 2, ELEMENT_OTHER},
    {"U16", 2, ELEMENT_OTHER},     {"I32", 4, ELEMENT_OTHER},     {"U32", 4, ELEMENT_OTHER},
    {"I64", 8, ELEMENT_OTHER},     {"U64", 8, ELEMENT_OTHER},     {"F64", 8, ELEMENT_OTHER},
};

const element_type_t *element_type_find(const char *name) {
    for (size_t i = 0; i < N_ELEMS(types); i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

const element_type_t *element_type_of(element_kind_t kind) {
    return &types[kind]; /* the first three stand in the order of kinds */
}

const char *element_kind_name(element_kind_t kind) {
    static const char *const names[] = {"fp32", "bf16", "fp16", "other"};
    return names[kind];
}

const char *element_kinds_name(const element_kind_t *kinds, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (kinds[i] != kinds[0])
            return "mixed";
    return n > 0 ? element_kind_name(kinds[0]) : "fp32";
}

/* ---- fp16 -------------------------------------------------------------------------------- */

static float fp16_to_fp32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, bits;
    uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
    float value;
    if (exponent == 0) { /* zero and what is below 2^-14, in steps of 2^-24 */
        value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    if (exponent == 0x1f)
        bits = sign | 0x7f800000u | fraction << 13;
    else
        bits = sign | (exponent + 112u) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static uint16_t fp16_from_fp32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x47800000u) /* 2^16 */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) { /* 2^-14: the sum has steps of 2^-24, and rounds to them */
        float sum = fabsf(value) + 0.5f;
        memcpy(&bits, &sum, sizeof(bits));
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | ((bits >> 13) - (112u << 10)));
}

/* ---- arrays ------------------------------------------------------------------------------ */

void elements_to_fp32(element_kind_t kind, const void *from, size_t n_elems, float *values) {
    const uint16_t *halves = from;
    if (kind == ELEMENT_FP32)
        memcpy(values, from, n_elems * sizeof(*values));
    for (size_t i = 0; kind == ELEMENT_BF16 && i < n_elems; i++)
        values[i] = zr_bf16_to_f32(halves[i]);
    for (size_t i = 0; kind == ELEMENT_FP16 && i < n_elems; i++)
        values[i] = fp16_to_fp32(halves[i]);
}

size_t elements_from_fp32(element_kind_t kind, const float *values, size_t n_elems, void *to) {
    uint16_t *halves = to;
    if (kind == ELEMENT_FP32)
        memcpy(to, values, n_elems * sizeof(*values));
    for (size_t i = 0; kind != ELEMENT_FP32 && i < n_elems; i++) {
        bool is_bf16 = kind == ELEMENT_BF16;
        uint16_t infinity = is_bf16 ? 0x7f80u : 0x7c00u;
        halves[i] = is_bf16 ? zr_bf16_from_f32(values[i]) : fp16_from_fp32(values[i]);
        if ((halves[i] & 0x7fffu) == infinity && isfinite(values[i]))
            return i;
    }
    return n_elems;
}
