/* Low-rank adapters: see lora.h. */
#include "models/lora.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FACTOR_A = 0, FACTOR_B = 1, N_FACTORS = 2 }; /* of zr_part_linear_t.added */

static const zr_lora_t *lora_of(const zr_part_linear_t *linear) {
    return (const zr_lora_t *)linear->adapter;
}

static zr_status_t declare(zr_block_t *block, zr_part_linear_t *linear) {
    const zr_lora_t *lora = lora_of(linear);
    if (!zr_lora_has_target(lora, linear->name)) {
        linear->adapter = NULL;
        return ZR_OK;
    }
    const zr_block_param_t factors[N_FACTORS] = {
        [FACTOR_A] = {.name = ZR_LORA_A_NAME,
                      .n_dims = 2,
                      .dims = {lora->rank, linear->n_in},
                      .init = ZR_INIT_UNIFORM,
                      .deviation = 1.0 / sqrt(3.0 * (double)linear->n_in),
                      .is_added = true},
        [FACTOR_B] = {.name = ZR_LORA_B_NAME,
                      .n_dims = 2,
                      .dims = {linear->n_out, lora->rank},
                      .is_added = true}};
    for (int i = 0; i < N_FACTORS; i++)
        ZR_TRY(zr_part_linear_add_param(block, linear, &factors[i], &linear->added[i]));
    return ZR_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

static zr_nn_matmul_t product_of(const zr_visit_t *visit, const zr_part_linear_t *linear,
                                 const void *a, int factor, bool transpose, void *c) {
    size_t rank = lora_of(linear)->rank;
    size_t n_rows = factor == FACTOR_A ? rank : linear->n_out;
    size_t n_columns = factor == FACTOR_A ? linear->n_in : rank;
    return (zr_nn_matmul_t){.m = visit->batch->rows,
                            .least_m = linear->types.least_rows,
                            .n = transpose ? n_rows : n_columns,
                            .k = transpose ? n_columns : n_rows,
                            .a = a,
                            .b = zr_param_data(linear->added[factor]),
                            .transpose_b = transpose,
                            .c = c,
                            .a_dtype = linear->types.activation_dtype,
                            .b_dtype = linear->types.param_dtype,
                            .c_dtype = linear->types.activation_dtype};
}

/* [rows, rank]: x A^T, or dy B, times alpha / rank. */
static zr_status_t take_narrow(zr_visit_t *visit, const zr_part_linear_t *linear, const void *a,
                               int factor, zr_part_scratch_t *scratch, void **narrow) {
    const zr_lora_t *lora = lora_of(linear);
    zr_dtype_t dtype = linear->types.activation_dtype;
    ZR_TRY(zr_part_take(visit, &linear->types, ZR_MEMORY_TEMPORARY, lora->rank, narrow));
    zr_nn_matmul_t product = product_of(visit, linear, a, factor, factor == FACTOR_A, *narrow);
    product.lda = factor == FACTOR_B ? linear->ld_y : 0;
    ZR_TRY(zr_part_multiply(visit, &product, &scratch->workspace));
    float scale = (float)(lora->alpha / (double)lora->rank);
    return scale == 1.0f ? ZR_OK
                         : zr_kernel_scale(visit->stream, *narrow, dtype,
                                           visit->batch->rows * lora->rank, scale);
}

/* The gradient of a factor: of A narrow^T x, of B dy^T narrow. */
static zr_status_t train(zr_visit_t *visit, const zr_part_linear_t *linear, const void *a, size_t m,
                         size_t lda, const void *b, size_t n, int factor,
                         zr_part_scratch_t *scratch) {
    zr_nn_gradient_t gradient;
    ZR_TRY(zr_part_gradient(linear->added[factor], &gradient));
    zr_nn_matmul_t product = {.m = m,
                              .n = n,
                              .k = visit->batch->rows,
                              .lda = lda,
                              .a = a,
                              .transpose_a = true,
                              .b = b,
                              .c = gradient.data,
                              .a_dtype = linear->types.activation_dtype,
                              .b_dtype = linear->types.activation_dtype,
                              .c_dtype = linear->types.param_dtype,
                              .accumulate = gradient.accumulate};
    return gradient.data != NULL ? zr_part_multiply(visit, &product, &scratch->workspace) : ZR_OK;
}

static zr_status_t forward(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                           zr_part_scratch_t *scratch, void *y) {
    void **narrow = &scratch->adapter[0];
    ZR_TRY(take_narrow(visit, linear, x, FACTOR_A, scratch, narrow));
    zr_nn_matmul_t product = product_of(visit, linear, *narrow, FACTOR_B, true, y);
    product.ldc = linear->ld_y;
    product.accumulate = true;
    ZR_TRY(zr_part_multiply(visit, &product, &scratch->workspace));
    zr_visit_drop(visit, narrow);
    return ZR_OK;
}

static zr_status_t backward(zr_visit_t *visit, const zr_part_linear_t *linear, const void *x,
                            const void *dy, zr_part_scratch_t *scratch, void *dx) {
    size_t rank = lora_of(linear)->rank;
    void **narrow = &scratch->adapter[0], **dnarrow = &scratch->adapter[1];
    if (!zr_param_is_frozen(linear->added[FACTOR_B])) {
        ZR_TRY(take_narrow(visit, linear, x, FACTOR_A, scratch, narrow));
        ZR_TRY(train(visit, linear, dy, linear->n_out, linear->ld_y, *narrow, rank, FACTOR_B,
                     scratch));
        zr_visit_drop(visit, narrow);
    }
    ZR_TRY(take_narrow(visit, linear, dy, FACTOR_B, scratch, dnarrow));
    ZR_TRY(train(visit, linear, *dnarrow, rank, 0, x, linear->n_in, FACTOR_A, scratch));
    zr_nn_matmul_t product = product_of(visit, linear, *dnarrow, FACTOR_A, false, dx);
    product.accumulate = true;
    ZR_TRY(zr_part_multiply(visit, &product, &scratch->workspace));
    zr_visit_drop(visit, dnarrow);
    return ZR_OK;
}

/* ---- as text --------------------------------------------------------------------------------- */

zr_lora_t zr_lora_usual(void) {
    return (zr_lora_t){.adapter = {.declare = declare, .forward = forward, .backward = backward},
                       .rank = 8,
                       .alpha = 8.0,
                       .targets = ZR_LORA_ALL};
}

static zr_status_t refuse(const char *text, const char *key, const char *allowed,
                          const zr_log_t *log) {
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "%.200s: %s; allowed: %s, such as rank=16,alpha=32,targets=q_proj,v_proj", text,
                   key, allowed);
}

