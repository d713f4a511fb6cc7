/*
 * Options of a run, as rows of a table: a row has an option's name on a command line and in
 * DeepSpeed's JSON, the field of zr_config_t that it sets, the allowed values, and when it applies.
 * Parsing, messages, help, files, the agreement of ranks, commands that repeat a run and
 * docs/reference/options.md read the row: an option is added by adding one (zero/config/rows.c).
 *
 * A program describes its own options with rows of the same type for its own struct.
 */
#pragma once

#include <stdint.h>

#include "zero/config.h"

ZR_BEGIN_C

/** How a value is stored at a row's offset, and how it is written. */
typedef enum zr_option_type {
    ZR_OPTION_FLAG,   /* bool; has no value: the option itself sets it */
    ZR_OPTION_SWITCH, /* bool: off or on, or the names in `choices` */
    ZR_OPTION_CHOICE, /* an enum, or an int: one of `choices` */
    ZR_OPTION_INT,    /* int */
    ZR_OPTION_COUNT,  /* size_t */
    ZR_OPTION_BYTES,  /* size_t: 1024, 512MiB, 16GB */
    ZR_OPTION_U64,    /* uint64_t, decimal or 0x and hexadecimal */
    ZR_OPTION_NUMBER, /* double */
    ZR_OPTION_PATHS,  /* char[ZR_CONFIG_PATHS_BYTES]: copied */
    ZR_OPTION_STRING  /* const char *: borrowed */
} zr_option_type_t;

enum {
    ZR_OPTION_AGREE = 1,         /* must be the same on all ranks */
    ZR_OPTION_AUTO = 2,          /* "auto" is allowed: the program then chooses the value */
    ZR_OPTION_UNSET0 = 4,        /* the field may be 0 (not set), the option may not */
    ZR_OPTION_OR_ALL = 8,        /* "all" (JSON: -1) is allowed, and stored as -1, of the type */
    ZR_OPTION_FILE_AUTO = 16,    /* JSON: "auto" leaves the field as it is */
    ZR_OPTION_SAID = 32,         /* JSON: written even if it is the default */
    ZR_OPTION_SEVERAL = 64,      /* may be repeated on a command line; every occurrence counts */
    ZR_OPTION_ONCE = 256,        /* a second one on a command line is an error */
    ZR_OPTION_HIDDEN = 128,      /* --help does not list it */
    ZR_OPTION_OR_AUTO = 512,     /* "auto" is allowed, and stored as 0: the run chooses the value */
    ZR_OPTION_FILE_USUAL = 1024, /* JSON: it decides the result, so that where the section is there
                                    and the key is not, `usual` is taken */
    ZR_OPTION_KEPT = 4096, /* it decides the result: a program's checkpoints keep it, and a run that
                              goes on has it, unless it is given */
    ZR_OPTION_KEPT_TO_TELL = 8192, /* they keep it, to tell when a run that goes on has another */
    ZR_OPTION_FILE_ZERO = 2048,    /* JSON: 0 is allowed, and leaves the field as it is */
    ZR_OPTION_OF_TRANSFERS =
        256 /* it also applies if data outside the configuration is on NVMe, such as activations */
};

/** An allowed value of an option. */
typedef struct zr_option_choice {
    const char *name; /* on a command line; NULL: only allowed in a file */
    int value;
    const char *json; /* in a file, as JSON; NULL: the name as a string */
} zr_option_choice_t;

/** When an option applies. */
typedef struct zr_option_when {
    bool (*holds)(const zr_config_t *config); /* the condition */
    const char
        *otherwise; /* why it has no effect, and what to add: "nothing is offloaded; add ..." */
    bool warns;     /* a warning, not an error: it would be valid in another run */
} zr_option_when_t;

typedef struct zr_option zr_option_t;

#define ZR_OPTION_NO_FIELD ((size_t)-1)

/** Parts of a table, as --help and the documents show them. */
enum {
    ZR_OPTION_GROUP_RANKS = 2,
    ZR_OPTION_GROUP_MACHINE = 3,
    ZR_OPTION_GROUP_OFFLOAD = 4,
    ZR_OPTION_GROUP_STEP = 5
};

struct zr_option {
    const char *name;  /* on a command line, without dashes; NULL: not a command-line option */
    const char *key;   /* key in DeepSpeed's JSON: "zero_optimization.stage", or "...betas[0]" for a
                          list element; NULL: not in files */
    const char *field; /* the field's name in zr_config_t, for messages; NULL: none, or a program's
                          own option */
    size_t offset;     /* offset of the field in its struct; ZR_OPTION_NO_FIELD: sets no field */
    zr_option_type_t type;
    unsigned flags;
    double least, most;                /* bounds of numbers; most 0: unbounded */
    const zr_option_choice_t *choices; /* ends with an element whose name and json are NULL */
    const char *refused; /* space-separated values that DeepSpeed knows and libzero does not */

