/*
 * Shapes of models: their names, the text that describes one, and what follows from it.
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/gpt2/gpt.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

static const struct {
    const char *name;
    zr_gpt_shape_t shape;
} named_shapes[] = {
    {"gpt2", {12, 768, 12, 1024, 50257}},        {"gpt2-medium", {24, 1024, 16, 1024, 50257}},
    {"gpt2-large", {36, 1280, 20, 1024, 50257}}, {"gpt2-xl", {48, 1600, 25, 1024, 50257}},
    {"gpt3-6.7b", {32, 4096, 32, 2048, 50257}},  {"gpt3-13b", {40, 5120, 40, 2048, 50257}},
    {"gpt3-175b", {96, 12288, 96, 2048, 50257}},
};

/* The keys of a shape, where each goes, and the largest value that makes sense of it. */
static const struct {
    const char *name;
    size_t offset;
    unsigned long long largest;
} keys[ZR_GPT_N_SIZES] = {
    {"layers", offsetof(zr_gpt_shape_t, n_layers), 100000},
    {"channels", offsetof(zr_gpt_shape_t, channels), 1000000},
    {"heads", offsetof(zr_gpt_shape_t, heads), 1000000},
    {"seq", offsetof(zr_gpt_shape_t, seq), 1000000000},
    {"vocab", offsetof(zr_gpt_shape_t, vocab), INT32_MAX},
};

void zr_gpt_shape_sizes(const zr_gpt_shape_t *shape, zr_gpt_size_t sizes[ZR_GPT_N_SIZES]) {
    for (size_t i = 0; i < ZR_GPT_N_SIZES; i++)
        sizes[i] =
            (zr_gpt_size_t){keys[i].name, *(const size_t *)((const char *)shape + keys[i].offset)};
}

static bool refuse(char *error, size_t error_size, const char *format, ...) ZR_PRINTF(3, 4);
static bool refuse(char *error, size_t error_size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, error_size, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- sizes --------------------------------------------------------------------------- */

/* Per layer: two norms, q k v and their output, the two layers of the MLP. */
static double count_params(const zr_gpt_shape_t *shape) {
    double c = (double)shape->channels;
    double layer = 4.0 * c + (3.0 * c * c + 3.0 * c) + (c * c + c) + (4.0 * c * c + 4.0 * c) +
                   (4.0 * c * c + c);
    return (double)shape->n_layers * layer + 2.0 * c +
           ((double)shape->vocab + (double)shape->seq) * c;
}

size_t zr_gpt_n_params(const zr_gpt_shape_t *shape) {
    size_t c = shape->channels;
    return shape->n_layers * (12 * c * c + 13 * c) + 2 * c + (shape->vocab + shape->seq) * c;
}

double zr_gpt_flops_per_token(const zr_gpt_shape_t *shape, size_t t) {
    /* Scores and their use: 2 products of channels x keys, each 2 operations, 3 times (forward,
       and two operands in backward). */
    double keys_seen = ((double)t + 1.0) / 2.0;
    return 6.0 * count_params(shape) +
           12.0 * (double)shape->n_layers * (double)shape->channels * keys_seen;
}

static bool check_shape(const zr_gpt_shape_t *shape, char *error, size_t error_size) {
    if (shape->channels % shape->heads != 0)
        return refuse(error, error_size,
                      "heads=%zu does not divide channels=%zu; channels must be a multiple of it",
                      shape->heads, shape->channels);
    /* Twelve bytes of state for each parameter, and some room, must have addresses. */
    double n_params = count_params(shape);
    if (n_params > (double)(SIZE_MAX / 256))
        return refuse(error, error_size,
                      "a model of %.3g parameters is too large to address; use fewer layers, "
                      "channels, positions or words",
                      n_params);
    return true;
}

/* ---- reading ----------------------------------------------------------------------------- */

static bool parse_value(const char *key, const char *value, unsigned long long largest,
                        size_t *value_p, char *error, size_t error_size) {
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (!isdigit((unsigned char)value[0]) || *end != '\0' || errno != 0 || number == 0 ||
        number > largest)
        return refuse(error, error_size, "%s=%s: a whole number from 1 to %llu is needed", key,
                      value, largest);
    *value_p = (size_t)number;
    return true;
}

/* One "key=value", which it cuts in two. */
static bool parse_pair(char *pair, zr_gpt_shape_t *shape, unsigned *seen, char *error,
                       size_t error_size) {
    char *value = strchr(pair, '=');
    if (value == NULL)
        return refuse(error, error_size,
                      "\"%s\" is neither a model's name (gpt2, gpt2-medium, gpt2-large, gpt2-xl, "
                      "gpt3-6.7b, gpt3-13b, gpt3-175b) nor key=value",
                      pair);
    *value++ = '\0';
    for (size_t i = 0; i < N_ELEMS(keys); i++) {
        if (strcmp(pair, keys[i].name) != 0)
            continue;
        if (*seen & (1u << i))
            return refuse(error, error_size, "%s is given twice", pair);
        *seen |= 1u << i;
        return parse_value(pair, value, keys[i].largest, (size_t *)((char *)shape + keys[i].offset),
                           error, error_size);
    }
    return refuse(error, error_size,
                  "\"%s\" is no part of a model; known: layers, channels, heads, seq, vocab", pair);
}

static bool parse_pairs(char *text, zr_gpt_shape_t *shape, char *error, size_t error_size) {
    unsigned seen = 0;
    for (char *pair = text; pair != NULL;) {
        char *next = strchr(pair, ',');
        if (next != NULL)
            *next++ = '\0';
        if (!parse_pair(pair, shape, &seen, error, error_size))
            return false;
        pair = next;
    }
    for (size_t i = 0; i < N_ELEMS(keys); i++) {
        if (!(seen & (1u << i)))
            return refuse(
                error, error_size,
                "%s is missing; a model is layers=..,channels=..,heads=..,seq=..,vocab=..",
                keys[i].name);
    }
    return check_shape(shape, error, error_size);
}

bool zr_gpt_shape_parse(const char *text, zr_gpt_shape_t *shape_p, char *error, size_t error_size) {
    for (size_t i = 0; i < N_ELEMS(named_shapes); i++) {
        if (strcmp(text, named_shapes[i].name) == 0) {
            *shape_p = named_shapes[i].shape;
            return true;
        }
    }
    char copy[512];
    if (strlen(text) >= sizeof(copy))
        return refuse(error, error_size,
                      "\"%.60s...\" has %zu characters; a model's description has %zu at most",
                      text, strlen(text), sizeof(copy) - 1);
    memcpy(copy, text, strlen(text) + 1);
    zr_gpt_shape_t shape = {0};
    if (!parse_pairs(copy, &shape, error, error_size))
        return false;
    *shape_p = shape;
    return true;
}
