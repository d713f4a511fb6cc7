/*
 * The life of a runtime: create, groups, units and parameters, commit, destroy. What happens in
 * a step is in unit.c and step.c.
 *
 * Everything that can differ between ranks and would end in a wrong sum or a hang is agreed on
 * in commit: configuration, groups, units, names, sizes.
 */
#include "zero/options.h"
#include "zero/runtime_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <xxhash.h>

#include "zero/checkpoint/restore.h"

/* Of looking for a lower plan beside training, where there may be one. */
#define PLAN_SEARCH_SECONDS 2.0

/* ---- helpers ---- */

zr_status_t zr_rt_note(zr_runtime_t *runtime, zr_status_t status) {
    if (status != ZR_OK && runtime->failed == ZR_OK)
        runtime->failed = status;
    return status;
}

zr_status_t zr_rt_check_ready(zr_runtime_t *runtime, const char *call) {
    if (runtime->failed != ZR_OK)
        return zr_fail(&runtime->log, ZR_ERR_STATE,
                       "%s: the runtime has failed before (%s) and can only be destroyed", call,
                       zr_status_name(runtime->failed));
    if (!runtime->committed)
        return zr_fail(&runtime->log, ZR_ERR_STATE, "%s before zr_runtime_commit", call);
    return ZR_OK;
}

static zr_status_t check_building(zr_runtime_t *runtime, const char *call) {
    if (runtime->failed != ZR_OK || runtime->committed)
        return zr_fail(&runtime->log, ZR_ERR_STATE, "%s after %s", call,
                       runtime->committed ? "zr_runtime_commit" : "an error");
    return ZR_OK;
}

zr_status_t zr_rt_order(zr_runtime_t *runtime, zr_stream_t *earlier, zr_stream_t *later) {
    if (earlier == later)
        return ZR_OK;
    ZR_TRY(zr_event_record(runtime->order, earlier));
    return zr_stream_wait(later, runtime->order);
}

zr_status_t zr_rt_gather_control(zr_runtime_t *runtime, zr_comm_t *comm, const char *tensor,
                                 zr_dtype_t dtype, void *all, size_t n_elems) {
    zr_message_t message = {tensor, dtype, ZR_TRAFFIC_CONTROL};
    char *own = (char *)all + (size_t)zr_comm_rank(comm) * n_elems * zr_dtype_size(dtype);
    ZR_TRY(zr_rt_order(runtime, runtime->compute, runtime->transfer));
    ZR_TRY(zr_comm_all_gather(comm, &message, own, all, n_elems, runtime->transfer));
    return zr_rt_order(runtime, runtime->transfer, runtime->compute);
}

/* At least a word of every rank. */
static size_t staging_bytes(const zr_runtime_t *runtime) {
    size_t usual = ZR_STAGING_ELEMS * sizeof(float);
    size_t least = (size_t)runtime->n_ranks * sizeof(uint64_t);
    return usual > least ? usual : least;
}

