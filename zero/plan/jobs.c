/*
 * Jobs are handed out in order. Nothing that depends on which thread was faster gets out: messages
 * of threads are dropped, and the first job that failed is run once more by the caller, who then
 * has its message, and the last error of the thread. Should it go well then, as memory has become
 * free, the caller does those behind it as well.
 */
#include "zero/plan/jobs_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define MOST_THREADS 64

typedef struct crew {
    const zr_run_jobs_t *jobs;
    atomic_size_t next;
    atomic_size_t first_failed; /* of those that ended; n: none */
} crew_t;

static void drop_message(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank;
    (void)message;
}

static void note_failure(crew_t *crew, size_t job) {
    size_t first = atomic_load(&crew->first_failed);
    while (job < first && !atomic_compare_exchange_weak(&crew->first_failed, &first, job))
        ;
}

static void *work(void *context) {
    crew_t *crew = context;
    const zr_log_t silent = {.sink = drop_message, .level = ZR_LOG_ERROR, .rank = -1};
    size_t job;
    while ((job = atomic_fetch_add(&crew->next, 1)) < atomic_load(&crew->first_failed))
        if (crew->jobs->run(crew->jobs->context, job, &silent) != ZR_OK)
            note_failure(crew, job);
    return NULL;
}

static size_t count_threads(const zr_run_jobs_t *jobs) {
    cpu_set_t cores;
    size_t n = jobs->n_threads;
    if (n == 0)
        n = sched_getaffinity(0, sizeof(cores), &cores) == 0 ? (size_t)CPU_COUNT(&cores) : 1;
    n = n < jobs->n ? n : jobs->n;
    return n < MOST_THREADS ? n : MOST_THREADS;
}

zr_status_t zr_run_jobs(const zr_run_jobs_t *jobs, const zr_log_t *log) {
    crew_t crew = {.jobs = jobs};
    pthread_t threads[MOST_THREADS];
    size_t n_threads = count_threads(jobs), n_started = 0;
    atomic_init(&crew.next, 0);
    atomic_init(&crew.first_failed, jobs->n);
    while (n_started + 1 < n_threads && pthread_create(&threads[n_started], NULL, work, &crew) == 0)
        n_started++;
    work(&crew);
    for (size_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
    zr_status_t status = ZR_OK;
    for (size_t i = atomic_load(&crew.first_failed); i < jobs->n && status == ZR_OK; i++)
        status = jobs->run(jobs->context, i, log);
    return status;
}
