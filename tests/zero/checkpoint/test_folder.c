/*
 * Folders of checkpoints: what calls of the system a checkpoint appears by, in which order, and
 * that at whichever of them a run is killed or refused, the newest complete checkpoint is either
 * the one before or the new one, and readable.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/common/test.h"
#include "tests/zero/checkpoint/sample.h"
#include "zero/checkpoint/folder_internal.h"

/* ---- calls of the system, told, refused, or the last of the process ---- */

static struct {
    int n;
    int fail_at; /* 0: none */
    int error;
    int kill_at;
    bool no_exchange;
    char trace[8192];
} calls;

#define KILLED 42

/* Whether this call is refused. */
static bool meets(const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    size_t used = strlen(calls.trace);
    snprintf(calls.trace + used, sizeof(calls.trace) - used, "%s\n", line);
    calls.n++;
    if (calls.n == calls.kill_at)
        _exit(KILLED);
    if (calls.n == calls.fail_at)
        errno = calls.error;
    return calls.n == calls.fail_at;
}

static const char *name_of(int fd, char name[256]) {
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, 255);
    name[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(name, '/');
    return slash != NULL ? slash + 1 : name;
}

WRAP(int, renameat, int from_fd, const char *from, int to_fd, const char *to) {
    return meets("rename %s %s", from, to) ? -1 : __real_renameat(from_fd, from, to_fd, to);
}

WRAP(int, renameat2, int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
    if (meets("exchange %s %s", from, to))
        return -1;
    if (calls.no_exchange)
        errno = EINVAL;
    return calls.no_exchange ? -1 : __real_renameat2(from_fd, from, to_fd, to, flags);
}

WRAP(int, fsync, int fd) {
    char name[256];
    return meets("fsync %s", name_of(fd, name)) ? -1 : __real_fsync(fd);
}

WRAP(int, mkdirat, int fd, const char *path, mode_t mode) {
    return meets("mkdir %s", path) ? -1 : __real_mkdirat(fd, path, mode);
}

WRAP(int, unlinkat, int fd, const char *path, int flags) {
    return meets("unlink %s", path) ? -1 : __real_unlinkat(fd, path, flags);
}

WRAP(ssize_t, pwrite, int fd, const void *bytes, size_t n_bytes, off_t offset) {
    char name[256];
    return meets("write %s", name_of(fd, name)) ? -1 : __real_pwrite(fd, bytes, n_bytes, offset);
}

static void reset_calls(void) {
    memset(&calls, 0, sizeof(calls));
}

/* ---- a folder ---- */

/* In memory where that can be: what is synchronised here is noted, not measured. */
static char in_memory[] = "/dev/shm/zr-test-folder-XXXXXX",
            on_drive[] = "/tmp/zr-test-folder-XXXXXX";
static char *root = in_memory;

static void shell(const char *format, ...) {
    char command[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof(command), format, arguments);
    va_end(arguments);
    if (system(command) != 0)
        fail_msg("%s", command);
}

static int enter(void **state) {
    if (mkdtemp(root) == NULL)
        root = mkdtemp(on_drive);
    return root == NULL || chdir(root) != 0 ? -1 : 0;
}

static int leave(void **state) {
    if (chdir("/") != 0)
        return -1;
    shell("chmod -R u+rwx '%s'; rm -rf '%s'", root, root);
    return 0;
}

static zr_status_t save(size_t step, size_t keep, const zr_log_t *log) {
    char *path = NULL;
    ZR_TRY(zr_folder_begin("f", step, log, &path));
    char *expected = zr_folder_partial_path("f", step);
    assert_string_equal(path, expected);
    free(expected);
    sample_write(path, step);
    free(path);
    return zr_folder_publish("f", step, &(zr_folder_kept_t){.n = keep}, log);
}

/* The step of the newest; SIZE_MAX: none. */
static size_t newest(kept_log_t *kept) {
    zr_log_t log = kept_log(kept, ZR_LOG_INFO);
    zr_folder_found_t found = {.fd = -1};
    if (zr_folder_newest("f", SIZE_MAX, NULL, &log, &found) != ZR_OK)
        return SIZE_MAX;
    char name[64], path[128];
    size_t step = found.manifest.step;
    zr_folder_name(step, name);
    snprintf(path, sizeof(path), "f/%s", name);
    if (strcmp(found.path, path) != 0) {
        snprintf(path, sizeof(path), "f/%s.old", name);
        assert_string_equal(found.path, path);
    }
    assert_true(fcntl(found.fd, F_GETFD) >= 0);
    zr_folder_found_clear(&found);
    return step;
}

