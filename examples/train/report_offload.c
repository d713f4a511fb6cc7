/*
 * What a run says of its optimizer state: where it lived, where it was updated and why, what was
 * moved, how fast, how long updates waited for it, and what that means for the drives.
 */
#include "examples/train/launch.h"
#include "examples/train/report.h"

#include "examples/common/json.h"

#define SECONDS_PER_DAY 86400.0

const char *train_offload_name(zr_offload_device_t device) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    return names[device];
}

/* Bytes per second of updates. */
static double rate(const train_offload_t *offload, uint64_t bytes) {
    return offload->update_seconds > 0 ? (double)bytes / offload->update_seconds : 0;
}

bool train_result_has_store(const train_result_t *result) {
    return result->offload.has_store || result->offload.params.has_store ||
           result->activations.has_store;
}

/* What is written per day when steps follow one another as they did. */
static double bytes_per_day(const train_result_t *result) {
    double written = (double)result->offload.updates[ZR_STORE_PUT].moved_bytes +
                     (double)result->offload.params.updates.moved_bytes +
                     (double)result->activations.drive_bytes[ZR_STORE_PUT];
    return result->seconds > 0 ? written / result->seconds * SECONDS_PER_DAY : 0;
}

/* ---- where updates ran --------------------------------------------------------------------- */

static const char *update_place(const train_options_t *options, const train_offload_t *offload) {
    if (offload->n_updated_on_device == 0)
        return "host";
    return offload->n_updated_on_device == train_launch_n_here(options) ? "device" : "both";
}

static void explain_update(const train_options_t *options, const train_offload_t *offload,
                           char *text, size_t size) {
    if (offload->was_measured)
        snprintf(text, size,
                 "measured at the start: %.0f million elements/s on the host, %.0f on the device, "
                 "to which state would have to go and come back%s",
                 1e-6 * offload->host_elems_per_s, 1e-6 * offload->device_elems_per_s,
                 offload->n_updated_on_device % train_launch_n_here(options) != 0
                     ? ", on the first rank; others measured differently"
                     : "");
    else
        snprintf(text, size, "%s",
                 offload->has_copies ? "--update-on says so"
                                     : "its state lives there, and so does the device's memory");
}

/* ---- JSON ---------------------------------------------------------------------------------- */

json_t *train_tiers_object(const size_t counts[ZR_N_TIERS]) {
    return json_pack("{s:I, s:I, s:I}", zr_tier_name(ZR_TIER_DEVICE),
                     (json_int_t)counts[ZR_TIER_DEVICE], zr_tier_name(ZR_TIER_HOST),
                     (json_int_t)counts[ZR_TIER_HOST], zr_tier_name(ZR_TIER_NVME),
                     (json_int_t)counts[ZR_TIER_NVME]);
}

static json_t *direction_object(const train_offload_t *offload, zr_store_direction_t direction) {
    const zr_store_count_t *count = &offload->updates[direction];
    return json_pack("{s:I, s:I, s:f, s:f}", "bytes", (json_int_t)count->bytes, "moved_bytes",
                     (json_int_t)count->moved_bytes, "bytes_per_s", rate(offload, count->bytes),
                     "wait_seconds", offload->wait_seconds[direction]);
}

static json_t *copies_object(const train_offload_t *offload, uint64_t bytes) {
    return json_pack("{s:I, s:f}", "bytes", (json_int_t)bytes, "bytes_per_s", rate(offload, bytes));
}

void train_put_endurance(json_t **object_p, const train_options_t *options,
                         const train_result_t *result) {
    double per_day = bytes_per_day(result);
    json_put(object_p, "bytes_per_day", json_number(per_day));
    if (options->nvme_tbw_bytes > 0) {
        json_put(object_p, "tbw_bytes", json_count(options->nvme_tbw_bytes));
        if (per_day > 0)
            json_put(object_p, "endurance_days",
                     json_number((double)options->nvme_tbw_bytes / per_day));
    }
}

static json_t *nvme_object(const train_options_t *options, const train_result_t *result) {
    const train_offload_t *offload = &result->offload;
    json_t *object = json_object();
    json_put(&object, "paths", json_text(options->config.nvme.paths));
    json_put(&object, "direct", json_boolean(offload->is_direct));
    json_put(&object, "registered", json_boolean(offload->is_registered));
    json_put(&object, "verified", json_boolean(options->config.nvme.verify));
    json_put(&object, "checksum_seconds", json_number(offload->checksum_seconds));
    json_put(&object, "read", direction_object(offload, ZR_STORE_GET));
    json_put(&object, "written", direction_object(offload, ZR_STORE_PUT));
    train_put_endurance(&object, options, result);
    return object;
}

