/*
 * The life of a runtime: create, groups, units and parameters, commit, destroy. What happens in
 * a step is in unit.c and step.c.
 *
 * Everything that can differ between ranks and would end in a wrong sum or a hang is agreed on
 * in commit: configuration, groups, units, names, sizes.
 */
#include "zero/runtime_internal.h"

#include <inttypes.h>
#include <string.h>

#include <xxhash.h>

#include "zero/options.h"

/* Of looking for a lower plan beside training, where there may be one. */
#define PLAN_SEARCH_SECONDS 2.0

/* ---- what may be called ---- */

zr_status_t zr_rt_note(zr_runtime_t *runtime, zr_status_t status) {
    if (status != ZR_OK && runtime->failed == ZR_OK)
        runtime->failed = status;
    return status;
}

zr_status_t zr_rt_check_ready(const zr_runtime_t *runtime, const char *call) {
    const zr_log_t *log = &runtime->base.log;
    ZR_TRY(zr_owner_check(runtime->base.owner, log, call, "the runtime"));
    if (runtime->failed != ZR_OK)
        return zr_fail(log, ZR_ERR_STATE,
                       "%s: the runtime has failed before (%s) and can only be destroyed", call,
                       zr_status_name(runtime->failed));
    if (!runtime->committed)
        return zr_fail(log, ZR_ERR_STATE, "%s before zr_runtime_commit", call);
    return ZR_OK;
}

zr_status_t zr_rt_check_outside(const zr_runtime_t *runtime, const char *call) {
    ZR_TRY(zr_rt_check_ready(runtime, call));
    if (runtime->base.progress.in_micro_batch)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "%s inside a micro-batch; step first",
                       call);
    return ZR_OK;
}

static zr_status_t check_building(const zr_runtime_t *runtime, const char *call) {
    ZR_TRY(zr_owner_check(runtime->base.owner, &runtime->base.log, call, "the runtime"));
    if (runtime->failed != ZR_OK || runtime->committed)
        return zr_fail(&runtime->base.log, ZR_ERR_STATE, "%s after %s", call,
                       runtime->committed ? "zr_runtime_commit" : "an error");
    return ZR_OK;
}

/* ---- create and destroy ---- */

static zr_status_t check_config(const zr_config_t *config, int n_ranks, const zr_log_t *log) {
    zr_config_t resolved = *config;
    ZR_TRY(zr_config_resolve(&resolved, n_ranks, log));
    if (resolved.micro_batch != config->micro_batch || resolved.grad_accum != config->grad_accum)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "the configuration has unresolved batch sizes: call zr_config_resolve first");
    return ZR_OK;
}

/* What each part works with, beside itself. */
static void connect_parts(zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    runtime->grads = (zr_grads_t){.base = base,
                                  .model = &runtime->model,
                                  .state = &runtime->state.placement,
                                  .copies = &runtime->copies,
                                  .drive = {.base = base, .placement = &runtime->grads.placement}};
    runtime->params = (zr_params_t){.base = base, .model = &runtime->model};
    runtime->state = (zr_state_t){.base = base,
                                  .model = &runtime->model,
                                  .copies = &runtime->copies,
                                  .grads = &runtime->grads,
                                  .params = &runtime->params};
    runtime->nvme.base = base;
    runtime->saves.base = base;
    runtime->saves.exchange = &runtime->exchange;
}

