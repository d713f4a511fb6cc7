/*
 * The log: formats a message in a fixed buffer, so that an error about memory
 * needs none, and hands it to the sink.
 */
#include "kernels/base/log.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/log_internal.h"

/* Of each thread, as errno is: nothing is shared. */
static _Thread_local char last_error[ZR_LOG_MESSAGE_BYTES];

const char *zr_last_error(void) {
    return last_error;
}

void zr_last_error_set(const char *message) {
    size_t length = strnlen(message, sizeof(last_error) - 1);
    memmove(last_error, message, length);
    last_error[length] = '\0';
}

zr_log_t zr_log_default(void) {
    return (zr_log_t){.sink = NULL, .context = NULL, .level = ZR_LOG_WARNING, .rank = -1};
}

zr_log_t zr_log_with_rank(const zr_log_t *log, int rank) {
    zr_log_t copy = log != NULL ? *log : zr_log_default();
    copy.rank = rank;
    return copy;
}

const char *zr_log_level_name(zr_log_level_t level) {
    switch (level) {
    case ZR_LOG_ERROR:
        return "error";
    case ZR_LOG_WARNING:
        return "warning";
    case ZR_LOG_INFO:
        return "info";
    case ZR_LOG_DEBUG:
        return "debug";
    }
    return "?";
}

/* One call, so that lines of several ranks do not mix: stdio holds the stream's lock for it. */
static void write_to_standard_error(zr_log_level_t level, int rank, const char *message) {
    if (rank >= 0)
        fprintf(stderr, "rank %d: %s: %s\n", rank, zr_log_level_name(level), message);
    else
        fprintf(stderr, "%s: %s\n", zr_log_level_name(level), message);
}

/* ---- what a terminal would obey ---------------------------------------------------------------
 */

/* Bytes of the character of UTF-8 at `text`, and its number; 0: there is none. */
static size_t read_character(const unsigned char *text, uint32_t *number_p) {
    static const uint32_t first_of[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = text[0] < 0x80 ? 1 : text[0] >= 0xF0 ? 4 : text[0] >= 0xE0 ? 3 : 2;
    *number_p = n == 1 ? text[0] : text[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
        *number_p = *number_p << 6 | (text[i] & 0x3Fu);
    }
    bool is_surrogate = *number_p >= 0xD800 && *number_p < 0xE000;
    bool is_first = n == 1 || (text[0] >= 0xC0 && text[0] < 0xF8);
    return is_first && *number_p >= first_of[n] && *number_p <= 0x10FFFF && !is_surrogate ? n : 0;
}

/* Controls, ends of lines, and what changes the direction of writing. */
static bool is_control(uint32_t number) {
    return number < 0x20 || (number >= 0x7F && number < 0xA0) || number == 0x200E ||
           number == 0x200F || (number >= 0x2028 && number <= 0x202E) ||
           (number >= 0x2066 && number <= 0x2069);
}

/* Names of files, and text of theirs, are parts of messages: they must not move a cursor, forge a
   line or change a color. What does not fit is cut. */
static void escape_controls(const char *text, char *escaped, size_t size) {
    size_t used = 0, n;
    for (; *text != '\0'; text += n > 0 ? n : 1) {
        uint32_t number;
        char shown[8];
        n = read_character((const unsigned char *)text, &number);
        size_t n_shown = n;
        if (n == 0)
            n_shown = (size_t)snprintf(shown, sizeof(shown), "\\x%02x", (unsigned char)*text);
        else if (is_control(number))
            n_shown = (size_t)snprintf(shown, sizeof(shown), number < 0x80 ? "\\x%02x" : "\\u%04x",
                                       (unsigned)number);
        else
            memcpy(shown, text, n);
        if (used + n_shown >= size)
            break;
        memcpy(escaped + used, shown, n_shown);
        used += n_shown;
    }
    escaped[used] = '\0';
}

/* ---- messages ---------------------------------------------------------------------------------
 */

static void write_message(const zr_log_t *log, zr_log_level_t level, const char *format,
                          va_list arguments) ZR_PRINTF(3, 0);

static void write_message(const zr_log_t *log, zr_log_level_t level, const char *format,
                          va_list arguments) {
    zr_log_t fallback = zr_log_default();
    if (log == NULL)
        log = &fallback;
    if (level > log->level && level != ZR_LOG_ERROR)
        return;

    char formatted[ZR_LOG_MESSAGE_BYTES], message[ZR_LOG_MESSAGE_BYTES];
    int length = vsnprintf(formatted, sizeof(formatted), format, arguments);
    if (length < 0) {
        snprintf(formatted, sizeof(formatted), "(a message that cannot be formatted: \"%s\")",
                 format);
    } else if ((size_t)length >= sizeof(formatted)) {
        char ending[48];
        int ending_length = snprintf(ending, sizeof(ending), "... (cut: %d bytes in all)", length);
        memcpy(formatted + sizeof(formatted) - 1 - ending_length, ending,
               (size_t)ending_length + 1);
    }
    escape_controls(formatted, message, sizeof(message));

    if (level == ZR_LOG_ERROR)
        zr_last_error_set(message);
    if (level > log->level)
        return;
    if (log->sink != NULL)
        log->sink(log->context, level, log->rank, message);
    else
        write_to_standard_error(level, log->rank, message);
}

void zr_log_write(const zr_log_t *log, zr_log_level_t level, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_message(log, level, format, arguments);
    va_end(arguments);
}

zr_status_t zr_fail(const zr_log_t *log, zr_status_t status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    write_message(log, ZR_LOG_ERROR, format, arguments);
    va_end(arguments);
    return status;
}

zr_size_text_t zr_size_text(uint64_t size_bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    zr_size_text_t size;
    double value = (double)size_bytes / 1024;
    size_t unit = 0;
    if (size_bytes < 1024) {
        snprintf(size.text, sizeof(size.text), "%.31s", zr_count_text(size_bytes, "byte").text);
        return size;
    }
    for (; value >= 1023.95; value /= 1024)
        unit++;
    snprintf(size.text, sizeof(size.text), "%.1f %s", value, units[unit]);
    return size;
}

static bool ends_in_one_of(const char *word, size_t length, const char *letters) {
    return length > 0 && strchr(letters, word[length - 1]) != NULL;
}

zr_count_text_t zr_count_text(uint64_t n, const char *noun) {
    zr_count_text_t count;
    size_t length = strlen(noun);
    const char *ending = "s";
    if (n == 1)
        ending = "";
    else if (ends_in_one_of(noun, length, "sx") ||
             (length > 1 && ends_in_one_of(noun, length, "h") &&
              ends_in_one_of(noun, length - 1, "cs")))
        ending = "es";
    else if (length > 1 && ends_in_one_of(noun, length, "y") &&
             !ends_in_one_of(noun, length - 1, "aeou")) {
        length--;
        ending = "ies";
    } else if (length > 1 && strcmp(noun + length - 2, "fe") == 0) {
        length -= 2;
        ending = "ves";
    }
    snprintf(count.text, sizeof(count.text), "%" PRIu64 " %.*s%s", n, (int)length, noun, ending);
    return count;
}
