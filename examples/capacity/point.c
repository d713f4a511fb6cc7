/* A capacity as JSON: see capacity_point.h. */
#include "examples/capacity/point.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "examples/capacity/bytes.h"
#include "examples/common/model_json.h"
#include "examples/common/json.h"
#include "examples/plan/lack.h"
#include "examples/train/report.h"

/* ---- which it is ----------------------------------------------------------------------------- */

static json_t *budget(size_t size_bytes) {
    return size_bytes == ZR_CONFIG_NO_BUDGET ? json_null() : json_count(size_bytes);
}

json_t *capacity_point_key(const capacity_case_t *its_case, const capacity_place_t *place) {
    const train_options_t *run = &its_case->run;
    return JSON_OBJECT({"ranks", json_count((uint64_t)run->n_ranks)},
                       {"device_memory", budget(run->config.device_memory_bytes)},
                       {"host_memory", budget(run->config.host_memory_bytes)},
                       {"nvme_capacity", budget(run->config.nvme.capacity_bytes)},
                       {"stage", json_count((uint64_t)place->stage)},
                       {"offload_optimizer", json_string(capacity_where_name(place->optimizer))},
                       {"offload_params", json_string(capacity_where_name(place->params))});
}

bool capacity_point_is(const json_t *point, const json_t *key) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)key, name, value) {
        if (!json_equal(json_object_get(point, name), value))
            return false;
    }
    return true;
}

/* ---- options of zero-train ------------------------------------------------------------------- */

typedef struct text {
    char bytes[4096];
    size_t n;
} text_t;

static void add(text_t *text, const char *format, ...) ZR_PRINTF(2, 3);
static void add(text_t *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (text->n < sizeof(text->bytes)) {
        int n = vsnprintf(text->bytes + text->n, sizeof(text->bytes) - text->n, format, arguments);
        text->n += n > 0 ? (size_t)n : 0;
    }
    va_end(arguments);
}

/* Whether an option says what is trained: one that may be given, or that `auto` chooses. */
static bool is_of_run(const options_row_t *row) {
    static const char *const others[] = {"ranks", "stage",       "dtype",  "recompute",
                                         "seed",  "micro-batch", "device", "nvme-path"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(row->option.name, others[i]) == 0)
            return false;
    for (size_t i = 0; i < capacity_table.n_uses; i++)
        if (strcmp(row->option.name, capacity_table.uses[i].name) == 0)
            return capacity_table.uses[i].group < CAPACITY_PROOF;
    return row->is_of_library &&
           (row->option.group != ZR_OPTION_GROUP_STEP || strcmp(row->option.name, "state") == 0 ||
            strcmp(row->option.name, "master") == 0);
}

/* The options of zero-train that train a size, but for its data: those that mean something, and are
 * not what it takes anyhow. */
static void write_options(const capacity_search_t *search, text_t *text) {
    const train_options_t *run = &search->run, usual = train_options_default();
    const train_open_t nothing = {.stage = false};
    options_rows_t rows;
    options_rows(&train_table, &rows);
    add(text, "--model %s --dtype %s --ranks %d --stage %d --recompute %s --micro-batch %zu",
        zr_model_shape_text(&run->shape).text, zr_dtype_name(run->config.dtype), run->n_ranks,
        run->config.stage, zr_recompute_name(run->recompute), run->config.micro_batch);
    for (size_t i = 0; i < rows.n; i++) {
        const zr_option_t *option = &rows.all[i].option;
        const void *ours = options_object(&rows.all[i], run);
        if (is_of_run(&rows.all[i]) &&
            !zr_option_equal(option, ours, options_object(&rows.all[i], &usual)) &&
            train_options_idle(run, option, nothing, true) == NULL)
            add(text, " --%s %s", option->name, zr_option_text(option, ours).text);
    }
    if (train_options_use_nvme(run))
        add(text, " --nvme-path %s", search->options->is_this ? run->config.nvme.paths : "DIR");
}

/* What steps that follow one another write to the drives of all ranks: what is kept there, once;
 * gradients and inputs of layers for each micro-batch, or once where all are taken together. Frozen
 * parameters are not written. */
