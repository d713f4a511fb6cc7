/* Plans in words: see plan_words.h. */
#include "examples/plan/describe.h"

#include <stdarg.h>
#include <stdio.h>

#include "examples/train/report.h"

void plan_words_add(plan_words_t *words, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (words->n < words->size) {
        int n = vsnprintf(words->bytes + words->n, words->size - words->n, format, arguments);
        words->n += n > 0 ? (size_t)n : 0;
    }
    va_end(arguments);
}

/* ---- sentences ------------------------------------------------------------------------------- */

static const char *part_of(double ratio, char *text, size_t size) {
    text[0] = '\0';
    if (ratio < 1)
        snprintf(text, size, "%.0f%% of ", 100 * ratio);
    return text;
}

void plan_words_placement(const zr_run_row_t *row, plan_words_t *words) {
    static const char *const where[] = {"on the device", "in host memory", "on NVMe"};
    char part[32];
    const zr_config_t *config = &row->config;
    plan_words_add(words, row->stage == 0 ? "plain data parallelism (stage 0)" : "stage %d",
                   row->stage);
    if (row->group_size > 0)
        plan_words_add(words, " in groups of %s",
                       zr_count_text((uint64_t)row->group_size, "rank").text);
    if (row->optimizer != ZR_OFFLOAD_NONE)
        plan_words_add(words, " with %soptimizer state %s",
                       part_of(config->offload_optimizer.ratio, part, sizeof(part)),
                       where[row->optimizer]);
    if (row->params != ZR_OFFLOAD_NONE)
        plan_words_add(
            words, "%s %sparameters %s", row->optimizer != ZR_OFFLOAD_NONE ? " and" : " with",
            part_of(config->offload_param.ratio, part, sizeof(part)), where[row->params]);
    static const char *const recompute[] = {[ZR_RECOMPUTE_UNIT] = ", layers recomputed in backward",
                                            [ZR_RECOMPUTE_NEVER] =
                                                ", nothing recomputed in backward"};
    bool says = row->recompute == ZR_RECOMPUTE_UNIT || row->recompute == ZR_RECOMPUTE_NEVER;
    bool in_blocks = config->order == ZR_ORDER_BLOCK && config->grad_accum > 1;
    bool in_backward = config->update_at == ZR_UPDATE_AT_BACKWARD;
    plan_words_add(words, "%s%s%s%s", says ? recompute[row->recompute] : "",
                   in_blocks ? ", each block for all micro-batches before the next" : "",
                   in_backward ? ", updated in backward" : "",
                   says || in_blocks || in_backward ? "," : "");
}

void plan_words_lack(const zr_run_row_t *row, plan_words_t *words) {
    const zr_run_lack_t *lack = &row->one.lack;
    plan_words_add(words, "needs %s of %s and has %s; %s of it are %s",
                   train_bytes((double)lack->needed_bytes).text, zr_run_lack_name(lack),
                   train_bytes((double)lack->there_bytes).text,
                   train_bytes((double)lack->tag_bytes).text, zr_tag_name(lack->tag));
}

/* What the plan's step waits for most, after what it computes. */
static zr_run_part_t worst_part(const zr_run_times_t *times) {
    zr_run_part_t worst = ZR_RUN_UPDATE;
    for (int part = ZR_RUN_UPDATE; part < ZR_RUN_N_PARTS; part++)
        if (times->exposed[part] > times->exposed[worst])
            worst = (zr_run_part_t)part;
    return worst;
}

