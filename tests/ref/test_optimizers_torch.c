/*
 * A few steps of every optimizer against PyTorch's: values and state agree to what fp32 can hold.
 * The reference and how it was made: optimizers_torch_reference.json,
 * make_optimizers_torch_reference.py.
 */
#include <jansson.h>
#include <math.h>

#include "tests/common/test.h"
#include "zero/optim/optimizer.h"

enum { MAX_ELEMS = 64 };

/* Of 8 steps of fp32, each with few roundings of values around 1. */
#define TOLERANCE 1e-6

static json_t *reference;

static int set_up(void **state) {
    json_error_t error;
    (void)state;
    reference = json_load_file(OPTIMIZERS_TORCH_REFERENCE, JSON_REJECT_DUPLICATES, &error);
    if (reference == NULL)
        fail_msg("%s:%d: %s", OPTIMIZERS_TORCH_REFERENCE, error.line, error.text);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    json_decref(reference);
    return 0;
}

static size_t read_floats(const json_t *list, float *values) {
    size_t n = json_array_size(list);
    assert_in_range(n, 1, MAX_ELEMS);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)json_number_value(json_array_get(list, i));
    return n;
}

static double number_at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("the reference has no number \"%s\"", key);
    return json_number_value(value);
}

/* An array of the state that PyTorch does not have stays out of the comparison: SGD without
 * momentum keeps none. */
static void compare(const json_t *test_case, const zr_optimizer_type_t *optimizer, size_t n_elems,
                    float arrays[][MAX_ELEMS]) {
    const json_t *expected = json_object_get(test_case, "arrays");
    size_t n_found = 0;
    for (size_t a = 0; a < optimizer->rule.n_arrays; a++) {
        const char *name = optimizer->rule.arrays[a].name;
        const json_t *values = json_object_get(expected, name);
        for (size_t i = 0; values != NULL && i < n_elems; i++) {
            double want = json_number_value(json_array_get(values, i));
            if (!(fabs((double)arrays[a][i] - want) <= TOLERANCE * (1 + fabs(want))))
                fail_msg("%s: %s[%zu] is %.9g, PyTorch has %.17g", optimizer->name, name, i,
                         (double)arrays[a][i], want);
        }
        n_found += values != NULL;
    }
    assert_int_equal(n_found, json_object_size(expected)); /* by PyTorch's names */
}

static void check_case(zr_stream_t *stream, const json_t *test_case) {
    float arrays[ZR_MAX_STATE_ARRAYS][MAX_ELEMS] = {0}, grad[MAX_ELEMS], param[MAX_ELEMS];
    const char *name = json_string_value(json_object_get(test_case, "optimizer"));
    const zr_optimizer_type_t *optimizer = zr_optimizer_find(name);
    const json_t *gradients = json_object_get(reference, "gradients");
    assert_non_null(optimizer);
    zr_update_t update = {.n_elems = read_floats(json_object_get(reference, "initial"), arrays[0]),
                          .grad = grad,
                          .param = param,
                          .grad_scale = 1,
                          .lr = (float)number_at(test_case, "lr"),
                          .weight_decay = (float)number_at(test_case, "weight_decay")};
    for (size_t i = 0; i < optimizer->rule.n_arrays; i++)
        update.arrays[i] = arrays[i];
    for (size_t i = 0; i < optimizer->rule.n_hypers; i++)
        update.hyper[i] =
            (float)number_at(json_object_get(test_case, "hypers"), optimizer->rule.hypers[i].name);
    for (size_t step = 0; step < json_array_size(gradients); step++) {
        read_floats(json_array_get(gradients, step), grad);
        update.step = (int)step + 1;
        assert_ok(zr_kernel_update(stream, &optimizer->rule, &update));
    }
    compare(test_case, optimizer, update.n_elems, arrays);
}

TEST(every_optimizer_is_as_pytorch_has_it) {
    zr_device_t *device = NULL;
    zr_stream_t *stream = NULL;
    size_t n_optimizers = 0, n_met = 0, i;
    const zr_optimizer_type_t *const *optimizers = zr_optimizers(&n_optimizers);
    json_t *cases = json_object_get(reference, "cases"), *test_case;
    assert_ok(zr_device_open("host", NULL, &device));
    assert_ok(zr_stream_create(device, "test", &stream));
    json_array_foreach(cases, i, test_case) check_case(stream, test_case);
    for (size_t k = 0; k < n_optimizers; k++) {
        bool is_met = false;
        json_array_foreach(cases, i, test_case) is_met |=
            strcmp(json_string_value(json_object_get(test_case, "optimizer")),
                   optimizers[k]->name) == 0;
        n_met += is_met;
    }
    assert_int_equal(n_met, n_optimizers);
    zr_stream_destroy(&stream);
    zr_device_close(&device);
}

const test_group_t test_group = {set_up, tear_down};
