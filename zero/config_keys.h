/*
 * The keys of DeepSpeed's configuration, as data. One table says for each what type it has,
 * what DeepSpeed takes when it is absent, and what happens to it here. The reader, the checks
 * of zr_config_resolve, docs/config.md and the tests all walk this one table, so they cannot
 * disagree. Internal to zero/: users read zero/config.h.
 */
#ifndef ZR_ZERO_CONFIG_KEYS_H
#define ZR_ZERO_CONFIG_KEYS_H

#include "zero/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum zr_key_type {
    ZR_KEY_BOOL,
    ZR_KEY_INTEGER, /* 5e8 is one as well */
    ZR_KEY_NUMBER,
    ZR_KEY_STRING,
    ZR_KEY_PAIR,   /* list of two numbers */
    ZR_KEY_LIST,   /* of anything */
    ZR_KEY_OBJECT, /* of anything */
    ZR_KEY_ANY
} zr_key_type_t;

/** What happens to a key here. */
typedef enum zr_key_action {
    ZR_KEY_SECTION, /* an object whose keys stand in the table */
    ZR_KEY_FIELD,   /* sets a field of zr_config_t, or says what is so anyhow */
    ZR_KEY_FIXED,   /* allowed at the one value that describes what libzero does */
    ZR_KEY_INERT,   /* allowed: with what is accepted here, it has no effect in DeepSpeed either */
    ZR_KEY_REFUSED  /* known and not supported */
} zr_key_action_t;

/** How a field is stored at its offset. */
typedef enum zr_key_store {
    ZR_STORE_NOTHING,
    ZR_STORE_BOOL,
    ZR_STORE_INT, /* enums too */
    ZR_STORE_SIZE,
    ZR_STORE_DOUBLE,
    ZR_STORE_PAIR,  /* two doubles, one after the other */
    ZR_STORE_DTYPE, /* true: bf16, false: fp32 */
    ZR_STORE_TEXT   /* an array of ZR_CONFIG_PATHS_BYTES */
} zr_key_store_t;

typedef enum zr_key_range {
    ZR_RANGE_ANY, /* of finite numbers */
    ZR_RANGE_STAGE,
    ZR_RANGE_NOT_NEGATIVE,
    ZR_RANGE_POSITIVE,
    ZR_RANGE_FRACTION, /* 0 to 1 */
    ZR_RANGE_BETA,     /* 0 to 1, not 1 */
    ZR_RANGE_GROUP     /* -1, or 1 and more */
} zr_key_range_t;

/** A string that a key may be; names are compared without case. */
typedef struct zr_key_choice {
    const char *name; /* NULL ends the list */
    int value;
    bool supported;
} zr_key_choice_t;

enum {
    ZR_KEY_AUTO = 1,      /* may be "auto", which leaves the field as it is */
    ZR_KEY_ZERO_UNSET = 2 /* the field, not the key, may be 0: not set */
};

typedef struct zr_config_key {
    const char *path; /* "zero_optimization.stage" */
    zr_key_type_t type;
    zr_key_action_t action;
    const char *usual; /* JSON of DeepSpeed's default; "": it has none. null: may be null */
    unsigned flags;
    const char *only; /* FIXED: JSON of the allowed value */
    const char *note; /* what it means, or why it is refused and what to do instead */
    zr_key_range_t range;
    const zr_key_choice_t *choices; /* STRING: NULL allows all */
    unsigned schedules; /* of scheduler.params: bits of zr_schedule_kind_t that have it; 0: all */
    const char *field;  /* name in zr_config_t; NULL: none */
    size_t offset;      /* in zr_config_t */
    zr_key_store_t store;
} zr_config_key_t;

/** The table, sections before their keys. */
const zr_config_key_t *zr_config_keys(size_t *n_keys_p);

/**
 * Find a key of a section.
 *
 * @param section  NULL: the top of the file
 * @param name     without dots, as it stands in the file
 * @return NULL when there is none
 */
const zr_config_key_t *zr_config_key_find(const zr_config_key_t *section, const char *name);

/** Whether `key` stands directly in `section` (NULL: the top of the file). */
bool zr_config_key_is_in(const zr_config_key_t *key, const zr_config_key_t *section);

/** The part of a key's path behind the last dot. */
const char *zr_config_key_name(const zr_config_key_t *key);

/**
 * Optimal string alignment: the cost of letters that have to be put in, left out, changed or
 * swapped with their neighbour. Without case. SIZE_MAX for a name that is longer than any known.
 */
size_t zr_name_distance(const char *a, const char *b);
/** The largest distance that still is a slip: edits of a third of the letters, at most 4. */
size_t zr_name_slip_limit(const char *name);

/** The known key of a section that `name` is probably a slip of; NULL when none is close. */
const zr_config_key_t *zr_config_key_nearest(const zr_config_key_t *section, const char *name);

/** The choice that `name` is probably a slip of; NULL when none is close. */
const zr_key_choice_t *zr_key_choice_nearest(const zr_key_choice_t *choices, const char *name);

/** Whether a number is in a range, and still is when the update rounds it to fp32: an epsilon
 * below its least number would be 0. NaN and infinity never are. */
bool zr_key_range_holds(zr_key_range_t range, double value);
/** What a message adds about a number that only rounding takes out of its range; "" otherwise. */
const char *zr_key_range_hint(zr_key_range_t range, double value);

/** "at least 0", for messages and documents; "" for ANY. */
const char *zr_key_range_text(zr_key_range_t range);

/** "true or false", "an integer", ... */
const char *zr_key_type_text(zr_key_type_t type);

/** The numbers that a field holds: one, or two for a pair; none when it is not stored. */
int zr_config_key_numbers(const zr_config_key_t *key, const zr_config_t *config, double numbers[2]);

/** JSON of what a field holds, for messages and documents; "" when it is not stored. */
void zr_config_key_show(const zr_config_key_t *key, const zr_config_t *config, char *text,
                        size_t text_bytes);

#ifdef __cplusplus
}
#endif
#endif
