/*
 * The object of --json is a contract: fields may be added, none goes away. The table has one line
 * for each placement, with its best micro-batch; the object has all plans.
 */
#include "examples/plan_report.h"

#include <stdlib.h>
#include <string.h>

#include "examples/common/json.h"
#include "examples/train_plan.h"
#include "examples/train_report.h"

/* ---- the recommendation ---------------------------------------------------------------------- */

typedef struct text {
    char *bytes;
    size_t size, n;
} text_t;

static void add(text_t *text, const char *format, ...) ZR_PRINTF(2, 3);
static void add(text_t *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (text->n < text->size) {
        int n = vsnprintf(text->bytes + text->n, text->size - text->n, format, arguments);
        text->n += n > 0 ? (size_t)n : 0;
    }
    va_end(arguments);
}

/* Options that zero-train refuses where they say nothing. */
static bool is_said(const plan_options_t *options, const plan_row_t *row, const char *name) {
    bool stash_nvme = row->recompute && options->run.offload_activations == ZR_OFFLOAD_NVME;
    if (strcmp(name, "nvme-capacity") == 0 || strcmp(name, "nvme-verify") == 0)
        return plan_row_uses_nvme(options, row);
    if (strcmp(name, "nvme-buffers") == 0)
        return row->optimizer == ZR_OFFLOAD_NVME || stash_nvme;
    if (strcmp(name, "param-buffers") == 0 || strcmp(name, "param-buffer") == 0)
        return row->params == ZR_OFFLOAD_NVME;
    if (strcmp(name, "update-on") == 0)
        return row->optimizer != ZR_OFFLOAD_NONE;
    if (strcmp(name, "offload-gradients") == 0)
        return row->optimizer != ZR_OFFLOAD_NONE && row->stage >= 2;
    return true;
}

/* The options of zero-train that run a plan, but for its data. */
static void write_options(const plan_options_t *options, const plan_row_t *row, text_t *text) {
    const zr_config_t *config = &options->run.config;
    const zr_offload_report_t *offload = &row->one.plan.offload;
    bool is_model_given = false;
    for (size_t i = 0; i < options->n_given; i++)
        is_model_given |= strcmp(options->given[i].name, "model") == 0;
    add(text, "--stage %d", row->stage);
    if (row->optimizer != ZR_OFFLOAD_NONE)
        add(text, " --offload-optimizer %s", train_offload_name(row->optimizer));
    if (offload->has_copies && row->optimizer != ZR_OFFLOAD_NONE &&
        config->offload_optimizer.update_on == ZR_UPDATE_ON_FASTER)
        add(text, " --update-on %s", offload->is_updated_on_device ? "device" : "host");
    if (row->params != ZR_OFFLOAD_NONE)
        add(text, " --offload-params %s", train_offload_name(row->params));
    if (plan_row_uses_nvme(options, row))
        add(text, " --nvme-path %s", config->nvme.paths[0] != '\0' ? config->nvme.paths : "DIR");
    add(text, " --recompute %s --micro-batch %zu", row->recompute ? "unit" : "none",
        row->micro_batch);
    if (!is_model_given)
        add(text, " --model %s", options->run.model);
    for (size_t i = 0; i < options->n_given; i++)
        if (is_said(options, row, options->given[i].name))
            add(text, " --%s %s", options->given[i].name, options->given[i].value);
}

static void write_placement(const plan_row_t *row, text_t *text) {
    static const char *const where[] = {"on the device", "in host memory", "on NVMe"};
    add(text, row->stage == 0 ? "plain data parallelism (stage 0)" : "stage %d", row->stage);
    if (row->optimizer != ZR_OFFLOAD_NONE)
        add(text, " with optimizer state %s", where[row->optimizer]);
    if (row->params != ZR_OFFLOAD_NONE)
        add(text, "%s parameters %s", row->optimizer != ZR_OFFLOAD_NONE ? " and" : " with",
            where[row->params]);
    if (row->recompute)
        add(text, ", layers computed again in backward");
}

static void write_lack(const plan_row_t *row, text_t *text) {
    char needed[32], has[32], tag[32];
    const plan_lack_t *lack = &row->one.lack;
    add(text, "needs %s of %s memory and has %s; %s of it are %s",
        train_format_bytes((double)lack->needed_bytes, needed, sizeof(needed)),
        zr_tier_name(lack->tier), train_format_bytes((double)lack->there_bytes, has, sizeof(has)),
        train_format_bytes((double)lack->tag_bytes, tag, sizeof(tag)), zr_tag_name(lack->tag));
}

