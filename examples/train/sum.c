/*
 * One result of all ranks': sums of what they moved, the largest of what they held, means of what
 * they waited.
 */
#include "examples/train/sum.h"

#include <string.h>

static void keep_larger(size_t *largest, size_t value) {
    if (value > *largest)
        *largest = value;
}

static void add_up_params(const train_offload_params_t *own, int n_ranks,
                          train_offload_params_t *sum) {
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        sum->bytes[tier] += own->bytes[tier];
    sum->copied_up_bytes += own->copied_up_bytes;
    sum->copied_down_bytes += own->copied_down_bytes;
    if (!own->has_store)
        return;
    sum->is_direct = own->is_direct && (sum->is_direct || !sum->has_store);
    sum->is_registered = own->is_registered && (sum->is_registered || !sum->has_store);
    sum->has_store = true;
    keep_larger(&sum->n_buffers, own->n_buffers);
    keep_larger(&sum->staging_bytes, own->staging_bytes);
    keep_larger(&sum->live_bytes, own->live_bytes);
    sum->gathers.n_parts += own->gathers.n_parts;
    sum->gathers.bytes += own->gathers.bytes;
    sum->gathers.moved_bytes += own->gathers.moved_bytes;
    sum->unused_bytes += own->unused_bytes;
    zr_store_count_add(&sum->updates, &own->updates);
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++)
        sum->moved[d] += own->moved[d];
    sum->gather_wait_seconds += own->gather_wait_seconds / n_ranks;
    sum->update_wait_seconds += own->update_wait_seconds / n_ranks;
    sum->checksum_seconds += own->checksum_seconds / n_ranks;
}

static void add_up_store(const train_offload_t *own, int n_ranks, train_offload_t *sum) {
    if (!own->has_store)
        return;
    sum->is_direct = own->is_direct && (sum->is_direct || !sum->has_store);
    sum->is_registered = own->is_registered && (sum->is_registered || !sum->has_store);
    sum->has_store = true;
    keep_larger(&sum->live_bytes, own->live_bytes);
    sum->checksum_seconds += own->checksum_seconds / n_ranks;
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        zr_store_count_add(&sum->updates[d], &own->updates[d]);
        sum->bytes[d] += own->bytes[d];
        sum->wait_seconds[d] += own->wait_seconds[d] / n_ranks;
    }
}

/* Where updates ran; what was measured is of the first rank that says so. */
static void add_up_places(const train_offload_t *own, train_offload_t *sum) {
    sum->has_copies |= own->has_copies;
    sum->n_updated_on_device += own->n_updated_on_device;
    sum->n_early_groups += own->n_early_groups;
    if (!sum->was_measured) {
        sum->was_measured = own->was_measured;
        sum->host_elems_per_s = own->host_elems_per_s;
        sum->device_elems_per_s = own->device_elems_per_s;
    }
}

static void add_up_offload(const train_offload_t *own, int n_ranks, train_offload_t *sum) {
    add_up_places(own, sum);
    keep_larger(&sum->largest_group_elems, own->largest_group_elems);
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        sum->n_groups[tier] += own->n_groups[tier];
        sum->state_bytes[tier] += own->state_bytes[tier];
    }
    sum->copied_down_bytes += own->copied_down_bytes;
    sum->copied_up_bytes += own->copied_up_bytes;
    if (own->update_seconds > sum->update_seconds)
        sum->update_seconds = own->update_seconds;
    add_up_store(own, n_ranks, sum);
    add_up_params(&own->params, n_ranks, &sum->params);
}

static void add_up_activations(const train_activations_t *own, bool is_first, int n_ranks,
                               train_activations_t *sum) {
    sum->is_direct = own->is_direct && (sum->is_direct || is_first);
    sum->has_store |= own->has_store;
    keep_larger(&sum->live_bytes, own->live_bytes);
    sum->checksum_seconds += own->checksum_seconds / n_ranks;
    for (int d = 0; d < ZR_N_STORE_DIRECTIONS; d++) {
        sum->drive_bytes[d] += own->drive_bytes[d];
        sum->bytes[d] += own->bytes[d];
        sum->seconds[d] += own->seconds[d] / n_ranks;
        sum->wait_seconds[d] += own->wait_seconds[d] / n_ranks;
    }
}

