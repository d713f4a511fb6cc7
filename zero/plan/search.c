/*
 * Plans are made as zr_run_plan does. Those of a placement depend on each other, as micro-batches
 * are tried for as long as they gain; placements do not, and are planned on all cores. One that
 * does not fit is made again with memory enough, to see what it needs.
 */
#include "zero/plan/run_search.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "allocator/replay.h"
#include "zero/plan/fit_internal.h"

#define MOST_MICRO_BATCH ((size_t)1024)
#define LEAST_GAIN 1.01 /* of twice the micro-batch, or of groups, or they are not tried */

/* A placement: its rows depend on each other, and on no others of those that are planned at the
 * same time. */
typedef struct chain {
    zr_run_row_t first;
    int least_group; /* it is planned in groups, of this size or more; 0: it is not */
    zr_run_rows_t rows;
} chain_t;

/* What threads tell of together. */
typedef struct progress {
    pthread_mutex_t lock; /* guards the rest, and calls of the ask's progress */
    size_t n_plans;
} progress_t;

typedef struct search {
    const zr_run_ask_t *ask;
    const zr_log_t *log;
    zr_plan_cache_t *plans; /* of memory, that plans share; NULL: each is made */
    zr_run_rows_t rows;
    chain_t *chains; /* [n_chains] */
    size_t n_chains, chains_capacity;
    progress_t *progress;
    bool walks; /* all blocks */
} search_t;

bool zr_run_row_uses_nvme(const zr_run_ask_t *ask, const zr_run_row_t *row) {
    bool has_grads = ask->run.config.offload_optimizer.gradients == ZR_OFFLOAD_NVME ||
                     row->config.offload_optimizer.gradients == ZR_OFFLOAD_NVME;
    return row->optimizer == ZR_OFFLOAD_NVME || row->params == ZR_OFFLOAD_NVME ||
           (has_grads && row->stage >= 2 && row->optimizer != ZR_OFFLOAD_NONE) ||
           (row->recompute == ZR_RECOMPUTE_UNIT &&
            (ask->run.activations == ZR_OFFLOAD_NVME || row->activations == ZR_OFFLOAD_NVME));
}

bool zr_run_row_is_alike(const zr_run_row_t *a, const zr_run_row_t *b) {
    return a->group_size == b->group_size && a->stage == b->stage && a->optimizer == b->optimizer &&
           a->params == b->params && a->recompute == b->recompute;
}

int zr_run_row_group_size(const zr_run_ask_t *ask, const zr_run_row_t *row) {
    return row->group_size > 0 ? row->group_size : ask->run.n_ranks;
}

/* ---- one plan -------------------------------------------------------------------------------- */

static bool has_drives(const zr_run_ask_t *ask) {
    return ask->has_drives || ask->run.config.nvme.paths[0] != '\0';
}

zr_run_request_t zr_run_row_request(const zr_run_ask_t *ask, const zr_run_row_t *row) {
    zr_run_request_t run = ask->run;
    run.config = row->config;
    run.recompute = row->recompute;
    if (ask->places.activations) {
        run.activations = row->activations;
        run.activations_on_device = row->activations_on_device;
        run.activations_in_host = row->activations_in_host;
    }
    if (row->recompute != ZR_RECOMPUTE_UNIT)
        run.activations = ZR_OFFLOAD_NONE;
    if (run.n_steps == ZR_RUN_PLAN_STEPS)
        run.n_steps = zr_run_steps_of_plan(run.config.stage);
    return run;
}

/* The run that a plan is of. */
static zr_status_t make_run(const search_t *search, const zr_run_row_t *row,
                            zr_run_request_t *run_p) {
    zr_run_row_t own = *row;
    zr_config_t *config = &own.config;
    *config = search->ask->run.config;
    config->shard_group_size = row->group_size;
    config->stage = row->stage;
    config->offload_optimizer.device = row->optimizer;
    config->offload_param.device = row->params;
    config->micro_batch = row->micro_batch;
    config->train_batch = 0;
    if (search->ask->places.order)
        config->order = row->order;
    if (search->ask->places.update_at)
        config->update_at = row->update_at;
    if (config->nvme.paths[0] == '\0' && has_drives(search->ask))
        snprintf(config->nvme.paths, sizeof(config->nvme.paths), "."); /* never opened */
    ZR_TRY(zr_config_resolve(config, search->ask->run.n_ranks, search->log));
    *run_p = zr_run_row_request(search->ask, &own);
    run_p->plans = search->plans;
    return ZR_OK;
}

