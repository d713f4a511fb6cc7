/* Choosing the steps that are simulated. */
#include "zero/plan/steps_internal.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_STEPS 3 /* are each unlike the one before, whatever their lengths */
/* Micro-batches that are asked for their lengths. Others are taken to be the longest there can be.
 */
#define MOST_LOOKED_AT ((size_t)1 << 20)
/* Steps that others are compared with, of micro-batches together. */
#define MOST_COVERING ((size_t)256)

bool zr_run_steps_create(const zr_run_request_t *request, size_t n_blocks,
                         zr_run_steps_t *steps_p) {
    size_t n = request->config.grad_accum;
    *steps_p = (zr_run_steps_t){.request = request, .n_blocks = n_blocks};
    if (request->lengths == NULL)
        return true;
    steps_p->now = calloc(3 * n, sizeof(*steps_p->now));
    steps_p->reach = calloc(n, sizeof(*steps_p->reach));
    bool are_together = zr_config_n_together(&request->config) > 1;
    if (are_together)
        steps_p->covering = calloc(MOST_COVERING * n, sizeof(*steps_p->covering));
    if (steps_p->now == NULL || steps_p->reach == NULL ||
        (are_together && steps_p->covering == NULL))
        return false;
    steps_p->left_out = steps_p->now + n;
    steps_p->seen = steps_p->now + 2 * n;
    return true;
}

void zr_run_steps_clear(zr_run_steps_t *steps) {
    free(steps->now);
    free(steps->reach);
    free(steps->covering);
    *steps = (zr_run_steps_t){0};
}

size_t zr_run_steps_length(const zr_run_steps_t *steps, size_t micro_batch) {
    return steps->now != NULL ? steps->now[micro_batch] : steps->request->seq;
}

/* ---- lengths --------------------------------------------------------------------------------- */

static void merge(uint32_t *lengths, const uint32_t *others, size_t n) {
    for (size_t i = 0; i < n; i++)
        lengths[i] = others[i] > lengths[i] ? others[i] : lengths[i];
}

static bool is_within(const uint32_t *lengths, const uint32_t *limits, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (lengths[i] > limits[i])
            return false;
    return true;
}

/* Of micro-batches together: whether a step that was simulated needs no less; always, where each is
 * by itself. */
static bool is_covered(const zr_run_steps_t *steps) {
    size_t n = steps->request->config.grad_accum;
    for (size_t i = 0; i < steps->n_covering; i++)
        if (is_within(steps->now, steps->covering + i * n, n))
            return true;
    return steps->covering == NULL;
}

/* Whether none can be longer than those that were left out. */
static bool are_longest(const zr_run_steps_t *steps) {
    for (size_t i = 0; i < steps->request->config.grad_accum; i++)
        if (steps->left_out[i] < steps->request->seq)
            return false;
    return true;
}

/* Where a micro-batch of the run stands in a step that is simulated. */
static size_t place_of(size_t micro_batch, size_t n_of_run, size_t n_places) {
    if (micro_batch + 1 == n_of_run)
        return n_places - 1;
    return micro_batch + 1 < n_places ? micro_batch : n_places - 2;
}

/* Those of the run's next step. False: it is not looked at, nor is any behind it, and all of them
 * are alike. */