zr_status_t zr_runtime_create(const zr_config_t *config, zr_comm_t *comm, zr_device_t *device,
                              const zr_log_t *log, zr_runtime_t **runtime_p) {
    zr_log_t own_log = log ? *log : zr_log_default();
    if (config == NULL || comm == NULL || device == NULL || runtime_p == NULL)
        return zr_fail(&own_log, ZR_ERR_ARGUMENT,
                       "zr_runtime_create needs a configuration, a communicator, a device and an "
                       "output pointer");
    own_log.rank = zr_comm_rank(comm);
    ZR_TRY(check_config(config, zr_comm_n_ranks(comm), &own_log));
    zr_heap_t *heap = zr_heap_create(NULL);
    zr_runtime_t *runtime = heap != NULL ? zr_heap_alloc(heap, 1, sizeof(*runtime)) : NULL;
    if (runtime == NULL) {
        zr_heap_destroy(&heap);
        return zr_fail(&own_log, ZR_ERR_MEMORY, "the system has no memory for a runtime");
    }
    zr_group_t group = {
        .name = "default", .weight_decay = config->adamw.weight_decay, .lr_scale = 1.0};
    int number;
    connect_parts(runtime);
    zr_status_t status = zr_base_create(heap, config, comm, device, &own_log, &runtime->base);
    ZR_THEN(status, zr_units_add_group(&runtime->model, &runtime->base, &group, &number));
    if (status != ZR_OK)
        zr_runtime_destroy(&runtime);
    else
        *runtime_p = runtime;
    return status;
}

void zr_runtime_destroy(zr_runtime_t **runtime_pp) {
    if (runtime_pp == NULL || *runtime_pp == NULL)
        return;
    zr_runtime_t *runtime = *runtime_pp;
    zr_base_t *base = &runtime->base;
    *runtime_pp = NULL;
    if (!zr_owner_is_here(base->owner)) {
        zr_store_destroy(&runtime->nvme.store);
        return;
    }
    zr_base_drain(base->compute);
    if (base->transfer != base->compute)
        zr_base_drain(base->transfer);
    if (base->update != base->compute)
        zr_base_drain(base->update);
    zr_base_drain(runtime->copies.down);
    zr_base_drain(runtime->copies.up);
    zr_saves_destroy(&runtime->saves);
    zr_restore_end(&runtime->restore);
    zr_params_destroy(&runtime->params);
    zr_units_clear(&runtime->model);
    zr_grads_destroy(&runtime->grads);
    zr_exchange_destroy(&runtime->exchange);
    if (base->allocator != NULL)
        zr_allocator_replay_stop(base->allocator); /* while there are streams */
    zr_state_destroy(&runtime->state);
    zr_copies_destroy(&runtime->copies);
    zr_nvme_close(&runtime->nvme);
    if (base->allocator != NULL)
        zr_units_unshare(&runtime->model, base);
    zr_base_destroy(base);
    zr_heap_t *heap = base->heap;
    zr_heap_destroy(&heap);
}

/* ---- groups, units, parameters ---- */

/* What was asked for wrongly can be asked for again. */
static zr_status_t note_unless_refused(zr_runtime_t *runtime, zr_status_t status) {
    return status == ZR_ERR_MEMORY ? zr_rt_note(runtime, status) : status;
}

zr_status_t zr_runtime_add_group(zr_runtime_t *runtime, const zr_group_t *group, int *group_p) {
    ZR_TRY(check_building(runtime, "zr_runtime_add_group"));
    return note_unless_refused(runtime,
                               zr_units_add_group(&runtime->model, &runtime->base, group, group_p));
}

/* That of an update is the same on all ranks. */
static zr_status_t agree_on_group(zr_runtime_t *runtime, int number, double weight_decay,
                                  double lr_scale) {
    const zr_base_t *base = &runtime->base;
    const double values[3] = {number, weight_decay, lr_scale}, *all = NULL;
    ZR_TRY(zr_exchange_values(&runtime->exchange, values, 3, &all));
    for (int rank = 1; rank < base->n_ranks; rank++)
        if (memcmp(all, all + (size_t)rank * 3, sizeof(values)) != 0)
            return zr_fail(&base->log, ZR_ERR_COMM,
                           "rank %d gives parameter group %g weight_decay %g and lr_scale %g; rank "
                           "0 gives group %g %g and %g",
                           rank, all[rank * 3], all[rank * 3 + 1], all[rank * 3 + 2], all[0],
                           all[1], all[2]);
    return ZR_OK;
}

