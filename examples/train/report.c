/*
 * The object of --json is a contract: fields may be added, none goes away. Of a run that failed it
 * has what was reached.
 */
#include "examples/train/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "examples/common/json.h"
#include "examples/common/process.h"
#include "examples/common/model_json.h"
#include "examples/train/log.h"

/* ---- while it runs ---------------------------------------------------------------------- */

static const char *const parts[TRAIN_N_PARTS] = {[TRAIN_COMPUTE] = "compute",
                                                 [TRAIN_COMM] = "comm",
                                                 [TRAIN_OPTIMIZER] = "optimizer",
                                                 [TRAIN_STALL] = "stall",
                                                 [TRAIN_DATA] = "data",
                                                 [TRAIN_CONCURRENT] = "concurrent",
                                                 [TRAIN_IO] = "io"};

/* Waiting for NVMe is a part where there is any; collectives beside compute are no part of it. */
static bool has_part(const train_options_t *options, const train_time_t *time, int part) {
    return part == TRAIN_CONCURRENT ? time->of[part] > 0
                                    : part != TRAIN_IO || train_options_use_nvme(options);
}

static json_t *time_object(const train_options_t *options, const train_time_t *time) {
    json_t *object = json_object();
    for (int part = 0; part < TRAIN_N_PARTS; part++)
        if (has_part(options, time, part))
            json_put(&object, parts[part], json_number(time->of[part]));
    return object;
}

/* "compute 1.2 s, comm 0.1" */
static void print_parts(const train_options_t *options, const train_time_t *time, FILE *file) {
    fprintf(file, "time        ");
    for (int part = 0; part < TRAIN_N_PARTS; part++)
        if (has_part(options, time, part) && part != TRAIN_CONCURRENT)
            fprintf(file, "%s %s %.1f%s", part > 0 ? "," : "", parts[part], time->of[part],
                    part == 0 ? " s" : "");
    if (time->of[TRAIN_CONCURRENT] > 0)
        fprintf(file, "; concurrent collectives %.1f", time->of[TRAIN_CONCURRENT]);
    fprintf(file, "\n");
}

zr_status_t train_report_log_step(const train_log_t *to, const train_options_t *options,
                                  const train_step_line_t *line, const zr_log_t *log) {
    const zr_step_report_t *report = &line->report;
    json_t *object = JSON_OBJECT(
        {"step", json_count(report->step)}, {"loss", json_number(line->loss)},
        {"lr", json_number(report->lr)}, {"norm", json_number(report->gradient_norm)},
        {"clip", json_number(report->clip_factor)}, {"skipped", json_boolean(report->skipped)},
        {"tokens", json_count(line->n_tokens)}, {"step_ms", json_number(1e3 * line->seconds)},
        {"tokens_per_s", json_number(line->tokens_per_s)});
    if (options->n_ranks > 1)
        JSON_PUT(&object, {"slowest_rank", json_count((uint64_t)line->slowest.rank)},
                 {"excess_ms", json_number(1e3 * line->slowest.excess_seconds)});
    if (options->config.wall_clock_breakdown)
        json_put(&object, "time", time_object(options, &line->time));
    return train_log_write(to, options, object, "step", report->step, log);
}

zr_status_t train_report_evaluation(const train_log_t *to, messages_t *messages,
                                    const train_options_t *options,
                                    const train_evaluation_line_t *line, const zr_log_t *log) {
    double loss = line->evaluated.loss;
    char of_all[32] = "";
    if (!options->evaluation.only)
        snprintf(of_all, sizeof(of_all), "/%zu", options->steps);
    if (messages != NULL)
        messages_progress(messages, true,
                          "step %zu%s  validation loss %.4f  perplexity %.4g  %.0f ms%s",
                          line->step, of_all, loss, exp(loss), 1e3 * line->evaluated.seconds,
                          line->is_best ? "  best so far" : "");
    if (!train_log_is_open(to))
        return ZR_OK;
    json_t *object = JSON_OBJECT({"step", json_count(line->step)}, {"val_loss", json_number(loss)},
                                 {"val_perplexity", json_number(exp(loss))},
                                 {"val_ms", json_number(1e3 * line->evaluated.seconds)},
                                 {"best", json_boolean(line->is_best)});
    return train_log_write(to, options, object, "evaluation after step", line->step, log);
}

static void format_parts(const train_options_t *options, const train_time_t *time, char *text,
                         size_t size) {
    size_t n = 0;
    text[0] = '\0';
    if (!options->config.wall_clock_breakdown)
        return;
    for (int part = 0; part < TRAIN_N_PARTS; part++)
        if (part != TRAIN_CONCURRENT && n < size)
            n += (size_t)snprintf(text + n, size - n, "%s%s %.0f", part == 0 ? " (" : ", ",
                                  parts[part], 1e3 * time->of[part]);
    snprintf(text + n, size - n, ")");
}

typedef struct duration {
    char text[32];
} duration_t;

/* "4:05", "2:04:05", "3 days" */
static duration_t duration(double seconds) {
    duration_t duration;
    long all = lround(seconds);
    if (all < 3600)
        snprintf(duration.text, sizeof(duration.text), "%ld:%02ld", all / 60, all % 60);
    else if (all < 72 * 3600)
        snprintf(duration.text, sizeof(duration.text), "%ld:%02ld:%02ld", all / 3600, all / 60 % 60,
                 all % 60);
    else
        snprintf(duration.text, sizeof(duration.text), "%ld days", all / 86400);
    return duration;
}

