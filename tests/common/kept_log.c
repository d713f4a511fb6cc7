#include "tests/common/kept_log.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void keep_message(void *context, zr_log_level_t level, int rank, const char *message) {
    expect_one_thing(message);
    kept_log_t *kept = context;
    pthread_mutex_lock(&lock);
    size_t used = strlen(kept->text);
    snprintf(kept->text + used, sizeof(kept->text) - used, "%s\n", message);
    kept->n_messages++;
    pthread_mutex_unlock(&lock);
}

zr_log_t kept_log(kept_log_t *kept, zr_log_level_t level) {
    kept->text[0] = '\0';
    kept->n_messages = 0;
    return (zr_log_t){.sink = keep_message, .context = kept, .level = level, .rank = -1};
}

void drop_message(void *context, zr_log_level_t level, int rank, const char *message) {
}
