/* A capacity as JSON: see capacity_point.h. */
#include "examples/capacity/point.h"

#include <stdarg.h>
#include <string.h>

#include "examples/capacity/bytes.h"
#include "examples/common/json.h"
#include "examples/plan/lack.h"
#include "examples/train/report.h"

/* ---- which it is ----------------------------------------------------------------------------- */

static json_t *budget(size_t size_bytes) {
    return size_bytes == ZR_CONFIG_NO_BUDGET ? json_null() : json_count(size_bytes);
}

json_t *capacity_point_key(const capacity_case_t *its_case, const capacity_place_t *place) {
    const train_options_t *run = &its_case->run;
    json_t *object = json_object();
    json_put(&object, "ranks", json_count((uint64_t)run->n_ranks));
    json_put(&object, "device_memory", budget(run->config.device_memory_bytes));
    json_put(&object, "host_memory", budget(run->config.host_memory_bytes));
    json_put(&object, "nvme_capacity", budget(run->config.nvme.capacity_bytes));
    json_put(&object, "stage", json_count((uint64_t)place->stage));
    json_put(&object, "offload_optimizer", json_string(capacity_where_name(place->optimizer)));
    json_put(&object, "offload_params", json_string(capacity_where_name(place->params)));
    return object;
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

static void add_size(text_t *text, const char *option, size_t size_bytes) {
    if (size_bytes != ZR_CONFIG_NO_BUDGET)
        add(text, " --%s %zu", option, size_bytes);
}

static void add_optimizer(text_t *text, const zr_config_t *config, bool is_cuda) {
    static const char *const update_on[] = {"auto", "host", "device"};
    const zr_offload_options_t *offload = &config->offload_optimizer;
    if (offload->device == ZR_OFFLOAD_NONE)
        return;
    add(text, " --offload-optimizer %s", train_offload_name(offload->device));
    if (offload->ratio < 1)
        add(text, " --offload-ratio %.8g", offload->ratio);
    if (offload->device == ZR_OFFLOAD_NVME && offload->max_in_cpu_elems > 0)
        add(text, " --state-in-host %zu", offload->max_in_cpu_elems);
    if (config->stage >= 2)
        add(text, " --offload-gradients %s", train_offload_name(offload->gradients));
    if (config->stage >= 2 && offload->gradients == ZR_OFFLOAD_CPU && offload->gradients_ratio < 1)
        add(text, " --offload-gradients-ratio %.8g", offload->gradients_ratio);
    if (is_cuda)
        add(text, " --update-on %s", update_on[offload->update_on]);
}

static void add_params(text_t *text, const zr_config_t *config) {
    const zr_offload_param_options_t *offload = &config->offload_param;
    if (offload->device == ZR_OFFLOAD_NONE)
        return;
    add(text, " --offload-params %s", train_offload_name(offload->device));
    if (offload->ratio < 1)
        add(text, " --offload-param-ratio %.8g", offload->ratio);
    if (offload->device != ZR_OFFLOAD_NVME)
        return;
    if (offload->max_in_cpu_elems > 0)
        add(text, " --params-in-host %zu", offload->max_in_cpu_elems);
    add(text, " --param-buffers %zu --param-buffer %zu", offload->n_buffers, offload->buffer_elems);
}

static void add_drives(text_t *text, const train_options_t *run, bool is_this) {
    const zr_config_t *config = &run->config;
    if (!train_options_use_nvme(run))
        return;
    add(text, " --nvme-path %s", is_this ? config->nvme.paths : "DIR");
    add_size(text, "nvme-capacity", config->nvme.capacity_bytes);
    if (config->offload_optimizer.device == ZR_OFFLOAD_NVME ||
        run->offload_activations == ZR_OFFLOAD_NVME)
        add(text, " --nvme-buffers %zu", config->offload_optimizer.n_buffers);
    if (!config->nvme.verify)
        add(text, " --nvme-verify off");
}

/* The options of zero-train that train a size, but for its data. */
static void write_options(const capacity_search_t *search, text_t *text) {
    const train_options_t *run = &search->run;
    const zr_config_t *config = &run->config;
    char model[CAPACITY_MODEL_BYTES];
    capacity_model_text(&run->shape, model);
    add(text, "--model %s --dtype %s --ranks %d --stage %d --recompute %s --micro-batch %zu", model,
        zr_dtype_name(config->dtype), run->n_ranks, config->stage, run->recompute ? "unit" : "none",
        config->micro_batch);
    if (config->grad_accum > 1)
        add(text, " --grad-accum %zu", config->grad_accum);
    if (config->reduce != ZR_REDUCE_AUTO)
        add(text, " --reduce every-micro-batch");
    if (config->stage == 3)
        add(text, " --prefetch %zu", config->prefetch_elems);
    if (!config->plan_memory)
        add(text, " --memory-plan off");
    add_optimizer(text, config, search->its_case->hardware.kind == ZR_HARDWARE_CUDA);
    if (config->offload_optimizer.device != ZR_OFFLOAD_NONE)
        add(text, " --sub-group %zu", config->sub_group_elems);
    add_params(text, config);
    if (run->offload_activations != ZR_OFFLOAD_NONE)
        add(text, " --offload-activations %s", train_offload_name(run->offload_activations));
    add_size(text, "device-memory", config->device_memory_bytes);
    add_size(text, "host-memory", config->host_memory_bytes);
    add_drives(text, run, search->options->is_this);
}

/* ---- what was found -------------------------------------------------------------------------- */

static json_t *shape_object(const gpt_shape_t *shape) {
    json_t *object = json_object();
    json_put(&object, "layers", json_count(shape->n_layers));
    json_put(&object, "channels", json_count(shape->channels));
    json_put(&object, "heads", json_count(shape->heads));
    json_put(&object, "parameters", json_count(gpt_n_params(shape)));
    return object;
}

static json_t *tiers_object(const uint64_t bytes[ZR_N_TIERS]) {
    json_t *object = json_object();
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        json_put(&object, zr_tier_name((zr_tier_t)tier), json_count(bytes[tier]));
    return object;
}

static json_t *bytes_object(const capacity_bytes_t *bytes) {
    json_t *object = json_object();
    json_put(&object, "budgets", json_count(bytes->all_budgets));
    json_put(&object, "budget", tiers_object(bytes->budget));
    json_put(&object, "states", json_count(bytes->states));
    json_put(&object, "replicas", json_count(bytes->replicas));
    json_put(&object, "padding", json_count(bytes->padding));
    json_put(&object, "work", tiers_object(bytes->work));
    json_put(&object, "holes", tiers_object(bytes->holes));
    json_put(&object, "unused", json_integer(bytes->unused));
    return object;
}

static json_t *peaks_object(const zr_run_plan_t *plan) {
    train_peak_t peaks[ZR_N_TIERS];
    train_plan_peaks(plan, peaks);
    return train_peaks_object(peaks, true);
}

static json_t *largest_object(const capacity_search_t *search) {
    const train_options_t *run = &search->run;
    const zr_offload_options_t *offload = &run->config.offload_optimizer;
    capacity_bytes_t bytes = capacity_bytes_of(run, &search->its_case->hardware, &search->plan,
                                               search->options->has_drives);
    double seconds = search->plan.step_seconds;
    double tokens = (double)run->n_ranks * (double)run->config.micro_batch *
                    (double)run->config.grad_accum * (double)run->seq;
    bool has_gradients = offload->device != ZR_OFFLOAD_NONE && run->config.stage >= 2;
    json_t *object = json_object();
    text_t options = {.n = 0};
    write_options(search, &options);
    json_put(&object, "model", shape_object(&run->shape));
    json_put(&object, "efficiency", json_number(capacity_efficiency(&bytes)));
    json_put(&object, "bytes", bytes_object(&bytes));
    json_put(&object, "offload_gradients",
             json_string(train_offload_name(has_gradients ? offload->gradients : ZR_OFFLOAD_NONE)));
    json_put(&object, "offload_gradients_ratio", json_number(offload->gradients_ratio));
    json_put(&object, "offload_activations",
             json_string(train_offload_name(run->offload_activations)));
    json_put(&object, "step_ms", json_number(1e3 * seconds));
    json_put(&object, "tokens_per_s", json_number(tokens / seconds));
    json_put(&object, "peak_bytes", peaks_object(&search->plan));
    json_put(&object, "options", json_text(options.bytes));
    return object;
}

static json_t *next_object(const capacity_search_t *search) {
    json_t *object = json_object();
    json_put(&object, "model", shape_object(&search->next_shape));
    json_put(&object, "lack", plan_lack_object(&search->next.lack));
    json_put(&object, "message", json_text(search->next.message));
    return object;
}

static json_t *sizes_array(const capacity_search_t *search) {
    json_t *array = json_array();
    for (size_t i = 0; i < search->n_sizes; i++) {
        json_t *size = json_object();
        json_put(&size, "parameters", json_count(search->sizes[i].n_params));
        json_put(&size, "step_ms", json_number(1e3 * search->sizes[i].step_seconds));
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
    json_t *object = json_object();
    json_put(&object, "result", json_string(proof->trained ? "trained" : "failed"));
    json_put(&object, "next", json_string(proof->refused ? "refused" : "not_refused"));
    json_put(&object, "steps", json_count(result->n_steps));
    if (proof->trained) {
        json_put(&object, "peaks", json_string(proof->as_planned ? "as_planned" : "other"));
        json_put(&object, "peak_bytes", measured_peaks(result));
        json_put(&object, "step_ms", json_number(result->step_ms));
        json_put(&object, "first_loss", json_number(result->first_loss));
        json_put(&object, "last_loss", json_number(result->last_loss));
    } else {
        json_put(&object, "message", json_text(proof->message));
    }
    if (proof->next_message[0] != '\0')
        json_put(&object, "next_message", json_text(proof->next_message));
    return object;
}

json_t *capacity_point_object(const capacity_search_t *search) {
    json_t *object = capacity_point_key(search->its_case, &search->place);
    json_put(&object, "result", json_string(search->found ? "found" : "none_fits"));
    json_put(&object, "plans", json_count(search->n_plans));
    json_put(&object, "monotone", json_boolean(search->is_monotone));
    json_put(&object, "sizes", sizes_array(search));
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