/* "1.2 TFLOP/s", of a rank. */
static duration_t speed_of(const train_options_t *options, double tokens_per_s) {
    static const char *const units[] = {"M", "G", "T", "P"};
    duration_t speed;
    size_t unit = 0;
    double rate = 1e-6 * tokens_per_s / options->n_ranks *
                  zr_model_shape_flops_per_token(&options->shape, options->seq);
    for (; rate >= 1000 && unit < 3; unit++)
        rate /= 1000;
    snprintf(speed.text, sizeof(speed.text), "%.3g %sFLOP/s", rate, units[unit]);
    return speed;
}

ZR_PRINTF(3, 4)
static void put_part(messages_part_t *part, int priority, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(part->text, sizeof(part->text), format, arguments);
    va_end(arguments);
    part->priority = priority;
}

void train_report_progress(messages_t *messages, const train_options_t *options,
                           const train_step_line_t *line) {
    char times[160];
    const zr_step_report_t *report = &line->report;
    size_t every = options->config.steps_per_print;
    bool stays = report->step == options->steps || (every > 0 && report->step % every == 0);
    messages_part_t parts[10];
    size_t n = 0;
    format_parts(options, &line->time, times, sizeof(times));
    put_part(&parts[n++], 0, "step %zu/%zu", report->step, options->steps);
    put_part(&parts[n++], 1, "loss %.4f", line->loss);
    put_part(&parts[n++], 5, "lr %.2e", report->lr);
    put_part(&parts[n++], 6, "norm %.3g", report->gradient_norm);
    put_part(&parts[n++], 4, "%.0f ms%s", 1e3 * line->seconds, times);
    put_part(&parts[n++], 3, "%.0f tokens/s", line->tokens_per_s);
    put_part(&parts[n++], 8, "compute %.0f%%", 100 * line->time.of[TRAIN_COMPUTE] / line->seconds);
    put_part(&parts[n++], 7, "device %s", train_bytes((double)line->device_bytes).text);
    put_part(&parts[n++], 2, "%s left", duration(line->left_seconds).text);
    if (report->skipped)
        put_part(&parts[n++], 1, "skipped");
    messages_progress_parts(messages, stays, parts, n);
}

/* ---- JSON at the end -------------------------------------------------------------------- */

json_t *train_shape_object(const train_options_t *options) {
    json_t *object = model_json(&options->shape);
    JSON_PUT(&object, {"name", json_string(options->model)},
             {"parameters", json_count(zr_model_shape_n_params(&options->shape))});
    return object;
}

static json_t *model_object(const train_options_t *options, const train_result_t *result) {
    const zr_model_size_t *size = &result->size;
    json_t *object = train_shape_object(options);
    if (options->lora_text != NULL)
        JSON_PUT(&object, {"lora", json_string(zr_lora_text(&options->lora).text)},
                 {"lora_base", json_string(train_options_lora_base(options))});
    if (size->n_units == 0)
        return object;
    JSON_PUT(&object, {"trainable", json_count(size->trainable_elems)},
             {"frozen", json_count(size->frozen_elems)}, {"units", json_count(size->n_units)});
    return object;
}

/* Elements added so that all shards are equally long, in all units together. */
static json_t *padding_object(const zr_model_size_t *size) {
    return json_pack("{s:I, s:I}", "trainable",
                     (json_int_t)(size->trainable_padded_elems - size->trainable_elems), "frozen",
                     (json_int_t)(size->frozen_padded_elems - size->frozen_elems));
}

/* What may lie on drives has one of these tags. */
static bool is_on_drives(int tag) {
    return tag == ZR_TAG_PARAMETERS || tag == ZR_TAG_OPTIMIZER_STATE || tag == ZR_TAG_ACTIVATIONS;
}

static json_t *tags_object(const size_t by_tag[ZR_N_TAGS], zr_tier_t tier) {
    json_t *tags = json_object();
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        if (tier != ZR_TIER_NVME || is_on_drives(tag))
            json_put(&tags, zr_tag_name((zr_tag_t)tag), json_count(by_tag[tag]));
    return tags;
}

static json_t *peak_object(const train_peak_t *peak, zr_tier_t tier) {
    return JSON_OBJECT({"live", json_count(peak->live)}, {"reserved", json_count(peak->reserved)},
                       {"tags", tags_object(peak->by_tag, tier)});
}

/* The parts of live. */
static json_t *at_peak_object(const train_peak_t *peak, zr_tier_t tier) {
    return tags_object(peak->at_peak, tier);
}

static json_t *peaks_object(const train_peak_t peaks[ZR_N_TIERS], bool has_drives,
                            json_t *(*make)(const train_peak_t *, zr_tier_t)) {
    json_t *object = json_object();
    for (int tier = ZR_TIER_DEVICE; tier <= (has_drives ? ZR_TIER_NVME : ZR_TIER_HOST); tier++)
        json_put(&object, zr_tier_name((zr_tier_t)tier), make(&peaks[tier], (zr_tier_t)tier));
    return object;
}

