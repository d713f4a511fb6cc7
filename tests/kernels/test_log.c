/* The log: levels, ranks, sinks, messages that are too long, and the lines on standard error. */
#include <pthread.h>

#include "kernels/base/log.h"
#include "tests/common/test.h"

typedef struct record {
    int n_messages;
    zr_log_level_t level;
    int rank;
    char message[8192];
} record_t;

static void keep(void *context, zr_log_level_t level, int rank, const char *message) {
    record_t *record = context;
    record->n_messages++;
    record->level = level;
    record->rank = rank;
    snprintf(record->message, sizeof(record->message), "%s", message);
}

TEST(test_sink) {
    record_t record = {0};
    zr_log_t log = {.sink = keep, .context = &record, .level = ZR_LOG_INFO, .rank = -1};
    zr_log_write(&log, ZR_LOG_INFO, "%d of %s", 7, "nine");
    assert_int_equal(record.n_messages, 1);
    assert_int_equal(record.level, ZR_LOG_INFO);
    assert_int_equal(record.rank, -1);
    assert_string_equal(record.message, "7 of nine");

    zr_log_t of_rank = zr_log_with_rank(&log, 3);
    zr_log_write(&of_rank, ZR_LOG_ERROR, "x");
    assert_int_equal(record.rank, 3);
    assert_int_equal(record.level, ZR_LOG_ERROR);
    assert_int_equal(log.rank, -1);
}

TEST(test_level) {
    record_t record = {0};
    zr_log_t log = {.sink = keep, .context = &record, .level = ZR_LOG_WARNING, .rank = 0};
    zr_log_write(&log, ZR_LOG_DEBUG, "no");
    zr_log_write(&log, ZR_LOG_INFO, "no");
    assert_int_equal(record.n_messages, 0);
    zr_log_write(&log, ZR_LOG_WARNING, "yes");
    zr_log_write(&log, ZR_LOG_ERROR, "yes");
    assert_int_equal(record.n_messages, 2);
    assert_int_equal(zr_log_default().level, ZR_LOG_WARNING);
    assert_int_equal(zr_log_default().rank, -1);
    assert_null(zr_log_default().sink);
}

TEST(test_fail) {
    record_t record = {0};
    zr_log_t log = {.sink = keep, .context = &record, .level = ZR_LOG_ERROR, .rank = 5};
    assert_int_equal(zr_fail(&log, ZR_ERR_IO, "%s: %d bytes", "file", 12), ZR_ERR_IO);
    assert_int_equal(record.n_messages, 1);
    assert_int_equal(record.level, ZR_LOG_ERROR);
    assert_string_equal(record.message, "file: 12 bytes");
}

TEST(test_long_message) {
    record_t record = {0};
    zr_log_t log = {.sink = keep, .context = &record, .level = ZR_LOG_ERROR, .rank = -1};
    char text[6001];
    memset(text, 'a', sizeof(text) - 1);

    text[4095] = '\0'; /* the longest that fits */
    zr_log_write(&log, ZR_LOG_ERROR, "%s", text);
    assert_string_equal(record.message, text);

    text[4095] = 'a';
    text[6000] = '\0';
    zr_log_write(&log, ZR_LOG_ERROR, "%s", text);
    assert_int_equal(strlen(record.message), 4095);
    assert_has(record.message, "aaa... (cut: 6000 bytes in all)");
    assert_string_equal(strstr(record.message, "... ("), "... (cut: 6000 bytes in all)");
}

/* Names of files may have anything in them. */
TEST(controls_are_escaped) {
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"\033]0;title\007\033[31mred", "\\x1b]0;title\\x07\\x1b[31mred"},
        {"a\nerror: b\r\tc\x7f", "a\\x0aerror: b\\x0d\\x09c\\x7f"},
        {"gr\u00fc\u00df \u6a21\u578b \U0001F600", "gr\u00fc\u00df \u6a21\u578b \U0001F600"},
        {"\xc2\x9b"
         "2J \u202e \u2066 \u2028",
         "\\u009b2J \\u202e \\u2066 \\u2028"},
        /* not UTF-8: a continuation alone, one too few, overlong, a surrogate, too large */
        {"\x9b \xe6\xa8 \xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xff",
         "\\x9b \\xe6\\xa8 \\xc0\\x80 \\xed\\xa0\\x80 \\xf4\\x90\\x80\\x80 \\xff"}};
    record_t record = {0};
    zr_log_t log = {.sink = keep, .context = &record, .level = ZR_LOG_ERROR, .rank = -1};
    for (size_t i = 0; i < N_OF(cases); i++) {
        zr_log_write(&log, ZR_LOG_ERROR, "%s", cases[i].text);
        assert_string_equal(record.message, cases[i].shown);
        assert_string_equal(zr_last_error(), cases[i].shown);
    }
    char text[4096];
    memset(text, '\033', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    zr_log_write(&log, ZR_LOG_ERROR, "%s", text); /* four times as long: cut at a whole one */
    assert_int_equal(strlen(record.message), 4092);
    assert_string_equal(record.message + 4088, "\\x1b");
}

