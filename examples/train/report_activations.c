/*
 * What a run says of activations that were offloaded: what went and came back, what of it went
 * through the drives, and how long that took.
 */
#include "examples/train/report.h"

#include "examples/common/json.h"

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *moved_object(const train_activations_t *activations,
                            zr_store_direction_t direction) {
    return json_pack("{s:I, s:f}", "bytes", (json_int_t)activations->bytes[direction], "seconds",
                     activations->seconds[direction]);
}

static json_t *drive_object(const train_activations_t *activations,
                            zr_store_direction_t direction) {
    return json_pack("{s:I, s:f}", "bytes", (json_int_t)activations->drive_bytes[direction],
                     "wait_seconds", activations->wait_seconds[direction]);
}

static json_t *nvme_object(const train_options_t *options, const train_result_t *result) {
    const train_activations_t *activations = &result->activations;
    json_t *object = json_object();
    json_put(&object, "paths", json_text(options->config.nvme.paths));
    json_put(&object, "direct", json_boolean(activations->is_direct));
    json_put(&object, "verified", json_boolean(options->config.nvme.verify));
    json_put(&object, "checksum_seconds", json_number(activations->checksum_seconds));
    json_put(&object, "read", drive_object(activations, ZR_STORE_GET));
    json_put(&object, "written", drive_object(activations, ZR_STORE_PUT));
    train_put_endurance(&object, options, result);
    return object;
}

json_t *train_activations_object(const train_options_t *options, const train_result_t *result) {
    const train_activations_t *activations = &result->activations;
    json_t *object = json_object();
    json_put(&object, "device", json_string(train_offload_name(options->offload_activations)));
    json_put(&object, "away", moved_object(activations, ZR_STORE_PUT));
    json_put(&object, "back", moved_object(activations, ZR_STORE_GET));
    if (activations->has_store)
        json_put(&object, "nvme", nvme_object(options, result));
    return object;
}

/* ---- for people ------------------------------------------------------------------------------ */

void train_activations_summary(const train_options_t *options, const train_result_t *result,
                               FILE *file) {
    const train_activations_t *activations = &result->activations;
    const uint64_t *bytes = activations->drive_bytes;
    if (options->offload_activations == ZR_OFFLOAD_NONE)
        return;
    fprintf(file, "activations  %s away from the device in %.2f s, %s back in %.2f s\n",
            train_bytes((double)activations->bytes[ZR_STORE_PUT]).text,
            activations->seconds[ZR_STORE_PUT],
            train_bytes((double)activations->bytes[ZR_STORE_GET]).text,
            activations->seconds[ZR_STORE_GET]);
    if (!activations->has_store)
        return;
    fprintf(file, "             nvme: %s written, waited %.2f s; %s read, waited %.2f s%s\n",
            train_bytes((double)bytes[ZR_STORE_PUT]).text, activations->wait_seconds[ZR_STORE_PUT],
            train_bytes((double)bytes[ZR_STORE_GET]).text, activations->wait_seconds[ZR_STORE_GET],
            activations->is_direct ? "" : "; through the page cache");
}
