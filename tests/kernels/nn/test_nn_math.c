/*
 * exp and GELU as the host computes them, against double precision, in units of the last place.
 */
#include <float.h>

#include "kernels/nn/nn_math.h"
#include "tests/common/test.h"
#include "tests/ref/ref_nn.h"

static double ulps(float value, double expected) {
    int exponent;
    frexp(expected, &exponent);
    return fabs((double)value - expected) / ldexp(1.0, exponent - FLT_MANT_DIG);
}

TEST(test_exp) {
    double worst = 0.0;
    for (double x = -87.29; x < 88.29; x += 1e-4 * (1.0 + 0.1 * fabs(x))) {
        double off = ulps(zr_nn_exp((float)x), exp((double)(float)x));
        worst = off > worst ? off : worst;
    }
    if (worst >= 1.0)
        fail_msg("exp is off by %.3f units", worst);
    assert_true(zr_nn_exp(0.0f) == 1.0f);
    assert_true(isnan(zr_nn_exp(NAN)));
    assert_true(zr_nn_exp(-INFINITY) > 0.0f && zr_nn_exp(-INFINITY) < 1.3e-38f);
    assert_true(zr_nn_exp(INFINITY) > 2e38f && isfinite(zr_nn_exp(INFINITY)));
}

/* Angles as large as positions are; every quarter of the circle. */
TEST(test_cosine_and_sine) {
    for (double x = 0.0; x < 1e6; x += 1e-3 * (1.0 + x)) {
        float cosine, sine, angle = (float)x;
        zr_nn_cosine_and_sine(angle, &cosine, &sine);
        if (!(fabs((double)cosine - cos((double)angle)) <= 0x1.8p-24 * 1.5) ||
            !(fabs((double)sine - sin((double)angle)) <= 0x1.8p-24 * 1.5))
            fail_msg("at %.9g: cosine %.9g, sine %.9g", (double)angle, (double)cosine,
                     (double)sine);
    }
    float cosine, sine;
    zr_nn_cosine_and_sine(0.0f, &cosine, &sine);
    assert_true(cosine == 1.0f && sine == 0.0f);
}

TEST(test_silu) {
    for (double x = -20.0; x < 20.0; x += 1e-4) {
        double value = zr_nn_silu_element((float)x), expected = ref_silu((double)(float)x);
        if (!(fabs(value - expected) <= 3e-7 * fabs(expected)))
            fail_msg("silu(%.9g) = %.9g instead of %.9g", x, value, expected);
        double slope = zr_nn_silu_slope((float)x), exact = ref_silu_slope((double)(float)x);
        if (!(fabs(slope - exact) <= 3e-7))
            fail_msg("the slope of silu at %.9g is %.9g instead of %.9g", x, slope, exact);
    }
}

/* Relative where the value is not tiny: left of -4 the exponent itself is rounded. */
TEST(test_gelu) {
    for (double x = -4.0; x < 20.0; x += 1e-4) {
        double value = zr_nn_gelu_element((float)x), expected = ref_gelu((double)(float)x);
        if (!(fabs(value - expected) <= 2e-6 * fabs(expected)))
            fail_msg("gelu(%.9g) = %.9g instead of %.9g", x, value, expected);
        double slope = zr_nn_gelu_slope((float)x), exact = ref_gelu_slope((double)(float)x);
        if (!(fabs(slope - exact) <= 3e-7))
            fail_msg("the slope of gelu at %.9g is %.9g instead of %.9g", x, slope, exact);
    }
}
