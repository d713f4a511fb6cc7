/*
 * The simulated device: it has the properties of another one, and takes time of a virtual clock
 * for what would run there. Nothing is moved or computed.
 *
 * Streams know when what they were given is done, and events when they pass; so nothing runs in
 * the background, and waiting is setting the clock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim_device.h"

static zr_sim_device_t *sim_of(const zr_stream_t *stream) {
    return (zr_sim_device_t *)stream->device;
}

/* ---- the device ------------------------------------------------------------------------------ */

static zr_status_t check_options(const zr_device_options_t *options) {
    if (options->index != 0)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT, "sim device: index %d; must be 0",
                       options->index);
    if (options->isa != NULL)
        return zr_fail(&options->log, ZR_ERR_ARGUMENT,
                       "sim device: instruction set \"%s\"; not supported, as its speed follows "
                       "from the hardware description",
                       options->isa);
    return options->hardware == NULL ? ZR_OK : zr_hardware_check(options->hardware, &options->log);
}

static void fill_info(zr_sim_device_t *sim) {
    const zr_hardware_t *hardware = &sim->hardware;
    bool is_host = hardware->kind == ZR_HARDWARE_HOST || sim->concurrent != NULL;
    sim->base.info = (zr_device_info_t){.host_addressable = is_host,
                                        .synchronous = is_host && !sim->has_concurrent,
                                        .granule_bytes = hardware->granule_bytes,
                                        .memory_bytes = is_host ? hardware->host_memory_bytes
                                                                : zr_hardware_device_room(hardware),
                                        .host_memory_bytes = hardware->host_memory_bytes,
                                        .n_threads = is_host ? hardware->n_threads : 0,
                                        .cuda_major = is_host ? 0 : hardware->cuda_major,
                                        .matmul_workspace_bytes = hardware->matmul_workspace_bytes,
                                        .computes_on_host = is_host,
                                        .stores_nothing = true};
    snprintf(sim->base.info.description, sizeof(sim->base.info.description), "%s, simulated as %s",
             hardware->name, is_host ? "host" : zr_hardware_kind_name(hardware->kind));
}

static void sim_close(zr_device_t *device) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    zr_sim_clock_destroy(&sim->own_clock);
    free(sim);
}

static zr_status_t sim_open(const zr_device_options_t *options, zr_device_t **device_p) {
    ZR_TRY(check_options(options));
    zr_sim_device_t *sim = calloc(1, sizeof(*sim));
    if (sim == NULL)
        return zr_fail(&options->log, ZR_ERR_MEMORY, "sim device: no memory (%zu bytes)",
                       sizeof(*sim));
    sim->hardware = options->hardware != NULL ? *options->hardware : zr_hardware_default();
    sim->processor = sim->hardware.device;
    sim->part = ZR_SIM_COMPUTE;
    sim->has_links = sim->hardware.kind != ZR_HARDWARE_HOST;
    sim->has_concurrent = options->concurrent && sim->hardware.kind == ZR_HARDWARE_HOST;
    sim->clock = options->clock;
    if (sim->clock == NULL) {
        zr_status_t status = zr_sim_clock_create(&options->log, &sim->own_clock);
        if (status != ZR_OK) {
            free(sim);
            return status;
        }
        sim->clock = sim->own_clock;
    }
    fill_info(sim);
    *device_p = &sim->base;
    return ZR_OK;
}

/* The processors beside a device, on the same clock. Their threads are the description's. */
static zr_status_t sim_open_host(zr_device_t *device, const zr_device_options_t *options,
                                 zr_device_t **host_p) {
    const zr_sim_device_t *concurrent = (const zr_sim_device_t *)device;
    zr_sim_device_t *sim = calloc(1, sizeof(*sim));
    if (sim == NULL)
        return zr_fail(&options->log, ZR_ERR_MEMORY, "sim device: no memory (%zu bytes)",
                       sizeof(*sim));
    sim->hardware = concurrent->hardware;
    sim->processor = concurrent->has_links ? sim->hardware.host : sim->hardware.device;
    sim->part = concurrent->has_links ? ZR_SIM_HOST : ZR_SIM_COMPUTE;
    sim->clock = concurrent->clock;
    sim->concurrent = concurrent;
    fill_info(sim);
    *host_p = &sim->base;
    return ZR_OK;
}

static double sim_now(const zr_device_t *device) {
    return zr_sim_clock_now(((const zr_sim_device_t *)device)->clock);
}

zr_sim_clock_t *zr_sim_clock_of(const zr_device_t *device) {
    return device->backend == &zr_sim_backend ? ((const zr_sim_device_t *)device)->clock : NULL;
}

const zr_hardware_t *zr_sim_hardware_of(const zr_device_t *device) {
    return device->backend == &zr_sim_backend ? &((const zr_sim_device_t *)device)->hardware : NULL;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static zr_status_t sim_stream_create_concurrent(zr_device_t *device, const char *name,
                                                zr_stream_t **stream_p) {
    zr_sim_stream_t *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "stream \"%s\": no memory (%zu bytes)", name,
                       sizeof(*stream));
    stream->base.is_synchronous = device->info.synchronous;
    stream->queue.number = zr_sim_number_queue(((zr_sim_device_t *)device)->clock);
    *stream_p = &stream->base;
    return ZR_OK;
}

