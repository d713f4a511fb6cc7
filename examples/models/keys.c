/*
 * Values of shapes as text, by the rows of their architectures: see internal.h.
 */
#include "models/internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool zr_model_refuse(char *error, size_t error_size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, error_size, format, arguments);
    va_end(arguments);
    return false;
}

static bool has_layer(const uint64_t *layers, size_t i) {
    return (layers[i / 64] >> (i % 64) & 1) != 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* As few digits as read back the same. */
static void write_real(double value, char *text, size_t size) {
    if (value == floor(value) && value < 1e15) {
        snprintf(text, size, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            return;
    }
}

static void write_layers(const uint64_t *layers, size_t n_bits, size_t n_layers, char *text,
                         size_t size) {
    size_t n_set = 0, used = 0;
    for (size_t i = 0; i < n_bits; i++)
        n_set += has_layer(layers, i);
    snprintf(text, size, "%s", n_set == 0 ? "none" : "all");
    if (n_set == 0 || n_set == n_layers || n_set == n_bits)
        return;
    for (size_t first = 0, last; first < n_bits && used < size; first = last + 1) {
        last = first;
        if (!has_layer(layers, first))
            continue;
        while (last + 1 < n_bits && has_layer(layers, last + 1))
            last++;
        used += (size_t)snprintf(text + used, size - used, "%s%zu", used > 0 ? "+" : "", first);
        if (last > first && used < size)
            used += (size_t)snprintf(text + used, size - used, "-%zu", last);
    }
}

zr_model_value_t zr_model_key_value(const zr_model_key_t *key, const zr_model_shape_t *shape) {
    const void *at = (const char *)shape + key->offset;
    zr_model_value_t value = {.name = key->name, .type = key->type};
    switch (key->type) {
    case ZR_MODEL_SIZE:
        value.size = *(const size_t *)at;
        snprintf(value.text, sizeof(value.text), "%zu", value.size);
        break;
    case ZR_MODEL_REAL:
        value.real = *(const double *)at;
        write_real(value.real, value.text, sizeof(value.text));
        break;
    case ZR_MODEL_FLAG:
        value.size = *(const bool *)at;
        snprintf(value.text, sizeof(value.text), "%zu", value.size);
        break;
    case ZR_MODEL_WORD:
        snprintf(value.text, sizeof(value.text), "%s", key->words[*(const int *)at]);
        break;
    case ZR_MODEL_LAYERS:
        write_layers(at, key->most, zr_model_shape_sizes(shape).n_layers, value.text,
                     sizeof(value.text));
        break;
    }
    return value;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct reading {
    const zr_architecture_t *architecture;
    zr_model_shape_t shape;
    uint64_t seen; /* a bit for each key */
    char *error;
    size_t error_size;
} reading_t;

#define REFUSE(r, ...) zr_model_refuse((r)->error, (r)->error_size, __VA_ARGS__)

static bool read_number(const char **text, size_t most, size_t *value_p) {
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(*text, &end, 10);
    if (!isdigit((unsigned char)**text) || errno != 0 || number > most)
        return false;
    *text = end;
    *value_p = (size_t)number;
    return true;
}

static bool read_size(reading_t *r, const zr_model_key_t *key, const char *text) {
    size_t *at = (size_t *)((char *)&r->shape + key->offset);
    const char *end = text;
    if (read_number(&end, key->most, at) && *end == '\0' && (*at > 0 || key->is_optional))
        return true;
    return REFUSE(r, "%s=%s: a whole number from %d to %zu is needed", key->name, text,
                  key->is_optional ? 0 : 1, key->most);
}

static bool read_real(reading_t *r, const zr_model_key_t *key, const char *text) {
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0)
        return REFUSE(r, "%s=%s: a number that is not negative is needed", key->name, text);
    *(double *)((char *)&r->shape + key->offset) = value;
    return true;
}

static bool read_flag(reading_t *r, const zr_model_key_t *key, const char *text) {
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return REFUSE(r, "%s=%s: allowed: 0 and 1", key->name, text);
    *(bool *)((char *)&r->shape + key->offset) = text[0] == '1';
    return true;
}

static bool read_word(reading_t *r, const zr_model_key_t *key, const char *text) {
    char known[256] = "";
    for (int i = 0; key->words[i] != NULL; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "", key->words[i]);
        if (strcmp(text, key->words[i]) != 0)
            continue;
        *(int *)((char *)&r->shape + key->offset) = i;
        return true;
    }
    return REFUSE(r, "%s=%s: allowed: %s", key->name, text, known);
}

static bool read_layers(reading_t *r, const zr_model_key_t *key, const char *text) {
    uint64_t *layers = (uint64_t *)((char *)&r->shape + key->offset);
    size_t first = 0, last = key->most - 1;
    const char *end = text;
    bool is_all = strcmp(text, "all") == 0;
    if (strcmp(text, "none") == 0)
        return true;
    do {
        if (!is_all && !read_number(&end, key->most - 1, &first))
            break;
        last = is_all ? key->most - 1 : first;
        if (!is_all && *end == '-' && (end++, !read_number(&end, key->most - 1, &last)))
            break;
        if (last < first)
            break;
        for (size_t i = first; i <= last; i++)
            zr_model_set_layer(layers, i);
        if (is_all || *end == '\0')
            return true;
    } while (*end++ == '+');
    return REFUSE(r, "%s=%s: allowed: layers such as 0-2+5, all or none", key->name, text);
}

static bool read_value(reading_t *r, const zr_model_key_t *key, const char *text) {
    static bool (*const readers[])(reading_t *, const zr_model_key_t *,
                                   const char *) = {[ZR_MODEL_SIZE] = read_size,
                                                    [ZR_MODEL_REAL] = read_real,
                                                    [ZR_MODEL_FLAG] = read_flag,
                                                    [ZR_MODEL_WORD] = read_word,
                                                    [ZR_MODEL_LAYERS] = read_layers};
    return readers[key->type](r, key, text);
}

static void list_keys(const zr_architecture_t *architecture, char *text, size_t size) {
    for (size_t i = 0, used = 0; i < architecture->n_keys && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "",
                                 architecture->keys[i].name);
}

/* One "key=value", which it cuts in two. A dash in a key is as good as what is there. */
static bool read_pair(reading_t *r, char *pair) {
    const zr_architecture_t *architecture = r->architecture;
    char known[512];
    char *value = strchr(pair, '=');
    if (value == NULL)
        return REFUSE(r, "\"%s\" is neither a model's name nor key=value", pair);
    *value++ = '\0';
    for (char *c = pair; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
    for (size_t i = 0; i < architecture->n_keys; i++) {
        if (strcmp(pair, architecture->keys[i].name) != 0)
            continue;
        if ((r->seen >> i & 1) != 0)
            return REFUSE(r, "%s is given twice", pair);
        r->seen |= (uint64_t)1 << i;
        return read_value(r, &architecture->keys[i], value);
    }
    list_keys(architecture, known, sizeof(known));
    return REFUSE(r, "\"%s\" is not a part of a model; known: %s", pair, known);
}

static bool refuse_missing(reading_t *r, const zr_model_key_t *missing) {
    const zr_architecture_t *architecture = r->architecture;
    char all[256] = "";
    for (size_t i = 0, used = 0; i < architecture->n_keys; i++)
        if (!architecture->keys[i].is_optional)
            used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s=..", i > 0 ? "," : "",
                                     architecture->keys[i].name);
    return REFUSE(r, "%s is missing; a model is %s%s", missing->name, architecture->prefix, all);
}

static bool read_pairs(reading_t *r, char *text) {
    for (char *pair = text; pair != NULL;) {
        char *next = strchr(pair, ',');
        if (next != NULL)
            *next++ = '\0';
        if (!read_pair(r, pair))
            return false;
        pair = next;
    }
    for (size_t i = 0; i < r->architecture->n_keys; i++)
        if (!r->architecture->keys[i].is_optional && (r->seen >> i & 1) == 0)
            return refuse_missing(r, &r->architecture->keys[i]);
    if (r->architecture->complete != NULL)
        r->architecture->complete(&r->shape);
    return r->architecture->check(&r->shape, r->error, r->error_size);
}

bool zr_model_keys_read(const zr_architecture_t *architecture, const char *text,
                        zr_model_shape_t *shape_p, char *error, size_t error_size) {
    char copy[ZR_MODEL_TEXT_BYTES];
    reading_t r = {.architecture = architecture,
                   .shape = {.kind = architecture->kind},
                   .error = error,
                   .error_size = error_size};
    if (strlen(text) >= sizeof(copy))
        return REFUSE(&r, "\"%.60s...\" has %zu characters; a model's description has %zu at most",
                      text, strlen(text), sizeof(copy) - 1);
    memcpy(copy, text, strlen(text) + 1);
    if (!read_pairs(&r, copy))
        return false;
    *shape_p = r.shape;
    return true;
}
