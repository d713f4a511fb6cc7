/*
 * Plans are made one by one, as gpt_plan does: there is nothing clever here, since each takes
 * milliseconds. One that does not fit is made again with memory enough, to see what it needs.
 */
#include "examples/plan_search.h"

#include <stdlib.h>

#include "examples/plan_auto.h"
#include "examples/train_plan.h"

#define MOST_MICRO_BATCH ((size_t)1024)
#define LEAST_GAIN 1.01 /* of twice the micro-batch, or it is not doubled again */

typedef struct search {
    const plan_options_t *options;
    const zr_log_t *log;
    messages_t *messages;
    plan_rows_t rows;
} search_t;

bool plan_row_uses_nvme(const plan_options_t *options, const plan_row_t *row) {
    return row->optimizer == ZR_OFFLOAD_NVME || row->params == ZR_OFFLOAD_NVME ||
           (row->recompute && options->run.offload_activations == ZR_OFFLOAD_NVME);
}

/* ---- one plan -------------------------------------------------------------------------------- */

/* Of this machine, drives are only what --nvme-path names. */
static bool has_drives(const plan_options_t *options) {
    return !options->is_this || options->run.config.nvme.paths[0] != '\0';
}

/* The run that a plan is of. */
static zr_status_t make_run(const search_t *search, const plan_row_t *row, train_options_t *run_p) {
    train_options_t run = search->options->run;
    zr_config_t *config = &run.config;
    run.recompute = row->recompute;
    if (!row->recompute)
        run.offload_activations = ZR_OFFLOAD_NONE;
    config->stage = row->stage;
    config->offload_optimizer.device = row->optimizer;
    config->offload_param.device = row->params;
    config->micro_batch = row->micro_batch;
    config->train_batch = 0;
    run.auto_params &= row->stage == 3;
    if (config->nvme.paths[0] == '\0' && has_drives(search->options))
        snprintf(config->nvme.paths, sizeof(config->nvme.paths), "."); /* never opened */
    ZR_TRY(zr_config_resolve(config, run.n_ranks, search->log));
    *run_p = run;
    return ZR_OK;
}

gpt_plan_request_t plan_row_request(const plan_options_t *options, const plan_row_t *row) {
    train_options_t run = options->run;
    run.config = row->config;
    run.recompute = row->recompute;
    if (!row->recompute)
        run.offload_activations = ZR_OFFLOAD_NONE;
    return train_plan_request(&run, &options->hardware);
}

/* A placement that is left open: as far up as fits. */
static zr_status_t settle(search_t *search, train_options_t *run, plan_row_t *row) {
    ZR_TRY(plan_auto_place(run, &search->options->hardware, search->log, &search->rows.n_tried));
    row->optimizer = run->config.offload_optimizer.device;
    row->params = run->config.offload_param.device;
    return ZR_OK;
}

