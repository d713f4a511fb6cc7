#include "examples/bench/alloc_pairs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "examples/bench/bench.h"

#define N_REPETITIONS 9
#define N_LOCKS 20000 /* twice as many as that, per repetition */
/* Steps until the plan is made, and one that follows it. */
#define N_LEARNING_STEPS 3

/* What is aimed at, in ns; 0: nothing. Reported beside the time, which decides nothing. */
static const double targets_ns[PAIRS_N_KINDS] = {50.0, 150.0, 0.0};
static const char *const names[PAIRS_N_KINDS] = {"planned", "irregular", "same_size"};
static const char *const summaries[PAIRS_N_KINDS] = {"a training step, by plan, with its marks",
                                                     "512 slots, 256 bytes to 1 MiB, 4 classes",
                                                     "64 KiB again and again"};

/* One kind: what is played, and on what. */
typedef struct player {
    calls_t calls;
    size_t n_plays; /* per repetition */
    zr_allocator_t *allocator;
    void **pointers; /* [n_slots] */
    size_t step;     /* of the last play */
    bench_times_t zero, malloc;
} player_t;

typedef struct pairs {
    zr_device_t *device;
    player_t players[PAIRS_N_KINDS];
    bench_times_t clock, locks;
} pairs_t;

/* ---- playing --------------------------------------------------------------------------------- */

static zr_status_t play(player_t *player) {
    zr_allocator_t *allocator = player->allocator;
    const call_t *call = player->calls.calls, *end = call + player->calls.n_calls;
    zr_allocation_request_t request = {.tier = ZR_TIER_DEVICE};
    player->step++;
    for (; call < end; call++) {
        if (call->kind == CALL_FREE) {
            zr_free(allocator, &player->pointers[call->slot], NULL);
        } else if (call->kind == CALL_ALLOCATE) {
            request.size_bytes = call->size_bytes;
            request.tag = (zr_tag_t)call->tag;
            request.lifetime = (zr_lifetime_t)call->lifetime;
            ZR_TRY(zr_allocate(allocator, &request, &player->pointers[call->slot]));
        } else {
            zr_mark_t *mark = &player->calls.marks[call->slot];
            mark->step = player->step;
            zr_allocator_mark(allocator, mark);
        }
    }
    return ZR_OK;
}

/* The same with malloc. */
static zr_status_t play_malloc(player_t *player, const zr_log_t *log) {
    const call_t *call = player->calls.calls, *end = call + player->calls.n_calls;
    bool has_memory = true;
    for (; call < end; call++) {
        if (call->kind == CALL_FREE) {
            free(player->pointers[call->slot]);
            player->pointers[call->slot] = NULL;
        } else if (call->kind == CALL_ALLOCATE) {
            void *volatile pointer = malloc(call->size_bytes); /* is not left out */
            player->pointers[call->slot] = pointer;
            has_memory = has_memory && pointer != NULL;
        }
    }
    return has_memory ? ZR_OK : zr_fail(log, ZR_ERR_MEMORY, "no memory for malloc to be timed");
}

/* ---- preparing ------------------------------------------------------------------------------- */

static zr_status_t prepare(player_t *player, zr_device_t *device, size_t n_pairs,
                           const zr_log_t *log) {
    zr_allocator_options_t options = zr_allocator_options_default();
    options.log = *log;
    player->n_plays = (n_pairs + player->calls.n_pairs - 1) / player->calls.n_pairs;
    player->pointers = calloc(player->calls.n_slots, sizeof(void *));
    if (player->pointers == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s",
                       zr_count_text(player->calls.n_slots, "pointer").text);
    return zr_allocator_create(device, &options, &player->allocator);
}

/* What the first plays need once is not timed: mapped memory, and for replay the plan. */
static zr_status_t warm_up(pairs_t *pairs, const zr_log_t *log) {
    player_t *planned = &pairs->players[PAIRS_PLANNED];
    ZR_TRY(zr_allocator_replay_start(planned->allocator, NULL));
    for (int i = 0; i < N_LEARNING_STEPS; i++)
        ZR_TRY(play(planned));
    for (int i = 0; i < PAIRS_N_KINDS; i++) {
        if (i != PAIRS_PLANNED)
            ZR_TRY(play(&pairs->players[i]));
        ZR_TRY(play_malloc(&pairs->players[i], log));
    }
    return ZR_OK;
}

static zr_status_t set_up(pairs_t *pairs, size_t n_pairs, const zr_log_t *log) {
    zr_device_options_t options = zr_device_options_default();
    options.log = *log;
    options.n_threads = 1;
    ZR_TRY(zr_device_open("host", &options, &pairs->device));
    player_t *players = pairs->players;
    ZR_TRY(calls_make_step(log, &players[PAIRS_PLANNED].calls));
    ZR_TRY(calls_make_irregular(n_pairs, log, &players[PAIRS_IRREGULAR].calls));
    ZR_TRY(calls_make_same_size(n_pairs, log, &players[PAIRS_SAME_SIZE].calls));
    for (int i = 0; i < PAIRS_N_KINDS; i++)
        ZR_TRY(prepare(&players[i], pairs->device, n_pairs, log));
    return warm_up(pairs, log);
}