json_t *train_peaks_object(const train_peak_t peaks[ZR_N_TIERS], bool has_drives) {
    return peaks_object(peaks, has_drives, peak_object);
}

/* Of the whole run. */
static json_int_t nvme_bytes(const train_result_t *result, zr_store_direction_t direction) {
    return (json_int_t)(result->offload.all.count[direction].bytes +
                        result->offload.params.all.count[direction].bytes +
                        result->activations.drive_bytes[direction]);
}

static json_t *nvme_bytes_object(const train_result_t *result) {
    return json_pack("{s:I, s:I}", "read", nvme_bytes(result, ZR_STORE_GET), "written",
                     nvme_bytes(result, ZR_STORE_PUT));
}

json_t *train_metadata_object(const zr_byte_count_t *metadata) {
    return json_pack("{s:I, s:I}", "live", (json_int_t)metadata->live, "peak",
                     (json_int_t)metadata->peak);
}

static json_t *class_object(const train_class_peak_t *peak) {
    return JSON_OBJECT({"live", json_count(peak->live)}, {"reserved", json_count(peak->reserved)},
                       {"largest_hole", json_count(peak->largest_hole)});
}

static json_t *plan_object(const zr_replay_plan_t *plan) {
    return JSON_OBJECT({"allocations", json_count(plan->n_allocations)},
                       {"max_live", json_count(plan->max_live_bytes)},
                       {"bound", json_count(plan->bound_bytes)},
                       {"height", json_count(plan->height_bytes)});
}

static json_t *replay_object(const zr_replay_statistics_t *replay) {
    return JSON_OBJECT(
        {"plans", json_count(replay->n_plans)}, {"plans_dropped", json_count(replay->n_dropped)},
        {"plan_seconds", json_real(replay->plan_seconds)},
        {"search_bytes", json_count(replay->search_bytes)}, {"steps", json_count(replay->n_steps)},
        {"steps_followed", json_count(replay->n_clean_steps)},
        {"planned", json_count(replay->n_planned)}, {"unplanned", json_count(replay->n_unplanned)},
        {"left_out", json_count(replay->n_left_out)});
}

/* Peaks by class, and the plan, per tier. */
static json_t *memory_object(const train_result_t *result) {
    json_t *object = json_object();
    if (result->replay.is_on)
        json_put(&object, "replay", replay_object(&result->replay));
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        json_t *classes = json_object();
        for (int i = 0; i < ZR_N_CLASSES; i++)
            json_put(&classes, zr_class_name(i), class_object(&result->peak[tier].by_class[i]));
        json_t *memory = json_object();
        json_put(&memory, "classes", classes);
        if (result->replay.has_plan)
            json_put(&memory, "plan", plan_object(&result->replay.plans[tier]));
        json_put(&object, zr_tier_name((zr_tier_t)tier), memory);
    }
    return object;
}

static json_t *sent_object(const uint64_t *bytes_sent) {
    json_t *object = json_object();
    for (int i = 0; i <= ZR_ALL_TO_ALL; i++)
        json_put(&object, zr_collective_name((zr_collective_t)i), json_count(bytes_sent[i]));
    return object;
}

static json_t *levels_object(const train_result_t *result) {
    return JSON_OBJECT(
        {"within_groups", sent_object(result->level_bytes_sent[ZR_LEVEL_GROUP])},
        {"between_groups", sent_object(result->level_bytes_sent[ZR_LEVEL_REPLICAS])});
}

static json_t *data_object(const train_result_t *result) {
    json_t *data = JSON_OBJECT({"kind", json_string(result->data_kind)},
                               {"files", json_count(result->n_data_files)},
                               {"tokens", json_count(result->n_data_tokens)},
                               {"windows", json_count(result->n_data_windows)});
    if (result->has_documents)
        json_object_set_new(data, "targets", json_count(result->n_data_targets));
    return data;
}

static json_t *chosen_object(const train_choice_t *choice) {
    return JSON_OBJECT({"options", json_text(choice->options + 1)}, {"why", json_text(choice->why)},
                       {"plans", json_count(choice->n_plans)});
}

static void put_planned(json_t **object_p, const train_planned_t *planned) {
    bool has_drives = planned->peak[ZR_TIER_NVME].reserved > 0;
    JSON_PUT(object_p, {"planned_fits", json_boolean(planned->fits)},
             {"planned_peak_bytes", train_peaks_object(planned->peak, has_drives)},
             {"planned_pinned_bytes", json_count(planned->peak[ZR_TIER_HOST].pinned)},
             {"planned_metadata_bytes", train_metadata_object(&planned->metadata)});
}

static json_t *passed_array(const train_result_t *result) {
    json_t *array = json_array();
    for (size_t i = 0; i < result->n_passed; i++)
        json_append(&array, JSON_OBJECT({"name", json_string(result->passed[i].name)},
                                        {"kept_as", json_string(result->passed[i].kept_as)},
                                        {"reason", json_text(result->passed[i].reason)}));
    return array;
}

