/* See train_agree.h. One agreement for each option, so that the message has the option. */
#include "examples/train/agree.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

typedef struct agreement {
    zr_comm_t *comm;
    zr_status_t status; /* of the first that failed */
} agreement_t;

static void agree(agreement_t *agreement, const char *format, ...) ZR_PRINTF(2, 3);

static void agree(agreement_t *agreement, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (agreement->status == ZR_OK)
        agreement->status = zr_comm_agree(agreement->comm, text);
}

static const char *place_name(zr_offload_device_t place) {
    static const char *const names[] = {"none", "cpu", "nvme"};
    return names[place];
}

static const char *on_off(bool is_on) {
    return is_on ? "on" : "off";
}

static const char *overlap_name(const train_options_t *options) {
    if (!options->config.overlap_comm)
        return "off";
    return options->overlap == TRAIN_OVERLAP_ON ? "on" : "auto";
}

static void agree_on_data(agreement_t *a, const data_t *data) {
    uint64_t hash = 0;
    if (a->status == ZR_OK)
        a->status = data_hash(data, &hash);
    agree(a, "--data of %s of kind %s in %s, %s has hash %016" PRIx64,
          zr_count_text(data_n_tokens(data), "token").text, data_kind(data),
          zr_count_text(data_n_windows(data), "window").text,
          data_is_hashed_whole(data) ? "which" : "a sample of which", hash);
}

static void agree_on_model_and_data(agreement_t *a, const train_options_t *o, const data_t *data) {
    gpt_size_t sizes[GPT_N_SIZES];
    char model[256] = "";
    gpt_shape_sizes(&o->shape, sizes);
    for (size_t i = 0, length = 0; i < GPT_N_SIZES; i++)
        length += (size_t)snprintf(model + length, sizeof(model) - length, "%s%s=%zu",
                                   i > 0 ? "," : "", sizes[i].name, sizes[i].value);
    agree(a, "--model %s", model);
    agree(a, "--seq %zu", o->seq);
    agree(a, "--seq-min %zu", o->seq_min);
    agree(a, "--freeze %s", o->freeze != NULL ? o->freeze : "nothing");
    agree_on_data(a, data);
    agree(a, "--seed %" PRIu64, o->seed);
}

static void agree_on_training(agreement_t *a, const train_options_t *o) {
    const zr_config_t *config = &o->config;
    const zr_schedule_t *schedule = &config->schedule;
    agree(a, "--steps %zu", o->steps);
    agree(a, "--micro-batch %zu", config->micro_batch);
    agree(a, "--grad-accum %zu", config->grad_accum);
    agree(a, "--dtype %s", zr_dtype_name(config->dtype));
    agree(a, "--reduce %s", config->reduce == ZR_REDUCE_AUTO ? "auto" : "every-micro-batch");
    agree(a, "--sums %s", o->sums == ZR_SUM_ANY ? "any" : "rank-order");
    agree(a, "--lr %.17g", config->adamw.lr);
    agree(a, "--beta1 %.17g", config->adamw.beta1);
    agree(a, "--beta2 %.17g", config->adamw.beta2);
    agree(a, "--epsilon %.17g", config->adamw.epsilon);
    agree(a, "--weight-decay %.17g", config->adamw.weight_decay);
    agree(a, "--clip %.17g", config->clip);
    agree(a, "--check-overflow %s", on_off(config->check_overflow));
    agree(a,
          "a schedule of kind %d (--schedule) with --warmup %zu of %s, ratios %.17g and "
          "%.17g (--min-lr-ratio), rates %.17g to %.17g%s",
          (int)schedule->kind, schedule->warmup_steps,
          zr_count_text(schedule->total_steps, "step").text, schedule->warmup_min_ratio,
          schedule->cos_min_ratio, schedule->warmup_min_lr, schedule->warmup_max_lr,
          schedule->warmup_log ? ", by the logarithm" : "");
}

/* Which collectives there are, and in which order. */
static void agree_on_schedule(agreement_t *a, const train_options_t *o) {
    const zr_config_t *config = &o->config;
    agree(a, "--stage %d", config->stage);
    agree(a, "--shard-group-size %d", zr_config_n_shards(config, o->n_ranks));
    agree(a, "--recompute %s", o->recompute ? "unit" : "none");
    agree(a, "--prefetch %zu", config->prefetch_elems);
    agree(a, "--max-live %zu", config->max_live_elems);
    agree(a, "stage3_max_reuse_distance %zu", config->reuse_elems);
    agree(a, "--overlap-comm %s", overlap_name(o));
    agree(a, "--sub-group %zu", config->sub_group_elems);
    agree(a, "--offload-optimizer %s", place_name(config->offload_optimizer.device));
    agree(a, "--offload-gradients %s", place_name(config->offload_optimizer.gradients));
    agree(a, "--offload-gradients-ratio %.17g", config->offload_optimizer.gradients_ratio);
    agree(a, "--offload-params %s", place_name(config->offload_param.device));
    agree(a, "--offload-activations %s", place_name(o->offload_activations));
}

static void agree_on_checkpoints(agreement_t *a, const train_options_t *o,
                                 const train_start_t *start) {
    const train_checkpoint_options_t *checkpoint = &o->checkpoint;
    if (checkpoint->dir == NULL) {
        agree(a, "no --checkpoint-dir");
        return;
    }
    agree(a, "--checkpoint-dir %s", checkpoint->dir);
    agree(a, "--checkpoint-every %zu", checkpoint->every);
    agree(a, "--checkpoint-keep %zu", checkpoint->keep);
    agree(a, "%s --checkpoint-async", checkpoint->is_async ? "a" : "no");
    if (start->checkpoint == NULL)
        agree(a, "no checkpoint to go on from (--resume)");
    else
        agree(a, "a checkpoint of step %zu to go on from (--resume), at sequence %" PRIu64,
              start->step, start->n_sequences);
}

zr_status_t train_agree(const train_options_t *options, const data_t *data,
                        const train_start_t *start, zr_comm_t *comm) {
    agreement_t agreement = {.comm = comm, .status = ZR_OK};
    if (!options->is_launched)
        return ZR_OK;
    agree(&agreement, "libzero %s", zr_version());
    agree_on_model_and_data(&agreement, options, data);
    agree_on_training(&agreement, options);
    agree_on_schedule(&agreement, options);
    agree_on_checkpoints(&agreement, options, start);
    agree(&agreement, "%s --trace", options->trace_path != NULL ? "a" : "no");
    return agreement.status;
}
