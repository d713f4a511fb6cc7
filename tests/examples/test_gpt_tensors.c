/*
 * The table of a GPT's parameters: each is found by its name, and nothing else is. That the model
 * has just these is seen in tests/ref/, which knows their names and shapes from elsewhere.
 */
#include "models/gpt2/tensors.h"
#include "tests/common/test.h"

static const zr_gpt_shape_t shape = {
    .n_layers = 12, .channels = 64, .heads = 4, .seq = 32, .vocab = 100};

TEST(test_each_is_found_by_its_name) {
    size_t n_elems = 0;
    for (size_t i = 0; i < zr_gpt_n_tensors(&shape); i++) {
        zr_gpt_tensor_t tensor = zr_gpt_tensor_at(&shape, i), found;
        assert_true(zr_gpt_tensor_find(&shape, tensor.name, &found));
        assert_memory_equal(&found, &tensor, sizeof(tensor));
        n_elems += tensor.n_elems;
    }
    assert_int_equal(n_elems, zr_gpt_n_params(&shape));
}

static void expect(size_t index, const char *name, size_t rows, size_t columns) {
    zr_gpt_tensor_t tensor = zr_gpt_tensor_at(&shape, index);
    assert_string_equal(tensor.name, name);
    assert_int_equal(tensor.n_dims, columns == 0 ? 1 : 2);
    assert_int_equal(tensor.dims[0], rows);
    assert_int_equal(tensor.dims[1], columns);
}

TEST(test_order_and_shapes) {
    assert_int_equal(zr_gpt_n_tensors(&shape), 148);
    expect(0, "wte.weight", 100, 64);
    expect(1, "wpe.weight", 32, 64);
    expect(2, "h.0.ln_1.weight", 64, 0);
    expect(4, "h.0.attn.c_attn.weight", 64, 192);
    expect(5, "h.0.attn.c_attn.bias", 192, 0);
    expect(6, "h.0.attn.c_proj.weight", 64, 64);
    expect(10, "h.0.mlp.c_fc.weight", 64, 256);
    expect(12, "h.0.mlp.c_proj.weight", 256, 64);
    expect(14, "h.1.ln_1.weight", 64, 0);
    expect(145, "h.11.mlp.c_proj.bias", 64, 0);
    expect(146, "ln_f.weight", 64, 0);
    expect(147, "ln_f.bias", 64, 0);
}

TEST(test_other_names_are_none) {
    static const char *const names[] = {"",
                                        "wte",
                                        "wte.weight ",
                                        "ln_1.weight",
                                        "h.12.ln_1.weight",
                                        "h.",
                                        "h..ln_1.weight",
                                        "h.01.ln_1.weight",
                                        "h.0.ln_f.weight",
                                        "h.0.attn.bias",
                                        "h.0.ln_1.weight.x",
                                        "h.-1.ln_1.weight",
                                        "h.99999999999999999999.ln_1.weight"};
    for (size_t i = 0; i < N_OF(names); i++) {
        zr_gpt_tensor_t tensor;
        if (zr_gpt_tensor_find(&shape, names[i], &tensor))
            fail_msg("\"%s\" is taken for %s", names[i], tensor.name);
    }
}