zr_status_t zr_runtime_change_group(zr_runtime_t *runtime, int group, double weight_decay,
                                    double lr_scale) {
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_change_group"));
    ZR_TRY(zr_rt_note(runtime, agree_on_group(runtime, group, weight_decay, lr_scale)));
    return zr_units_change_group(&runtime->model, &runtime->base, group, weight_decay, lr_scale);
}

static const char *hyper_name(const zr_update_rule_t *rule, double index) {
    return (size_t)index < rule->n_hypers ? rule->hypers[(size_t)index].name : "an unknown one";
}

static zr_status_t agree_on_hyper(zr_runtime_t *runtime, int number, size_t index, double value) {
    const zr_base_t *base = &runtime->base;
    const zr_update_rule_t *rule = &zr_config_optimizer(&base->config)->rule;
    const double values[3] = {number, (double)index, value}, *all = NULL;
    ZR_TRY(zr_exchange_values(&runtime->exchange, values, 3, &all));
    for (int rank = 1; rank < base->n_ranks; rank++) {
        const double *of_rank = all + (size_t)rank * 3;
        if (memcmp(all, of_rank, sizeof(values)) != 0)
            return zr_fail(&base->log, ZR_ERR_COMM,
                           "rank %d gives parameter group %g %s %g; rank 0 gives group %g %s %g",
                           rank, of_rank[0], hyper_name(rule, of_rank[1]), of_rank[2], all[0],
                           hyper_name(rule, all[1]), all[2]);
    }
    return ZR_OK;
}

zr_status_t zr_runtime_change_hyper(zr_runtime_t *runtime, int group, const char *name,
                                    double value) {
    ZR_TRY(zr_rt_check_ready(runtime, "zr_runtime_change_hyper"));
    if (name == NULL)
        return zr_fail(&runtime->base.log, ZR_ERR_ARGUMENT, "zr_runtime_change_hyper: no name");
    size_t index = zr_update_rule_hyper(&zr_config_optimizer(&runtime->base.config)->rule, name);
    ZR_TRY(zr_rt_note(runtime, agree_on_hyper(runtime, group, index, value)));
    return zr_units_change_hyper(&runtime->model, &runtime->base, group, name, value);
}

zr_status_t zr_runtime_add_unit(zr_runtime_t *runtime, const char *name, zr_unit_t **unit_p) {
    ZR_TRY(check_building(runtime, "zr_runtime_add_unit"));
    ZR_TRY(
        note_unless_refused(runtime, zr_units_add(&runtime->model, &runtime->base, name, unit_p)));
    (*unit_p)->runtime = runtime;
    return ZR_OK;
}

zr_status_t zr_unit_add_param(zr_unit_t *unit, const zr_param_desc_t *desc, zr_param_t **param_p) {
    zr_runtime_t *runtime = unit->runtime;
    ZR_TRY(check_building(runtime, "zr_unit_add_param"));
    return note_unless_refused(runtime, zr_units_add_param(&runtime->model, unit, desc, param_p));
}

zr_status_t zr_runtime_add_extents(zr_runtime_t *runtime, const zr_extents_desc_t *desc,
                                   zr_extents_t *extents_p) {
    ZR_TRY(check_building(runtime, "zr_runtime_add_extents"));
    return note_unless_refused(runtime, zr_nvme_declare(&runtime->nvme, desc, extents_p));
}

/* ---- commit: agreement ---- */

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
    const zr_base_t *base = &runtime->base;
    uint64_t *all = zr_heap_alloc(base->heap, n * (size_t)base->n_ranks, sizeof(*all));
    if (all == NULL)
        return zr_base_no_memory(base, "the agreement of ranks");
    zr_status_t status =
        zr_exchange_words(&runtime->exchange, "options that differ", words, n, all);
    for (size_t i = 0; i < n * (size_t)base->n_ranks && status == ZR_OK; i++)
        if (all[i] != all[i % n])
            status = zr_fail(&base->log, ZR_ERR_COMM,
                             "rank %zu has another configuration than rank 0, in %s: start all "
                             "ranks with the same options",
                             i / n, agreed_option(i % n));
    zr_heap_free(base->heap, all);
    return status;
}

