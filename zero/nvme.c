/* Opening a store as the configuration says: see nvme.h. */
#include "zero/nvme.h"

#include <stdio.h>
#include <string.h>

#include "zero/runtime_internal.h"

#define MOST_CHUNK_BYTES ((size_t)256 << 10)

/* Cut a list of folders at its commas, in place; each is named once per file in it. No more than
 * there may be: config has been checked. */
static size_t split_paths(char *text, size_t n_files, const char *paths[ZR_STORE_MAX_PATHS]) {
    size_t n_folders = 0;
    char *rest = NULL;
    for (char *path = strtok_r(text, ",", &rest); path != NULL; path = strtok_r(NULL, ",", &rest))
        paths[n_folders++] = path;
    for (size_t i = n_folders; i < n_folders * n_files; i++)
        paths[i] = paths[i % n_folders];
    return n_folders * n_files;
}

/* The largest chunk at whose multiples all transfers begin, and requests end. */
static size_t chunk_bytes(const zr_nvme_options_t *nvme, size_t group_bytes) {
    size_t chunk = MOST_CHUNK_BYTES;
    while (group_bytes % chunk != 0 || nvme->request_bytes % chunk != 0)
        chunk /= 2;
    return chunk;
}

void zr_runtime_store_options(const zr_runtime_t *runtime, zr_store_paths_t *paths_p,
                              zr_store_options_t *options_p) {
    const zr_nvme_options_t *nvme = &runtime->config.nvme;
    bool is_drive = strcmp(nvme->store, "memory") != 0;
    *options_p = zr_store_options_default();
    snprintf(paths_p->text, sizeof(paths_p->text), "%s", nvme->paths);
    options_p->log = runtime->log;
    options_p->allocator = is_drive ? runtime->allocator : NULL; /* "memory" stands for a drive */
    options_p->verify = nvme->verify;
    options_p->paths = paths_p->paths;
    options_p->n_paths = split_paths(paths_p->text, nvme->files_per_path, paths_p->paths);
    options_p->request_bytes = nvme->request_bytes;
    options_p->depth = nvme->depth;
    options_p->submit_batch = nvme->submit_batch < nvme->depth ? nvme->submit_batch : nvme->depth;
}

zr_status_t zr_nvme_open(zr_runtime_t *runtime, const zr_nvme_request_t *request,
                         zr_store_t **store_p) {
    const zr_nvme_options_t *nvme = &runtime->config.nvme;
    zr_store_paths_t paths;
    zr_store_options_t options;
    zr_runtime_store_options(runtime, &paths, &options);
    options.chunk_bytes = chunk_bytes(nvme, request->group_bytes);
    options.max_transfers = request->max_transfers;
    options.n_bounce_buffers = 2; /* ragged ends alone are not aligned */
    return zr_store_create(nvme->store, &options, request->extents, request->n_extents, store_p);
}