/* So many words as there is staging for: into staging_host, [n_ranks][n_words]. */
static zr_status_t gather_some(zr_runtime_t *runtime, const char *tensor, const uint64_t *words,
                               size_t n_words) {
    size_t own_bytes = n_words * sizeof(*words), first = own_bytes * (size_t)runtime->rank;
    char *host = (char *)runtime->staging_host, *device = (char *)runtime->staging_device;
    if (zr_rt_has_data(runtime))
        memcpy(host + first, words, own_bytes);
    ZR_TRY(zr_copy_async(runtime->compute, device + first, host + first, own_bytes,
                         ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_rt_gather_control(runtime, runtime->comm, tensor, ZR_DTYPE_U8, device, own_bytes));
    ZR_TRY(zr_copy_async(runtime->compute, host, device, own_bytes * (size_t)runtime->n_ranks,
                         ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(runtime->compute));
    return zr_sharding_check(&runtime->sharding);
}

zr_status_t zr_rt_gather_words(zr_runtime_t *runtime, const char *tensor, const uint64_t *words,
                               size_t n_words, uint64_t *all) {
    size_t n_ranks = (size_t)runtime->n_ranks;
    size_t most = staging_bytes(runtime) / sizeof(*words) / n_ranks;
    for (size_t done = 0, n = 0; done < n_words; done += n) {
        const uint64_t *from = (const uint64_t *)(const void *)runtime->staging_host;
        n = n_words - done < most ? n_words - done : most;
        ZR_TRY(gather_some(runtime, tensor, words + done, n));
        for (size_t rank = 0; rank < n_ranks && zr_rt_has_data(runtime); rank++)
            memcpy(all + rank * n_words + done, from + rank * n, n * sizeof(*words));
    }
    return ZR_OK;
}

zr_status_t zr_rt_allocate(zr_runtime_t *runtime, size_t size_bytes, zr_tag_t tag,
                           zr_lifetime_t lifetime, const char *name, zr_stream_t *stream,
                           void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = tag,
                                       .lifetime = lifetime,
                                       .name = name,
                                       .stream = stream};
    return zr_allocate(runtime->allocator, &request, pointer_p);
}

static zr_status_t out_of_memory(const zr_runtime_t *runtime, const char *what) {
    return zr_fail(&runtime->log, ZR_ERR_MEMORY, "the system has no memory for %s", what);
}

/* Grow an array by one element. */
static zr_status_t append_pointer(zr_runtime_t *runtime, void *array, size_t n, void *element) {
    void ***pointers = array;
    void **grown = realloc(*pointers, (n + 1) * sizeof(void *));
    if (grown == NULL)
        return out_of_memory(runtime, "a list");
    grown[n] = element;
    *pointers = grown;
    return ZR_OK;
}

static zr_status_t add_name(zr_runtime_t *runtime, zr_names_t *names, const char *name,
                            size_t index) {
    return zr_names_add(names, name, index) == ZR_OK ? ZR_OK : out_of_memory(runtime, "a name");
}

static char *concatenate(const char *first, const char *second) {
    size_t size = strlen(first) + strlen(second) + 1;
    char *text = malloc(size);
    if (text != NULL)
        snprintf(text, size, "%s%s", first, second);
    return text;
}

/* ---- create and destroy ---- */

static zr_status_t check_config(const zr_config_t *config, int n_ranks, const zr_log_t *log) {
    zr_config_t resolved = *config;
    ZR_TRY(zr_config_resolve(&resolved, n_ranks, log));
    if (resolved.micro_batch != config->micro_batch || resolved.grad_accum != config->grad_accum)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "the configuration has open batch sizes: call zr_config_resolve first");
    return ZR_OK;
}

static zr_status_t create_streams(zr_runtime_t *runtime) {
    ZR_TRY(zr_stream_create(runtime->device, "compute", &runtime->compute));
    if (runtime->config.overlap_comm)
        ZR_TRY(zr_stream_create_beside(runtime->device, "comm", &runtime->transfer));
    else
        runtime->transfer = runtime->compute;
    return zr_event_create(runtime->device, &runtime->order);
}

static zr_status_t create_parts(zr_runtime_t *runtime) {
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = runtime->log;
    options.budget_bytes[ZR_TIER_DEVICE] = runtime->config.device_memory_bytes;
    options.budget_bytes[ZR_TIER_HOST] = runtime->config.host_memory_bytes;
    options.advice = zr_rt_advice(&runtime->config, runtime->sharding.n_shards);
    ZR_TRY(zr_allocator_create(runtime->device, &options, &runtime->allocator));
    ZR_TRY(create_streams(runtime));
    zr_group_t group = {
        .name = "default", .weight_decay = runtime->config.adamw.weight_decay, .lr_scale = 1.0};
    int number;
    return zr_runtime_add_group(runtime, &group, &number);
}

zr_status_t zr_runtime_create(const zr_config_t *config, zr_comm_t *comm, zr_device_t *device,
                              const zr_log_t *log, zr_runtime_t **runtime_p) {
    zr_log_t own_log = log ? *log : zr_log_default();
    if (config == NULL || comm == NULL || device == NULL || runtime_p == NULL)
        return zr_fail(&own_log, ZR_ERR_ARGUMENT,
                       "zr_runtime_create needs a configuration, a communicator, a device and a "
                       "place for the result");
    own_log.rank = zr_comm_rank(comm);
    ZR_TRY(check_config(config, zr_comm_n_ranks(comm), &own_log));
    zr_runtime_t *runtime = calloc(1, sizeof(*runtime));
    if (runtime == NULL)
        return zr_fail(&own_log, ZR_ERR_MEMORY, "the system has no memory for a runtime");
    runtime->config = *config;
    runtime->comm = comm;
    runtime->device = device;
    runtime->log = own_log;
    runtime->rank = zr_comm_rank(comm);
    runtime->n_ranks = zr_comm_n_ranks(comm);
    zr_status_t status = zr_sharding_create(comm, config->shard_group_size, &runtime->sharding);
    if (status == ZR_OK)
        status = create_parts(runtime);
    if (status != ZR_OK) {
        zr_runtime_destroy(&runtime);
        return status;
    }
    zr_sharding_set_allocator(&runtime->sharding, runtime->allocator);
    *runtime_p = runtime;
    return ZR_OK;
}

