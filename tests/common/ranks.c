/* Ranks as threads: see ranks.h. */
#include "tests/common/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "tests/common/late_device.h"
#include "tests/common/one_thing.h"

/* A stream's thread has messages, too. */
static pthread_mutex_t messages = PTHREAD_MUTEX_INITIALIZER;

static void keep_error(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    test_ranks_t *ranks = context;
    pthread_mutex_lock(&messages);
    if (level == ZR_LOG_ERROR && rank >= 0) {
        snprintf(ranks->last_error[rank], sizeof(ranks->last_error[0]), "%s", message);
        ranks->n_errors[rank]++;
    }
    if (!ranks->quiet)
        fprintf(stderr, "rank %d: %s: %s\n", rank, zr_log_level_name(level), message);
    pthread_mutex_unlock(&messages);
}

static zr_status_t run_rank(zr_rank_t *rank) {
    test_ranks_t *ranks = rank->context;
    test_rank_t own = {.rank = rank->rank,
                       .comm = rank->comm,
                       .device = rank->device,
                       .log = rank->log,
                       .context = ranks->context};
    ranks->has_run[rank->rank] = true;
    ranks->status[rank->rank] = ranks->run(&own);
    return ranks->status[rank->rank];
}

void test_run_ranks(test_ranks_t *ranks) {
    zr_run_options_t options = zr_run_options_default();
    const char *name = ranks->device_name;
    options.log =
        (zr_log_t){.sink = keep_error, .context = ranks, .level = ZR_LOG_WARNING, .rank = -1};
    options.device_options.n_threads = 1;
    options.device_options.concurrent = ranks->concurrent;
    options.comm = "threads";
    if (name != NULL)
        options.device = name;
    if (name != NULL && strcmp(name, "nccl") == 0) { /* a GPU each */
        options.device = "cuda";
        options.comm = "nccl";
    }
    if (ranks->late)
        options.device_backend = &late_device_backend;
    memset(ranks->has_run, 0, sizeof(ranks->has_run));
    zr_status_t status = zr_run_ranks(NULL, ranks->n_ranks, run_rank, ranks, &options);
    for (int r = 0; r < ranks->n_ranks; r++)
        if (!ranks->has_run[r])
            ranks->status[r] = status;
}
