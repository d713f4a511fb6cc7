/*
 * The store "uring" on the real system: files that others change, folders that vanish, drives
 * and limits that are too small, a process that is killed, two stores on one path.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "offload/uring_internal.h"
#include "tests/offload/store_fixture.h"
#include "tests/offload/store_oracle.h"

static const size_t sizes[] = {3 * CHUNK, 2 * REQUEST};
#define N_SIZES 2

static int setup(void **state) {
    fixture_t *f = malloc(sizeof(*f));
    assert_non_null(f);
    fixture_open(f, "uring", 1);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fixture_close(*state);
    free(*state);
    return 0;
}

static void put_all(fixture_t *f, unsigned char *buffer) {
    for (size_t e = 0; e < N_SIZES; e++) {
        fill_pattern(buffer, sizes[e], e);
        assert_ok(put_now(f->store, e, 0, sizes[e], buffer));
    }
}

static void assert_right(fixture_t *f, size_t extent, unsigned char *buffer) {
    unsigned char *expected = new_buffer(sizes[extent], 0);
    fill_pattern(expected, sizes[extent], extent);
    assert_ok(get_now(f->store, extent, 0, sizes[extent], buffer));
    assert_memory_equal(buffer, expected, sizes[extent]);
    free_buffer(expected);
}

/* The store's file, opened once more and through the page cache. */
static int open_again(const fixture_t *f) {
    char path[64], target[512];
    for (int fd = 3; fd < 1000; fd++) {
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        ssize_t length = readlink(path, target, sizeof(target) - 1);
        if (length < 0)
            continue;
        target[length] = '\0';
        if (strstr(target, f->folders[0]) != NULL && strstr(target, "(deleted)") != NULL)
            return open(path, O_RDWR);
    }
    return -1;
}

