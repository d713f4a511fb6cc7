/*
 * Bytes are read until the file ends: its size may change, and those of /proc say none. It is
 * opened so that nothing is waited for: a pipe that nobody writes to has no bytes.
 */
#include "kernels/base/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What has bytes later, as a pipe, is waited for, until there are some or a signal comes. */
static bool may_read_again(int fd) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return errno == EAGAIN && poll(&poll_fd, 1, -1) > 0;
}

static zr_status_t read_rest(int fd, const char *path, size_t max_bytes, const zr_log_t *log,
                             char **text_p, size_t *n_bytes_p) {
    for (size_t capacity = 0;;) {
        if (*n_bytes_p == capacity) {
            capacity = capacity > 0 ? 2 * capacity : 4096;
            char *larger = realloc(*text_p, capacity + 1);
            if (larger == NULL)
                return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for %s of it", path,
                               zr_count_text(capacity, "byte").text);
            *text_p = larger;
        }
        ssize_t n = read(fd, *text_p + *n_bytes_p, capacity - *n_bytes_p);
        if (n < 0 && may_read_again(fd))
            continue;
        if (n < 0)
            return zr_fail(log, ZR_ERR_IO, "%s: cannot read it: %s", path, strerror(errno));
        if (n == 0)
            break;
        *n_bytes_p += (size_t)n;
        if (*n_bytes_p > max_bytes)
            return zr_fail(log, ZR_ERR_FORMAT, "%s: is larger than the limit of %s", path,
                           zr_count_text(max_bytes, "byte").text);
    }
    (*text_p)[*n_bytes_p] = '\0';
    return ZR_OK;
}

zr_status_t zr_text_file_read(const char *path, size_t max_bytes, const zr_log_t *log,
                              char **text_p, size_t *n_bytes_p) {
    char *text = NULL;
    size_t n_bytes = 0;
    if (path == NULL || text_p == NULL || n_bytes_p == NULL)
        return zr_fail(log, ZR_ERR_ARGUMENT, "reading a file needs a path, and an output pointer");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return zr_fail(log, ZR_ERR_IO, "%s: cannot open it: %s", path, strerror(errno));
    zr_status_t status = read_rest(fd, path, max_bytes, log, &text, &n_bytes);
    close(fd);
    if (status != ZR_OK) {
        free(text);
        return status;
    }
    *text_p = text;
    *n_bytes_p = n_bytes;
    return ZR_OK;
}
