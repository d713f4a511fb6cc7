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
#include <sys/ioctl.h>
#include <unistd.h>

#include <xxhash.h>

#define N_REMEMBERED 16
#define MESSAGE_BYTES 4096
/* Of a terminal, in characters. */
#define MESSAGE_COLUMNS 100
#define USUAL_COLUMNS 80
#define LEAST_COLUMNS 20

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

void messages_wrap(const char *text, size_t length, size_t column, size_t indent, size_t columns,
                   FILE *file) {
    const char *end = text + length;
    bool is_first = true;
    while (text < end) {
        const char *word = text + strspn(text, " ");
        size_t n = strcspn(word, " ");
        if (word >= end)
            break;
        if (n > (size_t)(end - word))
            n = (size_t)(end - word);
        if (!is_first && column + 1 + n > columns) {
            fprintf(file, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!is_first) {
            fputc(' ', file);
            column++;
        }
        fprintf(file, "%.*s", (int)n, word);
        column += n;
        is_first = false;
        text = word + n;
    }
    fputc('\n', file);
}

/* Columns of the terminal; those of other files have no end, so that a search finds a message. */
static size_t columns_of(const messages_t *m) {
    struct winsize size = {0};
    if (!m->terminal)
        return SIZE_MAX;
    bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= LEAST_COLUMNS;
    return is_known ? size.ws_col : USUAL_COLUMNS;
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
        int n = rank >= 0 ? fprintf(stderr, "%s: %srank %d: ", m->program, kind, rank)
                          : fprintf(stderr, "%s: %s", m->program, kind);
        size_t columns = columns_of(m);
        if (m->terminal)
            messages_wrap(message, strlen(message), n > 0 ? (size_t)n : 0, 4,
                          columns < MESSAGE_COLUMNS ? columns : MESSAGE_COLUMNS, stderr);
        else
            fprintf(stderr, "%s\n", message);
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
    char text[MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&messages->lock);
    size_t columns = columns_of(messages);
    if (!stays && columns <= sizeof(text))
        text[columns - 1] = '\0'; /* a line that goes on in the next is not rewritten */
    fprintf(stderr, "%s%s", messages->terminal ? "\r" : "", text);
    if (messages->terminal)
        fputs("\033[K", stderr);
    if (stays)
        fputs("\n", stderr);
    fflush(stderr);
    messages->in_progress = !stays;
    pthread_mutex_unlock(&messages->lock);
}

static size_t length_below(const messages_part_t *parts, size_t n_parts, int priority) {
    size_t length = 0;
    for (size_t i = 0; i < n_parts; i++)
        if (parts[i].priority < priority)
            length += (length > 0 ? 2 : 0) + strlen(parts[i].text);
    return length;
}

void messages_progress_parts(messages_t *messages, bool stays, const messages_part_t *parts,
                             size_t n_parts) {
    char text[MESSAGE_BYTES] = "";
    size_t n = 0, columns = columns_of(messages);
    int limit = 0; /* of priorities */
    for (size_t i = 0; i < n_parts; i++)
        limit = parts[i].priority >= limit ? parts[i].priority + 1 : limit;
    while (limit > 1 && length_below(parts, n_parts, limit) >= columns)
        limit--;
    for (size_t i = 0; i < n_parts && n < sizeof(text); i++)
        if (parts[i].priority < limit)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", n > 0 ? "  " : "",
                                  parts[i].text);
    messages_progress(messages, stays, "%s", text);
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
