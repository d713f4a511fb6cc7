/*
 * An event file is a list of records: the length of a message as 64 bits, a checksum of these, the
 * message, and a checksum of that. Messages are of protocol buffers; of their fields these are
 * used:
 *
 *     Event: wall_time 1 (double), step 2 (varint), file_version 3 (text), summary 5, session_log 7
 *     Summary: value 1, repeated: tag 1 (text), simple_value 2 (float)
 *     SessionLog: status 1 (1: START)
 */
#include "examples/train/events.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- messages -------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* As much as any event here takes: two dozen scalars with short names. */
typedef struct message {
    unsigned char bytes[4096];
    size_t n;
    bool is_full;
} message_t;

static void put_bytes(message_t *message, const void *bytes, size_t n) {
    if (n > sizeof(message->bytes) - message->n) {
        message->is_full = true;
        return;
    }
    memcpy(message->bytes + message->n, bytes, n);
    message->n += n;
}

static void put_varint(message_t *message, uint64_t value) {
    do {
        unsigned char byte = (unsigned char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        put_bytes(message, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void put_key(message_t *message, unsigned field, unsigned type) {
    put_varint(message, field << 3 | type);
}

static void put_field(message_t *message, unsigned field, const void *bytes, size_t n) {
    put_key(message, field, BYTES);
    put_varint(message, n);
    put_bytes(message, bytes, n);
}

/* Numbers lie little end first, as on every machine that this is built for. */
static void put_double(message_t *message, unsigned field, double value) {
    put_key(message, field, FIXED64);
    put_bytes(message, &value, sizeof(value));
}

static void put_float(message_t *message, unsigned field, float value) {
    put_key(message, field, FIXED32);
    put_bytes(message, &value, sizeof(value));
}

static message_t event_at(uint64_t step) {
    struct timespec now;
    message_t event = {.n = 0};
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&event, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    put_key(&event, 2, VARINT);
    put_varint(&event, step);
    return event;
}

/* ---- records --------------------------------------------------------------------------------- */

/* CRC-32C, bit by bit: events are short, and there is one a step. Rotated and shifted, as the form
 * has it, so that a checksum of a text with checksums is another. */
static uint32_t masked_sum(const void *bytes, size_t n) {
    const unsigned char *next = bytes;
    uint32_t sum = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        sum ^= next[i];
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    sum = ~sum;
    return (sum >> 15 | sum << 17) + UINT32_C(0xa282ead8);
}

static bool write_record(FILE *file, const message_t *message) {
    uint64_t length = message->n;
    uint32_t sum_of_length = masked_sum(&length, sizeof(length));
    uint32_t sum = masked_sum(message->bytes, message->n);
    errno = message->is_full ? EMSGSIZE : 0;
    return !message->is_full && fwrite(&length, sizeof(length), 1, file) == 1 &&
           fwrite(&sum_of_length, sizeof(sum_of_length), 1, file) == 1 &&
           fwrite(message->bytes, message->n, 1, file) == 1 &&
           fwrite(&sum, sizeof(sum), 1, file) == 1 && fflush(file) == 0;
}

/* ---- the file -------------------------------------------------------------------------------- */

static bool write_begin(FILE *file, const train_start_t *start) {
    static const char version[] = "brain.Event:2";
    message_t event = event_at(0);
    put_field(&event, 3, version, sizeof(version) - 1);
    if (!write_record(file, &event))
        return false;
    if (start->step == 0)
        return true;
    message_t again = event_at(start->step + 1), session = {.n = 0};
    put_key(&session, 1, VARINT);
    put_varint(&session, 1);
    put_field(&again, 7, session.bytes, session.n);
    return write_record(file, &again);
}

static zr_status_t refuse(const char *dir, const zr_log_t *log) {
    return zr_fail(log, ZR_ERR_IO, "cannot write a file to --tensorboard %s: %s", dir,
                   strerror(errno));
}

/* TensorBoard reads files in the order of their names. */
zr_status_t train_events_open(const train_options_t *options, const train_start_t *start,
                              const zr_log_t *log, FILE **file_p) {
    char path[4096], host[64] = "host";
    const char *dir = options->tensorboard_dir;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    (void)gethostname(host, sizeof(host) - 1);
    int n = snprintf(path, sizeof(path), "%s/events.out.tfevents.%010" PRIdMAX ".%s.%d.%09ld", dir,
                     (intmax_t)now.tv_sec, host, (int)getpid(), now.tv_nsec);
    if (n < 0 || (size_t)n >= sizeof(path))
        return zr_fail(log, ZR_ERR_ARGUMENT, "--tensorboard %s: the name is too long", dir);
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return refuse(dir, log);
    FILE *file = fopen(path, "wxe");
    if (file == NULL)
        return refuse(dir, log);
    if (!write_begin(file, start)) {
        zr_status_t status = refuse(dir, log);
        fclose(file);
        return status;
    }
    *file_p = file;
    return ZR_OK;
}

static void add_scalar(message_t *summary, const char *name, const json_t *number) {
    static const char of_evaluation[] = "val_";
    char tag[128];
    message_t value = {.n = 0};
    bool is_evaluated = strncmp(name, of_evaluation, strlen(of_evaluation)) == 0;
    int n = snprintf(tag, sizeof(tag), "%s/%s", is_evaluated ? "val" : "train",
                     is_evaluated ? name + strlen(of_evaluation) : name);
    put_field(&value, 1, tag, n < 0 ? 0 : (size_t)n);
    put_float(&value, 2, (float)json_number_value(number));
    put_field(summary, 1, value.bytes, value.n);
}

bool train_events_write(FILE *file, const json_t *line) {
    const char *name, *part;
    json_t *value, *seconds;
    message_t event = event_at((uint64_t)json_integer_value(json_object_get(line, "step")));
    message_t summary = {.n = 0};
    json_object_foreach((json_t *)line, name, value) {
        if (json_is_number(value) && strcmp(name, "step") != 0)
            add_scalar(&summary, name, value);
        json_object_foreach(value, part, seconds) {
            char of[64];
            snprintf(of, sizeof(of), "%s/%s", name, part);
            add_scalar(&summary, of, seconds);
        }
    }
    put_field(&event, 5, summary.bytes, summary.n);
    event.is_full = event.is_full || summary.is_full;
    return write_record(file, &event);
}
