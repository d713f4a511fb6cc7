/*
 * Numbers are printed with nine significant digits: enough to tell any two floats apart.
 */
#include "examples/common/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What takes the value over also frees it when that fails. */
static void keep(json_t **into_p, bool took) {
    if (took)
        return;
    json_decref(*into_p);
    *into_p = NULL;
}

void json_put(json_t **object_p, const char *key, json_t *value) {
    keep(object_p, json_object_set_new(*object_p, key, value) == 0);
}

void json_put_all(json_t **object_p, const json_field_t *fields, size_t n) {
    for (size_t i = 0; i < n; i++)
        json_put(object_p, fields[i].key, fields[i].value);
}

json_t *json_object_of(const json_field_t *fields, size_t n) {
    json_t *object = json_object();
    json_put_all(&object, fields, n);
    return object;
}

void json_append(json_t **array_p, json_t *value) {
    keep(array_p, json_array_append_new(*array_p, value) == 0);
}

json_t *json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *json_count(uint64_t value) {
    return json_integer((json_int_t)value);
}

static bool is_ascii(const char *text) {
    while (*text != '\0' && (unsigned char)*text < 0x80)
        text++;
    return *text == '\0';
}

json_t *json_text(const char *text) {
    json_t *value = json_string(text);
    if (value != NULL || is_ascii(text)) /* it was for want of memory */
        return value;
    char *ascii = strdup(text);
    if (ascii == NULL)
        return NULL;
    for (char *letter = ascii; *letter != '\0'; letter++)
        if ((unsigned char)*letter >= 0x80)
            *letter = '?';
    value = json_string(ascii);
    free(ascii);
    return value;
}

json_t *json_hex(uint64_t value) {
    return json_sprintf("%016" PRIx64, value);
}

bool json_print(const json_t *object, bool indented, FILE *file) {
    size_t flags = JSON_REAL_PRECISION(9) | (indented ? JSON_INDENT(2) : 0);
    if (object == NULL || json_dumpf(object, file, flags) != 0)
        return false;
    return fputc('\n', file) != EOF && fflush(file) == 0;
}

bool json_print_new(json_t *object, FILE *file) {
    bool printed = json_print(object, true, file);
    json_decref(object);
    return printed;
}