TEST(test_level_names) {
    assert_string_equal(zr_log_level_name(ZR_LOG_ERROR), "error");
    assert_string_equal(zr_log_level_name(ZR_LOG_WARNING), "warning");
    assert_string_equal(zr_log_level_name(ZR_LOG_INFO), "info");
    assert_string_equal(zr_log_level_name(ZR_LOG_DEBUG), "debug");
}

/* No size that is something is shown as nothing, nor as 1024 of a unit. */
TEST(test_sizes) {
    static const struct {
        uint64_t size_bytes;
        const char *text;
    } cases[] = {{0, "0 bytes"},
                 {1023, "1023 bytes"},
                 {1024, "1.0 KiB"},
                 {1536, "1.5 KiB"},
                 {1048524, "1023.9 KiB"},
                 {1048575, "1.0 MiB"},
                 {(uint64_t)96 << 20, "96.0 MiB"},
                 {((uint64_t)1 << 40) - 1, "1.0 TiB"},
                 {UINT64_MAX, "16.0 EiB"}};
    for (size_t i = 0; i < N_OF(cases); i++)
        assert_string_equal(zr_size_text(cases[i].size_bytes).text, cases[i].text);
}

/* What the default sink writes, read back through a file in the place of standard error. */
TEST(test_standard_error) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    zr_log_t log = zr_log_default();
    zr_log_write(&log, ZR_LOG_WARNING, "careful: %d", 1);
    zr_log_t of_rank = zr_log_with_rank(&log, 2);
    zr_log_write(&of_rank, ZR_LOG_ERROR, "gone");
    zr_log_write(&of_rank, ZR_LOG_INFO, "not written");
    zr_log_write(NULL, ZR_LOG_ERROR, "no log");
    zr_log_t of_null = zr_log_with_rank(NULL, 0);
    zr_log_write(&of_null, ZR_LOG_WARNING, "rank of none");
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);

    char text[512] = {0};
    rewind(file);
    size_t length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = '\0';
    assert_string_equal(text, "warning: careful: 1\n"
                              "rank 2: error: gone\n"
                              "error: no log\n"
                              "rank 0: warning: rank of none\n");
}

static void ignore(void *context, zr_log_level_t level, int rank, const char *message) {
    (void)context, (void)level, (void)rank, (void)message;
}

/* What the thread saw of its last error, before and after it had one. */
static void *fail_elsewhere(void *context) {
    static const zr_log_t quiet = {.sink = ignore};
    char *seen = context;
    snprintf(seen, 64, "<%s>", zr_last_error());
    zr_log_write(&quiet, ZR_LOG_ERROR, "in a thread");
    snprintf(seen + strlen(seen), 64 - strlen(seen), "<%s>", zr_last_error());
    return NULL;
}

/* Of the calling thread, whatever becomes of the message; errors only. */
TEST(test_last_error) {
    zr_log_t quiet = {.sink = ignore, .level = ZR_LOG_DEBUG};
    pthread_t thread;
    char longer[6000], seen[64];
    assert_int_equal(zr_fail(&quiet, ZR_ERR_IO, "%d bytes are missing", 7), ZR_ERR_IO);
    assert_string_equal(zr_last_error(), "7 bytes are missing");
    zr_log_write(&quiet, ZR_LOG_WARNING, "careful");
    assert_string_equal(zr_last_error(), "7 bytes are missing");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, seen), 0);
    pthread_join(thread, NULL);
    assert_string_equal(seen, "<><in a thread>");
    assert_string_equal(zr_last_error(), "7 bytes are missing");
    zr_log_write(&quiet, ZR_LOG_ERROR, "and so: %s", zr_last_error());
    assert_string_equal(zr_last_error(), "and so: 7 bytes are missing");
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    zr_log_write(&quiet, ZR_LOG_ERROR, "%s", longer);
    assert_int_equal(strlen(zr_last_error()), 4095);
}

TEST(test_counts) {
    static const struct {
        uint64_t n;
        const char *noun, *text;
    } cases[] = {{0, "file", "0 files"},
                 {1, "file", "1 file"},
                 {2, "file", "2 files"},
                 {1, "batch", "1 batch"},
                 {3, "batch", "3 batches"},
                 {2, "process", "2 processes"},
                 {2, "box", "2 boxes"},
                 {1, "entry", "1 entry"},
                 {5, "entry", "5 entries"},
                 {5, "day", "5 days"},
                 {2, "path", "2 paths"},
                 {1, "life", "1 life"},
                 {2, "life", "2 lives"},
                 {2, "more message", "2 more messages"},
                 {UINT64_MAX, "byte", "18446744073709551615 bytes"}};
    for (size_t i = 0; i < N_OF(cases); i++)
        assert_string_equal(zr_count_text(cases[i].n, cases[i].noun).text, cases[i].text);
}
