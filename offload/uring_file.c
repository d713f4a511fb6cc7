/*
 * The file of a store.
 *
 * It has no name, unless it is to be kept, so that the system removes it whichever way the process
 * ends, and so that nobody else can open it. All its room is reserved before the first transfer: a
 * full drive is met at the start of a run, and no transfer ever changes the file's length, which
 * costs much.
 */
#include "offload/uring_file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MAX_BLOCK_BYTES ((size_t)65536)
#define MIN_ALIGN_BYTES ((size_t)512)
#define FILL_BYTES ((size_t)1 << 20)

static zr_status_t fail_errno(const zr_log_t *log, const char *operation, const char *name,
                              int error) {
    const char *advice =
        error == EMFILE || error == ENFILE ? "; raise RLIMIT_NOFILE (ulimit -n)" : "";
    return zr_fail(log, ZR_ERR_IO, "store: %s of %s failed: %s (errno %d)%s", operation, name,
                   strerror(error), error, advice);
}

/* ---- room ---------------------------------------------------------------------------------- */

static zr_status_t fail_full(const zr_uring_file_t *file, uint64_t size_bytes, int error,
                             const zr_log_t *log) {
    struct statvfs system;
    zr_size_text_t free_size = {"an unknown size"};
    if (fstatvfs(file->fd, &system) == 0)
        free_size = zr_size_text((uint64_t)system.f_bavail * system.f_frsize);
    return zr_fail(log, ZR_ERR_BUDGET,
                   "store: %s (%llu bytes) cannot be reserved for %s: %s (errno %d), %s is free "
                   "there; free some, give another path, or keep more in memory",
                   zr_size_text(size_bytes).text, (unsigned long long)size_bytes, file->name,
                   strerror(error), error, free_size.text);
}

/* The system would end the process with a signal, were the limit met by the call. */
static zr_status_t check_limit(const zr_uring_file_t *file, uint64_t size_bytes,
                               const zr_log_t *log) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        size_bytes <= limit.rlim_cur)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_BUDGET,
                   "store: %llu bytes for %s are more than the %llu that a file may have here "
                   "(RLIMIT_FSIZE); raise it: ulimit -f",
                   (unsigned long long)size_bytes, file->name, (unsigned long long)limit.rlim_cur);
}

/* Where the file system cannot reserve: write everything once. */
static int fill(const zr_uring_file_t *file, uint64_t size_bytes) {
    void *zeros = NULL;
    int error = 0;
    if (posix_memalign(&zeros, MAX_BLOCK_BYTES, FILL_BYTES) != 0)
        return ENOMEM;
    memset(zeros, 0, FILL_BYTES);
    for (uint64_t done = 0; done < size_bytes && error == 0;) {
        uint64_t left = size_bytes - done;
        ssize_t written =
            pwrite(file->fd, zeros, left < FILL_BYTES ? left : FILL_BYTES, (off_t)done);
        if (written > 0)
            done += (uint64_t)written;
        else if (written == 0 || errno != EINTR)
            error = written == 0 ? ENOSPC : errno;
    }
    free(zeros);
    return error;
}

zr_status_t zr_uring_file_reserve(zr_uring_file_t *file, uint64_t size_bytes, const zr_log_t *log) {
    int error = 0;
    ZR_TRY(check_limit(file, size_bytes, log));
    do
        error = fallocate(file->fd, 0, 0, (off_t)size_bytes) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error == EOPNOTSUPP || error == ENOSYS)
        error = fill(file, size_bytes);
    if (error == ENOSPC || error == EDQUOT || error == EFBIG)
        return fail_full(file, size_bytes, error, log);
    return error == 0 ? ZR_OK : fail_errno(log, "reserving the room", file->name, error);
}

/* ---- block size ------------------------------------------------------------------------------ */

/* Write and read so many bytes, and see whether they are the same. 0, or an errno. */
static int try_transfer(int fd, unsigned char *memory, size_t size_bytes, off_t offset,
                        unsigned char pattern) {
    memset(memory, pattern, size_bytes);
    ssize_t n = pwrite(fd, memory, size_bytes, offset);
    if (n != (ssize_t)size_bytes)
        return n < 0 ? errno : EINVAL;
    memset(memory, 0, size_bytes);
    n = pread(fd, memory, size_bytes, offset);
    if (n != (ssize_t)size_bytes)
        return n < 0 ? errno : EINVAL;
    for (size_t i = 0; i < size_bytes; i++) {
        if (memory[i] != pattern)
            return EIO;
    }
    return 0;
}

