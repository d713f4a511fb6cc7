/*
 * What a run says of shards of parameters that were offloaded: where they lived, what gathers read
 * and updates wrote, and how long each waited.
 */
#include "examples/train_report.h"

#include "examples/common/json.h"

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *read_object(const train_offload_params_t *params) {
    const zr_params_reads_t *gathers = &params->gathers;
    return json_pack("{s:I, s:I, s:I, s:f}", "bytes", (json_int_t)gathers->bytes, "moved_bytes",
                     (json_int_t)gathers->moved_bytes, "unused_bytes",
                     (json_int_t)params->unused_bytes, "wait_seconds", params->gather_wait_seconds);
}

static json_t *written_object(const train_offload_params_t *params) {
    const zr_store_count_t *updates = &params->updates;
    return json_pack("{s:I, s:I, s:f}", "bytes", (json_int_t)updates->bytes, "moved_bytes",
                     (json_int_t)updates->moved_bytes, "wait_seconds", params->update_wait_seconds);
}

static json_t *nvme_object(const train_options_t *options, const train_result_t *result) {
    const train_offload_params_t *params = &result->offload.params;
    json_t *object = json_object();
    bool made = json_put(object, "paths", json_text(options->config.nvme.paths));
    made &= json_put(object, "direct", json_boolean(params->is_direct));
    made &= json_put(object, "registered", json_boolean(params->is_registered));
    made &= json_put(object, "verified", json_boolean(options->config.nvme.verify));
    made &= json_put(object, "checksum_seconds", json_number(params->checksum_seconds));
    made &= json_put(object, "buffers", json_count(params->n_buffers));
    made &= json_put(object, "buffer_bytes", json_count(params->staging_bytes));
    made &= json_put(object, "read", read_object(params));
    made &= json_put(object, "written", written_object(params));
    made &= train_put_endurance(object, options, result);
    if (!made) {
        json_decref(object);
        return NULL;
    }
    return object;
}

json_t *train_params_object(const train_options_t *options, const train_result_t *result) {
    const train_offload_params_t *params = &result->offload.params;
    json_t *object = json_object();
    bool made = json_put(object, "device",
                         json_string(train_offload_name(options->config.offload_param.device)));
    made &= json_put(object, "bytes", train_tiers_object(params->bytes));
    made &= json_put(object, "copied_up_bytes", json_integer((json_int_t)params->copied_up_bytes));
    made &=
        json_put(object, "copied_down_bytes", json_integer((json_int_t)params->copied_down_bytes));
    if (params->has_store)
        made &= json_put(object, "nvme", nvme_object(options, result));
    if (!made) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* ---- for people ------------------------------------------------------------------------------ */

void train_params_summary(const train_options_t *options, const train_result_t *result,
                          FILE *file) {
    const train_offload_params_t *params = &result->offload.params;
    char first[32], second[32];
    if (options->config.offload_param.device == ZR_OFFLOAD_NONE)
        return;
    fprintf(file, "parameters   %s in host memory, %s on nvme; %s to gathered buffers\n",
            train_format_bytes((double)params->bytes[ZR_TIER_HOST], first, sizeof(first)),
            train_format_bytes((double)params->bytes[ZR_TIER_NVME], second, sizeof(second)),
            train_format_bytes((double)params->copied_up_bytes, (char[32]){0}, 32));
    if (!params->has_store)
        return;
    fprintf(file, "             gathers read %s, waited %.2f s; updates wrote %s, waited %.2f s\n",
            train_format_bytes((double)params->gathers.bytes, first, sizeof(first)),
            params->gather_wait_seconds,
            train_format_bytes((double)params->updates.bytes, second, sizeof(second)),
            params->update_wait_seconds);
    fprintf(file, "             %zu buffers, %s; checksums %s, %.2f s%s%s\n", params->n_buffers,
            train_format_bytes((double)params->staging_bytes, first, sizeof(first)),
            options->config.nvme.verify ? "on" : "off", params->checksum_seconds,
            params->is_direct ? "" : "; through the page cache",
            params->is_registered ? "" : "; buffers not registered");
}