TEST_WITH(test_flipped_bit, setup, teardown) {
    fixture_t *f = *state;
    unsigned char *buffer = new_buffer(2 * REQUEST, 0), byte = 0;
    assert_ok(fixture_create(f, sizes, N_SIZES));
    put_all(f, buffer);
    int fd = open_again(f);
    assert_true(fd >= 0);
    off_t place = (off_t)(CHUNK + 100); /* the first extent lies first */
    assert_int_equal(pread(fd, &byte, 1, place), 1);
    byte ^= 16;
    assert_int_equal(pwrite(fd, &byte, 1, place), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
    assert_refused(f, ZR_ERR_FORMAT, get_now(f->store, 0, 0, sizes[0], buffer),
                   "get of \"extent 0\": the 8192 bytes at 8192 are not those that were put: rank "
                   "3's file in ");
    assert_refused(f, ZR_ERR_FORMAT, get_now(f->store, 0, 0, sizes[0], buffer),
                   ", offset 8192, length 8192: XXH3 ");
    assert_right(f, 1, buffer);
    assert_ok(get_now(f->store, 0, 2 * CHUNK, CHUNK, buffer));
    put_all(f, buffer);
    assert_right(f, 0, buffer);
    free_buffer(buffer);
}

TEST_WITH(test_truncated_file, setup, teardown) {
    fixture_t *f = *state;
    static const off_t lengths[] = {0, CHUNK + 5, 2 * CHUNK};
    unsigned char *buffer = new_buffer(2 * REQUEST, 0);
    assert_ok(fixture_create(f, sizes, N_SIZES));
    for (size_t i = 0; i < 3; i++) {
        put_all(f, buffer);
        int fd = open_again(f);
        assert_int_equal(ftruncate(fd, lengths[i]), 0);
        close(fd);
        zr_status_t status = get_now(f->store, 0, 0, sizes[0], buffer);
        assert_true(status == ZR_ERR_IO || status == ZR_ERR_FORMAT);
        assert_logged(f, status == ZR_ERR_IO ? "another process truncated it" : "are not those");
        fixture_log_clear(f);
        assert_refused(f, ZR_ERR_IO, get_now(f->store, 1, 0, sizes[1], buffer),
                       "unexpected end of file");
    }
    put_all(f, buffer);
    assert_right(f, 0, buffer);
    assert_right(f, 1, buffer);
    free_buffer(buffer);
}

TEST_WITH(test_vanished_folder, setup, teardown) {
    fixture_t *f = *state;
    oracle_result_t result;
    assert_ok(fixture_create(f, oracle_sizes, ORACLE_N_EXTENTS));
    assert_int_equal(count_names(f->folders[0]), 0);
    assert_int_equal(rmdir(f->folders[0]), 0);
    oracle_run(f->store, 100, 8, 3, &result);
    for (int status = 1; status < ORACLE_N_STATUSES; status++)
        assert_int_equal(result.n_ended[status], 0);
    fixture_log_clear(f);
    assert_refused(f, ZR_ERR_IO, fixture_create(f, sizes, N_SIZES),
                   "No such file or directory (errno 2)");
    f->paths[0] = "";
    assert_refused(f, ZR_ERR_ARGUMENT, fixture_create(f, sizes, N_SIZES), "path 1 of 1 is empty");
    f->options.n_paths = 0;
    assert_refused(f, ZR_ERR_ARGUMENT, fixture_create(f, sizes, N_SIZES), "0 paths; 1 to 16");
    f->options.n_paths = ZR_STORE_MAX_PATHS + 1;
    assert_refused(f, ZR_ERR_ARGUMENT, fixture_create(f, sizes, N_SIZES), "17 paths");
    f->paths[0] = NULL;
}

/* Both have the same extents; each keeps its own. */
TEST_WITH(test_two_stores_on_one_path, setup, teardown) {
    fixture_t *f = *state;
    zr_store_t *stores[2];
    unsigned char *buffers[2], *got = new_buffer(2 * REQUEST, 0);
    const zr_store_extent_t extent = {"same", 2 * REQUEST, 0};
    for (uint64_t i = 0; i < 2; i++) {
        buffers[i] = new_buffer(2 * REQUEST, 0);
        fill_pattern(buffers[i], 2 * REQUEST, i);
        assert_ok(zr_store_create("uring", &f->options, &extent, 1, &stores[i]));
    }
    for (int i = 0; i < 2; i++)
        assert_ok(put_now(stores[i], 0, 0, 2 * REQUEST, buffers[i]));
    for (int i = 0; i < 2; i++) {
        assert_ok(get_now(stores[i], 0, 0, 2 * REQUEST, got));
        assert_memory_equal(got, buffers[i], 2 * REQUEST);
        zr_store_destroy(&stores[i]); /* the other goes on */
        free_buffer(buffers[i]);
    }
    free_buffer(got);
}

/* ---- in a process of its own ---------------------------------------------------------------- */

enum { CHILD_OK = 0, CHILD_WRONG = 1, CHILD_CANNOT = 2 };

/* Run it in a child; false when this machine does not permit what it needs. */
static bool run_child(int (*body)(fixture_t *), fixture_t *f) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(body(f));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), CHILD_WRONG);
    return WEXITSTATUS(status) == CHILD_OK;
}

static int expect(bool is_right, const fixture_t *f, const char *what) {
    if (!is_right)
        fprintf(stderr, "not %s; the log:\n%s", what, f->text);
    return is_right ? CHILD_OK : CHILD_WRONG;
}

/* A file system of 1 MiB: what is too large is refused with numbers, what fits works. */
static int fill_small_system(fixture_t *f) {
    static const size_t large = (size_t)4 << 20, small = (size_t)512 << 10;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", f->folders[0], "tmpfs", 0, "size=1m") != 0)
        return CHILD_CANNOT;
    if (expect(fixture_create(f, &large, 1) == ZR_ERR_BUDGET &&
                   strstr(f->text, "(4194304 bytes) cannot be reserved") != NULL &&
                   strstr(f->text, " is free there") != NULL,
               f, "refused for want of room") != CHILD_OK)
        return CHILD_WRONG;
    unsigned char *buffer = new_buffer(small, 0);
    memset(buffer, 9, small);
    bool works = fixture_create(f, &small, 1) == ZR_OK &&
                 put_now(f->store, 0, 0, small, buffer) == ZR_OK &&
                 get_now(f->store, 0, 0, small, buffer) == ZR_OK;
    zr_store_destroy(&f->store);
    free_buffer(buffer);
    return expect(works, f, "working on a small file system");
}

TEST_WITH(test_full_file_system, setup, teardown) {
    fixture_t *f = *state;
    if (!run_child(fill_small_system, f))
        skip();
}

