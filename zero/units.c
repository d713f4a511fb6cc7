/* Groups, units and parameters, as they are registered: see units_internal.h. */
#include "zero/units_internal.h"

#include <math.h>
#include <string.h>

#include <xxhash.h>

static const char *unit_name(const void *context, size_t index) {
    return ((const zr_units_t *)context)->units[index]->name;
}

static const char *param_name(const void *context, size_t index) {
    return ((const zr_units_t *)context)->params[index]->about->name;
}

zr_param_t *zr_units_find_param(const zr_units_t *model, const char *name) {
    zr_named_t named = {.name_of = param_name, .context = model};
    size_t index =
        model->about != NULL ? zr_names_find(&model->about->names, &named, name) : ZR_NO_NAME;
    return index != ZR_NO_NAME ? model->params[index] : NULL;
}

/* ---- groups ---- */

/* What the update can work with, in fp32. */
static bool is_factor(double value) {
    return value >= 0 && isfinite((float)value);
}

static zr_status_t check_factors(const zr_base_t *base, const zr_group_t *group) {
    if (!is_factor(group->weight_decay) || !is_factor(group->lr_scale))
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "parameter group \"%s\": weight_decay %g and lr_scale %g; both must be at "
                       "least 0, and finite in fp32",
                       group->name, group->weight_decay, group->lr_scale);
    return ZR_OK;
}

zr_status_t zr_units_add_group(zr_units_t *model, const zr_base_t *base, const zr_group_t *group,
                               int *group_p) {
    if (group == NULL || group->name == NULL || group_p == NULL)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "a parameter group needs a name and an output pointer for its number");
    ZR_TRY(check_factors(base, group));
    zr_unit_group_t copy = {.shared = *group};
    for (size_t i = 0; i < zr_config_optimizer(&base->config)->rule.n_hypers; i++)
        copy.hyper[i] = zr_config_hyper(&base->config, i);
    copy.shared.name = zr_heap_text(base->heap, group->name);
    if (copy.shared.name == NULL ||
        !zr_heap_make_room(base->heap, &model->groups, (size_t)model->n_groups,
                           &model->groups_capacity, sizeof(copy)))
        return zr_base_no_memory(base, "a parameter group");
    model->groups[model->n_groups] = copy;
    *group_p = model->n_groups++;
    return ZR_OK;
}

static zr_status_t check_group(const zr_units_t *model, const zr_base_t *base, int number) {
    if (number < 0 || number >= model->n_groups)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "parameter group %d cannot change; there are groups 0 to %d", number,
                       model->n_groups - 1);
    return ZR_OK;
}

zr_status_t zr_units_change_group(zr_units_t *model, const zr_base_t *base, int number,
                                  double weight_decay, double lr_scale) {
    ZR_TRY(check_group(model, base, number));
    zr_group_t *shared = &model->groups[number].shared;
    zr_group_t changed = {.name = shared->name, .weight_decay = weight_decay, .lr_scale = lr_scale};
    ZR_TRY(check_factors(base, &changed));
    *shared = changed;
    return ZR_OK;
}

zr_status_t zr_units_change_hyper(zr_units_t *model, const zr_base_t *base, int number,
                                  const char *name, double value) {
    const zr_update_rule_t *rule = &zr_config_optimizer(&base->config)->rule;
    ZR_TRY(check_group(model, base, number));
    zr_unit_group_t *group = &model->groups[number];
    size_t index = zr_update_rule_hyper(rule, name);
    if (index == rule->n_hypers)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "parameter group \"%s\": the optimizer %s has no %s", group->shared.name,
                       rule->name, name);
    const zr_hyper_t *hyper = &rule->hypers[index];
    if (!zr_hyper_allows(hyper, value))
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "parameter group \"%s\": %s is %g; it must be %s %g and less than %g",
                       group->shared.name, name, value,
                       hyper->is_positive ? "greater than" : "at least", hyper->least,
                       hyper->below);
    group->hyper[index] = value;
    return ZR_OK;
}

/* ---- units ---- */

