/*
 * The object of --json is a contract: fields may be added, none goes away. The table has one line
 * for each placement, with its best micro-batch; the object has all plans.
 */
#include "examples/plan/report.h"

#include <stdlib.h>
#include <string.h>

#include "examples/common/json.h"
#include "examples/plan/band.h"
#include "examples/plan/command.h"
#include "examples/plan/hardware.h"
#include "examples/plan/lack.h"
#include "examples/plan/describe.h"
#include "examples/train/plan.h"
#include "examples/train/report.h"

/* ---- JSON ------------------------------------------------------------------------------------ */

/* As zero-train has them. */
static json_t *peaks_object(const plan_options_t *options, const zr_run_row_t *row) {
    train_peak_t peaks[ZR_N_TIERS];
    train_plan_peaks(&row->one.plan, peaks);
    json_t *object = train_peaks_object(peaks, plan_row_uses_nvme(options, row));
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST && !row->is_exact; tier++)
        json_object_del(json_object_get(object, zr_tier_name((zr_tier_t)tier)), "reserved");
    return object;
}

static json_t *time_object(const zr_run_times_t *times) {
    json_t *object = json_object();
    for (int part = 0; part < ZR_RUN_N_PARTS; part++)
        json_put(
            &object, zr_run_part_name((zr_run_part_t)part),
            json_pack("{s:f, s:f}", "busy", times->busy[part], "exposed", times->exposed[part]));
    json_put(&object, "idle", json_number(times->idle));
    return object;
}

/* Of what is offloaded: how much, and how much of it is no lower than host memory. */
static void put_parts(json_t **object_p, const zr_config_t *config) {
    const zr_offload_options_t *state = &config->offload_optimizer;
    const zr_offload_param_options_t *params = &config->offload_param;
    if (state->device != ZR_OFFLOAD_NONE)
        JSON_PUT(object_p, {"offload_ratio", json_number(state->ratio)},
                 {"state_in_host", json_count(state->max_in_cpu_elems)});
    if (params->device != ZR_OFFLOAD_NONE) {
        JSON_PUT(object_p, {"offload_param_ratio", json_number(params->ratio)},
                 {"params_in_host", json_count(params->max_in_cpu_elems)});
    }
}

static json_t *row_object(const plan_options_t *options, const zr_run_row_t *row) {
    json_t *object = json_object();
    int group_size = plan_row_group_size(options, row);
    JSON_PUT(&object, {"stage", json_count((uint64_t)row->stage)},
             {"shard_group_size", json_count((uint64_t)group_size)},
             {"offload_optimizer", json_string(train_offload_name(row->optimizer))},
             {"offload_params", json_string(train_offload_name(row->params))});
    put_parts(&object, &row->config);
    JSON_PUT(&object, {"recompute", json_string(zr_recompute_name(row->recompute))},
             {"micro_batch", json_count(row->micro_batch)}, {"fits", json_boolean(row->one.fits)},
             {"exact", json_boolean(row->is_exact)}, {"peak_bytes", peaks_object(options, row)});
    if (row->is_exact)
        JSON_PUT(&object,
                 {"pinned_bytes", json_count(row->one.plan.tiers[ZR_TIER_HOST].pinned.peak)},
                 {"metadata_bytes", train_metadata_object(&row->one.plan.metadata)});
    if (row->one.fits) {
        JSON_PUT(&object, {"step_ms", json_number(1e3 * row->one.plan.step_seconds)},
                 {"tokens_per_s", json_number(row->tokens_per_s)},
                 {"time", time_object(&row->one.plan.times)});
    } else {
        JSON_PUT(&object, {"lack", plan_lack_object(&row->one.lack)},
                 {"message", json_text(row->one.message)});
    }
    return object;
}

static json_t *band_object(const plan_options_t *options, const zr_run_row_t *row) {
    char text[1024];
    const plan_band_t *band = plan_band_of(options, row, text, sizeof(text));
    double planned_ms = 1e3 * row->one.plan.step_seconds;
    json_t *object = JSON_OBJECT({"why", json_text(text)});
    if (band != NULL)
        JSON_PUT(&object, {"least_ms", json_number(planned_ms * band->least)},
                 {"most_ms", json_number(planned_ms * band->most)},
                 {"runs", json_count(band->n_runs)}, {"source", json_string(band->document)});
    return object;
}

