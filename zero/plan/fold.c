/*
 * A plan of a model with many equal blocks, from some of the same model with fewer.
 *
 * What a run keeps, moves and takes grows by the same amount with each block once buffers that have
 * a size of their own are full, over whole periods. So short plans, with a period more each, say
 * how much that is, if no bounded buffer grew between the last two. What is live is exact. Times
 * are the run's own: what the short ones asked of their machines is asked again as often as the run
 * would (zr_sim_tape_extend). What is mapped is not told, since each class's granules depend on all
 * that was before, nor are tables. Whether a run fits is told only where that makes no difference.
 */
#include <math.h>
#include <stdio.h>

#include "allocator/replay.h"
#include "kernels/simulation.h"
#include "zero/plan/fit_internal.h"
#include "zero/plan/watch_internal.h"

#define LEAST_BLOCKS 8 /* of a short plan, besides a period */
#define LEAST_SAVING 4 /* blocks to those of the longest short plan */
/* And 0.1%: a run with so much left fits. What is mapped but not live is half a granule of each
 * class, 50 MiB in models of 10,000 layers. */
#define ROOM_BYTES ((size_t)128 << 20)

/* What can be planned by fewer blocks. Other placements count elements from one end of the model.
 */
static bool can_be_folded(const zr_run_request_t *request) {
    const zr_offload_options_t *state = &request->config.offload_optimizer;
    const zr_offload_param_options_t *params = &request->config.offload_param;
    bool is_whole = state->ratio == 1 && state->max_in_cpu_elems == 0 && params->ratio == 1 &&
                    params->max_in_cpu_elems == 0 && state->gradients_ratio == 1 &&
                    state->gradients_in_cpu_elems == 0;
    const zr_run_evaluations_t *evaluations = &request->evaluations;
    /* Of how many buffers there are then budgets decide, which short plans do not have. */
    bool has_own_buffers =
        !zr_run_opens_buffers(request) || request->config.update_at != ZR_UPDATE_AT_BACKWARD;
    return is_whole && has_own_buffers && request->model.n_repeated != NULL &&
           request->lengths == NULL && !request->saves &&
           evaluations->n_batches + evaluations->n_rest == 0 && request->spans == NULL &&
           request->trace == NULL;
}

static zr_status_t plan_blocks(const zr_run_request_t *request, size_t n_blocks,
                               zr_sim_tape_t *tape, zr_run_plan_t *plan_p) {
    zr_run_request_t own = zr_run_without_limits(request);
    own.tape = tape;
    own.model.repeat(own.model.context, n_blocks);
    return zr_run_plan(&own, plan_p);
}

/* All that grows does so at the peak of what is live, which a longer run has at the same moment:
 * none of another moment can overtake it. */
static bool grow_at_the_peak(const zr_run_plan_t *a, const zr_run_plan_t *b) {
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        size_t of_tags = 0;
        for (int tag = 0; tag < ZR_N_TAGS; tag++)
            of_tags += b->tiers[tier].by_tag[tag].peak - a->tiers[tier].by_tag[tag].peak;
        if (of_tags != b->tiers[tier].live.peak - a->tiers[tier].live.peak)
            return false;
    }
    return true;
}

/* Nothing that has a size of its own has grown. */
static bool are_full(const zr_run_plan_t *a, const zr_run_plan_t *b) {
    static const zr_tag_t bounded[] = {ZR_TAG_GATHERED_PARAMETERS, ZR_TAG_GRADIENT_BUCKETS,
                                       ZR_TAG_STAGING};
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++)
        for (size_t i = 0; i < sizeof(bounded) / sizeof(bounded[0]); i++)
            if (a->tiers[tier].by_tag[bounded[i]].peak != b->tiers[tier].by_tag[bounded[i]].peak)
                return false;
    return true;
}

static void go_on_counts(const void *a, void *b, size_t size_bytes, double times) {
    const size_t *before = a;
    size_t *now = b;
    for (size_t i = 0; i < size_bytes / sizeof(*now); i++) {
        double value = (double)now[i] + times * ((double)now[i] - (double)before[i]);
        if (now[i] != before[i])
            now[i] = value > 0 ? (size_t)(value + 0.5) : 0;
    }
}

