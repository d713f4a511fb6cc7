/*
 * Looking things up in the table of keys: by name, by likeness of a name, and what a key's
 * field holds now.
 */
#include "zero/config_keys.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    NAME_MAX_CHARS = 64, /* longer than any known name; a longer one is like none */
    EDIT_COST = 4,       /* a letter too many, too few, or another one */
    SWAP_COST = 3        /* two neighbours swapped: the likelier slip where both would do */
};

static size_t min_size(size_t a, size_t b) {
    return a < b ? a : b;
}

const char *zr_config_key_name(const zr_config_key_t *key) {
    const char *dot = strrchr(key->path, '.');
    return dot ? dot + 1 : key->path;
}

bool zr_config_key_is_in(const zr_config_key_t *key, const zr_config_key_t *section) {
    const char *name = zr_config_key_name(key);
    size_t section_chars = section ? strlen(section->path) + 1 : 0; /* with the dot */
    if ((size_t)(name - key->path) != section_chars)
        return false;
    return !section || strncmp(key->path, section->path, section_chars - 1) == 0;
}

const zr_config_key_t *zr_config_key_find(const zr_config_key_t *section, const char *name) {
    size_t n_keys;
    const zr_config_key_t *keys = zr_config_keys(&n_keys);
    for (size_t i = 0; i < n_keys; i++)
        if (strcmp(zr_config_key_name(&keys[i]), name) == 0 &&
            zr_config_key_is_in(&keys[i], section))
            return &keys[i];
    return NULL;
}

/* ---- likeness ------------------------------------------------------------- */

size_t zr_name_distance(const char *a, const char *b) {
    if (strlen(a) > NAME_MAX_CHARS || strlen(b) > NAME_MAX_CHARS)
        return SIZE_MAX;
    size_t rows[3][NAME_MAX_CHARS + 1];
    size_t n_a = strlen(a), n_b = strlen(b);
    size_t *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= n_b; j++)
        last[j] = j * EDIT_COST;
    for (size_t i = 1; i <= n_a; i++) {
        row[0] = i * EDIT_COST;
        for (size_t j = 1; j <= n_b; j++) {
            int letter_a = tolower((unsigned char)a[i - 1]);
            int letter_b = tolower((unsigned char)b[j - 1]);
            row[j] = min_size(min_size(last[j], row[j - 1]) + EDIT_COST,
                              last[j - 1] + (letter_a != letter_b ? EDIT_COST : 0));
            if (i > 1 && j > 1 && letter_a == tolower((unsigned char)b[j - 2]) &&
                letter_b == tolower((unsigned char)a[i - 2]))
                row[j] = min_size(row[j], before[j - 2] + SWAP_COST);
        }
        size_t *spare = before;
        before = last;
        last = row;
        row = spare;
    }
    return last[n_b];
}

size_t zr_name_slip_limit(const char *name) {
    return EDIT_COST * min_size((strlen(name) + 2) / 3, 4);
}

const zr_config_key_t *zr_config_key_nearest(const zr_config_key_t *section, const char *name) {
    size_t n_keys;
    const zr_config_key_t *keys = zr_config_keys(&n_keys);
    const zr_config_key_t *nearest = NULL;
    size_t limit = zr_name_slip_limit(name) + 1;
    for (size_t i = 0; i < n_keys; i++) {
        if (!zr_config_key_is_in(&keys[i], section))
            continue;
        size_t distance = zr_name_distance(name, zr_config_key_name(&keys[i]));
        if (distance < limit) {
            limit = distance;
            nearest = &keys[i];
        }
    }
    return nearest;
}

const zr_key_choice_t *zr_key_choice_nearest(const zr_key_choice_t *choices, const char *name) {
    const zr_key_choice_t *nearest = NULL;
    size_t limit = zr_name_slip_limit(name) + 1;
    for (const zr_key_choice_t *choice = choices; choice->name; choice++) {
        size_t distance = zr_name_distance(name, choice->name);
        if (distance < limit) {
            limit = distance;
            nearest = choice;
        }
    }
    return nearest;
}

/* ---- ranges and types ----------------------------------------------------- */