static void destroy_param(zr_param_t *param) {
    free(param->name);
    free(param);
}

static void destroy_unit(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    zr_allocator_t *allocator = runtime->allocator;
    for (int kind = 0; kind < N_FLATS; kind++) {
        if (unit->data[kind].full != unit->data[kind].own)
            zr_free(allocator, &unit->data[kind].full, NULL);
        zr_free(allocator, &unit->data[kind].own, NULL);
        zr_flat_clear(&unit->flat[kind]);
    }
    zr_free(allocator, &unit->grad_full, NULL);
    zr_free(allocator, &unit->grad_shard, NULL);
    zr_free(allocator, &unit->grad_host, NULL);
    zr_free(allocator, &unit->state[ZR_TIER_DEVICE], NULL);
    zr_free(allocator, &unit->state[ZR_TIER_HOST], NULL);
    zr_event_destroy(&unit->gathered);
    zr_event_destroy(&unit->grads_kept);
    zr_event_destroy(&unit->released);
    for (size_t i = 0; i < unit->n_params; i++)
        destroy_param(unit->params[i]);
    free(unit->params);
    free(unit->name);
    free(unit->params_tensor);
    free(unit->grads_tensor);
    free(unit->state_tensor);
    free(unit);
}

/* Nothing may run on memory that is given back; that some of it failed is known already. */
static void drain(zr_stream_t *stream) {
    if (stream != NULL && zr_stream_synchronize(stream) != ZR_OK)
        return;
}

void zr_runtime_destroy(zr_runtime_t **runtime_pp) {
    if (runtime_pp == NULL || *runtime_pp == NULL)
        return;
    zr_runtime_t *runtime = *runtime_pp;
    drain(runtime->compute);
    if (runtime->transfer != runtime->compute)
        drain(runtime->transfer);
    drain(runtime->state.down);
    drain(runtime->state.up);
    zr_saving_destroy(runtime);
    zr_restore_end(runtime);
    zr_params_destroy(runtime);
    for (size_t i = 0; i < runtime->n_units; i++)
        destroy_unit(runtime->units[i]);
    zr_free(runtime->allocator, (void **)&runtime->norms_device, NULL);
    zr_free(runtime->allocator, (void **)&runtime->scalars_device, NULL);
    zr_free(runtime->allocator, (void **)&runtime->norm_workspace, NULL);
    zr_free(runtime->allocator, (void **)&runtime->staging_device, NULL);
    zr_free(runtime->allocator, (void **)&runtime->staging_host, NULL);
    if (runtime->allocator != NULL)
        zr_allocator_replay_stop(runtime->allocator); /* while there are streams */
    zr_state_destroy(runtime);
    zr_nvme_close(runtime);
    zr_event_destroy(&runtime->order);
    if (runtime->transfer != runtime->compute)
        zr_stream_destroy(&runtime->transfer);
    zr_stream_destroy(&runtime->compute);
    zr_sharding_set_allocator(&runtime->sharding, NULL);
    zr_sharding_destroy(&runtime->sharding);
    zr_allocator_destroy(&runtime->allocator);
    for (int i = 0; i < runtime->n_groups; i++)
        free((char *)runtime->groups[i].name);
    free(runtime->groups);
    zr_names_clear(&runtime->unit_names);
    zr_names_clear(&runtime->param_names);
    free(runtime->units);
    free(runtime->params);
    free(runtime->order_units);
    free(runtime->reduced);
    free(runtime->grads_places);
    free(runtime->norms_host);
    free(runtime->scalars_host);
    free(runtime);
    *runtime_pp = NULL;
}

/* ---- groups, units, parameters ---- */

/* What the update can work with, in fp32. */
static bool is_factor(double value) {
    return value >= 0 && isfinite((float)value);
}