/* What the plan's step waits for most, after what it computes. */
static gpt_plan_part_t worst_part(const gpt_plan_times_t *times) {
    gpt_plan_part_t worst = GPT_PLAN_UPDATE;
    for (int part = GPT_PLAN_UPDATE; part < GPT_PLAN_N_PARTS; part++)
        if (times->exposed[part] > times->exposed[worst])
            worst = (gpt_plan_part_t)part;
    return worst;
}

/* One sentence: why this one. */
static void write_why(const plan_rows_t *rows, text_t *text) {
    const plan_row_t *best = &rows->all[rows->recommended];
    const plan_row_t *fastest = &rows->all[rows->fastest], *first = &rows->all[0];
    static const char *const what[] = {"", "the update", "communication", "the host link",
                                       "drives"};
    gpt_plan_part_t worst = worst_part(&best->one.plan.times);
    double waits = best->one.plan.times.exposed[worst] / best->one.plan.step_seconds;
    write_placement(best, text);
    if (rows->recommended == rows->fastest)
        add(text, " is the fastest of the %zu plans that fit (of %zu)", rows->n_fit, rows->n);
    else
        add(text,
            " is the simplest of the %zu plans that fit (of %zu) and within %.1f%% of the "
            "fastest",
            rows->n_fit, rows->n, 100.0 * (1.0 - best->tokens_per_s / fastest->tokens_per_s));
    add(text, ": %.0f%% of its step is compute",
        100.0 * best->one.plan.times.exposed[GPT_PLAN_COMPUTE] / best->one.plan.step_seconds);
    if (waits >= 0.01)
        add(text, ", and %.0f%% waits for %s", 100.0 * waits, what[worst]);
    if (!first->one.fits) {
        add(text, "; ");
        write_placement(first, text);
        add(text, " ");
        write_lack(first, text);
    }
    add(text, ".");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* As zero-train has them. */
static json_t *peaks_object(const plan_options_t *options, const plan_row_t *row) {
    train_peak_t peaks[ZR_N_TIERS];
    train_plan_peaks(&row->one.plan, peaks);
    return train_peaks_object(peaks, plan_row_uses_nvme(options, row));
}

static json_t *time_object(const gpt_plan_times_t *times) {
    json_t *object = json_object();
    bool made = true;
    for (int part = 0; part < GPT_PLAN_N_PARTS; part++)
        made &= json_put(
            object, gpt_plan_part_name((gpt_plan_part_t)part),
            json_pack("{s:f, s:f}", "busy", times->busy[part], "exposed", times->exposed[part]));
    made &= json_put(object, "idle", json_number(times->idle));
    if (!made) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *lack_object(const plan_lack_t *lack) {
    json_t *object = json_object();
    bool made = json_put(object, "tier", json_string(zr_tier_name(lack->tier)));
    made &= json_put(object, "needed", json_count(lack->needed_bytes));
    made &= json_put(object, "there", json_count(lack->there_bytes));
    made &= json_put(object, "tag", json_string(zr_tag_name(lack->tag)));
    made &= json_put(object, "tag_bytes", json_count(lack->tag_bytes));
    if (!made) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *row_object(const plan_options_t *options, const plan_row_t *row) {
    json_t *object = json_object();
    bool made = json_put(object, "stage", json_count((uint64_t)row->stage));
    made &= json_put(object, "offload_optimizer", json_string(train_offload_name(row->optimizer)));
    made &= json_put(object, "offload_params", json_string(train_offload_name(row->params)));
    made &= json_put(object, "recompute", json_string(row->recompute ? "unit" : "none"));
    made &= json_put(object, "micro_batch", json_count(row->micro_batch));
    made &= json_put(object, "fits", json_boolean(row->one.fits));
    made &= json_put(object, "peak_bytes", peaks_object(options, row));
    if (row->one.fits) {
        made &= json_put(object, "step_ms", json_number(1e3 * row->one.plan.step_seconds));
        made &= json_put(object, "tokens_per_s", json_number(row->tokens_per_s));
        made &= json_put(object, "time", time_object(&row->one.plan.times));
    } else {
        made &= json_put(object, "lack", lack_object(&row->one.lack));
        made &= json_put(object, "message", json_text(row->one.message));
    }
    if (!made) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *recommendation_object(const plan_options_t *options, const plan_rows_t *rows) {
    char run[4096] = "", why[2048] = "";
    text_t run_text = {run, sizeof(run), 0}, why_text = {why, sizeof(why), 0};
    json_t *object = json_object();
    write_options(options, &rows->all[rows->recommended], &run_text);
    write_why(rows, &why_text);
    bool made = json_put(object, "plan", json_count(rows->recommended));
    made &= json_put(object, "why", json_text(why));
    made &= json_put(object, "options", json_text(run));
    if (!made) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *hardware_object(const plan_options_t *options) {
    json_t *object = json_object();
    bool made = json_put(object, "name", json_text(options->hardware.name));
    made &= json_put(object, "kind", json_string(zr_hardware_kind_name(options->hardware.kind)));
    made &= json_put(object, "rates", json_string(options->is_this ? "not measured" : "described"));
    if (!made) {
        json_decref(object);
        return NULL;
    }
    return object;
}

bool plan_report_json(const plan_options_t *options, const plan_rows_t *rows, FILE *file) {
    const train_options_t *run = &options->run;
    json_t *object = json_object(), *plans = json_array();
    bool made = json_put(object, "result", json_string(rows->n_fit > 0 ? "planned" : "none_fits"));
    made &= json_put(object, "model", train_shape_object(run));
    made &= json_put(object, "hardware", hardware_object(options));
    made &= json_put(object, "ranks", json_count((uint64_t)run->n_ranks));
    made &= json_put(object, "dtype", json_string(zr_dtype_name(run->config.dtype)));
    made &= json_put(object, "grad_accum", json_count(run->config.grad_accum));
    made &= json_put(object, "seq", json_count(run->seq));
    for (size_t i = 0; i < rows->n; i++)
        made &= json_array_append_new(plans, row_object(options, &rows->all[i])) == 0;
    made &= json_put(object, "plans", plans);
    if (rows->n_fit > 0)
        made &= json_put(object, "recommended", recommendation_object(options, rows));
    bool printed = made && json_print(object, true, file);
    json_decref(object);
    return printed;
}

/* ---- for people ------------------------------------------------------------------------------ */

/* Whether a plan is of the same placement as the one before. */
static bool continues(const plan_row_t *row, const plan_row_t *before) {
    return row->stage == before->stage && row->optimizer == before->optimizer &&
           row->params == before->params && row->recompute == before->recompute;
}

/* The best micro-batch, or the recommended one, of the placement that begins at `i`; *next_p: where
 * the next one does. */
static const plan_row_t *best_of(const plan_rows_t *rows, size_t i, size_t *next_p) {
    const plan_row_t *best = &rows->all[i], *recommended = &rows->all[rows->recommended];
    size_t next = i + 1;
    for (; next < rows->n && continues(&rows->all[next], &rows->all[i]); next++)
        if (rows->all[next].one.fits && best != recommended &&
            (&rows->all[next] == recommended || rows->all[next].tokens_per_s > best->tokens_per_s))
            best = &rows->all[next];
    *next_p = next;
    return best;
}

/* Those that fit, the fastest first; behind them the others, as they were planned. */
static int by_speed(const void *a, const void *b) {
    const plan_row_t *x = *(const plan_row_t *const *)a, *y = *(const plan_row_t *const *)b;
    if (x->one.fits != y->one.fits)
        return x->one.fits ? -1 : 1;
    if (x->one.fits && x->tokens_per_s != y->tokens_per_s)
        return x->tokens_per_s > y->tokens_per_s ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void print_row(const plan_row_t *row, bool is_recommended, FILE *file) {
    char device[32], host[32], nvme[32], lack[256];
    const gpt_plan_times_t *times = &row->one.plan.times;
    text_t text = {lack, sizeof(lack), 0};
    fprintf(
        file, "%-2s%3d %9s %6s %9s %6zu %10s %10s %10s", is_recommended ? "->" : "", row->stage,
        train_offload_name(row->optimizer), train_offload_name(row->params),
        row->recompute ? "unit" : "none", row->micro_batch,
        train_format_bytes((double)row->one.plan.tiers[0].reserved.peak, device, sizeof(device)),
        train_format_bytes((double)row->one.plan.tiers[1].reserved.peak, host, sizeof(host)),
        train_format_bytes((double)row->one.plan.nvme_bytes, nvme, sizeof(nvme)));
    if (!row->one.fits) {
        write_lack(row, &text);
        fprintf(file, "   %s\n", lack);
        return;
    }
    fprintf(file, " %10.1f %12.0f |", 1e3 * row->one.plan.step_seconds, row->tokens_per_s);
    for (int part = 0; part < GPT_PLAN_N_PARTS; part++)
        fprintf(file, " %5.1f%%", 100 * times->exposed[part] / row->one.plan.step_seconds);
    fprintf(file, " %5.1f%%\n", 100 * times->idle / row->one.plan.step_seconds);
}

static bool print_rows(const plan_rows_t *rows, FILE *file) {
    const plan_row_t **lines = calloc(rows->n, sizeof(*lines));
    size_t n = 0;
    if (lines == NULL)
        return false;
    for (size_t i = 0; i < rows->n;)
        lines[n++] = best_of(rows, i, &i);
    qsort(lines, n, sizeof(*lines), by_speed);
    fprintf(file, "%5s %9s %6s %9s %6s %10s %10s %10s %10s %12s | %s\n", "stage", "optimizer",
            "params", "recompute", "micro", "device", "host", "nvme", "step ms", "tokens/s",
            "exposed: compute, update, communication, host link, disk; idle");
    for (size_t i = 0; i < n; i++)
        print_row(lines[i], rows->n_fit > 0 && lines[i] == &rows->all[rows->recommended], file);
    free(lines);
    return true;
}

static void print_memory(const gpt_plan_t *plan, FILE *file) {
    char bytes[32];
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_NVME; tier++) {
        bool is_nvme = tier == ZR_TIER_NVME;
        size_t all = is_nvme ? plan->nvme_bytes : plan->tiers[tier].reserved.peak;
        if (all == 0)
            continue;
        fprintf(file, "  %s, the most of a rank: %s", zr_tier_name((zr_tier_t)tier),
                train_format_bytes((double)all, bytes, sizeof(bytes)));
        for (int tag = 0; tag < ZR_N_TAGS; tag++) {
            size_t own = is_nvme ? plan->nvme_by_tag[tag] : plan->tiers[tier].by_tag[tag].peak;
            if (own > 0)
                fprintf(file, ", %s %s", zr_tag_name((zr_tag_t)tag),
                        train_format_bytes((double)own, bytes, sizeof(bytes)));
        }
        fprintf(file, "\n");
    }
}

static void print_times(const gpt_plan_t *plan, FILE *file) {
    fprintf(file, "  step %.1f ms, busy (of it exposed):", 1e3 * plan->step_seconds);
    for (int part = 0; part < GPT_PLAN_N_PARTS; part++)
        if (plan->times.busy[part] > 0)
            fprintf(file, " %s %.1f (%.1f),", gpt_plan_part_name((gpt_plan_part_t)part),
                    1e3 * plan->times.busy[part], 1e3 * plan->times.exposed[part]);
    fprintf(file, " idle %.1f\n", 1e3 * plan->times.idle);
}

static void print_recommendation(const plan_options_t *options, const plan_rows_t *rows,
                                 FILE *file) {
    const plan_row_t *row = &rows->all[rows->recommended];
    char run[4096] = "", why[2048] = "";
    text_t run_text = {run, sizeof(run), 0}, why_text = {why, sizeof(why), 0};
    write_options(options, row, &run_text);
    write_why(rows, &why_text);
    fprintf(file, "\nrecommended: %s\n", why);
    print_memory(&row->one.plan, file);
    print_times(&row->one.plan, file);
    fprintf(file, "  zero-train --data PATH %s\n", run);
}

void plan_report_table(const plan_options_t *options, const plan_rows_t *rows, FILE *file) {
    const train_options_t *run = &options->run;
    fprintf(file, "model     %s: %zu parameters, %s; sequences of %zu, accumulation %zu\n",
            run->model, gpt_n_params(&run->shape), zr_dtype_name(run->config.dtype), run->seq,
            run->config.grad_accum);
    fprintf(file, "hardware  %s, %d rank%s\n", options->hardware.name, run->n_ranks,
            messages_plural((size_t)run->n_ranks));
    if (options->is_this)
        fprintf(file, "          (its memory is this machine's; its rates are not measured, and "
                      "times only compare placements)\n");
    fprintf(file, "\n");
    if (!print_rows(rows, file))
        return;
    if (rows->n_fit > 0)
        print_recommendation(options, rows, file);
    else
        fprintf(file, "\nnothing fits\n");
}
