/* How a checkpoint appears in its folder, and goes: see folder_internal.h. */
#include "zero/checkpoint/folder_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/checkpoint/file_internal.h"

#define LATEST_PARTIAL "." ZR_FOLDER_LATEST ".partial"
#define SPARE                                                                                      \
    ".spare" /* data files of one that is no more, for the next one to be written over             \
              */
#define DATA_ENDING ".data"

static zr_status_t synchronise(int fd, const char *folder, const char *name, const zr_log_t *log) {
    return fsync(fd) == 0 ? ZR_OK : zr_file_fail("synchronise", folder, name, errno, log);
}

static zr_status_t give_name(int folder_fd, const char *folder, const char *from, const char *to,
                             const zr_log_t *log) {
    if (renameat(folder_fd, from, folder_fd, to) == 0)
        return ZR_OK;
    return zr_fail(log, ZR_ERR_IO, "cannot rename %s/%s to %s: %s", folder, from, to,
                   strerror(errno));
}

/* ---- removing -------------------------------------------------------------------------------- */

static void warn(const char *folder, const char *name, const char *file, const zr_log_t *log) {
    zr_log_write(log, ZR_LOG_WARNING, "cannot remove %s/%s%s%s: %s", folder, name,
                 file != NULL ? "/" : "", file != NULL ? file : "", strerror(errno));
}

/* A checkpoint has files alone: a folder in it was put there by somebody, and stays. */
static bool empty(DIR *stream, const char *folder, const char *name, const zr_log_t *log) {
    const struct dirent *entry;
    while ((entry = readdir(stream)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(stream), entry->d_name, 0) != 0 && errno != ENOENT) {
            warn(folder, name, entry->d_name, log);
            return false;
        }
    }
    return true;
}

