/* The command that runs a plan: see plan_command.h. */
#include "examples/plan/command.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "examples/train/report.h"

static bool is_one_of(const char *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Options that describe the plan and not the run, and those that are said of each plan by its own
 * configuration, are not repeated. */
static bool is_repeated(const options_row_t *row) {
    static const char *const others[] = {"hardware",       "config",         "nvme-path",
                                         "stage",          "recompute",      "shard-group-size",
                                         "micro-batch",    "offload-ratio",  "offload-optimizer",
                                         "state-in-host",  "offload-params", "offload-param-ratio",
                                         "params-in-host", "order",          "update-at",
                                         "master"};
    return row->option.group != PLAN_OUTPUT &&
           !is_one_of(row->option.name, others, sizeof(others) / sizeof(others[0]));
}

/* Options that zero-train refuses where they say nothing, or warns of. */
static bool is_said(const plan_options_t *options, const zr_run_row_t *row,
                    const zr_option_t *option) {
    bool stash_nvme =
        row->recompute == ZR_RECOMPUTE_UNIT && options->run.offload_activations == ZR_OFFLOAD_NVME;
    if (strcmp(option->name, "sums") == 0 || strcmp(option->name, "attention") == 0)
        return options->hardware.kind == ZR_HARDWARE_CUDA;
    return zr_option_idle(option, &row->config) == NULL ||
           (stash_nvme && (option->flags & ZR_OPTION_OF_TRANSFERS) != 0);
}

/* Options that DeepSpeed's JSON has keys for, where they mean something in it. */
static bool is_in_file(const zr_run_row_t *row, const options_row_t *of) {
    return of->is_of_library && of->option.key != NULL &&
           zr_option_idle(&of->option, &row->config) == NULL;
}

static const char *drives_of(const plan_options_t *options) {
    const char *paths = options->run.config.nvme.paths;
    return paths[0] != '\0' ? paths : "DIR";
}

int plan_n_nodes(const plan_options_t *options) {
    int n_on_node = options->hardware.ranks_per_node;
    return (options->run.n_ranks + n_on_node - 1) / n_on_node;
}

/* What was given, as it was given. */
static void add_given(const plan_options_t *options, const zr_run_row_t *row, bool has_file,
                      plan_words_t *words) {
    const options_given_t *given = &options->run.given;
    options_rows_t rows;
    options_rows(&plan_table, &rows);
    for (size_t i = 0; i < given->n; i++) {
        const options_row_t *of = options_find(&rows, given->all[i].name);
        bool is_of_data = of != NULL && strcmp(of->option.name, "documents") == 0;
        if (of != NULL && !is_of_data && is_repeated(of) && is_said(options, row, &of->option) &&
            !(has_file && is_in_file(row, of)) &&
            !(options->run.auto_activations && strcmp(of->option.name, "offload-activations") == 0))
            plan_words_add(words, " --%s %s", given->all[i].name, given->all[i].value);
    }
}

static bool is_given(const plan_options_t *options, const char *name) {
    return options_value(&options->run.given, name) != NULL;
}

/* What has a default of the plan's own, or is to be seen. */
static void add_defaults(const plan_options_t *options, plan_words_t *words) {
    if (!is_given(options, "model"))
        plan_words_add(words, " --model %s", options->run.model);
    if (!is_given(options, "ranks") && options->run.n_ranks > 1)
        plan_words_add(words, " --ranks %d", options->run.n_ranks);
}

static void add_activations(const plan_options_t *options, const zr_run_row_t *row,
                            plan_words_t *words) {
    if (options->run.auto_activations && row->recompute == ZR_RECOMPUTE_UNIT)
        plan_words_activations(row, words);
}

void plan_command_options(const plan_options_t *options, const zr_run_row_t *row,
                          plan_words_t *words) {
    plan_words_add(words, "--stage %d", row->stage);
    if (row->group_size > 0)
        plan_words_add(words, " --shard-group-size %d", row->group_size);
    else if (options->run.config_path != NULL && !options->group_open)
        plan_words_add(words, " --shard-group-size all");
    if (options->run.config_path != NULL)
        plan_words_add(words, " --config %s", options->run.config_path);
    if (row->optimizer != ZR_OFFLOAD_NONE || options->run.config_path != NULL)
        plan_words_optimizer(row, words);
    if (row->params != ZR_OFFLOAD_NONE || options->run.config_path != NULL)
        plan_words_params(row, words);
    plan_words_moves(&options->run, row, words);
    add_activations(options, row, words);
    plan_words_step(row, words);
    if (plan_row_uses_nvme(options, row))
        plan_words_add(words, " --nvme-path %s", drives_of(options));
    plan_words_add(words, " --recompute %s --micro-batch %zu", zr_recompute_name(row->recompute),
                   row->micro_batch);
    add_defaults(options, words);
    add_given(options, row, false, words);
}

plan_options_t plan_without_ranks(const plan_options_t *options) {
    plan_options_t own = *options;
    options_given_t *given = &own.run.given;
    size_t n = 0;
    for (size_t i = 0; i < given->n; i++)
        if (strcmp(given->all[i].name, "ranks") != 0)
            given->all[n++] = given->all[i];
    given->n = n;
    own.run.n_ranks = 1;
    return own;
}

void plan_command_launch(const plan_options_t *options, const zr_run_row_t *row, bool is_on_each,
                         plan_words_t *words) {
    int n_nodes = plan_n_nodes(options), n_ranks = options->run.n_ranks;
    int n_on_node = options->hardware.ranks_per_node;
    bool is_cuda = options->hardware.kind == ZR_HARDWARE_CUDA;
    plan_options_t own = plan_without_ranks(options);
    if (n_nodes == 1 || (is_on_each && n_ranks % n_on_node != 0))
        return;
    if (is_on_each)
        plan_words_add(words,
                       "torchrun --no-python --nnodes %d --nproc-per-node %d --node-rank NODE "
                       "--master-addr HOST --master-port 29500",
                       n_nodes, n_on_node);
    else
        plan_words_add(words, "mpirun -n %d --hostfile HOSTS --map-by ppr:%d:node%s", n_ranks,
                       n_on_node, is_cuda ? "" : " --bind-to none");
    plan_words_add(words, " zero-train --device %s --data PATH ", is_cuda ? "cuda" : "host");
    plan_command_options(&own, row, words);
}

void plan_command_beside_file(const plan_options_t *options, const zr_run_row_t *row,
                              plan_words_t *words) {
    const zr_offload_options_t *state = &row->config.offload_optimizer;
    bool file_has_drives = row->optimizer == ZR_OFFLOAD_NVME || row->params == ZR_OFFLOAD_NVME;
    plan_words_add(words, "--recompute %s", zr_recompute_name(row->recompute));
    add_defaults(options, words);
    if (state->device == ZR_OFFLOAD_NVME && state->max_in_cpu_elems > 0)
        plan_words_add(words, " --state-in-host %zu", state->max_in_cpu_elems);
    plan_words_moves(&options->run, row, words);
    add_activations(options, row, words);
    plan_words_step(row, words);
    if (plan_row_uses_nvme(options, row) && !file_has_drives)
        plan_words_add(words, " --nvme-path %s", drives_of(options));
    add_given(options, row, true, words);
}

zr_status_t plan_command_file(const plan_options_t *options, const zr_run_row_t *row,
                              char **text_p) {
    zr_config_t config = row->config;
    /* What a schedule leaves to the run's steps is left to them again. */
    config.schedule = options->has_schedule ? options->schedule : zr_config_default().schedule;
    if (config.schedule.warmup_steps == SIZE_MAX)
        config.schedule.warmup_steps = zr_config_default().schedule.warmup_steps;
    snprintf(config.nvme.paths, sizeof(config.nvme.paths), "%s", drives_of(options));
    return zr_config_write_json(&config, NULL, text_p);
}