static zr_status_t check_group(const zr_runtime_t *runtime, const zr_group_t *group,
                               const int *group_p) {
    if (group == NULL || group->name == NULL || group_p == NULL)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "a parameter group needs a name and a place for its number");
    if (!is_factor(group->weight_decay) || !is_factor(group->lr_scale))
        return zr_fail(
            &runtime->log, ZR_ERR_ARGUMENT,
            "parameter group \"%s\": weight_decay %g and lr_scale %g; both have to be at "
            "least 0, and finite in fp32",
            group->name, group->weight_decay, group->lr_scale);
    return ZR_OK;
}

zr_status_t zr_runtime_add_group(zr_runtime_t *runtime, const zr_group_t *group, int *group_p) {
    ZR_TRY(check_building(runtime, "zr_runtime_add_group"));
    ZR_TRY(check_group(runtime, group, group_p));
    zr_group_t *grown = realloc(runtime->groups, (size_t)(runtime->n_groups + 1) * sizeof(*grown));
    if (grown == NULL)
        return zr_rt_note(runtime, out_of_memory(runtime, "a parameter group"));
    runtime->groups = grown;
    zr_group_t copy = *group;
    copy.name = strdup(group->name);
    if (copy.name == NULL)
        return zr_rt_note(runtime, out_of_memory(runtime, "a parameter group"));
    grown[runtime->n_groups] = copy;
    *group_p = runtime->n_groups++;
    return ZR_OK;
}

static zr_status_t check_unit(const zr_runtime_t *runtime, const char *name,
                              zr_unit_t *const *unit_p) {
    if (name == NULL || name[0] == '\0' || unit_p == NULL)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "a unit needs a name and a place for the result");
    if (zr_names_find(&runtime->unit_names, name) != ZR_NO_NAME)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT, "there is a unit \"%s\" already", name);
    return ZR_OK;
}

zr_status_t zr_runtime_add_unit(zr_runtime_t *runtime, const char *name, zr_unit_t **unit_p) {
    ZR_TRY(check_building(runtime, "zr_runtime_add_unit"));
    ZR_TRY(check_unit(runtime, name, unit_p));
    zr_unit_t *unit = calloc(1, sizeof(*unit));
    if (unit == NULL)
        return zr_rt_note(runtime, out_of_memory(runtime, "a unit"));
    unit->runtime = runtime;
    unit->index = runtime->n_units;
    unit->name = strdup(name);
    unit->params_tensor = concatenate(name, " parameters");
    unit->grads_tensor = concatenate(name, " gradients");
    unit->state_tensor = concatenate(name, " optimizer state");
    zr_status_t status = ZR_OK;
    if (unit->name == NULL || unit->params_tensor == NULL || unit->grads_tensor == NULL ||
        unit->state_tensor == NULL)
        status = out_of_memory(runtime, "a unit");
    if (status == ZR_OK)
        status = append_pointer(runtime, &runtime->units, runtime->n_units, unit);
    if (status == ZR_OK)
        status = add_name(runtime, &runtime->unit_names, unit->name, runtime->n_units);
    if (status != ZR_OK) {
        destroy_unit(unit);
        return zr_rt_note(runtime, status);
    }
    runtime->n_units++;
    *unit_p = unit;
    return ZR_OK;
}

static zr_status_t count_elems(const zr_runtime_t *runtime, const zr_param_desc_t *desc,
                               size_t *n_elems_p) {
    size_t n_elems = 1;
    for (int i = 0; i < desc->n_dims; i++)
        if (__builtin_mul_overflow(n_elems, desc->dims[i], &n_elems))
            return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                           "parameter \"%s\": its size overflows at dimension %d (%zu)", desc->name,
                           i, desc->dims[i]);
    *n_elems_p = n_elems;
    return ZR_OK;
}

static zr_status_t check_param(const zr_runtime_t *runtime, const zr_param_desc_t *desc,
                               zr_param_t *const *param_p) {
    if (desc == NULL || desc->name == NULL || desc->name[0] == '\0' || param_p == NULL)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "a parameter needs a name and a place for the result");
    if (desc->n_dims < 0 || desc->n_dims > 4)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "parameter \"%s\" has %d dimensions; allowed are 0 to 4", desc->name,
                       desc->n_dims);
    if (desc->group < 0 || desc->group >= runtime->n_groups)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "parameter \"%s\" is of group %d; there are groups 0 to %d", desc->name,
                       desc->group, runtime->n_groups - 1);
    size_t same = zr_names_find(&runtime->param_names, desc->name);
    if (same != ZR_NO_NAME)
        return zr_fail(&runtime->log, ZR_ERR_ARGUMENT,
                       "there is a parameter \"%s\" already, in unit \"%s\"", desc->name,
                       runtime->params[same]->unit->name);
    return ZR_OK;
}

