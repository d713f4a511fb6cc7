/*
 * Frozen parameters are in the checkpoint that a run went on from: what it saves has links to those
 * files, or, where the file system has none, copies, so that each checkpoint is whole by itself,
 * and takes no more room than what is trained.
 *
 * A file is linked with all that it has. So all of its tensors have to be frozen now.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "zero/checkpoint/reader_internal.h"
#include "zero/checkpoint/save_internal.h"
#include "zero/runtime_internal.h"

#define PREFIX "base."
#define UNUSED SIZE_MAX

/* What is taken of another manifest: new numbers of its units and files, or UNUSED. */
typedef struct taken {
    const zr_manifest_t *from;
    size_t *units, *files;
    bool *rows; /* [2 * n_units] unit, then trainable before frozen */
} taken_t;

static size_t row_of(size_t unit, bool frozen) {
    return 2 * unit + frozen;
}

static void taken_free(taken_t *taken) {
    free(taken->units);
    free(taken->files);
    free(taken->rows);
}

/* Mark the rows of frozen parameters, and what they lie in. */
static zr_status_t mark(const zr_manifest_t *from, zr_frozen_names_t frozen, const zr_log_t *log,
                        taken_t *taken) {
    *taken = (taken_t){.from = from};
    taken->units = malloc((from->n_units + 1) * sizeof(size_t));
    taken->files = malloc((from->n_files + 1) * sizeof(size_t));
    taken->rows = calloc(2 * from->n_units + 1, sizeof(bool));
    if (taken->units == NULL || taken->files == NULL || taken->rows == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a checkpoint's parts");
    for (size_t i = 0; i < from->n_units; i++)
        taken->units[i] = UNUSED;
    for (size_t i = 0; i < from->n_files; i++)
        taken->files[i] = UNUSED;
    for (size_t i = 0; i < from->n_tensors; i++) {
        const zr_manifest_tensor_t *t = &from->tensors[i];
        if (!frozen.has(frozen.context, t->tensor.name))
            continue;
        taken->rows[row_of(t->unit, t->tensor.frozen)] = true;
        taken->units[t->unit] = 0;
    }
    for (size_t i = 0; i < from->n_extents; i++)
        if (taken->rows[row_of(from->extents[i].unit, from->extents[i].frozen)])
            taken->files[from->extents[i].file] = 0;
    return ZR_OK;
}

/* Whether what is taken has nothing else in it, such as state of the optimizer. */
static bool has_nothing_else(const taken_t *taken, zr_frozen_names_t frozen) {
    const zr_manifest_t *from = taken->from;
    bool is_apart = true;
    for (size_t i = 0; i < from->n_tensors; i++) {
        const zr_manifest_tensor_t *t = &from->tensors[i];
        is_apart &= !taken->rows[row_of(t->unit, t->tensor.frozen)] ||
                    frozen.has(frozen.context, t->tensor.name);
    }
    for (size_t i = 0; i < from->n_extents; i++) {
        const zr_manifest_extent_t *e = &from->extents[i];
        bool is_taken = taken->rows[row_of(e->unit, e->frozen)];
        is_apart &= taken->files[e->file] == UNUSED || (is_taken && e->n_arrays == 1);
    }
    return is_apart;
}

bool zr_checkpoint_can_be_linked(const zr_checkpoint_t *checkpoint, zr_frozen_names_t frozen) {
    const zr_log_t silent = {0};
    taken_t taken;
    bool can = mark(&checkpoint->found.manifest, frozen, &silent, &taken) == ZR_OK &&
               has_nothing_else(&taken, frozen);
    taken_free(&taken);
    return can;
}

static bool is_frozen(const void *context, const char *name) {
    const zr_param_t *param = zr_units_find_param(context, name);
    return param != NULL && param->about->layout.frozen;
}

static zr_frozen_names_t frozen_of(const zr_units_t *model) {
    return (zr_frozen_names_t){.has = is_frozen, .context = model};
}

/* All that is frozen is there, and can be had. */
static zr_status_t check_links(const zr_checkpoint_t *checkpoint, const zr_units_t *model,
                               const zr_base_t *base) {
    for (size_t i = 0; i < model->n_params; i++)
        if (model->params[i]->about->layout.frozen && model->params[i]->is_new)
            return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                           "checkpoint %s lacks \"%s\", which is frozen: it cannot be linked",
                           checkpoint->found.path, model->params[i]->about->name);
    if (zr_checkpoint_can_be_linked(checkpoint, frozen_of(model)))
        return ZR_OK;
    return zr_fail(&base->log, ZR_ERR_ARGUMENT,
                   "checkpoint %s has frozen parameters in the same files as other data: they "
                   "cannot be linked; export its weights and import them",
                   checkpoint->found.path);
}

