/* What can be done with a row: set its field from text, print it, compare it, check its range. */
#include "zero/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "zero/config/keys.h"

/* Of what is typed: steps, sequences, elements. A file may say more. */
#define MOST_TYPED ((size_t)1 << 40)

const zr_option_t *zr_option_find(const zr_option_t *rows, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].name != NULL && strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static const void *field_of(const zr_option_t *option, const void *object) {
    return (const char *)object + option->offset;
}

static void *place_of(const zr_option_t *option, void *object) {
    return (char *)object + option->offset;
}

/* ---- words --------------------------------------------------------------------------------- */

static const zr_option_choice_t switch_choices[] = {
    {"off", 0, "false"}, {"on", 1, "true"}, {NULL, 0, NULL}};

const zr_option_choice_t *zr_option_choices(const zr_option_t *option) {
    if (option->choices != NULL)
        return option->choices;
    return option->type == ZR_OPTION_SWITCH ? switch_choices : NULL;
}

bool zr_option_choice_is_last(const zr_option_choice_t *choice) {
    return choice->name == NULL && choice->json == NULL;
}

bool zr_words_have(const char *words, const char *word) {
    size_t length = strlen(word);
    for (const char *at = words; at != NULL && *at != '\0';) {
        size_t n = strcspn(at, " ");
        if (n == length && strncasecmp(at, word, n) == 0)
            return true;
        at += n + strspn(at + n, " ");
    }
    return false;
}

/* ---- numbers ------------------------------------------------------------------------------- */

double zr_option_number(const zr_option_t *option, const void *object) {
    const void *field = field_of(option, object);
    if (option->offset == ZR_OPTION_NO_FIELD)
        return 0;
    switch (option->type) {
    case ZR_OPTION_FLAG:
    case ZR_OPTION_SWITCH:
        return *(const bool *)field;
    case ZR_OPTION_CHOICE:
    case ZR_OPTION_INT:
        return *(const int *)field;
    case ZR_OPTION_COUNT:
    case ZR_OPTION_BYTES:
        return (double)*(const size_t *)field;
    case ZR_OPTION_U64:
        return (double)*(const uint64_t *)field;
    case ZR_OPTION_NUMBER:
        return *(const double *)field;
    case ZR_OPTION_PATHS:
    case ZR_OPTION_STRING:
        break;
    }
    return 0;
}

void zr_option_store_whole(const zr_option_t *option, uint64_t value, void *object) {
    void *field = place_of(option, object);
    if (option->offset == ZR_OPTION_NO_FIELD)
        return;
    if (option->store != NULL) {
        option->store(object, value);
        return;
    }
    if (option->type == ZR_OPTION_FLAG || option->type == ZR_OPTION_SWITCH)
        *(bool *)field = value != 0;
    else if (option->type == ZR_OPTION_CHOICE || option->type == ZR_OPTION_INT)
        *(int *)field = (int)value;
    else if (option->type == ZR_OPTION_U64)
        *(uint64_t *)field = value;
    else
        *(size_t *)field = (size_t)value;
}

bool zr_option_holds(const zr_option_t *option, double value) {
    if (option->type == ZR_OPTION_CHOICE) {
        for (const zr_option_choice_t *c = option->choices; !zr_option_choice_is_last(c); c++)
            if (c->value == (int)value)
                return true;
        return false;
    }
    if ((option->flags & ZR_OPTION_OR_ALL) != 0 &&
        (value == -1 || (option->type == ZR_OPTION_COUNT && value == (double)SIZE_MAX)))
        return true;
    bool is_bounded = option->type != ZR_OPTION_SWITCH && option->type != ZR_OPTION_FLAG;
    return !is_bounded || (isfinite(value) && value >= option->least &&
                           (option->most == 0 || value <= option->most));
}