static void add_up_saves(const train_saves_t *own, train_saves_t *sum) {
    sum->n_saves = own->n_saves;
    memcpy(sum->last, own->last, sizeof(sum->last));
    sum->n_bytes += own->n_bytes;
    sum->seconds = own->seconds > sum->seconds ? own->seconds : sum->seconds;
    if (own->write_seconds > sum->write_seconds)
        sum->write_seconds = own->write_seconds;
}

static void add_up_peaks(const train_result_t *own, train_result_t *result) {
    result->has_memory |= own->has_memory;
    keep_larger(&result->nvme_reserved_bytes, own->nvme_reserved_bytes);
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        keep_larger(&result->peak[tier].live, own->peak[tier].live);
        keep_larger(&result->peak[tier].reserved, own->peak[tier].reserved);
        for (int tag = 0; tag < ZR_N_TAGS; tag++)
            keep_larger(&result->peak[tier].by_tag[tag], own->peak[tier].by_tag[tag]);
        for (int i = 0; i < ZR_N_CLASSES; i++) {
            train_class_peak_t *peak = &result->peak[tier].by_class[i];
            keep_larger(&peak->live, own->peak[tier].by_class[i].live);
            keep_larger(&peak->reserved, own->peak[tier].by_class[i].reserved);
            keep_larger(&peak->largest_hole, own->peak[tier].by_class[i].largest_hole);
        }
    }
}

static void add_up_traffic(const train_result_t *own, train_result_t *result) {
    for (int traffic = 0; traffic < ZR_N_TRAFFICS; traffic++)
        for (int i = 0; i < ZR_N_COLLECTIVES; i++)
            if (own->bytes_sent[traffic][i] > result->bytes_sent[traffic][i])
                result->bytes_sent[traffic][i] = own->bytes_sent[traffic][i];
    for (int level = 0; level < ZR_N_LEVELS; level++)
        for (int i = 0; i < ZR_N_COLLECTIVES; i++)
            if (own->level_bytes_sent[level][i] > result->level_bytes_sent[level][i])
                result->level_bytes_sent[level][i] = own->level_bytes_sent[level][i];
}

static void add_up_time(const train_time_t *own, int n_ranks, train_time_t *sum) {
    sum->compute += own->compute / n_ranks;
    sum->comm += own->comm / n_ranks;
    sum->optimizer += own->optimizer / n_ranks;
    sum->stall += own->stall / n_ranks;
    sum->io += own->io / n_ranks;
    sum->data += own->data / n_ranks;
    sum->beside += own->beside / n_ranks;
}

void train_sum_add(const train_result_t *own, bool is_first, int n_ranks, train_result_t *result) {
    if (is_first || own->replay.n_clean_steps < result->replay.n_clean_steps)
        result->replay = own->replay;
    add_up_saves(&own->saves, &result->saves);
    add_up_offload(&own->offload, n_ranks, &result->offload);
    add_up_activations(&own->activations, is_first, n_ranks, &result->activations);
    add_up_peaks(own, result);
    add_up_traffic(own, result);
    add_up_time(&own->time, n_ranks, &result->time);
}

bool train_tag_is_on_drives(zr_tag_t tag) {
    return tag == ZR_TAG_PARAMETERS || tag == ZR_TAG_OPTIMIZER_STATE || tag == ZR_TAG_ACTIVATIONS;
}

train_peak_t train_sum_peak_of_drives(const train_result_t *result) {
    train_peak_t peak = {.reserved = result->nvme_reserved_bytes};
    peak.by_tag[ZR_TAG_PARAMETERS] = result->offload.params.live_bytes;
    peak.by_tag[ZR_TAG_OPTIMIZER_STATE] = result->offload.live_bytes;
    peak.by_tag[ZR_TAG_ACTIVATIONS] = result->activations.live_bytes;
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        peak.live += peak.by_tag[tag];
    return peak;
}
