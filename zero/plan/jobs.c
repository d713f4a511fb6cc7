/*
 * Jobs are handed out in order. Nothing that depends on which thread was faster gets out: messages
 * of threads are dropped, and the first job that failed is run once more by the caller, who then
 * has its message, and the last error of the thread. Should it go well then, as memory has become
 * free, the caller does those behind it as well.
 */
#include "zero/plan/fit_internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#define MOST_THREADS 64

typedef struct crew {
    const zr_run_jobs_t *jobs;
    const zr_log_t *log; /* the caller's */
    atomic_size_t next;
    atomic_size_t first_failed; /* of those that ended; n: none */
    pthread_mutex_t lock;       /* guards the rest, and calls of `ended` */
    bool *has_run;              /* [n] */
    size_t n_told;
    zr_status_t status; /* of `ended` */
} crew_t;

static void note_failure(crew_t *crew, size_t job) {
    size_t first = atomic_load(&crew->first_failed);
    while (job < first && !atomic_compare_exchange_weak(&crew->first_failed, &first, job))
        ;
}

/* Tell of all that have run, up to the first that has not. */
static void note_success(crew_t *crew, size_t job) {
    const zr_run_jobs_t *jobs = crew->jobs;
    pthread_mutex_lock(&crew->lock);
    crew->has_run[job] = true;
    for (; crew->n_told < jobs->n && crew->has_run[crew->n_told] && crew->status == ZR_OK;
         crew->n_told++)
        if (jobs->ended != NULL)
            crew->status = jobs->ended(jobs->context, crew->n_told, crew->log);
    if (crew->status != ZR_OK)
        note_failure(crew, 0); /* nobody begins another */
    pthread_mutex_unlock(&crew->lock);
}

static void do_job(crew_t *crew, size_t job, const zr_log_t *log) {
    if (crew->jobs->run(crew->jobs->context, job, log) == ZR_OK)
        note_success(crew, job);
    else
        note_failure(crew, job);
}

static void *work(void *context) {
    crew_t *crew = context;
    size_t job;
    while ((job = atomic_fetch_add(&crew->next, 1)) < atomic_load(&crew->first_failed))
        do_job(crew, job, &zr_run_nowhere);
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

static void work_together(crew_t *crew) {
    pthread_t threads[MOST_THREADS];
    size_t n_threads = count_threads(crew->jobs), n_started = 0;
    while (n_started + 1 < n_threads && pthread_create(&threads[n_started], NULL, work, crew) == 0)
        n_started++;
    work(crew);
    for (size_t i = 0; i < n_started; i++)
        pthread_join(threads[i], NULL);
}

zr_status_t zr_run_jobs(const zr_run_jobs_t *jobs, const zr_log_t *log) {
    crew_t crew = {.jobs = jobs, .log = log, .lock = PTHREAD_MUTEX_INITIALIZER};
    atomic_init(&crew.next, 0);
    atomic_init(&crew.first_failed, jobs->n);
    crew.has_run = calloc(jobs->n + 1, sizeof(*crew.has_run));
    if (crew.has_run == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s", zr_count_text(jobs->n, "job").text);
    work_together(&crew);
    zr_status_t status = crew.status;
    for (size_t i = atomic_load(&crew.first_failed); i < jobs->n && status == ZR_OK; i++) {
        if (crew.has_run[i])
            continue;
        status = jobs->run(jobs->context, i, log);
        if (status == ZR_OK)
            note_success(&crew, i);
        ZR_THEN(status, crew.status);
    }
    pthread_mutex_destroy(&crew.lock);
    free(crew.has_run);
    return status;
}