static json_t *checkpoint_object(const train_options_t *options, const train_result_t *result) {
    const train_saves_t *saves = &result->saves;
    json_t *object = JSON_OBJECT({"dir", json_text(options->checkpoint.dir)},
                                 {"resumed_at", json_count(result->first_step)},
                                 {"saves", json_count(saves->n_saves)});
    if (saves->n_saves > 0)
        json_put(&object, "last", json_string(saves->last));
    if (result->n_passed > 0)
        json_put(&object, "passed_over", passed_array(result));
    JSON_PUT(&object, {"bytes", json_count(saves->n_bytes)},
             {"seconds", json_number(saves->seconds)},
             {"write_seconds", json_number(saves->write_seconds)});
    return object;
}

static json_t *trace_object(const train_options_t *options, const train_trace_result_t *trace) {
    return JSON_OBJECT(
        {"file", json_text(options->trace_path)}, {"first_step", json_count(trace->first_step)},
        {"last_step", json_count(trace->last_step)}, {"events", json_count(trace->n_events)},
        {"left_out", json_count(trace->n_left_out)});
}

static json_t *best_object(const train_gain_t *gain) {
    return JSON_OBJECT({"loss", json_number(gain->best_loss)},
                       {"step", json_count(gain->best_step)});
}

/* Losses of this run's evaluations; the best is of the whole run. */
static json_t *evaluation_object(const train_result_t *result) {
    const train_evaluations_t *of = &result->evaluations;
    const train_val_data_t *data = &result->val_data;
    json_t *files = JSON_OBJECT(
        {"kind", json_string(data->kind)}, {"files", json_count(data->n_files)},
        {"tokens", json_count(data->n_tokens)}, {"windows", json_count(data->n_windows)});
    double first = of->n > 0 ? of->first_loss : NAN, last = of->n > 0 ? of->last_loss : NAN;
    json_t *loss = JSON_OBJECT({"first", json_number(first)}, {"last", json_number(last)});
    json_t *object = JSON_OBJECT(
        {"data", files}, {"batches", json_count(data->n_batches)},
        {"tokens", json_count(data->n_evaluated_tokens)}, {"evaluations", json_count(of->n)},
        {"loss", loss}, {"perplexity", json_number(exp(last))},
        {"seconds", json_number(of->seconds)}, {"without_gain", json_count(of->gain.n_without)},
        {"ended_run", json_boolean(of->is_over)});
    if (of->gain.has_best)
        json_put(&object, "best", best_object(&of->gain));
    return object;
}

/* Whose kernels attention was. */
static json_t *attention_object(const zr_nn_engine_info_t *info) {
    json_t *object = JSON_OBJECT({"engine", json_string(info->name)});
    if (strcmp(info->name, "own") != 0)
        JSON_PUT(&object, {"forward", json_count(info->n_forward)},
                 {"backward", json_count(info->n_backward)});
    return object;
}

/* Before it is open, nobody knows. */
static void put_device(json_t **object_p, const train_result_t *result) {
    if (result->device[0] == '\0')
        return;
    JSON_PUT(object_p, {"overlap_comm", json_boolean(result->overlaps)},
             {"threads", json_count(result->n_threads)}, {"device", json_string(result->device)},
             {"attention", attention_object(&result->attention)});
}

/* With its hash: another file gives other bits. */
static void put_matmul_choices(json_t **object_p, const train_options_t *options,
                               const train_result_t *result) {
    if (options->matmul_choices == NULL)
        return;
    json_put(object_p, "matmul_choices",
             JSON_OBJECT({"file", json_text(options->matmul_choices_path)},
                         {"xxh3", json_hex(matmul_choices_hash(options->matmul_choices))},
                         {"chosen", json_count(result->matmuls.chosen)},
                         {"unknown", json_count(result->matmuls.unknown)}));
}

static void put_memory(json_t **object_p, const train_result_t *result) {
    bool has_drives = train_result_has_store(result);
    if (result->has_memory)
        JSON_PUT(object_p, {"peak_bytes", train_peaks_object(result->peak, has_drives)},
                 {"at_peak_bytes", peaks_object(result->peak, has_drives, at_peak_object)},
                 {"pinned_bytes", json_count(result->peak[ZR_TIER_HOST].pinned)},
                 {"metadata_bytes", train_metadata_object(&result->metadata)});
    if (result->planned.is_made)
        put_planned(object_p, &result->planned);
    if (result->planned.is_made && result->device_in_use_bytes[1] != 0)
        JSON_PUT(object_p, {"device_in_use_bytes", json_count(result->device_in_use_bytes[1])},
                 {"planned_device_in_use_bytes",
                  json_count(result->device_in_use_bytes[0] +
                             result->planned.peak[ZR_TIER_DEVICE].reserved)});
    size_t resident = process_peak_resident_bytes();
    if (resident != 0)
        json_put(object_p, "peak_resident_bytes", json_count(resident));
    if (result->has_memory)
        json_put(object_p, "memory", memory_object(result));
}

/* What is known once the model is made, and its parts are placed. */
static void put_placed(json_t **object_p, const train_options_t *options,
                       const train_result_t *result) {
    if (result->size.n_units == 0)
        return;
    json_put(object_p, "padding", padding_object(&result->size));
    if (options->config.offload_optimizer.device != ZR_OFFLOAD_NONE ||
        options->config.offload_param.device != ZR_OFFLOAD_NONE ||
        options->offload_activations != ZR_OFFLOAD_NONE)
        json_put(object_p, "offload", train_offload_object(options, result));
}