static json_t *recommendation_object(const plan_options_t *options, const zr_run_rows_t *rows) {
    const zr_run_row_t *row = &rows->all[rows->recommended];
    char run[4096] = "", rest[4096] = "", launch[4096] = "", why[2048] = "", *file = NULL;
    plan_words_t run_text = {run, sizeof(run), 0}, why_text = {why, sizeof(why), 0};
    plan_words_t rest_text = {rest, sizeof(rest), 0}, launch_text = {launch, sizeof(launch), 0};
    json_t *object = json_object();
    plan_command_options(options, row, &run_text);
    plan_command_launch(options, row, false, &launch_text);
    plan_command_beside_file(options, row, &rest_text);
    plan_words_why(rows, &why_text);
    JSON_PUT(&object, {"plan", json_count(rows->recommended)}, {"why", json_text(why)},
             {"options", json_text(run)}, {"options_with_config", json_text(rest)});
    if (launch[0] != '\0')
        json_put(&object, "launch", json_text(launch));
    json_put(&object, "error_band", band_object(options, row));
    bool has_file = plan_command_file(options, row, &file) == ZR_OK;
    json_put(&object, "config", has_file ? json_loads(file, 0, NULL) : NULL);
    free(file);
    return object;
}

/* What a rank has of each tier, be it by a budget or by the machine; 0: none. */
static void budgets_of(const plan_options_t *options, size_t there_p[ZR_N_TIERS]) {
    const zr_config_t *config = &options->run.config;
    const zr_hardware_t *hardware = &options->hardware;
    bool has_drives = !options->is_this || config->nvme.paths[0] != '\0';
    size_t host = hardware->host_memory_bytes, disk = has_drives ? hardware->disk_bytes : 0;
    size_t device = hardware->kind == ZR_HARDWARE_HOST ? host : zr_hardware_device_room(hardware);
    there_p[ZR_TIER_DEVICE] =
        config->device_memory_bytes < device ? config->device_memory_bytes : device;
    there_p[ZR_TIER_HOST] = config->host_memory_bytes < host ? config->host_memory_bytes : host;
    there_p[ZR_TIER_NVME] = config->nvme.capacity_bytes < disk ? config->nvme.capacity_bytes : disk;
}

static json_t *budgets_object(const plan_options_t *options) {
    size_t there[ZR_N_TIERS];
    json_t *object = json_object();
    budgets_of(options, there);
    for (int tier = 0; tier < ZR_N_TIERS; tier++)
        json_put(&object, zr_tier_name((zr_tier_t)tier), json_count(there[tier]));
    return object;
}

static json_t *hardware_object(const plan_options_t *options) {
    return JSON_OBJECT({"name", json_text(options->hardware.name)},
                       {"kind", json_string(zr_hardware_kind_name(options->hardware.kind))},
                       {"rates", json_string(options->is_this ? "not measured" : "described")});
}

bool plan_report_json(const plan_options_t *options, const zr_run_rows_t *rows, FILE *file) {
    const train_options_t *run = &options->run;
    json_t *object = json_object(), *plans = json_array();
    JSON_PUT(&object, {"result", json_string(rows->n_fit > 0 ? "planned" : "none_fits")},
             {"model", train_shape_object(run)}, {"hardware", hardware_object(options)},
             {"budget_bytes", budgets_object(options)},
             {"ranks", json_count((uint64_t)run->n_ranks)},
             {"dtype", json_string(zr_dtype_name(run->config.dtype))},
             {"grad_accum", json_count(run->config.grad_accum)}, {"seq", json_count(run->seq)});
    for (size_t i = 0; i < rows->n; i++)
        json_append(&plans, row_object(options, &rows->all[i]));
    json_put(&object, "plans", plans);
    if (rows->n_fit > 0)
        json_put(&object, "recommended", recommendation_object(options, rows));
    return json_print_new(object, file);
}

/* ---- for people ------------------------------------------------------------------------------ */

/* The best micro-batch, or the recommended one, of the placement that begins at `i`; *next_p: where
 * the next one does. */