bool zr_option_is_allowed(const zr_option_t *option, const void *object) {
    double value = zr_option_number(option, object);
    return zr_option_holds(option, value) ||
           ((option->flags & (ZR_OPTION_UNSET0 | ZR_OPTION_OR_AUTO)) != 0 &&
            value == 0) || /* no budget: a SIZE_MAX */
           option->type == ZR_OPTION_PATHS ||
           option->type == ZR_OPTION_STRING;
}

zr_option_range_t zr_option_range(const zr_option_t *option) {
    zr_option_range_t range = {""};
    size_t used = 0, size = sizeof(range.text);
    const zr_option_choice_t *choices = zr_option_choices(option);
    const char *all = (option->flags & ZR_OPTION_OR_ALL) != 0 ? ", or -1" : "";
    if (choices != NULL) {
        for (size_t i = 0; !zr_option_choice_is_last(&choices[i]); i++) {
            const char *name = choices[i].name;
            bool is_last = zr_option_choice_is_last(&choices[i + 1]);
            if (name != NULL && used < size)
                used += (size_t)snprintf(range.text + used, size - used, "%s%s",
                                         i == 0    ? ""
                                         : is_last ? " or "
                                                   : ", ",
                                         name);
        }
    } else if (option->type == ZR_OPTION_PATHS || option->type == ZR_OPTION_STRING ||
               option->type == ZR_OPTION_FLAG) {
        return range;
    } else if (option->most != 0) {
        snprintf(range.text, size, "%.15g to %.15g%s", option->least, option->most, all);
    } else {
        snprintf(range.text, size, "at least %.15g%s", option->least, all);
    }
    return range;
}

/* ---- printing ------------------------------------------------------------------------------ */

static const char *name_of_value(const zr_option_t *option, int value) {
    for (const zr_option_choice_t *c = zr_option_choices(option); !zr_option_choice_is_last(c); c++)
        if (c->value == value)
            return c->name != NULL ? c->name : c->json;
    return "";
}

/* The shortest that is read back as the same number. */
static void print_number(double number, char *text, size_t size) {
    snprintf(text, size, "%.15g", number);
    if (strtod(text, NULL) != number)
        snprintf(text, size, "%.17g", number);
}

zr_option_text_t zr_option_text(const zr_option_t *option, const void *object) {
    zr_option_text_t text = {""};
    const void *field = field_of(option, object);
    size_t size = sizeof(text.text);
    if (option->offset == ZR_OPTION_NO_FIELD)
        return text;
    switch (option->type) {
    case ZR_OPTION_SWITCH:
        snprintf(text.text, size, "%s", name_of_value(option, *(const bool *)field));
        break;
    case ZR_OPTION_FLAG:
        snprintf(text.text, size, "%s", *(const bool *)field ? "on" : "");
        break;
    case ZR_OPTION_CHOICE:
        snprintf(text.text, size, "%s", name_of_value(option, *(const int *)field));
        break;
    case ZR_OPTION_INT:
        if ((option->flags & ZR_OPTION_OR_ALL) != 0 && *(const int *)field == -1)
            snprintf(text.text, size, "all");
        else
            snprintf(text.text, size, "%d", *(const int *)field);
        break;
    case ZR_OPTION_COUNT:
    case ZR_OPTION_BYTES:
        if ((option->flags & ZR_OPTION_OR_AUTO) != 0 && *(const size_t *)field == 0)
            snprintf(text.text, size, "auto");
        else if ((option->flags & ZR_OPTION_OR_ALL) != 0 && *(const size_t *)field == SIZE_MAX)
            snprintf(text.text, size, "all");
        else if (*(const size_t *)field != ZR_CONFIG_NO_BUDGET)
            snprintf(text.text, size, "%zu", *(const size_t *)field);
        break;
    case ZR_OPTION_U64:
        snprintf(text.text, size, "%llu", (unsigned long long)*(const uint64_t *)field);
        break;
    case ZR_OPTION_NUMBER:
        print_number(*(const double *)field, text.text, size);
        break;
    case ZR_OPTION_PATHS:
        snprintf(text.text, size, "%s", (const char *)field);
        break;
    case ZR_OPTION_STRING:
        if (*(const char *const *)field != NULL)
            snprintf(text.text, size, "%s", *(const char *const *)field);
        break;
    }
    return text;
}