/* One sentence: why this one. */
void plan_words_why(const zr_run_rows_t *rows, plan_words_t *words) {
    const zr_run_row_t *best = &rows->all[rows->recommended];
    const zr_run_row_t *fastest = &rows->all[rows->fastest], *first = &rows->all[0];
    static const char *const what[] = {"", "the update", "communication", "the host link",
                                       "drives"};
    zr_run_part_t worst = worst_part(&best->one.plan.times);
    double waits = best->one.plan.times.exposed[worst] / best->one.plan.step_seconds;
    plan_words_placement(best, words);
    if (rows->n == 1)
        plan_words_add(words, " fits");
    else if (rows->n_fit == 1)
        plan_words_add(words, " is the only one of %zu plans that fits", rows->n);
    else if (rows->recommended == rows->fastest)
        plan_words_add(words, " is the fastest of the %zu plans that fit (of %zu)", rows->n_fit,
                       rows->n);
    else
        plan_words_add(
            words,
            " is the simplest of the %zu plans that fit (of %zu) and within %.1f%% of the "
            "fastest",
            rows->n_fit, rows->n, 100.0 * (1.0 - best->tokens_per_s / fastest->tokens_per_s));
    plan_words_add(words, ": %.0f%% of its step is compute",
                   100.0 * best->one.plan.times.exposed[ZR_RUN_COMPUTE] /
                       best->one.plan.step_seconds);
    if (waits >= 0.01)
        plan_words_add(words, ", and %.0f%% waits for %s", 100.0 * waits, what[worst]);
    if (!first->one.fits) {
        plan_words_add(words, "; ");
        plan_words_placement(first, words);
        plan_words_add(words, " ");
        plan_words_lack(first, words);
    }
    plan_words_add(words, ".");
    if (rows->encoded_gain >= 1.1)
        plan_words_add(words,
                       " With %s--reduce-encoding 4bit it would be %.1f times as fast, with other "
                       "results (docs/guide/lean.md).",
                       best->stage > 0 ? "--gather-encoding 8bit " : "", rows->encoded_gain);
}

/* ---- options --------------------------------------------------------------------------------- */

/* Those that mean something in the plan; all but `always`, NULL for none, only if they are not what
 * zero-train takes anyhow. */
static void add_options(const zr_config_t *config, const char *always, const char *const *names,
                        size_t n_names, plan_words_t *words) {
    const zr_config_t usual = zr_config_default();
    size_t n = 0;
    const zr_option_t *rows = zr_options(&n);
    for (size_t i = 0; i < n_names; i++) {
        const zr_option_t *row = zr_option_find(rows, n, names[i]);
        bool is_always = always != NULL && strcmp(always, names[i]) == 0;
        if (zr_option_idle(row, config) == NULL &&
            (is_always || !zr_option_equal(row, config, &usual)))
            plan_words_add(words, " --%s %s", row->name, zr_option_text(row, config).text);
    }
}

void plan_words_optimizer(const zr_run_row_t *row, plan_words_t *words) {
    static const char *const names[] = {"offload-optimizer", "offload-ratio", "state-in-host"};
    add_options(&row->config, names[0], names, 3, words);
}

void plan_words_params(const zr_run_row_t *row, plan_words_t *words) {
    static const char *const names[] = {"offload-params", "offload-param-ratio", "params-in-host"};
    add_options(&row->config, names[0], names, 3, words);
}

void plan_words_step(const zr_run_row_t *row, plan_words_t *words) {
    static const char *const names[] = {"order", "update-at", "master"};
    add_options(&row->config, NULL, names, 3, words);
}

void plan_words_activations(const zr_run_row_t *row, plan_words_t *words) {
    plan_words_add(words, " --offload-activations %s", train_offload_name(row->activations));
    if (row->activations_on_device > 0)
        plan_words_add(words, " --activations-on-device %zu", row->activations_on_device);
    if (row->activations_in_host > 0)
        plan_words_add(words, " --activations-in-host %zu", row->activations_in_host);
}

void plan_words_moves(const train_options_t *asked, const zr_run_row_t *row, plan_words_t *words) {
    static const char *const names[] = {"offload-gradients", "gradients-in-host",
                                        "offload-gradients-ratio"};
    const zr_offload_options_t *state = &row->config.offload_optimizer;
    const zr_offload_report_t *offload = &row->one.plan.offload;
    if (state->device == ZR_OFFLOAD_NONE)
        return;
    if (offload->has_copies && asked->config.offload_optimizer.update_on == ZR_UPDATE_ON_FASTER)
        plan_words_add(words, " --update-on %s", offload->is_updated_on_device ? "device" : "host");
    if (!asked->has_gradients)
        add_options(&row->config, NULL, names, state->gradients == ZR_OFFLOAD_NONE ? 1 : 3, words);
}