static void tear_down(pairs_t *pairs) {
    for (int i = 0; i < PAIRS_N_KINDS; i++) {
        player_t *player = &pairs->players[i];
        zr_allocator_destroy(&player->allocator);
        free(player->pointers);
        calls_free(&player->calls);
        bench_times_free(&player->zero);
        bench_times_free(&player->malloc);
    }
    bench_times_free(&pairs->clock);
    bench_times_free(&pairs->locks);
    zr_device_close(&pairs->device);
}

/* ---- timing ---------------------------------------------------------------------------------- */

static zr_status_t time_clock(pairs_t *pairs, const zr_log_t *log) {
    double start = bench_seconds();
    return bench_times_add(&pairs->clock, bench_seconds() - start, log);
}

static zr_status_t time_locks(pairs_t *pairs, const zr_log_t *log) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    double start = bench_seconds();
    for (size_t i = 0; i < (size_t)2 * N_LOCKS; i++) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
    return bench_times_add(&pairs->locks, bench_seconds() - start, log);
}

static zr_status_t time_player(player_t *player, const zr_log_t *log) {
    double start = bench_seconds();
    for (size_t i = 0; i < player->n_plays; i++)
        ZR_TRY(play(player));
    ZR_TRY(bench_times_add(&player->zero, bench_seconds() - start, log));
    start = bench_seconds();
    for (size_t i = 0; i < player->n_plays; i++)
        ZR_TRY(play_malloc(player, log));
    return bench_times_add(&player->malloc, bench_seconds() - start, log);
}

/* Kinds take turns, so that a machine that is busy for a while slows all of them down. */
static zr_status_t repeat(pairs_t *pairs, const zr_log_t *log) {
    for (int i = 0; i < N_REPETITIONS; i++) {
        ZR_TRY(time_clock(pairs, log));
        ZR_TRY(time_locks(pairs, log));
        for (int kind = 0; kind < PAIRS_N_KINDS; kind++)
            ZR_TRY(time_player(&pairs->players[kind], log));
    }
    return ZR_OK;
}

/* Nothing else than the plan has served what was timed as planned. */
static zr_status_t check_planned(const player_t *planned, const zr_replay_statistics_t *before,
                                 const zr_log_t *log) {
    zr_replay_statistics_t after;
    zr_allocator_replay_statistics(planned->allocator, &after);
    size_t expected = planned->calls.n_pairs * planned->n_plays * N_REPETITIONS;
    size_t n_planned = after.n_planned - before->n_planned;
    if (before->has_plan && n_planned == expected)
        return ZR_OK;
    return zr_fail(
        log, ZR_ERR_STATE,
        "%zu of %zu allocations of the replayed steps were served by a plan; the time of "
        "planned pairs would not be theirs",
        n_planned, expected);
}

static double ns_per_pair(bench_times_t *times, double clock_ns, size_t n_pairs) {
    return (1e9 * bench_times_median(times) - clock_ns) / (double)n_pairs;
}

static zr_status_t measure(pairs_t *pairs, size_t n_pairs, const zr_log_t *log,
                           pairs_result_t *result) {
    zr_replay_statistics_t before;
    ZR_TRY(set_up(pairs, n_pairs, log));
    player_t *planned = &pairs->players[PAIRS_PLANNED];
    zr_allocator_replay_statistics(planned->allocator, &before);
    ZR_TRY(repeat(pairs, log));
    ZR_TRY(check_planned(planned, &before, log));
    *result = (pairs_result_t){.n_pairs = n_pairs, .n_repetitions = N_REPETITIONS};
    result->clock_ns = 1e9 * bench_times_median(&pairs->clock);
    result->locks_ns = ns_per_pair(&pairs->locks, result->clock_ns, N_LOCKS);
    for (int i = 0; i < PAIRS_N_KINDS; i++) {
        player_t *player = &pairs->players[i];
        size_t n = player->calls.n_pairs * player->n_plays;
        result->zero_ns[i] = ns_per_pair(&player->zero, result->clock_ns, n);
        result->malloc_ns[i] = ns_per_pair(&player->malloc, result->clock_ns, n);
    }
    return ZR_OK;
}

zr_status_t pairs_measure(size_t n_pairs, const zr_log_t *log, pairs_result_t *result_p) {
    pairs_t pairs = {0};
    zr_status_t status = measure(&pairs, n_pairs, log, result_p);
    tear_down(&pairs);
    return status;
}

/* ---- reporting ------------------------------------------------------------------------------- */

static json_t *describe_kind(const pairs_result_t *result, int kind) {
    json_t *object =
        JSON_OBJECT({"ns", json_number(result->zero_ns[kind])},
                    {"of_locks", json_number(result->zero_ns[kind] / result->locks_ns)},
                    {"malloc_ns", json_number(result->malloc_ns[kind])});
    if (targets_ns[kind] > 0.0)
        json_put(&object, "target_ns", json_number(targets_ns[kind]));
    json_put(&object, "of", json_string(summaries[kind]));
    return object;
}

json_t *pairs_describe(const pairs_result_t *result) {
    json_t *object = JSON_OBJECT(
        {"count", json_count(result->n_pairs)}, {"repetitions", json_count(result->n_repetitions)},
        {"clock_ns", json_number(result->clock_ns)}, {"locks_ns", json_number(result->locks_ns)});
    for (int i = 0; i < PAIRS_N_KINDS; i++)
        json_put(&object, names[i], describe_kind(result, i));
    return object;
}