static zr_status_t sim_stream_create(zr_device_t *device, const char *name,
                                     zr_stream_t **stream_p) {
    ZR_TRY(sim_stream_create_concurrent(device, name, stream_p));
    (*stream_p)->is_synchronous = device->info.host_addressable;
    return ZR_OK;
}

/* Ask for what the thread may wait for. On a host with streams beside it, that is counted. */
static bool ask(zr_device_t *device, zr_sim_op_t op, zr_stream_t *stream, zr_event_t *event) {
    zr_sim_device_t *sim = (zr_sim_device_t *)device;
    double before = zr_sim_clock_now(sim->clock);
    bool found =
        zr_sim_ask(sim->clock, &op, stream != NULL ? &((zr_sim_stream_t *)stream)->queue : NULL,
                   event != NULL ? &((zr_sim_event_t *)event)->record : NULL);
    if (sim->has_concurrent && op.kind != ZR_SIM_OP_ASK_EVENT)
        sim->wait_seconds += zr_sim_clock_now(sim->clock) - before;
    return found;
}

static double sim_wait_seconds(const zr_device_t *device) {
    return ((const zr_sim_device_t *)device)->wait_seconds;
}

static zr_status_t sim_stream_synchronize(zr_stream_t *stream) {
    (void)ask(stream->device, (zr_sim_op_t){.kind = ZR_SIM_OP_AWAIT_QUEUE}, stream, NULL);
    return ZR_OK;
}

static void sim_stream_destroy(zr_stream_t *stream) {
    zr_sim_clock_wait(sim_of(stream)->clock, ((zr_sim_stream_t *)stream)->queue.ready);
    free(stream);
}

static zr_status_t sim_event_create(zr_device_t *device, zr_event_t **event_p) {
    zr_sim_event_t *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return zr_fail(&device->log, ZR_ERR_MEMORY, "no memory for an event (%zu bytes)",
                       sizeof(*event));
    *event_p = &event->base;
    return ZR_OK;
}

static void sim_event_destroy(zr_event_t *event) {
    free(event);
}

static zr_status_t sim_event_record(zr_event_t *event, zr_stream_t *stream) {
    (void)ask(event->device, (zr_sim_op_t){.kind = ZR_SIM_OP_RECORD}, stream, event);
    return ZR_OK;
}

static zr_status_t sim_stream_wait(zr_stream_t *stream, zr_event_t *event) {
    const zr_sim_op_t op = {.kind = ZR_SIM_OP_FOLLOW, .holds = stream->is_synchronous};
    (void)ask(stream->device, op, stream, event);
    return ZR_OK;
}

static zr_status_t sim_event_synchronize(zr_event_t *event) {
    (void)ask(event->device, (zr_sim_op_t){.kind = ZR_SIM_OP_AWAIT_EVENT}, NULL, event);
    return ZR_OK;
}

static zr_status_t sim_event_query(zr_event_t *event, bool *passed_p) {
    const zr_sim_device_t *sim = (const zr_sim_device_t *)event->device;
    const zr_sim_op_t op = {.kind = ZR_SIM_OP_ASK_EVENT, .launch = sim->hardware.launch_s};
    *passed_p = ask(event->device, op, NULL, event);
    return ZR_OK;
}

static zr_status_t sim_event_peek(zr_event_t *event, bool *passed_p) {
    const zr_sim_device_t *sim = (const zr_sim_device_t *)event->device;
    *passed_p =
        ((zr_sim_event_t *)event)->record.passes <= zr_sim_clock_now(sim->clock) + ZR_SIM_INSTANT;
    return ZR_OK;
}

static void sim_last_work(const zr_stream_t *stream, double *begin_p, double *end_p) {
    *begin_p = ((const zr_sim_stream_t *)stream)->queue.begin;
    *end_p = ((const zr_sim_stream_t *)stream)->queue.ready;
}

/* ---- work ------------------------------------------------------------------------------------ */

static double queue_work(zr_stream_t *stream, zr_sim_op_t op) {
    const zr_sim_device_t *sim = sim_of(stream);
    zr_sim_queue_t *queue = &((zr_sim_stream_t *)stream)->queue;
    op.kind = ZR_SIM_OP_WORK;
    op.holds = stream->is_synchronous;
    op.launch = sim->hardware.launch_s;
    (void)zr_sim_ask(sim->clock, &op, queue, NULL);
    return queue->ready;
}

double zr_sim_queue(zr_stream_t *stream, zr_sim_part_t part, const char *name, double seconds) {
    return queue_work(stream, (zr_sim_op_t){.part = part, .name = name, .seconds = seconds});
}

