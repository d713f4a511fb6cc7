/*
 * The rows as JSON say enough for keywords of another language: what they call the default is the
 * default, what they allow is taken, and nothing beyond it.
 */
#include <jansson.h>

#include "tests/common/test.h"
#include "zero/options.h"

static void drop(void *context, zr_log_level_t level, int rank, const char *message) {
}
static const zr_log_t silent = {.sink = drop};

static json_t *rows; /* of the test's */

static int load(void **state) {
    char *text = NULL;
    assert_ok(zr_options_json(&text));
    rows = json_loads(text, 0, NULL);
    free(text);
    assert_true(json_is_array(rows));
    return 0;
}

static int unload(void **state) {
    json_decref(rows);
    return 0;
}

static const char *text_of(const json_t *row, const char *field) {
    return json_string_value(json_object_get(row, field));
}

static const zr_option_t *option_of(const json_t *row) {
    size_t n = 0;
    const zr_option_t *options = zr_options(&n);
    return text_of(row, "name") != NULL ? zr_option_find(options, n, text_of(row, "name")) : NULL;
}

static zr_status_t set(const zr_option_t *option, const char *text) {
    zr_config_t config = zr_config_default();
    return zr_option_set(option, NULL, text, &silent, &config);
}

static void every_row_is_there(void **state) {
    size_t n = 0, i;
    json_t *row;
    const zr_option_t *options = zr_options(&n);
    assert_int_equal(json_array_size(rows), n);
    json_array_foreach(rows, i, row) {
        assert_true(text_of(row, "name") != NULL || text_of(row, "field") != NULL ||
                    text_of(row, "key") != NULL);
        assert_non_null(text_of(row, "help"));
        assert_non_null(text_of(row, "type"));
        assert_int_equal(json_is_true(json_object_get(row, "agree")),
                         (options[i].flags & ZR_OPTION_AGREE) != 0);
    }
    const json_t *stage = json_array_get(rows, 0);
    assert_string_equal(text_of(stage, "name"), "stage");
    assert_string_equal(text_of(stage, "key"), "zero_optimization.stage");
    assert_string_equal(text_of(stage, "field"), "stage");
    assert_string_equal(text_of(stage, "default"), "0");
}

static void the_default_is_what_they_say(void **state) {
    size_t i;
    json_t *row;
    zr_config_t usual = zr_config_default();
    json_array_foreach(rows, i, row) {
        const zr_option_t *option = option_of(row);
        zr_config_t config = usual;
        if (option == NULL || option->offset == ZR_OPTION_NO_FIELD ||
            option->type == ZR_OPTION_FLAG || text_of(row, "default")[0] == '\0')
            continue;
        if (zr_option_set(option, NULL, text_of(row, "default"), &silent, &config) == ZR_OK)
            assert_true(zr_option_equal(option, &config, &usual));
        else if ((option->flags & ZR_OPTION_UNSET0) == 0)
            fail_msg("%s: %s", option->name, text_of(row, "default"));
    }
}

static void what_they_allow_is_taken_and_no_more(void **state) {
    size_t i, j, n_choices = 0, n_bounds = 0;
    json_t *row, *choice;
    json_array_foreach(rows, i, row) {
        const zr_option_t *option = option_of(row);
        if (option == NULL)
            continue;
        json_array_foreach(json_object_get(row, "choices"), j, choice) {
            assert_ok(set(option, json_string_value(choice)));
            n_choices++;
        }
        if (json_is_array(json_object_get(row, "choices")))
            assert_int_equal(set(option, "no such word"), ZR_ERR_ARGUMENT);
        if (strcmp(text_of(row, "type"), "number") != 0 &&
            strcmp(text_of(row, "type"), "count") != 0)
            continue;
        char text[64];
        const json_t *bounds[] = {json_object_get(row, "least"), json_object_get(row, "most")};
        for (int b = 0; b < 2; b++) {
            double bound = json_number_value(bounds[b]),
                   beyond = b == 0 ? bound - 1 : 2 * bound + 1;
            if (json_is_null(bounds[b]))
                continue;
            snprintf(text, sizeof(text), "%.17g", bound);
            assert_ok(set(option, text));
            snprintf(text, sizeof(text), "%.17g", beyond);
            if (set(option, text) == ZR_OK)
                fail_msg("--%s %s is taken", option->name, text);
            n_bounds++;
        }
    }
    assert_true(n_choices > 20 && n_bounds > 20);
}

/* One default of a hyperparameter for each optimizer: what is not said changes with it. */
static void a_hyperparameter_has_its_optimizer_s_default(void **state) {
    zr_config_t config = zr_config_default();
    zr_config_set_optimizer(&config, &zr_lion);
    assert_true(config.adamw.beta1 == 0.9 && config.adamw.beta2 == 0.99);
    assert_true(zr_config_hyper(&config, 1) == 0.99);
    zr_config_set_optimizer(&config, &zr_sgd);
    zr_config_set_optimizer(&config, &zr_adamw);
    assert_true(config.adamw.beta2 == 0.95);
    config.adamw.beta2 = 0.98;
    zr_config_set_optimizer(&config, &zr_lion);
    assert_true(config.adamw.beta2 == 0.98);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_there), cmocka_unit_test(the_default_is_what_they_say),
        cmocka_unit_test(what_they_allow_is_taken_and_no_more),
        cmocka_unit_test(a_hyperparameter_has_its_optimizer_s_default)};
    return cmocka_run_group_tests(tests, load, unload);
}
