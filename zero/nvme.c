/* The store of a rank, and what is declared for it: see nvme_internal.h. */
#include "zero/nvme_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "offload/store_backend.h"

#define MOST_CHUNK_BYTES ((size_t)256 << 10)
#define N_BOUNCE_BUFFERS 2 /* ragged ends alone are not aligned */

/* ---- what is declared -------------------------------------------------------------------- */

static zr_status_t check_desc(const zr_nvme_t *nvme, const zr_extents_desc_t *desc) {
    const zr_log_t *log = &nvme->base->log;
    if (desc == NULL || desc->name == NULL || (desc->extents == NULL && desc->n_extents > 0))
        return zr_fail(log, ZR_ERR_ARGUMENT, "extents of the store need a name, and an array");
    for (size_t i = 0; i < desc->n_extents; i++)
        if (desc->extents[i].name == NULL)
            return zr_fail(log, ZR_ERR_ARGUMENT, "%s: extent %zu of %zu has no name", desc->name, i,
                           desc->n_extents);
    if (desc->unit_bytes == 0 || desc->unit_bytes % ZR_STORE_CHUNK_ALIGN_BYTES != 0)
        return zr_fail(
            log, ZR_ERR_ARGUMENT,
            "%s: transfers begin at multiples of %zu bytes, which must be a multiple of %zu",
            desc->name, desc->unit_bytes, ZR_STORE_CHUNK_ALIGN_BYTES);
    if (nvme->n_parts == ZR_STORE_MAX_ACCOUNTS)
        return zr_fail(log, ZR_ERR_ARGUMENT, "%s: the store has %d users already", desc->name,
                       ZR_STORE_MAX_ACCOUNTS);
    return ZR_OK;
}

/* An extent begins at a block of its file, so it takes whole ones. */
static uint64_t room_for(uint64_t size_bytes) {
    uint64_t block_bytes = ZR_STORE_CHUNK_ALIGN_BYTES;
    return (size_bytes + block_bytes - 1) / block_bytes * block_bytes;
}

static zr_status_t append_extents(zr_nvme_t *nvme, const zr_extents_desc_t *desc,
                                  zr_nvme_part_t *part) {
    size_t n_extents = nvme->n_extents + desc->n_extents;
    if (nvme->heap == NULL && (nvme->heap = zr_heap_create(nvme->base->heap)) == NULL)
        return zr_base_no_memory(nvme->base, "extents");
    zr_store_extent_t *grown = zr_heap_resize(nvme->heap, nvme->extents, n_extents, sizeof(*grown));
    if (grown == NULL)
        return zr_base_no_memory(nvme->base, zr_count_text(n_extents, "extent").text);
    nvme->extents = grown;
    for (size_t i = 0; i < desc->n_extents; i++) {
        zr_store_extent_t *extent = &nvme->extents[nvme->n_extents];
        *extent = desc->extents[i];
        extent->account = nvme->n_parts;
        extent->name = zr_heap_text(nvme->heap, desc->extents[i].name);
        if (extent->name == NULL)
            return zr_base_no_memory(nvme->base, "names of extents");
        nvme->n_extents++;
        part->size_bytes += room_for(extent->size_bytes);
    }
    return ZR_OK;
}

size_t zr_nvme_common_chunk(size_t chunk_bytes, size_t unit_bytes) {
    while (unit_bytes % chunk_bytes != 0)
        chunk_bytes /= 2;
    return chunk_bytes;
}

zr_status_t zr_nvme_declare(zr_nvme_t *nvme, const zr_extents_desc_t *desc,
                            zr_extents_t *extents_p) {
    ZR_TRY(check_desc(nvme, desc));
    zr_nvme_part_t part = {.name = desc->name, .advice = desc->advice};
    zr_extents_t extents = {
        .first = nvme->n_extents, .n_extents = desc->n_extents, .account = nvme->n_parts};
    ZR_TRY(append_extents(nvme, desc, &part));
    if (nvme->chunk_bytes == 0)
        nvme->chunk_bytes =
            zr_nvme_common_chunk(MOST_CHUNK_BYTES, nvme->base->config.nvme.request_bytes);
    nvme->chunk_bytes = zr_nvme_common_chunk(nvme->chunk_bytes, desc->unit_bytes);
    nvme->max_transfers += desc->max_transfers;
    nvme->parts[nvme->n_parts++] = part;
    *extents_p = extents;
    return ZR_OK;
}

/* ---- what a rank may use --------------------------------------------------------------------- */

/* A message in the making; what does not fit is cut. */
typedef struct text {
    char all[1024];
    size_t length;
} text_t;

