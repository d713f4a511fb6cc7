/* Files of a checkpoint: see file_internal.h. */
#include "zero/checkpoint/file_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The system moves at most this much at a time. */
#define MOST_BYTES ((size_t)1 << 30)

zr_status_t zr_file_fail(const char *what, const char *folder, const char *name, int error,
                         const zr_log_t *log) {
    return zr_fail(log, error == ENOMEM ? ZR_ERR_MEMORY : ZR_ERR_IO, "cannot %s %s%s%s: %s", what,
                   folder, name != NULL ? "/" : "", name != NULL ? name : "", strerror(error));
}

zr_status_t zr_folder_open(const char *path, const zr_log_t *log, int *fd_p) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return zr_file_fail("open", path, NULL, errno, log);
    *fd_p = fd;
    return ZR_OK;
}

zr_status_t zr_folder_stream(int folder_fd, const char *name, const char *folder,
                             const zr_log_t *log, DIR **stream_p) {
    int fd = openat(folder_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL) {
        zr_status_t status = zr_file_fail("list", folder, name, errno, log);
        if (fd >= 0)
            close(fd);
        return status;
    }
    *stream_p = stream;
    return ZR_OK;
}

static zr_status_t check_regular(const zr_file_t *file, const zr_log_t *log, uint64_t *n_bytes_p) {
    struct stat about;
    if (fstat(file->fd, &about) != 0)
        return zr_file_fail("look at", file->folder, file->name, errno, log);
    if (!S_ISREG(about.st_mode))
        return zr_fail(log, ZR_ERR_FORMAT, "%s/%s is not a regular file", file->folder, file->name);
    *n_bytes_p = (uint64_t)about.st_size;
    return ZR_OK;
}

zr_status_t zr_file_open(int folder_fd, const char *folder, const char *name, const zr_log_t *log,
                         zr_file_t *file_p, uint64_t *n_bytes_p) {
    /* Without O_NONBLOCK a pipe would wait for its writer. */
    int fd = openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ELOOP)
        return zr_fail(log, ZR_ERR_FORMAT,
                       "%s/%s is a symbolic link; symbolic links are not followed", folder, name);
    if (fd < 0)
        return zr_file_fail("open", folder, name, errno, log);
    zr_file_t file = {.fd = fd, .folder = folder, .name = name};
    zr_status_t status = check_regular(&file, log, n_bytes_p);
    if (status != ZR_OK) {
        zr_file_close(&file);
        return status;
    }
    *file_p = file;
    return ZR_OK;
}

zr_status_t zr_file_create(int folder_fd, const char *folder, const char *name, const zr_log_t *log,
                           zr_file_t *file_p) {
    int fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return zr_file_fail("make", folder, name, errno, log);
    *file_p = (zr_file_t){.fd = fd, .folder = folder, .name = name};
    return ZR_OK;
}

zr_status_t zr_file_read(const zr_file_t *file, uint64_t offset, void *bytes, size_t n_bytes,
                         const zr_log_t *log) {
    size_t done = 0;
    while (done < n_bytes) {
        size_t left = n_bytes - done;
        ssize_t n = pread(file->fd, (char *)bytes + done, left < MOST_BYTES ? left : MOST_BYTES,
                          (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return zr_fail(log, ZR_ERR_IO, "cannot read %s of %s/%s at offset %" PRIu64 ": %s",
                           zr_count_text(left, "byte").text, file->folder, file->name,
                           offset + done, strerror(errno));
        if (n == 0)
            return zr_fail(log, ZR_ERR_FORMAT,
                           "%s/%s ends at byte %" PRIu64 "; it should have %s more", file->folder,
                           file->name, offset + done, zr_count_text(left, "byte").text);
        done += (size_t)n;
    }
    return ZR_OK;
}

zr_status_t zr_file_write(const zr_file_t *file, uint64_t offset, const void *bytes, size_t n_bytes,
                          const zr_log_t *log) {
    size_t done = 0;
    while (done < n_bytes) {
        size_t left = n_bytes - done;
        ssize_t n = pwrite(file->fd, (const char *)bytes + done,
                           left < MOST_BYTES ? left : MOST_BYTES, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return zr_fail(log, ZR_ERR_IO, "cannot write %s of %s/%s at offset %" PRIu64 ": %s",
                           zr_count_text(left, "byte").text, file->folder, file->name,
                           offset + done, n < 0 ? strerror(errno) : "no bytes were written");
        done += (size_t)n;
    }
    return ZR_OK;
}

zr_status_t zr_file_sync_and_close(zr_file_t *file, const zr_log_t *log) {
    zr_status_t status = ZR_OK;
    if (fsync(file->fd) != 0)
        status = zr_file_fail("synchronise", file->folder, file->name, errno, log);
    if (close(file->fd) != 0 && status == ZR_OK)
        status = zr_file_fail("close", file->folder, file->name, errno, log);
    file->fd = -1;
    return status;
}

void zr_file_close(zr_file_t *file) {
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}
