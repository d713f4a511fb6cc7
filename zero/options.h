/*
 * Options of a run, as rows of a table: a row says what an option is called, on a command line and
 * in DeepSpeed's JSON, which field of zr_config_t it sets, which values it takes and when it
 * applies. Parsing, messages, help, files, the agreement of ranks, commands that repeat a run and
 * docs/reference/config.md read the row: an option is added by adding one (zero/config/rows.c).
 *
 * A program's own options are rows of the same type, of a struct of its own.
 */
#pragma once

#include <stdint.h>

#include "zero/config.h"

ZR_BEGIN_C

/** How a value is stored at a row's offset, and what is written for it. */
typedef enum zr_option_type {
    ZR_OPTION_FLAG,   /* bool; no value is written: being there sets it */
    ZR_OPTION_SWITCH, /* bool: off or on, or what `choices` call them */
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
    ZR_OPTION_AGREE = 1,  /* all ranks have to have the same */
    ZR_OPTION_AUTO = 2,   /* "auto" may be written for it: whoever parses chooses the value then */
    ZR_OPTION_UNSET0 = 4, /* the field, not the option, may be 0: not set */
    ZR_OPTION_OR_ALL = 8, /* "all" (JSON: -1) may be written, which is -1 */
    ZR_OPTION_FILE_AUTO = 16,    /* JSON: "auto" leaves the field as it is */
    ZR_OPTION_SAID = 32,         /* JSON: written even where it is what everybody takes without */
    ZR_OPTION_SEVERAL = 64,      /* a command line may have it several times, and each counts */
    ZR_OPTION_HIDDEN = 128,      /* --help does not list it */
    ZR_OPTION_OF_TRANSFERS = 256 /* it means something, too, where other things are on NVMe than
                                    the configuration has, such as activations */
};

/** A word that an option may be. */
typedef struct zr_option_choice {
    const char *name; /* on a command line; NULL: a file alone can say it */
    int value;
    const char *json; /* in a file, as JSON; NULL: the name as a string */
} zr_option_choice_t;

/** When an option means something. */
typedef struct zr_option_when {
    bool (*holds)(
        const zr_config_t *config); /* what is not on the device is where it is offloaded */
    const char
        *otherwise; /* why it means nothing, and what to add: "nothing is offloaded; add ..." */
    bool warns;     /* it is no error: in another run it would be right */
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
    const char *name;  /* on a command line, without dashes; NULL: it cannot be said there */
    const char *key;   /* of DeepSpeed's JSON, "zero_optimization.stage", or "...betas[0]" of an
                          element of a list; NULL: a file cannot say it */
    const char *field; /* of zr_config_t, for messages; NULL: it has none, or is a program's own */
    size_t offset;     /* of the field in its struct; ZR_OPTION_NO_FIELD: it sets nothing */
    zr_option_type_t type;
    unsigned flags;
    double least, most;                /* of numbers; most 0: there is no bound */
    const zr_option_choice_t *choices; /* NULL ends them: neither name nor json */
    const char *refused; /* words that DeepSpeed knows and libzero does not, with spaces between */

    const char *arg;     /* what --help calls the value: "ELEMS"; NULL: the choices */
    const char *help;    /* what it means, in a line or two */
    const char *more;    /* what the table of docs/reference/config.md says beyond; NULL: nothing */
    const char *initial; /* the default in words; NULL: what the field holds then */
    const char *usual;   /* JSON of DeepSpeed's default; "null" may be written; NULL: it has none */
    const char *note;    /* what the table of keys says beyond `help`; NULL: nothing */
    int group;

    const zr_option_when_t *when[2]; /* all have to hold; NULL: nothing has to */
    const char *needs; /* another option, without which it means nothing; NULL: none */
    const char *idle;  /* values that are so anyhow where `when` does not hold, with spaces between:
                          they are accepted; NULL: none */
    unsigned schedules; /* of scheduler.params: bits of zr_schedule_kind_t that have it; 0: all */

    /* Set a field that is a whole number, and what follows from it. NULL: the field alone. */
    void (*store)(void *object, uint64_t value);
    /* Take a value in another way than by type; label: "--name". NULL: by type. */
    zr_status_t (*take)(void *object, const char *label, const char *text, const zr_log_t *log);
};

/** The rows of zr_config_t, in the order of the documents; static. */
const zr_option_t *zr_options(size_t *n_p);
/**
 * The rows of zr_config_t as JSON, for who makes keywords and checks of them in another language:
 * an array of an object for each, with
 *
 *   name, key, field        as above; null: it has none
 *   type                    "flag", "switch", "choice", "int", "count", "bytes", "u64", "number",
 *                           "paths" or "string"
 *   least, most             of numbers; null: there is no bound
 *   choices                 of what is a word: an array of them; else null
 *   default                 as zr_option_set takes it; "": nothing
 *   agree                   whether all ranks have to have the same
 *   help                    a line or two
 *
 * @param text_p  the caller frees it with free()
 * @return ZR_OK; ZR_ERR_MEMORY
 */
ZR_NODISCARD zr_status_t zr_options_json(char **text_p);
/** At most so many rows are in a table. */
#define ZR_OPTIONS_MOST 160

/** The row of that name ("stage") among `rows`; NULL: there is none. */
const zr_option_t *zr_option_find(const zr_option_t *rows, size_t n, const char *name);

/**
 * Set a field from text.
 *
 * @param label   what a message calls it; NULL: "--" and the row's name
 * @param text    borrowed for as long as the object is used where the row is a ZR_OPTION_STRING
 * @param object  the struct of the row: a zr_config_t for those of zr_options
 * @return ZR_OK; ZR_ERR_ARGUMENT, logged with what is allowed and the nearest of it
 */
ZR_NODISCARD zr_status_t zr_option_set(const zr_option_t *option, const char *label,
                                       const char *text, const zr_log_t *log, void *object);

typedef struct zr_option_text {
    char text[ZR_CONFIG_PATHS_BYTES];
} zr_option_text_t;

/** What a field holds, as zr_option_set takes it; "": nothing. */
zr_option_text_t zr_option_text(const zr_option_t *option, const void *object);

/** Whether a field holds the same in both. */
bool zr_option_equal(const zr_option_t *option, const void *a, const void *b);

/** Whether a field holds one of its values; a NaN is none. */
bool zr_option_is_allowed(const zr_option_t *option, const void *object);

typedef struct zr_option_range {
    char text[256];
} zr_option_range_t;

/** "0 to 1", "at least 1", "none, cpu or nvme"; "": anything of its type. */
zr_option_range_t zr_option_range(const zr_option_t *option);

/** Why an option means nothing in a configuration: the condition that does not hold; NULL: it
 * does mean something. */
const zr_option_when_t *zr_option_idle(const zr_option_t *option, const zr_config_t *config);
/** Whether a value says what is so anyhow where the option means nothing. */
bool zr_option_is_redundant(const zr_option_t *option, const char *text);

/** Which rows of zr_options were given. */
typedef struct zr_options_given {
    bool is[ZR_OPTIONS_MOST];
} zr_options_given_t;

/** As zr_config_read_json, and note which rows the file has set; NULL: not wanted. */
ZR_NODISCARD zr_status_t zr_config_read_json_given(const char *path, const zr_log_t *log,
                                                   zr_config_t *config, zr_options_given_t *given);

/**
 * Which of `names` a word is probably a slip of: the closest by letters that have to be put in,
 * left out, changed or swapped, of which there may be one in three; or one that it is a part of.
 * NULL: none is like it.
 */
const char *zr_name_nearest(const char *word, const char *const *names, size_t n_names);

ZR_END_C
