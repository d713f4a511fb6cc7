/*
 * What zero-train was left to choose: the plans are plan_search's, of this run alone.
 */
#include "examples/train/auto.h"

#include <string.h>

#include "examples/plan/refusal.h"
#include "examples/plan/this_machine.h"
#include "examples/train/launch.h"

bool train_auto_is_wanted(const train_options_t *options) {
    return options->auto_stage || options->auto_optimizer || options->auto_params ||
           options->auto_activations || options->auto_group || options->auto_order ||
           options->auto_update || options->auto_recompute;
}

static zr_status_t refuse(const plan_options_t *asked, const zr_run_rows_t *rows,
                          const zr_log_t *log) {
    char text[2048] = "";
    plan_words_t words = {text, sizeof(text), 0};
    plan_refusal(asked, rows, &words);
    return zr_fail(log, ZR_ERR_BUDGET, "auto: nothing fits%s", text);
}

/* On one machine there are no groups to choose from, and nothing is said of them, unless they are
 * what was asked for. */
static void say_groups(const train_options_t *options, const zr_run_row_t *row,
                       plan_words_t *said) {
    bool is_one_machine = train_launch_n_sharing(options) == options->n_ranks;
    if (!options->auto_group || (is_one_machine && options->auto_stage))
        return;
    if (row->group_size > 0)
        plan_words_add(said, " --shard-group-size %d", row->group_size);
    else
        plan_words_add(said, " --shard-group-size all");
}

/* Times decide what is said of a stage and of groups. */
static void say_rates(const train_options_t *options, const zr_log_t *log) {
    bool is_one_machine = train_launch_n_sharing(options) == options->n_ranks;
    if (options->hardware_path == NULL)
        zr_log_write(log, ZR_LOG_INFO,
                     "auto: the rates of this machine are not measured, so times only compare "
                     "%s; zero-bench --save-hardware FILE measures them for --hardware FILE%s",
                     is_one_machine ? "stages" : "stages and groups",
                     is_one_machine ? "" : ", but for those between machines (between_nodes)");
}

/* Take what was chosen, and say it as options and as a sentence. */
static void take(train_options_t *options, const zr_run_rows_t *rows, const zr_log_t *log) {
    const zr_run_row_t *row = &rows->all[rows->recommended];
    zr_config_t *config = &options->config;
    train_choice_t *choice = &options->choice;
    plan_words_t said = {choice->options, sizeof(choice->options), 0};
    plan_words_t why = {choice->why, sizeof(choice->why), 0};
    if (options->auto_stage)
        plan_words_add(&said, " --stage %d", row->stage);
    say_groups(options, row, &said);
    if (options->auto_optimizer)
        plan_words_optimizer(row, &said);
    if (options->auto_params)
        plan_words_params(row, &said);
    if (options->auto_optimizer || options->auto_params)
        plan_words_moves(options, row, &said);
    if (options->auto_activations)
        plan_words_activations(row, &said);
    if (options->auto_order)
        plan_words_add(&said, " --order %s",
                       row->config.order == ZR_ORDER_BLOCK ? "block" : "micro-batch");
    if (options->auto_update)
        plan_words_add(&said, " --update-at %s",
                       row->config.update_at == ZR_UPDATE_AT_BACKWARD ? "backward" : "end");
    if (options->auto_recompute)
        plan_words_add(&said, " --recompute %s", zr_recompute_name(row->recompute));
    plan_words_why(rows, &why);
    options->recompute = row->recompute;
    config->stage = row->config.stage;
    config->shard_group_size = row->config.shard_group_size;
    config->offload_optimizer = row->config.offload_optimizer;
    config->offload_param = row->config.offload_param;
    if (options->auto_activations) {
        options->offload_activations = row->activations;
        options->activations_on_device = row->activations_on_device;
        options->activations_in_host = row->activations_in_host;
    }
    config->order = row->config.order;
    config->update_at = row->config.update_at;
    choice->n_plans = rows->n_tried;
    zr_log_write(log, ZR_LOG_INFO, "auto: %s (%s)", choice->options + 1,
                 zr_count_text(rows->n_tried, "plan").text);
    train_options_warn_left_out(options, log);
    if (!options->auto_stage && !options->auto_group && !options->auto_order &&
        !options->auto_update && !options->auto_recompute)
        return;
    zr_log_write(log, ZR_LOG_INFO, "auto: %s", choice->why);
    say_rates(options, log);
}

zr_status_t train_auto_place(train_options_t *options, const zr_log_t *log) {
    zr_hardware_t hardware;
    ZR_TRY(this_machine_describe(options, log, &hardware));
    plan_options_t asked = {.run = *options,
                            .hardware = hardware,
                            .hardware_name = "this",
                            .is_this = true, /* its drives are those that were named */
                            .stage_open = options->auto_stage,
                            .group_open = options->auto_group,
                            .recompute_open = options->auto_recompute,
                            .least_stage = options->config.stage};
    zr_run_rows_t rows = {0};
    ZR_TRY(plan_search(&asked, log, NULL, &rows));
    zr_status_t status = ZR_OK;
    if (rows.n_fit == 0)
        status = refuse(&asked, &rows, log);
    else
        take(options, &rows, log);
    zr_run_rows_free(&rows);
    return status;
}
