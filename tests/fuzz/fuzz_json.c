/*
 * Changes of JSON that leave it JSON: changed bytes hardly ever come past a parser, and what is
 * behind it would not be tried.
 */
#include <jansson.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"

/* A value's place in the object or list that it is in. */
typedef struct place {
    json_t *parent;
    const char *key; /* NULL: in a list */
    size_t index;
} place_t;

#define MOST_PLACES 4096

typedef struct places {
    place_t all[MOST_PLACES];
    size_t n;
} places_t;

uint64_t fuzz_random(uint64_t *seed) {
    uint64_t x = *seed += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void count_error(void *context, zr_log_level_t level, int rank, const char *message) {
    int *n_errors = context;
    (void)rank, (void)message;
    *n_errors += level == ZR_LOG_ERROR;
}

zr_log_t fuzz_log(int *n_errors) {
    *n_errors = 0;
    return (zr_log_t){.sink = count_error, .context = n_errors, .level = ZR_LOG_DEBUG, .rank = -1};
}

static void find_places(json_t *value, places_t *places) {
    const char *key;
    size_t index;
    json_t *part;
    if (json_is_object(value)) {
        json_object_foreach(value, key, part) {
            if (places->n < MOST_PLACES)
                places->all[places->n++] = (place_t){.parent = value, .key = key};
            find_places(part, places);
        }
    }
    json_array_foreach(value, index, part) {
        if (places->n < MOST_PLACES)
            places->all[places->n++] = (place_t){.parent = value, .index = index};
        find_places(part, places);
    }
}

static json_t *value_at(const place_t *place) {
    return place->key != NULL ? json_object_get(place->parent, place->key)
                              : json_array_get(place->parent, place->index);
}

static void put(const place_t *place, json_t *value) {
    if (place->key != NULL)
        json_object_set_new_nocheck(place->parent, place->key, value);
    else
        json_array_set_new(place->parent, place->index, value);
}

static json_t *change_number(json_int_t number, uint64_t *seed) {
    static const json_int_t numbers[] = {0,
                                         1,
                                         -1,
                                         3,
                                         4096,
                                         1 << 30,
                                         (json_int_t)1 << 31,
                                         (json_int_t)1 << 32,
                                         (json_int_t)1 << 52,
                                         ((json_int_t)1 << 52) + 1,
                                         (json_int_t)1 << 62,
                                         INT64_MAX,
                                         INT64_MIN,
                                         INT64_MAX - 4095};
    uint64_t any = fuzz_random(seed);
    switch (any % 8) {
    case 0:
        return json_integer(number < INT64_MAX ? number + 1 : number);
    case 1:
        return json_integer(number > INT64_MIN ? number - 1 : number);
    case 2:
        return json_integer(number / 2);
    case 3:
        return json_integer((json_int_t)((uint64_t)number * 2));
    case 4:
        return json_real((double)number);
    case 5:
        return json_integer((json_int_t)(any >> 32 & 0xff));
    default:
        return json_integer(numbers[(any >> 8) % (sizeof(numbers) / sizeof(numbers[0]))]);
    }
}

static json_t *change_text(const char *text, uint64_t *seed) {
    static const char *const texts[] = {
        "",
        "..",
        "a/b",
        ".a",
        "fp32",
        "bf16",
        "F32",
        "I64",
        "0000000000000000",
        "ffffffffffffffff",
        "\n",
        "\xc3\xa4",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    char copy[64];
    uint64_t any = fuzz_random(seed);
    if (any % 4 != 0)
        return json_string(texts[(any >> 8) % (sizeof(texts) / sizeof(texts[0]))]);
    snprintf(copy, sizeof(copy), "%.63s", text);
    if (copy[0] != '\0')
        copy[(any >> 8) % strlen(copy)] = (char)(' ' + (any >> 32) % 95);
    return json_string_nocheck(copy);
}

static json_t *other_value(const json_t *value, uint64_t *seed) {
    uint64_t any = fuzz_random(seed);
    if (any % 4 != 0 && json_is_integer(value))
        return change_number(json_integer_value(value), seed);
    if (any % 4 != 0 && json_is_string(value))
        return change_text(json_string_value(value), seed);
    if (any % 4 != 0 && json_is_boolean(value))
        return json_boolean(!json_is_true(value));
    switch (any >> 8 & 7) {
    case 0:
        return json_null();
    case 1:
        return json_object();
    case 2:
        return json_array();
    case 3:
        return json_boolean(any >> 16 & 1);
    case 4:
        return json_real(0.5);
    default:
        return change_number(7, seed);
    }
}

static void change(const places_t *places, uint64_t *seed) {
    const place_t *place = &places->all[fuzz_random(seed) % places->n];
    const place_t *other = &places->all[fuzz_random(seed) % places->n];
    json_t *value = value_at(place), *second = value_at(other), *copy = NULL;
    if (value == NULL || second == NULL) /* it went with an earlier change */
        return;
    switch (fuzz_random(seed) % 8) {
    case 0:
        if (place->key != NULL)
            json_object_del(place->parent, place->key);
        else
            json_array_remove(place->parent, place->index);
        break;
    case 1:
        put(place, json_deep_copy(second));
        break;
    case 2:
        copy = json_deep_copy(value);
        if (place->key == NULL)
            json_array_insert_new(place->parent, place->index, copy);
        else
            json_object_set_new_nocheck(place->parent, "other", copy);
        break;
    case 3:
        copy = json_deep_copy(value);
        json_incref(other->parent); /* it may be in the value that goes */
        put(place, json_deep_copy(second));
        put(other, copy);
        json_decref(other->parent);
        break;
    default:
        put(place, other_value(value, seed));
    }
}

size_t fuzz_mutate_json(char *text, size_t n_bytes, size_t most_bytes, unsigned seed) {
    static places_t places;
    uint64_t state = seed;
    json_t *root = json_loadb(text, n_bytes, 0, NULL);
    if (root == NULL)
        return 0;
    /* Places are looked for again each time: a change may free what others point to. */
    for (size_t n = 1 + fuzz_random(&state) % 3; n > 0; n--) {
        places.n = 0;
        find_places(root, &places);
        if (places.n > 0)
            change(&places, &state);
    }
    char *changed = json_dumps(root, JSON_INDENT(1));
    size_t n_changed = changed != NULL ? strlen(changed) : 0;
    json_decref(root);
    if (n_changed > most_bytes)
        n_changed = 0;
    if (n_changed > 0)
        memcpy(text, changed, n_changed);
    free(changed);
    return n_changed;
}