/* Remove one with its files; what stays is told, and tried again by the next save. */
static void remove_item(int folder_fd, const char *folder, const char *name, const zr_log_t *log) {
    DIR *stream = NULL;
    struct stat about;
    if (fstatat(folder_fd, name, &about, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    if (!S_ISDIR(about.st_mode)) {
        if (unlinkat(folder_fd, name, 0) != 0)
            warn(folder, name, NULL, log);
        return;
    }
    if (zr_folder_stream(folder_fd, name, folder, log, &stream) != ZR_OK)
        return;
    bool is_empty = empty(stream, folder, name, log);
    closedir(stream);
    if (is_empty && unlinkat(folder_fd, name, AT_REMOVEDIR) != 0)
        warn(folder, name, NULL, log);
}

/* Some file systems do not have its flags. */
static bool lacks_renameat2(int error) {
    return error == EINVAL || error == ENOSYS || error == ENOTSUP;
}

static bool is_data(const char *name) {
    size_t length = strlen(name), ending = strlen(DATA_ENDING);
    return name[0] != '.' && length > ending && strcmp(name + length - ending, DATA_ENDING) == 0;
}

/* Of what has gone, keep the data files: what lies on the drive already is written over in half the
 * time that new files take, and nothing has to be removed. False: there is a spare one. */
static bool make_spare(int folder_fd, const char *folder, const char *removed,
                       const zr_log_t *log) {
    DIR *stream = NULL;
    const struct dirent *entry;
    if (renameat2(folder_fd, removed, folder_fd, SPARE, RENAME_NOREPLACE) != 0) {
        if (errno != EEXIST && !lacks_renameat2(errno))
            zr_log_write(log, ZR_LOG_WARNING, "cannot rename %s/%s to " SPARE ": %s", folder,
                         removed, strerror(errno));
        return false;
    }
    if (zr_folder_stream(folder_fd, SPARE, folder, log, &stream) != ZR_OK)
        return true;
    while ((entry = readdir(stream)) != NULL)
        if (!is_data(entry->d_name) && strcmp(entry->d_name, ".") != 0 &&
            strcmp(entry->d_name, "..") != 0 && unlinkat(dirfd(stream), entry->d_name, 0) != 0)
            warn(folder, SPARE, entry->d_name, log);
    closedir(stream);
    return true;
}

/* Take its name from it, then remove it, if it is there. `spares`: or keep its files. */
static void retire(int folder_fd, const char *folder, const zr_folder_item_t *item, bool spares,
                   const zr_log_t *log) {
    char removed[64];
    zr_folder_item_name(item->step, ZR_FOLDER_REMOVED, removed);
    if (faccessat(folder_fd, item->name, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    if (item->kind != ZR_FOLDER_REMOVED) {
        remove_item(folder_fd, folder, removed, log);
        if (renameat(folder_fd, item->name, folder_fd, removed) != 0) {
            warn(folder, item->name, NULL, log);
            return;
        }
    }
    if (!spares || !make_spare(folder_fd, folder, removed, log))
        remove_item(folder_fd, folder, removed, log);
}

static void retire_kind(int folder_fd, const char *folder, size_t step, zr_folder_kind_t kind,
                        bool spares, const zr_log_t *log) {
    zr_folder_item_t item = {.step = step, .kind = kind};
    zr_folder_item_name(step, kind, item.name);
    retire(folder_fd, folder, &item, spares, log);
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* The folder that a path is in, synchronised: its new entry is on the drive. */
static zr_status_t synchronise_parent(const char *path, const zr_log_t *log) {
    char *parent = strdup(path), *slash = parent != NULL ? strrchr(parent, '/') : NULL;
    int fd = -1;
    if (parent == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for a path", path);
    if (slash != NULL)
        slash[slash == parent] = '\0'; /* that of "/a" is "/" */
    zr_status_t status = zr_folder_open(slash != NULL ? parent : ".", log, &fd);
    if (status == ZR_OK) {
        status = synchronise(fd, slash != NULL ? parent : ".", NULL, log);
        close(fd);
    }
    free(parent);
    return status;
}

static zr_status_t make_one(const char *path, const zr_log_t *log) {
    if (mkdir(path, 0777) == 0)
        return synchronise_parent(path, log);
    return errno == EEXIST ? ZR_OK : zr_file_fail("make folder", path, NULL, errno, log);
}

/* A folder and those that it is in. */
static zr_status_t make_folder(const char *folder, const zr_log_t *log) {
    struct stat about;
    if (stat(folder, &about) == 0 || folder[0] == '\0')
        return ZR_OK; /* or no folder, which opening it says */
    char *path = strdup(folder);
    size_t length = path != NULL ? strlen(path) : 0;
    if (path == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for a path", folder);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
    zr_status_t status = ZR_OK;
    for (char *slash = strchr(path + 1, '/'); slash != NULL && status == ZR_OK;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (slash[-1] != '/' && stat(path, &about) != 0)
            status = make_one(path, log);
        *slash = '/';
    }
    ZR_THEN(status, make_one(path, log));
    free(path);
    return status;
}

zr_status_t zr_folder_lock(const char *folder, const zr_log_t *log, int *lock_p) {
    int fd = -1;
    ZR_TRY(make_folder(folder, log));
    ZR_TRY(zr_folder_open(folder, log, &fd));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        return zr_fail(log, ZR_ERR_IO,
                       "%s: another run is saving into this folder; give each run its own folder, "
                       "or wait until the other run has ended",
                       folder);
    }
    *lock_p = fd;
    return ZR_OK;
}

void zr_folder_unlock(int *lock) {
    if (*lock >= 0)
        close(*lock);
    *lock = -1;
}

/* What runs that were ended have left: unfinished ones and half removed ones go, and one that was
 * being replaced gets its name again. */
static zr_status_t clean(int folder_fd, const char *folder, const zr_log_t *log) {
    zr_folder_item_t *items = NULL;
    size_t n_items = 0;
    ZR_TRY(zr_folder_scan(folder_fd, folder, log, &items, &n_items));
    zr_status_t status = ZR_OK;
    for (size_t i = 0; i < n_items && status == ZR_OK; i++) {
        char name[64];
        zr_folder_name(items[i].step, name);
        if (items[i].kind == ZR_FOLDER_OLD && zr_folder_is_checkpoint(items, i)) {
            status = give_name(folder_fd, folder, items[i].name, name, log);
            ZR_THEN(status, synchronise(folder_fd, folder, NULL, log));
        } else if (items[i].kind != ZR_FOLDER_NAMED && items[i].kind != ZR_FOLDER_DAMAGED) {
            retire(folder_fd, folder, &items[i], false, log);
        }
    }
    free(items);
    return status;
}

/* A file that no other name has: in a copy that is made of links it would be written over, too. */
static bool is_own_file(int folder_fd, const char *name) {
    struct stat about;
    return fstatat(folder_fd, name, &about, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(about.st_mode) &&
           about.st_nlink == 1;
}

/* Bring the spare files to where they may be used; those that cannot be had are removed. That the
 * checkpoint which they were of has no name any more is on the drive before they change. */
static void bring_spares(int folder_fd, const char *folder, const char *partial,
                         const zr_log_t *log) {
    DIR *stream = NULL;
    const struct dirent *entry;
    char to[512];
    if (faccessat(folder_fd, SPARE, F_OK, AT_SYMLINK_NOFOLLOW) != 0 ||
        zr_folder_stream(folder_fd, SPARE, folder, log, &stream) != ZR_OK)
        return;
    bool is_safe = fsync(folder_fd) == 0;
    while (is_safe && (entry = readdir(stream)) != NULL) {
        snprintf(to, sizeof(to), "%s/" ZR_FOLDER_SPARE_PREFIX "%s", partial, entry->d_name);
        if (is_data(entry->d_name) && is_own_file(dirfd(stream), entry->d_name) &&
            renameat(dirfd(stream), entry->d_name, folder_fd, to) != 0)
            warn(folder, SPARE, entry->d_name, log);
    }
    closedir(stream);
    remove_item(folder_fd, folder, SPARE, log);
}

static void drop_spares(int folder_fd, const char *folder, const char *partial,
                        const zr_log_t *log) {
    DIR *stream = NULL;
    const struct dirent *entry;
    if (zr_folder_stream(folder_fd, partial, folder, log, &stream) != ZR_OK)
        return;
    while ((entry = readdir(stream)) != NULL)
        if (strncmp(entry->d_name, ZR_FOLDER_SPARE_PREFIX, strlen(ZR_FOLDER_SPARE_PREFIX)) == 0 &&
            unlinkat(dirfd(stream), entry->d_name, 0) != 0)
            warn(folder, partial, entry->d_name, log);
    closedir(stream);
}

static zr_status_t begin(int folder_fd, const char *folder, size_t step, const zr_log_t *log) {
    char name[64];
    zr_folder_item_name(step, ZR_FOLDER_PARTIAL, name);
    ZR_TRY(clean(folder_fd, folder, log));
    if (mkdirat(folder_fd, name, 0777) != 0)
        return zr_file_fail("make folder", folder, name, errno, log);
    bring_spares(folder_fd, folder, name, log);
    return ZR_OK;
}

zr_status_t zr_folder_begin(const char *folder, size_t step, const zr_log_t *log, char **path_p) {
    int folder_fd = -1;
    ZR_TRY(make_folder(folder, log));
    ZR_TRY(zr_folder_open(folder, log, &folder_fd));
    zr_status_t status = begin(folder_fd, folder, step, log);
    close(folder_fd);
    if (status != ZR_OK)
        return status;
    *path_p = zr_folder_partial_path(folder, step);
    if (*path_p != NULL)
        return ZR_OK;
    zr_folder_abandon(folder, step, log);
    return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for a path", folder);
}

void zr_folder_abandon(const char *folder, size_t step, const zr_log_t *log) {
    int folder_fd = -1;
    if (zr_folder_open(folder, log, &folder_fd) != ZR_OK)
        return;
    retire_kind(folder_fd, folder, step, ZR_FOLDER_PARTIAL, false, log);
    close(folder_fd);
}

/* ---- publishing ------------------------------------------------------------------------------ */

/* Its entries reach the drive: its files have. */
static zr_status_t synchronise_partial(int folder_fd, const char *folder, const char *name,
                                       const zr_log_t *log) {
    int fd = openat(folder_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return zr_file_fail("open", folder, name, errno, log);
    zr_status_t status = synchronise(fd, folder, name, log);
    close(fd);
    return status;
}

/* In place of an older one of its step. Where names cannot be exchanged, the older one has a name
 * by which it is found all the time that there is no other. */
static zr_status_t replace(int folder_fd, const char *folder, size_t step, const zr_log_t *log) {
    char name[64], partial[64], old[64];
    zr_folder_name(step, name);
    zr_folder_item_name(step, ZR_FOLDER_PARTIAL, partial);
    zr_folder_item_name(step, ZR_FOLDER_OLD, old);
    if (renameat2(folder_fd, partial, folder_fd, name, RENAME_EXCHANGE) == 0)
        return ZR_OK;
    if (!lacks_renameat2(errno))
        return zr_fail(log, ZR_ERR_IO, "cannot exchange %s/%s and %s: %s", folder, partial, name,
                       strerror(errno));
    retire_kind(folder_fd, folder, step, ZR_FOLDER_OLD, false, log);
    ZR_TRY(give_name(folder_fd, folder, name, old, log));
    ZR_TRY(synchronise(folder_fd, folder, NULL, log));
    zr_status_t status = give_name(folder_fd, folder, partial, name, log);
    if (status != ZR_OK && renameat(folder_fd, old, folder_fd, name) != 0)
        zr_log_write(log, ZR_LOG_WARNING, "cannot rename %s/%s back to %s: %s", folder, old, name,
                     strerror(errno));
    return status;
}

static zr_status_t appear(int folder_fd, const char *folder, size_t step, const zr_log_t *log) {
    char name[64], partial[64];
    zr_folder_name(step, name);
    zr_folder_item_name(step, ZR_FOLDER_PARTIAL, partial);
    drop_spares(folder_fd, folder, partial, log);
    ZR_TRY(synchronise_partial(folder_fd, folder, partial, log));
    if (renameat(folder_fd, partial, folder_fd, name) != 0) {
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
            return zr_fail(log, ZR_ERR_IO, "cannot rename %s/%s to %s: %s", folder, partial, name,
                           strerror(errno));
        ZR_TRY(replace(folder_fd, folder, step, log));
    }
    return synchronise(folder_fd, folder, NULL, log);
}

static zr_status_t write_latest(int folder_fd, const char *folder, size_t step,
                                const zr_log_t *log) {
    char line[64];
    zr_file_t file = {.fd = -1};
    zr_folder_name(step, line);
    strcat(line, "\n");
    ZR_TRY(zr_file_create(folder_fd, folder, LATEST_PARTIAL, log, &file));
    zr_status_t status = zr_file_write(&file, 0, line, strlen(line), log);
    ZR_THEN(status, zr_file_sync_and_close(&file, log));
    zr_file_close(&file);
    ZR_THEN(status, give_name(folder_fd, folder, LATEST_PARTIAL, ZR_FOLDER_LATEST, log));
    ZR_THEN(status, synchronise(folder_fd, folder, NULL, log));
    return status;
}

/* Those that are too many, the oldest first, so that at any time those that stay are the newest. */
static void retire_others(int folder_fd, const char *folder, size_t step,
                          const zr_folder_kept_t *kept, const zr_log_t *log) {
    zr_folder_item_t *items = NULL;
    size_t n_items = 0, n_kept = 1, n_named = 0;
    if (zr_folder_scan(folder_fd, folder, log, &items, &n_items) != ZR_OK)
        return;
    for (size_t i = 0; i < n_items; i++)
        if (items[i].kind == ZR_FOLDER_NAMED && items[i].step != step)
            items[n_named++] = items[i];
    for (size_t i = n_named; n_kept + i > kept->n && i > 0; i--)
        if (!kept->has_also || items[i - 1].step != kept->also)
            retire(folder_fd, folder, &items[i - 1], true, log);
    free(items);
}

static zr_status_t publish(int folder_fd, const char *folder, size_t step,
                           const zr_folder_kept_t *kept, const zr_log_t *log) {
    ZR_TRY(appear(folder_fd, folder, step, log));
    ZR_TRY(write_latest(folder_fd, folder, step, log));
    retire_kind(folder_fd, folder, step, ZR_FOLDER_OLD, kept->n > 0, log);
    retire_kind(folder_fd, folder, step, ZR_FOLDER_PARTIAL, kept->n > 0, log);
    if (kept->n > 0)
        retire_others(folder_fd, folder, step, kept, log);
    return ZR_OK;
}

zr_status_t zr_folder_publish(const char *folder, size_t step, const zr_folder_kept_t *kept,
                              const zr_log_t *log) {
    int folder_fd = -1;
    ZR_TRY(zr_folder_open(folder, log, &folder_fd));
    zr_status_t status = publish(folder_fd, folder, step, kept, log);
    close(folder_fd);
    return status;
}

/* ---- damaged ones ---------------------------------------------------------------------------- */

/* Never over another one that was kept. */
static bool try_name(int folder_fd, const char *from, const char *to) {
    if (renameat2(folder_fd, from, folder_fd, to, RENAME_NOREPLACE) == 0)
        return true;
    return lacks_renameat2(errno) && faccessat(folder_fd, to, F_OK, AT_SYMLINK_NOFOLLOW) != 0 &&
           renameat(folder_fd, from, folder_fd, to) == 0;
}

static zr_status_t set_aside(int folder_fd, const char *folder, size_t step, const zr_log_t *log,
                             char kept_as[64]) {
    enum { MOST = 1000 };
    char name[64], damaged[40];
    zr_folder_item_t item = {.step = step, .kind = ZR_FOLDER_OLD};
    zr_folder_name(step, name);
    zr_folder_item_name(step, item.kind, item.name);
    snprintf(damaged, sizeof(damaged), "%.30s.damaged", name);
    if (faccessat(folder_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        snprintf(name, sizeof(name), "%s", item.name);
    for (int i = 1; i <= MOST; i++) {
        snprintf(kept_as, 64, i > 1 ? "%s.%d" : "%s", damaged, i);
        if (try_name(folder_fd, name, kept_as))
            return synchronise(folder_fd, folder, NULL, log);
        if (errno != EEXIST && errno != ENOTEMPTY && errno != 0)
            break;
    }
    return zr_fail(log, ZR_ERR_IO, "cannot rename %s/%s to %s: %s", folder, name, kept_as,
                   strerror(errno));
}

zr_status_t zr_folder_set_aside(const char *folder, size_t step, const zr_log_t *log,
                                char kept_as[64]) {
    int lock = -1;
    ZR_TRY(zr_folder_lock(folder, log, &lock));
    zr_status_t status = set_aside(lock, folder, step, log, kept_as);
    zr_folder_unlock(&lock);
    return status;
}

zr_status_t zr_folder_mend_latest(const char *folder, size_t step, const zr_log_t *log) {
    char text[65] = "";
    int folder_fd = -1;
    ZR_TRY(zr_folder_open(folder, log, &folder_fd));
    int fd = openat(folder_fd, ZR_FOLDER_LATEST, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? strcspn(text, "\n") : 0] = '\0';
    size_t named = 0;
    zr_status_t status = ZR_OK;
    if (zr_folder_step(text, &named) && faccessat(folder_fd, text, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        status = write_latest(folder_fd, folder, step, log);
    close(folder_fd);
    return status;
}