/* All that is not in the heap. */
static void clear_unit(zr_unit_t *unit) {
    zr_allocator_t *allocator = unit->base->allocator;
    for (int kind = 0; kind < N_FLATS; kind++) {
        if (unit->data[kind].full != unit->data[kind].own)
            zr_free(allocator, &unit->data[kind].full, NULL);
        zr_free(allocator, &unit->data[kind].own, NULL);
    }
    zr_free(allocator, &unit->grad_full, NULL);
    zr_free(allocator, &unit->grad_shard, NULL);
    zr_free(allocator, &unit->grad_host, NULL);
    zr_free(allocator, &unit->grad_held, NULL);
    zr_free(allocator, (void **)&unit->grad_errors.part, NULL);
    zr_free(allocator, (void **)&unit->grad_errors.sum, NULL);
    zr_free(allocator, &unit->state[ZR_TIER_DEVICE], NULL);
    zr_free(allocator, &unit->state[ZR_TIER_HOST], NULL);
    zr_event_destroy(&unit->gathered);
    zr_event_destroy(&unit->grads_kept);
}

static zr_status_t check_unit(const zr_units_t *model, const zr_base_t *base, const char *name,
                              zr_unit_t *const *unit_p) {
    if (name == NULL || name[0] == '\0' || unit_p == NULL)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT, "a unit needs a name and an output pointer");
    zr_named_t named = {.name_of = unit_name, .context = model};
    if (zr_names_find(&model->unit_names, &named, name) != ZR_NO_NAME)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT, "a unit \"%s\" exists already", name);
    return ZR_OK;
}

zr_status_t zr_units_add(zr_units_t *model, const zr_base_t *base, const char *name,
                         zr_unit_t **unit_p) {
    ZR_TRY(check_unit(model, base, name, unit_p));
    zr_unit_t *unit = zr_heap_alloc(base->heap, 1, sizeof(*unit));
    if (unit == NULL || !zr_heap_make_room(base->heap, &model->units, model->n_units,
                                           &model->units_capacity, sizeof(zr_unit_t *)))
        return zr_base_no_memory(base, "a unit");
    unit->base = base;
    unit->index = model->n_units;
    unit->name = zr_heap_text(base->heap, name);
    unit->params_tensor = zr_heap_printf(base->heap, "%s parameters", name);
    unit->grads_tensor = zr_heap_printf(base->heap, "%s gradients", name);
    unit->state_tensor = zr_heap_printf(base->heap, "%s optimizer state", name);
    if (unit->name == NULL || unit->params_tensor == NULL || unit->grads_tensor == NULL ||
        unit->state_tensor == NULL)
        return zr_base_no_memory(base, "a unit");
    zr_named_t named = {.name_of = unit_name, .context = model};
    model->units[model->n_units] = unit;
    if (zr_names_add(base->heap, &model->unit_names, &named, model->n_units) != ZR_OK)
        return zr_base_no_memory(base, "a name");
    model->n_units++;
    *unit_p = unit;
    return ZR_OK;
}

/* ---- parameters ---- */

static zr_status_t count_elems(const zr_base_t *base, const zr_param_desc_t *desc,
                               size_t *n_elems_p) {
    size_t n_elems = 1;
    for (int i = 0; i < desc->n_dims; i++)
        if (__builtin_mul_overflow(n_elems, desc->dims[i], &n_elems))
            return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                           "parameter \"%s\": its size overflows at dimension %d (%zu)", desc->name,
                           i, desc->dims[i]);
    *n_elems_p = n_elems;
    return ZR_OK;
}

/* Frozen parameters of a unit have one encoding, and trained ones that of the configuration. */
static zr_status_t set_encoding(zr_unit_t *unit, const zr_param_desc_t *desc) {
    const zr_base_t *base = unit->base;
    const zr_encoding_t *plain = zr_base_encoding(base);
    const zr_encoding_t *wanted = desc->encoding != NULL ? desc->encoding : plain;
    bool is_first = true;
    for (size_t i = 0; i < unit->n_params; i++)
        is_first &= !unit->params[i]->about->layout.frozen;
    const zr_encoding_t *held = is_first && desc->frozen ? wanted
                                : desc->frozen           ? zr_unit_encoding(unit, FLAT_FROZEN)
                                                         : plain;
    size_t block = wanted->block_elems;
    if (wanted != held || block > ZR_LAYOUT_MOST_ALIGN_ELEMS || (block & (block - 1)) != 0)
        return zr_fail(&base->log, ZR_ERR_UNSUPPORTED,
                       "parameter \"%s\": unit \"%s\" cannot hold %s: its %s parameters are %s, "
                       "and blocks have at most %zu elements",
                       desc->name, unit->name, wanted->name, desc->frozen ? "frozen" : "trained",
                       held->name, ZR_LAYOUT_MOST_ALIGN_ELEMS);
    if (desc->frozen)
        unit->frozen_encoding = wanted;
    return ZR_OK;
}