static void go_on_seconds(const void *a, void *b, size_t size_bytes, double times) {
    const double *before = a;
    double *now = b;
    for (size_t i = 0; i < size_bytes / sizeof(*now); i++) {
        double value = now[i] + times * (now[i] - before[i]);
        now[i] = value > 0 ? value : 0;
    }
}

#define GO_ON(how, a, b, member, times) how(&(a)->member, &(b)->member, sizeof((b)->member), times)

/* From a to b, and as many times as far again. */
static void go_on(const zr_run_plan_t *a, zr_run_plan_t *b, double times) {
    size_t holes[2];
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++)
        holes[tier] = b->tiers[tier].reserved.peak - b->tiers[tier].live.peak;
    GO_ON(go_on_counts, a, b, tiers, times);
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) /* granules would add up */
        b->tiers[tier].reserved.peak = b->tiers[tier].live.peak + holes[tier];
    GO_ON(go_on_counts, a, b, metadata, times);
    GO_ON(go_on_counts, a, b, nvme_bytes, times);
    GO_ON(go_on_counts, a, b, nvme_live_bytes, times);
    GO_ON(go_on_counts, a, b, nvme_by_tag, times);
    GO_ON(go_on_counts, a, b, size, times);
    GO_ON(go_on_seconds, a, b, runtime, times);
}

static bool has_room(size_t needed_bytes, size_t there_bytes, size_t part) {
    size_t there = there_bytes - there_bytes / part;
    return there > ROOM_BYTES && needed_bytes < there - ROOM_BYTES;
}

/* Tables of a longer run, which count in its process, are known about right. */
static bool fits_surely(const zr_run_request_t *request, const zr_run_fit_t *one) {
    size_t process = zr_config_rank_memory(&request->config);
    return has_room(one->lack.needed_bytes, one->lack.there_bytes, 1000) &&
           (process == ZR_CONFIG_NO_BUDGET ||
            has_room(zr_run_memory_needed(request, &one->plan), process, 100));
}

/* By what is live, which is all there has to be room for. */
static bool lacks_surely(const zr_run_request_t *request, const zr_run_plan_t *plan) {
    zr_run_plan_t live = *plan;
    live.metadata = (zr_byte_count_t){0};
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++)
        live.tiers[tier].reserved = live.tiers[tier].live;
    zr_run_lack_t lack = zr_run_find_lack(request, &live);
    return lack.needed_bytes > lack.there_bytes;
}

/* With whatever number of buffers, which are in host memory. */
static bool lacks_device_surely(const zr_run_request_t *request, const zr_run_plan_t *plan) {
    return request->hardware.kind != ZR_HARDWARE_HOST &&
           plan->tiers[ZR_TIER_DEVICE].live.peak > zr_run_limit(request, ZR_TIER_DEVICE);
}

/* A longer run's step, on a tape that is asked again. */
typedef struct long_step {
    zr_sim_clock_t *clock;
    zr_run_watch_t *watch;
    double begin;
    zr_run_plan_t *plan;
    bool has_failed;
} long_step_t;

static void note_mark(void *context, uint32_t mark) {
    long_step_t *step = context;
    if (mark == ZR_RUN_MARK_END) {
        step->plan->step_seconds = zr_sim_clock_now(step->clock) - step->begin;
        step->has_failed |= !zr_run_watch_end(step->watch, &step->plan->times);
        return;
    }
    step->begin = zr_sim_clock_now(step->clock);
    zr_run_watch_begin(step->watch, mark == ZR_RUN_MARK_LAST_STEP);
}

typedef struct few {
    zr_run_plan_t plans[3]; /* each with one period more */
    zr_sim_tape_t *tapes[3];
    size_t n_more; /* periods from the last of them to the run */
} few_t;

static bool make_tapes(few_t *few) {
    for (int i = 0; i < 3; i++) {
        few->tapes[i] = zr_sim_tape_create();
        if (few->tapes[i] == NULL)
            return false;
    }
    return true;
}

static void clear(few_t *few) {
    for (int i = 0; i < 3; i++)
        zr_sim_tape_destroy(&few->tapes[i]);
}

static bool ask_on_clock(const few_t *few, zr_sim_clock_t *clock, zr_run_plan_t *plan) {
    long_step_t step = {.clock = clock, .watch = zr_run_watch_create(clock, NULL), .plan = plan};
    bool is_told = step.watch != NULL &&
                   zr_sim_tape_extend((const zr_sim_tape_t *const *)few->tapes, few->n_more, clock,
                                      note_mark, &step) &&
                   !step.has_failed;
    zr_run_watch_destroy(&step.watch);
    return is_told;
}