static const zr_run_row_t *best_of(const zr_run_rows_t *rows, size_t i, size_t *next_p) {
    const zr_run_row_t *best = &rows->all[i], *recommended = &rows->all[rows->recommended];
    size_t next = i + 1;
    for (; next < rows->n && zr_run_row_is_alike(&rows->all[next], &rows->all[i]); next++)
        if (rows->all[next].one.fits && best != recommended &&
            (&rows->all[next] == recommended || rows->all[next].tokens_per_s > best->tokens_per_s))
            best = &rows->all[next];
    *next_p = next;
    return best;
}

/* Those that fit, the fastest first; behind them the others, as they were planned. */
static int by_speed(const void *a, const void *b) {
    const zr_run_row_t *x = *(const zr_run_row_t *const *)a, *y = *(const zr_run_row_t *const *)b;
    if (x->one.fits != y->one.fits)
        return x->one.fits ? -1 : 1;
    float of_x = (float)x->tokens_per_s, of_y = (float)y->tokens_per_s; /* told ones are rounded */
    if (x->one.fits && of_x != of_y)
        return of_x > of_y ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* "nvme", or "nvme 43%" where the rest is higher up. */
static const char *format_part(zr_offload_device_t device, double ratio, char text[16]) {
    const char *name = train_offload_name(device);
    if (device != ZR_OFFLOAD_NONE && ratio < 1)
        snprintf(text, 16, "%s %.0f%%", name, 100 * ratio);
    else
        snprintf(text, 16, "%s", name);
    return text;
}

/* The columns that say which plan it is. */
static void print_choice(const plan_options_t *options, const zr_run_rows_t *rows,
                         const zr_run_row_t *row, FILE *file) {
    char optimizer[16], params[16];
    bool is_recommended = rows->n_fit > 0 && row == &rows->all[rows->recommended];
    fprintf(file, "%-2s%3d", is_recommended ? "->" : row->is_exact ? "" : "~", row->stage);
    if (rows->has_groups)
        fprintf(file, " %6d", plan_row_group_size(options, row));
    fprintf(file, " %9s %9s %9s %6zu",
            format_part(row->optimizer, row->config.offload_optimizer.ratio, optimizer),
            format_part(row->params, row->config.offload_param.ratio, params),
            zr_recompute_name(row->recompute), row->micro_batch);
}

static void print_row(const zr_run_row_t *row, FILE *file) {
    char lack[256];
    const zr_run_times_t *times = &row->one.plan.times;
    plan_words_t text = {lack, sizeof(lack), 0};
    fprintf(file, " %10s %10s %10s", train_bytes((double)row->one.plan.tiers[0].reserved.peak).text,
            train_bytes((double)row->one.plan.tiers[1].reserved.peak).text,
            train_bytes((double)row->one.plan.nvme_bytes).text);
    if (!row->one.fits) {
        plan_words_lack(row, &text);
        fprintf(file, "   %s\n", lack);
        return;
    }
    fprintf(file, " %10.1f %12.0f |", 1e3 * row->one.plan.step_seconds, row->tokens_per_s);
    for (int part = 0; part < ZR_RUN_N_PARTS; part++)
        fprintf(file, " %5.1f%%", 100 * times->exposed[part] / row->one.plan.step_seconds);
    fprintf(file, " %5.1f%%\n", 100 * times->idle / row->one.plan.step_seconds);
}

/* What "~" is. */
static void print_marks(const zr_run_rows_t *rows, FILE *file) {
    for (size_t i = 0; i < rows->n; i++)
        if (!rows->all[i].is_exact) {
            fprintf(
                file,
                "(~: extrapolated from plans with fewer layers; memory is bytes in use, without "
                "fragmentation and\n granule rounding; --plan-exact walk plans every layer)\n");
            return;
        }
}

static bool print_rows(const plan_options_t *options, const zr_run_rows_t *rows, FILE *file) {
    const zr_run_row_t **lines = calloc(rows->n, sizeof(*lines));
    size_t n = 0;
    if (lines == NULL)
        return false;
    for (size_t i = 0; i < rows->n;)
        lines[n++] = best_of(rows, i, &i);
    qsort(lines, n, sizeof(*lines), by_speed);
    fprintf(file, "stage%s %9s %9s %9s %6s %10s %10s %10s %10s %12s | %s\n",
            rows->has_groups ? "  group" : "", "optimizer", "params", "recompute", "micro",
            "device", "host", "nvme", "step ms", "tokens/s",
            "exposed: compute, update, communication, host link, disk; idle");
    size_t n_shown = options->n_lines == 0 || options->n_lines > n ? n : options->n_lines;
    for (size_t i = 0; i < n; i++) {
        bool is_recommended = rows->n_fit > 0 && lines[i] == &rows->all[rows->recommended];
        if (i >= n_shown && !is_recommended)
            continue;
        print_choice(options, rows, lines[i], file);
        print_row(lines[i], file);
    }
    if (n_shown < n)
        fprintf(file, "(%zu of %s; --top 0 prints all)\n", n_shown,
                zr_count_text(n, "placement").text);
    print_marks(rows, file);
    free(lines);
    return true;
}

static void print_memory(const zr_run_plan_t *plan, FILE *file) {
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_NVME; tier++) {
        bool is_nvme = tier == ZR_TIER_NVME;
        size_t all = is_nvme ? plan->nvme_bytes : plan->tiers[tier].reserved.peak;
        if (all == 0)
            continue;
        fprintf(file, "  %s, maximum per rank: %s", zr_tier_name((zr_tier_t)tier),
                train_bytes((double)all).text);
        for (int tag = 0; tag < ZR_N_TAGS; tag++) {
            size_t own = is_nvme ? plan->nvme_by_tag[tag] : plan->tiers[tier].by_tag[tag].peak;
            if (own > 0)
                fprintf(file, ", %s %s", zr_tag_name((zr_tag_t)tag), train_bytes((double)own).text);
        }
        fprintf(file, "\n");
    }
    fprintf(file, "  tables of the library, outside of tiers: at most %s per rank\n",
            train_bytes((double)plan->metadata.peak).text);
}

