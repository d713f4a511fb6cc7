#include "examples/common/matmul_choices.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "examples/common/files.h"

#define FILE_MAX_BYTES ((size_t)16 << 20) /* none is larger; /dev/zero is */

struct matmul_choices {
    zr_nn_matmul_choices_t of; /* its texts are of `object` and `name` */
    json_t *object;
    uint64_t hash;
    char name[];
};

/* A file that is being read. */
typedef struct reading {
    const char *name; /* "--matmul-choices FILE" */
    const zr_log_t *log;
    matmul_choices_t *choices;
    zr_nn_matmul_choice_t *list;
} reading_t;

static zr_status_t refuse(const reading_t *r, const char *product, const char *what) {
    return zr_fail(r->log, ZR_ERR_FORMAT,
                   "%s: %s%.80s%s%s; zero-bench matmul --save-choices FILE "
                   "writes such a file",
                   r->name, product[0] != '\0' ? "product \"" : "", product,
                   product[0] != '\0' ? "\": " : "", what);
}

/* A size up to `most`, or false. */
static bool read_size(const json_t *value, size_t most, size_t *size_p) {
    json_int_t number = json_integer_value(value);
    *size_p = (size_t)number;
    return json_is_integer(value) && number >= 0 && (size_t)number <= most;
}

/* Times are for people. */
static zr_status_t check_keys(const reading_t *r, const char *product, json_t *object,
                              const char *const *keys) {
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return refuse(r, product, "not an object");
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (keys[i] != NULL && strcmp(key, keys[i]) != 0)
            i++;
        if (keys[i] == NULL)
            return zr_fail(r->log, ZR_ERR_FORMAT, "%s: unknown key \"%.40s\"", r->name, key);
    }
    return ZR_OK;
}

static zr_status_t read_choice(reading_t *r, const char *product, json_t *object) {
    static const char *const keys[] = {"algorithm", "workspace_bytes", "seconds", "first_seconds",
                                       NULL};
    zr_nn_matmul_choice_t *choice = &r->list[r->choices->of.n_choices++];
    ZR_TRY(check_keys(r, product, object, keys));
    const json_t *algorithm = json_object_get(object, "algorithm");
    choice->product = product;
    choice->algorithm = json_string_value(algorithm);
    if (choice->algorithm == NULL && !json_is_null(algorithm))
        return refuse(r, product, "\"algorithm\" must be a text, or null for the first proposal");
    if (!read_size(json_object_get(object, "workspace_bytes"), r->choices->of.limit_bytes,
                   &choice->workspace_bytes))
        return refuse(r, product, "\"workspace_bytes\" must be a number from 0 to \"limit_bytes\"");
    return ZR_OK;
}

static zr_status_t read_object(reading_t *r) {
    static const char *const keys[] = {"made_for", "limit_bytes", "products", NULL};
    matmul_choices_t *choices = r->choices;
    const char *product;
    json_t *value;
    ZR_TRY(check_keys(r, "", choices->object, keys));
    json_t *products = json_object_get(choices->object, "products");
    choices->of.name = choices->name;
    choices->of.made_for = json_string_value(json_object_get(choices->object, "made_for"));
    if (choices->of.made_for == NULL)
        return refuse(r, "", "\"made_for\" must be a text");
    if (!read_size(json_object_get(choices->object, "limit_bytes"), MATMUL_CHOICES_MOST_WORKSPACE,
                   &choices->of.limit_bytes))
        return refuse(r, "", "\"limit_bytes\" must be a number from 0 to 1073741824");
    if (!json_is_object(products))
        return refuse(r, "", "\"products\" must be an object");
    r->list = calloc(json_object_size(products) + 1, sizeof(*r->list));
    choices->of.choices = r->list;
    if (r->list == NULL)
        return zr_fail(r->log, ZR_ERR_MEMORY, "%s: no memory for its choices", r->name);
    json_object_foreach(products, product, value) {
        ZR_TRY(read_choice(r, product, value));
    }
    return ZR_OK;
}

zr_status_t matmul_choices_read(const char *path, const zr_log_t *log,
                                matmul_choices_t **choices_p) {
    static const char option[] = "--matmul-choices";
    zr_log_t own = files_log(&(files_log_t){*log, option});
    char *text;
    size_t n_bytes, name_bytes = sizeof(option) + 1 + strlen(path);
    json_error_t error;
    ZR_TRY(zr_text_file_read(path, FILE_MAX_BYTES, &own, &text, &n_bytes));
    matmul_choices_t *choices = calloc(1, sizeof(*choices) + name_bytes);
    if (choices == NULL) {
        free(text);
        return zr_fail(log, ZR_ERR_MEMORY, "%s %s: no memory for it", option, path);
    }
    snprintf(choices->name, name_bytes, "%s %s", option, path);
    choices->hash = XXH3_64bits(text, n_bytes);
    choices->object = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    reading_t reading = {.name = choices->name, .log = log, .choices = choices};
    zr_status_t status = choices->object != NULL
                             ? read_object(&reading)
                             : zr_fail(log, ZR_ERR_FORMAT, "%s: line %d, column %d: %s",
                                       choices->name, error.line, error.column, error.text);
    if (status != ZR_OK) {
        matmul_choices_free(&choices);
        return status;
    }
    *choices_p = choices;
    return ZR_OK;
}

void matmul_choices_free(matmul_choices_t **choices) {
    if (*choices == NULL)
        return;
    free((void *)(*choices)->of.choices);
    json_decref((*choices)->object);
    free(*choices);
    *choices = NULL;
}

const zr_nn_matmul_choices_t *matmul_choices_of(const matmul_choices_t *choices) {
    return choices == NULL ? NULL : &choices->of;
}

uint64_t matmul_choices_hash(const matmul_choices_t *choices) {
    return choices->hash;
}
