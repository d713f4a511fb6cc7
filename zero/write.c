/*
 * Changing parameters from outside a step: new values go to wherever a parameter lives, its fp32
 * master, its shard, and what of it is gathered.
 *
 * As in inspect.c values pass through the small staging buffer, a piece of one shard at a time: the
 * rank that has them gives a piece to all, and each keeps what is its own.
 */
#include "zero/runtime_internal.h"

#include <string.h>

/* Elements [first, first + n_elems) of a flat buffer, whose values are in both staging buffers. */
typedef struct piece {
    zr_unit_t *unit;
    int kind;
    size_t first;
    size_t n_elems;
} piece_t;

zr_status_t zr_rt_await_all(const zr_runtime_t *runtime) {
    const zr_base_t *base = &runtime->base;
    zr_stream_t *streams[] = {base->compute, base->transfer, runtime->copies.down,
                              runtime->copies.up};
    for (size_t i = 0; i < sizeof(streams) / sizeof(streams[0]); i++)
        if (streams[i] != NULL)
            ZR_TRY(zr_stream_synchronize(streams[i]));
    return zr_sharding_check(&base->sharding);
}

/* Root's values to the staging buffers of all ranks, on host and device. */
static zr_status_t share_values(zr_runtime_t *runtime, const piece_t *piece, const float *values,
                                int root) {
    const zr_base_t *base = &runtime->base;
    const zr_exchange_t *exchange = &runtime->exchange;
    size_t size_bytes = piece->n_elems * sizeof(float);
    zr_message_t message = {
        .tensor = piece->unit->params_tensor, .dtype = ZR_DTYPE_F32, .traffic = ZR_TRAFFIC_CONTROL};
    if (base->rank == root)
        memcpy(exchange->staging_host, values, size_bytes);
    ZR_TRY(zr_copy_async(base->compute, exchange->staging_device, exchange->staging_host,
                         size_bytes, ZR_COPY_HOST_TO_DEVICE));
    if (base->n_ranks == 1)
        return ZR_OK;
    ZR_TRY(zr_base_order(base, base->compute, base->transfer));
    ZR_TRY(zr_comm_broadcast(base->sharding.all, &message, exchange->staging_device, piece->n_elems,
                             root, base->transfer));
    ZR_TRY(zr_base_order(base, base->transfer, base->compute));
    ZR_TRY(zr_copy_async(base->compute, exchange->staging_host, exchange->staging_device,
                         size_bytes, ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(base->compute));
    return zr_sharding_check(&base->sharding);
}

/* Queue them, encoded, to a flat buffer on the device that begins at element `begin`. */
static zr_status_t encode_to(const zr_runtime_t *runtime, const piece_t *piece, void *buffer,
                             size_t begin) {
    const zr_base_t *base = &runtime->base;
    const zr_encoding_t *encoding = zr_unit_encoding(piece->unit, piece->kind);
    return encoding->queue_encode(encoding, base->compute, runtime->exchange.staging_device,
                                  ZR_DTYPE_F32, piece->n_elems,
                                  zr_base_at(base, buffer, piece->first - begin));
}

static zr_status_t write_shard(zr_runtime_t *runtime, const piece_t *piece) {
    zr_unit_t *unit = piece->unit;
    size_t begin = zr_unit_own_first(unit, piece->kind);
    if (piece->first < begin || piece->first >= begin + unit->flat[piece->kind].shard_elems)
        return ZR_OK;
    if (zr_unit_is_offloaded(unit, piece->kind))
        return zr_params_write(&runtime->params, unit, piece->kind, piece->first - begin,
                               piece->n_elems, runtime->exchange.staging_host);
    return encode_to(runtime, piece, unit->data[piece->kind].own, begin);
}

/* Where they are in full, or gathered now, and where this rank has its shard. */
static zr_status_t write_params(zr_runtime_t *runtime, const piece_t *piece) {
    const zr_unit_params_t *data = &piece->unit->data[piece->kind];
    if (data->full != NULL)
        ZR_TRY(encode_to(runtime, piece, data->full, 0));
    return data->full == NULL || data->full != data->own ? write_shard(runtime, piece) : ZR_OK;
}

static zr_status_t write_piece(zr_runtime_t *runtime, const piece_t *piece, const float *values,
                               int root) {
    zr_unit_t *unit = piece->unit;
    zr_state_values_t master = {.first = piece->first,
                                .n_elems = piece->n_elems,
                                .is_last = true,
                                .host = runtime->exchange.staging_host,
                                .device = runtime->exchange.staging_device};
    ZR_TRY(share_values(runtime, piece, values, root));
    ZR_TRY(write_params(runtime, piece));
    if (piece->kind == FLAT_TRAINABLE)
        ZR_TRY(zr_state_write(&runtime->state, unit, &master));
    return zr_stream_synchronize(unit->base->compute); /* the staging buffers are filled again */
}

static zr_status_t write_param(zr_param_t *param, size_t first, size_t n_elems, const float *values,
                               int root) {
    zr_runtime_t *runtime = param->unit->runtime;
    piece_t piece = {.unit = param->unit,
                     .kind = param->about->layout.frozen ? FLAT_FROZEN : FLAT_TRAINABLE,
                     .first = param->about->layout.offset_elems + first};
    size_t end = piece.first + n_elems;
    ZR_TRY(zr_rt_await_all(runtime));
    for (size_t done = 0; piece.first < end; piece.first += piece.n_elems, done += piece.n_elems) {
        piece.n_elems =
            zr_unit_piece_length(piece.unit, piece.kind, piece.first, end - piece.first);
        ZR_TRY(write_piece(runtime, &piece, values != NULL ? values + done : NULL, root));
    }
    return ZR_OK;
}

zr_status_t zr_unit_take_masters(zr_unit_t *unit) {
    zr_runtime_t *runtime = unit->runtime;
    zr_stream_t *compute = unit->base->compute;
    const zr_exchange_t *exchange = &runtime->exchange;
    zr_state_range_t range = zr_unit_state_range(unit);
    piece_t piece = {.unit = unit, .kind = FLAT_TRAINABLE, .first = range.first};
    size_t end = range.first + range.n_elems;
    ZR_TRY(zr_rt_await_all(runtime));
    for (; piece.first < end; piece.first += piece.n_elems) {
        piece.n_elems = zr_unit_piece_length(unit, piece.kind, piece.first, end - piece.first);
        ZR_TRY(zr_state_read(&runtime->state, unit, 0, piece.first, piece.n_elems,
                             exchange->staging_device, exchange->staging_host));
        ZR_TRY(zr_copy_async(compute, exchange->staging_host, exchange->staging_device,
                             piece.n_elems * sizeof(float), ZR_COPY_DEVICE_TO_HOST));
        ZR_TRY(zr_stream_synchronize(compute));
        ZR_TRY(write_params(runtime, &piece));
        ZR_TRY(zr_stream_synchronize(compute)); /* the staging buffers are filled again */
    }
    return ZR_OK;
}

static zr_status_t check_write(const zr_param_t *param, const float *values, size_t n_elems,
                               int root) {
    const zr_base_t *base = &param->unit->runtime->base;
    if (root < 0 || root >= base->n_ranks)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                       "values of rank %d for parameter \"%s\"; there are ranks 0 to %d", root,
                       param->about->name, base->n_ranks - 1);
    if (values == NULL && n_elems > 0 && base->rank == root)
        return zr_fail(&base->log, ZR_ERR_ARGUMENT, "no values (NULL) for %s of parameter \"%s\"",
                       zr_count_text(n_elems, "element").text, param->about->name);
    if (zr_unit_is_encoded(param->unit, param->about->layout.frozen ? FLAT_FROZEN : FLAT_TRAINABLE))
        return zr_fail(&base->log, ZR_ERR_UNSUPPORTED,
                       "parameter \"%s\" cannot be written: it is frozen, and kept in %s",
                       param->about->name, zr_unit_encoding(param->unit, FLAT_FROZEN)->name);
    if (!zr_base_has_data(base))
        return zr_fail(
            &base->log, ZR_ERR_UNSUPPORTED,
            "parameter \"%s\" cannot be written: device \"%s\" is simulated and stores no data",
            param->about->name, zr_device_info(base->device)->backend);
    return ZR_OK;
}

zr_status_t zr_param_write(zr_param_t *param, size_t first, size_t n_elems, const float *values,
                           int root) {
    ZR_TRY(zr_rt_check_param(param, "zr_param_write", first, n_elems));
    ZR_TRY(check_write(param, values, n_elems, root));
    return zr_rt_note(param->unit->runtime, write_param(param, first, n_elems, values, root));
}