static void print_times(const zr_run_plan_t *plan, FILE *file) {
    fprintf(file, "  step %.1f ms, busy (of it exposed):", 1e3 * plan->step_seconds);
    for (int part = 0; part < ZR_RUN_N_PARTS; part++)
        if (plan->times.busy[part] > 0)
            fprintf(file, " %s %.1f (%.1f),", zr_run_part_name((zr_run_part_t)part),
                    1e3 * plan->times.busy[part], 1e3 * plan->times.exposed[part]);
    fprintf(file, " idle %.1f\n", 1e3 * plan->times.idle);
}

static void print_band(const plan_options_t *options, const zr_run_row_t *row, FILE *file) {
    char text[1024];
    const plan_band_t *band = plan_band_of(options, row, text, sizeof(text));
    fprintf(file, "  error band: ");
    if (band != NULL)
        fprintf(file, "%.1f to %.1f ms; ", 1e3 * row->one.plan.step_seconds * band->least,
                1e3 * row->one.plan.step_seconds * band->most);
    fprintf(file, "%s\n", text);
}

/* Each was tried as a whole. */
static void print_divided(const plan_options_t *options, const zr_run_row_t *row, FILE *file) {
    const zr_config_t *config = &row->config;
    bool optimizer = options->optimizer_open && config->offload_optimizer.device != ZR_OFFLOAD_NONE;
    bool params = options->params_open && config->offload_param.device != ZR_OFFLOAD_NONE;
    if (optimizer || params)
        fprintf(file,
                "  dividing offloaded tensors among device, host and NVMe may be faster; plan it "
                "with: zero-plan ...%s%s\n",
                optimizer ? " --offload-optimizer auto" : "",
                params ? " --offload-params auto" : "");
}

static void print_launches(const plan_options_t *options, const zr_run_row_t *row, FILE *file) {
    static const char *const where[] = {"once, for all nodes:",
                                        "on each node (NODE: its number from 0, HOST: node 0):"};
    for (int is_on_each = 1; is_on_each >= 0; is_on_each--) {
        char text[4096] = "";
        plan_words_t words = {text, sizeof(text), 0};
        plan_command_launch(options, row, is_on_each, &words);
        if (text[0] != '\0')
            fprintf(file, "%s\n  %s\n", where[is_on_each], text);
    }
}

static void print_commands(const plan_options_t *options, const zr_run_row_t *row, FILE *file) {
    char run[4096] = "", rest[4096] = "", *json = NULL;
    plan_words_t run_text = {run, sizeof(run), 0}, rest_text = {rest, sizeof(rest), 0};
    bool is_launched = plan_n_nodes(options) > 1;
    plan_options_t own = is_launched ? plan_without_ranks(options) : *options;
    plan_command_options(&own, row, &run_text);
    plan_command_beside_file(&own, row, &rest_text);
    if (is_launched)
        print_launches(options, row, file);
    else
        fprintf(file, "  zero-train --data PATH %s\n", run);
    if (plan_command_file(options, row, &json) != ZR_OK)
        return;
    fprintf(file, "or, with this in FILE:\n  %szero-train --data PATH --config FILE %s\n%s\n",
            is_launched ? "... " : "", rest, json);
    free(json);
}

