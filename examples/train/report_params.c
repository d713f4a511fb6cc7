/*
 * What a run says of shards of parameters that were offloaded: where they lived, what gathers read
 * and updates wrote, and how long each waited.
 */
#include "examples/train/report.h"

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
    json_put(&object, "paths", json_text(options->config.nvme.paths));
    json_put(&object, "direct", json_boolean(params->is_direct));
    json_put(&object, "registered", json_boolean(params->is_registered));
    json_put(&object, "verified", json_boolean(options->config.nvme.verify));
    json_put(&object, "checksum_seconds", json_number(params->checksum_seconds));
    json_put(&object, "buffers", json_count(params->n_buffers));
    json_put(&object, "buffer_bytes", json_count(params->staging_bytes));
    json_put(&object, "read", read_object(params));
    json_put(&object, "written", written_object(params));
    train_put_endurance(&object, options, result);
    return object;
}

json_t *train_params_object(const train_options_t *options, const train_result_t *result) {
    const train_offload_params_t *params = &result->offload.params;
    json_t *object = json_object();
    json_put(&object, "device",
             json_string(train_offload_name(options->config.offload_param.device)));
    json_put(&object, "ratio", json_number(options->config.offload_param.ratio));
    json_put(&object, "bytes", train_tiers_object(params->bytes));
    json_put(&object, "copied_up_bytes", json_integer((json_int_t)params->copied_up_bytes));
    json_put(&object, "copied_down_bytes", json_integer((json_int_t)params->copied_down_bytes));
    if (params->has_store)
        json_put(&object, "nvme", nvme_object(options, result));
    return object;
}

/* ---- for people ------------------------------------------------------------------------------ */

void train_params_summary(const train_options_t *options, const train_result_t *result,
                          FILE *file) {
    const train_offload_params_t *params = &result->offload.params;
    if (options->config.offload_param.device == ZR_OFFLOAD_NONE)
        return;
    fprintf(file, "parameters   ");
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        if (params->bytes[tier] > 0)
            fprintf(file, "%s on %s, ", train_bytes((double)params->bytes[tier]).text,
                    zr_tier_name((zr_tier_t)tier));
    fprintf(file, "%s to gathered buffers\n", train_bytes((double)params->copied_up_bytes).text);
    if (!params->has_store)
        return;
    fprintf(file, "             gathers read %s, waited %.2f s; updates wrote %s, waited %.2f s\n",
            train_bytes((double)params->gathers.bytes).text, params->gather_wait_seconds,
            train_bytes((double)params->updates.bytes).text, params->update_wait_seconds);
    fprintf(file, "             %s, %s; checksums %s, %.2f s%s%s\n",
            zr_count_text(params->n_buffers, "buffer").text,
            train_bytes((double)params->staging_bytes).text,
            options->config.nvme.verify ? "on" : "off", params->checksum_seconds,
            params->is_direct ? "" : "; through the page cache",
            params->is_registered ? "" : "; buffers not registered");
}
