/*
 * Elements of files: every fp16 and bf16 there is becomes the fp32 that it should be and comes
 * back, and what lies between two of them goes to the nearest, ties to even.
 */
#include "examples/weights/elements.h"
#include "tests/common/test.h"

/* What a half means, by its definition. */
static double meaning_of_fp16(uint16_t half) {
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double sign = half & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31)
        return fraction != 0 ? NAN : sign * INFINITY;
    return exponent == 0 ? sign * ldexp(fraction, -24)
                         : sign * ldexp(1024 + fraction, exponent - 25);
}

static double meaning_of_bf16(uint16_t half) {
    int exponent = half >> 7 & 255, fraction = half & 127;
    double sign = half & 0x8000 ? -1.0 : 1.0;
    if (exponent == 255)
        return fraction != 0 ? NAN : sign * INFINITY;
    return exponent == 0 ? sign * ldexp(fraction, -133)
                         : sign * ldexp(128 + fraction, exponent - 134);
}

typedef struct half_kind {
    element_kind_t kind;
    double (*meaning)(uint16_t half);
    uint16_t infinity;
} half_kind_t;
static const half_kind_t half_kinds[] = {{ELEMENT_FP16, meaning_of_fp16, 0x7c00},
                                         {ELEMENT_BF16, meaning_of_bf16, 0x7f80}};

static void check_half(const half_kind_t *kind, uint16_t half) {
    float value;
    uint16_t back;
    double meaning = kind->meaning(half);
    elements_to_fp32(kind->kind, &half, 1, &value);
    assert_int_equal(elements_from_fp32(kind->kind, &value, 1, &back), 1);
    if (isnan(meaning)) {
        assert_true(isnan(value));
        assert_true((back & 0x7fff) > kind->infinity);
        return;
    }
    if ((double)value != meaning || !signbit(value) != !signbit(meaning) || back != half)
        fail_msg("%04x is %g instead of %g, and comes back as %04x", half, (double)value, meaning,
                 back);
}

TEST(test_every_half) {
    for (size_t k = 0; k < 2; k++)
        for (uint32_t half = 0; half <= 0xffff; half++)
            check_half(&half_kinds[k], (uint16_t)half);
}

/* Between a half and the next one: the middle goes to the even one, what is beside it to its side.
 */
static void check_between(const half_kind_t *kind, uint16_t half) {
    uint16_t next = (uint16_t)(half + 1), even = half & 1 ? next : half, got[3];
    float middle = (float)((kind->meaning(half) + kind->meaning(next)) / 2.0);
    float values[3] = {nextafterf(middle, -INFINITY), middle, nextafterf(middle, INFINITY)};
    assert_int_equal(elements_from_fp32(kind->kind, values, 3, got), 3);
    if (got[0] != half || got[1] != even || got[2] != next)
        fail_msg("between %04x and %04x: %04x %04x %04x", half, next, got[0], got[1], got[2]);
}

TEST(test_rounding) {
    for (uint16_t half = 0; half < 0x7bff; half++)
        check_between(&half_kinds[0], half);
    /* From where fp32 has numbers between those of bf16. */
    for (uint16_t half = 0x0080; half < 0x7f7f; half++)
        check_between(&half_kinds[1], half);
}

static void expect_refused(element_kind_t kind, float value, bool refused) {
    uint16_t halves[3];
    float values[3] = {1.0f, value, 1.0f};
    size_t n = elements_from_fp32(kind, values, 3, halves);
    if (n != (refused ? 1u : 3u))
        fail_msg("%g: %zu are converted", (double)value, n);
}

TEST(test_too_large_values_are_found) {
    expect_refused(ELEMENT_FP16, 65504.0f, false);
    expect_refused(ELEMENT_FP16, 65519.996f, false);
    expect_refused(ELEMENT_FP16, 65520.0f, true);
    expect_refused(ELEMENT_FP16, -1e30f, true);
    expect_refused(ELEMENT_FP16, INFINITY, false); /* it stays what it is */
    expect_refused(ELEMENT_FP16, NAN, false);
    expect_refused(ELEMENT_BF16, 3.38e38f, false);
    expect_refused(ELEMENT_BF16, 3.402e38f, true);
    expect_refused(ELEMENT_BF16, -INFINITY, false);
}

TEST(test_types_have_the_names_of_safetensors) {
    assert_ptr_equal(element_type_find("F32"), element_type_of(ELEMENT_FP32));
    assert_ptr_equal(element_type_find("BF16"), element_type_of(ELEMENT_BF16));
    assert_ptr_equal(element_type_find("F16"), element_type_of(ELEMENT_FP16));
    assert_int_equal(element_type_find("I64")->size_bytes, 8);
    assert_int_equal(element_type_find("BOOL")->kind, ELEMENT_OTHER);
    assert_null(element_type_find("f32"));
    assert_null(element_type_find(""));
}
