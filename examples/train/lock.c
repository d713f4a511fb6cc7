/*
 * The lock is of a file (flock), which the kernel drops with the process. The file says who holds
 * it, for the message; it is removed at the end, and one that a killed run has left is used again.
 */
#include "examples/train/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_NAME ".run.lock"
#define HOLDER_BYTES 128

/* "process 7 on host" */
static void write_holder(int fd) {
    char host[64] = "", holder[HOLDER_BYTES];
    gethostname(host, sizeof(host) - 1);
    int n = snprintf(holder, sizeof(holder), "process %ld on %s", (long)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, holder, (size_t)n, 0) != n)
        return; /* the lock holds without */
}

static zr_status_t refuse(const char *dir, int fd, const zr_log_t *log) {
    char holder[HOLDER_BYTES] = "";
    ssize_t n = pread(fd, holder, sizeof(holder) - 1, 0);
    holder[n > 0 ? n : 0] = '\0';
    for (char *c = holder; *c != '\0'; c++)
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "--checkpoint-dir %s: another run is using this folder%s%s%s; give this run its "
                   "own folder, or wait until the other has ended",
                   dir, holder[0] != '\0' ? " (" : "", holder, holder[0] != '\0' ? ")" : "");
}

/* Whether the path still leads to the file: its holder may have removed it meanwhile. */
static bool is_there(int fd, const char *path) {
    struct stat own, named;
    return fstat(fd, &own) == 0 && stat(path, &named) == 0 && own.st_ino == named.st_ino &&
           own.st_dev == named.st_dev;
}

static zr_status_t hold(const char *dir, const char *path, const zr_log_t *log, int *fd_p) {
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0)
            return zr_fail(log, ZR_ERR_IO, "--checkpoint-dir %s: cannot make %s: %s", dir,
                           LOCK_NAME, strerror(errno));
        zr_status_t status = ZR_OK;
        bool is_held = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (!is_held && errno == EWOULDBLOCK)
            status = refuse(dir, fd, log);
        else if (!is_held)
            zr_log_write(log, ZR_LOG_WARNING,
                         "--checkpoint-dir %s: its file system has no locks (%s): a second run in "
                         "the same folder would not be refused",
                         dir, strerror(errno));
        if (status == ZR_OK && is_there(fd, path)) {
            *fd_p = fd;
            return ZR_OK;
        }
        close(fd);
        if (status != ZR_OK)
            return status;
    }
}

zr_status_t train_lock_take(const char *dir, const zr_log_t *log, train_lock_t *lock_p) {
    size_t size = strlen(dir) + sizeof("/" LOCK_NAME);
    int fd = -1;
    char *path = malloc(size);
    if (path == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a path");
    snprintf(path, size, "%s/" LOCK_NAME, dir);
    zr_status_t status = hold(dir, path, log, &fd);
    if (status != ZR_OK) {
        free(path);
        return status;
    }
    write_holder(fd);
    *lock_p = (train_lock_t){.path = path, .fd = fd};
    return ZR_OK;
}

void train_lock_drop(train_lock_t *lock) {
    if (lock->path == NULL)
        return;
    unlink(lock->path); /* while it is held: a run that comes now makes another */
    close(lock->fd);
    free(lock->path);
    lock->path = NULL;
}
