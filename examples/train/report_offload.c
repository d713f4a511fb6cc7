/*
 * What a run says of what was offloaded: where optimizer state, parameters and activations lived,
 * where updates ran and why, what was moved, how fast, how long the run waited for it, and what
 * that means for the drives.
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
static double rate(const zr_offload_report_t *offload, uint64_t bytes) {
    return offload->update_seconds > 0 ? (double)bytes / offload->update_seconds : 0;
}

bool train_result_has_store(const train_result_t *result) {
    return result->offload.has_store || result->offload.params.has_store ||
           result->offload.grads.has_store || result->activations.has_store;
}

/* What is written per day when steps follow one another as they did. */
static double bytes_per_day(const train_result_t *result) {
    double written = (double)result->offload.updates[ZR_STORE_PUT].moved_bytes +
                     (double)result->offload.params.updates.moved_bytes +
                     (double)result->offload.grads.all.count[ZR_STORE_PUT].moved_bytes +
                     (double)result->activations.drive_bytes[ZR_STORE_PUT];
    return result->seconds > 0 ? written / result->seconds * SECONDS_PER_DAY : 0;
}

/* ---- where updates ran --------------------------------------------------------------------- */

static const char *update_place(const train_options_t *options, const train_result_t *result) {
    if (result->n_updated_on_device == 0)
        return "host";
    return result->n_updated_on_device == train_launch_n_here(options) ? "device" : "both";
}

