/* What a folder of checkpoints has: see folder_internal.h. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "zero/checkpoint/file_internal.h"
#include "zero/checkpoint/folder_internal.h"

/* ---- names ----------------------------------------------------------------------------------- */

static const struct {
    const char *before, *behind;
} forms[] = {
    [ZR_FOLDER_NAMED] = {"", ""},
    [ZR_FOLDER_OLD] = {"", ".old"},
    [ZR_FOLDER_PARTIAL] = {".", ".partial"},
    [ZR_FOLDER_REMOVED] = {".", ".removed"},
    [ZR_FOLDER_DAMAGED] = {"", ".damaged"},
};
#define N_KINDS (sizeof(forms) / sizeof(forms[0]))

void zr_folder_item_name(size_t step, zr_folder_kind_t kind, char name[64]) {
    snprintf(name, 64, "%sstep-%08zu%s", forms[kind].before, step, forms[kind].behind);
}

void zr_folder_name(size_t step, char name[64]) {
    zr_folder_item_name(step, ZR_FOLDER_NAMED, name);
}

/* A name has one spelling: what would be printed otherwise is none. */
static bool read_name(const char *name, zr_folder_item_t *item) {
    const char *digits = name + (name[0] == '.');
    if (strncmp(digits, "step-", 5) != 0 || strlen(name) >= sizeof(item->name))
        return false;
    errno = 0;
    item->step = strtoull(digits + 5, NULL, 10);
    if (errno != 0)
        return false;
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        item->kind = (zr_folder_kind_t)kind;
        zr_folder_item_name(item->step, item->kind, item->name);
        if (strcmp(item->name, name) == 0)
            return true;
    }
    return false;
}

bool zr_folder_step(const char *name, size_t *step_p) {
    zr_folder_item_t item;
    if (!read_name(name, &item) || item.kind != ZR_FOLDER_NAMED)
        return false;
    *step_p = item.step;
    return true;
}

char *zr_folder_partial_path(const char *folder, size_t step) {
    char name[64], *path = NULL;
    zr_folder_item_name(step, ZR_FOLDER_PARTIAL, name);
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* ---- what is there --------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    const zr_folder_item_t *x = a, *y = b;
    return x->step != y->step ? (x->step < y->step) - (x->step > y->step)
                              : (int)x->kind - (int)y->kind;
}

static zr_status_t append(zr_folder_item_t **items, size_t *n_items, const zr_folder_item_t *item) {
    if ((*n_items & (*n_items - 1)) == 0) { /* a power of two is full */
        size_t room = *n_items == 0 ? 1 : 2 * *n_items;
        zr_folder_item_t *larger = realloc(*items, room * sizeof(*larger));
        if (larger == NULL)
            return ZR_ERR_MEMORY;
        *items = larger;
    }
    (*items)[(*n_items)++] = *item;
    return ZR_OK;
}

static zr_status_t scan(DIR *stream, const char *folder, const zr_log_t *log,
                        zr_folder_item_t **items, size_t *n_items) {
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(stream);
        zr_folder_item_t item;
        if (entry == NULL)
            return errno == 0 ? ZR_OK : zr_file_fail("list", folder, NULL, errno, log);
        if (read_name(entry->d_name, &item) && append(items, n_items, &item) != ZR_OK)
            return zr_fail(log, ZR_ERR_MEMORY, "%s: no memory to list it", folder);
    }
}

zr_status_t zr_folder_scan(int folder_fd, const char *folder, const zr_log_t *log,
                           zr_folder_item_t **items_p, size_t *n_items_p) {
    zr_folder_item_t *items = NULL;
    size_t n_items = 0;
    DIR *stream = NULL;
    ZR_TRY(zr_folder_stream(folder_fd, ".", folder, log, &stream));
    zr_status_t status = scan(stream, folder, log, &items, &n_items);
    closedir(stream);
    if (status != ZR_OK) {
        free(items);
        return status;
    }
    if (n_items > 0)
        qsort(items, n_items, sizeof(*items), compare);
    *items_p = items;
    *n_items_p = n_items;
    return ZR_OK;
}

bool zr_folder_is_checkpoint(const zr_folder_item_t *items, size_t index) {
    const zr_folder_item_t *item = &items[index];
    if (item->kind == ZR_FOLDER_OLD)
        return index == 0 || items[index - 1].step != item->step;
    return item->kind == ZR_FOLDER_NAMED;
}

/* ---- reading one ----------------------------------------------------------------------------- */

/* The first message is the reason: errors are logged once. */
static void keep_reason(void *context, zr_log_level_t level, int rank, const char *message) {
    char *reason = context;
    (void)rank;
    if (level == ZR_LOG_ERROR && reason[0] == '\0')
        snprintf(reason, 256, "%s", message);
}

