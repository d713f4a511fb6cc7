/* The rows as JSON: zr_options_json. */
#include <jansson.h>

#include "zero/config/keys.h"

static const char *const type_names[] = {
    [ZR_OPTION_FLAG] = "flag",     [ZR_OPTION_SWITCH] = "switch", [ZR_OPTION_CHOICE] = "choice",
    [ZR_OPTION_INT] = "int",       [ZR_OPTION_COUNT] = "count",   [ZR_OPTION_BYTES] = "bytes",
    [ZR_OPTION_U64] = "u64",       [ZR_OPTION_NUMBER] = "number", [ZR_OPTION_PATHS] = "paths",
    [ZR_OPTION_STRING] = "string",
};

static bool is_number(const zr_option_t *option) {
    return option->type >= ZR_OPTION_INT && option->type <= ZR_OPTION_NUMBER;
}

/* What a command line may have; NULL: no word. */
static json_t *choices_of(const zr_option_t *option) {
    const zr_option_choice_t *c = zr_option_choices(option);
    if (c == NULL)
        return json_null();
    json_t *array = json_array();
    for (; !zr_option_choice_is_last(c); c++)
        if (c->name != NULL)
            json_array_append_new(array, json_string(c->name));
    return array;
}

static json_t *describe(const zr_option_t *option, const zr_config_t *usual) {
    bool has_most = is_number(option) && option->most != 0;
    return json_pack("{s:s?, s:s?, s:s?, s:s, s:o, s:o, s:o, s:s, s:b, s:s?}", "name", option->name,
                     "key", option->key, "field", option->field, "type", type_names[option->type],
                     "least", is_number(option) ? json_real(option->least) : json_null(), "most",
                     has_most ? json_real(option->most) : json_null(), "choices",
                     choices_of(option), "default",
                     option->offset != ZR_OPTION_NO_FIELD ? zr_option_text(option, usual).text : "",
                     "agree", (option->flags & ZR_OPTION_AGREE) != 0, "help", option->help);
}

zr_status_t zr_options_json(char **text_p) {
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    const zr_config_t usual = zr_config_default();
    json_t *array = json_array();
    int failed = array == NULL;
    for (size_t i = 0; i < n; i++)
        failed |= json_array_append_new(array, describe(&rows[i], &usual));
    char *text = failed ? NULL : json_dumps(array, JSON_INDENT(1));
    json_decref(array);
    if (text == NULL)
        return ZR_ERR_MEMORY;
    *text_p = text;
    return ZR_OK;
}