bool zr_option_equal(const zr_option_t *option, const void *a, const void *b) {
    return strcmp(zr_option_text(option, a).text, zr_option_text(option, b).text) == 0;
}

/* ---- when ---------------------------------------------------------------------------------- */

const zr_option_when_t *zr_option_idle(const zr_option_t *option, const zr_config_t *config) {
    for (size_t i = 0; i < 2 && option->when[i] != NULL; i++)
        if (!option->when[i]->holds(config))
            return option->when[i];
    return NULL;
}

bool zr_option_is_redundant(const zr_option_t *option, const char *text) {
    const char *idle = option->idle;
    if (zr_words_have(idle, text))
        return true;
    char *end = NULL;
    bool is_zero = idle != NULL && strcmp(idle, "0") == 0 && strtod(text, &end) == 0;
    return is_zero && end != text && *end == '\0'; /* 0.0 */
}

/* ---- from text ----------------------------------------------------------------------------- */

/* A value that is being read. */
typedef struct reading {
    const zr_option_t *option;
    const char *label; /* "--stage" */
    const char *text;
    const zr_log_t *log;
    void *object;
} reading_t;

/* What is left of a part of a value may be nothing, which has to be seen. */
static const char *shown(const reading_t *r) {
    return *r->text != '\0' ? r->text : "\"\"";
}

