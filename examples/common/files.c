/*
 * Two names may lead to one file, by links, or by "./": files that are there are compared by what
 * they are, and those that are not by their folder and their last part.
 */
#include "examples/common/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder of a path: "." where it names none. */
static bool stat_folder(const char *path, struct stat *about) {
    char folder[PATH_MAX] = ".";
    const char *slash = strrchr(path, '/');
    if (slash != NULL)
        snprintf(folder, sizeof(folder), "%.*s", (int)(slash - path + 1), path);
    return stat(folder, about) == 0;
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

bool files_are_same(const char *a, const char *b) {
    struct stat about_a, about_b;
    bool has_a = stat(a, &about_a) == 0, has_b = stat(b, &about_b) == 0;
    if (has_a != has_b)
        return false;
    if (!has_a && (strcmp(last_part(a), last_part(b)) != 0 || !stat_folder(a, &about_a) ||
                   !stat_folder(b, &about_b)))
        return false;
    return about_a.st_dev == about_b.st_dev && about_a.st_ino == about_b.st_ino;
}

bool files_name_ends(const char *name, const char *ending) {
    size_t n = strlen(name), n_ending = strlen(ending);
    return n >= n_ending && strcmp(name + n - n_ending, ending) == 0;
}

bool files_is_folder(const char *path) {
    struct stat about;
    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

zr_status_t files_check_apart(files_named_t file, const files_named_t *others, size_t n_others,
                              const zr_log_t *log) {
    for (size_t i = 0; i < n_others && file.path != NULL; i++)
        if (others[i].path != NULL && files_are_same(file.path, others[i].path))
            return zr_fail(log, ZR_ERR_ARGUMENT,
                           "%s %s and %s %s: are the same file; give another name",
                           others[i].option, others[i].path, file.option, file.path);
    return ZR_OK;
}

/* One of the process's own pipes, as /dev/stdout may be, has no name that could be resolved. */
static bool is_named_pipe(const char *path) {
    struct stat about;
    char resolved[PATH_MAX];
    return stat(path, &about) == 0 && S_ISFIFO(about.st_mode) && realpath(path, resolved) != NULL;
}

zr_status_t files_check_writable(const char *option, const char *path, const zr_log_t *log) {
    struct stat about;
    bool is_there = lstat(path, &about) == 0, is_writable;
    if (is_named_pipe(path))
        return zr_fail(log, ZR_ERR_IO,
                       "cannot write %s %s: is a named pipe, which blocks until it has a reader; "
                       "give a file, or /dev/stdout and a shell pipe",
                       option, path);
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode)) {
        is_writable = access(path, W_OK) == 0;
    } else {
        FILE *file = fopen(path, "ab");
        is_writable = file != NULL;
        if (file != NULL)
            fclose(file);
        if (file != NULL && !is_there)
            remove(path);
    }
    return is_writable
               ? ZR_OK
               : zr_fail(log, ZR_ERR_IO, "cannot write %s %s: %s", option, path, strerror(errno));
}

static void say(void *context, zr_log_level_t level, int rank, const char *message) {
    const files_log_t *own = context;
    zr_log_t log = zr_log_with_rank(&own->log, rank);
    zr_log_write(&log, level, "%s %s", own->option, message);
}

zr_log_t files_log(const files_log_t *own) {
    zr_log_t log = own->log;
    log.sink = say;
    log.context = (void *)(uintptr_t)own;
    return log;
}

/* A file without a name, as the store will make them; 0 or what is wrong. */
static int try_file_in(const char *folder) {
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
        char path[PATH_MAX];
        snprintf(path, sizeof(path), "%s/.zero-XXXXXX", folder);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
    }
    int error = fd < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    return error;
}

const char *files_refuse_folder(const char *path) {
    struct stat about;
    if (stat(path, &about) != 0)
        return strerror(errno);
    if (!S_ISDIR(about.st_mode))
        return "not a folder";
    int error = try_file_in(path);
    if (error == ENOENT) /* what proc and the like say of a folder that is there */
        return "no files can be created there";
    return error == 0 ? NULL : strerror(error);
}

zr_status_t files_check_folder(const char *option, const char *dir, const zr_log_t *log) {
    char parent[PATH_MAX];
    snprintf(parent, sizeof(parent), "%s", dir);
    for (size_t n = strlen(parent); n > 1 && parent[n - 1] == '/'; n--)
        parent[n - 1] = '\0';
    char *slash = strrchr(parent, '/');
    if (slash != NULL)
        slash[slash == parent] = '\0';
    const char *path = access(dir, F_OK) == 0 ? dir : slash != NULL ? parent : ".";
    bool is_other = access(dir, F_OK) == 0 && !files_is_folder(dir);
    errno = is_other ? ENOTDIR : 0;
    if (!is_other && access(path, W_OK | X_OK) == 0)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_IO, "%s %s: %s: %s; give a writable folder", option, dir, path,
                   strerror(errno));
}