static void put_common(json_t **object_p, const train_options_t *options,
                       const train_result_t *result) {
    const zr_config_t *c = &options->config;
    JSON_PUT(object_p, {"stage", json_count((uint64_t)c->stage)},
             {"ranks", json_count((uint64_t)options->n_ranks)});
    int n_shards = zr_config_n_shards(c, options->n_ranks);
    json_put(object_p, "shard_group_size", json_count((uint64_t)n_shards));
    put_device(object_p, result);
    put_matmul_choices(object_p, options, result);
    JSON_PUT(object_p, {"dtype", json_string(zr_dtype_name(c->dtype))},
             {"state", json_string(zr_state_form_name(c->state_form))},
             {"master", json_string(result->offload.has_split_masters ? "split" : "apart")},
             {"micro_batch", json_count(c->micro_batch)}, {"grad_accum", json_count(c->grad_accum)},
             {"order", json_string(c->order == ZR_ORDER_BLOCK ? "block" : "micro-batch")},
             {"update_at", json_string(c->update_at == ZR_UPDATE_AT_BACKWARD ? "backward" : "end")},
             {"seq", json_count(options->seq)}, {"seq_min", json_count(options->seq_min)},
             {"recompute", json_string(zr_recompute_name(options->recompute))},
             {"model", model_object(options, result)});
    zr_messages_text_t messages = zr_config_messages(c);
    if (messages.text[0] != '\0')
        json_put(object_p, "messages", json_string(messages.text));
    if (result->data_kind != NULL)
        json_put(object_p, "data", data_object(result));
    put_placed(object_p, options, result);
    JSON_PUT(object_p, {"steps", json_count(result->n_steps)},
             {"n_skipped", json_count(result->n_skipped)},
             {"tokens", json_count(result->n_trained_tokens)});
    if (options->choice.options[0] != '\0')
        json_put(object_p, "chosen", chosen_object(&options->choice));
    put_memory(object_p, result);
    if (result->val_data.kind != NULL)
        json_put(object_p, "evaluation", evaluation_object(result));
    if (options->checkpoint.dir != NULL)
        json_put(object_p, "checkpoint", checkpoint_object(options, result));
    if (train_options_use_nvme(options))
        json_put(object_p, "nvme_bytes", nvme_bytes_object(result));
    if (result->trace.is_written)
        json_put(object_p, "trace", trace_object(options, &result->trace));
}

/* Whether what was trained can be used. */
static bool is_finite(const train_result_t *result) {
    return isfinite(result->last_loss) && result->weights.n_non_finite == 0;
}

void train_report_warnings(const train_options_t *options, const train_result_t *result,
                           const zr_log_t *log) {
    if (result->status != ZR_OK || result->n_steps == result->first_step || is_finite(result))
        return;
    zr_log_write(log, ZR_LOG_WARNING,
                 "training diverged: the last loss is %g, of %s %zu were skipped, of %s %zu are "
                 "not finite; try a lower --lr (now %g), --clip 1, or a "
                 "longer --warmup",
                 isnan(result->last_loss) ? NAN : result->last_loss,
                 zr_count_text(result->n_steps, "step").text, result->n_skipped,
                 zr_count_text(zr_model_shape_n_params(&options->shape), "weight").text,
                 result->weights.n_non_finite, options->config.adamw.lr);
}

/* What a step would lose less, were the slowest rank as fast as the others. */
static double excess_ms(const train_result_t *result) {
    return 1e3 * result->slowest.excess_seconds / (double)result->n_delayed_steps;
}

static json_t *slowest_object(const train_result_t *result) {
    return JSON_OBJECT({"rank", json_count((uint64_t)result->slowest_rank)},
                       {"steps", json_count(result->slowest.n_steps)},
                       {"excess_ms", json_number(excess_ms(result))});
}

static void put_success(json_t **object_p, const train_options_t *options,
                        const train_result_t *result) {
    bool has_trained = result->n_steps > result->first_step;
    json_t *loss = JSON_OBJECT({"first", json_number(has_trained ? result->first_loss : NAN)},
                               {"last", json_number(has_trained ? result->last_loss : NAN)});
    JSON_PUT(object_p, {"loss", loss},
             {"step_ms", json_number(has_trained ? result->step_ms : NAN)},
             {"tokens_per_s", json_number(has_trained ? result->tokens_per_s : NAN)},
             {"weights_xxh3", json_hex(result->weights.xxh3)},
             {"non_finite_weights", json_count(result->weights.n_non_finite)},
             {"finite", json_boolean(is_finite(result))},
             {"comm_bytes", sent_object(result->bytes_sent[ZR_TRAFFIC_MODEL])},
             {"comm_control_bytes", sent_object(result->bytes_sent[ZR_TRAFFIC_CONTROL])});
    if (zr_config_n_shards(&options->config, options->n_ranks) < options->n_ranks)
        json_put(object_p, "comm_levels", levels_object(result));
    json_put(object_p, "time", time_object(options, &result->time));
    if (result->n_delayed_steps > 0)
        json_put(object_p, "slowest_rank", slowest_object(result));
}