/* Two words: one for the configuration, one for the model. */
static zr_status_t agree(zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    uint64_t options[ZR_OPTIONS_MOST], words[2];
    size_t n = hash_options(&base->config, options);
    words[0] = XXH3_64bits(options, n * sizeof(options[0]));
    ZR_TRY(zr_units_hash(&runtime->model, base, &words[1]));
    uint64_t *all = zr_heap_alloc(base->heap, 2 * (size_t)base->n_ranks, sizeof(*all));
    if (all == NULL)
        return zr_base_no_memory(base, "the agreement of ranks");
    zr_status_t status = zr_exchange_words(&runtime->exchange,
                                           "agreement on model and configuration", words, 2, all);
    for (int rank = 1; rank < base->n_ranks && status == ZR_OK; rank++)
        if (all[2 * rank] != all[0])
            status = refuse_config(runtime, options, n);
    for (int rank = 1; rank < base->n_ranks && status == ZR_OK; rank++)
        if (all[2 * rank + 1] != all[1])
            status = zr_fail(&base->log, ZR_ERR_COMM,
                             "rank %d has another model than rank 0 (hash %016" PRIx64
                             ", rank 0 has %016" PRIx64 "): start all ranks with the same options",
                             rank, all[2 * rank + 1], all[1]);
    zr_heap_free(base->heap, all);
    return status;
}

/* ---- commit ---- */

static zr_status_t allocate_params(zr_params_t *params, zr_unit_t *unit) {
    for (int kind = 0; kind < N_FLATS; kind++) {
        const zr_flat_t *flat = &unit->flat[kind];
        zr_unit_params_t *data = &unit->data[kind];
        if (flat->padded_elems == 0)
            continue;
        if (zr_unit_is_offloaded(unit, kind)) {
            ZR_TRY(zr_params_allocate(params, unit, kind));
            continue;
        }
        bool full = zr_unit_keeps_full(unit, kind);
        size_t n_elems = full ? flat->padded_elems : flat->shard_elems;
        ZR_TRY(zr_base_allocate(unit->base, zr_unit_bytes(unit, kind, n_elems), ZR_TAG_PARAMETERS,
                                ZR_LIFETIME_PERSISTENT, unit->params_tensor, NULL, &data->own));
        if (full && !zr_unit_is_encoded(unit, kind))
            data->full = data->own;
    }
    return ZR_OK;
}

static zr_status_t allocate_training(zr_runtime_t *runtime, zr_unit_t *unit) {
    if (unit->flat[FLAT_TRAINABLE].padded_elems == 0)
        return ZR_OK;
    ZR_TRY(zr_grads_allocate(&runtime->grads, unit));
    return zr_state_allocate_unit(&runtime->state, unit);
}

static zr_status_t plan_memory(const zr_base_t *base) {
    zr_replay_options_t options = zr_replay_options_default();
    options.compute = base->compute;
    options.is_as_long = base->is_of_longer;
    /* A simulated step takes no time to search in, and would have the same plan on any machine. */
    if (zr_base_has_data(base))
        options.search_seconds = PLAN_SEARCH_SECONDS;
    return base->config.plan_memory ? zr_allocator_replay_start(base->allocator, &options) : ZR_OK;
}

void zr_runtime_leave_out_values(zr_runtime_t *runtime) {
    runtime->base.has_no_values = !zr_base_has_data(&runtime->base);
}

void zr_runtime_stand_for_longer(zr_runtime_t *runtime) {
    runtime->base.is_of_longer = true;
}

zr_status_t zr_runtime_do_alike_once(zr_runtime_t *runtime, bool does) {
    bool *does_now = &runtime->base.does_alike_once;
    does = does && !zr_base_has_data(&runtime->base);
    if (does != *does_now) /* a pass ends as it began */
        ZR_TRY(zr_params_close_reads(&runtime->params));
    *does_now = does;
    return ZR_OK;
}