static void say(text_t *text, const char *format, ...) ZR_PRINTF(2, 3);

static void say(text_t *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int n =
        vsnprintf(text->all + text->length, sizeof(text->all) - text->length, format, arguments);
    va_end(arguments);
    text->length += n < 0 ? 0 : (size_t)n;
    if (text->length >= sizeof(text->all))
        text->length = sizeof(text->all) - 1;
}

static void say_parts(text_t *text, const zr_nvme_t *nvme) {
    for (size_t i = 0; i < nvme->n_parts; i++)
        say(text, "%s%s %s", i == 0 ? "" : ", ", nvme->parts[i].name,
            zr_size_text(nvme->parts[i].size_bytes).text);
}

/* Each way out that any of the parts has, once. */
static void say_advice(text_t *text, const zr_nvme_t *nvme) {
    for (size_t i = 0; i < nvme->n_parts; i++) {
        const char *const *phrase = nvme->parts[i].advice;
        for (; phrase != NULL && *phrase != NULL; phrase++)
            if (strstr(text->all, *phrase) == NULL)
                say(text, ", %s", *phrase);
    }
}

static zr_status_t check_capacity(const zr_nvme_t *nvme) {
    uint64_t need = 0, capacity = nvme->base->config.nvme.capacity_bytes;
    for (size_t i = 0; i < nvme->n_parts; i++)
        need += nvme->parts[i].size_bytes;
    if (capacity == ZR_CONFIG_NO_BUDGET || need <= capacity)
        return ZR_OK;
    text_t parts = {.length = 0}, advice = {.length = 0};
    say_parts(&parts, nvme);
    say_advice(&advice, nvme);
    return zr_fail(&nvme->base->log, ZR_ERR_BUDGET,
                   "nvme: %s (%llu bytes) do not fit the %s (%llu bytes) that this rank may use: "
                   "%s; try a larger --nvme-capacity%s",
                   zr_size_text(need).text, (unsigned long long)need, zr_size_text(capacity).text,
                   (unsigned long long)capacity, parts.all, advice.all);
}

/* ---- the store ------------------------------------------------------------------------------- */

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

zr_store_options_t zr_nvme_store_options(const zr_base_t *base) {
    const zr_nvme_options_t *asked = &base->config.nvme;
    zr_store_options_t options = zr_store_options_default();
    options.log = base->log;
    options.allocator = base->allocator;
    options.device = base->device;
    options.request_bytes = asked->request_bytes;
    options.depth = asked->depth;
    options.submit_batch = asked->submit_batch < asked->depth ? asked->submit_batch : asked->depth;
    options.n_bounce_buffers = N_BOUNCE_BUFFERS;
    return options;
}

static zr_status_t create_store(zr_nvme_t *nvme) {
    const zr_base_t *base = nvme->base;
    const zr_nvme_options_t *asked = &base->config.nvme;
    char folders[ZR_CONFIG_PATHS_BYTES];
    const char *paths[ZR_STORE_MAX_PATHS];
    bool is_drive = strcmp(asked->store, "memory") != 0;
    zr_store_options_t options = zr_nvme_store_options(base);
    snprintf(folders, sizeof(folders), "%s", asked->paths);
    options.allocator = is_drive ? base->allocator : NULL; /* "memory" stands for a drive */
    options.verify = asked->verify;
    options.chunk_bytes = nvme->chunk_bytes;
    options.max_transfers = nvme->max_transfers;
    options.paths = paths;
    options.n_paths = split_paths(folders, asked->files_per_path, paths);
    if (asked->backend != NULL)
        return zr_store_create_from(asked->backend, &options, nvme->extents, nvme->n_extents,
                                    &nvme->store);
    const char *store = asked->store;
    if (strcmp(store, "uring") == 0) /* one rank says so for all */
        store = zr_store_drive_backend(base->rank == 0 ? &base->log : NULL);
    return zr_store_create(store, &options, nvme->extents, nvme->n_extents, &nvme->store);
}

/* The store has copies. */
static void forget_extents(zr_nvme_t *nvme) {
    zr_heap_destroy(&nvme->heap);
    nvme->extents = NULL;
    nvme->n_extents = 0;
}

zr_status_t zr_nvme_open(zr_nvme_t *nvme) {
    if (nvme->n_parts == 0)
        return ZR_OK;
    ZR_TRY(check_capacity(nvme));
    ZR_TRY(create_store(nvme));
    forget_extents(nvme);
    return ZR_OK;
}

void zr_nvme_close(zr_nvme_t *nvme) {
    forget_extents(nvme);
    zr_store_destroy(&nvme->store);
}
