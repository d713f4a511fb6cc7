/*
 * The tree is walked in the order of the text, which jansson keeps, and the text is scanned beside
 * it. Nothing is allocated: it was for want of memory that something may be missing.
 */
#include "zero/config/whole.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

/* To the first character of the next string or number. */
static const char *next_token(const char *at) {
    while (*at != '\0' && *at != '"' && *at != '-' && (*at < '0' || *at > '9'))
        at++;
    return at;
}

static bool is_half_of_pair(const char *hex) {
    return (hex[0] == 'd' || hex[0] == 'D') && strchr("89abAB", hex[1]) != NULL;
}

/* Bytes of UTF-8 of an escape, whose backslash is at `at`; *end_p is behind it. */
static size_t escaped_bytes(const char *at, const char **end_p) {
    char hex[5] = "";
    *end_p = at + 2;
    if (at[1] != 'u')
        return 1;
    memcpy(hex, at + 2, 4);
    *end_p = at + 6;
    if (is_half_of_pair(hex)) {
        *end_p = at + 12;
        return 4;
    }
    unsigned long code = strtoul(hex, NULL, 16);
    return code < 0x80 ? 1 : code < 0x800 ? 2 : 3;
}

/* A string's bytes; *at_p goes from its first quote behind its last. */
static size_t string_bytes(const char **at_p) {
    size_t n = 0;
    const char *at = *at_p + 1;
    while (*at != '"' && *at != '\0') {
        if (*at == '\\') {
            n += escaped_bytes(at, &at);
        } else {
            n++;
            at++;
        }
    }
    *at_p = *at == '"' ? at + 1 : at;
    return n;
}

static bool has_string(const char **at_p, size_t n_bytes) {
    *at_p = next_token(*at_p);
    return **at_p == '"' && string_bytes(at_p) == n_bytes;
}

/* A number, by the decimal point of this program's locale, as jansson reads it. A longer one than
 * there is room for is taken as it is. */
static bool is_real(const char *text, size_t length, double value) {
    char copy[256];
    const char *point = localeconv()->decimal_point;
    if (length >= sizeof(copy))
        return true;
    memcpy(copy, text, length);
    copy[length] = '\0';
    char *dot = strchr(copy, '.');
    if (dot != NULL)
        *dot = point[0];
    return strtod(copy, NULL) == value;
}

static bool has_number(const char **at_p, const json_t *value) {
    const char *text = *at_p = next_token(*at_p);
    size_t length = strspn(text, "+-.0123456789eE");
    *at_p += length;
    if (length == 0)
        return false;
    if (json_is_real(value))
        return is_real(text, length, json_real_value(value));
    char *end = NULL;
    return strtoll(text, &end, 10) == json_integer_value(value) && end == text + length;
}

static bool has_value(const char **at_p, const json_t *value) {
    const char *key;
    size_t i;
    json_t *part;
    bool is_same = true;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        json_object_foreach((json_t *)value, key, part) {
            is_same = is_same && has_string(at_p, strlen(key)) && has_value(at_p, part);
        }
        return is_same;
    case JSON_ARRAY:
        json_array_foreach(value, i, part) {
            is_same = is_same && has_value(at_p, part);
        }
        return is_same;
    case JSON_STRING:
        return has_string(at_p, json_string_length(value));
    case JSON_INTEGER:
    case JSON_REAL:
        return has_number(at_p, value);
    default:
        return true;
    }
}

bool zr_config_is_whole(const char *text, const json_t *root) {
    return has_value(&text, root) && *next_token(text) == '\0';
}