/* The signal of the limit would end the process. */
static int meet_file_limit(fixture_t *f) {
    static const size_t large = (size_t)4 << 20;
    const struct rlimit limit = {(rlim_t)1 << 20, (rlim_t)1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return CHILD_CANNOT;
    return expect(fixture_create(f, &large, 1) == ZR_ERR_BUDGET &&
                      strstr(f->text, "more than the 1048576 that a file may have") != NULL,
                  f, "refused for a limit");
}

TEST_WITH(test_file_limit, setup, teardown) {
    fixture_t *f = *state;
    if (!run_child(meet_file_limit, f))
        skip();
}

/* An ordinary user with little memory that may be locked: slower, with a warning, and right. */
static int meet_memory_limit(fixture_t *f) {
    static const size_t size = (size_t)1 << 20;
    const struct rlimit limit = {(rlim_t)128 << 10, (rlim_t)128 << 10};
    if (chmod(f->folders[0], 0777) != 0 || setrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) ||
        access(f->folders[0], W_OK) != 0)
        return CHILD_CANNOT;
    unsigned char *buffer = new_buffer(size, 0), *got = new_buffer(size, 0);
    const zr_store_buffer_t registered = {buffer, size};
    fill_pattern(buffer, size, 1);
    bool is_right = fixture_create(f, &size, 1) == ZR_OK &&
                    zr_store_register(f->store, &registered, 1) == ZR_OK &&
                    !zr_store_info(f->store)->is_registered &&
                    strstr(f->text, "RLIMIT_MEMLOCK is 128.0 KiB") != NULL &&
                    put_now(f->store, 0, 0, size, buffer) == ZR_OK &&
                    get_now(f->store, 0, 0, size, got) == ZR_OK && memcmp(buffer, got, size) == 0;
    zr_store_destroy(&f->store);
    free_buffer(buffer);
    free_buffer(got);
    return expect(is_right, f, "going on with a warning");
}

TEST_WITH(test_memory_limit, setup, teardown) {
    fixture_t *f = *state;
    if (!run_child(meet_memory_limit, f))
        skip();
}

/* A process that is killed leaves nothing. */
TEST_WITH(test_killed, setup, teardown) {
    fixture_t *f = *state;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        unsigned char *buffer = new_buffer(2 * REQUEST, 0);
        zr_store_ticket_t ticket;
        memset(buffer, 1, 2 * REQUEST);
        if (fixture_create(f, sizes, N_SIZES) == ZR_OK &&
            zr_store_put(f->store, 1, 0, sizes[1], buffer, &ticket) == ZR_OK)
            raise(SIGKILL);
        _exit(CHILD_WRONG);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(count_names(f->folders[0]), 0);
}

/* A file system in memory, which has direct transfers or has not. */
TEST_WITH(test_memory_file_system, setup, teardown) {
    fixture_t *f = *state;
    const char *paths[] = {"/dev/shm"};
    oracle_result_t result;
    if (access(paths[0], W_OK) != 0)
        skip();
    f->options.paths = paths;
    assert_ok(fixture_create(f, oracle_sizes, ORACLE_N_EXTENTS));
    oracle_run(f->store, 200, 8, 4, &result);
    for (int i = 1; i < ORACLE_N_STATUSES; i++)
        assert_int_equal(result.n_ended[i], 0);
    zr_store_destroy(&f->store);
}

/* What was put, and where the store says that it is, with the checksums that it says. */
static void assert_kept(const fixture_t *f, size_t extent, FILE *file) {
    unsigned char *expected = new_buffer(sizes[extent], 0), *kept = new_buffer(sizes[extent], 0);
    size_t n_chunks = 0;
    const uint64_t *sums = zr_store_checksums(f->store, extent, &n_chunks);
    fill_pattern(expected, sizes[extent], extent);
    assert_int_equal(fseek(file, (long)zr_store_file_offset(f->store, extent), SEEK_SET), 0);
    assert_int_equal(fread(kept, 1, sizes[extent], file), sizes[extent]);
    assert_memory_equal(kept, expected, sizes[extent]);
    assert_int_equal(n_chunks, sizes[extent] / CHUNK);
    for (size_t i = 0; i < n_chunks; i++)
        assert_true(sums[i] == zr_store_checksum(expected + i * CHUNK, CHUNK));
    free_buffer(expected);
    free_buffer(kept);
}