/* What is encoded is in no checkpoint: it is made again of what it was made of. */
zr_status_t zr_saves_check_encoded(const zr_units_t *model, const zr_base_t *base) {
    for (size_t i = 0; i < model->n_units && !base->links_frozen; i++)
        if (zr_unit_is_encoded(model->units[i], FLAT_FROZEN))
            return zr_fail(
                &base->log, ZR_ERR_UNSUPPORTED,
                "unit \"%s\" keeps frozen parameters in %s, which checkpoints do not support: to "
                "save, resume from a checkpoint with their values and link to it",
                model->units[i]->name, zr_unit_encoding(model->units[i], FLAT_FROZEN)->name);
    return ZR_OK;
}

zr_status_t zr_saves_prepare(zr_saves_t *saves, const zr_restore_t *restore,
                             const zr_units_t *model) {
    const zr_base_t *base = saves->base;
    if (saves->are_expected)
        ZR_TRY(zr_saves_check_encoded(model, base));
    if (!base->links_frozen)
        return ZR_OK;
    if (!zr_base_has_data(base))
        return ZR_OK;
    if (restore->checkpoint == NULL)
        return zr_fail(&base->log, ZR_ERR_STATE,
                       "zr_runtime_link_frozen without zr_runtime_restore");
    ZR_TRY(check_links(restore->checkpoint, model, base));
    saves->linked = strdup(restore->checkpoint->found.path);
    return saves->linked != NULL ? ZR_OK : zr_base_no_memory(base, "a path");
}

/* ---- files ----------------------------------------------------------------------------------- */

static zr_status_t copy_bytes(int from, int to, const char *path, const zr_log_t *log) {
    char bytes[65536];
    ssize_t n;
    while ((n = read(from, bytes, sizeof(bytes))) > 0)
        for (ssize_t done = 0, written; done < n; done += written)
            if ((written = write(to, bytes + done, (size_t)(n - done))) < 0)
                return zr_file_fail("write", path, NULL, errno, log);
    if (n < 0 || fsync(to) != 0)
        return zr_file_fail(n < 0 ? "read" : "write", path, NULL, errno, log);
    return ZR_OK;
}

static zr_status_t copy_file(int folder, const char *name, const char *path, const zr_log_t *log) {
    int from = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    int to = from < 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    zr_status_t status =
        to < 0 ? zr_file_fail("copy", path, NULL, errno, log) : copy_bytes(from, to, path, log);
    if (from >= 0)
        close(from);
    if (to >= 0 && close(to) != 0 && status == ZR_OK)
        status = zr_file_fail("write", path, NULL, errno, log);
    return status;
}

static zr_status_t link_file(int folder, const char *name, const char *partial, const char *as,
                             const zr_log_t *log) {
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", partial, as) >= sizeof(path))
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: the path is too long", partial);
    return linkat(folder, name, AT_FDCWD, path, 0) == 0 ? ZR_OK
                                                        : copy_file(folder, name, path, log);
}

/* ---- the manifest ---------------------------------------------------------------------------- */

static zr_status_t grow(void *list_p, size_t n, size_t more, size_t elem_bytes,
                        const zr_log_t *log) {
    void **list = list_p, *larger = realloc(*list, (n + more + 1) * elem_bytes);
    if (larger == NULL)
        return zr_fail(log, ZR_ERR_MEMORY, "no memory for a checkpoint's manifest");
    *list = larger;
    return ZR_OK;
}