/* Of the optimizer's state. */
static void put_optimizer(json_t **object_p, const train_options_t *options,
                          const train_result_t *result) {
    const train_offload_t *offload = &result->offload;
    const zr_offload_options_t *asked = &options->config.offload_optimizer;
    json_put(object_p, "ratio", json_number(asked->ratio));
    json_put(object_p, "largest_group_elems", json_count(offload->largest_group_elems));
    json_put(object_p, "groups", train_tiers_object(offload->n_groups));
    json_put(object_p, "state_bytes", train_tiers_object(offload->state_bytes));
    if (offload->largest_group_elems > 0) {
        char why[192];
        explain_update(options, offload, why, sizeof(why));
        json_put(object_p, "update", json_string(update_place(options, offload)));
        json_put(object_p, "update_reason", json_string(why));
    }
    json_put(object_p, "update_seconds", json_number(offload->update_seconds));
    json_put(object_p, "early_groups", json_integer((json_int_t)offload->n_early_groups));
    json_put(object_p, "gradients_down", copies_object(offload, offload->copied_down_bytes));
    json_put(object_p, "parameters_up", copies_object(offload, offload->copied_up_bytes));
    if (offload->has_store)
        json_put(object_p, "nvme", nvme_object(options, result));
}

json_t *train_offload_object(const train_options_t *options, const train_result_t *result) {
    const zr_config_t *c = &options->config;
    json_t *object = json_object();
    json_put(&object, "optimizer", json_string(train_offload_name(c->offload_optimizer.device)));
    json_put(&object, "auto", json_boolean(options->auto_optimizer || options->auto_params));
    if (c->offload_optimizer.device != ZR_OFFLOAD_NONE)
        put_optimizer(&object, options, result);
    if (c->offload_param.device != ZR_OFFLOAD_NONE)
        json_put(&object, "params", train_params_object(options, result));
    if (options->offload_activations != ZR_OFFLOAD_NONE)
        json_put(&object, "activations", train_activations_object(options, result));
    return object;
}

/* ---- for people ------------------------------------------------------------------------------ */

static void print_places(const train_offload_t *offload, FILE *file) {
    const char *between = "";
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        if (offload->n_groups[tier] == 0)
            continue;
        fprintf(file, "%s%s on %s in %s", between,
                train_bytes((double)offload->state_bytes[tier]).text, zr_tier_name((zr_tier_t)tier),
                zr_count_text(offload->n_groups[tier], "sub-group").text);
        between = ", ";
    }
}

static void print_direction(const train_offload_t *offload, zr_store_direction_t direction,
                            FILE *file) {
    fprintf(file, "%s %s at %s/s, waited %.2f s",
            direction == ZR_STORE_GET ? "nvme         read" : ", written",
            train_bytes((double)offload->updates[direction].bytes).text,
            train_bytes(rate(offload, offload->updates[direction].bytes)).text,
            offload->wait_seconds[direction]);
}

static void print_nvme(const train_options_t *options, const train_result_t *result, FILE *file) {
    const train_offload_t *offload = &result->offload;
    print_direction(offload, ZR_STORE_GET, file);
    print_direction(offload, ZR_STORE_PUT, file);
    fprintf(file, "; checksums %s, %.2f s%s%s\n", options->config.nvme.verify ? "on" : "off",
            offload->checksum_seconds, offload->is_direct ? "" : "; through the page cache",
            offload->is_registered ? "" : "; buffers not registered");
}

/* Of all that is written. */
static void print_endurance(const train_options_t *options, const train_result_t *result,
                            FILE *file) {
    double per_day = bytes_per_day(result);
    fprintf(file, "nvme         %s written per day at this rate", train_bytes(per_day).text);
    if (options->nvme_tbw_bytes > 0 && per_day > 0)
        fprintf(file, ": drives rated for %s last %.1f days",
                train_bytes((double)options->nvme_tbw_bytes).text,
                (double)options->nvme_tbw_bytes / per_day);
    fprintf(file, "\n");
}

static void print_optimizer(const train_options_t *options, const train_result_t *result,
                            FILE *file) {
    const train_offload_t *offload = &result->offload;
    char why[192];
    if (options->config.offload_optimizer.device == ZR_OFFLOAD_NONE)
        return;
    fprintf(file, "optimizer    ");
    print_places(offload, file);
    if (offload->largest_group_elems > 0) {
        explain_update(options, offload, why, sizeof(why));
        fprintf(file,
                "\n             sub-groups of up to %s are updated on the %s:\n"
                "             %s",
                zr_count_text(offload->largest_group_elems, "parameter").text,
                update_place(options, offload), why);
    }
    fprintf(file, "\n");
    if (offload->copied_down_bytes > 0)
        fprintf(file, "copied       %s to the host, gradients among it, and %s to the device\n",
                train_bytes((double)offload->copied_down_bytes).text,
                train_bytes((double)offload->copied_up_bytes).text);
    if (offload->has_store)
        print_nvme(options, result, file);
}

void train_offload_summary(const train_options_t *options, const train_result_t *result,
                           FILE *file) {
    print_optimizer(options, result, file);
    train_params_summary(options, result, file);
    train_activations_summary(options, result, file);
    if (train_result_has_store(result))
        print_endurance(options, result, file);
}
