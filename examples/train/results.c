/* Results: of a rank while it runs and when it ends, and of all of them. */
#include <stdlib.h>
#include <string.h>

#include "examples/common/process.h"
#include "examples/train/launch.h"
#include "examples/train/run.h"
#include "examples/train/sum.h"

train_peak_t train_peak_of(const zr_tier_statistics_t *statistics) {
    train_peak_t peak = {.live = statistics->live.peak,
                         .reserved = statistics->reserved.peak,
                         .pinned = statistics->pinned.peak};
    for (int tag = 0; tag < ZR_N_TAGS; tag++) {
        peak.by_tag[tag] = statistics->by_tag[tag].peak;
        peak.at_peak[tag] = statistics->at_peak[tag];
    }
    for (int i = 0; i < ZR_N_CLASSES; i++)
        peak.by_class[i] =
            (train_class_peak_t){.live = statistics->by_class[i].live.peak,
                                 .reserved = statistics->by_class[i].reserved.peak,
                                 .largest_hole = statistics->by_class[i].largest_hole_bytes};
    return peak;
}

static void note_peaks(rank_t *rank) {
    zr_allocator_t *allocator = zr_runtime_allocator(rank->runtime);
    rank->result.has_memory = true;
    zr_allocator_replay_statistics(allocator, &rank->result.replay);
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        zr_tier_statistics_t statistics;
        zr_allocator_statistics(allocator, (zr_tier_t)tier, &statistics);
        rank->result.peak[tier] = train_peak_of(&statistics);
    }
    zr_runtime_metadata(rank->runtime, &rank->result.metadata);
}

/* What lies on the drives: of NVMe no peaks are kept but these. */
static void note_drives(rank_t *rank) {
    const train_result_t *result = &rank->result;
    const zr_store_t *store = zr_runtime_store(rank->runtime);
    train_peak_t peak = {.reserved = store != NULL ? zr_store_info(store)->reserved_bytes : 0};
    peak.by_tag[ZR_TAG_PARAMETERS] = result->offload.params.bytes[ZR_TIER_NVME];
    peak.by_tag[ZR_TAG_OPTIMIZER_STATE] = result->offload.state_bytes[ZR_TIER_NVME];
    peak.by_tag[ZR_TAG_GRADIENTS] = result->offload.grads.bytes[ZR_TIER_NVME];
    peak.by_tag[ZR_TAG_ACTIVATIONS] =
        result->activations.has_store ? result->activations.store_peak_bytes : 0;
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        peak.live += peak.at_peak[tag] = peak.by_tag[tag];
    rank->result.peak[ZR_TIER_NVME] = peak;
}

/* Of this rank alone; train_sum_add puts those of all together. */
static void note_offload(rank_t *rank) {
    zr_runtime_offload(rank->runtime, &rank->result.offload);
    rank->result.n_updated_on_device = rank->result.offload.is_updated_on_device;
    if (rank->model != NULL)
        (void)zr_model_activations_statistics(rank->model, &rank->result.activations);
    note_drives(rank);
}

/* What is in use there is said when a device is opened. */
static void note_in_use(rank_t *rank) {
    zr_device_options_t options = zr_device_options_default();
    zr_device_t *again = NULL;
    if (rank->run->options->n_ranks > 1 || rank->result.device_in_use_bytes[0] == 0)
        return;
    options.log = rank->log;
    options.index = rank->run->device.index;
    if (zr_device_open(rank->run->device.name, &options, &again) == ZR_OK)
        rank->result.device_in_use_bytes[1] = zr_device_info(again)->in_use_bytes;
    zr_device_close(&again);
}

void train_results_note(rank_t *rank) {
    note_peaks(rank);
    if (rank->device != NULL) { /* which has it open: only counts change */
        zr_status_t status = zr_nn_attention_open(rank->device, rank->run->options->attention,
                                                  &rank->result.attention);
        (void)status;
        rank->result.matmuls = zr_nn_matmul_counts(rank->device);
    }
    note_in_use(rank);
    note_offload(rank);
}

/* ---- times -------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t n) {
    qsort(values, n, sizeof(*values), by_value);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* Of what the rank has done, whatever came then. The first of its own times ends with the first
 * loss: it has no update, and the memory that is mapped. */
void train_results_times(rank_t *rank) {
    train_result_t *result = &rank->result;
    size_t n_steps = result->n_steps - result->first_step, first = n_steps > 1;
    result->peak_resident_bytes = process_peak_resident_bytes();
    if (n_steps == 0 || rank->step_seconds == NULL)
        return;
    result->step_ms = 1e3 * median(rank->step_seconds, n_steps);
    result->own_ms = 1e3 * median(rank->own_seconds + first, n_steps - first);
    if (rank->number == 0)
        result->tokens_per_s = median(rank->step_tokens_per_s, n_steps);
}