static zr_status_t add_units(taken_t *taken, zr_manifest_t *to, const zr_log_t *log) {
    for (size_t i = 0; i < taken->from->n_units; i++) {
        const char *name = taken->from->units[i];
        if (taken->units[i] == UNUSED)
            continue;
        bool has_prefix = strncmp(name, PREFIX, strlen(PREFIX)) == 0;
        if (asprintf(&to->units[to->n_units], "%s%s", has_prefix ? "" : PREFIX, name) < 0)
            return zr_fail(log, ZR_ERR_MEMORY, "no memory for a checkpoint's manifest");
        taken->units[i] = to->n_units++;
    }
    return ZR_OK;
}

static zr_status_t add_tensors(const taken_t *taken, zr_manifest_t *to, const zr_log_t *log) {
    for (size_t i = 0; i < taken->from->n_tensors; i++) {
        zr_manifest_tensor_t tensor = taken->from->tensors[i];
        if (!taken->rows[row_of(tensor.unit, tensor.tensor.frozen)])
            continue;
        tensor.unit = taken->units[tensor.unit];
        tensor.tensor.unit = to->units[tensor.unit];
        tensor.tensor.name = strdup(tensor.tensor.name);
        if (tensor.tensor.name == NULL)
            return zr_fail(log, ZR_ERR_MEMORY, "no memory for a checkpoint's manifest");
        to->tensors[to->n_tensors++] = tensor;
    }
    return ZR_OK;
}

static zr_status_t add_files(taken_t *taken, int folder, const char *partial, zr_manifest_t *to,
                             const zr_log_t *log) {
    for (size_t i = 0, n = 0; i < taken->from->n_files; i++) {
        const zr_manifest_file_t *from = &taken->from->files[i];
        if (taken->files[i] == UNUSED)
            continue;
        zr_manifest_file_t file = *from;
        snprintf(file.data, sizeof(file.data), "base-%05zu.data", n);
        snprintf(file.sums, sizeof(file.sums), "base-%05zu.sums", n++);
        ZR_TRY(link_file(folder, from->data, partial, file.data, log));
        ZR_TRY(link_file(folder, from->sums, partial, file.sums, log));
        taken->files[i] = to->n_files;
        to->files[to->n_files++] = file;
    }
    return ZR_OK;
}

static zr_status_t add_all(taken_t *taken, int folder, const char *partial, zr_manifest_t *to,
                           const zr_log_t *log) {
    const zr_manifest_t *from = taken->from;
    ZR_TRY(grow(&to->units, to->n_units, from->n_units, sizeof(*to->units), log));
    ZR_TRY(grow(&to->tensors, to->n_tensors, from->n_tensors, sizeof(*to->tensors), log));
    ZR_TRY(grow(&to->files, to->n_files, from->n_files, sizeof(*to->files), log));
    ZR_TRY(grow(&to->extents, to->n_extents, from->n_extents, sizeof(*to->extents), log));
    ZR_TRY(add_units(taken, to, log));
    for (size_t i = 0; i < to->n_tensors; i++) /* `units` may have moved */
        to->tensors[i].tensor.unit = to->units[to->tensors[i].unit];
    ZR_TRY(add_tensors(taken, to, log));
    ZR_TRY(add_files(taken, folder, partial, to, log));
    for (size_t i = 0; i < from->n_extents; i++) {
        zr_manifest_extent_t extent = from->extents[i];
        if (!taken->rows[row_of(extent.unit, extent.frozen)])
            continue;
        extent.unit = taken->units[extent.unit];
        extent.file = taken->files[extent.file];
        to->extents[to->n_extents++] = extent;
    }
    return ZR_OK;
}

zr_status_t zr_base_link(const char *path, const zr_units_t *model, const char *partial,
                         const zr_log_t *log, zr_manifest_t *to) {
    zr_manifest_t from = {0};
    taken_t taken = {0};
    int folder = -1;
    ZR_TRY(zr_folder_open(path, log, &folder));
    zr_status_t status = zr_manifest_read_at(folder, path, NULL, log, &from);
    ZR_THEN(status, mark(&from, frozen_of(model), log, &taken));
    ZR_THEN(status, add_all(&taken, folder, partial, to, log));
    taken_free(&taken);
    zr_manifest_clear(&from);
    close(folder);
    return status;
}