static void explain_update(const train_options_t *options, const train_result_t *result, char *text,
                           size_t size) {
    const zr_offload_report_t *offload = &result->offload;
    if (offload->was_measured)
        snprintf(text, size,
                 "measured at the start: %.0f million elements/s on the host, %.0f on the device, "
                 "to which state would have to go and come back%s",
                 1e-6 * offload->host_elems_per_s, 1e-6 * offload->device_elems_per_s,
                 result->n_updated_on_device % train_launch_n_here(options) != 0
                     ? ", on the first rank; others measured differently"
                     : "");
    else
        snprintf(text, size, "%s",
                 offload->has_copies ? "--update-on says so"
                                     : "its state lives there, and so does the device's memory");
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static json_t *tiers_object(const size_t counts[ZR_N_TIERS]) {
    json_t *object = json_object();
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        json_put(&object, zr_tier_name((zr_tier_t)tier), json_count(counts[tier]));
    return object;
}

static json_t *copies_object(const zr_offload_report_t *offload, uint64_t bytes) {
    return json_pack("{s:I, s:f}", "bytes", (json_int_t)bytes, "bytes_per_s", rate(offload, bytes));
}

/* What went one way through the drives. */
static json_t *moved_object(uint64_t bytes, uint64_t moved_bytes, double wait_seconds) {
    return json_pack("{s:I, s:I, s:f}", "bytes", (json_int_t)bytes, "moved_bytes",
                     (json_int_t)moved_bytes, "wait_seconds", wait_seconds);
}

/* Of updates, which have a rate. */
static json_t *update_object(const zr_offload_report_t *offload, zr_store_direction_t direction) {
    const zr_store_count_t *count = &offload->updates[direction];
    json_t *object =
        moved_object(count->bytes, count->moved_bytes, offload->update_wait_seconds[direction]);
    json_put(&object, "bytes_per_s", json_number(rate(offload, count->bytes)));
    return object;
}

static json_t *activations_moved_object(const zr_stash_statistics_t *activations,
                                        zr_store_direction_t direction) {
    return json_pack("{s:I, s:f}", "bytes", (json_int_t)activations->drive_bytes[direction],
                     "wait_seconds", activations->store_statistics.wait_seconds[direction]);
}

/* What lay on drives, with what was read and written of it; what is written per day is of all. */
static json_t *nvme_object(const train_options_t *options, const train_result_t *result,
                           const zr_store_info_t *store, double checksum_seconds, json_t *read,
                           json_t *written) {
    double per_day = bytes_per_day(result);
    json_t *object = JSON_OBJECT({"read", read}, {"written", written},
                                 {"paths", json_text(options->config.nvme.paths)},
                                 {"direct", json_boolean(store->is_direct)},
                                 {"registered", json_boolean(store->is_registered)},
                                 {"verified", json_boolean(options->config.nvme.verify)},
                                 {"checksum_seconds", json_number(checksum_seconds)},
                                 {"bytes_per_day", json_number(per_day)});
    if (options->nvme_tbw_bytes > 0)
        json_put(&object, "tbw_bytes", json_count(options->nvme_tbw_bytes));
    if (options->nvme_tbw_bytes > 0 && per_day > 0)
        json_put(&object, "endurance_days", json_number((double)options->nvme_tbw_bytes / per_day));
    return object;
}

static void put_optimizer(json_t **object_p, const train_options_t *options,
                          const train_result_t *result) {
    const zr_offload_report_t *offload = &result->offload;
    JSON_PUT(object_p, {"ratio", json_number(options->config.offload_optimizer.ratio)},
             {"largest_group_elems", json_count(offload->largest_group_elems)},
             {"groups", tiers_object(offload->n_groups)},
             {"state_bytes", tiers_object(offload->state_bytes)});
    if (offload->largest_group_elems > 0) {
        char why[192];
        explain_update(options, result, why, sizeof(why));
        JSON_PUT(object_p, {"update", json_string(update_place(options, result))},
                 {"update_reason", json_string(why)});
    }
    JSON_PUT(object_p, {"update_seconds", json_number(offload->update_seconds)},
             {"early_groups", json_count(offload->n_early_groups)},
             {"gradients_down", copies_object(offload, offload->copied_down_bytes)},
             {"parameters_up", copies_object(offload, offload->copied_up_bytes)});
    if (offload->has_store)
        json_put(object_p, "nvme",
                 nvme_object(options, result, &offload->store, offload->all.checksum_seconds,
                             update_object(offload, ZR_STORE_GET),
                             update_object(offload, ZR_STORE_PUT)));
}

static json_t *grads_moved_object(const zr_grads_report_t *grads, zr_store_direction_t direction) {
    const zr_store_count_t *count = &grads->all.count[direction];
    return moved_object(count->bytes, count->moved_bytes, grads->all.wait_seconds[direction]);
}

static json_t *grads_object(const train_options_t *options, const train_result_t *result) {
    const zr_offload_options_t *offload = &options->config.offload_optimizer;
    const zr_grads_report_t *grads = &result->offload.grads;
    json_t *object = JSON_OBJECT({"device", json_string(train_offload_name(offload->gradients))},
                                 {"ratio", json_number(offload->gradients_ratio)},
                                 {"bytes", tiers_object(grads->bytes)});
    if (!grads->has_store)
        return object;
    json_t *nvme = nvme_object(options, result, &grads->store, grads->all.checksum_seconds,
                               grads_moved_object(grads, ZR_STORE_GET),
                               grads_moved_object(grads, ZR_STORE_PUT));
    json_put(&nvme, "buffer_bytes", json_count(grads->staging_bytes));
    json_put(&object, "nvme", nvme);
    return object;
}

static json_t *params_object(const train_options_t *options, const train_result_t *result) {
    const zr_params_report_t *params = &result->offload.params;
    json_t *object = JSON_OBJECT(
        {"device", json_string(train_offload_name(options->config.offload_param.device))},
        {"ratio", json_number(options->config.offload_param.ratio)},
        {"bytes", tiers_object(params->bytes)},
        {"copied_up_bytes", json_count(params->copied_up_bytes)},
        {"copied_down_bytes", json_count(params->copied_down_bytes)});
    if (!params->has_store)
        return object;
    json_t *read = moved_object(params->gathers.bytes, params->gathers.moved_bytes,
                                params->gather_wait_seconds);
    json_put(&read, "unused_bytes", json_count(params->unused_bytes));
    json_t *nvme = nvme_object(options, result, &params->store, params->all.checksum_seconds, read,
                               moved_object(params->updates.bytes, params->updates.moved_bytes,
                                            params->update_wait_seconds));
    JSON_PUT(&nvme, {"buffers", json_count(params->n_buffers)},
             {"buffer_bytes", json_count(params->staging_bytes)});
    json_put(&object, "nvme", nvme);
    return object;
}

static json_t *activations_object(const train_options_t *options, const train_result_t *result) {
    const zr_stash_statistics_t *a = &result->activations;
    json_t *object = json_object();
    JSON_PUT(&object, {"device", json_string(train_offload_name(options->offload_activations))},
             {"away", json_pack("{s:I, s:f}", "bytes", (json_int_t)a->bytes[ZR_STORE_PUT],
                                "seconds", a->seconds[ZR_STORE_PUT])},
             {"back", json_pack("{s:I, s:f}", "bytes", (json_int_t)a->bytes[ZR_STORE_GET],
                                "seconds", a->seconds[ZR_STORE_GET])});
    if (a->has_store)
        json_put(&object, "nvme",
                 nvme_object(options, result, &a->store, a->store_statistics.checksum_seconds,
                             activations_moved_object(a, ZR_STORE_GET),
                             activations_moved_object(a, ZR_STORE_PUT)));
    return object;
}

json_t *train_offload_object(const train_options_t *options, const train_result_t *result) {
    const zr_config_t *c = &options->config;
    json_t *object =
        JSON_OBJECT({"optimizer", json_string(train_offload_name(c->offload_optimizer.device))},
                    {"auto", json_boolean(options->auto_optimizer || options->auto_params)});
    if (c->offload_optimizer.device != ZR_OFFLOAD_NONE)
        put_optimizer(&object, options, result);
    if (c->offload_optimizer.device != ZR_OFFLOAD_NONE && c->stage >= 2)
        json_put(&object, "gradients", grads_object(options, result));
    if (c->offload_param.device != ZR_OFFLOAD_NONE)
        json_put(&object, "params", params_object(options, result));
    if (options->offload_activations != ZR_OFFLOAD_NONE)
        json_put(&object, "activations", activations_object(options, result));
    return object;
}

/* ---- for people ------------------------------------------------------------------------------ */

/* How the drives were used, behind what went through them. */
static void print_store(const train_options_t *options, const zr_store_info_t *store,
                        double checksum_seconds, FILE *file) {
    fprintf(file, "; checksums %s, %.2f s%s%s\n", options->config.nvme.verify ? "on" : "off",
            checksum_seconds, store->is_direct ? "" : "; through the page cache",
            store->is_registered ? "" : "; buffers not registered");
}

static void print_optimizer(const train_options_t *options, const train_result_t *result,
                            FILE *file) {
    const zr_offload_report_t *offload = &result->offload;
    const char *between = "optimizer    ";
    char why[192];
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        if (offload->n_groups[tier] == 0)
            continue;
        fprintf(file, "%s%s on %s in %s", between,
                train_bytes((double)offload->state_bytes[tier]).text, zr_tier_name((zr_tier_t)tier),
                zr_count_text(offload->n_groups[tier], "sub-group").text);
        between = ", ";
    }
    if (offload->largest_group_elems > 0) {
        explain_update(options, result, why, sizeof(why));
        fprintf(file,
                "\n             sub-groups of up to %s are updated on the %s:\n"
                "             %s",
                zr_count_text(offload->largest_group_elems, "parameter").text,
                update_place(options, result), why);
    }
    fprintf(file, "\n");
    if (offload->copied_down_bytes > 0)
        fprintf(file, "copied       %s to the host, gradients among it, and %s to the device\n",
                train_bytes((double)offload->copied_down_bytes).text,
                train_bytes((double)offload->copied_up_bytes).text);
    if (!offload->has_store)
        return;
    for (int d = ZR_N_STORE_DIRECTIONS - 1; d >= 0; d--)
        fprintf(file, "%s %s at %s/s, waited %.2f s",
                d == ZR_STORE_GET ? "nvme         read" : ", written",
                train_bytes((double)offload->updates[d].bytes).text,
                train_bytes(rate(offload, offload->updates[d].bytes)).text,
                offload->update_wait_seconds[d]);
    print_store(options, &offload->store, offload->all.checksum_seconds, file);
}