/* What the folder has, sorted, in a line. */
/* But for the files that wait for the next one. */
static void expect_has(const char *expected) {
    char text[1024] = "";
    FILE *stream =
        popen("LC_ALL=C ls -A f | grep -v '^.spare$' | LC_ALL=C sort | tr '\\n' ' '", "r");
    assert_non_null(stream);
    text[fread(text, 1, sizeof(text) - 1, stream)] = '\0';
    pclose(stream);
    assert_string_equal(text, expected);
}

/* ---- tests ---- */

TEST(test_names) {
    static const char *const none[] = {"step-0000006",
                                       "step-000000060",
                                       "step-00000060.old",
                                       "step-0000006a",
                                       ".step-00000060",
                                       "step-",
                                       "step--0000060",
                                       "step-00000060.partial",
                                       "latest",
                                       "step-99999999999999999999",
                                       "step-0x000060",
                                       "step- 0000060",
                                       "step-+0000060",
                                       ""};
    char name[64];
    size_t step = 0;
    zr_folder_name(60, name);
    assert_string_equal(name, "step-00000060");
    assert_true(zr_folder_step(name, &step));
    assert_int_equal(step, 60);
    zr_folder_name(SIZE_MAX, name);
    assert_true(zr_folder_step(name, &step));
    assert_true(step == SIZE_MAX);
    for (size_t i = 0; i < N_OF(none); i++)
        assert_false(zr_folder_step(none[i], &step));
}

/* All that is in it is on the drive before it has its name; its name is before "latest" says it;
 * and only then something goes. */
TEST(test_order) {
    shell("rm -rf f; mkdir f");
    reset_calls();
    assert_ok(save(1, 0, NULL));
    assert_string_equal(calls.trace, "mkdir .step-00000001.partial\n"
                                     "write manifest.json\n"
                                     "fsync manifest.json\n"
                                     "fsync .step-00000001.partial\n"
                                     "rename .step-00000001.partial step-00000001\n"
                                     "fsync f\n"
                                     "write .latest.partial\n"
                                     "fsync .latest.partial\n"
                                     "rename .latest.partial latest\n"
                                     "fsync f\n");
    reset_calls();
    assert_ok(save(2, 1, NULL));
    const char *behind = strstr(calls.trace, "rename .latest.partial latest\nfsync f\n");
    assert_non_null(behind);
    behind += strlen("rename .latest.partial latest\nfsync f\n");
    const char gone[] = "rename step-00000001 .step-00000001.removed\n"
                        "exchange .step-00000001.removed .spare\nunlink ";
    assert_true(strncmp(behind, gone, strlen(gone)) == 0);
    assert_has(behind, "unlink manifest.json\n");
    assert_null(strstr(behind, ".data"));
    expect_has("latest step-00000002 ");
    /* Its data files wait for the next one, which leaves those that it does not use. */
    shell("test \"$(ls f/.spare)\" = \"$(cd f/step-00000002; ls *.data)\"");
    reset_calls();
    assert_ok(save(3, 1, NULL));
    /* The name that they had is gone from the drive before they are written over. */
    assert_has(calls.trace,
               "mkdir .step-00000003.partial\nfsync f\nrename rank-0000|rename rank-00000.data "
               ".step-00000003.partial/.spare-|unlink .spare-rank-00000.data\n");
    /* Where that is not sure, and where somebody has linked them, they are not used. */
    for (int i = 0; i < 2; i++) {
        reset_calls();
        if (i == 0)
            shell("mkdir links; ln f/.spare/*.data links");
        calls.fail_at = i == 0 ? 0 : 2;
        calls.error = EIO;
        assert_ok(save(4 + (size_t)i, 1, NULL));
        assert_null(strstr(calls.trace, "/.spare-"));
    }
    reset_calls();
    shell("rm -r links");
    assert_ok(save(6, 0, NULL));
    shell("! test -e f/.spare; test \"$(ls -A f/step-00000005)\" = \"$(ls -A f/step-00000006)\"");
}

/* Another one of its step is replaced at once, or, where the system cannot do that, by a name that
 * counts as long as there is no other. */
TEST(test_replaces) {
    shell("rm -rf f; mkdir f");
    assert_ok(save(5, 0, NULL));
    shell("echo first >f/step-00000005/mark");
    reset_calls();
    assert_ok(save(5, 0, NULL));
    assert_has(calls.trace, "exchange .step-00000005.partial step-00000005\nfsync f\n");
    expect_has("latest step-00000005 ");
    shell("! test -e f/step-00000005/mark && echo second >f/step-00000005/mark");
    reset_calls();
    calls.no_exchange = true;
    assert_ok(save(5, 0, NULL));
    assert_has(calls.trace, "rename step-00000005 step-00000005.old\nfsync f\n"
                            "rename .step-00000005.partial step-00000005\nfsync f\n");
    expect_has("latest step-00000005 ");
    shell("! test -e f/step-00000005/mark");
    /* What has its name and is no folder. */
    shell("rm -r f/step-00000005; ln -s /etc f/step-00000005");
    assert_ok(save(5, 0, NULL));
    expect_has("latest step-00000005 ");
    shell("test -d f/step-00000005 && ! test -L f/step-00000005 && test -e /etc/passwd");
}

