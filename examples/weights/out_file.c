/*
 * Writing on goes through a buffer, writing elsewhere does not: who transposes writes long enough
 * runs. Room is reserved first, so that a full drive is found before work that would be lost.
 */
#include "examples/weights/out_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)1 << 20)

struct out_file {
    zr_log_t log;
    char *path, *partial; /* partial: NULL once it has its name */
    int fd;
    uint64_t size_bytes;
    uint64_t offset_bytes; /* of the buffer's first byte */
    size_t n_buffered;
    unsigned char buffer[BUFFER_BYTES];
};

struct out_folder {
    zr_log_t log;
    char *path, *partial;
};

/* ---- names ------------------------------------------------------------------------------- */

/* Without slashes at its end, so that the last part is a name. */
static char *copy_path(const char *path) {
    char *copy = strdup(path);
    for (size_t n = copy == NULL ? 0 : strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    return copy;
}

static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? 0 : (size_t)(slash - path) + 1;
}

static char *partial_path(const char *path) {
    char *partial = NULL;
    size_t n = folder_length(path);
    if (asprintf(&partial, "%.*s.%s.partial-%ld", (int)n, path, path + n, (long)getpid()) < 0)
        return NULL;
    return partial;
}

/* What a rename has changed reaches the drive. */
static zr_status_t synchronize_folder_of(const char *path, const zr_log_t *log) {
    char *folder = NULL;
    size_t n = folder_length(path);
    if (asprintf(&folder, "%.*s", n == 0 ? 1 : (int)n, n == 0 ? "." : path) < 0)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for the name of a folder");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* File systems that cannot do this for folders say EINVAL. */
    bool good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    zr_status_t status =
        good ? ZR_OK
             : zr_fail(log, ZR_ERR_IO, "cannot synchronise %s: %s", folder, strerror(errno));
    if (fd >= 0)
        close(fd);
    free(folder);
    return status;
}

static bool is_empty_folder(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    bool is_empty = folder != NULL;
    while (is_empty && (entry = readdir(folder)) != NULL)
        is_empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (folder != NULL)
        closedir(folder);
    return is_empty;
}

static zr_status_t check_free(const char *path, bool empty_folder_is_fine, const zr_log_t *log) {
    struct stat about;
    if (path[0] == '\0')
        return zr_fail(log, ZR_ERR_ARGUMENT, "-o \"\": it needs a name");
    if (lstat(path, &about) != 0)
        return ZR_OK;
    if (empty_folder_is_fine && is_empty_folder(path)) /* which a rename replaces */
        return ZR_OK;
    return zr_fail(log, ZR_ERR_ARGUMENT,
                   "-o %s: %s exists already; remove it, or give another name", path,
                   S_ISDIR(about.st_mode) ? "a folder with files" : "a file");
}

/* ---- files ------------------------------------------------------------------------------- */

static zr_status_t io_error(const out_file_t *file, const char *what) {
    return zr_fail(&file->log, ZR_ERR_IO, "cannot %s %s, which needs %s: %s", what, file->path,
                   zr_size_text(file->size_bytes).text, strerror(errno));
}