/* ---- of each rank ---- */

static json_t *size_object(const train_peak_t *peak) {
    return json_pack("{s:I, s:I}", "live", (json_int_t)peak->live, "reserved",
                     (json_int_t)peak->reserved);
}

static json_t *sizes_object(const train_result_t *own) {
    json_t *object = JSON_OBJECT({"device", size_object(&own->peak[ZR_TIER_DEVICE])},
                                 {"host", size_object(&own->peak[ZR_TIER_HOST])});
    if (train_result_has_store(own))
        json_put(&object, "nvme", size_object(&own->peak[ZR_TIER_NVME]));
    return object;
}

/* Processes have memory of their own; threads are one process. */
static json_t *rank_object(const train_options_t *options, int rank, const train_result_t *own) {
    json_t *object = json_object();
    bool has_steps = own->n_steps > own->first_step;
    JSON_PUT(&object, {"rank", json_count((uint64_t)rank)},
             {"step_ms", json_number(has_steps ? own->step_ms : NAN)},
             {"own_ms", json_number(has_steps ? own->own_ms : NAN)});
    if (own->has_memory)
        json_put(&object, "peak_bytes", sizes_object(own));
    if (own->has_memory)
        json_put(&object, "metadata_bytes", train_metadata_object(&own->metadata));
    if (options->is_launched && own->peak_resident_bytes != 0)
        json_put(&object, "peak_resident_bytes", json_count(own->peak_resident_bytes));
    return object;
}

static void put_ranks(json_t **object_p, const train_options_t *options, const zero_train_t *run) {
    json_t *ranks = json_array();
    int n_known = 0, first = zero_train_first_known(run, &n_known);
    for (int rank = first; rank < first + n_known; rank++)
        json_append(&ranks, rank_object(options, rank, zero_train_result_of(run, rank)));
    json_put(object_p, "per_rank", ranks);
}

bool train_report_is_lost(const train_options_t *options, const train_result_t *result) {
    return result->interrupted && (options->checkpoint.dir == NULL || options->evaluation.only);
}

bool train_report_json(const train_options_t *options, const zero_train_t *run,
                       const train_result_t *result, const char *message, FILE *file) {
    json_t *object = json_object();
    bool failed = result->status != ZR_OK;
    bool is_lost = failed || train_report_is_lost(options, result);
    const char *outcome = is_lost                    ? "failed"
                          : options->dry_run         ? "planned"
                          : result->interrupted      ? "saved"
                          : options->evaluation.only ? "evaluated"
                                                     : "trained";
    json_put(&object, "result", json_string(outcome));
    if (result->interrupted)
        json_put(&object, "interrupted", json_true());
    if (failed)
        json_put(&object, "error", json_string(zr_status_name(result->status)));
    if (is_lost)
        json_put(&object, "message", json_text(message));
    put_common(&object, options, result);
    if (run != NULL)
        put_ranks(&object, options, run);
    if (!failed && (result->n_steps > 0 || result->evaluations.n > 0))
        put_success(&object, options, result);
    return json_print_new(object, file);
}

/* ---- for people ------------------------------------------------------------------------- */

train_bytes_t train_bytes(double bytes) {
    train_bytes_t size;
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    snprintf(size.text, sizeof(size.text), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return size;
}

/* What of the memory that was reserved never held anything: holes, and the rest of granules. */
static double lost_percent(size_t live, size_t reserved) {
    return reserved > live ? 100.0 * (double)(reserved - live) / (double)reserved : 0;
}

static void print_classes(const train_peak_t *peak, FILE *file) {
    fprintf(file, "  %-20s %10s %10s %6s %13s\n", "class", "live", "reserved", "lost",
            "largest hole");
    for (int i = 0; i < ZR_N_CLASSES; i++) {
        const train_class_peak_t *own = &peak->by_class[i];
        if (own->reserved == 0)
            continue;
        fprintf(file, "  %-20s %10s %10s %5.1f%% %13s\n", zr_class_name(i),
                train_bytes((double)own->live).text, train_bytes((double)own->reserved).text,
                lost_percent(own->live, own->reserved),
                train_bytes((double)own->largest_hole).text);
    }
    fprintf(file, "  %-20s %10s %10s %5.1f%%\n", "all", train_bytes((double)peak->live).text,
            train_bytes((double)peak->reserved).text, lost_percent(peak->live, peak->reserved));
}

/* A kind of memory: what there was of it, and what had been foretold. */
static void print_kind(const char *name, size_t live, const size_t *planned, FILE *file) {
    fprintf(file, "  %-20s %10s", name, train_bytes((double)live).text);
    if (planned != NULL)
        fprintf(file, " %10s", train_bytes((double)*planned).text);
    fprintf(file, "\n");
}

static void print_tags(const train_peak_t *peak, const train_peak_t *planned, FILE *file) {
    fprintf(file, "  %-20s %10s%s\n", "tag", "live", planned != NULL ? "    planned" : "");
    for (int tag = 0; tag < ZR_N_TAGS; tag++)
        if (peak->by_tag[tag] > 0 || (planned != NULL && planned->by_tag[tag] > 0))
            print_kind(zr_tag_name((zr_tag_t)tag), peak->by_tag[tag],
                       planned != NULL ? &planned->by_tag[tag] : NULL, file);
    if (planned == NULL)
        return;
    print_kind("all", peak->live, &planned->live, file);
    print_kind("all, reserved", peak->reserved, &planned->reserved, file);
}

static void print_plan(const zr_replay_plan_t *plan, FILE *file) {
    if (plan->n_allocations > 0)
        fprintf(file, "  plan of a step: %s in %s, %.4f of the peak of live bytes\n",
                zr_count_text(plan->n_allocations, "allocation").text,
                train_bytes((double)plan->height_bytes).text,
                (double)plan->height_bytes / (double)plan->max_live_bytes);
}

/* Peaks, each of its own kind and by itself; holes are those of the moment when live was most. */
static void print_memory(const train_result_t *result, FILE *file) {
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_NVME; tier++) {
        const train_peak_t *peak = &result->peak[tier];
        if (peak->reserved == 0)
            continue;
        fprintf(file, "%s memory, the most that a rank had at a time\n",
                zr_tier_name((zr_tier_t)tier));
        if (tier != ZR_TIER_NVME)
            print_classes(peak, file);
        print_tags(peak, result->planned.is_made ? &result->planned.peak[tier] : NULL, file);
        if (tier != ZR_TIER_NVME && result->replay.has_plan)
            print_plan(&result->replay.plans[tier], file);
    }
    fprintf(file, "tables of the library, outside of tiers: at most %s per rank\n",
            train_bytes((double)result->metadata.peak).text);
    if (result->replay.is_on)
        fprintf(file, "memory plan  %s; %s placed by plan, %zu left it\n",
                zr_count_text(result->replay.n_plans, "plan").text,
                zr_count_text(result->replay.n_planned, "allocation").text,
                result->replay.n_unplanned);
}