static zr_status_t check_param(const zr_units_t *model, const zr_base_t *base,
                               const zr_param_desc_t *desc, zr_param_t *const *param_p) {
    if (desc == NULL || desc->name == NULL || desc->name[0] == '\0' || param_p == NULL)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "a parameter needs a name and an output pointer");
    if (desc->n_dims < 0 || desc->n_dims > 4)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "parameter \"%s\" has %d dimensions; allowed: 0 to 4", desc->name,
                       desc->n_dims);
    if (desc->group < 0 || desc->group >= model->n_groups)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "parameter \"%s\" is of group %d; there are groups 0 to %d", desc->name,
                       desc->group, model->n_groups - 1);
    const zr_param_t *same = zr_units_find_param(model, desc->name);
    if (same != NULL)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "a parameter \"%s\" exists already, in unit \"%s\"", desc->name,
                       same->unit->name);
    return ZR_OK;
}

static bool is_param_same(const zr_param_about_t *a, const zr_param_about_t *b) {
    return strcmp(a->name, b->name) == 0 && a->n_dims == b->n_dims &&
           memcmp(a->dims, b->dims, sizeof(a->dims)) == 0 &&
           a->layout.n_elems == b->layout.n_elems && a->layout.group == b->layout.group &&
           a->layout.frozen == b->layout.frozen && a->layout.offset_elems == b->layout.offset_elems;
}

static bool are_params_same(const zr_shared_t *a, const zr_shared_t *b) {
    const zr_param_about_t *x = ((const zr_params_about_t *)a)->first;
    const zr_param_about_t *y = ((const zr_params_about_t *)b)->first;
    while (x != NULL && y != NULL && is_param_same(x, y)) {
        x = x->next;
        y = y->next;
    }
    return x == NULL && y == NULL;
}

static zr_params_about_t *create_about(const zr_base_t *base) {
    zr_heap_t *heap = zr_heap_create(base->heap);
    zr_params_about_t *about = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*about)) : NULL;
    if (about != NULL)
        about->shared = (zr_shared_t){.heap = heap, .is_same = are_params_same};
    else
        zr_heap_destroy(&heap);
    return about;
}

/* Behind the others; NULL without memory. */
static zr_param_about_t *describe_param(zr_units_t *model, const zr_base_t *base,
                                        const zr_param_desc_t *desc, size_t n_elems) {
    if (model->about == NULL && (model->about = create_about(base)) == NULL)
        return NULL;
    zr_params_about_t *all = model->about;
    zr_param_about_t *about = zr_heap_alloc(all->shared.heap, 1, sizeof(*about));
    char *name = zr_heap_text(all->shared.heap, desc->name);
    if (about == NULL || name == NULL)
        return NULL;
    *about = (zr_param_about_t){
        .name = name,
        .n_dims = desc->n_dims,
        .layout = {.n_elems = n_elems, .group = desc->group, .frozen = desc->frozen}};
    memcpy(about->dims, desc->dims, sizeof(about->dims));
    if (all->first == NULL)
        all->first = about;
    else
        all->last->next = about;
    all->last = about;
    return about;
}

zr_status_t zr_units_add_param(zr_units_t *model, zr_unit_t *unit, const zr_param_desc_t *desc,
                               zr_param_t **param_p) {
    const zr_base_t *base = unit->base;
    size_t n_elems = 0;
    ZR_TRY(check_param(model, base, desc, param_p));
    ZR_TRY(count_elems(base, desc, &n_elems));
    ZR_TRY(set_encoding(unit, desc));
    zr_param_t *param = zr_heap_alloc(base->heap, 1, sizeof(*param));
    zr_param_about_t *about = describe_param(model, base, desc, n_elems);
    if (param == NULL || about == NULL ||
        !zr_heap_make_room(base->heap, &model->params, model->n_params, &model->params_capacity,
                           sizeof(zr_param_t *)) ||
        !zr_heap_make_room(base->heap, &unit->params, unit->n_params, &unit->params_capacity,
                           sizeof(zr_param_t *)))
        return zr_base_no_memory(base, "a parameter");
    *param = (zr_param_t){.unit = unit,
                          .about = about,
                          .may_be_new = desc->may_be_new,
                          .fill = desc->fill,
                          .fill_context = desc->fill_context};
    zr_named_t named = {.name_of = param_name, .context = model};
    model->params[model->n_params] = unit->params[unit->n_params] = param;
    if (zr_names_add(model->about->shared.heap, &model->about->names, &named, model->n_params) !=
        ZR_OK)
        return zr_base_no_memory(base, "a name");
    model->n_params++;
    unit->n_params++;
    *param_p = param;
    return ZR_OK;
}

