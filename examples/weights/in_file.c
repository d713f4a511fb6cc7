/*
 * Reads say where they failed; a file that is cut off while it is read is an error and no zeros.
 */
#include "examples/weights/in_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static zr_status_t check_regular(const char *path, int fd, const zr_log_t *log,
                                 uint64_t *size_bytes_p) {
    struct stat about;
    if (fstat(fd, &about) != 0)
        return zr_fail(log, ZR_ERR_IO, "cannot look at %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s is not a file", path);
    *size_bytes_p = (uint64_t)about.st_size;
    return ZR_OK;
}

zr_status_t in_file_open(const char *path, const zr_log_t *log, in_file_t *file_p) {
    in_file_t file = {.path = strdup(path)};
    if (file.path == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to open %s", path);
    /* A pipe that nobody writes to would be waited for. */
    file.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    zr_status_t status =
        file.fd < 0
            ? zr_fail(log, errno == ENOENT || errno == ENOTDIR ? ZR_ERR_ARGUMENT : ZR_ERR_IO,
                      "cannot open %s: %s", path, strerror(errno))
            : check_regular(path, file.fd, log, &file.size_bytes);
    if (status == ZR_OK)
        *file_p = file;
    else
        in_file_close(&file);
    return status;
}

void in_file_close(in_file_t *file) {
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
    *file = (in_file_t){.fd = -1};
}

zr_status_t in_file_read(const in_file_t *file, void *data, size_t n_bytes, uint64_t offset_bytes,
                         const zr_log_t *log) {
    char *bytes = data;
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pread(file->fd, bytes + done, n_bytes - done, (off_t)(offset_bytes + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return zr_fail(log, ZR_ERR_IO, "cannot read %s at %" PRIu64 ", %s: %s", file->path,
                           offset_bytes + done, zr_count_text(n_bytes - done, "byte").text,
                           n < 0 ? strerror(errno) : "it ends there");
        done += (size_t)n;
    }
    return ZR_OK;
}

static zr_status_t read_all(const in_file_t *file, uint64_t most, const zr_log_t *log,
                            char **text_p, size_t *n_bytes_p) {
    if (file->size_bytes > most)
        return zr_fail(log, ZR_ERR_FORMAT, "%s has %s; at most %" PRIu64 " are read", file->path,
                       zr_count_text(file->size_bytes, "byte").text, most);
    char *text = malloc((size_t)file->size_bytes + 1);
    if (text == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory to read %s", file->path);
    zr_status_t status = in_file_read(file, text, (size_t)file->size_bytes, 0, log);
    if (status != ZR_OK) {
        free(text);
        return status;
    }
    *text_p = text;
    *n_bytes_p = (size_t)file->size_bytes;
    return ZR_OK;
}

zr_status_t in_file_text(const char *path, uint64_t most, const zr_log_t *log, char **text_p,
                         size_t *n_bytes_p) {
    in_file_t file;
    ZR_TRY(in_file_open(path, log, &file));
    zr_status_t status = read_all(&file, most, log, text_p, n_bytes_p);
    in_file_close(&file);
    return status;
}

char *in_file_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

char *in_file_beside(const char *path, bool is_folder, const char *name) {
    const char *slash = strrchr(path, '/');
    size_t n = is_folder ? strlen(path) : slash == NULL ? 0 : (size_t)(slash - path) + 1;
    char *sibling = NULL;
    if (asprintf(&sibling, "%.*s%s%s", (int)n, path, is_folder ? "/" : "", name) < 0)
        return NULL;
    return sibling;
}