static zr_status_t create_events(zr_unit_t *unit) {
    zr_device_t *device = unit->base->device;
    ZR_TRY(zr_event_create(device, &unit->gathered));
    bool is_followed = zr_base_updates_in_backward(unit->base);
    return is_followed ? zr_event_create(device, &unit->grads_kept) : ZR_OK;
}

/* Stages 1 and 2 begin with the bits that publishing would leave, as they go on from a checkpoint.
 */
static zr_status_t settle_params(const zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    if (!zr_base_keeps_full_params(base) || base->config.stage == 0)
        return ZR_OK;
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        const zr_unit_t *unit = runtime->model.units[i];
        zr_encoded_t gathered = zr_encoded_params(base, unit->params_tensor);
        ZR_TRY(zr_encoded_settle(&gathered, unit->data[FLAT_TRAINABLE].own,
                                 unit->flat[FLAT_TRAINABLE].padded_elems));
    }
    return zr_stream_synchronize(base->transfer);
}

static zr_status_t commit(zr_runtime_t *runtime) {
    zr_state_t *state = &runtime->state;
    zr_params_t *params = &runtime->params;
    ZR_TRY(zr_state_prepare(state));
    ZR_TRY(zr_units_lay_out(&runtime->model, state->align_elems));
    ZR_TRY(zr_exchange_create(&runtime->exchange, &runtime->base));
    ZR_TRY(agree(runtime));
    zr_unit_warn_of_prefetch(runtime);
    ZR_TRY(zr_grads_create(&runtime->grads));
    ZR_TRY(zr_state_place(state, &runtime->nvme));
    ZR_TRY(zr_grads_place(&runtime->grads, &runtime->nvme));
    ZR_TRY(zr_params_place(params, &runtime->nvme));
    zr_buffers_choose(runtime);
    ZR_TRY(zr_nvme_open(&runtime->nvme));
    ZR_TRY(zr_state_create(state, runtime->nvme.store));
    ZR_TRY(zr_grads_drive_create(&runtime->grads.drive, runtime->nvme.store));
    ZR_TRY(zr_params_create(params, runtime->nvme.store));
    ZR_TRY(zr_restore_begin(&runtime->restore, &runtime->model, &runtime->base));
    ZR_TRY(zr_saves_prepare(&runtime->saves, &runtime->restore, &runtime->model));
    if (runtime->restore.checkpoint != NULL && runtime->base.rank == 0)
        ZR_TRY(zr_carried_open(runtime->restore.checkpoint, &runtime->base.log,
                               &runtime->saves.carried));
    bool is_filled = !runtime->base.has_no_values;
    if (!is_filled && runtime->nvme.store != NULL)
        zr_store_presume_put(runtime->nvme.store);
    ZR_TRY(is_filled ? zr_state_begin_fill(state) : ZR_OK);
    ZR_TRY(is_filled ? zr_params_begin_fill(params) : ZR_OK);
    for (size_t i = 0; i < runtime->model.n_units; i++) {
        zr_unit_t *unit = runtime->model.units[i];
        ZR_TRY(allocate_params(params, unit));
        ZR_TRY(allocate_training(runtime, unit));
        ZR_TRY(create_events(unit));
        for (int kind = 0; kind < N_FLATS && is_filled; kind++)
            ZR_TRY(zr_initial_place(runtime, unit, kind));
        if (!is_filled) /* as placing values does */
            ZR_TRY(zr_stream_synchronize(runtime->base.compute));
    }
    ZR_TRY(is_filled ? zr_state_end_fill(state) : ZR_OK);
    ZR_TRY(is_filled ? zr_params_end_fill(params) : ZR_OK);
    ZR_TRY(settle_params(runtime));
    zr_state_list_updates(state);
    zr_restore_end(&runtime->restore);
    ZR_TRY(zr_saves_reserve(&runtime->saves, state));
    zr_units_share(&runtime->model, &runtime->base);
    ZR_TRY(plan_memory(&runtime->base));
    runtime->committed = true; /* placing values has waited for all that compute had to do */
    return ZR_OK;
}