/* A save of `step` over `before`, killed at each of its calls in turn. */
static void kill_at_each(size_t step, size_t before, bool no_exchange) {
    for (int at = 1;; at++) {
        kept_log_t kept;
        int status = 0;
        shell("rm -rf f; mkdir f");
        reset_calls();
        assert_ok(save(before, 0, NULL));
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
            reset_calls();
            calls.kill_at = at;
            calls.no_exchange = no_exchange;
            _exit(save(step, 1, &log) == ZR_OK ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        size_t found = newest(&kept);
        if (found != step && found != before)
            fail_msg("killed at call %d of step %zu over %zu: %s", at, step, before, kept.text);
        if (WEXITSTATUS(status) == 0) {
            assert_true(at > 10);
            return;
        }
        assert_int_equal(WEXITSTATUS(status), KILLED);
        /* And the next save leaves nothing of it. */
        assert_ok(save(step + 1, 1, NULL));
        expect_has(step == 7 ? "latest step-00000008 " : "latest step-00000007 ");
    }
}

TEST(test_killed) {
    kill_at_each(7, 6, false);
    kill_at_each(6, 6, false);
    kill_at_each(6, 6, true);
}

/* Each call refused in turn: the save fails, with the call's file and cause, and the one before is
 * there; or all that has failed is that something could not be removed. */
static void refuse_each(size_t step, size_t before, bool no_exchange, int error) {
    for (int at = 1;; at++) {
        kept_log_t kept;
        zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
        shell("rm -rf f; mkdir f");
        reset_calls();
        assert_ok(save(before, 0, NULL));
        reset_calls();
        char *path = NULL;
        calls.no_exchange = no_exchange;
        if (at == 1) {
            calls.fail_at = 1;
            calls.error = error;
        }
        zr_status_t status = zr_folder_begin("f", step, &log, &path);
        if (status == ZR_OK) {
            calls.fail_at = 0;
            sample_write(path, step);
            free(path);
            calls.n = 1;
            calls.fail_at = at;
            calls.error = error;
            status = zr_folder_publish("f", step, &(zr_folder_kept_t){.n = 1}, &log);
        }
        bool was_refused = calls.fail_at > 0 && calls.n >= calls.fail_at;
        bool is_written = strstr(calls.trace, "fsync .latest.partial\nrename .latest.partial "
                                              "latest\nfsync f\n") != NULL;
        calls.fail_at = 0;
        if (was_refused) {
            assert_has(kept.text, strerror(error));
            assert_has(kept.text, "cannot | f");
        }
        if (status != ZR_OK)
            assert_int_equal(status, ZR_ERR_IO);
        else if (was_refused && !is_written)
            fail_msg("call %d was refused, and nobody minded:\n%s", at, calls.trace);
        zr_folder_abandon("f", step, &log);
        size_t found = newest(&kept);
        if (found != step && found != before)
            fail_msg("refused at call %d of step %zu over %zu: %s", at, step, before, kept.text);
        if (!was_refused) {
            assert_int_equal(status, ZR_OK);
            return;
        }
        assert_ok(save(step + 1, 1, NULL));
        expect_has(step == 7 ? "latest step-00000008 " : "latest step-00000007 ");
    }
}

TEST(test_refused) {
    refuse_each(7, 6, false, EIO);
    refuse_each(6, 6, false, ENOSPC);
    refuse_each(6, 6, true, EROFS);
}

TEST(test_keep) {
    reset_calls();
    shell("rm -rf f");
    for (size_t step = 10; step <= 50; step += 10)
        assert_ok(save(step, 3, NULL));
    expect_has("latest step-00000030 step-00000040 step-00000050 ");
    /* The one that is saved stays, also among larger numbers. */
    assert_ok(save(20, 2, NULL));
    expect_has("latest step-00000020 step-00000050 ");
    kept_log_t kept;
    assert_int_equal(newest(&kept), 50);
    assert_has(kept.text, "f: uses step-00000050, although \"latest\" says step-00000020");
    assert_ok(save(60, 0, NULL));
    expect_has("latest step-00000020 step-00000050 step-00000060 ");
    /* What is no checkpoint is left alone. */
    shell("touch f/step-1 f/notes; mkdir f/step-00000030.backup");
    assert_ok(save(70, 1, NULL));
    expect_has("latest notes step-00000030.backup step-00000070 step-1 ");
    /* A folder within one stays, and with it the one it is in. */
    shell("mkdir f/step-00000070/mine");
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    assert_ok(save(80, 1, &log));
    assert_has(kept.text, "cannot remove f/.spare/mine: Is a directory");
    assert_int_equal(newest(&kept), 80);
}

TEST(test_passes_over) {
    kept_log_t kept;
    shell("rm -rf f");
    for (size_t step = 1; step <= 6; step++)
        assert_ok(save(step, 0, NULL));
    shell("cd f && rm step-00000006/manifest.json && truncate -s 1 step-00000005/rank-00000.data "
          "&& rm step-00000004/rank-00001.sums && truncate -s -9 step-00000003/manifest.json "
          "&& mkdir .step-00000007.partial && ln -s step-00000002 step-00000008 "
          "&& touch step-00000009");
    assert_int_equal(newest(&kept), 2);
    assert_has(kept.text, "skipped f/step-00000009, which is not complete: step-00000009 is "
                          "no|skipped f/step-00000008, which is not complete: step-00000008 is "
                          "no|skipped f/.step-00000007.partial, which was never finished|skipped "
                          "f/step-00000006, which is not complete: cannot open "
                          "step-00000006/manifest.json: No such file or directory|skipped "
                          "f/step-00000005, which is not complete: "
                          "step-00000005/rank-00000.data has 1 byte; 8192 were saved|skipped "
                          "f/step-00000004, which is not complete: cannot open "
                          "step-00000004/rank-00001.sums: No such file or directory|skipped "
                          "f/step-00000003, which is not complete: "
                          "step-00000003/manifest.json: line");
    assert_null(strstr(kept.text, "step-00000001"));
    shell("rm -r f/step-00000002 f/step-00000001");
    assert_int_equal(newest(&kept), SIZE_MAX);
    assert_has(kept.text, "f has no complete checkpoint");
}

/* Nothing is followed out of the folder. */
TEST(test_links) {
    kept_log_t kept;
    shell("rm -rf f outside; mkdir outside");
    assert_ok(save(1, 0, NULL));
    assert_ok(save(2, 0, NULL));
    shell("mv f/step-00000002/rank-00001.data outside; "
          "ln -s ../../outside/rank-00001.data f/step-00000002/rank-00001.data");
    assert_int_equal(newest(&kept), 1);
    assert_has(kept.text,
               "step-00000002/rank-00001.data is a symbolic link; symbolic links are not followed");
    shell("rm f/step-00000002/rank-00001.data; mkfifo f/step-00000002/rank-00001.data");
    assert_int_equal(newest(&kept), 1);
    assert_has(kept.text, "step-00000002/rank-00001.data is not a regular file");
    shell(
        "touch outside/precious; rm -r f/step-00000002; ln -s ../outside f/.step-00000009.partial;"
        "ln -s ../outside/precious f/latest2; ln -sf ../outside/precious f/.latest.partial");
    assert_int_equal(save(3, 1, NULL), ZR_ERR_IO);
    shell("test -e outside/precious && ! test -s outside/precious && rm f/.latest.partial");
    assert_ok(save(3, 1, NULL));
    shell("test -e outside/precious && ! test -L f/.step-00000009.partial");
}

TEST(test_begin) {
    kept_log_t kept;
    zr_log_t log = kept_log(&kept, ZR_LOG_INFO);
    char *path = NULL;
    shell("rm -rf f a; mkdir f; touch f/file");
    assert_int_equal(zr_folder_begin("f/file", 1, &log, &path), ZR_ERR_IO);
    assert_has(kept.text, "cannot open f/file: Not a directory");
    assert_int_equal(zr_folder_begin("f/file/below", 1, &log, &path), ZR_ERR_IO);
    assert_has(kept.text, "cannot make folder f/file/below: Not a directory");
    assert_int_equal(zr_folder_begin("", 1, &log, &path), ZR_ERR_IO);
    reset_calls();
    assert_ok(zr_folder_begin("a//b/c/", 1, &log, &path));
    assert_has(calls.trace, "fsync b\nmkdir .step-00000001.partial\n");
    free(path);
    /* Twice: what was there is gone. */
    shell("touch a/b/c/.step-00000001.partial/rest");
    assert_ok(zr_folder_begin("a/b/c", 1, &log, &path));
    shell("! test -e a/b/c/.step-00000001.partial/rest");
    free(path);
    zr_folder_abandon("a/b/c", 1, &log);
    shell("! test -e a/b/c/.step-00000001.partial");
    zr_folder_abandon("a/b/c", 1, &log);
}

const test_group_t test_group = {enter, leave};