static double written_bytes_per_day(const capacity_search_t *search) {
    const zr_config_t *config = &search->run.config;
    const zr_run_plan_t *plan = &search->plan;
    double trained = (double)plan->size.trainable_padded_elems *
                     (double)zr_dtype_size(config->dtype) / (double)search->run.n_ranks;
    size_t n_passes = config->grad_accum / zr_config_n_together(config);
    double bytes = (double)plan->nvme_by_tag[ZR_TAG_OPTIMIZER_STATE] +
                   fmin((double)plan->nvme_by_tag[ZR_TAG_PARAMETERS], trained) +
                   (double)n_passes * (double)(plan->nvme_by_tag[ZR_TAG_GRADIENTS] +
                                               plan->nvme_by_tag[ZR_TAG_ACTIVATIONS]);
    return (double)search->run.n_ranks * bytes * 86400 / plan->step_seconds;
}

/* ---- what was found -------------------------------------------------------------------------- */

static json_t *shape_object(const zr_model_shape_t *shape) {
    json_t *object = model_json(shape);
    JSON_PUT(&object, {"parameters", json_count(zr_model_shape_n_params(shape))});
    return object;
}

static json_t *tiers_object(const uint64_t bytes[ZR_N_TIERS]) {
    json_t *object = json_object();
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        json_put(&object, zr_tier_name((zr_tier_t)tier), json_count(bytes[tier]));
    return object;
}

static json_t *bytes_object(const capacity_bytes_t *bytes) {
    return JSON_OBJECT(
        {"budgets", json_count(bytes->all_budgets)}, {"budget", tiers_object(bytes->budget)},
        {"states", json_count(bytes->states)}, {"replicas", json_count(bytes->replicas)},
        {"padding", json_count(bytes->padding)}, {"work", tiers_object(bytes->work)},
        {"holes", tiers_object(bytes->holes)}, {"unused", json_integer(bytes->unused)});
}

static json_t *peaks_object(const zr_run_plan_t *plan) {
    train_peak_t peaks[ZR_N_TIERS];
    train_plan_peaks(plan, peaks);
    return train_peaks_object(peaks, true);
}

static double tokens_per_s(const train_options_t *run, double step_seconds) {
    return (double)run->n_ranks * (double)run->config.micro_batch * (double)run->config.grad_accum *
           (double)run->seq / step_seconds;
}

static json_t *largest_object(const capacity_search_t *search) {
    const train_options_t *run = &search->run;
    const zr_offload_options_t *offload = &run->config.offload_optimizer;
    capacity_bytes_t bytes = capacity_bytes_of(run, &search->its_case->hardware, &search->plan,
                                               search->options->has_drives);
    double seconds = search->plan.step_seconds;
    bool has_gradients = offload->device != ZR_OFFLOAD_NONE && run->config.stage >= 2;
    json_t *object = json_object();
    text_t options = {.n = 0};
    write_options(search, &options);
    JSON_PUT(
        &object, {"model", shape_object(&run->shape)},
        {"efficiency", json_number(capacity_efficiency(&bytes))}, {"bytes", bytes_object(&bytes)},
        {"offload_gradients",
         json_string(train_offload_name(has_gradients ? offload->gradients : ZR_OFFLOAD_NONE))},
        {"offload_gradients_ratio", json_number(offload->gradients_ratio)},
        {"gradients_in_host", json_count(offload->gradients_in_cpu_elems)},
        {"offload_activations", json_string(train_offload_name(run->offload_activations))},
        {"step_ms", json_number(1e3 * seconds)},
        {"tokens_per_s", json_number(tokens_per_s(run, seconds))},
        {"written_bytes_per_day", json_number(written_bytes_per_day(search))},
        {"peak_bytes", peaks_object(&search->plan)},
        {"pinned_bytes", json_count(search->plan.tiers[ZR_TIER_HOST].pinned.peak)},
        {"metadata_bytes", train_metadata_object(&search->plan.metadata)},
        {"options", json_text(options.bytes)});
    return object;
}