static void print_sent_of(const uint64_t bytes_sent[ZR_N_COLLECTIVES], const char *which,
                          FILE *file) {
    const char *between = "sent         ";
    bool any = false;
    for (int i = 0; i < ZR_N_COLLECTIVES; i++) {
        uint64_t bytes = bytes_sent[i];
        if (bytes == 0)
            continue;
        fprintf(file, "%s%s %s", between, zr_collective_name((zr_collective_t)i),
                train_bytes((double)bytes).text);
        between = ", ";
        any = true;
    }
    if (any)
        fprintf(file, " per rank%s\n", which);
}

static void print_sent(const train_result_t *result, FILE *file) {
    print_sent_of(result->level_bytes_sent[ZR_LEVEL_ALL], "", file);
    print_sent_of(result->level_bytes_sent[ZR_LEVEL_GROUP], ", within groups", file);
    print_sent_of(result->level_bytes_sent[ZR_LEVEL_REPLICAS], ", between groups", file);
}

static void print_evaluations(const train_result_t *result, FILE *file) {
    const train_evaluations_t *of = &result->evaluations;
    const train_val_data_t *data = &result->val_data;
    if (of->n > 0)
        fprintf(file, "evaluation   %s of %s (%s) in %.1f s; perplexity %.4g\n",
                zr_count_text(of->n, "time").text,
                zr_count_text(data->n_evaluated_tokens, "token").text, data->kind, of->seconds,
                exp(of->last_loss));
}

static void print_data(const train_options_t *options, const train_result_t *result, FILE *file) {
    if (result->data_kind == NULL)
        return;
    fprintf(file, "data         %s, %s (%s), %s of %zu per epoch",
            zr_count_text(result->n_data_files, "file").text,
            zr_count_text(result->n_data_tokens, "token").text, result->data_kind,
            zr_count_text(result->n_data_windows, "sequence").text, options->seq);
    if (result->has_documents)
        fprintf(file, ", %s with a loss", zr_count_text(result->n_data_targets, "target").text);
    if (options->seq_min < options->seq)
        fprintf(file, ", cut to their first %zu to %zu", options->seq_min, options->seq);
    fprintf(file, ", %s trained on\n", zr_count_text(result->n_trained_tokens, "token").text);
}

/* ---- the five lines ---- */

static void print_run(const train_options_t *options, const train_result_t *result, FILE *file) {
    int n_shards = zr_config_n_shards(&options->config, options->n_ranks);
    fprintf(
        file, "run          %s, %s; stage %d, %s", options->model,
        zr_count_text(result->size.trainable_elems + result->size.frozen_elems, "parameter").text,
        options->config.stage, zr_count_text((uint64_t)options->n_ranks, "rank").text);
    if (n_shards < options->n_ranks)
        fprintf(file, " in groups of %d", n_shards);
    zr_state_form_t form = options->config.state_form;
    if (options->lora_base != TRAIN_LORA_BASE_DTYPE)
        fprintf(file, ", frozen weights in %s", train_options_lora_base(options));
    fprintf(file, ", %s%s%s%s, %s\n", zr_dtype_name(options->config.dtype),
            form == ZR_STATE_FP32 ? "" : ", optimizer state in ",
            form == ZR_STATE_FP32 ? "" : zr_state_form_name(form),
            result->offload.has_split_masters ? ", split masters" : "", result->device);
}

