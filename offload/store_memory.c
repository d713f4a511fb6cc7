/*
 * Store "memory": the reference. Extents lie one behind the other in host memory.
 *
 * Nothing happens when a transfer is started; each call of progress makes the oldest one. So a
 * caller that looks at a buffer too early is found out here, not on a slow drive.
 */
#include <string.h>

#include "offload/store_backend.h"

typedef struct memory_store {
    zr_store_t base;
    zr_store_memory_t data;
    size_t *begins; /* [n_extents] of the extents in `data` */
    zr_store_memory_t begins_memory;
    zr_store_transfer_t *oldest, *newest;
} memory_store_t;

static zr_status_t open_memory(zr_store_t *store) {
    memory_store_t *memory = (memory_store_t *)store;
    size_t n_extents = store->info.n_extents, size_bytes = 0;
    ZR_TRY(zr_store_memory_allocate(store, ZR_TAG_OTHER, "the store's table",
                                    n_extents * sizeof(size_t), _Alignof(size_t),
                                    &memory->begins_memory));
    memory->begins = memory->begins_memory.base;
    for (size_t i = 0; i < n_extents; i++) {
        memory->begins[i] = size_bytes;
        size_bytes += store->extents[i].size_bytes;
    }
    ZR_TRY(zr_store_memory_allocate(store, ZR_TAG_OTHER, "the store's extents", size_bytes, 64,
                                    &memory->data));
    store->info.request_bytes = store->options.request_bytes;
    store->info.depth = 1;
    store->info.reserved_bytes = size_bytes;
    return ZR_OK;
}

static void close_memory(zr_store_t *store) {
    memory_store_t *memory = (memory_store_t *)store;
    zr_store_memory_free(store, &memory->data);
    zr_store_memory_free(store, &memory->begins_memory);
}

static zr_store_place_t locate(const zr_store_t *store, size_t extent, size_t offset_bytes) {
    const memory_store_t *memory = (const memory_store_t *)store;
    return (zr_store_place_t){"host memory", memory->begins[extent] + offset_bytes};
}

static void start(zr_store_t *store, zr_store_transfer_t *transfer) {
    memory_store_t *memory = (memory_store_t *)store;
    if (memory->oldest == NULL)
        memory->oldest = transfer;
    else
        memory->newest->next = transfer;
    memory->newest = transfer;
}

static void progress(zr_store_t *store, bool wait) {
    memory_store_t *memory = (memory_store_t *)store;
    zr_store_transfer_t *transfer = memory->oldest;
    (void)wait;
    if (transfer == NULL)
        return;
    memory->oldest = transfer->next;
    transfer->next = NULL;

    const zr_store_place_t found = locate(store, transfer->extent, transfer->offset_bytes);
    const zr_store_piece_t piece = {.transfer = transfer,
                                    .offset_bytes = transfer->offset_bytes,
                                    .size_bytes = transfer->size_bytes,
                                    .file = found.file,
                                    .file_offset_bytes = found.offset_bytes};
    unsigned char *place = (unsigned char *)memory->data.base + piece.file_offset_bytes;
    zr_store_piece_begins(store, &piece);
    if (transfer->direction == ZR_STORE_PUT)
        memcpy(place, transfer->buffer, transfer->size_bytes);
    else
        memcpy(transfer->buffer, place, transfer->size_bytes);
    const zr_store_outcome_t outcome = {
        .status = ZR_OK, .n_requests = 1, .moved_bytes = transfer->size_bytes};
    zr_store_piece_ended(store, &piece, &outcome);
}

const zr_store_backend_t zr_store_memory_backend = {
    .name = "memory",
    .handle_bytes = sizeof(memory_store_t),
    .open = open_memory,
    .close = close_memory,
    .start = start,
    .progress = progress,
    .locate = locate,
};
