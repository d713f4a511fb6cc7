/*
 * The GPT on a drive that is full: a small file system of the test's own, which nobody else sees.
 * What does not fit is refused at the start, because it is reserved. Where a file system reserves
 * nothing and says that it does, the write that has no room is named. Either way nothing is left.
 */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "tests/common/test.h"
#include "tests/offload/fault_ring.h"
#include "tests/offload/store_fixture.h"
#include "tests/ref/gpt_on_drive.h"

#define PAGE_KIB 4

static char folder[] = "test-gpt-full-XXXXXX";

static const gpt_variant_t variants[] = {{1, 3, ZR_DTYPE_F32, .n_buffers = 3},
                                         {2, 2, ZR_DTYPE_F32, .n_buffers = 3}};
#define N_VARIANTS (N_OF(variants))

/* ---- the file system ----------------------------------------------------------------------- */

static bool write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY, 0);
    bool is_written = file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text);
    if (file >= 0)
        close(file);
    return is_written;
}

/* Mounts of this process from now on are its own, and it may make them. */
static bool enter_namespace(void) {
    char users[64], groups[64];
    snprintf(users, sizeof(users), "0 %u 1", (unsigned)getuid());
    snprintf(groups, sizeof(groups), "0 %u 1", (unsigned)getgid());
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 && write_text("/proc/self/uid_map", users) &&
           write_text("/proc/self/setgroups", "deny") && write_text("/proc/self/gid_map", groups) &&
           mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static bool mount_drive(size_t size_kib) {
    char options[64];
    snprintf(options, sizeof(options), "size=%zuk", size_kib);
    return mount("none", folder, "tmpfs", 0, options) == 0;
}

/* Nothing is on it, and nothing has its room. */
static void unmount_drive(void) {
    struct statvfs system;
    assert_int_equal(count_names(folder), 0);
    assert_int_equal(statvfs(folder, &system), 0);
    assert_int_equal(system.f_bfree, system.f_blocks);
    assert_int_equal(umount(folder), 0);
}

/* ---- runs ---------------------------------------------------------------------------------- */

static void run_on(size_t size_kib, fault_kind_t kind, gpt_run_t *run) {
    assert_true(mount_drive(size_kib));
    fault_arm(kind, 0, 1, 1);
    gpt_run(run);
    unmount_drive();
}

/* All ranks have ended well, in the right weights; or one has said this, and the others have ended
 * because of that. */
static bool check(const gpt_run_t *run, uint64_t reference, zr_status_t status, const char *said) {
    bool all = true, one_has_said = false;
    for (int r = 0; r < run->ranks.n_ranks; r++) {
        const char *text = run->ranks.last_error[r];
        bool is_cause = run->ranks.status[r] == status && strstr(text, said) != NULL;
        if (run->ranks.status[r] == ZR_OK)
            assert_true(run->hash[r] == reference);
        else if (!is_cause && (run->ranks.status[r] != ZR_ERR_COMM || strstr(text, said) == NULL))
            fail_msg("rank %d: \"%s\" does not say \"%s\"", r, text, said);
        all &= run->ranks.status[r] == ZR_OK;
        one_has_said |= is_cause;
    }
    assert_true(all != one_has_said);
    return all;
}

/* From too little for anything to enough for all. */
static void fill_up(fault_kind_t kind, zr_status_t status, const char *said) {
    for (size_t i = 0; i < N_VARIANTS; i++) {
        gpt_run_t run = {.variant = variants[i]};
        size_t size_kib = PAGE_KIB, n_refused = 0;
        gpt_run(&run);
        uint64_t reference = run.hash[0];
        run.paths = folder;
        for (bool fits = false; !fits; size_kib += size_kib / 4 + PAGE_KIB) {
            run_on(size_kib, kind, &run);
            fits = check(&run, reference, status, said);
            n_refused += !fits;
        }
        print_message("variant %zu: refused %zu times, then %zu KiB are enough\n", i, n_refused,
                      size_kib);
        assert_true(n_refused > 5);
    }
}

TEST(no_room_is_met_at_the_start) {
    fill_up(FAULT_NONE, ZR_ERR_BUDGET, "No space left on device (errno 28)");
}

/* Of what has room, there is a part on the drive when the rest has none. */
TEST(a_drive_that_does_not_hold_to_it) {
    fill_up(FAULT_SPARSE, ZR_ERR_IO, "No space left on device (errno 28)");
}

int main(void) {
    if (fixture_probe() != 0)
        return FIXTURE_SKIPPED;
    if (mkdtemp(folder) == NULL || !enter_namespace() || !mount_drive(PAGE_KIB)) {
        printf("skipped: no file system of its own can be had here: %s\n", strerror(errno));
        rmdir(folder);
        return FIXTURE_SKIPPED;
    }
    unmount_drive();
    int n_failed = run_all_tests(NULL, NULL);
    umount(folder);
    rmdir(folder);
    return n_failed;
}
