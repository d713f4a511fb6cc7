/* Files that a user names: read whole whatever they are, and never waited for without an end. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "kernels/base/text_file.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"

const test_group_t test_group = {enter_test_folder, leave_test_folder};

static kept_log_t kept;

static void expect_refused(const char *path, size_t max_bytes, zr_status_t expected,
                           const char *said) {
    zr_log_t log = kept_log(&kept, ZR_LOG_ERROR);
    char *text = NULL;
    size_t n_bytes = 0;
    assert_int_equal(zr_text_file_read(path, max_bytes, &log, &text, &n_bytes), expected);
    assert_null(text);
    assert_int_equal(kept.n_messages, 1);
    assert_non_null(strstr(kept.text, said));
}

static void write_bytes(const char *path, size_t n) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (size_t i = 0; i < n; i++)
        fputc((int)(i % 251), file);
    assert_int_equal(fclose(file), 0);
}

TEST(all_of_a_file_and_a_zero) {
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        char *text = NULL;
        size_t n_bytes = 0;
        write_bytes("file", sizes[i]);
        assert_ok(zr_text_file_read("file", sizes[i], NULL, &text, &n_bytes));
        assert_int_equal(n_bytes, sizes[i]);
        assert_int_equal(text[n_bytes], 0);
        for (size_t k = 0; k < n_bytes; k++)
            assert_int_equal((unsigned char)text[k], k % 251);
        free(text);
    }
}

TEST(refused) {
    write_bytes("large", 5001);
    expect_refused("large", 5000, ZR_ERR_FORMAT, "large: is larger than the limit of 5000 bytes");
    expect_refused("/dev/zero", 1 << 20, ZR_ERR_FORMAT, "/dev/zero: is larger than");
    expect_refused(".", 100, ZR_ERR_IO, ".: cannot read it: ");
    expect_refused("nowhere", 100, ZR_ERR_IO, "nowhere: cannot open it: ");
    expect_refused(NULL, 100, ZR_ERR_ARGUMENT, "needs a path");
}

TEST(pipe_without_a_writer_is_empty) {
    char *text = NULL;
    size_t n_bytes = 1;
    assert_int_equal(mkfifo("nobody", 0600), 0);
    assert_ok(zr_text_file_read("nobody", 100, NULL, &text, &n_bytes));
    assert_int_equal(n_bytes, 0);
    free(text);
}

/* The reader finds nothing at first, as the writer is there before it, and writes when it is gone.
 */
TEST(pipe_with_a_writer) {
    int ends[2];
    char path[64], *text = NULL;
    size_t n_bytes = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        usleep(20000);
        _exit(write(ends[1], "12345678", 8) == 8 ? 0 : 1);
    }
    close(ends[1]);
    snprintf(path, sizeof(path), "/dev/fd/%d", ends[0]);
    assert_ok(zr_text_file_read(path, 100, NULL, &text, &n_bytes));
    assert_string_equal(text, "12345678");
    free(text);
    close(ends[0]);
}

static void note_alarm(int number) {
    (void)number;
}

/* A signal that may come too early comes again. */
TEST(signal_ends_the_wait_for_a_pipe) {
    struct sigaction action = {.sa_handler = note_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 10000}, {0, 10000}}, never = {{0, 0}, {0, 0}};
    assert_int_equal(mkfifo("silent", 0600), 0);
    int writer = open("silent", O_RDWR | O_CLOEXEC);
    assert_true(writer >= 0);
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    expect_refused("silent", 100, ZR_ERR_IO, "silent: cannot read it: Interrupted");
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    close(writer);
}
