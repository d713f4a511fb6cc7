/*
 * Telling whether a parser has dropped something: every text is what was made of it, and no text is
 * what was made of another.
 */
#include "tests/common/test.h"
#include "zero/config/whole.h"

static const char *const texts[] = {
    "{}",
    " [ ] ",
    "{\"a\": 1}",
    "{\"a\": 12}",
    "{\"a\": -1}",
    "{\"a\": 1.5}",
    "{\"a\": 1.25e-3}",
    "{\"a\": 15e-1, \"b\": 0}",
    "{\"a\": 5e8}",
    "{\"a\": 9007199254740993}",
    "{\"a\": \"1\"}",
    "{\"a\": \"\"}",
    "{\"ab\": \"\"}",
    "{\"a\": \"b\", \"c\": null}",
    "{\"a\": \"bc\", \"c\": true}",
    "{\"a\": [1, 2, {\"b\": [\"x\", false, 3.0]}], \"d\": \"-7\"}",
    "{\"a\": [1, 2, {\"b\": [\"x\", false]}], \"d\": \"-7\"}",
    "{\"\\u0061\": \"\\\"\\\\\\n\\u00e4\\u20ac\\ud83d\\ude00 \xc3\xa4\"}",
    "{\"\\u0061\": \"\\\"\\\\\\u00e4\\u20ac\\ud83d\\ude00 \xc3\xa4\"}",
    "{\"\\u0061\": \"\\\"\\\\\\n\\u00e4\\u20ac\\ud83d\\ude00 \xc3\xa4.\"}",
    "{\"z\": 1, \"y\": 2, \"x\": 3, \"w\": 4, \"v\": 5, \"u\": 6, \"t\": 7, \"s\": 8, \"r\": 9}",
};
#define N_TEXTS (N_OF(texts))

TEST(each_is_itself_alone) {
    for (size_t i = 0; i < N_TEXTS; i++) {
        json_t *root = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        assert_non_null(root);
        for (size_t k = 0; k < N_TEXTS; k++) {
            bool is_none = i < 2 && k < 2; /* no strings and no numbers: nothing can be dropped */
            if (zr_config_is_whole(texts[k], root) != (i == k || is_none))
                fail_msg("%s is taken for %s, or not for itself", texts[k], texts[i]);
        }
        json_decref(root);
    }
}

/* Longer than is compared: taken as it is. */
TEST(long_numbers) {
    char text[1000];
    memset(text, '0', sizeof(text));
    memcpy(text, "[0.", 3);
    memcpy(text + sizeof(text) - 3, "1]", 3);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    assert_true(zr_config_is_whole(text, root));
    json_decref(root);
}