static bool holds(zr_key_range_t range, double value) {
    if (!isfinite(value))
        return false;
    switch (range) {
    case ZR_RANGE_ANY:
        return true;
    case ZR_RANGE_STAGE:
        return value == 0 || value == 1 || value == 2 || value == 3;
    case ZR_RANGE_NOT_NEGATIVE:
        return value >= 0;
    case ZR_RANGE_POSITIVE:
        return value > 0;
    case ZR_RANGE_FRACTION:
        return value >= 0 && value <= 1;
    case ZR_RANGE_BETA:
        return value >= 0 && value < 1;
    case ZR_RANGE_GROUP:
        return value == -1 || value >= 1;
    }
    return false;
}

bool zr_key_range_holds(zr_key_range_t range, double value) {
    return holds(range, value) && holds(range, (double)(float)value);
}

const char *zr_key_range_hint(zr_key_range_t range, double value) {
    return holds(range, value) && !zr_key_range_holds(range, value) ? ", rounded to fp32 too" : "";
}

const char *zr_key_range_text(zr_key_range_t range) {
    switch (range) {
    case ZR_RANGE_ANY:
        return "";
    case ZR_RANGE_STAGE:
        return "0, 1, 2 or 3";
    case ZR_RANGE_NOT_NEGATIVE:
        return "at least 0";
    case ZR_RANGE_POSITIVE:
        return "more than 0";
    case ZR_RANGE_FRACTION:
        return "from 0 to 1";
    case ZR_RANGE_BETA:
        return "at least 0 and less than 1";
    case ZR_RANGE_GROUP:
        return "1 or more, or -1";
    }
    return "";
}

const char *zr_key_type_text(zr_key_type_t type) {
    switch (type) {
    case ZR_KEY_BOOL:
        return "true or false";
    case ZR_KEY_INTEGER:
        return "an integer";
    case ZR_KEY_NUMBER:
        return "a number";
    case ZR_KEY_STRING:
        return "a string";
    case ZR_KEY_PAIR:
        return "a list of two numbers";
    case ZR_KEY_LIST:
        return "a list";
    case ZR_KEY_OBJECT:
        return "an object";
    case ZR_KEY_ANY:
        return "anything";
    }
    return "";
}

/* ---- fields --------------------------------------------------------------- */

int zr_config_key_numbers(const zr_config_key_t *key, const zr_config_t *config,
                          double numbers[2]) {
    const void *field = (const char *)config + key->offset;
    switch (key->store) {
    case ZR_STORE_NOTHING:
        return 0;
    case ZR_STORE_BOOL:
        numbers[0] = *(const bool *)field;
        return 1;
    case ZR_STORE_INT:
        numbers[0] = *(const int *)field;
        return 1;
    case ZR_STORE_SIZE:
        numbers[0] = (double)*(const size_t *)field;
        return 1;
    case ZR_STORE_DOUBLE:
        numbers[0] = *(const double *)field;
        return 1;
    case ZR_STORE_PAIR:
        numbers[0] = ((const double *)field)[0];
        numbers[1] = ((const double *)field)[1];
        return 2;
    case ZR_STORE_DTYPE:
        numbers[0] = config->dtype == ZR_DTYPE_BF16;
        return 1;
    case ZR_STORE_TEXT:
        return 0; /* only numbers have a range */
    }
    return 0;
}

void zr_config_key_show(const zr_config_key_t *key, const zr_config_t *config, char *text,
                        size_t text_bytes) {
    double numbers[2];
    int n_numbers = zr_config_key_numbers(key, config, numbers);
    text[0] = '\0';
    if (key->choices && n_numbers == 1) {
        snprintf(text, text_bytes, "null");
        for (const zr_key_choice_t *choice = key->choices; choice->name; choice++)
            if (choice->supported && choice->value == (int)numbers[0])
                snprintf(text, text_bytes, "\"%s\"", choice->name);
    } else if (key->type == ZR_KEY_BOOL && n_numbers == 1) {
        snprintf(text, text_bytes, "%s", numbers[0] != 0 ? "true" : "false");
    } else if (key->store == ZR_STORE_SIZE) {
        size_t n = *(const size_t *)(const void *)((const char *)config + key->offset);
        snprintf(text, text_bytes, "%zu", n);
    } else if (n_numbers == 1) {
        snprintf(text, text_bytes, "%.15g", numbers[0]);
    } else if (n_numbers == 2) {
        snprintf(text, text_bytes, "[%.15g, %.15g]", numbers[0], numbers[1]);
    }
}