zr_status_t zr_unit_add_param(zr_unit_t *unit, const zr_param_desc_t *desc, zr_param_t **param_p) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(check_building(runtime, "zr_unit_add_param"));
    ZR_TRY(check_param(runtime, desc, param_p));
    size_t n_elems = 0;
    ZR_TRY(count_elems(runtime, desc, &n_elems));
    zr_param_t *param = calloc(1, sizeof(*param));
    if (param == NULL)
        return zr_rt_note(runtime, out_of_memory(runtime, "a parameter"));
    param->unit = unit;
    param->name = strdup(desc->name);
    param->n_dims = desc->n_dims;
    memcpy(param->dims, desc->dims, sizeof(param->dims));
    param->layout =
        (zr_layout_param_t){.n_elems = n_elems, .group = desc->group, .frozen = desc->frozen};
    param->fill = desc->fill;
    param->fill_context = desc->fill_context;
    zr_status_t status = param->name ? ZR_OK : out_of_memory(runtime, "a parameter");
    if (status == ZR_OK)
        status = append_pointer(runtime, &runtime->params, runtime->n_params, param);
    if (status == ZR_OK)
        status = append_pointer(runtime, &unit->params, unit->n_params, param);
    if (status == ZR_OK)
        status = add_name(runtime, &runtime->param_names, param->name, runtime->n_params);
    if (status != ZR_OK) {
        destroy_param(param);
        return zr_rt_note(runtime, status);
    }
    runtime->n_params++;
    unit->n_params++;
    *param_p = param;
    return ZR_OK;
}

/* ---- commit: layout ---- */

static zr_status_t lay_out_unit(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    zr_layout_param_t **layouts = calloc(unit->n_params + 1, sizeof(*layouts));
    if (layouts == NULL)
        return out_of_memory(runtime, "a layout");
    for (size_t i = 0; i < unit->n_params; i++)
        layouts[i] = &unit->params[i]->layout;
    zr_status_t status = ZR_OK;
    for (int kind = 0; kind < N_FLATS && status == ZR_OK; kind++)
        status = zr_flat_build(layouts, unit->n_params, kind == FLAT_FROZEN,
                               runtime->sharding.n_shards, &unit->flat[kind]);
    free(layouts);
    if (status == ZR_ERR_MEMORY)
        return out_of_memory(runtime, "a layout");
    if (status != ZR_OK)
        return zr_fail(&runtime->log, status,
                       "unit \"%s\": its parameters are too large: with padding for shards of %s "
                       "it may have %zu elements; make several units of it",
                       unit->name, zr_count_text((uint64_t)runtime->sharding.n_shards, "rank").text,
                       ZR_LAYOUT_MAX_ELEMS);
    return ZR_OK;
}

/* ---- commit: agreement ---- */

static void hash_text(XXH3_state_t *state, const char *text) {
    XXH3_64bits_update(state, text, strlen(text) + 1);
}

static void hash_model(const zr_runtime_t *runtime, XXH3_state_t *state) {
    const zr_optimizer_type_t *own = runtime->config.own_optimizer;
    if (own != NULL) {
        hash_text(state, own->name);
        XXH3_64bits_update(state, runtime->config.own_hyper,
                           own->rule.n_hypers * sizeof(runtime->config.own_hyper[0]));
    }
    for (int i = 0; i < runtime->n_groups; i++) {
        const zr_group_t *group = &runtime->groups[i];
        double numbers[] = {group->weight_decay, group->lr_scale};
        hash_text(state, group->name);
        XXH3_64bits_update(state, numbers, sizeof(numbers));
    }
    for (size_t i = 0; i < runtime->n_params; i++) {
        const zr_param_t *param = runtime->params[i];
        size_t numbers[] = {param->layout.n_elems, (size_t)param->layout.group,
                            param->layout.frozen, param->unit->index};
        hash_text(state, param->name);
        hash_text(state, param->unit->name);
        XXH3_64bits_update(state, numbers, sizeof(numbers));
    }
}