static bool draw(zr_run_steps_t *steps) {
    const zr_run_lengths_t *lengths = steps->request->lengths;
    size_t n_places = steps->request->config.grad_accum, n = lengths->grad_accum;
    bool looks = steps->n_looked_at + n <= MOST_LOOKED_AT;
    for (size_t i = 0; i < n_places; i++)
        steps->now[i] = looks ? 0 : (uint32_t)steps->request->seq;
    for (size_t i = 0; looks && i < n; i++) {
        size_t own = lengths->of(lengths->context, lengths->first_step + steps->next, i);
        uint32_t *there = &steps->now[place_of(i, n, n_places)];
        *there = own > *there ? (uint32_t)own : *there;
    }
    return looks;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool is_reached(const zr_run_steps_t *steps) {
    for (size_t i = 0; i < steps->request->config.grad_accum; i++)
        if (steps->now[i] < steps->reach[i].least || steps->now[i] > steps->reach[i].most)
            return false;
    return true;
}

bool zr_run_steps_evaluate_after(const zr_run_request_t *request, size_t step) {
    const zr_run_evaluations_t *evaluations = &request->evaluations;
    return evaluations->n_batches + evaluations->n_rest > 0 && evaluations->every > 0 &&
           (request->n_before + step) % evaluations->every == 0;
}

/* Leave steps out for as long as all of their lengths can be reached; but for those that are
 * evaluated after, which gives back what steps before have left. */
static void leave_out(zr_run_steps_t *steps) {
    while (steps->next < steps->request->n_steps &&
           !zr_run_steps_evaluate_after(steps->request, steps->next + 1)) {
        bool looks = draw(steps);
        if (!is_reached(steps) || !is_covered(steps))
            return;
        if (steps->covering == NULL)
            merge(steps->left_out, steps->now, steps->request->config.grad_accum);
        steps->n_looked_at += steps->request->lengths->grad_accum;
        steps->next = looks ? steps->next + 1 : steps->request->n_steps;
    }
}

/* After enough work, the longest of all that are left are simulated, whatever is reached. */
static void leave_out_all(zr_run_steps_t *steps) {
    for (; steps->next < steps->request->n_steps && !are_longest(steps); steps->next++) {
        draw(steps);
        merge(steps->left_out, steps->now, steps->request->config.grad_accum);
        steps->n_looked_at += steps->request->lengths->grad_accum;
    }
    steps->next = steps->request->n_steps;
}

static bool is_enough(const zr_run_steps_t *steps) {
    const zr_run_request_t *request = steps->request;
    size_t n_each = request->config.grad_accum * steps->n_blocks;
    return steps->n_simulated >= FIRST_STEPS && steps->n_simulated * n_each >= ZR_RUN_MOST_BLOCKS;
}

static bool make_step(zr_run_steps_t *steps) {
    size_t n = steps->request->config.grad_accum;
    if (steps->next >= FIRST_STEPS)
        merge(steps->seen, steps->now, n);
    if (steps->next >= FIRST_STEPS && steps->covering != NULL && steps->n_covering < MOST_COVERING)
        memcpy(steps->covering + steps->n_covering++ * n, steps->now, n * sizeof(*steps->now));
    steps->n_simulated++;
    steps->n_done = steps->request->lengths->first_step + steps->next;
    return true;
}

static bool next_that_varies(zr_run_steps_t *steps, zr_allocator_t *allocator) {
    size_t n = steps->request->config.grad_accum;
    if (is_enough(steps))
        leave_out_all(steps);
    else if (steps->next >= FIRST_STEPS && zr_allocator_replay_reach(allocator, steps->reach, n))
        leave_out(steps);
    if (!is_within(steps->left_out, steps->seen, n)) {
        memcpy(steps->now, steps->left_out, n * sizeof(*steps->now));
        memset(steps->left_out, 0, n * sizeof(*steps->left_out));
        return make_step(steps);
    }
    if (steps->next >= steps->request->n_steps)
        return false;
    draw(steps);
    steps->n_looked_at += steps->request->lengths->grad_accum;
    steps->next++;
    return make_step(steps);
}

bool zr_run_steps_next(zr_run_steps_t *steps, zr_allocator_t *allocator) {
    if (steps->request->lengths != NULL)
        return next_that_varies(steps, allocator);
    if (steps->next >= steps->request->n_steps)
        return false;
    steps->n_done = ++steps->next;
    return true;
}

bool zr_run_steps_may_end(const zr_run_steps_t *steps) {
    return steps->request->lengths != NULL || steps->next == steps->request->n_steps;
}
