/*
 * Everything is read from the points' objects, which are the same whether they were just found or
 * come from a state. The object of --json is a contract: fields may be added, none goes away.
 */
#include "examples/capacity/report.h"

#include <errno.h>
#include <string.h>

#include "examples/capacity/point.h"
#include "examples/common/json.h"
#include "examples/train/report.h"

#define N_ELEMS(array) (sizeof(array) / sizeof((array)[0]))

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *family_object(const capacity_family_t *family) {
    return JSON_OBJECT(
        {"architecture", json_string(zr_model_kind_name(family->like.kind))},
        {"head_size", json_count(family->head_size)}, {"aspect", json_count(family->aspect)},
        {"seq", json_count(family->seq)}, {"vocab", json_count(family->vocab)},
        {"layers", family->layers != 0 ? json_count(family->layers) : json_null()},
        {"channels", family->channels != 0 ? json_count(family->channels) : json_null()});
}

static json_t *hardware_object(const capacity_options_t *options, const char *name) {
    return json_pack("{s:s, s:s}", "name", name, "rates",
                     options->is_this ? "not measured" : "described");
}

bool capacity_report_json(const capacity_options_t *options, const capacity_results_t *results,
                          FILE *file) {
    const train_options_t *run = &options->run;
    json_t *object = JSON_OBJECT({"result", json_string(results->is_whole ? "done" : "stopped")},
                                 {"family", family_object(&options->family)},
                                 {"hardware", hardware_object(options, results->hardware)},
                                 {"dtype", json_string(zr_dtype_name(run->config.dtype))},
                                 {"micro_batch", json_count(run->config.micro_batch)},
                                 {"grad_accum", json_count(run->config.grad_accum)},
                                 {"recompute", json_string(zr_recompute_name(run->recompute))},
                                 {"verify_steps", json_count(options->verify_steps)},
                                 {"wanted", json_count(results->n_wanted)},
                                 {"points", json_incref(results->points)});
    return json_print_new(object, file);
}

/* ---- CSV ------------------------------------------------------------------------------------- */

/* Columns, and where each is read. */
static const struct {
    const char *name, *path;
    bool is_text;
} columns[] = {
    {"ranks", "ranks", false},
    {"device_memory", "device_memory", false},
    {"host_memory", "host_memory", false},
    {"nvme_capacity", "nvme_capacity", false},
    {"stage", "stage", false},
    {"offload_optimizer", "offload_optimizer", true},
    {"offload_params", "offload_params", true},
    {"result", "result", true},
    {"parameters", "largest.model.parameters", false},
    {"layers", "largest.model.layers", false},
    {"channels", "largest.model.channels", false},
    {"states_bytes", "largest.bytes.states", false},
    {"budgets_bytes", "largest.bytes.budgets", false},
    {"efficiency", "largest.efficiency", false},
    {"offload_gradients", "largest.offload_gradients", true},
    {"offload_gradients_ratio", "largest.offload_gradients_ratio", false},
    {"offload_activations", "largest.offload_activations", true},
    {"device_bytes", "largest.peak_bytes.device.reserved", false},
    {"host_bytes", "largest.peak_bytes.host.reserved", false},
    {"nvme_bytes", "largest.peak_bytes.nvme.reserved", false},
    {"planned_step_ms", "largest.step_ms", false},
    {"trained", "proof.result", true},
    {"peaks", "proof.peaks", true},
    {"step_ms", "proof.step_ms", false},
    {"next_parameters", "next.model.parameters", false},
    {"next_lacks", "next.lack.tier", true},
    {"next_trained", "proof.next", true},
    {"planned_tokens_per_s", "largest.tokens_per_s", false},
    {"written_bytes_per_day", "largest.written_bytes_per_day", false},
};

