/* Ranks as threads: see ranks.h. */
#include "tests/common/ranks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/late_device.h"
#include "tests/common/one_thing.h"

typedef struct rank_thread {
    test_ranks_t *ranks;
    test_rank_t rank;
    pthread_t thread;
} rank_thread_t;

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

/* Ranks with a GPU each, whose data goes through NCCL. */
static bool is_nccl(const test_ranks_t *ranks) {
    return ranks->device_name != NULL && strcmp(ranks->device_name, "nccl") == 0;
}

static zr_status_t open_and_run(rank_thread_t *thread) {
    if (thread->ranks->late) {
        ZR_TRY(late_device_open(&thread->rank.device));
        return thread->ranks->run(&thread->rank);
    }
    zr_device_options_t options = zr_device_options_default();
    options.n_threads = 1;
    options.beside = thread->ranks->beside;
    options.log = thread->rank.log;
    const char *name = thread->ranks->device_name;
    if (is_nccl(thread->ranks)) {
        name = "cuda";
        options.index = thread->rank.rank;
    }
    ZR_TRY(zr_device_open(name != NULL ? name : "host", &options, &thread->rank.device));
    return thread->ranks->run(&thread->rank);
}

static void *rank_main(void *argument) {
    rank_thread_t *thread = argument;
    int rank = thread->rank.rank;
    zr_status_t status = open_and_run(thread);
    if (status != ZR_OK)
        zr_comm_abort(thread->rank.comm, thread->ranks->last_error[rank]);
    thread->ranks->status[rank] = status;
    zr_comm_destroy(&thread->rank.comm);
    if (thread->ranks->late)
        late_device_close(&thread->rank.device);
    else
        zr_device_close(&thread->rank.device);
    return NULL;
}

void test_run_ranks(test_ranks_t *ranks) {
    zr_comm_t *comms[TEST_MAX_RANKS];
    rank_thread_t threads[TEST_MAX_RANKS];
    zr_comm_options_t options = zr_comm_options_default();
    options.log =
        (zr_log_t){.sink = keep_error, .context = ranks, .level = ZR_LOG_WARNING, .rank = -1};
    zr_status_t status = is_nccl(ranks)
                             ? zr_comm_create_nccl_threads(ranks->n_ranks, &options, comms)
                             : zr_comm_create_threads(ranks->n_ranks, &options, comms);
    if (status != ZR_OK)
        abort();
    for (int r = 0; r < ranks->n_ranks; r++) {
        threads[r] = (rank_thread_t){
            .ranks = ranks, .rank = {.rank = r, .comm = comms[r], .context = ranks->context}};
        threads[r].rank.log = zr_log_with_rank(&options.log, r);
        if (pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]) != 0)
            abort();
    }
    for (int r = 0; r < ranks->n_ranks; r++)
        pthread_join(threads[r].thread, NULL);
}
