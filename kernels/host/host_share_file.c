/*
 * A file of huge pages, of which nothing is seen in any folder: see host_share.h.
 *
 * Linux gives huge pages to a memfd where /sys/kernel/mm/transparent_hugepage/shmem_enabled says
 * so, which by default it does not. The same kind of file in a tmpfs that was mounted with
 * huge=always has them in any case. Such a mount needs no folder (fsmount), but the right to mount:
 * root's; or that of anybody in a user namespace of his own, where the system allows those. A
 * process with several threads cannot enter one; a child that shares its memory and its open files
 * can, and leaves the file behind.
 */
#include "kernels/host/host_share.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of linux/mount.h (Linux 5.2), which clashes with sys/mount.h in some systems' headers. */
enum {
    ZR_FSOPEN_CLOEXEC = 1,
    ZR_FSCONFIG_SET_STRING = 1,
    ZR_FSCONFIG_CMD_CREATE = 6,
    ZR_FSMOUNT_CLOEXEC = 1
};

#define ZR_SHMEM_SETTING "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

/* "always within_size [advise] never deny force" */
static bool memory_files_are_huge(void) {
    char text[128] = "";
    int file = open(ZR_SHMEM_SETTING, O_RDONLY | O_CLOEXEC);
    ssize_t n = file >= 0 ? read(file, text, sizeof(text) - 1) : -1;
    if (file >= 0)
        close(file);
    return n > 0 && (strstr(text, "[always]") != NULL || strstr(text, "[within_size]") != NULL ||
                     strstr(text, "[advise]") != NULL || strstr(text, "[force]") != NULL);
}

#if defined(SYS_fsopen) && defined(SYS_fsconfig) && defined(SYS_fsmount)

/* A file of a tmpfs that nobody else can reach. A descriptor, or -1 with errno. */
static int open_in_own_tmpfs(void) {
    int file = -1, mount = -1;
    int context = (int)syscall(SYS_fsopen, "tmpfs", ZR_FSOPEN_CLOEXEC);
    if (context < 0)
        return -1;
    if (syscall(SYS_fsconfig, context, ZR_FSCONFIG_SET_STRING, "huge", "always", 0) == 0 &&
        syscall(SYS_fsconfig, context, ZR_FSCONFIG_SET_STRING, "size", "0", 0) == 0 &&
        syscall(SYS_fsconfig, context, ZR_FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
        mount = (int)syscall(SYS_fsmount, context, ZR_FSMOUNT_CLOEXEC, 0);
    if (mount >= 0)
        file = openat(mount, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    int error = errno;
    if (mount >= 0)
        close(mount);
    close(context);
    errno = error;
    return file;
}

typedef struct errand {
    unsigned user, group;
    int file, error;
} errand_t;

static void write_text(const char *path, const char *text) {
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return;
    ssize_t n = write(file, text, strlen(text));
    (void)n; /* what follows fails then */
    close(file);
}

/* The child: in its namespace this user has to be somebody, to make a file. */
static int run_errand(void *context) {
    errand_t *errand = context;
    char text[64];
    snprintf(text, sizeof(text), "%u %u 1", errand->user, errand->user);
    write_text("/proc/self/uid_map", text);
    write_text("/proc/self/setgroups", "deny");
    snprintf(text, sizeof(text), "%u %u 1", errand->group, errand->group);
    write_text("/proc/self/gid_map", text);
    errand->file = open_in_own_tmpfs();
    errand->error = errno;
    return 0;
}

static int open_in_namespace(void) {
    enum { STACK_BYTES = 64 << 10 };
    errand_t errand = {.user = geteuid(), .group = getegid(), .file = -1, .error = EPERM};
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return -1;
    int flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_NEWUSER | CLONE_NEWNS;
    pid_t child = clone(run_errand, stack + STACK_BYTES, flags, &errand);
    int error = errno;
    if (child > 0)
        while (waitpid(child, NULL, __WALL) < 0 && errno == EINTR)
            ;
    munmap(stack, STACK_BYTES);
    errno = child > 0 ? errand.error : error;
    return errand.file;
}

#else

static int open_in_own_tmpfs(void) {
    errno = ENOSYS;
    return -1;
}

static int open_in_namespace(void) {
    errno = ENOSYS;
    return -1;
}

#endif

int zr_host_open_huge_file(char *why, size_t why_bytes) {
    int file = -1;
    if (memory_files_are_huge())
        file = memfd_create("zero-device-memory", MFD_CLOEXEC);
    if (file < 0)
        file = open_in_own_tmpfs();
    if (file < 0 && errno == EPERM)
        file = open_in_namespace();
    if (file < 0)
        snprintf(why, why_bytes,
                 "no file of huge pages: " ZR_SHMEM_SETTING
                 " does not give them to memory files (advise would), and no tmpfs can be mounted, "
                 "in a user namespace of its own either (%s)",
                 strerror(errno));
    return file;
}
