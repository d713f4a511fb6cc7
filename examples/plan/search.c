/*
 * Plans are made one by one, as gpt_plan does: there is nothing clever here, since each takes
 * milliseconds. One that does not fit is made again with memory enough, to see what it needs.
 */
#include "examples/plan/search.h"

#include <stdlib.h>

#include "examples/plan/auto.h"
#include "examples/train/plan.h"

#define MOST_MICRO_BATCH ((size_t)1024)
#define LEAST_GAIN 1.01 /* of twice the micro-batch, or of groups, or they are not tried */

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

bool plan_row_is_alike(const plan_row_t *a, const plan_row_t *b) {
    return a->group_size == b->group_size && a->stage == b->stage && a->optimizer == b->optimizer &&
           a->params == b->params && a->recompute == b->recompute;
}

int plan_row_group_size(const plan_options_t *options, const plan_row_t *row) {
    return row->group_size > 0 ? row->group_size : options->run.n_ranks;
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
    config->shard_group_size = row->group_size;
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
            return zr_fail(search->log, ZR_ERR_MEMORY, "no memory for %s",
                           zr_count_text(capacity, "plan").text);
        rows->all = grown;
        rows->capacity = capacity;
    }
    rows->all[rows->n++] = *row;
    if (search->messages != NULL)
        messages_progress(search->messages, false, "%s", zr_count_text(rows->n, "plan").text);
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

/* ---- the choice ------------------------------------------------------------------------------ */

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

/* ---- groups ---------------------------------------------------------------------------------- */