/* Seconds of products: operations, and what of their bytes is not hidden. */
static double product_seconds(const zr_processor_t *processor, const zr_charge_t *charge,
                              double part_of_rate) {
    bool is_bf16 = charge->dtype == ZR_DTYPE_BF16;
    double ops_per_s =
        is_bf16 ? processor->matrix_bf16_ops_per_s : processor->matrix_fp32_ops_per_s;
    double bytes_per_s =
        is_bf16 ? processor->matrix_bf16_bytes_per_s : processor->matrix_fp32_bytes_per_s;
    return charge->cost.operations / (part_of_rate * ops_per_s) + charge->cost.bytes / bytes_per_s;
}

static double compute_seconds(const zr_processor_t *processor, const zr_charge_t *charge) {
    switch (charge->rate) {
    case ZR_RATE_MATRIX:
        return product_seconds(processor, charge, 1.0);
    case ZR_RATE_ATTENTION:
        return product_seconds(processor, charge, processor->attention_fraction);
    case ZR_RATE_LM_HEAD:
        return product_seconds(processor, charge, processor->lm_head_ratio);
    case ZR_RATE_VECTOR:
    case ZR_RATE_UPDATE:
        break;
    }
    return charge->cost.operations / processor->vector_ops_per_s;
}

static void sim_charge(zr_stream_t *stream, const zr_charge_t *charge) {
    const zr_sim_device_t *sim = sim_of(stream);
    double bytes_per_s = charge->rate == ZR_RATE_UPDATE ? sim->processor.update_bytes_per_s
                                                        : sim->processor.memory_bytes_per_s;
    double compute = compute_seconds(&sim->processor, charge);
    double move = charge->cost.bytes / bytes_per_s;
    bool is_update = charge->rate == ZR_RATE_UPDATE;
    bool is_beside = is_update && sim->part == ZR_SIM_COMPUTE && sim->has_links;
    const zr_sim_op_t op = {.part = is_beside ? ZR_SIM_UPDATE : sim->part,
                            .name = charge->kernel,
                            .is_update = is_update,
                            .seconds =
                                (compute > move ? compute : move) + sim->processor.kernel_latency_s,
                            .latency = sim->processor.kernel_latency_s};
    (void)queue_work(stream, op);
}

/* A copy within a memory reads and writes it. */
static double copy_seconds(const zr_sim_device_t *sim, size_t size_bytes, zr_copy_t kind) {
    const zr_link_t *link =
        kind == ZR_COPY_HOST_TO_DEVICE ? &sim->hardware.to_device : &sim->hardware.to_host;
    if (!sim->has_links || kind == ZR_COPY_DEVICE_TO_DEVICE)
        return 2.0 * (double)size_bytes / sim->processor.memory_bytes_per_s +
               sim->processor.kernel_latency_s;
    return (double)size_bytes / link->bytes_per_s + link->latency_s;
}

static zr_status_t sim_copy_async(zr_stream_t *stream, void *dst, const void *src,
                                  size_t size_bytes, zr_copy_t kind) {
    static const char *const names[] = {"copy to device", "copy to host", "copy"};
    const zr_sim_device_t *sim = sim_of(stream);
    zr_sim_part_t part = sim->part;
    (void)src;
    if (sim->has_links && kind != ZR_COPY_DEVICE_TO_DEVICE)
        part = kind == ZR_COPY_HOST_TO_DEVICE ? ZR_SIM_TO_DEVICE : ZR_SIM_TO_HOST;
    zr_sim_queue(stream, part, names[kind], copy_seconds(sim, size_bytes, kind));
    if (kind == ZR_COPY_DEVICE_TO_HOST && !zr_sim_has_address(sim, dst))
        memset(dst, 0, size_bytes); /* what is read from a simulation is nothing, and no chance */
    return ZR_OK;
}

/* A kernel's time is taken by sim_charge. */
static zr_status_t sim_run(zr_stream_t *stream, const zr_kernel_work_t *work) {
    (void)stream, (void)work;
    return ZR_OK;
}

const zr_device_backend_t zr_sim_backend = {
    .name = "sim",
    .open = sim_open,
    .close = sim_close,
    .open_host = sim_open_host,
    .now = sim_now,
    .range_reserve = zr_sim_range_reserve,
    .range_release = zr_sim_range_release,
    .range_map = zr_sim_range_map,
    .range_unmap = zr_sim_range_unmap,
    .range_move = zr_sim_range_move,
    .stream_create = sim_stream_create,
    .stream_create_concurrent = sim_stream_create_concurrent,
    .wait_seconds = sim_wait_seconds,
    .stream_destroy = sim_stream_destroy,
    .stream_synchronize = sim_stream_synchronize,
    .event_create = sim_event_create,
    .event_destroy = sim_event_destroy,
    .event_record = sim_event_record,
    .stream_wait = sim_stream_wait,
    .event_synchronize = sim_event_synchronize,
    .event_query = sim_event_query,
    .event_peek = sim_event_peek,
    .copy_async = sim_copy_async,
    .last_work = sim_last_work,
    .charge = sim_charge,
    .run = sim_run,
};