/* The smallest block that transfers, then the least alignment of memory. 0, or an errno. */
static int find_block(zr_uring_file_t *file, unsigned char *memory) {
    size_t block = ZR_URING_LAYOUT_BYTES, align = MIN_ALIGN_BYTES;
    int error = try_transfer(file->fd, memory, block, (off_t)block, 0x5a);
    while (error == EINVAL && block < MAX_BLOCK_BYTES) {
        block *= 2;
        error = try_transfer(file->fd, memory, block, (off_t)block, 0x5a);
    }
    if (error != 0)
        return error;
    while (align < block && try_transfer(file->fd, memory + align, block, 0, 0xa5) != 0)
        align *= 2;
    file->block_bytes = block;
    file->align_bytes = align;
    return 0;
}

static zr_status_t fall_back(zr_uring_file_t *file, int error, const zr_log_t *log) {
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags & ~O_DIRECT) != 0)
        return fail_errno(log, "turning direct transfers off", file->name, errno);
    file->is_direct = false;
    file->block_bytes = file->align_bytes = 1;
    zr_log_write(log, ZR_LOG_WARNING,
                 "store: no direct transfers to %s: %s (errno %d); using the page cache, which "
                 "copies every byte again, uses host memory beyond all budgets, and about halves "
                 "the bandwidth of a fast drive; give a path on ext4 or XFS on a local drive",
                 file->name, strerror(error), error);
    return ZR_OK;
}

static zr_status_t probe(zr_uring_file_t *file, const zr_log_t *log) {
    void *memory = NULL;
    int flags = fcntl(file->fd, F_GETFL);
    if (flags < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT) != 0)
        return fall_back(file, errno, log);
    ZR_TRY(zr_uring_file_reserve(file, 2 * MAX_BLOCK_BYTES, log));
    if (posix_memalign(&memory, MAX_BLOCK_BYTES, 2 * MAX_BLOCK_BYTES) != 0)
        return zr_fail(log, ZR_ERR_MEMORY, "store: no %zu bytes to find the block size of %s with",
                       2 * MAX_BLOCK_BYTES, file->name);
    int error = find_block(file, memory);
    free(memory);
    file->is_direct = error == 0;
    if (error == EINVAL || error == EOPNOTSUPP)
        return fall_back(file, error, log);
    return error == 0 ? ZR_OK : fail_errno(log, "a first transfer", file->name, error);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A file without a name; where there is no such thing, one whose name is removed at once. */
static int open_unnamed(const char *folder) {
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR))
        return fd;
    char *path = NULL;
    if (asprintf(&path, "%s/.zero-store-XXXXXX", folder) < 0) {
        errno = ENOMEM;
        return -1;
    }
    fd = mkostemp(path, O_CLOEXEC);
    int error = errno;
    if (fd >= 0 && unlink(path) != 0) {
        error = errno;
        close(fd);
        fd = -1;
    }
    free(path);
    errno = error;
    return fd;
}

static int name_file(const zr_uring_name_t *name, int rank, char **text_p) {
    if (name->file != NULL)
        return asprintf(text_p, "%s/%s", name->folder, name->file);
    return rank < 0 ? asprintf(text_p, "the store's file in %s", name->folder)
                    : asprintf(text_p, "rank %d's file in %s", rank, name->folder);
}

static int open_named(const zr_uring_name_t *name, const char *path) {
    int flags = name->is_there ? O_NOFOLLOW : O_CREAT | O_EXCL;
    return open(path, flags | O_RDWR | O_CLOEXEC, 0666);
}

zr_status_t zr_uring_file_open(const zr_uring_name_t *name, const zr_log_t *log,
                               zr_uring_file_t *file) {
    const char *folder = name->folder;
    *file = (zr_uring_file_t){.fd = -1};
    if (name_file(name, log->rank, &file->name) < 0) {
        file->name = NULL;
        return zr_fail(log, ZR_ERR_MEMORY, "store: no memory for the name of a file in %s", folder);
    }
    file->fd = name->file == NULL ? open_unnamed(folder) : open_named(name, file->name);
    if (file->fd < 0 && (errno == ENOSPC || errno == EDQUOT))
        return zr_fail(log, ZR_ERR_BUDGET,
                       "store: there is no room for a file in %s: %s (errno %d)", folder,
                       strerror(errno), errno);
    if (file->fd < 0)
        return fail_errno(log, "making", file->name, errno);
    return probe(file, log);
}

zr_status_t zr_uring_file_sync(zr_uring_file_t *file, uint64_t size_bytes, const zr_log_t *log) {
    if (ftruncate(file->fd, (off_t)size_bytes) != 0)
        return fail_errno(log, "cutting the length", file->name, errno);
    if (fsync(file->fd) != 0)
        return fail_errno(log, "fsync", file->name, errno);
    return ZR_OK;
}

void zr_uring_file_close(zr_uring_file_t *file) {
    if (file->name != NULL && file->fd >= 0)
        close(file->fd);
    free(file->name);
    *file = (zr_uring_file_t){.fd = -1};
}