/* A field that is not there, or has no number, is empty. */
static void print_field(FILE *file, const json_t *value, bool is_text) {
    if (is_text)
        fputs(json_is_string(value) ? json_string_value(value) : "", file);
    else if (json_is_integer(value))
        fprintf(file, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        fprintf(file, "%.6g", json_real_value(value));
}

static void print_csv(const json_t *points, FILE *file) {
    size_t i;
    json_t *point;
    for (size_t k = 0; k < N_ELEMS(columns); k++)
        fprintf(file, "%s%s", k == 0 ? "" : ",", columns[k].name);
    fputs("\n", file);
    json_array_foreach((json_t *)points, i, point) {
        for (size_t k = 0; k < N_ELEMS(columns); k++) {
            fputs(k == 0 ? "" : ",", file);
            print_field(file, capacity_point_at(point, columns[k].path), columns[k].is_text);
        }
        fputs("\n", file);
    }
}

zr_status_t capacity_report_csv(const capacity_results_t *results, const char *path,
                                const zr_log_t *log) {
    FILE *file = fopen(path, "w");
    bool good = file != NULL;
    if (file != NULL) {
        print_csv(results->points, file);
        good = !ferror(file);
        good = fclose(file) == 0 && good;
    }
    return good ? ZR_OK
                : zr_fail(log, ZR_ERR_IO, "cannot write --csv %s: %s", path, strerror(errno));
}

/* ---- for people ------------------------------------------------------------------------------ */

static train_bytes_t bytes_at(const json_t *point, const char *path) {
    return train_bytes(capacity_point_number(point, path));
}

/* "1.06e9" as "1.06 billion" would be too wide for a column. */
static const char *format_params(double n, char *text, size_t size) {
    if (n >= 1e9)
        snprintf(text, size, "%.3f B", 1e-9 * n);
    else
        snprintf(text, size, "%.3f M", 1e-6 * n);
    return text;
}

/* Without an option, what the hardware has. */
static void print_budget(const json_t *point, const char *name, const char *path, FILE *file) {
    char all[64];
    snprintf(all, sizeof(all), "largest.bytes.budget.%s", name);
    if (!json_is_null(capacity_point_at(point, path)))
        fprintf(file, "  %s %s", name, bytes_at(point, path).text);
    else if (capacity_point_at(point, all) != NULL)
        fprintf(
            file, "  %s %s", name,
            train_bytes(capacity_point_number(point, all) / capacity_point_number(point, "ranks"))
                .text);
    else
        fprintf(file, "  %s: all there is", name);
}

static void print_case(const capacity_options_t *options, const json_t *point, FILE *file) {
    fprintf(file, "\n%s, each:",
            zr_count_text((uint64_t)capacity_point_number(point, "ranks"), "rank").text);
    print_budget(point, "device", "device_memory", file);
    print_budget(point, "host", "host_memory", file);
    if (options->has_drives)
        print_budget(point, "nvme", "nvme_capacity", file);
    fprintf(file, "\n%5s %9s %6s %5s %5s %10s %11s %10s %10s %10s %10s %6s %10s %10s %10s  %s\n",
            "stage", "optimizer", "params", "grads", "acts", "parameters", "layers x c", "states",
            "device", "host", "nvme", "eff.", "step ms", "tokens/s", "measured",
            "proof; what the next larger lacks");
}

static void print_lack(const json_t *point, FILE *file) {
    double there = capacity_point_number(point, "next.lack.there");
    double over = capacity_point_number(point, "next.lack.needed") - there;
    bool is_of_both = json_is_true(capacity_point_at(point, "next.lack.of_both"));
    bool is_of_process = json_is_true(capacity_point_at(point, "next.lack.of_process"));
    fprintf(file, "; %s: %s over %s, most of all %s",
            is_of_process                                                   ? "process"
            : json_is_true(capacity_point_at(point, "next.lack.of_pinned")) ? "pinned memory"
            : is_of_both                                                    ? "device and host"
                         : capacity_point_text(point, "next.lack.tier"),
            train_bytes(over > 0 ? over : 0).text, train_bytes(there).text,
            capacity_point_text(point, "next.lack.tag"));
}

static void print_proof(const json_t *point, FILE *file) {
    if (capacity_point_at(point, "proof") == NULL)
        fprintf(file, "  planned");
    else
        fprintf(file, "  %s, next %s", capacity_point_text(point, "proof.result"),
                strcmp(capacity_point_text(point, "proof.next"), "refused") == 0 ? "refused"
                                                                                 : "NOT refused");
    if (strcmp(capacity_point_text(point, "proof.peaks"), "other") == 0)
        fprintf(file, ", peaks are not as planned");
    if (capacity_point_at(point, "next.tokens_per_s") != NULL)
        fprintf(file, "; the next: %.4g tokens/s",
                capacity_point_number(point, "next.tokens_per_s"));
    else if (capacity_point_at(point, "next") != NULL)
        print_lack(point, file);
    fprintf(file, "\n");
}

static void print_point(const json_t *point, FILE *file) {
    char params[32], shape[32], measured[32] = "-";
    bool found = strcmp(capacity_point_text(point, "result"), "found") == 0;
    fprintf(file, "%5.0f %9s %6s", capacity_point_number(point, "stage"),
            capacity_point_text(point, "offload_optimizer"),
            capacity_point_text(point, "offload_params"));
    if (!found) {
        fprintf(file, " %5s %5s %10s", "-", "-", "none");
        print_proof(point, file);
        return;
    }
    snprintf(shape, sizeof(shape), "%.0f x %.0f",
             capacity_point_number(point, "largest.model.layers"),
             capacity_point_number(point, "largest.model.channels"));
    if (capacity_point_at(point, "proof.step_ms") != NULL)
        snprintf(measured, sizeof(measured), "%.1f", capacity_point_number(point, "proof.step_ms"));
    bool is_part = capacity_point_number(point, "largest.offload_gradients_ratio") < 1;
    fprintf(file, " %5s %5s %10s %11s %10s %10s %10s %10s %6.3f %10.1f %10.4g %10s",
            is_part ? "part" : capacity_point_text(point, "largest.offload_gradients"),
            capacity_point_text(point, "largest.offload_activations"),
            format_params(capacity_point_number(point, "largest.model.parameters"), params,
                          sizeof(params)),
            shape, bytes_at(point, "largest.bytes.states").text,
            bytes_at(point, "largest.peak_bytes.device.reserved").text,
            bytes_at(point, "largest.peak_bytes.host.reserved").text,
            bytes_at(point, "largest.peak_bytes.nvme.reserved").text,
            capacity_point_number(point, "largest.efficiency"),
            capacity_point_number(point, "largest.step_ms"),
            capacity_point_number(point, "largest.tokens_per_s"), measured);
    print_proof(point, file);
}

static void print_share(const json_t *point, const char *what, const char *path, FILE *file) {
    double bytes = capacity_point_number(point, path);
    double all = capacity_point_number(point, "largest.bytes.budgets");
    if (bytes != 0)
        fprintf(file, "  %-52s %10s  %6.2f%%\n", what, train_bytes(bytes).text, 100 * bytes / all);
}

/* What of a tier was neither model states nor free, with its tags: their peaks are their own, at
 * different moments. */
static void print_work(const json_t *point, const char *tier, FILE *file) {
    char path[96], what[512];
    const char *tag;
    json_t *value;
    int n = snprintf(what, sizeof(what), "%s, in addition to states, a rank at most:", tier);
    snprintf(path, sizeof(path), "largest.bytes.work.%s", tier);
    print_share(point, tier, path, file);
    snprintf(path, sizeof(path), "largest.peak_bytes.%s.tags", tier);
    json_object_foreach((json_t *)capacity_point_at(point, path), tag, value) {
        double bytes = json_number_value(value);
        if (bytes > 0 && strcmp(tag, "parameters") != 0 && strcmp(tag, "gradients") != 0 &&
            strcmp(tag, "optimizer_state") != 0 && (size_t)n < sizeof(what))
            n += snprintf(what + n, sizeof(what) - (size_t)n, " %s %s,", tag,
                          train_bytes(bytes).text);
    }
    if ((size_t)n < sizeof(what) && what[n - 1] == ',') {
        what[n - 1] = '\0';
        fprintf(file, "    %s\n", what);
    }
}

/* The parts add up to the budgets. */
static void print_bytes(const json_t *point, FILE *file) {
    static const char *const tiers[] = {"device", "host", "nvme"};
    fprintf(file,
            "\nthe largest of them: stage %.0f, optimizer %s, parameters %s: capacity "
            "efficiency %.4f\n",
            capacity_point_number(point, "stage"), capacity_point_text(point, "offload_optimizer"),
            capacity_point_text(point, "offload_params"),
            capacity_point_number(point, "largest.efficiency"));
    fprintf(file, "  of %s, the budgets of all ranks and tiers:\n",
            bytes_at(point, "largest.bytes.budgets").text);
    print_share(point, "model states, once", "largest.bytes.states", file);
    print_share(point, "copies on other ranks", "largest.bytes.replicas", file);
    print_share(point, "padding of shards", "largest.bytes.padding", file);
    for (size_t i = 0; i < N_ELEMS(tiers); i++)
        print_work(point, tiers[i], file);
    print_share(point, "fragmentation of device memory", "largest.bytes.holes.device", file);
    print_share(point, "fragmentation of host memory", "largest.bytes.holes.host", file);
    print_share(point, "rounding up to blocks of the drives", "largest.bytes.holes.nvme", file);
    print_share(point, "never used", "largest.bytes.unused", file);
    if (capacity_point_number(point, "largest.written_bytes_per_day") > 0)
        fprintf(file, "  written to drives per day at the planned rate: %s\n",
                bytes_at(point, "largest.written_bytes_per_day").text);
    fprintf(file, "  zero-train --data PATH %s\n", capacity_point_text(point, "largest.options"));
}

static bool is_same_case(const json_t *a, const json_t *b) {
    static const char *const names[] = {"ranks", "device_memory", "host_memory", "nvme_capacity"};
    for (size_t i = 0; i < N_ELEMS(names); i++)
        if (!json_equal(json_object_get(a, names[i]), json_object_get(b, names[i])))
            return false;
    return true;
}

static bool is_larger(const json_t *a, const json_t *b) {
    return capacity_point_number(a, "largest.model.parameters") >
           capacity_point_number(b, "largest.model.parameters");
}

void capacity_report_table(const capacity_options_t *options, const capacity_results_t *results,
                           FILE *file) {
    const train_options_t *run = &options->run;
    const json_t *before = NULL, *best = NULL;
    size_t i;
    json_t *point;
    fprintf(file, "family    %s, heads of %zu", options->model, options->family.head_size);
    if (options->family.layers != 0)
        fprintf(file, ", %s, width grows", zr_count_text(options->family.layers, "layer").text);
    else if (options->family.channels != 0)
        fprintf(file, ", %s, depth grows", zr_count_text(options->family.channels, "channel").text);
    else
        fprintf(file, ", at most %s per layer",
                zr_count_text(options->family.aspect, "channel").text);
    fprintf(file, "; %s, sequences of %zu; %s, micro-batch %zu, accumulation %zu\n",
            zr_count_text(options->family.vocab, "token").text, options->family.seq,
            zr_dtype_name(run->config.dtype), run->config.micro_batch, run->config.grad_accum);
    fprintf(file, "hardware  %s%s\n", results->hardware,
            options->ranks_open && run->n_ranks > 1
                ? " (a rank for each device; --ranks and --sweep plan others)"
                : "");
    if (options->is_this)
        fprintf(file, "          (its memory is this machine's; its rates are not measured, and "
                      "planned times only compare)\n");
    json_array_foreach(results->points, i, point) {
        if (before == NULL || !is_same_case(before, point)) {
            if (best != NULL)
                print_bytes(best, file);
            best = NULL;
            print_case(options, point, file);
        }
        print_point(point, file);
        before = point;
        if (capacity_point_at(point, "largest") != NULL && (best == NULL || is_larger(point, best)))
            best = point;
    }
    if (best != NULL)
        print_bytes(best, file);
}