/* ---- all of them ---- */

static zr_status_t lay_out_unit(zr_unit_t *unit, size_t align_elems) {
    const zr_base_t *base = unit->base;
    zr_layout_param_t **layouts = zr_heap_alloc(base->heap, unit->n_params, sizeof(*layouts));
    if (layouts == NULL)
        return zr_base_no_memory(base, "a layout");
    for (size_t i = 0; i < unit->n_params; i++)
        layouts[i] = &unit->params[i]->about->layout;
    zr_status_t status = ZR_OK;
    for (int kind = 0; kind < N_FLATS && status == ZR_OK; kind++) {
        size_t block = zr_unit_encoding(unit, kind)->block_elems;
        status = zr_flat_build(base->heap, layouts, unit->n_params, kind == FLAT_FROZEN,
                               base->sharding.n_shards, block > align_elems ? block : align_elems,
                               &unit->flat[kind]);
    }
    zr_heap_free(base->heap, layouts);
    if (status == ZR_ERR_MEMORY)
        return zr_base_no_memory(base, "a layout");
    if (status != ZR_OK)
        return zr_fail(&base->log, status,
                       "unit \"%s\": its parameters are too large: with padding for shards of %s "
                       "it may have %zu elements; split it into several units",
                       unit->name, zr_count_text((uint64_t)base->sharding.n_shards, "rank").text,
                       ZR_LAYOUT_MAX_ELEMS);
    return ZR_OK;
}

zr_status_t zr_units_lay_out(zr_units_t *model, size_t align_elems) {
    for (size_t i = 0; i < model->n_units; i++)
        ZR_TRY(lay_out_unit(model->units[i], align_elems));
    return ZR_OK;
}

void zr_units_share(zr_units_t *model, const zr_base_t *base) {
    if (model->about == NULL)
        return;
    zr_heap_count_alone(model->about->shared.heap);
    model->about = (zr_params_about_t *)zr_allocator_share_table(
        base->allocator, &model->about->shared, &model->about_bytes);
    zr_param_about_t *about = model->about->first;
    for (size_t i = 0; i < model->n_params; i++, about = about->next)
        model->params[i]->about = about;
}

void zr_units_unshare(zr_units_t *model, const zr_base_t *base) {
    if (model->about != NULL)
        zr_allocator_leave_table(base->allocator, &model->about->shared, model->about_bytes);
    model->about = NULL;
}

static void hash_text(XXH3_state_t *state, const char *text) {
    XXH3_64bits_update(state, text, strlen(text) + 1);
}

static void hash_model(const zr_units_t *model, const zr_config_t *config, XXH3_state_t *state) {
    const zr_optimizer_type_t *own = config->own_optimizer;
    if (own != NULL) {
        hash_text(state, own->name);
        XXH3_64bits_update(state, config->own_hyper,
                           own->rule.n_hypers * sizeof(config->own_hyper[0]));
    }
    for (int i = 0; i < model->n_groups; i++) {
        const zr_group_t *group = &model->groups[i].shared;
        double numbers[] = {group->weight_decay, group->lr_scale};
        hash_text(state, group->name);
        XXH3_64bits_update(state, numbers, sizeof(numbers));
    }
    for (size_t i = 0; i < model->n_params; i++) {
        const zr_param_t *param = model->params[i];
        size_t numbers[] = {param->about->layout.n_elems, (size_t)param->about->layout.group,
                            param->about->layout.frozen, param->unit->index};
        hash_text(state, param->about->name);
        hash_text(state, zr_unit_encoding(param->unit, param->about->layout.frozen)->name);
        hash_text(state, param->unit->name);
        XXH3_64bits_update(state, numbers, sizeof(numbers));
    }
}

zr_status_t zr_units_hash(const zr_units_t *model, const zr_base_t *base, uint64_t *hash_p) {
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return zr_base_no_memory(base, "a hash");
    XXH3_64bits_reset(state);
    hash_model(model, &base->config, state);
    *hash_p = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return ZR_OK;
}

void zr_units_clear(zr_units_t *model) {
    for (size_t i = 0; i < model->n_units; i++)
        clear_unit(model->units[i]);
}
