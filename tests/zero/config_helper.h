/*
 * What the tests of the configuration share: a log that keeps its messages, and reading from a
 * text as if it were a file.
 */
#ifndef TESTS_ZERO_CONFIG_HELPER_H
#define TESTS_ZERO_CONFIG_HELPER_H

#include <sys/mman.h>

#include "tests/common/one_thing.h"
#include "tests/common/test.h"
#include "zero/config_keys.h"

typedef struct messages {
    char text[16384]; /* each on a line */
    int n_messages;
} messages_t;

static inline void keep_message(void *context, zr_log_level_t level, int rank,
                                const char *message) {
    expect_one_thing(message);
    messages_t *messages = (messages_t *)context;
    size_t used = strlen(messages->text);
    snprintf(messages->text + used, sizeof(messages->text) - used, "%s\n", message);
    messages->n_messages++;
}

static inline zr_log_t keep_messages(messages_t *messages) {
    messages->text[0] = '\0';
    messages->n_messages = 0;
    return (zr_log_t){.sink = keep_message, .context = messages, .level = ZR_LOG_DEBUG, .rank = -1};
}

/** Read a text as a file; the messages are new. */
static inline zr_status_t read_bytes(const char *bytes, size_t n_bytes, zr_config_t *config,
                                     messages_t *messages) {
    zr_log_t log = keep_messages(messages);
    char path[64];
    int fd = memfd_create("config", 0);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), (ssize_t)n_bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    zr_status_t status = zr_config_read_json(path, &log, config);
    close(fd);
    return status;
}

static inline zr_status_t read_text(const char *text, zr_config_t *config, messages_t *messages) {
    return read_bytes(text, strlen(text), config, messages);
}

/** Every field of both is the same. */
static inline bool configs_equal(const zr_config_t *a, const zr_config_t *b) {
    return a->stage == b->stage && a->dtype == b->dtype && a->train_batch == b->train_batch &&
           a->micro_batch == b->micro_batch && a->grad_accum == b->grad_accum &&
           a->reduce == b->reduce && a->clip == b->clip && a->adamw.lr == b->adamw.lr &&
           a->adamw.beta1 == b->adamw.beta1 && a->adamw.beta2 == b->adamw.beta2 &&
           a->adamw.epsilon == b->adamw.epsilon && a->adamw.weight_decay == b->adamw.weight_decay &&
           a->schedule.kind == b->schedule.kind &&
           a->schedule.warmup_min_lr == b->schedule.warmup_min_lr &&
           a->schedule.warmup_max_lr == b->schedule.warmup_max_lr &&
           a->schedule.warmup_log == b->schedule.warmup_log &&
           a->schedule.warmup_steps == b->schedule.warmup_steps &&
           a->schedule.total_steps == b->schedule.total_steps &&
           a->schedule.warmup_min_ratio == b->schedule.warmup_min_ratio &&
           a->schedule.cos_min_ratio == b->schedule.cos_min_ratio &&
           a->prefetch_elems == b->prefetch_elems && a->overlap_comm == b->overlap_comm &&
           a->shard_group_size == b->shard_group_size &&
           a->device_memory_bytes == b->device_memory_bytes &&
           a->host_memory_bytes == b->host_memory_bytes &&
           a->wall_clock_breakdown == b->wall_clock_breakdown &&
           a->steps_per_print == b->steps_per_print &&
           a->offload_optimizer.device == b->offload_optimizer.device &&
           a->offload_optimizer.ratio == b->offload_optimizer.ratio &&
           a->offload_optimizer.n_buffers == b->offload_optimizer.n_buffers &&
           a->offload_optimizer.read_ahead == b->offload_optimizer.read_ahead &&
           a->offload_optimizer.write_behind == b->offload_optimizer.write_behind &&
           a->offload_param.device == b->offload_param.device &&
           a->offload_param.n_buffers == b->offload_param.n_buffers &&
           a->offload_param.buffer_elems == b->offload_param.buffer_elems &&
           a->offload_param.max_in_cpu_elems == b->offload_param.max_in_cpu_elems &&
           strcmp(a->nvme.paths, b->nvme.paths) == 0 &&
           a->nvme.capacity_bytes == b->nvme.capacity_bytes &&
           a->nvme.request_bytes == b->nvme.request_bytes && a->nvme.depth == b->nvme.depth &&
           a->nvme.submit_batch == b->nvme.submit_batch &&
           a->nvme.files_per_path == b->nvme.files_per_path && a->nvme.verify == b->nvme.verify &&
           a->host_threads == b->host_threads;
}

#endif
