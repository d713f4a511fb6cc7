/*
 * The problem: variables are the shares, and the seconds of the two parts of a step: in the first,
 * forward and backward, links and drives work beside compute; in the second, the update, beside
 * each other. Each part takes as long as what is slowest in it. Updates within backward are of the
 * first.
 */
#include "zero/plan/shares_internal.h"

#include <math.h>

#include "zero/plan/linear_internal.h"

/* Variables behind the shares. */
#define TRAIN_SECONDS (ZR_N_KEPT * ZR_N_TIERS)
#define UPDATE_SECONDS (TRAIN_SECONDS + 1)
#define N_VARIABLES (UPDATE_SECONDS + 1)

/* Of what is hidden in the longest: what is moved in vain is worth a little, too. */
#define HIDDEN_COST 0.02
/* Seconds for a byte that lies a tier lower than need be, in parts of what moving it takes. */
#define LOWER_COST 1e-4

typedef struct problem {
    const zr_shares_facts_t *facts;
    zr_linear_t linear;
    double scale_bytes, scale_seconds;
} problem_t;

static size_t variable(zr_kept_t kept, zr_tier_t tier) {
    return (size_t)kept * ZR_N_TIERS + (size_t)tier;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What a tier holds for a variable of 1. Gradients that are not open go with their state. */
static double bytes_of(const zr_shares_facts_t *facts, zr_kept_t kept, zr_tier_t at,
                       zr_tier_t tier) {
    double bytes = at == tier ? facts->bytes[kept] : 0;
    double grads = facts->bytes[ZR_KEPT_GRADS];
    if (kept != ZR_KEPT_STATE || facts->is_open[ZR_KEPT_GRADS])
        return bytes;
    double up = tier == ZR_TIER_DEVICE ? grads : 0;
    return bytes + (at == ZR_TIER_DEVICE ? up : facts->offloaded_grads[tier] * grads);
}

double zr_shares_bytes(const zr_shares_facts_t *facts, const zr_shares_t *shares, zr_tier_t tier) {
    double bytes = 0;
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        for (int at = 0; at < ZR_N_TIERS; at++)
            if (kept < ZR_KEPT_GRADS || facts->is_open[kept])
                bytes +=
                    shares->of[kept][at] * bytes_of(facts, (zr_kept_t)kept, (zr_tier_t)at, tier);
    return bytes;
}

static void add_bytes(const problem_t *problem, zr_tier_t tier, zr_linear_row_t *row) {
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        for (int at = 0; at < ZR_N_TIERS; at++)
            row->factors[variable((zr_kept_t)kept, (zr_tier_t)at)] +=
                bytes_of(problem->facts, (zr_kept_t)kept, (zr_tier_t)at, tier) /
                problem->scale_bytes;
}

static void limit_tiers(problem_t *problem) {
    const zr_shares_facts_t *facts = problem->facts;
    for (int tier = 0; tier < ZR_N_TIERS; tier++) {
        double left = (facts->budget[tier] - facts->rest[tier]) / problem->scale_bytes;
        if (isfinite(left))
            add_bytes(problem, (zr_tier_t)tier, zr_linear_add(&problem->linear, left, false));
    }
    double both = facts->both - facts->rest[ZR_TIER_DEVICE] - facts->rest[ZR_TIER_HOST];
    if (isfinite(both)) {
        zr_linear_row_t *row = zr_linear_add(&problem->linear, both / problem->scale_bytes, false);
        add_bytes(problem, ZR_TIER_DEVICE, row);
        add_bytes(problem, ZR_TIER_HOST, row);
    }
}

/* ---- what may be ----------------------------------------------------------------------------- */

static void hold(problem_t *problem, zr_kept_t kept, zr_tier_t tier, double share) {
    zr_linear_row_t *row = zr_linear_add(&problem->linear, share, true);
    row->factors[variable(kept, tier)] = 1;
}

static void limit_shares(problem_t *problem) {
    const zr_shares_facts_t *facts = problem->facts;
    for (int kept = 0; kept < ZR_N_KEPT; kept++) {
        if (!facts->is_open[kept] && kept == ZR_KEPT_INPUTS)
            continue; /* they have no bytes */
        if (!facts->is_open[kept]) {
            for (int tier = 0; tier < ZR_N_TIERS; tier++)
                hold(problem, (zr_kept_t)kept, (zr_tier_t)tier, facts->given.of[kept][tier]);
            continue;
        }
        zr_linear_row_t *all = zr_linear_add(&problem->linear, 1, true);
        for (int tier = 0; tier < ZR_N_TIERS; tier++)
            all->factors[variable((zr_kept_t)kept, (zr_tier_t)tier)] = 1;
        if (!facts->has_drives)
            hold(problem, (zr_kept_t)kept, ZR_TIER_NVME, 0);
    }
    if (facts->is_open[ZR_KEPT_PARAMS] && facts->params_leave_device)
        hold(problem, ZR_KEPT_PARAMS, ZR_TIER_DEVICE, 0);
    if (facts->is_open[ZR_KEPT_INPUTS] && facts->n_input_reads > 1)
        hold(problem, ZR_KEPT_INPUTS, ZR_TIER_DEVICE, 0);
    if (facts->is_open[ZR_KEPT_GRADS]) { /* those of state that is there are there */
        zr_linear_row_t *row = zr_linear_add(&problem->linear, 0, false);
        row->factors[variable(ZR_KEPT_STATE, ZR_TIER_DEVICE)] = 1;
        row->factors[variable(ZR_KEPT_GRADS, ZR_TIER_DEVICE)] = -1;
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

/* What works by itself, in either part of a step. */
typedef enum worker {
    TO_DEVICE,
    TO_HOST,
    DRIVES,
    UPDATE_THERE, /* on the device */
    UPDATE_HERE,  /* on the host */
    N_WORKERS
} worker_t;

typedef struct seconds {
    double train[N_WORKERS], update[N_WORKERS];
} seconds_t;

/* Seconds for each byte, each way, and both at once. */
typedef struct rates {
    double to_device, to_host, read, write, swap, update_there, update_here;
} rates_t;

static rates_t rates_of(const zr_hardware_t *hardware) {
    bool is_one = hardware->kind == ZR_HARDWARE_HOST;
    double read = 1 / hardware->disk_read.bytes_per_s, write = 1 / hardware->disk_write.bytes_per_s;
    const zr_processor_t *host = is_one ? &hardware->device : &hardware->host;
    return (rates_t){.to_device = is_one ? 0 : 1 / hardware->to_device.bytes_per_s,
                     .to_host = is_one ? 0 : 1 / hardware->to_host.bytes_per_s,
                     .read = read,
                     .write = write,
                     .swap = fmax(fmax(read, write), 2 / hardware->disk_both_bytes_per_s),
                     .update_there = 2 / hardware->device.update_bytes_per_s,
                     .update_here = 2 / host->update_bytes_per_s};
}

/* What all of a kind takes in a tier. */
static seconds_t seconds_of(const zr_shares_facts_t *facts, zr_kept_t kept, zr_tier_t tier) {
    rates_t rates = rates_of(facts->hardware);
    seconds_t seconds = {.train = {0}};
    double bytes = facts->bytes[kept], k = facts->n_micro_batches, reads = facts->n_param_reads;
    double state_bytes = bytes / facts->n_sides;
    bool is_down = tier != ZR_TIER_DEVICE, on_drives = tier == ZR_TIER_NVME;
    switch (kept) {
    case ZR_KEPT_STATE:
        seconds.update[UPDATE_THERE] = is_down ? 0 : state_bytes * rates.update_there;
        seconds.update[UPDATE_HERE] = is_down ? state_bytes * rates.update_here : 0;
        seconds.update[DRIVES] = on_drives ? state_bytes * rates.swap : 0;
        break;
    case ZR_KEPT_PARAMS:
        seconds.train[TO_DEVICE] = is_down ? reads * bytes * rates.to_device : 0;
        seconds.train[DRIVES] = on_drives ? reads * bytes * rates.read : 0;
        seconds.update[DRIVES] = on_drives ? bytes * rates.write : 0;
        break;
    case ZR_KEPT_INPUTS:
        seconds.train[TO_HOST] =
            is_down ? k * fmax(facts->n_input_reads - 1, 1) * bytes * rates.to_host : 0;
        seconds.train[TO_DEVICE] = is_down ? k * facts->n_input_reads * bytes * rates.to_device : 0;
        seconds.train[DRIVES] = on_drives ? k * facts->n_input_reads * bytes * rates.swap : 0;
        return seconds;
    default:
        seconds.train[TO_HOST] = is_down ? k * bytes * rates.to_host : 0;
        seconds.train[TO_DEVICE] = is_down ? (k - 1) * bytes * rates.to_device : 0;
        seconds.train[DRIVES] = on_drives ? bytes * (k * rates.write + (k - 1) * rates.read) : 0;
        seconds.update[DRIVES] = on_drives ? bytes * rates.read : 0;
    }
    for (int worker = 0; worker < N_WORKERS && facts->updates_in_backward; worker++) {
        seconds.train[worker] += seconds.update[worker];
        seconds.update[worker] = 0;
    }
    return seconds;
}

static double sum_of(const seconds_t *seconds) {
    double sum = 0;
    for (int worker = 0; worker < N_WORKERS; worker++)
        sum += seconds->train[worker] + seconds->update[worker];
    return sum;
}

double zr_shares_seconds(const zr_shares_facts_t *facts, const zr_shares_t *shares) {
    double train = facts->compute_seconds, update = 0;
    seconds_t sum = {.train = {0}};
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        for (int tier = 0; tier < ZR_N_TIERS; tier++) {
            seconds_t all = seconds_of(facts, (zr_kept_t)kept, (zr_tier_t)tier);
            for (int worker = 0; worker < N_WORKERS; worker++) {
                sum.train[worker] += shares->of[kept][tier] * all.train[worker];
                sum.update[worker] += shares->of[kept][tier] * all.update[worker];
            }
        }
    for (int worker = 0; worker < N_WORKERS; worker++) {
        train = fmax(train, sum.train[worker]);
        update = fmax(update, sum.update[worker]);
    }
    return train + update;
}

/* Each part of the step is as long as each worker works in it. */
static void count_seconds(problem_t *problem) {
    for (int worker = 0; worker < N_WORKERS; worker++)
        for (int part = 0; part < 2; part++) {
            zr_linear_row_t row = {.limit = 0};
            double most = 0;
            for (int kept = 0; kept < ZR_N_KEPT; kept++)
                for (int tier = 0; tier < ZR_N_TIERS; tier++) {
                    seconds_t seconds =
                        seconds_of(problem->facts, (zr_kept_t)kept, (zr_tier_t)tier);
                    double own = part == 0 ? seconds.train[worker] : seconds.update[worker];
                    row.factors[variable((zr_kept_t)kept, (zr_tier_t)tier)] =
                        own / problem->scale_seconds;
                    most = fmax(most, own);
                }
            row.factors[part == 0 ? TRAIN_SECONDS : UPDATE_SECONDS] = -1;
            if (most > 0)
                *zr_linear_add(&problem->linear, 0, false) = row;
        }
    zr_linear_row_t *compute = zr_linear_add(
        &problem->linear, -problem->facts->compute_seconds / problem->scale_seconds, false);
    compute->factors[TRAIN_SECONDS] = -1;
}

/* ---- what is wanted -------------------------------------------------------------------------- */

static void want_fastest(problem_t *problem) {
    zr_linear_t *linear = &problem->linear;
    double all = 0;
    count_seconds(problem);
    linear->costs[TRAIN_SECONDS] = linear->costs[UPDATE_SECONDS] = 1;
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        all += problem->facts->bytes[kept];
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        for (int tier = 0; tier < ZR_N_TIERS; tier++) {
            seconds_t seconds = seconds_of(problem->facts, (zr_kept_t)kept, (zr_tier_t)tier);
            linear->costs[variable((zr_kept_t)kept, (zr_tier_t)tier)] =
                HIDDEN_COST * sum_of(&seconds) / problem->scale_seconds +
                LOWER_COST * tier * problem->facts->bytes[kept] / (all + 1);
        }
}

/* In turn: what weighs more is settled first. */
static void want_order(problem_t *problem, bool params_first) {
    const double up[ZR_N_KEPT] = {1, 1e3, 1e-3, 1e-2}, down[ZR_N_KEPT] = {1, 1e-3, 1e-3, 1e-2};
    const double of_grads[ZR_N_TIERS] = {1, 0, 2};
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        for (int tier = 0; tier < ZR_N_TIERS; tier++) {
            double weight = params_first ? up[kept] : down[kept];
            /* Gradients would rather be in host memory than on the device, and there than on
             * drives. */
            double height = kept == ZR_KEPT_GRADS ? of_grads[tier] : tier;
            problem->linear.costs[variable((zr_kept_t)kept, (zr_tier_t)tier)] = weight * height;
        }
}

static double scale_of(const zr_shares_facts_t *facts) {
    double most = facts->compute_seconds;
    for (int kept = 0; kept < ZR_N_KEPT; kept++) {
        seconds_t seconds = seconds_of(facts, (zr_kept_t)kept, ZR_TIER_NVME);
        most = fmax(most, sum_of(&seconds));
    }
    return most > 0 ? most : 1;
}

/* grads_on_drives: gradients may go there. */
static bool find(const zr_shares_facts_t *facts, zr_shares_aim_t aim, bool grads_on_drives,
                 zr_shares_t *shares_p) {
    problem_t problem = {.facts = facts, .scale_bytes = 1, .scale_seconds = scale_of(facts)};
    double x[N_VARIABLES];
    problem.linear.n_variables = N_VARIABLES;
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        problem.scale_bytes += facts->bytes[kept];
    limit_tiers(&problem);
    limit_shares(&problem);
    if (facts->is_open[ZR_KEPT_GRADS] && aim == ZR_SHARES_GRADS_UP)
        hold(&problem, ZR_KEPT_GRADS, ZR_TIER_HOST, 0);
    if (facts->is_open[ZR_KEPT_GRADS] && !grads_on_drives)
        hold(&problem, ZR_KEPT_GRADS, ZR_TIER_NVME, 0);
    if (aim == ZR_SHARES_FASTEST)
        want_fastest(&problem);
    else
        want_order(&problem, aim != ZR_SHARES_DOWNMOST);
    if (!zr_linear_solve(&problem.linear, x))
        return false;
    for (int kept = 0; kept < ZR_N_KEPT; kept++)
        for (int tier = 0; tier < ZR_N_TIERS; tier++)
            shares_p->of[kept][tier] = fmin(1, x[variable((zr_kept_t)kept, (zr_tier_t)tier)]);
    return true;
}

/* A byte of gradients on drives takes no less than a byte of state there: they go at last. */
bool zr_shares_find(const zr_shares_facts_t *facts, zr_shares_aim_t aim, zr_shares_t *shares_p) {
    return find(facts, aim, false, shares_p) ||
           (facts->has_drives && aim != ZR_SHARES_GRADS_UP && find(facts, aim, true, shares_p));
}
