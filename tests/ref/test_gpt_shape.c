/*
 * Descriptions of models: which are read, which are refused and how, and what they amount to.
 */
#include "models/gpt2/gpt.h"
#include "tests/common/test.h"

TEST(test_names) {
    zr_gpt_shape_t shape;
    char error[256];
    assert_true(zr_gpt_shape_parse("gpt2", &shape, error, sizeof(error)));
    assert_int_equal(zr_gpt_n_params(&shape), 124439808);
    assert_true(zr_gpt_shape_parse("gpt2-medium", &shape, error, sizeof(error)));
    assert_int_equal(zr_gpt_n_params(&shape), 354823168);
    assert_true(zr_gpt_shape_parse("gpt2-large", &shape, error, sizeof(error)));
    assert_int_equal(zr_gpt_n_params(&shape), 774030080);
    assert_true(zr_gpt_shape_parse("gpt2-xl", &shape, error, sizeof(error)));
    assert_int_equal(zr_gpt_n_params(&shape), 1557611200);
}

TEST(test_pairs) {
    zr_gpt_shape_t shape;
    char error[256];
    assert_true(zr_gpt_shape_parse("vocab=257,layers=3,heads=5,channels=40,seq=33", &shape, error,
                                   sizeof(error)));
    assert_int_equal(shape.n_layers, 3);
    assert_int_equal(shape.channels, 40);
    assert_int_equal(shape.heads, 5);
    assert_int_equal(shape.seq, 33);
    assert_int_equal(shape.vocab, 257);
    /* Per layer: 12 c^2 of matrices, 9 c of their biases, 4 c of norms. */
    assert_int_equal(zr_gpt_n_params(&shape), 3 * (12 * 1600 + 13 * 40) + 80 + 290 * 40);
    /* 6 per parameter; scores and their use over 4 of 7 positions on average, three times. */
    assert_true(zr_gpt_flops_per_token(&shape, 7) ==
                6.0 * (double)zr_gpt_n_params(&shape) + 3.0 * 3.0 * 4.0 * 40.0 * 4.0);
}

#define LONG16 "layers=4,heads=4"
#define LONG LONG16 LONG16 LONG16 LONG16 LONG16 LONG16 LONG16 LONG16 /* 128 characters */
#define LONG512 LONG LONG LONG LONG

TEST(test_refusals) {
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "\"\" is neither"},
        {"gpt5", "\"gpt5\" is neither"},
        {"layers=4", "channels is missing"},
        {"layers=4,channels=256,heads=4,seq=256", "vocab is missing"},
        {"layers=4,channels=256,heads=4,seq=256,vocab=256,", "neither"},
        {"layers=4,channels=256,heads=4,seq=256,vocab=256,depth=3", "\"depth\" is no part"},
        {"layers=4,layers=4,channels=256,heads=4,seq=256,vocab=256", "layers is given twice"},
        {"layers=0,channels=256,heads=4,seq=256,vocab=256", "layers=0"},
        {"layers=-4,channels=256,heads=4,seq=256,vocab=256", "layers=-4"},
        {"layers= 4,channels=256,heads=4,seq=256,vocab=256", "layers= 4"},
        {"layers=4x,channels=256,heads=4,seq=256,vocab=256", "layers=4x"},
        {"layers=,channels=256,heads=4,seq=256,vocab=256", "layers="},
        {"layers=4,channels=256,heads=3,seq=256,vocab=256", "heads=3 does not divide channels=256"},
        {"layers=4,channels=256,heads=512,seq=256,vocab=256", "heads=512 does not divide"},
        {"layers=99999999999999999999,channels=8,heads=4,seq=2,vocab=256", "layers=999"},
        {"layers=4,channels=8,heads=4,seq=2,vocab=2147483648", "1 to 2147483647"},
        {"layers=100000,channels=1000000,heads=4,seq=256,vocab=256", "too large"},
        {LONG512 LONG512 LONG512 LONG512,
         "...\" has 2048 characters; a model's description has 2047 at most"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_gpt_shape_t shape = {1, 2, 3, 4, 5};
        char error[256] = "";
        assert_false(zr_gpt_shape_parse(cases[i].text, &shape, error, sizeof(error)));
        if (strstr(error, cases[i].message) == NULL)
            fail_msg("%s: \"%s\" instead of \"%s\"", cases[i].text, error, cases[i].message);
        assert_int_equal(shape.vocab, 5); /* untouched */
    }
}