/* It fits, and is slower than what was asked for. */
static json_t *slow_object(const capacity_search_t *search) {
    double rate = tokens_per_s(&search->next_run, search->next.plan.step_seconds);
    char message[128];
    snprintf(message, sizeof(message), "its plan has %.4g tokens/s, but %.4g were requested", rate,
             search->options->least_tokens_per_s);
    return JSON_OBJECT({"model", shape_object(&search->next_shape)},
                       {"tokens_per_s", json_number(rate)}, {"message", json_text(message)});
}

static json_t *next_object(const capacity_search_t *search) {
    if (search->next.fits)
        return slow_object(search);
    return JSON_OBJECT({"model", shape_object(&search->next_shape)},
                       {"lack", plan_lack_object(&search->next.lack)},
                       {"message", json_text(search->next.message)});
}

static json_t *sizes_array(const capacity_search_t *search) {
    json_t *array = json_array();
    for (size_t i = 0; i < search->n_sizes; i++) {
        json_t *size = json_object();
        JSON_PUT(&size, {"parameters", json_count(search->sizes[i].n_params)},
                 {"step_ms", json_number(1e3 * search->sizes[i].step_seconds)});
        json_append(&array, size);
    }
    return array;
}

static json_t *measured_peaks(const train_result_t *result) {
    json_t *object = json_object();
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        json_put(&object, zr_tier_name((zr_tier_t)tier), json_count(result->peak[tier].reserved));
    return object;
}

static json_t *proof_object(const capacity_proof_t *proof) {
    const train_result_t *result = &proof->result;
    json_t *object = JSON_OBJECT({"result", json_string(proof->trained ? "trained" : "failed")},
                                 {"next", json_string(proof->refused ? "refused" : "not_refused")},
                                 {"steps", json_count(result->n_steps)});
    if (proof->trained) {
        JSON_PUT(&object, {"peaks", json_string(proof->as_planned ? "as_planned" : "other")},
                 {"peak_bytes", measured_peaks(result)}, {"step_ms", json_number(result->step_ms)},
                 {"first_loss", json_number(result->first_loss)},
                 {"last_loss", json_number(result->last_loss)});
    } else {
        json_put(&object, "message", json_text(proof->message));
    }
    if (proof->next_message[0] != '\0')
        json_put(&object, "next_message", json_text(proof->next_message));
    return object;
}

json_t *capacity_point_object(const capacity_search_t *search) {
    json_t *object = capacity_point_key(search->its_case, &search->place);
    JSON_PUT(&object, {"result", json_string(search->found ? "found" : "none_fits")},
             {"plans", json_count(search->n_plans)},
             {"monotone", json_boolean(search->is_monotone)}, {"sizes", sizes_array(search)});
    if (search->found)
        json_put(&object, "largest", largest_object(search));
    if (search->has_next)
        json_put(&object, "next", next_object(search));
    return object;
}

bool capacity_point_prove(json_t *point, const capacity_proof_t *proof) {
    return json_object_set_new(point, "proof", proof_object(proof)) == 0;
}

/* The larger one is trained with the options of the largest. */
bool capacity_point_runs_as(const json_t *point, const json_t *other) {
    const char *options = capacity_point_text(point, "largest.options");
    return options[0] != '\0' &&
           strcmp(options, capacity_point_text(other, "largest.options")) == 0 &&
           json_equal((json_t *)capacity_point_at(point, "next.model"),
                      (json_t *)capacity_point_at(other, "next.model"));
}

/* ---- reading it ------------------------------------------------------------------------------ */

const json_t *capacity_point_at(const json_t *point, const char *path) {
    while (point != NULL && *path != '\0') {
        char name[64];
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof(name), "%.*s", (int)length, path);
        point = json_object_get(point, name);
        path += length + (path[length] == '.');
    }
    return point;
}

double capacity_point_number(const json_t *point, const char *path) {
    return json_number_value(capacity_point_at(point, path));
}

const char *capacity_point_text(const json_t *point, const char *path) {
    const char *text = json_string_value(capacity_point_at(point, path));
    return text != NULL ? text : "";
}

bool capacity_point_is_good(const json_t *point) {
    if (capacity_point_at(point, "proof") == NULL)
        return true;
    return strcmp(capacity_point_text(point, "proof.result"), "trained") == 0 &&
           strcmp(capacity_point_text(point, "proof.next"), "refused") == 0;
}