static bool read_rank(const char *value, size_t length, size_t *rank_p) {
    char *end;
    errno = 0;
    unsigned long rank = strtoul(value, &end, 10);
    *rank_p = rank;
    return value[0] >= '0' && value[0] <= '9' && end == value + length && errno == 0 && rank > 0 &&
           rank <= ZR_LORA_MAX_RANK;
}

static bool read_alpha(const char *value, size_t length, double *alpha_p) {
    char *end;
    *alpha_p = strtod(value, &end);
    return length > 0 && end == value + length && *alpha_p > 0 && *alpha_p <= 1e6;
}

/* Names of layers are letters, digits, and what is between them. */
static bool append_target(const char *name, size_t length, zr_lora_t *lora) {
    size_t used = strlen(lora->targets);
    for (size_t i = 0; i < length; i++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-", name[i]) ==
            NULL)
            return false;
    if (length == 0 || used + length + 2 > sizeof(lora->targets))
        return false;
    snprintf(lora->targets + used, sizeof(lora->targets) - used, "%s%.*s", used > 0 ? "," : "",
             (int)length, name);
    return true;
}

zr_status_t zr_lora_read(const char *text, const zr_log_t *log, zr_lora_t *lora_p) {
    zr_lora_t lora = zr_lora_usual();
    bool is_in_targets = false;
    unsigned seen = 0; /* keys, by their lengths */
    if (text[0] == '\0' || text[strlen(text) - 1] == ',')
        return refuse(text, "the value after the last comma is missing", "rank, alpha and targets",
                      log);
    for (const char *entry = text; *entry != '\0';) {
        size_t length = strcspn(entry, ","), key = strcspn(entry, "=");
        const char *value = entry + key + 1;
        bool has_key = key < length;
        size_t value_length = has_key ? length - key - 1 : 0;
        if (has_key && key < 8 && (seen & 1u << key) != 0)
            return refuse(text, "a key is given twice", "rank, alpha and targets once each", log);
        seen |= has_key && key < 8 ? 1u << key : 0;
        if (!has_key && is_in_targets) {
            if (!append_target(entry, length, &lora))
                return refuse(text, "targets are names of linear layers", "up to 2047 bytes", log);
        } else if (has_key && key == 4 && strncmp(entry, "rank", key) == 0) {
            if (!read_rank(value, value_length, &lora.rank))
                return refuse(text, "rank is not an allowed number", "1 to 4096", log);
        } else if (has_key && key == 5 && strncmp(entry, "alpha", key) == 0) {
            if (!read_alpha(value, value_length, &lora.alpha))
                return refuse(text, "alpha is not an allowed number", "above 0, to 1e6", log);
        } else if (has_key && key == 7 && strncmp(entry, "targets", key) == 0) {
            lora.targets[0] = '\0';
            if (!append_target(value, value_length, &lora))
                return refuse(text, "targets are names of linear layers", "up to 2047 bytes", log);
        } else {
            return refuse(text, "an unknown key", "rank, alpha and targets", log);
        }
        is_in_targets = !has_key || key == 7;
        entry += length;
        entry += *entry == ',';
    }
    *lora_p = lora;
    return ZR_OK;
}

