/*
 * The pool hands out task numbers from one counter: whoever is free takes the next,
 * so a thread that the system delays holds nobody up. For the same reason a call
 * waits only for the threads that took part in it, not for those that woke late.
 *
 * Threads without work watch for it a few microseconds, since one kernel often
 * follows another, and then sleep.
 */
#include "kernels/host/host_pool.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/background_internal.h"
#include "kernels/base/pause_internal.h"

#define ZR_SPIN_ROUNDS 500

struct zr_host_pool {
    pthread_mutex_t turn; /* whose job it is; taken before the mutex */
    pthread_mutex_t mutex;
    pthread_cond_t work;     /* a job was opened, or the end has come */
    pthread_cond_t finished; /* n_inside became 0 */
    pthread_t *threads;
    int n_started; /* threads that run, without the caller's */

    /* Written under the mutex; atomic, because they are watched without it. */
    atomic_uint n_jobs;  /* opened so far; wraps */
    atomic_int n_inside; /* threads at work on the current job */

    /* Under the mutex. */
    bool open; /* the current job takes more threads in */
    bool ending;
    int n_sleeping;

    /* The job: written before it is opened, read by those inside. */
    void (*task)(void *context, size_t index);
    void *context;
    size_t n_tasks;
    atomic_size_t next_task;
};

static void work_off(zr_host_pool_t *pool) {
    for (;;) {
        size_t index = atomic_fetch_add_explicit(&pool->next_task, 1, memory_order_relaxed);
        if (index >= pool->n_tasks)
            return;
        pool->task(pool->context, index);
        zr_background();
    }
}

static void watch_for_job(zr_host_pool_t *pool, unsigned seen) {
    for (int i = 0; i < ZR_SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->n_jobs, memory_order_relaxed) != seen)
            return;
        zr_pause();
    }
}

static void *worker_main(void *argument) {
    zr_host_pool_t *pool = argument;
    unsigned seen = 0;
    for (;;) {
        watch_for_job(pool, seen);
        pthread_mutex_lock(&pool->mutex);
        while (!pool->ending && !(pool->open && pool->n_jobs != seen)) {
            seen = pool->n_jobs; /* closed without us: not worth watching for */
            pool->n_sleeping++;
            pthread_cond_wait(&pool->work, &pool->mutex);
            pool->n_sleeping--;
        }
        if (pool->ending) {
            pthread_mutex_unlock(&pool->mutex);
            return NULL;
        }
        seen = pool->n_jobs;
        pool->n_inside++;
        pthread_mutex_unlock(&pool->mutex);

        work_off(pool);

        pthread_mutex_lock(&pool->mutex);
        if (--pool->n_inside == 0)
            pthread_cond_signal(&pool->finished);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void run_alone(size_t n_tasks, void (*task)(void *context, size_t index), void *context) {
    for (size_t i = 0; i < n_tasks; i++) {
        task(context, i);
        zr_background();
    }
}

/* The caller's turn. */
static void run_together(zr_host_pool_t *pool, size_t n_tasks,
                         void (*task)(void *context, size_t index), void *context) {
    pthread_mutex_lock(&pool->mutex);
    assert(!pool->open && pool->n_inside == 0); /* not from a task */
    pool->task = task;
    pool->context = context;
    pool->n_tasks = n_tasks;
    atomic_store_explicit(&pool->next_task, 0, memory_order_relaxed);
    pool->open = true;
    pool->n_jobs++;
    if (pool->n_sleeping > 0)
        pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);

    work_off(pool);

    for (int i = 0; i < ZR_SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->n_inside, memory_order_relaxed) == 0)
            break;
        zr_pause();
    }
    pthread_mutex_lock(&pool->mutex);
    pool->open = false;
    while (pool->n_inside > 0)
        pthread_cond_wait(&pool->finished, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

void zr_host_pool_run(zr_host_pool_t *pool, bool is_concurrent, size_t n_tasks,
                      void (*task)(void *context, size_t index), void *context) {
    bool is_alone = pool->n_started == 0 || n_tasks <= 1;
    if (!is_alone && is_concurrent)
        is_alone = pthread_mutex_trylock(&pool->turn) != 0;
    else if (!is_alone)
        pthread_mutex_lock(&pool->turn);
    if (is_alone) {
        run_alone(n_tasks, task, context);
        return;
    }
    run_together(pool, n_tasks, task, context);
    pthread_mutex_unlock(&pool->turn);
}

static void stop_threads(zr_host_pool_t *pool) {
    pthread_mutex_lock(&pool->mutex);
    pool->ending = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
}

void zr_host_pool_destroy(zr_host_pool_t **pool) {
    if (pool == NULL || *pool == NULL)
        return;
    stop_threads(*pool);
    pthread_cond_destroy(&(*pool)->finished);
    pthread_cond_destroy(&(*pool)->work);
    pthread_mutex_destroy(&(*pool)->mutex);
    pthread_mutex_destroy(&(*pool)->turn);
    free((*pool)->threads);
    free(*pool);
    *pool = NULL;
}

zr_status_t zr_host_pool_create(const zr_log_t *log, int n_threads, zr_host_pool_t **pool_p) {
    zr_host_pool_t *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "host device: no memory for a pool (%zu bytes)",
                       sizeof(*pool));
    pthread_mutex_init(&pool->turn, NULL);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->threads = calloc((size_t)n_threads, sizeof(*pool->threads));
    if (pool->threads == NULL) {
        zr_host_pool_destroy(&pool);
        return zr_fail(log, ZR_ERR_MEMORY, "host device: no memory for %s",
                       zr_count_text((uint64_t)n_threads, "thread").text);
    }
    while (pool->n_started < n_threads - 1) {
        int error = pthread_create(&pool->threads[pool->n_started], NULL, worker_main, pool);
        if (error != 0) {
            int n_started = pool->n_started;
            zr_host_pool_destroy(&pool);
            return zr_fail(log, ZR_ERR_MEMORY,
                           "host device: thread %d of %d cannot be started: %s; ask for fewer",
                           n_started + 2, n_threads, strerror(error));
        }
        pool->n_started++;
    }
    *pool_p = pool;
    return ZR_OK;
}
