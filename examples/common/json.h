/*
 * Building and printing JSON objects with jansson, without a check per field: an object into which
 * a value could not be put becomes NULL, and so does what that is put into, up to the one that is
 * printed. Numbers that JSON does not have (nan, infinity) become null.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/** Put a value into an object, which takes it over. Where either is NULL or memory ends, both are
 * freed and the object becomes NULL. */
void json_put(json_t **object_p, const char *key, json_t *value);
/** Values, each with its key. */
typedef struct json_field {
    const char *key;
    json_t *value;
} json_field_t;
void json_put_all(json_t **object_p, const json_field_t *fields, size_t n);
json_t *json_object_of(const json_field_t *fields, size_t n);
/** Put fields, written {"key", value}, into an object; make one of them. */
#define JSON_PUT(object_p, ...) json_put_all(object_p, JSON_FIELDS(__VA_ARGS__))
#define JSON_OBJECT(...) json_object_of(JSON_FIELDS(__VA_ARGS__))
#define JSON_FIELDS(...)                                                                           \
    (const json_field_t[]){__VA_ARGS__},                                                           \
        sizeof((const json_field_t[]){__VA_ARGS__}) / sizeof(json_field_t)
/** A value at the end of an array, likewise. */
void json_append(json_t **array_p, json_t *value);
/** A number; null when it is not finite. */
json_t *json_number(double value);
/** A count or size. */
json_t *json_count(uint64_t value);
/** A text of any origin, such as the name of a file: JSON is UTF-8, and where it is not, bytes
 * beyond ASCII become '?'. */
json_t *json_text(const char *text);
/** 16 hexadecimal digits, as a string. */
json_t *json_hex(uint64_t value);
/** Write an object on one line, or indented, with a newline; false when that failed, or it is NULL.
 */
bool json_print(const json_t *object, bool indented, FILE *file);
/** The same, indented, and free it. */
bool json_print_new(json_t *object, FILE *file);