zr_lora_text_t zr_lora_text(const zr_lora_t *lora) {
    zr_lora_text_t text;
    int digits = 1;
    do
        snprintf(text.text, sizeof(text.text), "rank=%zu,alpha=%.*g,targets=%s", lora->rank, digits,
                 lora->alpha, lora->targets);
    while (strtod(strstr(text.text, "alpha=") + 6, NULL) != lora->alpha && ++digits <= 17);
    return text;
}

/* ---- targets --------------------------------------------------------------------------------- */

static bool ends_with(const char *name, size_t n, const char *target, size_t length) {
    return n >= length && strncmp(name + n - length, target, length) == 0 &&
           (n == length || name[n - length - 1] == '.');
}

/* A layer of which all parameters have names that begin so. */
static bool is_target(const char *layer, size_t n, const char *target, size_t length) {
    bool is_all = length == strlen(ZR_LORA_ALL) && strncmp(target, ZR_LORA_ALL, length) == 0;
    return is_all || ends_with(layer, n, target, length);
}

bool zr_lora_has_target(const zr_lora_t *lora, const char *layer) {
    for (const char *target = lora->targets; *target != '\0';) {
        size_t length = strcspn(target, ",");
        if (is_target(layer, strlen(layer), target, length))
            return true;
        target += length;
        target += *target == ',';
    }
    return false;
}

/* The length of the layer's name in that of a factor; 0: the name is no factor's. */
static size_t length_before(const char *name, const char *factor) {
    size_t n = strlen(name), end = strlen(factor);
    return n > end + 1 && name[n - end - 1] == '.' && strcmp(name + n - end, factor) == 0
               ? n - end - 1
               : 0;
}

static size_t layer_length(const char *name) {
    return length_before(name, ZR_LORA_A_NAME);
}

bool zr_lora_is_factor(const char *name) {
    return layer_length(name) > 0 || length_before(name, ZR_LORA_B_NAME) > 0;
}

/* What layers are called within the first unit that has some. */
static void list_layers(const zr_model_tensors_t *tensors, char *text, size_t size) {
    const char *unit = NULL;
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < tensors->n; i++) {
        const char *name = tensors->all[i].name;
        size_t n = layer_length(name), first = n;
        if (n == 0 || (unit != NULL && strcmp(unit, tensors->all[i].unit) != 0))
            continue;
        unit = tensors->all[i].unit;
        for (int dots = 0; first > 0; first--)
            if (name[first - 1] == '.' && ++dots == 2)
                break;
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%.*s", used > 0 ? ", " : "",
                                     (int)(n - first), name + first);
    }
}

zr_status_t zr_lora_check(const zr_lora_t *lora, const zr_model_shape_t *shape,
                          const zr_log_t *log) {
    zr_lora_t all = *lora;
    zr_model_tensors_t tensors;
    zr_status_t status = ZR_OK;
    char layers[512];
    snprintf(all.targets, sizeof(all.targets), ZR_LORA_ALL);
    ZR_TRY(zr_model_shape_tensors(shape, &all.adapter, log, &tensors));
    for (const char *target = lora->targets; *target != '\0' && status == ZR_OK;) {
        size_t length = strcspn(target, ","), n_found = 0;
        for (size_t i = 0; i < tensors.n; i++)
            n_found +=
                layer_length(tensors.all[i].name) > 0 &&
                is_target(tensors.all[i].name, layer_length(tensors.all[i].name), target, length);
        list_layers(&tensors, layers, sizeof(layers));
        if (n_found == 0)
            status = zr_fail(
                log, ZR_ERR_ARGUMENT,
                "targets: \"%.*s\" is not a linear layer of the model; allowed: " ZR_LORA_ALL
                ", and %s, or a suffix of these after a dot",
                (int)length, target, layers);
        target += length;
        target += *target == ',';
    }
    zr_model_tensors_free(&tensors);
    return status;
}