/* What the short runs asked of their machines, asked as often as the long one would. */
static bool ask_again(const few_t *few, zr_run_plan_t *plan) {
    zr_run_plan_t told = *plan;
    zr_sim_clock_t *clock = NULL;
    bool is_told =
        zr_sim_clock_create(&zr_run_nowhere, &clock) == ZR_OK && ask_on_clock(few, clock, &told);
    zr_sim_clock_destroy(&clock);
    if (is_told)
        *plan = told;
    return is_told;
}

/* Blocks of the shortest plan: its tape has what repeats in it, once at least. */
static size_t first_of(size_t n, size_t period) {
    size_t least = LEAST_BLOCKS + period;
    return n > least ? least + (n - least) % period : least;
}

/* Steps repeat after some blocks: as many as a ring has buffers, or a bucket takes. So the numbers
 * of blocks differ from each other, and from n, by whole periods. */
static bool plan_period(const zr_run_request_t *request, size_t n, size_t period, few_t *few) {
    size_t first = first_of(n, period);
    few->n_more = (n - first) / period - 2;
    for (size_t i = 0; i < 3; i++)
        if (plan_blocks(request, first + i * period, few->tapes[i], &few->plans[i]) != ZR_OK)
            return false;
    return are_full(&few->plans[1], &few->plans[2]) &&
           grow_at_the_peak(&few->plans[1], &few->plans[2]);
}

/* From the shortest that go on so; false: none do. */
static bool tell_from_few(const zr_run_request_t *request, size_t n, few_t *few,
                          zr_run_fit_t *one) {
    static const size_t periods[] = {6, 24, 120};
    for (size_t i = 0; i < sizeof(periods) / sizeof(periods[0]); i++) {
        if (LEAST_SAVING * (first_of(n, periods[i]) + 2 * periods[i]) > n)
            return false;
        if (!plan_period(request, n, periods[i], few))
            continue;
        one->plan = few->plans[2];
        if (ask_again(few, &one->plan)) {
            go_on(&few->plans[1], &one->plan, (double)few->n_more);
            return true;
        }
    }
    return false;
}

static bool tell(const zr_run_request_t *request, size_t n, zr_run_fit_t *one) {
    few_t few = {0};
    bool is_told = make_tapes(&few) && tell_from_few(request, n, &few, one);
    clear(&few);
    if (!is_told)
        return false;
    one->lack = zr_run_find_lack(request, &one->plan);
    one->fits = fits_surely(request, one);
    return true;
}

/* What is live stands for what is mapped. */
static void forget_what_is_not_told(const zr_run_request_t *request, zr_run_fit_t *one) {
    for (int tier = ZR_TIER_DEVICE; tier <= ZR_TIER_HOST; tier++) {
        one->plan.tiers[tier].reserved = one->plan.tiers[tier].live;
        one->plan.tiers[tier].pinned = (zr_byte_count_t){0};
    }
    one->plan.metadata = (zr_byte_count_t){0};
    one->lack = one->fits ? (zr_run_lack_t){0} : zr_run_find_lack(request, &one->plan);
}

bool zr_run_fold(const zr_run_request_t *request, zr_run_fit_t *one_p) {
    size_t n = can_be_folded(request) ? request->model.n_repeated(request->model.context) : 0;
    zr_run_fit_t one = {0};
    if (n < ZR_REPLAY_LONG_UNITS || !tell(request, n, &one))
        return false; /* the streams of shorter runs wait otherwise for memory */
    if (!one.fits && zr_run_opens(request)) {
        zr_run_request_t least = *request;
        zr_run_set_least(&least);
        if (!tell(&least, n, &one) || one.fits ||
            (zr_run_opens_buffers(request) && !lacks_device_surely(request, &one.plan)))
            return false; /* with fewer buffers it may fit */
    }
    if (!one.fits && !lacks_surely(request, &one.plan))
        return false;
    forget_what_is_not_told(request, &one);
    if (!one.fits)
        snprintf(one.message, sizeof(one.message), "%s: %s needed, %s available",
                 zr_run_lack_name(&one.lack), zr_size_text(one.lack.needed_bytes).text,
                 zr_size_text(one.lack.there_bytes).text);
    *one_p = one;
    return true;
}
