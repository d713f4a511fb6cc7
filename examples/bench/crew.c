#include "examples/bench/crew.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

struct crew {
    pthread_t *threads;
    int n_started; /* the caller is not among them */
    atomic_size_t next;

    /* The run: written before it begins, read by those at work. */
    void (*task)(void *context, size_t first, size_t last);
    void *context;
    size_t n_items, piece_items;

    pthread_mutex_t mutex; /* over what follows */
    pthread_cond_t begin, end;
    unsigned n_runs;
    int n_working;
    bool ending;
};

static void work_off(crew_t *crew) {
    size_t n_items = crew->n_items, piece = crew->piece_items;
    for (;;) {
        size_t first = atomic_fetch_add_explicit(&crew->next, piece, memory_order_relaxed);
        if (first >= n_items)
            return;
        crew->task(crew->context, first, n_items - first < piece ? n_items : first + piece);
    }
}

static void *thread_main(void *argument) {
    crew_t *crew = argument;
    unsigned n_runs = 0;
    for (;;) {
        pthread_mutex_lock(&crew->mutex);
        while (crew->n_runs == n_runs && !crew->ending)
            pthread_cond_wait(&crew->begin, &crew->mutex);
        bool ending = crew->ending;
        n_runs = crew->n_runs;
        pthread_mutex_unlock(&crew->mutex);
        if (ending)
            return NULL;
        work_off(crew);
        pthread_mutex_lock(&crew->mutex);
        if (--crew->n_working == 0)
            pthread_cond_signal(&crew->end);
        pthread_mutex_unlock(&crew->mutex);
    }
}

void crew_run(crew_t *crew, size_t n_items, size_t piece_items,
              void (*task)(void *context, size_t first, size_t last), void *context) {
    pthread_mutex_lock(&crew->mutex);
    crew->task = task;
    crew->context = context;
    crew->n_items = n_items;
    crew->piece_items = piece_items;
    atomic_store_explicit(&crew->next, 0, memory_order_relaxed);
    crew->n_working = crew->n_started;
    crew->n_runs++;
    if (crew->n_started > 0)
        pthread_cond_broadcast(&crew->begin);
    pthread_mutex_unlock(&crew->mutex);
    work_off(crew);
    pthread_mutex_lock(&crew->mutex);
    while (crew->n_working > 0)
        pthread_cond_wait(&crew->end, &crew->mutex);
    pthread_mutex_unlock(&crew->mutex);
}

void crew_destroy(crew_t **crew_p) {
    if (crew_p == NULL || *crew_p == NULL)
        return;
    crew_t *crew = *crew_p;
    pthread_mutex_lock(&crew->mutex);
    crew->ending = true;
    pthread_cond_broadcast(&crew->begin);
    pthread_mutex_unlock(&crew->mutex);
    for (int i = 0; i < crew->n_started; i++)
        pthread_join(crew->threads[i], NULL);
    pthread_cond_destroy(&crew->end);
    pthread_cond_destroy(&crew->begin);
    pthread_mutex_destroy(&crew->mutex);
    free(crew->threads);
    free(crew);
    *crew_p = NULL;
}

crew_t *crew_create(int n_threads) {
    crew_t *crew = calloc(1, sizeof(*crew));
    if (crew == NULL)
        return NULL;
    pthread_mutex_init(&crew->mutex, NULL);
    pthread_cond_init(&crew->begin, NULL);
    pthread_cond_init(&crew->end, NULL);
    crew->threads = calloc((size_t)n_threads, sizeof(*crew->threads));
    while (crew->threads != NULL && crew->n_started < n_threads - 1 &&
           pthread_create(&crew->threads[crew->n_started], NULL, thread_main, crew) == 0)
        crew->n_started++;
    if (crew->n_started < n_threads - 1 || crew->threads == NULL)
        crew_destroy(&crew);
    return crew;
}