/* The options that all ranks have to have the same, each in a word; their number. */
static size_t hash_options(const zr_config_t *config, uint64_t words[ZR_OPTIONS_MOST]) {
    size_t n = 0, n_options = 0;
    const zr_option_t *options = zr_options(&n_options);
    for (size_t i = 0; i < n_options; i++)
        if ((options[i].flags & ZR_OPTION_AGREE) != 0) {
            zr_option_text_t text = zr_option_text(&options[i], config);
            words[n++] = XXH3_64bits(text.text, strlen(text.text));
        }
    return n;
}

/* Whose n-th it is. */
static const char *agreed_option(size_t number) {
    size_t n = 0, n_options = 0;
    const zr_option_t *options = zr_options(&n_options);
    for (size_t i = 0; i < n_options; i++)
        if ((options[i].flags & ZR_OPTION_AGREE) != 0 && n++ == number)
            return options[i].field;
    return "";
}

/* Say which option it is that a rank has otherwise than rank 0. */
static zr_status_t refuse_config(zr_runtime_t *runtime, const uint64_t *words, size_t n) {
    uint64_t *all = calloc(n * (size_t)runtime->n_ranks, sizeof(*all));
    if (all == NULL)
        return out_of_memory(runtime, "the agreement of ranks");
    zr_status_t status = zr_rt_gather_words(runtime, "options that differ", words, n, all);
    for (size_t i = 0; i < n * (size_t)runtime->n_ranks && status == ZR_OK; i++)
        if (all[i] != all[i % n])
            status = zr_fail(&runtime->log, ZR_ERR_COMM,
                             "rank %zu has another configuration than rank 0, in %s: start all "
                             "ranks alike",
                             i / n, agreed_option(i % n));
    free(all);
    return status;
}

/* Two words: one for the configuration, one for the model. */
static zr_status_t agree(zr_runtime_t *runtime) {
    XXH3_state_t *state = XXH3_createState();
    uint64_t *all = calloc(2 * (size_t)runtime->n_ranks, sizeof(*all));
    if (state == NULL || all == NULL) {
        XXH3_freeState(state);
        free(all);
        return out_of_memory(runtime, "the agreement of ranks");
    }
    uint64_t options[ZR_OPTIONS_MOST], words[2];
    size_t n = hash_options(&runtime->config, options);
    words[0] = XXH3_64bits(options, n * sizeof(options[0]));
    XXH3_64bits_reset(state);
    hash_model(runtime, state);
    words[1] = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    zr_status_t status =
        zr_rt_gather_words(runtime, "agreement on model and configuration", words, 2, all);
    for (int rank = 1; rank < runtime->n_ranks && status == ZR_OK; rank++)
        if (all[2 * rank] != all[0])
            status = refuse_config(runtime, options, n);
    for (int rank = 1; rank < runtime->n_ranks && status == ZR_OK; rank++)
        if (all[2 * rank + 1] != all[1])
            status = zr_fail(&runtime->log, ZR_ERR_COMM,
                             "rank %d has another model than rank 0 (hash %016" PRIx64
                             ", rank 0 has %016" PRIx64 "): start all ranks alike",
                             rank, all[2 * rank + 1], all[1]);
    free(all);
    return status;
}

/* ---- commit: memory ---- */

static zr_status_t allocate_params(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    for (int kind = 0; kind < N_FLATS; kind++) {
        const zr_flat_t *flat = &unit->flat[kind];
        if (flat->padded_elems == 0)
            continue;
        if (zr_rt_is_offloaded(unit, kind)) {
            ZR_TRY(zr_params_allocate(unit, kind));
            continue;
        }
        bool full = zr_rt_keeps_full(unit, kind);
        size_t n_elems = full ? flat->padded_elems : flat->shard_elems;
        ZR_TRY(zr_rt_allocate(runtime, zr_rt_bytes(runtime, n_elems), ZR_TAG_PARAMETERS,
                              ZR_LIFETIME_PERSISTENT, unit->params_tensor, NULL,
                              &unit->data[kind].own));
        if (full)
            unit->data[kind].full = unit->data[kind].own;
    }
    return ZR_OK;
}

static zr_status_t allocate_training(zr_unit_t *unit) {
    if (unit->flat[FLAT_TRAINABLE].padded_elems == 0)
        return ZR_OK;
    ZR_TRY(zr_grads_allocate(unit));
    return zr_state_allocate_unit(unit);
}