static zr_status_t open_partial(out_file_t *file) {
    /* What has this process's number is of one that is gone. */
    if (unlink(file->partial) != 0 && errno != ENOENT)
        return io_error(file, "make");
    file->fd = open(file->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return io_error(file, "make");
    if (file->size_bytes > 0 && fallocate(file->fd, 0, 0, (off_t)file->size_bytes) != 0 &&
        (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
        return io_error(file, "reserve room for");
    return ZR_OK;
}

zr_status_t out_file_create(const char *path, uint64_t size_bytes, const zr_log_t *log,
                            out_file_t **file_p) {
    ZR_TRY(check_free(path, false, log));
    out_file_t *file = malloc(sizeof(*file));
    if (file == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to write %s", path);
    file->log = *log;
    file->path = strdup(path);
    file->partial = file->path == NULL ? NULL : partial_path(path);
    file->fd = -1;
    file->size_bytes = size_bytes;
    file->offset_bytes = 0;
    file->n_buffered = 0;
    zr_status_t status = file->partial != NULL
                             ? open_partial(file)
                             : zr_fail(log, ZR_ERR_MEMORY, "no memory to write %s", path);
    if (status == ZR_OK)
        *file_p = file;
    else
        out_file_destroy(&file);
    return status;
}

zr_status_t out_file_write_at(out_file_t *file, const void *data, size_t n_bytes,
                              uint64_t offset_bytes) {
    const char *bytes = data;
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pwrite(file->fd, bytes + done, n_bytes - done, (off_t)(offset_bytes + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return io_error(file, "write");
        }
        done += (size_t)n;
    }
    return ZR_OK;
}

static zr_status_t flush(out_file_t *file) {
    ZR_TRY(out_file_write_at(file, file->buffer, file->n_buffered, file->offset_bytes));
    file->offset_bytes += file->n_buffered;
    file->n_buffered = 0;
    return ZR_OK;
}

zr_status_t out_file_write(out_file_t *file, const void *data, size_t n_bytes) {
    const unsigned char *bytes = data;
    while (n_bytes > 0) {
        size_t n = BUFFER_BYTES - file->n_buffered;
        n = n < n_bytes ? n : n_bytes;
        memcpy(file->buffer + file->n_buffered, bytes, n);
        file->n_buffered += n;
        bytes += n;
        n_bytes -= n;
        if (file->n_buffered == BUFFER_BYTES)
            ZR_TRY(flush(file));
    }
    return ZR_OK;
}

zr_status_t out_file_skip(out_file_t *file, uint64_t n_bytes) {
    ZR_TRY(flush(file));
    file->offset_bytes += n_bytes;
    return ZR_OK;
}

zr_status_t out_file_publish(out_file_t *file) {
    ZR_TRY(flush(file));
    if (file->offset_bytes != file->size_bytes)
        return zr_fail(&file->log, ZR_ERR_IO,
                       "%s: %s were written instead of "
                       "%" PRIu64,
                       file->path, zr_count_text(file->offset_bytes, "byte").text,
                       file->size_bytes);
    if (fsync(file->fd) != 0)
        return io_error(file, "synchronise");
    int fd = file->fd;
    file->fd = -1;
    if (close(fd) != 0)
        return io_error(file, "close");
    if (rename(file->partial, file->path) != 0)
        return io_error(file, "name");
    free(file->partial);
    file->partial = NULL;
    return synchronize_folder_of(file->path, &file->log);
}

void out_file_destroy(out_file_t **file_pp) {
    if (file_pp == NULL || *file_pp == NULL)
        return;
    out_file_t *file = *file_pp;
    if (file->fd >= 0)
        close(file->fd);
    if (file->partial != NULL)
        unlink(file->partial);
    free(file->partial);
    free(file->path);
    free(file);
    *file_pp = NULL;
}

zr_status_t out_file_bytes(const char *path, const void *bytes, size_t n_bytes,
                           const zr_log_t *log) {
    out_file_t *file = NULL;
    ZR_TRY(out_file_create(path, n_bytes, log, &file));
    zr_status_t status = out_file_write(file, bytes, n_bytes);
    ZR_THEN(status, out_file_publish(file));
    out_file_destroy(&file);
    return status;
}

/* ---- folders ----------------------------------------------------------------------------- */

/* A folder of ours has files only. What cannot be removed stays. */
static void remove_folder(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        (void)unlinkat(dirfd(folder), entry->d_name, 0); /* it refuses "." and ".." itself */
    if (folder != NULL)
        closedir(folder);
    (void)rmdir(path);
}

zr_status_t out_folder_create(const char *path, const zr_log_t *log, out_folder_t **folder_p) {
    out_folder_t *folder = calloc(1, sizeof(*folder));
    char *copy = copy_path(path), *partial = copy == NULL ? NULL : partial_path(copy);
    if (folder == NULL || partial == NULL) {
        free(folder);
        free(copy);
        free(partial);
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to write %s", path);
    }
    *folder = (out_folder_t){.log = *log, .path = copy, .partial = partial};
    zr_status_t status = check_free(copy, true, log);
    if (status == ZR_OK) {
        remove_folder(partial); /* of a process that is gone */
        if (mkdir(partial, 0777) != 0)
            status = zr_fail(log, ZR_ERR_IO, "cannot make %s: %s", path, strerror(errno));
    }
    if (status == ZR_OK)
        *folder_p = folder;
    else
        out_folder_destroy(&folder);
    return status;
}

const char *out_folder_path(const out_folder_t *folder) {
    return folder->partial != NULL ? folder->partial : folder->path;
}

zr_status_t out_folder_publish(out_folder_t *folder) {
    if (rename(folder->partial, folder->path) != 0)
        return zr_fail(&folder->log, ZR_ERR_IO, "cannot name %s: %s", folder->path,
                       strerror(errno));
    free(folder->partial);
    folder->partial = NULL;
    return synchronize_folder_of(folder->path, &folder->log);
}

void out_folder_destroy(out_folder_t **folder_pp) {
    if (folder_pp == NULL || *folder_pp == NULL)
        return;
    out_folder_t *folder = *folder_pp;
    if (folder->partial != NULL)
        remove_folder(folder->partial);
    free(folder->partial);
    free(folder->path);
    free(folder);
    *folder_pp = NULL;
}
