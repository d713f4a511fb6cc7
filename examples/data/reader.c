/*
 * A thread that reads a rank's micro-batches ahead of the step.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "examples/data/data_internal.h"

/* Micro-batches that are read ahead of those in use. */
#define N_AHEAD 3

typedef struct slot {
    size_t length;    /* of each sequence, at most seq */
    int32_t *tokens;  /* [micro_batch * length], inside the reader's memory */
    int32_t *targets; /* as tokens */
    int32_t *starts;  /* likewise; NULL: there are no documents */
    double n_targets;
} slot_t;

struct data_reader {
    const data_t *data;
    data_part_t part;
    pthread_t thread;
    double wait_seconds;

    /* The thread's own. */
    data_cursor_t *cursors; /* [n_sources] */
    uint32_t *window;       /* [seq + 1] */
    double n_targets;       /* of the step that is being read */

    pthread_mutex_t lock; /* guards what follows, but not what the slots point to */
    pthread_cond_t changed;
    slot_t *slots; /* [n_slots] micro-batch i is in slot i % n_slots */
    size_t n_slots;
    uint64_t n_read; /* n_given <= n_read <= n_returned + n_slots */
    uint64_t n_given;
    uint64_t n_returned; /* given and no longer in use: all but the last ones together */
    zr_status_t status;  /* why no more will be read */
    atomic_bool stop;    /* nobody asks any more; looked at without the lock within a micro-batch,
                            which may be a long one */

    int32_t memory[];
};

/* The sequence of a micro-batch that arrays belong to. */
static slot_t sequence_of(const slot_t *slot, size_t index) {
    size_t first = index * slot->length;
    return (slot_t){.length = slot->length,
                    .tokens = slot->tokens + first,
                    .targets = slot->targets + first,
                    .starts = slot->starts != NULL ? slot->starts + first : NULL};
}

/* A window has n tokens; in front of the target of the last one may be another document. */
static void split_documents(const uint32_t *window, size_t n, bool has_next, slot_t *sequence) {
    size_t start = 0;
    for (size_t i = 0; i < sequence->length; i++) {
        bool is_padding = i >= n, has_target = i + 1 < n + has_next && !is_padding;
        uint32_t next = has_target ? window[i + 1] : DATA_HAS_NO_LOSS;
        start = i == n || (!is_padding && (window[i] & DATA_BEGINS) != 0) ? i : start;
        sequence->tokens[i] = is_padding ? 0 : (int32_t)(window[i] & DATA_TOKEN_MASK);
        sequence->targets[i] = (next & (DATA_HAS_NO_LOSS | DATA_BEGINS)) != 0
                                   ? ZR_NN_TARGET_IGNORED
                                   : (int32_t)(next & DATA_TOKEN_MASK);
        sequence->starts[i] = (int32_t)start;
    }
}

static zr_status_t read_sequence(data_reader_t *reader, uint64_t index, slot_t sequence) {
    const data_t *data = reader->data;
    data_place_t place = data_place(data, index);
    size_t first, n = data_source_window(place.source, place.window, data->seq, &first);
    n = n < sequence.length ? n : sequence.length;
    bool has_next = first + n < place.source->files.n_tokens;
    ZR_TRY(data_cursor_read(&reader->cursors[place.source - data->sources], first, n + has_next,
                            data->vocab, reader->window));
    if (sequence.starts != NULL) {
        split_documents(reader->window, n, has_next, &sequence);
        return ZR_OK;
    }
    memcpy(sequence.tokens, reader->window, n * sizeof(*sequence.tokens));
    memcpy(sequence.targets, reader->window + 1, n * sizeof(*sequence.targets));
    return ZR_OK;
}

/* Ranks take turns within each micro-batch, so a global batch is one piece of the order. */
static zr_status_t read_micro_batch(data_reader_t *reader, uint64_t micro_batch, slot_t *slot) {
    const data_part_t *part = &reader->part;
    uint64_t n_ranks = (uint64_t)part->n_ranks, of_all = n_ranks * part->micro_batch;
    uint64_t first = part->first_index + micro_batch * of_all;
    if (micro_batch % part->grad_accum == 0)
        reader->n_targets =
            (double)data_n_targets_of(reader->data, first, of_all * part->grad_accum);
    slot->n_targets = reader->n_targets / (double)(n_ranks * part->grad_accum);
    slot->length = data_length(reader->data, part->first_step + micro_batch / part->grad_accum,
                               micro_batch % part->grad_accum);
    first += (uint64_t)part->rank * part->micro_batch;
    for (size_t i = 0; i < part->micro_batch && !atomic_load(&reader->stop); i++)
        ZR_TRY(read_sequence(reader, first + i, sequence_of(slot, i)));
    return ZR_OK;
}

static void *read_ahead(void *argument) {
    data_reader_t *reader = argument;
    zr_status_t status = ZR_OK;
    pthread_mutex_lock(&reader->lock);
    for (uint64_t i = 0; i < reader->part.n_micro_batches; i++) {
        while (!reader->stop && i >= reader->n_returned + reader->n_slots)
            pthread_cond_wait(&reader->changed, &reader->lock);
        if (reader->stop)
            break;
        pthread_mutex_unlock(&reader->lock);
        status = read_micro_batch(reader, i, &reader->slots[i % reader->n_slots]);
        pthread_mutex_lock(&reader->lock);
        reader->status = status;
        reader->n_read += status == ZR_OK;
        pthread_cond_broadcast(&reader->changed);
        if (status != ZR_OK)
            break;
    }
    pthread_mutex_unlock(&reader->lock);
    return NULL;
}