static zr_status_t allocate_norms(zr_runtime_t *runtime) {
    size_t workspace_bytes = 0;
    for (size_t i = 0; i < runtime->n_units; i++) {
        size_t need =
            zr_sum_of_squares_workspace_bytes(runtime->units[i]->flat[FLAT_TRAINABLE].shard_elems);
        workspace_bytes = need > workspace_bytes ? need : workspace_bytes;
    }
    size_t n_ranks = (size_t)runtime->n_ranks, n_shards = (size_t)runtime->sharding.n_shards;
    size_t n_norms = n_shards * runtime->n_units, n_scalars = n_ranks * ZR_MAX_SHARED_VALUES;
    runtime->norms_host = calloc(n_norms + 1, sizeof(double));
    runtime->scalars_host = calloc(n_scalars, sizeof(double));
    runtime->reduced = calloc(runtime->n_units + 1, sizeof(zr_unit_t *));
    if (runtime->norms_host == NULL || runtime->scalars_host == NULL || runtime->reduced == NULL)
        return out_of_memory(runtime, "norms");
    ZR_TRY(zr_rt_allocate(runtime, n_norms * sizeof(double), ZR_TAG_WORKSPACE,
                          ZR_LIFETIME_PERSISTENT, "norms", NULL, (void **)&runtime->norms_device));
    ZR_TRY(zr_rt_allocate(runtime, n_scalars * sizeof(double), ZR_TAG_WORKSPACE,
                          ZR_LIFETIME_PERSISTENT, "shared values", NULL,
                          (void **)&runtime->scalars_device));
    return zr_rt_allocate(runtime, workspace_bytes, ZR_TAG_WORKSPACE, ZR_LIFETIME_PERSISTENT,
                          "norm workspace", NULL, &runtime->norm_workspace);
}

static zr_status_t allocate_staging(zr_runtime_t *runtime) {
    zr_allocation_request_t host = {.size_bytes = staging_bytes(runtime),
                                    .tier = ZR_TIER_HOST,
                                    .tag = ZR_TAG_STAGING,
                                    .lifetime = ZR_LIFETIME_PERSISTENT,
                                    .name = "staging"};
    ZR_TRY(zr_allocate(runtime->allocator, &host, (void **)&runtime->staging_host));
    return zr_rt_allocate(runtime, staging_bytes(runtime), ZR_TAG_STAGING, ZR_LIFETIME_PERSISTENT,
                          "staging", NULL, (void **)&runtime->staging_device);
}

/* ---- commit ---- */

static zr_status_t plan_memory(zr_runtime_t *runtime) {
    zr_replay_options_t options = zr_replay_options_default();
    options.compute = runtime->compute;
    /* A simulated step takes no time to search in, and would have the same plan on any machine. */
    if (!zr_device_info(runtime->device)->stores_nothing)
        options.search_seconds = PLAN_SEARCH_SECONDS;
    if (!runtime->config.plan_memory)
        return ZR_OK;
    return zr_allocator_replay_start(runtime->allocator, &options);
}

static zr_status_t create_events(zr_unit_t *unit) {
    zr_device_t *device = unit->runtime->device;
    ZR_TRY(zr_event_create(device, &unit->gathered));
    if (!zr_rt_may_update_early(unit->runtime))
        return ZR_OK;
    ZR_TRY(zr_event_create(device, &unit->grads_kept));
    return zr_event_create(device, &unit->released);
}

static zr_status_t commit(zr_runtime_t *runtime) {
    for (size_t i = 0; i < runtime->n_units; i++)
        ZR_TRY(lay_out_unit(runtime->units[i]));
    ZR_TRY(allocate_staging(runtime));
    ZR_TRY(agree(runtime));
    ZR_TRY(allocate_norms(runtime));
    ZR_TRY(zr_state_place(runtime));
    ZR_TRY(zr_grads_place(runtime));
    ZR_TRY(zr_params_place(runtime));
    ZR_TRY(zr_nvme_open(runtime));
    ZR_TRY(zr_state_create(runtime));
    ZR_TRY(zr_params_create(runtime));
    ZR_TRY(zr_restore_begin(runtime));
    ZR_TRY(zr_state_begin_fill(runtime));
    ZR_TRY(zr_params_begin_fill(runtime));
    for (size_t i = 0; i < runtime->n_units; i++) {
        zr_unit_t *unit = runtime->units[i];
        ZR_TRY(allocate_params(unit));
        ZR_TRY(allocate_training(unit));
        ZR_TRY(create_events(unit));
        for (int kind = 0; kind < N_FLATS; kind++)
            ZR_TRY(zr_initial_place(unit, kind));
    }
    ZR_TRY(zr_state_end_fill(runtime));
    ZR_TRY(zr_params_end_fill(runtime));
    zr_restore_end(runtime);
    ZR_TRY(zr_saves_reserve(runtime));
    ZR_TRY(plan_memory(runtime));
    runtime->committed = true; /* placing values has waited for all that compute had to do */
    return ZR_OK;
}