zr_status_t train_results_finish(rank_t *rank) {
    ZR_TRY(zr_runtime_join_groups(rank->runtime));
    for (int level = 0; level < ZR_N_LEVELS; level++) {
        zr_comm_statistics_t statistics;
        zr_runtime_comm_statistics(rank->runtime, (zr_level_t)level, &statistics);
        for (int i = 0; i < ZR_N_COLLECTIVES; i++) {
            for (int traffic = 0; traffic < ZR_N_TRAFFICS; traffic++)
                rank->result.bytes_sent[traffic][i] += statistics.count[traffic][i].bytes_sent;
            rank->result.level_bytes_sent[level][i] =
                statistics.count[ZR_TRAFFIC_MODEL][i].bytes_sent;
        }
    }
    zr_trace_phase(rank->trace, zr_device_now(rank->device), "hash of the weights");
    return zr_runtime_weights(rank->runtime, &rank->result.weights);
}

/* ---- of all ranks -------------------------------------------------------------------------- */

/* Tell the results through device memory: [n_ranks]. */
static zr_status_t gather_results(rank_t *rank, zr_stream_t *stream, train_result_t *of_device,
                                  train_result_t *of_all) {
    const zr_message_t message = {
        .tensor = "results", .dtype = ZR_DTYPE_U8, .traffic = ZR_TRAFFIC_CONTROL};
    size_t n_ranks = (size_t)rank->run->options->n_ranks, bytes = sizeof(train_result_t);
    train_result_t *own = &of_device[rank->number];
    ZR_TRY(zr_copy_async(stream, own, &rank->result, bytes, ZR_COPY_HOST_TO_DEVICE));
    ZR_TRY(zr_comm_all_gather(rank->comm, &message, own, of_device, bytes, stream));
    ZR_TRY(zr_copy_async(stream, of_all, of_device, n_ranks * bytes, ZR_COPY_DEVICE_TO_HOST));
    ZR_TRY(zr_stream_synchronize(stream));
    return zr_comm_check(rank->comm);
}

/* Ranks that are processes learn each other's results, when the model is gone and has left memory
 * for it. Those of threads lie beside each other. */
zr_status_t train_results_share(rank_t *rank) {
    size_t n_ranks = (size_t)rank->run->options->n_ranks, bytes = n_ranks * sizeof(train_result_t);
    size_t granule = zr_device_info(rank->device)->granule_bytes;
    zr_stream_t *stream = NULL;
    void *base = NULL;
    bytes = (bytes + granule - 1) / granule * granule;
    train_result_t *of_all = calloc(n_ranks, sizeof(*of_all));
    if (of_all == NULL)
        return zr_fail(&rank->log, ZR_ERR_MEMORY, "no memory for the results of %s",
                       zr_count_text(n_ranks, "rank").text);
    zr_status_t status = zr_range_reserve(rank->device, ZR_TIER_DEVICE, bytes, &base);
    ZR_THEN(status, zr_range_map(rank->device, ZR_TIER_DEVICE, base, 0, bytes));
    ZR_THEN(status, zr_stream_create(rank->device, "results", &stream));
    ZR_THEN(status, gather_results(rank, stream, base, of_all));
    zr_stream_destroy(&stream);
    zr_range_release(rank->device, ZR_TIER_DEVICE, &base, bytes);
    if (status == ZR_OK)
        rank->of_all = of_all;
    else
        free(of_all);
    return status;
}

void train_results_add_up(rank_t *ranks, const train_options_t *options, train_result_t *result) {
    const train_result_t *first = &ranks[0].result;
    result->size = first->size;
    result->overlaps = first->overlaps;
    memcpy(result->device, first->device, sizeof(result->device));
    memcpy(result->device_in_use_bytes, first->device_in_use_bytes,
           sizeof(result->device_in_use_bytes));
    result->attention = first->attention;
    result->first_step = first->first_step;
    result->n_steps = first->n_steps;
    result->n_skipped = first->n_skipped;
    result->n_trained_tokens = first->n_trained_tokens;
    result->first_loss = first->first_loss;
    result->last_loss = first->last_loss;
    result->weights = first->weights;
    result->seconds = ranks[0].seconds;
    result->n_delayed_steps = first->n_delayed_steps;
    result->evaluations = first->evaluations;
    result->is_stopped = first->is_stopped;
    if (ranks[0].delays != NULL) {
        result->slowest_rank = train_slowest_of_all(ranks[0].delays, options->n_ranks);
        result->slowest = ranks[0].delays[result->slowest_rank];
    }
    const train_result_t *of_all = ranks[0].of_all;
    int n = of_all != NULL ? options->n_ranks : train_launch_n_here(options);
    for (int i = 0; i < n; i++)
        train_sum_add(of_all != NULL ? &of_all[i] : &ranks[i].result, i == 0, n, result);
    result->step_ms = first->step_ms;
    result->tokens_per_s = first->tokens_per_s;
}