/* A file with a name is as long as its extents, stays, and is never one that was there. */
TEST_WITH(test_named_file, setup, teardown) {
    fixture_t *f = *state;
    unsigned char *buffer = new_buffer(2 * REQUEST, 0);
    char path[512];
    f->options.file_name = "kept.data";
    assert_ok(fixture_create(f, sizes, N_SIZES));
    put_all(f, buffer);
    assert_ok(zr_store_sync(f->store));
    snprintf(path, sizeof(path), "%s/kept.data", f->folders[0]);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (size_t e = 0; e < N_SIZES; e++)
        assert_kept(f, e, file);
    zr_store_destroy(&f->store);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    assert_int_equal(ftell(file), sizes[0] + sizes[1]);
    fclose(file);
    assert_int_equal(fixture_create(f, sizes, N_SIZES), ZR_ERR_IO);
    assert_int_equal(unlink(path), 0);
    f->options.file_name = NULL;
    free_buffer(buffer);
}

static const zr_store_transfer_t *transfer_of(const fixture_t *f, zr_store_ticket_t ticket) {
    return &f->store->transfers[ticket % ZR_STORE_MAX_TRANSFERS];
}

/* What goes first is queued ahead of all that does not, then what is read, in the order of the
 * calls, also of what was begun in part. */
TEST_WITH(test_some_go_first, setup, teardown) {
    fixture_t *f = *state;
    const zr_store_extent_t extents[] = {
        {.name = "others", .size_bytes = 12 * REQUEST},
        {.name = "first", .size_bytes = 4 * REQUEST, .goes_first = true}};
    unsigned char *buffers[4], *found = new_buffer(4 * REQUEST, 0);
    zr_store_ticket_t tickets[5];
    f->options.depth = f->options.submit_batch = 1;
    assert_ok(zr_store_create("uring", &f->options, extents, 2, &f->store));
    for (size_t i = 0; i < 4; i++) {
        buffers[i] = new_buffer(4 * REQUEST, 0);
        fill_pattern(buffers[i], 4 * REQUEST, i);
    }
    assert_ok(put_now(f->store, 0, 8 * REQUEST, 4 * REQUEST, buffers[0]));
    for (size_t i = 0; i < 2; i++) /* the first request of one is with the system */
        assert_ok(zr_store_put(f->store, 0, i * 4 * REQUEST, 4 * REQUEST, buffers[i], &tickets[i]));
    for (size_t i = 2; i < 4; i++)
        assert_ok(
            zr_store_put(f->store, 1, (i - 2) * 2 * REQUEST, 2 * REQUEST, buffers[i], &tickets[i]));
    assert_ok(zr_store_get(f->store, 0, 8 * REQUEST, 4 * REQUEST, found, &tickets[4]));
    const zr_store_transfer_t *queued = ((const zr_uring_store_t *)f->store)->oldest;
    const size_t order[] = {2, 3, 4, 0, 1};
    for (size_t i = 0; i < 5; i++, queued = queued->next)
        assert_ptr_equal(queued, transfer_of(f, tickets[order[i]]));
    assert_null(queued);
    for (size_t i = 0; i < 5; i++)
        assert_ok(zr_store_wait(f->store, tickets[i]));
    assert_memory_equal(found, buffers[0], 4 * REQUEST);
    for (size_t i = 0; i < 4; i++) {
        size_t size_bytes = i < 2 ? 4 * REQUEST : 2 * REQUEST;
        assert_ok(get_now(f->store, i / 2, i % 2 * size_bytes, size_bytes, found));
        assert_memory_equal(found, buffers[i], size_bytes);
        free_buffer(buffers[i]);
    }
    free_buffer(found);
}

/* One name, and two folders for it. */
TEST_WITH(test_named_file_of_two_folders, setup, teardown) {
    fixture_t *f = *state;
    const char *paths[] = {f->folders[0], f->folders[0]};
    f->options.file_name = "kept.data";
    f->options.paths = paths;
    f->options.n_paths = 2;
    assert_int_equal(fixture_create(f, sizes, N_SIZES), ZR_ERR_ARGUMENT);
    assert_int_equal(count_names(f->folders[0]), 0);
}

int main(void) {
    if (fixture_probe() != 0)
        return FIXTURE_SKIPPED;
    return run_all_tests(NULL, NULL);
}