zr_status_t zr_folder_read(int folder_fd, const char *name, const zr_secret_t *secret,
                           char reason[256], int *fd_p, zr_manifest_t *manifest_p) {
    zr_log_t log = {.sink = keep_reason, .context = reason, .level = ZR_LOG_ERROR, .rank = -1};
    reason[0] = '\0';
    int fd = openat(folder_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return zr_fail(&log, ZR_ERR_FORMAT, "%s is not a folder", name);
    if (fd < 0)
        return zr_file_fail("open", name, NULL, errno, &log);
    zr_status_t status = zr_manifest_read_at(fd, name, secret, &log, manifest_p);
    if (status != ZR_OK)
        close(fd);
    else
        *fd_p = fd;
    return status;
}

/* ---- the newest ------------------------------------------------------------------------------ */

void zr_folder_found_clear(zr_folder_found_t *found) {
    if (found->fd >= 0)
        close(found->fd);
    free(found->path);
    zr_manifest_clear(&found->manifest);
    *found = (zr_folder_found_t){.fd = -1};
}

/* What is looked for, and where. */
typedef struct search {
    int folder_fd;
    const char *folder;
    size_t below; /* of fewer steps; SIZE_MAX: whichever */
    const zr_secret_t *secret;
    const zr_log_t *log;
} search_t;

/* Take the first that is complete; *index_p is n_items when none is. */
static zr_status_t take_first(const search_t *search, const zr_folder_item_t *items, size_t n_items,
                              size_t *index_p, zr_folder_found_t *found) {
    char reason[256];
    for (*index_p = 0; *index_p < n_items; (*index_p)++) {
        const zr_folder_item_t *item = &items[*index_p];
        if (!zr_folder_is_checkpoint(items, *index_p) || item->step >= search->below)
            continue;
        zr_status_t status = ZR_ERR_IO;
        for (int i = 0; i < ZR_FOLDER_TRIES && status == ZR_ERR_IO; i++)
            status = zr_folder_read(search->folder_fd, item->name, search->secret, reason,
                                    &found->fd, &found->manifest);
        if (status == ZR_OK)
            return ZR_OK;
        if (status == ZR_ERR_MEMORY)
            return zr_fail(search->log, status, "%s: %s", search->folder, reason);
        if (status == ZR_ERR_ARGUMENT) /* of another secret; what is older is no better */
            return zr_fail(search->log, status, "%s/%s", search->folder, reason);
        zr_log_write(search->log, ZR_LOG_WARNING, "skipped %s/%s, which is not complete: %s",
                     search->folder, item->name, reason);
    }
    return ZR_OK;
}

static void tell_unfinished(const char *folder, const zr_log_t *log, const zr_folder_item_t *items,
                            size_t n_items) {
    for (size_t i = 0; i < n_items; i++)
        if (items[i].kind == ZR_FOLDER_PARTIAL)
            zr_log_write(log, ZR_LOG_WARNING, "skipped %s/%s, which was never finished", folder,
                         items[i].name);
}

/* "latest" is for people and other programs: what is taken follows from the names alone. It is
 * another one when a run was ended just before it was replaced, and when a folder has checkpoints
 * of two runs. */
static void tell_latest(int folder_fd, const char *folder, const zr_log_t *log, const char *taken) {
    char text[65] = "";
    int fd = openat(folder_fd, ZR_FOLDER_LATEST, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    zr_folder_item_t item;
    if (fd >= 0)
        close(fd);
    if (n < 1)
        return;
    text[strcspn(text, "\n")] = '\0';
    if (read_name(text, &item) && strcmp(text, taken) != 0 &&
        faccessat(folder_fd, text, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        zr_log_write(log, ZR_LOG_WARNING,
                     "%s: uses %s, although \"%s\" says %s; if they belong to two runs, name one "
                     "of them, or remove the other's checkpoints",
                     folder, taken, ZR_FOLDER_LATEST, text);
}

static zr_status_t find_newest(const search_t *search, zr_folder_found_t *found) {
    const char *folder = search->folder;
    const zr_log_t *log = search->log;
    size_t below = search->below, n_items = 0, index = 0;
    zr_folder_item_t *items = NULL;
    ZR_TRY(zr_folder_scan(search->folder_fd, folder, log, &items, &n_items));
    if (below == SIZE_MAX)
        tell_unfinished(folder, log, items, n_items);
    zr_status_t status = take_first(search, items, n_items, &index, found);
    if (status == ZR_OK && index == n_items && below != SIZE_MAX)
        status =
            zr_fail(log, ZR_ERR_FORMAT,
                    "%s has no older checkpoint to resume from: all have damaged data", folder);
    else if (status == ZR_OK && index == n_items)
        status =
            zr_fail(log, ZR_ERR_IO,
                    "%s has no complete checkpoint and is not a checkpoint itself: it has no %s",
                    folder, ZR_MANIFEST_NAME);
    else if (status == ZR_OK && asprintf(&found->path, "%s/%s", folder, items[index].name) < 0) {
        found->path = NULL;
        status = zr_fail(log, ZR_ERR_MEMORY, "%s: no memory for a path", folder);
    }
    if (status == ZR_OK && below == SIZE_MAX)
        tell_latest(search->folder_fd, folder, log, items[index].name);
    free(items);
    return status;
}

zr_status_t zr_folder_newest(const char *folder, size_t below, const zr_secret_t *secret,
                             const zr_log_t *log, zr_folder_found_t *found_p) {
    search_t search = {-1, folder, below, secret, log};
    zr_folder_found_t found = {.fd = -1};
    ZR_TRY(zr_folder_open(folder, log, &search.folder_fd));
    zr_status_t status = find_newest(&search, &found);
    close(search.folder_fd);
    if (status != ZR_OK)
        zr_folder_found_clear(&found);
    else
        *found_p = found;
    return status;
}
