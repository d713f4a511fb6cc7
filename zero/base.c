/* What all parts of a runtime work with: see base_internal.h. */
#include "zero/base_internal.h"

static zr_status_t create_update_stream(zr_base_t *base) {
    ZR_TRY(zr_stream_create(base->device, "update", &base->update));
    ZR_TRY(zr_event_create(base->device, &base->computed));
    return zr_event_create(base->device, &base->updated);
}

static zr_status_t create_streams(zr_base_t *base) {
    ZR_TRY(zr_stream_create(base->device, "compute", &base->compute));
    if (base->config.overlap_comm)
        ZR_TRY(zr_stream_create_concurrent(base->device, "comm", &base->transfer));
    else
        base->transfer = base->compute;
    if (zr_base_updates_in_backward(base) && !zr_device_info(base->device)->computes_on_host &&
        base->config.offload_optimizer.device != ZR_OFFLOAD_NONE)
        ZR_TRY(create_update_stream(base));
    else
        base->update = base->compute;
    return zr_event_create(base->device, &base->order);
}

zr_status_t zr_base_create(zr_heap_t *heap, const zr_config_t *config, zr_comm_t *comm,
                           zr_device_t *device, const zr_log_t *log, zr_base_t *base) {
    zr_allocator_options_t options = zr_allocator_options_default();
    *base = (zr_base_t){.heap = heap,
                        .config = *config,
                        .log = *log,
                        .owner = getpid(),
                        .device = device,
                        .rank = zr_comm_rank(comm),
                        .n_ranks = zr_comm_n_ranks(comm)};
    ZR_TRY(zr_sharding_create(comm, config->shard_group_size, &base->sharding));
    options.log = base->log;
    options.budget_bytes[ZR_TIER_DEVICE] = config->device_memory_bytes;
    options.budget_bytes[ZR_TIER_HOST] = config->host_memory_bytes;
    options.process_bytes = zr_config_rank_memory(config);
    options.advice = zr_base_advice(config, base->sharding.n_shards);
    ZR_TRY(zr_allocator_create_in(heap, device, &options, &base->allocator));
    zr_sharding_set_allocator(&base->sharding, base->allocator);
    return create_streams(base);
}

/* Nothing may run on memory that is given back; that some of it failed is known already. */
void zr_base_drain(zr_stream_t *stream) {
    if (stream != NULL && zr_stream_synchronize(stream) != ZR_OK)
        return;
}

void zr_base_destroy(zr_base_t *base) {
    zr_event_destroy(&base->order);
    zr_event_destroy(&base->computed);
    zr_event_destroy(&base->updated);
    if (base->transfer != base->compute)
        zr_stream_destroy(&base->transfer);
    if (base->update != base->compute)
        zr_stream_destroy(&base->update);
    zr_stream_destroy(&base->compute);
    zr_sharding_set_allocator(&base->sharding, NULL);
    zr_sharding_destroy(&base->sharding);
    zr_allocator_destroy(&base->allocator);
}

zr_status_t zr_base_no_memory(const zr_base_t *base, const char *what) {
    return zr_fail(&base->log, ZR_ERR_MEMORY, "the system has no memory for %s", what);
}

void zr_base_place_below(zr_offload_device_t device, size_t in_cpu_elems,
                         zr_placement_options_t *options) {
    static const zr_tier_t tiers[] = {ZR_TIER_DEVICE, ZR_TIER_HOST, ZR_TIER_NVME};
    options->upper = ZR_TIER_DEVICE;
    options->lower = tiers[device];
    if (device != ZR_OFFLOAD_NVME || in_cpu_elems == 0)
        return;
    options->lower = ZR_TIER_HOST;
    options->has_lowest = true;
    options->lowest = ZR_TIER_NVME;
    options->most_lower_elems = in_cpu_elems;
}

static zr_status_t order_by(zr_event_t *event, zr_stream_t *earlier, zr_stream_t *later) {
    ZR_TRY(zr_event_record(event, earlier));
    return zr_stream_wait(later, event);
}

zr_status_t zr_base_begin_updates(const zr_base_t *base) {
    return base->update == base->compute ? ZR_OK
                                         : order_by(base->computed, base->compute, base->update);
}

zr_status_t zr_base_end_updates(const zr_base_t *base, zr_stream_t *later) {
    return base->update == base->compute ? zr_base_order(base, base->compute, later)
                                         : order_by(base->updated, base->update, later);
}

zr_status_t zr_base_order(const zr_base_t *base, zr_stream_t *earlier, zr_stream_t *later) {
    return earlier == later ? ZR_OK : order_by(base->order, earlier, later);
}

zr_status_t zr_base_allocate(const zr_base_t *base, size_t size_bytes, zr_tag_t tag,
                             zr_lifetime_t lifetime, const char *name, zr_stream_t *stream,
                             void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_DEVICE,
                                       .tag = tag,
                                       .lifetime = lifetime,
                                       .name = name,
                                       .stream = stream};
    return zr_allocate(base->allocator, &request, pointer_p);
}

zr_status_t zr_base_allocate_host(const zr_base_t *base, size_t size_bytes, zr_tag_t tag,
                                  const char *name, void **pointer_p) {
    zr_allocation_request_t request = {.size_bytes = size_bytes,
                                       .tier = ZR_TIER_HOST,
                                       .tag = tag,
                                       .lifetime = ZR_LIFETIME_PERSISTENT,
                                       .name = name};
    return zr_allocate(base->allocator, &request, pointer_p);
}

zr_status_t zr_base_gather_control(const zr_base_t *base, zr_comm_t *comm, const char *tensor,
                                   zr_dtype_t dtype, void *all, size_t n_elems) {
    zr_message_t message = {.tensor = tensor, .dtype = dtype, .traffic = ZR_TRAFFIC_CONTROL};
    char *own = (char *)all + (size_t)zr_comm_rank(comm) * n_elems * zr_dtype_size(dtype);
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    ZR_TRY(zr_comm_all_gather(comm, &message, own, all, n_elems, base->transfer));
    return zr_base_order(base, base->transfer, base->compute);
}