static void print_recommendation(const plan_options_t *options, const zr_run_rows_t *rows,
                                 FILE *file) {
    const zr_run_row_t *row = &rows->all[rows->recommended];
    char why[2048] = "";
    plan_words_t why_text = {why, sizeof(why), 0};
    plan_words_why(rows, &why_text);
    fprintf(file, "\nrecommended: %s\n", why);
    print_memory(&row->one.plan, file);
    print_times(&row->one.plan, file);
    print_band(options, row, file);
    print_divided(options, row, file);
    print_commands(options, row, file);
}

/* What a rank has of each tier; of what a description assumes, its own words. */
static void print_budgets(const plan_options_t *options, FILE *file) {
    static const char *const figures[ZR_N_TIERS] = {[ZR_TIER_DEVICE] = "device_memory_bytes",
                                                    [ZR_TIER_HOST] = "host_memory_bytes",
                                                    [ZR_TIER_NVME] = "disk_bytes"};
    bool is_host = options->hardware.kind == ZR_HARDWARE_HOST;
    size_t there[ZR_N_TIERS];
    budgets_of(options, there);
    fprintf(file, "budgets   of a rank:");
    for (int tier = is_host ? ZR_TIER_HOST : ZR_TIER_DEVICE; tier <= ZR_TIER_NVME; tier++) {
        char source[512] = "";
        if (!options->is_this)
            plan_hardware_source(options->hardware_name, figures[tier], source, sizeof(source));
        fprintf(file, "%s %s", tier == (is_host ? ZR_TIER_HOST : ZR_TIER_DEVICE) ? "" : ",",
                is_host && tier == ZR_TIER_HOST ? "memory" : zr_tier_name((zr_tier_t)tier));
        if (there[tier] == 0)
            fprintf(file, " none%s", options->is_this ? " without --nvme-path" : "");
        else
            fprintf(file, " %s", train_bytes((double)there[tier]).text);
        if (strncmp(source, "assumption", 10) == 0)
            fprintf(file, " (%s)", source);
    }
    fprintf(file, "\n");
}

void plan_report_table(const plan_options_t *options, const zr_run_rows_t *rows, FILE *file) {
    const train_options_t *run = &options->run;
    int n_on_node = options->hardware.ranks_per_node, n_nodes = plan_n_nodes(options);
    size_t longest = zr_model_shape_sizes(&run->shape).seq;
    fprintf(file, "model     %s: %s, %s; sequences of %zu", run->model,
            zr_count_text(zr_model_shape_n_params(&run->shape), "parameter").text,
            zr_dtype_name(run->config.dtype), run->seq);
    if (run->seq < longest && run->seq_text == NULL)
        fprintf(file, " (it has %zu positions; --seq plans others)", longest);
    fprintf(file, ", accumulation %zu\n", run->config.grad_accum);
    fprintf(file, "hardware  %s, %s", options->hardware.name,
            zr_count_text((uint64_t)run->n_ranks, "rank").text);
    if (n_nodes > 1)
        fprintf(file, " on %d nodes", n_nodes);
    int n_shards = zr_config_n_shards(&run->config, run->n_ranks);
    if (n_shards < run->n_ranks)
        fprintf(file, ", in groups of %d", n_shards);
    if (run->n_ranks < n_on_node)
        fprintf(file, ", each with the share of one of %d", n_on_node);
    if (options->ranks_open && run->n_ranks > 1)
        fprintf(file, " (one for each device; --ranks plans others)");
    fprintf(file, "\n");
    if (options->is_this)
        fprintf(file, "          (its memory is this machine's; its rates are not measured, and "
                      "times only compare placements)\n");
    print_budgets(options, file);
    fprintf(file, "\n");
    if (!print_rows(options, rows, file))
        return;
    if (rows->n_fit > 0)
        print_recommendation(options, rows, file);
    else
        fprintf(file, "\nnothing fits\n");
}