zr_status_t zr_runtime_add_extents(zr_runtime_t *runtime, const zr_extents_desc_t *desc,
                                   zr_extents_t *extents_p) {
    ZR_TRY(check_building(runtime, "zr_runtime_add_extents"));
    zr_status_t status = zr_nvme_declare(runtime, desc, extents_p);
    return status == ZR_ERR_ARGUMENT ? status : zr_rt_note(runtime, status);
}

zr_status_t zr_runtime_commit(zr_runtime_t *runtime) {
    ZR_TRY(check_building(runtime, "zr_runtime_commit"));
    return zr_rt_note(runtime, commit(runtime));
}

/* ---- facts ---- */

zr_stream_t *zr_runtime_stream(zr_runtime_t *runtime) {
    return runtime->compute;
}

zr_allocator_t *zr_runtime_allocator(zr_runtime_t *runtime) {
    return runtime->allocator;
}

zr_device_t *zr_runtime_device(zr_runtime_t *runtime) {
    return runtime->device;
}

zr_comm_t *zr_runtime_comm(zr_runtime_t *runtime) {
    return runtime->comm;
}

zr_store_t *zr_runtime_store(zr_runtime_t *runtime) {
    return runtime->nvme.store;
}

const zr_config_t *zr_runtime_config(const zr_runtime_t *runtime) {
    return &runtime->config;
}

const zr_log_t *zr_runtime_log(const zr_runtime_t *runtime) {
    return &runtime->log;
}

void zr_runtime_model_size(const zr_runtime_t *runtime, zr_model_size_t *size_p) {
    zr_model_size_t size = {.n_units = runtime->n_units, .n_params = runtime->n_params};
    for (size_t i = 0; i < runtime->n_units; i++) {
        const zr_flat_t *trainable = &runtime->units[i]->flat[FLAT_TRAINABLE];
        const zr_flat_t *frozen = &runtime->units[i]->flat[FLAT_FROZEN];
        size.trainable_elems += trainable->used_elems;
        size.frozen_elems += frozen->used_elems;
        size.trainable_padded_elems += trainable->padded_elems;
        size.frozen_padded_elems += frozen->padded_elems;
        size_t unit_elems = trainable->padded_elems + frozen->padded_elems;
        if (unit_elems > size.largest_unit_padded_elems)
            size.largest_unit_padded_elems = unit_elems;
    }
    *size_p = size;
}

void zr_runtime_comm_statistics(const zr_runtime_t *runtime, zr_level_t level,
                                zr_comm_statistics_t *statistics_p) {
    const zr_sharding_t *sharding = &runtime->sharding;
    const zr_comm_t *comm = sharding->all;
    if (level != ZR_LEVEL_ALL)
        comm = level == ZR_LEVEL_REPLICAS         ? sharding->replicas
               : sharding->group == sharding->all ? NULL
                                                  : sharding->group;
    *statistics_p = (zr_comm_statistics_t){.wait_seconds = 0};
    if (comm != NULL)
        zr_comm_statistics(comm, statistics_p);
}

void zr_runtime_time(const zr_runtime_t *runtime, zr_runtime_time_t *time_p) {
    zr_comm_statistics_t comm;
    zr_sharding_statistics(&runtime->sharding, &comm);
    const double *io_seconds = runtime->state.update_wait_seconds;
    *time_p = (zr_runtime_time_t){
        .comm_seconds = comm.move_seconds,
        .stall_seconds = comm.wait_seconds + zr_device_wait_seconds(runtime->device),
        .beside_seconds = comm.queued_wait_seconds + comm.queued_move_seconds,
        .optimizer_seconds = runtime->optimizer_seconds,
        .io_seconds =
            io_seconds[ZR_STORE_PUT] + io_seconds[ZR_STORE_GET] + zr_params_wait_seconds(runtime)};
}