static bool is_digits(const char *text) {
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

/* The closest of names that are all numbers, for a value that is one too. */
static const char *nearest_number(const char *text, const char *const *names, size_t n_names) {
    char *end;
    double wanted = strtod(text, &end), least = INFINITY;
    const char *nearest = NULL;
    for (size_t i = 0; i < n_names && end != text && *end == '\0'; i++) {
        double distance = fabs(strtod(names[i], NULL) - wanted);
        if (is_digits(names[i]) && distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return nearest;
}

static zr_status_t refuse_word(const reading_t *r, const char *const *names, size_t n_names) {
    char allowed[512] = "";
    for (size_t i = 0, used = 0; i < n_names && used < sizeof(allowed); i++)
        used += (size_t)snprintf(allowed + used, sizeof(allowed) - used, "%s%s", i == 0 ? "" : ", ",
                                 names[i]);
    const char *nearest = nearest_number(r->text, names, n_names);
    if (nearest == NULL)
        nearest = zr_name_nearest(r->text, names, n_names);
    return zr_fail(r->log, ZR_ERR_ARGUMENT, "%s %s: allowed: %s%s%s", r->label, shown(r), allowed,
                   nearest != NULL ? "; the nearest is " : "", nearest != NULL ? nearest : "");
}

static zr_status_t set_choice(const reading_t *r) {
    const char *names[ZR_OPTION_CHOICES_MOST];
    size_t n = 0;
    for (const zr_option_choice_t *c = zr_option_choices(r->option); !zr_option_choice_is_last(c);
         c++) {
        if (c->name == NULL)
            continue;
        if (strcmp(c->name, r->text) == 0) {
            zr_option_store_whole(r->option, (uint64_t)c->value, r->object);
            return ZR_OK;
        }
        names[n++] = c->name;
    }
    if ((r->option->flags & ZR_OPTION_AUTO) != 0)
        names[n++] = "auto";
    return refuse_word(r, names, n);
}

static zr_status_t set_whole(const reading_t *r) {
    size_t least = (size_t)r->option->least;
    size_t most = r->option->most != 0 ? (size_t)r->option->most : MOST_TYPED;
    bool may_be_all = (r->option->flags & ZR_OPTION_OR_ALL) != 0;
    bool may_be_auto = (r->option->flags & ZR_OPTION_OR_AUTO) != 0;
    if (may_be_auto && strcmp(r->text, "auto") == 0) {
        zr_option_store_whole(r->option, 0, r->object);
        return ZR_OK;
    }
    if (may_be_all && strcmp(r->text, "all") == 0) {
        zr_option_store_whole(r->option, UINT64_MAX, r->object);
        return ZR_OK;
    }
    char *end = NULL;
    errno = 0;
    const char *digits = r->text[0] == '-' ? r->text + 1 : r->text;
    unsigned long long number = strtoull(digits, &end, 10);
    if (!is_digits(digits) && may_be_all)
        return zr_fail(r->log, ZR_ERR_ARGUMENT, "%s %s: allowed: all, %s%zu to %zu", r->label,
                       shown(r), (r->option->flags & ZR_OPTION_AUTO) != 0 ? "auto, and " : "and ",
                       least, most);
    if (!is_digits(digits))
        return zr_fail(r->log, ZR_ERR_ARGUMENT,
                       "%s %s: not a whole number; allowed: %s%zu to %zu; the nearest is %zu",
                       r->label, shown(r), may_be_auto ? "auto, and " : "", least, most, least);
    bool below = r->text[0] == '-' || number < least;
    if (below || errno == ERANGE || number > most)
        return zr_fail(r->log, ZR_ERR_ARGUMENT, "%s %s: allowed: %zu to %zu; the nearest is %zu",
                       r->label, r->text, least, most, below ? least : most);
    zr_option_store_whole(r->option, number, r->object);
    return ZR_OK;
}

static zr_status_t set_u64(const reading_t *r) {
    bool hexadecimal = r->text[0] == '0' && (r->text[1] == 'x' || r->text[1] == 'X');
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(r->text, &end, hexadecimal ? 16 : 10);
    if (errno == ERANGE)
        return zr_fail(r->log, ZR_ERR_ARGUMENT,
                       "%s %s: too large; allowed: 0 to %llu; the nearest is %llu", r->label,
                       r->text, (unsigned long long)UINT64_MAX, (unsigned long long)UINT64_MAX);
    if (!isdigit((unsigned char)r->text[0]) || *end != '\0')
        return zr_fail(r->log, ZR_ERR_ARGUMENT,
                       "%s %s: not a whole number; allowed: 0 to %llu; the nearest is 0", r->label,
                       shown(r), (unsigned long long)UINT64_MAX);
    zr_option_store_whole(r->option, number, r->object);
    return ZR_OK;
}

static zr_status_t set_number(const reading_t *r) {
    double least = r->option->least, most = r->option->most != 0 ? r->option->most : HUGE_VAL;
    char *end = NULL;
    errno = 0;
    double number = strtod(r->text, &end);
    if (errno == ERANGE && fabs(number) < 1 && *end == '\0')
        return zr_fail(r->log, ZR_ERR_ARGUMENT,
                       "%s %s: too small to be told from 0; allowed: %g to %g; the nearest is %g",
                       r->label, r->text, least, most, least > 0 ? least : 0.0);
    if (end == r->text || *end != '\0' || !isfinite(number))
        return zr_fail(r->log, ZR_ERR_ARGUMENT, "%s %s: not a number; allowed: %g to %g", r->label,
                       shown(r), least, most);
    if (number < least || number > most)
        return zr_fail(r->log, ZR_ERR_ARGUMENT, "%s %s: allowed: %g to %g; the nearest is %g",
                       r->label, r->text, least, most, number < least ? least : most);
    *(double *)place_of(r->option, r->object) = number;
    return ZR_OK;
}

static zr_status_t find_unit(const reading_t *r, const char *unit, size_t *bytes_p) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB"};
    static const size_t bytes[] = {1,
                                   (size_t)1 << 10,
                                   (size_t)1 << 20,
                                   (size_t)1 << 30,
                                   (size_t)1 << 40,
                                   1000,
                                   1000 * 1000,
                                   1000 * 1000 * 1000,
                                   (size_t)1000 * 1000 * 1000 * 1000};
    size_t n = sizeof(bytes) / sizeof(bytes[0]);
    for (size_t i = 0; i < n; i++)
        if (strcasecmp(unit, names[i]) == 0) {
            *bytes_p = bytes[i];
            return ZR_OK;
        }
    if (unit[0] == '.' || unit[0] == ',')
        return zr_fail(r->log, ZR_ERR_ARGUMENT,
                       "%s %s: not a whole number; use a smaller unit; allowed: B, KiB, MiB, GiB, "
                       "TiB, kB, MB, GB, TB",
                       r->label, r->text);
    const char *nearest = zr_name_nearest(unit, names + 1, n - 1);
    return zr_fail(r->log, ZR_ERR_ARGUMENT,
                   "%s %s: unknown unit \"%s\"; allowed: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB%s%s",
                   r->label, r->text, unit, nearest != NULL ? "; the nearest is " : "",
                   nearest != NULL ? nearest : "");
}

static zr_status_t set_bytes(const reading_t *r) {
    char *end = NULL;
    size_t unit_bytes = 1;
    errno = 0;
    unsigned long long number = strtoull(r->text, &end, 10);
    if (!isdigit((unsigned char)r->text[0]))
        return zr_fail(r->log, ZR_ERR_ARGUMENT,
                       "%s %s: not a size; allowed: a whole number with or without a unit, such as "
                       "512MiB or 16GB",
                       r->label, shown(r));
    if (*end == ' ')
        end++;
    if (*end != '\0')
        ZR_TRY(find_unit(r, end, &unit_bytes));
    if (errno == ERANGE || number > (SIZE_MAX - 1) / unit_bytes)
        return zr_fail(
            r->log, ZR_ERR_ARGUMENT,
            "%s %s: the size overflows; allowed: at most %zu bytes; the nearest is %zuTiB",
            r->label, r->text, SIZE_MAX - 1, (SIZE_MAX - 1) / ((size_t)1 << 40));
    size_t n_bytes = (size_t)number * unit_bytes;
    if ((double)n_bytes < r->option->least)
        return zr_fail(r->log, ZR_ERR_ARGUMENT, "%s %s: allowed: sizes of at least %s", r->label,
                       r->text, zr_count_text((uint64_t)r->option->least, "byte").text);
    zr_option_store_whole(r->option, n_bytes, r->object);
    return ZR_OK;
}

static zr_status_t set_paths(const reading_t *r) {
    size_t length = strlen(r->text);
    if (length >= ZR_CONFIG_PATHS_BYTES)
        return zr_fail(r->log, ZR_ERR_ARGUMENT,
                       "%s \"%.40s\": %zu bytes; allowed: names of folders, with commas between, "
                       "of at most %d bytes together",
                       r->label, r->text, length, ZR_CONFIG_PATHS_BYTES - 1);
    memcpy(place_of(r->option, r->object), r->text, length + 1);
    return ZR_OK;
}

zr_status_t zr_option_set(const zr_option_t *option, const char *label, const char *text,
                          const zr_log_t *log, void *object) {
    char own_label[80];
    snprintf(own_label, sizeof(own_label), "--%s", option->name != NULL ? option->name : "");
    reading_t r = {option, label != NULL ? label : own_label, text, log, object};
    if (option->take != NULL)
        return option->take(object, r.label, text, log);
    switch (option->type) {
    case ZR_OPTION_FLAG:
        zr_option_store_whole(option, 1, object);
        return ZR_OK;
    case ZR_OPTION_SWITCH:
    case ZR_OPTION_CHOICE:
        return set_choice(&r);
    case ZR_OPTION_INT:
    case ZR_OPTION_COUNT:
        return set_whole(&r);
    case ZR_OPTION_BYTES:
        return set_bytes(&r);
    case ZR_OPTION_U64:
        return set_u64(&r);
    case ZR_OPTION_NUMBER:
        return set_number(&r);
    case ZR_OPTION_PATHS:
        return set_paths(&r);
    case ZR_OPTION_STRING:
        *(const char **)place_of(option, object) = text;
        return ZR_OK;
    }
    return ZR_ERR_ARGUMENT;
}