    const char *arg;     /* name of the value in --help: "ELEMS"; NULL: the choices */
    const char *help;    /* meaning, in a line or two */
    const char *more;    /* additional text in the table of docs/reference/options.md; NULL: none */
    const char *initial; /* text for the default; NULL: the field's default value */
    const char *usual;   /* DeepSpeed's default as JSON, possibly "null"; NULL: it has none */
    const char *note;    /* additional text in the table of keys; NULL: none */
    int group;

    const zr_option_when_t *when[2]; /* conditions that must all hold; NULL: no condition */
    const char *needs;               /* another option that must be given too; NULL: none */
    const char *idle;   /* space-separated values that are accepted even if `when` does not hold,
                           because they change nothing; NULL: none */
    unsigned schedules; /* for scheduler.params: bit set of the zr_schedule_kind_t that have this
                           parameter; 0: all */

    /* Set an integer field and the fields derived from it. NULL: set the field only. */
    void (*store)(void *object, uint64_t value);
    /* Custom parser of the value; label: "--name". NULL: parse by type. */
    zr_status_t (*take)(void *object, const char *label, const char *text, const zr_log_t *log);
};

/** The rows of zr_config_t, in the order of the documents; static. */
const zr_option_t *zr_options(size_t *n_p);
/**
 * The rows of zr_config_t as JSON, for bindings in other languages: an array with one object per
 * row,
 *
 *   name, key, field        as above, or null
 *   type                    "flag", "switch", "choice", "int", "count", "bytes", "u64", "number",
 *                           "paths" or "string"
 *   least, most             bounds of numbers; null: unbounded
 *   choices                 array of the allowed names, or null
 *   default                 in the syntax of zr_option_set; "": not set
 *   agree                   whether must be the same on all ranks
 *   help                    a line or two
 *
 * @param text_p  the caller frees it with free()
 * @return ZR_OK; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_options_json(char **text_p);
/** Maximum number of rows in a table. */
#define ZR_OPTIONS_MOST 160

/** The row with this name ("stage") in `rows`; NULL: not found. */
const zr_option_t *zr_option_find(const zr_option_t *rows, size_t n, const char *name);

/**
 * Set a field from text.
 *
 * @param label   name of the option in messages; NULL: "--" and the row's name
 * @param text    for a ZR_OPTION_STRING borrowed as long as the object is used
 * @param object  the struct of the row: a zr_config_t for those of zr_options
 * @return ZR_OK; ZR_ERR_ARGUMENT, logged with the allowed values and the nearest one
 */
ZR_NODISCARD zr_status_t zr_option_set(const zr_option_t *option, const char *label,
                                       const char *text, const zr_log_t *log, void *object);

typedef struct zr_option_text {
    char text[ZR_CONFIG_PATHS_BYTES];
} zr_option_text_t;

/** The value of a field, in the syntax of zr_option_set; "": not set. */
zr_option_text_t zr_option_text(const zr_option_t *option, const void *object);

/** Whether the field has the same value in both objects. */
bool zr_option_equal(const zr_option_t *option, const void *a, const void *b);

/** Whether the value of a field is allowed; NaN is not. */
bool zr_option_is_allowed(const zr_option_t *option, const void *object);

typedef struct zr_option_range {
    char text[256];
} zr_option_range_t;

/** "0 to 1", "at least 1", "none, cpu or nvme"; "": any value of its type. */
zr_option_range_t zr_option_range(const zr_option_t *option);

/** Why an option has no effect in a configuration: the condition that does not hold; NULL: it has
 * an effect. */
const zr_option_when_t *zr_option_idle(const zr_option_t *option, const zr_config_t *config);
/** Whether a value is accepted although the option has no effect (see `idle`). */
bool zr_option_is_redundant(const zr_option_t *option, const char *text);

/** Which rows of zr_options a file has given. */
typedef struct zr_options_given {
    bool is[ZR_OPTIONS_MOST];
    bool is_auto[ZR_OPTIONS_MOST]; /* as "auto", which leaves the field as it is */
} zr_options_given_t;

/** As zr_config_read_json; also sets which rows the file has given, unless `given` is NULL. */
ZR_NODISCARD zr_status_t zr_config_read_json_given(const char *path, const zr_log_t *log,
                                                   zr_config_t *config, zr_options_given_t *given);

/**
 * The name that a misspelled word probably means: the closest by edit distance, with at most one
 * edit per three letters, or a name that contains it. NULL: no similar name.
 */
const char *zr_name_nearest(const char *word, const char *const *names, size_t n_names);

ZR_END_C