static void print_losses(const train_options_t *options, const train_result_t *result, FILE *file) {
    const train_evaluations_t *of = &result->evaluations;
    bool has_trained = result->n_steps > result->first_step;
    fprintf(file, "loss         ");
    if (has_trained)
        fprintf(file, "%.4f to %.4f", result->first_loss, result->last_loss);
    else if (!options->evaluation.only)
        fprintf(file, "none: the checkpoint has all %zu steps", result->n_steps);
    if (of->n > 0)
        fprintf(file, "%svalidation %.4f", options->evaluation.only ? "" : "; ", of->first_loss);
    if (of->n > 1)
        fprintf(file, " to %.4f", of->last_loss);
    if (of->n > 0 && of->gain.has_best)
        fprintf(file, ", best %.4f after step %zu", of->gain.best_loss, of->gain.best_step);
    fprintf(file, "\n");
}

static void print_speed(const train_options_t *options, const train_result_t *result, FILE *file) {
    if (result->n_steps == result->first_step) {
        fprintf(file, "steps        %zu\n", result->n_steps);
        return;
    }
    fprintf(file,
            "steps        %zu, %zu skipped; %.1f ms each, %.0f tokens/s, %s per rank, compute "
            "%.0f%%\n",
            result->n_steps, result->n_skipped, result->step_ms, result->tokens_per_s,
            speed_of(options, result->tokens_per_s).text,
            100 * result->time.of[TRAIN_COMPUTE] / result->seconds);
}

/* Of each tier that was used. */
static void print_peaks(const train_result_t *result, FILE *file) {
    const char *between = "memory       ";
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_NVME; tier++) {
        if (result->peak[tier].reserved == 0)
            continue;
        fprintf(file, "%s%s %s", between, zr_tier_name((zr_tier_t)tier),
                train_bytes((double)result->peak[tier].reserved).text);
        if (result->planned.is_made)
            fprintf(file, " (planned %s)",
                    train_bytes((double)result->planned.peak[tier].reserved).text);
        between = ", ";
    }
    fprintf(file, "; maximum per rank\n");
}

static void print_weights(const train_options_t *options, const train_result_t *result,
                          FILE *file) {
    fprintf(file, "weights      xxh3 %016llx", (unsigned long long)result->weights.xxh3);
    if (result->saves.n_saves > 0)
        fprintf(file, ", saved as %s/%s", options->checkpoint.dir, result->saves.last);
    fprintf(file, "\n");
}

/* ---- --verbose ---- */

static void print_saves(const train_saves_t *saves, FILE *file) {
    if (saves->n_saves > 0)
        fprintf(file, "checkpoints  %zu saved, %s together, in %.1f s\n", saves->n_saves,
                train_bytes((double)saves->n_bytes).text, saves->seconds);
}

static void print_details(const train_options_t *options, const train_result_t *result,
                          FILE *file) {
    const zr_model_size_t *size = &result->size;
    fprintf(file, "model        %s, %zu frozen; padding %zu; %s of each rank\n",
            zr_count_text(size->n_units, "unit").text, size->frozen_elems,
            size->trainable_padded_elems - size->trainable_elems + size->frozen_padded_elems -
                size->frozen_elems,
            zr_count_text(result->n_threads, "thread").text);
    print_data(options, result, file);
    print_saves(&result->saves, file);
    print_evaluations(result, file);
    print_parts(options, &result->time, file);
    if (result->n_delayed_steps > 0)
        fprintf(file,
                "slowest      rank %d, in %zu of %s; %.1f ms of a step more than the others\n",
                result->slowest_rank, result->slowest.n_steps,
                zr_count_text(result->n_delayed_steps, "step").text, excess_ms(result));
    print_sent(result, file);
    train_offload_summary(options, result, file);
    print_memory(result, file);
}

static void print_messages(const zr_config_t *config, FILE *file) {
    zr_messages_text_t messages = zr_config_messages(config);
    if (messages.text[0] != '\0')
        fprintf(file, "messages     %s, which changes the result\n", messages.text);
}

void train_report_summary(const train_options_t *options, const train_result_t *result,
                          FILE *file) {
    print_run(options, result, file);
    print_messages(&options->config, file);
    print_losses(options, result, file);
    print_speed(options, result, file);
    print_peaks(result, file);
    print_weights(options, result, file);
    if (options->verbose)
        print_details(options, result, file);
}

void train_report_planned(const train_options_t *options, const train_result_t *result,
                          FILE *file) {
    const train_peak_t *peak = result->planned.peak;
    if (!result->planned.is_made) /* another rank says it */
        return;
    if (result->first_step >= options->steps) {
        fprintf(file, "planned      nothing: %zu of %zu steps are done\n", result->first_step,
                options->steps);
        return;
    }
    fprintf(file, "planned      step %zu to %zu: device %s, host %s", result->first_step + 1,
            options->steps, train_bytes((double)peak[ZR_TIER_DEVICE].reserved).text,
            train_bytes((double)peak[ZR_TIER_HOST].reserved).text);
    if (peak[ZR_TIER_NVME].reserved > 0)
        fprintf(file, ", nvme %s", train_bytes((double)peak[ZR_TIER_NVME].reserved).text);
    fprintf(file, "; maximum per rank. Nothing was trained (--dry-run)\n");
}