/* The least that is tried: a node's ranks; or as many of them as all ranks can be divided by. */
static int least_group(const plan_options_t *o) {
    int a = o->run.n_ranks, b = o->hardware.ranks_per_node;
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The next larger: of whole nodes, and less than all ranks; 0: there is none. */
static int next_group(const plan_options_t *o, int size) {
    int n_ranks = o->run.n_ranks, per_node = o->hardware.ranks_per_node;
    for (size++; size < n_ranks; size++)
        if (n_ranks % size == 0 && size % per_node == 0)
            return size;
    return 0;
}

/* Whether a row is the first micro-batch of its placement. */
static bool is_first(const plan_options_t *o, const plan_row_t *row) {
    return !o->micro_batch_open || row->micro_batch == 1;
}

/* What came of a placement with all ranks. */
typedef struct placement {
    const plan_row_t *rows; /* of its micro-batches; of search_t.rows, until one is added */
    size_t n;
    const plan_row_t *best; /* of these, the fastest */
} placement_t;

/* The placement whose rows begin at `i`, of the first n. */
static placement_t placement_at(const search_t *search, size_t i, size_t n) {
    const plan_row_t *rows = &search->rows.all[i];
    placement_t placement = {.rows = rows, .n = 1, .best = rows};
    for (; i + placement.n < n && !is_first(search->options, &rows[placement.n]); placement.n++)
        if (rows[placement.n].one.fits &&
            rows[placement.n].tokens_per_s > placement.best->tokens_per_s)
            placement.best = &rows[placement.n];
    return placement;
}

/* Tokens per second that the placement could reach in groups of `size`, and no more: if nobody
 * waited for other ranks. But what is waited for where shards are, on the host and on drives, and
 * the update, are as much longer as shards are larger. */
static double most_tokens_per_s(const plan_options_t *o, const placement_t *placement, int size) {
    double larger = (double)o->run.n_ranks / size, most = 0;
    for (size_t i = 0; i < placement->n; i++) {
        const plan_row_t *row = &placement->rows[i];
        const double *exposed = row->one.plan.times.exposed;
        double of_shards = row->stage == 0 ? 0 : exposed[GPT_PLAN_UPDATE];
        if (row->stage > 0 && o->run.offload_activations == ZR_OFFLOAD_NONE)
            of_shards += exposed[GPT_PLAN_HOST_LINK] + exposed[GPT_PLAN_DISK];
        double seconds = row->one.plan.step_seconds;
        double least = seconds - exposed[GPT_PLAN_COMMUNICATION] + (larger - 1) * of_shards;
        if (row->one.fits && row->tokens_per_s * seconds > most * least)
            most = row->tokens_per_s * seconds / least;
    }
    return most;
}

/* What does not fit is found in a fraction of the time of a plan; but a placement that is open is
 * found first, which is most of it. */
static zr_status_t may_fit(const search_t *search, const plan_row_t *row, bool *may_p) {
    const plan_options_t *o = search->options;
    train_options_t run;
    *may_p = true;
    if (o->run.auto_optimizer || o->run.auto_params)
        return ZR_OK;
    ZR_TRY(make_run(search, row, &run));
    plan_row_t own = *row;
    own.config = run.config;
    gpt_plan_request_t request = plan_row_request(o, &own);
    *may_p = plan_one_fits(&request);
    return ZR_OK;
}

/* Plan a row, and add it where it fits; where not, only if that is to be seen. */
static zr_status_t plan_if_fits(search_t *search, plan_row_t row, bool is_seen, bool *fits_p) {
    ZR_TRY(may_fit(search, &row, fits_p));
    if (!*fits_p && !is_seen)
        return ZR_OK;
    ZR_TRY(plan_row(search, &row));
    *fits_p = row.one.fits;
    return row.one.fits || is_seen ? add_row(search, &row) : ZR_OK;
}

/* The least size of groups that could be recommended, over one group and over what has been planned
 * in groups; 0: none. */
static int least_worth(const search_t *search, const placement_t *placement, double of_one_group) {
    const plan_options_t *o = search->options;
    double fastest = search->rows.all[search->rows.fastest].tokens_per_s;
    for (int size = least_group(o); size > 0; size = next_group(o, size)) {
        double most = most_tokens_per_s(o, placement, size);
        if (most * PLAN_ABOUT_AS_FAST > of_one_group && most > fastest)
            return size;
    }
    return 0;
}

/* A placement in groups of `least` ranks, and of more nodes until one has room for the micro-batch
 * that is best with all ranks; each with that, or with half of it and so on. */
static zr_status_t plan_sizes(search_t *search, plan_row_t row, int least) {
    const plan_options_t *o = search->options;
    const size_t best = row.micro_batch, smallest = o->micro_batch_open ? 1 : best;
    bool is_best = false;
    for (int size = least; size > 0 && !is_best; size = next_group(o, size)) {
        bool fits = false;
        row.group_size = size;
        for (row.micro_batch = best; row.micro_batch >= smallest && !fits; row.micro_batch /= 2) {
            bool is_seen = row.micro_batch == smallest && size == least;
            ZR_TRY(plan_if_fits(search, row, is_seen, &fits));
            is_best = fits && row.micro_batch == best;
        }
    }
    return ZR_OK;
}

/* Groups need more memory than all ranks together, and gain no more than what is waited for: a
 * placement that does not fit with all ranks, or could not be worth it, is not planned in groups.
 */
static zr_status_t plan_groups(search_t *search) {
    const plan_options_t *o = search->options;
    const size_t n = search->rows.n;
    if (!o->group_open || o->hardware.ranks_per_node == 1 ||
        o->run.n_ranks <= o->hardware.ranks_per_node || least_group(o) == 1)
        return ZR_OK;
    choose(&search->rows);
    const double of_one_group = search->rows.all[search->rows.fastest].tokens_per_s;
    for (size_t i = 0; i < n; i++) {
        if (!is_first(o, &search->rows.all[i]) || !search->rows.all[i].one.fits)
            continue;
        placement_t placement = placement_at(search, i, n);
        plan_row_t row = {.stage = placement.best->stage,
                          .optimizer = placement.best->optimizer,
                          .params = placement.best->params,
                          .recompute = placement.best->recompute,
                          .micro_batch = placement.best->micro_batch};
        ZR_TRY(plan_sizes(search, row, least_worth(search, &placement, of_one_group)));
        choose(&search->rows);
    }
    search->rows.has_groups = search->rows.n > n;
    return ZR_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static zr_status_t plan_stages(search_t *search) {
    const plan_options_t *o = search->options;
    for (int stage = o->least_stage; stage <= 3; stage++)
        if (o->stage_open || stage == o->run.config.stage)
            ZR_TRY(
                plan_placements(search, (plan_row_t){.group_size = o->run.config.shard_group_size,
                                                     .stage = stage}));
    if (search->rows.n == 0)
        return zr_fail(search->log, ZR_ERR_ARGUMENT,
                       "nothing to plan: what is asked for is on drives, and of this machine none "
                       "were named; add --nvme-path DIR");
    return plan_groups(search);
}

zr_status_t plan_search(const plan_options_t *options, const zr_log_t *log, messages_t *messages,
                        plan_rows_t *rows_p) {
    plan_options_t own = *options;
    search_t search = {.options = &own, .log = log, .messages = messages};
    own.run.plans = zr_plan_cache_create(PLAN_KEPT_BYTES); /* NULL: each plan is made */
    zr_status_t status = plan_stages(&search);
    zr_plan_cache_destroy(&own.run.plans);
    if (messages != NULL)
        messages_end_progress(messages);
    if (status != ZR_OK) {
        plan_rows_free(&search.rows);
        return status;
    }
    choose(&search.rows);
    *rows_p = search.rows;
    return ZR_OK;
}

void plan_rows_free(plan_rows_t *rows) {
    free(rows->all);
    *rows = (plan_rows_t){0};
}