zr_status_t zr_runtime_commit(zr_runtime_t *runtime) {
    ZR_TRY(check_building(runtime, "zr_runtime_commit"));
    return zr_rt_note(runtime, commit(runtime));
}

/* ---- facts ---- */

zr_stream_t *zr_runtime_stream(zr_runtime_t *runtime) {
    return runtime->base.compute;
}

zr_allocator_t *zr_runtime_allocator(zr_runtime_t *runtime) {
    return runtime->base.allocator;
}

zr_device_t *zr_runtime_device(zr_runtime_t *runtime) {
    return runtime->base.device;
}

zr_comm_t *zr_runtime_comm(zr_runtime_t *runtime) {
    return runtime->base.sharding.all;
}

zr_store_t *zr_runtime_store(zr_runtime_t *runtime) {
    return runtime->nvme.store;
}

const zr_config_t *zr_runtime_config(const zr_runtime_t *runtime) {
    return &runtime->base.config;
}

const zr_log_t *zr_runtime_log(const zr_runtime_t *runtime) {
    return &runtime->base.log;
}

void zr_runtime_metadata(const zr_runtime_t *runtime, zr_byte_count_t *count_p) {
    zr_heap_count_t count = zr_heap_count(runtime->base.heap);
    *count_p = (zr_byte_count_t){.live = count.bytes, .peak = count.peak};
}

void zr_runtime_model_size(const zr_runtime_t *runtime, zr_model_size_t *size_p) {
    const zr_units_t *model = &runtime->model;
    zr_model_size_t size = {.n_units = model->n_units, .n_params = model->n_params};
    for (size_t i = 0; i < model->n_units; i++) {
        const zr_flat_t *trainable = &model->units[i]->flat[FLAT_TRAINABLE];
        const zr_flat_t *frozen = &model->units[i]->flat[FLAT_FROZEN];
        size.trainable_elems += trainable->used_elems;
        size.frozen_elems += frozen->used_elems;
        size.trainable_padded_elems += trainable->padded_elems;
        size.frozen_padded_elems += frozen->padded_elems;
        const zr_encoding_t *encoding = zr_unit_encoding(model->units[i], FLAT_FROZEN);
        size.frozen_bytes += zr_encoding_bytes(encoding, frozen->used_elems);
        size.frozen_padded_bytes += zr_encoding_bytes(encoding, frozen->padded_elems);
        size_t unit_elems = trainable->padded_elems + frozen->padded_elems;
        if (unit_elems > size.largest_unit_padded_elems)
            size.largest_unit_padded_elems = unit_elems;
    }
    *size_p = size;
}

void zr_runtime_comm_statistics(const zr_runtime_t *runtime, zr_level_t level,
                                zr_comm_statistics_t *statistics_p) {
    const zr_sharding_t *sharding = &runtime->base.sharding;
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
    zr_sharding_statistics(&runtime->base.sharding, &comm);
    const double *io_seconds = runtime->state.update_wait_seconds;
    *time_p = (zr_runtime_time_t){
        .comm_seconds = comm.move_seconds,
        .stall_seconds = comm.wait_seconds + zr_device_wait_seconds(runtime->base.device),
        .concurrent_seconds = comm.queued_wait_seconds + comm.queued_move_seconds,
        .optimizer_seconds = runtime->optimizer_seconds,
        .io_seconds = io_seconds[ZR_STORE_PUT] + io_seconds[ZR_STORE_GET] +
                      zr_params_wait_seconds(&runtime->params) +
                      zr_grads_drive_wait_seconds(&runtime->grads.drive)};
}

void zr_runtime_offload(const zr_runtime_t *runtime, zr_offload_report_t *report_p) {
    zr_state_report(&runtime->state, report_p);
}
