/*
 * Repetitions are found by comparing with the last few messages: those of other ranks come
 * close together.
 */
#include "examples/common/messages.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#define N_REMEMBERED 16
#define MESSAGE_BYTES 4096

struct messages {
    pthread_mutex_t lock; /* guards everything below but program and terminal */
    const char *program;
    bool terminal;
    bool in_progress; /* the cursor stands at the end of a progress line */
    uint64_t remembered[N_REMEMBERED];
    int remembered_rank[N_REMEMBERED];
    size_t n_written;
    size_t n_repeated;
    char first_error[MESSAGE_BYTES];
};

void messages_hold_standard_files(void) {
    int descriptor;
    do /* the lowest free number is given each time */
        descriptor = open("/dev/null", O_RDONLY);
    while (descriptor >= STDIN_FILENO && descriptor <= STDERR_FILENO);
    if (descriptor > STDERR_FILENO)
        close(descriptor);
}

messages_t *messages_create(const char *program) {
    messages_t *messages = calloc(1, sizeof(*messages));
    if (messages == NULL)
        return NULL;
    if (pthread_mutex_init(&messages->lock, NULL) != 0) {
        free(messages);
        return NULL;
    }
    messages->program = program;
    messages->terminal = isatty(STDERR_FILENO) == 1;
    return messages;
}

void messages_destroy(messages_t **messages) {
    if (messages == NULL || *messages == NULL)
        return;
    messages_t *m = *messages;
    messages_end_progress(m);
    if (m->n_repeated > 0)
        fprintf(stderr, "%s: %s of other ranks said the same\n", m->program,
                zr_count_text(m->n_repeated, "more message").text);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *messages = NULL;
}

static bool is_repetition(messages_t *m, int rank, const char *message) {
    uint64_t hash = XXH3_64bits(message, strlen(message));
    size_t n = m->n_written < N_REMEMBERED ? m->n_written : N_REMEMBERED;
    for (size_t i = 0; i < n; i++)
        if (m->remembered[i] == hash && m->remembered_rank[i] != rank)
            return true;
    m->remembered[m->n_written % N_REMEMBERED] = hash;
    m->remembered_rank[m->n_written % N_REMEMBERED] = rank;
    m->n_written++;
    return false;
}

static void clear_progress(messages_t *m) {
    if (m->in_progress)
        fputs("\r\033[K", stderr);
    m->in_progress = false;
}

static void write_message(void *context, zr_log_level_t level, int rank, const char *message) {
    messages_t *m = context;
    pthread_mutex_lock(&m->lock);
    if (is_repetition(m, rank, message)) {
        m->n_repeated++;
    } else {
        clear_progress(m);
        const char *kind = level == ZR_LOG_ERROR     ? "error: "
                           : level == ZR_LOG_WARNING ? "warning: "
                                                     : "";
        if (rank >= 0)
            fprintf(stderr, "%s: %srank %d: %s\n", m->program, kind, rank, message);
        else
            fprintf(stderr, "%s: %s%s\n", m->program, kind, message);
        if (level == ZR_LOG_ERROR && m->first_error[0] == '\0')
            snprintf(m->first_error, sizeof(m->first_error), "%s", message);
    }
    pthread_mutex_unlock(&m->lock);
}

zr_log_t messages_log(messages_t *messages, zr_log_level_t level) {
    return (zr_log_t){.sink = write_message, .context = messages, .level = level, .rank = -1};
}

messages_t *messages_of(const zr_log_t *log) {
    return log->sink == write_message ? log->context : NULL;
}

void messages_progress(messages_t *messages, bool stays, const char *format, ...) {
    if (!messages->terminal && !stays)
        return;
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&messages->lock);
    if (messages->terminal)
        fputs("\r", stderr);
    vfprintf(stderr, format, arguments);
    if (messages->terminal)
        fputs("\033[K", stderr);
    if (stays)
        fputs("\n", stderr);
    fflush(stderr);
    messages->in_progress = !stays;
    pthread_mutex_unlock(&messages->lock);
    va_end(arguments);
}

void messages_end_progress(messages_t *messages) {
    pthread_mutex_lock(&messages->lock);
    if (messages->in_progress)
        fputs("\n", stderr);
    messages->in_progress = false;
    pthread_mutex_unlock(&messages->lock);
}

const char *messages_first_error(const messages_t *messages) {
    return messages->first_error;
}