/* A placement that is left open: as far up as fits. is_planned_p: the row has its plan. */
static zr_status_t settle(search_t *search, zr_run_request_t *run, zr_run_row_t *row,
                          bool *is_planned_p) {
    zr_run_open_t open = search->ask->places;
    open.params &= row->stage == 3;
    open.activations &= row->recompute == ZR_RECOMPUTE_UNIT;
    if (!open.optimizer && !open.params && !open.activations)
        return ZR_OK;
    row->one = (zr_run_fit_t){0};
    ZR_TRY(zr_run_place_and_plan(run, &open, search->log, &search->rows.n_tried, &row->one.plan,
                                 is_planned_p));
    row->one.fits = *is_planned_p;
    row->optimizer = run->config.offload_optimizer.device;
    row->params = run->config.offload_param.device;
    row->activations = run->activations;
    row->activations_on_device = run->activations_on_device;
    row->activations_in_host = run->activations_in_host;
    return ZR_OK;
}

static void tell_progress(const search_t *search) {
    const zr_run_ask_t *ask = search->ask;
    if (ask->progress == NULL)
        return;
    pthread_mutex_lock(&search->progress->lock);
    ask->progress(ask->progress_context, ++search->progress->n_plans);
    pthread_mutex_unlock(&search->progress->lock);
}

static bool folds(const search_t *search) {
    const zr_run_ask_t *ask = search->ask;
    const zr_run_open_t *open = &ask->places;
    const zr_model_maker_t *model = &ask->run.model;
    return !search->walks && ask->folds && model->n_repeated != NULL &&
           model->n_repeated(model->context) >= ZR_REPLAY_LONG_UNITS && !open->optimizer &&
           !open->params && !open->activations && !open->order && !open->update_at;
}

static zr_status_t plan_way(search_t *search, zr_run_row_t *row) {
    zr_run_request_t run;
    bool is_planned = false;
    ZR_TRY(make_run(search, row, &run));
    ZR_TRY(settle(search, &run, row, &is_planned));
    row->config = run.config;
    search->rows.n_tried += !is_planned;
    row->is_exact = !folds(search) || !zr_run_fold(&run, &row->one);
    if (row->is_exact && !is_planned)
        ZR_TRY(zr_run_fit(&run, search->log, &row->one));
    zr_run_hold(&row->one.plan, &row->config);
    if (row->one.fits)
        row->tokens_per_s = (double)run.n_ranks * (double)row->micro_batch *
                            (double)run.config.grad_accum * (double)run.seq /
                            row->one.plan.step_seconds;
    tell_progress(search);
    return ZR_OK;
}

