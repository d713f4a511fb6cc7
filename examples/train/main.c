/*
 * zero-train: train a GPT at ZeRO stage 0 to 3. This is the shell around zero_train_run:
 * command line in, exit status and report out.
 */
#include <stdio.h>

#include "examples/common/command.h"
#include "examples/common/messages.h"
#include "examples/common/signals.h"
#include "examples/train/train.h"
#include "examples/train/auto.h"
#include "examples/train/launch.h"
#include "examples/train/plan.h"
#include "examples/train/plot.h"
#include "examples/train/report.h"

enum { EXIT_TRAINED = 0, EXIT_FAILED = 1, EXIT_BAD_INPUT = 2 };

static int exit_code(zr_status_t status, bool bad_input) {
    if (status == ZR_OK)
        return EXIT_TRAINED;
    return bad_input ? EXIT_BAD_INPUT : EXIT_FAILED;
}

/* With --json an object is printed for every run that began, so that scripts find one. */
static int report(const train_options_t *options, const zero_train_t *run,
                  const train_result_t *result, const messages_t *messages, const zr_log_t *log) {
    bool is_lost = train_report_is_lost(options, result);
    int code = is_lost ? EXIT_FAILED : exit_code(result->status, result->bad_input);
    bool printed = true;
    train_report_warnings(options, result, log);
    if (options->json && code != EXIT_BAD_INPUT)
        printed = train_report_json(options, run, result, messages_first_error(messages), stdout);
    else if (options->dry_run && !options->quiet && result->status == ZR_OK)
        train_report_planned(options, result, stdout);
    else if (!options->quiet && result->status == ZR_OK &&
             (result->n_steps > 0 || result->evaluations.n > 0))
        train_report_summary(options, result, stdout);
    if (!printed || program_check_output(EXIT_TRAINED, true, log) != EXIT_TRAINED) {
        if (!printed)
            zr_log_write(log, ZR_LOG_ERROR, "cannot print the result");
        return code == EXIT_TRAINED ? EXIT_FAILED : code;
    }
    return code;
}

/* What is said of a run says what had been foretold of it. */
static void plan_and_run(zero_train_t *run, train_options_t *options, messages_t *messages,
                         const zr_log_t *log, train_result_t *result_p) {
    bool is_first = train_launch_first(options) == 0;
    train_plan_t plan = {0};
    zr_run_evaluations_t evaluations = zero_train_evaluations(run);
    if (is_first || train_plan_may_hold(options))
        train_plan_make(options, zero_train_first_step(run), &evaluations, &plan);
    train_plan_hold(&plan, options, log);
    if (!is_first)
        plan = (train_plan_t){0};
    zr_status_t status = train_plan_check(&plan, options, log);
    if (status == ZR_OK && options->dry_run && is_first && !plan.is_made)
        status = zr_fail(log, plan.status, "%s", plan.message);
    if (status == ZR_OK && options->dry_run)
        zero_train_try(run, result_p);
    else if (status == ZR_OK)
        zero_train_go(run, messages, result_p);
    else
        *result_p = zero_train_failed(run, status);
    result_p->planned = train_plan_of(&plan, result_p);
    if (is_first && !plan.is_made && result_p->status == ZR_OK)
        zr_log_write(log, ZR_LOG_WARNING, "the run was not planned: %s", plan.message);
}

/* Encoded weights are not saved: a checkpoint has to be there that has them, to link to. */
static zr_status_t check_lora_base(const train_options_t *options, const zr_log_t *log) {
    bool saves = options->checkpoint.dir != NULL && !options->evaluation.only;
    bool is_encoded =
        options->lora_base != TRAIN_LORA_BASE_DTYPE &&
        !(options->lora_base == TRAIN_LORA_BASE_BF16 && options->config.dtype == ZR_DTYPE_BF16);
    if (!saves || !is_encoded || options->checkpoint.links_frozen)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--lora-base %s with --checkpoint-dir: checkpoints link to the weights that the "
                   "adapters are for, which --checkpoint-dir %s has not; put them there by "
                   "zero-checkpoint import and add --resume, or take --lora-base dtype",
                   train_options_lora_base(options), options->checkpoint.dir);
}

/* What is left to be settled before the run begins: it changes the options that the run has. */
static zr_status_t settle(const zero_train_t *run, train_options_t *options, const zr_log_t *log) {
    ZR_TRY(train_launch_count(options, zero_train_comm(run)));
    options->has_documents = zero_train_has_documents(run);
    options->checkpoint.links_frozen = zero_train_links_frozen(run);
    ZR_TRY(check_lora_base(options, log));
    if (train_auto_is_wanted(options))
        ZR_TRY(train_auto_place(options, log));
    zr_log_t own_log = *log;
    if (train_launch_first(options) != 0)
        own_log.level = ZR_LOG_ERROR; /* one rank says it for all */
    train_options_warn_idle(options, false, options->use_nccl, &own_log);
    return ZR_OK;
}

/* Of plans of memory: what one rank, or the plan of the run, has made, others take. */
#define KEPT_PLAN_BYTES ((size_t)16 << 20)

static int train(train_options_t *options, messages_t *messages, zr_log_t log) {
    train_result_t result;
    zero_train_t *run = NULL;
    log.level = options->quiet ? ZR_LOG_WARNING : ZR_LOG_INFO;
    options->stop = signals_watch();
    options->plans = zr_plan_cache_create(KEPT_PLAN_BYTES); /* NULL: each rank makes its own */
    if (zero_train_open(options, &log, &run, &result) == ZR_OK) {
        zr_status_t status = settle(run, options, &log);
        if (status == ZR_OK)
            plan_and_run(run, options, messages, &log, &result);
        else
            result = zero_train_failed(run, status);
    }
    int code = report(options, run, &result, messages, &log);
    bool draws = code == EXIT_TRAINED && options->plot_path != NULL && !options->dry_run;
    if (draws && train_plot_draw(options, &log) != ZR_OK)
        code = EXIT_FAILED;
    zero_train_close(&run);
    zr_plan_cache_destroy(&options->plans);
    return code;
}

static int run(int argc, char **argv, messages_t *messages) {
    zr_log_t log = messages_log(messages, ZR_LOG_INFO);
    train_options_t options;
    zr_status_t status = train_options_parse(argc, argv, &log, &options);
    if (status != ZR_OK)
        return exit_code(status, status != ZR_ERR_MEMORY);
    int code = options.help || options.version
                   ? program_tell("zero-train", options.help, train_options_help, &log)
               : options.draws_only ? exit_code(train_plot_draw(&options, &log), true)
                                    : train(&options, messages, log);
    train_options_free(&options);
    return code;
}

int main(int argc, char **argv) {
    return program_main("zero-train", run, train_options_describe, argc, argv);
}