static zr_status_t plan_row(search_t *search, plan_row_t *row) {
    train_options_t run;
    ZR_TRY(make_run(search, row, &run));
    if (run.auto_optimizer || run.auto_params)
        ZR_TRY(settle(search, &run, row));
    row->config = run.config;
    search->rows.n_tried++;
    gpt_plan_request_t request = plan_row_request(search->options, row);
    ZR_TRY(plan_one(&request, search->log, &row->one));
    if (row->one.fits)
        row->tokens_per_s = (double)run.n_ranks * (double)row->micro_batch *
                            (double)run.config.grad_accum * (double)run.seq /
                            row->one.plan.step_seconds;
    return ZR_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static zr_status_t add_row(search_t *search, const plan_row_t *row) {
    plan_rows_t *rows = &search->rows;
    if (rows->n == rows->capacity) {
        size_t capacity = rows->capacity == 0 ? 64 : 2 * rows->capacity;
        plan_row_t *grown = realloc(rows->all, capacity * sizeof(*grown));
        if (grown == NULL)
            return zr_fail(search->log, ZR_ERR_MEMORY, "no memory for %zu plans", capacity);
        rows->all = grown;
        rows->capacity = capacity;
    }
    rows->all[rows->n++] = *row;
    if (search->messages != NULL)
        messages_progress(search->messages, false, "%zu plans", rows->n);
    return ZR_OK;
}

/* The micro-batch that was given; or twice as much each time, while that helps. */
static zr_status_t plan_micro_batches(search_t *search, plan_row_t row) {
    const plan_options_t *o = search->options;
    double before = 0;
    row.micro_batch = o->micro_batch_open ? 1 : o->run.config.micro_batch;
    do {
        plan_row_t own = row;
        ZR_TRY(plan_row(search, &own));
        ZR_TRY(add_row(search, &own));
        if (!own.one.fits || own.tokens_per_s < LEAST_GAIN * before)
            return ZR_OK;
        before = own.tokens_per_s;
        row.micro_batch *= 2;
    } while (o->micro_batch_open && row.micro_batch <= MOST_MICRO_BATCH);
    return ZR_OK;
}

static zr_status_t plan_recomputation(search_t *search, plan_row_t row) {
    const plan_options_t *o = search->options;
    for (int recompute = 0; recompute <= 1; recompute++) {
        row.recompute = recompute == 1;
        if (!o->recompute_open && row.recompute != o->run.recompute)
            continue;
        if (o->run.offload_activations != ZR_OFFLOAD_NONE && !row.recompute)
            continue;
        if (plan_row_uses_nvme(o, &row) && !has_drives(o))
            continue;
        ZR_TRY(plan_micro_batches(search, row));
    }
    return ZR_OK;
}

static zr_status_t plan_placements(search_t *search, plan_row_t row) {
    const plan_options_t *o = search->options;
    const zr_config_t *config = &o->run.config;
    for (int optimizer = 0; optimizer <= ZR_OFFLOAD_NVME; optimizer++)
        for (int params = 0; params <= (row.stage == 3 ? ZR_OFFLOAD_NVME : 0); params++) {
            if (!o->optimizer_open && optimizer != (int)config->offload_optimizer.device)
                continue;
            if (!o->params_open && params != (int)config->offload_param.device)
                continue;
            row.optimizer = (zr_offload_device_t)optimizer;
            row.params = (zr_offload_device_t)params;
            ZR_TRY(plan_recomputation(search, row));
        }
    return ZR_OK;
}

/* How much of what it needs is there. */
static double share_there(const plan_row_t *row) {
    const plan_lack_t *lack = &row->one.lack;
    return (double)lack->there_bytes / (double)(lack->needed_bytes + 1);
}

static void choose(plan_rows_t *rows) {
    double fastest = 0;
    rows->n_fit = 0;
    for (size_t i = 0; i < rows->n; i++) {
        rows->n_fit += rows->all[i].one.fits;
        if (share_there(&rows->all[i]) > share_there(&rows->all[rows->nearest]))
            rows->nearest = i;
        if (rows->all[i].one.fits && rows->all[i].tokens_per_s > fastest) {
            fastest = rows->all[i].tokens_per_s;
            rows->fastest = i;
        }
    }
    rows->recommended = rows->fastest;
    for (size_t i = rows->n; i-- > 0;)
        if (rows->all[i].one.fits && rows->all[i].tokens_per_s >= PLAN_ABOUT_AS_FAST * fastest)
            rows->recommended = i;
}

zr_status_t plan_search(const plan_options_t *options, const zr_log_t *log, messages_t *messages,
                        plan_rows_t *rows_p) {
    search_t search = {.options = options, .log = log, .messages = messages};
    zr_status_t status = ZR_OK;
    for (int stage = options->least_stage; stage <= 3 && status == ZR_OK; stage++)
        if (options->stage_open || stage == options->run.config.stage)
            status = plan_placements(&search, (plan_row_t){.stage = stage});
    if (messages != NULL)
        messages_end_progress(messages);
    if (status != ZR_OK) {
        plan_rows_free(&search.rows);
        return status;
    }
    if (search.rows.n == 0)
        return zr_fail(log, ZR_ERR_ARGUMENT,
                       "nothing to plan: what is asked for is on drives, and of this machine none "
                       "were named; add --nvme-path DIR");
    choose(&search.rows);
    *rows_p = search.rows;
    return ZR_OK;
}

void plan_rows_free(plan_rows_t *rows) {
    free(rows->all);
    *rows = (plan_rows_t){0};
}
