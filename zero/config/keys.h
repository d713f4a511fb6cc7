/*
 * The keys of DeepSpeed's configuration: those of options (zero/options.h), and those that no field
 * stands for, in sections. The reader, the writer, docs/reference/deepspeed.md and the tests walk
 * these tables. Internal to zero/.
 */
#pragma once

#include "zero/options.h"

/* ---- rows ------------------------------------------------------------------------------- */

#define ZR_OPTION_CHOICES_MOST 32

/** `choices` of a row, or those of a switch; NULL: it is no word. */
const zr_option_choice_t *zr_option_choices(const zr_option_t *option);
bool zr_option_choice_is_last(const zr_option_choice_t *choice);
/** The number that a field holds; 0 where it is a text. */
double zr_option_number(const zr_option_t *option, const void *object);
/** Whether a number is in the range of a row. */
bool zr_option_holds(const zr_option_t *option, double value);
/** Set a field that is no double and no text. */
void zr_option_store_whole(const zr_option_t *option, uint64_t value, void *object);
/** What a file has for an option; of a list, for each element. */
typedef enum zr_json_kind {
    ZR_JSON_BOOL,
    ZR_JSON_STRING,
    ZR_JSON_NUMBER,
    ZR_JSON_INTEGER
} zr_json_kind_t;
zr_json_kind_t zr_option_json_kind(const zr_option_t *option);
/** "true or false", "an integer", ... */
const char *zr_json_kind_text(zr_json_kind_t kind);
/** Whether a word is among others with spaces between; without case. */
bool zr_words_have(const char *words, const char *word);

/* ---- keys that set nothing ---------------------------------------------------------------- */

/** Keys with one fate. */
typedef struct zr_key_rule {
    const char *section; /* "zero_optimization"; "": the top of the file */
    const char *names;   /* with spaces between */
    const char *only;    /* JSON of the values that say what is so anyhow, with spaces between, and
                            behind " | " further ones that change nothing, which a message says;
                            NULL: none, it is refused; ZR_KEY_ANY: it has no effect */
    const char *note;    /* why */
} zr_key_rule_t;
#define ZR_KEY_ANY "*"
#define ZR_KEY_NUMBER "#" /* any number */

/** An object with keys. */
typedef struct zr_key_section {
    const char *path; /* "zero_optimization.offload_param" */
    const char *note; /* NULL where it is not supported */
    bool may_be_null;
    bool may_be_auto; /* all its keys may be "auto" */
    /* Of a section that is not supported; NULL: it is. */
    const char *off;   /* the key that switches it off, */
    const char *only;  /* with this value as JSON, */
    const char *why;   /* and why it has to be */
    const char *names; /* its other keys, with spaces between: without effect */
} zr_key_section_t;

const zr_key_rule_t *zr_key_rules(size_t *n_p);
/** Sections before the sections in them. */
const zr_key_section_t *zr_key_sections(size_t *n_p);

/* ---- all keys ------------------------------------------------------------------------------ */

#define ZR_KEY_PATH_BYTES 128

/** A key: one of the three, or an ineffective one of a section that is off. */
typedef struct zr_key {
    char path[ZR_KEY_PATH_BYTES];
    size_t n_section;                /* bytes of its section's path */
    const zr_option_t *option;       /* the first of a list's */
    size_t n_elements;               /* of that list; 0: it is no list */
    const zr_key_rule_t *rule;       /* its value is fixed, or it is refused */
    const zr_key_section_t *section; /* it is an object */
} zr_key_t;

/** Walk over all keys: options, rules, sections. `visit` returns false to end it. */
void zr_keys_each(bool (*visit)(void *context, const zr_key_t *key), void *context);

/** The part of a key's path behind the last dot. */
const char *zr_key_name(const zr_key_t *key);

/** The section that a key stands in. */
const zr_key_section_t *zr_key_section_of(const zr_key_t *key);

/** Find a key by its path; false: there is none. */
bool zr_key_find(const char *path, zr_key_t *key_p);