static void print_grads(const train_options_t *options, const zr_grads_report_t *grads,
                        FILE *file) {
    const char *between = "gradients    ";
    if (!grads->has_store)
        return;
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        if (grads->bytes[tier] == 0)
            continue;
        fprintf(file, "%s%s on %s", between, train_bytes((double)grads->bytes[tier]).text,
                zr_tier_name((zr_tier_t)tier));
        between = ", ";
    }
    fprintf(file, "\n             nvme: %s written, waited %.2f s; %s read, waited %.2f s",
            train_bytes((double)grads->all.count[ZR_STORE_PUT].bytes).text,
            grads->all.wait_seconds[ZR_STORE_PUT],
            train_bytes((double)grads->all.count[ZR_STORE_GET].bytes).text,
            grads->all.wait_seconds[ZR_STORE_GET]);
    print_store(options, &grads->store, grads->all.checksum_seconds, file);
}

static void print_params(const train_options_t *options, const zr_params_report_t *params,
                         FILE *file) {
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
    fprintf(file, "             %s, %s", zr_count_text(params->n_buffers, "buffer").text,
            train_bytes((double)params->staging_bytes).text);
    print_store(options, &params->store, params->all.checksum_seconds, file);
}

static void print_activations(const train_options_t *options, const zr_stash_statistics_t *a,
                              FILE *file) {
    fprintf(file, "activations  %s away from the device in %.2f s, %s back in %.2f s\n",
            train_bytes((double)a->bytes[ZR_STORE_PUT]).text, a->seconds[ZR_STORE_PUT],
            train_bytes((double)a->bytes[ZR_STORE_GET]).text, a->seconds[ZR_STORE_GET]);
    if (!a->has_store)
        return;
    fprintf(file, "             nvme: %s written, waited %.2f s; %s read, waited %.2f s",
            train_bytes((double)a->drive_bytes[ZR_STORE_PUT]).text,
            a->store_statistics.wait_seconds[ZR_STORE_PUT],
            train_bytes((double)a->drive_bytes[ZR_STORE_GET]).text,
            a->store_statistics.wait_seconds[ZR_STORE_GET]);
    print_store(options, &a->store, a->store_statistics.checksum_seconds, file);
}

void train_offload_summary(const train_options_t *options, const train_result_t *result,
                           FILE *file) {
    double per_day = bytes_per_day(result);
    if (options->config.offload_optimizer.device != ZR_OFFLOAD_NONE)
        print_optimizer(options, result, file);
    print_grads(options, &result->offload.grads, file);
    if (options->config.offload_param.device != ZR_OFFLOAD_NONE)
        print_params(options, &result->offload.params, file);
    if (options->offload_activations != ZR_OFFLOAD_NONE)
        print_activations(options, &result->activations, file);
    if (!train_result_has_store(result))
        return;
    fprintf(file, "nvme         %s written per day at this rate", train_bytes(per_day).text);
    if (options->nvme_tbw_bytes > 0 && per_day > 0)
        fprintf(file, ": drives rated for %s last %.1f days",
                train_bytes((double)options->nvme_tbw_bytes).text,
                (double)options->nvme_tbw_bytes / per_day);
    fprintf(file, "\n");
}