static void free_reader(data_reader_t *reader) {
    for (size_t i = 0; reader->cursors != NULL && i < reader->data->n_sources; i++)
        data_cursor_close(&reader->cursors[i]);
    free(reader->cursors);
    free(reader->window);
    free(reader->slots);
    free(reader);
}

static bool make_cursors(data_reader_t *reader) {
    const data_t *data = reader->data;
    reader->cursors = malloc(data->n_sources * sizeof(*reader->cursors));
    reader->window = malloc((data->seq + 1) * sizeof(*reader->window));
    for (size_t i = 0; reader->cursors != NULL && i < data->n_sources; i++)
        reader->cursors[i] = data_cursor_make(&data->sources[i].files);
    return reader->cursors != NULL && reader->window != NULL;
}

/* Each has room for so many tokens in each of its arrays. */
static bool make_slots(data_reader_t *reader, size_t n_arrays, size_t n_tokens) {
    reader->slots = malloc(reader->n_slots * sizeof(*reader->slots));
    for (size_t i = 0; reader->slots != NULL && i < reader->n_slots; i++) {
        int32_t *arrays = reader->memory + n_arrays * i * n_tokens;
        reader->slots[i] = (slot_t){.tokens = arrays,
                                    .targets = arrays + n_tokens,
                                    .starts = n_arrays == 3 ? arrays + 2 * n_tokens : NULL};
    }
    return reader->slots != NULL;
}

zr_status_t data_reader_create(const data_t *data, const data_part_t *part,
                               data_reader_t **reader_p) {
    const zr_log_t *log = &data->log;
    size_t n_arrays = data_has_documents(data) ? 3 : 2, n = 0, size_bytes = 0;
    size_t n_together = part->n_together > 0 ? part->n_together : 1, n_slots = 0;
    if (__builtin_mul_overflow(part->micro_batch, data->seq, &n) ||
        __builtin_add_overflow(n_together, N_AHEAD, &n_slots) ||
        __builtin_mul_overflow(n_arrays * sizeof(int32_t), n_slots, &size_bytes) ||
        __builtin_mul_overflow(n, size_bytes, &size_bytes) ||
        __builtin_add_overflow(size_bytes, sizeof(data_reader_t), &size_bytes))
        return zr_fail(log, ZR_ERR_ARGUMENT, "micro-batches of %s of %s: the size overflows",
                       zr_count_text(part->micro_batch, "sequence").text,
                       zr_count_text(data->seq, "token").text);
    data_reader_t *reader = malloc(size_bytes);
    if (reader == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for %s of %s",
                       zr_count_text(n_slots, "micro-batch").text, zr_count_text(n, "token").text);
    *reader = (data_reader_t){.data = data, .part = *part, .n_slots = n_slots};
    reader->part.n_together = n_together;
    if (!make_cursors(reader) || !make_slots(reader, n_arrays, n))
        goto err_free;
    if (pthread_mutex_init(&reader->lock, NULL) != 0)
        goto err_free;
    if (pthread_cond_init(&reader->changed, NULL) != 0)
        goto err_destroy_lock;
    if (pthread_create(&reader->thread, NULL, read_ahead, reader) != 0)
        goto err_destroy_condition;
    *reader_p = reader;
    return ZR_OK;

err_destroy_condition:
    pthread_cond_destroy(&reader->changed);
err_destroy_lock:
    pthread_mutex_destroy(&reader->lock);
err_free:
    free_reader(reader);
    return zr_fail(log, ZR_ERR_MEMORY, "no memory for a thread that reads data");
}

void data_reader_destroy(data_reader_t **reader) {
    if (reader == NULL || *reader == NULL)
        return;
    data_reader_t *r = *reader;
    pthread_mutex_lock(&r->lock);
    atomic_store(&r->stop, true);
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free_reader(r);
    *reader = NULL;
}

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

zr_status_t data_reader_next(data_reader_t *reader, size_t *length_p, const int32_t **tokens_p,
                             const int32_t **targets_p) {
    if (reader->n_given == reader->part.n_micro_batches)
        return zr_fail(&reader->data->log, ZR_ERR_STATE, "there are %s, and all were read",
                       zr_count_text(reader->part.n_micro_batches, "micro-batch").text);
    double start = now_seconds();
    pthread_mutex_lock(&reader->lock);
    reader->n_returned = reader->n_given - reader->n_given % reader->part.n_together;
    pthread_cond_broadcast(&reader->changed);
    while (reader->n_read == reader->n_given && reader->status == ZR_OK)
        pthread_cond_wait(&reader->changed, &reader->lock);
    bool given = reader->n_read > reader->n_given;
    zr_status_t status = given ? ZR_OK : reader->status;
    const slot_t *slot = &reader->slots[reader->n_given % reader->n_slots];
    reader->n_given += given;
    pthread_mutex_unlock(&reader->lock);
    reader->wait_seconds += now_seconds() - start;
    if (status != ZR_OK)
        return status;
    *length_p = slot->length;
    *tokens_p = slot->tokens;
    *targets_p = slot->targets;
    return ZR_OK;
}

void data_reader_documents(const data_reader_t *reader, const int32_t **starts_p,
                           double *n_targets_p) {
    const slot_t *slot = &reader->slots[(reader->n_given - 1) % reader->n_slots];
    *starts_p = slot->starts;
    *n_targets_p = slot->n_targets;
}

double data_reader_wait_seconds(const data_reader_t *reader) {
    return reader->wait_seconds;
}