/* In the way to make a step that is fastest, of those that are open and fit. */
static zr_status_t plan_row(search_t *search, zr_run_row_t *row) {
    zr_run_way_t ways[ZR_RUN_MOST_WAYS];
    const zr_run_row_t asked = *row;
    ZR_TRY(plan_way(search, row));
    size_t n_ways = zr_run_list_ways(&search->ask->places, &row->config, ways);
    for (size_t i = 1; i < n_ways; i++) {
        zr_run_row_t other = asked;
        other.order = ways[i].order;
        other.update_at = ways[i].update_at;
        ZR_TRY(plan_way(search, &other));
        if (other.one.fits && (!row->one.fits || other.tokens_per_s > row->tokens_per_s))
            *row = other;
    }
    return ZR_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static zr_status_t add_row(search_t *search, const zr_run_row_t *row) {
    zr_run_rows_t *rows = &search->rows;
    if (rows->n == rows->capacity) {
        size_t capacity = rows->capacity == 0 ? 64 : 2 * rows->capacity;
        zr_run_row_t *grown = realloc(rows->all, capacity * sizeof(*grown));
        if (grown == NULL)
            return zr_fail(search->log, ZR_ERR_MEMORY, "no memory for %s",
                           zr_count_text(capacity, "plan").text);
        rows->all = grown;
        rows->capacity = capacity;
    }
    rows->all[rows->n++] = *row;
    return ZR_OK;
}

/* The micro-batch that was given; or twice as much each time, while that helps. */
static zr_status_t plan_micro_batches(search_t *search, zr_run_row_t row) {
    const zr_run_ask_t *ask = search->ask;
    double before = 0;
    row.micro_batch = ask->micro_batch_open ? 1 : ask->run.config.micro_batch;
    do {
        zr_run_row_t own = row;
        ZR_TRY(plan_row(search, &own));
        ZR_TRY(add_row(search, &own));
        if (!own.one.fits || own.tokens_per_s < LEAST_GAIN * before)
            return ZR_OK;
        before = own.tokens_per_s;
        row.micro_batch *= 2;
    } while (ask->micro_batch_open && row.micro_batch <= MOST_MICRO_BATCH);
    return ZR_OK;
}

static zr_status_t add_chain(search_t *search, const zr_run_row_t *first, int least_group) {
    if (search->n_chains == search->chains_capacity) {
        size_t capacity = search->n_chains == 0 ? 64 : 2 * search->n_chains;
        chain_t *grown = realloc(search->chains, capacity * sizeof(*grown));
        if (grown == NULL)
            return zr_fail(search->log, ZR_ERR_MEMORY, "no memory for %s",
                           zr_count_text(capacity, "placement").text);
        search->chains = grown;
        search->chains_capacity = capacity;
    }
    search->chains[search->n_chains++] = (chain_t){.first = *first, .least_group = least_group};
    return ZR_OK;
}

static zr_status_t list_recomputation(search_t *search, zr_run_row_t row) {
    const zr_run_ask_t *ask = search->ask;
    for (int recompute = 0; recompute < ZR_N_RECOMPUTES; recompute++) {
        bool is_open = ask->recompute_open && (recompute != ZR_RECOMPUTE_NEVER || ask->tries_never);
        row.recompute = (zr_recompute_t)recompute;
        if (!is_open && (ask->recompute_open || row.recompute != ask->run.recompute))
            continue;
        if (ask->run.activations != ZR_OFFLOAD_NONE && recompute != ZR_RECOMPUTE_UNIT)
            continue;
        if (zr_run_row_uses_nvme(ask, &row) && !has_drives(ask))
            continue;
        ZR_TRY(add_chain(search, &row, 0));
    }
    return ZR_OK;
}

/* With one rank there is nothing to share: optimizer state alone, or parameters that stay on the
 * device, are no more sharded at this stage than at the one before, which is tried as well. */
static bool is_of_stage_before(const zr_run_ask_t *ask, const zr_run_row_t *row) {
    if (ask->run.n_ranks != 1 || !ask->stage_open || row->stage <= ask->least_stage)
        return false;
    return row->stage == 1 ||
           (row->stage == 3 && row->params == ZR_OFFLOAD_NONE && !ask->places.params);
}

static zr_status_t list_placements(search_t *search, zr_run_row_t row) {
    const zr_run_ask_t *ask = search->ask;
    const zr_config_t *config = &ask->run.config;
    for (int optimizer = 0; optimizer <= ZR_OFFLOAD_NVME; optimizer++)
        for (int params = 0; params <= (row.stage == 3 ? ZR_OFFLOAD_NVME : 0); params++) {
            if (!ask->optimizer_open && optimizer != (int)config->offload_optimizer.device)
                continue;
            if (!ask->params_open && params != (int)config->offload_param.device)
                continue;
            row.optimizer = (zr_offload_device_t)optimizer;
            row.params = (zr_offload_device_t)params;
            if (!is_of_stage_before(ask, &row))
                ZR_TRY(list_recomputation(search, row));
        }
    return ZR_OK;
}

/* ---- the choice ------------------------------------------------------------------------------ */

/* How much of what it needs is there. */
static double share_there(const zr_run_row_t *row) {
    const zr_run_lack_t *lack = &row->one.lack;
    return (double)lack->there_bytes / (double)(lack->needed_bytes + 1);
}

static void choose(zr_run_rows_t *rows) {
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
        if (rows->all[i].one.fits && rows->all[i].tokens_per_s >= ZR_RUN_ABOUT_AS_FAST * fastest)
            rows->recommended = i;
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The least that is tried: a node's ranks; or as many of them as all ranks can be divided by. */
static int least_group(const zr_run_ask_t *ask) {
    int a = ask->run.n_ranks, b = ask->run.hardware.ranks_per_node;
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The next larger: of whole nodes, and less than all ranks; 0: there is none. */
static int next_group(const zr_run_ask_t *ask, int size) {
    int n_ranks = ask->run.n_ranks, per_node = ask->run.hardware.ranks_per_node;
    for (size++; size < n_ranks; size++)
        if (n_ranks % size == 0 && size % per_node == 0)
            return size;
    return 0;
}

static bool is_first(const zr_run_ask_t *ask, const zr_run_row_t *row) {
    return !ask->micro_batch_open || row->micro_batch == 1;
}

/* What came of a placement with all ranks. */
typedef struct placement {
    const zr_run_row_t *rows; /* of its micro-batches; of search_t.rows, until one is added */
    size_t n;
    const zr_run_row_t *best; /* of these, the fastest */
} placement_t;

/* The placement whose rows begin at `i`, of the first n. */
static placement_t placement_at(const search_t *search, size_t i, size_t n) {
    const zr_run_row_t *rows = &search->rows.all[i];
    placement_t placement = {.rows = rows, .n = 1, .best = rows};
    for (; i + placement.n < n && !is_first(search->ask, &rows[placement.n]); placement.n++)
        if (rows[placement.n].one.fits &&
            rows[placement.n].tokens_per_s > placement.best->tokens_per_s)
            placement.best = &rows[placement.n];
    return placement;
}

/* Tokens per second that the placement could reach in groups of `size`, and no more: if nobody
 * waited for other ranks. But what is waited for where shards are, on the host and on drives, and
 * the update, are as much longer as shards are larger. */
static double most_tokens_per_s(const zr_run_ask_t *ask, const placement_t *placement, int size) {
    double larger = (double)ask->run.n_ranks / size, most = 0;
    for (size_t i = 0; i < placement->n; i++) {
        const zr_run_row_t *row = &placement->rows[i];
        const double *exposed = row->one.plan.times.exposed;
        double of_shards = row->stage == 0 ? 0 : exposed[ZR_RUN_UPDATE];
        if (row->stage > 0 && ask->run.activations == ZR_OFFLOAD_NONE)
            of_shards += exposed[ZR_RUN_HOST_LINK] + exposed[ZR_RUN_DISK];
        double seconds = row->one.plan.step_seconds;
        double least = seconds - exposed[ZR_RUN_COMMUNICATION] + (larger - 1) * of_shards;
        if (row->one.fits && row->tokens_per_s * seconds > most * least)
            most = row->tokens_per_s * seconds / least;
    }
    return most;
}

/* What does not fit is found in a fraction of the time of a plan; but a placement that is open is
 * found first, which is most of it. */
static zr_status_t may_fit(const search_t *search, const zr_run_row_t *row, bool *may_p) {
    zr_run_request_t run;
    *may_p = true;
    if (folds(search) || search->ask->places.optimizer || search->ask->places.params ||
        search->ask->places.activations || search->ask->places.order ||
        search->ask->places.update_at)
        return ZR_OK;
    ZR_TRY(make_run(search, row, &run));
    *may_p = zr_run_fits(&run);
    return ZR_OK;
}

/* Plan a row, and add it where it fits; where not, only if that is to be seen. */
static zr_status_t plan_if_fits(search_t *search, zr_run_row_t row, bool is_seen, bool *fits_p) {
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
    const zr_run_ask_t *ask = search->ask;
    double fastest = search->rows.all[search->rows.fastest].tokens_per_s;
    for (int size = least_group(ask); size > 0; size = next_group(ask, size)) {
        double most = most_tokens_per_s(ask, placement, size);
        if (most * ZR_RUN_ABOUT_AS_FAST > of_one_group && most > fastest)
            return size;
    }
    return 0;
}

/* A placement in groups of `least` ranks, and of more nodes until one has room for the micro-batch
 * that is best with all ranks; each with that, or with half of it and so on. */
static zr_status_t plan_sizes(search_t *search, zr_run_row_t row, int least) {
    const zr_run_ask_t *ask = search->ask;
    const size_t best = row.micro_batch, smallest = ask->micro_batch_open ? 1 : best;
    bool is_best = false;
    for (int size = least; size > 0 && !is_best; size = next_group(ask, size)) {
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

/* ---- placements on all cores ----------------------------------------------------------------- */

/* A job of a thread. Of neighbours in the list one often waits for the plan of memory that the
 * other makes, so jobs next to each other are of both halves. */
static zr_status_t plan_chain(void *context, size_t index, const zr_log_t *log) {
    const search_t *search = context;
    size_t half = (search->n_chains + 1) / 2;
    chain_t *chain = &search->chains[index / 2 + (index % 2 == 0 ? 0 : half)];
    search_t own = {.ask = search->ask,
                    .log = log,
                    .plans = search->plans,
                    .rows = chain->rows,
                    .progress = search->progress};
    own.rows.n = own.rows.n_tried = 0; /* it may be the second time */
    zr_status_t status = chain->least_group == 0
                             ? plan_micro_batches(&own, chain->first)
                             : plan_sizes(&own, chain->first, chain->least_group);
    chain->rows = own.rows;
    return status;
}

/* In the order of the list, whichever was planned first. */
static zr_status_t join_chains(search_t *search) {
    for (size_t i = 0; i < search->n_chains; i++) {
        const zr_run_rows_t *rows = &search->chains[i].rows;
        for (size_t k = 0; k < rows->n; k++)
            ZR_TRY(add_row(search, &rows->all[k]));
        search->rows.n_tried += rows->n_tried;
    }
    return ZR_OK;
}

static zr_status_t plan_chains(search_t *search) {
    const zr_run_ask_t *ask = search->ask;
    bool is_recorded = ask->run.spans != NULL || ask->run.trace != NULL;
    zr_run_jobs_t jobs = {.n = search->n_chains,
                          .run = plan_chain,
                          .context = search,
                          .n_threads = is_recorded ? 1 : ask->n_threads};
    zr_status_t status = zr_run_jobs(&jobs, search->log);
    ZR_THEN(status, join_chains(search));
    for (size_t i = 0; i < search->n_chains; i++)
        zr_run_rows_free(&search->chains[i].rows);
    free(search->chains);
    search->chains = NULL;
    search->n_chains = search->chains_capacity = 0;
    return status;
}

static zr_status_t plan_and_choose(search_t *search) {
    ZR_TRY(plan_chains(search));
    choose(&search->rows);
    return ZR_OK;
}

#define GROUPS_AT_ONCE 4 /* placements; whether others are worth it is asked after these */

/* Groups need more memory than all ranks together, and gain no more than what is waited for: a
 * placement that does not fit with all ranks, or could not be worth it, is not planned in groups.
 */
static zr_status_t plan_groups(search_t *search) {
    const zr_run_ask_t *ask = search->ask;
    const size_t n = search->rows.n;
    if (!ask->group_open || ask->run.hardware.ranks_per_node == 1 ||
        ask->run.n_ranks <= ask->run.hardware.ranks_per_node || least_group(ask) == 1)
        return ZR_OK;
    choose(&search->rows);
    const double of_one_group = search->rows.all[search->rows.fastest].tokens_per_s;
    for (size_t i = 0; i < n; i++) {
        if (!is_first(ask, &search->rows.all[i]) || !search->rows.all[i].one.fits)
            continue;
        placement_t placement = placement_at(search, i, n);
        zr_run_row_t row = {.stage = placement.best->stage,
                            .optimizer = placement.best->optimizer,
                            .params = placement.best->params,
                            .recompute = placement.best->recompute,
                            .micro_batch = placement.best->micro_batch};
        int least = least_worth(search, &placement, of_one_group);
        if (least > 0)
            ZR_TRY(add_chain(search, &row, least));
        if (search->n_chains == GROUPS_AT_ONCE)
            ZR_TRY(plan_and_choose(search));
    }
    ZR_TRY(plan_and_choose(search));
    search->rows.has_groups = search->rows.n > n;
    return ZR_OK;
}

/* ---- plans in full ----------------------------------------------------------------------------
 */

typedef struct confirmation {
    search_t *search;
    size_t *rows; /* [n] */
    size_t n;
} confirmation_t;

static zr_status_t confirm_row(void *context, size_t index, const zr_log_t *log) {
    const confirmation_t *confirmation = context;
    const search_t *search = confirmation->search;
    zr_run_row_t *row = &search->rows.all[confirmation->rows[index]], own = *row;
    search_t one = *search;
    one.log = log;
    one.walks = true;
    own.tokens_per_s = 0;
    ZR_TRY(plan_way(&one, &own));
    *row = own;
    return ZR_OK;
}

/* What the choice rests on: the one that is recommended; where none fits, the nearest. */
static bool decides(const zr_run_rows_t *rows, size_t i) {
    return i == (rows->n_fit == 0 ? rows->nearest : rows->recommended);
}

/* Plan with all blocks what decides, until nothing that was told from fewer does. */
static zr_status_t confirm(search_t *search) {
    zr_run_rows_t *rows = &search->rows;
    confirmation_t confirmation = {.search = search,
                                   .rows = malloc(rows->n * sizeof(*confirmation.rows))};
    zr_status_t status = ZR_OK;
    if (confirmation.rows == NULL)
        return zr_fail(search->log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(rows->n, "plan").text);
    do {
        choose(rows);
        confirmation.n = 0;
        for (size_t i = 0; i < rows->n; i++)
            if (!rows->all[i].is_exact && decides(rows, i))
                confirmation.rows[confirmation.n++] = i;
        zr_run_jobs_t jobs = {.n = confirmation.n,
                              .run = confirm_row,
                              .context = &confirmation,
                              .n_threads = search->ask->n_threads};
        status = zr_run_jobs(&jobs, search->log);
        rows->n_tried += confirmation.n;
    } while (status == ZR_OK && confirmation.n > 0);
    free(confirmation.rows);
    return status;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* How many times as fast the plan would be whose messages between nodes lose some bits: for the
 * reader to decide. */
static zr_status_t propose_messages(search_t *search) {
    zr_run_rows_t *rows = &search->rows;
    const zr_run_row_t *row = &rows->all[rows->recommended];
    const zr_run_ask_t *ask = search->ask;
    zr_run_request_t run = zr_run_row_request(ask, row);
    zr_run_fit_t one;
    if (rows->n_fit == 0 || ask->run.n_ranks <= ask->run.hardware.ranks_per_node ||
        run.config.gather_encoding != ZR_MESSAGE_PLAIN ||
        run.config.reduce_encoding != ZR_MESSAGE_PLAIN || run.config.reduce != ZR_REDUCE_AUTO)
        return ZR_OK;
    run.config.gather_encoding = run.config.stage > 0 ? ZR_MESSAGE_8BIT : ZR_MESSAGE_PLAIN;
    run.config.reduce_encoding = ZR_MESSAGE_4BIT;
    run.plans = search->plans;
    if (!folds(search) || !zr_run_fold(&run, &one))
        ZR_TRY(zr_run_fit(&run, search->log, &one));
    if (one.fits)
        rows->encoded_gain = row->one.plan.step_seconds / one.plan.step_seconds;
    return ZR_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static zr_status_t plan_stages(search_t *search) {
    const zr_run_ask_t *ask = search->ask;
    for (int stage = ask->least_stage; stage <= 3; stage++)
        if (ask->stage_open || stage == ask->run.config.stage)
            ZR_TRY(list_placements(
                search,
                (zr_run_row_t){.group_size = ask->run.config.shard_group_size, .stage = stage}));
    ZR_TRY(plan_chains(search));
    if (search->rows.n == 0)
        return zr_fail(search->log, ZR_ERR_ARGUMENT,
                       "nothing to plan: the request needs drives, but none were named for this "
                       "machine; add --nvme-path DIR");
    return plan_groups(search);
}

zr_status_t zr_run_search(const zr_run_ask_t *ask, const zr_log_t *log, zr_run_rows_t *rows_p) {
    progress_t progress = {.lock = PTHREAD_MUTEX_INITIALIZER};
    search_t search = {.ask = ask,
                       .log = log,
                       .plans = zr_plan_cache_create(ZR_RUN_KEPT_BYTES),
                       .progress = &progress};
    zr_status_t status = plan_stages(&search);
    ZR_THEN(status, confirm(&search));
    choose(&search.rows);
    ZR_THEN(status, propose_messages(&search));
    zr_plan_cache_destroy(&search.plans);
    pthread_mutex_destroy(&progress.lock);
    if (status != ZR_OK) {
        zr_run_rows_free(&search.rows);
        return status;
    }
    *rows_p = search.rows;
    return ZR_OK;
}

void zr_run_rows_free(zr_run_rows_t *rows) {
    free(rows->all);
    *rows = (zr_run_rows_t){0};
}
