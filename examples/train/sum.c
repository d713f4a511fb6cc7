/*
 * One result of all ranks': sums of what they moved, the largest of what they held, means of what
 * they waited. A row says of a field, or of an array or struct of as many numbers, which it is.
 */
#include "examples/train/sum.h"

#include <string.h>

typedef enum way { SUM, MOST, MEAN, LONGEST } way_t;

_Static_assert(sizeof(size_t) == sizeof(uint64_t) && sizeof(double) == sizeof(uint64_t),
               "numbers of 8 bytes");

#define OF(member) offsetof(train_result_t, member), sizeof(((train_result_t *)NULL)->member)

/* Whole numbers are summed, or the largest is kept; of doubles the mean or the longest. */
static const struct {
    way_t way;
    size_t offset, size_bytes;
} rows[] = {
    {MOST, OF(peak)},
    {MOST, OF(metadata)},
    {MOST, OF(bytes_sent)},
    {MOST, OF(level_bytes_sent)},
    {MEAN, OF(time)},

    {SUM, OF(matmuls)},

    {MOST, OF(offload.largest_group_elems)},
    {SUM, OF(offload.n_groups)},
    {SUM, OF(offload.state_bytes)},
    {SUM, OF(offload.n_early_groups)},
    {SUM, OF(offload.copied_down_bytes)},
    {SUM, OF(offload.copied_up_bytes)},
    {LONGEST, OF(offload.update_seconds)},
    {SUM, OF(offload.updates)},
    {MEAN, OF(offload.update_wait_seconds)},
    {SUM, OF(offload.all.count)},
    {MEAN, OF(offload.all.checksum_seconds)},

    {SUM, OF(offload.params.bytes)},
    {SUM, OF(offload.params.copied_up_bytes)},
    {SUM, OF(offload.params.copied_down_bytes)},
    {MOST, OF(offload.params.n_buffers)},
    {MOST, OF(offload.params.staging_bytes)},
    {SUM, OF(offload.params.gathers)},
    {SUM, OF(offload.params.unused_bytes)},
    {SUM, OF(offload.params.updates)},
    {MEAN, OF(offload.params.gather_wait_seconds)},
    {MEAN, OF(offload.params.update_wait_seconds)},
    {SUM, OF(offload.params.all.count)},
    {MEAN, OF(offload.params.all.checksum_seconds)},

    {SUM, OF(offload.grads.bytes)},
    {MOST, OF(offload.grads.staging_bytes)},
    {SUM, OF(offload.grads.all.count)},
    {MEAN, OF(offload.grads.all.wait_seconds)},
    {MEAN, OF(offload.grads.all.checksum_seconds)},

    {SUM, OF(activations.bytes)},
    {MEAN, OF(activations.seconds)},
    {SUM, OF(activations.drive_bytes)},
    {MEAN, OF(activations.store_statistics.wait_seconds)},
    {MEAN, OF(activations.store_statistics.checksum_seconds)},

    {SUM, OF(saves.n_bytes)},
    {LONGEST, OF(saves.seconds)},
    {LONGEST, OF(saves.write_seconds)},
};

static void add_whole(way_t way, uint64_t own, uint64_t *sum) {
    *sum = way == SUM ? *sum + own : own > *sum ? own : *sum;
}

static void add_double(way_t way, double own, int n_ranks, double *sum) {
    *sum = way == MEAN ? *sum + own / n_ranks : own > *sum ? own : *sum;
}

/* Of stores, whether all of them are so. */
static void add_store(bool has_own, const zr_store_info_t *own, bool *has_p, zr_store_info_t *sum) {
    if (!has_own)
        return;
    bool is_first = !*has_p;
    sum->is_direct = own->is_direct && (is_first || sum->is_direct);
    sum->is_registered = own->is_registered && (is_first || sum->is_registered);
    *has_p = true;
}

/* Where updates ran; what was measured is of the first rank that says so. */
static void add_places(const train_result_t *own, train_result_t *sum) {
    sum->offload.has_copies |= own->offload.has_copies;
    sum->offload.has_split_masters |= own->offload.has_split_masters;
    sum->n_updated_on_device += own->n_updated_on_device;
    if (sum->offload.was_measured)
        return;
    sum->offload.was_measured = own->offload.was_measured;
    sum->offload.host_elems_per_s = own->offload.host_elems_per_s;
    sum->offload.device_elems_per_s = own->offload.device_elems_per_s;
}

void train_sum_add(const train_result_t *own, bool is_first, int n_ranks, train_result_t *result) {
    train_peak_t *drives = &result->peak[ZR_TIER_NVME];
    train_peak_t largest[ZR_N_TIERS]; /* parts of one rank's live, which add up to it */
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        largest[tier] =
            own->peak[tier].live > result->peak[tier].live ? own->peak[tier] : result->peak[tier];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *from = (const char *)own + rows[i].offset;
        char *to = (char *)result + rows[i].offset;
        for (size_t at = 0; at < rows[i].size_bytes; at += sizeof(uint64_t))
            if (rows[i].way == SUM || rows[i].way == MOST)
                add_whole(rows[i].way, *(const uint64_t *)(const void *)(from + at),
                          (uint64_t *)(void *)(to + at));
            else
                add_double(rows[i].way, *(const double *)(const void *)(from + at), n_ranks,
                           (double *)(void *)(to + at));
    }
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        memcpy(result->peak[tier].at_peak, largest[tier].at_peak, sizeof(largest[tier].at_peak));
    drives->live = 0; /* the largest of each tag, whoever has it */
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        drives->live += drives->at_peak[tag] = drives->by_tag[tag];
    if (is_first || own->replay.n_clean_steps < result->replay.n_clean_steps)
        result->replay = own->replay;
    result->has_memory |= own->has_memory;
    add_places(own, result);
    add_store(own->offload.has_store, &own->offload.store, &result->offload.has_store,
              &result->offload.store);
    add_store(own->offload.params.has_store, &own->offload.params.store,
              &result->offload.params.has_store, &result->offload.params.store);
    add_store(own->offload.grads.has_store, &own->offload.grads.store,
              &result->offload.grads.has_store, &result->offload.grads.store);
    add_store(own->activations.has_store, &own->activations.store, &result->activations.has_store,
              &result->activations.store);
    result->saves.n_saves = own->saves.n_saves;
    memcpy(result->saves.last, own->saves.last, sizeof(result->saves.last));
}
